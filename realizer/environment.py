"""The machine as found: Compute Units, Memory Resources and facts. Nothing of a plan enters here.

Keys are the machine's own names: `cpu`, `ram`, `shm`, and `cuda:N` with `cuda:N.vram` for each device that this process
may use. What cannot be read is unavailable, with the reason.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledger.bodies import EnvironmentObserved, ObservedComputeUnit, ObservedMemoryResource
from ledger.canonical import MAX_SAFE_INTEGER
from ledger.measurement import Measurement, Measurements, measured, unavailable
from realizer.machine_memory import CGROUP_FILES, memory_cgroup
from realizer.memory import ACCELERATOR_VRAM, SHARED_MEMORY, SYSTEM_RAM
from realizer.nvml import CUDA_KIND, driver_version
from realizer.procfs import ProcFS, Unreadable
from realizer.software import PRIVATE, adapter_identity, process_facts, software_identity

__all__ = ["adapter_identity", "observe_environment", "process_facts", "software_identity"]

CPU_KIND = "cpu"
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


Devices = Callable[[Measurements], list[tuple[ObservedComputeUnit, ObservedMemoryResource]]]
"""Finds devices with their memory, and adds facts about them to those given."""


def observe_environment(
    private: bool = False, *, proc: ProcFS | None = None, devices: Devices | None = None
) -> EnvironmentObserved:
    """Every Compute Unit and Memory Resource of this machine, and facts that bear on memory and speed.

    `private` withholds what tells one machine of a kind from another and is not judged: the kernel's build and the
    processor's name. Device UUIDs stay, since the plan names them and the judge compares them. `devices` finds
    accelerators in another way than by asking torch.
    """
    proc = proc or ProcFS()
    total, available = _ram(proc)
    units = [
        ObservedComputeUnit(
            key="cpu",
            kind=measured(CPU_KIND, None, "this program runs on it"),
            device_uuid=unavailable(None, "device UUID", "a CPU domain has none"),
            name=_withheld(private) or _cpu_name(proc),
            memory_resources=["ram", "shm"],
        )
    ]
    resources = [
        ObservedMemoryResource(
            key="ram",
            kind=measured(SYSTEM_RAM, None, "psutil.virtual_memory"),
            capacity_bytes=total,
            available_bytes=available,
        ),
        _shared_memory(total, available),
    ]
    facts = _facts(proc, private)
    for unit, resource in (devices or _cuda)(facts):
        units.append(unit)
        resources.append(resource)
    return EnvironmentObserved(compute_units=units, memory_resources=resources, facts=facts)


def _withheld(private: bool) -> Measurement | None:
    return unavailable(None, "withheld", PRIVATE) if private else None


def _ram(proc: ProcFS) -> tuple[Measurement, Measurement]:
    """Capacity and available bytes: the machine's, or the memory cgroup's limit where that is smaller."""
    try:
        import psutil

        memory = psutil.virtual_memory()
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        why = f"{type(error).__name__}: {error}"
        return (
            unavailable("bytes", "psutil.virtual_memory", why),
            unavailable("bytes", "psutil.virtual_memory", why),
        )
    capacity = measured(int(memory.total), "bytes", "psutil.virtual_memory, total")
    available = measured(int(memory.available), "bytes", "psutil.virtual_memory, available")
    limit, used = _cgroup_limit(proc)
    if limit is not None and limit < memory.total:
        method = "limit of the memory cgroup, smaller than the machine's memory"
        capacity = measured(limit, "bytes", method, detail=f"the machine has {memory.total}")
        if used is not None:
            method = "limit of the memory cgroup less what it uses, or what the machine has available if less"
            available = measured(max(0, min(limit - used, int(memory.available))), "bytes", method)
    return capacity, available


def _cgroup_limit(proc: ProcFS) -> tuple[int | None, int | None]:
    """(limit, use) of this process's memory cgroup; None where there is none or it sets no limit."""
    try:
        version, folder = memory_cgroup(proc)
        texts = [(folder / CGROUP_FILES[version][name]).read_text().strip() for name in ("limit", "current")]
    except (Unreadable, OSError):
        return None, None
    limit, used = (int(text) if text.isdigit() and int(text) <= MAX_SAFE_INTEGER else None for text in texts)
    return limit, used


