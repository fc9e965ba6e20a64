"""Copies hidden in memory, each planted in a quiet process of its own that prints what the probes make of it.

`measure(NAME)` runs one plant in a fresh interpreter. A plant returns the growth of every figure of the process tree
(bytes) between a sample before it and one with the copy in place, or whatever else it names.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import MemorySampled
from realizer import host_memory
from realizer.memory import PrivateRange, Ranges, SharedRange
from realizer.probes import Probes
from realizer.procfs import Mapping, MappingUse, ProcFS

MIB = 1024 * 1024
SIZE = 32 * MIB
ROOT = Path(__file__).resolve().parents[2]

PLANTS: dict[str, Callable[[], dict[str, Any]]] = {}


def plant(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    PLANTS[function.__name__] = function
    return function


@cache
def measure(name: str) -> dict[str, Any]:
    """Run one plant in a fresh interpreter; what it returned. One at a time: files on tmpfs are seen by all of a user."""
    if "RssAnon:" not in Path("/proc/self/status").read_text():
        pytest.skip("this kernel shows no memory classes in /proc/PID/status")
    with (Path(tempfile.gettempdir()) / f"tally-planted-{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-m", "tests.realizer.planted", name],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=60,
            check=False,
        )
    if done.returncode != 0:
        raise AssertionError(f"{name} failed in its process:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(sample: MemorySampled) -> dict[str, int]:
    assert all(found.known for found in sample.process.values()), sample.process
    return {name: int(found.value or 0) for name, found in sample.process.items()}


def growth(before: MemorySampled, after: MemorySampled) -> dict[str, int]:
    old, new = figures(before), figures(after)
    return {name: new[name] - old[name] for name in new}


@contextmanager
def child(program: str) -> Iterator[subprocess.Popen[str]]:
    """A child running `program`, ready when it has printed a line; ended with the block."""
    running = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert running.stdin is not None
    assert running.stdout is not None
    try:
        assert running.stdout.readline().strip() == "ready"
        yield running
    finally:
        running.stdin.close()
        running.wait(timeout=20)


def _fill(buffer: Any, size: int = SIZE) -> None:
    block = os.urandom(MIB)
    for offset in range(0, size, MIB):
        buffer[offset : offset + MIB] = block


def _map_memfd(name: str, size: int = SIZE) -> tuple[mmap.mmap, int]:
    descriptor = os.memfd_create(name)
    os.ftruncate(descriptor, size)
    return mmap.mmap(descriptor, size), descriptor


@contextmanager
def _mapped_at(start: int, length: int) -> Iterator[None]:
    """A private anonymous mapping of libc's own at exactly these addresses, which must be free."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fixed = 0x100000  # MAP_FIXED_NOREPLACE (linux/mman.h), which the mmap module does not name
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
    found = libc.mmap(start, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert found == start, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.munmap(start, length) == 0


# --- ranges -------------------------------------------------------------------------------------------------------


@plant
def private_range() -> dict[str, Any]:
    ranges = Ranges()
    probes = Probes(ranges, [])
    before = probes.baseline()
    memory = ranges.allocate("system-ram", SIZE, owner="stage")
    with memory.view() as view:
        _fill(view)
    filled = probes.sample("filled")
    mapped = memory.mapped().value
    ranges.free(memory)
    freed = probes.sample("freed")
    return {
        "filled": growth(before, filled), "freed": growth(filled, freed), "rest": growth(before, freed),
        "mapped": mapped, "mapped_after": memory.mapped().value,
    }  # fmt: skip


@plant
def shared_range() -> dict[str, Any]:
    ranges = Ranges()
    probes = Probes(ranges, [])
    before = probes.baseline()
    memory = ranges.allocate("shared-memory", SIZE, owner="bank")
    with memory.view() as view:
        _fill(view)
    filled = probes.sample("filled")
    ranges.free(memory)
    freed = probes.sample("freed")
    return {"filled": growth(before, filled), "rest": growth(before, freed), "mapped_after": memory.mapped().value}


@plant
def staged_into_shared() -> dict[str, Any]:
    """What a load on CPU does: fill private staging, copy it to a shared bank, free the staging."""
    ranges = Ranges()
    probes = Probes(ranges, [])
    before = probes.baseline()
    stage = ranges.allocate("system-ram", SIZE, owner="stage")
    with stage.view() as view:
        _fill(view)
    bank = ranges.allocate("shared-memory", SIZE, owner="bank")
    with stage.view() as source, bank.view() as target:
        target[:] = source
    staged = probes.sample("before-release")
    ranges.free(stage)
    reclaimed = probes.reclamation("stage", "after-release", stage, staged, SIZE)
    return {
        "peak": growth(before, staged), "rest": growth(before, probes.sample("after")),
        "ratio": reclaimed.ratio.value, "mapped": reclaimed.region_mapped.value,
    }  # fmt: skip


@plant
def address_taken_again() -> dict[str, Any]:
    """A freed range's addresses hold a foreign mapping, then a live range of ours.

    The kernel need not give the next mapping the same addresses, so neither is left to chance: the foreign one is put
    there, and the freed range is told that it had lain where the live one lies.
    """
    memory = PrivateRange(SIZE, owner="stage")
    memory.free()
    with _mapped_at(memory.start, memory.length):
        foreign = memory.mapped()
    ours = PrivateRange(SIZE, owner="other")
    memory.start = ours.start
    result = {
        "mapped": foreign.value, "detail": foreign.detail,
        "mapped_by_ours": memory.mapped().value, "ours": ours.mapped().value,
    }  # fmt: skip
    ours.free()
    return result


# --- hidden copies ------------------------------------------------------------------------------------------------


@plant
def unlinked_scratch_file() -> dict[str, Any]:
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    with tempfile.TemporaryFile(dir=ROOT / "build" if (ROOT / "build").is_dir() else None) as scratch:
        scratch.truncate(SIZE)
        mapped = mmap.mmap(scratch.fileno(), SIZE)
    _fill(mapped)
    return growth(before, probes.sample("planted"))


@plant
def scratch_file_mapped_before() -> dict[str, Any]:
    """The mapping is there at the baseline already, empty, and filled later."""
    with tempfile.TemporaryFile() as scratch:
        scratch.truncate(SIZE)
        mapped = mmap.mmap(scratch.fileno(), SIZE)
    probes = Probes(Ranges(), [])
    before = probes.baseline()
    _fill(mapped)
    return growth(before, probes.sample("planted"))


@plant
def child_process() -> dict[str, Any]:
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    with child(f"import os, sys\ncopy = bytearray(os.urandom({SIZE}))\nprint('ready', flush=True)\nsys.stdin.read()"):
        return growth(before, probes.sample("planted"))


@plant
def orphaned_grandchild() -> dict[str, Any]:
    """A child starts another process and ends: its grandchild must not leave the tree."""
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    inner = f"import os,sys\ncopy = bytearray(os.urandom({SIZE}))\nprint('ready', flush=True)\nsys.stdin.read()"
    outer = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True)"
    running = subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdin is not None
    assert running.stdout is not None
    assert running.stdout.readline().strip() == "ready"
    running.wait(timeout=20)
    found = growth(before, probes.sample("planted"))
    running.stdin.close()
    probes.close()
    return found


