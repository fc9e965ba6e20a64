"""What an event says: one frozen form for each type. Every observed fact in it is a `Measurement`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ledger.measurement import Frozen, Measurement, Measurements

Verdict = Literal["PASS", "FAIL", "INDETERMINATE"]
Assurance = Literal["declared", "observed", "content-verified"]


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
