"""The process tree's memory as the kernel counts it: this process and every descendant, summed class by class.

A staged copy in a child moves none of its parent's figures, so nothing is read of one process alone. A field that one
member does not show makes the sum unavailable, with the reason: a part of a sum is not the sum.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ledger.measurement import Measurement, Measurements, measured, unavailable
from realizer.procfs import ProcessGone, ProcFS, Unreadable

STATUS_FIELDS = {
    "vm_rss": "VmRSS",
    "vm_hwm": "VmHWM",
    "rss_anon": "RssAnon",
    "rss_file": "RssFile",
    "rss_shmem": "RssShmem",
    "vm_swap": "VmSwap",
    "hugetlb": "HugetlbPages",
    "vm_pin": "VmPin",
}
"""Our names of the classes, and the kernel's in /proc/PID/status (kB there)."""

SHARED = ("rss_anon", "rss_shmem")
"""Classes whose pages several members may share."""
_MINOR_FAULTS, _MAJOR_FAULTS, _STATE, _PARENT = 7, 9, 0, 1
"""Places in the fields of /proc/PID/stat from the third on (proc_pid_stat(5): fields 10, 12, 3 and 4)."""
_RESET_PEAK = b"5"
"""What resets VmHWM when written to clear_refs (proc_pid_clear_refs(5))."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class TreeFigures:
    """One look at the tree: its members (the root first), the sums by our names of the classes, and what the member with
    most of a class has of it (bytes)."""

    pids: tuple[int, ...]
    sums: Measurements
    most: Mapping[str, int] = field(default_factory=dict)


Roots = int | Sequence[int]
"""The process at the root of the tree, or several."""

_left_out: set[int] = set()


def leave_out(pid: int) -> None:
    """The process and what descends from it belong to no tree but its own: a witness, child of the process it watches."""
    _left_out.add(pid)


def take_back(pid: int) -> None:
    """The process has ended: whoever gets its id next counts again."""
    _left_out.discard(pid)


def members(proc: ProcFS, root: Roots) -> list[int]:
    """The process, or each of them, and all descendants that have memory (ended ones, waiting to be collected, have
    none); in order, each once."""
    children: dict[int, list[int]] = {}
    ended: set[int] = set()
    for pid in proc.pids():
        try:
            fields = proc.stat(pid)
        except ProcessGone:
            continue
        children.setdefault(int(fields[_PARENT]), []).append(pid)
        if fields[_STATE] in ("Z", "X"):
            ended.add(pid)
    found: list[int] = []
    queue = [root] if isinstance(root, int) else list(root)
    seen = _left_out - set(queue)
    while queue:
        pid = queue.pop(0)
        if pid in seen:
            continue
        seen.add(pid)
        if pid not in ended:
            found.append(pid)
        queue += sorted(children.get(pid, []))
    return found


def status_of(proc: ProcFS, pid: int) -> Measurements:
    """One process's memory by our names of the classes, bytes. Raises ProcessGone."""
    problem: str | None = None
    statuses: dict[int, dict[str, str]] = {}
    try:
        statuses[pid] = _status(proc, pid)
    except ProcessGone:
        raise
    except Unreadable as error:
        problem = error.message
    return {name: _sum_status(name, field, statuses, (pid,), problem) for name, field in STATUS_FIELDS.items()}


def _status(proc: ProcFS, pid: int) -> dict[str, str]:
    """Its status. Raises ProcessGone for one that has let go of its memory on its way out: it holds none."""
    status = proc.status(pid)
    if "VmRSS" not in status and proc.ended(pid):
        raise ProcessGone(f"process {pid} has ended")
    return status


def adopt_orphans(adopt: bool) -> bool:
    """Make descendants whose parents end come to this process, so that none leaves the tree. False where it cannot."""
    return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(int(adopt)), 0, 0, 0) == 0


