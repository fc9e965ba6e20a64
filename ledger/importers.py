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
from itertools import takewhile
from typing import Any, Literal

from ledger import canonical
from ledger.errors import TallyError
from ledger.events import (
    AuthorityEstablished,
    Body,
    BoundState,
    Census,
    DecodeRan,
    Deviation,
    EnvironmentObserved,
    ExecutionActivated,
    MaterializationObserved,
    MaterializationReleased,
    Measurement,
    Measurements,
    MemorySampled,
    ModelIdentity,
    ObservedComputeUnit,
    ObservedMemoryResource,
    PlanAccepted,
    PlanReference,
    PlanRejectedEvent,
    ReclamationObserved,
    ReleaseAuthorized,
    RunClosed,
    RunOpened,
    SoftwareIdentity,
    SourceAccessed,
    SourceWatched,
    Violation,
    stated,
    unavailable,
)
from ledger.plan import Plan
from ledger.r1_result import (
    R1_RESULT_SCHEMA,
    BackendReport,
    CorrectnessReport,
    DecodeReport,
    DeviationReport,
    Observed,
    ObservedExecution,
    ObservedMaterialization,
    Physical,
    PlanNamed,
    ProcessCheckpoint,
    ResourcesReport,
    Result,
    Validation,
    part,
    read_r1_result,
)

KIB = 1024

STAGED, POPULATED, RELEASED, DECODED = range(1, 5)
"""What has happened by a process checkpoint; 0 is nothing yet."""

PHASE_OF_LABEL = {
    "process_baseline": 0,
    "after_selective_host_materialization": STAGED,
    "after_accelerator_cache_allocation": STAGED,
    "after_complete_accelerator_population": POPULATED,
    "after_plan_driven_staging_release": RELEASED,
    "after_repeated_plan_realized_decode": DECODED,
}
"""The labels of the published runner. A label of another name belongs to the phase of the one before it."""

