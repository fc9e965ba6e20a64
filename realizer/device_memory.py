"""Device memory that really frees: one allocation of torch's a range, handed back to the driver when it goes."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from ledger.errors import TallyError
from ledger.measurement import Measurement, measured, unavailable
from realizer.memory_range import (
    ACCELERATOR_VRAM,
    LIVE,
    AllocationFailed,
    MemoryRange,
    element_count,
    parse_tag,
    round_up,
    tag_block,
)

if TYPE_CHECKING:
    import torch

DEVICE_TAG_BYTES = 512


class DeviceRange(MemoryRange):
    """Device memory: one uint8 allocation of torch's; tensors over it are views of its one storage."""

    def __init__(self, length: int, *, owner: str, device: str, tag: str | None = None) -> None:
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        self.kind, self.owner, self.requested, self.length, self.pinned = ACCELERATOR_VRAM, owner, length, length, False
        self._device = torch.device(device)
        self._header = round_up(length, 64) if tag is not None else 0
        total = self._header + DEVICE_TAG_BYTES if tag is not None else length
        try:
            self._buffer: torch.Tensor | None = torch.empty(total, dtype=torch.uint8, device=self._device)
        except (torch.cuda.OutOfMemoryError, RuntimeError, AssertionError) as error:
            first = str(error).splitlines()[0]
            raise AllocationFailed(f"no {length} bytes on {device} for {owner}: {first}") from error
        self._device = self._buffer.device
        self.space = "host" if self._device.type == "cpu" else str(self._device)
        self.start = self._buffer.data_ptr()
        self._storage_ref = StorageWeakRef(self._buffer.untyped_storage())
        self._own_references = _references(self._buffer)
        LIVE.add(self)
        if tag is not None:
            self.tag(tag)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def freed(self) -> bool:
        return self._buffer is None

    @property
    def buffer(self) -> torch.Tensor | None:
        """The range's own tensor over the whole storage; the census leaves it out, since it is the range and no view."""
        return self._buffer

    @property
    def in_use(self) -> bool:
        return self._buffer is not None and _references(self._buffer) > self._own_references

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0) -> torch.Tensor:
        """A view of the range's storage at `offset` bytes, which must be a multiple of the element size."""
        count = element_count(shape) * dtype.itemsize
        self._check_span(count, offset)
        assert self._buffer is not None  # _check_span refused a freed range
        return self._buffer[offset : offset + count].view(dtype).view(shape)

    def tag(self, text: str) -> None:
        """Write the tag into the allocation itself, behind the range."""
        import torch

        if not self._header or self._buffer is None:
            raise TallyError(f"range of {self.owner} has no place for a tag", "give the tag when allocating it")
        block = tag_block(text.encode("utf-8"), DEVICE_TAG_BYTES)
        self._buffer[self._header : self._header + len(block)] = torch.frombuffer(bytearray(block), dtype=torch.uint8)

    def read_tag(self) -> Measurement:
        method = f"header behind the range, read back from {self.space}"
        if not self._header:
            return unavailable(None, method, "the range was allocated without a tag")
        if self._buffer is None:
            return unavailable(None, method, "the range was freed")
        return parse_tag(bytes(self._buffer[self._header :].cpu().numpy()), method)

    def mapped(self) -> Measurement:
        """1 while the allocation's storage lives; on CUDA a freed range must also be no part of an active block."""
        import torch

        if not self._storage_ref.expired():
            return measured(1, "flag", "weak reference to the allocation's storage")
        if self._device.type != "cuda":
            return measured(0, "flag", "weak reference to the allocation's storage")
        for segment in torch.cuda.memory_snapshot():
            if segment["address"] <= self.start < segment["address"] + segment["total_size"]:
                return measured(
                    0, "flag", "torch.cuda.memory_snapshot", detail="the allocator keeps or reuses the segment"
                )
        return measured(0, "flag", "torch.cuda.memory_snapshot")

    def free(self) -> None:
        """Drop the allocation and hand its segment back to the driver (torch keeps freed segments otherwise)."""
        import torch

        if self._buffer is None:
            return
        if self.in_use:
            gc.collect()
        if self.in_use:
            raise self._refuse()
        self._buffer = None
        LIVE.discard(self)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()


def _references(buffer: torch.Tensor) -> int:
    """Holders of the tensor's storage as the interpreter and torch count them, this look's own included."""
    import torch

    storage = buffer.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) + sys.getrefcount(storage)
