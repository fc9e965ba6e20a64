"""The evidence that the documentation shows verifies, and says what the page beside it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.evidence import open_evidence, verify
from ledger.fold import fold
from ledger.reconcile import judge

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "evidence"
ROUTED, NON_ROUTED, STATE, REQUIRED = 8_636_596_224, 1_689_347_736, 32_718_848, 10_391_381_656


@pytest.mark.parametrize("form", ["full", "streamed"])
def test_the_block_at_full_size(form: str) -> None:
    data = (FOLDER / f"block-{form}-h200.evidence.json").read_bytes()
    found = verify(data)
    assert (found.status, found.verdict, found.assurance) == ("valid-unanchored", "PASS", "content-verified")
    evidence = open_evidence(data)
    state = fold(evidence.events)
    seen = {name: made.observed[-1].body.bytes.value for name, made in state.materializations.items() if made.observed}
    assert seen["mat.routed.vram"] == ROUTED
    assert seen["mat.non-routed.vram"] == NON_ROUTED
    assert seen["mat.runtime.vram"] == seen["mat.replay.vram"] == STATE
    assert judge(evidence.plan, state).accounting.persistent_required.value == REQUIRED
    decodes = [event.body for event in evidence.events if event.type == "decode.ran"]
    assert {body.mode for body in decodes if body.phase == "repetition"} == {"eager", "cuda-graph"}
    assert all(body.output.exact.value == 1 for body in decodes)
