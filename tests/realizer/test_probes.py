"""Probes: every planted copy is seen with its size, and what cannot be read is unknown and never zero."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger import canonical
from ledger.bodies import BODIES, MaterializationObserved, MemorySampled, ReclamationObserved
from ledger.measurement import Measurement
from ledger.plan import Materialization
from realizer import accelerator, held_pages, machine_memory, memory_files, process_tree
from realizer.adapter import Layout, pack
from realizer.held_pages import HeldPagesWatch
from realizer.memory import DeviceRange, MemoryRange, Ranges
from realizer.probes import Probes
from realizer.procfs import ProcFS, Unreadable, parse_maps_line
from tests.realizer.planted import MIB, SIZE, RenamedProc, measure

torch = pytest.importorskip("torch")

PROCESS_KEYS = {
    "vm_rss", "vm_hwm", "rss_anon", "rss_file", "rss_shmem", "vm_swap", "hugetlb", "vm_pin", "minor_faults",
    "major_faults", "swap_in", "swap_out", "new_file_mappings", "checkpoint_mappings", "new_tmpfs_files", "tree_sum",
}  # fmt: skip


INTERPRETER = 16 * MIB
"""More than the pages that an interpreter of its own takes, or that two share after a fork until either writes to them."""


def near(value: int, expected: int, tolerance: int = 4 * MIB) -> bool:
    """Within what an interpreter's own pages move by; the copies here are SIZE, 32 MiB."""
    return abs(value - expected) <= tolerance


# --- planted copies -----------------------------------------------------------------------------------------------

PLANTED = {
    # plant: (figures that grow by the copy's size, figures that do not move)
    "unlinked_scratch_file": ({"new_file_mappings", "rss_file"}, {"rss_anon", "rss_shmem", "new_tmpfs_files"}),
    "scratch_file_mapped_before": ({"new_file_mappings", "rss_file"}, {"rss_anon", "rss_shmem", "new_tmpfs_files"}),
    "tmpfs_file_grown": ({"new_tmpfs_files"}, {"rss_anon", "rss_file", "rss_shmem", "new_file_mappings"}),
    "foreign_memfd": ({"new_file_mappings", "rss_shmem"}, {"rss_anon", "rss_file", "new_tmpfs_files"}),
    "memfd_named_as_ours": ({"new_file_mappings", "rss_shmem"}, {"rss_anon", "rss_file", "new_tmpfs_files"}),
    "unmapped_memfd": ({"new_file_mappings"}, {"rss_anon", "rss_file", "rss_shmem", "new_tmpfs_files"}),
    "checkpoint_mapping": ({"new_file_mappings", "checkpoint_mappings", "rss_file"}, {"rss_anon", "rss_shmem"}),
    "copy_named_as_a_library": ({"new_file_mappings", "rss_file"}, {"rss_anon", "rss_shmem", "checkpoint_mappings"}),
}


@pytest.mark.parametrize("plant", sorted(PLANTED))
def test_a_planted_copy_is_seen_with_its_size_and_counted_once(plant: str) -> None:
    grown, still = PLANTED[plant]
    found = measure(plant)
    assert {name for name in grown | {"tree_sum"} if not near(found[name], SIZE)} == set()
    assert {name for name in still if not near(found[name], 0)} == set()


@pytest.mark.parametrize("plant", ["child_process", "orphaned_grandchild"])
def test_a_copy_in_another_process_of_the_tree_is_seen(plant: str) -> None:
    found = measure(plant)
    assert SIZE <= found["rss_anon"] <= SIZE + INTERPRETER
    assert SIZE <= found["tree_sum"] <= SIZE + INTERPRETER


def test_a_fork_is_no_second_copy_until_the_parent_lets_go() -> None:
    found = measure("forked_child")
    assert found["forked"]["rss_anon"] > SIZE, "the kernel counts the pages for both"
    assert near(found["forked"]["tree_sum"], 0, INTERPRETER)
    assert near(found["kept"]["tree_sum"], 0, INTERPRETER), (
        "the parent gave nothing back: the child still has the pages"
    )
    assert near(found["gone"]["tree_sum"], -SIZE)


def test_a_tmpfs_file_counts_once_also_when_it_is_mapped() -> None:
    found = measure("tmpfs_file")
    assert (found["written"]["new_tmpfs_files"], found["written"]["rss_shmem"]) == (SIZE, 0)
    assert near(found["written"]["tree_sum"], SIZE)
    assert found["mapped"]["rss_shmem"] == SIZE
    assert found["mapped"]["new_file_mappings"] == SIZE
    assert near(found["mapped"]["tree_sum"], SIZE)


