"""Files and segments that lie in memory and that no process need map: tmpfs, System V segments, the memfds' mount."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

from realizer.procfs import BLOCK, ProcFS, Unreadable, printable

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
MOST_TMPFS_ENTRIES = 200_000
"""Directory entries on memory filesystems that are looked at before the figure is given up as unavailable."""

FilePlace = tuple[int, int]
"""Device number and inode."""


def memory_devices(proc: ProcFS) -> set[int]:
    """Device numbers of the mounted memory filesystems."""
    return {mount.device for mount in proc.mounts() if mount.kind in MEMORY_FILESYSTEMS}


@cache
def shmem_device() -> int:
    """The kernel's internal shared-memory mount, where memfds live: learnt from a memfd of our own."""
    descriptor = os.memfd_create("tally-probe")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


@cache
def huge_page_devices() -> frozenset[int]:
    """The kernel's internal mounts of huge pages, one for each size, where anonymous ones live: learnt in the same way."""
    found = set()
    sizes = Path("/sys/kernel/mm/hugepages")
    for folder in sizes.glob("hugepages-*kB"):
        size = int(folder.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        try:
            descriptor = os.memfd_create("tally-probe", os.MFD_HUGETLB | (size.bit_length() - 1) << os.MFD_HUGE_SHIFT)
        except OSError:
            continue  # a kernel or a sandbox that gives no such memfd: what is mapped under that name then counts as a file
        found.add(os.fstat(descriptor).st_dev)
        os.close(descriptor)
    return frozenset(found)


def tmpfs_files(proc: ProcFS, user: int | None = None) -> dict[FilePlace, int]:
    """Allocated bytes of the user's (this process's) regular files on writable memory filesystems, by device and inode."""
    user = os.geteuid() if user is None else user
    found: dict[FilePlace, int] = {}
    seen: set[int] = set()
    entries = 0
    for mount in proc.mounts():
        if mount.kind not in MEMORY_FILESYSTEMS or not mount.writable or mount.device in seen:
            continue
        seen.add(mount.device)
        queue = [mount.point]
        while queue:
            folder = queue.pop()
            try:
                with os.scandir(folder) as listing:
                    inside = list(listing)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                if _owned_by(folder, user):
                    raise Unreadable(f"{printable(folder)}: {error.strerror}") from error
                continue  # another user's folder, closed to this one, in which it can have put nothing
            except OSError as error:
                raise Unreadable(f"{printable(folder)}: {error.strerror}") from error
            entries += len(inside)
            if entries > MOST_TMPFS_ENTRIES:
                raise Unreadable(f"more than {MOST_TMPFS_ENTRIES} entries on memory filesystems")
            for entry in inside:
                try:
                    state = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise Unreadable(f"{printable(entry.path)}: {error.strerror}") from error
                if state.st_dev != mount.device:
                    continue
                if stat.S_ISDIR(state.st_mode):
                    queue.append(entry.path)
                elif stat.S_ISREG(state.st_mode) and state.st_uid == user:
                    found[(state.st_dev, state.st_ino)] = state.st_blocks * BLOCK
    return found


def _owned_by(folder: str, user: int) -> bool:
    try:
        return Path(folder).stat().st_uid == user
    except OSError:
        return False


def detached_segments(proc: ProcFS, user: int | None = None) -> dict[int, int]:
    """The user's (this process's) System V shared-memory segments that nobody has attached, by id: their pages, swapped ones too.

    Attached ones are mappings and looked at as such. A kernel built without them has no such file.
    """
    if not (proc.root / "sysvipc" / "shm").exists():
        return {}
    user = os.geteuid() if user is None else user
    lines = proc.text("sysvipc", "shm").splitlines()
    names = lines[0].split() if lines else []
    found = {}
    for line in lines[1:]:
        row = dict(zip(names, line.split(), strict=False))
        try:
            if int(row["nattch"]) == 0 and user in (int(row["uid"]), int(row["cuid"])):
                found[int(row["shmid"])] = int(row["rss"]) + int(row["swap"])
        except (KeyError, ValueError) as error:
            raise Unreadable(f"/proc/sysvipc/shm has another form than sysvipc(7): {error}") from error
    return found
