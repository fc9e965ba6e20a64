"""Memory domains that really free, allocated by kind, in one registry a run.

Each range is one mapping of the kernel's or one device allocation, exactly sized, and knows whether anything still
looks into it. `free` refuses while something does, so no view can dangle, and afterwards the pages are with the
operating system again.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.errors import TallyError
from realizer.device_memory import DeviceRange
from realizer.host_memory import PrivateRange, SharedRange, return_freed_heap
from realizer.memory_range import (
    ACCELERATOR_VRAM,
    KINDS,
    SHARED_MEMORY,
    SYSTEM_RAM,
    AllocationFailed,
    MemoryRange,
    RangeInUse,
)

__all__ = [
    "ACCELERATOR_VRAM",
    "KINDS",
    "SHARED_MEMORY",
    "SYSTEM_RAM",
    "AllocationFailed",
    "DeviceRange",
    "MemoryRange",
    "PrivateRange",
    "RangeInUse",
    "Ranges",
    "SharedRange",
    "allocate",
    "return_freed_heap",
]


def allocate(
    kind: str,
    length: int,
    *,
    owner: str,
    device: str | None = None,
    tag: str | None = None,
    pinned: bool = False,
    huge_pages: bool = False,
) -> MemoryRange:
    """A new range of `length` bytes of that kind. `tag` is the lineage tag, `device` the torch name of an accelerator.

    Raises AllocationFailed when the memory is not given, TallyError for a kind or combination that there is not.
    """
    if length <= 0:
        raise TallyError(f"a range of {length} bytes was asked for {owner}; it must have at least one")
    if huge_pages and kind != SYSTEM_RAM:
        raise TallyError(f"huge pages are for {SYSTEM_RAM} alone, not for {kind}")
    if kind == ACCELERATOR_VRAM:
        if pinned:
            raise TallyError("device memory cannot be pinned: pinning is for host memory")
        return DeviceRange(length, owner=owner, device=device or "cuda:0", tag=tag)
    memory: PrivateRange | SharedRange
    if kind == SYSTEM_RAM:
        memory = PrivateRange(length, owner=owner, tag=tag, huge_pages=huge_pages)
    elif kind == SHARED_MEMORY:
        memory = SharedRange(length, owner=owner, tag=tag)
    else:
        raise TallyError(f"no memory of kind {kind!r} can be allocated; known: {', '.join(KINDS)}")
    if pinned:
        try:
            memory.register()
        except TallyError:
            memory.free()
            raise
    return memory


class Ranges:
    """The live ranges of one run."""

    def __init__(self) -> None:
        self._ranges: list[MemoryRange] = []

    def allocate(
        self,
        kind: str,
        length: int,
        *,
        owner: str,
        device: str | None = None,
        tag: str | None = None,
        pinned: bool = False,
        huge_pages: bool = False,
    ) -> MemoryRange:
        """`allocate`, and remember the range."""
        memory = allocate(kind, length, owner=owner, device=device, tag=tag, pinned=pinned, huge_pages=huge_pages)
        self._ranges.append(memory)
        return memory

    def free(self, memory: MemoryRange) -> None:
        """Free one range. Raises RangeInUse while something looks into it; it stays registered then."""
        memory.free()
        self._ranges = [other for other in self._ranges if other is not memory]

    def free_all(self) -> list[RangeInUse]:
        """Free every range that can be freed; the refusals for those that cannot."""
        refused = []
        for memory in list(self._ranges):
            try:
                self.free(memory)
            except RangeInUse as error:
                refused.append(error)
        return refused

    def by_owner(self, owner: str) -> list[MemoryRange]:
        """The owner's live ranges, in the order of their allocation."""
        return [memory for memory in self if memory.owner == owner]

    def __iter__(self) -> Iterator[MemoryRange]:
        """Ranges that nobody freed, by whichever way."""
        return iter([memory for memory in self._ranges if not memory.freed])

    def __len__(self) -> int:
        return sum(1 for _ in self)
