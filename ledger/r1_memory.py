"""Memory of a published R1 result: process checkpoints as samples, the memory report, give-back around the release."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from ledger.bodies import Body, Census, MemorySampled, ReclamationObserved
from ledger.measurement import Measurement, Measurements
from ledger.r1_reading import DECODED, RELEASED, Source, derived, is_released, says, silent
from ledger.r1_result import ObservedMaterialization, ProcessCheckpoint

KIB = 1024

GPU_ROLES = (
    "gpu_selective_block_model_bytes",
    "gpu_expert_bank_cache_bytes",
    "gpu_block_local_runtime_state_bytes",
)


def samples(source: Source, phase: int) -> Iterator[Body]:
    """The checkpoints of one phase, each once, in the document's order."""
    released = [item.materialization_id for item in source.materializations if is_released(item)]
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


def _sample(source: Source, label: str, checkpoint: ProcessCheckpoint) -> MemorySampled:
    place = f"process_checkpoints {checkpoint.label}"
    device = source.resources.device or "device"
    roles = _gpu_roles(checkpoint)
    last = label == "after-decode"
    return MemorySampled(
        label=label,
        process=_process(checkpoint),
        host={
            "document_label": says(checkpoint.label, None, place),
            "measurement_status": says(checkpoint.measurement_status, None, place),
            "role.host_expert_source_bank": says(checkpoint.host_expert_source_bank_bytes, "bytes", place),
            **{f"vmstat.{key}": says(value, "count", place) for key, value in (checkpoint.vmstat or {}).items()},
        },
        cuda={
            f"{device}.allocated": says(checkpoint.cuda_allocated_bytes, "bytes", place),
            f"{device}.peak": says(checkpoint.cuda_peak_allocated_bytes, "bytes", place),
            **{f"role.{role}": says(size, "bytes", place) for role, size in roles.items()},
        },
        census=_census(
            source,
            _owners(source, checkpoint) if last else {},
            {
                role: says(size, "bytes", f"{place} {role}")
                for role, size in (checkpoint.other_deliberate_persistent_host_bytes_by_role or {}).items()
            },
            at_the_end=last,
        ),
    )


def _gpu_roles(checkpoint: ProcessCheckpoint) -> dict[str, int | None]:
    """Device bytes by the role that the runner gave them."""
    return {role.removesuffix("_bytes"): getattr(checkpoint, role) for role in GPU_ROLES} | {
        f"other.{role}": size for role, size in (checkpoint.other_deliberate_gpu_bytes_by_role or {}).items()
    }


def _census(source: Source, owners: Measurements, evidence: Measurements, *, at_the_end: bool) -> Census:
    """Live state by owner. What no owner explains is the memory report's word, which speaks of the end alone."""
    report = source.result.memory if at_the_end else None
    return Census(
        by_owner=owners,
        unowned_host_bytes=_reported(report, "unexplained_persistent_host_mirror_bytes"),
        unowned_device_bytes=_reported(report, "unplanned_persistent_bytes"),
        unowned_host_storages=silent("count"),
        evidence_host_by_role=evidence,
    )


def _reported(report: dict[str, Any] | None, key: str) -> Measurement:
    value = (report or {}).get(key)
    return says(value if isinstance(value, int | float) else None, "bytes", f"memory.{key}")


def _owners(source: Source, checkpoint: ProcessCheckpoint | None) -> Measurements:
    """What the document says is live at the end, by materialization; and what its last checkpoint holds beside that: a
    staging bank that is still there, device bytes of roles that no materialization accounts for."""
    live = [item for item in source.materializations if item.lifecycle_state == "live"]
    owners = {
        item.materialization_id: says(
            item.observed_bytes, "bytes", f"observed.materializations {item.materialization_id}"
        )
        for item in live
    }
    if checkpoint is None:
        return owners
    place = f"process_checkpoints {checkpoint.label}"
    bank = checkpoint.host_expert_source_bank_bytes
    if bank:
        only = source.staging[0].materialization_id if len(source.staging) == 1 else "host_expert_source_bank"
        owners[only] = says(bank, "bytes", f"{place} host_expert_source_bank_bytes")
    on_device = [item.observed_bytes or 0 for item in live if not source.on_host(item.actual_memory_resource_id)]
    beyond = sum(size or 0 for size in _gpu_roles(checkpoint).values()) - sum(on_device)
    if beyond > 0:
        owners["roles beyond the materializations"] = derived(
            beyond, "bytes", f"{place}: device bytes of all roles - bytes of live device materializations"
        )
    return owners


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
        return says(kib * KIB if kib is not None else None, "bytes", f"{place} {name}")

    figures = {key: size(name, process.get(name)) for key, name in PROCESS_KEYS.items()}
    figures["tree_sum"] = _sum(_private_classes(figures))
    others = set(process) - set(PROCESS_KEYS.values())
    figures |= {name.removesuffix("_kib"): size(name, process[name]) for name in sorted(others)}
    if checkpoint.ru_maxrss_kib is not None:
        figures["ru_maxrss"] = size("ru_maxrss_kib", checkpoint.ru_maxrss_kib)
    return figures


