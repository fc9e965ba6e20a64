"""Devices and their memory as NVML tells them to an outsider: by device and process, without torch and without a context."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ledger.bodies import ObservedComputeUnit, ObservedMemoryResource
from ledger.measurement import Measurement, Measurements, measured, unavailable
from realizer.memory import ACCELERATOR_VRAM

CUDA_KIND = "cuda-gpu"
BY_PROCESS = "NVML compute processes of the tree, their contexts included"
BY_DEVICE = "NVML device memory in use, by whomever"


@dataclass(frozen=True)
class Device:
    """One device: `key` is `cuda:N` by NVML's own numbering, which CUDA's may depart from; the UUID tells which it is."""

    key: str
    handle: Any
    uuid: str
    name: str


class Devices:
    """NVML kept open, so that a look costs two calls a device. Without it `problem` says why, and there are no devices."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.devices: list[Device] = []
        try:
            import pynvml
        except ImportError as error:
            self.problem = f"nvidia-ml-py is not installed: {error}"
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.problem = f"NVML: {error}"
            return
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid, name = str(pynvml.nvmlDeviceGetUUID(handle)), str(pynvml.nvmlDeviceGetName(handle))
                self.devices.append(Device(f"cuda:{index}", handle, uuid, name))
        except pynvml.NVMLError as error:
            self.problem = f"NVML: {error}"

    def observe(self, facts: Measurements) -> list[tuple[ObservedComputeUnit, ObservedMemoryResource]]:
        """Each device with its memory, for `observe_environment`; the driver's version goes into `facts`."""
        if self.problem is not None:
            facts["cuda"] = unavailable(None, "NVML", self.problem)
        if not self.devices:
            return []
        try:
            facts["cuda_driver"] = measured(str(self._nvml.nvmlSystemGetDriverVersion()), None, "NVML, driver version")
        except self._nvml.NVMLError as error:
            facts["cuda_driver"] = unavailable(None, "NVML, driver version", f"NVML: {error}")
        return [self._observed(device) for device in self.devices]

    def _observed(self, device: Device) -> tuple[ObservedComputeUnit, ObservedMemoryResource]:
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(device.handle)
            capacity = measured(int(memory.total), "bytes", "NVML device memory, total")
            free = measured(int(memory.free), "bytes", "NVML device memory, free")
        except self._nvml.NVMLError as error:
            capacity = free = unavailable("bytes", "NVML device memory", f"NVML: {error}")
        vram = f"{device.key}.vram"
        return (
            ObservedComputeUnit(
                key=device.key,
                kind=measured(CUDA_KIND, None, "NVML"),
                device_uuid=measured(device.uuid, None, "NVML device UUID"),
                name=measured(device.name, None, "NVML device name"),
                memory_resources=[vram],
            ),
            ObservedMemoryResource(
                key=vram,
                kind=measured(ACCELERATOR_VRAM, None, "NVML"),
                capacity_bytes=capacity,
                available_bytes=free,
            ),
        )

    def memory(self, pids: Collection[int]) -> Measurements:
        """Per device `DEVICE.process` (of the tree), `DEVICE.used` (by whomever) and `DEVICE.pid:PID` for each member
        that NVML lists there, bytes. Empty where there are no devices."""
        found: Measurements = {}
        for device in self.devices:
            try:
                used = int(self._nvml.nvmlDeviceGetMemoryInfo(device.handle).used)
                entries = self._nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)
            except self._nvml.NVMLError as error:
                found[f"{device.key}.process"] = unavailable("bytes", BY_PROCESS, f"NVML: {error}")
                found[f"{device.key}.used"] = unavailable("bytes", BY_DEVICE, f"NVML: {error}")
                continue
            by_pid = {entry.pid: _used(entry) for entry in entries if entry.pid in pids}
            found[f"{device.key}.used"] = measured(used, "bytes", BY_DEVICE)
            found[f"{device.key}.process"] = _sum(by_pid)
            found |= {f"{device.key}.pid:{pid}": figure for pid, figure in sorted(by_pid.items())}
        return found

    def close(self) -> None:
        """Let go of NVML."""
        if self.devices:
            self.devices = []
            self._nvml.nvmlShutdown()


def _used(entry: Any) -> Measurement:
    if entry.usedGpuMemory is None:
        return unavailable("bytes", "NVML compute process", "the driver gives no figure by process")
    return measured(int(entry.usedGpuMemory), "bytes", "NVML compute process, its context included")


def _sum(by_pid: dict[int, Measurement]) -> Measurement:
    if not by_pid:
        why = "NVML lists no process of this tree: it has no context there, or NVML sees other process ids"
        return unavailable("bytes", BY_PROCESS, why)
    unknown = next((figure for figure in by_pid.values() if figure.value is None), None)
    if unknown is not None:
        return unavailable("bytes", BY_PROCESS, unknown.detail or "not known")
    return measured(sum(int(figure.value or 0) for figure in by_pid.values()), "bytes", BY_PROCESS)
