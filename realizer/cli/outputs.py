"""What a command may write over: an older output of its own kind, and nothing else. Asked before anything is done."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from ledger.errors import TallyError

Kind = Literal["page", "trace", "evidence", "pin", "plan", "fixture"]
Guarded = tuple[str, Path]
"""What a folder is to the command, for the message, and where it lies."""

STREAMS = re.compile(r"-|/dev/(?:stdin|stdout|stderr)|/dev/fd/.*|/proc/.*")
"""Names of streams that are open already: whoever opened them chose what is written over."""
SQLITE_MAGIC = b"SQLite format 3\x00"
BESIDE_SQLITE = ("-wal", "-shm", "-journal")
MAX_SAFETENSORS_HEADER = 100_000_000
ELSEWHERE = "give -o another place"

NAMES: dict[str, str] = {
    "page": "an HTML page",
    "trace": "a trace",
    "evidence": "evidence",
    "pin": "a pin",
    "plan": "a plan",
    "fixture": "a reference fixture",
    "weights": "a safetensors file that is no reference fixture",
    "json": "a JSON document of another kind",
    "other": "a file of another kind",
}
_HEAD_BYTES = 4096
_PLAN = re.compile(rb'"schema"\s*:\s*"(?:tallystick\.plan|inferswarm\.r1\.frozen-plan)/')
_EVIDENCE = re.compile(rb'\{\s*"payload(?:Type)?"\s*:')
_TRACE = re.compile(rb'\{\s*"(?:traceEvents|displayTimeUnit|otherData)"\s*:')
_PIN = re.compile(rb"[^\n]+\n[0-9]+\n[A-Za-z0-9+/]{43}=\n(?:\n|\Z)")
_PAGE = re.compile(rb"<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_FIXTURE = re.compile(rb'"format"\s*:\s*"tallystick\.reference/')


def refuse_overwriting(
    name: str,
    kind: Kind,
    what: str,
    *,
    inputs: Iterable[Path] = (),
    folders: Iterable[Guarded] = (),
    ledger: Path | None = None,
) -> None:
    """Whether `what`, an output of that kind, may be written to `name`: reads what stands there, and writes nothing.

    `inputs` are the command's other files, `folders` its checkpoints, `ledger` the SQLite file it uses, which need not be
    there yet. Raises TallyError saying what the file is. A new file, an empty one and an older output of the same kind
    pass; so do streams, pipes and devices.
    """
    if STREAMS.fullmatch(name):
        return
    target = Path(os.path.realpath(name))
    why = (
        _of_a_database(target, ledger)
        or _of_the_command(target, inputs, folders)
        or (_of_another_kind(target, kind) if _is_file(target) else None)
    )
    if why is not None:
        raise TallyError(f"{what} is not written over {name!r}: that is {why}", ELSEWHERE)


def _of_a_database(target: Path, ledger: Path | None) -> str | None:
    """The ledger, any other SQLite database, or what SQLite keeps beside one."""
    if ledger is not None and _same(target, ledger):
        return "the ledger"
    if is_sqlite(target):
        return "an SQLite database"
    for ending in BESIDE_SQLITE:
        if target.name.endswith(ending) and target.name != ending:
            database = target.with_name(target.name.removesuffix(ending))
            if is_sqlite(database) or (ledger is not None and _same(database, ledger)):
                return f"what SQLite keeps beside {database.name!r}"
    return None


def _of_the_command(target: Path, inputs: Iterable[Path], folders: Iterable[Guarded]) -> str | None:
    if not _is_file(target):
        return None
    if any(_same(target, path) for path in inputs):
        return "an input of the command"
    for role, folder in folders:
        inside = target.is_relative_to(os.path.realpath(folder))
        if inside or (folder.is_dir() and any(_same(target, path) for path in folder.iterdir())):
            return f"a file of {role}"
    return None


def _of_another_kind(target: Path, kind: Kind) -> str | None:
    try:
        with target.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        return f"a file that cannot be read to see what it is: {error.strerror}"
    if not head:
        return None
    if b"-----BEGIN " in head:
        return "a key" if b"KEY-----" in head else "a PEM file"
    found = _kind(head, target)
    return None if found == kind else NAMES[found]


def _kind(head: bytes, path: Path) -> str:
    """What a file is, by how it begins; for a plan and a fixture by the format it names."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _PAGE.match(text):
        return "page"
    if _PIN.match(head):
        return "pin"
    if head[8:9] == b"{":
        length = int.from_bytes(head[:8], "little")
        if length <= min(MAX_SAFETENSORS_HEADER, path.stat().st_size - 8):
            with path.open("rb") as file:
                return "fixture" if _FIXTURE.search(file.read(8 + length)) else "weights"
    if path.suffix == ".safetensors":
        return "weights"
    if text[:1] not in (b"{", b"["):
        return "other"
    if _EVIDENCE.match(text):
        return "evidence"
    if _TRACE.match(text):
        return "trace"
    return "plan" if _PLAN.search(path.read_bytes()) else "json"


def _is_file(path: Path) -> bool:
    """A regular file; a name that the system takes for none is left to whoever opens it."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_sqlite(path: Path) -> bool:
    """The file begins as every SQLite database does; what is no regular file is not looked into."""
    if not _is_file(path):
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        return False  # whoever may not read it is told so when its kind is asked


def _same(a: Path, b: Path) -> bool:
    """One file, by whatever names, or one place where there is none yet."""
    try:
        return a.samefile(b)
    except OSError:
        return os.path.realpath(a) == os.path.realpath(b)