GPU_ROLES = (
    "gpu_selective_block_model_bytes",
    "gpu_expert_bank_cache_bytes",
    "gpu_block_local_runtime_state_bytes",
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
    return ImportedRun(bodies=list(_bodies(_Import(result, plan, digest))), document=raw, blob_digest=digest)


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


# --- saying what the document says --------------------------------------------------------------------------------


def _says(value: float | str | bool | None, unit: str | None, place: str) -> Measurement:
    """What stands at that place of the document; a truth value becomes 1 or 0."""
    if value is None:
        return unavailable(unit, place, "the document does not say", source="declared")
    return stated(int(value) if isinstance(value, bool) else value, unit, place, source="declared")


def _silent(unit: str | None, why: str = "the document does not say") -> Measurement:
    return unavailable(unit, "published result document", why, source="declared")


def _derived(value: float, unit: str | None, method: str) -> Measurement:
    return stated(value, unit, method, source="derived")


class _Import:
    """The document's parts, empty ones where it is silent, with what several events ask of them."""

    def __init__(self, result: Result, plan: Plan, digest: str) -> None:
        self.result, self.plan, self.digest = result, plan, digest
        self.resources = part(result.resources, ResourcesReport)
        self.physical = part(self.resources.physical, Physical)
        self.observed = part(result.observed, Observed)
        self.correctness = part(result.correctness, CorrectnessReport)
        self.materializations = self.observed.materializations or []
        self.checkpoints = list(_phased(self.observed.process_checkpoints or []))
        named = self.resources.resources
        self.nodes = (named.nodes if named else None) or []
        self.keys = self._keys()

    def _keys(self) -> dict[str, str]:
        """Document's name of a Compute Unit or Memory Resource -> key: the device name where one GPU is named."""
        keys: dict[str, str] = {}
        units = [unit for node in self.nodes for unit in node.compute_units]
        for unit in units:
            keys[unit.id] = unit.id
        for node in self.nodes:
            keys |= {resource.id: resource.id for resource in node.memory_resources}
        devices = [unit for unit in units if unit.kind != "cpu"]
        if self.resources.device is not None and len(devices) == 1:
            keys[devices[0].id] = self.resources.device
            for resource_id in devices[0].memory_resources:
                if self._kind(resource_id) == "accelerator-vram":
                    keys[resource_id] = f"{self.resources.device}.vram"
        return keys

    def _kind(self, resource_id: str) -> str | None:
        return next(
            (item.kind for node in self.nodes for item in node.memory_resources if item.id == resource_id), None
        )

    @property
    def staging(self) -> list[ObservedMaterialization]:
        """Materializations that the document describes as staging or as released."""
        return [item for item in self.materializations if item.intended_role == "staging" or _is_released(item)]

    def checkpoint_before(self, phase: int) -> ProcessCheckpoint | None:
        """The last checkpoint taken before that phase, when the phase itself has one."""
        before = [checkpoint for _, checkpoint in takewhile(lambda item: item[0] < phase, self.checkpoints)]
        return before[-1] if before and self.checkpoint_of(phase) is not None else None

    def checkpoint_of(self, phase: int) -> ProcessCheckpoint | None:
        """The first checkpoint of that phase."""
        return next((checkpoint for at, checkpoint in self.checkpoints if at == phase), None)


def _phased(checkpoints: list[ProcessCheckpoint]) -> Iterator[tuple[int, ProcessCheckpoint]]:
    """Each checkpoint with what has happened by it: phases only ever go forward."""
    phase = 0
    for checkpoint in checkpoints:
        phase = max(phase, PHASE_OF_LABEL.get(checkpoint.label or "", phase))
        yield phase, checkpoint


def _is_released(item: ObservedMaterialization) -> bool:
    return item.lifecycle_state == "released"


# --- the run ------------------------------------------------------------------------------------------------------


def _bodies(source: _Import) -> Iterator[Body]:
    """Every event, in order."""
    staging = source.staging
    yield _opened(source)
    yield from _environment(source)
    yield from _validated(source)
    yield from _samples(source, 0)
    yield from (_materialization(source, item) for item in staging)
    yield from _samples(source, STAGED)
    yield from (_materialization(source, item) for item in source.materializations if item not in staging)
    yield from _samples(source, POPULATED)
    for item in source.materializations:
        if _is_released(item):
            yield from _release(item)
    yield from _samples(source, RELEASED)
    yield from (_reclamation(source, item, "after-release") for item in source.materializations if _is_released(item))
    yield from _authorities(source)
    yield from _executions(source)
    yield from _decodes(source)
    yield from _samples(source, DECODED)
    yield from (_reclamation(source, item, "after-decode") for item in source.materializations if _is_released(item))
    yield from _watch(source)
    yield from _memory_report(source)
    yield RunClosed(outcome="completed")


def _opened(source: _Import) -> RunOpened:
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
            source_commit=_silent(None),
            source_dirty=_silent(None),
            files_digest=_silent(None),
        ),
        argv=_silent(None),
        user=_silent(None),
        hostname=_says(physical.hostname, None, "resources.physical.hostname"),
        pid=_silent(None),
        model=ModelIdentity(
            repository=_says(source.resources.model_repository or named.model, None, "resources.model_repository"),
            revision=_says(source.resources.model_revision or named.revision, None, "resources.model_revision"),
            config_digest=_silent(None),
            headers_digest=_silent(None),
            directory=_silent(None),
        ),
        provenance={
            "document_schema": R1_RESULT_SCHEMA,
            "document_digest": source.digest,
            **({"document_status": result.status} if result.status is not None else {}),
            **_texts("scope.", result.scope),
            **_texts("", result.provenance),
        },
    )


def _texts(prefix: str, values: dict[str, Any] | None) -> dict[str, str]:
    return {
        f"{prefix}{key}": value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for key, value in (values or {}).items()
    }


