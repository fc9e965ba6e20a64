"""The adapter itself: a block realised range by range, then prefilled and decoded on what was realised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from adapters.qwen3_5_moe import filling, layout, planning, published, reading, repack, synth
from adapters.qwen3_5_moe.block import Block
from adapters.qwen3_5_moe.graph import DecodeGraph
from adapters.qwen3_5_moe.reference import make_fixture
from adapters.qwen3_5_moe.shape import TINY, BlockShape
from adapters.transformers_model import open_tokenizer
from ledger.errors import CheckpointError, RealizationFailed, TallyError
from ledger.plan import Materialization, Plan
from realizer.adapter import Claim, Draft, DraftRequest, Layout, PlanHandle, ReferenceFixture, StepOutput

if TYPE_CHECKING:
    from realizer.checkpoint import Checkpoint
    from realizer.loader import Loader
    from realizer.memory import MemoryRange


class Qwen35Moe:
    """A block of consecutive layers, with the embeddings when it begins the model; no final norm and no head.

    Hidden states go in and out. Prompt tokens and decoded tokens are the fixture's: a block without a head chooses none.
    """

    name = "qwen3_5_moe"
    version = "1"

    def __init__(self, plan: PlanHandle, checkpoint: Checkpoint) -> None:
        self._plan = plan.plan
        self._checkpoint = checkpoint
        self.shape = reading.shape_for(checkpoint, reading.options_from(self._plan))
        self._reading = reading.Reading.of(self._plan, self.shape)
        self._tensors: dict[str, dict[str, torch.Tensor]] = {}
        self._staged: dict[str, MemoryRange] = {}
        self._block: Block | None = None
        self._graph: DecodeGraph | None = None
        self._seen = self._seen_at_baseline = 0

    # --- before anything is allocated -----------------------------------------------------------------------------

    @classmethod
    def recognises(cls, plan: Plan) -> bool:
        """An R1 plan of this model's repository."""
        return reading.recognises(plan)

    @classmethod
    def unsupported(cls, checkpoint: Checkpoint) -> str | None:
        """Why this checkpoint cannot be realised, or None: its config, and one layer of each kind as it should be."""
        try:
            BlockShape.from_config(checkpoint.config)
        except CheckpointError as error:
            return error.message
        if not any(".mlp.experts.0.gate_proj.weight_scale_2" in key for key in checkpoint.tensors):
            return "no tensor is an NVFP4 expert's: this is another quantisation of the model, or none"
        return None

    @classmethod
    def draft(cls, checkpoint: Checkpoint, request: DraftRequest) -> Draft:
        """The published states and bytes for the machine at hand. Options: see `planning.draft`."""
        return planning.draft(checkpoint, request)

    @classmethod
    def published(cls, name: str) -> bytes:
        """The file of the published plan of that name, frozen. Raises NotFound naming those there are."""
        return published.published(name).data

    @classmethod
    def synth(cls, directory: Path, options: Mapping[str, Any]) -> synth.Written:
        """Write a synthetic checkpoint. Options: `published`, `layers`, `experts`, `seed`, `threads`, `progress`.

        Without `published` the sizes are tiny; `layers` and `experts` change either. Raises TallyError.
        """
        return synth.from_options(directory, options)

    @classmethod
    def tokens(cls, checkpoint: Checkpoint, prompt: str) -> list[int]:
        """The prompt's token ids by the checkpoint's own tokenizer. Raises CheckpointError where it has none."""
        ids = [int(token) for token in open_tokenizer(checkpoint)(prompt)["input_ids"]]
        if not ids:
            raise TallyError("the prompt has no tokens", "give a longer prompt, or token ids with --tokens")
        return ids

    @classmethod
    def reference(
        cls, plan: Plan, checkpoint: Checkpoint, prompt: str | None, tokens: Sequence[int]
    ) -> ReferenceFixture:
        """The same block from an unplanned load, on the plan's device. Without a prompt one is made up."""
        options = reading.options_from(plan)
        fed = list(tokens) if prompt is None else cls.tokens(checkpoint, prompt)
        shape = reading.shape_for(checkpoint, options)
        if (problem := next(reading.mismatches(shape, checkpoint), None)) is not None:
            raise CheckpointError(problem)
        return make_fixture(shape, checkpoint, device_of(plan), fed, options)

    def violations(self) -> list[tuple[str, str]]:
        """Everything in the plan that cannot be carried out with this model."""
        return self._reading.violations(self._checkpoint)

    def layout(self, materialization_id: str) -> Layout:
        """How that materialization lies in its range."""
        found = self._reading.layouts.get(materialization_id)
        if found is None:
            raise TallyError(f"adapter {self.name} knows no materialization {materialization_id!r}")
        return found

    @classmethod
    def warm_up(cls, device: str) -> None:
        """Run a tiny block of zeros, captured too where there are graphs, and drop it.

        Called before the memory baseline, it has kernels and library workspaces loaded that would otherwise count as
        memory that nobody explains.
        """

        def zeros(made: Layout) -> dict[str, torch.Tensor]:
            return {
                place.name: torch.zeros(place.shape, dtype=repack.TORCH_DTYPES[place.dtype], device=device)
                for place in made.places
            }

        block = Block(
            TINY, zeros(layout.non_routed(TINY)), zeros(layout.routed_banks(TINY)), zeros(layout.runtime_state(TINY))
        )
        block.forward(block.embed(torch.arange(4, device=device)), torch.arange(4, device=device))
        if block.device.type == "cuda":
            DecodeGraph(block, zeros(layout.graph_io(TINY))).step(1, 4)
            torch.cuda.synchronize(block.device)

    # --- carrying out ---------------------------------------------------------------------------------------------

    def realize(self, materialization_id: str, memory: MemoryRange, loader: Loader) -> Claim:
        """Fill the range; when it was the last that decoding needs, the block is put together on what is resident."""
        planned, made = self._planned(materialization_id), self.layout(materialization_id)
        streamed: int | None = None
        if planned.role == "staging":
            if made.representation != layout.RING:
                filling.fill(made, memory, loader)
            self._staged[materialization_id] = memory
        elif planned.representation in (layout.NATIVE, layout.SLOT_BANKS):
            streamed = self._bring(planned, made, memory, loader)
        self._tensors[materialization_id] = filling.tensors_over(made, memory)
        if not made.places[0].sources and planned.role != "staging":
            for tensor in self._tensors[materialization_id].values():
                tensor.zero_()
        self._assemble()
        return Claim(made.representation, made.bytes, len(made.places), streamed_bytes=streamed)

    def _bring(self, planned: Materialization, made: Layout, memory: MemoryRange, loader: Loader) -> int | None:
        """From the staged banks, through a ring, or straight from the files; the bytes that passed a ring."""
        staging = self._reading.staging_for(planned)
        if staging is None:
            filling.fill(made, memory, loader)
            return None
        staged = self._staged[staging.id]
        if staging.representation == layout.RING:
            return filling.fill(made, memory, loader, staged)
        loader.copy(made, staged, memory)
        return None

    def _planned(self, materialization_id: str) -> Materialization:
        planned = self._plan.materializations.get(materialization_id)
        if planned is None:
            raise TallyError(f"the plan has no materialization {materialization_id!r}")
        return planned

    def _held(self, representation: str) -> dict[str, torch.Tensor] | None:
        planned = self._reading.one(representation)
        return None if planned is None else self._tensors.get(planned.id)

    def _assemble(self) -> None:
        """Put the block together once all it needs is there, and capture its step where a graph has a place.

        That is while staging still lives, so that replaying after the release shows that nothing captured reads staging.
        """
        weights, banks, state = (self._held(name) for name in reading.REQUIRED)
        if self._block is None and weights is not None and banks is not None and state is not None:
            self._block = Block(self.shape, weights, banks, state)
        io = self._held(layout.GRAPH_IO)
        if self._graph is None and self._block is not None and io is not None and self._block.device.type == "cuda":
            self._graph = DecodeGraph(self._block, io)

    def content(self, materialization_id: str) -> Layout:
        """The layout cut as finely as its content can be checked: a place for every copied checkpoint tensor, named by
        its key, and derived places whole."""
        return repack.content(self.layout(materialization_id), self._checkpoint.tensors)

    def derived_digests(self, materialization_id: str, loader: Loader) -> dict[str, str]:
        """`sha256:` of the bytes that derived places ought to have, by name: recomputed from the checkpoint now."""
        return filling.derived_digests(self.layout(materialization_id), loader)

    def decode_modes(self) -> tuple[str, ...]:
        """Eager, and the captured graph where there is one."""
        return ("eager",) if self._graph is None else ("eager", "cuda-graph")

    def release(self, materialization_id: str) -> None:
        """Drop every reference into that staging range."""
        self._staged.pop(materialization_id, None)
        self._tensors.pop(materialization_id, None)

    def activate(self, execution_id: str) -> torch.device:
        """The device of the resident tensors, all of which have memory by now."""
        devices = {tensor.device for held in self._tensors.values() for tensor in held.values()}
        if self._block is None or len(devices) != 1:
            raise RealizationFailed(
                f"the block is not all on one device: {', '.join(sorted(map(str, devices))) or 'nothing is resident'}"
            )
        return devices.pop()

    # --- running --------------------------------------------------------------------------------------------------

    @property
    def model(self) -> Block:
        """The live block. Raises RealizationFailed before it is realised."""
        if self._block is None:
            raise RealizationFailed("the block is not realised yet")
        return self._block

    def prefill(self, fixture: ReferenceFixture) -> StepOutput:
        """Run the prompt from empty state."""
        block, tokens = self.model, fixture.tensors["prompt.tokens"].tolist()
        self._check_room(len(tokens) + len(fixture.tensors["decode.tokens"]))
        entries = self._entries(fixture, "prompt.tokens", "prefill.input")
        block.clear()
        output = block.forward(entries, torch.arange(len(tokens), device=block.device))
        self._seen = len(tokens)
        return StepOutput(entries, output, tuple(tokens))

    def save_baseline(self) -> None:
        """Copy the runtime state into the replay baseline's range."""
        for name, tensor in self._baseline().items():
            tensor.copy_(self.model.state[name])
        self._seen_at_baseline = self._seen

    def restore_baseline(self) -> None:
        """Copy the replay baseline back into the runtime state."""
        for name, tensor in self._baseline().items():
            self.model.state[name].copy_(tensor)
        self._seen = self._seen_at_baseline

    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        """Feed the fixture's tokens, or hidden states, one by one from the current state."""
        if mode not in self.decode_modes():
            raise RealizationFailed(
                f"decoding in mode {mode!r} is not to be had here", "it needs a captured CUDA graph"
            )
        block, tokens = self.model, fixture.tensors["decode.tokens"].tolist()
        self._check_room(self._seen + len(tokens))
        inputs, outputs = [], []
        given = None if self.shape.owns_embeddings else self._entries(fixture, "decode.tokens", "decode.input")
        for number, token in enumerate(tokens):
            if mode == "cuda-graph" and self._graph is not None:
                entry, output = self._graph.step(token if given is None else given[number : number + 1], self._seen)
            else:
                position = torch.arange(self._seen, self._seen + 1, device=block.device)
                entry = (
                    block.embed(torch.full((1,), token, device=block.device))
                    if given is None
                    else given[number : number + 1]
                )
                output = block.forward(entry, position)
            inputs.append(entry)
            outputs.append(output)
            self._seen += 1
        return StepOutput(torch.cat(inputs), torch.cat(outputs), tuple(tokens))

    def _entries(self, fixture: ReferenceFixture, tokens: str, states: str) -> torch.Tensor:
        """Hidden states BF16 [n, hidden] on the block's device: of the fixture's tokens, or the fixture's own."""
        device = self.model.device
        if self.shape.owns_embeddings:
            return self.model.embed(fixture.tensors[tokens].to(device))
        return fixture.tensors[states].to(device)

    def _baseline(self) -> dict[str, torch.Tensor]:
        held = self._held(layout.SNAPSHOT)
        if held is None:
            raise RealizationFailed(
                "repeated decode needs a replay baseline, and the plan has none",
                f"plan a materialization of {layout.SNAPSHOT!r}",
            )
        return held

    def _check_room(self, tokens: int) -> None:
        if tokens > self.shape.context:
            raise RealizationFailed(
                f"{tokens} tokens do not fit the {self.shape.context} slots of the KV pages", "draft with more pages"
            )


def device_of(plan: Plan) -> torch.device:
    """The torch device of the plan's Compute Unit. Raises TallyError when this machine has no such GPU."""
    units = [plan.compute_units.get(execution.compute_unit_id) for execution in plan.document.execution]
    wanted = next((unit.device_uuid for unit in units if unit is not None and unit.device_uuid), None)
    if wanted is None:
        return torch.device("cpu")
    for index in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(index).uuid) == wanted.removeprefix("GPU-"):
            return torch.device("cuda", index)
    raise TallyError(f"this machine has no GPU {wanted}", "draft the plan on the machine that is to run it")
