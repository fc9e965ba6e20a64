"""The adapter: what a plan for a bag of bytes says, and how each part of it is carried out.

Four materializations: the weights staged in system RAM, the weights where they stay, the mutable state, and a copy of the
state from which decode is repeated. The engine hands out a memory range for each; nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import load_file

from ledger import Plan, TallyError
from ledger.plan import (
    Authority,
    Execution,
    ForbiddenMaterialization,
    LogicalStateUnit,
    Materialization,
    RequiredState,
    Selection,
    keys_digest,
)
from realizer import (
    Adapter,
    Checkpoint,
    Claim,
    Draft,
    DraftRequest,
    Layout,
    Loader,
    MemoryRange,
    PlanHandle,
    ReferenceFixture,
    StepOutput,
    pack,
    tensors_of,
)
from realizer.decode import expected_tokens
from tally_adapter_example.model import VOCABULARY, WEIGHTS, Bag, fresh_state

WEIGHTS_UNIT, STATE_UNIT, BASELINE_UNIT = "state.weights", "state.bag", "state.replay-baseline"
REPRESENTATIONS = {
    "mat.weights.stage": "bag-weights-staged",
    "mat.weights.resident": "bag-weights",
    "mat.bag": "bag-state",
    "mat.replay-baseline": "bag-state-snapshot",
}
EXECUTION = "exec.read"
STEPS = 4


class BagOfBytes(Adapter):
    """One bag of bytes being realised."""

    name = "bag_of_bytes"
    version = "1"

    # --- before a run: what may be planned ------------------------------------------------------------------------

    @classmethod
    def unsupported(cls, checkpoint: Checkpoint) -> str | None:
        if checkpoint.config.get("model_type") != "bag-of-bytes":
            return f"its model_type is {checkpoint.config.get('model_type')!r}, not 'bag-of-bytes'"
        shape = (VOCABULARY, checkpoint.config.get("width"))
        for key in WEIGHTS:
            entry = checkpoint.tensors.get(key)
            if entry is None or (entry.dtype, entry.shape) != ("F32", shape):
                return f"tensor {key!r} is not there as F32 {list(shape)}"
        return None

    @classmethod
    def draft(cls, checkpoint: Checkpoint, request: DraftRequest) -> Draft:
        if request.staging != "full":
            raise TallyError("bag_of_bytes stages its weights whole: a ring would be larger than they are")
        ram = request.resources["system-ram"]
        stays = request.resources.get("accelerator-vram") or request.resources["shared-memory"]
        forms = layouts(checkpoint.config["width"])

        def materialization(name: str, unit: str, role: Any, place: str) -> Materialization:
            return Materialization(
                id=name,
                logical_state_id=unit,
                memory_resource_id=place,
                representation=REPRESENTATIONS[name],
                role=role,
                persistence="transient" if role == "staging" else "persistent",
                requirement="required",
                expected_bytes=forms[name].bytes,
            )

        units = [
            LogicalStateUnit(
                id=WEIGHTS_UNIT,
                semantic_class="immutable_source",
                backing_source_id=request.backing_source_id,
                selection=Selection(patterns=list(WEIGHTS), count=2, keys_digest=keys_digest(list(WEIGHTS))),
            ),
            LogicalStateUnit(id=STATE_UNIT, semantic_class="mutable_authoritative"),
            LogicalStateUnit(
                id=BASELINE_UNIT, semantic_class="derived_reconstructible", reconstruction_inputs=[STATE_UNIT]
            ),
        ]
        materializations = [
            materialization("mat.weights.stage", WEIGHTS_UNIT, "staging", ram),
            materialization("mat.weights.resident", WEIGHTS_UNIT, "required_residency", stays),
            materialization("mat.bag", STATE_UNIT, "mutable_authority", stays),
            materialization("mat.replay-baseline", BASELINE_UNIT, "required_test_state", stays),
        ]
        execution = Execution(
            id=EXECUTION,
            compute_unit_id=request.compute_unit_id,
            strategy_unit="byte-by-byte",
            required_state=[
                RequiredState(logical_state_id=unit, memory_resources=[stays], representations=[REPRESENTATIONS[name]])
                for unit, name in ((WEIGHTS_UNIT, "mat.weights.resident"), (STATE_UNIT, "mat.bag"))
            ],
        )
        return Draft(
            logical_state_units=[part.model_dump(exclude_none=True) for part in units],
            materializations=[part.model_dump(exclude_none=True) for part in materializations],
            authorities=[
                Authority(lineage="bag-1", logical_state_id=STATE_UNIT, materialization_id="mat.bag").model_dump()
            ],
            execution=[execution.model_dump()],
            forbidden_persistent_materializations=[
                ForbiddenMaterialization(logical_state_id=WEIGHTS_UNIT, memory_resource_id=ram).model_dump()
            ],
            options={},
            plan_version="1",
        )

    @classmethod
    def tokens(cls, checkpoint: Checkpoint, prompt: str) -> list[int]:
        return list(prompt.encode())

    @classmethod
    def reference(
        cls, plan: Plan, checkpoint: Checkpoint, prompt: str | None, tokens: Sequence[int]
    ) -> ReferenceFixture:
        device = "cuda" if plan.compute_units[plan.document.execution[0].compute_unit_id].device_uuid else "cpu"
        loaded = load_file(checkpoint.directory / "model.safetensors", device=device)
        # Exact means the same kernels, and libraries choose theirs by alignment: out of the file's mapping, then.
        weights = {name: tensor.clone() for name, tensor in loaded.items()}
        state = {name: tensor.to(device) for name, tensor in fresh_state(checkpoint.config["width"]).items()}
        unplanned = Bag(weights, state)
        seen, logits = unplanned.read(tokens)
        fed, inputs, outputs = [int(logits[-1].argmax())], [], []
        for _ in range(STEPS):
            step_input, step_output = unplanned.read(fed[-1:])
            inputs.append(step_input)
            outputs.append(step_output)
            fed.append(int(step_output[-1].argmax()))
        tensors = {
            "prompt.tokens": torch.tensor(tokens),
            "prefill.input": seen,
            "prefill.output": logits,
            "decode.tokens": torch.tensor(fed[:-1]),
            "decode.input": torch.cat(inputs),
            "decode.output": torch.cat(outputs),
        }
        made_with = {
            "made_by": "load_file and Bag",
            "device": device,
            "torch": torch.__version__,
            **expected_tokens(logits.argmax(-1).tolist(), fed[1:]),
        }
        return ReferenceFixture({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, made_with)

    # --- a run: before anything is allocated ----------------------------------------------------------------------

    def __init__(self, plan: PlanHandle, checkpoint: Checkpoint) -> None:
        self._planned = list(plan.plan.materializations)
        self._layouts = layouts(checkpoint.config["width"])
        self._memory: dict[str, MemoryRange] = {}
        self._tensors: dict[str, dict[str, torch.Tensor]] = {}
        self._bag: Bag | None = None

    def violations(self) -> list[tuple[str, str]]:
        found = [(name, "is not of a bag of bytes") for name in self._planned if name not in self._layouts]
        found += [(name, "is missing") for name in self._layouts if name not in self._planned]
        if not found and self._planned.index("mat.weights.stage") > self._planned.index("mat.weights.resident"):
            found.append(("mat.weights.stage", "has to come before mat.weights.resident, which is filled from it"))
        return found

    def layout(self, materialization_id: str) -> Layout:
        if materialization_id not in self._layouts:
            raise TallyError(f"a bag of bytes has no materialization {materialization_id!r}")
        return self._layouts[materialization_id]

    # --- a run: carrying out --------------------------------------------------------------------------------------

    def realize(self, materialization_id: str, memory: MemoryRange, loader: Loader) -> Claim:
        layout = self.layout(materialization_id)
        tensors = tensors_of(layout, memory)
        if materialization_id == "mat.weights.stage":
            loader.read(layout, memory)
        elif materialization_id == "mat.weights.resident":
            loader.copy(layout, self._memory["mat.weights.stage"], memory)
        else:
            for tensor in tensors.values():
                tensor.zero_()
        self._memory[materialization_id] = memory
        self._tensors[materialization_id] = tensors
        return Claim(layout.representation, layout.bytes, len(layout.places))

    def release(self, materialization_id: str) -> None:
        del self._memory[materialization_id], self._tensors[materialization_id]

    def activate(self, execution_id: str) -> torch.device:
        self._bag = Bag(self._tensors["mat.weights.resident"], self._tensors["mat.bag"])
        return self._bag.embedding.device

    def prefill(self, fixture: ReferenceFixture) -> StepOutput:
        self.model.reset()
        return self._read(fixture.tensors["prompt.tokens"])

    def save_baseline(self) -> None:
        for name, saved in self._tensors["mat.replay-baseline"].items():
            saved.copy_(self._tensors["mat.bag"][name])

    def restore_baseline(self) -> None:
        for name, saved in self._tensors["mat.replay-baseline"].items():
            self._tensors["mat.bag"][name].copy_(saved)

    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        return self._read(fixture.tensors["decode.tokens"])

    def _read(self, tokens: torch.Tensor) -> StepOutput:
        seen, logits = self.model.read(tokens.tolist())
        return StepOutput(seen, logits, tuple(logits.argmax(-1).tolist()))

    @property
    def model(self) -> Bag:
        if self._bag is None:
            raise TallyError("the bag of bytes is not activated yet")
        return self._bag

    # --- wished for by `realize --prompt` -------------------------------------------------------------------------

    def answer(self, prompt: str, most_tokens: int) -> str:
        """The bytes that the live model says after the prompt, greedily."""
        self.model.reset()
        _, logits = self.model.read(prompt.encode())
        said: list[int] = []
        while len(said) < most_tokens:
            said.append(int(logits[-1].argmax()))
            _, logits = self.model.read(said[-1:])
        return bytes(said).decode("latin-1")


def layouts(width: int) -> dict[str, Layout]:
    """How each materialization lies in its range, by its id."""
    weights = [(key, "F32", (VOCABULARY, width), (key,)) for key in WEIGHTS]
    state: list[tuple[str, str, tuple[int, ...], tuple[str, ...]]] = [
        ("sum", "F32", (width,), ()),
        ("count", "I64", (1,), ()),
    ]
    return {name: pack(form, weights if "weights" in name else state) for name, form in REPRESENTATIONS.items()}
