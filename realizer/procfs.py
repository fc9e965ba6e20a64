"""Reading /proc: mappings, memory classes and mounts, where a field that is not there is said to be missing, never zero.

Formats: proc_pid_maps(5), proc_pid_smaps(5), proc_pid_status(5), proc_pid_stat(5), proc_pid_io(5) and
proc_pid_mountinfo(5). The root can be another directory, so that kernels that lack fields can be shown in tests.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ledger.errors import TallyError

PAGE = os.sysconf("SC_PAGE_SIZE")
BLOCK = 512
"""Bytes of one `st_blocks` block (stat(2)), whatever the filesystem's own block size is."""

_RANGE = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
"""How a line of maps begins; one that begins otherwise is not left out, but refused."""
ANON_SHMEM = "[anon_shmem:"
"""So begins, in place of /dev/zero, the name of shared anonymous memory that its process has named (PR_SET_VMA_ANON_NAME)."""
_FLAGS, _EXITING = 6, 0x4
"""Place of the kernel's flags in the fields of /proc/PID/stat from the third on, and PF_EXITING among them."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Unreadable(TallyError):
    """Something of the operating system that cannot be read here; the message is the reason that a probe records."""


class ProcessGone(Unreadable):
    """The process ended while it was being looked at."""


@dataclass(frozen=True)
class Mapping:
    """One line of maps: addresses `start` to `end`, permissions, and the file behind it where there is one.

    `path` is empty for plain anonymous memory; for an unlinked file it comes without the kernel's " (deleted)".
    `inode` is 0 for anonymous memory, and also for the System V segment of id 0: ids stand in for inodes there.
    """

    start: int
    end: int
    permissions: str
    device: int
    inode: int
    path: str
    deleted: bool

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def shared(self) -> bool:
        return "s" in self.permissions

    @property
    def executable(self) -> bool:
        return "x" in self.permissions


@dataclass(frozen=True)
class MappingUse:
    """One smaps entry: the mapping, its figures in bytes by their smaps names, and its VmFlags (None where not given)."""

    mapping: Mapping
    figures: dict[str, int]
    flags: frozenset[str] | None


@dataclass(frozen=True)
class Mount:
    """One mounted filesystem: where, which folder of it, of which type, with which options of the filesystem itself."""

    point: str
    root: str
    device: int
    kind: str
    source: str
    writable: bool
    options: frozenset[str]


def parse_maps_line(line: str) -> Mapping:
    """One line of maps. Raises ValueError for another form."""
    parts = line.split(None, 5)
    start, end = (int(bound, 16) for bound in parts[0].split("-"))
    path = unescape(parts[5].rstrip("\n")) if len(parts) > 5 else ""
    deleted = path.endswith(" (deleted)")
    major, minor = (int(number, 16) for number in parts[3].split(":"))
    return Mapping(
        start, end, parts[1], os.makedev(major, minor), int(parts[4]), path.removesuffix(" (deleted)"), deleted
    )


def _of_file(line: str) -> bool:
    return "/" in line or ANON_SHMEM in line


def printable(text: str) -> str:
    """Names may hold bytes that are no UTF-8, and no record may: they become backslash escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").replace("\x00", "\\x00")


