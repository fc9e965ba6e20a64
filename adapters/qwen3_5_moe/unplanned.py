"""Loading a block the ordinary way, without a plan: what the reference runs on, and what repacked bytes are laid against.

It shares the layouts' names and shapes with the planned load and nothing of its path: safetensors reads the files, torch
joins the tensors, and the caching allocator holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from safetensors import safe_open

from adapters.qwen3_5_moe import layout
from adapters.qwen3_5_moe.block import Block
from adapters.qwen3_5_moe.repack import TORCH_DTYPES, derive
from adapters.qwen3_5_moe.shape import BlockShape
from ledger.errors import CheckpointError
from realizer.adapter import Layout
from realizer.checkpoint import Checkpoint


class Source:
    """The checkpoint's tensors by key, on the CPU; the files stay open (and mapped) until the `with` block ends."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}

    def __enter__(self) -> Source:
        for shard in self.checkpoint.files:
            self._files[shard.name] = self._stack.enter_context(safe_open(shard.path, framework="pt"))
        return self

    def __exit__(self, *exc: object) -> None:
        self._files.clear()
        self._stack.close()

    def __call__(self, key: str) -> torch.Tensor:
        """The tensor of that key. Raises CheckpointError when there is none."""
        entry = self.checkpoint.tensors.get(key)
        if entry is None:
            raise CheckpointError(f"the checkpoint has no tensor {key!r}")
        tensor: torch.Tensor = self._files[entry.file].get_tensor(key)
        return tensor

    def scalars(self, keys: Sequence[str]) -> torch.Tensor:
        """Scales by their keys, F32 [keys]."""
        return torch.stack([self(key).reshape(()) for key in keys])


def assemble(planned: Layout, source: Source) -> Iterator[tuple[str, torch.Tensor]]:
    """Every place of a layout by name, made anew from the checkpoint, on the CPU."""
    derived = {place.name: tensor for place, tensor in derive(planned, source.checkpoint.tensors, source)}
    for place in planned.places:
        if place.derived:
            yield place.name, derived.pop(place.name)
        elif place.sources:
            joined = torch.cat([source(key).reshape(-1).view(torch.uint8) for key in place.sources])
            yield place.name, joined.view(TORCH_DTYPES[place.dtype]).reshape(place.shape)


def _on(device: torch.device, planned: Layout) -> dict[str, torch.Tensor]:
    """A zeroed tensor for every place, spaced in one allocation as the layout spaces them.

    Matrix libraries may choose their kernel by an operand's alignment, and another kernel gives other last bits.
    """
    whole = torch.zeros(planned.length, dtype=torch.uint8, device=device)
    return {
        place.name: whole[place.offset : place.offset + place.bytes].view(TORCH_DTYPES[place.dtype]).view(place.shape)
        for place in planned.places
    }


def load_block(shape: BlockShape, checkpoint: Checkpoint, device: torch.device) -> Block:
    """The block on `device`, with empty state, in memory of torch's own."""
    loaded = []
    with Source(checkpoint) as source:
        for planned in (layout.non_routed(shape), layout.routed_banks(shape)):
            held = _on(device, planned)
            for name, tensor in assemble(planned, source):
                held[name].copy_(tensor)
            loaded.append(held)
    weights, banks = loaded
    return Block(shape, weights, banks, _on(device, layout.runtime_state(shape)))
