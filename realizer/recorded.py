"""Realizing into a ledger: for a program that loads models itself, the very record that `tally realize` leaves.

    with realize_into("tally.db", "plan.json", reference="reference.safetensors") as run:
        run.judgement.verdict
        run.model

Pins are checked before and moved after, the plan's freezing is cited, the run is closed whatever happens, and its verdict
is appended. The commands are made of the same pieces.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ledger.errors import LedgerBroken, LedgerError, PlanError

if TYPE_CHECKING:
    from ledger.bodies import FreezingReference
    from ledger.plan import Plan
    from ledger.reconcile import Judgement
    from ledger.recording import Recorded, Recorder
    from ledger.run_state import RunState
    from ledger.store import Store
    from realizer.engine import LiveRun


@contextmanager
def realize_into(ledger: str | Path, plan: str | Path | Plan, **request: Any) -> Iterator[LiveRun]:
    """Carry a frozen plan out into a ledger, record its verdict, and hand out the live run.

    `ledger` is a file or a server's URL, begun where there is none; `plan` the plan or its file. `request` takes what
    `realizer.engine.Request` does: `checkpoint`, `reference`, `adapter`, `labels`, `challenge`, `private`,
    `verify_content`. The verdict is recorded before the block begins, and may be any: look at `run.judgement`.

    Raises PlanError, LedgerError and LedgerBroken before a run is opened; what `realizer.engine.realize` raises after
    the run was closed and judged.
    """
    from ledger.plan import Plan, parse_plan
    from realizer import engine

    if isinstance(plan, Plan):
        found = plan
    else:
        try:
            found = parse_plan(Path(plan).read_bytes(), what=str(plan))
        except OSError as error:
            raise PlanError(f"plan {str(plan)!r} cannot be read: {error.strerror}", "check the path") from error
    if request.get("reference") is not None:
        request["reference"] = Path(request["reference"])
    with writable_ledger(str(ledger)) as store:
        recorder = begin(store, found)
        asked = engine.Request(plan=found, frozen=freezing(store, found), **request)
        settled = False
        try:
            with engine.realize(asked, sink=recorder, put_blob=store.put_blob) as run:
                settle(store, found, recorder.run_id)
                settled = True
                yield run
        except KeyboardInterrupt:
            if not settled:
                close_as_aborted(store, recorder)
            raise
        finally:
            if not settled:
                settle(store, found, recorder.run_id)


@contextmanager
def writable_ledger(
    location: str, *, create: bool = True, warn: Callable[[str], None] = warnings.warn
) -> Iterator[Store]:
    """The ledger, created where there is none unless `create` is false; the pin moves with what was appended.

    Raises LedgerError (foreign, newer, read-only, guards gone) and LedgerBroken (rolled back or forked since the pin).
    A state folder that cannot be written is warned of, and undoes nothing of what was recorded.
    """
    from ledger import pins
    from ledger.store import Store

    with Store.open(location, write=True, create=create) as store:
        pins.check_pin(store)
        try:
            yield store
        finally:
            try:
                pins.move_pin(store)
            except LedgerBroken:
                raise
            except LedgerError as error:
                warn(f"{error}; a rollback to before these events will not be noticed here")


def begin(store: Store, plan: Plan) -> Recorder:
    """A recorder for a new run of that plan, in the name of this program."""
    from ledger.events import Actor
    from ledger.recording import Recorder, uuid7

    nodes = plan.document.resources.nodes
    return Recorder(
        store.append,
        run_id=uuid7(),
        node_id=nodes[0].id if nodes else "unknown",
        actor=Actor(kind="realizer", id=program()),
    )


def freezing(store: Store, plan: Plan) -> FreezingReference | None:
    """The ledger's earliest `plan.frozen` event of that plan, as a run cites it."""
    from ledger.bodies import FreezingReference
    from ledger.events import read_event

    recorded = store.frozen(plan.computed_digest)
    if recorded is None:
        return None
    digest: str = read_event(recorded.envelope).body.digest
    return FreezingReference(hash=recorded.hash, position=recorded.position, digest=digest, ledger_size=store.size())


def close_as_aborted(store: Store, recorder: Recorder) -> None:
    """Close a run that was opened and that an interrupt kept the engine from closing."""
    from ledger.bodies import RunClosed

    last = None
    for last in store.events(recorder.run_id):
        if last.type == RunClosed.TYPE:
            return
    if last is not None:
        recorder(RunClosed(outcome="aborted", error_type="KeyboardInterrupt", message="interrupted by the operator"))


def settle(store: Store, plan: Plan, run_id: str) -> tuple[RunState, Judgement] | None:
    """Judge the run with its witnesses, and record the verdict if it was closed; None for a run that was never opened."""
    from ledger.fold import fold
    from ledger.reconcile import judge

    if store.next_sequence(run_id) == 0:
        return None
    state = fold(store.events(run_id))
    judgement = judge(plan, state, [fold(store.events(witness)) for witness in store.witnesses(run_id)])
    if state.closed is not None:
        append_verdict(store, run_id, judgement)
    return state, judgement


def append_verdict(store: Store, run_id: str, judgement: Judgement) -> Recorded:
    """Append `verdict.recorded` to a closed run, in the judge's name."""
    from ledger.bodies import VerdictRecorded
    from ledger.reconcile import JUDGE_VERSION

    node_id = next(store.events(run_id)).node_id
    judge = latecomer(store, run_id, node_id, kind="judge", name=f"judge {JUDGE_VERSION}")
    codes = sorted({finding.code for finding in judgement.findings})
    return judge(
        VerdictRecorded(
            judge_version=JUDGE_VERSION, verdict=judgement.verdict, assurance=judgement.assurance, codes=codes
        )
    )


def latecomer(
    store: Store,
    run_id: str,
    node_id: str,
    *,
    kind: Literal["operator", "judge", "importer"] = "operator",
    name: str | None = None,
) -> Recorder:
    """A recorder that appends to a stream at its end, as a process that comes later: without the run's clock."""
    from ledger.events import Actor
    from ledger.recording import Recorder

    return Recorder(
        store.append,
        run_id=run_id,
        node_id=node_id,
        actor=Actor(kind=kind, id=name or program()),
        next_sequence=store.next_sequence(run_id),
        clock=None,
    )


def program() -> str:
    """What events name as the program: `tallystick VERSION`."""
    from importlib.metadata import version

    return f"tallystick {version('tallystick')}"
