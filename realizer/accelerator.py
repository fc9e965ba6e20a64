"""Accelerator memory: what torch's allocator has, what NVML says of this process tree, and our own pinned pages."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from ledger.measurement import Measurement, Measurements, measured, unavailable
from realizer.memory import Ranges
from realizer.nvml import device_memory

BYTES = "bytes"


def memory(pids: Collection[int], ranges: Ranges, *, reset_peak: bool = True) -> Measurements:
    """Per device `DEVICE.allocated`, `.reserved`, `.peak` (since the last reset), `.process` and `.used`; `host_pool`
    (torch's own pinned allocator) and `pinned_ranges` (host ranges registered by this run). Empty without CUDA.

    Looking never creates a device context: before the process has one, torch's figures are unavailable.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    found: Measurements = {}
    ready = torch.cuda.is_initialized()
    for index in range(torch.cuda.device_count()):
        device = f"cuda:{index}"
        if ready:
            found |= _allocator(torch, index, device, reset_peak)
            found |= device_memory(str(torch.cuda.get_device_properties(index).uuid), device, pids)
        else:
            why = "this process has no CUDA context yet"
            for name in ("allocated", "reserved", "peak", "process"):
                found[f"{device}.{name}"] = unavailable(BYTES, f"CUDA, {name}", why)
    found["host_pool"] = _host_pool(torch, ready)
    found["pinned_ranges"] = measured(
        sum(memory.length for memory in ranges if memory.pinned), BYTES, "host ranges that cudaHostRegister accepted"
    )
    return found


def _allocator(torch: Any, index: int, device: str, reset_peak: bool) -> Measurements:
    figures = {
        f"{device}.allocated": measured(torch.cuda.memory_allocated(index), BYTES, "torch.cuda.memory_allocated"),
        f"{device}.reserved": measured(torch.cuda.memory_reserved(index), BYTES, "torch.cuda.memory_reserved"),
        f"{device}.peak": measured(
            torch.cuda.max_memory_allocated(index), BYTES, "torch.cuda.max_memory_allocated since the last sample"
        ),
    }
    if reset_peak:
        torch.cuda.reset_peak_memory_stats(index)
    return figures


def _host_pool(torch: Any, ready: bool) -> Measurement:
    """Bytes that torch's caching allocator of pinned memory holds, freed blocks included."""
    method = "allocated_bytes.current of torch.cuda.host_memory_stats"
    if not ready:
        return unavailable(BYTES, method, "this process has no CUDA context yet")
    if not hasattr(torch.cuda, "host_memory_stats"):
        return unavailable(BYTES, method, f"torch {torch.__version__} has no such figure")
    value = torch.cuda.host_memory_stats().get("allocated_bytes.current")
    return measured(value, BYTES, method, detail=None if value is not None else "the figure is missing")
