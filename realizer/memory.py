"""Memory domains that really free: private anonymous maps, shared-memory maps and device memory, in one registry.

Each range is one mapping of the kernel's or one device allocation, exactly sized, and knows whether anything still
looks into it. `free` refuses while something does, so no view can dangle, and afterwards the pages are with the
operating system again: the mapping is closed, not emptied, since an emptied shared mapping keeps its pages.

What the kernel counts where: a private range is RssAnon, a shared one (a memfd) RssShmem.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ledger.errors import TallyError
from ledger.events import AddressRange, Measurement, measured, unavailable
from realizer.procfs import PAGE, ProcFS, Unreadable

if TYPE_CHECKING:
    import torch

SYSTEM_RAM = "system-ram"
SHARED_MEMORY = "shared-memory"
ACCELERATOR_VRAM = "accelerator-vram"
KINDS = (SYSTEM_RAM, SHARED_MEMORY, ACCELERATOR_VRAM)

MEMFD_NAME_LIMIT = 249
"""Bytes a memfd name may have (memfd_create(2))."""
TAG_PREFIX = "tally-tag:"
OWNER_PREFIX = "tally-range:"
ANON_NAME_LIMIT = 79
"""Bytes of a name of anonymous memory (PR_SET_VMA_ANON_NAME, prctl(2)), without the final NUL."""
TAG_MAGIC = b"TALLYTAG"
DEVICE_TAG_BYTES = 512

_PR_SET_VMA = 0x53564D41
_PR_SET_VMA_ANON_NAME = 0
_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_proc = ProcFS()


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


_LIVE: weakref.WeakSet[MemoryRange] = weakref.WeakSet()


class _HostRange(MemoryRange):
    """What both host kinds share: a mapping of the kernel's, whose every view holds one anchor object alive.

    torch keeps a reference to the buffer that a tensor was made from but not the buffer export, so closing the mapping
    under a live tensor would succeed and leave it dangling. Hence the anchor: every memoryview handed out, to people or
    to torch, is a view of one ctypes array over the mapping, known here by a weak reference only. While any view lives
    (a slice, a tensor, a numpy array made from one), so does the anchor.
    """

    space = "host"

    def __init__(self, mapping: mmap.mmap, kind: str, requested: int, length: int, owner: str) -> None:
        self._mapping = mapping
        self._anchor: weakref.ref[ctypes.Array[ctypes.c_ubyte]] | None = None
        self._lock = threading.Lock()
        self._freed = False
        self.kind, self.owner, self.requested, self.length, self.pinned = kind, owner, requested, length, False
        self.start = ctypes.addressof(ctypes.c_ubyte.from_buffer(mapping))
        _LIVE.add(self)

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    @property
    def freed(self) -> bool:
        return self._freed

    @property
    def in_use(self) -> bool:
        return self._anchor is not None and self._anchor() is not None

    def view(self) -> memoryview:
        """Every byte of the range as a writable memoryview of format B."""
        self._check_span(0, 0)
        with self._lock:  # two anchors at once would leave one of them unknown
            anchor = self._anchor() if self._anchor is not None else None
            if anchor is None:
                anchor = (ctypes.c_ubyte * self.length).from_buffer(self._mapping)
                self._anchor = weakref.ref(anchor)
        return memoryview(anchor).cast("B")

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0) -> torch.Tensor:
        """A tensor with a storage of its own, beginning at `start + offset` and exactly as long as its elements."""
        import torch

        count = _elements(shape) * dtype.itemsize
        self._check_span(count, offset)
        if count == 0:
            return torch.empty(shape, dtype=dtype)  # torch makes no storage over an empty buffer; there are no bytes
        with self.view() as whole:
            span = whole[offset : offset + count]
        return torch.frombuffer(span, dtype=torch.uint8).view(dtype).view(shape)

    def register(self) -> None:
        """Pin the range for asynchronous device copies (cudaHostRegister). Raises AllocationFailed without CUDA."""
        import torch

        if self.pinned:
            return
        if not torch.cuda.is_available():
            raise AllocationFailed(f"range of {self.owner} cannot be pinned: this machine has no CUDA device")
        torch.cuda.init()
        runtime = torch.cuda.cudart()
        result = runtime.cudaHostRegister(self.start, self.length, 0)
        if int(result) != 0:
            raise AllocationFailed(
                f"cudaHostRegister refused {self.length} bytes for {self.owner}: {runtime.cudaGetErrorString(result)}",
                "is the locked-memory limit (ulimit -l) large enough?",
            )
        self.pinned = True

    def _unregister(self) -> None:
        import torch

        torch.cuda.synchronize()  # a copy in flight reads these pages
        runtime = torch.cuda.cudart()
        result = runtime.cudaHostUnregister(self.start)
        if int(result) != 0:
            raise AllocationFailed(
                f"cudaHostUnregister refused the range of {self.owner}: {runtime.cudaGetErrorString(result)}"
            )
        self.pinned = False

    def populate(self, offset: int = 0, length: int | None = None) -> bool:
        """Fault pages in for writing at once, without holding the interpreter lock. False where the kernel cannot.

        `offset` must be a multiple of the page size.
        """
        count = self.length - offset if length is None else length
        self._check_span(count, offset)
        return _libc.madvise(self.start + offset, count, _MADV_POPULATE_WRITE) == 0

    def free(self) -> None:
        if self._freed:
            return
        if self.in_use:
            gc.collect()  # views in reference cycles are dead already, only not yet collected
        if self.in_use:
            raise self._refuse()
        if self.pinned:
            self._unregister()
        try:
            self._mapping.close()
        except BufferError as error:
            raise self._refuse() from error
        self._freed = True
        _LIVE.discard(self)


class PrivateRange(_HostRange):
    """Private anonymous memory: RssAnon, and gone from the process the moment it is closed.

    It is left out of core dumps, which also marks it in smaps (VmFlags `dd`), so that another mapping that later takes
    the same addresses is not mistaken for it; and out of forked children, which would keep its pages alive.
    """

    def __init__(self, length: int, *, owner: str, tag: str | None = None, huge_pages: bool = False) -> None:
        rounded = _round_up(length, PAGE)
        header = 0 if tag is None else PAGE
        mapping = _map(-1, rounded + header, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, owner)
        super().__init__(mapping, SYSTEM_RAM, length, rounded, owner)
        self._header = header
        self._named = False
        self._marked = self._advise(mmap.MADV_DONTDUMP)
        self._advise(mmap.MADV_DONTFORK)
        if huge_pages:
            self._advise(mmap.MADV_HUGEPAGE)
        if tag is not None:
            self.tag(tag)

    def _advise(self, advice: int) -> bool:
        try:
            self._mapping.madvise(advice)
        except OSError:
            return False  # an old or sandboxed kernel; `mapped` says by which means it knows
        return True

    def tag(self, text: str) -> None:
        """Name the memory in the kernel, shown in maps as [anon:TEXT]; where it cannot, write a page behind the range."""
        if not self._header:
            raise TallyError(f"range of {self.owner} has no place for a tag", "give the tag when allocating it")
        data = text.encode("utf-8")
        plain = text.isascii() and text.isprintable() and not set(text) & set("\\`$[]")
        size = self.length + self._header
        self._named = plain and len(data) <= ANON_NAME_LIMIT and _name_memory(self.start, size, data)
        if not self._named:
            block = _tag_block(data, self._header)
            self._mapping[self.length : self.length + len(block)] = block

    def read_tag(self) -> Measurement:
        if not self._header:
            return unavailable(None, "tag of the range", "the range was allocated without a tag")
        if self._freed:
            return unavailable(None, "tag of the range", "the range was freed")
        if not self._named:
            method = "header page mapped behind the range"
            return _parse_tag(bytes(self._mapping[self.length : self.length + self._header]), method)
        method = "name of the anonymous memory at the range's address in /proc/self/maps"
        try:
            here = [entry for entry in _proc.maps(os.getpid()) if entry.start <= self.start < entry.end]
        except Unreadable as error:
            return unavailable(None, method, error.message)
        if not here or not here[0].path.startswith("[anon:"):
            return unavailable(None, method, "no named anonymous memory lies there")
        return measured(here[0].path.removeprefix("[anon:").removesuffix("]"), None, method)

    def mapped(self) -> Measurement:
        """1 while memory marked as this range's lies at its addresses. Live ranges that took them since do not count."""
        method = "overlap with /proc/self/smaps entries marked dd, without other live ranges"
        end = self.start + self.length
        try:
            pid = os.getpid()
            here = [entry for entry in _proc.maps(pid) if entry.start < end and entry.end > self.start]
            if not here or not self._remainder([(entry.start, entry.end) for entry in here]):
                return measured(0, "flag", method)
            if not self._marked:
                return measured(1, "flag", "overlap with /proc/self/maps; the kernel refused the mark")
            uses = [use for use in _proc.smaps(pid) if use.mapping.start < end and use.mapping.end > self.start]
        except Unreadable as error:
            return unavailable("flag", method, error.message)
        if any(use.flags is None for use in uses):
            return measured(1, "flag", "overlap with /proc/self/maps; smaps gives no VmFlags")
        marked = [(use.mapping.start, use.mapping.end) for use in uses if "dd" in (use.flags or ())]
        if self._remainder(marked):
            return measured(1, "flag", method)
        return measured(0, "flag", method, detail="another mapping has taken the addresses since")

    def _remainder(self, spans: list[tuple[int, int]]) -> int:
        """Bytes of this range's addresses in `spans` that no other live range covers."""
        end = self.start + self.length
        total = 0
        others = [other for other in _LIVE if other is not self and other.space == "host"]
        for low, high in spans:
            low, high = max(low, self.start), min(high, end)
            covered = sum(
                max(0, min(high, other.start + _mapped_length(other)) - max(low, other.start)) for other in others
            )
            total += max(0, high - low - covered)
        return total


