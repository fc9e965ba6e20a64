"""Pages that the tree holds through files: mappings new since the baseline, unlinked memory files, files on tmpfs.

A copy in a shared map of an unlinked scratch file moves no anonymous and no shared-memory figure, and one in a file
under /dev/shm may move none of the process's at all. So every file that the tree maps or holds open is looked at by
its inode, and counted once: what the kernel counts as RssShmem already is not added a second time.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from ledger.measurement import Measurement, measured, unavailable
from realizer.memory import Ranges, SharedRange
from realizer.memory_files import (
    FilePlace,
    detached_segments,
    huge_page_devices,
    memory_devices,
    shmem_device,
    tmpfs_files,
)
from realizer.procfs import ANON_SHMEM, BLOCK, PAGE, Mapping, ProcessGone, ProcFS, Unreadable, mapped_as, printable

_SEGMENT = -1
"""Stands for the device number of a System V segment that nobody has attached; its id takes the inode's place."""
_ELF_MAGIC = b"\x7fELF"
_LOWEST_BIT = bytes(value & 1 for value in range(256))
"""mincore(2) says in the lowest bit of each byte whether the page is there."""

FileKey = tuple[int, int, str]
"""Device number, inode and path: System V segments and memfds share a device and not their numbering."""


@dataclass
class MappedFile:
    """A file that members of the tree map: where, by whom, and whether it lies in memory and not on a disk."""

    key: FileKey
    in_memory: bool
    unlinked: bool
    executable: bool = False
    shared_writable: bool = False
    places: dict[int, list[Mapping]] = field(default_factory=dict)

    @property
    def fillable(self) -> bool:
        """More pages of it may come to be without a new mapping of a new file."""
        return self.in_memory or self.unlinked or self.shared_writable


@dataclass(frozen=True)
class HeldPages:
    """What is held through files. `unaccounted` is what of it no class of /proc/PID/status that the tree sum adds has."""

    new_file_mappings: Measurement
    checkpoint_mappings: Measurement
    new_tmpfs_files: Measurement
    unaccounted: Measurement
    mapped_files: tuple[str, ...]


@dataclass(frozen=True)
class Amount:
    """Bytes of one file: allocated in its filesystem, the pages it stands for, and those of them RssShmem has not."""

    allocated: int
    pages: int
    beyond: int


