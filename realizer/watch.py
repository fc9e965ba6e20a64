"""Watching the checkpoint's files: who opens, reads or maps them while nobody should.

Several means together, since each alone is blind to something: inotify sees opens by any process and any language, and
through hard links, but not by whom; fanotify tells, where the kernel lets it, which are this process's own; the audit
hook sees opens by this interpreter; /proc shows who holds descriptors and mappings; the tree's read counter moves when a
copy elsewhere is read. A thread that sleeps until inotify has something
looks at /proc at once, while whoever opened the file still holds it. What no means sees: page faults on a mapping that
was made before, and a copied file that is opened elsewhere.

An access is the tree's when the tree is seen making it or holding the file; another process's when one is seen holding
it; and else of unknown origin.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ledger.bodies import SourceAccessed, SourceWatched
from ledger.measurement import Measurement, measured, unavailable
from realizer import process_tree
from realizer.fanotify import OTHER_PROCESS, OpenerQueue
from realizer.inotify import FileId, Inotify
from realizer.procfs import ProcessGone, ProcFS, Unreadable, mapped_as

NETWORK_FILESYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "smb3", "smbfs", "virtiofs", "vboxsf", "prl_fs",
})  # fmt: skip
"""Filesystems whose files another machine can read without this kernel's notice. Every `fuse` one counts too."""
PAUSE_SECONDS = 0.005
"""The listening thread's rest after each look, so that a flood of events cannot keep it busy."""

Access = Literal["open", "read", "mapping"]
Origin = Literal["tree", "other", "unknown"]
Sighting = tuple[FileId, Access, Origin, str]
"""File, kind of access, whose, and by which means it was seen."""
Holder = tuple[int, Literal["descriptor", "mapping"], FileId]

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