def test_emptying_a_shared_map_gives_nothing_back() -> None:
    found = measure("emptied_shared_map")
    assert found["filled"]["rss_shmem"] == SIZE
    assert found["emptied"]["rss_shmem"] == 0, "what the kernel's class says"
    assert near(found["emptied"]["tree_sum"], SIZE), "what is true"


def test_a_name_of_its_own_hides_no_shared_memory() -> None:
    found = measure("named_shared_map")
    assert (found["rss_shmem"], found["new_file_mappings"]) == (0, SIZE)
    assert near(found["tree_sum"], SIZE)


def test_a_file_named_as_huge_pages_or_as_a_device_is_a_file() -> None:
    assert {name: near(grown, SIZE) for name, grown in measure("file_named_as_a_device").items()} == dict.fromkeys(
        RenamedProc.NAMES, True
    )


def test_anonymous_huge_pages_are_no_file() -> None:
    found = measure("anonymous_huge_pages")
    if not found:
        pytest.skip("this kernel has no huge pages")
    assert found["files"] == []


def test_emptying_a_shared_range_of_the_run_gives_nothing_back() -> None:
    found = measure("emptied_shared_range")
    assert (found["filled"]["rss_shmem"], found["filled"]["new_file_mappings"]) == (SIZE, 0)
    assert near(found["filled"]["tree_sum"], SIZE)
    assert (found["emptied"]["rss_shmem"], found["emptied"]["new_file_mappings"]) == (0, SIZE)
    assert near(found["emptied"]["tree_sum"], SIZE)
    assert near(found["freed"]["tree_sum"], 0)


def test_a_file_with_name_and_number_of_a_range_is_not_the_range() -> None:
    ranges = Ranges()
    memory = ranges.allocate("shared-memory", 4096, owner="bank")
    (entry,) = [entry for entry in ProcFS().maps(os.getpid()) if entry.start == memory.start]
    watch = HeldPagesWatch(ProcFS(), ranges, [])
    key = (entry.device, entry.inode, entry.path)
    assert watch._is_own(held_pages.MappedFile(key, in_memory=True, unlinked=True))
    for other in ((key[0] + 1, *key[1:]), (key[0], key[1] + 1, key[2]), (*key[:2], "/SYSV00000000")):
        assert not watch._is_own(held_pages.MappedFile(other, in_memory=True, unlinked=True))
    ranges.free(memory)


@pytest.mark.parametrize("plant", ["detached_segment", "first_segment"])
def test_a_segment_that_nobody_has_attached_still_holds_its_pages(plant: str) -> None:
    found = measure(plant)
    assert near(found["attached"]["new_file_mappings"], SIZE)
    assert near(found["attached"]["tree_sum"], SIZE)
    assert found["detached"]["rss_shmem"] == 0
    assert near(found["detached"]["new_file_mappings"], SIZE)
    assert near(found["detached"]["tree_sum"], SIZE)


def test_segments_listed_in_another_form_are_unknown(proc: ProcFS) -> None:
    (proc.root / "sysvipc").mkdir()
    (proc.root / "sysvipc" / "shm").write_text("key shmid\n0 1\n")
    assert "another form" in _unknown(_sample(proc).process)["new_file_mappings"]


def test_a_checkpoint_mapped_before_the_baseline_is_still_seen() -> None:
    assert measure("checkpoint_mapped_before_the_baseline")["checkpoint_mappings"] == SIZE


def test_the_mapped_checkpoint_is_named_without_its_folder_when_private() -> None:
    found = measure("checkpoint_mapping")
    assert found["files"] == [found["name"]]


def test_a_library_loaded_later_is_no_copy() -> None:
    found = measure("library_loaded_later")
    assert found["loaded"]
    assert found["new_file_mappings"] == 0


def test_the_peak_is_of_its_own_step() -> None:
    found = measure("peak_of_each_step")
    assert near(found["during"], SIZE, 4 * MIB)
    assert near(found["after"], 0, 4 * MIB)


# --- the census ---------------------------------------------------------------------------------------------------


def test_the_census_names_owner_role_and_what_nobody_explains() -> None:
    found = measure("hidden_tensor")
    assert found["by_owner"] == {"bank": 4 * MIB}, "ties and views are the same storage"
    assert (found["unowned"], found["storages"]) == (SIZE, 1)
    assert "float32" in found["detail"]
    assert found["roles"] == {"reference": 4000}
    assert found["roles_after"] == {"reference": 0}, "evidence that is gone explains nothing"
    assert found["unowned_after"] == SIZE + 4000, "not even a storage that took its address"


