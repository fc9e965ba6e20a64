"""The frozen plan: one model for both dialects, strict reading, freezing, and the digest.

Dialects: `inferswarm.r1.frozen-plan/1` exactly as published, and `tallystick.plan/1`, a superset for daily use that
selects tensors by pattern, binds a checkpoint and a reference, and says what is expected of memory. The digest is by
the R1 rule over the document as read, so fields this version does not know are kept and hashed (and refused by
`ledger.plan_checks`). Docstrings of the parts describe every field; docs/plan.md is made of them (`ledger.plan_page`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ledger import canonical
from ledger.errors import PlanError
from ledger.shape import LARGE, ShapeError, refuse_other_shape

R1_SCHEMA = "inferswarm.r1.frozen-plan/1"
TALLY_SCHEMA = "tallystick.plan/1"
SCHEMAS = (R1_SCHEMA, TALLY_SCHEMA)

SemanticClass = Literal["immutable_source", "derived_reconstructible", "mutable_authoritative"]
Role = Literal["staging", "required_residency", "mutable_authority", "required_test_state", "optional_cache"]
Persistence = Literal["persistent", "transient"]
Requirement = Literal["required", "optional"]

MIB = 1024 * 1024
DEFAULT_GIVE_BACK_RATIO = 0.80
DEFAULT_HOST_NOISE_BYTES = 64 * MIB
DEFAULT_UNATTRIBUTED_BYTES = 64 * MIB
DEFAULT_REPETITIONS = 4

OUTSIDE_ENGINE = "outside-engine"
"""Strategy of the executions of an engine that somebody else wrote, which is watched and not carried out."""


class Part(BaseModel):
    """Base of plan parts: immutable; unknown fields are kept so that the checks can name them."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, populate_by_name=True)


class ModelReference(Part):
    """Which model. The two digests bind it to one checkpoint's contents.

    repository, revision: of the hub, or the directory as it was called when the plan was drafted, and `local`.
    config_digest: SHA-256 of config.json.
    headers_digest: SHA-256 over all tensor headers.
    """

    repository: str
    revision: str
    config_digest: str | None = None
    headers_digest: str | None = None


class ComputeUnit(Part):
    """Something that executes.

    kind: `cpu` or `cuda-gpu`.
    device_uuid: which accelerator; null for a CPU domain, which has none.
    memory_resources: ids of the memory that it reaches.
    """

    id: str
    kind: str
    device_uuid: str | None = None
    memory_resources: list[str] = Field(default_factory=list)


class MemoryResource(Part):
    """An accountable memory domain.

    kind: `system-ram`, `shared-memory` or `accelerator-vram`.
    capacity_bytes: what it holds; more than that may never be live in it at once.
    parent: the resource that it is carved from, in which its bytes count too.
    """

    id: str
    kind: str
    capacity_bytes: int
    parent: str | None = None


class Node(Part):
    """One physical host.

    compute_units, memory_resources: what it has.
    """

    id: str
    compute_units: list[ComputeUnit] = Field(default_factory=list)
    memory_resources: list[MemoryResource] = Field(default_factory=list)


class BackingSource(Part):
    """Where state can be had again.

    kind: `checkpoint`.
    repository, revision: as in `model`.
    """

    id: str
    kind: str
    repository: str | None = None
    revision: str | None = None


class Link(Part):
    """A real path.

    kind: what moves the bytes, such as `bounded-read`, `host-copy`, `device-copy`.
    source: id of a backing source or a Memory Resource.
    target: id of a Memory Resource.
    """

    id: str
    kind: str
    source: str
    target: str


class Resources(Part):
    """The machine that the plan is for.

    swarm_id: name of the planning domain.
    nodes: the hosts.
    backing_sources: the checkpoints.
    links: the paths between them.
    """

    swarm_id: str
    nodes: list[Node]
    backing_sources: list[BackingSource] = Field(default_factory=list)
    links: list[Link] = Field(default_factory=list)


