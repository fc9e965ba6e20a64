"""The block computes what transformers' modules compute on dequantised weights, the same bits every time, without a sync."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from adapters.qwen3_5_moe import layout
from adapters.qwen3_5_moe.block import Block
from adapters.qwen3_5_moe.keys import layer_prefix
from adapters.qwen3_5_moe.native import E2M1, compare, dequantise
from adapters.qwen3_5_moe.quantised import decode_nvfp4, e2m1_pairs, fp8_linear, nvfp4_linear
from adapters.qwen3_5_moe.repack import TORCH_DTYPES
from adapters.qwen3_5_moe.shape import TINY
from adapters.qwen3_5_moe.synth import write_checkpoint
from adapters.qwen3_5_moe.unplanned import Source, load_block
from realizer.adapter import Layout
from realizer.checkpoint import Checkpoint, open_checkpoint

CPU = torch.device("cpu")
TOKENS = 24


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("qwen") / "checkpoint"
    write_checkpoint(TINY, directory)
    return open_checkpoint(str(directory))


@pytest.fixture
def block(checkpoint: Checkpoint) -> Block:
    return load_block(TINY, checkpoint, CPU)


def tokens() -> torch.Tensor:
    return (torch.arange(TOKENS) * 37 + 11) % TINY.vocabulary


def test_every_packed_byte_decodes_to_the_standards_values() -> None:
    pairs = e2m1_pairs(CPU).view(torch.bfloat16).view(256, 2)
    for byte in range(256):
        assert pairs[byte].tolist() == [E2M1[byte & 15], E2M1[byte >> 4]]
        assert torch.signbit(pairs[byte]).tolist() == [bool(byte & 8), bool(byte & 128)]


def test_nvfp4_weights_decode_exactly() -> None:
    """e2m1 times group scale has six significant bits at most: BF16 holds it exactly, also the smallest and largest."""
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16)  # 16 rows of 32 elements, 2 groups each
    scale = torch.tensor([448.0, 0.001953125] * 16).view(16, 2).to(torch.float8_e4m3fn)
    exact = torch.tensor(E2M1)[torch.stack((packed & 15, packed >> 4), -1).long()].view(16, 2, 16)
    exact = (exact * scale.float().unsqueeze(-1)).view(16, 32)
    assert torch.equal(decode_nvfp4(packed, scale, e2m1_pairs(CPU)).float(), exact)


def test_products_match_dequantised_weights(checkpoint: Checkpoint) -> None:
    x = torch.randn(3, TINY.hidden, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    at = layer_prefix(0)
    with Source(checkpoint) as source:
        fp8 = f"{at}linear_attn.in_proj_qkv"
        scale = source(f"{fp8}.weight_scale").expand(TINY.conv_width)
        torch.testing.assert_close(
            fp8_linear(x, source(f"{fp8}.weight"), scale),
            x @ dequantise(source, fp8, CPU).t(),
            atol=0.02,
            rtol=0.02,
        )
        gate = f"{at}mlp.experts.3.gate_proj"
        row_global = source(f"{gate}.weight_scale_2").half().expand(TINY.expert_width)
        torch.testing.assert_close(
            nvfp4_linear(x, source(f"{gate}.weight"), source(f"{gate}.weight_scale"), row_global, e2m1_pairs(CPU)),
            x @ dequantise(source, gate, CPU).t(),
            atol=0.02,
            rtol=0.02,
        )


def test_long_fp8_weights_are_decoded_in_parts_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 64, generator=generator).to(torch.bfloat16)
    weight = torch.randn(96, 64, generator=generator).to(torch.float8_e4m3fn)
    whole = fp8_linear(x, weight, torch.ones(96))
    monkeypatch.setattr("adapters.qwen3_5_moe.quantised.FP8_ROWS", 40)
    torch.testing.assert_close(fp8_linear(x, weight, torch.ones(96)), whole, atol=0.1, rtol=0.01)


def test_every_layer_agrees_with_transformers_modules(checkpoint: Checkpoint, block: Block) -> None:
    comparison = compare(block, checkpoint, block.embed(tokens()))
    assert [layer.layer for layer in comparison.layers] == [0, 1, 2, 3]
    assert comparison.within, comparison
    assert comparison.block_agreement >= 0.75
    assert comparison.block_mean_absolute < 0.05


@pytest.mark.parametrize(
    "broken",
    [
        "layers.1.linear_attn.in_proj.row_scale",
        "layers.2.linear_attn.A_log",
        "layers.2.linear_attn.conv1d",
        "layers.3.self_attn.qkv_proj.row_scale",
        "layers.3.self_attn.k_norm",
        "layers.0.shared.down.global",
        "layers.3.experts.gate_up.global",
        "layers.0.experts.down.packed",
    ],
)
def test_a_block_whose_tensor_is_off_does_not_agree(checkpoint: Checkpoint, block: Block, broken: str) -> None:
    """What the comparison is for: one tensor of one layer turned wrong is seen, and in that layer alone."""
    number = int(broken.split(".")[1])
    layer = block.layers[number - TINY.start]
    held: dict[str, torch.Tensor] = {}
    for at, tensors in (("self_attn.", layer.mixer.weights), ("linear_attn.", layer.mixer.weights)):
        held |= {f"layers.{number}.{at}{name}": tensor for name, tensor in tensors.items()}
    held |= {f"layers.{number}.shared.{name}": tensor for name, tensor in layer.mixture.shared.items()}
    held |= {f"layers.{number}.experts.{name}": tensor for name, tensor in layer.mixture.banks.items()}
    tensor = held[broken]
    tensor.copy_(tensor.flip(0) if tensor.dtype is torch.uint8 else (tensor.float() + 1).to(tensor.dtype))
    comparison = compare(block, checkpoint, block.embed(tokens()))
    assert [layer.layer for layer in comparison.layers if not layer.within] == [number]


def test_the_same_path_gives_the_same_bits(checkpoint: Checkpoint, block: Block) -> None:
    hidden, positions = block.embed(tokens()), torch.arange(TOKENS)
    first = block.forward(hidden, positions)
    block.clear()
    assert torch.equal(block.forward(hidden, positions), first)
    other = load_block(TINY, checkpoint, CPU)
    assert torch.equal(other.forward(other.embed(tokens()), positions), first)


def test_decoding_continues_the_prompt(block: Block) -> None:
    """A prompt and single tokens after it leave the outputs of the whole sequence at once, within BF16's rounding."""
    hidden = block.embed(tokens())
    whole = block.forward(hidden, torch.arange(TOKENS))
    block.clear()
    parts = [block.forward(hidden[:16], torch.arange(16))]
    parts += [block.forward(hidden[at : at + 1], torch.tensor([at])) for at in range(16, TOKENS)]
    torch.testing.assert_close(torch.cat(parts), whole, atol=0.05, rtol=0.05)
    assert not torch.equal(parts[-1], block.forward(hidden[-1:], torch.tensor([0])))


