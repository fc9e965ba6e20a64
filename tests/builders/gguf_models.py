"""A GGUF file that llama.cpp loads: one Llama layer of random values and no vocabulary, made with the `gguf` package."""

from __future__ import annotations

from pathlib import Path


def random_llama(path: Path, *, width: int = 512, vocabulary: int = 16384) -> Path:
    """Write a model of one layer in float32: two tables of vocabulary x width, and what a layer of that width needs.

    With the defaults about 78 MB. Returns the path.
    """
    import gguf
    import numpy as np

    random = np.random.default_rng(0)
    heads, feed_forward = 8, 2 * width
    shapes = {
        "token_embd.weight": (vocabulary, width),
        "output.weight": (vocabulary, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ffn_norm.weight": (width,),
        **{f"blk.0.attn_{name}.weight": (width, width) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate.weight": (feed_forward, width),
        "blk.0.ffn_up.weight": (feed_forward, width),
        "blk.0.ffn_down.weight": (width, feed_forward),
    }
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("no_vocab")
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
