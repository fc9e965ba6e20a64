"""Bytes land where the layout says, whole and streamed, whatever their dtype, alignment, order and number."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

import realizer.loader as loader_module
from ledger.errors import CheckpointError, RealizationFailed
from realizer import host_memory, scatter
from realizer.adapter import Layout, TensorPlace, pack
from realizer.checkpoint import Checkpoint, open_checkpoint
from realizer.content import resident_digests
from realizer.loader import Loader, Piece
from realizer.memory import SHARED_MEMORY, SYSTEM_RAM, Ranges
from realizer.procfs import PAGE
from tests.builders.checkpoints import raw_bytes, write_checkpoint
from tests.builders.memory import HeapRange

ODD = {
    "embed": ("BF16", (257, 33)),
    "four": ("F4", (7, 6)),
    "scale": ("F8_E8M0", (13,)),
    "scalar": ("F32", ()),
    "empty": ("F16", (0, 4)),
    "byte": ("U8", (1,)),
    "eight": ("F8_E4M3", (1001,)),
    "long": ("I64", (4099,)),
    "last": ("BOOL", (3,)),
}


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of 1,000 bytes and scraps of 16, so that small files meet every boundary."""
    monkeypatch.setattr(scatter, "READ_BYTES", 1000)
    monkeypatch.setattr(scatter, "SKIP_BYTES", 16)


def odd_checkpoint(directory: Path, shards: int = 2) -> tuple[Checkpoint, dict[str, bytes]]:
    data = {key: raw_bytes(dtype, shape, at) for at, (key, (dtype, shape)) in enumerate(ODD.items(), 1)}
    keys = list(ODD)
    parts = [{key: (*ODD[key], data[key]) for key in keys[number::shards]} for number in range(shards)]
    return open_checkpoint(write_checkpoint(directory, parts)), data


def layout_of(checkpoint: Checkpoint, keys: list[str]) -> Layout:
    return pack("test", [(k, checkpoint.tensors[k].dtype, checkpoint.tensors[k].shape, (k,)) for k in keys])


def expected_bytes(layout: Layout, data: dict[str, bytes], fill: int) -> bytes:
    image = bytearray([fill]) * layout.length
    for place in layout.places:
        image[place.offset : place.offset + place.bytes] = b"".join(data[key] for key in place.sources)
    return bytes(image)


ORDERS = [list(ODD), list(reversed(ODD)), ["long", "scalar", "embed", "byte"], ["empty"], ["scalar"]]


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("keys", ORDERS)
def test_read_puts_every_byte_in_its_place_and_touches_no_other(tmp_path: Path, keys: list[str], threads: int) -> None:
    checkpoint, data = odd_checkpoint(tmp_path)
    layout = layout_of(checkpoint, keys)
    memory = HeapRange(layout.length + 10, fill=0xEE)
    loader = Loader(checkpoint, threads=threads, digests=True)
    assert loader.read(layout, memory) == layout.bytes
    assert memory.data() == expected_bytes(layout, data, 0xEE) + b"\xee" * 10
    assert loader.digests == {key: "sha256:" + hashlib.sha256(data[key]).hexdigest() for key in keys}
    assert resident_digests(layout, memory) == loader.digests


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("digests", [False, True])
@pytest.mark.parametrize(("threads", "ring"), [(1, 64), (1, 4096), (4, 4096), (3, 40_000), (4, 4 << 20)])
@pytest.mark.parametrize("keys", ORDERS)
def test_stream_gives_the_same_bytes_through_any_ring(
    tmp_path: Path, keys: list[str], threads: int, ring: int, digests: bool
) -> None:
    checkpoint, data = odd_checkpoint(tmp_path)
    layout = layout_of(checkpoint, keys)
    target, window = HeapRange(layout.length, fill=0xEE), HeapRange(ring)
    loader = Loader(checkpoint, threads=threads, digests=digests)
    assert loader.stream(layout, window, target) == layout.bytes
    assert target.data() == expected_bytes(layout, data, 0xEE)
    expected = {key: "sha256:" + hashlib.sha256(data[key]).hexdigest() for key in keys} if digests else {}
    assert loader.digests == expected


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("threads", [2, 5])
def test_many_slots_with_hashing_never_wait_for_each_other_forever(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long tensor among many short ones, in more windows than there are slots: parts are hashed in their order."""
    monkeypatch.setattr(loader_module, "HOST_SLOT_BYTES", 4096)
    data = {"long": raw_bytes("U8", (200_000,), 3)} | {f"s{at}": raw_bytes("U8", (1500,), at) for at in range(60)}
    keys = [f"s{at}" for at in range(30)] + ["long"] + [f"s{at}" for at in range(30, 60)]
    shard = {key: ("U8", (len(data[key]),), data[key]) for key in keys}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, [shard]))
    layout = layout_of(checkpoint, keys)
    target = HeapRange(layout.length)
    loader = Loader(checkpoint, threads=threads, digests=True)
    assert loader.stream(layout, HeapRange(5 * 4096), target) == layout.bytes
    assert target.data() == expected_bytes(layout, data, 0)
    assert loader.digests["long"] == "sha256:" + hashlib.sha256(data["long"]).hexdigest()


def _one_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Loader, Layout, bytes]:
    """A tensor that is longer than an even share of the readers' work, and than a slot."""
    monkeypatch.setattr(loader_module, "HOST_SLOT_BYTES", 4096)
    monkeypatch.setattr(loader_module, "APART_BYTES", 10_000)
    data = {"long": raw_bytes("U8", (90_000,), 3), "short": raw_bytes("U8", (1500,), 4)}
    shard = {key: ("U8", (len(value),), value) for key, value in data.items()}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, [shard]))
    return Loader(checkpoint, threads=4, digests=True), layout_of(checkpoint, list(data)), data["long"]


