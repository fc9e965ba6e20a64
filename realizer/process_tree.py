"""The process tree's memory as the kernel counts it: this process and every descendant, summed class by class.

A staged copy in a child moves none of its parent's figures, so nothing is read of one process alone. A field that one
member does not show makes the sum unavailable, with the reason: a part of a sum is not the sum.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from ledger.events import Measurement, Measurements, measured, unavailable
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

_MINOR_FAULTS, _MAJOR_FAULTS, _STATE, _PARENT = 7, 9, 0, 1
"""Places in the fields of /proc/PID/stat from the third on (proc_pid_stat(5): fields 10, 12, 3 and 4)."""
_RESET_PEAK = "5"
"""What resets VmHWM when written to clear_refs (proc_pid_clear_refs(5))."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class TreeFigures:
    """One look at the tree: its members (the root first), and the sums by our names of the classes."""

    pids: tuple[int, ...]
    sums: Measurements


def members(proc: ProcFS, root: int) -> list[int]:
    """The process and all its descendants that have memory (ended ones that wait to be collected have none)."""
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
    found, queue = [], [root]
    while queue:
        pid = queue.pop(0)
        if pid not in ended:
            found.append(pid)
        queue += sorted(children.get(pid, []))
    return found


def adopt_orphans(adopt: bool) -> bool:
    """Make descendants whose parents end come to this process, so that none leaves the tree. False where it cannot."""
    return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(int(adopt)), 0, 0, 0) == 0


def figures(proc: ProcFS, root: int, *, reset_peak: bool = True) -> TreeFigures:
    """The tree's sums. VmHWM is the peak since the last reset of every member; the sum bounds the tree's peak."""
    try:
        pids = members(proc, root)
    except Unreadable as error:
        names = [*STATUS_FIELDS, "minor_faults", "major_faults"]
        return TreeFigures((root,), {name: unavailable(_unit(name), "process tree", error.message) for name in names})
    statuses: dict[int, dict[str, str]] = {}
    faults: dict[int, list[str]] = {}
    problem: str | None = None
    for pid in pids:
        try:
            statuses[pid], faults[pid] = proc.status(pid), proc.stat(pid)
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
    return TreeFigures(present, sums)


def _sum_status(
    name: str, field: str, statuses: dict[int, dict[str, str]], pids: tuple[int, ...], problem: str | None
) -> Measurement:
    method = f"{field} in /proc/PID/status, summed over {len(pids)} process{'es' if len(pids) != 1 else ''}"
    if problem is not None or not pids:
        return unavailable("bytes", method, problem or "no process of the tree can be read")
    total = 0
    for pid in pids:
        words = statuses[pid].get(field, "").split()
        if len(words) != 2 or not words[0].isdigit() or words[1] != "kB":
            return unavailable("bytes", method, f"/proc/{pid}/status has no {field} in kB")
        total += int(words[0]) * 1024
    return measured(total, "bytes", method)


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
            (proc.root / str(pid) / "clear_refs").write_text(_RESET_PEAK)
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


def distinct_pages(proc: ProcFS, tree: TreeFigures) -> tuple[Measurement, Measurement]:
    """The tree's anonymous and shared-memory pages, bytes, a page that several members map not counted for each.

    Of a tree of one process these are RssAnon and RssShmem. Of a larger tree, the root's, and the descendants'
    proportional shares (Pss_Anon and Pss_Shmem of smaps_rollup): a forked child maps its parent's pages without having
    a copy, and when the parent lets go the child's share becomes whole, so nothing that stays is hidden.
    """
    anonymous, shared = tree.sums["rss_anon"], tree.sums["rss_shmem"]
    if len(tree.pids) <= 1 or not anonymous.known or not shared.known:
        return anonymous, shared
    totals = [0, 0]
    try:
        root = proc.status(tree.pids[0])
        for place, field in enumerate(("RssAnon", "RssShmem")):
            totals[place] = int(root[field].split()[0]) * 1024
        for pid in tree.pids[1:]:
            try:
                rollup = proc.table(pid, "smaps_rollup")
            except ProcessGone:
                continue
            for place, field in enumerate(("Pss_Anon", "Pss_Shmem")):
                totals[place] += rollup[field]
    except (Unreadable, KeyError, ValueError, IndexError) as error:
        why = f"shares of descendants cannot be read ({error}): shared pages may count more than once"
        return (
            anonymous.model_copy(update={"detail": why}),
            shared.model_copy(update={"detail": why}),
        )
    method = "the root's {} and the descendants' {}"
    return (
        measured(totals[0], "bytes", method.format("RssAnon", "Pss_Anon")),
        measured(totals[1], "bytes", method.format("RssShmem", "Pss_Shmem")),
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


def read_counter(proc: ProcFS, root: int) -> dict[int, int]:
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
