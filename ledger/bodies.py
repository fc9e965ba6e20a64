"""What an event says: one frozen form for each type. Every observed fact in it is a `Measurement`.

The docstrings are the source of docs/events.md (`ledger.event_page`): what happened; `by:` whom and when it is appended;
then every field with its unit.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ledger.body_parts import (
    AdapterIdentity,
    AddressRange,
    BoundState,
    Census,
    CheckpointFile,
    Deviation,
    FreezingReference,
    ModelIdentity,
    ObservedComputeUnit,
    ObservedMemoryResource,
    PlanReference,
    SoftwareIdentity,
    Violation,
)
from ledger.measurement import Frozen, Measurement, Measurements

Verdict = Literal["PASS", "FAIL", "INDETERMINATE"]
Assurance = Literal["declared", "observed", "content-verified"]


class Body(Frozen):
    """Base of event bodies. `TYPE` and `VERSION` go into the envelope."""

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1


# --- plan ---------------------------------------------------------------------------------------------------------


class PlanFrozen(Body):
    """A plan was sealed. The one event of a stream of its own.

    by: `plan freeze`, once for each plan digest and ledger.
    digest: of the plan, by the plan's digest rule.
    blob_digest: SHA-256 of the plan file's bytes, which lie in `blobs`.
    note: what the person freezing remarked.
    """

    TYPE = "plan.frozen"
    digest: str
    blob_digest: str
    note: str | None = None


# --- run ----------------------------------------------------------------------------------------------------------


class RunOpened(Body):
    """A run began. The first event of every run.

    by: the realizer, an importer or a witness, before anything else happens.
    purpose: what kind of run: carried out here, read from a document, or watched from outside.
    plan: null only for a witness without one.
    frozen: the freezing that the run cites; null when the ledger had none.
    adapter: who carries the plan out; null where nobody does.
    software: what ran.
    argv: the command line, secrets masked.
    user, hostname, pid: who, where, and which process.
    labels: `--label` of whoever started it.
    challenge: a verifier's text: the run is no older than it.
    model: what the checkpoint says of itself.
    checkpoint_files: the files with sizes, and digests where the plan has any.
    witness_of: id of the run that a witness watches, or null.
    provenance: of an import: what the document says of its making.
    """

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
    """The run ended.

    by: whoever opened it, last; a killed process leaves none.
    outcome: how it ended.
    error_type, message: the error's class and one line of it, when it did not complete.
    """

    TYPE = "run.closed"
    outcome: Literal["completed", "failed", "aborted", "rejected"]
    error_type: str | None = None
    message: str | None = None


class VerdictRecorded(Body):
    """The verdict as judged when the run closed; whoever judges again may come to another, and theirs counts.

    by: the judge, after the close: in `realize`, `import RESULT` and `observe --plan`, never in `reconcile`.
    judge_version: of the rules.
    verdict, assurance: what they came to.
    codes: of the findings, sorted, each once.
    """

    TYPE = "verdict.recorded"
    judge_version: str
    verdict: Verdict
    assurance: Assurance
    codes: list[str]


class RunSuperseded(Body):
    """A correction: another run takes this one's place. Nothing is edited or deleted.

    by: the operator, by `supersede`, after the close.
    reason: in the operator's words.
    """

    TYPE = "run.superseded"
    reason: str
    by: str


# --- environment --------------------------------------------------------------------------------------------------


class EnvironmentObserved(Body):
    """The machine, as found and not as planned. `key`s are the machine's own names, or the document's in an import.

    by: the realizer, the witness or an importer, right after `run.opened`.
    compute_units, memory_resources: all that were found.
    facts: other figures that bear on memory and speed, by name.
    """

    TYPE = "environment.observed"
    compute_units: list[ObservedComputeUnit]
    memory_resources: list[ObservedMemoryResource]
    facts: Measurements = Field(default_factory=dict)


class PlanAccepted(Body):
    """The plan passed every check against machine, checkpoint and adapter.

    by: the realizer, before anything is allocated.
    required_bytes: what the plan needs of each Memory Resource (bytes, by plan id).
    bindings: plan id of a Compute Unit or Memory Resource -> the observed `key` that it was bound to.
    """

    TYPE = "plan.accepted"
    required_bytes: dict[str, int]
    bindings: dict[str, str] = Field(default_factory=dict)


class PlanRejectedEvent(Body):
    """Something speaks against the plan; nothing was allocated.

    by: the realizer, in place of `plan.accepted`; `run.closed` follows.
    violations: all of them at once.
    """

    TYPE = "plan.rejected"
    violations: list[Violation]


class ReferenceBound(Body):
    """The reference fixture that decode is compared with.

    by: the realizer, before the plan is accepted, when a fixture was given.
    planned_digest: what the plan binds.
    digest: SHA-256 of the fixture file at hand.
    provenance: what the fixture says it was made with.
    size: of that file (bytes); null where a run did not record it.
    """

    TYPE = "reference.bound"
    planned_digest: str | None
    digest: Measurement
    size: Measurement | None = None
    provenance: dict[str, str] = Field(default_factory=dict)


# --- materialization ----------------------------------------------------------------------------------------------


class MaterializationStarted(Body):
    """A range is about to be allocated and filled.

    by: the realizer, for each materialization in the plan's order.
    """

    TYPE = "materialization.started"
    materialization_id: str
    logical_state_id: str
    memory_resource_id: str
    representation: str
    role: str
    persistence: str


class MaterializationRealized(Body):
    """What the adapter claims to have realised.

    by: the realizer, with the adapter's word, when its `realize` returned.
    bytes: of the tensors placed, without padding.
    tensors: how many.
    streamed_bytes: what passed through a ring (bytes).
    unplanned_bytes: what the adapter kept besides (bytes).
    elapsed_ns: allocation and adapter together (ns).
    """

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


class MaterializationObserved(Body):
    """What a probe saw by itself: live storages attributed by address to the range the engine allocated.

    by: the realizer's probe, right after the claim; a witness of what it sees from outside; an importer, as declared.
    memory_resource_id: the plan's id of the memory that the live tensors lie on.
    representation: the planned name only when dtype, shape and offset of every live tensor are that layout's.
    bytes: of live storages in the range.
    storages, tensors: how many are alive there.
    live: 1 or 0.
    ranges: the range's addresses.
    source_digest, resident_digest: over the per-tensor digests of what was read and of what lies there, where content was
    verified.
    tensors_blob: digest of the document in `blobs` with one row a tensor.
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
    """An optional materialization was not made.

    by: an importer, where the document says so; this program's realizer skips none.
    reason: why.
    """

    TYPE = "materialization.skipped"
    materialization_id: str
    reason: str