def test_a_tensor_longer_than_its_share_is_hashed_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, layout, long = _one_long(tmp_path, monkeypatch)
    target = HeapRange(layout.length)
    assert loader.stream(layout, HeapRange(4 * 4096), target) == layout.bytes
    assert [key for key, _ in loader._apart] == ["long"]
    assert target.data()[: len(long)] == long
    assert loader.digests == resident_digests(layout, target)


def test_a_file_that_goes_while_a_tensor_is_hashed_apart_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, layout, _ = _one_long(tmp_path, monkeypatch)

    def gone(*_: object) -> str:
        raise CheckpointError("checkpoint file 'model.safetensors' ended at byte 7 while it was read")

    monkeypatch.setattr(loader_module, "_digest_of", gone)
    loader.stream(layout, HeapRange(4 * 4096), HeapRange(layout.length))
    for _ in range(2):  # and again: what was not hashed is never taken for hashed
        with pytest.raises(CheckpointError, match="ended at byte 7"):
            _ = loader.digests


@pytest.mark.parametrize("most", [64, 1000, 1 << 20])
def test_windows_cover_every_byte_once_and_keep_to_their_size(tmp_path: Path, most: int) -> None:
    checkpoint, _ = odd_checkpoint(tmp_path)
    layout = layout_of(checkpoint, ORDERS[1])
    cut = scatter.cut_windows(scatter.pieces_of(layout, checkpoint), most)
    covered = bytearray(layout.length)
    for window in cut.windows:
        assert 0 < window.length <= most
        runs = cut.runs(window)
        assert int(runs.length.sum()) == sum(part.length for part in cut.parts(window))
        for at, target, length in zip(*(column.tolist() for column in runs), strict=True):
            assert at + length <= window.length
            for byte in range(target, target + length):
                covered[byte] += 1
    inside = bytearray(layout.length)
    for place in layout.places:
        inside[place.offset : place.offset + place.bytes] = b"\x01" * place.bytes
    assert covered == inside


