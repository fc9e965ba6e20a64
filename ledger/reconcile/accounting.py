"""What the run's memory comes to: bytes persistent, unplanned, mirrored and staged, each a Measurement.

A sum is as good as its worst part: of measured figures it is measured, with one declared it is declared, and with one
unknown it is unavailable, naming it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledger.bodies import Census
from ledger.documents import Accounting
from ledger.measurement import Measurement, measured, stated, unavailable
from ledger.plan import Materialization, Plan
from ledger.reconcile.peak import is_transient
from ledger.reconcile.reading import (
    HOST_KINDS,
    census_at,
    every_sample,
    exists,
    is_host,
    number,
    place_of,
    planned_in_order,
    there_at,
)
from ledger.run_state import BYTES, MaterializationState, RunState, trust


def account(plan: Plan, state: RunState) -> Accounting:
    """The run's bytes as its events give them."""
    closing = census_at(state, "closing")
    return Accounting(
        persistent_required=_persistent(plan, state, "required"),
        persistent_optional=_persistent(plan, state, "optional"),
        unplanned_persistent=unplanned_persistent(plan, state, "closing"),
        host_mirror=host_mirror(state, "closing"),
        evidence_host_by_role=dict(sorted(closing[1].evidence_host_by_role.items())) if closing is not None else {},
        staging_before=_staging(plan, state, after=False),
        staging_after=_staging(plan, state, after=True),
        transient_upper_bound=_upper_bound(plan, state),
        transient_peak=transient_peak(plan, state),
    )


def total(parts: Iterable[tuple[str, Measurement | None]], method: str) -> Measurement:
    """The sum of named figures, in bytes."""
    summed: int | float = 0
    declared = False
    for name, part in parts:
        value = number(part)
        if value is None or part is None:
            return unavailable("bytes", method, f"{name} is not known")
        declared = declared or trust(part, BYTES) != "observed"
        summed += value
    if declared:
        return stated(summed, "bytes", method, source="declared")
    return measured(summed, "bytes", method)


def _persistent(plan: Plan, state: RunState, requirement: str) -> Measurement:
    """Observed bytes of the persistent ones that are live; a required one that nobody saw makes the sum unknown."""
    parts: list[tuple[str, Measurement | None]] = []
    for planned in planned_in_order(plan):
        if is_transient(planned) or planned.requirement != requirement:
            continue
        found = state.materializations.get(planned.id)
        if found is not None and found.released and not found.live:
            continue
        if found is not None and found.observed:
            parts.append((planned.id, found.observed[-1].body.bytes))
        elif requirement == "required" or exists(found):
            parts.append((planned.id, None))
    return total(parts, f"sum of observed bytes of live persistent {requirement} materializations")


def unplanned_persistent(plan: Plan, state: RunState, label: str) -> Measurement:
    """Live bytes that the plan does not have: unplanned owners, device storages without one, and reported ones."""
    method = f"unplanned owners and ownerless device storages in the {label} census, and bytes adapters report"
    at = census_at(state, label)
    if at is None:
        return unavailable("bytes", method, f"there is no {label} census")
    census = at[1]
    parts: list[tuple[str, Measurement | None]] = [
        (name, figure) for name, figure in sorted(census.by_owner.items()) if not named(plan, state, name)
    ]
    parts += [(name, measured(more, "bytes", method)) for name, more in beyond_plan(plan, census).items()]
    if has_device(plan) or number(census.unowned_device_bytes) is not None:
        parts.append(("unowned_device_bytes", census.unowned_device_bytes))
    for name, found in sorted(state.materializations.items()):
        if name not in plan.materializations and found.live and name not in census.by_owner and found.observed:
            parts.append((name, found.observed[-1].body.bytes))
    counted = total(parts, method)
    reported = sum(reported_unplanned(state).values())
    value = number(counted)
    return counted if value is None or not reported else stated(value + reported, "bytes", method, source="declared")


def beyond_plan(plan: Plan, census: Census) -> dict[str, int | float]:
    """Planned owner -> live bytes that a probe's census finds under its name beyond the planned ones."""
    return {
        name: value - planned.expected_bytes
        for name, figure in sorted(census.by_owner.items())
        if (planned := plan.materializations.get(name)) is not None
        and trust(figure, BYTES) == "observed"
        and (value := number(figure)) is not None
        and value > planned.expected_bytes + (planned.tolerance_bytes or 0)
    }