def test_a_live_view_of_staging_keeps_owner_bytes_and_region() -> None:
    found = measure("live_view_of_staging")
    seen = found["observed"]
    assert seen["memory_resource_id"]["value"] == "node-a.ram"
    assert seen["representation"]["value"] == "checkpoint-native-host"
    assert [seen[name]["value"] for name in ("bytes", "storages", "tensors", "live")] == [8 * MIB, 8, 8, 1]
    assert (found["total"], found["alive"], found["live"]) == (8, 1, MIB)
    assert found["refused"]
    assert (found["mapped"], found["mapped_after"]) == (1, 0)
    assert found["ratio"] < 0.5, "nothing of the 8 MiB went, and of an interpreter's own pages at most 4"
    assert found["ratio_after"] > 0.5, "8 MiB went, of which an interpreter's own pages may take back 4"
    assert (found["total_after"], found["alive_after"], found["live_after"]) == (8, 0, 0)


@pytest.fixture
def ranges() -> Any:
    made = Ranges()
    yield made
    assert made.free_all() == []


def planned(memory_resource_id: str = "node-a.shm", representation: str = "native") -> Materialization:
    return Materialization(
        id="m", logical_state_id="w", memory_resource_id=memory_resource_id, representation=representation,
        role="required_residency", persistence="persistent", requirement="required", expected_bytes=96,
    )  # fmt: skip


LAYOUT = pack("native", [("a", "F32", (4, 4), ()), ("b", "BF16", (16,), ())])
RESOURCES = {"ram": "node-a.ram", "shm": "node-a.shm", "cuda:0.vram": "gpu0.vram"}


def realize(memory: MemoryRange, layout: Layout = LAYOUT) -> list[Any]:
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8}
    return [memory.tensor(dtypes[place.dtype], place.shape, place.offset) for place in layout.places]


def test_what_was_realised_is_observed_as_planned(ranges: Ranges) -> None:
    memory = ranges.allocate("shared-memory", LAYOUT.length, owner="m")
    held = realize(memory)
    seen = Probes(ranges, [], RESOURCES).observe(planned(), LAYOUT, memory)
    assert isinstance(seen, MaterializationObserved)
    assert (seen.memory_resource_id.value, seen.representation.value) == ("node-a.shm", "native")
    assert (seen.bytes.value, seen.storages.value, seen.tensors.value, seen.live.value) == (96, 2, 2, 1)
    assert all(fact.observed for fact in (seen.memory_resource_id, seen.representation, seen.bytes, seen.live))
    assert [(found.space, found.start, found.length) for found in seen.ranges] == [
        ("host", memory.start, memory.length)
    ]
    del held


def test_private_memory_where_shared_was_planned_comes_out_as_the_other_resource(ranges: Ranges) -> None:
    memory = ranges.allocate("system-ram", LAYOUT.length, owner="m")
    held = realize(memory)
    seen = Probes(ranges, [], RESOURCES).observe(planned("node-a.shm"), LAYOUT, memory)
    assert seen.memory_resource_id.value == "node-a.ram"
    del held


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "unplanned:shm"),
        ({"ram": "node-a.ram"}, "unplanned:shm"),
        ({"shared-memory": "by-kind"}, "by-kind"),
        ({"shm": "by-key", "shared-memory": "by-kind"}, "by-key"),
    ],
)
def test_the_planned_resource_is_never_echoed(ranges: Ranges, resources: dict[str, str], expected: str) -> None:
    memory = ranges.allocate("shared-memory", LAYOUT.length, owner="m")
    held = realize(memory)
    assert Probes(ranges, [], resources).observe(planned(), LAYOUT, memory).memory_resource_id.value == expected
    del held


def test_a_private_mapping_of_a_file_is_called_what_it_is(ranges: Ranges, tmp_path: Path) -> None:
    """As when a loader leaves the parameters in a mapping of the checkpoint file."""
    memory = ranges.allocate("shared-memory", LAYOUT.length, owner="m")
    held = realize(memory)
    line = f"{memory.start:x}-{memory.start + memory.length:x} rw-p 00000000 fe:01 77 /models/model.safetensors\n"
    process = tmp_path / str(os.getpid())
    process.mkdir()
    (process / "maps").write_text(line)
    seen = Probes(ranges, [], RESOURCES, proc=ProcFS(tmp_path)).observe(planned(), LAYOUT, memory)
    assert seen.memory_resource_id.value == "unplanned:file mapping of model.safetensors"
    del held


