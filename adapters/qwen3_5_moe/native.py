"""The same block by `transformers`' own modules on dequantised weights: an independent answer, near and never bit-equal.

A layer is built, filled, run over the whole sequence and dropped before the next, so that the block needs the memory of
one dequantised layer (1.7 GB at published size) and no cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeDecoderLayer,
    Qwen3_5MoeTextRotaryEmbedding,
)

from adapters.qwen3_5_moe.block import Block, LayerTrace
from adapters.qwen3_5_moe.keys import layer_prefix
from adapters.qwen3_5_moe.shape import GROUP, BlockShape
from adapters.qwen3_5_moe.unplanned import Source
from realizer.checkpoint import Checkpoint

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the codes 0 to 15 (OCP Microscaling Formats 1.0, table 3)."""


ATOL, RTOL = 0.03, 0.02
"""Allowed between a layer's two answers from the same input: RTOL is about three units in the last place of BF16."""
LEAST_AGREEMENT = 0.75
"""Of tokens whose experts agree, in every layer: routers decide by BF16 logits, and near ties fall either way."""


def dequantise(source: Source, projection: str, device: torch.device) -> torch.Tensor:
    """The weight of one projection as BF16, from the checkpoint's own scales in F32: FP8, NVFP4, or what is BF16 already.

    NVFP4: w[i] = e2m1[i] * weight_scale[i // 16] * weight_scale_2, the low nibble first. FP8: w = weight * weight_scale.
    """
    weight = source(f"{projection}.weight").to(device)
    if weight.dtype is torch.bfloat16:
        return weight
    scale = source(f"{projection}.weight_scale").to(device).float()
    if weight.dtype is torch.float8_e4m3fn:
        return (weight.float() * scale).to(torch.bfloat16)
    table = torch.tensor(E2M1, device=device)
    nibbles = torch.stack((weight & 15, weight >> 4), dim=-1).reshape(weight.shape[0], -1)
    groups = table[nibbles.long()].view(weight.shape[0], -1, GROUP) * scale.unsqueeze(-1)
    return (groups * source(f"{projection}.weight_scale_2").item()).view(weight.shape[0], -1).to(torch.bfloat16)


def _config(shape: BlockShape) -> Qwen3_5MoeTextConfig:
    described = shape.config()["text_config"]
    described.pop("model_type")
    described.pop("dtype")
    config = Qwen3_5MoeTextConfig(**described)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


DELTA_NET = ("in_proj_qkv", "in_proj_z", "out_proj", "in_proj_a", "in_proj_b")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
EXPERT = ("gate_proj", "up_proj", "down_proj")