class MaterializationFailed(Body):
    """A range could not be allocated or filled; the run ends.

    by: the realizer, when allocation or adapter raised or gave back no claim.
    error_type, message: the error's class and one line of it.
    """

    TYPE = "materialization.failed"
    materialization_id: str
    error_type: str
    message: str


# --- release ------------------------------------------------------------------------------------------------------


class ReleaseAuthorized(Body):
    """The pure rule allowed the release.

    by: the realizer, when every materialization is realised, for each staging.
    qualifying_ids: exactly the distinct materializations that qualify.
    """

    TYPE = "release.authorized"
    materialization_id: str
    qualifying_ids: list[str]


class ReleaseRefused(Body):
    """The pure rule did not allow the release; the staging stays.

    by: the realizer, in place of `release.authorized`.
    qualifying_ids: those that qualify: none.
    reason: what was missing.
    """

    TYPE = "release.refused"
    materialization_id: str
    qualifying_ids: list[str]
    reason: str


class MaterializationReleased(Body):
    """Staging was given up.

    by: the realizer, with its probe's figures, right after the range was freed or could not be.
    bytes_before, bytes_after: live storages in the range (bytes).
    released_bytes: the difference (bytes).
    owners_total, owners_alive: storages that held the range when it was observed, and those of them alive now.
    """

    TYPE = "materialization.released"
    materialization_id: str
    bytes_before: Measurement
    bytes_after: Measurement
    released_bytes: Measurement
    owners_total: Measurement
    owners_alive: Measurement