def test_views_of_a_device_range_are_its_owners(ranges: Ranges) -> None:
    memory = DeviceRange(LAYOUT.length, owner="m", device="cpu")
    ranges._ranges.append(memory)
    probes = Probes(ranges, [], RESOURCES)
    held = realize(memory)
    seen = probes.observe(planned("gpu0.vram"), LAYOUT, memory)
    assert (seen.bytes.value, seen.tensors.value, seen.live.value) == (96, 2, 1)
    assert [found.value for found in probes.owners(memory)] == [2, 2]
    held.pop()
    assert [found.value for found in probes.owners(memory)] == [2, 1]
    held.clear()
    assert [found.value for found in probes.owners(memory)] == [2, 0]
    assert probes.live_bytes(memory).value == 0


def _wrong_dtype(memory: MemoryRange) -> list[Any]:
    return [memory.tensor(torch.int32, (4, 4), 0), memory.tensor(torch.bfloat16, (16,), 64)]


def _wrong_shape(memory: MemoryRange) -> list[Any]:
    return [memory.tensor(torch.float32, (2, 8), 0), memory.tensor(torch.bfloat16, (16,), 64)]


def _transposed(memory: MemoryRange) -> list[Any]:
    return [memory.tensor(torch.float32, (4, 4), 0).t(), memory.tensor(torch.bfloat16, (16,), 64)]


def _moved(memory: MemoryRange) -> list[Any]:
    return [memory.tensor(torch.float32, (4, 4), 64), memory.tensor(torch.bfloat16, (16,), 0)]


def _one_missing(memory: MemoryRange) -> list[Any]:
    return [memory.tensor(torch.float32, (4, 4), 0)]


def _elsewhere(memory: MemoryRange) -> list[Any]:
    return [torch.empty(4, 4), torch.empty(16, dtype=torch.bfloat16)]


def _one_more(memory: MemoryRange) -> list[Any]:
    return [*realize(memory), memory.tensor(torch.uint8, (8,), 1024)]


@pytest.mark.parametrize(
    "wrong", [_wrong_dtype, _wrong_shape, _transposed, _moved, _one_missing, _elsewhere, _one_more]
)
def test_another_form_than_laid_out_has_not_the_representations_name(ranges: Ranges, wrong: Any) -> None:
    memory = ranges.allocate("shared-memory", 4096, owner="m")
    held = wrong(memory)
    seen = Probes(ranges, [], RESOURCES).observe(planned(), LAYOUT, memory)
    assert str(seen.representation.value).startswith("unrecognised")
    assert seen.representation.detail
    assert seen.live.value == int(wrong is not _elsewhere)
    del held


@pytest.mark.parametrize("dtype", ["F4", "F8_E8M0", "F6_E2M3"])
def test_dtypes_that_torch_may_not_have_can_lie_there_as_bytes(ranges: Ranges, dtype: str) -> None:
    layout = pack("native", [("a", dtype, (4, 32), ())])
    memory = ranges.allocate("shared-memory", layout.length, owner="m")
    held = memory.tensor(torch.uint8, (layout.bytes,), 0)
    seen = Probes(ranges, [], RESOURCES).observe(planned(), layout, memory)
    assert seen.representation.value == "native"
    del held


def test_owners_of_a_range_that_was_never_observed_are_unknown(ranges: Ranges) -> None:
    memory = ranges.allocate("system-ram", 4096, owner="m")
    total, alive = Probes(ranges, []).owners(memory)
    assert (total.status, alive.value) == ("unavailable", 0)


@pytest.mark.parametrize("holder", ["view", "array"])
def test_a_buffer_that_is_no_tensor_is_an_owner_too(ranges: Ranges, holder: str) -> None:
    memory = ranges.allocate("system-ram", 4096, owner="m")
    held: Any = memory.view() if holder == "view" else memory.tensor(torch.uint8, (16,), 0).numpy()
    _, alive = Probes(ranges, []).owners(memory)
    assert alive.value == 1
    assert "buffer" in str(alive.detail) or holder == "array"
    del held


def test_the_compute_unit_is_where_the_tensors_are_and_not_what_the_adapter_says(ranges: Ranges) -> None:
    memory = ranges.allocate("shared-memory", LAYOUT.length, owner="m")
    probes = Probes(ranges, [], RESOURCES)
    bindings = {"cpu0": "cpu", "gpu0": "cuda:0", "node-a.shm": "shm"}
    nothing = probes.compute_unit(["m"], torch.device("cpu"), bindings)
    assert nothing.status == "unavailable"
    held = realize(memory)
    found = probes.compute_unit(["m"], torch.device("cuda", 0), bindings)
    assert found.value == "cpu0"
    assert found.detail == "the adapter says cuda:0"
    assert probes.compute_unit(["m"], torch.device("cpu"), {"gpu0": "cuda:0"}).value == "unplanned:cpu"
    del held


