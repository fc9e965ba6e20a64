"""The checkpoint's tensor names: what each layer has on disk, which of it a block selects, and in which shard it lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from adapters.qwen3_5_moe.shape import GROUP, BlockShape

PREFIX = "model.language_model."
EMBEDDINGS = f"{PREFIX}embed_tokens.weight"

SPLIT_LAYER_FROM_END = 3
SPLIT_EXPERT = (139, 256)
"""Where the published checkpoint's first shard ends, as a share of the experts of the third-last layer of block A."""


class DiskTensor(NamedTuple):
    """One tensor as the checkpoint holds it; `dtype` is a safetensors name."""

    key: str
    dtype: str
    shape: tuple[int, ...]


def layer_prefix(layer: int) -> str:
    return f"{PREFIX}layers.{layer}."


def _fp8(prefix: str, rows: int, columns: int) -> Iterator[DiskTensor]:
    yield DiskTensor(f"{prefix}.weight", "F8_E4M3", (rows, columns))
    yield DiskTensor(f"{prefix}.weight_scale", "F32", ())
    yield DiskTensor(f"{prefix}.input_scale", "F32", ())


def _nvfp4(prefix: str, rows: int, columns: int) -> Iterator[DiskTensor]:
    yield DiskTensor(f"{prefix}.weight", "U8", (rows, columns // 2))
    yield DiskTensor(f"{prefix}.weight_scale", "F8_E4M3", (rows, columns // GROUP))
    yield DiskTensor(f"{prefix}.weight_scale_2", "F32", ())
    yield DiskTensor(f"{prefix}.input_scale", "F32", ())


def _expert(prefix: str, hidden: int, width: int) -> Iterator[DiskTensor]:
    yield from _nvfp4(f"{prefix}.gate_proj", width, hidden)
    yield from _nvfp4(f"{prefix}.up_proj", width, hidden)
    yield from _nvfp4(f"{prefix}.down_proj", hidden, width)


def layer_tensors(shape: BlockShape, layer: int) -> Iterator[DiskTensor]:
    """All tensors of one layer on disk: 3,103 of a delta-net layer and 3,102 of an attention layer at published size."""
    at, hidden = layer_prefix(layer), shape.hidden
    yield DiskTensor(f"{at}input_layernorm.weight", "BF16", (hidden,))
    yield DiskTensor(f"{at}post_attention_layernorm.weight", "BF16", (hidden,))
    if shape.full_attention(layer):
        yield from _fp8(f"{at}self_attn.q_proj", shape.query_rows, hidden)
        yield from _fp8(f"{at}self_attn.k_proj", shape.kv_rows, hidden)
        yield from _fp8(f"{at}self_attn.v_proj", shape.kv_rows, hidden)
        yield from _fp8(f"{at}self_attn.o_proj", hidden, shape.query_heads * shape.head_dim)
        yield DiskTensor(f"{at}self_attn.q_norm.weight", "BF16", (shape.head_dim,))
        yield DiskTensor(f"{at}self_attn.k_norm.weight", "BF16", (shape.head_dim,))
    else:
        yield from _fp8(f"{at}linear_attn.in_proj_qkv", shape.conv_width, hidden)
        yield from _fp8(f"{at}linear_attn.in_proj_z", shape.values_width, hidden)
        yield from _fp8(f"{at}linear_attn.out_proj", hidden, shape.values_width)
        yield DiskTensor(f"{at}linear_attn.in_proj_a.weight", "BF16", (shape.value_heads, hidden))
        yield DiskTensor(f"{at}linear_attn.in_proj_b.weight", "BF16", (shape.value_heads, hidden))
        yield DiskTensor(f"{at}linear_attn.conv1d.weight", "BF16", (shape.conv_width, 1, shape.conv_kernel))
        yield DiskTensor(f"{at}linear_attn.A_log", "BF16", (shape.value_heads,))
        yield DiskTensor(f"{at}linear_attn.dt_bias", "BF16", (shape.value_heads,))
        yield DiskTensor(f"{at}linear_attn.norm.weight", "BF16", (shape.value_dim,))
    yield DiskTensor(f"{at}mlp.gate.weight", "BF16", (shape.experts, hidden))
    yield DiskTensor(f"{at}mlp.shared_expert_gate.weight", "BF16", (1, hidden))
    yield from _expert(f"{at}mlp.shared_expert", hidden, shape.shared_width)
    for expert in range(shape.experts):
        yield from _expert(f"{at}mlp.experts.{expert}", hidden, shape.expert_width)


def disk_tensors(shape: BlockShape) -> Iterator[DiskTensor]:
    """Every tensor on disk that belongs to the block, selected or not."""
    if shape.owns_embeddings:
        yield DiskTensor(EMBEDDINGS, "BF16", (shape.vocabulary, shape.hidden))
    for layer in shape.layers:
        yield from layer_tensors(shape, layer)


def _routed_input_scale(key: str) -> bool:
    return ".mlp.experts." in key and key.endswith(".input_scale")


def selected_keys(shape: BlockShape) -> list[str]:
    """The keys that realising the block reads, by shard, then by key.

    All of the block's tensors but the routed experts' `input_scale`, which scale activations that this block keeps in
    bf16. The shared experts' are selected, as published, though no layout holds them.
    """
    keys = [tensor.key for tensor in disk_tensors(shape) if not _routed_input_scale(tensor.key)]
    return sorted(keys, key=lambda key: (shard_of(shape, key), key))


def shard_of(shape: BlockShape, key: str) -> int:
    """The shard (0 or 1) that holds a key of the block, by the published checkpoint's split.

    The first shard ends inside the block's third-last layer: of that layer the second holds the norms, the shared
    expert and the experts from 139 of 256 on, and everything of the layers after it.
    """
    if key == EMBEDDINGS:
        return 0
    number, _, rest = key.removeprefix(f"{PREFIX}layers.").partition(".")
    split = max(shape.end - SPLIT_LAYER_FROM_END, shape.start)
    if int(number) != split:
        return int(int(number) > split)
    if rest.startswith("mlp.experts."):
        first = shape.experts * SPLIT_EXPERT[0] // SPLIT_EXPERT[1]
        return int(int(rest.split(".")[2]) >= first)
    return int(rest.startswith(("input_layernorm.", "post_attention_layernorm.", "mlp.shared_expert")))