class SharedRange(_HostRange):
    """Shared memory: a memfd mapped MAP_SHARED, which the kernel counts as RssShmem and shows by name in maps.

    The file is known by its inode, so a second mapping of it anywhere in the process counts as mapped too.
    """

    def __init__(self, length: int, *, owner: str, tag: str | None = None) -> None:
        name = OWNER_PREFIX + owner if tag is None else TAG_PREFIX + tag
        # A name over the limit is cut only when it is a label for people; a tag must come back as it was given.
        encoded = name.encode("utf-8") if tag is not None else name.encode("utf-8")[:MEMFD_NAME_LIMIT]
        if len(encoded) > MEMFD_NAME_LIMIT or "\x00" in name or name.endswith(" (deleted)"):
            raise TallyError(
                f"tag of {owner} cannot be a memfd name: at most {MEMFD_NAME_LIMIT - len(TAG_PREFIX)} bytes, no NUL,"
                " and no ending ' (deleted)'",
                "shorten the lineage",
            )
        rounded = _round_up(length, PAGE)
        try:
            descriptor = os.memfd_create(encoded.decode("utf-8", "ignore"), os.MFD_CLOEXEC)
        except OSError as error:
            raise AllocationFailed(f"no shared memory for {owner}: memfd_create: {error.strerror}") from error
        try:
            os.ftruncate(descriptor, rounded)
            mapping = _map(descriptor, rounded, mmap.MAP_SHARED, owner)
            state = os.fstat(descriptor)
        finally:
            os.close(descriptor)  # the mapping keeps a duplicate of its own until it is closed
        super().__init__(mapping, SHARED_MEMORY, length, rounded, owner)
        self.inode = state.st_ino
        self._tagged = tag is not None

    def tag(self, text: str) -> None:
        """A memfd's name is given at its creation: only the tag that it already carries is accepted."""
        if self.read_tag().value != text:
            raise TallyError(
                f"range of {self.owner} is shared memory, whose tag is its name", "give the tag when allocating it"
            )

    def read_tag(self) -> Measurement:
        method = "name of the memfd at the range's address in /proc/self/maps"
        if not self._tagged:
            return unavailable(None, method, "the range was allocated without a tag")
        try:
            here = [entry for entry in _proc.maps(os.getpid()) if entry.start <= self.start < entry.end]
        except Unreadable as error:
            return unavailable(None, method, error.message)
        prefix = f"/memfd:{TAG_PREFIX}"
        if not here or here[0].inode != self.inode or not here[0].path.startswith(prefix):
            return unavailable(None, method, "the range's memfd does not lie there")
        return measured(here[0].path.removeprefix(prefix), None, method)

    def mapped(self) -> Measurement:
        method = "the range's memfd, by inode, in /proc/self/maps"
        try:
            entries = _proc.maps(os.getpid())
        except Unreadable as error:
            return unavailable("flag", method, error.message)
        found = any(entry.inode == self.inode and entry.path.startswith("/memfd:") for entry in entries)
        return measured(int(found), "flag", method)


