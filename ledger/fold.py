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
    Deviation,
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
from ledger.measurement import Frozen, Measurement
from ledger.run_state import (
    AT_REST,
    BELIEVED,
    BYTES,
    DEMANDED_LABELS,
    KEPT,
    KEPT_ACCESSES,
    MOST_DEMANDED,
    MOST_IDS,
    MOST_LABELS,
    NUMBER,
    OBSERVERS,
    READ_AT_EACH_SAMPLE,
    STANDING_LABELS,
    TREE_CLASSES,
    TREE_MAPPINGS,
    VALUED,
    AccessState,
    DecodeState,
    DeviationState,
    ExecutionState,
    Extremes,
    Figure,
    MaterializationState,
    ReclamationState,
    RunState,
    Said,
    Seen,
    copied,
    is_digest,
    trust,
)

__all__ = [
    "KEPT_ACCESSES",
    "MOST_IDS",
    "MOST_LABELS",
    "TREE_CLASSES",
    "TREE_MAPPINGS",
    "WATCHED",
    "AccessState",
    "DecodeState",
    "DeviationState",
    "ExecutionState",
    "Extremes",
    "Figure",
    "MaterializationState",
    "ReclamationState",
    "RunState",
    "Said",
    "Seen",
    "copied",
    "fold",
    "trust",
]

T = TypeVar("T")