def test_state_decides_and_clearing_forgets(block: Block) -> None:
    hidden = block.embed(tokens())
    block.forward(hidden, torch.arange(TOKENS))
    assert all(tensor.abs().sum() > 0 for tensor in block.state.values())
    block.clear()
    assert all(tensor.abs().sum() == 0 for tensor in block.state.values())


def test_deep_blocks_stay_finite_and_routing_spreads(tmp_path: Path) -> None:
    shape = replace(TINY, end=19, model_layers=40)
    write_checkpoint(shape, tmp_path / "deep")
    block = load_block(shape, open_checkpoint(str(tmp_path / "deep")), CPU)
    traces = block.trace(block.embed(tokens()), torch.arange(TOKENS))
    for trace in traces:
        assert torch.isfinite(trace.output).all()
        assert 0.1 < trace.output.float().std() < 10
        assert trace.experts.unique().numel() >= shape.experts * 3 // 4
        assert trace.experts.flatten().bincount(minlength=shape.experts).max() <= TOKENS * 0.8


def without_values(mode: FakeTensorMode) -> Block:
    """A block on tensors that have places and no values: reading one back raises."""

    def fakes(planned: Layout) -> dict[str, torch.Tensor]:
        return {
            place.name: mode.from_tensor(torch.zeros(place.shape, dtype=TORCH_DTYPES[place.dtype]))
            for place in planned.places
        }

    weights, banks = fakes(layout.non_routed(TINY)), fakes(layout.routed_banks(TINY))
    state = fakes(layout.runtime_state(TINY))
    with mode:
        return Block(TINY, weights, banks, state)


def test_a_step_never_waits_for_a_value() -> None:
    """On tensors without values a read-back raises: what runs here can be captured in a CUDA graph."""
    mode = FakeTensorMode()
    empty = without_values(mode)
    with mode:
        output = empty.forward(empty.embed(torch.zeros(1, dtype=torch.int64)), torch.zeros(1, dtype=torch.int64))
        assert output.shape == (1, TINY.hidden)
        with pytest.raises(DataDependentOutputException):
            output.sum().item()  # the check can fail: this is what a read-back does here
