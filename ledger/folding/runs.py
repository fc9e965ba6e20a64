"""Opening, plan, environment, reference and closing of a run."""

from __future__ import annotations

from ledger.bodies import (
    EnvironmentObserved,
    PlanAccepted,
    PlanFrozen,
    PlanRejectedEvent,
    ReferenceBound,
    RunClosed,
    RunOpened,
    RunSuperseded,
    VerdictRecorded,
)
from ledger.folding.keeping import keep, keep_each, overflow
from ledger.run_state import KEPT, RunState, Seen


def plan_frozen(state: RunState, sequence: int, body: PlanFrozen) -> None:
    state.freezing = state.freezing or Seen(sequence, body)


def opened(state: RunState, sequence: int, body: RunOpened) -> None:
    keep_each(state, "run.opened", state.openings, Seen(sequence, body))


def closed(state: RunState, sequence: int, body: RunClosed) -> None:
    state.closed = Seen(sequence, body)


def verdict(state: RunState, sequence: int, body: VerdictRecorded) -> None:
    keep(state.verdicts, Seen(sequence, body))


def superseded(state: RunState, sequence: int, body: RunSuperseded) -> None:
    keep(state.superseded, Seen(sequence, body))


def environment(state: RunState, sequence: int, body: EnvironmentObserved) -> None:
    keep_each(state, "environment.observed", state.environments, Seen(sequence, body))


def accepted(state: RunState, sequence: int, body: PlanAccepted) -> None:
    if state.accepted is not None and state.accepted.body != body:
        overflow(state, "plan.accepted")
    state.accepted = state.accepted or Seen(sequence, body)


def rejected(state: RunState, sequence: int, body: PlanRejectedEvent) -> None:
    state.rejected = state.rejected or Seen(sequence, body)


def reference(state: RunState, sequence: int, body: ReferenceBound) -> None:
    if len(state.references) < KEPT or body != state.references[-1].body:
        keep_each(state, "reference.bound", state.references, Seen(sequence, body))
