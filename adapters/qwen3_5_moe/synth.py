"""Writing a synthetic checkpoint of a block: real names, dtypes, shard split and index, reproducible values, any size.

Only the block's own tensors are written (embeddings and its layers, unselected `input_scale`s included): no other layer,
no final norm, no head, no vision tower. Values are conditioned so that a deep block stays finite and its routers
spread: projections have unit gain over their inputs, those that write to the residual stream OUTPUT_GAIN.

Every byte is a function of (seed, tensor name, position) alone, so that threads, chunking and library versions do not
matter. Bits come from the SplitMix64 sequence (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), which can be entered at any position.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from adapters.qwen3_5_moe.keys import EMBEDDINGS, DiskTensor, disk_tensors, shard_of
from adapters.qwen3_5_moe.shape import PUBLISHED, TINY, BlockShape
from ledger.canonical import sha256_digest
from ledger.errors import TallyError
from realizer.adapter import DTYPE_BITS
from realizer.checkpoint import CONFIG_FILE, INDEX_FILE, ORIGIN_FILE

VERSION = 1
"""Of the rule that makes the values. Another version makes another checkpoint, and says so in its revision."""

CHUNK = 32 * 1024 * 1024
"""Bytes that one thread makes and writes at a time."""

BLOCK_WORDS = 1 << 15
"""64-bit words made at a time: few enough to stay in a core's cache."""

OUTPUT_GAIN = 0.3
ROUTER_GAIN = 1.5
FP8_SPREAD = 64.0
"""Standard deviation of FP8 weights before their scale: 2.9 of it is within E4M3's 448, and most codes are used."""

