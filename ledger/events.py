"""Event bodies, the envelope around them, and reading both back: versions, upcasting, the per-run chain.

An event is a frozen value. Its envelope's RFC 8785 text is what is hashed, stored and exported; nothing is ever
serialised a second time to check it. Every observed fact is a `Measurement`, so that a claim, a default and an
observation cannot be confused, and what could not be measured is unknown and never zero.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ledger import canonical
from ledger.errors import EventError

ENVELOPE_VERSION = 1
NO_PLAN = "0" * 64
"""`previous` of sequence 0 in a stream that has no plan (a witness without one)."""

Source = Literal["probe", "witness", "adapter", "derived", "declared", "default"]
Status = Literal["measured", "stated", "unavailable", "failed"]
Verdict = Literal["PASS", "FAIL", "INDETERMINATE"]
Assurance = Literal["declared", "observed", "content-verified"]


class Frozen(BaseModel):
    """Base of every recorded value: immutable, strict about unknown fields, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Measurement(Frozen):
    """One fact with where it comes from.

    `value` is null exactly when `status` is `unavailable` or `failed`. `source` says who speaks: `probe` and `witness`
    looked themselves; `adapter` is a claim; `derived`, `declared` and `default` were not looked at (`stated`).
    """

    value: int | float | str | None
    unit: str | None = None
    source: Source
    method: str
    status: Status
    detail: str | None = None

    @property
    def known(self) -> bool:
        """A value is there, whoever says so. A value beside `unavailable` or `failed` is none."""
        return self.value is not None and self.status in ("measured", "stated")

    @property
    def observed(self) -> bool:
        """Somebody independent of the adapter and of the plan looked and saw a value."""
        return self.status == "measured" and self.source in ("probe", "witness") and self.value is not None


def measured(
    value: float | str | None, unit: str | None, method: str, *, source: Source = "probe", detail: str | None = None
) -> Measurement:
    """A measured value; a number that cannot be recorded becomes null and `failed`, saying what it was."""
    if value is None:
        return unavailable(unit, method, detail or "no value was read", source=source)
    return _recordable(value, unit, method, source, "measured", detail)


def _recordable(
    value: float | str, unit: str | None, method: str, source: Source, status: Status, detail: str | None = None
) -> Measurement:
    """The measurement, or a failed one for a number that is not finite or whose magnitude is 2**53 or more."""
    if isinstance(value, int | float) and not abs(value) <= canonical.MAX_SAFE_INTEGER:
        what = "not finite" if isinstance(value, float) and not math.isfinite(value) else "beyond 2**53"
        return Measurement(
            value=None, unit=unit, source=source, method=method, status="failed", detail=f"{what}: {value}"
        )
    return Measurement(value=value, unit=unit, source=source, method=method, status=status, detail=detail)


def stated(
    value: float | str, unit: str | None, method: str, *, source: Literal["derived", "declared", "default"]
) -> Measurement:
    """A value that nobody looked at: computed from others, declared in a document, or a default."""
    return _recordable(value, unit, method, source, "stated")


def claimed(value: float | str, unit: str | None, method: str) -> Measurement:
    """What an adapter says of its own work."""
    return _recordable(value, unit, method, "adapter", "measured")


def unavailable(unit: str | None, method: str, why: str, *, source: Source = "probe") -> Measurement:
    """What could not be read, and why. Unknown, never zero."""
    return Measurement(value=None, unit=unit, source=source, method=method, status="unavailable", detail=why)


Measurements = dict[str, Measurement]


class Body(Frozen):
    """Base of event bodies. `TYPE` and `VERSION` go into the envelope."""

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1


# --- plan ---------------------------------------------------------------------------------------------------------


class PlanFrozen(Body):
    """A plan was sealed. One event in a stream of its own; `blob_digest` is SHA-256 of the plan file's bytes."""

    TYPE = "plan.frozen"
    digest: str
    blob_digest: str
    note: str | None = None


# --- run ----------------------------------------------------------------------------------------------------------


class PlanReference(Frozen):
    """Which plan: the digest it claims, the digest as computed, and the digest of its bytes in `blobs`."""

    claimed_digest: str | None
    computed_digest: str
    blob_digest: str
    plan_schema: str


