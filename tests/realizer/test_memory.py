"""Memory ranges: exactly sized, tagged, refusing to be freed under a view, and really gone afterwards."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import itertools
import mmap
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from ledger.errors import TallyError
from realizer import host_memory, memory_range
from realizer.memory import AllocationFailed, DeviceRange, PrivateRange, RangeInUse, Ranges, SharedRange, allocate
from realizer.procfs import PAGE, ProcFS
from tests.realizer.planted import MIB, SIZE, measure

torch = pytest.importorskip("torch")

HOST = ("system-ram", "shared-memory")
NOISE = 4 * MIB
"""What an interpreter's own pages move by, whatever it does; the copies here are SIZE, 32 MiB."""


@pytest.fixture(params=[*HOST, "accelerator-vram"])
def area(request: pytest.FixtureRequest) -> Any:
    """A range of 64 KiB of each kind; the device kind on torch's CPU device, which has the same storages."""
    made = (
        DeviceRange(64 * 1024, owner="m", device="cpu")
        if request.param == "accelerator-vram"
        else allocate(request.param, 64 * 1024, owner="m")
    )
    yield made
    made.free()


# --- what the operating system shows ------------------------------------------------------------------------------


def test_a_private_range_is_rss_anon_and_goes_back_whole() -> None:
    found = measure("private_range")
    assert abs(found["filled"]["rss_anon"] - SIZE) < NOISE
    assert found["filled"]["rss_shmem"] == 0
    assert found["mapped"] == 1
    assert abs(found["freed"]["rss_anon"] + SIZE) < NOISE
    assert abs(found["rest"]["tree_sum"]) < NOISE
    assert found["mapped_after"] == 0


def test_a_shared_range_is_rss_shmem_counted_once_and_goes_back_whole() -> None:
    found = measure("shared_range")
    assert found["filled"]["rss_shmem"] == SIZE
    assert found["filled"]["new_file_mappings"] == 0
    assert abs(found["filled"]["tree_sum"] - SIZE) < NOISE
    assert found["rest"]["rss_shmem"] == 0
    assert found["mapped_after"] == 0


def test_staging_goes_back_and_the_bank_stays() -> None:
    found = measure("staged_into_shared")
    assert abs(found["peak"]["tree_sum"] - 2 * SIZE) < NOISE
    assert abs(found["rest"]["rss_anon"]) < NOISE
    assert found["rest"]["rss_shmem"] == SIZE
    assert found["ratio"] >= 1 - NOISE / SIZE
    assert found["mapped"] == 0


def test_another_mapping_at_the_same_addresses_is_not_the_freed_range() -> None:
    found = measure("address_taken_again")
    assert found["mapped"] == 0
    assert "another mapping" in found["detail"]
    assert (found["mapped_by_ours"], found["ours"]) == (0, 1)


def test_a_forked_child_does_not_keep_staging() -> None:
    assert abs(measure("forked_child_without_staging")["tree_sum"] + SIZE) < NOISE


# --- tensors over a range -----------------------------------------------------------------------------------------


def test_tensors_lie_where_they_are_asked_for_and_share_bytes_with_the_range(area: Any) -> None:
    first = area.tensor(torch.float32, (4, 8), 64)
    assert first.data_ptr() == area.start + 64
    assert tuple(first.shape) == (4, 8)
    first.fill_(1.5)
    again = area.tensor(torch.float32, (32,), 64)
    assert again.tolist() == [1.5] * 32
    again[0] = 2.0
    assert first[0, 0].item() == 2.0


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e8m0fnu", "bfloat16", "bool", "int64", "uint8", "float64"])
def test_every_dtype_is_laid_over_the_same_bytes(area: Any, dtype: str) -> None:
    kind = getattr(torch, dtype)
    tensor = area.tensor(kind, (3, 2), 128)
    assert tensor.dtype is kind
    tensor.view(torch.uint8).fill_(1)
    assert area.tensor(torch.uint8, (6 * kind.itemsize,), 128).tolist() == [1] * (6 * kind.itemsize)


def test_scalars_and_empty_tensors(area: Any) -> None:
    scalar = area.tensor(torch.float32, (), 8)
    scalar.fill_(3.0)
    assert scalar.item() == 3.0
    empty = area.tensor(torch.float32, (0, 5), 8)
    assert tuple(empty.shape) == (0, 5)


