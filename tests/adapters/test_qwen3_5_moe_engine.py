"""The tiny block carried out by the engine, both forms, to PASS and content-verified; broken promises found by their codes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from adapters.qwen3_5_moe import Qwen35Moe
from adapters.qwen3_5_moe.shape import TINY
from adapters.qwen3_5_moe.synth import write_checkpoint
from ledger.errors import PlanRejected
from ledger.plan import freeze, parse_plan
from realizer.adapter import Claim, ReferenceFixture, StepOutput
from realizer.checkpoint import open_checkpoint
from realizer.decode import save_fixture
from realizer.drafting import DraftOptions, draft_plan
from realizer.environment import observe_environment
from tests.builders.realizations import Prepared, carry_out

UNCITED = "plan.freezing-not-recorded"
"""The note that every run here has: it cites no freezing."""

DEVICE, SUFFIX = ("cuda:0", "vram") if torch.cuda.is_available() else ("cpu", "shm")
"""Where the block lies, and how its materializations are named for it: on a GPU where there is one."""

BANKS = f"mat.routed.{SUFFIX}"
ELSEWHERE = "memory.host-mirror" if DEVICE == "cpu" else "memory.unplanned-persistent"
"""What a copy of resident state is called: in host memory it is a mirror, in a device's it was not planned."""

KEPT: list[Any] = []
"""Where the faulty adapters keep what they should have let go of."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    """Both forms, planned over one checkpoint and bound to one reference."""
    folder = tmp_path_factory.mktemp("block")
    write_checkpoint(TINY, folder / "checkpoint")
    checkpoint = open_checkpoint(str(folder / "checkpoint"))
    environment = observe_environment()
    made = {}
    for form in ("full", "streamed"):
        options = DraftOptions(DEVICE, form)  # type: ignore[arg-type]
        draft = parse_plan(draft_plan(checkpoint, Qwen35Moe, environment, options))
        reference = folder / "reference.safetensors"
        digest = save_fixture(Qwen35Moe.reference(draft, checkpoint, None, []), reference)
        made[form] = Prepared(freeze(draft, reference_digest=digest), folder / "checkpoint", reference)
    return made


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    KEPT.clear()
    yield
    KEPT.clear()


@pytest.mark.parametrize("form", ["full", "streamed"])
def test_the_block_passes_content_verified(prepared: dict[str, Prepared], form: str) -> None:
    carried = carry_out(prepared[form], adapter=Qwen35Moe, verify_content=True)
    assert carried.error is None
    assert (carried.judgement.verdict, carried.judgement.assurance) == ("PASS", "content-verified")
    assert carried.codes == {UNCITED}
    bodies = [event.body for event in carried.events]
    decoded = [body for body in bodies if body.TYPE == "decode.ran"]
    graph = [("prefill", "eager"), *[("repetition", "cuda-graph")] * 4] if DEVICE != "cpu" else []
    assert [(body.phase, body.mode) for body in decoded] == [
        ("prefill", "eager"),
        *[("repetition", "eager")] * 4,
        *graph,
    ]
    assert all(body.output.exact.value == body.input.exact.value == 1 for body in decoded)
    released = [body for body in bodies if body.TYPE == "materialization.released"]
    assert [body.owners_alive.value for body in released] == [0] * len(released)
    if form == "full":
        assert [body.owners_total.value for body in released] == [6 * len(TINY.layers)]
    else:
        assert [body.materialization_id for body in released] == ["mat.routed.ram-stage", "mat.non-routed.ram-stage"]


def test_the_tensors_of_a_run_are_listed_with_both_digests(prepared: dict[str, Prepared]) -> None:
    carried = carry_out(prepared["streamed"], adapter=Qwen35Moe, verify_content=True)
    blobs = {
        event.body.materialization_id: json.loads(carried.blobs[event.body.tensors_blob])
        for event in carried.events
        if event.type == "materialization.observed" and event.body.tensors_blob
    }
    assert blobs.keys() == {f"mat.non-routed.{SUFFIX}", BANKS}
    routed = {row["name"]: row for row in blobs[BANKS]}
    assert len(routed) == len(TINY.layers) * (TINY.experts * 6 + 2)
    assert routed["layers.0.experts.down.global"]["why"] == "recomputed by the adapter from its sources"
    assert all(row["source_digest"] == row["resident_digest"] for row in routed.values())


def test_the_published_plan_is_rejected_here_before_anything_is_allocated(prepared: dict[str, Prepared]) -> None:
    plan = parse_plan(Qwen35Moe.published("r1-block-a"))
    carried = carry_out(prepared["full"], adapter=Qwen35Moe, plan=plan, reference=None)
    assert isinstance(carried.error, PlanRejected)
    assert any("GPU-1fc28f83-1d45-926e-54d0-ba1e835ef099" in reason for reason in carried.error.violations)
    assert "materialization.started" not in carried.types
    assert carried.state.outcome == "rejected"


class AfterTheBanks(Qwen35Moe):
    """Does `plant` once the routed banks are resident."""

    def plant(self, memory: Any) -> None:
        raise NotImplementedError

    def realize(self, materialization_id: str, memory: Any, loader: Any) -> Claim:
        claim = super().realize(materialization_id, memory, loader)
        if materialization_id == BANKS:
            self.plant(memory)
        return claim


class KeepsAHostCopyOfABank(AfterTheBanks):
    def plant(self, memory: Any) -> None:
        bank = self._tensors[BANKS]["layers.0.experts.down.packed"]
        KEPT.append(bank.to("cpu", copy=True))


class KeepsAViewOfStaging(Qwen35Moe):
    def realize(self, materialization_id: str, memory: Any, loader: Any) -> Claim:
        claim = super().realize(materialization_id, memory, loader)
        if materialization_id.endswith("ram-stage"):
            KEPT.append(next(iter(self._tensors[materialization_id].values()))[:1])
        return claim


class FlipsOneByteOfABank(AfterTheBanks):
    """In an expert's packed weights, where it may well change no output that is compared."""

    def plant(self, memory: Any) -> None:
        self._tensors[BANKS]["layers.1.experts.gate_up.packed"][5, 7, 3] ^= 0x10


