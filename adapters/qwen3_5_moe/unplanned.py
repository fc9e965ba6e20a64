"""Loading a block the ordinary way, without a plan: what the reference runs on, and what repacked bytes are laid against.

It shares the layouts' names and shapes with the planned load and nothing of its path: safetensors reads the files, torch
joins the tensors, and the caching allocator holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def assemble(planned: Layout, source: Source) -> Iterator[tuple[str, torch.Tensor]]:
    """Every place of a layout by name, made anew from the checkpoint, on the CPU."""
    derived = {place.name: tensor for place, tensor in derive(planned, source.checkpoint.tensors, source)}
    for place in planned.places:
        if place.derived:
            yield place.name, derived.pop(place.name)
        elif place.sources:
            joined = torch.cat([source(key).reshape(-1).view(torch.uint8) for key in place.sources])
            yield place.name, joined.view(TORCH_DTYPES[place.dtype]).reshape(place.shape)


def empty_state(shape: BlockShape, device: torch.device) -> dict[str, torch.Tensor]:
    """Runtime state that has seen no token, by the layout's names."""
    return {
        place.name: torch.zeros(place.shape, dtype=TORCH_DTYPES[place.dtype], device=device)
        for place in layout.runtime_state(shape).places
    }


def load_block(shape: BlockShape, checkpoint: Checkpoint, device: torch.device) -> Block:
    """The block on `device`, with empty state, in memory of torch's own."""
    with Source(checkpoint) as source:
        weights = {name: tensor.to(device) for name, tensor in assemble(layout.non_routed(shape), source)}
        banks = {name: tensor.to(device) for name, tensor in assemble(layout.routed_banks(shape), source)}
    return Block(shape, weights, banks, empty_state(shape, device))