def test_items_of_one_group_lie_far_apart_and_keep_their_order() -> None:
    assert scatter.alternating(range(10), lambda item: item // 4) == [0, 4, 8, 1, 5, 2, 6, 9, 3, 7]
    assert scatter.alternating([], lambda item: 0) == []


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("several", [False, True], ids=["one-file", "several-files"])
@pytest.mark.parametrize("keys", ORDERS[:3])
def test_in_real_ranges_whose_pages_are_brought_in_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: list[str], several: bool
) -> None:
    if several:  # a shared range of as many files as it can have
        monkeypatch.setattr(host_memory, "SHARED_FILE_BYTES", PAGE)
        monkeypatch.setattr(host_memory, "LARGE_PAGE", PAGE)
        monkeypatch.setattr(loader_module, "HOST_SLOT_BYTES", 3 * PAGE)
    checkpoint, data = odd_checkpoint(tmp_path)
    layout = layout_of(checkpoint, keys)
    ranges, loader = Ranges(), Loader(checkpoint, threads=2)
    stage = ranges.allocate(SYSTEM_RAM, layout.length, owner="stage")
    ring = ranges.allocate(SYSTEM_RAM, 4096, owner="ring")
    copied, streamed, direct = (ranges.allocate(SHARED_MEMORY, layout.length, owner="bank") for _ in range(3))
    assert (len(copied.inodes) > 1) is (several and layout.length > PAGE)
    loader.read(layout, stage)
    loader.copy(layout, stage, copied)
    loader.stream(layout, ring, streamed)
    loader.read(layout, direct)
    expected = expected_bytes(layout, data, 0)
    for memory in (stage, copied, streamed, direct):
        with memory.view() as view:
            assert bytes(view[: layout.length]) == expected
    ranges.free_all()


def test_copy_carries_a_range_on(tmp_path: Path) -> None:
    checkpoint, data = odd_checkpoint(tmp_path)
    layout = layout_of(checkpoint, list(ODD))
    stage, resident = HeapRange(layout.length), HeapRange(layout.length + 5, fill=0xEE)
    loader = Loader(checkpoint)
    loader.read(layout, stage)
    assert loader.copy(layout, stage, resident) == layout.bytes
    assert resident.data() == expected_bytes(layout, data, 0) + b"\xee" * 5
    with pytest.raises(RealizationFailed, match="does not fit"):
        loader.copy(layout, stage, HeapRange(layout.length - 1))


def test_copy_carries_computed_places_on_too(tmp_path: Path) -> None:
    checkpoint, _ = odd_checkpoint(tmp_path)
    layout = Layout("test", (TensorPlace("t", "U8", (4,), 2, ("byte",), derived=True),))
    loader, source, target = Loader(checkpoint), HeapRange(8, fill=0x5A), HeapRange(8, fill=0)
    with pytest.raises(RealizationFailed, match="only copies"):
        loader.stream(layout, source, target)
    assert loader.copy(layout, source, target) == 4
    assert target.data() == b"\x5a" * 6 + b"\0\0"


def test_arguments_in_another_order_are_refused_by_naming_the_call(tmp_path: Path) -> None:
    checkpoint, _ = odd_checkpoint(tmp_path)
    layout, loader, host = layout_of(checkpoint, ["byte"]), Loader(checkpoint), HeapRange(64, fill=0xEE)
    for call, wrong in (
        (r"read\(layout, memory\) was given HeapRange, Layout", lambda: loader.read(host, layout)),  # type: ignore[arg-type]
        (r"copy\(layout, source, target\) was given HeapRange, Hea", lambda: loader.copy(host, host, layout)),  # type: ignore[arg-type]
        (r"stream\(layout, ring, target\) was given Layout, None", lambda: loader.stream(layout, None, host)),  # type: ignore[arg-type]
    ):
        with pytest.raises(RealizationFailed, match=call):
            wrong()
    device = HeapRange(64, fill=0xEE)
    device.space = "cuda:0"
    for carry in (loader.copy, loader.stream):
        with pytest.raises(RealizationFailed, match=r"in cuda:0, to take bytes from .*are the ranges swapped"):
            carry(layout, device, host)
    assert loader.copy(layout, host, HeapRange(64, fill=0)) == 1


def test_sources_lie_one_after_another_in_a_fused_place(tmp_path: Path) -> None:
    checkpoint, data = odd_checkpoint(tmp_path)
    fused = TensorPlace("fused", "U8", (1014,), 64, ("eight", "scale"))
    layout = Layout("test", (fused,))
    memory = HeapRange(layout.length)
    assert Loader(checkpoint).read(layout, memory) == 1014
    assert memory.data()[64:] == data["eight"] + data["scale"]


def test_pieces_scatter_rows_anywhere(tmp_path: Path) -> None:
    checkpoint, data = odd_checkpoint(tmp_path)
    memory = HeapRange(6000)
    pieces = [Piece("byte", 5999), Piece("eight", 1), Piece("scale", 3000), Piece("byte", 0)]
    assert Loader(checkpoint).read_pieces(pieces, memory) == 1016
    found = memory.data()
    assert (found[0:1], found[5999:]) == (data["byte"], data["byte"])
    assert (found[1:1002], found[3000:3013]) == (data["eight"], data["scale"])