@plant
def forked_child() -> dict[str, Any]:
    """A fork maps its parent's pages: one copy, not two. When the parent lets go, the copy is still there."""
    probes = Probes(Ranges(), [])
    probes.baseline()
    copy = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _fill(copy)
    before = probes.sample("before")
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready[1], b"r")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    forked = probes.sample("forked")
    copy.close()
    kept = probes.sample("parent let go")
    os.write(go[1], b"g")
    os.waitpid(pid, 0)
    gone = probes.sample("child ended")
    return {"forked": growth(before, forked), "kept": growth(before, kept), "gone": growth(before, gone)}


@plant
def forked_child_without_staging() -> dict[str, Any]:
    """A private range is left out of forked children: its pages go when the parent frees it."""
    ranges = Ranges()
    probes = Probes(ranges, [])
    probes.baseline()
    memory = ranges.allocate("system-ram", SIZE, owner="stage")
    with memory.view() as view:
        _fill(view)
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready[1], b"r")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    before = probes.sample("before")
    ranges.free(memory)
    after = probes.sample("after")
    os.write(go[1], b"g")
    os.waitpid(pid, 0)
    return growth(before, after)


@plant
def tmpfs_file() -> dict[str, Any]:
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    path = Path("/dev/shm") / f"tally-plant-{os.getpid()}"
    try:
        path.write_bytes(os.urandom(SIZE))
        written = growth(before, probes.sample("planted"))
        with path.open("r+b") as opened:
            mapped = mmap.mmap(opened.fileno(), SIZE)
        touched = sum(mapped[offset] for offset in range(0, SIZE, 4096))
        both = growth(before, probes.sample("mapped too"))
        return {"written": written, "mapped": both, "touched": touched}
    finally:
        path.unlink(missing_ok=True)