@pytest.mark.parametrize(("shape", "offset"), [((64 * 1024 + 1,), 0), ((2,), 64 * 1024 - 1), ((1,), -1)])
def test_a_tensor_outside_the_range_is_refused(area: Any, shape: tuple[int, ...], offset: int) -> None:
    with pytest.raises(TallyError, match="outside the range"):
        area.tensor(torch.uint8, shape, offset)


def test_host_tensors_have_storages_of_their_own_without_padding() -> None:
    area = allocate("system-ram", 1000, owner="m")
    tensor = area.tensor(torch.bfloat16, (10,), 100)
    assert tensor.untyped_storage().nbytes() == 20
    assert tensor.untyped_storage().data_ptr() == area.start + 100
    del tensor
    area.free()


def test_a_range_is_whole_pages_and_knows_what_was_asked_for() -> None:
    for kind in HOST:
        area = allocate(kind, 1000, owner="m")
        assert (area.requested, area.length) == (1000, PAGE)
        assert area.start % PAGE == 0
        area.free()


# --- freeing ------------------------------------------------------------------------------------------------------


def _holders() -> dict[str, Any]:
    return {
        "tensor": lambda area: area.tensor(torch.uint8, (16,), 0),
        "parameter": lambda area: torch.nn.Parameter(area.tensor(torch.float32, (16,), 0)),
        "slice": lambda area: area.tensor(torch.uint8, (16,), 0)[2:3],
        "storage": lambda area: area.tensor(torch.uint8, (16,), 0).untyped_storage(),
        "array": lambda area: area.tensor(torch.uint8, (16,), 0).numpy(),
        "detached": lambda area: area.tensor(torch.float32, (16,), 0).detach(),
    }


@pytest.mark.parametrize("holder", sorted(_holders()))
def test_a_range_under_a_view_is_not_freed(area: Any, holder: str) -> None:
    held = _holders()[holder](area)
    assert area.in_use
    with pytest.raises(RangeInUse, match="still looked into"):
        area.free()
    assert not area.freed
    assert area.mapped().value == 1
    assert area.tensor(torch.uint8, (1,), 0).numel() == 1, "a refused free leaves the range usable"
    del held
    assert not area.in_use
    area.free()
    assert area.freed
    assert area.mapped().value == 0


@pytest.mark.parametrize("holder", ["view", "slice of a view", "bytes array"])
def test_buffers_keep_a_host_range_as_well(holder: str) -> None:
    area = allocate("system-ram", 4096, owner="m")
    held = {
        "view": lambda: area.view(),
        "slice of a view": lambda: area.view()[1:3],
        "bytes array": lambda: (ctypes.c_char * 10).from_buffer(area.view()),
    }[holder]()
    with pytest.raises(RangeInUse):
        area.free()
    del held
    area.free()
    assert area.mapped().value == 0


def test_views_in_a_dead_cycle_do_not_keep_the_range(area: Any) -> None:
    cycle: list[Any] = [area.tensor(torch.uint8, (16,), 0)]
    cycle.append(cycle)
    gone = weakref.ref(cycle[0])
    gc.disable()
    try:
        del cycle
        assert gone() is not None, "the cycle must still be there for this to show anything"
        area.free()
    finally:
        gc.enable()
    assert area.freed


def test_freeing_twice_is_freeing_once_and_nothing_lies_over_a_freed_range(area: Any) -> None:
    area.free()
    area.free()
    with pytest.raises(TallyError, match="was freed"):
        area.tensor(torch.uint8, (1,), 0)
    if area.kind in HOST:
        with pytest.raises(TallyError, match="was freed"):
            area.view()


def test_views_made_by_many_threads_at_once_are_all_known() -> None:
    area = allocate("system-ram", 4096, owner="m")
    held: list[memoryview] = []
    start = threading.Barrier(8)

    def take() -> None:
        start.wait()
        held.append(area.view())

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while held:
        assert area.in_use
        held.pop()
    assert not area.in_use
    area.free()


def test_an_unknown_export_is_caught_by_the_mapping_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    area = PrivateRange(4096, owner="m")
    foreign = memoryview(area._mapping)
    with pytest.raises(RangeInUse):
        area.free()
    foreign.release()
    area.free()
    assert area.freed


