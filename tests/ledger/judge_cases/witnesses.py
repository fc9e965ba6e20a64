"""Runs watched from outside, judged by a plan."""

from __future__ import annotations

from ledger.bodies import EnvironmentObserved, MemorySampled, RunClosed, RunOpened, SourceWatched
from tests.builders.runs import changed
from tests.ledger.judge_cases.case import MIB, Bodies, Case, probe
from tests.ledger.judge_cases.steps import accessed, added, at_the_end, chain, watch


def from_outside(run: Bodies) -> Bodies:
    """A witness that only sees the machine, the process tree and accesses, with a run of its own under the same plan."""
    kept = [
        body.model_copy(update={"census": None}) if isinstance(body, MemorySampled) else body
        for body in run
        if isinstance(body, RunOpened | EnvironmentObserved | SourceWatched | RunClosed)
        or (isinstance(body, MemorySampled) and body.label in ("baseline", "after-decode", "closing"))
    ]
    return changed(kept, RunOpened, {"purpose": "witness", "model": None, "adapter": None})


SEEN_FROM_OUTSIDE = {
    "authority.missing",
    "decode.missing",
    "decode.reference-missing",
    "environment.model-mismatch",
    "execution.not-activated",
    "materialization.missing",
    "memory.mirror-unknown",
    "run.incomplete",
}

WITNESSES = [
    Case(
        "watched from outside: what only owners could tell is not known, and nothing is amiss",
        "INDETERMINATE",
        SEEN_FROM_OUTSIDE,
        run=from_outside,
        unknown=SEEN_FROM_OUTSIDE,
    ),
    Case(
        "watched from outside: the checkpoint stays mapped",
        "FAIL",
        {"memory.host-mirror", *SEEN_FROM_OUTSIDE},
        run=chain(
            at_the_end({"process/checkpoint_mappings": probe(256 * MIB), "mapped_files": ["model.safetensors"]}),
            from_outside,
        ),
        unknown=SEEN_FROM_OUTSIDE,
    ),
    Case(
        "the witness saw the tree open the checkpoint, and did not count it",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=added(accessed("tree"), RunClosed),
    ),
    Case(
        "the witness saw the checkpoint still mapped",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=watch(mapped_files=probe(1)),
    ),
    Case(
        "the witness saw the checkpoint held open",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=watch(open_descriptors=probe(1)),
    ),
]
