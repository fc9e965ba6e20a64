"""Opening a ledger for writing as every command does it: pins checked before, the pin moved after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from ledger.errors import LedgerBroken, LedgerError
from realizer.cli.rendering import warn

if TYPE_CHECKING:
    from ledger.bodies import Body
    from ledger.reconcile import Judgement
    from ledger.recording import Draft, Recorded, Recorder
    from ledger.store import Store
    from realizer.cli.resolving import RunSource


@contextmanager
def writable_ledger(location: str, *, create: bool = True) -> Iterator[Store]:
    """The ledger, created where there is none unless `create` is false; the pin moves with what was appended.

    Raises LedgerError (foreign, newer, read-only, guards gone) and LedgerBroken (rolled back or forked since the pin).
    """
    from ledger import pins
    from ledger.store import Store

    with Store.open(location, write=True, create=create) as store:
        pins.check_pin(store)
        try:
            yield store
        finally:
            _move_pin(store)


def _move_pin(store: Store) -> None:
    """Move the pin; a state folder that cannot be written is said, and undoes nothing of what was recorded."""
    from ledger import pins

    try:
        pins.move_pin(store)
    except LedgerBroken:
        raise
    except LedgerError as error:
        warn(f"{error}; a rollback to before these events will not be noticed here")


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


def imported_drafts(run_id: str, node_id: str, bodies: Iterable[Body]) -> list[Draft]:
    """Drafts in order for facts that a document declares: no clock of the run ran beside them."""
    from ledger.events import Actor
    from ledger.recording import Draft, timestamp, uuid7

    return [
        Draft(
            event_id=uuid7(),
            run_id=run_id,
            body=body,
            recorded_at=timestamp(),
            elapsed_ns=None,
            node_id=node_id,
            actor=Actor(kind="importer", id=program()),
        )
        for body in bodies
    ]


def program() -> str:
    """What events name as the program: `tallystick VERSION`."""
    from importlib.metadata import version

    return f"tallystick {version('tallystick')}"


def record_verdict(store: Store, source: RunSource, judgement: Judgement) -> Recorded:
    """Append `verdict.recorded` to a closed run, in the judge's name."""
    from ledger.bodies import VerdictRecorded
    from ledger.reconcile import JUDGE_VERSION

    node_id = next(source.events()).node_id
    judge = latecomer(store, source.run_id, node_id, kind="judge", name=f"judge {JUDGE_VERSION}")
    codes = sorted({finding.code for finding in judgement.findings})
    return judge(
        VerdictRecorded(
            judge_version=JUDGE_VERSION, verdict=judgement.verdict, assurance=judgement.assurance, codes=codes
        )
    )


def shown_ledger(location: str) -> str:
    """A ledger's location as it may be printed: without a password."""
    from ledger.database import hide_password

    return hide_password(location)