@plant
def tmpfs_file_grown() -> dict[str, Any]:
    path = Path("/dev/shm") / f"tally-plant-{os.getpid()}"
    try:
        path.write_bytes(os.urandom(MIB))
        probes = Probes(Ranges(), [])
        before = probes.baseline()
        with path.open("ab") as opened:
            opened.write(os.urandom(SIZE))
        return growth(before, probes.sample("grown"))
    finally:
        path.unlink(missing_ok=True)


@plant
def foreign_memfd() -> dict[str, Any]:
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    mapped, descriptor = _map_memfd("copy")
    os.close(descriptor)
    _fill(mapped)
    return growth(before, probes.sample("planted"))


@plant
def memfd_named_as_ours() -> dict[str, Any]:
    """A name proves nothing: only inodes of registered ranges are the run's own."""
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    memory = SharedRange(SIZE, owner="bank")
    with memory.view() as view:
        _fill(view)
    return growth(before, probes.sample("planted"))


@plant
def unmapped_memfd() -> dict[str, Any]:
    """Held by a descriptor only: in no process figure at all."""
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    mapped, descriptor = _map_memfd("copy")
    _fill(mapped)
    mapped.close()
    assert os.fstat(descriptor).st_size == SIZE
    return growth(before, probes.sample("planted"))


class FirstSegmentProc(ProcFS):
    """As after a start of the machine: maps shows the first System V segment with its id 0 in the inode's place."""

    def maps(self, pid: int, *, files: bool = False) -> list[Mapping]:
        return [_first_segment(entry) for entry in super().maps(pid, files=files)]

    def smaps(self, pid: int, *, files: bool = False) -> Iterator[MappingUse]:
        for use in super().smaps(pid, files=files):
            yield replace(use, mapping=_first_segment(use.mapping))


def _first_segment(entry: Mapping) -> Mapping:
    return replace(entry, inode=0) if entry.path.startswith("/SYSV") else entry


@plant
def detached_segment() -> dict[str, Any]:
    """A System V segment, filled and detached: no process maps it, no descriptor holds it, no folder lists it."""
    return _segment(ProcFS())


@plant
def first_segment() -> dict[str, Any]:
    """The same, and the first since the machine started."""
    return _segment(FirstSegmentProc())


def _segment(proc: ProcFS) -> dict[str, Any]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    libc.shmdt.argtypes = (ctypes.c_void_p,)
    probes = Probes(Ranges(), [], proc=proc)
    probes.baseline()
    before = probes.sample("before")
    segment = libc.shmget(0, ctypes.c_size_t(SIZE), 0o600)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    try:
        address = libc.shmat(segment, None, 0)
        ctypes.memset(address, 7, SIZE)
        attached = growth(before, probes.sample("attached"))
        libc.shmdt(address)
        return {"attached": attached, "detached": growth(before, probes.sample("detached"))}
    finally:
        libc.shmctl(segment, 0, None)  # IPC_RMID


@plant
def emptied_shared_map() -> dict[str, Any]:
    """MADV_DONTNEED makes RssShmem of a shared map fall while its pages stay."""
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    mapped = mmap.mmap(-1, SIZE)
    _fill(mapped)
    filled = growth(before, probes.sample("filled"))
    mapped.madvise(mmap.MADV_DONTNEED)
    return {"filled": filled, "emptied": growth(before, probes.sample("emptied"))}


class NamedProc(ProcFS):
    """As where the kernel knows names of shared anonymous memory, and the process has given it one."""

    def text(self, *parts: str | int) -> str:
        text = super().text(*parts)
        return text.replace("/dev/zero (deleted)", "[anon_shmem:a]") if parts[-1] in ("maps", "smaps") else text


