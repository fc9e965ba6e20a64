"""Events to `RunState`: what a run did, as far as its events say, in memory bounded by the plan and not by the events.

Laws: `fold` never raises on known events, reads no clock, and `fold(b, fold(a)) == fold(a + b)`; the state given is not
changed. Nothing is judged here and no plan is known here: per-id facts are kept as firsts, lasts, distinct values and
extremes, so that a rule which holds for what is kept holds for every event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from ledger.documents import Outcome
from ledger.events import (
    AFTER_CLOSE,
    AuthorityEstablished,
    Body,
    DecodeRan,
    Deviation,
    EnvironmentObserved,
    Event,
    ExecutionActivated,
    MaterializationFailed,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationSkipped,
    MaterializationStarted,
    Measurement,
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

KEPT = 4
"""How many of many like things are kept: the first three and the last; of distinct values, the first four."""

KEPT_ACCESSES = 16
MOST_IDS = 8192
"""Distinct ids kept of a kind. What comes beyond is counted in `overflowed`, and the judge then says it does not know."""

MOST_LABELS = 256
"""Labels whose samples are kept whole, beside the standing ones."""

STANDING_LABELS = frozenset({"baseline", "after-decode", "closing"})
TREE_CLASSES = ("rss_anon", "rss_shmem", "vm_swap", "hugetlb", "tree_sum")
TREE_MAPPINGS = ("checkpoint_mappings", "new_file_mappings", "new_tmpfs_files")
READ_AT_EACH_SAMPLE = frozenset({"vm_rss", "vm_hwm", "rss_file", *TREE_CLASSES, *TREE_MAPPINGS})
"""Figures of the process tree that are judged, so that a sample without one leaves something unknown."""

B = TypeVar("B", bound=Body)
T = TypeVar("T")
Trust = Literal["observed", "declared", "claimed", "unknown"]


class Seen(NamedTuple, Generic[B]):
    """A body and the sequence of its event within the run."""

    sequence: int
    body: B


class Said(NamedTuple):
    """Something that an event says: which event type, how far it can be trusted, and the value (null: not known)."""

    origin: str
    trust: Trust
    value: Any


def trust(measurement: Measurement) -> Trust:
    """How far a measurement can be trusted: seen by a probe or witness, somebody's word, an adapter's claim, or unknown.

    A default is nobody's word, and what can only be counted or sized is never negative: unknown.
    """
    value = measurement.value
    if value is None or measurement.status in ("unavailable", "failed") or measurement.source == "default":
        return "unknown"
    if isinstance(value, int | float) and value < 0:
        return "unknown"
    if measurement.source == "adapter":
        return "claimed"
    if measurement.status == "measured" and measurement.source in ("probe", "witness"):
        return "observed"
    return "declared"


class Figure(NamedTuple):
    """A number and the sequence of the event that gave it."""

    sequence: int
    value: int | float


@dataclass(slots=True)
class Extremes:
    """Lowest and highest of many measurements, and the first event whose value is not known (claims are not).

    What can only be counted or sized is never negative, and not known where it is; `signed` figures may be.
    """

    low: Figure | None = None
    high: Figure | None = None
    unknown: int | None = None
    signed: bool = False

    def add(self, sequence: int, measurement: Measurement | None) -> None:
        if measurement is not None:
            value = measurement.value
            if (
                isinstance(value, int | float)
                and (value >= 0 or self.signed)
                and measurement.source in _BELIEVED
                and measurement.status in _VALUED
            ):
                if self.low is None or value < self.low.value:
                    self.low = Figure(sequence, value)
                if self.high is None or value > self.high.value:
                    self.high = Figure(sequence, value)
                return
        if self.unknown is None:
            self.unknown = sequence


_BELIEVED = frozenset({"probe", "witness", "derived", "declared"})
_VALUED = frozenset({"measured", "stated"})


@dataclass
class ReclamationState:
    """Every `reclamation.observed` of one staging materialization in one phase."""

    count: int = 0
    first: Seen[ReclamationObserved] | None = None
    owners_total: Extremes = field(default_factory=Extremes)
    owners_alive: Extremes = field(default_factory=Extremes)
    region_mapped: Extremes = field(default_factory=Extremes)
    ratio: Extremes = field(default_factory=lambda: Extremes(signed=True))
    given_back: Extremes = field(default_factory=lambda: Extremes(signed=True))
    """tree_before - tree_after, bytes."""
    last: int | None = None
    """Sequence of the last one."""


@dataclass
class MaterializationState:
    """What the events say of one materialization id, planned or not."""

    id: str
    started: list[Seen[MaterializationStarted]] = field(default_factory=list)
    realized: list[Seen[MaterializationRealized]] = field(default_factory=list)
    observed: list[Seen[MaterializationObserved]] = field(default_factory=list)
    skipped: list[Seen[MaterializationSkipped]] = field(default_factory=list)
    failed: list[Seen[MaterializationFailed]] = field(default_factory=list)
    authorized: list[Seen[ReleaseAuthorized]] = field(default_factory=list)
    refused: list[Seen[ReleaseRefused]] = field(default_factory=list)
    released: list[Seen[MaterializationReleased]] = field(default_factory=list)
    said: dict[str, dict[Said, int]] = field(default_factory=dict)
    """Fact -> distinct things said of it -> first sequence. Four values are kept: more cannot all be as planned."""
    reclamations: dict[str, ReclamationState] = field(default_factory=dict)
    bytes_before: Extremes = field(default_factory=Extremes)
    bytes_after: Extremes = field(default_factory=Extremes)
    released_bytes: Extremes = field(default_factory=Extremes)
    owners_total: Extremes = field(default_factory=Extremes)
    owners_alive: Extremes = field(default_factory=Extremes)
    spans: list[tuple[int, int | None]] = field(default_factory=list)
    """(began, ended) sequences between which it existed; ended null: still there."""
    duplicates: list[int] = field(default_factory=list)
    """Began or was realised again, or was seen at another place, while it was there."""
    rematerialized: list[int] = field(default_factory=list)
    """Began, was realised or was seen live after it had been released."""
    unauthorized: list[int] = field(default_factory=list)
    """Releases that no authorization of their own came before."""
    pending_authorization: int | None = None

    @property
    def live(self) -> bool:
        """It exists as far as the events say: begun or seen, and not released since."""
        return bool(self.spans) and self.spans[-1][1] is None

    @property
    def release_sequence(self) -> int | None:
        return self.released[0].sequence if self.released else None


@dataclass
class ExecutionState:
    """Activations of one execution id."""

    count: int = 0
    activations: list[Seen[ExecutionActivated]] = field(default_factory=list)


@dataclass
class DeviationState:
    """Every deviation from the reference on one side (what went in, what came out)."""

    exact: Extremes = field(default_factory=Extremes)
    within_tolerance: Extremes = field(default_factory=Extremes)
    max_absolute: Extremes = field(default_factory=Extremes)
    max_relative: Extremes = field(default_factory=Extremes)
    nan_count: Extremes = field(default_factory=Extremes)
    inf_count: Extremes = field(default_factory=Extremes)
    failed: int | None = None
    """First event whose largest deviation was not a finite number."""


@dataclass
class DecodeState:
    """Every prefill and repetition of one execution id, aggregated."""

    first: int | None = None
    """Sequence of the first decode event."""
    prefills: int = 0
    runs: int = 0
    """Repetitions seen."""
    repeated: int = 0
    """Repetitions 0 .. repeated - 1 were all seen."""
    beyond: set[int] = field(default_factory=set)
    """Repetition numbers seen out of order, past a gap."""
    unnumbered: int | None = None
    modes: set[str] = field(default_factory=set)
    input: DeviationState = field(default_factory=DeviationState)
    output: DeviationState = field(default_factory=DeviationState)
    output_digests: dict[str, int] = field(default_factory=dict)
    token_digests: dict[str, int] = field(default_factory=dict)
    prefill_digests: dict[str, int] = field(default_factory=dict)
    prefill_token_digests: dict[str, int] = field(default_factory=dict)
    digest_unknown: int | None = None
    plan_lookups: Extremes = field(default_factory=Extremes)
    elapsed_ns: Extremes = field(default_factory=Extremes)


@dataclass
class AccessState:
    """Accesses to the checkpoint that watches saw while none should happen."""

    by: dict[str, int] = field(default_factory=dict)
    """attributed_to -> events."""
    kept: dict[str, list[Seen[SourceAccessed]]] = field(default_factory=dict)


@dataclass
class RunState:
    """One run, as far as its events say."""

    run_id: str | None = None
    events_seen: int = 0
    openings: list[Seen[RunOpened]] = field(default_factory=list)
    closed: Seen[RunClosed] | None = None
    environments: list[Seen[EnvironmentObserved]] = field(default_factory=list)
    accepted: Seen[PlanAccepted] | None = None
    rejected: Seen[PlanRejectedEvent] | None = None
    references: list[Seen[ReferenceBound]] = field(default_factory=list)
    materializations: dict[str, MaterializationState] = field(default_factory=dict)
    authorities: dict[str, list[Seen[AuthorityEstablished]]] = field(default_factory=dict)
    executions: dict[str, ExecutionState] = field(default_factory=dict)
    decodes: dict[str, DecodeState] = field(default_factory=dict)
    watches: list[Seen[SourceWatched]] = field(default_factory=list)
    watch: dict[str, Extremes] = field(default_factory=dict)
    source_accesses: AccessState = field(default_factory=AccessState)
    samples: dict[str, list[Seen[MemorySampled]]] = field(default_factory=dict)
    """Label -> its first sample and its last."""
    labels: dict[str, int] = field(default_factory=dict)
    """Label -> first sequence, also of those whose samples are not kept."""
    sample_gaps: dict[str, int] = field(default_factory=dict)
    """Judged figure that some sample could not read (`process/KEY`, `cuda/KEY`, `census/KEY`) -> first sequence."""
    samples_seen: int = 0
    peaks: dict[str, Figure] = field(default_factory=dict)
    """Highest known figure of any sample, by `process/KEY` and `cuda/KEY`."""
    verdicts: list[Seen[VerdictRecorded]] = field(default_factory=list)
    superseded: list[Seen[RunSuperseded]] = field(default_factory=list)
    after_close: list[tuple[int, str]] = field(default_factory=list)
    time_regressions: list[tuple[int, int, int]] = field(default_factory=list)
    """(sequence, elapsed before, elapsed then)."""
    last_elapsed: int | None = None
    first_step: int | None = None
    """Sequence of the first event that changes what is there: begun, realised, released, bound or decoded."""
    last_step: int | None = None
    last_decode: int | None = None
    last_watch: int | None = None
    freezing: Seen[PlanFrozen] | None = None
    overflowed: dict[str, int] = field(default_factory=dict)
    """What was more than is kept: kind -> events left out."""
    witnesses: tuple[RunState, ...] = ()
    """States of the runs that witnessed this one; the judge sets them."""

    @property
    def opened(self) -> Seen[RunOpened] | None:
        return self.openings[0] if self.openings else None

    @property
    def environment(self) -> Seen[EnvironmentObserved] | None:
        return self.environments[0] if self.environments else None

    @property
    def source_watch(self) -> Seen[SourceWatched] | None:
        return self.watches[-1] if self.watches else None

    @property
    def outcome(self) -> Outcome:
        """How the run ended by its own word; a run that nobody closed is incomplete."""
        return self.closed.body.outcome if self.closed else "incomplete"

    @property
    def superseded_by(self) -> str | None:
        return self.superseded[-1].body.by if self.superseded else None

    def sample(self, label: str) -> Seen[MemorySampled] | None:
        """The sample of that label: the first baseline, else the last of its name."""
        found = self.samples.get(label)
        if not found:
            return None
        return found[0] if label == "baseline" else found[-1]


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
        apply[type(body)](result, sequence, body)
    return result


def copied(value: T) -> T:
    """A copy that shares the frozen values (bodies, figures) and nothing that can change."""
    if isinstance(value, list):
        return [copied(item) for item in value]  # type: ignore[return-value]
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, set):
        return set(value)  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{item.name: copied(getattr(value, item.name)) for item in fields(value)})
    return value


def _keep(kept: list[T], item: T, most: int = KEPT) -> None:
    """Append; when full, the last one makes room, so that the first ones and the newest stay."""
    if len(kept) < most:
        kept.append(item)
    else:
        kept[-1] = item


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
    _keep(state.openings, Seen(sequence, body))


def _closed(state: RunState, sequence: int, body: RunClosed) -> None:
    state.closed = Seen(sequence, body)


def _verdict(state: RunState, sequence: int, body: VerdictRecorded) -> None:
    _keep(state.verdicts, Seen(sequence, body))


def _superseded(state: RunState, sequence: int, body: RunSuperseded) -> None:
    _keep(state.superseded, Seen(sequence, body))


def _environment(state: RunState, sequence: int, body: EnvironmentObserved) -> None:
    _keep(state.environments, Seen(sequence, body))


def _accepted(state: RunState, sequence: int, body: PlanAccepted) -> None:
    state.accepted = state.accepted or Seen(sequence, body)


def _rejected(state: RunState, sequence: int, body: PlanRejectedEvent) -> None:
    state.rejected = state.rejected or Seen(sequence, body)


def _reference(state: RunState, sequence: int, body: ReferenceBound) -> None:
    if len(state.references) < KEPT or body != state.references[-1].body:
        _keep(state.references, Seen(sequence, body))


# --- materialization ----------------------------------------------------------------------------------------------


def _materialization(state: RunState, name: str) -> MaterializationState | None:
    return _slot(state, "materializations", state.materializations, name, lambda: MaterializationState(name))


def _say(found: MaterializationState, fact: str, sequence: int, said: Said) -> None:
    values = found.said.get(fact)
    if values is None:
        values = found.said[fact] = {}
    if said not in values and sum(1 for other in values if other[:2] == said[:2]) < KEPT:
        values[said] = sequence


def _say_measured(
    found: MaterializationState, fact: str, sequence: int, origin: str, value: Measurement | None
) -> None:
    if value is None:
        return
    level = trust(value)
    _say(found, fact, sequence, Said(origin, level, None if level == "unknown" else value.value))


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
        _say(found, fact, sequence, Said("started", "claimed", value))


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
        _say(found, fact, sequence, Said("realized", "claimed", value))
    _say_measured(found, "bytes", sequence, "realized", body.bytes)
    _say_measured(found, "tensors", sequence, "realized", body.tensors)
    _say_measured(found, "streamed_bytes", sequence, "realized", body.streamed_bytes)
    _say_measured(found, "unplanned_bytes", sequence, "realized", body.unplanned_bytes)


def _observed(state: RunState, sequence: int, body: MaterializationObserved) -> None:
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    ranges = tuple((r.space, r.start, r.length) for r in body.ranges)
    if body.live.value == 1:
        before = found.observed[-1].body if found.observed and found.live else None
        elsewhere = before is not None and bool(ranges) and bool(before.ranges) and before.ranges != body.ranges
        _is_there(found, sequence, begins=elsewhere)
    _keep(found.observed, Seen(sequence, body))
    _say(found, "unit", sequence, Said("observed", "observed", body.logical_state_id))
    for fact, value in (("role", body.role), ("persistence", body.persistence)):
        if value is not None:
            _say(found, fact, sequence, Said("observed", "observed", value))
    for fact, measurement in (
        ("resource", body.memory_resource_id),
        ("representation", body.representation),
        ("bytes", body.bytes),
        ("storages", body.storages),
        ("tensors", body.tensors),
        ("live", body.live),
    ):
        _say_measured(found, fact, sequence, "observed", measurement)
    if body.source_digest is not None or body.resident_digest is not None:
        source = _digest(body.source_digest)
        resident = _digest(body.resident_digest)
        _say(found, "content", sequence, Said("observed", "observed", (source, resident)))


def _digest(measurement: Measurement | None) -> str | None:
    return str(measurement.value) if measurement is not None and trust(measurement) == "observed" else None


def _skipped(state: RunState, sequence: int, body: MaterializationSkipped) -> None:
    if found := _materialization(state, body.materialization_id):
        _keep(found.skipped, Seen(sequence, body))


def _failed(state: RunState, sequence: int, body: MaterializationFailed) -> None:
    if found := _materialization(state, body.materialization_id):
        _keep(found.failed, Seen(sequence, body))


def _authorized(state: RunState, sequence: int, body: ReleaseAuthorized) -> None:
    if found := _materialization(state, body.materialization_id):
        _keep(found.authorized, Seen(sequence, body))
        found.pending_authorization = sequence


def _refused(state: RunState, sequence: int, body: ReleaseRefused) -> None:
    if found := _materialization(state, body.materialization_id):
        _keep(found.refused, Seen(sequence, body))
        found.pending_authorization = None


def _released(state: RunState, sequence: int, body: MaterializationReleased) -> None:
    _step(state, sequence)
    found = _materialization(state, body.materialization_id)
    if found is None:
        return
    if found.pending_authorization is None:
        _keep(found.unauthorized, sequence)
    found.pending_authorization = None
    if found.live:
        found.spans[-1] = (found.spans[-1][0], sequence)
    elif not found.spans:
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
    both = trust(before) in ("observed", "declared") and trust(after) in ("observed", "declared")
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
    else:
        found.runs += 1
        _add_repetition(state, found, sequence, body.repetition)
        _add_digest(found, found.output_digests, sequence, body.output_digest)
        _add_digest(found, found.token_digests, sequence, body.tokens_digest)
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
    value = digest.value
    if value in kept and digest.source in _BELIEVED:
        return
    if trust(digest) in ("unknown", "claimed"):
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


def _watched(state: RunState, sequence: int, body: SourceWatched) -> None:
    _keep(state.watches, Seen(sequence, body))
    state.last_watch = sequence
    for name in WATCHED:
        state.watch.setdefault(name, Extremes()).add(sequence, getattr(body, name))


# --- memory -------------------------------------------------------------------------------------------------------


def _sampled(state: RunState, sequence: int, body: MemorySampled) -> None:
    state.samples_seen += 1
    kept = state.samples.get(body.label)
    if kept is not None:
        _keep(kept, Seen(sequence, body), 2)
    else:
        if len(state.samples) < MOST_LABELS or body.label in STANDING_LABELS:
            state.samples[body.label] = [Seen(sequence, body)]
        if len(state.labels) < MOST_IDS:
            state.labels.setdefault(body.label, sequence)
    _read(state, sequence, "process/", body.process, READ_AT_EACH_SAMPLE)
    if body.cuda:
        _read(state, sequence, "cuda/", body.cuda, None)
    census = body.census
    if census is not None:
        figures = (
            census.unowned_host_bytes,
            census.unowned_host_storages,
            *census.by_owner.values(),
            *census.evidence_host_by_role.values(),
        )
        if any(figure.value is None or trust(figure) not in ("observed", "declared") for figure in figures):
            state.sample_gaps.setdefault("census/owners", sequence)
        if trust(census.unowned_device_bytes) not in ("observed", "declared"):
            state.sample_gaps.setdefault("census/unowned_device_bytes", sequence)


def _read(
    state: RunState, sequence: int, prefix: str, figures: dict[str, Measurement], judged: frozenset[str] | None
) -> None:
    """Raise the running peaks by a sample's figures, and note which judged ones it could not read."""
    peaks = state.peaks
    for key, measurement in figures.items():
        value = measurement.value
        if (
            isinstance(value, int | float)
            and value >= 0
            and measurement.status in _VALUED
            and measurement.source in _BELIEVED
        ):
            name = prefix + key
            highest = peaks.get(name)
            if highest is None:
                if len(peaks) < MOST_IDS:
                    peaks[name] = Figure(sequence, value)
            elif value > highest.value:
                peaks[name] = Figure(sequence, value)
        elif judged is None or key in judged:
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
