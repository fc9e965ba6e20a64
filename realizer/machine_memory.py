"""Memory of the whole machine and of the cgroup: recorded beside the tree's figures, since others move them too."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ledger.canonical import MAX_SAFE_INTEGER
from ledger.measurement import Measurement, Measurements, measured, unavailable
from realizer.procfs import ProcFS, Unreadable

HOST_FIELDS = {
    "anon_pages": "AnonPages",
    "shmem": "Shmem",
    "mem_available": "MemAvailable",
    "mem_free": "MemFree",
    "cached": "Cached",
}
"""Our names, and those of /proc/meminfo (kB there)."""

CGROUP_FILES = {
    2: {"current": "memory.current", "peak": "memory.peak", "limit": "memory.max", "swap": "memory.swap.current"},
    1: {"current": "memory.usage_in_bytes", "peak": "memory.max_usage_in_bytes", "limit": "memory.limit_in_bytes"},
}
"""By cgroup version: our names, and the control files (bytes)."""


def host(proc: ProcFS) -> Measurements:
    """AnonPages, Shmem, MemAvailable, MemFree and Cached, bytes. They yield no finding: the machine is not ours alone."""
    try:
        table = proc.table("meminfo")
    except Unreadable as error:
        return {
            name: unavailable("bytes", f"{field} in /proc/meminfo", error.message)
            for name, field in HOST_FIELDS.items()
        }
    return {
        name: measured(table[field], "bytes", f"{field} in /proc/meminfo")
        if field in table
        else unavailable("bytes", f"{field} in /proc/meminfo", f"/proc/meminfo has no {field}")
        for name, field in HOST_FIELDS.items()
    }


def cgroup(proc: ProcFS, pids: Collection[int], pid: int | None = None) -> Measurements:
    """The memory cgroup's figures, bytes, and `others`: its processes that are not of the tree (0: the tree's alone).

    `pid` is the process whose cgroup is meant, this one where none is given.
    """
    pid = os.getpid() if pid is None else pid
    try:
        version, folder = memory_cgroup(proc, pid)
    except Unreadable as error:
        names = [*CGROUP_FILES[2], "others"]
        return {name: unavailable(_unit(name), "memory cgroup", error.message) for name in names}
    found = {name: _control(folder / file) for name, file in CGROUP_FILES[version].items()}
    found["others"] = _others(folder, pids, pid)
    return found


def memory_cgroup(proc: ProcFS, pid: int | None = None) -> tuple[int, Path]:
    """Version (1 or 2) and folder of the cgroup that the process's (this one's) memory is charged to. Raises Unreadable."""
    pid = os.getpid() if pid is None else pid
    lines = [line.split(":", 2) for line in proc.text(pid, "cgroup").splitlines() if line.count(":") >= 2]
    paths = {1: None, 2: None} | {
        (2 if names == "" else 1): path for _, names, path in lines if names == "" or "memory" in names.split(",")
    }
    for version, kind in ((1, "cgroup"), (2, "cgroup2")):
        path = paths[version]
        if path is None:
            continue
        for mount in proc.mounts():
            if mount.kind != kind or (version == 1 and "memory" not in mount.options):
                continue
            inside = path.removeprefix(mount.root.rstrip("/")) if path.startswith(mount.root) else path
            folder = Path(mount.point) / inside.lstrip("/")
            if (folder / CGROUP_FILES[version]["current"]).exists():
                return version, folder
    raise Unreadable("no memory cgroup of the process with a usage file is mounted")


def _control(path: Path) -> Measurement:
    method = f"{path.name} of the memory cgroup"
    try:
        text = path.read_text().strip()
    except OSError as error:
        return unavailable("bytes", method, f"{path.name}: {error.strerror}")
    if text == "max" or (text.isdigit() and int(text) > MAX_SAFE_INTEGER):
        return unavailable("bytes", method, "no limit is set")
    if not text.isdigit():
        return unavailable("bytes", method, f"{path.name} holds {text[:40]!r}")
    return measured(int(text), "bytes", method)


def _others(folder: Path, pids: Collection[int], pid: int) -> Measurement:
    method = "cgroup.procs, here and below, less the tree"
    try:
        inside = {
            int(line) for file in [folder / "cgroup.procs", *folder.glob("*/**/cgroup.procs")] for line in _lines(file)
        }
    except (OSError, ValueError) as error:
        return unavailable("processes", method, f"cgroup.procs: {error}")
    if pid not in inside:
        return unavailable("processes", method, "the process is not listed: its ids are another namespace's")
    return measured(len(inside - set(pids)), "processes", method)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []  # a cgroup that was removed meanwhile


def _unit(name: str) -> str:
    return "processes" if name == "others" else "bytes"
