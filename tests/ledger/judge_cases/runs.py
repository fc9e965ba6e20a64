"""Family `run`."""

from __future__ import annotations

from ledger.bodies import AuthorityEstablished, MaterializationRealized, PlanAccepted, RunClosed, RunSuperseded
from tests.builders.runs import moved, sample
from tests.ledger.judge_cases.case import WEIGHTS, Case
from tests.ledger.judge_cases.steps import (
    MISSING_WHEN_UNFINISHED,
    PLAN,
    appended,
    first_bodies,
    removed,
)

RUNS = [
    Case(
        "killed while loading",
        "INDETERMINATE",
        {"run.incomplete", "staging.not-released", "materialization.forbidden", *MISSING_WHEN_UNFINISHED},
        run=first_bodies(9),
        unknown={
            "staging.not-released",
            "materialization.forbidden",
            "materialization.missing",
            "authority.missing",
            "execution.not-activated",
            "decode.missing",
        },
    ),
    Case("killed just before it was closed", "INDETERMINATE", {"run.incomplete"}, run=removed(RunClosed)),
    Case(
        "interrupted by the operator",
        "INDETERMINATE",
        {"run.incomplete"},
        run=lambda run: [*run[:-1], RunClosed(outcome="aborted", error_type="KeyboardInterrupt")],
    ),
    Case(
        "failed at the very end",
        "FAIL",
        {"run.failed"},
        run=lambda run: [*run[:-1], RunClosed(outcome="failed", error_type="CheckpointError", message="truncated")],
    ),
    Case("nobody accepted the plan", "INDETERMINATE", {"run.incomplete"}, run=removed(PlanAccepted)),
    Case(
        "the plan was accepted after the first step",
        "INDETERMINATE",
        {"run.incomplete"},
        run=lambda run: moved(run, PlanAccepted, before=AuthorityEstablished),
    ),
    Case(
        "the adapter's claim was taken out",
        "INDETERMINATE",
        {"run.incomplete"},
        run=removed(MaterializationRealized, materialization_id=WEIGHTS),
    ),
    Case(
        "the clock went back",
        "FAIL",
        {"run.time-regressed"},
        elapsed=lambda index: index if index != 20 else 3,
    ),
    Case("the clock stood still", "FAIL", {"run.time-regressed"}, elapsed=lambda index: 7),
    Case(
        "every second event has no elapsed time",
        "INDETERMINATE",
        {"run.time-regressed"},
        elapsed=lambda index: None if index % 2 else index,
        unknown={"run.time-regressed"},
    ),
    Case(
        "one event was recorded on another node",
        "INDETERMINATE",
        {"run.incomplete"},
        envelope=lambda index: {"node_id": "node-b"} if index == 20 else {},
    ),
    Case(
        "a fact added after the close",
        "FAIL",
        {"run.event-after-close"},
        run=appended(sample(PLAN, "closing", [])),
    ),
    Case(
        "closed a second time",
        "FAIL",
        {"run.event-after-close"},
        run=appended(RunClosed(outcome="completed")),
    ),
    Case(
        "superseded by another run",
        "PASS",
        {"run.superseded"},
        run=appended(RunSuperseded(reason="wrong label", by="01920000-0000-7000-8000-000000000009")),
    ),
    Case("opened twice", "INDETERMINATE", {"run.incomplete"}, run=lambda run: [run[0], *run]),
]