def figures(proc: ProcFS, root: Roots, *, reset_peak: bool = True) -> TreeFigures:
    """The tree's sums. VmHWM is the peak since the last reset of every member; the sum bounds the tree's peak."""
    try:
        pids = members(proc, root)
    except Unreadable as error:
        names = [*STATUS_FIELDS, "minor_faults", "major_faults"]
        roots = (root,) if isinstance(root, int) else tuple(root)
        return TreeFigures(roots, {name: unavailable(_unit(name), "process tree", error.message) for name in names})
    statuses: dict[int, dict[str, str]] = {}
    faults: dict[int, list[str]] = {}
    problem: str | None = None
    for pid in pids:
        try:
            statuses[pid], faults[pid] = _status(proc, pid), proc.stat(pid)
        except ProcessGone:
            statuses.pop(pid, None)
        except Unreadable as error:
            problem = problem or error.message
    present = tuple(pid for pid in pids if pid in statuses)
    sums = {name: _sum_status(name, field, statuses, present, problem) for name, field in STATUS_FIELDS.items()}
    for name, place in (("minor_faults", _MINOR_FAULTS), ("major_faults", _MAJOR_FAULTS)):
        sums[name] = _sum_faults(name, place, faults, present, problem)
    if reset_peak and sums["vm_hwm"].known:
        sums["vm_hwm"] = _reset_peak(proc, present, sums["vm_hwm"])
    most = {
        name: max(_bytes_of(statuses[pid].get(STATUS_FIELDS[name], "")) for pid in present)
        for name in SHARED
        if present
    }
    return TreeFigures(present, sums, most)


def _sum_status(
    name: str, field: str, statuses: dict[int, dict[str, str]], pids: tuple[int, ...], problem: str | None
) -> Measurement:
    method = f"{field} in /proc/PID/status, summed over {len(pids)} process{'es' if len(pids) != 1 else ''}"
    if problem is not None or not pids:
        return unavailable("bytes", method, problem or "no process of the tree can be read")
    total = 0
    for pid in pids:
        amount = _bytes_of(statuses[pid].get(field, ""))
        if amount < 0:
            return unavailable("bytes", method, f"/proc/{pid}/status has no {field} in kB")
        total += amount
    return measured(total, "bytes", method)


def _bytes_of(text: str) -> int:
    """What a line of status says, bytes; below zero where it is not in kB."""
    words = text.split()
    return int(words[0]) * 1024 if len(words) == 2 and words[0].isdigit() and words[1] == "kB" else -1


def _sum_faults(
    name: str, place: int, faults: dict[int, list[str]], pids: tuple[int, ...], problem: str | None
) -> Measurement:
    method = f"field {place + 3} of /proc/PID/stat, summed over the tree"
    if problem is not None or not pids:
        return unavailable("faults", method, problem or "no process of the tree can be read")
    total = 0
    for pid in pids:
        if len(faults[pid]) <= place or not faults[pid][place].isdigit():
            return unavailable("faults", method, f"/proc/{pid}/stat has no field {place + 3}")
        total += int(faults[pid][place])
    return measured(total, "faults", method)


def _reset_peak(proc: ProcFS, pids: tuple[int, ...], peak: Measurement) -> Measurement:
    for pid in pids:
        try:
            control = os.open(proc.root / str(pid) / "clear_refs", os.O_WRONLY)  # write-only by its mode; never created
            try:
                os.write(control, _RESET_PEAK)
            finally:
                os.close(control)
        except FileNotFoundError:
            if (proc.root / str(pid) / "stat").exists():
                return _not_reset(peak, f"process {pid} has no clear_refs")
        except ProcessLookupError:
            continue
        except OSError as error:
            return _not_reset(peak, f"clear_refs of process {pid}: {error.strerror}")
    return peak


def _not_reset(peak: Measurement, why: str) -> Measurement:
    """The peak stands, but the next one will not be of its own step: it is never too small."""
    return peak.model_copy(update={"detail": f"not reset for the next sample: {why}"})


def _unit(name: str) -> str:
    return "faults" if name.endswith("faults") else "bytes"


