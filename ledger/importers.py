"""Published R1 results as runs: a document becomes events whose source is `declared`, judged like any other run.

What the document says becomes a stated measurement, naming the place it was read from; what it does not say is
unavailable, never zero; what it says of its own success is kept as provenance and judged by nobody. Events stand in
the order that the document fixes: its process checkpoints, in their own order, with what each label says happened
before it, and the release between the checkpoints on either side of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ledger import canonical
from ledger.bodies import (
    AuthorityEstablished,
    Body,
    BoundState,
    DecodeRan,
    Deviation,
    EnvironmentObserved,
    ExecutionActivated,
    MaterializationObserved,
    MaterializationReleased,
    ModelIdentity,
    ObservedComputeUnit,
    ObservedMemoryResource,
    PlanAccepted,
    PlanReference,
    PlanRejectedEvent,
    ReferenceBound,
    ReleaseAuthorized,
    RunClosed,
    RunOpened,
    SoftwareIdentity,
    SourceAccessed,
    SourceWatched,
    Violation,
)
from ledger.errors import TallyError
from ledger.measurement import Measurement, unavailable
from ledger.plan import Plan
from ledger.r1_memory import memory_report, reclamation, samples
from ledger.r1_reading import DECODED, POPULATED, RELEASED, STAGED, Source, derived, is_released, says, silent
from ledger.r1_result import (
    R1_RESULT_SCHEMA,
    BackendReport,
    DecodeReport,
    DeviationReport,
    ObservedExecution,
    ObservedMaterialization,
    PlanNamed,
    Result,
    Validation,
    part,
    read_r1_result,
)


@dataclass(frozen=True)
class ImportedRun:
    """A document as a run: bodies in order, `run.opened` first; the document as parsed; `sha256:` of its bytes."""

    bodies: list[Body]
    document: dict[str, Any]
    blob_digest: str


def import_r1_result(data: bytes, plan: Plan) -> ImportedRun:
    """The run that a document of schema `inferswarm.r1.frozen-plan-realization/1` describes, for the plan it names.

    Raises TallyError for another schema, a part of the wrong type, and a document that names no plan or another one.
    Record the bodies without a clock: the document has no times.
    """
    result, raw = read_r1_result(data)
    digest = canonical.sha256_digest(data)
    _refuse_another_plan(result, plan)
    return ImportedRun(bodies=list(_bodies(Source(result, plan, digest))), document=raw, blob_digest=digest)


def _refuse_another_plan(result: Result, plan: Plan) -> None:
    named, validated = part(result.plan, PlanNamed), part(result.validation, Validation)
    digests = [digest for digest in (named.digest, validated.digest) if digest is not None]
    if not digests:
        raise TallyError("result does not say which plan it realised: no plan.digest, no validation.digest")
    for digest in digests:
        if digest != plan.computed_digest:
            raise TallyError(
                f"result realised another plan: it names {digest[:80]}, the plan given has {plan.computed_digest}",
                "give the plan that the result names",
            )
    if named.file_sha256 is not None and f"sha256:{named.file_sha256}" != plan.blob_digest:
        raise TallyError(
            f"result was made from another file of this plan: it names {named.file_sha256[:80]}, "
            f"the file given has {plan.blob_digest.removeprefix('sha256:')}",
            "give the plan file byte for byte as the result names it",
        )


# --- the run ----------------------------------------------------------------------------------------------------


def _bodies(source: Source) -> Iterator[Body]:
    """Every event, in order."""
    staging = source.staging
    yield _opened(source)
    yield from _environment(source)
    yield from _validated(source)
    yield from samples(source, 0)
    yield from (_materialization(source, item) for item in staging)
    yield from samples(source, STAGED)
    yield from (_materialization(source, item) for item in source.materializations if item not in staging)
    yield from samples(source, POPULATED)
    for item in source.materializations:
        if is_released(item):
            yield from _release(item)
    yield from samples(source, RELEASED)
    yield from (reclamation(source, item, "after-release") for item in source.materializations if is_released(item))
    yield from _authorities(source)
    yield from _executions(source)
    yield from _reference(source)
    yield from _decodes(source)
    yield from samples(source, DECODED)
    yield from (reclamation(source, item, "after-decode") for item in source.materializations if is_released(item))
    yield from _watch(source)
    yield from memory_report(source)
    yield RunClosed(outcome="completed")


def _opened(source: Source) -> RunOpened:
    plan, result, physical = source.plan, source.result, source.physical
    named = part(result.plan, PlanNamed)
    versions = {"torch": physical.torch_version, "cuda": physical.cuda_runtime}
    return RunOpened(
        purpose="import",
        plan=PlanReference(
            claimed_digest=plan.claimed_digest,
            computed_digest=plan.computed_digest,
            blob_digest=plan.blob_digest,
            plan_schema=plan.schema,
        ),
        software=SoftwareIdentity(
            versions={name: version for name, version in versions.items() if version is not None},
            source_commit=silent(None),
            source_dirty=silent(None),
            files_digest=silent(None),
        ),
        argv=silent(None),
        user=silent(None),
        hostname=says(physical.hostname, None, "resources.physical.hostname"),
        pid=silent(None),
        model=ModelIdentity(
            repository=says(source.resources.model_repository or named.model, None, "resources.model_repository"),
            revision=says(source.resources.model_revision or named.revision, None, "resources.model_revision"),
            config_digest=silent(None),
            headers_digest=silent(None),
            directory=silent(None),
        ),
        provenance={
            **_texts("", result.provenance),
            **_texts("scope.", result.scope),
            **({"document_status": result.status} if result.status is not None else {}),
            "document_schema": R1_RESULT_SCHEMA,
            "document_digest": source.digest,
        },
    )


def _texts(prefix: str, values: dict[str, Any] | None) -> dict[str, str]:
    return {
        f"{prefix}{key}": value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for key, value in (values or {}).items()
    }


def _environment(source: Source) -> Iterator[Body]:
    """The machine by the document's word. What stands under `physical` is nearer to the machine than the list of
    resources, which the published runner copied from its plan, and is preferred where one GPU makes it plain whose it is."""
    physical, device = source.physical, source.resources.device
    facts = {
        key: says(value, unit, f"resources.physical.{key}")
        for key, value, unit in (
            ("gpu_name", physical.gpu_name, None),
            ("gpu_uuid", physical.gpu_uuid, None),
            ("gpu_total_memory_bytes", physical.gpu_total_memory_bytes, "bytes"),
            ("system_ram_bytes", physical.system_ram_bytes, "bytes"),
        )
        if value is not None
    }
    if not source.nodes and not facts:
        return
    gpus = [unit for node in source.nodes for unit in node.compute_units if unit.kind != "cpu"]
    units, resources = [], []
    for node in source.nodes:
        place = f"resources.resources.nodes {node.id}"
        for unit in node.compute_units:
            only_gpu = unit.kind != "cpu" and len(gpus) == 1
            uuid = facts.get("gpu_uuid") if only_gpu else None
            units.append(
                ObservedComputeUnit(
                    key=source.keys[unit.id],
                    kind=says(unit.kind, None, place),
                    device_uuid=uuid or says(unit.device_uuid, None, place),
                    name=says(physical.gpu_name if only_gpu else None, None, "resources.physical.gpu_name"),
                    memory_resources=[source.keys.get(name, name) for name in unit.memory_resources],
                )
            )
        for resource in node.memory_resources:
            seen = {
                "system-ram": facts.get("system_ram_bytes"),
                "accelerator-vram": facts.get("gpu_total_memory_bytes") if len(gpus) == 1 else None,
            }.get(resource.kind)
            resources.append(
                ObservedMemoryResource(
                    key=source.keys[resource.id],
                    kind=says(resource.kind, None, place),
                    capacity_bytes=seen or says(resource.capacity_bytes, "bytes", place),
                    available_bytes=silent("bytes"),
                    parent=source.keys.get(resource.parent, resource.parent) if resource.parent else None,
                )
            )
    if not source.nodes and device is not None:
        units.append(
            ObservedComputeUnit(
                key=device,
                kind=silent(None),
                device_uuid=facts.get("gpu_uuid") or silent(None),
                name=facts.get("gpu_name") or silent(None),
            )
        )
    yield EnvironmentObserved(compute_units=units, memory_resources=resources, facts=facts)


def _validated(source: Source) -> Iterator[Body]:
    validation = part(source.result.validation, Validation)
    if validation.passed is False:
        message = "the document's validation did not pass"
        yield PlanRejectedEvent(
            violations=[Violation(code="plan.rejected", subject="validation.passed", message=message)]
        )
    elif validation.required_bytes_by_memory is not None:
        planned = {*source.plan.compute_units, *source.plan.memory_resources}
        yield PlanAccepted(
            required_bytes=validation.required_bytes_by_memory,
            bindings={name: key for name, key in source.keys.items() if name in planned},
        )


# --- materialization and release --------------------------------------------------------------------------------


def _materialization(source: Source, item: ObservedMaterialization) -> MaterializationObserved:
    """What the document says was there before any release. `live` of something released: it was, up to then."""
    place = f"observed.materializations {item.materialization_id}"
    live = {"live": 1, "released": 1}.get(item.lifecycle_state or "")
    why = (
        f"lifecycle_state {item.lifecycle_state!r} does not say"
        if item.lifecycle_state
        else "the document does not say"
    )
    only_staging = [item] == [other for other in source.materializations if other.intended_role == "staging"]
    return MaterializationObserved(
        materialization_id=item.materialization_id,
        logical_state_id=item.logical_state_id or "",
        memory_resource_id=says(item.actual_memory_resource_id, None, f"{place} actual_memory_resource_id"),
        representation=says(item.actual_representation, None, f"{place} actual_representation"),
        bytes=says(item.observed_bytes, "bytes", f"{place} observed_bytes"),
        storages=silent("count"),
        tensors=says(
            source.correctness.staging_tensor_count if only_staging else None,
            "count",
            "correctness.staging_tensor_count",
        ),
        live=says(live, None, f"{place} lifecycle_state")
        if live is not None
        else unavailable(None, f"{place} lifecycle_state", why, source="declared"),
        role=item.intended_role,
        persistence=item.persistence,
    )


def _release(item: ObservedMaterialization) -> Iterator[Body]:
    place = f"observed.materializations {item.materialization_id}"
    if item.release_qualifying_materialization_ids is not None:
        yield ReleaseAuthorized(
            materialization_id=item.materialization_id, qualifying_ids=item.release_qualifying_materialization_ids
        )
    yield MaterializationReleased(
        materialization_id=item.materialization_id,
        bytes_before=says(item.observed_bytes_before_release, "bytes", f"{place} observed_bytes_before_release"),
        bytes_after=says(item.observed_bytes_after_release, "bytes", f"{place} observed_bytes_after_release"),
        released_bytes=says(item.released_bytes, "bytes", f"{place} released_bytes"),
        owners_total=silent("count", "the document does not say of how many tensors at the release"),
        owners_alive=silent("count", "the document does not say how many tensors lived at the release"),
    )


# --- authority, execution, decode -------------------------------------------------------------------------------


def _authorities(source: Source) -> Iterator[Body]:
    for authority in source.observed.authorities or []:
        place = f"observed.authorities {authority.logical_state_id}"
        yield AuthorityEstablished(
            logical_state_id=authority.logical_state_id,
            materialization_id=authority.materialization_id,
            memory_resource_id=says(authority.memory_resource_id, None, f"{place} memory_resource_id"),
            lineage=says(authority.lineage, None, f"{place} lineage"),
            owner_range=None,
        )


def _executions(source: Source) -> Iterator[Body]:
    """Executions that the document calls active, bound to what it says was live of the state that they require."""
    for execution in source.observed.execution or []:
        if execution.status is not None and not execution.status.startswith("ACTIVE"):
            continue
        yield ExecutionActivated(
            execution_id=execution.execution_id,
            compute_unit_id=says(
                execution.compute_unit_id, None, f"observed.execution {execution.execution_id} compute_unit_id"
            ),
            strategy_unit=execution.strategy_unit or "",
            state=_bound(source, execution),
        )


def _bound(source: Source, execution: ObservedExecution) -> list[BoundState]:
    required = {
        state.logical_state_id
        for planned in source.plan.document.execution
        if planned.id == execution.execution_id
        for state in planned.required_state
    }
    return [
        BoundState(
            logical_state_id=item.logical_state_id or "",
            materialization_id=item.materialization_id,
            memory_resource_id=item.actual_memory_resource_id or "",
        )
        for item in source.materializations
        if item.logical_state_id in required and item.lifecycle_state == "live"
    ]


def _reference(source: Source) -> Iterator[Body]:
    """What decode was compared with: the document says that it was, and not with what."""
    if source.correctness.prefill is not None or source.correctness.decode_runs:
        yield ReferenceBound(
            planned_digest=source.plan.correctness.reference_digest,
            digest=silent(None, "the document compares with a reference and gives no digest of it"),
        )


def _decodes(source: Source) -> Iterator[Body]:
    """Prefill and repetitions. The document does not say which execution decoded: where it observed one, that one."""
    executions = [execution.execution_id for execution in source.observed.execution or []]
    execution_id = executions[0] if len(executions) == 1 else ""
    lookups = says(
        part(source.result.backend_execution, BackendReport).hot_path_plan_lookups,
        "count",
        "backend_execution.hot_path_plan_lookups",
    )
    if source.correctness.prefill is not None:
        yield _decode(execution_id, "prefill", source.correctness.prefill, lookups)
    for run in source.correctness.decode_runs or []:
        yield _decode(execution_id, "repetition", run, lookups)


def _decode(
    execution_id: str, phase: Literal["prefill", "repetition"], report: DecodeReport, lookups: Measurement
) -> DecodeRan:
    place = "correctness.prefill" if phase == "prefill" else f"correctness.decode_runs {report.repetition}"
    return DecodeRan(
        execution_id=execution_id,
        phase=phase,
        repetition=report.repetition if phase == "repetition" else None,
        input=_deviation(report.input, f"{place}.input"),
        output=_deviation(report.output, f"{place}.output"),
        tokens=silent("count"),
        tokens_digest=silent(None),
        output_digest=silent(None),
        elapsed_ns=silent("ns"),
        plan_lookups=lookups,
    )


def _deviation(report: DeviationReport | None, place: str) -> Deviation:
    said = part(report, DeviationReport)
    return Deviation(
        exact=says(said.exact_equality, None, f"{place}.exact_equality"),
        max_absolute=says(said.max_absolute_deviation, None, f"{place}.max_absolute_deviation"),
        max_relative=says(said.max_relative_deviation, None, f"{place}.max_relative_deviation"),
        nan_count=says(said.nan_count, "count", f"{place}.nan_count"),
        inf_count=says(said.inf_count, "count", f"{place}.inf_count"),
        within_tolerance=says(said.bounded_equivalence, None, f"{place}.bounded_equivalence"),
    )


def _watch(source: Source) -> Iterator[Body]:
    """Accesses to the source after the release, as the process counted its own. No watch is described, so none was armed
    as far as is known."""
    correctness = source.correctness
    counts = {"correctness.resident_source_access_attempts": correctness.resident_source_access_attempts} | {
        f"correctness.post_release_loader_sentinels.{name}": count
        for name, count in (correctness.post_release_loader_sentinels or {}).items()
    }
    known = {place: count for place, count in counts.items() if count is not None}
    if not known:
        return
    for place, count in known.items():
        if count != 0:
            yield SourceAccessed(
                path=silent(None),
                access="read",
                attributed_to="tree",
                pid=silent(None),
                count=says(count, "count", place),
                means=place,
            )
    yield SourceWatched(
        armed=silent(None),
        overflowed=silent(None),
        network_filesystem=silent(None),
        tree_accesses=derived(sum(known.values()), "count", " + ".join(known)),
        other_accesses=silent("count"),
        mapped_files=silent("count"),
        open_descriptors=silent("count"),
        read_bytes=silent("bytes"),
        means=list(known),
    )