class FreezingReference(Frozen):
    """The `plan.frozen` event that this run cites.

    `ledger_size` is how many events the ledger held when the run was about to be opened: an earlier freezing lies below.
    """

    hash: str
    position: int
    digest: str
    ledger_size: int | None = None


class AdapterIdentity(Frozen):
    name: str
    version: str
    distribution: str | None = None


class SoftwareIdentity(Frozen):
    """What ran: library versions, the source commit and whether it was dirty (0 or 1), digest of the installed files."""

    versions: dict[str, str]
    source_commit: Measurement
    source_dirty: Measurement
    files_digest: Measurement


class CheckpointFile(Frozen):
    """One checkpoint file: its name relative to the checkpoint directory, bytes, and SHA-256 where it was hashed."""

    name: str
    size: Measurement
    digest: Measurement


class ModelIdentity(Frozen):
    """What the checkpoint says of itself. Digests: of config.json, and of all tensor headers (name, dtype, shape, span)."""

    repository: Measurement
    revision: Measurement
    config_digest: Measurement
    headers_digest: Measurement
    directory: Measurement


class RunOpened(Body):
    """A run began. `plan` is null only for a witness without one; `witness_of` names the run watched, or is null."""

    TYPE = "run.opened"
    purpose: Literal["realization", "import", "witness"]
    plan: PlanReference | None
    frozen: FreezingReference | None = None
    adapter: AdapterIdentity | None = None
    software: SoftwareIdentity
    argv: Measurement
    user: Measurement
    hostname: Measurement
    pid: Measurement
    labels: dict[str, str] = Field(default_factory=dict)
    challenge: str | None = None
    model: ModelIdentity | None = None
    checkpoint_files: list[CheckpointFile] = Field(default_factory=list)
    witness_of: str | None = None
    provenance: dict[str, str] = Field(default_factory=dict)


class RunClosed(Body):
    """The run ended. `error_type` and `message` say why when it did not complete."""

    TYPE = "run.closed"
    outcome: Literal["completed", "failed", "aborted", "rejected"]
    error_type: str | None = None
    message: str | None = None


class VerdictRecorded(Body):
    """The verdict as judged when the run closed; whoever judges again may come to another, and theirs counts."""

    TYPE = "verdict.recorded"
    judge_version: str
    verdict: Verdict
    assurance: Assurance
    codes: list[str]


class RunSuperseded(Body):
    """A correction: another run takes this one's place. Nothing is edited or deleted."""

    TYPE = "run.superseded"
    reason: str
    by: str


# --- environment --------------------------------------------------------------------------------------------------


class ObservedMemoryResource(Frozen):
    """A memory domain as the machine shows it. `parent` is the `key` of the resource that it is carved from."""

    key: str
    kind: Measurement
    capacity_bytes: Measurement
    available_bytes: Measurement
    parent: str | None = None


class ObservedComputeUnit(Frozen):
    """A Compute Unit as the machine shows it. `device_uuid` of a CPU domain is unavailable: it has none."""

    key: str
    kind: Measurement
    device_uuid: Measurement
    name: Measurement
    memory_resources: list[str] = Field(default_factory=list)


class EnvironmentObserved(Body):
    """The machine, as found and not as planned. `key`s are the machine's own names, or the document's in an import."""

    TYPE = "environment.observed"
    compute_units: list[ObservedComputeUnit]
    memory_resources: list[ObservedMemoryResource]
    facts: Measurements = Field(default_factory=dict)


class PlanAccepted(Body):
    """The plan passed every check against machine, checkpoint and adapter. Bytes are the plan's, per Memory Resource."""

    TYPE = "plan.accepted"
    required_bytes: dict[str, int]
    bindings: dict[str, str] = Field(default_factory=dict)
    """Plan id (Compute Unit or Memory Resource) -> the observed `key` that it was bound to."""


class Violation(Frozen):
    """One reason why a plan is refused."""

    code: str
    subject: str
    message: str


class PlanRejectedEvent(Body):
    TYPE = "plan.rejected"
    violations: list[Violation]


class ReferenceBound(Body):
    """The reference fixture that decode is compared with; `provenance` is what the fixture says it was made with."""

    TYPE = "reference.bound"
    planned_digest: str | None
    digest: Measurement
    provenance: dict[str, str] = Field(default_factory=dict)


# --- materialization ----------------------------------------------------------------------------------------------