class Selection(Part):
    """Checkpoint tensors by fnmatch patterns.

    patterns: a key that matches any of them is selected,
    exclude: unless it matches one of these.
    count: how many keys that has to be.
    keys_digest: `sha256:` of the sorted keys, one a line, each with LF.
    """

    patterns: list[str]
    exclude: list[str] = Field(default_factory=list)
    count: int
    keys_digest: str

    def matches(self, key: str) -> bool:
        return any(fnmatchcase(key, pattern) for pattern in self.patterns) and not any(
            fnmatchcase(key, pattern) for pattern in self.exclude
        )


def keys_digest(keys: list[str]) -> str:
    """`sha256:` over the sorted keys, one a line, each line ended by LF."""
    return canonical.sha256_digest("".join(f"{key}\n" for key in sorted(keys)).encode("utf-8"))


class LogicalStateUnit(Part):
    """Model or runtime state apart from place and form.

    semantic_class: whether it can be had again, be made again, or exists once.
    backing_source_id: where it comes from; an `immutable_source` needs one.
    reconstruction_inputs: ids of the units that a `derived_reconstructible` one is made of.
    selection: the checkpoint's tensors that it consists of.
    """

    id: str
    semantic_class: SemanticClass
    backing_source_id: str | None = None
    reconstruction_inputs: list[str] = Field(default_factory=list)
    selection: Selection | None = None


class Materialization(Part):
    """One physical form of a unit on one Memory Resource.

    logical_state_id: id of the unit.
    memory_resource_id: where it has to lie.
    representation: the adapter's name of the form; observed only where the live tensors have that form's layout.
    role: what it is for.
    persistence: a residency that is kept, or staging that must go.
    requirement: whether the run may do without it.
    expected_bytes: bytes of its tensors; of a ring, what is live at once.
    path_id: id of the link by which it comes.
    streamed_bytes: for staging through a ring: bytes that pass through it.
    tolerance_bytes: for judging an outside engine, whose ranges are not ours.
    """

    id: str
    logical_state_id: str
    memory_resource_id: str
    representation: str
    role: Role
    persistence: Persistence
    requirement: Requirement
    expected_bytes: int
    path_id: str | None = None
    streamed_bytes: int | None = None
    tolerance_bytes: int | None = None


class Authority(Part):
    """The one lineage that may define mutable state.

    lineage: the tag that is written on the owner's range and read back.
    logical_state_id: id of the mutable unit.
    materialization_id: its owner, of role `mutable_authority`.
    """

    lineage: str
    logical_state_id: str
    materialization_id: str


class RequiredState(Part):
    """State that an execution needs.

    logical_state_id: id of the unit.
    memory_resources: on any of these,
    representations: in any of these forms.
    """

    logical_state_id: str
    memory_resources: list[str]
    representations: list[str]


class Execution(Part):
    """A strategy bound to a Compute Unit.

    compute_unit_id: where it runs.
    strategy_unit: the strategy, in the adapter's words.
    required_state: what has to be live when it is activated.
    """

    id: str
    compute_unit_id: str
    strategy_unit: str
    required_state: list[RequiredState] = Field(default_factory=list)


class ForbiddenMaterialization(Part):
    """A persistent copy that must not be.

    logical_state_id: id of the unit.
    memory_resource_id: where no persistent copy of it may lie, whatever is carved from it included.
    """

    logical_state_id: str
    memory_resource_id: str


class MemoryExpectations(Part):
    """What is expected of memory. What is left out has the default.

    persistent_optional_bytes: of all optional persistent materializations together.
    unexplained_persistent_host_mirror_bytes: copies in host memory that nothing explains (bytes, default 0).
    unplanned_persistent_bytes: live storage outside the plan (bytes, default 0).
    host_give_back_ratio: least share of the staging's bytes that has to go back to the operating system (default 0.80).
    host_noise_bytes: host growth that may stay unexplained (default 64 MiB).
    unattributed_bytes: device memory that may stay unexplained (default 64 MiB).
    transient_peak_bytes: most bytes at once, by id of the Memory Resource.
    """

    persistent_optional_bytes: int = 0
    unexplained_persistent_host_mirror_bytes: int = 0
    unplanned_persistent_bytes: int = 0
    host_give_back_ratio: float | None = None
    host_noise_bytes: int | None = None
    unattributed_bytes: int | None = None
    transient_peak_bytes: dict[str, int] | None = None


