"""Which reads bring which bytes where: tensors cut into windows of a file, and what of each goes to which place.

Pure planning over byte offsets; `realizer.loader` carries it out. There may be hundreds of thousands of tensors, so they are
held by columns, and what is done once a tensor is done on whole columns.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from ledger.errors import RealizationFailed
from realizer.adapter import Layout, TensorPlace
from realizer.checkpoint import Checkpoint, TensorEntry, absent, collector_paused
from realizer.procfs import PAGE

MIB = 1024 * 1024
READ_BYTES = 8 * MIB
"""The most that one read call into the target itself is asked for, and so the grain at which threads share the work."""

SKIP_BYTES = PAGE
"""Unselected bytes between two neighbours on disk are read along when they are no more than this (a page)."""

READ_PARTS = os.sysconf("SC_IOV_MAX") // 2 - 1
"""The most tensors that one read call scatters: a piece of scrap may stand before every one of them."""

Integers = np.ndarray
Item = TypeVar("Item")


class Piece(NamedTuple):
    """One checkpoint tensor and the byte offset in the target range where its bytes go."""

    key: str
    offset: int


@dataclass(frozen=True)
class Pieces:
    """Checkpoint tensors and where their bytes go, by columns.

    `dtypes` are safetensors names. `files` are file names and `file` I64 [n] numbers into them; `start` I64 [n] is a
    tensor's byte offset in its file, `length` I64 [n] its bytes, `offset` I64 [n] the byte offset in the target range
    where they go.
    """

    keys: Sequence[str]
    dtypes: Sequence[str]
    files: Sequence[str]
    file: Integers
    start: Integers
    length: Integers
    offset: Integers

    @classmethod
    def of(cls, pieces: Sequence[Piece], entries: Mapping[str, TensorEntry]) -> Pieces:
        """Single pieces by columns. Raises CheckpointError for a tensor that is absent."""
        found = cls._at_zero([piece.key for piece in pieces], entries)
        return replace(found, offset=np.fromiter((piece.offset for piece in pieces), np.int64, len(pieces)))

    @classmethod
    def packed(cls, keys: Sequence[str], entries: Mapping[str, TensorEntry], alignment: int) -> Pieces:
        """The tensors one after another, each at a multiple of `alignment`. Raises CheckpointError for one that is absent."""
        found = cls._at_zero(keys, entries)
        padded = -(-found.length // alignment) * alignment
        return replace(found, offset=np.cumsum(padded) - padded)

    @classmethod
    def laid_out(cls, places: Sequence[TensorPlace], entries: Mapping[str, TensorEntry]) -> tuple[Pieces, list[int]]:
        """The sources of the places, each place's one after another from its offset on; and each place's sum of bytes.

        Raises CheckpointError for a tensor that is absent.
        """
        found = cls._at_zero([key for place in places for key in place.sources], entries)
        counts = np.array([len(place.sources) for place in places], np.int64)
        ends = np.cumsum(found.length)
        first = np.cumsum(counts) - counts
        before = np.concatenate([np.zeros(1, np.int64), ends])  # bytes of all sources before each
        base = np.array([place.offset for place in places], np.int64) - before[first]
        sizes = before[first + counts] - before[first]
        return replace(found, offset=ends - found.length + np.repeat(base, counts)), sizes.tolist()

    @classmethod
    def _at_zero(cls, keys: Sequence[str], entries: Mapping[str, TensorEntry]) -> Pieces:
        with collector_paused():
            found = list(map(entries.get, keys))
            if None in found:
                raise absent(keys[found.index(None)])
            columns = list(zip(*found, strict=True)) or [()] * len(TensorEntry._fields)
        _, dtypes, _, names, starts, ends = columns
        numbers = {name: number for number, name in enumerate(sorted(set(names)))}
        file = np.fromiter(map(numbers.__getitem__, names), np.int64, len(keys))
        start = np.array(starts, np.int64)
        return cls(
            keys, dtypes, list(numbers), file, start, np.array(ends, np.int64) - start, np.zeros(len(keys), np.int64)
        )

    @property
    def bytes(self) -> int:
        """Sum of the tensors' bytes."""
        return int(self.length.sum())

    def __len__(self) -> int:
        return len(self.keys)


class Part(NamedTuple):
    """All or a part of one tensor in a window: which piece, its offsets in window and target, and where it begins in the
    tensor itself."""

    piece: int
    at: int
    target: int
    length: int
    within: int


class Window(NamedTuple):
    """`length` bytes at `position` of a file, with the numbers of its parts and of its runs, both in the file's order."""

    file: str
    position: int
    length: int
    parts: slice
    runs: slice


class Runs(NamedTuple):
    """Bytes to be moved, by columns I64 [n]: offset in the window, offset in the target, length. A run is a window's parts
    that are neighbours in the target too."""

    at: Integers
    target: Integers
    length: Integers


