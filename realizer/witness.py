"""A witness: a process of its own that watches a tree of other processes, and needs nothing from them.

What it can see is what the kernel and the driver show of anybody: memory by class, mapped and open files, opens of the
checkpoint, device memory by process. Who owns the pages inside a process it cannot see, and says so by leaving it out.
Reading /proc holds a process's page tables for moments; nothing is stopped, signalled or written to.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from ledger.bodies import Body, EnvironmentObserved, MemorySampled, SourceAccessed, SourceWatched
from ledger.errors import NotFound
from ledger.measurement import Measurement, Measurements, measured, unavailable
from realizer import machine_memory, process_tree
from realizer.environment import observe_environment
from realizer.held_pages import HeldPages, HeldPagesWatch
from realizer.memory import Ranges
from realizer.nvml import Devices
from realizer.procfs import ProcessGone, ProcFS, Unreadable, printable
from realizer.software import PRIVATE
from realizer.watch import CheckpointWatch

CLASSES = ("vm_rss", "rss_anon", "rss_file", "rss_shmem", "vm_swap", "hugetlb")
"""Classes of one process that are told of it, as `process_tree.STATUS_FIELDS` names them."""
WEIGHT_SUFFIXES = frozenset({".safetensors", ".gguf", ".ggml", ".bin", ".pt", ".pth", ".onnx", ".npz", ".msgpack"})
_STARTED = 19
"""Place of the start time in the fields of /proc/PID/stat from the third on (proc_pid_stat(5): field 22)."""
_FLAGS, _KERNEL_THREAD = 6, 0x200000
"""Place of the kernel's flags there (field 9), and PF_KTHREAD among them."""
_UNEVENTFUL_BYTES = 16 * 1024 * 1024
"""A change of the tree's sum below this is no reason to record another sample."""
_SHARE_OF_TIME = 100
"""A look that took a second is followed by that many without one, so that watching costs at most a hundredth."""

M = TypeVar("M", bound=BaseModel)


def checkpoint_files(path: Path) -> list[Path]:
    """The files with weights of a checkpoint: the file itself, or those of the folder by their suffixes.

    Raises NotFound where there is none.
    """
    if path.is_file():
        return [path]
    named = sorted(one for one in path.glob("*") if one.suffix in WEIGHT_SUFFIXES)
    found = [one for one in named if one.is_file()]
    if lost := [one.name for one in named if one.is_symlink() and not one.exists()]:
        raise NotFound(f"{', '.join(lost)} in {path} leads to a file that is not there", "fetch the checkpoint anew")
    if not found:
        raise NotFound(
            f"no file with weights in {path} (looked for {', '.join(sorted(WEIGHT_SUFFIXES))})",
            "name the checkpoint's folder, or the file itself",
        )
    return found


def as_witness(body: M) -> M:
    """The same facts, said by a witness and not by the run's own probes."""
    changed: M = _restamped(body)
    return changed


def _restamped(value: Any) -> Any:
    if isinstance(value, Measurement):
        return value.model_copy(update={"source": "witness"}) if value.source == "probe" else value
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _restamped(getattr(value, name)) for name in type(value).model_fields})
    if isinstance(value, dict):
        return {key: _restamped(item) for key, item in value.items()}
    return [_restamped(item) for item in value] if isinstance(value, list) else value