E2M1_RMS = sqrt(sum(value * value for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)
GROUP_SCALES = [128.0 + 16 * step for step in range(8)] + [256.0 + 32 * step for step in range(7)] + [448.0]
"""What the E4M3 codes 0x70 to 0x7E mean, the last one twice as likely: the FP8 group scales of NVFP4 weights."""
GROUP_SCALE_RMS = sqrt(sum(value * value for value in GROUP_SCALES) / len(GROUP_SCALES))

SAFETENSORS_ORDER = ("F32", "BF16", "F8_E4M3", "U8")
"""safetensors' writer puts wider types first, and sorts by name within a type."""


@dataclass(frozen=True)
class Written:
    """What was written: the directory, tensors and bytes of tensor data, and the revision that its origin file names."""

    directory: Path
    tensors: int
    bytes: int
    revision: str


class _Span(NamedTuple):
    """`length` bytes from `within` of a tensor's own bytes, lying at `position` of its file's data."""

    tensor: DiskTensor
    position: int
    within: int
    length: int

    @property
    def end(self) -> int:
        return self.position + self.length


def write_checkpoint(
    shape: BlockShape,
    directory: Path,
    *,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Written:
    """Write config, shards, index and origin into a new or empty directory; the index comes last.

    `progress` takes (what, bytes done, bytes in all). Raises TallyError when the directory holds anything, or when it
    cannot be written.
    """
    revision = revision_of(shape, seed)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise TallyError(f"{directory} is not empty", "name a new directory: nothing is overwritten")
        return _write(shape, directory, seed, threads or os.cpu_count() or 1, progress, revision)
    except OSError as error:
        raise TallyError(f"{directory} cannot be written: {error.strerror}", "is there room, and may you?") from error


def from_options(directory: Path, options: Mapping[str, Any]) -> Written:
    """`write_checkpoint` of a named size: `published` (block A) or tiny, with `layers` and `experts` changed as given.

    Other options: `seed`, `threads`, `progress`. Raises TallyError for one that is unknown or does not fit.
    """
    known = {"published", "layers", "experts", "seed", "threads", "progress"}
    if odd := sorted(set(options) - known):
        raise TallyError(f"a synthetic checkpoint has no option {odd[0]!r}", f"options: {', '.join(sorted(known))}")
    given = {name: value for name, value in options.items() if value is not None}
    shape = PUBLISHED if _truth("published", given.get("published", False)) else TINY
    try:
        layers = int(given.get("layers", shape.end))
        experts = int(given.get("experts", shape.experts))
        seed, threads = int(given.get("seed", 0)), int(given.get("threads", 0)) or None
    except (TypeError, ValueError) as error:
        raise TallyError("layers, experts, seed and threads are whole numbers", str(error)) from error
    shape = replace(shape, end=layers, model_layers=max(layers, shape.model_layers), experts=experts)
    return write_checkpoint(
        shape,
        directory,
        seed=seed,
        threads=threads,
        progress=given.get("progress"),
    )


def _truth(name: str, value: object) -> bool:
    """A flag as code or a command line gives it. Raises TallyError for what is neither true nor false."""
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = known.get(str(value).lower())
    if found is None:
        raise TallyError(f"option {name} is {value!r}, neither true nor false")
    return found


def revision_of(shape: BlockShape, seed: int) -> str:
    """40 hex digits that name the contents: of the shape on disk, the seed, and the rule's version."""
    made = asdict(shape) | {"seed": seed, "version": VERSION}
    for placement in ("pages", "page_tokens"):
        made.pop(placement)
    return sha256_digest(json.dumps(made, sort_keys=True).encode("utf-8")).removeprefix("sha256:")[:40]


def _write(
    shape: BlockShape,
    directory: Path,
    seed: int,
    threads: int,
    progress: Callable[[str, int, int], None] | None,
    revision: str,
) -> Written:
    shards: dict[int, list[DiskTensor]] = {}
    for tensor in disk_tensors(shape):
        shards.setdefault(shard_of(shape, tensor.key), []).append(tensor)
    weight_map: dict[str, str] = {}
    total = count = 0
    planned = []
    for number, (_, tensors) in enumerate(sorted(shards.items())):
        name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        header, spans = _header(tensors)
        weight_map |= {tensor.key: name for tensor in tensors}
        total += spans[-1].end
        count += len(spans)
        planned.append((directory / name, header, spans))
    done = 0
    for path, header, spans in planned:
        with path.open("xb") as file:
            file.write(header)
            file.flush()
            os.truncate(file.fileno(), len(header) + spans[-1].end)
            with ThreadPoolExecutor(threads, thread_name_prefix="synth") as pool:
                jobs = [
                    pool.submit(_fill, file.fileno(), len(header), batch, seed, shape.hidden)
                    for batch in _batches(spans)
                ]
                for job in jobs:
                    done += job.result()
                    if progress:
                        progress("writing the synthetic checkpoint", done, total)
    config = json.dumps(shape.config(), indent=2, sort_keys=True)
    (directory / CONFIG_FILE).write_text(f"{config}\n", encoding="utf-8")
    origin = {"repository": "synthetic/qwen3_5_moe", "revision": revision}
    (directory / ORIGIN_FILE).write_text(json.dumps(origin, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return Written(directory, count, total, revision)


def tensor_bytes(tensor: DiskTensor) -> int:
    """Bytes of a tensor on disk."""
    bits = DTYPE_BITS[tensor.dtype]
    for extent in tensor.shape:
        bits *= extent
    return bits // 8


def _header(tensors: list[DiskTensor]) -> tuple[bytes, list[_Span]]:
    """The file's first bytes (length and JSON, padded to 8), and each tensor's span of the data, in file order."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    spans, offset = [], 0
    for tensor in sorted(tensors, key=lambda tensor: (SAFETENSORS_ORDER.index(tensor.dtype), tensor.key)):
        end = offset + tensor_bytes(tensor)
        entries[tensor.key] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        spans.append(_Span(tensor, offset, 0, end - offset))
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, spans


def _batches(spans: list[_Span]) -> Iterator[list[_Span]]:
    """Spans in file order in runs of at most CHUNK bytes; a longer tensor comes in parts."""
    batch: list[_Span] = []
    for whole in spans:
        for within in range(0, whole.length, CHUNK):
            part = _Span(whole.tensor, whole.position + within, within, min(CHUNK, whole.length - within))
            if batch and part.end - batch[0].position > CHUNK:
                yield batch
                batch = []
            batch.append(part)
    if batch:
        yield batch


def _fill(descriptor: int, data_start: int, batch: list[_Span], seed: int, hidden: int) -> int:
    """Make one run of spans and write it with one call; the bytes written."""
    first = batch[0].position
    data = np.empty(batch[-1].end - first, np.uint8)
    for span in batch:
        _make(span, data[span.position - first : span.end - first], seed, hidden)
    view, position = data.data, data_start + first
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written
    return len(data)


def _make(span: _Span, out: np.ndarray, seed: int, hidden: int) -> None:
    """Fill `out` U8 [length] with the span's bytes."""
    tensor, start = span.tensor, _start(seed, span.tensor.key)
    if tensor.dtype == "F32":
        out[:] = np.frombuffer(struct.pack("<f", _scalar(tensor.key, _unit(start), hidden)), np.uint8)
    elif tensor.dtype == "U8":
        _bits(start, span.within, out)
    elif tensor.dtype == "F8_E4M3":
        _bits(start, span.within, out)
        if tensor.key.endswith(".weight_scale"):
            out &= 15
            np.minimum(out, 14, out=out)
            out |= 0x70
        else:
            np.take(_fp8_normal(), out, out=out, mode="wrap")
    else:
        random = np.empty(span.length // 2, np.uint8)
        _bits(start, span.within // 2, random)
        np.take(_bf16_normal(*_moments(tensor)), random, out=out.view(np.uint16), mode="wrap")


def _start(seed: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{VERSION}:{seed}:{key}".encode()).digest()[:8], "little")


GAMMA, MIX_1, MIX_2, WORD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1


def _bits(start: int, within: int, out: np.ndarray) -> None:
    """Bytes `within` onwards of the SplitMix64 sequence that begins at `start`; `within` is a multiple of 8."""
    word, end = within // 8, (within + len(out) + 7) // 8
    while word < end:
        count = min(BLOCK_WORDS, end - word)
        mixed = np.arange(word + 1, word + count + 1, dtype=np.uint64)
        mixed *= np.uint64(GAMMA)
        mixed += np.uint64(start)
        shifted = mixed >> np.uint64(30)
        mixed ^= shifted
        mixed *= np.uint64(MIX_1)
        np.right_shift(mixed, np.uint64(27), out=shifted)
        mixed ^= shifted
        mixed *= np.uint64(MIX_2)
        np.right_shift(mixed, np.uint64(31), out=shifted)
        mixed ^= shifted
        at = word * 8 - within
        part = out[at : at + count * 8]
        part[:] = mixed.view(np.uint8)[: len(part)]
        word += count


def _unit(start: int) -> float:
    """The sequence's first word as a number from 0 to 1."""
    mixed = (start + GAMMA) & WORD
    mixed = ((mixed ^ (mixed >> 30)) * MIX_1) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * MIX_2) & WORD
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


def _scalar(key: str, unit: float, hidden: int) -> float:
    """A scale for a weight whose rows have about `hidden` elements, so that its projection has the gain it should.

    `weight_scale_2` comes out near 3e-5 at published size, which F16 holds only as a subnormal: as in real checkpoints.
    """
    jitter = 0.75 + 0.5 * unit
    if key.endswith(".input_scale"):
        return 0.02 * jitter
    gain = OUTPUT_GAIN if any(name in key for name in ("down_proj", "out_proj", "o_proj")) else 1.0
    spread = E2M1_RMS * GROUP_SCALE_RMS if key.endswith(".weight_scale_2") else FP8_SPREAD
    return gain * jitter / (sqrt(hidden) * spread)


def _moments(tensor: DiskTensor) -> tuple[float, float]:
    """Mean and standard deviation of a BF16 tensor."""
    name = tensor.key
    unit = 1 / sqrt(tensor.shape[-1])
    if name == EMBEDDINGS:
        return 0.0, 0.5
    if name.endswith("linear_attn.norm.weight"):
        return 1.0, 0.1
    if name.endswith("norm.weight"):
        return 0.0, 0.1
    if name.endswith("A_log"):
        return -0.5, 1.0
    if name.endswith("dt_bias"):
        return -1.0, 1.0
    return (0.0, ROUTER_GAIN * unit) if name.endswith("mlp.gate.weight") else (0.0, unit)


def _quantiles() -> np.ndarray:
    """256 equally likely values of the standard normal distribution, F64 [256]."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((code + 0.5) / 256) for code in range(256)])


@cache
def _bf16_normal(mean: float, deviation: float) -> np.ndarray:
    """BF16 bits U16 [256] of that normal distribution's quantiles, rounded to nearest, ties to even."""
    bits = (mean + deviation * _quantiles()).astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@cache
def _fp8_normal() -> np.ndarray:
    """E4M3 codes U8 [256] nearest to the quantiles of a normal distribution of deviation FP8_SPREAD; no NaN among them."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    wanted = FP8_SPREAD * _quantiles()
    nearest = np.abs(values[None, :] - np.abs(wanted)[:, None]).argmin(axis=1)
    return (nearest | np.where(wanted < 0, 0x80, 0)).astype(np.uint8)