class MaterializationStarted(Body):
    TYPE = "materialization.started"
    materialization_id: str
    logical_state_id: str
    memory_resource_id: str
    representation: str
    role: str
    persistence: str


class MaterializationRealized(Body):
    """What the adapter claims to have realised."""

    TYPE = "materialization.realized"
    materialization_id: str
    logical_state_id: str
    memory_resource_id: str
    representation: str
    role: str
    persistence: str
    bytes: Measurement
    tensors: Measurement
    streamed_bytes: Measurement | None = None
    unplanned_bytes: Measurement | None = None
    elapsed_ns: Measurement | None = None


class AddressRange(Frozen):
    """Where live storage lies: first address and length in bytes, in the address space of `space` (host or a device)."""

    space: str
    start: int
    length: int


class MaterializationObserved(Body):
    """What a probe saw by itself: live storages attributed by address to the range the engine allocated.

    `representation` is the planned name only when the live tensors match that representation's layout (dtype, shape,
    offset of every tensor); `live` is 1 or 0. `source_digest` and `resident_digest` are digests over the per-tensor
    digests (details in the blob `tensors_blob`), where content was verified.
    """

    TYPE = "materialization.observed"
    materialization_id: str
    logical_state_id: str
    memory_resource_id: Measurement
    representation: Measurement
    bytes: Measurement
    storages: Measurement
    tensors: Measurement
    live: Measurement
    role: str | None = None
    persistence: str | None = None
    ranges: list[AddressRange] = Field(default_factory=list)
    source_digest: Measurement | None = None
    resident_digest: Measurement | None = None
    tensors_blob: str | None = None


class MaterializationSkipped(Body):
    TYPE = "materialization.skipped"
    materialization_id: str
    reason: str


class MaterializationFailed(Body):
    TYPE = "materialization.failed"
    materialization_id: str
    error_type: str
    message: str


# --- release ------------------------------------------------------------------------------------------------------


class ReleaseAuthorized(Body):
    """The pure rule allowed the release: exactly these distinct materializations qualify."""

    TYPE = "release.authorized"
    materialization_id: str
    qualifying_ids: list[str]


class ReleaseRefused(Body):
    TYPE = "release.refused"
    materialization_id: str
    qualifying_ids: list[str]
    reason: str


class MaterializationReleased(Body):
    """Staging was given up. Bytes are the probe's: live before, live after, and what went; owners are those at release."""

    TYPE = "materialization.released"
    materialization_id: str
    bytes_before: Measurement
    bytes_after: Measurement
    released_bytes: Measurement
    owners_total: Measurement
    owners_alive: Measurement


class ReclamationObserved(Body):
    """What went back to the operating system.

    `phase` is `after-release` or `after-decode`. `region_mapped` is 1 when the staging region is still in smaps, else 0.
    `tree_before` and `tree_after` are the process tree's summed classes just before the release and now (bytes);
    `ratio` = (tree_before - tree_after) / staging bytes. `system` holds machine-wide figures: recorded, never judged.
    """

    TYPE = "reclamation.observed"
    materialization_id: str
    phase: Literal["after-release", "after-decode"]
    owners_total: Measurement
    owners_alive: Measurement
    region_mapped: Measurement
    tree_before: Measurement
    tree_after: Measurement
    ratio: Measurement
    classes_before: Measurements = Field(default_factory=dict)
    classes_after: Measurements = Field(default_factory=dict)
    system: Measurements = Field(default_factory=dict)


# --- authority and execution --------------------------------------------------------------------------------------


class AuthorityEstablished(Body):
    """Who defines mutable state. `lineage` is the tag read back from the owner's range, not the plan's word."""

    TYPE = "authority.established"
    logical_state_id: str
    materialization_id: str
    memory_resource_id: Measurement
    lineage: Measurement
    owner_range: AddressRange | None


class BoundState(Frozen):
    """One piece of required state as found at activation."""

    logical_state_id: str
    materialization_id: str
    memory_resource_id: str


class ExecutionActivated(Body):
    """Execution is bound to live state. `compute_unit_id` is the unit that the parameters were found on."""

    TYPE = "execution.activated"
    execution_id: str
    compute_unit_id: Measurement
    strategy_unit: str
    state: list[BoundState]


