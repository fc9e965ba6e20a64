"""Watching the checkpoint's files: who opens, reads or maps them while nobody should.

Several means together, since each alone is blind to something: inotify sees opens by any process and any language, and
through hard links, but not by whom; the audit hook sees opens by this interpreter; /proc shows descriptors and mappings
of the tree; its read counter moves when a copy elsewhere is read. What no means sees: page faults on a mapping that was
made before, and a copied file that is opened elsewhere. An open is attributed to the tree when the tree is seen doing
it; any other is of unknown origin, or another process's where one is seen holding the file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ledger.events import Measurement, SourceAccessed, SourceWatched, measured, unavailable
from realizer import process_tree
from realizer.procfs import ProcessGone, ProcFS, Unreadable

NETWORK_FILESYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "smb3", "smbfs", "virtiofs", "vboxsf", "prl_fs",
})  # fmt: skip
"""Filesystems whose files another machine can read without this kernel's notice. Every `fuse.` one counts too."""

_IN_ACCESS, _IN_OPEN = 0x1, 0x20
_IN_CLOSE = 0x8 | 0x10
"""Closings are asked for so that two opens one after another stay two: equal neighbours in the queue are merged."""
_IN_UNMOUNT, _IN_OVERFLOW, _IN_IGNORED = 0x2000, 0x4000, 0x8000
_EVENT = struct.Struct("iIII")
"""struct inotify_event without its name: wd, mask, cookie, len (inotify(7))."""

FileId = tuple[int, int]
"""Device and inode."""

_armed: weakref.WeakSet[CheckpointWatch] = weakref.WeakSet()
_hooked: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """The interpreter's audit hook; it cannot be taken out again, so it does nothing unless a watch is armed.

    It must never raise: an error here would make somebody's `open` fail.
    """
    if event != "open" or not _armed:
        return
    path = arguments[0] if arguments else None
    if not isinstance(path, str | bytes | os.PathLike):
        return  # open of a descriptor: the file was opened before
    try:
        state = os.stat(path)  # noqa: PTH116 - the path may be bytes
    except (OSError, ValueError):
        return  # nothing there to open
    for watch in list(_armed):
        watch._opened_here((state.st_dev, state.st_ino))


@dataclass
class _Seen:
    """What was counted of one file since the mark."""

    opens: int = 0
    reads: int = 0
    opened_here: int = 0
    reported: Counter[tuple[str, str]] = field(default_factory=Counter)