@dataclass(frozen=True)
class Windows:
    """Pieces cut into windows of their files, in the files' order. Columns are of all windows' parts and runs."""

    pieces: Pieces
    windows: list[Window]
    piece: Integers
    position: Integers
    target: Integers
    length: Integers
    all_runs: Runs

    def parts(self, window: Window) -> Iterator[Part]:
        """The window's parts, in the file's order."""
        piece, position = self.piece[window.parts], self.position[window.parts]
        at, within = position - window.position, position - self.pieces.start[piece]
        columns = (piece, at, self.target[window.parts], self.length[window.parts], within)
        return map(Part._make, zip(*(column.tolist() for column in columns), strict=True))

    def runs(self, window: Window) -> Runs:
        """The window's runs, in the file's order."""
        return Runs(*(column[window.runs] for column in self.all_runs))

    def parts_of_pieces(self) -> Integers:
        """How many parts each piece has, I64 [pieces]."""
        return np.bincount(self.piece, minlength=len(self.pieces))


def pieces_of(layout: Layout, checkpoint: Checkpoint) -> Pieces:
    """The layout's places as pieces: a place's sources lie in it one after another.

    Raises RealizationFailed for a place that is computed, and when the sources' bytes are not the place's.
    """
    for place in layout.places:
        if place.derived or not place.sources:
            raise RealizationFailed(
                f"{place.name!r} is not made of checkpoint bytes as they are; the loader only copies",
                "the adapter has to build such a tensor itself",
            )
    pieces, sizes = Pieces.laid_out(layout.places, checkpoint.tensors)
    for place, size in zip(layout.places, sizes, strict=True):
        if size != place.bytes:
            raise RealizationFailed(
                f"{place.name!r} takes {place.bytes} bytes; its sources have {size}",
                "is this the checkpoint that the plan was drafted for?",
            )
    return pieces


def cut_windows(pieces: Pieces, most: int, most_parts: int | None = None) -> Windows:
    """The pieces as windows of at most `most` bytes and `most_parts` tensors: neighbours on disk, in the files' order.

    A window holds whole tensors, or one part of a tensor that is longer than a window. Empty tensors are in none.
    """
    order = np.lexsort((pieces.start, pieces.file))
    order = order[pieces.length[order] > 0]
    counts = -(-pieces.length[order] // most)
    piece = np.repeat(order, counts)
    within = (np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
    position, target = pieces.start[piece] + within, pieces.offset[piece] + within
    length = np.minimum(pieces.length[piece] - within, most)
    file, alone = pieces.file[piece], np.repeat(counts > 1, counts)
    gap = position[1:] - (position + length)[:-1]
    apart = (file[1:] != file[:-1]) | (gap < 0) | (gap > SKIP_BYTES) | alone[1:] | alone[:-1]
    joined = ~apart & (gap == 0) & (target[1:] == (target + length)[:-1])
    spans: list[tuple[int, int]] = []
    starts, ends, low = position.tolist(), (position + length).tolist(), 0
    for high in [*(np.flatnonzero(apart) + 1).tolist(), len(piece)]:
        while low < high:
            limit = high if most_parts is None else min(high, low + most_parts)
            end = max(low + 1, bisect_right(ends, starts[low] + most, low, limit))
            spans.append((low, end))
            low = end
    if not spans:
        return Windows(pieces, [], piece, position, target, length, Runs(position, target, length))
    lows = np.array([low for low, _ in spans], np.int64)
    begins = np.ones(len(piece), bool)
    begins[1:] = ~joined
    begins[lows] = True
    heads = np.flatnonzero(begins)
    tails = np.append(heads[1:], len(piece)) - 1
    at = position[heads] - position[lows][np.searchsorted(lows, heads, "right") - 1]
    runs = Runs(at, target[heads], (position + length)[tails] - position[heads])
    borders = np.append(np.searchsorted(heads, lows), len(heads)).tolist()
    names = [pieces.files[number] for number in file[lows].tolist()]
    windows = [
        Window(name, starts[low], ends[high - 1] - starts[low], slice(low, high), slice(first, last))
        for name, (low, high), first, last in zip(names, spans, borders[:-1], borders[1:], strict=True)
    ]
    return Windows(pieces, windows, piece, position, target, length, runs)


def spread_windows(cut: Windows) -> list[Window]:
    """The windows reordered so that the parts of one long tensor, which are hashed one after another, lie far apart.

    Law: parts of one tensor keep their order.
    """
    several, piece = cut.parts_of_pieces() > 1, cut.piece

    def tensor(window: Window) -> int:
        first = int(piece[window.parts.start])
        return first if several[first] else -1

    return alternating(cut.windows, tensor)


def alternating(items: Iterable[Item], group_of: Callable[[Item], int]) -> list[Item]:
    """The items reordered so that those of one group, which get into each other's way, lie far apart; they keep their
    order among themselves."""
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item)
    spread = [(at + 0.5) / len(group) for group in groups.values() for at in range(len(group))]
    order = [item for group in groups.values() for item in group]
    return [order[at] for at in sorted(range(len(order)), key=spread.__getitem__)]
