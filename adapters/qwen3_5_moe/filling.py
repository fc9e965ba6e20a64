"""Filling a range by its layout: copied tensors read or streamed by the loader, derived ones computed and written after."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import torch

from adapters.qwen3_5_moe.repack import TORCH_DTYPES, derive, derived_keys, pieces
from realizer.adapter import Layout, TensorPlace
from realizer.loader import Loader, Piece
from realizer.memory import SYSTEM_RAM, MemoryRange, allocate

SCRATCH_BYTES = 64 * 1024 * 1024
"""The bounce buffer of a device fill that has no planned ring: given back before the fill returns."""
ALIGNMENT = 8


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
    return derive(layout, loader.checkpoint.tensors, _read(layout, loader))


def derived_digests(layout: Layout, loader: Loader) -> dict[str, str]:
    """`sha256:` of each derived place's bytes as they ought to be, by name: computed anew from the checkpoint."""
    return {
        place.name: "sha256:" + hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy()).hexdigest()
        for place, tensor in derived(layout, loader)
    }


def _read(layout: Layout, loader: Loader) -> Callable[[str], torch.Tensor]:
    """The sources of derived places, all read at once through a buffer that is given back; scalars, nearly all of them."""
    entries = loader.checkpoint.tensors
    offsets: dict[str, int] = {}
    end = 0
    for key in derived_keys(layout):
        offsets[key] = end
        end += -(-entries[key].bytes // ALIGNMENT) * ALIGNMENT
    data = bytearray()
    if end:
        scratch = allocate(SYSTEM_RAM, end, owner="derived:sources")
        try:
            loader.read_pieces([Piece(key, offset) for key, offset in offsets.items()], scratch)
            with scratch.view() as view:
                data = bytearray(view[:end])
        finally:
            scratch.free()

    def read(key: str) -> torch.Tensor:
        entry = entries[key]
        dtype = TORCH_DTYPES[entry.dtype]
        count = entry.bytes // dtype.itemsize
        return torch.frombuffer(data, dtype=dtype, count=count, offset=offsets[key]).reshape(entry.shape)

    return read