class Witness:
    """Watches the trees below `roots`, children that come and go included, and the given checkpoint files.

    A child whose parent ends stays in view once it was seen. Raises NotFound for a process that is not there, or is none.
    """

    def __init__(
        self,
        roots: Sequence[int],
        files: Sequence[Path] = (),
        *,
        private: bool = False,
        proc: ProcFS | None = None,
        devices: Devices | None = None,
    ) -> None:
        self.proc = proc or ProcFS()
        self.private = private
        self.devices = devices or Devices()
        self._known: dict[int, str] = {}
        self._lock = threading.Lock()  # the checkpoint watch asks for members from its own thread
        for pid in roots:
            self._known[pid] = self._root(pid)
        if os.getpid() not in roots:
            process_tree.leave_out(os.getpid())
        self.files = [path.resolve() for path in files]
        self._held = HeldPagesWatch(self.proc, Ranges(), self.files, user=self._user(roots[0]))
        self._no_baseline: str | None = None
        self._watch = CheckpointWatch(self.files, proc=self.proc, tree=self.members) if files else None

    def _root(self, pid: int) -> str:
        """When the process began. Raises NotFound where there is none of that id, or none that has memory and children."""
        started = self._start_of(pid)
        if started is None:
            raise NotFound(f"there is no process {pid}", "`ps` lists those that there are")
        try:
            leader, flags = int(self.proc.status(pid).get("Tgid", pid)), int(self.proc.stat(pid)[_FLAGS])
        except ProcessGone as error:
            raise NotFound(f"there is no process {pid} any more", "`ps` lists those that there are") from error
        if leader != pid:
            raise NotFound(f"{pid} is a thread of process {leader}", f"watch process {leader}")
        if flags & _KERNEL_THREAD:
            raise NotFound(f"{pid} is a thread of the kernel, which holds no memory", "name a process")
        return started

    def _start_of(self, pid: int) -> str | None:
        """When the process began (an id may come again for another one); null when it is gone or only waits."""
        try:
            fields = self.proc.stat(pid)
        except Unreadable:
            return None
        return fields[_STARTED] if fields[0] not in ("Z", "X") else None

    def _user(self, pid: int) -> int | None:
        try:
            return int(self.proc.status(pid)["Uid"].split()[1])
        except (Unreadable, KeyError, IndexError, ValueError):
            return None  # then this process's own user is looked at, as the figure's method says

    def begin(self) -> None:
        """Begin to watch: files in memory that come later are new, and accesses count from here on."""
        try:
            self._held.baseline([])
        except Unreadable as error:
            self._no_baseline = f"no baseline: {error.message}"
        if self._watch is not None:
            self._watch.arm()
            self._watch.mark()

    def mark(self) -> None:
        """From here on no access to the checkpoint is expected: count anew."""
        if self._watch is not None:
            self._watch.mark()

    def members(self) -> list[int]:
        """Who is there now of the trees, and of what was once seen in them."""
        with self._lock:
            alive = [pid for pid, started in self._known.items() if self._start_of(pid) == started]
            found = process_tree.members(self.proc, alive)
            for pid in found:
                if pid not in alive and (started := self._start_of(pid)) is not None:
                    self._known[pid] = started
            self._known = {pid: started for pid, started in self._known.items() if pid in found}
            return found

    def environment(self) -> EnvironmentObserved:
        """The machine, its devices by NVML's word."""
        return as_witness(observe_environment(self.private, proc=self.proc, devices=self.devices.observe))

    # --- samples --------------------------------------------------------------------------------------------------

    def sample(self, label: str) -> MemorySampled | None:
        """The memory of the trees now, and of each process by itself; null when none is left."""
        members = self.members()
        if not members:
            return None
        tree = process_tree.figures(self.proc, members, reset_peak=False)
        if not tree.pids:
            return None
        held = self._look(tree.pids)
        process: Measurements = {**tree.sums, **process_tree.swaps(self.proc)}
        process["new_file_mappings"] = held.new_file_mappings
        process["checkpoint_mappings"] = held.checkpoint_mappings
        process["new_tmpfs_files"] = held.new_tmpfs_files
        process["tree_sum"] = self._tree_sum(tree, held.unaccounted)
        process["processes"] = measured(len(tree.pids), "processes", "members of the watched trees")
        for pid in tree.pids:
            process |= {f"pid:{pid}.{name}": figure for name, figure in self._process(pid).items()}
        try:
            names = self._held.checkpoint_names(tree.pids)
        except Unreadable:
            names = []  # checkpoint_mappings says that mappings cannot be read
        return as_witness(
            MemorySampled(
                label=label,
                process=process,
                host=machine_memory.host(self.proc),
                cgroup=machine_memory.cgroup(self.proc, tree.pids, tree.pids[0]),
                cuda=self.devices.memory(tree.pids),
                mapped_files=[name.rsplit("/", 1)[-1] for name in names] if self.private else names,
            )
        )

    def _look(self, pids: Sequence[int]) -> HeldPages:
        if self._no_baseline is None:
            held = self._held.look(pids)
        else:
            missing = unavailable("bytes", "files held since the watch began", self._no_baseline)
            held = HeldPages(missing, missing, missing, missing, ())
        if not self.files:
            which = unavailable("bytes", "resident pages of checkpoint files", "no checkpoint was named")
            held = HeldPages(held.new_file_mappings, which, held.new_tmpfs_files, held.unaccounted, held.mapped_files)
        return held

    def _tree_sum(self, tree: process_tree.TreeFigures, unaccounted: Measurement) -> Measurement:
        """What the trees hold, each page once, as the run's own probes add it up; files mapped before count as well."""
        anonymous, shared = process_tree.distinct_pages(self.proc, tree, process_tree.OutsideShare())
        parts = [anonymous, shared, tree.sums["vm_swap"], tree.sums["hugetlb"], unaccounted]
        method = "RssAnon + RssShmem + VmSwap + HugetlbPages of the tree + files that it holds beyond, once each"
        missing = next((part for part in parts if not part.known), None)
        if missing is not None:
            return unavailable("bytes", method, f"{missing.method}: {missing.detail}")
        total = sum(part.value for part in parts if isinstance(part.value, int))
        return measured(total, "bytes", method, detail=anonymous.detail)

    def _process(self, pid: int) -> Measurements:
        """One process: its name, host bytes by class, its share of them, checkpoint files mapped and open; of one that has
        ended meanwhile nothing."""
        try:
            own = process_tree.status_of(self.proc, pid)
        except ProcessGone:
            return {}
        found: Measurements = {"command": self._command(pid)} | {name: own[name] for name in CLASSES}
        found["pss"] = self._pss(pid)
        return found | self._files_of(pid)

    def _command(self, pid: int) -> Measurement:
        method = "/proc/PID/comm"
        if self.private:
            return unavailable(None, method, PRIVATE)
        try:
            return measured(printable(self.proc.text(pid, "comm").strip()), None, method)
        except Unreadable as error:
            return unavailable(None, method, error.message)

    def _pss(self, pid: int) -> Measurement:
        """What is its own, shared pages by its share of them; needs the right to trace the process."""
        method = "Pss in /proc/PID/smaps_rollup"
        try:
            table = self.proc.table(pid, "smaps_rollup")
        except Unreadable as error:
            return unavailable("bytes", method, error.message)
        missing = unavailable("bytes", method, "smaps_rollup has no Pss")
        return measured(table["Pss"], "bytes", method) if "Pss" in table else missing

    def _files_of(self, pid: int) -> Measurements:
        mapped, opened = "mappings of checkpoint files in /proc/PID/maps", "descriptors on them in /proc/PID/fd"
        if self._watch is None:
            why = "no checkpoint was named"
            return {
                "checkpoint_mappings": unavailable("mappings", mapped, why),
                "open_descriptors": unavailable("descriptors", opened, why),
            }
        found = {}
        for name, unit, method, held in (
            ("checkpoint_mappings", "mappings", mapped, self._watch.mapped_by),
            ("open_descriptors", "descriptors", opened, self._watch.opened_by),
        ):
            try:
                found[name] = measured(len(held(pid)), unit, method)
            except Unreadable as error:
                found[name] = unavailable(unit, method, error.message)
        return found

    # --- accesses -------------------------------------------------------------------------------------------------

    def accesses(self) -> list[SourceAccessed]:
        """Accesses to the checkpoint since the mark that no earlier call has returned."""
        return [as_witness(access) for access in self._watch.accesses()] if self._watch is not None else []

    def summary(self) -> SourceWatched | None:
        """How well the checkpoint was watched, and what was seen in all; null when none was named."""
        if self._watch is None:
            return None
        summary = as_witness(self._watch.summary())
        if self.members():
            return summary
        unseen = ("mapped_files", "open_descriptors", "read_bytes")
        gone = {
            name: unavailable(found.unit, found.method, "the processes have ended", source="witness")
            for name in unseen
            if (found := getattr(summary, name)) is not None
        }
        return summary.model_copy(update=gone)

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.close()
        self.devices.close()


