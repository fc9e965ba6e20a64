"""Reading what a safetensors checkpoint says of itself: index, headers, byte spans and identity. No tensor data.

Layout of a safetensors file (https://github.com/huggingface/safetensors#format): 8 bytes little-endian header length,
the header as JSON, then the data; `data_offsets` are relative to the data. Everything that contradicts itself is
refused here, in one line, before a byte of memory is planned on it. Data types are names and bit widths only, so that
types no tensor library knows are bytes like any others.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, NoReturn

from ledger import canonical
from ledger.bodies import CheckpointFile, ModelIdentity
from ledger.errors import CheckpointError, install
from ledger.measurement import Measurement, measured, stated, unavailable
from realizer.adapter import DTYPE_BITS

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"
ORIGIN_FILE = "checkpoint-origin.json"
"""Optional, in a local directory: `{"repository": ..., "revision": ...}`, what its maker says the checkpoint is."""

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit (safetensors: MAX_HEADER_SIZE)."""

HASH_CHUNK = 4 * 1024 * 1024
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
_SNAPSHOT = re.compile(r"^models--(?P<repository>.+)$")
_REPOSITORY = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")
AGAIN = "the file is damaged or was not copied whole: fetch it again"

Progress = Callable[[str, int, int], None]
"""Called with (what is going on, bytes done, bytes in all), from whichever thread did the work; calls never overlap."""


class TensorEntry(NamedTuple):
    """One tensor of the checkpoint: dtype name, shape, the file it is in, and its span there (absolute, end exclusive)."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class CheckpointShard:
    """One safetensors file. `inode` and `modified_ns` say whether it is still the file whose header was read."""

    name: str
    path: Path
    size: int
    data_start: int
    tensors: int
    inode: int
    modified_ns: int


@contextmanager
def collector_paused() -> Iterator[None]:
    """Hold the garbage collector while many small objects are made, none in cycles: it would walk all of them again and
    again, which takes longer than making them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def element_bytes(dtype: str, shape: Iterable[int]) -> int | None:
    """Bytes of a tensor, or None when its bits do not fill whole bytes or the dtype is unknown."""
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        return None
    for extent in shape:
        bits *= extent
    return bits // 8 if bits % 8 == 0 else None


def _refuse(where: Path | str, problem: str, hint: str | None = AGAIN) -> NoReturn:
    name = where.name if isinstance(where, Path) else where
    raise CheckpointError(f"checkpoint file {name!r}: {problem}", hint)


