"""Family `authority`."""

from __future__ import annotations

from ledger.bodies import AddressRange, AuthorityEstablished, DecodeRan, ExecutionActivated, MaterializationStarted
from tests.builders.runs import changed, inserted, moved
from tests.ledger.judge_cases.case import BASELINE, STAGE, UNKNOWN, Case, declared, probe
from tests.ledger.judge_cases.steps import authority, removed

AUTHORITIES = [
    Case("no authority was established", "FAIL", {"authority.missing"}, run=removed(AuthorityEstablished)),
    Case(
        "two authorities for one state",
        "FAIL",
        {"authority.duplicate"},
        run=lambda run: inserted(
            run, [body for body in run if isinstance(body, AuthorityEstablished)], before=ExecutionActivated
        ),
    ),
    Case(
        "an authority for state that has none",
        "FAIL",
        {"authority.duplicate"},
        run=lambda run: inserted(
            run,
            [
                body.model_copy(update={"logical_state_id": "state.weights"})
                for body in run
                if isinstance(body, AuthorityEstablished)
            ],
            before=ExecutionActivated,
        ),
    ),
    Case(
        "the copy of the cache is made authority",
        "FAIL",
        {"authority.materialization-mismatch", "authority.not-observed"},
        run=authority(materialization_id=BASELINE),
    ),
    Case(
        "the owner lies on another Memory Resource",
        "FAIL",
        {"authority.materialization-mismatch"},
        run=authority(memory_resource_id=probe("node-a.ram")),
    ),
    Case("another lineage", "FAIL", {"authority.lineage-mismatch"}, run=authority(lineage=probe("epoch-2"))),
    Case(
        "the lineage repeats the plan's",
        "INDETERMINATE",
        {"authority.not-observed"},
        run=authority(lineage=declared("kv-cache-epoch-1")),
    ),
    Case("the lineage could not be read", "INDETERMINATE", {"authority.not-observed"}, run=authority(lineage=UNKNOWN)),
    Case("the owner has no range", "INDETERMINATE", {"authority.not-observed"}, run=authority(owner_range=None)),
    Case(
        "the owner's range is nowhere that the owner was seen",
        "INDETERMINATE",
        {"authority.not-observed"},
        run=authority(owner_range=AddressRange(space="host", start=4096, length=4096)),
    ),
    Case(
        "authority before its owner was realised",
        "FAIL",
        {"authority.before-realization"},
        run=lambda run: moved(run, AuthorityEstablished, before=MaterializationStarted),
    ),
    Case(
        "authority over released state",
        "FAIL",
        {"authority.owner-not-live", "authority.materialization-mismatch", "authority.not-observed"},
        run=authority(materialization_id=STAGE),
    ),
    Case(
        "the owner's range is too small to hold it",
        "INDETERMINATE",
        {"authority.not-observed"},
        run=lambda run: changed(run, AuthorityEstablished, {"owner_range.length": 1}),
    ),
    Case(
        "established when a decode had changed the state",
        "FAIL",
        {"authority.missing"},
        run=lambda run: moved(run, AuthorityEstablished, before=DecodeRan, where={"repetition": 0}),
    ),
]