FINAL_LABELS = ("after-decode", "closing")
"""Labels at which accesses are not counted anew: the stretch in which none is expected ends there."""

Ask = Callable[[float], str | None]
"""Waits so many seconds at most for the label of a sample that somebody asks for. Null: nobody did. "": nobody will."""


class Watching:
    """Records what a witness sees, sample by sample, and closes with the last one as `closing`."""

    def __init__(self, witness: Witness, record: Callable[[Body], Any]) -> None:
        self.witness = witness
        self.first: MemorySampled | None = None
        self.highest: MemorySampled | None = None
        """The recorded sample with the largest known sum of the tree."""
        self.latest: MemorySampled | None = None
        self._record = record
        self._unrecorded: MemorySampled | None = None

    def take(self, label: str) -> bool:
        """A sample under that label; False when nothing is left to sample."""
        taken = self.witness.sample(label)
        if taken is None:
            return False
        self._keep(taken)
        return True

    def _keep(self, sample: MemorySampled) -> None:
        self._record(sample)
        self.first = self.first or sample
        self.latest, self._unrecorded = sample, None
        if self.highest is None or tree_sum(sample) >= tree_sum(self.highest):
            self.highest = sample

    def follow(self, interval: float, ask: Ask, answer: Callable[[str], None]) -> None:
        """Look again and again until the trees have ended or nobody asks any more (and somebody did).

        Looks that show nothing new are not recorded; what was asked for is, and answered with its label.
        """
        pause = interval
        while True:
            label = ask(pause)
            if label == "":
                return
            began = time.monotonic()
            if label is not None:
                there = self.take(label)
                if label not in FINAL_LABELS:
                    self.witness.mark()
                answer(label)
                if not there:
                    return
                continue
            seen = self.witness.sample("following")
            if seen is None:
                return
            if self.latest is None or eventful(self.latest, seen):
                self._keep(seen)
            else:
                self._unrecorded = seen
            pause = max(interval, (time.monotonic() - began) * _SHARE_OF_TIME)

    def finish(self) -> MemorySampled | None:
        """The closing sample (the last look, where the trees have ended), the accesses, and how well was watched."""
        closing = self.latest if self.latest is not None and self.latest.label == "closing" else None
        if closing is None:
            closing = self.witness.sample("closing")
            if closing is None and (known := self._unrecorded or self.latest) is not None:
                closing = _late(known)
            if closing is not None:
                self._keep(closing)
        for access in self.witness.accesses():
            self._record(access)
        summary = self.witness.summary()
        if summary is not None:
            self._record(summary)
        return closing


def _late(sample: MemorySampled) -> MemorySampled:
    """The last look at a tree that has ended since, as its closing sample."""
    process = {
        name: figure.model_copy(update={"detail": figure.detail or "the last look before the tree ended"})
        for name, figure in sample.process.items()
    }
    return sample.model_copy(update={"label": "closing", "process": process})


def eventful(before: MemorySampled, now: MemorySampled) -> bool:
    """Somebody came or went, files were mapped, opened or let go, or the sum moved by more than a little."""

    def counts(sample: MemorySampled) -> dict[str, Any]:
        ends = (".checkpoint_mappings", ".open_descriptors", ".command")
        return {name: figure.value for name, figure in sample.process.items() if name.endswith(ends)}

    old, new = tree_sum(before), tree_sum(now)
    moved = (old < 0) != (new < 0) or abs(new - old) >= _UNEVENTFUL_BYTES
    return moved or counts(before) != counts(now)


def tree_sum(sample: MemorySampled) -> int:
    """The sample's sum of the tree, bytes; below zero where it is not known."""
    value = sample.process["tree_sum"].value
    return value if isinstance(value, int) else -1