def memory_report(source: Source) -> Iterator[Body]:
    """The document's memory report, as the closing sample: what it says of the end, without figures of the process."""
    report = source.result.memory
    if report is None:
        return
    figures: Measurements = {}
    for key, value in report.items():
        if isinstance(value, int | float | str):
            figures[key] = says(value, "bytes" if "bytes" in key.split("_") else None, f"memory.{key}")
        elif isinstance(value, dict):
            figures |= {
                f"{key}.{role}": says(size, "bytes", f"memory.{key}.{role}")
                for role, size in value.items()
                if isinstance(size, int | float | str)
            }
    owners = _owners(source, None)
    staged = report.get("host_staging_bytes_after_repeated_execution")
    if isinstance(staged, int) and staged != 0 and len(source.staging) == 1:
        owners[source.staging[0].materialization_id] = figures["host_staging_bytes_after_repeated_execution"]
    prefix = "persistent_host_evidence_roles."
    evidence = {key.removeprefix(prefix): figure for key, figure in figures.items() if key.startswith(prefix)}
    yield MemorySampled(
        label="closing", process={}, host=figures, census=_census(source, owners, evidence, at_the_end=True)
    )


# --- give-back ----------------------------------------------------------------------------------------------------


def reclamation(
    source: Source, item: ObservedMaterialization, phase: Literal["after-release", "after-decode"]
) -> ReclamationObserved:
    """Give-back from the checkpoints on either side of the release.

    The document counts dead staging tensors once and does not say when. What is dead stays dead, so the count holds at
    the end; at the release it is not known.
    """
    correctness = source.correctness
    released = [other for other in source.materializations if is_released(other)]
    before = source.checkpoint_before(RELEASED)
    after = source.checkpoint_of(RELEASED if phase == "after-release" else DECODED)
    classes_before = _private_classes(_process(before)) if before else {}
    classes_after = _private_classes(_process(after)) if after else {}
    tree_before, tree_after = _sum(classes_before), _sum(classes_after)
    counted = phase == "after-decode" and len(released) == 1
    total = correctness.staging_tensor_count if counted else None
    dead = correctness.dead_staging_tensor_count if counted else None
    alive = total - dead if total is not None and dead is not None else None
    staged = [other.observed_bytes_before_release for other in released]
    ratio = silent("ratio", "a figure that it needs is not in the document")
    if isinstance(tree_before.value, int) and isinstance(tree_after.value, int) and all(staged):
        ratio = derived(
            (tree_before.value - tree_after.value) / sum(size or 0 for size in staged),
            "ratio",
            "(RssAnon + RssShmem + VmSwap before - after) / staging bytes released between the two checkpoints",
        )
    return ReclamationObserved(
        materialization_id=item.materialization_id,
        phase=phase,
        owners_total=says(total, "count", "correctness.staging_tensor_count"),
        owners_alive=says(alive, "count", "correctness.staging_tensor_count - dead_staging_tensor_count"),
        region_mapped=silent(None),
        tree_before=tree_before,
        tree_after=tree_after,
        ratio=ratio,
        classes_before=classes_before,
        classes_after=classes_after,
    )


def _private_classes(process: Measurements) -> Measurements:
    """The classes of pages that staging can be held in (bytes). VmSwap is let go where the document has none."""
    return {
        key: process[key]
        for key in ("rss_anon", "rss_shmem", "vm_swap")
        if key in process and (process[key].known or key != "vm_swap")
    }


def _sum(classes: Measurements) -> Measurement:
    values = [measurement.value for measurement in classes.values()]
    numbers = [value for value in values if isinstance(value, int)]
    if not numbers or len(numbers) < len(values):
        return silent("bytes", "the process checkpoint is not in the document, or lacks RssAnon or RssShmem")
    return derived(sum(numbers), "bytes", "sum of the checkpoint's " + ", ".join(classes) + ", one process")