class CheckpointWatch:
    """Watches checkpoint files from `arm` on, and counts accesses from `mark` on.

    `files` are paths; links are followed. Names reported are relative to the files' common folder.
    """

    def __init__(self, files: Sequence[Path], *, proc: ProcFS | None = None) -> None:
        self.files = [Path(path).resolve() for path in files]
        self.proc = proc or ProcFS()
        self._pid = os.getpid()
        self._names = _names([Path(path) for path in files])
        self._ids: dict[FileId, str] = {}
        self._by_descriptor: dict[int, FileId] = {}
        self._paths: dict[FileId, Path] = {}
        self._inotify = -1
        self._problems: list[str] = []
        self._overflowed = False
        self._marked = False
        self._seen: dict[FileId, _Seen] = {}
        self._held: set[tuple[int, str, FileId]] = set()
        self._counters: dict[int, int] = {}
        self._counter_problem: str | None = "the watch was never marked"
        self._own_reads = 0

    # --- arming ---------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Begin to watch. What cannot be armed is said by `summary`, not raised: a watch is no reason not to run."""
        for path, name in zip(self.files, self._names, strict=True):
            try:
                state = path.stat()
            except OSError as error:
                self._problems.append(f"{name}: {error.strerror}")
                continue
            self._ids[(state.st_dev, state.st_ino)] = name
            self._paths[(state.st_dev, state.st_ino)] = path
        self._seen = {file: _Seen() for file in self._ids}
        if not _hooked:
            sys.addaudithook(_audit)
            _hooked.append(True)
        _armed.add(self)
        self._arm_inotify(_IN_OPEN | _IN_CLOSE)

    def _arm_inotify(self, mask: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if self._inotify < 0:
            create = getattr(libc, "inotify_init1", None)
            self._inotify = create(os.O_NONBLOCK | os.O_CLOEXEC) if create is not None else -1
            if self._inotify < 0:
                number = ctypes.get_errno() if create is not None else errno.ENOSYS
                self._problems.append(f"inotify: {os.strerror(number)}")
                return
        for file, path in self._paths.items():
            watch = libc.inotify_add_watch(self._inotify, os.fsencode(path), ctypes.c_uint32(mask))
            if watch < 0:
                problem = f"inotify of {self._ids[file]}: {os.strerror(ctypes.get_errno())}"
                if problem not in self._problems:
                    self._problems.append(problem)
            else:
                self._by_descriptor[watch] = file

    def mark(self, name: str = "release") -> None:
        """From here on no access is expected: count anew, reads through descriptors opened before included."""
        self._drain()
        if self._inotify >= 0:
            self._arm_inotify(_IN_OPEN | _IN_CLOSE | _IN_ACCESS)
        self._seen = {file: _Seen() for file in self._ids}
        self._marked = True
        self._overflowed = False
        try:
            self._held = self._holders(process_tree.members(self.proc, self._pid))
            self._counters = process_tree.read_counter(self.proc, self._pid)
            self._counter_problem = None
        except Unreadable as error:
            self._counter_problem = error.message
        self._own_reads = ProcFS.bytes_read
        self._drain()
        self._seen = {file: _Seen() for file in self._ids}

    def close(self) -> None:
        """Stop watching."""
        _armed.discard(self)
        if self._inotify >= 0:
            os.close(self._inotify)
            self._inotify = -1

    # --- what was seen --------------------------------------------------------------------------------------------

    def _opened_here(self, file: FileId) -> None:
        seen = self._seen.get(file)
        if seen is not None:
            seen.opened_here += 1

    def _drain(self) -> None:
        """Take every event that inotify has queued."""
        if self._inotify < 0:
            return
        while True:
            try:
                data = os.read(self._inotify, 65536)
            except BlockingIOError:
                return
            except OSError as error:
                self._problems.append(f"inotify: {error.strerror}")
                return
            offset = 0
            while offset + _EVENT.size <= len(data):
                descriptor, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                self._event(descriptor, mask)

    def _event(self, descriptor: int, mask: int) -> None:
        if mask & _IN_OVERFLOW:
            self._overflowed = True
            return
        file = self._by_descriptor.get(descriptor)
        if file is None:
            return
        if mask & (_IN_IGNORED | _IN_UNMOUNT):
            self._problems.append(f"inotify of {self._ids[file]}: the watch was lost with the file or its filesystem")
            return
        seen = self._seen[file]
        seen.opens += bool(mask & _IN_OPEN)
        seen.reads += bool(mask & _IN_ACCESS)

    def _holders(self, pids: Sequence[int]) -> set[tuple[int, str, FileId]]:
        """(process, "descriptor" or "mapping", file) for the checkpoint files that these processes hold now."""
        found = set()
        for pid in pids:
            try:
                for entry in self.proc.maps(pid):
                    if (entry.device, entry.inode) in self._ids:
                        found.add((pid, "mapping", (entry.device, entry.inode)))
            except ProcessGone:
                continue
            for file in self._open_files(pid):
                found.add((pid, "descriptor", file))
        return found

    def _open_files(self, pid: int) -> set[FileId]:
        folder = self.proc.root / str(pid) / "fd"
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names are enough
        except OSError as error:
            if not (self.proc.root / str(pid) / "stat").exists():
                return set()
            raise Unreadable(f"{folder}: {error.strerror}") from error
        found = set()
        for name in names:
            try:
                state = (folder / name).stat()
            except OSError:
                continue  # closed meanwhile
            if (state.st_dev, state.st_ino) in self._ids:
                found.add((state.st_dev, state.st_ino))
        return found

    def accesses(self) -> list[SourceAccessed]:
        """Accesses since the mark that no earlier call has returned; none before the mark."""
        if not self._marked:
            return []
        found = []
        for access in self._attribute():
            reported = self._seen[access.file].reported
            key = (access.access, access.attributed_to)
            fresh = access.count - reported[key]
            if fresh > 0:
                reported[key] = access.count
                name = self._ids[access.file]
                found.append(
                    SourceAccessed(
                        path=measured(name, None, "name of the watched file, relative to the checkpoint"),
                        access=access.access,
                        attributed_to=access.attributed_to,
                        pid=access.pid,
                        count=measured(fresh, "accesses", access.means),
                        means=access.means,
                    )
                )
        return found

    def _attribute(self) -> list[_Attributed]:
        """Everything seen since the mark, by file and by who is seen doing it."""
        self._drain()
        found: list[_Attributed] = []
        try:
            tree = process_tree.members(self.proc, self._pid)
            held = self._holders(tree)
        except Unreadable:
            tree, held = [self._pid], set()
        fresh = held - self._held
        for file, seen in self._seen.items():
            mine = [holder for holder in fresh if holder[2] == file]
            for kind in ("descriptor", "mapping"):
                pids = sorted({pid for pid, how, _ in mine if how == kind})
                if pids:
                    means = f"/proc/PID/{'fd' if kind == 'descriptor' else 'maps'} of the tree"
                    found.append(_Attributed(_literal(kind), "tree", file, _pid(pids), len(pids), means))
            if seen.opened_here:
                here = measured(self._pid, None, "the interpreter that runs the audit hook")
                found.append(_Attributed("open", "tree", file, here, seen.opened_here, "audit hook"))
            # A process that holds the file now opened it without our seeing when it is no member that the hook saw.
            explained = seen.opened_here + len({pid for pid, _, _ in mine if pid != self._pid or not seen.opened_here})
            rest = max(0, seen.opens - explained)
            if rest:
                found.append(self._others("open", file, rest, tree, "inotify"))
            if seen.reads and not seen.opens:
                found.append(self._others("read", file, seen.reads, tree, "inotify, through an older descriptor"))
        return found

    def _others(
        self, access: Literal["open", "read"], file: FileId, count: int, tree: Sequence[int], means: str
    ) -> _Attributed:
        """Accesses that the tree was not seen making: another process's when one holds the file, else unknown."""
        if access == "read" and any(
            pid in tree for pid, how, held in self._held if how == "descriptor" and held == file
        ):
            pids = sorted({pid for pid, how, held in self._held if how == "descriptor" and held == file})
            return _Attributed(access, "tree", file, _pid(pids), count, means)
        others = []
        for pid in self.proc.pids():
            if pid in tree:
                continue
            try:
                if file in self._open_files(pid):
                    others.append(pid)
            except Unreadable:
                continue  # another user's process; who opened the file stays unknown then
        if others:
            return _Attributed(access, "other", file, _pid(others), count, means)
        nobody = unavailable(None, "/proc/PID/fd of every process", "no process holds the file open now")
        return _Attributed(access, "unknown", file, nobody, count, means)

    def summary(self) -> SourceWatched:
        """How well was watched, and what was seen in all since the mark."""
        attributed = self._attribute() if self._marked else []
        by_tree = sum(access.count for access in attributed if access.attributed_to == "tree")
        by_others = sum(access.count for access in attributed if access.attributed_to != "tree")
        armed = bool(self._by_descriptor) and not self._problems and self._marked
        why = "; ".join(self._problems) or (None if self._marked else "the watch was never marked")
        mapped, opened = self._held_now()
        unmarked = unavailable("accesses", "checkpoint watch", "the watch was never marked")
        method = "checkpoint watch since the release"
        return SourceWatched(
            armed=measured(int(armed), "flag", "inotify and audit hook on every checkpoint file", detail=why),
            overflowed=measured(int(self._overflowed), "flag", "IN_Q_OVERFLOW of inotify"),
            network_filesystem=self._network(),
            tree_accesses=measured(by_tree, "accesses", method) if self._marked else unmarked,
            other_accesses=measured(by_others, "accesses", method) if self._marked else unmarked,
            mapped_files=mapped,
            open_descriptors=opened,
            read_bytes=self._read_bytes(),
            means=["inotify", "audit hook", "descriptors", "mappings", "read counter"],
        )

    def _held_now(self) -> tuple[Measurement, Measurement]:
        try:
            held = self._holders(process_tree.members(self.proc, self._pid))
        except Unreadable as error:
            return (
                unavailable("files", "checkpoint files in /proc/PID/maps of the tree", error.message),
                unavailable("descriptors", "checkpoint files in /proc/PID/fd of the tree", error.message),
            )
        return (
            measured(
                len({file for _, how, file in held if how == "mapping"}),
                "files",
                "checkpoint files in /proc/PID/maps of the tree",
            ),
            measured(
                len([file for _, how, file in held if how == "descriptor"]),
                "descriptors",
                "checkpoint files in /proc/PID/fd of the tree",
            ),
        )

    def _read_bytes(self) -> Measurement:
        """What the tree read since the mark, whatever it read, without these probes' own looks at /proc."""
        method = "rchar in /proc/PID/io of the tree since the release, less this program's reads of /proc"
        if self._counter_problem is not None:
            return unavailable("bytes", method, self._counter_problem)
        own = ProcFS.bytes_read - self._own_reads
        try:
            now = process_tree.read_counter(self.proc, self._pid)
        except Unreadable as error:
            return unavailable("bytes", method, error.message)
        grown = sum(max(0, count - self._counters.get(pid, 0)) for pid, count in now.items())
        return measured(max(0, grown - own), "bytes", method)

    def _network(self) -> Measurement:
        """1 when a checkpoint file lies on a filesystem that other machines can read unseen, else 0."""
        method = "filesystem types in /proc/self/mountinfo"
        kinds = set()
        try:
            for path in self.files:
                kinds.add(self.proc.mount_of(path).kind)
        except Unreadable as error:
            return unavailable("flag", method, error.message)
        network = sorted(kind for kind in kinds if kind in NETWORK_FILESYSTEMS or kind.startswith("fuse"))
        return measured(int(bool(network)), "flag", method, detail=", ".join(network or sorted(kinds)) or None)


@dataclass(frozen=True)
class _Attributed:
    """Accesses of one kind to one file by one origin, since the mark."""

    access: Literal["open", "read", "mapping", "descriptor"]
    attributed_to: Literal["tree", "other", "unknown"]
    file: FileId
    pid: Measurement
    count: int
    means: str


def _literal(kind: str) -> Literal["mapping", "descriptor"]:
    return "mapping" if kind == "mapping" else "descriptor"


def _pid(pids: Sequence[int]) -> Measurement:
    """The process, the first where several did it (the others in the detail)."""
    rest = f"also {', '.join(str(pid) for pid in pids[1:])}" if len(pids) > 1 else None
    return measured(pids[0], None, "/proc/PID of the holders", detail=rest)


def _names(paths: Sequence[Path]) -> list[str]:
    """Names relative to the files' common folder; never a folder of the machine."""
    if not paths:
        return []
    folder = os.path.commonpath([os.path.abspath(path.parent) for path in paths])  # noqa: PTH100 - links stay
    return [os.path.relpath(os.path.abspath(path), folder) for path in paths]  # noqa: PTH100
