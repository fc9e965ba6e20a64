"""Real ledgers filled with the runs that the builders make."""

from __future__ import annotations

from pathlib import Path

from ledger.bodies import Body
from ledger.plan import Plan
from ledger.recording import Draft, ListLedger, Recorded
from ledger.store import Store
from tests.builders.runs import record


class StoreLedger(ListLedger):
    """What `tests.builders.runs.record` writes into, over a real store."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def append(self, run_id: str, expected_sequence: int, drafts: list[Draft]) -> list[Recorded]:
        added = self.store.append(run_id, expected_sequence, drafts)
        self.recorded = list(self.store.recorded())
        return added


def seed(location: Path, plan: Plan, *runs: tuple[str, list[Body]]) -> None:
    """A ledger at `location` that holds the frozen plan and these runs, verdicts not recorded."""
    with Store.open(location, write=True, create=True) as store:
        store.put_blob(plan.data, "application/json")
        ledger = StoreLedger(store)
        ledger.recorded = list(store.recorded())
        for run_id, bodies in runs:
            record(bodies, plan, run_id=run_id, ledger=ledger)


FIRST = "01920000-0000-7000-8000-000000000001"
SECOND = "01920000-0000-7000-8000-000000000002"
OTHER = "01930000-0000-7000-8000-000000000003"
