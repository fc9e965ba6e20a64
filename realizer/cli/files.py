"""Reading and writing the files that commands are given; `-` is standard input or output."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger.errors import TallyError
from realizer.cli.rendering import emit_bytes

STANDARD = "-"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space left, on the device or for this user."""
MAX_INPUT_BYTES = 256 * 1024 * 1024
"""More than any document that a command reads has; what goes on longer (a device, a pipe without an end) is not read out."""


def read_input(name: str, what: str) -> bytes:
    """The bytes of a file, or of standard input for `-`. Raises TallyError saying what could not be read and why."""
    try:
        if name == STANDARD:
            data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        if name == STANDARD:
            raise TallyError(f"{what}: standard input cannot be read: {error.strerror}", "is it closed?") from error
        raise TallyError(f"{what} {name!r} cannot be read: {error.strerror}", "check the path") from error
    if len(data) > MAX_INPUT_BYTES:
        shown = "standard input" if name == STANDARD else repr(name)
        raise TallyError(f"{what} from {shown} is longer than {MAX_INPUT_BYTES} bytes, as none is", "check the path")
    return data


@contextmanager
def replacing(name: str, what: str) -> Iterator[Path]:
    """A scratch file that takes the place of `name` when the block ends well, and is removed when it does not.

    Nothing half-written ever stands under `name`; a link is followed. Where `name` is `-` or no regular file (a pipe, a
    device) the scratch file's bytes are written to it instead.
    """
    with writing(name, what):
        target, replaces, folder = _target(name)
        handle, scratch_name = tempfile.mkstemp(prefix=".tally-", dir=folder)
    os.close(handle)
    scratch = Path(scratch_name)
    try:
        yield scratch
        with writing(name, what):
            if target is None:
                emit_bytes(scratch.read_bytes())
            elif replaces:
                scratch.chmod(0o666 & ~_umask())
                scratch.replace(target)
            else:
                target.write_bytes(scratch.read_bytes())
    finally:
        scratch.unlink(missing_ok=True)


def _target(name: str) -> tuple[Path | None, bool, Path]:
    """Where the output goes, null for standard output; whether it is put there as a whole; the scratch file's folder."""
    if name != STANDARD:
        target = Path(os.path.realpath(name))
        if target.is_file() or not Path(name).exists():
            return target, True, target.parent
    return None if name == STANDARD else Path(name), False, Path(tempfile.gettempdir())


@contextmanager
def writing(name: str, what: str) -> Iterator[None]:
    """Name the output in what the operating system says while it, or the scratch file for it, is written.

    A reader of standard output that went away is left to `realizer.cli.main`.
    """
    try:
        yield
    except OSError as error:
        if name == STANDARD and isinstance(error, BrokenPipeError):
            raise
        shown = "standard output" if name == STANDARD else repr(name)
        try_next = "choose another place with -o"
        if error.errno in FULL:
            _, replaces, folder = _target(name)
            try_next = f"free space {'' if replaces else 'there, or '}in {str(folder)!r}, or {try_next}"
        raise TallyError(f"{what} cannot be written to {shown}: {error.strerror or error}", try_next) from error


def write_output(name: str, data: bytes, what: str) -> None:
    """Write the whole file or nothing; `-` is standard output."""
    with replacing(name, what) as scratch, writing(name, what):
        scratch.write_bytes(data)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
