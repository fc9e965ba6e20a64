"""A synthetic checkpoint is the same bytes every time, has the real form, and holds no value that is not finite."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from adapters.qwen3_5_moe import synth
from adapters.qwen3_5_moe.keys import disk_tensors, shard_of
from adapters.qwen3_5_moe.shape import PUBLISHED, TINY, BlockShape
from ledger.errors import TallyError
from realizer.checkpoint import open_checkpoint


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_the_same_seed_gives_the_same_files_however_the_work_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth.write_checkpoint(TINY, tmp_path / "a", threads=2)
    monkeypatch.setattr(synth, "CHUNK", 4096)
    monkeypatch.setattr(synth, "BLOCK_WORDS", 64)
    synth.write_checkpoint(TINY, tmp_path / "b", threads=1)
    synth.write_checkpoint(TINY, tmp_path / "c", seed=1)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    a, c = digests(tmp_path / "a"), digests(tmp_path / "c")
    assert {name for name in a if a[name] != c[name]} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "checkpoint-origin.json",
    }


def test_the_bits_are_the_published_sequence() -> None:
    """The first outputs of SplitMix64 from state 1234567, as its reference implementation gives them."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    out = np.empty(32, np.uint8)
    synth._bits(1234567, 0, out)
    assert out.view(np.uint64).tolist() == expected
    tail = np.empty(11, np.uint8)
    synth._bits(1234567, 16, tail)
    assert tail.tobytes() == out[16:27].tobytes()
    assert synth._unit(1234567) == (expected[0] >> 11) / 2**53


@pytest.mark.parametrize("shape", [TINY, replace(TINY, start=1, end=3), replace(TINY, start=3, end=4)])
def test_the_checkpoint_has_the_real_names_dtypes_shapes_and_shards(tmp_path: Path, shape: BlockShape) -> None:
    written = synth.write_checkpoint(shape, tmp_path / "checkpoint")
    checkpoint = open_checkpoint(str(tmp_path / "checkpoint"))
    expected = {tensor.key: (tensor.dtype, tensor.shape) for tensor in disk_tensors(shape)}
    assert {key: (entry.dtype, entry.shape) for key, entry in checkpoint.tensors.items()} == expected
    assert written.tensors == len(expected)
    assert written.bytes == sum(entry.bytes for entry in checkpoint.tensors.values())
    files = sorted({entry.file for entry in checkpoint.tensors.values()})
    shards = sorted({shard_of(shape, key) for key in expected})
    for key, entry in checkpoint.tensors.items():
        assert files.index(entry.file) == shards.index(shard_of(shape, key))
    assert checkpoint.revision == written.revision
    placement = {"start": shape.start, "end": shape.end}
    assert BlockShape.from_config(checkpoint.config, **placement) == shape


def test_safetensors_reads_it_and_every_value_is_finite_and_spread(tmp_path: Path) -> None:
    synth.write_checkpoint(TINY, tmp_path / "checkpoint")
    seen = 0
    for path in sorted((tmp_path / "checkpoint").glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                tensor = file.get_tensor(key)
                seen += 1
                if tensor.dtype is not torch.uint8:
                    assert torch.isfinite(tensor.float()).all(), key
                if tensor.numel() >= 1024:
                    assert tensor.float().std() > 0, key
                if key.endswith("_scale") or key.endswith("_scale_2"):
                    assert (tensor.float() > 0).all(), key
    assert seen == len(list(disk_tensors(TINY)))


def test_published_scales_meet_the_subnormals_of_f16(tmp_path: Path) -> None:
    """As in real checkpoints, so that casting the globals to F16 is exercised where it loses most."""
    scale = synth._scalar("x.gate_proj.weight_scale_2", 0.5, PUBLISHED.hidden)
    assert 0 < scale < torch.finfo(torch.float16).smallest_normal


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TallyError, match="not empty"):
        synth.write_checkpoint(TINY, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TallyError, match="cannot be written"):
        synth.write_checkpoint(TINY, tmp_path / "file" / "checkpoint")


def test_the_revision_says_what_was_made(tmp_path: Path) -> None:
    assert synth.revision_of(TINY, 0) != synth.revision_of(TINY, 1)
    assert synth.revision_of(TINY, 0) != synth.revision_of(replace(TINY, experts=8), 0)
    assert synth.revision_of(TINY, 0) == synth.revision_of(replace(TINY, pages=2), 0)
    synth.write_checkpoint(TINY, tmp_path / "checkpoint", seed=3)
    origin = json.loads((tmp_path / "checkpoint" / "checkpoint-origin.json").read_text())
    assert origin == {"repository": "synthetic/qwen3_5_moe", "revision": synth.revision_of(TINY, 3)}
