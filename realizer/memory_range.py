"""What every memory range is: one exactly sized allocation that knows whether anything still looks into it."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ledger.bodies import AddressRange
from ledger.errors import TallyError
from ledger.measurement import Measurement, measured, unavailable

if TYPE_CHECKING:
    import torch

SYSTEM_RAM = "system-ram"
SHARED_MEMORY = "shared-memory"
ACCELERATOR_VRAM = "accelerator-vram"
KINDS = (SYSTEM_RAM, SHARED_MEMORY, ACCELERATOR_VRAM)

TAG_MAGIC = b"TALLYTAG"


class RangeInUse(TallyError):
    """A range cannot be freed: tensors or buffers still look into it, and would look into nothing."""


class AllocationFailed(TallyError):
    """The operating system or the device did not give the memory that was asked for."""


class MemoryRange(ABC):
    """One allocation. `start` and `length` are its address and bytes in the address space `space`.

    `owner` is the materialization's id, or `evidence:ROLE`. `length` is at least what was asked for (whole pages on the
    host); `requested` is what was asked for. Tensors made by `tensor` keep the range from being freed as long as they live.
    """

    kind: str
    owner: str
    space: str
    start: int
    length: int
    requested: int
    pinned: bool

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where tensors over it live."""

    @property
    @abstractmethod
    def freed(self) -> bool:
        """`free` has succeeded."""

    @property
    @abstractmethod
    def in_use(self) -> bool:
        """Something outside the range itself holds a view into it: a tensor, a storage, a buffer, an array."""

    @abstractmethod
    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0) -> torch.Tensor:
        """A tensor of `shape` (in elements of `dtype`) over the bytes from `offset` on. Raises TallyError outside it."""

    @abstractmethod
    def tag(self, text: str) -> None:
        """Write the lineage tag onto the range. Raises TallyError where the range has no place for it."""

    @abstractmethod
    def read_tag(self) -> Measurement:
        """The lineage tag as read back from the range, and by which means."""

    @abstractmethod
    def mapped(self) -> Measurement:
        """1 while the operating system (or the device's allocator) still has the range, else 0."""

    @abstractmethod
    def free(self) -> None:
        """Give the range back. Raises RangeInUse, changing nothing, while something looks into it. Twice is once."""

    def view(self) -> memoryview:
        """The range's bytes. Raises TallyError for device memory, which the host cannot address."""
        raise TallyError(f"range of {self.owner} lies in {self.space}: it has no host buffer")

    def contains(self, address: int) -> bool:
        return self.start <= address < self.start + self.length

    def address_range(self) -> AddressRange:
        return AddressRange(space=self.space, start=self.start, length=self.length)

    def _check_span(self, count: int, offset: int) -> None:
        if self.freed:
            raise TallyError(f"range of {self.owner} was freed: no tensor can lie over it")
        if offset < 0 or offset + count > self.length:
            raise TallyError(
                f"bytes {offset} to {offset + count} lie outside the range of {self.owner}, which has {self.length}",
                "allocate the range by its layout's length",
            )

    def _refuse(self) -> RangeInUse:
        return RangeInUse(
            f"range of {self.owner} ({self.length} bytes at {self.start:#x}) is still looked into",
            "drop every tensor, storage, memoryview and array over it before freeing it",
        )


LIVE: weakref.WeakSet[MemoryRange] = weakref.WeakSet()
"""Every range of this process that was not freed, whichever registry it is in."""


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def element_count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def tag_block(data: bytes, room: int) -> bytes:
    block = TAG_MAGIC + len(data).to_bytes(4, "little") + data
    if len(block) > room:
        raise TallyError(f"a lineage tag of {len(data)} bytes is too long: {room - len(TAG_MAGIC) - 4} fit")
    return block


def parse_tag(block: bytes, method: str) -> Measurement:
    size = int.from_bytes(block[len(TAG_MAGIC) : len(TAG_MAGIC) + 4], "little")
    data = block[len(TAG_MAGIC) + 4 : len(TAG_MAGIC) + 4 + size]
    if not block.startswith(TAG_MAGIC) or len(data) != size:
        return unavailable(None, method, "the header holds no tag: it was overwritten")
    try:
        return measured(data.decode("utf-8"), None, method)
    except UnicodeDecodeError:
        return unavailable(None, method, "the header's tag is no UTF-8: it was overwritten")