class Deviation(Frozen):
    """A tensor laid against its reference. `exact` is 1 when bit-equal, else 0; a non-finite figure is null and failed."""

    exact: Measurement
    max_absolute: Measurement
    max_relative: Measurement
    nan_count: Measurement
    inf_count: Measurement
    within_tolerance: Measurement | None = None


class DecodeRan(Body):
    """One prefill (`repetition` null) or one repeated decode (`repetition` from 0) from the restored baseline."""

    TYPE = "decode.ran"
    execution_id: str
    phase: Literal["prefill", "repetition"]
    repetition: int | None
    mode: Literal["eager", "cuda-graph"] = "eager"
    input: Deviation
    output: Deviation
    tokens: Measurement
    tokens_digest: Measurement
    output_digest: Measurement
    elapsed_ns: Measurement
    plan_lookups: Measurement


class SourceAccessed(Body):
    """An access to the checkpoint that a watch saw while none should happen. `attributed_to` `tree` is the run's own."""

    TYPE = "source.accessed"
    path: Measurement
    access: Literal["open", "read", "mapping", "descriptor"]
    attributed_to: Literal["tree", "other", "unknown"]
    pid: Measurement
    count: Measurement
    means: str


class SourceWatched(Body):
    """How well the checkpoint was watched from the release on: 1 or 0 for armed and overflow, counts of what was seen."""

    TYPE = "source.watched"
    armed: Measurement
    overflowed: Measurement
    network_filesystem: Measurement
    tree_accesses: Measurement
    other_accesses: Measurement
    mapped_files: Measurement
    open_descriptors: Measurement
    read_bytes: Measurement
    means: list[str]


# --- memory -------------------------------------------------------------------------------------------------------


class Census(Frozen):
    """Live tensor storages by owner, in bytes; what no owner explains stands apart. New since the baseline only."""

    by_owner: Measurements = Field(default_factory=dict)
    unowned_host_bytes: Measurement
    unowned_device_bytes: Measurement
    unowned_host_storages: Measurement
    evidence_host_by_role: Measurements = Field(default_factory=dict)


class MemorySampled(Body):
    """The process tree's memory at a labelled point.

    Labels: `baseline`, `materialized:ID`, `before-release:ID`, `after-release:ID`, `after-decode`, `closing`, or free.
    `process` keys (bytes; faults and swaps are counts): vm_rss, vm_hwm, rss_anon, rss_file, rss_shmem, vm_swap, hugetlb,
    vm_pin, minor_faults, major_faults, swap_in, swap_out, new_file_mappings, checkpoint_mappings, new_tmpfs_files,
    tree_sum. `host`: machine-wide figures; `cgroup`: the own cgroup's, with `others`, its processes outside the tree.
    `cuda`: per device `DEVICE.allocated`, `.reserved`, `.peak`, `.process`, and `host_pool`.
    """

    TYPE = "memory.sampled"
    label: str
    process: Measurements
    host: Measurements = Field(default_factory=dict)
    cgroup: Measurements = Field(default_factory=dict)
    cuda: Measurements = Field(default_factory=dict)
    census: Census | None = None
    mapped_files: list[str] = Field(default_factory=list)


BODIES: tuple[type[Body], ...] = (
    PlanFrozen,
    RunOpened,
    RunClosed,
    VerdictRecorded,
    RunSuperseded,
    EnvironmentObserved,
    PlanAccepted,
    PlanRejectedEvent,
    ReferenceBound,
    MaterializationStarted,
    MaterializationRealized,
    MaterializationObserved,
    MaterializationSkipped,
    MaterializationFailed,
    ReleaseAuthorized,
    ReleaseRefused,
    MaterializationReleased,
    ReclamationObserved,
    AuthorityEstablished,
    ExecutionActivated,
    DecodeRan,
    SourceAccessed,
    SourceWatched,
    MemorySampled,
)
BODY_BY_TYPE: dict[str, type[Body]] = {body.TYPE: body for body in BODIES}

AFTER_CLOSE = frozenset({VerdictRecorded.TYPE, RunSuperseded.TYPE})
"""The only types that may follow `run.closed`."""

# --- envelope -----------------------------------------------------------------------------------------------------

T = TypeVar("T", bound=str)
B = TypeVar("B", bound=Body)