def unescape(text: str) -> str:
    """The kernel writes a newline, blank or backslash in a name as a backslash and three octal digits."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text) if "\\" in text else text


def mapped_as(proc: ProcFS, path: Path) -> tuple[int, int] | None:
    """Device and inode that maps shows for the file; None where it cannot be mapped or is not found.

    They need not be those of stat(2): an overlay or a filesystem of subvolumes shows another device there. So a page of
    the file is mapped for a moment, and looked up.
    """
    try:
        with path.open("rb") as opened:
            mapping = mmap.mmap(opened.fileno(), 1, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError):
        return None
    try:
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        found = next((entry for entry in proc.maps(os.getpid()) if entry.start <= address < entry.end), None)
    except Unreadable:
        return None
    finally:
        mapping.close()
    return None if found is None or found.inode == 0 else (found.device, found.inode)


@dataclass
class ProcFS:
    """A view of /proc. `bytes_read` counts what this process read through any view: such reads count in rchar too."""

    bytes_read: ClassVar[int] = 0
    root: Path = Path("/proc")
    _self: int = field(default_factory=os.getpid)

    def text(self, *parts: str | int) -> str:
        """A file's whole text. Raises ProcessGone when the process ended, Unreadable otherwise, with the reason."""
        path = self.root.joinpath(*(str(part) for part in parts))
        try:
            data = path.read_bytes()
        except OSError as error:
            if isinstance(parts[0], int) and self.ended(parts[0]):
                raise ProcessGone(f"process {parts[0]} has ended") from error
            raise Unreadable(f"{path}: {error.strerror or error}") from error
        ProcFS.bytes_read += len(data)
        return data.decode("utf-8", "surrogateescape")

    def ended(self, pid: int) -> bool:
        """The process is no more, or on its way out: then it has let go of its memory, and little of it may be read."""
        try:
            fields = (self.root / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError as error:
            return isinstance(error, FileNotFoundError | ProcessLookupError | NotADirectoryError)
        return len(fields) > _FLAGS and (fields[0] in (b"Z", b"X") or bool(int(fields[_FLAGS]) & _EXITING))

    def pids(self) -> list[int]:
        """Every process that /proc shows."""
        try:
            return [int(name) for name in os.listdir(self.root) if name.isdigit()]  # noqa: PTH208 - names are enough
        except OSError as error:
            raise Unreadable(f"{self.root}: {error.strerror}") from error

    def stat(self, pid: int) -> list[str]:
        """The fields of stat from the third (state) on; the second, the command, may hold blanks and brackets."""
        text = self.text(pid, "stat")
        return text[text.rindex(")") + 2 :].split()

    def status(self, pid: int) -> dict[str, str]:
        """status as name -> text."""
        return {
            name: value.strip()
            for name, _, value in (line.partition(":") for line in self.text(pid, "status").splitlines())
        }

    def table(self, *parts: str | int) -> dict[str, int]:
        """A table of `Name: number [kB]` lines (meminfo, smaps_rollup, io) or `name number` lines (vmstat), in bytes."""
        found = {}
        for line in self.text(*parts).splitlines():
            words = line.replace(":", " ", 1).split()
            if len(words) >= 2 and words[1].isdigit():
                found[words[0]] = int(words[1]) * (1024 if words[-1] == "kB" else 1)
        return found

    def maps(self, pid: int, *, files: bool = False) -> list[Mapping]:
        """Every mapping of the process, or those of files alone, the ones in memory included: of others it may have tens
        of thousands."""
        try:
            lines = self.text(pid, "maps").splitlines()
            return [parse_maps_line(line) for line in lines if not files or _of_file(line) or not _RANGE.match(line)]
        except (ValueError, IndexError) as error:
            raise Unreadable(f"{self.root}/{pid}/maps has another form than proc_pid_maps(5): {error}") from error

    def smaps(self, pid: int, *, files: bool = False) -> Iterator[MappingUse]:
        """Every mapping (or those of `files` alone) with its figures; the kernel walks the page tables for it, so it costs
        with memory in use."""
        mapping: Mapping | None = None
        figures: dict[str, int] = {}
        flags: frozenset[str] | None = None
        for line in self.text(pid, "smaps").splitlines():
            if line[0] in "0123456789abcdef":
                if mapping is not None:
                    yield MappingUse(mapping, figures, flags)
                mapping, figures, flags = parse_maps_line(line) if not files or _of_file(line) else None, {}, None
            elif mapping is None:
                continue
            elif line.startswith("VmFlags:"):
                flags = frozenset(line.split()[1:])
            elif line.endswith("kB"):
                name, _, value = line.partition(":")
                figures[name] = int(value.split()[0]) * 1024
        if mapping is not None:
            yield MappingUse(mapping, figures, flags)

    def mounts(self) -> list[Mount]:
        """The mounts that this process sees (self/mountinfo, by this process's own id)."""
        found = []
        for line in self.text(self._self, "mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            fields, tail = before.split(), after.split(" ")
            if len(fields) < 6 or len(tail) < 2:
                raise Unreadable(f"{self.root}/{self._self}/mountinfo has another form than proc_pid_mountinfo(5)")
            options = frozenset(tail[2].split(",")) if len(tail) > 2 else frozenset()
            major, minor = (int(number) for number in fields[2].split(":"))
            found.append(
                Mount(
                    point=unescape(fields[4]),
                    root=unescape(fields[3]),
                    device=os.makedev(major, minor),
                    kind=tail[0],
                    source=unescape(tail[1]),
                    writable="rw" in fields[5].split(",") and "ro" not in options,
                    options=options,
                )
            )
        return found

    def mount_of(self, path: Path) -> Mount:
        """The mount that holds `path`: the longest mount point that it lies under, the latest where several tie."""
        real = os.path.realpath(path)
        best: Mount | None = None
        for mount in self.mounts():
            inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
            if inside and (best is None or len(mount.point) >= len(best.point)):
                best = mount
        if best is None:
            raise Unreadable(f"no mount in mountinfo holds {real}")
        return best