class AdapterReference(Part):
    """Which adapter realises the plan.

    name: as its entry point is called.
    options: in its own words; only the adapter reads them.
    """

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class PlannedFile(Part):
    """One checkpoint file.

    name: relative to the checkpoint's directory.
    size: bytes.
    digest: `sha256:` of the file; where it is given, the file is hashed in each run.
    """

    name: str
    size: int
    digest: str | None = None


class Checkpoint(Part):
    """The checkpoint's files.

    files: each with its size.
    """

    files: list[PlannedFile] = Field(default_factory=list)


class Correctness(Part):
    """What decode must match.

    reference_digest: SHA-256 of the fixture file; bound by `plan freeze --reference`.
    prefill: whether prefill is compared.
    repetitions: how often decode is repeated from the same state (default 4).
    mode: bit for bit, or within a tolerance.
    atol, rtol: |found - reference| <= atol + rtol * |reference|, with `tolerance`.
    """

    reference_digest: str | None = None
    prefill: bool = True
    repetitions: int = DEFAULT_REPETITIONS
    mode: Literal["exact", "tolerance"] = "exact"
    atol: float | None = None
    rtol: float | None = None


class PlanDocument(Part):
    """The document of either dialect.

    schema: the dialect.
    plan_version: the drafter's own counting.
    digest: by the digest rule; a draft has none.
    model: which model.
    resources: which machine.
    logical_state_units: the state.
    materializations: which form of it lies where, in the order in which they are made.
    authorities: who defines mutable state.
    execution: what runs on what.
    forbidden_persistent_materializations: copies that must not be.
    memory_expectations: what is expected of memory.
    adapter_data: of the R1 dialect: the adapter's own words.
    adapter: who carries it out.
    checkpoint: files of the checkpoint.
    correctness: what decode must match.
    """

    schema_: str = Field(alias="schema")
    plan_version: str
    digest: str | None = None
    model: ModelReference
    resources: Resources
    logical_state_units: list[LogicalStateUnit]
    materializations: list[Materialization]
    authorities: list[Authority] = Field(default_factory=list)
    execution: list[Execution] = Field(default_factory=list)
    forbidden_persistent_materializations: list[ForbiddenMaterialization] = Field(default_factory=list)
    memory_expectations: MemoryExpectations = Field(default_factory=MemoryExpectations)
    adapter_data: dict[str, Any] = Field(default_factory=dict)
    adapter: AdapterReference | None = None
    checkpoint: Checkpoint | None = None
    correctness: Correctness | None = None


