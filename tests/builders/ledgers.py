"""Small events for tests that care about the ledger and not about what the events say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledger.bodies import Body, MaterializationSkipped, RunOpened
from ledger.events import Actor
from ledger.plan import Plan
from ledger.recording import Draft, timestamp, uuid7
from ledger.store import Store
from tests.builders.runs import NODE, clean_bodies, opened, small_plan

ACTOR = Actor(kind="realizer", id="test")
PLAN = small_plan()


def draft(run_id: str, body: Body, *, event_id: str | None = None, **changes: Any) -> Draft:
    """A draft of a body, its other fields as any recorder would fill them."""
    fields = {"recorded_at": timestamp(), "elapsed_ns": 1, "node_id": NODE, "actor": ACTOR, **changes}
    return Draft(event_id=event_id or uuid7(), run_id=run_id, body=body, **fields)


def small_body(number: int) -> Body:
    """A small body that tells itself from others."""
    return MaterializationSkipped(materialization_id=f"mat.{number}", reason="test")


def small_drafts(run_id: str, count: int, *, start: int = 0) -> list[Draft]:
    """Drafts of a run from sequence `start`; sequence 0 opens it."""
    return [
        draft(run_id, opened(PLAN) if number == 0 else small_body(number)) for number in range(start, start + count)
    ]


def record_run(
    store: Store, bodies: Sequence[Body] | None = None, *, plan: Plan = PLAN, run_id: str | None = None, **opening: Any
) -> str:
    """Append a whole run (the clean one by default) as one batch; `opening` replaces fields of its run.opened."""
    run_id = run_id or uuid7()
    bodies = clean_bodies(plan) if bodies is None else bodies
    drafts = []
    for sequence, body in enumerate(bodies):
        if isinstance(body, RunOpened) and opening:
            body = body.model_copy(update=opening)
        drafts.append(draft(run_id, body, elapsed_ns=sequence * 1_000_000))
    store.append(run_id, 0, drafts)
    return run_id