def _shared_memory(total: Measurement, available: Measurement) -> ObservedMemoryResource:
    """Shared memory for memfds: carved from RAM, and bounded by it alone (the size of /dev/shm does not bound them)."""
    try:
        os.close(os.memfd_create("tally-probe", os.MFD_CLOEXEC))
        kind = measured(SHARED_MEMORY, None, "memfd_create gives a file")
    except (AttributeError, OSError) as error:
        kind = unavailable(None, "memfd_create", f"{type(error).__name__}: {error}")
    return ObservedMemoryResource(key="shm", kind=kind, capacity_bytes=total, available_bytes=available, parent="ram")


def _cpu_name(proc: ProcFS) -> Measurement:
    method = "model name in /proc/cpuinfo"
    try:
        for line in proc.text("cpuinfo").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model") and value.strip():
                return measured(value.strip(), None, method)
    except Unreadable as error:
        return unavailable(None, method, error.message)
    name = platform.processor() or platform.machine()
    return measured(name, None, "platform.processor, else platform.machine")


def _facts(proc: ProcFS, private: bool) -> Measurements:
    kernel = measured(f"{platform.system()} {platform.release()}", None, "platform.release")
    facts: Measurements = {
        "kernel": _withheld(private) or kernel,
        "architecture": measured(platform.machine(), None, "platform.machine"),
        "page_size": measured(os.sysconf("SC_PAGE_SIZE"), "bytes", "sysconf"),
        "cpus": measured(len(os.sched_getaffinity(0)), "processors", "processors that this process may run on"),
        "huge_pages": _huge_pages(),
    }
    for name, field in (("swap_total", "SwapTotal"), ("mem_total", "MemTotal")):
        method = f"{field} in /proc/meminfo"
        try:
            table = proc.table("meminfo")
            missing = unavailable("bytes", method, f"/proc/meminfo has no {field}")
            facts[name] = measured(table[field], "bytes", method) if field in table else missing
        except Unreadable as error:
            facts[name] = unavailable("bytes", method, error.message)
    return facts


def _huge_pages() -> Measurement:
    try:
        text = _HUGE_PAGES.read_text().strip()
    except OSError as error:
        return unavailable(None, str(_HUGE_PAGES), error.strerror or str(error))
    return measured(text, None, str(_HUGE_PAGES))


def _cuda(facts: Measurements) -> list[tuple[ObservedComputeUnit, ObservedMemoryResource]]:
    """Each CUDA device that torch shows, with NVML's word on its memory. Adds driver and runtime to `facts`."""
    try:
        import torch
    except ImportError as error:
        facts["cuda"] = unavailable(None, "torch.cuda", f"torch cannot be imported: {error}")
        return []
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except RuntimeError as error:
        facts["cuda"] = unavailable(None, "torch.cuda", str(error).splitlines()[0])
        return []
    facts["cuda_devices"] = measured(count, "devices", "torch.cuda.device_count")
    if count == 0:
        return []
    facts["cuda_runtime"] = measured(torch.version.cuda, None, "torch.version.cuda")
    facts["cuda_driver"] = driver_version()
    return [_cuda_device(torch, index) for index in range(count)]


def _cuda_device(torch: Any, index: int) -> tuple[ObservedComputeUnit, ObservedMemoryResource]:
    key = f"cuda:{index}"
    kind = measured(CUDA_KIND, None, "torch.cuda")
    vram = measured(ACCELERATOR_VRAM, None, "torch.cuda")
    try:
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        missing = unavailable(None, "torch.cuda", why)
        space = unavailable("bytes", "torch.cuda", why)
        return (
            ObservedComputeUnit(
                key=key, kind=kind, device_uuid=missing, name=missing, memory_resources=[f"{key}.vram"]
            ),
            ObservedMemoryResource(key=f"{key}.vram", kind=vram, capacity_bytes=space, available_bytes=space),
        )
    uuid = str(properties.uuid)
    return (
        ObservedComputeUnit(
            key=key,
            kind=kind,
            device_uuid=measured(
                uuid if uuid.startswith("GPU-") else f"GPU-{uuid}", None, "torch.cuda.get_device_properties"
            ),
            name=measured(properties.name, None, "torch.cuda.get_device_properties"),
            memory_resources=[f"{key}.vram"],
        ),
        ObservedMemoryResource(
            key=f"{key}.vram",
            kind=vram,
            capacity_bytes=measured(int(total), "bytes", "torch.cuda.mem_get_info"),
            available_bytes=measured(int(free), "bytes", "torch.cuda.mem_get_info"),
        ),
    )