@dataclass(frozen=True)
class Plan:
    """A plan as read: the exact bytes, the parsed JSON, and the typed model over it.

    Laws: `parse_plan(plan.data) == plan`; `plan.computed_digest` does not depend on `plan.claimed_digest`.
    """

    data: bytes
    raw: dict[str, Any]
    document: PlanDocument

    @cached_property
    def computed_digest(self) -> str:
        """The digest by the R1 rule, `sha256:<hex>`."""
        return canonical.r1_digest(self.raw)

    @property
    def claimed_digest(self) -> str | None:
        return self.document.digest

    @property
    def frozen(self) -> bool:
        """The plan carries a digest and it is the one its content has."""
        return self.claimed_digest == self.computed_digest

    @cached_property
    def blob_digest(self) -> str:
        """`sha256:<hex>` of the plan file's bytes."""
        return canonical.sha256_digest(self.data)

    @property
    def schema(self) -> str:
        return self.document.schema_

    @cached_property
    def materializations(self) -> dict[str, Materialization]:
        """By id; where ids repeat (the checks refuse that) the first stands."""
        found: dict[str, Materialization] = {}
        for materialization in self.document.materializations:
            found.setdefault(materialization.id, materialization)
        return found

    @cached_property
    def units(self) -> dict[str, LogicalStateUnit]:
        return {unit.id: unit for unit in reversed(self.document.logical_state_units)}

    @cached_property
    def memory_resources(self) -> dict[str, MemoryResource]:
        return {resource.id: resource for node in self.document.resources.nodes for resource in node.memory_resources}

    @cached_property
    def compute_units(self) -> dict[str, ComputeUnit]:
        return {unit.id: unit for node in self.document.resources.nodes for unit in node.compute_units}

    def resource_and_parents(self, resource_id: str) -> Iterator[str]:
        """The resource and what it is carved from, outwards; stops at an unknown id or a cycle."""
        seen: set[str] = set()
        current: str | None = resource_id
        while current is not None and current not in seen:
            seen.add(current)
            yield current
            resource = self.memory_resources.get(current)
            current = resource.parent if resource else None

    @property
    def correctness(self) -> Correctness:
        """What decode must match; the R1 dialect says nothing, so the defaults stand (exact, four repetitions)."""
        return self.document.correctness or Correctness()

    @property
    def outside(self) -> bool:
        """Whether the plan is of an engine that is watched: no adapter carries it out, and no run of it can PASS."""
        return self.document.adapter is None and any(
            execution.strategy_unit == OUTSIDE_ENGINE for execution in self.document.execution
        )

    @property
    def host_give_back_ratio(self) -> float:
        ratio = self.document.memory_expectations.host_give_back_ratio
        return DEFAULT_GIVE_BACK_RATIO if ratio is None else ratio

    @property
    def host_noise_bytes(self) -> int:
        noise = self.document.memory_expectations.host_noise_bytes
        return DEFAULT_HOST_NOISE_BYTES if noise is None else noise

    @property
    def unattributed_bytes(self) -> int:
        allowed = self.document.memory_expectations.unattributed_bytes
        return DEFAULT_UNATTRIBUTED_BYTES if allowed is None else allowed


def parse_plan(data: bytes, *, what: str = "plan") -> Plan:
    """Read a plan of either dialect from the bytes of its file.

    Raises PlanError when it is not JSON two readers would read alike, not an object, of an unknown schema, or when a
    part is missing or has the wrong type. What is well-formed but wrong is left to `ledger.plan_checks`.
    """
    try:
        raw = canonical.decode(data, what=what)
    except canonical.StrictJsonError as error:
        raise PlanError(f"{error.message}", "a plan is a JSON document: make one with `tally plan draft`") from error
    if not isinstance(raw, dict) or "schema" not in raw:
        raise PlanError(f"{what} is no plan: it is no JSON object with a `schema`", "make one with `tally plan draft`")
    if raw["schema"] not in SCHEMAS:
        raise PlanError(f"{what} is no plan: schema {raw['schema']!r}, expected one of {', '.join(SCHEMAS)}")
    if len(data) > LARGE:
        try:
            refuse_other_shape(raw, PlanDocument)
        except ShapeError as error:
            raise PlanError(f"{what} has the schema of a plan but not its form: {error.message}") from error
    try:
        document = PlanDocument.model_validate(raw, strict=True)
    except ValidationError as error:
        problems = [
            f"{canonical.printable('.'.join(str(part) for part in problem['loc']))}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise PlanError(f"{what} has the schema of a plan but not its form: {shown}") from error
    return Plan(data=data, raw=raw, document=document)


def freeze(plan: Plan, *, reference_digest: str | None = None) -> Plan:
    """The plan sealed: the reference's digest bound where given, then `digest` set, in the published file form.

    Law: `freeze(p).frozen`. Raises PlanError for a plan that already carries a digest that is not its own, and for a
    reference given to a plan of the R1 dialect, which has no field for it.
    """
    if plan.claimed_digest is not None and not plan.frozen:
        raise PlanError(
            f"plan claims digest {plan.claimed_digest} but its content has {plan.computed_digest}",
            "it was edited after freezing: remove the `digest` field to freeze it anew",
        )
    raw = {key: value for key, value in plan.raw.items() if key != "digest"}
    if reference_digest is not None:
        if plan.schema == R1_SCHEMA:
            raise PlanError(f"a plan of {R1_SCHEMA} binds no reference", f"use {TALLY_SCHEMA} to bind one")
        raw["correctness"] = {**(raw.get("correctness") or {}), "reference_digest": reference_digest}
    raw["digest"] = canonical.r1_digest(raw)
    return parse_plan(canonical.r1_file(raw))
