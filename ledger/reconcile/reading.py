"""How rules read a state: what was there when, what is known, and whether something missing is an error or unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledger.bodies import Census, MemorySampled
from ledger.measurement import Measurement
from ledger.plan import Materialization, Plan
from ledger.run_state import BYTES, Extremes, MaterializationState, ReclamationState, RunState, Said, Seen, trust

HOST_KINDS = frozenset({"system-ram", "shared-memory"})
"""Memory Resource kinds whose bytes the operating system accounts to processes."""

FINAL_LABELS = ("after-decode", "closing")
"""Samples at which only what the plan keeps may still be there."""


def unfinished(state: RunState) -> bool:
    """What is missing may be missing because the run did not finish, or because its author only watched from outside.

    Then its absence is unknown and no error.
    """
    return state.outcome != "completed" or state.opened is None or state.opened.body.purpose == "witness"


def planned_in_order(plan: Plan) -> list[Materialization]:
    """The planned materializations by id, so that the order of the plan's list changes nothing."""
    return [plan.materializations[name] for name in sorted(plan.materializations)]


def transient(plan: Plan) -> list[Materialization]:
    """What has a bounded lifetime and must go: staging, and whatever else is planned as transient."""
    return [item for item in planned_in_order(plan) if item.persistence == "transient" or item.role == "staging"]


def persistent(plan: Plan) -> list[Materialization]:
    return [item for item in planned_in_order(plan) if item.persistence == "persistent" and item.role != "staging"]


def each_found(plan: Plan, state: RunState) -> Iterator[tuple[Materialization, MaterializationState]]:
    """Planned materializations that some event speaks of."""
    for planned in planned_in_order(plan):
        found = state.materializations.get(planned.id)
        if found is not None:
            yield planned, found


def exists(found: MaterializationState | None) -> bool:
    """Some event says that it was begun, realised or seen."""
    return found is not None and bool(found.spans)


def known(measurement: Measurement | None, unit: str | None = None) -> bool:
    """A probe, a witness, a computation or a document says it, in that unit where one is asked for; an adapter's claim or
    a default does not count."""
    return measurement is not None and trust(measurement, unit) in ("observed", "declared")


def number(measurement: Measurement | None, unit: str | None = BYTES) -> int | float | None:
    """The known number in that unit (null: in whichever), or null: what is in another unit is not compared."""
    if measurement is None or not known(measurement, unit) or isinstance(measurement.value, str):
        return None
    return measurement.value


def shown(measurement: Measurement | None) -> Any:
    """How a measurement reads in a finding: its value, or why there is none."""
    if measurement is None:
        return "not recorded"
    if measurement.value is not None and measurement.status in ("measured", "stated"):
        return measurement.value if trust(measurement) == "observed" else f"{measurement.value} ({measurement.source})"
    return f"{measurement.status}: {measurement.detail or measurement.method}"


def known_values(found: MaterializationState, fact: str, *origins: str) -> dict[Said, int]:
    """What those event types say of a fact, unknowns left out."""
    return {
        said: sequence
        for said, sequence in found.said.get(fact, {}).items()
        if said.trust != "unknown" and (not origins or said.origin in origins)
    }


def within(value: Any, expected: Any, tolerance: int | None) -> bool:
    """A number that is the expected one, give or take the planned tolerance (bytes)."""
    both = isinstance(value, int | float) and isinstance(expected, int | float)
    return both and abs(value - expected) <= (tolerance or 0)


def there_at(found: MaterializationState, sequence: int) -> bool:
    """It had begun and was not yet released at that point of the run."""
    return any(began < sequence and (ended is None or ended > sequence) for began, ended in found.spans)


def fits(planned: Materialization, seen: Seen[Any]) -> bool | None:
    """Whether one observation shows it live as planned (unit, resource, representation, bytes); null when not known."""
    body = seen.body
    facts = (
        (body.memory_resource_id, None, lambda value: value == planned.memory_resource_id),
        (body.representation, None, lambda value: value == planned.representation),
        (body.bytes, BYTES, lambda value: within(value, planned.expected_bytes, planned.tolerance_bytes)),
        (body.live, None, lambda value: value == 1),
    )
    if body.logical_state_id != planned.logical_state_id:
        return False
    if any(known(measurement, unit) and not test(measurement.value) for measurement, unit, test in facts):
        return False
    return True if all(known(measurement, unit) for measurement, unit, _ in facts) else None