def reported_unplanned(state: RunState) -> dict[str, int | float]:
    """Materialization -> unplanned bytes above zero that an adapter reports to keep besides it."""
    return {
        name: said.value
        for name, found in sorted(state.materializations.items())
        for said in found.said.get("unplanned_bytes", {})
        if said.trust != "unknown" and isinstance(said.value, int | float) and said.value > 0
    }


def named(plan: Plan, state: RunState, owner: str) -> bool:
    """A census owner that the plan has and that events made or saw. (Evidence kept deliberately has roles of its own.)"""
    return owner in plan.materializations and exists(state.materializations.get(owner))


def has_device(plan: Plan) -> bool:
    """The plan puts something on memory that is not the host's."""
    used = {planned.memory_resource_id for planned in plan.materializations.values()}
    return any(name in used and item.kind not in HOST_KINDS for name, item in plan.memory_resources.items())


def host_mirror(state: RunState, label: str) -> Measurement:
    """Live host storages without a planned owner, and resident mappings of checkpoint files, at that sample."""
    method = f"ownerless host storages and resident checkpoint mappings at the {label} sample"
    at = census_at(state, label)
    if at is None:
        return unavailable("bytes", method, f"there is no {label} census")
    seen, census = at
    return total(
        [
            ("unowned_host_bytes", census.unowned_host_bytes),
            ("checkpoint_mappings", seen.body.process.get("checkpoint_mappings")),
        ],
        method,
    )


def _staging(plan: Plan, state: RunState, *, after: bool) -> Measurement:
    parts: list[tuple[str, Measurement | None]] = []
    for planned in planned_in_order(plan):
        found = state.materializations.get(planned.id)
        if is_transient(planned) and found is not None and (exists(found) or found.released):
            parts.append((planned.id, _staged(found, after=after)))
    when = "after" if after else "just before"
    return total(parts, f"live bytes of transient materializations {when} their release")


def _staged(found: MaterializationState, *, after: bool) -> Measurement | None:
    if found.released and not found.live:
        body = found.released[-1].body
        return body.bytes_after if after else body.bytes_before
    return found.observed[-1].body.bytes if found.observed else None


def _upper_bound(plan: Plan, state: RunState) -> Measurement:
    """All transient bytes as if live at once, with what streamed through them: a bound, computed and not measured."""
    bound = 0
    for planned in planned_in_order(plan):
        if is_transient(planned):
            bound += max(planned.expected_bytes, _observed_bytes(state, planned)) + (planned.streamed_bytes or 0)
    return stated(
        bound,
        "bytes",
        "sum over transient materializations of the larger of planned and observed bytes, plus streamed bytes",
        source="derived",
    )


def _observed_bytes(state: RunState, planned: Materialization) -> int:
    found = state.materializations.get(planned.id)
    value = number(found.observed[-1].body.bytes) if found is not None and found.observed else None
    return int(value) if value is not None else 0


def transient_peak(plan: Plan, state: RunState) -> Measurement:
    """How far the process tree's resident memory rose over the baseline, beyond the persistent host state then there.

    From the kept samples of every label: largest VmHWM of the step, less VmRSS at the baseline, less the planned
    persistent host bytes live by then.
    """
    method = "highest VmHWM of a step, less VmRSS at the baseline and persistent host bytes live then"
    baseline = state.sample("baseline")
    idle = baseline.body.process.get("vm_rss") if baseline is not None else None
    start = number(idle)
    if baseline is None or idle is None or start is None:
        return unavailable("bytes", method, "VmRSS at the baseline is not known")
    most: int | float | None = None
    declared = trust(idle) != "observed"
    lasting = _persistent_host(plan, state)
    for seen in every_sample(state):
        if seen.sequence <= baseline.sequence:
            continue
        figure = seen.body.process.get("vm_hwm")
        high = number(figure)
        if figure is None or high is None:
            return unavailable("bytes", method, f"VmHWM at {seen.body.label} is not known")
        declared = declared or trust(figure) != "observed"
        live = sum(size for found, size in lasting if there_at(found, seen.sequence))
        rise = max(high - start - live, 0)
        most = rise if most is None or rise > most else most
    if most is None:
        return unavailable("bytes", method, "there is no sample")
    return stated(most, "bytes", method, source="declared") if declared else measured(most, "bytes", method)


def _persistent_host(plan: Plan, state: RunState) -> list[tuple[MaterializationState, int]]:
    """What is planned as persistent and lies on the host, with its observed bytes."""
    return [
        (found, _observed_bytes(state, planned))
        for planned in planned_in_order(plan)
        if not is_transient(planned)
        and (found := state.materializations.get(planned.id)) is not None
        and is_host(plan, place_of(plan, state, planned.id))
    ]