class ReclamationObserved(Body):
    """What went back to the operating system.

    by: the realizer's probe, after each release and again after the last decode.
    phase: when it was looked.
    owners_total, owners_alive: storages that held the range when it was observed, and those of them alive now.
    region_mapped: 1 when the staging region is still in smaps, else 0.
    tree_before, tree_after: the process tree's summed classes just before the release and now (bytes).
    ratio: (tree_before - tree_after) / staging bytes.
    classes_before, classes_after: the classes one by one (bytes).
    system: machine-wide figures: recorded, never judged.
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
    """Who defines mutable state.

    by: the realizer, after the releases, for each planned authority.
    memory_resource_id: where the owner was last observed.
    lineage: the tag read back from the owner's range, not the plan's word.
    owner_range: where that range lies.
    """

    TYPE = "authority.established"
    logical_state_id: str
    materialization_id: str
    memory_resource_id: Measurement
    lineage: Measurement
    owner_range: AddressRange | None


class ExecutionActivated(Body):
    """Execution is bound to live state.

    by: the realizer, when the adapter's `activate` returned.
    execution_id: in the plan.
    compute_unit_id: the plan's id of the unit that the parameters were found on.
    strategy_unit: as planned.
    state: what it was bound to.
    """

    TYPE = "execution.activated"
    execution_id: str
    compute_unit_id: Measurement
    strategy_unit: str
    state: list[BoundState]


class DecodeRan(Body):
    """One prefill, or one repeated decode from the restored baseline.

    by: the realizer, when the step is over; nothing is recorded while the model runs.
    execution_id: in the plan.
    phase: prefill or repetition.
    repetition: from 0; null for prefill.
    mode: how it ran.
    input, output: deviations from the reference's.
    tokens: how many.
    tokens_digest: SHA-256 of the token ids, one a line.
    output_digest: SHA-256 of the output's dtype, shape and bytes.
    elapsed_ns: the step, device synchronised (ns).
    plan_lookups: looks into the plan while it ran.
    """

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
    """An access to the checkpoint that a watch saw while none should happen.

    by: the realizer's watch, at the end of the run; a witness.
    path: of the file.
    access: what was seen.
    attributed_to: `tree` is the run's own processes.
    pid: of the process, where known.
    count: how often.
    means: which watch saw it.
    """

    TYPE = "source.accessed"
    path: Measurement
    access: Literal["open", "read", "mapping", "descriptor"]
    attributed_to: Literal["tree", "other", "unknown"]
    pid: Measurement
    count: Measurement
    means: str


class SourceWatched(Body):
    """How well the checkpoint was watched from the release on.

    by: the realizer's watch, at the end of the run; a witness.
    armed, overflowed, network_filesystem: 1 or 0.
    tree_accesses, other_accesses: how many were seen, of the run's own processes and of others.
    mapped_files, open_descriptors: checkpoint files held so by the tree.
    read_bytes: the tree's read counter across decode (bytes).
    means: the watches that ran.
    """

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


class MemorySampled(Body):
    """The process tree's memory at a labelled point.

    by: the realizer's probe at each step; a witness of the processes it watches.
    label: `baseline`, `materialized:ID`, `before-release:ID`, `after-release:ID`, `after-decode`, `closing`, or free.
    process: the tree (bytes; faults and swaps are counts): vm_rss, vm_hwm, rss_anon, rss_file, rss_shmem, vm_swap, hugetlb,
    vm_pin, minor_faults, major_faults, swap_in, swap_out, new_file_mappings, checkpoint_mappings, new_tmpfs_files, tree_sum;
    and processes, the members of the tree. tree_sum is shown as "held": bytes held, each page once: private, shared,
    swapped and huge pages, and what is held beyond those through files new since the baseline (to a witness: through any
    file); rss_file is not added.
    host: machine-wide figures.
    cgroup: the own cgroup's, with `others`, its processes outside the tree.
    cuda: per device `DEVICE.allocated`, `.reserved`, `.peak`, `.process`, and `host_pool` (bytes).
    census: the tensors; null where the interpreter is another's.
    mapped_files: names of files mapped by the tree.
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