@plant
def named_shared_map() -> dict[str, Any]:
    """Shared anonymous memory under a name of its own, emptied."""
    probes = Probes(Ranges(), [], proc=NamedProc())
    probes.baseline()
    before = probes.sample("before")
    mapped = mmap.mmap(-1, SIZE)
    _fill(mapped)
    mapped.madvise(mmap.MADV_DONTNEED)
    return growth(before, probes.sample("emptied"))


@plant
def file_named_as_a_device() -> dict[str, Any]:
    """A scratch file on a disk under names that maps shows for huge pages and for devices."""
    probes = Probes(Ranges(), [], proc=RenamedProc())
    probes.baseline()
    before = probes.sample("before")
    grown = {}
    for name in RenamedProc.NAMES:
        RenamedProc.name = name
        with tempfile.TemporaryFile() as file:
            file.write(os.urandom(SIZE))
            file.flush()
            mapped = mmap.mmap(file.fileno(), SIZE)
        mapped[0] = 1
        grown[name] = growth(before, probes.sample("planted"))["tree_sum"]
        mapped.close()
    return grown


class RenamedProc(ProcFS):
    """As when the unlinked scratch file had been made under another name, for which this user may lack the rights."""

    NAMES = (
        "/anon_hugepage (deleted)",
        "/anon_hugepage.bin (deleted)",
        "/dev/hugepages/a (deleted)",
        "/dev/a (deleted)",
    )
    name = ""

    def text(self, *parts: str | int) -> str:
        text = super().text(*parts)
        if parts[-1] not in ("maps", "smaps") or not self.name:
            return text
        return re.sub(re.escape(tempfile.gettempdir()) + r"/\S+ \(deleted\)", self.name, text)


@plant
def anonymous_huge_pages() -> dict[str, Any]:
    """Named by the kernel; HugetlbPages has what they hold."""
    reserve_none = 0x4000  # MAP_NORESERVE, so that the machine needs to have none
    try:
        mapped = mmap.mmap(
            -1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000 | reserve_none
        )  # MAP_HUGETLB
    except OSError:
        return {}
    probes = Probes(Ranges(), [])
    probes.baseline()
    files = probes._files._files([os.getpid()]).values()
    mapped.close()
    return {"files": [file.key[2] for file in files if "huge" in file.key[2]]}


@plant
def emptied_shared_range() -> dict[str, Any]:
    """The same of a range of the run's own: what is hidden so makes room for a copy that nobody would miss."""
    ranges = Ranges()
    probes = Probes(ranges, [])
    probes.baseline()
    before = probes.sample("before")
    memory = ranges.allocate("shared-memory", SIZE, owner="bank")
    with memory.view() as view:
        _fill(view)
    filled = growth(before, probes.sample("filled"))
    assert host_memory._libc.madvise(memory.start, SIZE, mmap.MADV_DONTNEED) == 0
    emptied = growth(before, probes.sample("emptied"))
    ranges.free(memory)
    return {"filled": filled, "emptied": emptied, "freed": growth(before, probes.sample("freed"))}


@plant
def checkpoint_mapping() -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(os.urandom(SIZE))
        file.flush()
        probes = Probes(Ranges(), [Path(file.name)], private=True)
        probes.baseline()
        before = probes.sample("before")
        mapped = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
        touched = sum(mapped[offset] for offset in range(0, SIZE, 4096))
        sample = probes.sample("mapped")
        return {"touched": touched, "files": sample.mapped_files, "name": Path(file.name).name} | growth(before, sample)


@plant
def checkpoint_mapped_before_the_baseline() -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(os.urandom(SIZE))
        file.flush()
        mapped = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
        touched = sum(mapped[offset] for offset in range(0, SIZE, 4096))
        probes = Probes(Ranges(), [Path(file.name)])
        return {"touched": touched} | figures(probes.baseline())


@plant
def copy_named_as_a_library() -> dict[str, Any]:
    """Neither the name nor an executable mapping makes a file of data a library."""
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(os.urandom(SIZE))
        file.flush()
        mapped = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        touched = sum(mapped[offset] for offset in range(0, SIZE, 4096))
        return {"touched": touched} | growth(before, probes.sample("mapped"))


@plant
def library_loaded_later() -> dict[str, Any]:
    probes = Probes(Ranges(), [])
    probes.baseline()
    before = probes.sample("before")
    import sqlite3

    assert sqlite3.sqlite_version
    found = growth(before, probes.sample("loaded"))
    return {"loaded": "_sqlite3" in sys.modules} | found