def test_a_sample_records_every_figure_by_its_name(ranges: Ranges) -> None:
    probes = Probes(ranges, [])
    sample = probes.baseline()
    assert sample.label == "baseline"
    assert set(sample.process) == PROCESS_KEYS | {"processes"}
    assert set(sample.host) == {"anon_pages", "shmem", "mem_available", "mem_free", "cached"}
    assert set(sample.cgroup) >= {"current", "peak", "limit", "others"}
    assert MemorySampled in BODIES
    process = sample.process
    parts = [process[name].value for name in ("rss_anon", "rss_shmem", "vm_swap", "hugetlb")]
    if "1 process" in process["vm_rss"].method:
        assert process["tree_sum"].value == sum(int(part or 0) for part in parts)


def test_a_sample_without_a_baseline_does_not_pretend_to_one(ranges: Ranges) -> None:
    sample = Probes(ranges, []).sample("early")
    for name in ("new_file_mappings", "checkpoint_mappings", "new_tmpfs_files", "tree_sum"):
        assert sample.process[name].status == "unavailable"
        assert "baseline" in str(sample.process[name].detail)


def test_reclamation_of_an_unknown_sum_is_unknown(ranges: Ranges) -> None:
    memory = ranges.allocate("system-ram", 4096, owner="m")
    probes = Probes(ranges, [])
    before = probes.sample("no baseline")
    found = probes.reclamation("m", "after-release", memory, before, 4096)
    assert isinstance(found, ReclamationObserved)
    assert (found.ratio.value, found.ratio.status) == (None, "unavailable")
    probes.baseline()
    before = probes.sample("before")
    nothing = probes.reclamation("m", "after-release", memory, before, 0)
    assert (nothing.ratio.value, nothing.ratio.status) == (None, "unavailable")


# --- kernels that show less ---------------------------------------------------------------------------------------


@pytest.fixture
def proc(tmp_path: Path) -> ProcFS:
    """A copy of what /proc shows of this process alone, to take things out of."""
    root = tmp_path / "proc"
    mine = root / str(os.getpid())
    (mine / "fd").mkdir(parents=True)
    for name in ("status", "maps", "smaps", "mountinfo", "cgroup", "io", "smaps_rollup"):
        (mine / name).write_bytes(Path("/proc/self", name).read_bytes())
    stat = Path("/proc/self/stat").read_text()
    (mine / "stat").write_text(stat)
    (mine / "clear_refs").write_text("")
    for name in ("meminfo", "vmstat"):
        (root / name).write_bytes(Path("/proc", name).read_bytes())
    return ProcFS(root)


def _without(proc: ProcFS, file: str, field: str) -> None:
    path = proc.root / file.replace("PID", str(os.getpid()))
    kept = [line for line in path.read_text().splitlines(keepends=True) if not line.startswith(field)]
    path.write_text("".join(kept))


def _sample(proc: ProcFS) -> MemorySampled:
    probes = Probes(Ranges(), [], proc=proc)
    probes.baseline()
    return probes.sample("now")


def _unknown(figures: dict[str, Measurement]) -> dict[str, str]:
    assert all((found.value is None) == (found.status == "unavailable") for found in figures.values())
    return {name: str(found.detail) for name, found in figures.items() if found.value is None}


def test_the_whole_copy_is_readable(proc: ProcFS) -> None:
    sample = _sample(proc)
    assert _unknown(sample.process) == {}
    assert (proc.root / str(os.getpid()) / "clear_refs").read_text() == "5"


@pytest.mark.parametrize(("field", "name"), [(field, name) for name, field in process_tree.STATUS_FIELDS.items()])
def test_a_field_that_the_kernel_lacks_is_unknown_and_so_is_every_sum_over_it(
    proc: ProcFS, field: str, name: str
) -> None:
    _without(proc, "PID/status", field)
    unknown = _unknown(_sample(proc).process)
    summed = {"tree_sum"} if name in ("rss_anon", "rss_shmem", "vm_swap", "hugetlb") else set()
    assert set(unknown) == {name} | summed
    assert all(field in reason for reason in unknown.values())


@pytest.mark.parametrize(("field", "name"), [("pswpin", "swap_in"), ("pswpout", "swap_out")])
def test_a_swap_counter_that_is_not_there(proc: ProcFS, field: str, name: str) -> None:
    _without(proc, "vmstat", field)
    assert set(_unknown(_sample(proc).process)) == {name}


