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
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ledger.canonical import sha256_digest
from ledger.events import Measurement, measured, unavailable
from realizer.adapter import Layout, TensorPlace
from realizer.memory import SYSTEM_RAM, MemoryRange, allocate

if TYPE_CHECKING:
    from realizer.adapter import Adapter
    from realizer.loader import Loader

WINDOW = 4 * 1024 * 1024
"""Bytes that are read back at a time by one thread: neighbouring small tensors together, a large one in parts."""
MOST_SLOTS = 8

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
    cut: Layout = getattr(adapter, "content", adapter.layout)(materialization_id)
    derived: dict[str, str] = {}
    if any(place.derived for place in cut.places):
        anew: Any = getattr(adapter, "derived_digests", None)
        derived = anew(materialization_id, loader) if anew is not None else {}
    return lay_together(cut, memory, loader.digests, derived)


def lay_together(layout: Layout, memory: MemoryRange, read: Mapping[str, str], derived: Mapping[str, str]) -> Content:
    """Read the layout's places back from the range and compare: `read` by checkpoint key, `derived` by place name."""
    resident = resident_digests(layout, memory)
    rows: list[str] = []  # as text at once: there may be tens of thousands, inside a window that counts bytes
    lines: dict[str, list[str]] = {"source": [], "resident": []}
    gaps, differing = [], []
    for place in layout.places:
        expected, why = _expected(place, read, derived)
        found = resident[place.name]
        if expected is None:
            gaps.append(f"{place.name}: {why}")
        elif expected != found:
            differing.append(place.name)
        lines["source"].append(f"{place.name} {expected}\n")
        lines["resident"].append(f"{place.name} {found}\n")
        row = {
            "name": place.name,
            "dtype": place.dtype,
            "shape": place.shape,
            "bytes": place.bytes,
            "offset": place.offset,
            "device": memory.space,
            "source_digest": expected,
            "resident_digest": found,
            "why": why,
        }
        rows.append(json.dumps(row, sort_keys=True, separators=(",", ":")))
    source, here = (sha256_digest("".join(lines[side]).encode("utf-8")) for side in ("source", "resident"))
    method = f"{METHOD}, as they were read from the checkpoint"
    missing = f"{len(gaps)} of {len(rows)} have none; {gaps[0]}" if gaps else ""
    return Content(
        source_digest=unavailable(None, method, missing) if gaps else measured(source, None, method),
        resident_digest=measured(here, None, f"{METHOD}, read back from {memory.space}"),
        rows=f"[{','.join(rows)}]".encode(),
        differing=tuple(differing),
    )


def _expected(place: TensorPlace, read: Mapping[str, str], derived: Mapping[str, str]) -> tuple[str | None, str]:
    """The digest that a place's bytes ought to have, or None; and where it comes from, or why there is none."""
    if place.derived:
        found = derived.get(place.name)
        return found, "recomputed by the adapter from its sources" if found else "the adapter recomputes it not"
    if len(place.sources) != 1:
        return None, f"made of {len(place.sources)} checkpoint tensors, and not cut into them"
    found = read.get(place.sources[0])
    return found, "copied from the checkpoint" if found else "its bytes were not digested while they were read"


def resident_digests(layout: Layout, memory: MemoryRange, threads: int | None = None) -> dict[str, str]:
    """`sha256:` of each place's bytes as they lie in the range now, by the place's name."""
    workers = threads or min(16, os.cpu_count() or 1)
    found: dict[str, str] = {}
    with _reader(memory, workers) as reader, ThreadPoolExecutor(workers, thread_name_prefix="content") as pool:
        for digests in pool.map(reader.digests, _batches(layout)):
            found |= digests
    return found


def _batches(layout: Layout) -> list[list[TensorPlace]]:
    """Places in runs that span at most WINDOW bytes; those that are longer alone, and first, since they take longest."""
    long = sorted((place for place in layout.places if place.bytes > WINDOW), key=lambda place: -place.bytes)
    batches = [[place] for place in long]
    batch: list[TensorPlace] = []
    for place in sorted((p for p in layout.places if p.bytes <= WINDOW), key=lambda place: place.offset):
        if batch and place.offset + place.bytes - batch[0].offset > WINDOW:
            batches.append(batch)
            batch = []
        batch.append(place)
    return [*batches, batch] if batch else batches


class _HostReader:
    """Digests straight from a host range's own bytes."""

    def __init__(self, memory: MemoryRange) -> None:
        self._memory = memory

    def digests(self, batch: list[TensorPlace]) -> dict[str, str]:
        with self._memory.view() as view:
            found = {}
            for place in batch:
                with view[place.offset : place.offset + place.bytes] as part:
                    found[place.name] = "sha256:" + hashlib.sha256(part).hexdigest()
            return found


class _DeviceReader:
    """Digests of device bytes, copied back through the slots of a pinned host buffer."""

    def __init__(self, memory: MemoryRange, scratch: MemoryRange) -> None:
        import torch

        self._torch, self._memory, self._scratch = torch, memory, scratch
        torch.cuda.synchronize(memory.device)
        self._slots: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        for offset in range(0, scratch.length - WINDOW + 1, WINDOW):
            self._slots.put((offset, torch.cuda.Stream(device=memory.device)))

    def digests(self, batch: list[TensorPlace]) -> dict[str, str]:
        slot = self._slots.get()
        try:
            if batch[0].bytes > WINDOW:
                return {batch[0].name: self._long(batch[0], slot)}
            start = batch[0].offset
            end = max(place.offset + place.bytes for place in batch)
            self._fetch(start, end - start, slot)
            found = {}
            with self._scratch.view() as view:
                for place in batch:
                    at = slot[0] + place.offset - start
                    with view[at : at + place.bytes] as part:
                        found[place.name] = "sha256:" + hashlib.sha256(part).hexdigest()
            return found
        finally:
            self._slots.put(slot)

    def _long(self, place: TensorPlace, slot: tuple[int, Any]) -> str:
        digest = hashlib.sha256()
        with self._scratch.view() as view:
            for at in range(0, place.bytes, WINDOW):
                count = min(WINDOW, place.bytes - at)
                self._fetch(place.offset + at, count, slot)
                with view[slot[0] : slot[0] + count] as part:
                    digest.update(part)
        return "sha256:" + digest.hexdigest()

    def _fetch(self, offset: int, count: int, slot: tuple[int, Any]) -> None:
        if not count:
            return
        uint8, (place, stream) = self._torch.uint8, slot
        with self._torch.cuda.stream(stream):
            here = self._scratch.tensor(uint8, (count,), place)
            here.copy_(self._memory.tensor(uint8, (count,), offset), non_blocking=True)
            stream.synchronize()


@contextmanager
def _reader(memory: MemoryRange, workers: int) -> Iterator[_HostReader | _DeviceReader]:
    if memory.space == "host":
        yield _HostReader(memory)
        return
    scratch = allocate(SYSTEM_RAM, min(workers, MOST_SLOTS) * WINDOW, owner=f"{memory.owner}:read-back", pinned=True)
    try:
        yield _DeviceReader(memory, scratch)
    finally:
        scratch.free()
