"""What an evidence file says it shows follows from its events: here, whose word the digests are."""

from __future__ import annotations

from ledger.bodies import MaterializationObserved
from ledger.evidence_scope import scope
from ledger.measurement import measured
from tests.builders.judged import PLAN
from tests.builders.runs import changed, clean_bodies, run_events

WORD = "2 of 9 tensors are computed: their digests are the adapter's word"


def limits(detail: str | None) -> list[str]:
    """What a run does not prove whose weights were verified, with that remark on the source's digest."""
    digest = measured("sha256:" + "aa" * 32, None, "sha256")
    digests = {"source_digest": digest.model_copy(update={"detail": detail}), "resident_digest": digest}
    bodies = changed(clean_bodies(PLAN), MaterializationObserved, digests, materialization_id="mat.weights.resident")
    found = scope(PLAN, run_events(bodies, PLAN), [], [])
    assert any("both digested: mat.weights.resident" in said for said in found.proves)
    return found.does_not_prove


def test_digests_of_computed_tensors_are_the_adapters_word() -> None:
    said = f"That computed tensors of mat.weights.resident follow from the source: {WORD}."
    assert said in limits(WORD)
    assert not any("computed" in limit for limit in limits(None))