def _parameters(shape: BlockShape, layer: int, source: Source, device: torch.device) -> dict[str, torch.Tensor]:
    """A decoder layer's parameters under transformers' names, on `device`; the experts fused as its module wants them."""
    at = layer_prefix(layer)

    def weight(projection: str) -> torch.Tensor:
        return dequantise(source, f"{at}{projection}", device)

    if shape.full_attention(layer):
        quantised = [f"self_attn.{name}" for name in ATTENTION]
        plain = ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]
    else:
        quantised = [f"linear_attn.{name}" for name in DELTA_NET]
        plain = [f"linear_attn.{name}" for name in ("A_log", "dt_bias", "conv1d.weight", "norm.weight")]
    quantised += [f"mlp.shared_expert.{name}" for name in EXPERT]
    plain += [
        f"{name}.weight"
        for name in ("input_layernorm", "post_attention_layernorm", "mlp.gate", "mlp.shared_expert_gate")
    ]
    parameters = {name: source(f"{at}{name}").to(device) for name in plain}
    parameters |= {f"{name}.weight": weight(name) for name in quantised}
    gate, up, down = (
        torch.stack([weight(f"mlp.experts.{expert}.{name}") for expert in range(shape.experts)]) for name in EXPERT
    )
    parameters["mlp.experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
    parameters["mlp.experts.down_proj"] = down
    return parameters


class NativeLayers:
    """The block's layers as transformers' modules, one at a time, each over a whole sequence without a cache."""

    def __init__(self, shape: BlockShape, source: Source, tokens: int, device: torch.device) -> None:
        self.shape, self.source, self.device = shape, source, device
        self.config = _config(shape)
        self.positions = torch.arange(tokens, device=device)
        self.rotary = Qwen3_5MoeTextRotaryEmbedding(self.config).to(device)
        self.mask = torch.full((tokens, tokens), float("-inf"), dtype=torch.bfloat16, device=device).triu(1)[None, None]

    @torch.no_grad()
    def __call__(self, layer: int, *inputs: torch.Tensor) -> list[LayerTrace]:
        """One layer over each of the hidden states BF16 [tokens, hidden]; its module is built, filled, run and dropped."""
        with torch.device("meta"):
            module = Qwen3_5MoeDecoderLayer(self.config, layer)
        module.load_state_dict(_parameters(self.shape, layer, self.source, self.device), strict=True, assign=True)
        module.eval()
        chosen: list[torch.Tensor] = []
        module.mlp.gate.register_forward_hook(lambda _, __, result: chosen.append(result[-1]))
        traces = []
        for hidden in inputs:
            output = module(
                hidden_states=hidden[None],
                position_embeddings=self.rotary(hidden[None], self.positions.view(1, 1, -1).expand(3, 1, -1)),
                attention_mask=self.mask if self.shape.full_attention(layer) else None,
                position_ids=self.positions[None],
            )
            traces.append(LayerTrace(hidden, output[0], chosen.pop()))
        return traces


@dataclass(frozen=True)
class LayerComparison:
    """One layer, both ways from the same input.

    `agreement` is the share of tokens for which both routers chose the same experts. Deviations are of the hidden states
    after the layer, over those tokens alone: where the choice differs by a rounding, so does everything behind it.
    """

    layer: int
    agreement: float
    max_absolute: float
    mean_absolute: float
    within: bool


@dataclass(frozen=True)
class Comparison:
    """A block against transformers' modules: layer by layer from equal inputs, and the whole way from the same start."""

    layers: list[LayerComparison]
    block_max_absolute: float
    block_mean_absolute: float
    block_agreement: float

    @property
    def within(self) -> bool:
        """Every layer agrees on nearly all experts and stays within the tolerance where it does."""
        return all(layer.within for layer in self.layers)


def compare(block: Block, checkpoint: Checkpoint, hidden: torch.Tensor) -> Comparison:
    """Lay a block with empty state against transformers' modules, over hidden states BF16 [tokens, hidden].

    The tokens are one sequence from position 0, at most as many as the KV pages hold. The runtime state is left as after
    a prompt.
    """
    shape = block.shape
    traces = block.trace(hidden, torch.arange(hidden.shape[0], device=hidden.device))
    layers: list[LayerComparison] = []
    agreed: list[float] = []
    with Source(checkpoint) as source:
        native = NativeLayers(shape, source, hidden.shape[0], hidden.device)
        whole = hidden
        for number, ours in zip(shape.layers, traces, strict=True):
            theirs, through = native(number, ours.input, whole)
            layers.append(_compare(number, ours, theirs))
            agreed.append(_same_experts(ours, through).float().mean().item())
            whole = through.output
    apart = (traces[-1].output.float() - whole.float()).abs()
    return Comparison(layers, apart.max().item(), apart.mean().item(), sum(agreed) / len(agreed))


def _same_experts(a: LayerTrace, b: LayerTrace) -> torch.Tensor:
    """Bool [tokens]: both chose the same set of experts."""
    return (a.experts.sort(-1).values == b.experts.sort(-1).values).all(-1)


def _compare(layer: int, ours: LayerTrace, theirs: LayerTrace) -> LayerComparison:
    same = _same_experts(ours, theirs)
    expected = theirs.output[same].float()
    apart = (ours.output[same].float() - expected).abs()
    agreement = same.float().mean().item()
    if not apart.numel():
        return LayerComparison(layer, agreement, float("nan"), float("nan"), False)
    close = bool((apart <= ATOL + RTOL * expected.abs()).all())
    return LayerComparison(
        layer, agreement, apart.max().item(), apart.mean().item(), close and agreement >= LEAST_AGREEMENT
    )
