"""Filling a range by its layout: copied tensors read or streamed by the loader, derived ones computed and written after."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch

from adapters.qwen3_5_moe.repack import TORCH_DTYPES, derive, derived_keys, pieces
from ledger.errors import CheckpointError
from realizer.adapter import Layout, TensorPlace
from realizer.loader import Loader
from realizer.memory import SYSTEM_RAM, MemoryRange, allocate
from realizer.scatter import Pieces

SCRATCH_BYTES = 64 * 1024 * 1024
"""The bounce buffer of a device fill that has no planned ring: given back before the fill returns."""
ALIGNMENT = 4
"""Of sources in their buffer: an F32 scalar's size, so that scalars follow one another without gaps."""


def tensors_over(layout: Layout, memory: MemoryRange) -> dict[str, torch.Tensor]:
    """A tensor over the range for every place, by name."""
    return {place.name: memory.tensor(TORCH_DTYPES[place.dtype], place.shape, place.offset) for place in layout.places}


def fill(layout: Layout, memory: MemoryRange, loader: Loader, ring: MemoryRange | None = None) -> int:
    """Bring a layout's contents from the checkpoint into `memory`; the bytes of copied tensors.

    Through `ring` where one is given; else straight into host memory, and into a device's through a bounce buffer that
    lives only as long as the call.
    """
    wanted = pieces(layout, loader.checkpoint.tensors)
    if ring is not None:
        copied = loader.stream_pieces(wanted, ring, memory)
    elif memory.space == "host":
        copied = loader.read_pieces(wanted, memory)
    else:
        scratch = allocate(SYSTEM_RAM, SCRATCH_BYTES, owner=f"{memory.owner}:bounce", pinned=True)
        try:
            copied = loader.stream_pieces(wanted, scratch, memory)
        finally:
            scratch.free()
    for place, tensor in derived(layout, loader):
        memory.tensor(TORCH_DTYPES[place.dtype], place.shape, place.offset).copy_(tensor)
    return copied


def derived(layout: Layout, loader: Loader) -> Iterator[tuple[TensorPlace, torch.Tensor]]:
    """Every derived place with its tensor on the CPU, computed from sources that are read for it now."""
    return derive(layout, loader.checkpoint.tensors, _Sources(layout, loader))


def derived_digests(layout: Layout, loader: Loader) -> dict[str, str]:
    """`sha256:` of each derived place's bytes as they ought to be, by name: computed anew from the checkpoint."""
    return {
        place.name: "sha256:" + hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy()).hexdigest()
        for place, tensor in derived(layout, loader)
    }


class _Sources:
    """The sources of derived places, all read at once through a buffer that is given back; scalars, nearly all of them."""

    def __init__(self, layout: Layout, loader: Loader) -> None:
        self._entries = loader.checkpoint.tensors
        self._found = Pieces.packed(derived_keys(layout), self._entries, ALIGNMENT)
        self._numbers = {key: number for number, key in enumerate(self._found.keys)}
        self._data = bytearray()
        if len(self._found):
            end = int(self._found.offset[-1] + self._found.length[-1])
            scratch = allocate(SYSTEM_RAM, end, owner="derived:sources")
            try:
                loader.read_pieces(self._found, scratch)
                with scratch.view() as view:
                    self._data = bytearray(view[:end])
            finally:
                scratch.free()

    def __call__(self, key: str) -> torch.Tensor:
        entry = self._entries[key]
        dtype = TORCH_DTYPES[entry.dtype]
        count, offset = entry.bytes // dtype.itemsize, int(self._found.offset[self._numbers[key]])
        return torch.frombuffer(self._data, dtype=dtype, count=count, offset=offset).reshape(entry.shape)

    def scalars(self, keys: Sequence[str]) -> torch.Tensor:
        """A place's sources follow one another here, so that its scalars are one array."""
        first = self._numbers[keys[0]]
        here = slice(first, first + len(keys))
        if set(self._found.dtypes[here]) != {"F32"} or (self._found.length[here] != ALIGNMENT).any():
            odd = next(
                key for key in keys if self._entries[key].dtype != "F32" or self._entries[key].bytes != ALIGNMENT
            )
            _, dtype, shape, *_ = self._entries[odd]
            raise CheckpointError(f"tensor {odd!r} is {dtype} {list(shape)}, expected one F32 scale")
        offset = int(self._found.offset[first])
        return torch.frombuffer(self._data, dtype=torch.float32, count=len(keys), offset=offset)
