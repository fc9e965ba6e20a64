"""Family `plan`."""

from __future__ import annotations

from ledger.bodies import FreezingReference, PlanRejectedEvent, RunClosed, Violation
from tests.ledger.judge_cases.case import Case
from tests.ledger.judge_cases.steps import MISSING_WHEN_UNFINISHED, PLAN, opening

PLANS = [
    Case(
        "the plan was never sealed",
        "FAIL",
        {"plan.digest-mismatch"},
        run=opening(plan__claimed_digest=None),
    ),
    Case(
        "the plan claims a digest that is not its own",
        "FAIL",
        {"plan.digest-mismatch"},
        run=opening(plan__claimed_digest="sha256:" + "00" * 32),
    ),
    Case(
        "the run cites no freezing",
        "PASS",
        {"plan.freezing-not-recorded"},
        frozen=False,
    ),
    Case(
        "judged by another plan than the run was opened under",
        "FAIL",
        {"plan.changed"},
        recorded_under=lambda document: document.update(plan_version="another"),
    ),
    Case(
        "run.opened names no plan at all",
        "FAIL",
        {"plan.changed", "plan.frozen-late"},
        run=opening(plan=None),
    ),
    Case(
        "the machine refused the plan",
        "FAIL",
        {"plan.rejected", "decode.reference-missing", *MISSING_WHEN_UNFINISHED},
        run=lambda run: [
            *run[:2],
            PlanRejectedEvent(violations=[Violation(code="environment.unit-mismatch", subject="cpu0", message="none")]),
            RunClosed(outcome="rejected"),
        ],
        unknown={"decode.reference-missing", "materialization.missing", "authority.missing", "decode.missing"},
    ),
    Case(
        "the run cites a freezing of another plan",
        "FAIL",
        {"plan.frozen-late"},
        run=opening(frozen=FreezingReference(hash="ab" * 32, position=0, digest="sha256:" + "11" * 32, ledger_size=1)),
    ),
    Case(
        "the run cites a freezing that came after it",
        "FAIL",
        {"plan.frozen-late"},
        run=opening(frozen=FreezingReference(hash="ab" * 32, position=7, digest=PLAN.computed_digest, ledger_size=7)),
    ),
    Case(
        "the run cites a freezing without saying how long the ledger was",
        "INDETERMINATE",
        {"plan.frozen-late"},
        run=opening(frozen=FreezingReference(hash="ab" * 32, position=0, digest=PLAN.computed_digest)),
        unknown={"plan.frozen-late"},
    ),
]
