"""Devices and their memory as NVML tells them: by device and process, without torch and without a context."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ledger.bodies import ObservedComputeUnit, ObservedMemoryResource
from ledger.measurement import Measurement, Measurements, measured, unavailable
from realizer.memory import ACCELERATOR_VRAM

CUDA_KIND = "cuda-gpu"
DRIVER = "NVML, driver version"
BY_PROCESS = "NVML compute processes of the tree, their contexts included"
BY_DEVICE = "NVML device memory in use, by whomever"


class NVMLUnavailable(Exception):
    """NVML is not installed, cannot be opened, or refused a call; the text says which."""


@contextmanager
def opened() -> Iterator[Any]:
    """`pynvml`, initialised for the block's calls. Raises NVMLUnavailable, also for a call of the block that fails."""
    nvml = _initialised()
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise NVMLUnavailable(f"NVML: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _initialised() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NVMLUnavailable(f"nvidia-ml-py is not installed: {error}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NVMLUnavailable(f"NVML: {error}") from error
    return pynvml


def device_memory(uuid: str, key: str, pids: Collection[int]) -> Measurements:
    """`KEY.process` (of the tree) and `KEY.used` (by whomever) of the device of that UUID, bytes."""
    try:
        with opened() as nvml:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            used, by_pid = _memory_of(nvml, handle, pids)
    except NVMLUnavailable as error:
        return _unknown_memory(key, str(error))
    return {f"{key}.used": used, f"{key}.process": _sum(by_pid)}


def driver_version() -> Measurement:
    """What NVML says of the driver."""
    try:
        with opened() as nvml:
            return measured(str(nvml.nvmlSystemGetDriverVersion()), None, DRIVER)
    except NVMLUnavailable as error:
        return unavailable(None, DRIVER, str(error))


def _memory_of(nvml: Any, handle: Any, pids: Collection[int]) -> tuple[Measurement, dict[int, Measurement]]:
    """The device's bytes in use by whomever, and those of each process of `pids` that NVML lists there."""
    used = measured(int(nvml.nvmlDeviceGetMemoryInfo(handle).used), "bytes", BY_DEVICE)
    entries = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return used, {entry.pid: _used(entry) for entry in entries if entry.pid in pids}


def _unknown_memory(key: str, why: str) -> Measurements:
    return {
        f"{key}.process": unavailable("bytes", BY_PROCESS, why),
        f"{key}.used": unavailable("bytes", BY_DEVICE, why),
    }


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
            self._nvml = nvml = _initialised()
        except NVMLUnavailable as error:
            self.problem = str(error)
            return
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid, name = str(nvml.nvmlDeviceGetUUID(handle)), str(nvml.nvmlDeviceGetName(handle))
                self.devices.append(Device(f"cuda:{index}", handle, uuid, name))
        except nvml.NVMLError as error:
            self.problem = f"NVML: {error}"

    def observe(self, facts: Measurements) -> list[tuple[ObservedComputeUnit, ObservedMemoryResource]]:
        """Each device with its memory, for `observe_environment`; the driver's version goes into `facts`."""
        if self.problem is not None:
            facts["cuda"] = unavailable(None, "NVML", self.problem)
        if not self.devices:
            return []
        try:
            facts["cuda_driver"] = measured(str(self._nvml.nvmlSystemGetDriverVersion()), None, DRIVER)
        except self._nvml.NVMLError as error:
            facts["cuda_driver"] = unavailable(None, DRIVER, f"NVML: {error}")
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
                used, by_pid = _memory_of(self._nvml, device.handle, pids)
            except self._nvml.NVMLError as error:
                found |= _unknown_memory(device.key, f"NVML: {error}")
                continue
            found[f"{device.key}.used"] = used
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