class CheckpointWatch:
    """Watches checkpoint files from `arm` on, and counts accesses from `mark` on.

    `files` are paths; links are followed. Names reported are relative to the files' common folder. The tree is this
    process's, or whose members `tree` gives: then this process is an outsider, and its own opens are not the tree's.
    """

    def __init__(
        self, files: Sequence[Path], *, proc: ProcFS | None = None, tree: Callable[[], list[int]] | None = None
    ) -> None:
        self.files = [Path(path).resolve() for path in files]
        self.proc = proc or ProcFS()
        self._pid = os.getpid()
        self._outside = tree is not None
        self._tree = tree or (lambda: process_tree.members(self.proc, self._pid))
        self._names = _names([Path(path) for path in files])
        self._ids: dict[FileId, str] = {}
        self._paths: dict[FileId, Path] = {}
        self._in_maps: dict[FileId, FileId] = {}
        self._problems: list[str] = []
        self._inotify = Inotify()
        self._openers = OpenerQueue()
        self._lock = threading.RLock()
        self._wake = -1
        self._thread: threading.Thread | None = None
        self._marked = False
        self._opens_here: deque[FileId] = deque()
        self._forget()
        self._counters: dict[int, int] = {}
        self._counter_problem: str | None = "the watch was never marked"
        self._own_reads = 0

    def _forget(self) -> None:
        """Count from nothing."""
        self._opens_here.clear()
        self._credit: Counter[FileId] = Counter()
        self._seen: Counter[Sighting] = Counter()
        self._reported: Counter[Sighting] = Counter()
        self._by: dict[Sighting, set[int]] = {}
        self._opened: set[FileId] = set()
        self._held: Counter[Holder] = Counter()
        self._inotify.overflowed = False

    # --- arming ---------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Begin to watch. What cannot be armed is said by `summary`, not raised: a watch is no reason not to run."""
        for path, name in zip(self.files, self._names, strict=True):
            try:
                state = path.stat()
            except OSError as error:
                self._problems.append(f"{name}: {error.strerror}")
                continue
            file = (state.st_dev, state.st_ino)
            self._ids[file], self._paths[file] = name, path
            self._in_maps[mapped_as(self.proc, path) or file] = file
            self._inotify.watch(file, path, name, reads=False)
            self._openers.watch(file, path)
        if self._outside:
            return
        if not _hooked:
            sys.addaudithook(_audit)
            _hooked.append(True)
        _armed.add(self)

    def mark(self, name: str = "release") -> None:
        """From here on no access is expected: count anew, reads through descriptors opened before included."""
        with self._lock:
            if self._inotify.descriptor >= 0:
                for file, path in self._paths.items():
                    self._inotify.watch(file, path, self._ids[file], reads=True)
            self._inotify.drain()
            self._openers.drain()
            self._forget()
            with suppress(Unreadable):  # `summary` says what cannot be read of mappings and descriptors
                self._held = self.holders(self._tree())
            try:
                self._counters = process_tree.read_counter(self.proc, self._tree())
                self._counter_problem = None
            except Unreadable as error:
                self._counter_problem = error.message
            self._own_reads = ProcFS.bytes_read
            self._marked = True
        self._listen()

    def close(self) -> None:
        """Stop watching."""
        _armed.discard(self)
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            os.close(self._wake)
            self._thread = None
        with self._lock:
            self._inotify.close()
            self._openers.close()

    def _listen(self) -> None:
        if self._thread is None and self._inotify.descriptor >= 0:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC)
            arguments = (weakref.ref(self), self._inotify.descriptor, self._wake)
            self._thread = threading.Thread(target=_listening, args=arguments, name="checkpoint-watch", daemon=True)
            self._thread.start()

    # --- noticing -------------------------------------------------------------------------------------------------

    def _opened_here(self, file: FileId) -> None:
        """Called by the audit hook, in whichever thread opens: appending is one step that no other comes between."""
        if file in self._ids:
            self._opens_here.append(file)

    def notice(self) -> None:
        """Take what inotify has, and lay it beside who is seen opening and holding the files at this moment."""
        with self._lock:
            batch = self._inotify.drain()
            by_file: dict[FileId, set[int]] = {}
            for file, pid in self._openers.drain():
                by_file.setdefault(file, set()).add(pid)
            here: Counter[FileId] = Counter()
            while self._opens_here:
                here[self._opens_here.popleft()] += 1
            if not self._marked:
                return
            for file, count in here.items():
                self._sight(file, "open", "tree", "audit hook", count, [self._pid])
                self._opened.add(file)
                self._credit[file] += count
            for file, count in batch.opens.items():
                if count:
                    self._opened.add(file)
                explained = min(count, self._credit[file])
                self._credit[file] -= explained
                openers = by_file.get(file, set()) - ({self._pid} if explained else set())
                if count > explained:
                    self._unseen("open", file, count - explained, openers)
            for file, count in batch.reads.items():
                if count and file not in self._opened:  # a read after an open is the opener's
                    self._unseen("read", file, count, set())
            self._new_mappings()

    def _sight(
        self, file: FileId, access: Access, origin: Origin, means: str, count: int, pids: Iterable[int] = ()
    ) -> None:
        sighting = (file, access, origin, means)
        self._seen[sighting] += count
        self._by.setdefault(sighting, set()).update(pids)

    def _unseen(self, access: Access, file: FileId, count: int, openers: set[int]) -> None:
        """An access that the audit hook did not see. It is the tree's when the kernel names a member as an opener or a
        member is seen holding the file (for a read: since before the mark); another's when that one is."""
        try:
            tree = self._tree()
            held = self.holders(tree)
        except Unreadable:
            tree, held = [self._pid], Counter()
        mine = openers & set(tree)
        if mine:
            self._sight(file, access, "tree", "inotify, and fanotify's process id", count, mine)
            return
        holding = {pid for pid, _, it in (held if access == "read" else held - self._held) if it == file}
        if holding:
            self._sight(file, access, "tree", "inotify, and /proc/PID of the tree", count, holding)
            return
        others = self._other_holders(file, tree)
        if others:
            self._sight(file, access, "other", "inotify, and /proc/PID/fd of other processes", count, others)
        else:
            # A process id that fanotify gave may be of a child that has ended, so it does not settle whose it was.
            self._sight(file, access, "unknown", "inotify", count, openers - {OTHER_PROCESS})

    def _new_mappings(self) -> None:
        """Mappings that were not there at the mark, made through whichever descriptor."""
        try:
            held = self.holders(self._tree())
        except Unreadable:
            return  # `summary` says that mappings cannot be seen
        for (pid, how, file), count in (held - self._held).items():
            if how == "mapping":
                self._held[(pid, how, file)] += count
                self._sight(file, "mapping", "tree", "/proc/PID/maps of the tree", count, [pid])

    def holders(self, pids: Iterable[int]) -> Counter[Holder]:
        """Which of these processes map, or hold open, which checkpoint files, and how many times."""
        found: Counter[Holder] = Counter()
        for pid in pids:
            for mapped in self.mapped_by(pid):
                found[(pid, "mapping", mapped)] += 1
            for opened in self.opened_by(pid):
                found[(pid, "descriptor", opened)] += 1
        return found

    def mapped_by(self, pid: int) -> list[FileId]:
        """The checkpoint file of every mapping that the process has of one. Raises Unreadable."""
        try:
            entries = self.proc.maps(pid, files=True)
        except ProcessGone:
            return []
        places = ((entry.device, entry.inode) for entry in entries)
        return [self._in_maps[place] for place in places if place in self._in_maps]

    def opened_by(self, pid: int) -> list[FileId]:
        """The checkpoint file of every descriptor that the process holds on one. Raises Unreadable."""
        folder = self.proc.root / str(pid) / "fd"
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names are enough
        except OSError as error:
            if self.proc.ended(pid):
                return []
            raise Unreadable(f"{folder}: {error.strerror}") from error
        found = []
        for name in names:
            try:
                state = (folder / name).stat()
            except OSError:
                continue  # closed meanwhile
            if (state.st_dev, state.st_ino) in self._ids:
                found.append((state.st_dev, state.st_ino))
        return found

    def _other_holders(self, file: FileId, tree: Sequence[int]) -> list[int]:
        others = []
        for pid in self.proc.pids():
            if pid in tree:
                continue
            try:
                if file in self.opened_by(pid):
                    others.append(pid)
            except Unreadable:
                continue  # another user's process; who opened the file stays unknown then
        return others

    # --- reporting ------------------------------------------------------------------------------------------------

    def accesses(self) -> list[SourceAccessed]:
        """Accesses since the mark that no earlier call has returned; none before the mark."""
        self.notice()
        with self._lock:
            fresh = self._seen - self._reported
            self._reported = Counter(self._seen)
            return [
                SourceAccessed(
                    path=measured(self._ids[file], None, "name of the watched file, relative to the checkpoint"),
                    access=access,
                    attributed_to=origin,
                    pid=_pid(sorted(self._by[(file, access, origin, means)])),
                    count=measured(count, "accesses", means),
                    means=means,
                )
                for (file, access, origin, means), count in sorted(fresh.items())
            ]

    def summary(self) -> SourceWatched:
        """How well was watched, and what was seen in all since the mark."""
        self.notice()
        gap = self._gap()
        mapped, opened = self._held_now()
        read = self._read_bytes()
        overflow = "IN_Q_OVERFLOW of inotify"
        means = {
            "inotify": self._inotify.watching,
            "audit hook": not self._outside,
            "descriptors": opened.known,
            "mappings": mapped.known,
            "read counter": read.known,
            "fanotify": self._openers.descriptor >= 0,
        }
        return SourceWatched(
            armed=measured(
                int(gap is None),
                "flag",
                f"inotify{'' if self._outside else ' and audit hook'} on every checkpoint file",
                detail=gap,
            ),
            overflowed=measured(int(self._inotify.overflowed), "flag", overflow)
            if self._inotify.watching
            else unavailable("flag", overflow, gap or "nothing is watched"),
            network_filesystem=self._network(),
            tree_accesses=self._count(("tree",)),
            other_accesses=self._count(("other", "unknown")),
            mapped_files=mapped,
            open_descriptors=opened,
            read_bytes=read,
            means=[name for name, sees in means.items() if sees],
        )

    def _gap(self) -> str | None:
        """Why opens may have gone unseen; null where every file is watched."""
        problems = [*self._problems, *self._inotify.problems]
        if problems:
            return "; ".join(problems)
        return None if self._marked and self._inotify.watching else "the watch was never marked"

    def _count(self, origins: tuple[Origin, ...]) -> Measurement:
        """How many were seen. None seen by a watch with gaps is no count of 0."""
        method = "checkpoint watch since the release"
        if not self._marked:
            return unavailable("accesses", method, "the watch was never marked")
        with self._lock:
            count = sum(count for (_, _, origin, _), count in self._seen.items() if origin in origins)
        gap = self._gap() or ("events were lost: the queue overflowed" if self._inotify.overflowed else None)
        if gap is not None and count == 0:
            return unavailable("accesses", method, gap)
        whose = f"the kernel does not say who opens: {self._openers.problem}" if self._openers.problem else None
        return measured(count, "accesses", method, detail=f"at least, {gap}" if gap is not None else whose)

    def _held_now(self) -> tuple[Measurement, Measurement]:
        by_maps = "checkpoint files in /proc/PID/maps of the tree"
        by_descriptors = "descriptors on checkpoint files in /proc/PID/fd of the tree"
        try:
            pids = self._tree()
        except Unreadable as error:
            why = error.message
            return unavailable("files", by_maps, why), unavailable("descriptors", by_descriptors, why)
        try:
            mapped = measured(len({file for pid in pids for file in self.mapped_by(pid)}), "files", by_maps)
        except Unreadable as error:
            mapped = unavailable("files", by_maps, error.message)
        try:
            opened = measured(sum(len(self.opened_by(pid)) for pid in pids), "descriptors", by_descriptors)
        except Unreadable as error:
            opened = unavailable("descriptors", by_descriptors, error.message)
        return mapped, opened

    def _read_bytes(self) -> Measurement:
        """What the tree read since the mark, whatever it read, without these probes' own looks at /proc."""
        method = "rchar in /proc/PID/io of the tree since the release, less this program's reads of /proc"
        if self._counter_problem is not None:
            return unavailable("bytes", method, self._counter_problem)
        own = 0 if self._outside else ProcFS.bytes_read - self._own_reads
        try:
            now = process_tree.read_counter(self.proc, self._tree())
        except Unreadable as error:
            return unavailable("bytes", method, error.message)
        grown = sum(max(0, count - self._counters.get(pid, 0)) for pid, count in now.items())
        return measured(max(0, grown - own), "bytes", method)

    def _network(self) -> Measurement:
        """1 when a checkpoint file lies on a filesystem that other machines can read unseen, else 0."""
        method = "filesystem types in /proc/self/mountinfo"
        try:
            kinds = sorted({self.proc.mount_of(path).kind for path in self.files})
        except Unreadable as error:
            return unavailable("flag", method, error.message)
        network = [kind for kind in kinds if kind in NETWORK_FILESYSTEMS or kind.startswith("fuse")]
        return measured(int(bool(network)), "flag", method, detail=", ".join(network or kinds) or None)