class Actor(Frozen):
    """Who appended: the realizer, an importer, a witness, an operator at the command line, or the judge."""

    kind: Literal["realizer", "importer", "witness", "operator", "judge"]
    id: str


class Envelope(Frozen, Generic[T, B]):
    """One event as recorded. `elapsed_ns` is the run's own monotonic clock; null when a later process appended it."""

    v: Literal[1]
    event_id: str
    run_id: str
    sequence: int
    previous: str
    type: T
    type_version: int
    recorded_at: str
    elapsed_ns: int | None
    node_id: str
    actor: Actor
    body: B


Event = Envelope[Any, Any]


@cache
def _reader() -> TypeAdapter[Event]:
    union: Any = Union[tuple(Envelope[Literal[body.TYPE], body] for body in BODIES)]  # type: ignore[valid-type, name-defined]  # noqa: UP007 - built from a tuple
    return TypeAdapter(Annotated[union, Field(discriminator="type")])


def event_schema() -> dict[str, Any]:
    """The JSON Schema of an envelope, one alternative for each event type."""
    return _reader().json_schema(mode="validation")


UPCASTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""(type, old version) -> body of the next version. Applied on read; the recorded bytes stay as they are."""


def read_event(envelope: str) -> Event:
    """The event that an envelope's text holds, older versions upcast.

    Raises EventError (with `unknown_type` set) for a type or version this program does not know, and EventError for a
    body that does not have the form of its type.
    """
    problem: ValidationError | None = None
    try:
        event = _reader().validate_json(envelope, strict=True)
        if event.type_version == event.body.VERSION:
            return event
    except ValidationError as error:
        problem = error
    raw = canonical.decode(envelope, what="event")
    if not isinstance(raw, dict):
        raise EventError("event is no JSON object")
    kind, version = raw.get("type"), raw.get("type_version")
    known = BODY_BY_TYPE.get(kind) if isinstance(kind, str) else None
    if known is None or not isinstance(kind, str) or not isinstance(version, int):
        raise EventError(
            f"unknown event type {kind!r} version {version!r}",
            "it was written by another or newer program: read it with that version",
            unknown_type=True,
        )
    if version > known.VERSION:
        raise EventError(
            f"event type {kind!r} has version {version}; this program knows up to {known.VERSION}",
            "upgrade tallystick to read it",
            unknown_type=True,
        )
    if version == known.VERSION and problem is not None:
        raise _wrong_form(kind, problem) from problem
    while version < known.VERSION:
        upcast = UPCASTS.get((kind, version))
        if upcast is None:
            raise EventError(
                f"event type {kind!r} version {version} has no upcast to {known.VERSION}", unknown_type=True
            )
        try:
            raw["body"] = upcast(raw["body"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise EventError(f"event has not the form of {kind} version {version}: {error!r}") from error
        version += 1
    raw["type_version"] = version
    try:
        return _reader().validate_python(raw, strict=True)
    except ValidationError as error:
        raise _wrong_form(kind, error) from error


def _wrong_form(kind: str, problem: ValidationError) -> EventError:
    first = problem.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return EventError(f"event has not the form of {kind}: {canonical.printable(where)}: {first['msg']}")


def read_events(envelopes: Iterable[str]) -> Iterator[Event]:
    """Each envelope's event, in order."""
    for envelope in envelopes:
        yield read_event(envelope)


@dataclass(frozen=True)
class Draft:
    """An event before the ledger gives it its place: everything of the envelope but sequence and previous."""

    event_id: str
    run_id: str
    body: Body
    recorded_at: str
    elapsed_ns: int | None
    node_id: str
    actor: Actor

    def seal(self, sequence: int, previous: str) -> str:
        """The envelope's RFC 8785 text at that place of the chain. Raises EventError for values that may not enter."""
        return canonical.encode(
            {
                "v": ENVELOPE_VERSION,
                "event_id": self.event_id,
                "run_id": self.run_id,
                "sequence": sequence,
                "previous": previous,
                "type": self.body.TYPE,
                "type_version": self.body.VERSION,
                "recorded_at": self.recorded_at,
                "elapsed_ns": self.elapsed_ns,
                "node_id": self.node_id,
                "actor": self.actor.model_dump(mode="json"),
                "body": self.body.model_dump(mode="json"),
            }
        )


@dataclass(frozen=True)
class Recorded:
    """An event in its place: `position` in the ledger (the Merkle leaf index), envelope text, and hash (hex)."""

    position: int
    envelope: str
    hash: str


