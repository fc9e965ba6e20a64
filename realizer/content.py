"""Are the resident bytes the source's? Every tensor digested as it was read from the checkpoint and as it lies in memory now.

A layout's places are laid against their sources one by one: copied ones against the digest that the loader took while it
had the file's bytes in hand, derived ones against what the adapter computes from the checkpoint anew. Resident bytes
are read back from where they lie, from a device through a small pinned buffer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from json.encoder import encode_basestring_ascii
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from ledger.canonical import sha256_digest
from ledger.measurement import Measurement, measured, unavailable
from realizer import answers
from realizer.adapter import COMPUTED, Layout, TensorPlace
from realizer.checkpoint import collector_paused
from realizer.memory import SYSTEM_RAM, MemoryRange, allocate

if TYPE_CHECKING:
    from realizer.adapter import Adapter
    from realizer.loader import Loader

WINDOW = 2 * 1024 * 1024
"""Bytes that are read back at a time by one thread: neighbouring small tensors together, a large one in parts."""
MOST_THREADS = 16

METHOD = "SHA-256 over the names and SHA-256 digests of its tensors"


@dataclass(frozen=True)
class Content:
    """One materialization's content: both digests for its event, and one row a tensor, as JSON text, for a blob.

    The digests are equal exactly when every tensor's two digests are. A source digest that is missing for any tensor
    makes the whole unavailable; the row says why.
    """

    source_digest: Measurement
    resident_digest: Measurement
    rows: bytes
    differing: tuple[str, ...]


def content_of(adapter: Adapter, materialization_id: str, memory: MemoryRange, loader: Loader) -> Content:
    """Read a materialization back and lay it against its sources; the loader has to have read it with digests on.

    An adapter that joins or computes tensors has `content`, its layout cut to single checkpoint tensors, and
    `derived_digests`; of others the layout's places are taken as they are.
    """
    with collector_paused():
        call = "content" if hasattr(adapter, "content") else "layout"
        cut = answers.held_layout(adapter, call, answers.done(adapter, call, materialization_id))
        derived: dict[str, str] = {}
        if any(place.derived for place in cut.places):
            derived = answers.derived_digests(adapter, materialization_id, loader)
        spans = _spans(cut)
        resident = _digests_of(spans, memory)
        return _laid_together(cut, spans, memory.space, resident, loader.digests, derived)


def lay_together(layout: Layout, memory: MemoryRange, read: Mapping[str, str], derived: Mapping[str, str]) -> Content:
    """Read the layout's places back from the range and compare: `read` by checkpoint key, `derived` by place name."""
    spans = _spans(layout)
    return _laid_together(layout, spans, memory.space, _digests_of(spans, memory), read, derived)


def _laid_together(
    layout: Layout,
    spans: list[Span],
    space: str,
    resident: Mapping[str, str],
    read: Mapping[str, str],
    derived: Mapping[str, str],
) -> Content:
    rows: list[str] = []  # as text at once: there may be tens of thousands, inside a window that counts bytes
    source_lines, resident_lines = [], []
    gaps, differing = [], []
    quoted = cache(json.dumps)
    shapes = cache(lambda shape: json.dumps(shape, separators=(",", ":")))
    for place, span in zip(layout.places, spans, strict=True):
        name = place.name
        expected, why = _expected(place, read, derived)
        found = resident[name]
        if expected is None:
            gaps.append(f"{name}: {why}")
        elif expected != found:
            differing.append(name)
        source_lines.append(f"{name} {expected}\n")
        resident_lines.append(f"{name} {found}\n")
        source_text = "null" if expected is None else f'"{expected}"'
        rows.append(  # members in order of their names; the encoder itself would take most of the time
            f'{{"bytes":{span.length},"device":{quoted(space)},"dtype":{quoted(place.dtype)},"name":{encode_basestring_ascii(name)}'
            f',"offset":{place.offset},"resident_digest":"{found}","shape":{shapes(place.shape)}'
            f',"source_digest":{source_text},"why":{quoted(why)}}}'
        )
    source, here = (sha256_digest("".join(lines).encode("utf-8")) for lines in (source_lines, resident_lines))
    method = f"{METHOD}, as they were read from the checkpoint"
    missing = f"{len(gaps)} of {len(rows)} have none; {gaps[0]}" if gaps else ""
    computed = sum(place.derived for place in layout.places)
    word = f"{computed} of {len(rows)} tensors are computed: their digests are the adapter's word" if computed else None
    return Content(
        source_digest=unavailable(None, method, missing) if gaps else measured(source, None, method, detail=word),
        resident_digest=measured(here, None, f"{METHOD}, read back from {space}"),
        rows=f"[{','.join(rows)}]".encode(),
        differing=tuple(differing),
    )