class DeviceRange(MemoryRange):
    """Device memory: one uint8 allocation of torch's; tensors over it are views of its one storage."""

    def __init__(self, length: int, *, owner: str, device: str, tag: str | None = None) -> None:
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        self.kind, self.owner, self.requested, self.length, self.pinned = ACCELERATOR_VRAM, owner, length, length, False
        self._device = torch.device(device)
        self._header = _round_up(length, 64) if tag is not None else 0
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
        _LIVE.add(self)
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
        count = _elements(shape) * dtype.itemsize
        self._check_span(count, offset)
        assert self._buffer is not None  # _check_span refused a freed range
        return self._buffer[offset : offset + count].view(dtype).view(shape)

    def tag(self, text: str) -> None:
        """Write the tag into the allocation itself, behind the range."""
        import torch

        if not self._header or self._buffer is None:
            raise TallyError(f"range of {self.owner} has no place for a tag", "give the tag when allocating it")
        block = _tag_block(text.encode("utf-8"), DEVICE_TAG_BYTES)
        self._buffer[self._header : self._header + len(block)] = torch.frombuffer(bytearray(block), dtype=torch.uint8)

    def read_tag(self) -> Measurement:
        method = f"header behind the range, read back from {self.space}"
        if not self._header:
            return unavailable(None, method, "the range was allocated without a tag")
        if self._buffer is None:
            return unavailable(None, method, "the range was freed")
        return _parse_tag(bytes(self._buffer[self._header :].cpu().numpy()), method)

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
        _LIVE.discard(self)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()


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

    def find(self, address: int, space: str = "host") -> MemoryRange | None:
        """The live range that the address lies in, or None."""
        return next((memory for memory in self if memory.space == space and memory.contains(address)), None)

    def __iter__(self) -> Iterator[MemoryRange]:
        """Ranges that nobody freed, by whichever way."""
        return iter([memory for memory in self._ranges if not memory.freed])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def return_freed_heap() -> bool:
    """Have the C library give freed heap pages back (malloc_trim(3)); it keeps mid-size blocks otherwise.

    False where the C library has no malloc_trim.
    """
    trim = getattr(_libc, "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


def _map(descriptor: int, length: int, flags: int, owner: str) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, OverflowError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        hint = "is that much memory free, and does the limit on address space (ulimit -v) allow it?"
        short = isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN)
        raise AllocationFailed(
            f"no mapping of {length} bytes for {owner}: {reason}", hint if short else None
        ) from error


