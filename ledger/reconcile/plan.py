"""Family `plan`: the run was carried out under the frozen plan that it is judged by."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.documents import Finding
from ledger.plan import Plan
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.run_state import RunState

PLAN: list[Invariant] = []


@declare(PLAN, "plan.digest-mismatch")
def claimed_digest_is_the_computed_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The digest that the plan carries is the digest of its content.

    A plan whose content was edited after sealing, or that was never sealed, binds nobody.
    """
    claims: dict[tuple[str | None, str], list[int]] = {(plan.claimed_digest, plan.computed_digest): []}
    for opening in state.openings:
        reference = opening.body.plan
        if reference is not None:
            claims.setdefault((reference.claimed_digest, reference.computed_digest), []).append(opening.sequence)
    for (claimed, computed), events in claims.items():
        if claimed != computed:
            yield finding("plan.digest-mismatch", "plan", expected=computed, observed=claimed, events=events)


@declare(PLAN, "plan.changed")
def judged_plan_is_the_recorded_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The plan laid beside the run is the plan under which the run was opened.

    Otherwise a run could be judged by a plan that was made to fit it.
    """
    for opening in state.openings:
        recorded = opening.body.plan.computed_digest if opening.body.plan is not None else None
        if recorded != plan.computed_digest:
            yield finding(
                "plan.changed", "plan", expected=recorded, observed=plan.computed_digest, events=[opening.sequence]
            )


@declare(PLAN, "plan.rejected")
def plan_was_not_rejected(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The plan was not refused by machine, checkpoint or adapter.

    A refused plan was not carried out, whatever else is recorded.
    """
    if state.rejected is None and state.outcome != "rejected":
        return
    violations = state.rejected.body.violations if state.rejected else []
    yield finding(
        "plan.rejected",
        "plan",
        expected="accepted",
        observed=[f"{item.code} {item.subject}: {item.message}" for item in violations] or "rejected",
        events=[seen.sequence for seen in (state.rejected, state.closed) if seen is not None],
    )


@declare(PLAN, "plan.frozen-late")
def cited_freezing_is_earlier(plan: Plan, state: RunState) -> Iterator[Finding]:
    """A freezing that the run cites came before the run, and is of this plan.

    A plan sealed afterwards can be written from the result. Judged from run.opened alone: the cited position lies below
    the size that the ledger had, and the cited digest is the plan's.
    """
    for opening in state.openings:
        cited = opening.body.frozen
        if cited is None:
            continue
        digest = opening.body.plan.computed_digest if opening.body.plan is not None else None
        late = cited.position < 0 or (cited.ledger_size is not None and cited.position >= cited.ledger_size)
        if cited.digest != digest or late:
            yield finding(
                "plan.frozen-late",
                "plan",
                expected={"digest": digest, "before": cited.ledger_size},
                observed={"digest": cited.digest, "position": cited.position},
                events=[opening.sequence],
            )
        elif cited.ledger_size is None:
            yield finding(
                "plan.frozen-late",
                "plan",
                expected="a position below the size that the ledger had",
                observed={"position": cited.position, "ledger_size": "not recorded"},
                events=[opening.sequence],
                unknown=True,
            )


@declare(PLAN, "plan.freezing-not-recorded")
def freezing_is_recorded(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The run cites the event by which its plan was frozen in this ledger.

    Where it cites none, that the plan came first rests on the plan's own digest in the run's first event.
    """
    for opening in state.openings[:1]:
        if opening.body.frozen is None:
            yield finding("plan.freezing-not-recorded", "plan", events=[opening.sequence])
