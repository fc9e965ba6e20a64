"""Checkpoints as their headers describe them, and every way in which a checkpoint can contradict itself."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from ledger.errors import CheckpointError, install
from realizer.checkpoint import open_checkpoint, read_header
from tests.builders.checkpoints import header_of, raw_bytes, write_checkpoint, write_safetensors


def raw(dtype: str, *shape: int, seed: int = 1) -> tuple[str, tuple[int, ...], bytes]:
    return dtype, shape, raw_bytes(dtype, shape, seed)


TWO = {"a": raw("BF16", 3, 5), "b": raw("U8", 7, seed=2)}


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(directory)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_single_file_is_read_as_its_header_says(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, [TWO], {"model_type": "x"}))
    (shard,) = checkpoint.files
    data = shard.path.read_bytes()
    assert list(checkpoint.tensors) == ["a", "b"]
    for key, (dtype, shape, expected) in TWO.items():
        entry = checkpoint.tensors[key]
        assert (entry.dtype, entry.shape, data[entry.start : entry.end]) == (dtype, shape, expected)
    assert checkpoint.config == {"model_type": "x"}
    assert checkpoint.tensor_bytes == 37
    assert (checkpoint.repository, checkpoint.revision) == (None, None)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, [{"a": TWO["a"]}, {"b": TWO["b"]}]))
    assert [shard.name for shard in checkpoint.files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert checkpoint.tensors["b"].file == "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("F4", (3, 6), 9),
        ("F6_E2M3", (4,), 3),
        ("F6_E3M2", (8, 2), 12),
        ("F8_E8M0", (5,), 5),
        ("F8_E4M3", (2, 3), 6),
        ("F8_E5M2", (1,), 1),
        ("BOOL", (3,), 3),
        ("C64", (2,), 16),
        ("U64", (), 8),
        ("F32", (0, 4), 0),
    ],
)
def test_every_dtype_is_bytes(tmp_path: Path, dtype: str, shape: tuple[int, ...], size: int) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, [{"t": raw(dtype, *shape), "u": raw("U8", 1)}]))
    assert checkpoint.tensors["t"].bytes == size


def test_headers_digest_binds_names_types_shapes_and_spans_but_not_content(tmp_path: Path) -> None:
    same = open_checkpoint(write_checkpoint(tmp_path / "1", [TWO])).headers_digest
    assert open_checkpoint(write_checkpoint(tmp_path / "2", [TWO | {"b": raw("U8", 7, seed=9)}])).headers_digest == same
    for number, other in enumerate(
        [{"a": TWO["a"], "c": TWO["b"]}, TWO | {"b": raw("I8", 7)}, TWO | {"b": raw("U8", 7, 1)}]
    ):
        assert open_checkpoint(write_checkpoint(tmp_path / f"o{number}", [other])).headers_digest != same


def test_files_are_hashed_and_reported_by_progress(tmp_path: Path) -> None:
    import hashlib

    checkpoint = open_checkpoint(write_checkpoint(tmp_path, [{"a": TWO["a"]}, {"b": TWO["b"]}]))
    seen: list[tuple[str, int, int]] = []
    files = checkpoint.hash_files(lambda *figures: seen.append(figures))
    total = sum(shard.size for shard in checkpoint.files)
    assert [file.digest.value for file in files] == [
        "sha256:" + hashlib.sha256(shard.path.read_bytes()).hexdigest() for shard in checkpoint.files
    ]
    assert seen[0] == ("hashing", 0, total)
    assert seen[-1] == ("hashing", total, total)
    unhashed = checkpoint.describe_files(hashed=False)
    assert [(file.digest.status, file.size.value) for file in unhashed] == [
        ("unavailable", shard.size) for shard in checkpoint.files
    ]


def test_identity_says_where_it_came_from_only_when_something_says_so(tmp_path: Path) -> None:
    identity = open_checkpoint(write_checkpoint(tmp_path, [TWO])).identity(private=True)
    assert (identity.repository.status, identity.directory.status) == ("unavailable", "unavailable")
    (tmp_path / "checkpoint-origin.json").write_text('{"repository": "o/m", "revision": "r1"}')
    identity = open_checkpoint(tmp_path).identity()
    assert (identity.repository.value, identity.repository.source) == ("o/m", "declared")
    assert identity.directory.value == str(tmp_path)
    (tmp_path / "checkpoint-origin.json").write_text('{"repository": "o/m"}')
    assert "needs the strings" in refusal(tmp_path)


def test_the_hub_cache_path_says_repository_and_revision(tmp_path: Path) -> None:
    for name, repository in (("some-org--a-model", "some-org/a-model"), ("o--a--b", "o/a--b"), ("gpt2", "gpt2")):
        snapshot = tmp_path / f"models--{name}" / "snapshots" / "0123abcd"
        checkpoint = open_checkpoint(write_checkpoint(snapshot, [TWO]))
        assert (checkpoint.repository, checkpoint.revision) == (repository, "0123abcd")


def test_a_configuration_may_hold_infinity(tmp_path: Path) -> None:
    """Published configurations do (a limit that is none), though JSON has no such number."""
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, [TWO], {"time_step_limit": [0.0, float("inf")]}))
    assert checkpoint.config["time_step_limit"][1] == float("inf")


def test_offline_without_a_cached_copy_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="'some-org/absent' is not in the local cache and HF_HUB_OFFLINE is set"):
        open_checkpoint("some-org/absent")


def test_without_the_hub_s_package_a_wrong_path_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="there is no folder 'wrong/path'") as raised:
        open_checkpoint("wrong/path")
    assert raised.value.hint == f"check the path, or {install('realize')}"


def test_what_is_neither_directory_nor_repository(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for source in (tmp_path / "file", tmp_path / "absent", "a/b/c", ""):
        with pytest.raises(CheckpointError):
            open_checkpoint(source)


# --- one file that contradicts itself -----------------------------------------------------------------------------


def broken_header(change: str) -> dict[str, object]:
    header = header_of(TWO)
    a, b = header["a"], header["b"]
    match change:
        case "overlap":
            b["data_offsets"] = [29, 36]
        case "gap":
            b["data_offsets"] = [31, 38]
        case "first-gap":
            a["data_offsets"], b["data_offsets"] = [1, 31], [31, 38]
        case "same-span":
            header["c"] = dict(b)
        case "shape":
            a["shape"] = [3, 4]
        case "half-byte":
            b["dtype"], b["shape"] = "F4", [13]
        case "dtype":
            a["dtype"] = "Q4_1"
        case "dtype-type":
            a["dtype"] = ["BF16"]
        case "backwards":
            a["data_offsets"] = [30, 0]
        case "negative":
            a["shape"] = [-3, -5]
        case "float":
            a["shape"] = [3.0, 5]
        case "bool":
            b["shape"] = [True, 7]
        case "entry":
            header["a"] = 5
        case "offsets":
            del a["data_offsets"]
    return header


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("overlap", "tensor 'b' overlaps 'a' by 1 bytes"),
        ("gap", "1 bytes before tensor 'b' belong to no tensor"),
        ("first-gap", "1 bytes before tensor 'a' belong to no tensor"),
        ("same-span", "overlaps"),
        ("shape", "tensor 'a' spans 30 bytes; BF16 [3, 4] takes 24 bytes"),
        ("half-byte", "tensor 'b' spans 7 bytes; F4 [13] takes not whole bytes"),
        ("dtype", "dtype 'Q4_1'"),
        ("dtype-type", "dtype ['BF16']"),
        ("backwards", "offsets that run backwards"),
        ("negative", "negative extent"),
        ("float", "no integers"),
        ("bool", "no integers"),
        ("entry", "tensor 'a' has not the form of a header entry"),
        ("offsets", "tensor 'a' has not the form of a header entry"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path: Path, change: str, says: str) -> None:
    write_checkpoint(tmp_path, [TWO])
    write_safetensors(tmp_path / "model.safetensors", TWO, header=broken_header(change))
    text = refusal(tmp_path)
    assert says in text
    assert "model.safetensors" in text


def test_padding_after_the_header_is_allowed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [TWO])
    write_safetensors(tmp_path / "model.safetensors", TWO, padding=13)
    assert len(open_checkpoint(tmp_path).tensors) == 2


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-1], "is truncated: its header describes"),
        (lambda data: data + b"x", "1 bytes after its last tensor"),
        (lambda data: data[:5], "has 5 bytes, too few"),
        (lambda data: b"", "has 0 bytes, too few"),
        (lambda data: (10**6).to_bytes(8, "little") + data[8:], "claims a header of 1000000 bytes, but only"),
        (lambda data: (2**63).to_bytes(8, "little") + data[8:], "more than the format's 100000000"),
        (lambda data: data[:8] + b"[" + data[9:], "does not begin with '{'"),
        (lambda data: data[:20] + b"\xff" + data[21:], "not UTF-8"),
        (lambda data: data[:20] + b"\x01" + data[21:], "header is not JSON"),
        (lambda data: data.replace(b'"b"', b'"a"'), "header names 'a' twice"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: object, says: str) -> None:
    path = write_checkpoint(tmp_path, [TWO]) / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert says in refusal(tmp_path)


def test_a_header_nested_without_end_is_refused(tmp_path: Path) -> None:
    text = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    write_checkpoint(tmp_path, [TWO])
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert "nested too deeply" in refusal(tmp_path)


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_header(tmp_path / "absent.safetensors")
    fifo = tmp_path / "directory.safetensors"
    fifo.mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(fifo)


# --- a directory that contradicts itself --------------------------------------------------------------------------


def test_a_directory_without_what_is_needed(tmp_path: Path) -> None:
    assert "config.json cannot be read" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "holds neither model.safetensors nor" in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "it holds pytorch_model.bin, which this version does not read" in refusal(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1, "a": 2}')
    assert "configuration names 'a' twice" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "configuration is no JSON object" in refusal(tmp_path)


def sharded(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    directory = write_checkpoint(tmp_path, [{"a": TWO["a"], "d": TWO["a"]}, {"b": TWO["b"]}])
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    return directory, index["weight_map"]


def write_index(directory: Path, weight_map: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"c": FIRST}, f"names tensor 'c' in {FIRST}, but no shard has it"),
        ({"a": SECOND}, f"puts tensor 'a' in {SECOND}, but {FIRST} has it"),
        ({"c": "absent.safetensors"}, "names 'absent.safetensors', which is not there"),
        ({"c": "../outside.safetensors"}, "no plain file name"),
        ({"c": "/etc/passwd"}, "no plain file name"),
        ({"c": 5}, "has no `weight_map`"),
    ],
)
def test_index_and_shards_must_agree(tmp_path: Path, change: dict[str, object], says: str) -> None:
    directory, weight_map = sharded(tmp_path)
    write_index(directory, weight_map | change)
    assert says in refusal(directory)


def test_a_tensor_that_the_index_does_not_name(tmp_path: Path) -> None:
    directory, weight_map = sharded(tmp_path)
    write_safetensors(directory / SECOND, {"b": TWO["b"], "z": TWO["b"]})
    assert f"does not name tensor 'z', which {SECOND} has" in refusal(directory)
    write_index(directory, weight_map | {"z": SECOND})
    assert len(open_checkpoint(directory).tensors) == 4


def test_an_index_without_a_map_or_garbled(tmp_path: Path) -> None:
    directory, _ = sharded(tmp_path)
    write_index(directory, None)
    assert "has no `weight_map`" in refusal(directory)
    (directory / "model.safetensors.index.json").write_text("{")
    assert "index is not JSON" in refusal(directory)
    write_index(directory, {})
    assert "holds no tensors" in refusal(directory)


def test_a_header_of_a_hundred_megabytes_is_read_in_seconds(tmp_path: Path) -> None:
    """300,000 tensors under long names: close to the format's limit of 100,000,000 bytes."""
    count, name = 300_000, "layer." + "x" * 260
    entries = (f'"{name}{at}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{at + 1}]}}' for at in range(count))
    text = ("{" + ",".join(entries) + "}").encode()
    assert 95_000_000 < len(text) < 100_000_000
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        os.truncate(file.fileno(), 8 + len(text) + count)
    started = time.process_time()
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.tensors) == count
    assert checkpoint.headers_digest.startswith("sha256:")
    print(f"read, checked and digested in {time.process_time() - started:.1f} s of processor time")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(tmp_path: Path, enabled: bool) -> None:
    import gc

    before = gc.isenabled()
    directory = write_checkpoint(tmp_path, [TWO])
    broken = tmp_path / "broken"
    write_checkpoint(broken, [TWO])
    (broken / "model.safetensors").write_bytes(b"")
    try:
        (gc.enable if enabled else gc.disable)()
        open_checkpoint(directory)
        with pytest.raises(CheckpointError):
            open_checkpoint(broken)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