def uuid7(now_ms: int | None = None) -> str:
    """A UUID version 7 (RFC 9562 section 5.7): 48 bits of Unix milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    random = int.from_bytes(os.urandom(10), "big")
    value = (
        (milliseconds & (2**48 - 1)) << 80
        | 0x7 << 76
        | (random >> 62 & 0xFFF) << 64
        | 0b10 << 62
        | random & (2**62 - 1)
    )
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def timestamp() -> str:
    """Now, UTC, RFC 3339 with microseconds. Self-asserted by this machine's clock."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class ListLedger:
    """An in-memory ledger: the same places and chain as the store, for tests and for dry runs.

    `first_previous` maps a run id to the bare hex digest that its sequence 0 names (the plan digest, or NO_PLAN).
    """

    def __init__(self) -> None:
        self.recorded: list[Recorded] = []
        self._heads: dict[str, tuple[int, str]] = {}

    def append(self, run_id: str, expected_sequence: int, drafts: list[Draft]) -> list[Recorded]:
        """Append in order; raises EventError when `expected_sequence` is not the run's next."""
        next_sequence, previous = self._heads.get(run_id, (0, None))
        if next_sequence != expected_sequence:
            raise EventError(f"run {run_id} is at sequence {next_sequence}, not {expected_sequence}")
        added = []
        for offset, draft in enumerate(drafts):
            envelope = draft.seal(expected_sequence + offset, previous or first_previous(draft.body))
            previous = canonical.event_hash(envelope)
            added.append(Recorded(len(self.recorded) + offset, envelope, previous))
        if previous is not None:
            self._heads[run_id] = (expected_sequence + len(drafts), previous)
        self.recorded.extend(added)
        return added

    def events(self, run_id: str | None = None) -> list[Event]:
        """The events of one run, or of all."""
        events = [read_event(recorded.envelope) for recorded in self.recorded]
        return [event for event in events if run_id is None or event.run_id == run_id]


def first_previous(body: Body) -> str:
    """`previous` of a stream's sequence 0: the bare hex of the plan digest as computed, or NO_PLAN without a plan.

    Raises EventError when a stream does not begin with `run.opened` or `plan.frozen`.
    """
    if isinstance(body, PlanFrozen):
        return body.digest.removeprefix("sha256:")
    if isinstance(body, RunOpened):
        return body.plan.computed_digest.removeprefix("sha256:") if body.plan else NO_PLAN
    raise EventError(f"a stream begins with run.opened or plan.frozen, not {body.TYPE}")


AppendCallable = Callable[[str, int, list[Draft]], list[Recorded]]


class Recorder:
    """Gives bodies their envelope fields and appends them to one run, each durable before the call returns.

    `clock` is the run's own monotonic clock in nanoseconds, or null for a process that comes later. Calling the
    recorder with a body is the `sink` that the engine takes.

    An interrupt may fall between the commit of an event and this process learning of it. The next call then appends that
    event again first, which changes nothing where it is recorded: the run can be closed after an interrupt at any point.
    """

    def __init__(
        self,
        append: AppendCallable,
        *,
        run_id: str,
        node_id: str,
        actor: Actor,
        next_sequence: int = 0,
        clock: Callable[[], int] | None = time.monotonic_ns,
    ) -> None:
        self.run_id = run_id
        self.next_sequence = next_sequence
        self._append = append
        self._node_id = node_id
        self._actor = actor
        self._clock = clock
        self._started = clock() if clock else 0
        self._unsure: Draft | None = None

    def __call__(self, body: Body) -> Recorded:
        draft = Draft(
            event_id=uuid7(),
            run_id=self.run_id,
            body=body,
            recorded_at=timestamp(),
            elapsed_ns=self._clock() - self._started if self._clock else None,
            node_id=self._node_id,
            actor=self._actor,
        )
        if self._unsure is not None:
            self._place(self._unsure)
        return self._place(draft)

    def _place(self, draft: Draft) -> Recorded:
        self._unsure = draft
        try:
            (recorded,) = self._append(self.run_id, self.next_sequence, [draft])
        except Exception:
            self._unsure = None
            raise
        self.next_sequence, self._unsure = self.next_sequence + 1, None
        return recorded