def _environment(source: _Import) -> Iterator[Body]:
    """The machine by the document's word. What stands under `physical` is nearer to the machine than the list of
    resources, which the published runner copied from its plan, and is preferred where one GPU makes it plain whose it is."""
    physical, device = source.physical, source.resources.device
    facts = {
        key: _says(value, unit, f"resources.physical.{key}")
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
                    kind=_says(unit.kind, None, place),
                    device_uuid=uuid or _says(unit.device_uuid, None, place),
                    name=_says(physical.gpu_name if only_gpu else None, None, "resources.physical.gpu_name"),
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
                    kind=_says(resource.kind, None, place),
                    capacity_bytes=seen or _says(resource.capacity_bytes, "bytes", place),
                    available_bytes=_silent("bytes"),
                    parent=source.keys.get(resource.parent, resource.parent) if resource.parent else None,
                )
            )
    if not source.nodes and device is not None:
        units.append(
            ObservedComputeUnit(
                key=device,
                kind=_silent(None),
                device_uuid=facts.get("gpu_uuid") or _silent(None),
                name=facts.get("gpu_name") or _silent(None),
            )
        )
    yield EnvironmentObserved(compute_units=units, memory_resources=resources, facts=facts)


def _validated(source: _Import) -> Iterator[Body]:
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


# --- materialization and release ----------------------------------------------------------------------------------


def _materialization(source: _Import, item: ObservedMaterialization) -> MaterializationObserved:
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
        memory_resource_id=_says(item.actual_memory_resource_id, None, f"{place} actual_memory_resource_id"),
        representation=_says(item.actual_representation, None, f"{place} actual_representation"),
        bytes=_says(item.observed_bytes, "bytes", f"{place} observed_bytes"),
        storages=_silent("count"),
        tensors=_says(
            source.correctness.staging_tensor_count if only_staging else None,
            "count",
            "correctness.staging_tensor_count",
        ),
        live=_says(live, None, f"{place} lifecycle_state")
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
        bytes_before=_says(item.observed_bytes_before_release, "bytes", f"{place} observed_bytes_before_release"),
        bytes_after=_says(item.observed_bytes_after_release, "bytes", f"{place} observed_bytes_after_release"),
        released_bytes=_says(item.released_bytes, "bytes", f"{place} released_bytes"),
        owners_total=_silent("count", "the document does not say of how many tensors at the release"),
        owners_alive=_silent("count", "the document does not say how many tensors lived at the release"),
    )


def _reclamation(
    source: _Import, item: ObservedMaterialization, phase: Literal["after-release", "after-decode"]
) -> ReclamationObserved:
    """Give-back from the checkpoints on either side of the release.

    The document counts dead staging tensors once and does not say when. What is dead stays dead, so the count holds at
    the end; at the release it is not known.
    """
    correctness = source.correctness
    released = [other for other in source.materializations if _is_released(other)]
    before = source.checkpoint_before(RELEASED)
    after = source.checkpoint_of(RELEASED if phase == "after-release" else DECODED)
    classes_before, classes_after = _private_classes(before), _private_classes(after)
    tree_before, tree_after = _sum(classes_before), _sum(classes_after)
    counted = phase == "after-decode" and len(released) == 1
    total = correctness.staging_tensor_count if counted else None
    dead = correctness.dead_staging_tensor_count if counted else None
    alive = total - dead if total is not None and dead is not None else None
    staged = [other.observed_bytes_before_release for other in released]
    ratio = _silent("ratio", "a figure that it needs is not in the document")
    if isinstance(tree_before.value, int) and isinstance(tree_after.value, int) and all(staged):
        ratio = _derived(
            (tree_before.value - tree_after.value) / sum(size or 0 for size in staged),
            "ratio",
            "(RssAnon + RssShmem + VmSwap before - after) / staging bytes released between the two checkpoints",
        )
    return ReclamationObserved(
        materialization_id=item.materialization_id,
        phase=phase,
        owners_total=_says(total, "count", "correctness.staging_tensor_count"),
        owners_alive=_says(alive, "count", "correctness.staging_tensor_count - dead_staging_tensor_count"),
        region_mapped=_silent(None),
        tree_before=tree_before,
        tree_after=tree_after,
        ratio=ratio,
        classes_before=classes_before,
        classes_after=classes_after,
    )


def _private_classes(checkpoint: ProcessCheckpoint | None) -> Measurements:
    """The classes of pages that staging can be held in (bytes). VmSwap is let go where the document has none."""
    if checkpoint is None:
        return {}
    process = _process(checkpoint)
    return {key: process[key] for key in ("rss_anon", "rss_shmem", "vm_swap") if process[key].known or key != "vm_swap"}