@dataclass
class HeldPagesWatch:
    """Compares what the tree holds through files with what it held at the baseline.

    `checkpoint_files` are resolved paths. Of the memfds of the project's ranges only pages count that
    RssShmem has not: such as were taken out of the page tables, which does not give them back.
    `user` is whose files on memory filesystems count, this process's where none is given.
    """

    proc: ProcFS
    ranges: Ranges
    checkpoint_files: Sequence[Path]
    user: int | None = None
    _before: dict[FileKey, Amount | None] = field(default_factory=dict)
    _loose_before: dict[FilePlace, int] = field(default_factory=dict)
    _segments_before: dict[int, int] = field(default_factory=dict)
    _tmpfs_before: dict[FilePlace, int] = field(default_factory=dict)
    _libraries: dict[FileKey, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._checkpoint: set[FilePlace] = set()
        for path in self.checkpoint_files:
            try:
                state = path.stat()
            except OSError:
                continue  # a file that is not there cannot be mapped; the checkpoint's reader says that it is missing
            self._checkpoint.add(mapped_as(self.proc, path) or (state.st_dev, state.st_ino))

    def baseline(self, pids: Sequence[int]) -> None:
        """Remember what is there now. Raises Unreadable when it cannot be seen.

        A file that can still be filled (unlinked, in memory, or mapped shared and writable) is remembered with its
        size, so that filling it later counts; of the others only the name is.
        """
        files = self._files(pids)
        fillable = [file for file in files.values() if file.fillable and not self._ignored(file)]
        amounts = self._amounts(fillable, self._resident(fillable))
        self._before = {key: amounts.get(key) for key in files}
        self._loose_before = self._unmapped_memory_files(pids, files)
        self._segments_before = detached_segments(self.proc, self.user)
        self._tmpfs_before = tmpfs_files(self.proc, self.user)

    def look(self, pids: Sequence[int]) -> HeldPages:
        """What is held now beyond the baseline. Each figure is unavailable by itself, with its reason."""
        mapped_method = (
            "resident pages (disk files) or allocated blocks (unlinked and memory files) of files that the tree maps or"
            " holds open unlinked, and detached System V segments, beyond the baseline, libraries and the run's own ranges aside"
        )
        checkpoint_method = "resident pages of checkpoint files in smaps of the tree"
        user = os.geteuid() if self.user is None else self.user
        tmpfs_method = f"allocated blocks of user {user}'s files on memory filesystems, beyond the baseline"
        method = "new_file_mappings and new_tmpfs_files, each file once, less what RssShmem already has of it"
        pages: dict[FilePlace, int] = {}
        beyond = 0
        names: tuple[str, ...] = ()
        try:
            files = self._files(pids)
            checkpoint = [file for file in files.values() if self._is_checkpoint(file)]
            new = [file for file in files.values() if self._is_new(file)]
            own = [file for file in files.values() if self._is_own(file) and self._allocated(file)]
            resident = self._resident(new + checkpoint + own)
            for key, amount in self._amounts(new, resident).items():
                old = self._before.get(key) or Amount(0, 0, 0)
                pages[key[:2]] = pages.get(key[:2], 0) + max(0, amount.pages - old.pages)
                beyond += max(0, amount.beyond - old.beyond)
            for key, amount in self._amounts(own, resident).items():
                if amount.beyond:  # RssShmem has the rest
                    pages[key[:2]] = amount.beyond
                    beyond += amount.beyond
            for place, allocated in self._unmapped_memory_files(pids, files).items():
                old_allocated = self._loose_before.get(place, self._allocated_before(place))
                if allocated > old_allocated:
                    pages[place] = allocated - old_allocated
                    beyond += allocated - old_allocated
            for segment, held in detached_segments(self.proc, self.user).items():
                if held > self._segments_before.get(segment, 0):
                    pages[(_SEGMENT, segment)] = held - self._segments_before.get(segment, 0)
                    beyond += pages[(_SEGMENT, segment)]
            mappings = measured(sum(pages.values()), "bytes", mapped_method)
            of_checkpoint = measured(sum(resident[file.key] for file in checkpoint), "bytes", checkpoint_method)
            names = tuple(sorted({printable(file.key[2]) for file in new + checkpoint}))
        except Unreadable as error:
            mappings = unavailable("bytes", mapped_method, error.message)
            of_checkpoint = unavailable("bytes", checkpoint_method, error.message)
        try:
            grown = {
                place: blocks - self._tmpfs_before.get(place, 0)
                for place, blocks in tmpfs_files(self.proc, self.user).items()
                if blocks > self._tmpfs_before.get(place, 0)
            }
            tmpfs = measured(sum(grown.values()), "bytes", tmpfs_method)
        except Unreadable as error:
            grown = {}
            tmpfs = unavailable("bytes", tmpfs_method, error.message)
        problem = next((found for found in (mappings, tmpfs) if not found.known), None)
        if problem is not None:
            rest = unavailable("bytes", method, problem.detail or "not readable")
        else:
            rest = measured(beyond + sum(n for place, n in grown.items() if place not in pages), "bytes", method)
        return HeldPages(mappings, of_checkpoint, tmpfs, rest, names)

    def _is_new(self, file: MappedFile) -> bool:
        """Not there at the baseline, or filled since."""
        if self._ignored(file):
            return False
        if file.key not in self._before:
            return True
        before = self._before[file.key]
        return before is not None and self._allocated(file) > before.allocated

    def _allocated_before(self, place: FilePlace) -> int:
        """What a file that is no longer mapped had at the baseline, when it was."""
        return sum(amount.allocated for key, amount in self._before.items() if key[:2] == place and amount)

    def checkpoint_names(self, pids: Sequence[int]) -> list[str]:
        """Paths, as maps shows them now, of the checkpoint files that members map, by device and inode."""
        return sorted({printable(file.key[2]) for file in self._files(pids).values() if self._is_checkpoint(file)})

    def _files(self, pids: Iterable[int]) -> dict[FileKey, MappedFile]:
        """Every file that the members map, by key; device mappings and anonymous huge pages are no files."""
        memory = memory_devices(self.proc)
        huge = huge_page_devices() | {mount.device for mount in self.proc.mounts() if mount.kind == "hugetlbfs"}
        found: dict[FileKey, MappedFile] = {}
        for pid in pids:
            try:
                entries = self.proc.maps(pid, files=True)
            except ProcessGone:
                continue
            for entry in entries:
                if not entry.path.startswith(("/", ANON_SHMEM)) or _is_device(entry, huge):
                    continue  # inode 0 says nothing: the first System V segment after a start of the machine has it
                key = (entry.device, entry.inode, entry.path)
                file = found.get(key)
                if file is None:
                    in_memory = entry.device in memory or _kernel_internal(entry.path)
                    file = found[key] = MappedFile(key, in_memory, entry.deleted)
                file.executable = file.executable or entry.executable
                file.shared_writable = file.shared_writable or (entry.shared and "w" in entry.permissions)
                file.places.setdefault(pid, []).append(entry)
        return found

    def _is_checkpoint(self, file: MappedFile) -> bool:
        return file.key[:2] in self._checkpoint

    def _ignored(self, file: MappedFile) -> bool:
        """The run's own shared ranges, which are looked at apart, and libraries."""
        return self._is_own(file) or (not self._is_checkpoint(file) and self._is_library(file))

    def _is_own(self, file: MappedFile) -> bool:
        """A memfd of the run's own ranges: System V segments and huge pages number theirs apart, and anything can be a name."""
        if file.key[0] != shmem_device() or not file.key[2].startswith("/memfd:"):
            return False
        return any(file.key[1] in memory.inodes for memory in self.ranges if isinstance(memory, SharedRange))

    def _is_library(self, file: MappedFile) -> bool:
        """Linked, mapped executable or named as a shared object, and truly ELF: a copy of weights is none of these."""
        name = file.key[2].rsplit("/", 1)[-1]
        if file.unlinked or not (file.executable or name.endswith(".so") or ".so." in name):
            return False
        known = self._libraries.get(file.key)
        if known is None:
            try:
                with Path(file.key[2]).open("rb") as opened:
                    known = opened.read(len(_ELF_MAGIC)) == _ELF_MAGIC
            except OSError:
                known = False  # a file that cannot be read counts: what it is, is not known
            self._libraries[file.key] = known
        return known

    def _resident(self, files: Sequence[MappedFile]) -> dict[FileKey, int]:
        """Bytes of each file's own pages in the page tables: of the member with most, since members share pages.

        Pages that a private mapping has written to are anonymous and counted as such.
        """
        wanted = {found.key for found in files}
        by_key = {found.key: 0 for found in files}
        for pid in sorted({pid for found in files for pid in found.places}):
            here: dict[FileKey, int] = {}
            try:
                for use in self.proc.smaps(pid, files=True):
                    key = (use.mapping.device, use.mapping.inode, use.mapping.path)
                    if key not in wanted:
                        continue
                    if "Rss" not in use.figures:
                        raise Unreadable(f"/proc/{pid}/smaps has no Rss")
                    here[key] = here.get(key, 0) + use.figures["Rss"] - use.figures.get("Anonymous", 0)
            except ProcessGone:
                continue
            for key, amount in here.items():
                by_key[key] = max(by_key[key], amount)
        return by_key

    def _amounts(self, files: Sequence[MappedFile], resident: dict[FileKey, int]) -> dict[FileKey, Amount]:
        """By file: what it has. A linked disk file stands for its resident pages, any other for its blocks."""
        amounts = {}
        for file in files:
            mapped, allocated = resident[file.key], self._allocated(file)
            pages = max(mapped, allocated) if file.in_memory or file.unlinked else mapped
            amounts[file.key] = Amount(allocated, pages, pages - mapped if file.in_memory else pages)
        return amounts

    def _allocated(self, file: MappedFile) -> int:
        """Allocated bytes of a mapped file: by its path, by the kernel's link to it, or by asking of our own mapping."""
        if not file.unlinked:
            try:
                state = Path(file.key[2]).stat()
                # A disk file's blocks only tell whether it has grown; a memory file's are counted, so be sure of it.
                if not file.in_memory or (state.st_dev, state.st_ino) == file.key[:2]:
                    return state.st_blocks * BLOCK
            except OSError:
                pass  # a path of another mount namespace; the kernel's link to the file below reaches it
        for pid, entries in file.places.items():
            link = self.proc.root / str(pid) / "map_files" / f"{entries[0].start:x}-{entries[0].end:x}"
            try:
                return link.stat().st_blocks * BLOCK
            except OSError:
                continue
        for pid in file.places:
            for held in self._descriptors(pid):
                if (held.st_dev, held.st_ino) == file.key[:2]:
                    return held.st_blocks * BLOCK
        own = file.places.get(os.getpid())
        if own is not None:
            return sum(_cached(entry) for entry in own)
        holder = next(iter(file.places))
        raise Unreadable(
            f"allocated blocks of {printable(file.key[2])} (unlinked, mapped by process {holder}) cannot be read:"
            " map_files needs a capability and no descriptor of it is open"
        )

    def _descriptors(self, pid: int) -> list[os.stat_result]:
        """State of every regular file that the process holds open."""
        folder = self.proc.root / str(pid) / "fd"
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names are enough
        except OSError as error:
            if self.proc.ended(pid):
                return []
            raise Unreadable(f"{printable(str(folder))}: {error.strerror}") from error
        found = []
        for name in names:
            try:
                state = (folder / name).stat()
            except OSError:
                continue  # closed meanwhile
            if stat.S_ISREG(state.st_mode):
                found.append(state)
        return found

    def _unmapped_memory_files(self, pids: Iterable[int], files: dict[FileKey, MappedFile]) -> dict[FilePlace, int]:
        """Unlinked files in memory that members hold open without mapping them: their pages stay as well."""
        devices = memory_devices(self.proc) | {shmem_device()}
        mapped = {key[:2] for key in files}
        found: dict[FilePlace, int] = {}
        for pid in pids:
            for state in self._descriptors(pid):
                place = (state.st_dev, state.st_ino)
                if state.st_nlink == 0 and state.st_dev in devices and place not in mapped:
                    found[place] = state.st_blocks * BLOCK
        return found


def _is_device(entry: Mapping, huge: Set[int]) -> bool:
    """A mapped device node (a GPU's, say), or huge pages (on the devices `huge`), which HugetlbPages has. A file of such a
    name is neither."""
    if entry.device in huge:
        return not entry.path.startswith("/memfd:")  # which keeps them also when nobody maps it
    if not entry.path.startswith("/dev/") or entry.deleted:
        return False
    try:
        mode = Path(entry.path).stat().st_mode
    except OSError:
        return not entry.path.startswith("/dev/shm/")  # of another mount namespace, where nobody unlinked it
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _kernel_internal(path: str) -> bool:
    """Names that the kernel gives to files of its internal shared-memory mount."""
    return path.startswith(("/memfd:", "/SYSV", "/dev/zero", "/drm mm object", ANON_SHMEM))


def _cached(entry: Mapping) -> int:
    """Bytes of our own file mapping whose pages are in memory (mincore(2)), mapped by us or not."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = -(-entry.length // PAGE)
    states = (ctypes.c_ubyte * pages)()
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    if libc.mincore(entry.start, entry.length, ctypes.addressof(states)) != 0:
        raise Unreadable(f"mincore of {printable(entry.path)}: {os.strerror(ctypes.get_errno())}")
    return bytes(states).translate(_LOWEST_BIT).count(1) * PAGE
