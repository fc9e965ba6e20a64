"""Files that commands write: all of them or nothing, through links, and never in place of a device."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

import pytest

from ledger.errors import TallyError
from realizer.cli.files import read_input, replacing, write_output


def test_a_file_is_replaced_as_a_whole_and_links_are_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_output(str(link), b"new", "the file")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_the_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_output(str(tmp_path / "file"), b"x", "the file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_an_error_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")

    def fail() -> None:
        with replacing(str(target), "the file") as scratch:
            scratch.write_bytes(b"half")
            raise TallyError("no")

    with pytest.raises(TallyError, match="no"):
        fail()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(str(pipe), b"data", "the file")
        assert os.read(reader, 10) == b"data"
        assert stat.S_ISFIFO(pipe.stat().st_mode)
    finally:
        os.close(reader)


def test_a_pipe_that_is_open_already_is_written_to() -> None:
    reader, writer = os.pipe()
    try:
        write_output(f"/dev/fd/{writer}", b"data", "the file")
        assert os.read(reader, 10) == b"data"
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("name", ["absent/file", "."])
def test_what_cannot_be_written_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(TallyError, match="the file cannot be written") as raised:
        write_output(str(tmp_path / name), b"x", "the file")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["absent", "."])
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(TallyError, match="cannot be read"):
        read_input(str(tmp_path / name), "plan")


def test_what_never_ends_is_not_read_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realizer.cli.files.MAX_INPUT_BYTES", 1000)
    with pytest.raises(TallyError, match="'/dev/zero' is longer than 1000 bytes"):
        read_input("/dev/zero", "evidence")
    with Path("/dev/zero").open("rb") as zeros:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(zeros.raw)))
        with pytest.raises(TallyError, match="standard input is longer than 1000 bytes"):
            read_input("-", "evidence")


def full(_path: Path, _data: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_with_the_file_and_what_to_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "e.json"
    target.write_bytes(b"old")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(TallyError) as raised:
        write_output(str(target), b"new", "the evidence")
    assert str(raised.value) == (
        f"the evidence cannot be written to {str(target)!r}: No space left on device "
        f"(free space in {str(tmp_path)!r}, or choose another place with -o)"
    )
    monkeypatch.undo()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_device_is_named_as_any_file() -> None:
    with pytest.raises(TallyError, match=r"'/dev/full': No space left on device \(free space there, or in "):
        write_output("/dev/full", b"x", "the page")


def test_standard_output_on_a_full_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(full, write_through=True))  # type: ignore[arg-type]
        with pytest.raises(TallyError, match="the page cannot be written to standard output: No space left on device"):
            write_output("-", b"x", "the page")
