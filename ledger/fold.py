"""Events to `RunState`: what a run did, as far as its events say, in memory bounded by the plan and not by the events.

Laws: `fold` never raises on known events, reads no clock, and `fold(b, fold(a)) == fold(a + b)`; the state given is not
changed. Nothing is judged here and no plan is known here: per-id facts are kept as firsts, lasts, distinct values and
extremes, so that a rule which holds for what is kept holds for every event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from ledger.bodies import (
    AFTER_CLOSE,
    AuthorityEstablished,
    Body,
    DecodeRan,
    EnvironmentObserved,
    ExecutionActivated,
    MaterializationFailed,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationSkipped,
    MaterializationStarted,
    MemorySampled,
    PlanAccepted,
    PlanFrozen,
    PlanRejectedEvent,
    ReclamationObserved,
    ReferenceBound,
    ReleaseAuthorized,
    ReleaseRefused,
    RunClosed,
    RunOpened,
    RunSuperseded,
    SourceAccessed,
    SourceWatched,
    VerdictRecorded,
)
from ledger.events import Event
from ledger.folding import decodes, materializations, memory, runs, sources
from ledger.folding.keeping import keep, overflow
from ledger.measurement import Frozen, Measurement
from ledger.run_state import OBSERVERS, RunState, copied

T = TypeVar("T")


def fold(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """The state after `events`, beginning from `state` (which is left as it is) or from nothing."""
    result = copied(state) if state is not None else RunState()
    apply = _APPLY
    for event in events:
        body = event.body
        sequence = event.sequence
        if result.run_id is None:
            result.run_id, result.node_id = event.run_id, event.node_id
        elif result.run_id != event.run_id:
            overflow(result, "events of another run")
            continue
        if result.events_seen == 0:
            result.began = sequence
        result.events_seen += 1
        elapsed = event.elapsed_ns
        if elapsed is None:
            if result.untimed is None and event.type not in AFTER_CLOSE:
                result.untimed = sequence
        else:
            last = result.last_elapsed
            if last is not None and elapsed < last:
                keep(result.time_regressions, (sequence, last, elapsed))
            elif not result.time_passed:
                result.time_passed = last is not None and elapsed > last
            result.last_elapsed = elapsed
        if result.closed is not None and event.type not in AFTER_CLOSE:
            keep(result.after_close, (sequence, event.type))
            continue
        if event.node_id != result.node_id and event.type not in AFTER_CLOSE:
            keep(result.other_nodes, (sequence, event.node_id))
        if (
            result.imported
            or (event.actor.kind != "realizer" and _is_told(event, result))
            or (type(body) is RunOpened and body.purpose == "import")
        ):
            result.imported = True
            body = _told(body)
        apply[type(body)](result, sequence, body)
    return result


def _is_told(event: Event, state: RunState) -> bool:
    """Its author, not the realizer, cannot have looked: an importer, or in a realization anybody."""
    if event.actor.kind == "importer":
        return True
    opened = state.openings[0].body if state.openings else event.body
    return event.type not in AFTER_CLOSE and isinstance(opened, RunOpened) and opened.purpose == "realization"


def _told(value: T) -> T:
    """What somebody records who cannot have looked, with every figure that it says a probe saw made unknown."""
    if isinstance(value, Measurement):
        if value.source not in OBSERVERS:
            return value
        why = f"{value.source} {value.value!r}, yet who recorded it cannot have looked"
        return cast(T, value.model_copy(update={"value": None, "status": "failed", "detail": why}))
    if isinstance(value, Frozen):
        return value.model_copy(update={name: _told(getattr(value, name)) for name in type(value).model_fields})
    if isinstance(value, dict):
        return cast(T, {key: _told(item) for key, item in value.items()})
    return cast(T, [_told(item) for item in value]) if isinstance(value, list) else value


_APPLY: dict[type[Body], Callable[[RunState, int, Any], None]] = {
    PlanFrozen: runs.plan_frozen,
    RunOpened: runs.opened,
    RunClosed: runs.closed,
    VerdictRecorded: runs.verdict,
    RunSuperseded: runs.superseded,
    EnvironmentObserved: runs.environment,
    PlanAccepted: runs.accepted,
    PlanRejectedEvent: runs.rejected,
    ReferenceBound: runs.reference,
    MaterializationStarted: materializations.started,
    MaterializationRealized: materializations.realized,
    MaterializationObserved: materializations.observed,
    MaterializationSkipped: materializations.skipped,
    MaterializationFailed: materializations.failed,
    ReleaseAuthorized: materializations.authorized,
    ReleaseRefused: materializations.refused,
    MaterializationReleased: materializations.released,
    ReclamationObserved: materializations.reclaimed,
    AuthorityEstablished: decodes.authority,
    ExecutionActivated: decodes.activated,
    DecodeRan: decodes.decoded,
    SourceAccessed: sources.accessed,
    SourceWatched: sources.watched,
    MemorySampled: memory.sampled,
}