@dataclass(frozen=True)
class OutsideShare:
    """Bytes of the root's anonymous and shared-memory pages that processes outside the tree own a share of."""

    anonymous: int = 0
    shared: int = 0


def outside_share(proc: ProcFS, tree: TreeFigures) -> OutsideShare:
    """What the root shares with the outside (with the process it was forked from, say): its Rss less its Pss.

    Only a tree of one process shows it; of a larger one it cannot be told from sharing within, and nothing is assumed.
    """
    if len(tree.pids) != 1:
        return OutsideShare()
    try:
        rollup = proc.table(tree.pids[0], "smaps_rollup")
    except Unreadable:
        return OutsideShare()
    anonymous, shared = tree.sums["rss_anon"].value, tree.sums["rss_shmem"].value
    if not isinstance(anonymous, int) or not isinstance(shared, int):
        return OutsideShare()
    return OutsideShare(
        max(0, anonymous - rollup.get("Pss_Anon", anonymous)), max(0, shared - rollup.get("Pss_Shmem", shared))
    )


def distinct_pages(proc: ProcFS, tree: TreeFigures, outside: OutsideShare) -> tuple[Measurement, Measurement]:
    """The tree's anonymous and shared-memory pages, bytes, a page that several members map counted once.

    Of a tree of one process these are RssAnon and RssShmem. Of a larger one, the members' proportional shares (Pss_Anon
    and Pss_Shmem of smaps_rollup), to which the root's `outside` share is added back: a forked child maps its parent's
    pages without having a copy, and when the parent lets go the child's share becomes the whole, so that nothing that
    stays is hidden. Shares with a process that is not among the members (a child that came or went meanwhile, a parent
    that is not watched) are missing there; but it is never less than the member with most has by itself.
    """
    anonymous, shared = tree.sums["rss_anon"], tree.sums["rss_shmem"]
    if len(tree.pids) <= 1 or not anonymous.known or not shared.known:
        return anonymous, shared
    totals = [outside.anonymous, outside.shared]
    try:
        for pid in tree.pids:
            try:
                rollup = proc.table(pid, "smaps_rollup")
            except ProcessGone:
                continue
            for place, field in enumerate(("Pss_Anon", "Pss_Shmem")):
                if field not in rollup:
                    raise Unreadable(f"/proc/{pid}/smaps_rollup has no {field}")
                totals[place] += rollup[field]
    except Unreadable as error:
        why = f"pages that members share may count more than once: {error.message}"
        return anonymous.model_copy(update={"detail": why}), shared.model_copy(update={"detail": why})
    method = (
        f"{{}} in /proc/PID/smaps_rollup, summed over {len(tree.pids)} processes, or the most of one where that is more"
    )
    least = [max(total, tree.most.get(name, 0)) for total, name in zip(totals, SHARED, strict=True)]
    return (
        measured(least[0], "bytes", method.format("Pss_Anon")),
        measured(least[1], "bytes", method.format("Pss_Shmem")),
    )


def swaps(proc: ProcFS) -> Measurements:
    """Pages swapped in and out, machine-wide since boot: the kernel keeps no such count by process."""
    names = {"swap_in": "pswpin", "swap_out": "pswpout"}
    try:
        table = proc.table("vmstat")
    except Unreadable as error:
        return {name: unavailable("pages", f"{field} in /proc/vmstat", error.message) for name, field in names.items()}
    return {
        name: measured(table[field], "pages", f"{field} in /proc/vmstat, machine-wide")
        if field in table
        else unavailable("pages", f"{field} in /proc/vmstat", f"/proc/vmstat has no {field}")
        for name, field in names.items()
    }


def read_counter(proc: ProcFS, root: Roots) -> dict[int, int]:
    """rchar by member: bytes that read calls returned to it. Raises Unreadable where a member's cannot be read."""
    found = {}
    for pid in members(proc, root):
        try:
            table = proc.table(pid, "io")
        except ProcessGone:
            continue
        if "rchar" not in table:
            raise Unreadable(f"/proc/{pid}/io has no rchar")
        found[pid] = table["rchar"]
    return found
