"""Runs watched from outside, judged by a plan."""

from __future__ import annotations

from ledger.bodies import (
    EnvironmentObserved,
    MaterializationObserved,
    MemorySampled,
    RunClosed,
    RunOpened,
    SourceWatched,
)
from tests.builders.runs import changed, inserted, moved, with_values
from tests.ledger.judge_cases.case import MIB, STAGE, WEIGHTS, Bodies, Case, probe
from tests.ledger.judge_cases.steps import (
    PASS,
    accessed,
    added,
    at_the_end,
    chain,
    owner_holds,
    reclaimed,
    released,
    repeated,
    sampled,
    stranger,
    watch,
)


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


def followed(*mapped: int):
    """Between two asked samples after the release, looks at which so much of the checkpoint was mapped (bytes)."""
    return lambda run: inserted(
        run,
        [
            with_values(body, {"label": "following", "process/checkpoint_mappings": probe(size)})
            for body in run
            if isinstance(body, MemorySampled) and body.label == "after-decode"
            for size in mapped
        ],
        before=MemorySampled,
        label="after-decode",
    )


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
    Case(
        "the witness saw the checkpoint mapped after the release, at a label that the run lacks",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=followed(0, 256 * MIB, 0),
    ),
    Case(
        "the witness, which saw no release itself, saw the checkpoint mapped after it",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=lambda run: [
            body for body in followed(0, 256 * MIB, 0)(run) if isinstance(body, RunOpened | MemorySampled | RunClosed)
        ],
    ),
    Case(
        "the witness saw the checkpoint mapped while it was loaded",
        "PASS",
        PASS,
        witness=sampled(f"materialized:{WEIGHTS}", checkpoint_mappings=probe(MIB)),
    ),
    Case(
        "the witness saw pages swapped out",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=sampled("closing", vm_swap=probe(256 * MIB)),
    ),
    Case(
        "the witness saw the staging still mapped",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=reclaimed("after-release", region_mapped=probe(1)),
    ),
    Case(
        "the witness saw an owner of the staging alive",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=released(owners_alive=probe(1)),
    ),
    Case(
        "the witness counted many more bytes read",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=watch(read_bytes=probe(256 * MIB)),
    ),
    Case(
        "the witness saw one byte of a bank first, and all of it later",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=repeated(MaterializationObserved, {"bytes": probe(1)}, at=0, total=2, materialization_id=WEIGHTS),
    ),
    Case(
        "the witness once saw a bank gone",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=repeated(MaterializationObserved, {"live": probe(0)}, at=1, total=3, materialization_id=WEIGHTS),
    ),
    Case(
        "the witness saw staging gone at last",
        "PASS",
        PASS,
        witness=repeated(MaterializationObserved, {"live": probe(0)}, at=1, total=2, materialization_id=STAGE),
    ),
    Case(
        "the witness saw a materialization that nobody planned",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=added(stranger(), RunClosed),
    ),
    Case(
        "the witness saw staging live after its own last sample",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=lambda run: moved(run, MaterializationObserved, before=RunClosed, materialization_id=STAGE),
    ),
    Case(
        "the witness's census has staging at the end",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=owner_holds(STAGE, 4096, "closing"),
    ),
    Case(
        "the witness's census has an owner that nobody planned, while it was loaded",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=owner_holds("x", 4096, f"materialized:{WEIGHTS}"),
    ),
    Case(
        "the witness's census has ownerless storage at the end alone",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=lambda run: [
            with_values(body, {"census/unowned_host_bytes": probe(4096)}) if isinstance(body, MemorySampled) else body
            for body in run
            if isinstance(body, RunOpened | RunClosed) or (isinstance(body, MemorySampled) and body.label == "closing")
        ],
    ),
    Case(
        "the witness counted a few more bytes read",
        "PASS",
        PASS,
        witness=watch(read_bytes=probe(MIB)),
    ),
]
