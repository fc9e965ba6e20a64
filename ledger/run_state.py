"""What a fold knows of one run: firsts, lasts, distinct values and extremes, bounded by the plan and not by the events.

A rule that holds for what is kept here holds for every event: of distinct values more are kept than a plan can have, and
of many figures the lowest, the highest and the first that is not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from ledger.bodies import (
    AuthorityEstablished,
    Body,
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
from ledger.documents import Outcome
from ledger.measurement import Measurement

KEPT = 4
"""How many of many like things are kept: the first three and the last; of distinct values, the first four."""

KEPT_ACCESSES = 16
MOST_IDS = 8192
"""Distinct ids kept of a kind. What comes beyond is counted in `overflowed`, and the judge then says it does not know."""

MOST_LABELS = 256
"""Labels whose samples are kept whole, beside the standing ones."""

MOST_DEMANDED = 2048
"""The same of labels that name a step of a materialization."""

STANDING_LABELS = frozenset({"baseline", "after-decode", "closing"})
DEMANDED_LABELS = ("materialized:", "before-release:", "after-release:")
"""Beginnings of the labels that a plan demands beside the standing ones: a materialization's id follows."""

BYTES = "bytes"
TREE_CLASSES = ("rss_anon", "rss_shmem", "vm_swap", "hugetlb", "tree_sum")
TREE_MAPPINGS = ("checkpoint_mappings", "new_file_mappings", "new_tmpfs_files")
READ_AT_EACH_SAMPLE = frozenset({"vm_rss", "vm_hwm", "rss_file", *TREE_CLASSES, *TREE_MAPPINGS})
"""Figures of the process tree that are judged, so that a sample without one leaves something unknown."""

BELIEVED = frozenset({"probe", "witness", "derived", "declared"})
OBSERVERS = frozenset({"probe", "witness"})
VALUED = frozenset({"measured", "stated"})
NUMBER = (int, float)
AT_REST = ("checkpoint_mappings", "unowned_host_bytes", "unowned_device_bytes")
"""Figures (bytes) that no sample may show from the first release on."""

B = TypeVar("B", bound=Body)
T = TypeVar("T")
Tone = Literal["good", "bad", "open", "dim"]
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


def trust(measurement: Measurement, unit: str | None = None) -> Trust:
    """How far a measurement can be trusted: seen by a probe or witness, somebody's word, an adapter's claim, or unknown.

    A default is nobody's word, and what can only be counted or sized is never negative: unknown. So is a figure in
    another unit than the one that is asked for (`unit`), and a word in place of one.
    """
    value = measurement.value
    if value is None or measurement.status in ("unavailable", "failed") or measurement.source == "default":
        return "unknown"
    if unit is not None and (measurement.unit != unit or not isinstance(value, NUMBER)):
        return "unknown"
    if isinstance(value, NUMBER) and value < 0:
        return "unknown"
    if measurement.source == "adapter":
        return "claimed"
    if measurement.status == "measured" and measurement.source in ("probe", "witness"):
        return "observed"
    return "declared"


def is_digest(measurement: Measurement) -> bool:
    """Its value reads as a SHA-256 digest: another word compares as equal to itself, and says nothing of any bytes."""
    return isinstance(measurement.value, str) and _DIGEST.fullmatch(measurement.value) is not None


_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Figure(NamedTuple):
    """A number and the sequence of the event that gave it."""

    sequence: int
    value: int | float


@dataclass(slots=True)
class Extremes:
    """Lowest and highest of many measurements, and the first event whose value is not known (claims are not).

    What can only be counted or sized is never negative, and not known where it is; `signed` figures may be. Nor is one in
    another unit than `unit`, where that is set, nor a `flag` that is neither 0 nor 1.
    """

    low: Figure | None = None
    high: Figure | None = None
    unknown: int | None = None
    signed: bool = False
    declared: int | None = None
    """The first event whose value is somebody's word."""
    unit: str | None = None
    flag: bool = False
    last: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    """The newest measurement's fields: the same once more changes nothing."""

    def add(self, sequence: int, measurement: Measurement | None) -> None:
        if measurement is not None:
            said = measurement.__dict__
            if said == self.last:
                return
            self.last = said
            value, source, status = said["value"], said["source"], said["status"]
            if (
                isinstance(value, NUMBER)
                and (value >= 0 or self.signed)
                and source in BELIEVED
                and status in VALUED
                and (self.unit is None or said["unit"] == self.unit)
                and (not self.flag or value in (0, 1))
            ):
                if self.declared is None and (source not in OBSERVERS or status != "measured"):
                    self.declared = sequence
                low, high = self.low, self.high
                if low is None or high is None:
                    self.low = self.high = Figure(sequence, value)
                elif value < low.value:
                    self.low = Figure(sequence, value)
                elif value > high.value:
                    self.high = Figure(sequence, value)
                return
        if self.unknown is None:
            self.unknown = sequence