@pytest.mark.parametrize(
    ("file", "unknown"),
    [
        ("vmstat", {"swap_in", "swap_out"}),
        ("PID/maps", {"new_file_mappings", "checkpoint_mappings", "new_tmpfs_files", "tree_sum"}),
        ("PID/mountinfo", {"new_file_mappings", "checkpoint_mappings", "new_tmpfs_files", "tree_sum"}),
        ("PID/status", {*process_tree.STATUS_FIELDS, "minor_faults", "major_faults", "tree_sum"}),
    ],
)
def test_a_file_that_the_kernel_lacks(proc: ProcFS, file: str, unknown: set[str]) -> None:
    (proc.root / file.replace("PID", str(os.getpid()))).unlink()
    assert set(_unknown(_sample(proc).process)) == unknown


def test_no_descriptors_to_look_at_is_unknown(proc: ProcFS) -> None:
    shutil.rmtree(proc.root / str(os.getpid()) / "fd")
    assert "new_file_mappings" in _unknown(_sample(proc).process)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    sample = _sample(ProcFS(tmp_path / "none"))
    assert set(_unknown(sample.process)) == PROCESS_KEYS
    assert set(_unknown(sample.host)) == set(sample.host)
    assert set(_unknown(sample.cgroup)) == set(sample.cgroup)


def test_a_peak_that_cannot_be_reset_says_so(proc: ProcFS) -> None:
    (proc.root / str(os.getpid()) / "clear_refs").unlink()
    peak = _sample(proc).process["vm_hwm"]
    assert peak.known
    assert "not reset" in str(peak.detail)


def test_mappings_without_figures_are_unknown_when_they_are_needed(proc: ProcFS, tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.safetensors"
    checkpoint.write_bytes(bytes(4096))
    state = checkpoint.stat()
    device = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}"
    mine = proc.root / str(os.getpid())
    line = f"7f0000000000-7f0000001000 r--p 00000000 {device} {state.st_ino} {checkpoint}\n"
    for name in ("maps", "smaps"):
        with (mine / name).open("a") as file:
            file.write(line)
    probes = Probes(Ranges(), [checkpoint], proc=proc)
    assert "no Rss" in str(probes.baseline().process["checkpoint_mappings"].detail)
    with (mine / "smaps").open("a") as file:
        file.write("Rss:                   4 kB\nAnonymous:             0 kB\n")
    assert probes.baseline().process["checkpoint_mappings"].value == 4096


class OverlayProc(ProcFS):
    """As on an overlay or a filesystem of subvolumes: maps shows files under another device than stat does."""

    def maps(self, pid: int, *, files: bool = False) -> list[Any]:
        return [replace(entry, device=entry.device + 1000) for entry in super().maps(pid, files=files)]

    def smaps(self, pid: int, *, files: bool = False) -> Iterator[Any]:
        for use in super().smaps(pid, files=files):
            yield replace(use, mapping=replace(use.mapping, device=use.mapping.device + 1000))


def test_a_checkpoint_is_known_by_what_maps_calls_it(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.safetensors"
    checkpoint.write_bytes(os.urandom(MIB))
    probes = Probes(Ranges(), [checkpoint], proc=OverlayProc())
    assert probes.baseline().process["checkpoint_mappings"].value == 0
    with checkpoint.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), MIB, prot=mmap.PROT_READ)
    assert sum(mapped[offset] for offset in range(0, MIB, 4096)) >= 0
    assert probes.sample("mapped").process["checkpoint_mappings"].value == MIB
    mapped.close()


def test_a_mapped_file_whose_name_is_no_text_can_be_recorded(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/odd-\xff"
    probes = Probes(Ranges(), [])
    probes.baseline()
    with open(path, "w+b") as opened:  # noqa: PTH123 - a path of bytes
        opened.write(bytes(MIB))
        opened.flush()
        mapped = mmap.mmap(opened.fileno(), MIB, prot=mmap.PROT_READ)
    assert mapped[4096] == 0
    sample = probes.sample("mapped")
    mapped.close()
    assert any(name.endswith("odd-\\xff") for name in sample.mapped_files)
    assert canonical.encode(sample.model_dump(mode="json"))


def test_a_garbled_maps_is_unknown(proc: ProcFS) -> None:
    (proc.root / str(os.getpid()) / "maps").write_text("no mapping at all\n")
    assert "another form" in _unknown(_sample(proc).process)["new_file_mappings"]


def _plant_child(proc: ProcFS, status: str | None) -> None:
    folder = proc.root / "999999"
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"999999 (odd) name)) S {os.getpid()} " + "1 " * 48)
    (folder / "maps").write_text("")
    (folder / "clear_refs").write_text("")
    if status is not None:
        (folder / "status").write_text(status)


def test_a_child_of_which_one_field_is_missing_makes_the_sum_unknown(proc: ProcFS) -> None:
    text = (proc.root / str(os.getpid()) / "status").read_text()
    _plant_child(proc, "\n".join(line for line in text.splitlines() if not line.startswith("RssAnon")))
    unknown = _unknown(_sample(proc).process)
    assert set(unknown) == {"rss_anon", "tree_sum"}
    assert "999999" in unknown["rss_anon"]


