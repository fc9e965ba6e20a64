"""Host memory that really frees: private anonymous maps (RssAnon) and shared-memory maps (RssShmem).

A freed range's mapping is closed, not emptied: emptying a shared mapping makes the kernel's figure fall and keeps the
pages.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ledger.errors import TallyError
from ledger.measurement import Measurement, measured, unavailable
from realizer.memory_range import (
    LIVE,
    SHARED_MEMORY,
    SYSTEM_RAM,
    AllocationFailed,
    MemoryRange,
    element_count,
    parse_tag,
    round_up,
    tag_block,
)
from realizer.procfs import PAGE, ProcFS, Unreadable

if TYPE_CHECKING:
    import torch

MEMFD_NAME_LIMIT = 249
"""Bytes a memfd name may have (memfd_create(2))."""
TAG_PREFIX = "tally-tag:"
OWNER_PREFIX = "tally-range:"
ANON_NAME_LIMIT = 79
"""Bytes of a name of anonymous memory (PR_SET_VMA_ANON_NAME, prctl(2)), without the final NUL."""

LARGE_PAGE = 2 * 1024 * 1024
POPULATING_THREADS = 8

SHARED_FILES = 8
"""The most memfds behind a range: the kernel lets one writer at a time into each (16 cores, 1 GB: 5.0 GB/s with one, 7.6
with eight, and a third of the processor time)."""
SHARED_FILE_BYTES = 8 * 1024 * 1024
"""The least bytes of a range that get a memfd of their own."""

_MAP_FIXED = 0x10
_PR_SET_VMA = 0x53564D41
_PR_SET_VMA_ANON_NAME = 0
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_proc = ProcFS()


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
        LIVE.add(self)

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

        count = element_count(shape) * dtype.itemsize
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
        self._bring_in()
        runtime = torch.cuda.cudart()
        result = runtime.cudaHostRegister(self.start, self.length, 0)
        if int(result) != 0:
            raise AllocationFailed(
                f"cudaHostRegister refused {self.length} bytes for {self.owner}: {runtime.cudaGetErrorString(result)}",
                "is the locked-memory limit (ulimit -l) large enough?",
            )
        self.pinned = True

    def _bring_in(self) -> None:
        """Fault the pages in, large ones where there are any, on several threads: pinning would do it one by one."""
        _libc.madvise(self.start, self.length, mmap.MADV_HUGEPAGE)  # advice only: small pages do as well
        step = round_up(max(LARGE_PAGE, self.length // POPULATING_THREADS), LARGE_PAGE)
        with ThreadPoolExecutor(POPULATING_THREADS, thread_name_prefix="populate") as pool:
            starts = range(0, self.length, step)
            list(pool.map(lambda start: self.populate(start, min(step, self.length - start)), starts))

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
        LIVE.discard(self)


class PrivateRange(_HostRange):
    """Private anonymous memory: RssAnon, and gone from the process the moment it is closed.

    It is left out of core dumps, which also marks it in smaps (VmFlags `dd`), so that another mapping that later takes
    the same addresses is not mistaken for it; and out of forked children, which would keep its pages alive.
    """

    def __init__(self, length: int, *, owner: str, tag: str | None = None, huge_pages: bool = False) -> None:
        rounded = round_up(length, PAGE)
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
            block = tag_block(data, self._header)
            self._mapping[self.length : self.length + len(block)] = block

    def read_tag(self) -> Measurement:
        if not self._header:
            return unavailable(None, "tag of the range", "the range was allocated without a tag")
        if self._freed:
            return unavailable(None, "tag of the range", "the range was freed")
        if not self._named:
            method = "header page mapped behind the range"
            return parse_tag(bytes(self._mapping[self.length : self.length + self._header]), method)
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
        others = [other for other in LIVE if other is not self and other.space == "host"]
        for low, high in spans:
            low, high = max(low, self.start), min(high, end)
            covered = sum(
                max(0, min(high, other.start + _mapped_length(other)) - max(low, other.start)) for other in others
            )
            total += max(0, high - low - covered)
        return total


_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class _SharedFile:
    """A memfd behind a part of a range, `length` bytes from `offset` on.

    `writing` is held by the thread that writes to it. Raises AllocationFailed where the kernel gives none; `undo` closes it.
    """

    def __init__(self, name: str, offset: int, length: int, owner: str, undo: ExitStack) -> None:
        self.offset, self.length, self._owner = offset, length, owner
        try:
            self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise self._refused(error) from error
        undo.callback(os.close, self.descriptor)
        self.inode = os.fstat(self.descriptor).st_ino
        self.writing = threading.Lock()

    def resize(self, length: int) -> None:
        """Make the file so long. Raises AllocationFailed."""
        try:
            os.ftruncate(self.descriptor, length)
        except OSError as error:
            raise self._refused(error) from error

    def seal(self) -> None:
        """From now on nobody makes the file longer, which would hold pages that no mapping shows, or shorter."""
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> AllocationFailed:
        return AllocationFailed(f"no shared memory for {self._owner}: a memfd: {error.strerror}")


class SharedRange(_HostRange):
    """Shared memory: memfds mapped MAP_SHARED one after another, which the kernel counts as RssShmem and shows by name
    in maps.

    A file is known by its inode, so a second mapping of it anywhere in the process counts as mapped too.
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
        name = encoded.decode("utf-8", "ignore")
        rounded = round_up(length, PAGE)
        self._each = max(SHARED_FILE_BYTES, round_up(-(-rounded // SHARED_FILES), LARGE_PAGE))
        with ExitStack() as undo:
            self._files = [
                _SharedFile(name, offset, min(self._each, rounded - offset), owner, undo)
                for offset in range(0, rounded, self._each)
            ]
            self._files[0].resize(rounded)  # while it holds the place of the others
            mapping = _map(self._files[0].descriptor, rounded, mmap.MAP_SHARED, owner)
            first = ctypes.addressof(ctypes.c_ubyte.from_buffer(mapping))
            for file in self._files[1:]:
                file.resize(file.length)
                _map_over(first + file.offset, file.descriptor, file.length, owner)
            self._files[0].resize(self._files[0].length)
            for file in self._files:
                file.seal()
            self._close = weakref.finalize(self, undo.pop_all().close)
        super().__init__(mapping, SHARED_MEMORY, length, rounded, owner)
        self.inodes = frozenset(file.inode for file in self._files)
        self._tagged = tag is not None

    def free(self) -> None:
        super().free()
        self._close()

    def file_of(self, offset: int) -> int:
        """The number of the file that the byte is in: writers to different files do not wait for each other."""
        return offset // self._each

    def write(self, offset: int, address: int, length: int) -> bool:
        """Write bytes of this process to the range through its file. False, nothing written, while another thread does,
        and for bytes that two files share.

        The kernel zeroes pages that are first touched through the mapping; pages that are first written through the
        file it fills at once. It lets one writer at a time into a file, so that who would wait does better to copy.
        `address` is readable for `length` bytes. Raises AllocationFailed when the pages are not given.
        """
        self._check_span(length, offset)
        number = self.file_of(offset)
        file = self._files[number]
        if self.file_of(offset + length - 1) != number or not file.writing.acquire(blocking=False):
            return False
        try:
            source = memoryview((ctypes.c_ubyte * length).from_address(address))
            done = 0
            while done < length:
                done += os.pwrite(file.descriptor, source[done:], offset - file.offset + done)
        except OSError as error:
            raise AllocationFailed(
                f"no shared memory for {length} bytes of {self.owner}: {error.strerror}", "is that much memory free?"
            ) from error
        finally:
            file.writing.release()
        first = offset // PAGE * PAGE
        span = round_up(offset + length, PAGE) - first
        if _libc.madvise(self.start + first, span, _MADV_POPULATE_READ) != 0:  # unknown before Linux 5.14
            bytes(memoryview((ctypes.c_ubyte * span).from_address(self.start + first))[::PAGE])
        return True

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
        if not here or here[0].inode not in self.inodes or not here[0].path.startswith(prefix):
            return unavailable(None, method, "the range's memfd does not lie there")
        return measured(here[0].path.removeprefix(prefix), None, method)

    def mapped(self) -> Measurement:
        method = "the range's memfds, by inode, in /proc/self/maps"
        try:
            entries = _proc.maps(os.getpid())
        except Unreadable as error:
            return unavailable("flag", method, error.message)
        found = any(entry.inode in self.inodes and entry.path.startswith("/memfd:") for entry in entries)
        return measured(int(found), "flag", method)


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


def _map_over(address: int, descriptor: int, length: int, owner: str) -> None:
    """Map a shared file over a part of a mapping that is there, which the mmap module does not offer."""
    flags = mmap.MAP_SHARED | _MAP_FIXED
    found = _libc.mmap(address, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
    if found != address:
        raise AllocationFailed(f"no mapping of {length} bytes for {owner}: {os.strerror(ctypes.get_errno())}")


def _name_memory(start: int, length: int, name: bytes) -> bool:
    """Have the kernel show the memory as [anon:NAME] in maps; False where it was built without that."""
    words = (ctypes.c_ulong(_PR_SET_VMA_ANON_NAME), ctypes.c_ulong(start), ctypes.c_ulong(length))
    return _libc.prctl(_PR_SET_VMA, *words, ctypes.c_char_p(name)) == 0


def _mapped_length(memory: MemoryRange) -> int:
    return memory.length + (memory._header if isinstance(memory, PrivateRange) else 0)
