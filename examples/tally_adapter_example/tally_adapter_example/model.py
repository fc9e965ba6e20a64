"""The model: what it has read is kept as the sum of its bytes' embeddings, and the next byte follows from their mean.

It knows nothing of Tallystick. Two weights, `embedding.weight` and `head.weight`, both F32 [256, width]; two pieces of
mutable state, `sum` F32 [width] and `count` I64 [1], which every step writes in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

VOCABULARY = 256
WEIGHTS = ("embedding.weight", "head.weight")


class Bag:
    """The weights and the state, in whatever memory they were given."""

    def __init__(self, weights: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> None:
        self.embedding, self.head = (weights[name] for name in WEIGHTS)
        self.sum, self.count = state["sum"], state["count"]

    def reset(self) -> None:
        self.sum.zero_()
        self.count.zero_()

    def read(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Read tokens one by one; their embeddings [n, width], and after each the logits of the next byte [n, 256]."""
        inputs, outputs = [], []
        for token in tokens:
            self.sum.add_(self.embedding[token])
            self.count.add_(1)
            inputs.append(self.embedding[token].clone())
            outputs.append(self.head @ torch.tanh(self.sum / self.count))
        return torch.stack(inputs), torch.stack(outputs)


def fresh_state(width: int) -> dict[str, torch.Tensor]:
    """State of a model that has read nothing."""
    return {"sum": torch.zeros(width), "count": torch.zeros(1, dtype=torch.int64)}
