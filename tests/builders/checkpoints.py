"""Small checkpoints for tests: raw safetensors files of any dtype, and tiny random causal LMs as transformers saves them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realizer.adapter import DTYPE_BITS

Raw = tuple[str, Sequence[int], bytes]
"""(dtype name, shape, data)."""


def raw_bytes(dtype: str, shape: Sequence[int], seed: int = 1) -> bytes:
    """Deterministic data of a tensor: no two neighbouring bytes alike, other seeds other data."""
    bits = DTYPE_BITS[dtype]
    for extent in shape:
        bits *= extent
    return bytes((seed * 37 + at * 11 + (at >> 8) * 3) & 0xFF for at in range(bits // 8))


def header_of(tensors: Mapping[str, Raw]) -> dict[str, Any]:
    """The header that describes the tensors, one after another in the mapping's order."""
    header, position = {}, 0
    for key, (dtype, shape, data) in tensors.items():
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    return header


def write_safetensors(
    path: Path, tensors: Mapping[str, Raw], *, header: Mapping[str, Any] | None = None, padding: int = 0
) -> Path:
    """Write a file by the format's layout; `header` overrides the true one, `padding` spaces follow it."""
    text = json.dumps(dict(header_of(tensors) if header is None else header)).encode() + b" " * padding
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in tensors.values():
            file.write(data)
    return path


def write_checkpoint(
    directory: Path, shards: Sequence[Mapping[str, Raw]], config: Mapping[str, Any] | None = None
) -> Path:
    """A checkpoint of raw tensors: one shard gives model.safetensors, several give shards with their index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "none"} if config is None else dict(config)))
    if len(shards) == 1:
        write_safetensors(directory / "model.safetensors", shards[0])
        return directory
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(directory / name, tensors)
        weight_map.update(dict.fromkeys(tensors, name))
    index = {
        "metadata": {"total_size": sum(len(raw[2]) for shard in shards for raw in shard.values())},
        "weight_map": weight_map,
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def tiny_model(
    directory: Path,
    family: str = "llama",
    *,
    dtype: str = "float32",
    tied: bool = True,
    shard_bytes: int | None = None,
    seed: int = 7,
) -> Path:
    """A tiny random causal LM saved by transformers: two layers, hidden 64, vocabulary 96.

    `family`: llama, qwen2, qwen3, gpt2, or mixtral (whose expert keys do not map one to one). `shard_bytes` splits it.
    """
    import torch
    import transformers

    shape: dict[str, Any] = {"vocab_size": 96, "tie_word_embeddings": tied, "bos_token_id": 0, "eos_token_id": 1}
    if family == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=64, n_positions=128, **shape)
    else:
        shape |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        shape |= {"num_key_value_heads": 2, "max_position_embeddings": 512}
        if family == "mixtral":
            shape |= {"num_local_experts": 4, "num_experts_per_tok": 2}
        config = {
            "llama": transformers.LlamaConfig,
            "qwen2": transformers.Qwen2Config,
            "qwen3": transformers.Qwen3Config,
            "mixtral": transformers.MixtralConfig,
        }[family](**shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    options = {} if shard_bytes is None else {"max_shard_size": shard_bytes}
    model.save_pretrained(directory, **options)
    return directory
