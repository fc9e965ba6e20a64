"""From what a person types for a run to its plan, events and witnesses: out of a ledger, or out of an evidence file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.errors import EvidenceBroken, LedgerBroken, NotFound

if TYPE_CHECKING:
    from ledger.documents import VerificationDocument
    from ledger.events import Event
    from ledger.plan import Plan
    from ledger.reconcile import Judgement
    from ledger.recording import Recorded
    from ledger.run_state import RunState
    from ledger.store import Store

RUN_ID_PREFIX = re.compile(r"[0-9a-f-]+|@.*")


@dataclass(frozen=True)
class RunSource:
    """One run, wherever it is kept. `recorded` and `witnesses` read anew at each call, so that no run need fit memory."""

    run_id: str
    origin: str
    plan: Plan | None
    recorded: Callable[[], Iterator[Recorded]]
    witnesses: Callable[[], list[RunState]]
    blob: Callable[[str], bytes | None]

    def events(self) -> Iterator[Event]:
        """The run's events in order of sequence."""
        from ledger.events import read_event

        for recorded in self.recorded():
            yield read_event(recorded.envelope)

    def judged(self) -> tuple[RunState, Judgement | None]:
        """The folded state with its witnesses, and the judgement; null for a run without a plan (a witness)."""
        from ledger.fold import fold
        from ledger.reconcile import judge

        witnesses = tuple(self.witnesses())
        state = replace(fold(self.events()), witnesses=witnesses)
        return state, judge(self.plan, state, witnesses) if self.plan is not None else None


def is_evidence(name: str) -> bool:
    """`name` is meant as an evidence file: not of the form of a run id, or an existing path that is."""
    return not RUN_ID_PREFIX.fullmatch(name) and (Path(name).exists() or "/" in name or name.endswith(".json"))


@contextmanager
def open_run(name: str, ledger: str, *, told: bool = False) -> Iterator[RunSource]:
    """The run that `name` means. A name of the form of a run id is one; write ./NAME for a file that is called so.

    Whoever tells what verifying says passes `told`, and gets evidence that states what its events do not bear out.
    Raises NotFound for an unknown run, an ambiguous prefix or an absent file; EvidenceBroken; LedgerError.
    """
    if is_evidence(name):
        yield from_evidence(name, told=told)
        return
    from ledger.store import Store

    with Store.open(ledger) as store:
        yield from_store(store, store.resolve(name))


def from_store(store: Store, run_id: str) -> RunSource:
    """A run of an open ledger."""
    from ledger.fold import fold

    return RunSource(
        run_id=run_id,
        origin=store.location,
        plan=plan_of(store, run_id),
        recorded=lambda: store.recorded(run_id),
        witnesses=lambda: [fold(store.events(witness)) for witness in store.witnesses(run_id)],
        blob=store.blob,
    )


def plan_of(store: Store, run_id: str) -> Plan | None:
    """The plan that the run was opened with, read from the ledger's blobs; null for a witness without one.

    Raises LedgerBroken when the run names a plan that the ledger does not hold.
    """
    from ledger.plan import parse_plan

    opened = next(store.events(run_id)).body
    reference = getattr(opened, "plan", None)
    if reference is None:
        return None
    data = store.blob(reference.blob_digest)
    if data is None:
        raise LedgerBroken(
            f"the ledger names plan {reference.blob_digest} for run {run_id} but does not hold it",
            "`tally verify` names everything that is missing",
        )
    return parse_plan(data, what="the recorded plan")


def from_evidence(name: str, *, told: bool = False) -> RunSource:
    """A run out of an evidence file whose form, chain, proofs and, unless `told`, conclusions hold.

    The signature is left to those who are given a key. Raises EvidenceBroken, NotFound.
    """
    from realizer.cli.files import read_input

    if not Path(name).exists():
        raise NotFound(f"no such file: {name!r}", "a run is a full id, a unique prefix, @latest, or an evidence file")
    from ledger.evidence import open_evidence, verify
    from ledger.fold import fold

    data = read_input(name, "evidence")
    evidence = open_evidence(data)
    if not told:
        require_unbroken(name, verify(data))
    blobs = dict(evidence.blobs)
    return RunSource(
        run_id=evidence.events[0].run_id,
        origin=name,
        plan=evidence.plan,
        recorded=lambda: iter(evidence.recorded),
        witnesses=lambda: [fold(witness) for witness in evidence.witnesses],
        blob=blobs.get,
    )


def require_unbroken(file: str, document: VerificationDocument, and_so: str = "") -> None:
    """Raises EvidenceBroken with the first problem that verifying the file found, and what came of it."""
    if document.status == "broken":
        first = document.problems[0]
        raise EvidenceBroken(
            f"evidence {file!r} is broken: {first.code}: {first.detail}{and_so}", "`tally verify` lists all of it"
        )
