"""Accelerator figures and pinning against a stand-in for driver and runtime: what each of them may refuse is said."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from realizer import accelerator
from realizer.environment import observe_environment
from realizer.memory import AllocationFailed, PrivateRange, RangeInUse, Ranges

torch = pytest.importorskip("torch")

UUID = "1fc28f83-1d45-926e-54d0-ba1e835ef099"


class Runtime:
    """As much of the CUDA runtime as pinning uses; `refuse` names the call that fails."""

    def __init__(self) -> None:
        self.refuse = ""
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, start: int, length: int, flags: int) -> int:  # noqa: N802 - the runtime's name
        if self.refuse == "register":
            return 2
        self.registered[start] = length
        return 0

    def cudaHostUnregister(self, start: int) -> int:  # noqa: N802
        if self.refuse == "unregister":
            return 712
        del self.registered[start]
        return 0

    def cudaGetErrorString(self, result: int) -> str:  # noqa: N802
        return f"error {result}"


class Cuda:
    """As much of torch.cuda as the probes use, for one device."""

    def __init__(self, *, initialized: bool = True, host_stats: dict[str, int] | None = None) -> None:
        self.initialized = initialized
        self.runtime = Runtime()
        self.peak = 700
        if host_stats is not None:
            self.host_memory_stats = lambda: host_stats

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self) -> None:
        self.initialized = True

    def synchronize(self) -> None:
        pass

    def cudart(self) -> Runtime:
        return self.runtime

    def device_count(self) -> int:
        return 1

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(uuid=UUID, name="Accelerator")

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 10, 20

    def memory_allocated(self, index: int) -> int:
        return 500

    def memory_reserved(self, index: int) -> int:
        return 600

    def max_memory_allocated(self, index: int) -> int:
        return self.peak

    def reset_peak_memory_stats(self, index: int) -> None:
        self.peak = 500


class Nvml:
    """As much of pynvml as the probes use; `refuse` names the call that fails."""

    class NVMLError(Exception):
        pass

    def __init__(self, processes: list[tuple[int, int | None]], refuse: str = "") -> None:
        self.processes = processes
        self.refuse = refuse
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name == self.refuse:
                raise self.NVMLError("Insufficient Permissions")
            if name == "nvmlDeviceGetHandleByUUID":
                self.asked.append(arguments[0])
            return {
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=900),
                "nvmlDeviceGetComputeRunningProcesses": [
                    SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes
                ],
                "nvmlSystemGetDriverVersion": "580.1",
            }.get(name)

        return call


def figures(monkeypatch: pytest.MonkeyPatch, cuda: Cuda, nvml: Any, pids: list[int]) -> dict[str, Any]:
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return accelerator.memory(pids, Ranges())


def test_every_figure_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml([(1, 100), (2, 50), (99, 1000)])
    cuda = Cuda(host_stats={"allocated_bytes.current": 64})
    found = figures(monkeypatch, cuda, nvml, [1, 2])
    assert {name: figure.value for name, figure in found.items()} == {
        "cuda:0.allocated": 500, "cuda:0.reserved": 600, "cuda:0.peak": 700, "cuda:0.process": 150, "cuda:0.used": 900,
        "host_pool": 64, "pinned_ranges": 0,
    }  # fmt: skip
    assert nvml.asked == [f"GPU-{UUID}"], "the device is asked for by its UUID: numbers differ between the two"
    assert accelerator.memory([1], Ranges())["cuda:0.peak"].value == 500, "the peak was reset"


def test_a_look_that_leaves_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml([]))
    accelerator.memory([1], Ranges(), reset_peak=False)
    assert cuda.peak == 700


def test_looking_makes_no_device_context(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(initialized=False)
    found = figures(monkeypatch, cuda, Nvml([]), [1])
    assert not cuda.initialized
    unknown = {name for name, figure in found.items() if figure.status == "unavailable"}
    assert unknown == {"cuda:0.allocated", "cuda:0.reserved", "cuda:0.peak", "cuda:0.process", "host_pool"}
    assert all("no CUDA context" in str(found[name].detail) for name in unknown)


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (None, "not installed"),
        (Nvml([], refuse="nvmlInit"), "Insufficient Permissions"),
        (Nvml([], refuse="nvmlDeviceGetHandleByUUID"), "Insufficient Permissions"),
        (Nvml([]), "lists no process of this tree"),
        (Nvml([(99, 5)]), "lists no process of this tree"),
        (Nvml([(1, None)]), "no figure by process"),
    ],
)
def test_what_the_driver_does_not_say_is_unknown(monkeypatch: pytest.MonkeyPatch, nvml: Any, reason: str) -> None:
    found = figures(monkeypatch, Cuda(), nvml, [1])
    assert (found["cuda:0.process"].value, found["cuda:0.process"].status) == (None, "unavailable")
    assert reason in str(found["cuda:0.process"].detail)


@pytest.mark.parametrize("stats", [None, {}])
def test_a_pinned_pool_that_torch_does_not_count_is_unknown(
    monkeypatch: pytest.MonkeyPatch, stats: dict[str, int] | None
) -> None:
    pool = figures(monkeypatch, Cuda(host_stats=stats), Nvml([]), [1])["host_pool"]
    assert (pool.value, pool.status) == (None, "unavailable")
    assert pool.detail


def test_a_driver_that_refuses_its_version_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", Cuda())
    monkeypatch.setitem(sys.modules, "pynvml", Nvml([], refuse="nvmlSystemGetDriverVersion"))
    assert "Insufficient" in str(observe_environment().facts["cuda_driver"].detail)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml([]))
    assert observe_environment().facts["cuda_driver"].value == "580.1"


# --- pinning ------------------------------------------------------------------------------------------------------


def test_pinned_ranges_are_counted_and_unregistered_before_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml([(os.getpid(), 1)]))
    ranges = Ranges()
    memory = ranges.allocate("system-ram", 8192, owner="stage", pinned=True)
    assert cuda.runtime.registered == {memory.start: 8192}
    assert accelerator.memory([1], ranges)["pinned_ranges"].value == 8192
    tensor = memory.tensor(torch.uint8, (4,), 0)
    with pytest.raises(RangeInUse):
        ranges.free(memory)
    assert cuda.runtime.registered, "in use: it stays registered"
    del tensor
    ranges.free(memory)
    assert cuda.runtime.registered == {}
    assert accelerator.memory([1], ranges)["pinned_ranges"].value == 0


def test_a_refused_registration_leaves_nothing_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    cuda.runtime.refuse = "register"
    monkeypatch.setattr(torch, "cuda", cuda)
    ranges = Ranges()
    with pytest.raises(AllocationFailed, match="refused 8192 bytes for stage: error 2"):
        ranges.allocate("system-ram", 8192, owner="stage", pinned=True)
    assert len(ranges) == 0


def test_a_refused_unregistration_leaves_the_range_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unmapping registered pages would pull them from under the device."""
    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    memory = PrivateRange(8192, owner="stage")
    memory.register()
    memory.register()
    cuda.runtime.refuse = "unregister"
    with pytest.raises(AllocationFailed, match="error 712"):
        memory.free()
    assert not memory.freed
    assert memory.mapped().value == 1
    cuda.runtime.refuse = ""
    memory.free()
    assert memory.freed