@dataclass
class Stretch:
    """The lowest and the highest of each figure that a stretch's samples have, and the samples that show them."""

    low: list[int | float]
    lowest: list[Seen[MemorySampled]]
    high: list[int | float]
    highest: list[Seen[MemorySampled]]


@dataclass
class ReclamationState:
    """Every `reclamation.observed` of one staging materialization in one phase."""

    count: int = 0
    first: Seen[ReclamationObserved] | None = None
    owners_total: Extremes = field(default_factory=Extremes)
    owners_alive: Extremes = field(default_factory=Extremes)
    region_mapped: Extremes = field(default_factory=lambda: Extremes(flag=True))
    ratio: Extremes = field(default_factory=lambda: Extremes(signed=True, unit="ratio"))
    given_back: Extremes = field(default_factory=lambda: Extremes(signed=True, unit=BYTES))
    """tree_before - tree_after, bytes."""
    tree_before: Extremes = field(default_factory=lambda: Extremes(unit=BYTES))
    tree_after: Extremes = field(default_factory=lambda: Extremes(unit=BYTES))
    last: int | None = None
    """Sequence of the last one."""


def _above_zero(look: Extremes) -> bool:
    return look.high is not None and look.high.value > 0


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
    """Fact -> distinct things said of it -> first sequence. Four values are kept; more count as left out."""
    reclamations: dict[str, ReclamationState] = field(default_factory=dict)
    bytes_before: Extremes = field(default_factory=lambda: Extremes(unit=BYTES))
    bytes_after: Extremes = field(default_factory=lambda: Extremes(unit=BYTES))
    released_bytes: Extremes = field(default_factory=lambda: Extremes(unit=BYTES))
    owners_total: Extremes = field(default_factory=Extremes)
    owners_alive: Extremes = field(default_factory=Extremes)
    seen_live: int | None = None
    """The last time that it was seen live."""
    spans: list[tuple[int, int | None]] = field(default_factory=list)
    """(began, ended) sequences between which it existed; ended null: still there."""
    duplicates: list[int] = field(default_factory=list)
    """Began or was realised again, or was seen at another place, while it was there."""
    rematerialized: list[int] = field(default_factory=list)
    """Began, was realised, was seen live or was released again after it had been released."""
    unauthorized: list[int] = field(default_factory=list)
    """Releases that no authorization of their own came before."""
    pending_authorization: int | None = None

    @property
    def live(self) -> bool:
        """It exists as far as the events say: begun or seen, and not released since."""
        return bool(self.spans) and self.spans[-1][1] is None

    @property
    def release_seen(self) -> Literal["released", "not gone", "still mapped", "release claimed"]:
        """What those who looked at or after its release saw of it: nothing, an owner, its region, or nobody could look.

        A region can be mapped whose pages went back, which the judge asks the process tree for.
        """
        owners = [self.owners_alive, *(seen.owners_alive for seen in self.reclamations.values())]
        regions = [seen.region_mapped for seen in self.reclamations.values()]
        if any(_above_zero(look) for look in owners):
            return "not gone"
        if any(_above_zero(look) for look in regions):
            return "still mapped"
        return "released" if any(look.high is not None for look in owners + regions) else "release claimed"

    @property
    def seen_spans(self) -> list[tuple[int, int | None]]:
        """`spans` for people: what a look after its release still found has not ended."""
        if not self.spans or self.release_seen not in ("not gone", "still mapped"):
            return self.spans
        return [*self.spans[:-1], (self.spans[-1][0], None)]

    @property
    def release_sequence(self) -> int | None:
        return self.released[0].sequence if self.released else None


RELEASE_TONES: dict[str, Tone] = {
    "released": "good", "not gone": "bad", "still mapped": "open", "release claimed": "open",
}  # fmt: skip


def condition(found: MaterializationState | None) -> tuple[str, Tone]:
    """What became of a materialization, in a word, and whether that is good, bad, open or neither."""
    if found is None:
        return "never begun", "bad"
    if found.failed:
        return "failed", "bad"
    if found.skipped and not found.spans:
        return "skipped", "dim"
    if found.released:
        if found.live:
            return "live again", "bad"
        return found.release_seen, RELEASE_TONES[found.release_seen]
    if found.observed:
        live = found.observed[-1].body.live
        if live.value is None:
            return "liveness unknown", "open"
        return ("live", "good") if live.value == 1 and found.live else ("not live", "bad")
    return ("claimed", "open") if found.realized else ("started", "open")


@dataclass
class ExecutionState:
    """Activations of one execution id."""

    count: int = 0
    activations: list[Seen[ExecutionActivated]] = field(default_factory=list)