def _name_memory(start: int, length: int, name: bytes) -> bool:
    """Have the kernel show the memory as [anon:NAME] in maps; False where it was built without that."""
    words = (ctypes.c_ulong(_PR_SET_VMA_ANON_NAME), ctypes.c_ulong(start), ctypes.c_ulong(length))
    return _libc.prctl(_PR_SET_VMA, *words, ctypes.c_char_p(name)) == 0


def _mapped_length(memory: MemoryRange) -> int:
    return memory.length + (memory._header if isinstance(memory, PrivateRange) else 0)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _tag_block(data: bytes, room: int) -> bytes:
    block = TAG_MAGIC + len(data).to_bytes(4, "little") + data
    if len(block) > room:
        raise TallyError(f"a lineage tag of {len(data)} bytes is too long: {room - len(TAG_MAGIC) - 4} fit")
    return block


def _parse_tag(block: bytes, method: str) -> Measurement:
    size = int.from_bytes(block[len(TAG_MAGIC) : len(TAG_MAGIC) + 4], "little")
    data = block[len(TAG_MAGIC) + 4 : len(TAG_MAGIC) + 4 + size]
    if not block.startswith(TAG_MAGIC) or len(data) != size:
        return unavailable(None, method, "the header holds no tag: it was overwritten")
    try:
        return measured(data.decode("utf-8"), None, method)
    except UnicodeDecodeError:
        return unavailable(None, method, "the header's tag is no UTF-8: it was overwritten")


def _references(buffer: torch.Tensor) -> int:
    """Holders of the tensor's storage as the interpreter and torch count them, this look's own included."""
    import torch

    storage = buffer.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) + sys.getrefcount(storage)
