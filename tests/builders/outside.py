"""Plans for an engine on a device that this machine need not have."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ledger.bodies import EnvironmentObserved, ObservedComputeUnit, ObservedMemoryResource
from ledger.measurement import measured, unavailable
from ledger.plan import Plan, freeze, parse_plan
from realizer.drafting_outside import draft_outside_plan

GPU_UUID = "GPU-00000000-1111-2222-3333-444444444444"
GIB = 1024**3


def machine() -> EnvironmentObserved:
    """One CPU domain and one GPU, as a witness sees them."""

    def resource(key: str, kind: str) -> ObservedMemoryResource:
        size = measured(64 * GIB, "bytes", "m", source="witness")
        kind_of = measured(kind, None, "m", source="witness")
        return ObservedMemoryResource(key=key, kind=kind_of, capacity_bytes=size, available_bytes=size)

    def unit(key: str, kind: str, uuid: str | None, resources: list[str]) -> ObservedComputeUnit:
        none = unavailable(None, "m", "a CPU domain has none", source="witness")
        return ObservedComputeUnit(
            key=key,
            kind=measured(kind, None, "m", source="witness"),
            device_uuid=measured(uuid, None, "m", source="witness") if uuid else none,
            name=measured(key, None, "m", source="witness"),
            memory_resources=resources,
        )

    return EnvironmentObserved(
        compute_units=[unit("cpu", "cpu", None, ["ram"]), unit("cuda:0", "cuda-gpu", GPU_UUID, ["cuda:0.vram"])],
        memory_resources=[resource("ram", "system-ram"), resource("cuda:0.vram", "accelerator-vram")],
    )


def staged_plan(size: int, **options: str) -> Plan:
    """A frozen plan: `size` bytes of weights on the GPU, staged whole in host memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        with path.open("wb") as file:
            file.truncate(size)
        return freeze(parse_plan(draft_outside_plan(str(path), machine(), "cuda:0", options)))
