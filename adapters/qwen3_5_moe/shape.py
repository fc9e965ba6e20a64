"""The sizes of a block of consecutive decoder layers: read from config.json, checked, and the published one by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ledger.errors import CheckpointError

MODEL_TYPE = "qwen3_5_moe"
GROUP = 16
"""Elements that share one FP8 scale in NVFP4."""
MOST = 1 << 20
"""Bound of every size: what is larger is a mistake, and would take memory before anybody noticed."""


@dataclass(frozen=True)
class BlockShape:
    """One block: layers `start` to `end` (exclusive) of a `qwen3_5_moe` model, and the pages of its KV cache.

    Sizes are elements, heads and tokens, under the names config.json gives them where it has one. The defaults are
    those of nvidia/Qwen3.6-35B-A3B-NVFP4 and of the published block A: layers 0 to 18 with the embeddings.
    """

    start: int = 0
    end: int = 19
    model_layers: int = 40
    full_attention_interval: int = 4
    hidden: int = 2048
    vocabulary: int = 248_320
    query_heads: int = 16
    kv_heads: int = 2
    head_dim: int = 256
    rotary_dim: int = 64
    rope_theta: float = 10_000_000.0
    mrope_section: tuple[int, ...] = (11, 11, 10)
    rms_eps: float = 1e-6
    key_heads: int = 16
    value_heads: int = 32
    key_dim: int = 128
    value_dim: int = 128
    conv_kernel: int = 4
    experts: int = 256
    top_k: int = 8
    expert_width: int = 512
    shared_width: int = 512
    pages: int = 4
    page_tokens: int = 16

    def __post_init__(self) -> None:
        """Raises CheckpointError naming the first size that does not fit the layouts."""
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "start" else 1
            if isinstance(value, int) and not least <= value <= MOST:
                raise CheckpointError(f"no block can have {field.name} {value}: it is to be from {least} to {MOST}")
        for what, held in (
            (
                f"layers {self.start} to {self.end} of {self.model_layers}",
                0 <= self.start < self.end <= self.model_layers,
            ),
            (f"hidden size {self.hidden}, a multiple of {GROUP}", self.hidden % GROUP == 0),
            (f"expert width {self.expert_width}, a multiple of {GROUP}", self.expert_width % GROUP == 0),
            (f"shared expert width {self.shared_width}, a multiple of {GROUP}", self.shared_width % GROUP == 0),
            (f"rotary base {self.rope_theta}", 1 < self.rope_theta < float("inf")),
            (f"RMS epsilon {self.rms_eps}", 0 < self.rms_eps < 1),
            (f"top {self.top_k} of {self.experts} experts", self.top_k <= self.experts),
            (
                f"{self.query_heads} query heads over {self.kv_heads} key-value heads",
                self.query_heads % self.kv_heads == 0,
            ),
            (
                f"{self.value_heads} value heads over {self.key_heads} key heads",
                self.value_heads % self.key_heads == 0,
            ),
            (
                f"rotary {self.rotary_dim} of head dimension {self.head_dim}",
                self.rotary_dim <= self.head_dim and self.rotary_dim % 2 == 0,
            ),
        ):
            if not held:
                raise CheckpointError(f"no block can have {what}")

    @property
    def layers(self) -> range:
        return range(self.start, self.end)

    @property
    def owns_embeddings(self) -> bool:
        """The block begins the model, so tokens go in; else hidden states do."""
        return self.start == 0

    def full_attention(self, layer: int) -> bool:
        """Full attention where the layer is the last of its interval, else gated delta-net (linear attention)."""
        return layer % self.full_attention_interval == self.full_attention_interval - 1

    @property
    def keys_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Channels of the short convolution: queries, keys and values of linear attention."""
        return 2 * self.keys_width + self.values_width

    @property
    def query_rows(self) -> int:
        """Rows of q_proj: per head the query's, then as many of the output gate."""
        return self.query_heads * self.head_dim * 2

    @property
    def kv_rows(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def context(self) -> int:
        """Tokens that the KV pages hold."""
        return self.pages * self.page_tokens

    def config(self) -> dict[str, Any]:
        """The config.json that `from_config` reads back to these sizes; the form is the real checkpoint's."""
        layer_types = [
            "full_attention" if self.full_attention(layer) else "linear_attention" for layer in range(self.model_layers)
        ]
        return {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": MODEL_TYPE,
            "tie_word_embeddings": False,
            "text_config": {
                "model_type": f"{MODEL_TYPE}_text",
                "dtype": "bfloat16",
                "vocab_size": self.vocabulary,
                "hidden_size": self.hidden,
                "num_hidden_layers": self.model_layers,
                "full_attention_interval": self.full_attention_interval,
                "layer_types": layer_types,
                "num_attention_heads": self.query_heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.head_dim,
                "hidden_act": "silu",
                "rms_norm_eps": self.rms_eps,
                "attn_output_gate": True,
                "linear_conv_kernel_dim": self.conv_kernel,
                "linear_key_head_dim": self.key_dim,
                "linear_value_head_dim": self.value_dim,
                "linear_num_key_heads": self.key_heads,
                "linear_num_value_heads": self.value_heads,
                "moe_intermediate_size": self.expert_width,
                "shared_expert_intermediate_size": self.shared_width,
                "num_experts": self.experts,
                "num_experts_per_tok": self.top_k,
                "tie_word_embeddings": False,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": self.rope_theta,
                    "partial_rotary_factor": self.rotary_dim / self.head_dim,
                    "mrope_section": list(self.mrope_section),
                    "mrope_interleaved": True,
                },
            },
            "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **placement: int) -> BlockShape:
        """The shape of a block of the model that config.json describes.

        `placement` may set `start`, `end`, `pages`, `page_tokens`. Raises CheckpointError naming what is missing, of
        the wrong type, or of a kind that this block does not compute (another activation, biases, scaled rotary).
        """
        text = config.get("text_config", config)
        if config.get("model_type") not in (MODEL_TYPE, f"{MODEL_TYPE}_text") or not isinstance(text, Mapping):
            raise CheckpointError(
                f"config.json has model_type {config.get('model_type')!r}, expected {MODEL_TYPE!r}",
                "another adapter may realise it",
            )
        rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise CheckpointError(f"config.json's rope_parameters are no object: {rope!r:.80}")
        kept = text.get("hidden_act", "silu"), rope.get("rope_type", "default"), text.get("attention_bias", False)
        if kept != ("silu", "default", False):
            raise CheckpointError(
                f"config.json wants activation, rotary kind and attention bias {kept}, expected ('silu', 'default', False)"
            )
        try:
            head_dim = int(text["head_dim"])
            partial: Any = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))
            layers = int(text["num_hidden_layers"])
            interval = int(text.get("full_attention_interval", 4))
            shape = cls(
                start=placement.get("start", 0),
                end=placement.get("end", layers),
                model_layers=layers,
                full_attention_interval=interval,
                hidden=int(text["hidden_size"]),
                vocabulary=int(text["vocab_size"]),
                query_heads=int(text["num_attention_heads"]),
                kv_heads=int(text["num_key_value_heads"]),
                head_dim=head_dim,
                rotary_dim=int(head_dim * partial),
                rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else text["rope_theta"]),
                mrope_section=tuple(rope.get("mrope_section", (11, 11, 10))),
                rms_eps=float(text["rms_norm_eps"]),
                key_heads=int(text["linear_num_key_heads"]),
                value_heads=int(text["linear_num_value_heads"]),
                key_dim=int(text["linear_key_head_dim"]),
                value_dim=int(text["linear_value_head_dim"]),
                conv_kernel=int(text["linear_conv_kernel_dim"]),
                experts=int(text["num_experts"]),
                top_k=int(text["num_experts_per_tok"]),
                expert_width=int(text["moe_intermediate_size"]),
                shared_width=int(text["shared_expert_intermediate_size"]),
                pages=placement.get("pages", cls.pages),
                page_tokens=placement.get("page_tokens", cls.page_tokens),
            )
        except KeyError as error:
            raise CheckpointError(f"config.json lacks {error.args[0]!r}") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"config.json has a size of the wrong kind: {error}") from error
        kinds = ["full_attention" if shape.full_attention(layer) else "linear_attention" for layer in range(layers)]
        if (text.get("layer_types") or kinds) != kinds:
            raise CheckpointError(f"config.json's layer_types are not full attention every {interval} layers")
        return shape


PUBLISHED = BlockShape()
"""Block A as published: layers 0 to 18 and the embeddings of nvidia/Qwen3.6-35B-A3B-NVFP4."""

TINY = replace(
    PUBLISHED,
    end=4,
    model_layers=4,
    hidden=64,
    vocabulary=128,
    query_heads=4,
    kv_heads=2,
    head_dim=32,
    rotary_dim=8,
    mrope_section=(2, 1, 1),
    key_heads=2,
    value_heads=4,
    key_dim=16,
    value_dim=16,
    experts=16,
    top_k=4,
    expert_width=32,
    shared_width=32,
)
"""The same architecture small enough to run on a CPU in a fraction of a second: three delta-net layers and one of attention."""
