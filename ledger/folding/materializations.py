"""What is said of each materialization, from its start to what became of its memory."""

from __future__ import annotations

from ledger.bodies import (
    MaterializationFailed,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationSkipped,
    MaterializationStarted,
    ReclamationObserved,
    ReleaseAuthorized,
    ReleaseRefused,
)
from ledger.folding.keeping import keep, keep_each, overflow, slot, step
from ledger.measurement import Measurement
from ledger.run_state import (
    BYTES,
    KEPT,
    NUMBER,
    MaterializationState,
    ReclamationState,
    RunState,
    Said,
    Seen,
    is_digest,
    trust,
)


def _materialization(state: RunState, name: str) -> MaterializationState | None:
    return slot(state, "materializations", state.materializations, name, lambda: MaterializationState(name))


def _say(state: RunState, found: MaterializationState, fact: str, sequence: int, said: Said) -> None:
    values = found.said.get(fact)
    if values is None:
        values = found.said[fact] = {}
    if said in values:
        return
    if sum(1 for other in values if other[:2] == said[:2]) < KEPT:
        values[said] = sequence
    else:
        overflow(state, f"values of {fact}")


SIZED = frozenset({"bytes", "streamed_bytes", "unplanned_bytes"})
COUNTED = frozenset({"storages", "tensors", "live"})


def _say_measured(
    state: RunState, found: MaterializationState, fact: str, sequence: int, origin: str, value: Measurement | None
) -> None:
    if value is None:
        return
    level = trust(value, BYTES if fact in SIZED else None)
    if fact in COUNTED and not isinstance(value.value, NUMBER):
        level = "unknown"
    _say(state, found, fact, sequence, Said(origin, level, None if level == "unknown" else value.value))


def _say_claimed(
    state: RunState,
    found: MaterializationState,
    sequence: int,
    origin: str,
    body: MaterializationStarted | MaterializationRealized,
) -> None:
    for fact, value in (
        ("unit", body.logical_state_id),
        ("resource", body.memory_resource_id),
        ("representation", body.representation),
        ("role", body.role),
        ("persistence", body.persistence),
    ):
        _say(state, found, fact, sequence, Said(origin, "claimed", value))


def _is_there(state: RunState, found: MaterializationState, sequence: int, *, begins: bool) -> None:
    """It exists now. `begins` says that the event makes it exist, rather than looks at it."""
    if not found.spans:
        state.changes += 1
        found.spans.append((sequence, None))
    elif found.spans[-1][1] is not None:
        state.changes += 1
        keep(found.rematerialized, sequence)
        keep(found.spans, (sequence, None))
    elif begins:
        keep(found.duplicates, sequence)


def started(state: RunState, sequence: int, body: MaterializationStarted) -> None:
    step(state, sequence)
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    _is_there(state, found, sequence, begins=True)
    keep(found.started, Seen(sequence, body))
    _say_claimed(state, found, sequence, "started", body)


def realized(state: RunState, sequence: int, body: MaterializationRealized) -> None:
    step(state, sequence)
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    begun = found.started[-1].sequence if found.started else -1
    again = bool(found.realized) and found.realized[-1].sequence > begun
    _is_there(state, found, sequence, begins=again)
    keep(found.realized, Seen(sequence, body))
    _say_claimed(state, found, sequence, "realized", body)
    _say_measured(state, found, "bytes", sequence, "realized", body.bytes)
    _say_measured(state, found, "tensors", sequence, "realized", body.tensors)
    _say_measured(state, found, "streamed_bytes", sequence, "realized", body.streamed_bytes)
    _say_measured(state, found, "unplanned_bytes", sequence, "realized", body.unplanned_bytes)
    took = body.elapsed_ns
    if took is not None and took.value is not None and trust(took, "ns") == "unknown":  # a time that cannot be
        _say(state, found, "elapsed_ns", sequence, Said("realized", "unknown", None))