def _sum(classes: Measurements) -> Measurement:
    values = [measurement.value for measurement in classes.values()]
    numbers = [value for value in values if isinstance(value, int)]
    if not numbers or len(numbers) < len(values):
        return _silent("bytes", "the process checkpoint is not in the document, or lacks RssAnon or RssShmem")
    return _derived(sum(numbers), "bytes", "sum of the checkpoint's " + ", ".join(classes) + ", one process")


# --- authority, execution, decode ---------------------------------------------------------------------------------


def _authorities(source: _Import) -> Iterator[Body]:
    for authority in source.observed.authorities or []:
        place = f"observed.authorities {authority.logical_state_id}"
        yield AuthorityEstablished(
            logical_state_id=authority.logical_state_id,
            materialization_id=authority.materialization_id,
            memory_resource_id=_says(authority.memory_resource_id, None, f"{place} memory_resource_id"),
            lineage=_says(authority.lineage, None, f"{place} lineage"),
            owner_range=None,
        )


def _executions(source: _Import) -> Iterator[Body]:
    """Executions that the document calls active, bound to what it says was live of the state that they require."""
    for execution in source.observed.execution or []:
        if execution.status is not None and not execution.status.startswith("ACTIVE"):
            continue
        yield ExecutionActivated(
            execution_id=execution.execution_id,
            compute_unit_id=_says(
                execution.compute_unit_id, None, f"observed.execution {execution.execution_id} compute_unit_id"
            ),
            strategy_unit=execution.strategy_unit or "",
            state=_bound(source, execution),
        )


def _bound(source: _Import, execution: ObservedExecution) -> list[BoundState]:
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


def _decodes(source: _Import) -> Iterator[Body]:
    """Prefill and repetitions. The document does not say which execution decoded: where it observed one, that one."""
    executions = [execution.execution_id for execution in source.observed.execution or []]
    execution_id = executions[0] if len(executions) == 1 else ""
    lookups = _says(
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
        tokens=_silent("count"),
        tokens_digest=_silent(None),
        output_digest=_silent(None),
        elapsed_ns=_silent("ns"),
        plan_lookups=lookups,
    )


def _deviation(report: DeviationReport | None, place: str) -> Deviation:
    said = part(report, DeviationReport)
    return Deviation(
        exact=_says(said.exact_equality, None, f"{place}.exact_equality"),
        max_absolute=_says(said.max_absolute_deviation, None, f"{place}.max_absolute_deviation"),
        max_relative=_says(said.max_relative_deviation, None, f"{place}.max_relative_deviation"),
        nan_count=_says(said.nan_count, "count", f"{place}.nan_count"),
        inf_count=_says(said.inf_count, "count", f"{place}.inf_count"),
        within_tolerance=_says(said.bounded_equivalence, None, f"{place}.bounded_equivalence"),
    )


def _watch(source: _Import) -> Iterator[Body]:
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
                path=_silent(None),
                access="read",
                attributed_to="tree",
                pid=_silent(None),
                count=_says(count, "count", place),
                means=place,
            )
    yield SourceWatched(
        armed=_silent(None),
        overflowed=_silent(None),
        network_filesystem=_silent(None),
        tree_accesses=_derived(sum(known.values()), "count", " + ".join(known)),
        other_accesses=_silent("count"),
        mapped_files=_silent("count"),
        open_descriptors=_silent("count"),
        read_bytes=_silent("bytes"),
        means=list(known),
    )


# --- memory -------------------------------------------------------------------------------------------------------


def _samples(source: _Import, phase: int) -> Iterator[Body]:
    """The checkpoints of one phase, each once, in the document's order."""
    released = [item.materialization_id for item in source.materializations if _is_released(item)]
    before, after = source.checkpoint_before(RELEASED), source.checkpoint_of(RELEASED)
    for at, checkpoint in source.checkpoints:
        if at != phase:
            continue
        label = checkpoint.label or ""
        if label == "process_baseline":
            label = "baseline"
        elif len(released) == 1 and checkpoint is before:
            label = f"before-release:{released[0]}"
        elif len(released) == 1 and checkpoint is after:
            label = f"after-release:{released[0]}"
        elif checkpoint is source.checkpoint_of(DECODED):
            label = "after-decode"
        yield _sample(source, label, checkpoint)


