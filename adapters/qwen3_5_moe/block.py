"""What a block computes, in plain torch on the resident tensors: norms, gated delta-net or attention, expert mixture.

The same calls serve a prompt of many tokens and a single decoded one. All shapes follow from the number of tokens, and
nothing reads a value back from the device, so that a decoding step can be captured in a CUDA graph. Runtime state is
updated in place in the tensors that were handed in. The arithmetic follows `transformers`' `qwen3_5_moe`, whose norms and
rotary application are used; its caches and linear modules are not, since state and weights have planned places here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeRMSNorm,
    Qwen3_5MoeRMSNormGated,
    apply_rotary_pos_emb,
)

from adapters.qwen3_5_moe.quantised import decode_nvfp4, e2m1_pairs, fp8_linear, nvfp4_linear
from adapters.qwen3_5_moe.shape import BlockShape

SLOTS_AT_ONCE = 4
"""Slots of the expert banks decoded at a time, which bounds the memory that a step takes (38 MB at published size)."""

Tensors = Mapping[str, torch.Tensor]


class Step:
    """What all layers of one forward pass share: positions I64 [tokens], their rotary factors, the E2M1 table."""

    def __init__(self, shape: BlockShape, positions: torch.Tensor) -> None:
        device = positions.device
        self.positions = positions
        self.pairs = e2m1_pairs(device)
        exponents = torch.arange(0, shape.rotary_dim, 2, device=device, dtype=torch.float32) / shape.rotary_dim
        angles = positions.float()[:, None] * torch.exp(exponents * -math.log(shape.rope_theta))
        angles = torch.cat((angles, angles), dim=-1)
        # Text has the same position on all three axes of the interleaved rotary embedding: the sections fall together.
        self.cos, self.sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
        self.unseen = torch.arange(shape.context, device=device)[None, :] > positions[:, None]


def _norm(weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], torch.Tensor]:
    with torch.device("meta"):
        norm = Qwen3_5MoeRMSNorm(weight.shape[0], eps)
    norm.weight = torch.nn.Parameter(weight, requires_grad=False)
    return norm


class DeltaNet:
    """Gated delta-net: short causal convolution, delta rule on an F32 recurrent state, gated norm."""

    def __init__(self, shape: BlockShape, layer: int, weights: Tensors, state: Tensors) -> None:
        at = f"layers.{layer}.linear_attn."
        self.shape = shape
        self.weights = {name.removeprefix(at): tensor for name, tensor in weights.items() if name.startswith(at)}
        self.conv = state[f"layers.{layer}.conv"]
        self.recurrent = state[f"layers.{layer}.recurrent"]
        with torch.device("meta"):
            self.norm = Qwen3_5MoeRMSNormGated(shape.value_dim, eps=shape.rms_eps)
        self.norm.weight = torch.nn.Parameter(self.weights["norm"], requires_grad=False)

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        shape, weights = self.shape, self.weights
        mixed = fp8_linear(x, weights["in_proj.weight"], weights["in_proj.row_scale"])
        inputs, z = mixed.split((shape.conv_width, shape.values_width), dim=-1)
        mixed = F.silu(self._convolve(inputs))
        query, key, value = mixed.split((shape.keys_width, shape.keys_width, shape.values_width), dim=-1)
        decay = -weights["A_log"].exp() * F.softplus(F.linear(x, weights["in_proj_a"]).float() + weights["dt_bias"])
        beta = F.linear(x, weights["in_proj_b"]).sigmoid()
        core = self._recur(query, key, value, decay.exp(), beta.float())
        gated = self.norm(core.reshape(-1, shape.value_dim), z.reshape(-1, shape.value_dim))
        return fp8_linear(
            gated.reshape(-1, shape.values_width), weights["out_proj.weight"], weights["out_proj.row_scale"]
        )

    def _convolve(self, inputs: torch.Tensor) -> torch.Tensor:
        """Depthwise causal convolution over the inputs BF16 [tokens, channels] and the kernel - 1 before them."""
        kernel = self.shape.conv_kernel
        window = torch.cat((self.conv, inputs.t()), dim=1)
        self.conv.copy_(window[:, window.shape[1] - (kernel - 1) :])
        taps = self.weights["conv1d"].view(-1, 1, kernel).float()
        return (window.unfold(1, kernel, 1).float() * taps).sum(-1).to(torch.bfloat16).t()

    def _recur(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        """The delta rule, token by token: S = S * decay + k (beta (v - S k))^T; out = S q. BF16 [tokens, heads, dim].

        Queries and keys are normalised to unit length in F32, queries scaled by 1 / sqrt(dim); each key head serves
        value_heads / key_heads consecutive value heads (Yang et al., "Gated Delta Networks", 2024).
        """
        shape, state = self.shape, self.recurrent
        per_key = shape.value_heads // shape.key_heads
        query = _unit(query.reshape(-1, shape.key_heads, 1, shape.key_dim)) * shape.key_dim**-0.5
        key = _unit(key.reshape(-1, shape.key_heads, 1, shape.key_dim))
        heads = (-1, shape.value_heads, shape.key_dim, 1)
        query = query.expand(-1, -1, per_key, -1).reshape(heads)
        key = key.expand(-1, -1, per_key, -1).reshape(heads)
        value = value.reshape(-1, shape.value_heads, shape.value_dim).float()
        outputs = []
        for token in range(value.shape[0]):
            state.mul_(decay[token, :, None, None])
            recalled = (state * key[token]).sum(-2)
            correction = (value[token] - recalled) * beta[token, :, None]
            state.add_(key[token] * correction[:, None, :])
            outputs.append((state * query[token]).sum(-2))
        return torch.stack(outputs).to(torch.bfloat16)


def _unit(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class Attention:
    """Full attention over the KV pages, with partial rotary positions, normed queries and keys, and a gated output."""

    def __init__(self, shape: BlockShape, layer: int, weights: Tensors, state: Tensors) -> None:
        at = f"layers.{layer}.self_attn."
        self.shape = shape
        self.weights = {name.removeprefix(at): tensor for name, tensor in weights.items() if name.startswith(at)}
        self.query_norm = _norm(self.weights["q_norm"], shape.rms_eps)
        self.key_norm = _norm(self.weights["k_norm"], shape.rms_eps)
        rows = (shape.context, shape.kv_heads, shape.head_dim)  # page p holds tokens p * page_tokens onwards
        self.keys = state[f"layers.{layer}.key_pages"].view(rows)
        self.values = state[f"layers.{layer}.value_pages"].view(rows)

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        shape, tokens = self.shape, x.shape[0]
        mixed = fp8_linear(x, self.weights["qkv_proj.weight"], self.weights["qkv_proj.row_scale"])
        query, key, value = mixed.split((shape.query_rows, shape.kv_rows, shape.kv_rows), dim=-1)
        query, gate = query.view(tokens, shape.query_heads, 2 * shape.head_dim).chunk(2, dim=-1)
        query = self.query_norm(query)
        key = self.key_norm(key.view(tokens, shape.kv_heads, shape.head_dim))
        query, key = apply_rotary_pos_emb(query, key, step.cos, step.sin)
        self.keys.index_copy_(0, step.positions, key)
        self.values.index_copy_(0, step.positions, value.view(tokens, shape.kv_heads, shape.head_dim))
        mixed = self._attend(query, step.unseen) * torch.sigmoid(gate.reshape(tokens, -1))
        return fp8_linear(mixed, self.weights["o_proj.weight"], self.weights["o_proj.row_scale"])

    def _attend(self, query: torch.Tensor, unseen: torch.Tensor) -> torch.Tensor:
        """Softmax attention of BF16 [tokens, heads, dim] over all page slots, those not yet written masked out."""
        shape, tokens = self.shape, query.shape[0]
        per_kv = shape.query_heads // shape.kv_heads
        query = query.view(tokens, shape.kv_heads, per_kv, shape.head_dim).permute(1, 2, 0, 3)
        query = query.reshape(shape.kv_heads, per_kv * tokens, shape.head_dim)
        scores = torch.matmul(query, self.keys.permute(1, 2, 0)) * shape.head_dim**-0.5
        scores = scores.view(shape.kv_heads, per_kv, tokens, shape.context).masked_fill(unseen, float("-inf"))
        weights = scores.softmax(-1, dtype=torch.float32).to(torch.bfloat16)
        weights = weights.view(shape.kv_heads, per_kv * tokens, shape.context)
        mixed = torch.matmul(weights, self.values.transpose(0, 1))
        mixed = mixed.view(shape.query_heads, tokens, shape.head_dim)
        return mixed.transpose(0, 1).reshape(tokens, shape.query_heads * shape.head_dim)


class Mixture:
    """The routed experts of the resident banks, slot e holding expert e, and the shared expert beside them."""

    def __init__(self, shape: BlockShape, layer: int, weights: Tensors, banks: Tensors) -> None:
        at = f"layers.{layer}."
        self.shape = shape
        self.router = weights[f"{at}router"]
        self.shared_gate = weights[f"{at}shared_gate"]
        self.shared = {
            name.removeprefix(f"{at}shared."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"{at}shared.")
        }
        self.banks = {
            name.removeprefix(f"{at}experts."): tensor for name, tensor in banks.items() if name.startswith(at)
        }

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        scores, slots = self.route(x)
        # A token at a time, for prompts too: what a step reads is bounded, and both take the same arithmetic.
        routed = torch.cat(
            [self._experts(x[at : at + 1], scores[at], slots[at], step.pairs) for at in range(x.shape[0])]
        )
        hidden = self._gated(nvfp4_linear(x, *self._parts(self.shared, "gate_up"), step.pairs))
        shared = nvfp4_linear(hidden, *self._parts(self.shared, "down"), step.pairs)
        return routed + torch.sigmoid(F.linear(x, self.shared_gate)) * shared

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The chosen experts' weights, F32 [tokens, top_k], summing to one, and their slots, I64 [tokens, top_k]."""
        chances = F.linear(x, self.router).softmax(-1, dtype=torch.float32)
        scores, slots = chances.topk(self.shape.top_k, dim=-1)
        return scores / scores.sum(-1, keepdim=True), slots

    def _experts(self, x: torch.Tensor, scores: torch.Tensor, slots: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """x BF16 [1, hidden] through the experts in `slots` I64 [top_k], decoded from the banks by slot; BF16 [1, hidden]."""
        total = torch.zeros_like(x, dtype=torch.float32)
        for at in range(0, self.shape.top_k, SLOTS_AT_ONCE):
            chosen = slots[at : at + SLOTS_AT_ONCE]
            weight, row_global = self._decoded("gate_up", chosen, pairs)
            product = F.linear(x, weight.view(-1, weight.shape[-1])).view(row_global.shape)
            hidden = self._gated((product.float() * row_global.float()).to(torch.bfloat16))
            del weight
            weight, row_global = self._decoded("down", chosen, pairs)
            product = torch.matmul(weight, hidden.unsqueeze(-1)).squeeze(-1).float() * row_global.float()
            total += (product * scores[at : at + SLOTS_AT_ONCE, None]).sum(0)
        return total.to(torch.bfloat16)

    def _decoded(self, name: str, slots: torch.Tensor, pairs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights BF16 [slots, rows, columns] of those slots, and their row globals F16 [slots, rows]."""
        packed, scale, row_global = self._parts(self.banks, name)
        scale = scale.view(torch.uint8).index_select(0, slots).view(torch.float8_e4m3fn)
        return decode_nvfp4(packed.index_select(0, slots), scale, pairs), row_global.index_select(0, slots)

    @staticmethod
    def _parts(tensors: Tensors, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return tensors[f"{name}.packed"], tensors[f"{name}.scale"], tensors[f"{name}.global"]

    @staticmethod
    def _gated(product: torch.Tensor) -> torch.Tensor:
        gate, up = product.chunk(2, dim=-1)
        return F.silu(gate) * up


class Layer:
    """One decoder layer: a token mixer, then the experts, each normed before and added to what came in."""

    def __init__(self, shape: BlockShape, layer: int, weights: Tensors, banks: Tensors, state: Tensors) -> None:
        at = f"layers.{layer}."
        self.input_norm = _norm(weights[f"{at}input_layernorm"], shape.rms_eps)
        self.mixture_norm = _norm(weights[f"{at}post_attention_layernorm"], shape.rms_eps)
        mixer = Attention if shape.full_attention(layer) else DeltaNet
        self.mixer: Attention | DeltaNet = mixer(shape, layer, weights, state)
        self.mixture = Mixture(shape, layer, weights, banks)

    def __call__(self, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        hidden = hidden + self.mixer(self.input_norm(hidden), step)
        return hidden + self.mixture(self.mixture_norm(hidden), step)


class LayerTrace(NamedTuple):
    """One layer of a forward pass: hidden states BF16 [tokens, hidden] in and out, chosen experts I64 [tokens, top_k]."""

    input: torch.Tensor
    output: torch.Tensor
    experts: torch.Tensor


class Block:
    """The block on its resident tensors: `weights`, `banks` and `state` by the names of their layouts.

    Hidden states go in and come out, BF16 [tokens, hidden]; a block that owns the embeddings makes the first from tokens.
    """

    def __init__(self, shape: BlockShape, weights: Tensors, banks: Tensors, state: Tensors) -> None:
        self.shape = shape
        self.state = state
        self.embeddings = weights["embed_tokens"] if shape.owns_embeddings else None
        self.layers = [Layer(shape, layer, weights, banks, state) for layer in shape.layers]
        self.device = next(iter(weights.values())).device

    def clear(self) -> None:
        """Empty the runtime state: no token was seen."""
        for tensor in self.state.values():
            tensor.zero_()

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states BF16 [tokens, hidden] of token ids I64 [tokens]; only for a block that owns the embeddings."""
        assert self.embeddings is not None, "the block does not begin the model: it takes hidden states, not tokens"
        return self.embeddings.index_select(0, tokens)

    @torch.no_grad()
    def forward(self, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states BF16 [tokens, hidden] at consecutive positions I64 [tokens] that follow what the state has seen."""
        step = Step(self.shape, positions)
        for layer in self.layers:
            hidden = layer(hidden, step)
        return hidden

    @torch.no_grad()
    def trace(self, hidden: torch.Tensor, positions: torch.Tensor) -> list[LayerTrace]:
        """What `forward` does, layer by layer, with each router's choice."""
        step = Step(self.shape, positions)
        traces = []
        for layer in self.layers:
            between = hidden + layer.mixer(layer.input_norm(hidden), step)
            normed = layer.mixture_norm(between)
            experts = layer.mixture.route(normed)[1]
            output = between + layer.mixture(normed, step)
            traces.append(LayerTrace(hidden, output, experts))
            hidden = output
        return traces