def observed(state: RunState, sequence: int, body: MaterializationObserved) -> None:
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    ranges = tuple((r.space, r.start, r.length) for r in body.ranges)
    if body.live.value == 1:
        found.seen_live = sequence
        before = found.observed[-1].body if found.observed and found.live else None
        elsewhere = before is not None and bool(ranges) and bool(before.ranges) and before.ranges != body.ranges
        # A probe may look twice; a document that lists a materialization twice has it twice.
        _is_there(state, found, sequence, begins=elsewhere or (before is not None and trust(body.live) == "declared"))
    if not found.observed:
        state.changes += 1
    keep(found.observed, Seen(sequence, body))
    _say(state, found, "unit", sequence, Said("observed", "observed", body.logical_state_id))
    for fact, value in (("role", body.role), ("persistence", body.persistence)):
        if value is not None:
            _say(state, found, fact, sequence, Said("observed", "observed", value))
    for fact, measurement in (
        ("resource", body.memory_resource_id),
        ("representation", body.representation),
        ("bytes", body.bytes),
        ("storages", body.storages),
        ("tensors", body.tensors),
        ("live", body.live),
    ):
        _say_measured(state, found, fact, sequence, "observed", measurement)
    if body.source_digest is not None or body.resident_digest is not None:
        source = _digest(body.source_digest)
        resident = _digest(body.resident_digest)
        _say(state, found, "content", sequence, Said("observed", "observed", (source, resident)))


def _digest(measurement: Measurement | None) -> str | None:
    """The digest that somebody looked for; null where what was seen is none."""
    if measurement is None or trust(measurement) != "observed" or not is_digest(measurement):
        return None
    return str(measurement.value)


def skipped(state: RunState, sequence: int, body: MaterializationSkipped) -> None:
    if found := _materialization(state, body.materialization_id):
        keep(found.skipped, Seen(sequence, body))


def failed(state: RunState, sequence: int, body: MaterializationFailed) -> None:
    if found := _materialization(state, body.materialization_id):
        keep(found.failed, Seen(sequence, body))


def authorized(state: RunState, sequence: int, body: ReleaseAuthorized) -> None:
    if found := _materialization(state, body.materialization_id):
        keep_each(state, "release.authorized", found.authorized, Seen(sequence, body))
        found.pending_authorization = sequence


def refused(state: RunState, sequence: int, body: ReleaseRefused) -> None:
    if found := _materialization(state, body.materialization_id):
        keep(found.refused, Seen(sequence, body))
        found.pending_authorization = None


def released(state: RunState, sequence: int, body: MaterializationReleased) -> None:
    step(state, sequence)
    state.changes += 1
    if state.first_release is None:
        state.first_release = sequence
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    if found.pending_authorization is None:
        keep(found.unauthorized, sequence)
    found.pending_authorization = None
    if found.live:
        found.spans[-1] = (found.spans[-1][0], sequence)
    elif found.spans:
        keep(found.rematerialized, sequence)
    else:
        found.spans.append((sequence, sequence))
    keep(found.released, Seen(sequence, body))
    found.bytes_before.add(sequence, body.bytes_before)
    found.bytes_after.add(sequence, body.bytes_after)
    found.released_bytes.add(sequence, body.released_bytes)
    found.owners_total.add(sequence, body.owners_total)
    found.owners_alive.add(sequence, body.owners_alive)


def reclaimed(state: RunState, sequence: int, body: ReclamationObserved) -> None:
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    phase = found.reclamations.setdefault(body.phase, ReclamationState())
    phase.count += 1
    phase.first = phase.first or Seen(sequence, body)
    phase.last = sequence
    phase.owners_total.add(sequence, body.owners_total)
    phase.owners_alive.add(sequence, body.owners_alive)
    phase.region_mapped.add(sequence, body.region_mapped)
    phase.ratio.add(sequence, body.ratio)
    before, after = body.tree_before, body.tree_after
    phase.tree_before.add(sequence, before)
    phase.tree_after.add(sequence, after)
    both = all(trust(figure, BYTES) in ("observed", "declared") for figure in (before, after))
    if both and isinstance(before.value, int | float) and isinstance(after.value, int | float):
        phase.given_back.add(sequence, before.model_copy(update={"value": before.value - after.value}))
    else:
        phase.given_back.add(sequence, None)
