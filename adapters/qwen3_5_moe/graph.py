"""One decoding step captured in a CUDA graph over the resident state, with its inputs and outputs in a planned range."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from adapters.qwen3_5_moe.block import Block

WARM_UPS = 3
"""Steps before the capture, on the capturing stream: libraries choose and load their kernels in the first ones."""


class DecodeGraph:
    """A step of `block`, captured once; `step` replays it. The runtime state is empty after the capture.

    `io` are the tensors of `layout.graph_io`. What the step needs in between lies in the graph's own memory pool.
    """

    def __init__(self, block: Block, io: Mapping[str, torch.Tensor]) -> None:
        self._block, self._io = block, io
        for tensor in io.values():
            tensor.zero_()
        stream = torch.cuda.Stream(device=block.device)
        stream.wait_stream(torch.cuda.current_stream(block.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._run()
        stream.synchronize()
        # The matrix library's workspace of that stream came from the common pool. It is given up before the capture, so
        # that the graph gets one in its own pool, and after it, so that nothing else counts it as live.
        torch._C._cuda_clearCublasWorkspaces()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._run()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.synchronize(block.device)
        torch.cuda.empty_cache()
        block.clear()

    def _run(self) -> None:
        if self._block.shape.owns_embeddings:
            self._io["input"].copy_(self._block.embed(self._io["token"]))
        self._io["output"].copy_(self._block.forward(self._io["input"], self._io["position"]))

    def step(self, entry: int | torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Replay for one token id, or one hidden state [1, hidden]; copies of the hidden states in and out, [1, hidden]."""
        if isinstance(entry, int):
            self._io["token"].fill_(entry)
        else:
            self._io["input"].copy_(entry)
        self._io["position"].fill_(position)
        self._graph.replay()
        return self._io["input"].clone(), self._io["output"].clone()