@plant
def peak_of_each_step() -> dict[str, Any]:
    probes = Probes(Ranges(), [])
    before = figures(probes.baseline())
    copy = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _fill(copy)
    copy.close()
    during = figures(probes.sample("peak within"))
    after = figures(probes.sample("quiet"))
    return {"during": during["vm_hwm"] - before["vm_rss"], "after": after["vm_hwm"] - before["vm_rss"]}


@plant
def cost_of_a_sample() -> dict[str, Any]:
    probes = Probes(Ranges(), [])
    probes.baseline()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        probes.sample("idle")
        times.append(time.perf_counter() - started)
    return {"seconds": min(times)}


# --- tensors ------------------------------------------------------------------------------------------------------


@plant
def hidden_tensor() -> dict[str, Any]:
    import torch

    ranges = Ranges()
    probes = Probes(ranges, [])
    early = torch.zeros(1000)
    probes.baseline()
    bank = ranges.allocate("shared-memory", SIZE, owner="bank")
    weight = bank.tensor(torch.float32, (1024, 1024), 0)
    tied = torch.nn.Parameter(weight)
    rows = weight[10:20]
    hidden = torch.ones(SIZE // 4)
    alias = hidden.view(2, -1)
    kept = torch.ones(1000)
    probes.evidence("reference", [kept, kept[5:]])
    found = probes.sample("planted").census
    assert found is not None
    result = {
        "by_owner": {owner: count.value for owner, count in found.by_owner.items()},
        "unowned": found.unowned_host_bytes.value, "storages": found.unowned_host_storages.value,
        "detail": found.unowned_host_bytes.detail,
        "roles": {role: count.value for role, count in found.evidence_host_by_role.items()},
        "kept": early.numel() + tied.numel() + rows.numel() + alias.numel(),
    }  # fmt: skip
    del kept
    later = torch.ones(1000)  # may take the evidence's address: it is evidence no longer
    found = probes.sample("evidence gone").census
    assert found is not None
    result["roles_after"] = {role: count.value for role, count in found.evidence_host_by_role.items()}
    result["unowned_after"] = found.unowned_host_bytes.value
    result["later"] = later.numel()
    return result


@plant
def live_view_of_staging() -> dict[str, Any]:
    import torch

    from realizer.memory import RangeInUse

    ranges = Ranges()
    probes = Probes(ranges, [])
    probes.baseline()
    stage = ranges.allocate("system-ram", SIZE, owner="stage")
    tensors = [stage.tensor(torch.uint8, (MIB,), index * MIB).fill_(1) for index in range(8)]
    from ledger.plan import Materialization
    from realizer.adapter import pack

    layout = pack("checkpoint-native-host", [(f"t{n}", "U8", (MIB,), ()) for n in range(8)])
    planned = Materialization(
        id="stage", logical_state_id="w", memory_resource_id="node-a.ram", representation="checkpoint-native-host",
        role="staging", persistence="transient", requirement="required", expected_bytes=8 * MIB,
    )  # fmt: skip
    probes.resources = {"ram": "node-a.ram", "shm": "node-a.shm"}
    observed = probes.observe(planned, layout, stage)
    view = tensors[3][100:200]
    tensors.clear()
    before = probes.sample("before-release")
    total, alive = probes.owners(stage)
    live = probes.live_bytes(stage)
    refused = False
    try:
        ranges.free(stage)
    except RangeInUse:
        refused = True
    kept = probes.reclamation("stage", "after-release", stage, before, 8 * MIB)
    result = {
        "observed": json.loads(observed.model_dump_json()), "total": total.value, "alive": alive.value,
        "live": live.value, "refused": refused, "mapped": kept.region_mapped.value, "ratio": kept.ratio.value,
        "seen": int(view.sum()),
    }  # fmt: skip
    del view
    ranges.free(stage)
    gone = probes.reclamation("stage", "after-release", stage, before, 8 * MIB)
    result |= {
        "mapped_after": gone.region_mapped.value, "ratio_after": gone.ratio.value,
        "alive_after": gone.owners_alive.value, "total_after": gone.owners_total.value,
        "live_after": probes.live_bytes(stage).value,
    }  # fmt: skip
    return result


if __name__ == "__main__":
    print(json.dumps(PLANTS[sys.argv[1]]()))
