"""Whether the figures of one sample can all be true: a sum is that of its parts, and a whole no less than what is in it."""

from __future__ import annotations

from ledger.measurement import Measurements
from ledger.reconcile.reading import number

CLASSES = ("rss_anon", "rss_shmem", "vm_swap", "hugetlb")
"""What `tree_sum` adds up, beside files that none of these has."""

FILES = ("new_file_mappings", "new_tmpfs_files")


def misfits(process: Measurements, noise: int) -> dict[str, object]:
    """Figures of the process tree (bytes) that contradict their parts: name -> the figure and what its parts allow.

    `tree_sum` is what the classes come to, and at most the files beyond them: exactly, for a tree of one process (as its
    own `processes` says, or where that is not recorded); what of the files RssShmem has already is not added again. Pages
    that several share are in the sum once and in the classes more often, so that of a larger tree only the most is
    bounded, give or take `noise`. VmRSS is RssAnon + RssFile + RssShmem, and its peak is no less.
    """
    wrong: dict[str, object] = {}
    members = number(process.get("processes"), None)
    alone = members is None or members <= 1
    total = number(process.get("tree_sum"))
    classes = [number(process.get(name)) for name in CLASSES]
    files = [number(process.get(name)) for name in FILES]
    least = sum(part for part in classes if part is not None)
    if total is not None and alone and total < least:
        wrong["tree_sum"] = {"is": total, "at least": least}
    largest = max((part for part in files if part is not None), default=0) - (number(process.get("rss_shmem")) or 0)
    if total is not None and alone and total + noise < least + largest:
        wrong["tree_sum"] = {"is": total, "at least": least + largest}
    if total is not None and None not in (*classes, *files):
        most = least + sum(part for part in files if part is not None)
        if total > most + (0 if alone else noise):
            wrong["tree_sum"] = {"is": total, "at most": most}
    resident = number(process.get("vm_rss"))
    parts = [number(process.get(name)) for name in ("rss_anon", "rss_file", "rss_shmem")]
    if resident is not None and None not in parts:
        summed = sum(part for part in parts if part is not None)
        if abs(resident - summed) > noise:
            wrong["vm_rss"] = {"is": resident, "parts": summed}
    peak = number(process.get("vm_hwm"))
    if peak is not None and resident is not None and peak + noise < resident:
        wrong["vm_hwm"] = {"is": peak, "at least": resident}
    return wrong