def fits_at(planned: Materialization, found: MaterializationState | None, sequence: int) -> bool | None:
    """Whether it had been observed live as planned before that point, and was still there; null when not known."""
    if found is None or not there_at(found, sequence):
        return False
    earlier = [seen for seen in found.observed if seen.sequence < sequence]
    return fits(planned, earlier[-1]) if earlier else False


def extremes_differ(extremes: Extremes, expected: int, tolerance: int | None = None) -> bool:
    """Some known value is not the expected one."""
    return any(
        figure is not None and not within(figure.value, expected, tolerance) for figure in (extremes.low, extremes.high)
    )


def spread(extremes: Extremes) -> Any:
    """How extremes read in a finding: the one value, or lowest and highest."""
    if extremes.low is None or extremes.high is None:
        return "not known"
    if extremes.low.value == extremes.high.value:
        return extremes.low.value
    return [extremes.low.value, extremes.high.value]


def places(extremes: Extremes) -> list[int | None]:
    """The events that gave the extremes and the unknown."""
    return [
        extremes.low.sequence if extremes.low else None,
        extremes.high.sequence if extremes.high else None,
        extremes.unknown,
    ]


def samples_at(state: RunState, label: str) -> list[Seen[MemorySampled]]:
    """Every kept sample of that label: a later one does not wash an earlier one away."""
    return state.samples.get(label, [])


def every_sample(state: RunState) -> list[Seen[MemorySampled]]:
    """Every kept sample, in order, each once: by its label, or because it shows most or least of something."""
    found = {seen.sequence: seen for kept in state.samples.values() for seen in kept}
    for ends in state.stretches.values():
        found |= {seen.sequence: seen for seen in (*ends.lowest, *ends.highest)}
    return [found[sequence] for sequence in sorted(found)]


def samples_at_rest(state: RunState) -> list[Seen[MemorySampled]]:
    """Every kept sample, in order, that may show nothing but what the plan keeps or has not released yet: those from the
    first release on, and the final ones. Baselines are none: a census knows only what is new since."""
    released = state.first_release
    return [
        seen
        for seen in samples_since_baseline(state)
        if seen.body.label in FINAL_LABELS or (released is not None and seen.sequence > released)
    ]


def samples_since_baseline(state: RunState) -> list[Seen[MemorySampled]]:
    """Every kept sample but baselines, in order."""
    return [seen for seen in every_sample(state) if seen.body.label != "baseline"]


def census_at(state: RunState, label: str) -> tuple[Seen[MemorySampled], Census] | None:
    """The sample of that label with its census, or null when there is none."""
    seen = state.sample(label)
    if seen is None or seen.body.census is None:
        return None
    return seen, seen.body.census


def is_host(plan: Plan, resource_id: str | None) -> bool:
    """A planned Memory Resource of the host's own memory."""
    resource = plan.memory_resources.get(resource_id) if resource_id is not None else None
    return resource is not None and resource.kind in HOST_KINDS


def place_of(plan: Plan, state: RunState, name: str) -> str | None:
    """The Memory Resource of a materialization: where it was last seen, else where it is planned or said to be."""
    found = state.materializations.get(name)
    if found is not None and found.observed:
        resource = found.observed[-1].body.memory_resource_id
        if known(resource):
            return str(resource.value)
    planned = plan.materializations.get(name)
    if planned is not None:
        return planned.memory_resource_id
    if found is not None and (found.realized or found.started):
        said: str = (found.realized or found.started)[-1].body.memory_resource_id
        return said
    return None


def bytes_of(plan: Plan, state: RunState, name: str) -> int | None:
    """Bytes of a materialization: as last seen; where not known, as planned; null for an unplanned one never seen."""
    found = state.materializations.get(name)
    if found is not None and found.observed:
        seen = number(found.observed[-1].body.bytes)
        if seen is not None:
            return int(seen)
    planned = plan.materializations.get(name)
    return planned.expected_bytes if planned is not None else None


def reclaimed_in_time(state: RunState, found: MaterializationState, phase: str) -> ReclamationState | None:
    """The reclamation of that phase, if its last one was looked at after the release, or after the last decode."""
    reclaimed = found.reclamations.get(phase)
    after = state.last_decode if phase == "after-decode" else None
    earliest = max(found.release_sequence or 0, after or 0)
    if reclaimed is None or reclaimed.last is None or reclaimed.last < earliest:
        return None
    return reclaimed
