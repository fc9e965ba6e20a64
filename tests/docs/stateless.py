"""What docs/adapters.md says of a model without tokens and without state, as an adapter: an MLP of two layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ledger import Plan
from ledger.plan import Execution, LogicalStateUnit, Materialization, RequiredState, Selection, keys_digest
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

SHAPES = {"first.weight": (32, 16), "second.weight": (1, 32)}
LAYOUT = pack("mlp", [(key, "F32", shape, (key,)) for key, shape in SHAPES.items()])
WEIGHTS, STAYS = "state.weights", "mat.weights"


def write_checkpoint(folder: Path) -> None:
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    tensors = {key: torch.randn(shape, generator=generator) for key, shape in SHAPES.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "mlp"}))


def run(weights: dict[str, torch.Tensor], samples: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [n, 16] of the samples of those numbers, and what the regressor says to each [n, 1]."""
    rows = [torch.randn(16, generator=torch.Generator().manual_seed(number)) for number in samples]
    inputs = torch.stack(rows)
    return inputs, torch.relu(inputs @ weights["first.weight"].T) @ weights["second.weight"].T


class Mlp(Adapter):
    name = "mlp"
    version = "1"

    @classmethod
    def unsupported(cls, checkpoint: Checkpoint) -> str | None:
        return None if checkpoint.config.get("model_type") == "mlp" else "its model_type is not 'mlp'"

    @classmethod
    def draft(cls, checkpoint: Checkpoint, request: DraftRequest) -> Draft:
        place = request.resources["shared-memory"]
        keys = list(SHAPES)
        unit = LogicalStateUnit(
            id=WEIGHTS,
            semantic_class="immutable_source",
            backing_source_id=request.backing_source_id,
            selection=Selection(patterns=keys, count=len(keys), keys_digest=keys_digest(keys)),
        )
        stays = Materialization(
            id=STAYS,
            logical_state_id=WEIGHTS,
            memory_resource_id=place,
            representation=LAYOUT.representation,
            role="required_residency",
            persistence="persistent",
            requirement="required",
            expected_bytes=LAYOUT.bytes,
        )
        needs = RequiredState(
            logical_state_id=WEIGHTS, memory_resources=[place], representations=[LAYOUT.representation]
        )
        execution = Execution(
            id="exec.mlp", compute_unit_id=request.compute_unit_id, strategy_unit="whole", required_state=[needs]
        )
        return Draft(
            logical_state_units=[unit.model_dump(exclude_none=True)],
            materializations=[stays.model_dump(exclude_none=True)],
            authorities=[],
            execution=[execution.model_dump()],
            forbidden_persistent_materializations=[],
            options={},
            plan_version="1",
        )

    @classmethod
    def reference(
        cls, plan: Plan, checkpoint: Checkpoint, prompt: str | None, tokens: Sequence[int]
    ) -> ReferenceFixture:
        samples = list(tokens) or [0, 1, 2]
        loaded = load_file(checkpoint.directory / "model.safetensors")
        inputs, outputs = run({key: tensor.clone() for key, tensor in loaded.items()}, samples)
        given = torch.tensor(samples)
        tensors = {
            "prompt.tokens": given,
            "prefill.input": inputs,
            "prefill.output": outputs,
            "decode.tokens": given.clone(),
            "decode.input": inputs.clone(),
            "decode.output": outputs.clone(),
        }
        return ReferenceFixture(tensors, {"made_by": "load_file", **expected_tokens(samples, samples)})

    def __init__(self, plan: PlanHandle, checkpoint: Checkpoint) -> None:
        self._planned = list(plan.plan.materializations)
        self._weights: dict[str, torch.Tensor] = {}

    def violations(self) -> list[tuple[str, str]]:
        return [(name, "is not of an MLP") for name in self._planned if name != STAYS]

    def layout(self, materialization_id: str) -> Layout:
        return LAYOUT

    def realize(self, materialization_id: str, memory: MemoryRange, loader: Loader) -> Claim:
        loader.read(LAYOUT, memory)
        self._weights = tensors_of(LAYOUT, memory)
        return Claim(LAYOUT.representation, LAYOUT.bytes, len(LAYOUT.places))

    def release(self, materialization_id: str) -> None:
        raise AssertionError("nothing is staged")

    def activate(self, execution_id: str) -> torch.device:
        return self._weights["first.weight"].device

    def prefill(self, fixture: ReferenceFixture) -> StepOutput:
        return self._read(fixture.tensors["prompt.tokens"])

    def save_baseline(self) -> None:
        pass

    def restore_baseline(self) -> None:
        pass

    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        return self._read(fixture.tensors["decode.tokens"])

    def _read(self, samples: torch.Tensor) -> StepOutput:
        numbers = tuple(samples.tolist())
        return StepOutput(*run(self._weights, numbers), numbers)

    @property
    def model(self) -> dict[str, torch.Tensor]:
        return self._weights