class FlipsAGlobal(AfterTheBanks):
    def plant(self, memory: Any) -> None:
        self._tensors[BANKS]["layers.1.experts.down.global"].view(torch.uint8)[2, 9] ^= 1


class OpensTheCheckpointAfterTheRelease(Qwen35Moe):
    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        with self._checkpoint.files[1].path.open("rb") as file:
            assert file.read(8)
        return super().decode(fixture, mode)


class ReadsTheStateFromElsewhere(Qwen35Moe):
    """Decodes on a copy of the runtime state instead of the planned range."""

    def activate(self, execution_id: str) -> torch.device:
        device = super().activate(execution_id)
        for layer in self.model.layers:
            if hasattr(layer.mixer, "recurrent"):
                layer.mixer.recurrent = layer.mixer.recurrent.clone()
        return device


class PutsTheBanksOnTheOtherDevice(Qwen35Moe):
    """Claims the resident banks and leaves them in staging: what is planned in one memory lies in another."""

    def realize(self, materialization_id: str, memory: Any, loader: Any) -> Claim:
        if materialization_id != BANKS:
            return super().realize(materialization_id, memory, loader)
        made = self.layout(materialization_id)
        self._tensors[materialization_id] = self._tensors["mat.routed.ram-stage"]
        return Claim(made.representation, made.bytes, len(made.places))


@pytest.mark.parametrize(
    ("form", "adapter", "codes"),
    [
        ("streamed", KeepsAHostCopyOfABank, {"memory.host-mirror"}),
        ("full", KeepsAViewOfStaging, {"staging.owner-alive", "staging.bytes-after-nonzero"}),
        ("full", FlipsOneByteOfABank, {"materialization.content-mismatch"}),
        ("streamed", FlipsAGlobal, {"materialization.content-mismatch"}),
        ("full", OpensTheCheckpointAfterTheRelease, {"decode.source-accessed"}),
        ("full", ReadsTheStateFromElsewhere, {"decode.not-repeatable", ELSEWHERE}),
        ("full", PutsTheBanksOnTheOtherDevice, {"materialization.bytes-mismatch", "materialization.not-live"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_promise_is_found_by_its_code(
    prepared: dict[str, Prepared], form: str, adapter: type[Qwen35Moe], codes: set[str]
) -> None:
    carried = carry_out(prepared[form], adapter=adapter, verify_content=True)
    print(adapter.__name__, carried.codes, repr(carried.error))
    assert carried.judgement.verdict != "PASS"
    assert codes <= carried.codes - {UNCITED}
