"""A small plan of the published R1 dialect, and a result document of the published schema that realised it well.

The document is what a faithful runner would have published: everything as planned, and staging given back.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from ledger.plan import R1_SCHEMA, Plan
from ledger.r1_result import R1_RESULT_SCHEMA
from tests.builders.runs import GPU_UUID, MIB, gpu_document, sealed

Document = dict[str, Any]

STAGE, WEIGHTS, BUFFERS, CACHE, BASELINE = (
    "mat.weights.stage",
    "mat.weights.resident",
    "mat.buffers.resident",
    "mat.kv-cache",
    "mat.replay-baseline",
)
IDLE_ANON_KIB, IDLE_FILE_KIB = 300 * 1024, 200 * 1024
STAGED_KIB = 256 * 1024


def r1_plan() -> Plan:
    """The small plan for one GPU in the published dialect, frozen."""
    document = gpu_document()
    for name in ("adapter", "checkpoint", "correctness"):
        del document[name]
    for name in ("config_digest", "headers_digest"):
        del document["model"][name]
    for unit in document["logical_state_units"]:
        unit.pop("selection", None)
    return sealed({**document, "schema": R1_SCHEMA})


def r1_document(plan: Plan) -> Document:
    """The result document of a run that carried `plan` out and gave its staging back."""
    return {
        "schema": R1_RESULT_SCHEMA,
        "passed": True,
        "status": "R1_FROZEN_PLAN_REALIZATION_PASS",
        "plan": {
            "digest": plan.computed_digest,
            "file_sha256": plan.blob_digest.removeprefix("sha256:"),
            "schema": plan.schema,
            "model": plan.document.model.repository,
            "revision": plan.document.model.revision,
        },
        "validation": {
            "digest": plan.computed_digest,
            "passed": True,
            "required_bytes_by_memory": {"gpu0.vram": 272 * MIB + 256},
        },
        "resources": {
            "device": "cuda:0",
            "model_repository": plan.document.model.repository,
            "model_revision": plan.document.model.revision,
            "physical": {
                "hostname": "lab",
                "gpu_name": "a GPU",
                "gpu_uuid": GPU_UUID,
                "gpu_total_memory_bytes": plan.memory_resources["gpu0.vram"].capacity_bytes,
                "system_ram_bytes": plan.memory_resources["node-a.ram"].capacity_bytes,
                "torch_version": "2.11.0",
                "cuda_runtime": "13.0",
            },
            "resources": copy.deepcopy(plan.raw["resources"]),
        },
        "observed": {
            "materializations": [_observed(item) for item in plan.raw["materializations"]],
            "authorities": [{**plan.raw["authorities"][0], "memory_resource_id": "gpu0.vram"}],
            "execution": [
                {
                    "execution_id": "exec.decode",
                    "compute_unit_id": "gpu0",
                    "strategy_unit": "causal-lm.decode",
                    "status": "ACTIVE_BACKEND_NATIVE",
                }
            ],
            "process_checkpoints": _checkpoints(),
        },
        "correctness": {
            "passed": True,
            "prefill": {"input": _exact(), "output": _exact(), "passed": True},
            "decode_runs": [
                {"input": _exact(), "output": _exact(), "passed": True, "repetition": number} for number in range(4)
            ],
            "staging_tensor_count": 12,
            "dead_staging_tensor_count": 12,
            "resident_source_access_attempts": 0,
            "post_release_loader_sentinels": {"whole_shard_loader_calls": 0},
        },
        "backend_execution": {"hot_path_plan_lookups": 0},
        "memory": {
            "host_staging_bytes_before_release": 256 * MIB,
            "host_staging_bytes_after_repeated_execution": 0,
            "persistent_host_evidence_bytes": 4096,
            "persistent_host_evidence_roles": {"reference": 4096},
            "persistent_required_bytes": 272 * MIB + 256,
            "unexplained_persistent_host_mirror_bytes": 0,
            "unplanned_persistent_bytes": 0,
            "transient_upper_bound_status": "CALCULATED",
        },
        "provenance": {"base": "0123abc", "issue": "https://example.org/1"},
        "reconciliation": {"passed": True, "mismatches": []},
        "scope": {"proves": "one plan"},
    }


def _observed(planned: Document) -> Document:
    size = planned["expected_bytes"]
    seen = {
        "materialization_id": planned["id"],
        "logical_state_id": planned["logical_state_id"],
        "actual_memory_resource_id": planned["memory_resource_id"],
        "actual_representation": planned["representation"],
        "intended_role": planned["role"],
        "persistence": planned["persistence"],
        "lifecycle_state": "live",
        "observed_bytes": size,
        "status": "PLANNED_AND_REALIZED",
    }
    if planned["role"] == "staging":
        seen |= {
            "lifecycle_state": "released",
            "observed_bytes_before_release": size,
            "observed_bytes_after_release": 0,
            "released_bytes": size,
            "release_qualifying_materialization_ids": [WEIGHTS],
        }
    return seen


def _exact() -> Document:
    return {
        "exact_equality": True,
        "bounded_equivalence": True,
        "max_absolute_deviation": 0.0,
        "max_relative_deviation": 0.0,
        "nan_count": 0,
        "inf_count": 0,
        "passed": True,
    }


def _checkpoints() -> list[Document]:
    """The six points of the published runner."""
    device = 272 * MIB + 256
    return [
        checkpoint("process_baseline", anon=0, device=0),
        checkpoint("after_selective_host_materialization", anon=STAGED_KIB, device=256, bank=256 * MIB),
        checkpoint("after_accelerator_cache_allocation", anon=STAGED_KIB, device=device, bank=256 * MIB),
        checkpoint("after_complete_accelerator_population", anon=STAGED_KIB, device=device, bank=256 * MIB),
        checkpoint("after_plan_driven_staging_release", anon=0, device=device),
        checkpoint("after_repeated_plan_realized_decode", anon=0, device=device),
    ]


def checkpoint(label: str, *, anon: int, device: int, bank: int = 0, shmem: int = 0) -> Document:
    """One process checkpoint: KiB over the idle process, bytes on the device, bytes of the host bank."""
    resident = IDLE_ANON_KIB + IDLE_FILE_KIB + anon + shmem
    return {
        "label": label,
        "measurement_status": "MEASURED",
        "process": {
            "RssAnon_kib": IDLE_ANON_KIB + anon,
            "RssFile_kib": IDLE_FILE_KIB,
            "RssShmem_kib": shmem,
            "VmHWM_kib": resident,
            "VmRSS_kib": resident,
            "VmSwap_kib": 0,
        },
        "ru_maxrss_kib": resident,
        "vmstat": {"pgfault": 5, "pswpin": 0},
        "cuda_allocated_bytes": device,
        "cuda_peak_allocated_bytes": device,
        "gpu_selective_block_model_bytes": min(device, 256),
        "gpu_expert_bank_cache_bytes": 256 * MIB if device > 256 else 0,
        "gpu_block_local_runtime_state_bytes": 8 * MIB if device > 256 else 0,
        "host_expert_source_bank_bytes": bank,
        "other_deliberate_gpu_bytes_by_role": {"snapshot": 8 * MIB} if device > 256 else {},
        "other_deliberate_persistent_host_bytes_by_role": {"reference": 4096},
    }


def r1_bytes(edit: Callable[[Document], Any] | None = None, plan: Plan | None = None) -> bytes:
    """The document's bytes, after `edit` has changed it in place."""
    document = r1_document(plan or r1_plan())
    if edit is not None:
        edit(document)
    return json.dumps(document, indent=2, sort_keys=True).encode()
