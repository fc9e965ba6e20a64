"""Reference fixtures: the same block code on an unplanned load, which a planned run has to match bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import transformers

from adapters.qwen3_5_moe.block import Block
from adapters.qwen3_5_moe.shape import BlockShape
from adapters.qwen3_5_moe.unplanned import load_block
from ledger.errors import TallyError
from realizer.adapter import ReferenceFixture
from realizer.checkpoint import Checkpoint
from realizer.decode import expected_tokens

PROMPT_TOKENS = 24
"""Of the prompt that is made up when none is given."""


def made_up_tokens(count: int, vocabulary: int, start: int = 0) -> list[int]:
    """`count` token ids spread over the vocabulary, the same every time (multiples of a golden-ratio step)."""
    step = int(vocabulary * 0.6180339887498949) | 1
    return [(start + number * step + number * number) % vocabulary for number in range(1, count + 1)]


def made_up_states(count: int, hidden: int) -> torch.Tensor:
    """Hidden states BF16 [count, hidden] for a block that does not begin the model, the same every time."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, hidden, generator=generator).to(torch.bfloat16)


def make_fixture(
    shape: BlockShape, checkpoint: Checkpoint, device: torch.device, prompt: Sequence[int], options: Mapping[str, int]
) -> ReferenceFixture:
    """Run the prompt and then `decode_steps` single tokens. The block has no head, so the tokens fed are made up.

    Raises TallyError when the prompt and the steps do not fit the KV pages or hold an id outside the vocabulary.
    """
    steps = options["decode_steps"]
    fed = list(prompt) or made_up_tokens(min(PROMPT_TOKENS, shape.context - steps), shape.vocabulary)
    _check(shape, fed, steps)
    follow = made_up_tokens(steps, shape.vocabulary, start=fed[-1])
    block = load_block(shape, checkpoint, device)
    if shape.owns_embeddings:
        entries = block.embed(torch.tensor(fed + follow, device=device))
    else:
        entries = made_up_states(len(fed) + steps, shape.hidden).to(device)
    prefill, decoded = run(block, entries, len(fed))
    tensors = {
        "prompt.tokens": torch.tensor(fed, dtype=torch.int64),
        "prefill.input": entries[: len(fed)],
        "prefill.output": prefill,
        "decode.tokens": torch.tensor(follow, dtype=torch.int64),
        "decode.input": entries[len(fed) :],
        "decode.output": decoded,
    }
    provenance = {
        "made_by": "the block's own code on an unplanned load (safetensors, torch's allocator)",
        "layers": f"{shape.start} to {shape.end - 1}",
        "cache_class": "pages of the block's own",
        "cache_length": str(shape.context),
        "dtype": "bfloat16, recurrent state float32",
        "attention": "softmax over all page slots",
        "device": str(device),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "config_digest": checkpoint.config_digest,
        "headers_digest": checkpoint.headers_digest,
        **expected_tokens(fed, follow),
    }
    return ReferenceFixture({name: tensor.cpu().clone() for name, tensor in tensors.items()}, provenance)


def run(block: Block, entries: torch.Tensor, prompt: int) -> tuple[torch.Tensor, torch.Tensor]:
    """From empty state: the first `prompt` hidden states at once, the rest one by one; the outputs of both parts."""
    block.clear()
    device = entries.device
    first = block.forward(entries[:prompt], torch.arange(prompt, device=device))
    rest = [
        block.forward(entries[at : at + 1], torch.arange(at, at + 1, device=device))
        for at in range(prompt, entries.shape[0])
    ]
    return first, torch.cat(rest)


def _check(shape: BlockShape, fed: Sequence[int], steps: int) -> None:
    if odd := [token for token in fed if not 0 <= token < shape.vocabulary]:
        raise TallyError(f"token {odd[0]} is outside the vocabulary of {shape.vocabulary}")
    if not fed or len(fed) + steps > shape.context:
        raise TallyError(
            f"{len(fed)} prompt tokens and {steps} steps do not fit the {shape.context} slots of the KV pages",
            "give a shorter prompt, or draft with more pages or fewer decode_steps",
        )