def test_more_tensors_than_one_read_can_scatter(tmp_path: Path) -> None:
    count = 3000
    data = {f"t{at:04}": raw_bytes("U8", (3,), at) for at in range(count)}
    checkpoint = open_checkpoint(
        write_checkpoint(tmp_path, [{key: ("U8", (3,), value) for key, value in data.items()}])
    )
    layout = layout_of(checkpoint, list(data))
    memory = HeapRange(layout.length)
    calls: list[tuple[str, int, int]] = []
    assert Loader(checkpoint, threads=2, progress=lambda *f: calls.append(f)).read(layout, memory) == 3 * count
    assert memory.data() == expected_bytes(layout, data, 0)
    assert calls[0] == ("reading", 0, 3 * count)
    assert calls[-1] == ("reading", 3 * count, 3 * count)
    assert len(calls) < 20, "neighbours on disk are read together"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (TensorPlace("t", "U8", (1,), 0, ("absent",)), "no tensor 'absent'"),
        (TensorPlace("t", "U8", (1,), 0, ()), "only copies"),
        (TensorPlace("t", "U8", (1,), 0, ("byte",), derived=True), "only copies"),
        (TensorPlace("t", "U8", (2,), 0, ("byte",)), "takes 2 bytes; its sources have 1"),
        (TensorPlace("t", "U8", (1,), 64, ("byte",)), "bytes 64 to 65 of a range of 64"),
    ],
)
def test_what_cannot_be_copied_is_refused(tmp_path: Path, place: TensorPlace, says: str) -> None:
    checkpoint, _ = odd_checkpoint(tmp_path)
    with pytest.raises((CheckpointError, RealizationFailed), match=says):
        Loader(checkpoint).read(Layout("test", (place,)), HeapRange(64))


def test_a_file_that_changed_since_its_header_was_read_is_refused(tmp_path: Path) -> None:
    checkpoint, _ = odd_checkpoint(tmp_path, shards=1)
    path = checkpoint.files[0].path
    os.truncate(path, checkpoint.files[0].size - 1)
    with pytest.raises(CheckpointError, match="changed since its header was read"):
        Loader(checkpoint).read(layout_of(checkpoint, list(ODD)), HeapRange(100_000))
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be opened: No such file"):
        Loader(checkpoint).read(layout_of(checkpoint, list(ODD)), HeapRange(100_000))


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("threads", [1, 4])
def test_a_file_that_ends_while_it_is_read_stops_every_reader(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read reports the end of the file, as it would after a truncation; nothing keeps looking into the ring."""
    checkpoint, _ = odd_checkpoint(tmp_path)
    true = os.preadv
    cut = checkpoint.tensors["long"].start + 5000

    def ends(descriptor: int, buffers: list[memoryview], position: int) -> int:
        return 0 if position > cut else true(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", ends)
    layout = layout_of(checkpoint, list(ODD))
    ring = HeapRange(8192)
    with pytest.raises(CheckpointError, match="ended at byte"):
        Loader(checkpoint, threads=threads, digests=True).stream(layout, ring, HeapRange(layout.length))
    ring._bytes.append(0)  # BufferError while a view of it is alive


@pytest.mark.usefixtures("small_reads")
def test_short_reads_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, data = odd_checkpoint(tmp_path)
    monkeypatch.setattr(os, "preadv", _short)
    layout = layout_of(checkpoint, list(ODD))
    memory = HeapRange(layout.length)
    assert Loader(checkpoint).read(layout, memory) == layout.bytes
    assert memory.data() == expected_bytes(layout, data, 0)


def _short(descriptor: int, buffers: list[memoryview], position: int) -> int:
    """At most 77 bytes, into the first buffer that has room."""
    first = next(buffer for buffer in buffers if len(buffer))
    part = os.pread(descriptor, min(77, len(first)), position)
    first[: len(part)] = part
    return len(part)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    checkpoint, _ = odd_checkpoint(tmp_path)
    layout = layout_of(checkpoint, list(ODD))
    Loader(checkpoint).read(layout, HeapRange(layout.length))
    names = {str(path) for path in checkpoint.paths}
    descriptors = Path("/proc/self/fd")
    held = {str(fd.readlink()) for fd in descriptors.iterdir() if fd.is_symlink()}
    assert not names & held