def _expected(place: TensorPlace, read: Mapping[str, str], derived: Mapping[str, str]) -> tuple[str | None, str]:
    """The digest that a place's bytes ought to have, or None; and where it comes from, or why there is none."""
    if place.derived:
        found = derived.get(place.name)
        return found, COMPUTED if found else "the adapter recomputes it not"
    if len(place.sources) != 1:
        return None, f"made of {len(place.sources)} checkpoint tensors, and not cut into them"
    found = read.get(place.sources[0])
    return found, "copied from the checkpoint" if found else "its bytes were not digested while they were read"


class Span(NamedTuple):
    """A place's bytes in the range."""

    offset: int
    length: int
    name: str


def _spans(layout: Layout) -> list[Span]:
    return [Span(place.offset, place.bytes, place.name) for place in layout.places]


def resident_digests(layout: Layout, memory: MemoryRange, threads: int | None = None) -> dict[str, str]:
    """`sha256:` of each place's bytes as they lie in the range now, by the place's name."""
    return _digests_of(_spans(layout), memory, threads)


def _digests_of(spans: list[Span], memory: MemoryRange, threads: int | None = None) -> dict[str, str]:
    workers = threads or min(MOST_THREADS, os.cpu_count() or 1)
    found: dict[str, str] = {}
    with _reader(memory, workers) as reader, ThreadPoolExecutor(workers, thread_name_prefix="content") as pool:
        for digests in pool.map(reader.digests, _batches(spans)):
            found |= digests
    return found


def _batches(spans: list[Span]) -> list[list[Span]]:
    """Spans in runs of at most WINDOW bytes; those that are longer alone, and first, since they take longest."""
    batches = [[span] for span in sorted(spans, key=lambda span: -span.length) if span.length > WINDOW]
    batch: list[Span] = []
    first = 0
    for span in sorted(spans):
        offset, length, _ = span
        if length > WINDOW:
            continue
        if batch and offset + length - first > WINDOW:
            batches.append(batch)
            batch = []
        if not batch:
            first = offset
        batch.append(span)
    return [*batches, batch] if batch else batches


def _each(batch: list[Span], view: memoryview, start: int) -> dict[str, str]:
    """Digests of spans that lie in the view, which begins at `start` of the range."""
    found = {}
    for offset, length, name in batch:
        at = offset - start
        with view[at : at + length] as part:
            found[name] = "sha256:" + hashlib.sha256(part).hexdigest()
    return found


class _HostReader:
    """Digests straight from a host range's own bytes."""

    def __init__(self, memory: MemoryRange) -> None:
        self._memory = memory

    def digests(self, batch: list[Span]) -> dict[str, str]:
        with self._memory.view() as view:
            return _each(batch, view, 0)


class _DeviceReader:
    """Digests of device bytes, copied back through the slots of a pinned host buffer."""

    def __init__(self, memory: MemoryRange, scratch: MemoryRange) -> None:
        from realizer.device_copies import DeviceReads

        self._scratch = scratch
        self._reads = DeviceReads(memory, scratch)
        self._slots: SimpleQueue[int] = SimpleQueue()
        for offset in range(0, scratch.length - WINDOW + 1, WINDOW):
            self._slots.put(offset)

    def digests(self, batch: list[Span]) -> dict[str, str]:
        slot = self._slots.get()
        try:
            start = batch[0].offset
            length = max(span.offset + span.length for span in batch) - start
            with self._scratch.view() as whole, whole[slot : slot + WINDOW] as view:
                if length <= WINDOW:
                    self._reads.fetch(start, slot, length)
                    return _each(batch, view, start)
                digest = hashlib.sha256()
                for at in range(0, length, WINDOW):
                    count = min(WINDOW, length - at)
                    self._reads.fetch(start + at, slot, count)
                    with view[:count] as part:
                        digest.update(part)
                return {batch[0].name: "sha256:" + digest.hexdigest()}
        finally:
            self._slots.put(slot)


@contextmanager
def _reader(memory: MemoryRange, workers: int) -> Iterator[_HostReader | _DeviceReader]:
    if memory.space == "host":
        yield _HostReader(memory)
        return
    scratch = allocate(SYSTEM_RAM, workers * WINDOW, owner=f"{memory.owner}:read-back", pinned=True)
    try:
        yield _DeviceReader(memory, scratch)
    finally:
        scratch.free()
