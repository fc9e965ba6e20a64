"""Copies between pinned host memory and a device range by the driver's own calls: many small ones, from many threads.

A tensor operation for each would take longer than the copy itself. The calls are made with the addresses of both ranges
(CUDA driver API, "Memory Management": cuMemcpyHtoDAsync, cuMemcpyBatchAsync, cuMemcpyDtoHAsync).
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ledger.errors import RealizationFailed

if TYPE_CHECKING:
    import torch

    from realizer.memory import MemoryRange
    from realizer.scatter import Runs

HINT = "the number is a CUresult of CUDA's documentation"


BATCH = 4
"""From so many copies on, one call for all of them is quicker than one for each."""
_STREAM_ORDER = 1
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read in the stream's order, as by single copies."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the access order, hints of two locations (type and number, none here), flags."""

    _fields_ = (
        ("access_order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class _Driver:
    """The driver's calls on one device's primary context, which torch works on too, for any thread."""

    def __init__(self, device: torch.device) -> None:
        # Calls that return at once keep the interpreter meanwhile, since giving it up for each would take longer.
        self.quick = ctypes.PyDLL("libcuda.so.1")
        self.waiting = ctypes.CDLL("libcuda.so.1")
        self.quick.cuMemcpyHtoDAsync_v2.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self.quick.cuMemcpyDtoHAsync_v2.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
        self.waiting.cuStreamSynchronize.argtypes = (ctypes.c_void_p,)
        self._batch = getattr(self.waiting, "cuMemcpyBatchAsync", None)  # since CUDA 12.8
        if self._batch is not None:
            size, pointer = ctypes.c_size_t, ctypes.c_void_p
            self._batch.argtypes = (pointer, pointer, pointer, size, pointer, pointer, size, pointer, pointer)
        number, self._context = ctypes.c_int(), ctypes.c_void_p()
        check(self.quick.cuDeviceGet(ctypes.byref(number), device.index or 0), "cuDeviceGet")
        check(self.quick.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), number), "cuDevicePrimaryCtxRetain")
        # torch keeps the primary context for as long as the process lives: this was only to be told which it is
        check(self.quick.cuDevicePrimaryCtxRelease_v2(number), "cuDevicePrimaryCtxRelease")
        self._thread = threading.local()

    def copy_in(self, targets: np.ndarray, sources: np.ndarray, lengths: np.ndarray, stream: int) -> None:
        """Have host bytes copied to the device: addresses and lengths I64 [n]; in one call where the driver has that."""
        count = len(lengths)
        if count >= BATCH and self._batch is not None:
            failed, first = ctypes.c_size_t(), ctypes.c_size_t(0)
            columns = [column.ctypes.data for column in (targets, sources, np.ascontiguousarray(lengths))]
            order = _Attributes(access_order=_STREAM_ORDER)
            result = self._batch(
                *columns, count, ctypes.byref(order), ctypes.byref(first), 1, ctypes.byref(failed), stream
            )
            check(result, "cuMemcpyBatchAsync")
            return
        enqueue = self.quick.cuMemcpyHtoDAsync_v2
        for target, source, length in zip(targets.tolist(), sources.tolist(), lengths.tolist(), strict=True):
            if result := enqueue(target, source, length, stream):
                check(result, "cuMemcpyHtoDAsync")

    def enter(self) -> Any:
        """What this thread may use of its own: `stream` can be kept there."""
        if not getattr(self._thread, "entered", False):
            check(self.quick.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
            self._thread.entered = True
            self._thread.stream = None
        return self._thread


def check(result: int, call: str) -> None:
    """Raises RealizationFailed when a call of the driver's failed."""
    if result:
        raise RealizationFailed(f"the CUDA driver refused {call}: error {result}", HINT)


def _inside(offset: int, length: int, memory: MemoryRange) -> None:
    if offset < 0 or length < 0 or offset + length > memory.length:
        raise RealizationFailed(
            f"bytes {offset} to {offset + length} are outside {memory.owner}, which has {memory.length}"
        )


POOLED_STREAMS = 32
"""Streams that torch keeps for a device and hands out in turn (c10/cuda/CUDAStream.cpp)."""


def warm_up(device: str) -> None:
    """Have each of torch's streams make one copy each way, so that what the driver keeps for them is there already.

    Called before the memory baseline. Readers and hashing threads use these streams later, one each.
    """
    import torch

    from realizer.memory import ACCELERATOR_VRAM, SYSTEM_RAM, allocate

    host = allocate(SYSTEM_RAM, 4096, owner="warm-up", pinned=True)
    there = allocate(ACCELERATOR_VRAM, 4096, owner="warm-up", device=device)
    near, far = host.tensor(torch.uint8, (4096,)), there.tensor(torch.uint8, (4096,))
    for _ in range(POOLED_STREAMS):
        with torch.cuda.stream(torch.cuda.Stream(device=device)):
            far.copy_(near, non_blocking=True)
            near.copy_(far, non_blocking=True)
    torch.cuda.synchronize(device)
    del near, far
    host.free()
    there.free()


class Slot(Protocol):
    """A part of the ring, with the event that says when the last copy out of it is done."""

    offset: int
    event: Any


class DeviceCopies:
    """Copies out of a pinned ring into a device range, on a stream of their own. `finish` before either range goes.

    The caller keeps to the ranges' lengths.
    """

    def __init__(self, ring: MemoryRange, target: MemoryRange) -> None:
        import torch

        self._torch, self._ring, self._target = torch, ring, target
        self._stream = torch.cuda.Stream(device=target.device)
        self._stream.wait_stream(torch.cuda.current_stream(target.device))  # whoever had the memory before is done
        self._driver = _Driver(target.device)

    def wait(self, slot: Slot) -> None:
        """Return when what was copied last out of the slot has left it."""
        if slot.event is not None:
            slot.event.synchronize()

    def copy(self, slot: Slot, runs: Runs) -> None:
        """Have runs of the slot copied."""
        self._driver.enter()
        sources, targets = runs.at + (self._ring.start + slot.offset), runs.target + self._target.start
        self._driver.copy_in(targets, sources, runs.length, self._stream.cuda_stream)
        if slot.event is None:
            slot.event = self._torch.cuda.Event(blocking=True)
        slot.event.record(self._stream)

    def finish(self) -> None:
        """Wait for every copy. Raises torch's error when one failed."""
        self._stream.synchronize()


class DeviceReads:
    """Copies of a device range's bytes into a pinned host range; each thread waits for its own alone."""

    def __init__(self, memory: MemoryRange, scratch: MemoryRange) -> None:
        import torch

        self._torch, self._memory, self._scratch = torch, memory, scratch
        torch.cuda.synchronize(memory.device)  # whoever wrote the range is done
        self._driver = _Driver(memory.device)

    def fetch(self, offset: int, place: int, length: int) -> None:
        """Bring `length` bytes at `offset` of the range to `place` of the host range; done when it returns."""
        if not length:
            return
        _inside(offset, length, self._memory)
        _inside(place, length, self._scratch)
        here = self._driver.enter()
        if here.stream is None:
            here.stream = self._torch.cuda.Stream(device=self._memory.device)
        stream = here.stream.cuda_stream
        copied = self._driver.quick.cuMemcpyDtoHAsync_v2(
            self._scratch.start + place, self._memory.start + offset, length, stream
        )
        check(copied, "cuMemcpyDtoHAsync")
        check(self._driver.waiting.cuStreamSynchronize(stream), "cuStreamSynchronize")
