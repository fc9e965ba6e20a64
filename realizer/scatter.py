"""Which reads bring which bytes where: tensors cut into reads of neighbours on disk, and into windows of the target.

Pure planning over byte offsets; `realizer.loader` carries it out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ledger.errors import RealizationFailed
from realizer.adapter import Layout
from realizer.checkpoint import Checkpoint, absent, collector_paused
from realizer.procfs import PAGE

MIB = 1024 * 1024
READ_BYTES = 8 * MIB
"""The most that one read call is asked for, and so the grain at which threads share the work."""

SKIP_BYTES = PAGE
"""Unselected bytes between two neighbours on disk are read into scrap when they are no more than this (a page)."""

IOV_MAX = os.sysconf("SC_IOV_MAX")


class Piece(NamedTuple):
    """One checkpoint tensor and the byte offset in the target range where its bytes go."""

    key: str
    offset: int


class Segment(NamedTuple):
    """A part of one tensor: `length` bytes at `position` of `file`, for `target`; `within` is its offset in the tensor."""

    file: str
    position: int
    target: int
    length: int
    piece: int
    within: int


@dataclass(frozen=True)
class Window:
    """A contiguous part of the target, no longer than a ring slot, and the reads that fill it."""

    start: int
    length: int
    batches: list[list[Segment]]


def pieces_of(layout: Layout, checkpoint: Checkpoint) -> list[Piece]:
    """The layout's places as pieces: a place's sources lie in it one after another.

    Raises RealizationFailed for a place that is computed, and when the sources' bytes are not the place's.
    """
    pieces = []
    tensors = checkpoint.tensors
    with collector_paused():
        for place in layout.places:
            if place.derived or not place.sources:
                raise RealizationFailed(
                    f"{place.name!r} is not made of checkpoint bytes as they are; the loader only copies",
                    "the adapter has to build such a tensor itself",
                )
            offset = place.offset
            for key in place.sources:
                entry = tensors.get(key)
                if entry is None:
                    raise absent(key)
                pieces.append(Piece(key, offset))
                offset += entry.end - entry.start
            if offset - place.offset != place.bytes:
                raise RealizationFailed(
                    f"{place.name!r} takes {place.bytes} bytes; its sources have {offset - place.offset}",
                    "is this the checkpoint that the plan was drafted for?",
                )
    return pieces


def group_reads(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Segments cut to READ_BYTES and grouped so that each group is one read: neighbours on disk, within the limits."""
    batch: list[Segment] = []
    size, end, most = 0, 0, IOV_MAX // 2 - 1  # a piece of scrap may stand before every segment
    for segment in sorted(segments):
        for part in (segment,) if segment.length <= READ_BYTES else cut_segment(segment, READ_BYTES):
            gap = part.position - end
            if batch and (
                not 0 <= gap <= SKIP_BYTES
                or size + gap + part.length > READ_BYTES
                or part.file != batch[-1].file
                or len(batch) >= most
            ):
                yield batch
                batch = []
            if not batch:
                size = gap = 0
            batch.append(part)
            size += gap + part.length
            end = part.position + part.length
    if batch:
        yield batch


def cut_segment(segment: Segment, most: int) -> Iterator[Segment]:
    """The segment in parts of at most `most` bytes, in order."""
    if segment.length <= most:
        yield segment
        return
    file, position, target, length, piece, within = segment
    for at in range(0, length, most):
        yield Segment(file, position + at, target + at, min(most, length - at), piece, within + at)


def cut_windows(segments: Iterable[Segment], most: int) -> Iterator[Window]:
    """The target cut into windows of at most `most` bytes, in the target's order.

    A window holds whole tensors, or one part of a tensor that is longer than a window.
    """
    inside: list[Segment] = []
    for segment in sorted(segments, key=lambda segment: segment.target):
        if inside and segment.target + segment.length > inside[0].target + most:
            yield window_of(inside)
            inside = []
        if segment.length > most:
            for part in cut_segment(segment, most):
                yield window_of([part])
        else:
            inside.append(segment)
    if inside:
        yield window_of(inside)


def window_of(inside: list[Segment]) -> Window:
    return Window(inside[0].target, inside[-1].target + inside[-1].length - inside[0].target, list(group_reads(inside)))


def spread_windows(windows: list[Window]) -> list[Window]:
    """The windows reordered so that the parts of one long tensor, which are hashed one after another, lie far apart.

    Law: parts of one tensor keep their order.
    """
    runs: dict[int, list[Window]] = {}
    for number, window in enumerate(windows):
        pieces = {segment.piece for batch in window.batches for segment in batch}
        runs.setdefault(pieces.pop() if len(pieces) == 1 else -1 - number, []).append(window)
    singles = [run for run in runs.values() if len(run) == 1]
    spread = [(at + 0.5) / len(run) for run in runs.values() if len(run) > 1 for at in range(len(run))]
    spread += [(at + 0.5) / len(singles) for at in range(len(singles))]
    order = [window for run in runs.values() if len(run) > 1 for window in run] + [run[0] for run in singles]
    return [order[at] for at in sorted(range(len(order)), key=lambda at: spread[at])]


def tensor_spans(window: Window) -> Iterator[tuple[int, int]]:
    """(start, length) in the target of the window's bytes that belong to tensors, neighbours joined."""
    start = end = None
    for segment in sorted((s for batch in window.batches for s in batch), key=lambda segment: segment.target):
        if end is not None and start is not None and segment.target != end:
            yield start, end - start
            start = None
        if start is None:
            start = segment.target
        end = segment.target + segment.length
    if start is not None and end is not None:
        yield start, end - start