@dataclass
class DeviationState:
    """Every deviation from the reference on one side (what went in, what came out)."""

    exact: Extremes = field(default_factory=lambda: Extremes(flag=True))
    within_tolerance: Extremes = field(default_factory=lambda: Extremes(flag=True))
    max_absolute: Extremes = field(default_factory=Extremes)
    max_relative: Extremes = field(default_factory=Extremes)
    nan_count: Extremes = field(default_factory=Extremes)
    inf_count: Extremes = field(default_factory=Extremes)
    failed: int | None = None
    """First event whose largest deviation was not a finite number."""
    why: str | None = None
    """What the first one that is not equal says of it: the shapes, where those differ."""
    last: list[dict[str, Any] | None] | None = field(default=None, compare=False, repr=False)
    """The newest one's figures: the same once more change nothing."""


@dataclass
class DecodeState:
    """Every prefill and repetition of one execution id, aggregated."""

    first: int | None = None
    """Sequence of the first decode event."""
    prefills: int = 0
    unfilled: int | None = None
    """First repetition that no prefill came before."""
    runs: int = 0
    """Repetitions seen."""
    repeated: int = 0
    """Repetitions 0 .. repeated - 1 were all seen since the last prefill, which begins another round of them."""
    beyond: set[int] = field(default_factory=set)
    """Repetition numbers of that round seen out of order, past a gap."""
    shortest: int | None = None
    """`repeated` of the shortest round before."""
    gap: int | None = None
    """The lowest number past a gap of some round before."""
    unnumbered: int | None = None
    again: int | None = None
    """First repetition with a number that another one of its round had."""
    modes: set[str] = field(default_factory=set)
    input: DeviationState = field(default_factory=DeviationState)
    output: DeviationState = field(default_factory=DeviationState)
    output_digests: dict[str, int] = field(default_factory=dict)
    token_digests: dict[str, int] = field(default_factory=dict)
    prefill_digests: dict[str, int] = field(default_factory=dict)
    prefill_token_digests: dict[str, int] = field(default_factory=dict)
    digest_unknown: int | None = None
    digest_declared: int | None = None
    """First event with a digest that is somebody's word."""
    tokens: Extremes = field(default_factory=Extremes)
    """How many came out of each repetition."""
    prefill_tokens: Extremes = field(default_factory=Extremes)
    plan_lookups: Extremes = field(default_factory=Extremes)
    elapsed_ns: Extremes = field(default_factory=lambda: Extremes(unit="ns"))


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
    node_id: str | None = None
    """That of the first event."""
    other_nodes: list[tuple[int, str]] = field(default_factory=list)
    """(sequence, node) of events that another node recorded, verdicts and supersessions aside."""
    events_seen: int = 0
    began: int | None = None
    """Sequence of the first event."""
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
    """Label -> its samples: of those that a plan demands the first ones, of others the first and the last. Of what is
    between, `stretches` keeps the ends."""
    labels: dict[str, int] = field(default_factory=dict)
    """Label -> first sequence, also of those whose samples are not kept."""
    stretches: dict[tuple[int, tuple[str, ...]], Stretch] = field(default_factory=dict)
    """(`changes` by then, what is compared) -> the ends of it, over the samples that no label keeps
    (`ledger.folding.stretches`)."""
    changes: int = 0
    """How often something began, was first seen or was released: until the next one, samples are judged alike."""
    sample_gaps: dict[str, int] = field(default_factory=dict)
    """Judged figure that some sample could not read (`process/KEY`, `cuda/KEY`, `census/KEY`) -> first sequence."""
    samples_seen: int = 0
    peaks: dict[str, Figure] = field(default_factory=dict)
    """Highest known figure of any sample after the baseline, by `process/KEY` and `cuda/KEY`."""
    at_rest: dict[str, Extremes] = field(default_factory=dict)
    """The figures of `AT_REST` over every sample from the first release on, or the first that says to be after one."""
    verdicts: list[Seen[VerdictRecorded]] = field(default_factory=list)
    superseded: list[Seen[RunSuperseded]] = field(default_factory=list)
    after_close: list[tuple[int, str]] = field(default_factory=list)
    time_regressions: list[tuple[int, int, int]] = field(default_factory=list)
    """(sequence, elapsed before, elapsed then)."""
    last_elapsed: int | None = None
    untimed: int | None = None
    """First event without elapsed time, verdicts and supersessions aside."""
    time_passed: bool = False
    """Some event has a later elapsed time than the one before it."""
    first_step: int | None = None
    """Sequence of the first event that changes what is there: begun, realised, released, bound or decoded."""
    last_step: int | None = None
    first_release: int | None = None
    last_decode: int | None = None
    last_watch: int | None = None
    blind_watch: int | None = None
    """First event that sums a watch up which had no means to see anything."""
    imported: bool = False
    """Somebody tells of the run who cannot have looked: an importer, or in a realization not the engine."""
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
