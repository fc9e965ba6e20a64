"""What the adapter contributes to a plan: the published states and bytes of a block, for the machine at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from adapters.qwen3_5_moe import layout
from adapters.qwen3_5_moe.keys import EMBEDDINGS, PREFIX, layer_prefix
from adapters.qwen3_5_moe.reading import PAGE, mismatches, options_of, shape_for, unit_keys
from adapters.qwen3_5_moe.repack import pieces
from adapters.qwen3_5_moe.shape import BlockShape
from ledger.errors import CheckpointError, TallyError
from ledger.plan import Selection, keys_digest
from realizer.adapter import Draft, DraftRequest, Layout
from realizer.checkpoint import Checkpoint

MIB = 1024 * 1024
WINDOW_BYTES = {"cpu": (8 * MIB, 2 * MIB), "cuda": (256 * MIB, 128 * MIB)}
"""The rings when nobody says: for the routed banks, and for everything else."""

ROUTED, REST = "state.block-a.routed", "state.block-a.non-routed"
MUTABLE, BASELINE, GRAPH = "state.block-a.mutable-runtime", "state.block-a.replay-baseline", "state.block-a.graph-io"
EXECUTION, LINEAGE = "exec.block-a", "block-a-epoch-1"


def _numbers(numbers: range) -> Iterator[str]:
    """fnmatch patterns that match the decimal numbers of a range below 100 and no others."""
    for tens in range(numbers.start // 10, (numbers.stop - 1) // 10 + 1):
        low, high = max(numbers.start, tens * 10) % 10, (min(numbers.stop, tens * 10 + 10) - 1) % 10
        yield f"{tens or ''}{low if low == high else f'[{low}-{high}]'}"


def selection(shape: BlockShape, *, routed: bool) -> dict[str, Any]:
    """The selection of one unit's checkpoint tensors, in the plan's form."""
    layers = [f"{PREFIX}layers.{number}." for number in _numbers(shape.layers)]
    if routed:
        patterns = [f"{layer}mlp.experts.*" for layer in layers]
        exclude = ["*.input_scale"]
    else:
        patterns = [f"{layer}*" for layer in layers] + ([EMBEDDINGS] if shape.owns_embeddings else [])
        exclude = ["*.mlp.experts.*"]
    keys = unit_keys(shape, routed=routed)
    made = Selection(patterns=patterns, exclude=exclude, count=len(keys), keys_digest=keys_digest(keys))
    return made.model_dump(mode="json")


def draft(checkpoint: Checkpoint, request: DraftRequest) -> Draft:
    """The block's part of a plan for the machine at hand: the published states and bytes, staged whole or streamed.

    Options: start_layer, end_layer, pages, page_tokens, decode_steps, window_bytes, non_routed_window_bytes. Without
    `end_layer` the published 19 layers, or as many as the checkpoint holds whole.
    """
    options = options_of(request.options)
    if "end_layer" not in request.options:
        options["end_layer"] = min(options["end_layer"], _layers_held(checkpoint, options["start_layer"]))
    shape = shape_for(checkpoint, options)
    if (problem := next(mismatches(shape, checkpoint), None)) is not None:
        raise CheckpointError(problem, "another adapter may support this model")
    cuda = torch.device(request.device).type == "cuda"
    if request.staging not in ("full", "streamed"):
        raise TallyError(f"staging {request.staging!r} is neither full nor streamed")
    windows = {
        ROUTED: options.pop("window_bytes", WINDOW_BYTES["cuda" if cuda else "cpu"][0]),
        REST: options.pop("non_routed_window_bytes", WINDOW_BYTES["cuda" if cuda else "cpu"][1]),
    }
    return _Drafting(shape, checkpoint, request, cuda, options, windows).draft()


def _layers_held(checkpoint: Checkpoint, start: int) -> int:
    """The first layer from `start` on of which the checkpoint has no norm: where a partial checkpoint ends."""
    layer = start
    while f"{layer_prefix(layer)}input_layernorm.weight" in checkpoint.tensors:
        layer += 1
    return max(layer, start + 1)


@dataclass(frozen=True)
class _Drafting:
    shape: BlockShape
    checkpoint: Checkpoint
    request: DraftRequest
    cuda: bool
    options: Mapping[str, int]
    windows: Mapping[str, int]

    def draft(self) -> Draft:
        suffix = "vram" if self.cuda else "shm"
        stays = self.request.resources["accelerator-vram" if self.cuda else "shared-memory"]
        ram = self.request.resources["system-ram"]
        banks, rest = layout.routed_banks(self.shape), layout.non_routed(self.shape)
        runtime, io = layout.runtime_state(self.shape), layout.graph_io(self.shape)
        staging = [self._staging("mat.routed.ram-stage", ROUTED, ram, banks)]
        if self.request.staging == "streamed":
            staging.append(self._staging("mat.non-routed.ram-stage", REST, ram, rest))
        kept = [
            (f"mat.non-routed.{suffix}", REST, layout.NATIVE, "required_residency", rest.bytes),
            (f"mat.routed.{suffix}", ROUTED, layout.SLOT_BANKS, "required_residency", banks.bytes),
            (f"mat.graph-io.{suffix}", GRAPH, layout.GRAPH_IO, "optional_cache", io.bytes),
            (f"mat.runtime.{suffix}", MUTABLE, layout.RUNTIME, "mutable_authority", runtime.bytes),
            (f"mat.replay.{suffix}", BASELINE, layout.SNAPSHOT, "required_test_state", runtime.bytes),
        ]
        units = [
            self._unit(REST, "immutable_source", selection=selection(self.shape, routed=False)),
            self._unit(ROUTED, "immutable_source", selection=selection(self.shape, routed=True)),
            self._unit(GRAPH, "derived_reconstructible", reconstruction_inputs=[REST]),
            self._unit(MUTABLE, "mutable_authoritative"),
            self._unit(BASELINE, "derived_reconstructible", reconstruction_inputs=[MUTABLE]),
        ]
        if not self.cuda:  # no graphs without CUDA
            kept = [part for part in kept if part[1] != GRAPH]
            units = [unit for unit in units if unit["id"] != GRAPH]
        required = ((REST, layout.NATIVE), (ROUTED, layout.SLOT_BANKS), (MUTABLE, layout.RUNTIME))
        return Draft(
            logical_state_units=units,
            materializations=staging + [self._kept(stays, *part) for part in kept],
            authorities=[
                {
                    "lineage": LINEAGE,
                    "logical_state_id": MUTABLE,
                    "materialization_id": f"mat.runtime.{suffix}",
                }
            ],
            execution=[
                {
                    "id": EXECUTION,
                    "compute_unit_id": self.request.compute_unit_id,
                    "strategy_unit": layout.STRATEGY,
                    "required_state": [
                        {"logical_state_id": unit, "memory_resources": [stays], "representations": [representation]}
                        for unit, representation in required
                    ],
                }
            ],
            forbidden_persistent_materializations=[{"logical_state_id": ROUTED, "memory_resource_id": ram}],
            options=dict(self.options),
            plan_version=f"block-a-{self.request.staging}-1",
        )

    def _unit(self, unit_id: str, semantic_class: str, **more: Any) -> dict[str, Any]:
        source = {"backing_source_id": self.request.backing_source_id} if "selection" in more else {}
        return {"id": unit_id, "semantic_class": semantic_class, **source, **more}

    def _staging(self, name: str, unit: str, ram: str, staged: Layout) -> dict[str, Any]:
        streamed = self.request.staging == "streamed"
        through = pieces(staged, self.checkpoint.tensors).bytes
        window = -(-min(self.windows[unit], through) // PAGE) * PAGE
        return {
            "id": name,
            "logical_state_id": unit,
            "memory_resource_id": ram,
            "representation": layout.RING if streamed else layout.HOST_BANKS,
            "role": "staging",
            "persistence": "transient",
            "requirement": "required",
            "expected_bytes": window if streamed else staged.bytes,
            **({"streamed_bytes": through} if streamed else {}),
            **self._path(self.request.backing_source_id, ram),
        }

    def _kept(self, stays: str, name: str, unit: str, representation: str, role: str, size: int) -> dict[str, Any]:
        return {
            "id": name,
            "logical_state_id": unit,
            "memory_resource_id": stays,
            "representation": representation,
            "role": role,
            "persistence": "persistent",
            "requirement": "optional" if role == "optional_cache" else "required",
            "expected_bytes": size,
            **(self._path(self.request.resources["system-ram"], stays) if unit in (ROUTED, REST) else {}),
        }

    def _path(self, source: str, target: str) -> dict[str, str]:
        path = self.request.links.get((source, target))
        return {"path_id": path} if path else {}