def test_a_child_that_cannot_be_read_makes_every_sum_unknown(proc: ProcFS) -> None:
    _plant_child(proc, None)
    assert set(_unknown(_sample(proc).process)) >= {*process_tree.STATUS_FIELDS, "tree_sum"}


def test_shares_that_cannot_be_read_are_counted_for_each_and_said_so(proc: ProcFS) -> None:
    _plant_child(proc, (proc.root / str(os.getpid()) / "status").read_text())
    sample = _sample(proc)
    assert sample.process["tree_sum"].known
    assert "more than once" in str(sample.process["tree_sum"].detail)


def test_an_ended_child_has_no_memory(proc: ProcFS) -> None:
    _plant_child(proc, None)
    folder = proc.root / "999999"
    (folder / "stat").write_text((folder / "stat").read_text().replace(") S ", ") Z "))
    assert _unknown(_sample(proc).process) == {}


@pytest.mark.parametrize(("flags", "leaving"), [("4", True), ("1", False)])
def test_a_child_on_its_way_out_has_let_go_of_its_memory(proc: ProcFS, flags: str, leaving: bool) -> None:
    text = (proc.root / str(os.getpid()) / "status").read_text()
    _plant_child(proc, "\n".join(line for line in text.splitlines() if not line.startswith(("Vm", "Rss", "Huge"))))
    (proc.root / "999999" / "stat").write_text(f"999999 (name) R {os.getpid()} 1 1 1 1 {flags} " + "1 " * 43)
    unknown = _unknown(_sample(proc).process)
    assert (unknown == {}) is leaving, unknown


def test_shares_with_a_process_that_is_no_member_do_not_hide_what_one_holds(proc: ProcFS) -> None:
    """As where a child was born after the members were listed: their proportional shares do not make up the whole."""
    _plant_child(proc, (proc.root / str(os.getpid()) / "status").read_text())
    for pid in (os.getpid(), 999999):
        (proc.root / str(pid) / "smaps_rollup").write_text("Pss_Anon: 4 kB\nPss_Shmem: 4 kB\n")
    tree = process_tree.figures(proc, os.getpid())
    assert len(tree.pids) == 2
    distinct = process_tree.distinct_pages(proc, tree, process_tree.OutsideShare())
    rows = [process_tree.status_of(proc, os.getpid())[name].value for name in process_tree.SHARED]
    assert [figure.value for figure in distinct] == [max(8192, int(row or 0)) for row in rows]


def test_the_mappings_of_files_are_those_with_a_path(proc: ProcFS) -> None:
    every = list(proc.smaps(os.getpid()))
    named = [use for use in every if use.mapping.path.startswith("/")]
    assert 0 < len(named) < len(every)
    assert list(proc.smaps(os.getpid(), files=True)) == named
    assert proc.maps(os.getpid(), files=True) == [use.mapping for use in named]


def test_an_unlinked_file_of_a_child_whose_blocks_cannot_be_read_is_unknown(proc: ProcFS) -> None:
    _plant_child(proc, (proc.root / str(os.getpid()) / "status").read_text())
    line = "7f0000000000-7f0000001000 rw-s 00000000 00:01 4242 /dev/zero (deleted)\n"
    probes = Probes(Ranges(), [], proc=proc)
    probes.baseline()
    (proc.root / "999999" / "maps").write_text(line)
    (proc.root / "999999" / "smaps").write_text(line + "Rss: 4 kB\n")
    unknown = _unknown(probes.sample("now").process)
    assert "allocated blocks" in unknown["new_file_mappings"]
    assert "tree_sum" in unknown


def test_too_many_files_in_memory_to_look_at_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_files, "MOST_TMPFS_ENTRIES", 1)
    probes = Probes(Ranges(), [])
    sample = probes.baseline()
    assert "more than 1 entries" in _unknown(sample.process)["tree_sum"]


@pytest.mark.parametrize(("owned", "status"), [(True, "unavailable"), (False, "measured")])
def test_a_folder_in_memory_that_is_closed_to_us(monkeypatch: pytest.MonkeyPatch, owned: bool, status: str) -> None:
    """Closed though our own, it may hide anything; another user's cannot hold files of ours."""

    def refuse(folder: str) -> Any:
        raise PermissionError(13, "Permission denied")

    probes = Probes(Ranges(), [])
    probes.baseline()
    monkeypatch.setattr(memory_files.os, "scandir", refuse)
    monkeypatch.setattr(memory_files, "_owned_by", lambda folder, user: owned)
    assert probes.sample("closed").process["new_tmpfs_files"].status == status