def _listening(watch: weakref.ref[CheckpointWatch], inotify: int, wake: int) -> None:
    """The listening thread: asleep until something happens, then looking who does it."""
    poll = select.poll()
    poll.register(inotify, select.POLLIN)
    poll.register(wake, select.POLLIN)
    stop = threading.Event()
    while not stop.is_set():
        ready = {descriptor for descriptor, _ in poll.poll()}
        here = watch()
        if wake in ready or here is None:
            return
        here.notice()
        del here
        stop.wait(PAUSE_SECONDS)


def _pid(pids: Sequence[int]) -> Measurement:
    """The process, the first where several did it (the others in the detail); unknown where none was seen."""
    if not pids:
        return unavailable(None, "/proc/PID of every process", "no process was seen holding the file")
    rest = f"also {', '.join(str(pid) for pid in pids[1:])}" if len(pids) > 1 else None
    return measured(pids[0], None, "audit hook, or /proc/PID of the holders", detail=rest)


def _names(paths: Sequence[Path]) -> list[str]:
    """Names relative to the files' common folder; never a folder of the machine."""
    if not paths:
        return []
    folder = os.path.commonpath([os.path.abspath(path.parent) for path in paths])  # noqa: PTH100 - links stay
    return [os.path.relpath(os.path.abspath(path), folder) for path in paths]  # noqa: PTH100