class _Duplicate(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Duplicate(key)
            seen.add(key)
    return result


def _json_object(path: Path, text: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except _Duplicate as error:
        _refuse(path, f"{what} names {str(error)!r} twice")
    except UnicodeDecodeError as error:
        _refuse(path, f"{what} is not UTF-8: {error.reason} at byte {error.start}")
    except RecursionError:
        _refuse(path, f"{what} is nested too deeply")
    except ValueError as error:
        _refuse(path, f"{what} is not JSON: {error}")
    if not isinstance(value, dict):
        _refuse(path, f"{what} is no JSON object")
    return value


def read_header(path: Path) -> tuple[CheckpointShard, list[TensorEntry]]:
    """One file's shard record and its tensors, in file order.

    Raises CheckpointError when the file is unreadable, shorter or longer than its header says, when the header is
    longer than the file or the format's limit or is garbled, and when a tensor's shape does not match its bytes or the
    tensors overlap or leave a gap.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                _refuse(path, "is no regular file", None)
            head = file.read(8)
            if len(head) < 8:
                _refuse(path, f"has {status.st_size} bytes, too few for a safetensors header")
            length = int.from_bytes(head, "little")
            if length > MAX_HEADER_BYTES:
                _refuse(path, f"claims a header of {length} bytes, more than the format's {MAX_HEADER_BYTES}")
            if length > status.st_size - 8:
                _refuse(path, f"claims a header of {length} bytes, but only {status.st_size - 8} follow")
            text = file.read(length)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}", "does the file exist, and may you read it?")
    if len(text) < length:
        _refuse(path, f"ended while its header was read: {len(text)} of {length} bytes")
    if not text.startswith(b"{"):
        _refuse(path, "header does not begin with '{'")
    header = _json_object(path, text, "header")
    data_start = 8 + length
    entries = _entries(path, header, data_start)
    _check_spans(path, entries, data_start, status.st_size)
    shard = CheckpointShard(
        name=path.name,
        path=path,
        size=status.st_size,
        data_start=data_start,
        tensors=len(entries),
        inode=status.st_ino,
        modified_ns=status.st_mtime_ns,
    )
    return shard, entries


def _entries(path: Path, header: dict[str, Any], data_start: int) -> list[TensorEntry]:
    name = path.name
    entries = []
    for key, value in header.items():
        if key == "__metadata__":
            continue
        try:
            dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
        except (TypeError, KeyError, ValueError):
            _refuse(path, f"tensor {key!r} has not the form of a header entry (dtype, shape, data_offsets)")
        if type(begin) is not int or type(end) is not int or any(type(extent) is not int for extent in shape):
            _refuse(path, f"tensor {key!r} has a shape or offsets that are no integers")
        if begin < 0 or end < begin or any(extent < 0 for extent in shape):
            _refuse(path, f"tensor {key!r} has a negative extent or offsets that run backwards")
        if type(dtype) is not str or dtype not in DTYPE_BITS:
            _refuse(path, f"tensor {key!r} has dtype {dtype!r}, which this version does not know", None)
        expected = element_bytes(dtype, shape)
        if expected != end - begin:
            needs = "not whole bytes" if expected is None else f"{expected} bytes"
            _refuse(path, f"tensor {key!r} spans {end - begin} bytes; {dtype} {list(shape)} takes {needs}")
        entries.append(TensorEntry(key, dtype, shape, name, data_start + begin, data_start + end))
    entries.sort(key=lambda entry: (entry.start, entry.end))
    return entries


def _check_spans(path: Path, entries: list[TensorEntry], data_start: int, size: int) -> None:
    position, previous = data_start, "the header"
    for entry in entries:
        if entry.start < position:
            _refuse(path, f"tensor {entry.key!r} overlaps {previous!r} by {position - entry.start} bytes")
        if entry.start > position:
            _refuse(path, f"{entry.start - position} bytes before tensor {entry.key!r} belong to no tensor")
        position, previous = entry.end, entry.key
    if position > size:
        _refuse(path, f"is truncated: its header describes {position} bytes, the file has {size}")
    if position < size:
        _refuse(path, f"has {size - position} bytes after its last tensor that belong to none")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory as its headers describe it.

    `tensors` maps each key to its entry, in file order. `repository` and `revision` are what the hub cache's path or
    the directory's `checkpoint-origin.json` says, else None.
    """

    directory: Path
    files: list[CheckpointShard]
    tensors: Mapping[str, TensorEntry]
    config: Mapping[str, Any]
    config_digest: str
    repository: str | None
    revision: str | None
    origin: str

    @cached_property
    def headers_digest(self) -> str:
        """`sha256:` over one JSON array a line, by key: key, dtype, shape, file, offsets relative to the file's data."""
        starts = {shard.name: shard.data_start for shard in self.files}
        digest = hashlib.sha256()
        for key in sorted(self.tensors):
            entry = self.tensors[key]
            base = starts[entry.file]
            line = [key, entry.dtype, list(entry.shape), entry.file, entry.start - base, entry.end - base]
            digest.update(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")
        return "sha256:" + digest.hexdigest()

    @property
    def paths(self) -> list[Path]:
        """The safetensors files, resolved: what a watch of the checkpoint has to watch."""
        return [shard.path.resolve() for shard in self.files]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.bytes for entry in self.tensors.values())

    def identity(self, private: bool = False) -> ModelIdentity:
        """What the checkpoint says of itself, as Measurements; `private` hides where it lies."""
        where = unavailable(None, "path", "private") if private else measured(str(self.directory), None, "path")
        return ModelIdentity(
            repository=self._claimed(self.repository),
            revision=self._claimed(self.revision),
            config_digest=measured(self.config_digest, None, f"SHA-256 of {CONFIG_FILE}"),
            headers_digest=measured(self.headers_digest, None, "SHA-256 over the safetensors headers' entries"),
            directory=where,
        )

    def _claimed(self, value: str | None) -> Measurement:
        if value is None:
            return unavailable(None, self.origin, "the directory does not say where it came from")
        return stated(value, None, self.origin, source="declared")

    def hash_files(self, progress: Progress | None = None, threads: int | None = None) -> list[CheckpointFile]:
        """SHA-256 of every safetensors file, read whole, several at a time."""
        total, done, lock = sum(shard.size for shard in self.files), 0, Lock()
        if progress:
            progress("hashing", 0, total)

        def advance(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                if progress:
                    progress("hashing", done, total)

        with ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="hash") as pool:
            digests = list(pool.map(lambda shard: _hash_file(shard.path, advance), self.files))
        return [
            CheckpointFile(
                name=shard.name,
                size=measured(shard.size, "bytes", "fstat"),
                digest=measured(f"sha256:{digest}", None, "SHA-256 of the file"),
            )
            for shard, digest in zip(self.files, digests, strict=True)
        ]

    def describe_files(self, *, hashed: bool, progress: Progress | None = None) -> list[CheckpointFile]:
        """The files with sizes; with their SHA-256 when `hashed`, else with the reason why there is none."""
        if hashed:
            return self.hash_files(progress)
        why = "hashing the files was not asked for"
        return [
            CheckpointFile(
                name=shard.name,
                size=measured(shard.size, "bytes", "fstat"),
                digest=unavailable(None, "SHA-256 of the file", why),
            )
            for shard in self.files
        ]


def _hash_file(path: Path, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            buffer = memoryview(bytearray(HASH_CHUNK))
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                advance(count)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}", "does the file still exist, and may you read it?")
    return digest.hexdigest()


def open_checkpoint(source: str | Path, revision: str | None = None) -> Checkpoint:
    """The checkpoint in a local directory, or of a hub repository (fetched, or from the cache when HF_HUB_OFFLINE is set).

    Raises CheckpointError for anything that is absent or contradicts itself.
    """
    path = Path(source)
    if path.is_dir():
        return read_directory(path)
    if path.exists() or not _REPOSITORY.match(str(source)):
        raise CheckpointError(
            f"{str(source)!r} is neither a checkpoint directory nor a hub repository",
            "give the directory that holds config.json, or a name like organisation/model",
        )
    directory = _from_hub(str(source), revision)
    return read_directory(directory)


def _from_hub(repository: str, revision: str | None) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub.constants import is_offline_mode
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise CheckpointError(
            f"there is no folder {repository!r}, and what fetches a repository of the hub is not installed",
            f"check the path, or {install('realize')}",
        ) from error

    try:
        found = huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=["*/*"]
        )
    except LocalEntryNotFoundError as error:
        offline = "HF_HUB_OFFLINE is set" if is_offline_mode() else "the hub is not reachable"
        raise CheckpointError(
            f"checkpoint {repository!r} is not in the local cache and {offline}",
            "give a local directory, or fetch it once with a network",
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"checkpoint {repository!r} cannot be fetched: {first}",
            "check the name, the revision, the network and your access; or give a local directory",
        ) from error
    return Path(found)


def read_directory(directory: Path) -> Checkpoint:
    """The checkpoint in a directory: config, then one file or an index with its shards, then every header checked."""
    config_bytes = _config_bytes(directory)
    config = _json_object(directory / CONFIG_FILE, config_bytes, "configuration")
    if (directory / SINGLE_FILE).is_file():
        with collector_paused():
            shard, entries = read_header(directory / SINGLE_FILE)
            files, tensors = [shard], {entry.key: entry for entry in entries}
    elif (directory / INDEX_FILE).is_file():
        with collector_paused():
            files, tensors = _read_shards(directory)
    else:
        other = sorted(path.name for path in directory.iterdir() if path.suffix in (".bin", ".pth", ".pt", ".gguf"))
        found = f"; it holds {other[0]}, which this version does not read" if other else ""
        raise CheckpointError(
            f"{str(directory)!r} holds neither {SINGLE_FILE} nor {INDEX_FILE}{found}",
            "a checkpoint in safetensors form is needed (save_pretrained writes one)",
        )
    if not tensors:
        _refuse(files[0].path if files else directory, "holds no tensors", None)
    repository, revision, origin = _origin(directory)
    return Checkpoint(
        directory=directory,
        files=files,
        tensors=tensors,
        config=config,
        config_digest=canonical.sha256_digest(config_bytes),
        repository=repository,
        revision=revision,
        origin=origin,
    )


def _config_bytes(directory: Path) -> bytes:
    try:
        return (directory / CONFIG_FILE).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{str(directory)!r} is no checkpoint: {CONFIG_FILE} cannot be read: {error.strerror}",
            "give the directory that holds config.json and the safetensors files",
        ) from error


