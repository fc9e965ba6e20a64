"""How each materialization of a block lies in its range, byte for byte: banks, non-routed state, runtime state, baseline.

At published size the sums are 8,636,596,224 (routed banks, 114 tensors), 1,689,347,736 (non-routed) and 32,718,848
(runtime state, and its baseline): the published plan's `expected_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from adapters.qwen3_5_moe.keys import EMBEDDINGS, layer_prefix
from adapters.qwen3_5_moe.shape import GROUP, BlockShape
from realizer.adapter import Layout, pack

HOST_BANKS = "checkpoint-native-host"
RING = "checkpoint-stream-ring"
SLOT_BANKS = "freetoken-nvfp4-slot-banks"
NATIVE = "freetoken-native-device"
RUNTIME = "freetoken-block-runtime-device"
SNAPSHOT = "freetoken-runtime-snapshot-device"
GRAPH_IO = "cuda-graph-io"
STRATEGY = "qwen-block-a.same-backend-resident-decode-v1"
"""The published plan's name for decoding from the resident state with the backend that made the reference."""


class Tensor(NamedTuple):
    """A tensor before it has its offset. Its sources' bytes lie one after another, unless it is computed from them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[str, ...] = ()
    derived: bool = False


def packed(representation: str, tensors: Iterable[Tensor]) -> Layout:
    """The tensors one after another, aligned, as a layout of that representation."""
    tensors = list(tensors)
    layout = pack(representation, [tensor[:4] for tensor in tensors])
    places = (replace(place, derived=tensor.derived) for place, tensor in zip(layout.places, tensors, strict=True))
    return Layout(representation, tuple(places))


def fused_keys(prefix: str, projections: tuple[str, ...], suffix: str) -> tuple[str, ...]:
    """Keys of projections whose rows follow one another in one fused tensor."""
    return tuple(f"{prefix}{projection}.{suffix}" for projection in projections)


def routed_banks(shape: BlockShape, representation: str = HOST_BANKS) -> Layout:
    """The routed experts of every layer as six banks, slot e holding expert e; staged and resident alike.

    gate_up: packed U8 [experts, 2 * width, hidden / 2] (gate's rows, then up's), scale F8_E4M3 [.., hidden / 16],
    global F16 [experts, 2 * width]; down: packed U8 [experts, hidden, width / 2], scale, global F16 [experts, hidden].
    The globals are `weight_scale_2` cast to F16 and repeated for each row; a small one is subnormal there.
    """
    tensors: list[Tensor] = []
    for layer in shape.layers:
        experts = [f"{layer_prefix(layer)}mlp.experts.{expert}." for expert in range(shape.experts)]
        for name, projections, rows, columns in (
            ("gate_up", ("gate_proj", "up_proj"), 2 * shape.expert_width, shape.hidden),
            ("down", ("down_proj",), shape.hidden, shape.expert_width),
        ):
            for part, dtype, extents, suffix in (
                ("packed", "U8", (rows, columns // 2), "weight"),
                ("scale", "F8_E4M3", (rows, columns // GROUP), "weight_scale"),
                ("global", "F16", (rows,), "weight_scale_2"),
            ):
                tails = [f"{projection}.{suffix}" for projection in projections]
                keys = tuple([expert + each for expert in experts for each in tails])
                bank = f"layers.{layer}.experts.{name}.{part}"
                tensors.append(Tensor(bank, dtype, (shape.experts, *extents), keys, derived=part == "global"))
    return packed(representation, tensors)


def non_routed(shape: BlockShape) -> Layout:
    """Everything else that the block computes with, in the form it computes from.

    FP8 projections that take the same input are fused by rows: one F8_E4M3 weight, F32 scales repeated for each row,
    one F32 input scale (the largest of the fused ones). The shared expert stays NVFP4 with F16 row globals. `A_log` and
    `dt_bias` are F32. No final norm and no head.
    """
    tensors: list[Tensor] = []
    if shape.owns_embeddings:
        tensors.append(Tensor("embed_tokens", "BF16", (shape.vocabulary, shape.hidden), (EMBEDDINGS,)))
    for layer in shape.layers:
        attention = _attention(shape, layer) if shape.full_attention(layer) else _delta_net(shape, layer)
        tensors += [*attention, *_mixture(shape, layer)]
    return packed(NATIVE, tensors)


def _fp8(name: str, prefix: str, projections: tuple[str, ...], rows: int, columns: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", "F8_E4M3", (rows, columns), fused_keys(prefix, projections, "weight"))
    yield Tensor(f"{name}.row_scale", "F32", (rows,), fused_keys(prefix, projections, "weight_scale"), derived=True)
    yield Tensor(f"{name}.input_scale", "F32", (1,), fused_keys(prefix, projections, "input_scale"), derived=True)


def _nvfp4(name: str, prefix: str, projections: tuple[str, ...], rows: int, columns: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}.packed", "U8", (rows, columns // 2), fused_keys(prefix, projections, "weight"))
    yield Tensor(f"{name}.scale", "F8_E4M3", (rows, columns // GROUP), fused_keys(prefix, projections, "weight_scale"))
    yield Tensor(f"{name}.global", "F16", (rows,), fused_keys(prefix, projections, "weight_scale_2"), derived=True)


def _delta_net(shape: BlockShape, layer: int) -> Iterator[Tensor]:
    name, at = f"layers.{layer}.linear_attn", f"{layer_prefix(layer)}linear_attn."
    rows = shape.conv_width + shape.values_width
    yield from _fp8(f"{name}.in_proj", at, ("in_proj_qkv", "in_proj_z"), rows, shape.hidden)
    yield from _fp8(f"{name}.out_proj", at, ("out_proj",), shape.hidden, shape.values_width)
    for gate in ("in_proj_a", "in_proj_b"):
        yield Tensor(f"{name}.{gate}", "BF16", (shape.value_heads, shape.hidden), (f"{at}{gate}.weight",))
    yield Tensor(f"{name}.conv1d", "BF16", (shape.conv_width, 1, shape.conv_kernel), (f"{at}conv1d.weight",))
    yield Tensor(f"{name}.A_log", "F32", (shape.value_heads,), (f"{at}A_log",), derived=True)
    yield Tensor(f"{name}.dt_bias", "F32", (shape.value_heads,), (f"{at}dt_bias",), derived=True)
    yield Tensor(f"{name}.norm", "BF16", (shape.value_dim,), (f"{at}norm.weight",))


def _attention(shape: BlockShape, layer: int) -> Iterator[Tensor]:
    name, at = f"layers.{layer}.self_attn", f"{layer_prefix(layer)}self_attn."
    rows = shape.query_rows + 2 * shape.kv_rows
    yield from _fp8(f"{name}.qkv_proj", at, ("q_proj", "k_proj", "v_proj"), rows, shape.hidden)
    yield from _fp8(f"{name}.o_proj", at, ("o_proj",), shape.hidden, shape.query_heads * shape.head_dim)
    for norm in ("q_norm", "k_norm"):
        yield Tensor(f"{name}.{norm}", "BF16", (shape.head_dim,), (f"{at}{norm}.weight",))


def _mixture(shape: BlockShape, layer: int) -> Iterator[Tensor]:
    name, at = f"layers.{layer}", layer_prefix(layer)
    yield Tensor(f"{name}.router", "BF16", (shape.experts, shape.hidden), (f"{at}mlp.gate.weight",))
    yield Tensor(f"{name}.shared_gate", "BF16", (1, shape.hidden), (f"{at}mlp.shared_expert_gate.weight",))
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Tensor(f"{name}.{norm}", "BF16", (shape.hidden,), (f"{at}{norm}.weight",))
    shared, width = f"{at}mlp.shared_expert.", shape.shared_width
    yield from _nvfp4(f"{name}.shared.gate_up", shared, ("gate_proj", "up_proj"), 2 * width, shape.hidden)
    yield from _nvfp4(f"{name}.shared.down", shared, ("down_proj",), shape.hidden, width)


def runtime_state(shape: BlockShape, representation: str = RUNTIME) -> Layout:
    """The mutable state: KV pages BF16 [pages, tokens, kv heads, head dim] of attention layers, and of delta-net layers
    the last inputs of the convolution BF16 [channels, kernel - 1] and the recurrent state F32 [value heads, key dim,
    value dim]. The replay baseline is the same layout again.
    """
    tensors: list[Tensor] = []
    for layer in shape.layers:
        if shape.full_attention(layer):
            pages = (shape.pages, shape.page_tokens, shape.kv_heads, shape.head_dim)
            tensors += [Tensor(f"layers.{layer}.{kind}_pages", "BF16", pages) for kind in ("key", "value")]
        else:
            recurrent = (shape.value_heads, shape.key_dim, shape.value_dim)
            tensors.append(Tensor(f"layers.{layer}.conv", "BF16", (shape.conv_width, shape.conv_kernel - 1)))
            tensors.append(Tensor(f"layers.{layer}.recurrent", "F32", recurrent))
    return packed(representation, tensors)


def graph_io(shape: BlockShape) -> Layout:
    """What a graph reads and writes at fixed addresses: token and position I64 [1], hidden states BF16 [1, hidden]."""
    return packed(
        GRAPH_IO,
        [
            Tensor("token", "I64", (1,)),
            Tensor("position", "I64", (1,)),
            Tensor("input", "BF16", (1, shape.hidden)),
            Tensor("output", "BF16", (1, shape.hidden)),
        ],
    )
