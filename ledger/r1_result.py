"""The published R1 result document (`inferswarm.r1.frozen-plan-realization/1`): its form, every part of it optional.

Nothing is interpreted here. A part that a document lacks is None, so that whoever reads it must say what follows from
not knowing; a part of the wrong type is refused, naming its place.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ledger import canonical
from ledger.errors import TallyError
from ledger.plan import Node
from ledger.plan_forms import unsafe_integers

R1_RESULT_SCHEMA = "inferswarm.r1.frozen-plan-realization/1"


class Part(BaseModel):
    """Base of the document's parts: immutable, strict about types; fields that are not read are let pass."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class PlanNamed(Part):
    """Which plan the document says it realised: payload digest, SHA-256 (bare hex) of the plan's file."""

    digest: str | None = None
    file_sha256: str | None = None
    model: str | None = None
    revision: str | None = None


class Validation(Part):
    """The gate before realising: whether the plan was found valid, and the bytes it requires per Memory Resource."""

    digest: str | None = None
    passed: bool | None = None
    required_bytes_by_memory: dict[str, int] | None = None


class Physical(Part):
    """The machine. Memory in bytes."""

    hostname: str | None = None
    gpu_name: str | None = None
    gpu_uuid: str | None = None
    gpu_total_memory_bytes: int | None = None
    system_ram_bytes: int | None = None
    torch_version: str | None = None
    cuda_runtime: str | None = None


class NamedResources(Part):
    """Nodes as the document names them, in the plan's own form."""

    nodes: list[Node] | None = None


class ResourcesReport(Part):
    """`device` is a torch device name (`cuda:0`)."""

    device: str | None = None
    model_repository: str | None = None
    model_revision: str | None = None
    physical: Physical | None = None
    resources: NamedResources | None = None


class ObservedMaterialization(Part):
    """One materialization at the end of the run. Bytes; the three release figures only where it was released."""

    materialization_id: str
    logical_state_id: str | None = None
    actual_memory_resource_id: str | None = None
    actual_representation: str | None = None
    intended_role: str | None = None
    persistence: str | None = None
    lifecycle_state: str | None = None
    observed_bytes: int | None = None
    observed_bytes_before_release: int | None = None
    observed_bytes_after_release: int | None = None
    released_bytes: int | None = None
    release_qualifying_materialization_ids: list[str] | None = None


class ObservedAuthority(Part):
    logical_state_id: str
    materialization_id: str
    memory_resource_id: str | None = None
    lineage: str | None = None


class ObservedExecution(Part):
    execution_id: str
    compute_unit_id: str | None = None
    strategy_unit: str | None = None
    status: str | None = None


class ProcessCheckpoint(Part):
    """The process at one labelled point. `process` in KiB by `/proc` name (`RssAnon_kib`); `vmstat` machine-wide counts;
    role figures in bytes."""

    label: str | None = None
    measurement_status: str | None = None
    process: dict[str, int | None] | None = None
    vmstat: dict[str, int | None] | None = None
    ru_maxrss_kib: int | None = None
    cuda_allocated_bytes: int | None = None
    cuda_peak_allocated_bytes: int | None = None
    gpu_block_local_runtime_state_bytes: int | None = None
    gpu_expert_bank_cache_bytes: int | None = None
    gpu_selective_block_model_bytes: int | None = None
    host_expert_source_bank_bytes: int | None = None
    other_deliberate_gpu_bytes_by_role: dict[str, int | None] | None = None
    other_deliberate_persistent_host_bytes_by_role: dict[str, int | None] | None = None


class Observed(Part):
    materializations: list[ObservedMaterialization] | None = None
    authorities: list[ObservedAuthority] | None = None
    execution: list[ObservedExecution] | None = None
    process_checkpoints: list[ProcessCheckpoint] | None = None


class DeviationReport(Part):
    """One tensor against its reference."""

    exact_equality: bool | None = None
    bounded_equivalence: bool | None = None
    max_absolute_deviation: float | None = None
    max_relative_deviation: float | None = None
    nan_count: int | None = None
    inf_count: int | None = None


class DecodeReport(Part):
    input: DeviationReport | None = None
    output: DeviationReport | None = None
    repetition: int | None = None


class CorrectnessReport(Part):
    """Prefill and repeated decode, and counts taken besides: tensors of the staging and how many of them are dead, calls
    into the loaders after the release."""

    prefill: DecodeReport | None = None
    decode_runs: list[DecodeReport] | None = None
    staging_tensor_count: int | None = None
    dead_staging_tensor_count: int | None = None
    resident_source_access_attempts: int | None = None
    post_release_loader_sentinels: dict[str, int | None] | None = None


class BackendReport(Part):
    hot_path_plan_lookups: int | None = None


class Result(Part):
    """The whole document. `passed`, `status` and `reconciliation` are its own judgement and are not read."""

    plan: PlanNamed | None = None
    validation: Validation | None = None
    resources: ResourcesReport | None = None
    observed: Observed | None = None
    correctness: CorrectnessReport | None = None
    backend_execution: BackendReport | None = None
    memory: dict[str, Any] | None = None
    provenance: dict[str, Any] | None = None
    scope: dict[str, Any] | None = None
    status: str | None = None


P = TypeVar("P", bound=Part)


def read_r1_result(data: bytes) -> tuple[Result, dict[str, Any]]:
    """The document in typed form, and as parsed.

    Raises TallyError for what is not JSON, of another schema, or has a part of the wrong type or an unsafe integer.
    """
    hint = f"a result is a JSON document of schema {R1_RESULT_SCHEMA}"
    try:
        raw = canonical.decode(data, what="result")
    except canonical.StrictJsonError as error:
        raise TallyError(error.message, hint) from error
    if not isinstance(raw, dict) or "schema" not in raw:
        raise TallyError("result is no JSON object with a `schema`", hint)
    if raw["schema"] != R1_RESULT_SCHEMA:
        raise TallyError(f"result has schema {str(raw['schema'])[:80]!r}, expected {R1_RESULT_SCHEMA!r}")
    unsafe = next(unsafe_integers(raw), None)
    if unsafe is not None:
        raise TallyError(f"result holds an integer of magnitude 2**53 or more at {unsafe[0]!r}: {unsafe[1]}")
    try:
        return Result.model_validate(raw, strict=True), raw
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        first = problems[0]
        where = ".".join(str(step) for step in first["loc"])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise TallyError(f"result has not the form of its schema: {where!r}: {first['msg']}{more}") from error


def part(value: P | None, kind: type[P]) -> P:
    """The part, or one of its kind that says nothing."""
    return value if value is not None else kind()
