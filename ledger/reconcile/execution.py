"""Family `execution`: what was planned to execute was bound, where planned, to state that was live."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.bodies import ExecutionActivated
from ledger.documents import Finding
from ledger.plan import Execution, Plan, RequiredState
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.reading import known, place_of, shown, there_at, unfinished
from ledger.run_state import RunState, Seen

EXECUTION: list[Invariant] = []


def _planned(plan: Plan) -> list[Execution]:
    return sorted(plan.document.execution, key=lambda item: item.id)


def _activations(plan: Plan, state: RunState) -> Iterator[tuple[Execution, Seen[ExecutionActivated]]]:
    for planned in _planned(plan):
        found = state.executions.get(planned.id)
        for seen in found.activations if found is not None else []:
            yield planned, seen


@declare(EXECUTION, "execution.not-activated")
def planned_execution_is_activated(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Every planned execution was activated.

    State that nothing executes on was realised for nothing.
    """
    for planned in _planned(plan):
        if planned.id not in state.executions:
            yield finding(
                "execution.not-activated",
                planned.id,
                expected="execution.activated",
                observed="not recorded",
                unknown=unfinished(state),
            )


@declare(EXECUTION, "execution.unit-mismatch")
def execution_is_on_the_planned_unit(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Execution is bound to the planned Compute Unit, with the planned strategy unit, as found and not as claimed.

    The same state executed elsewhere, or otherwise, is another arrangement.
    """
    for planned, seen in _activations(plan, state):
        unit = seen.body.compute_unit_id
        wrong = {}
        if known(unit) and unit.value != planned.compute_unit_id:
            wrong["compute_unit_id"] = unit.value
        if seen.body.strategy_unit != planned.strategy_unit:
            wrong["strategy_unit"] = seen.body.strategy_unit
        expected = {"compute_unit_id": planned.compute_unit_id, "strategy_unit": planned.strategy_unit}
        if wrong:
            yield finding(
                "execution.unit-mismatch", planned.id, expected=expected, observed=wrong, events=[seen.sequence]
            )
        if not known(unit):
            yield finding(
                "execution.unit-mismatch",
                planned.id,
                expected=expected,
                observed={"compute_unit_id": shown(unit)},
                events=[seen.sequence],
                unknown=True,
            )


@declare(EXECUTION, "execution.unplanned")
def only_planned_executions(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Only planned executions are activated and decode, each activated once.

    What runs beside the plan uses memory and state that the plan does not account for.
    """
    planned = {item.id for item in plan.document.execution}
    for name in sorted({*state.executions, *state.decodes}):
        found = state.executions.get(name)
        if name not in planned:
            first = state.decodes[name].first if name in state.decodes else None
            events = [seen.sequence for seen in found.activations[:1]] if found else [first]
            yield finding("execution.unplanned", name, expected="none", observed="activated or decoded", events=events)
        elif found is not None and found.count > 1:
            yield finding(
                "execution.unplanned",
                name,
                expected="activated once",
                observed=f"{found.count} times",
                events=[seen.sequence for seen in found.activations],
            )


@declare(EXECUTION, "execution.state-not-live")
def required_state_is_live_at_activation(plan: Plan, state: RunState) -> Iterator[Finding]:
    """At activation each required unit was bound to state observed live, on a resource and in a form the plan allows;
    and whatever else was bound was there, where the activation says. What was bound stayed until the last decode.

    Execution that begins on state which is not there yet, or no longer, reads something else.
    """
    for planned, seen in _activations(plan, state):
        for required in sorted(planned.required_state, key=lambda item: item.logical_state_id):
            bound = [item for item in seen.body.state if item.logical_state_id == required.logical_state_id]
            verdicts = {
                item.materialization_id: _usable(state, required, item.materialization_id, seen.sequence)
                for item in bound
            }
            gone = [name for name in verdicts if not _there(state, name, seen.sequence)]
            if not gone and any(usable is True for usable in verdicts.values()):
                continue
            yield finding(
                "execution.state-not-live",
                planned.id,
                expected={
                    "logical_state_id": required.logical_state_id,
                    "memory_resources": sorted(required.memory_resources),
                    "representations": sorted(required.representations),
                },
                observed={
                    name: "live" if usable else "not known" if usable is None else "not live there in that form"
                    for name, usable in sorted(verdicts.items())
                }
                or "nothing bound",
                events=[seen.sequence],
                unknown=not gone and any(usable is None for usable in verdicts.values()),
            )
        asked = {required.logical_state_id for required in planned.required_state}
        astray = {
            item.materialization_id: item.memory_resource_id
            for item in seen.body.state
            if (
                _there(state, item.materialization_id, seen.sequence)
                and item.memory_resource_id != place_of(plan, state, item.materialization_id)
            )
            or (item.logical_state_id not in asked and not _there(state, item.materialization_id, seen.sequence))
        }
        if astray:
            yield finding(
                "execution.state-not-live",
                planned.id,
                expected={name: place_of(plan, state, name) for name in sorted(astray)},
                observed=dict(sorted(astray.items())),
                events=[seen.sequence],
            )
        if given_up := _given_up(state, seen):
            yield finding(
                "execution.state-not-live",
                planned.id,
                expected="bound until the last decode",
                observed=dict.fromkeys(sorted(given_up), "released before it"),
                events=[seen.sequence, *given_up.values()],
            )


def _given_up(state: RunState, seen: Seen[ExecutionActivated]) -> dict[str, int]:
    """What was bound, and released while decodes were still to come -> the release."""
    last = state.last_decode
    return {
        item.materialization_id: found.released[0].sequence
        for item in seen.body.state
        if last is not None
        and (found := state.materializations.get(item.materialization_id)) is not None
        and found.released
        and there_at(found, seen.sequence)
        and not there_at(found, last)
    }


def _there(state: RunState, name: str, sequence: int) -> bool:
    found = state.materializations.get(name)
    return found is not None and there_at(found, sequence)


def _usable(state: RunState, required: RequiredState, name: str, sequence: int) -> bool | None:
    """Observed live before that point, of the unit, on an allowed resource and in an allowed form; null: not known."""
    found = state.materializations.get(name)
    if found is None or not there_at(found, sequence):
        return False
    earlier = [seen.body for seen in found.observed if seen.sequence < sequence]
    if not earlier:
        return False if found.observed else None
    body = earlier[-1]
    facts = (
        (body.memory_resource_id, set(required.memory_resources)),
        (body.representation, set(required.representations)),
        (body.live, {1}),
    )
    if body.logical_state_id != required.logical_state_id:
        return False
    if any(known(measurement) and measurement.value not in allowed for measurement, allowed in facts):
        return False
    return True if all(known(measurement) for measurement, _ in facts) else None