def test_device_memory_has_no_host_buffer() -> None:
    area = DeviceRange(100, owner="m", device="cpu")
    with pytest.raises(TallyError, match="no host buffer"):
        area.view()
    area.free()


# --- tags ---------------------------------------------------------------------------------------------------------


def test_the_tag_of_shared_memory_is_its_name_in_maps() -> None:
    area = SharedRange(4096, owner="kv", tag="kv-cache-epoch-1")
    names = [entry.path for entry in ProcFS().maps(os.getpid()) if entry.start == area.start]
    assert names == ["/memfd:tally-tag:kv-cache-epoch-1"]
    tag = area.read_tag()
    assert (tag.value, tag.source, tag.status) == ("kv-cache-epoch-1", "probe", "measured")
    assert "/proc/self/maps" in tag.method
    area.tag("kv-cache-epoch-1")
    with pytest.raises(TallyError, match="whose tag is its name"):
        area.tag("another")
    area.free()
    assert area.read_tag().status == "unavailable"


@pytest.mark.parametrize("tag", ["epoch 1", "line\nbreak", "Linie-ä", "back\\slash", "x" * 239, "[brackets]"])
def test_odd_tags_come_back_as_they_were_given(tag: str) -> None:
    for kind in HOST:
        area = allocate(kind, 4096, owner="kv", tag=tag)
        assert area.read_tag().value == tag, kind
        area.free()


def test_a_private_range_and_a_device_range_keep_the_tag_behind_their_bytes() -> None:
    for area in (
        PrivateRange(4096, owner="kv", tag="epoch-1"),
        DeviceRange(1000, owner="kv", device="cpu", tag="epoch-1"),
    ):
        area.tensor(torch.uint8, (area.length,), 0).fill_(255)
        tag = area.read_tag()
        assert tag.value == "epoch-1"
        assert "header" in tag.method or "anonymous memory" in tag.method
        area.tag("epoch-2")
        assert area.read_tag().value == "epoch-2"
        area.free()
        assert area.read_tag().status == "unavailable"


def test_an_overwritten_tag_is_unknown_and_not_the_old_one() -> None:
    area = DeviceRange(64, owner="kv", device="cpu", tag="epoch-1")
    assert area.buffer is not None
    area.buffer.fill_(7)
    assert (area.read_tag().value, area.read_tag().status) == (None, "unavailable")
    area.free()


def test_a_tag_that_is_not_there_is_unknown(area: Any) -> None:
    found = area.read_tag()
    assert (found.value, found.status) == (None, "unavailable")
    with pytest.raises(TallyError):
        area.tag("late")


@pytest.mark.parametrize("tag", ["x" * 240, "nul\x00", "name (deleted)"])
def test_a_tag_that_cannot_be_a_name_is_refused(tag: str) -> None:
    with pytest.raises(TallyError, match="cannot be a memfd name"):
        SharedRange(4096, owner="kv", tag=tag)


def test_a_long_owner_is_only_a_label() -> None:
    area = SharedRange(4096, owner="ä" * 300)
    assert area.read_tag().status == "unavailable"
    area.free()


# --- refusals of the system ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, -1])
def test_a_range_of_no_bytes_is_refused(length: int) -> None:
    with pytest.raises(TallyError, match="at least one"):
        allocate("system-ram", length, owner="m")


def test_more_than_the_address_space_is_refused_with_the_reason() -> None:
    for kind in HOST:
        with pytest.raises(AllocationFailed, match="for bank"):
            allocate(kind, 1 << 60, owner="bank")


def test_an_unknown_kind_names_those_there_are() -> None:
    with pytest.raises(TallyError, match="known: system-ram, shared-memory, accelerator-vram"):
        allocate("persistent-memory", 10, owner="m")


