"""Adapters that break a promise, one each: every one is found by its own code, and by no other than those named."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from adapters.causal_lm import CausalLM
from ledger.plan import MIB
from realizer.adapter import Claim, ReferenceFixture, StepOutput
from tests.builders.realizations import Prepared, carry_out, prepare

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
"""Where the bank lies: the same promises are broken on a GPU, where there is one."""

COPY = 96 * MIB
"""Bytes of a planted copy: above the noise that a plan allows (64 MiB)."""

UNCITED = "plan.freezing-not-recorded"
"""The note that every run here has: it cites no freezing."""

KEPT: list[Any] = []
"""Where the faulty adapters keep what they should have let go of."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("planted"), device=DEVICE)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    KEPT.clear()
    yield
    for thing in KEPT:
        if isinstance(thing, subprocess.Popen):
            thing.kill()
            thing.wait()
        elif isinstance(thing, Path):
            thing.unlink()
    KEPT.clear()


class AfterLoading(CausalLM):
    """Does `plant` once the weights are resident."""

    def plant(self, memory: Any) -> None:
        raise NotImplementedError

    def realize(self, materialization_id: str, memory: Any, loader: Any) -> Claim:
        claim = super().realize(materialization_id, memory, loader)
        if materialization_id == "mat.weights.resident":
            self.plant(memory)
        return claim


class KeepsATensorCopy(AfterLoading):
    def plant(self, memory: Any) -> None:
        KEPT.append(torch.ones(COPY, dtype=torch.uint8))


class LeaksAPinnedBuffer(AfterLoading):
    def plant(self, memory: Any) -> None:
        KEPT.append(torch.ones(COPY, dtype=torch.uint8, pin_memory=True))


class KeepsBytes(AfterLoading):
    """A copy that no tensor holds: only the kernel's figures show it."""

    def plant(self, memory: Any) -> None:
        KEPT.append(bytearray(b"\x01" * COPY))


class KeepsTheFileMapped(AfterLoading):
    def plant(self, memory: Any) -> None:
        path = self._checkpoint.files[0].path
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert sum(mapping[:: mmap.PAGESIZE]) >= 0  # touch every page, so that it is resident
        KEPT.append(mapping)


class KeepsAnUnlinkedScratchMap(AfterLoading):
    def plant(self, memory: Any) -> None:
        with tempfile.TemporaryFile(dir=self._checkpoint.directory) as scratch:
            scratch.truncate(COPY)
            mapping = mmap.mmap(scratch.fileno(), COPY)
        mapping[:] = b"\x01" * COPY
        KEPT.append(mapping)


class KeepsAChildWithACopy(AfterLoading):
    def plant(self, memory: Any) -> None:
        program = f"copy = bytearray(b'x' * {COPY}); print('ready', flush=True); input()"
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        KEPT.append(child)


class KeepsATmpfsFile(AfterLoading):
    def plant(self, memory: Any) -> None:
        path = Path(f"/dev/shm/tally-planted-{os.getpid()}")
        path.write_bytes(b"\x01" * COPY)
        KEPT.append(path)


class KeepsAViewOfStaging(CausalLM):
    def realize(self, materialization_id: str, memory: Any, loader: Any) -> Claim:
        claim = super().realize(materialization_id, memory, loader)
        if materialization_id == "mat.weights.stage":
            assert self._staged is not None
            KEPT.append(self._staged[2][0])
        return claim


class OpensTheCheckpointWhileDecoding(CausalLM):
    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        with self._checkpoint.files[0].path.open("rb") as file:
            assert file.read(8)
        return super().decode(fixture, mode)


class LooksIntoThePlanWhileDecoding(CausalLM):
    def __init__(self, plan: Any, checkpoint: Any) -> None:
        super().__init__(plan, checkpoint)
        self.handle = plan

    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        assert self.handle.plan.materializations
        return super().decode(fixture, mode)


class FlipsABitOfABank(AfterLoading):
    def plant(self, memory: Any) -> None:
        layout = self.layout("mat.weights.resident")
        place = next(place for place in layout.places if "q_proj" in place.name)
        memory.tensor(torch.uint8, (place.bytes,), place.offset)[1::2] ^= 1


class GivesNotANumber(CausalLM):
    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        output = super().decode(fixture, mode)
        output.output[0, 0] = float("nan")
        return output


