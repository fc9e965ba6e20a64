"""Family `run`: the record of the run is whole, in order, and says how the run ended."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.documents import Finding
from ledger.plan import Plan
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.reading import each_found, samples_at
from ledger.run_state import RunState

RUN: list[Invariant] = []


@declare(RUN, "run.incomplete")
def record_is_whole(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The run was opened once, its plan accepted, each observed materialization begun, claimed and followed by a sample of
    memory, all of it recorded on one node, and the run closed.

    A killed or interrupted run leaves a record that ends early; a record with a step taken out, or with more than the
    judge keeps, cannot be judged whole either.
    """
    if state.opened is None:
        yield finding("run.incomplete", "run", expected="run.opened", observed="not recorded")
    elif state.opened.sequence != state.began:
        yield finding(
            "run.incomplete", "run", expected="run.opened first", observed="later", events=[state.opened.sequence]
        )
    if len(state.openings) > 1:
        yield finding(
            "run.incomplete",
            "run",
            expected="opened once",
            observed="opened again",
            events=[seen.sequence for seen in state.openings],
        )
    if state.other_nodes:
        yield finding(
            "run.incomplete",
            "node",
            expected=f"all recorded on {state.node_id}",
            observed=sorted({node for _, node in state.other_nodes}),
            events=[sequence for sequence, _ in state.other_nodes],
        )
    if state.outcome in ("incomplete", "aborted"):
        last = state.closed.sequence if state.closed else None
        yield finding("run.incomplete", "run", expected="completed", observed=state.outcome, events=[last])
    if state.accepted is None and state.rejected is None:
        yield finding("run.incomplete", "plan", expected="plan.accepted", observed="not recorded")
    elif state.accepted is not None and state.first_step is not None and state.accepted.sequence > state.first_step:
        yield finding(
            "run.incomplete",
            "plan",
            expected="plan.accepted before the first step",
            observed="afterwards",
            events=[state.accepted.sequence, state.first_step],
        )
    if state.opened is not None and state.opened.body.purpose == "realization":
        for planned, found in each_found(plan, state):
            missing = [
                kind
                for kind, kept in (
                    ("materialization.started", found.started),
                    ("materialization.realized", found.realized),
                )
                if not kept
            ]
            made = found.realized[0].sequence if found.realized else 0
            if not any(one.sequence > made for one in samples_at(state, f"materialized:{planned.id}")):
                missing.append("memory.sampled")
            if found.observed and missing:
                yield finding("run.incomplete", planned.id, expected=missing, observed="not recorded")
    for kind, left_out in sorted(state.overflowed.items()):
        yield finding("run.incomplete", kind, expected="all kept", observed=f"{left_out} events left out")


@declare(RUN, "run.failed")
def run_did_not_fail(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The run was not closed as failed.

    What a failed run did is recorded, but the plan was not carried out.
    """
    if state.closed is not None and state.outcome == "failed":
        body = state.closed.body
        why = ": ".join(part for part in (body.error_type, body.message) if part)
        yield finding(
            "run.failed", "run", expected="completed", observed=why or "failed", events=[state.closed.sequence]
        )


@declare(RUN, "run.time-regressed")
def time_goes_forward(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Elapsed time does not go backwards from event to event, nor does it stand still over a whole realization.

    The order of events is evidence; a clock that goes back, or never goes, says that it was made up or put together.
    Verdicts and supersessions that a later process appends carry no elapsed time and are passed over; what a realization
    records of itself has one, and is unknown without.
    """
    for sequence, before, then in state.time_regressions:
        yield finding("run.time-regressed", "run", expected=f"at least {before}", observed=then, events=[sequence])

    if state.opened is None or state.opened.body.purpose != "realization":
        return
    if state.untimed is not None:
        yield finding(
            "run.time-regressed",
            "run",
            expected="the run's own elapsed time",
            observed="not recorded",
            events=[state.untimed],
            unknown=True,
        )
    elif not state.time_passed and state.closed is not None:
        yield finding(
            "run.time-regressed",
            "run",
            expected=f"more than {state.last_elapsed} at the end",
            observed="the same at every event",
            events=[state.opened.sequence, state.closed.sequence],
        )


@declare(RUN, "run.event-after-close")
def nothing_follows_the_close(plan: Plan, state: RunState) -> Iterator[Finding]:
    """After run.closed only verdicts and supersessions follow.

    A correction is a new run; a fact added afterwards was not there when the run ended.
    """
    for sequence, kind in state.after_close:
        yield finding("run.event-after-close", "run", expected="nothing", observed=kind, events=[sequence])


@declare(RUN, "run.superseded")
def run_stands(plan: Plan, state: RunState) -> Iterator[Finding]:
    """No other run takes this one's place.

    Its record and verdict stay as they are; whoever reads them should know that a correction exists.
    """
    for seen in state.superseded:
        yield finding(
            "run.superseded", "run", observed={"by": seen.body.by, "reason": seen.body.reason}, events=[seen.sequence]
        )