def test_our_own_mapping_tells_its_blocks_without_any_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an ordinary user: map_files cannot be followed, and the descriptor is closed."""
    mapped = mmap.mmap(-1, 8 * MIB)
    mapped[: 4 * MIB] = bytes(range(256)) * (4 * MIB // 256)
    entry = next(e for e in ProcFS().maps(os.getpid()) if e.path == "/dev/zero" and e.length == 8 * MIB)
    assert held_pages._cached(entry) == 4 * MIB
    assert parse_maps_line("0-1000 rw-s 00000000 00:01 7 /a b\\012c (deleted)").path == "/a b\nc"
    mapped.close()


def test_the_kernel_internal_mount_is_learnt_and_not_assumed() -> None:
    descriptor = os.memfd_create("x")
    try:
        assert os.fstat(descriptor).st_dev == memory_files.shmem_device()
    finally:
        os.close(descriptor)


def test_a_checkpoint_file_that_is_missing_is_no_reason_not_to_look(tmp_path: Path) -> None:
    watch = HeldPagesWatch(ProcFS(), Ranges(), [tmp_path / "missing.safetensors"])
    watch.baseline([os.getpid()])
    assert watch.look([os.getpid()]).checkpoint_mappings.value == 0


# --- machine and cgroup -------------------------------------------------------------------------------------------


def _cgroup(proc: ProcFS, tmp_path: Path, version: int, **files: str) -> Path:
    folder = tmp_path / "cgroup"
    (folder / "job").mkdir(parents=True)
    for name, text in files.items():
        (folder / "job" / name.replace("__", ".")).write_text(text)
    mine = proc.root / str(os.getpid())
    kind, options = ("cgroup2", "rw") if version == 2 else ("cgroup", "rw,memory")
    (mine / "mountinfo").write_text(f"30 20 0:29 / {folder} rw,nosuid - {kind} cgroup {options}\n")
    (mine / "cgroup").write_text("0::/job\n" if version == 2 else "4:memory:/job\n0::/elsewhere\n")
    return folder / "job"


def test_the_cgroup_of_version_two(proc: ProcFS, tmp_path: Path) -> None:
    me = os.getpid()
    folder = _cgroup(
        proc, tmp_path, 2, memory__current="1000", memory__peak="2000", memory__max="max", cgroup__procs=f"{me}\n1\n"
    )
    (folder / "inner").mkdir()
    (folder / "inner" / "cgroup.procs").write_text("2\n")
    found = machine_memory.cgroup(proc, [me])
    assert {name: figure.value for name, figure in found.items()} == {
        "current": 1000, "peak": 2000, "limit": None, "swap": None, "others": 2,
    }  # fmt: skip
    assert found["limit"].detail == "no limit is set"
    assert found["swap"].status == "unavailable"


def test_the_cgroup_of_version_one_with_its_unlimited_number(proc: ProcFS, tmp_path: Path) -> None:
    me = os.getpid()
    _cgroup(
        proc, tmp_path, 1, memory__usage_in_bytes="5", memory__max_usage_in_bytes="6",
        memory__limit_in_bytes="9223372036854771712", cgroup__procs=f"{me}\n",
    )  # fmt: skip
    found = machine_memory.cgroup(proc, [me])
    assert (found["current"].value, found["peak"].value, found["others"].value) == (5, 6, 0)
    assert found["limit"].detail == "no limit is set"


def test_a_cgroup_that_does_not_list_this_process_says_nothing_of_others(proc: ProcFS, tmp_path: Path) -> None:
    _cgroup(proc, tmp_path, 2, memory__current="garbage", cgroup__procs="1\n2\n")
    found = machine_memory.cgroup(proc, [os.getpid()])
    assert found["others"].status == "unavailable"
    assert "garbage" in str(found["current"].detail)


@pytest.mark.parametrize("field", sorted(machine_memory.HOST_FIELDS.values()))
def test_a_machine_figure_that_is_not_there(proc: ProcFS, field: str) -> None:
    _without(proc, "meminfo", field)
    assert list(_unknown(machine_memory.host(proc)).values()) == [f"/proc/meminfo has no {field}"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_cuda_there_are_no_accelerator_figures() -> None:
    assert accelerator.memory([os.getpid()], Ranges()) == {}


def test_a_missing_mount_is_unreadable(proc: ProcFS) -> None:
    (proc.root / str(os.getpid()) / "mountinfo").write_text("30 20 0:29 / /elsewhere rw - tmpfs tmpfs rw\n")
    with pytest.raises(Unreadable, match="no mount"):
        proc.mount_of(Path("/tmp"))
