"""A machine as `environment.observed` shows it, for drafting plans in tests without looking at the real one."""

from __future__ import annotations

from ledger.bodies import EnvironmentObserved, ObservedComputeUnit, ObservedMemoryResource
from ledger.measurement import measured, unavailable

GIB = 1 << 30
GPU_UUID = "GPU-11111111-2222-3333-4444-555555555555"


def _memory(key: str, kind: str, capacity: int, parent: str | None = None) -> ObservedMemoryResource:
    return ObservedMemoryResource(
        key=key,
        kind=measured(kind, None, "test"),
        capacity_bytes=measured(capacity, "bytes", "test"),
        available_bytes=measured(capacity // 2, "bytes", "test"),
        parent=parent,
    )


def cpu_machine() -> EnvironmentObserved:
    """One CPU domain with 16 GiB of system RAM, 8 GiB of which may be shared memory."""
    return EnvironmentObserved(
        compute_units=[
            ObservedComputeUnit(
                key="cpu",
                kind=measured("cpu", None, "test"),
                device_uuid=unavailable(None, "test", "a CPU domain has none"),
                name=measured("test", None, "test"),
                memory_resources=["ram", "shm"],
            )
        ],
        memory_resources=[
            _memory("ram", "system-ram", 16 * GIB),
            _memory("shm", "shared-memory", 8 * GIB, parent="ram"),
        ],
    )


def gpu_machine() -> EnvironmentObserved:
    """The same with one GPU of 80 GiB."""
    plain = cpu_machine()
    gpu = ObservedComputeUnit(
        key="cuda:0",
        kind=measured("cuda-gpu", None, "test"),
        device_uuid=measured(GPU_UUID, None, "test"),
        name=measured("test", None, "test"),
        memory_resources=["cuda:0.vram"],
    )
    return EnvironmentObserved(
        compute_units=[*plain.compute_units, gpu],
        memory_resources=[*plain.memory_resources, _memory("cuda:0.vram", "accelerator-vram", 80 * GIB)],
    )
