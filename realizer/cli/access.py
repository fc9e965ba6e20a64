"""Writing to a ledger as every command does it: what warns does so on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from realizer import recorded
from realizer.cli.rendering import warn
from realizer.recorded import program

if TYPE_CHECKING:
    from ledger.bodies import Body
    from ledger.recording import Draft
    from ledger.store import Store


@contextmanager
def writable_ledger(location: str, *, create: bool = True) -> Iterator[Store]:
    """`realizer.recorded.writable_ledger`, which warns on standard error."""
    with recorded.writable_ledger(location, create=create, warn=warn) as store:
        yield store


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


def shown_ledger(location: str) -> str:
    """A ledger's location as it may be printed: without a password."""
    from ledger.database import hide_password

    return hide_password(location)