def fold(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """The state after `events`, beginning from `state` (which is left as it is) or from nothing."""
    result = copied(state) if state is not None else RunState()
    apply = _APPLY
    for event in events:
        body = event.body
        sequence = event.sequence
        if result.run_id is None:
            result.run_id = event.run_id
        elif result.run_id != event.run_id:
            _overflow(result, "events of another run")
            continue
        if result.events_seen == 0:
            result.began = sequence
        result.events_seen += 1
        elapsed = event.elapsed_ns
        if elapsed is not None:
            last = result.last_elapsed
            if last is not None and elapsed < last:
                _keep(result.time_regressions, (sequence, last, elapsed))
            result.last_elapsed = elapsed
        if result.closed is not None and event.type not in AFTER_CLOSE:
            _keep(result.after_close, (sequence, event.type))
            continue
        if result.imported or event.actor.kind == "importer" or (type(body) is RunOpened and body.purpose == "import"):
            result.imported = True
            body = _told(body)
        apply[type(body)](result, sequence, body)
    return result


def _told(value: T) -> T:
    """What an importer records, with every figure that it says a probe saw made unknown: it cannot have probed."""
    if isinstance(value, Measurement):
        if value.source not in OBSERVERS:
            return value
        why = f"{value.source} {value.value!r}, yet who records a document cannot have looked"
        return cast(T, value.model_copy(update={"value": None, "status": "failed", "detail": why}))
    if isinstance(value, Frozen):
        return value.model_copy(update={name: _told(getattr(value, name)) for name in type(value).model_fields})
    if isinstance(value, dict):
        return cast(T, {key: _told(item) for key, item in value.items()})
    return cast(T, [_told(item) for item in value]) if isinstance(value, list) else value


def _keep(kept: list[T], item: T, most: int = KEPT) -> None:
    """Append; when full, the last one makes room, so that the first ones and the newest stay."""
    if len(kept) < most:
        kept.append(item)
    else:
        kept[-1] = item


def _keep_each(state: RunState, kind: str, kept: list[T], item: T) -> None:
    """Append what is judged one by one; one that makes room for another is counted as left out."""
    if len(kept) >= KEPT:
        _overflow(state, kind)
    _keep(kept, item)


def _overflow(state: RunState, kind: str) -> None:
    state.overflowed[kind] = state.overflowed.get(kind, 0) + 1


def _step(state: RunState, sequence: int) -> None:
    if state.first_step is None:
        state.first_step = sequence
    state.last_step = sequence


def _slot(state: RunState, kind: str, mapping: dict[str, T], key: str, make: Callable[[], T]) -> T | None:
    """The entry of `key`, made when there is room; null when there is not."""
    found = mapping.get(key)
    if found is None:
        if len(mapping) >= MOST_IDS:
            _overflow(state, kind)
            return None
        found = mapping[key] = make()
    return found


# --- run and plan -------------------------------------------------------------------------------------------------


def _plan_frozen(state: RunState, sequence: int, body: PlanFrozen) -> None:
    state.freezing = state.freezing or Seen(sequence, body)


def _opened(state: RunState, sequence: int, body: RunOpened) -> None:
    _keep_each(state, "run.opened", state.openings, Seen(sequence, body))


def _closed(state: RunState, sequence: int, body: RunClosed) -> None:
    state.closed = Seen(sequence, body)


def _verdict(state: RunState, sequence: int, body: VerdictRecorded) -> None:
    _keep(state.verdicts, Seen(sequence, body))


def _superseded(state: RunState, sequence: int, body: RunSuperseded) -> None:
    _keep(state.superseded, Seen(sequence, body))


def _environment(state: RunState, sequence: int, body: EnvironmentObserved) -> None:
    _keep_each(state, "environment.observed", state.environments, Seen(sequence, body))


def _accepted(state: RunState, sequence: int, body: PlanAccepted) -> None:
    if state.accepted is not None and state.accepted.body != body:
        _overflow(state, "plan.accepted")
    state.accepted = state.accepted or Seen(sequence, body)


def _rejected(state: RunState, sequence: int, body: PlanRejectedEvent) -> None:
    state.rejected = state.rejected or Seen(sequence, body)


def _reference(state: RunState, sequence: int, body: ReferenceBound) -> None:
    if len(state.references) < KEPT or body != state.references[-1].body:
        _keep_each(state, "reference.bound", state.references, Seen(sequence, body))


# --- materialization ----------------------------------------------------------------------------------------------


def _materialization(state: RunState, name: str) -> MaterializationState | None:
    return _slot(state, "materializations", state.materializations, name, lambda: MaterializationState(name))


def _say(state: RunState, found: MaterializationState, fact: str, sequence: int, said: Said) -> None:
    values = found.said.get(fact)
    if values is None:
        values = found.said[fact] = {}
    if said in values:
        return
    if sum(1 for other in values if other[:2] == said[:2]) < KEPT:
        values[said] = sequence
    else:
        _overflow(state, f"values of {fact}")


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


def _is_there(found: MaterializationState, sequence: int, *, begins: bool) -> None:
    """It exists now. `begins` says that the event makes it exist, rather than looks at it."""
    if not found.spans:
        found.spans.append((sequence, None))
    elif found.spans[-1][1] is not None:
        _keep(found.rematerialized, sequence)
        _keep(found.spans, (sequence, None))
    elif begins:
        _keep(found.duplicates, sequence)


def _started(state: RunState, sequence: int, body: MaterializationStarted) -> None:
    _step(state, sequence)
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    _is_there(found, sequence, begins=True)
    _keep(found.started, Seen(sequence, body))
    for fact, value in (
        ("unit", body.logical_state_id),
        ("resource", body.memory_resource_id),
        ("representation", body.representation),
        ("role", body.role),
        ("persistence", body.persistence),
    ):
        _say(state, found, fact, sequence, Said("started", "claimed", value))


def _realized(state: RunState, sequence: int, body: MaterializationRealized) -> None:
    _step(state, sequence)
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    begun = found.started[-1].sequence if found.started else -1
    again = bool(found.realized) and found.realized[-1].sequence > begun
    _is_there(found, sequence, begins=again)
    _keep(found.realized, Seen(sequence, body))
    for fact, value in (
        ("unit", body.logical_state_id),
        ("resource", body.memory_resource_id),
        ("representation", body.representation),
        ("role", body.role),
        ("persistence", body.persistence),
    ):
        _say(state, found, fact, sequence, Said("realized", "claimed", value))
    _say_measured(state, found, "bytes", sequence, "realized", body.bytes)
    _say_measured(state, found, "tensors", sequence, "realized", body.tensors)
    _say_measured(state, found, "streamed_bytes", sequence, "realized", body.streamed_bytes)
    _say_measured(state, found, "unplanned_bytes", sequence, "realized", body.unplanned_bytes)
    took = body.elapsed_ns
    if took is not None and took.value is not None and trust(took, "ns") == "unknown":  # a time that cannot be
        _say(state, found, "elapsed_ns", sequence, Said("realized", "unknown", None))


def _observed(state: RunState, sequence: int, body: MaterializationObserved) -> None:
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    ranges = tuple((r.space, r.start, r.length) for r in body.ranges)
    if body.live.value == 1:
        before = found.observed[-1].body if found.observed and found.live else None
        elsewhere = before is not None and bool(ranges) and bool(before.ranges) and before.ranges != body.ranges
        # A probe may look twice; a document that lists a materialization twice has it twice.
        _is_there(found, sequence, begins=elsewhere or (before is not None and trust(body.live) == "declared"))
    _keep(found.observed, Seen(sequence, body))
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


def _skipped(state: RunState, sequence: int, body: MaterializationSkipped) -> None:
    if found := _materialization(state, body.materialization_id):
        _keep(found.skipped, Seen(sequence, body))


def _failed(state: RunState, sequence: int, body: MaterializationFailed) -> None:
    if found := _materialization(state, body.materialization_id):
        _keep(found.failed, Seen(sequence, body))


def _authorized(state: RunState, sequence: int, body: ReleaseAuthorized) -> None:
    if found := _materialization(state, body.materialization_id):
        _keep_each(state, "release.authorized", found.authorized, Seen(sequence, body))
        found.pending_authorization = sequence


def _refused(state: RunState, sequence: int, body: ReleaseRefused) -> None:
    if found := _materialization(state, body.materialization_id):
        _keep(found.refused, Seen(sequence, body))
        found.pending_authorization = None


def _released(state: RunState, sequence: int, body: MaterializationReleased) -> None:
    _step(state, sequence)
    if state.first_release is None:
        state.first_release = sequence
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    if found.pending_authorization is None:
        _keep(found.unauthorized, sequence)
    found.pending_authorization = None
    if found.live:
        found.spans[-1] = (found.spans[-1][0], sequence)
    elif found.spans:
        _keep(found.rematerialized, sequence)
    else:
        found.spans.append((sequence, sequence))
    _keep(found.released, Seen(sequence, body))
    found.bytes_before.add(sequence, body.bytes_before)
    found.bytes_after.add(sequence, body.bytes_after)
    found.released_bytes.add(sequence, body.released_bytes)
    found.owners_total.add(sequence, body.owners_total)
    found.owners_alive.add(sequence, body.owners_alive)


def _reclaimed(state: RunState, sequence: int, body: ReclamationObserved) -> None:
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


# --- authority, execution, decode ---------------------------------------------------------------------------------


def _authority(state: RunState, sequence: int, body: AuthorityEstablished) -> None:
    _step(state, sequence)
    kept = _slot(state, "authorities", state.authorities, body.logical_state_id, list)
    if kept is not None:
        _keep(kept, Seen(sequence, body))


def _activated(state: RunState, sequence: int, body: ExecutionActivated) -> None:
    _step(state, sequence)
    found = _slot(state, "executions", state.executions, body.execution_id, ExecutionState)
    if found is not None:
        found.count += 1
        _keep(found.activations, Seen(sequence, body))


def _decoded(state: RunState, sequence: int, body: DecodeRan) -> None:
    _step(state, sequence)
    state.last_decode = sequence
    found = state.decodes.get(body.execution_id)
    if found is None:
        found = _slot(state, "decodes", state.decodes, body.execution_id, DecodeState)
        if found is None:
            return
        found.first = sequence
    if body.phase == "prefill":
        found.prefills += 1
        _add_digest(found, found.prefill_digests, sequence, body.output_digest)
        _add_digest(found, found.prefill_token_digests, sequence, body.tokens_digest)
        found.prefill_tokens.add(sequence, body.tokens)
    else:
        found.runs += 1
        _add_repetition(state, found, sequence, body.repetition)
        _add_digest(found, found.output_digests, sequence, body.output_digest)
        _add_digest(found, found.token_digests, sequence, body.tokens_digest)
        found.tokens.add(sequence, body.tokens)
    found.modes.add(body.mode)
    _add_deviation(found.input, sequence, body.input)
    _add_deviation(found.output, sequence, body.output)
    found.plan_lookups.add(sequence, body.plan_lookups)
    found.elapsed_ns.add(sequence, body.elapsed_ns)


def _add_repetition(state: RunState, found: DecodeState, sequence: int, number: int | None) -> None:
    if number is None or number < 0:
        found.unnumbered = sequence if found.unnumbered is None else found.unnumbered
    elif number == found.repeated:
        found.repeated += 1
        while found.beyond and found.repeated in found.beyond:
            found.beyond.discard(found.repeated)
            found.repeated += 1
    elif number > found.repeated and number not in found.beyond:
        if len(found.beyond) < MOST_IDS:
            found.beyond.add(number)
        else:
            _overflow(state, "repetitions out of order")


def _add_digest(found: DecodeState, kept: dict[str, int], sequence: int, digest: Measurement) -> None:
    value, source = digest.value, digest.source
    if source not in OBSERVERS and found.digest_declared is None:
        found.digest_declared = sequence
    if value in kept and source in BELIEVED:
        return
    if trust(digest) in ("unknown", "claimed") or (source in OBSERVERS and not is_digest(digest)):
        found.digest_unknown = sequence if found.digest_unknown is None else found.digest_unknown
    elif len(kept) < KEPT:
        kept.setdefault(str(value), sequence)


def _add_deviation(found: DeviationState, sequence: int, deviation: Deviation) -> None:
    found.exact.add(sequence, deviation.exact)
    found.within_tolerance.add(sequence, deviation.within_tolerance)
    found.max_absolute.add(sequence, deviation.max_absolute)
    found.max_relative.add(sequence, deviation.max_relative)
    found.nan_count.add(sequence, deviation.nan_count)
    found.inf_count.add(sequence, deviation.inf_count)
    if found.failed is None and "failed" in (deviation.max_absolute.status, deviation.max_relative.status):
        found.failed = sequence


def _accessed(state: RunState, sequence: int, body: SourceAccessed) -> None:
    accesses = state.source_accesses
    accesses.by[body.attributed_to] = accesses.by.get(body.attributed_to, 0) + 1
    _keep(accesses.kept.setdefault(body.attributed_to, []), Seen(sequence, body), KEPT_ACCESSES)


WATCHED = (
    "armed",
    "overflowed",
    "network_filesystem",
    "tree_accesses",
    "other_accesses",
    "mapped_files",
    "open_descriptors",
    "read_bytes",
)


FLAGS = frozenset({"armed", "overflowed", "network_filesystem"})


def _watched(state: RunState, sequence: int, body: SourceWatched) -> None:
    _keep(state.watches, Seen(sequence, body))
    state.last_watch = sequence
    if not body.means and state.blind_watch is None:
        state.blind_watch = sequence
    for name in WATCHED:
        figures = state.watch.get(name)
        if figures is None:
            figures = Extremes(unit=BYTES if name == "read_bytes" else None, flag=name in FLAGS)
            state.watch[name] = figures
        figures.add(sequence, getattr(body, name))


# --- memory -------------------------------------------------------------------------------------------------------


def _sampled(state: RunState, sequence: int, body: MemorySampled) -> None:
    state.samples_seen += 1
    label, census = body.label, body.census
    kept = state.samples.get(label)
    first_baseline = kept is None and label == "baseline" and state.first_step is None
    demanded = label in STANDING_LABELS or label.startswith(DEMANDED_LABELS)
    if kept is not None and demanded:
        _keep_each(state, f"samples {label}", kept, Seen(sequence, body))
    elif kept is not None:
        _keep(kept, Seen(sequence, body), 2)
    else:
        if len(state.samples) < (MOST_DEMANDED if demanded else MOST_LABELS) or label in STANDING_LABELS:
            state.samples[label] = [Seen(sequence, body)]
        elif demanded:
            _overflow(state, "samples")
        if len(state.labels) < MOST_IDS:
            state.labels.setdefault(label, sequence)
    _read(state, sequence, "process/", body.process, READ_AT_EACH_SAMPLE, raises=not first_baseline)
    if body.cuda:
        _read(state, sequence, "cuda/", body.cuda, None, raises=not first_baseline)
    # A witness sees no release; the label says that the sample was taken after one.
    if (
        state.first_release is not None
        or state.at_rest
        or label == "after-decode"
        or label.startswith("after-release:")
    ):
        _at_rest(state, sequence, body)
    if census is not None:
        figures = (census.unowned_host_bytes, *census.by_owner.values(), *census.evidence_host_by_role.values())
        if any(
            figure.value is None or trust(figure, BYTES) not in ("observed", "declared") for figure in figures
        ) or not _is_number(census.unowned_host_storages):
            state.sample_gaps.setdefault("census/owners", sequence)
        if trust(census.unowned_device_bytes, BYTES) not in ("observed", "declared"):
            state.sample_gaps.setdefault("census/unowned_device_bytes", sequence)


def _is_number(measurement: Measurement) -> bool:
    return trust(measurement) in ("observed", "declared") and isinstance(measurement.value, NUMBER)


def _at_rest(state: RunState, sequence: int, body: MemorySampled) -> None:
    """Raise what no sample may show any more by what this one shows."""
    census = body.census
    if not state.at_rest:
        state.at_rest = {name: Extremes(unit=BYTES) for name in AT_REST}
    mapped, host, device = state.at_rest.values()
    mapped.add(sequence, body.process.get("checkpoint_mappings"))
    if census is not None:
        host.add(sequence, census.unowned_host_bytes)
        device.add(sequence, census.unowned_device_bytes)


def _read(
    state: RunState,
    sequence: int,
    prefix: str,
    figures: dict[str, Measurement],
    judged: frozenset[str] | None,
    *,
    raises: bool,
) -> None:
    """Raise the running peaks by a sample's figures, and note which judged ones it could not read.

    The baseline raises none: its peaks are of what came before the run (`raises`).
    """
    peaks = state.peaks
    if judged is not None and not judged <= figures.keys():
        for key in judged - figures.keys():
            state.sample_gaps.setdefault(prefix + key, sequence)
    for key, measurement in figures.items():
        if judged is not None and key not in judged:
            continue
        value = measurement.value
        if (
            isinstance(value, NUMBER)
            and value >= 0
            and measurement.unit == BYTES
            and measurement.status in VALUED
            and measurement.source in BELIEVED
        ):
            if not raises:
                continue
            name = prefix + key
            highest = peaks.get(name)
            if highest is None:
                if len(peaks) < MOST_IDS:
                    peaks[name] = Figure(sequence, value)
            elif value > highest.value:
                peaks[name] = Figure(sequence, value)
        else:
            name = prefix + key
            if name not in state.sample_gaps and len(state.sample_gaps) < MOST_IDS:
                state.sample_gaps[name] = sequence


_APPLY: dict[type[Body], Callable[[RunState, int, Any], None]] = {
    PlanFrozen: _plan_frozen,
    RunOpened: _opened,
    RunClosed: _closed,
    VerdictRecorded: _verdict,
    RunSuperseded: _superseded,
    EnvironmentObserved: _environment,
    PlanAccepted: _accepted,
    PlanRejectedEvent: _rejected,
    ReferenceBound: _reference,
    MaterializationStarted: _started,
    MaterializationRealized: _realized,
    MaterializationObserved: _observed,
    MaterializationSkipped: _skipped,
    MaterializationFailed: _failed,
    ReleaseAuthorized: _authorized,
    ReleaseRefused: _refused,
    MaterializationReleased: _released,
    ReclamationObserved: _reclaimed,
    AuthorityEstablished: _authority,
    ExecutionActivated: _activated,
    DecodeRan: _decoded,
    SourceAccessed: _accessed,
    SourceWatched: _watched,
    MemorySampled: _sampled,
}
