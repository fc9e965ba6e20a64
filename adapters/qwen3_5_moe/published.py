"""Plans that were published for this model, rebuilt from layout facts to the very bytes: every key is generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adapters.qwen3_5_moe import layout
from adapters.qwen3_5_moe.keys import selected_keys
from adapters.qwen3_5_moe.shape import PUBLISHED
from ledger import canonical
from ledger.errors import NotFound
from ledger.plan import R1_SCHEMA, Plan, freeze, parse_plan

REPOSITORY = "nvidia/Qwen3.6-35B-A3B-NVFP4"
REVISION = "491c2f1ea524c639598bf8fa787a93fed5a6fbce"


@dataclass(frozen=True)
class Machine:
    """The machine that a plan was published for: what no layout says. Capacities in bytes."""

    device_uuid: str
    device_bytes: int
    host_bytes: int


R1_MACHINE = Machine("GPU-1fc28f83-1d45-926e-54d0-ba1e835ef099", 12_485_525_504, 134_984_794_112)
"""The RTX 3060 and its host, on which the published run was made."""


def r1_block_a() -> Plan:
    """The R1 plan of block A, frozen: one node, one GPU, full staging in host memory."""
    shape, machine = PUBLISHED, R1_MACHINE
    source = {"repository": REPOSITORY, "revision": REVISION}
    banks = layout.routed_banks(shape).bytes
    runtime = layout.runtime_state(shape).bytes

    def materialization(
        name: str, unit: str, resource: str, representation: str, role: str, size: int, path: str | None
    ) -> dict[str, Any]:
        part = {
            "id": name,
            "logical_state_id": unit,
            "memory_resource_id": resource,
            "representation": representation,
            "role": role,
            "persistence": "transient" if role == "staging" else "persistent",
            "requirement": "required",
            "expected_bytes": size,
        }
        return part if path is None else {**part, "path_id": path}

    ram, vram = "node-a.ram", "gpu0.vram"
    routed, rest = "state.block-a.routed", "state.block-a.non-routed"
    mutable, baseline = "state.block-a.mutable-runtime", "state.block-a.replay-baseline"
    to_ram, to_vram = "checkpoint-to-ram", "ram-to-vram"
    document: dict[str, Any] = {
        "schema": R1_SCHEMA,
        "plan_version": "r1-block-a-v1",
        "model": source,
        "resources": {
            "swarm_id": "r1-test",
            "nodes": [
                {
                    "id": "node-a",
                    "compute_units": [
                        {
                            "id": "gpu0",
                            "kind": "cuda-gpu",
                            "device_uuid": machine.device_uuid,
                            "memory_resources": [vram],
                        }
                    ],
                    "memory_resources": [
                        {"id": vram, "kind": "accelerator-vram", "capacity_bytes": machine.device_bytes},
                        {"id": ram, "kind": "system-ram", "capacity_bytes": machine.host_bytes},
                    ],
                }
            ],
            "backing_sources": [{"id": "qwen-checkpoint", "kind": "checkpoint", **source}],
            "links": [
                {"id": to_ram, "kind": "bounded-read", "source": "qwen-checkpoint", "target": ram},
                {"id": to_vram, "kind": "host-to-device", "source": ram, "target": vram},
            ],
        },
        "logical_state_units": [
            {"id": rest, "semantic_class": "immutable_source", "backing_source_id": "qwen-checkpoint"},
            {"id": routed, "semantic_class": "immutable_source", "backing_source_id": "qwen-checkpoint"},
            {"id": mutable, "semantic_class": "mutable_authoritative"},
            {"id": baseline, "semantic_class": "derived_reconstructible", "reconstruction_inputs": [mutable]},
        ],
        "materializations": [
            materialization("mat.routed.ram-stage", routed, ram, layout.HOST_BANKS, "staging", banks, to_ram),
            materialization(
                "mat.non-routed.vram",
                rest,
                vram,
                layout.NATIVE,
                "required_residency",
                layout.non_routed(shape).bytes,
                to_vram,
            ),
            materialization("mat.routed.vram", routed, vram, layout.SLOT_BANKS, "required_residency", banks, to_vram),
            materialization("mat.runtime.vram", mutable, vram, layout.RUNTIME, "mutable_authority", runtime, None),
            materialization("mat.replay.vram", baseline, vram, layout.SNAPSHOT, "required_test_state", runtime, None),
        ],
        "authorities": [
            {
                "lineage": "r1-block-a-epoch-1",
                "logical_state_id": mutable,
                "materialization_id": "mat.runtime.vram",
            }
        ],
        "execution": [
            {
                "id": "exec.block-a",
                "compute_unit_id": "gpu0",
                "strategy_unit": layout.STRATEGY,
                "required_state": [
                    {"logical_state_id": unit, "memory_resources": [vram], "representations": [representation]}
                    for unit, representation in (
                        (rest, layout.NATIVE),
                        (routed, layout.SLOT_BANKS),
                        (mutable, layout.RUNTIME),
                    )
                ],
            }
        ],
        "forbidden_persistent_materializations": [{"logical_state_id": routed, "memory_resource_id": ram}],
        "memory_expectations": {
            "persistent_optional_bytes": 0,
            "unexplained_persistent_host_mirror_bytes": 0,
            "unplanned_persistent_bytes": 0,
        },
        "adapter_data": {
            "spec": {
                "model_repository": REPOSITORY,
                "revision": REVISION,
                "start_layer": shape.start,
                "end_layer": shape.end,
                "owns_embeddings": shape.owns_embeddings,
                "owns_final_norm_head": False,
            },
            "allowed_tensor_keys": selected_keys(shape),
        },
    }
    return freeze(parse_plan(canonical.r1_file(document)))


PLANS: dict[str, Callable[[], Plan]] = {"r1-block-a": r1_block_a}
"""Published plans by name."""


def published(name: str) -> Plan:
    """The published plan of that name. Raises NotFound naming those there are."""
    if name not in PLANS:
        raise NotFound(f"no published plan {name!r}; there are: {', '.join(sorted(PLANS))}")
    return PLANS[name]()