def test_combinations_that_there_are_not() -> None:
    with pytest.raises(TallyError, match="cannot be pinned"):
        allocate("accelerator-vram", 10, owner="m", pinned=True)
    with pytest.raises(TallyError, match="huge pages"):
        allocate("shared-memory", 10, owner="m", huge_pages=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_cuda_neither_pinned_nor_device_memory_is_given() -> None:
    before = len(memory_range.LIVE)
    with pytest.raises(AllocationFailed, match="no CUDA device"):
        allocate("system-ram", 4096, owner="m", pinned=True)
    with pytest.raises(AllocationFailed, match="cuda:0"):
        allocate("accelerator-vram", 4096, owner="m")
    assert len(memory_range.LIVE) == before, "a refused range is not left mapped"


def test_no_shared_memory_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(AllocationFailed, match="Too many open files"):
        SharedRange(4096, owner="m")


def test_shared_memory_is_written_through_its_file_by_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    area, source = SharedRange(5 * PAGE, owner="m"), bytearray(range(256)) * 40
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(source))
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: write(descriptor, data[:1000], at))
    assert area.write(PAGE - 3, address, 2 * PAGE), "short writes are carried on"
    expected = bytes(PAGE - 3) + bytes(source[: 2 * PAGE]) + bytes(2 * PAGE + 3)
    with area.view() as view:
        assert bytes(view) == expected
    with area._files[0].writing:
        assert not area.write(0, address, PAGE), "who would wait for another writer does not"
    with area.view() as view:
        assert bytes(view) == expected

    def full(descriptor: int, data: memoryview, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(AllocationFailed, match="no shared memory for 1 bytes of m: No space left on device"):
        area.write(0, address, 1)
    with pytest.raises(TallyError, match="outside"):
        area.write(5 * PAGE, address, 1)
    descriptor = area._files[0].descriptor
    area.free()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("known", [True, False])
def test_what_is_written_through_the_file_is_in_the_page_tables(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    area, source = SharedRange(9 * PAGE, owner="m"), bytearray(os.urandom(7 * PAGE))
    if not known:  # a kernel that cannot bring pages in when it is asked to
        monkeypatch.setattr(host_memory, "_MADV_POPULATE_READ", 0x7FFF)
    assert area.write(PAGE + 5, ctypes.addressof(ctypes.c_ubyte.from_buffer(source)), 6 * PAGE)
    assert held_in_shared_memory(area) >= 7 * PAGE, "pages that no page table has would count as hidden"
    area.free()


def test_a_long_shared_range_is_one_memory_of_several_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "SHARED_FILE_BYTES", PAGE)
    monkeypatch.setattr(host_memory, "LARGE_PAGE", PAGE)
    area = SharedRange(19 * PAGE + 1, owner="m", tag="t")  # 20 pages in seven files of three, the last of two
    descriptors = [file.descriptor for file in area._files]
    assert [area.file_of(page * PAGE) for page in range(20)] == [page // 3 for page in range(20)]
    source = bytearray(os.urandom(20 * PAGE))
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(source))
    assert not area.write(2 * PAGE, address, PAGE + 1), "of two files"
    with area._files[1].writing:
        assert not area.write(3 * PAGE, address, PAGE)
        assert area.write(6 * PAGE, address + 6 * PAGE, 3 * PAGE), "another file has no writer"
    with area.view() as view:
        for page in (*range(6), *range(9, 20)):
            view[page * PAGE : (page + 1) * PAGE] = source[page * PAGE : (page + 1) * PAGE]
        assert view == source
    assert b"".join(os.pread(descriptor, 20 * PAGE, 0) for descriptor in descriptors) == source
    for descriptor, pages in zip(
        descriptors, [3] * 6 + [2], strict=True
    ):  # no room that no mapping shows, nor to be made
        assert os.fstat(descriptor).st_size == pages * PAGE
        for change in (
            lambda fd=descriptor: os.ftruncate(fd, 20 * PAGE),
            lambda fd=descriptor: os.ftruncate(fd, 0),
            lambda fd=descriptor: os.pwrite(fd, b"hidden", 3 * PAGE),
            lambda fd=descriptor: os.posix_fallocate(fd, 0, 4 * PAGE),
            lambda fd=descriptor: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        ):
            with pytest.raises(PermissionError):
                change()
    assert (area.mapped().value, area.read_tag().value) == (1, "t")
    assert held_in_shared_memory(area) == 20 * PAGE
    area.free()
    assert area.mapped().value == 0
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def held_in_shared_memory(area: SharedRange) -> int:
    """Rss of the range's addresses by /proc/self/smaps, bytes."""
    uses = ProcFS().smaps(os.getpid())
    end = area.start + area.length
    return sum(use.figures["Rss"] for use in uses if area.start <= use.mapping.start < end)


@pytest.mark.parametrize("failing", ["memfd_create", "ftruncate", "mmap"])
def test_a_range_whose_last_file_is_refused_leaves_nothing(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    monkeypatch.setattr(host_memory, "SHARED_FILE_BYTES", PAGE)
    monkeypatch.setattr(host_memory, "LARGE_PAGE", PAGE)
    place = host_memory._libc if failing == "mmap" else os
    real, calls = getattr(place, failing), itertools.count(1)
    last = 2 if failing == "mmap" else 3  # the first file is mapped by the mmap module

    def refuse(*arguments: Any) -> Any:
        if next(calls) < last:
            return real(*arguments)
        if failing == "mmap":
            ctypes.set_errno(12)
            return 2**64 - 1
        raise OSError(12, "Cannot allocate memory")

    before = set(Path("/proc/self/fd").iterdir()), Path("/proc/self/maps").read_text().count("tally-range:m ")
    monkeypatch.setattr(place, failing, refuse)
    with pytest.raises(AllocationFailed, match=r"for m: .*Cannot allocate memory"):
        SharedRange(3 * PAGE, owner="m")
    monkeypatch.undo()
    gc.collect()
    assert (set(Path("/proc/self/fd").iterdir()), Path("/proc/self/maps").read_text().count("tally-range:m ")) == before


def test_huge_pages_and_population_are_only_advice() -> None:
    area = PrivateRange(4 * MIB, owner="m", huge_pages=True)
    assert area.populate(0, 2 * MIB) in (True, False)
    assert bytes(area.view()[:4]) == bytes(4)
    with pytest.raises(TallyError, match="outside"):
        area.populate(0, 5 * MIB)
    area.free()


def test_a_kernel_without_advice_still_tells_mapped_from_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateRange, "_advise", lambda self, advice: False)
    area = PrivateRange(4096, owner="m")
    mapped = area.mapped()
    assert mapped.value == 1
    assert "refused the mark" in mapped.method
    area.free()


def test_what_maps_cannot_show_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    private, shared = PrivateRange(4096, owner="m", tag="t"), SharedRange(4096, owner="m", tag="t")
    monkeypatch.setattr(host_memory, "_proc", ProcFS(tmp_path))
    assert [area.mapped().status for area in (private, shared)] == ["unavailable"] * 2
    assert shared.read_tag().status == "unavailable"
    private.free()
    shared.free()


def test_a_second_mapping_of_the_bank_is_seen_after_the_first_is_gone() -> None:
    area = SharedRange(4096, owner="bank")
    second = mmap.mmap(os.open(f"/proc/self/map_files/{area.start:x}-{area.start + area.length:x}", os.O_RDWR), 4096) if (
        os.access(f"/proc/self/map_files/{area.start:x}-{area.start + area.length:x}", os.R_OK)
    ) else None  # fmt: skip
    if second is None:
        area.free()
        pytest.skip("map_files cannot be read by this user")
    area.free()
    assert area.mapped().value == 1
    second.close()
    assert area.mapped().value == 0


# --- the registry -------------------------------------------------------------------------------------------------


def test_the_registry_knows_live_ranges_by_owner() -> None:
    ranges = Ranges()
    first = ranges.allocate("system-ram", 4096, owner="a")
    second = ranges.allocate("shared-memory", 4096, owner="b", tag="t")
    assert ranges.by_owner("b") == [second]
    assert len(ranges) == 2
    ranges.free(first)
    assert list(ranges) == [second]
    second.free()
    assert len(ranges) == 0


def test_freeing_all_frees_what_it_can_and_names_the_rest() -> None:
    ranges = Ranges()
    free, held = (ranges.allocate("system-ram", 4096, owner=owner) for owner in ("free", "held"))
    tensor = held.tensor(torch.uint8, (1,), 0)
    (refused,) = ranges.free_all()
    assert "held" in refused.message
    assert free.freed
    assert list(ranges) == [held]
    del tensor
    assert ranges.free_all() == []
    assert len(ranges) == 0


def test_importing_the_room_imports_no_torch() -> None:
    import subprocess
    import sys

    program = "import sys, realizer.memory, realizer.probes, realizer.watch, realizer.environment; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