def _sample(source: _Import, label: str, checkpoint: ProcessCheckpoint) -> MemorySampled:
    place = f"process_checkpoints {checkpoint.label}"
    device = source.resources.device or "device"
    vmstat = {f"vmstat.{key}": _says(value, "count", place) for key, value in (checkpoint.vmstat or {}).items()}
    roles = {key: getattr(checkpoint, key) for key in GPU_ROLES} | {
        f"other.{role}": size for role, size in (checkpoint.other_deliberate_gpu_bytes_by_role or {}).items()
    }
    allocated = checkpoint.cuda_allocated_bytes
    if allocated is None or any(size is None for size in roles.values()):
        residue = _silent("bytes")
    else:
        residue = _derived(
            allocated - sum(size or 0 for size in roles.values()),
            "bytes",
            "cuda_allocated_bytes - bytes of named roles",
        )
    return MemorySampled(
        label=label,
        process=_process(checkpoint),
        host={"document_label": _says(checkpoint.label, None, place)}
        | {"measurement_status": _says(checkpoint.measurement_status, None, place)}
        | {"role.host_expert_source_bank": _says(checkpoint.host_expert_source_bank_bytes, "bytes", place)}
        | vmstat,
        cuda={
            f"{device}.allocated": _says(allocated, "bytes", place),
            f"{device}.peak": _says(checkpoint.cuda_peak_allocated_bytes, "bytes", place),
        }
        | {f"role.{role.removesuffix('_bytes')}": _says(size, "bytes", place) for role, size in roles.items()},
        census=Census(
            unowned_host_bytes=_silent("bytes"),
            unowned_device_bytes=residue,
            unowned_host_storages=_silent("count"),
            evidence_host_by_role={
                role: _says(size, "bytes", place)
                for role, size in (checkpoint.other_deliberate_persistent_host_bytes_by_role or {}).items()
            },
        ),
    )


PROCESS_KEYS = {
    "vm_rss": "VmRSS_kib",
    "vm_hwm": "VmHWM_kib",
    "rss_anon": "RssAnon_kib",
    "rss_file": "RssFile_kib",
    "rss_shmem": "RssShmem_kib",
    "vm_swap": "VmSwap_kib",
}


def _process(checkpoint: ProcessCheckpoint) -> Measurements:
    """The process's figures in bytes. One process, not its tree: what a child held is not in the document."""
    process = checkpoint.process or {}
    place = f"process_checkpoints {checkpoint.label}"

    def size(name: str, kib: int | None) -> Measurement:
        return _says(kib * KIB if kib is not None else None, "bytes", f"{place} {name}")

    figures = {key: size(name, process.get(name)) for key, name in PROCESS_KEYS.items()}
    others = set(process) - set(PROCESS_KEYS.values())
    figures |= {name.removesuffix("_kib"): size(name, process[name]) for name in sorted(others)}
    if checkpoint.ru_maxrss_kib is not None:
        figures["ru_maxrss"] = size("ru_maxrss_kib", checkpoint.ru_maxrss_kib)
    return figures


def _memory_report(source: _Import) -> Iterator[Body]:
    """The document's memory report, as a sample of its own: its sums, not figures of one moment."""
    report = source.result.memory
    if report is None:
        return
    figures: Measurements = {}
    for key, value in report.items():
        if isinstance(value, int | float | str):
            figures[key] = _says(value, "bytes" if key.endswith("_bytes") else None, f"memory.{key}")
        elif isinstance(value, dict):
            figures |= {
                f"{key}.{role}": _says(size, "bytes", f"memory.{key}.{role}")
                for role, size in value.items()
                if isinstance(size, int | float | str)
            }
    yield MemorySampled(label="memory-report", process={}, host=figures)
