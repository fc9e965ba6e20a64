"""An interrupt while an event is being recorded: nothing is lost, nothing is doubled, and the run can be closed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.bodies import MaterializationSkipped, RunClosed
from ledger.errors import EventError
from ledger.events import Actor
from ledger.recording import Draft, Recorded, Recorder
from ledger.store import Store
from tests.builders.runs import opened, small_plan

RUN = "01920000-0000-7000-8000-00000000000a"
SKIPPED = MaterializationSkipped(materialization_id="m", reason="r")


class Interrupting:
    """A store's `append` that is interrupted at one call, before the commit or just after it."""

    def __init__(self, store: Store, at: int, *, committed: bool) -> None:
        self.store, self.at, self.committed = store, at, committed
        self.calls = 0

    def __call__(self, run_id: str, expected_sequence: int, drafts: list[Draft]) -> list[Recorded]:
        self.calls += 1
        if self.calls == self.at and not self.committed:
            raise KeyboardInterrupt
        recorded = self.store.append(run_id, expected_sequence, drafts)
        if self.calls == self.at:
            raise KeyboardInterrupt
        return recorded


def recorder(append: Callable[[str, int, list[Draft]], list[Recorded]]) -> Recorder:
    return Recorder(append, run_id=RUN, node_id="node-a", actor=Actor(kind="realizer", id="test"))


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(
    ("at", "expected"),
    [(1, ["run.opened", "run.closed"]), (2, ["run.opened", "materialization.skipped", "run.closed"])],
)
def test_the_run_is_closed_after_an_interrupt_at_any_point(
    tmp_path: Path, at: int, expected: list[str], committed: bool
) -> None:
    with Store.open(tmp_path / "tally.db", write=True, create=True) as store:
        sink = recorder(Interrupting(store, at, committed=committed))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - which of the two is interrupted is the case
            sink(opened(small_plan()))
            sink(SKIPPED)
        sink(RunClosed(outcome="aborted"))
        events = list(store.events(RUN))
        assert [event.type for event in events] == expected
        assert [event.sequence for event in events] == list(range(len(expected)))


def test_an_event_that_was_refused_is_not_tried_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tally.db", write=True, create=True) as store:
        sink = recorder(store.append)
        sink(opened(small_plan()))
        with pytest.raises(EventError):
            sink(MaterializationSkipped(materialization_id="m", reason="\x00"))
        sink(RunClosed(outcome="failed"))
        assert [event.type for event in store.events(RUN)] == ["run.opened", "run.closed"]


def test_the_command_closes_what_the_engine_could_not(tmp_path: Path) -> None:
    from realizer.recorded import close_as_aborted

    with Store.open(tmp_path / "tally.db", write=True, create=True) as store:
        sink = recorder(store.append)
        close_as_aborted(store, sink)
        assert store.size() == 0, "a run that was not opened is not closed"
        sink(opened(small_plan()))
        for _ in range(2):
            close_as_aborted(store, sink)
            assert [event.type for event in store.events(RUN)] == ["run.opened", "run.closed"]