def _read_shards(directory: Path) -> tuple[list[CheckpointShard], dict[str, TensorEntry]]:
    path = directory / INDEX_FILE
    try:
        text = path.read_bytes()
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}", "may you read it?")
    weight_map = _json_object(path, text, "index").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        _refuse(path, "has no `weight_map` from tensors to file names")
    names = sorted(set(weight_map.values()))
    if odd := next((name for name in names if Path(name).name != name or name in (".", "..")), None):
        _refuse(path, f"names {odd!r}, which is no plain file name beside it", "this index is not to be trusted")
    if missing := [name for name in names if not (directory / name).is_file()]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        _refuse(path, f"names {missing[0]!r}{more}, which is not there", "fetch the missing shards")
    with ThreadPoolExecutor(min(8, len(names) or 1), thread_name_prefix="header") as pool:
        read = list(pool.map(lambda name: read_header(directory / name), names))
    tensors: dict[str, TensorEntry] = {}
    for _, entries in read:
        for entry in entries:
            if entry.key in tensors:
                _refuse(path, f"tensor {entry.key!r} is in two shards: {tensors[entry.key].file} and {entry.file}")
            tensors[entry.key] = entry
    for key, name in weight_map.items():
        entry_found = tensors.get(key)
        if entry_found is None:
            _refuse(path, f"names tensor {key!r} in {name}, but no shard has it")
        if entry_found.file != name:
            _refuse(path, f"puts tensor {key!r} in {name}, but {entry_found.file} has it")
    if unlisted := next((key for key in tensors if key not in weight_map), None):
        _refuse(path, f"does not name tensor {unlisted!r}, which {tensors[unlisted].file} has")
    return [shard for shard, _ in read], tensors


def _origin(directory: Path) -> tuple[str | None, str | None, str]:
    """(repository, revision, how it is known): by the origin file, else by the hub cache's path."""
    path = directory / ORIGIN_FILE
    if path.is_file():
        value = _json_object(path, path.read_bytes(), "origin")
        repository, revision = value.get("repository"), value.get("revision")
        if not isinstance(repository, str) or not isinstance(revision, str):
            _refuse(path, "needs the strings `repository` and `revision`", None)
        return repository, revision, ORIGIN_FILE
    absolute = directory.absolute()
    match = _SNAPSHOT.match(absolute.parent.parent.name)
    if match and absolute.parent.name == "snapshots":
        return match["repository"].replace("--", "/", 1), absolute.name, "hub cache path"
    return None, None, "directory"


def absent(key: str) -> CheckpointError:
    """The error for a tensor that the checkpoint does not have."""
    return CheckpointError(
        f"the checkpoint has no tensor {key!r}", "is this the model and revision that the plan names?"
    )