class DriftsFromRepetitionToRepetition(CausalLM):
    drift = 0

    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        output = super().decode(fixture, mode)
        output.output[0, 0] += self.drift
        type(self).drift = self.drift + 1
        return output


class ClaimsOtherBytes(CausalLM):
    def realize(self, materialization_id: str, memory: Any, loader: Any) -> Claim:
        claim = super().realize(materialization_id, memory, loader)
        return Claim(claim.representation, claim.bytes + 1, claim.tensors)


class LoadsTheUsualWay(CausalLM):
    """`from_pretrained`, whose tensors are views of the mapped file; the planned bank stays empty, whatever is claimed."""

    def realize(self, materialization_id: str, memory: Any, loader: Any) -> Claim:
        if materialization_id not in ("mat.weights.resident", "mat.buffers.resident"):
            return super().realize(materialization_id, memory, loader)
        if materialization_id == "mat.weights.resident":
            self._model = AutoModelForCausalLM.from_pretrained(
                self._checkpoint.directory, dtype=torch.bfloat16, local_files_only=True
            )
        layout = self.layout(materialization_id)
        return Claim(layout.representation, layout.bytes, len(layout.places))


@pytest.mark.parametrize(
    ("adapter", "codes"),
    [
        # A copy that a tensor holds is a mirror; its pages are growth that no planned owner explains as well.
        (KeepsATensorCopy, {"memory.host-mirror", "memory.expectation-mismatch", "memory.mirror-unknown"}),
        # torch's pool of pinned memory has grown as well, and keeps its pages.
        pytest.param(
            LeaksAPinnedBuffer,
            {
                "memory.host-mirror",
                "memory.expectation-mismatch",
                "memory.mirror-unknown",
                "memory.device-residue-unknown",
            },
            marks=pytest.mark.skipif(DEVICE == "cpu", reason="this machine has no CUDA device to pin memory for"),
        ),
        (KeepsBytes, {"memory.mirror-unknown"}),
        # The mapping is a mirror as far as it is resident, and a way to read the checkpoint after the release.
        (KeepsTheFileMapped, {"memory.host-mirror", "memory.expectation-mismatch", "decode.source-accessed"}),
        (KeepsAnUnlinkedScratchMap, {"memory.mirror-unknown"}),
        (KeepsAChildWithACopy, {"memory.mirror-unknown"}),
        (KeepsATmpfsFile, {"memory.mirror-unknown"}),
        # One live view keeps the whole region from being unmapped.
        (
            KeepsAViewOfStaging,
            {
                "staging.owner-alive",
                "staging.bytes-after-nonzero",
                "staging.released-bytes-mismatch",
                "memory.not-reclaimed",
            },
        ),
        (OpensTheCheckpointWhileDecoding, {"decode.source-accessed"}),
        (LooksIntoThePlanWhileDecoding, {"decode.plan-consulted"}),
        (FlipsABitOfABank, {"decode.deviation"}),
        (GivesNotANumber, {"decode.non-finite", "decode.deviation"}),
        (DriftsFromRepetitionToRepetition, {"decode.deviation", "decode.not-repeatable"}),
        (ClaimsOtherBytes, {"materialization.claim-contradicted", "materialization.bytes-mismatch"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_promise_is_found_by_its_code(prepared: Prepared, adapter: type[CausalLM], codes: set[str]) -> None:
    carried = carry_out(prepared, adapter=adapter)
    assert carried.error is None
    assert carried.judgement.verdict != "PASS"
    assert carried.codes - {UNCITED} == codes, carried.judgement.findings


@pytest.mark.skipif(DEVICE != "cpu", reason="on a device the usual way copies what it mapped")
def test_loading_the_usual_way_fails_for_the_file_it_keeps_mapped(prepared: Prepared) -> None:
    carried = carry_out(prepared, adapter=LoadsTheUsualWay)
    assert carried.error is None
    assert carried.judgement.verdict == "FAIL"
    (mirror,) = [
        found
        for found in carried.judgement.findings
        if (found.code, found.subject) == ("memory.host-mirror", "closing")
    ]
    assert any(name.endswith("model.safetensors") for name in mirror.observed["files"])
    # What is resident is not where the plan wants it, whatever was claimed; so nothing qualified to let staging go.
    assert {
        "materialization.bytes-mismatch",
        "materialization.claim-contradicted",
        "staging.not-released",
    } <= carried.codes
