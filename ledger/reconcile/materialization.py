"""Family `materialization`: what was planned is there, as planned, seen by a probe; and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledger.bodies import MaterializationObserved, MemorySampled
from ledger.documents import Finding
from ledger.plan import Materialization, Plan
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.content import content_doubts
from ledger.reconcile.contradiction import page_contradictions, range_contradictions
from ledger.reconcile.environment import device_spaces
from ledger.reconcile.reading import (
    each_found,
    exists,
    known_values,
    number,
    place_of,
    planned_in_order,
    samples_since_baseline,
    shown,
    there_at,
    unfinished,
    within,
)
from ledger.reconcile.witnessed import witness_contradictions
from ledger.run_state import BYTES, MaterializationState, RunState, Seen, trust

MATERIALIZATION: list[Invariant] = []

OBSERVED_FACTS = ("resource", "representation", "bytes", "storages", "tensors", "live")


@declare(MATERIALIZATION, "materialization.missing")
def required_materializations_exist(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Every required materialization was realised, and none is said to have failed or been skipped.

    What the plan requires and nobody made is the plainest way not to carry it out.
    """
    for planned in planned_in_order(plan):
        found = state.materializations.get(planned.id)
        told = (found.failed or found.skipped) if found is not None else []
        made = found is not None and (found.realized or found.observed)
        if planned.requirement != "required" or (made and not told):
            continue
        yield finding(
            "materialization.missing",
            planned.id,
            expected=planned.representation,
            observed=told[-1].body.TYPE if told else "not realised",
            events=[seen.sequence for seen in told],
            unknown=unfinished(state),
        )


@declare(MATERIALIZATION, "materialization.unplanned")
def only_planned_materializations(plan: Plan, state: RunState) -> Iterator[Finding]:
    """No event speaks of a materialization that the plan does not have, transient ones included.

    A copy that was made and named is still one that nobody planned.
    """
    for name, found in sorted(state.materializations.items()):
        if name in plan.materializations:
            continue
        events = [
            seen.sequence
            for kept in (found.started, found.realized, found.observed, found.released, found.failed, found.skipped)
            for seen in kept[:1]
        ]
        yield finding(
            "materialization.unplanned", name, observed=place_of(plan, state, name) or "named only", events=events
        )


@declare(MATERIALIZATION, "materialization.duplicate")
def realised_once(plan: Plan, state: RunState) -> Iterator[Finding]:
    """A materialization is begun and realised once, and seen at one place, while it lives.

    A second realisation under the same id would hide a copy behind the first one's figures.
    """
    for planned, found in each_found(plan, state):
        if found.duplicates:
            yield finding(
                "materialization.duplicate", planned.id, expected=1, events=[*_first(found), *found.duplicates]
            )


def _first(found: MaterializationState) -> list[int]:
    return [found.spans[0][0]] if found.spans else []


def _mismatches(
    code: str, planned: Materialization, found: MaterializationState, fact: str, expected: Any
) -> Iterator[Finding]:
    wrong = {said: event for said, event in known_values(found, fact).items() if said.value != expected}
    if wrong:
        yield _mismatch(code, planned, expected, wrong)


def _mismatch(code: str, planned: Materialization, expected: Any, wrong: dict[Any, int]) -> Finding:
    return finding(
        code,
        planned.id,
        expected=expected,
        observed={said.origin: said.value for said in sorted(wrong, key=lambda said: (wrong[said], str(said)))},
        events=wrong.values(),
    )


@declare(MATERIALIZATION, "materialization.state-mismatch")
def unit_is_the_planned_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Every event gives a materialization the planned Logical State Unit.

    The right bytes of the wrong state are the wrong state.
    """
    for planned, found in each_found(plan, state):
        yield from _mismatches("materialization.state-mismatch", planned, found, "unit", planned.logical_state_id)


@declare(MATERIALIZATION, "materialization.resource-mismatch")
def resource_is_the_planned_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Every event gives a materialization the planned Memory Resource, the claim as well as the observation, and a range
    on a device is on the one that the run bound that resource to.

    Where state lies is what the plan is about.
    """
    bound = device_spaces(plan, state)
    for planned, found in each_found(plan, state):
        yield from _mismatches(
            "materialization.resource-mismatch", planned, found, "resource", planned.memory_resource_id
        )
        there = bound.get(planned.memory_resource_id)
        for seen in found.observed if there is not None else []:
            elsewhere = sorted({one.space for one in seen.body.ranges} - {there})
            if elsewhere:
                yield finding(
                    "materialization.resource-mismatch",
                    planned.id,
                    expected=f"ranges on {there}",
                    observed=elsewhere,
                    events=[seen.sequence],
                )


@declare(MATERIALIZATION, "materialization.representation-mismatch")
def representation_is_the_planned_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Every event gives a materialization the planned representation.

    A probe says the planned name only where every tensor's dtype, shape and offset is that representation's.
    """
    for planned, found in each_found(plan, state):
        yield from _mismatches(
            "materialization.representation-mismatch", planned, found, "representation", planned.representation
        )


@declare(MATERIALIZATION, "materialization.bytes-mismatch")
def bytes_are_the_planned_ones(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Claimed and observed bytes are the planned ones, exactly, or within the plan's tolerance where it gives one.

    So is what passed through a streamed staging, where it was said; where nothing is planned to stream, nothing did. A
    byte too many is something that nobody planned.
    """
    for planned, found in each_found(plan, state):
        wrong = {
            said: event
            for said, event in known_values(found, "bytes").items()
            if not within(said.value, planned.expected_bytes, planned.tolerance_bytes)
        }
        if wrong:
            yield _mismatch("materialization.bytes-mismatch", planned, planned.expected_bytes, wrong)
        if planned.streamed_bytes is not None:
            passed = _passed_through(plan, state, planned)
            wrong = {said: event for said, event in passed.items() if said.value != planned.streamed_bytes}
            if wrong:
                yield _mismatch("materialization.bytes-mismatch", planned, planned.streamed_bytes, wrong)
    streamed = {item.logical_state_id for item in plan.materializations.values() if item.streamed_bytes is not None}
    for planned, found in each_found(plan, state):
        if planned.logical_state_id not in streamed:
            wrong = {said: event for said, event in known_values(found, "streamed_bytes").items() if said.value != 0}
            if wrong:
                yield _mismatch("materialization.bytes-mismatch", planned, 0, wrong)


def _passed_through(plan: Plan, state: RunState, planned: Materialization) -> dict[Any, int]:
    """What was said to have passed through a ring: by itself, or by what of the same unit was filled from it."""
    return {
        said: event
        for other in plan.materializations.values()
        if other.logical_state_id == planned.logical_state_id and other.id in state.materializations
        for said, event in known_values(state.materializations[other.id], "streamed_bytes").items()
    }


@declare(MATERIALIZATION, "materialization.persistence-mismatch")
def persistence_is_the_planned_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Every event gives a materialization the planned persistence.

    A transient copy declared persistent is a residency that nobody planned.
    """
    for planned, found in each_found(plan, state):
        yield from _mismatches(
            "materialization.persistence-mismatch", planned, found, "persistence", planned.persistence
        )


@declare(MATERIALIZATION, "materialization.role-mismatch")
def role_is_the_planned_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Every event gives a materialization the planned role.

    Staging passed off as residency, or a cache as authority, changes what may happen to it.
    """
    for planned, found in each_found(plan, state):
        yield from _mismatches("materialization.role-mismatch", planned, found, "role", planned.role)


@declare(MATERIALIZATION, "materialization.not-live")
def persistent_ones_stay_live(plan: Plan, state: RunState) -> Iterator[Finding]:
    """What was realised is live, and a persistent one stays so, never released; each is whole in every census while it is
    there.

    Residency is a commitment to keep. A resident bank that was given up serves nobody.
    """
    for planned, found in each_found(plan, state):
        dead = [event for said, event in known_values(found, "live", "observed").items() if said.value != 1]
        lasting = planned.persistence == "persistent" and planned.role != "staging"
        released = found.release_sequence
        if lasting and released is not None:
            yield finding(
                "materialization.not-live", planned.id, expected="live", observed="released", events=[released, *dead]
            )
        elif dead and (lasting or released is None or min(dead) < released):
            yield finding("materialization.not-live", planned.id, expected="live", observed="not live", events=dead)
        elif exists(found):
            for seen in samples_since_baseline(state):
                seen_before = bool(found.observed) and found.observed[0].sequence < seen.sequence
                at_the_end = lasting and seen.body.label == "closing"
                if at_the_end or (there_at(found, seen.sequence) and seen_before):
                    yield from _in_census(seen, planned)


def _in_census(seen: Seen[MemorySampled], planned: Materialization) -> Iterator[Finding]:
    """Only a probe's census can say that something is gone: a declared one may know other owners than the plan's."""
    census = seen.body.census
    level = trust(census.unowned_host_bytes) if census is not None else "declared"
    if census is None or not (level == "observed" or (level == "unknown" and seen.body.label == "closing")):
        return
    figure = census.by_owner.get(planned.id)
    live = number(figure)
    if figure is not None and live is None:
        yield finding(
            "materialization.not-live",
            planned.id,
            expected=f"live at {seen.body.label}",
            observed=shown(figure),
            events=[seen.sequence],
            unknown=True,
        )
    elif (live or 0) < planned.expected_bytes - (planned.tolerance_bytes or 0):
        yield finding(
            "materialization.not-live",
            planned.id,
            expected=planned.expected_bytes,
            observed=f"{live or 0} bytes live at {seen.body.label}",
            events=[seen.sequence],
        )


@declare(MATERIALIZATION, "materialization.unobserved")
def seen_by_a_probe(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Whatever was begun or realised was also seen: resource, representation, bytes, storages, tensors and liveness.

    An adapter's claim is not an observation, and what a probe could not read is unknown.
    """
    for planned, found in each_found(plan, state):
        if not exists(found):
            continue
        if not found.observed:
            yield finding(
                "materialization.unobserved",
                planned.id,
                expected="materialization.observed",
                observed="not recorded",
                events=_first(found),
            )
            continue
        unseen = {
            fact: event
            for fact in OBSERVED_FACTS
            for said, event in found.said.get(fact, {}).items()
            if said.origin == "observed" and said.trust in ("unknown", "claimed")
        }
        unseen |= {
            fact: seen.sequence
            for seen in found.observed
            for fact in ("storages", "tensors", "ranges")
            if _saw_nothing(state, seen.body, fact)
        }
        if unseen:
            yield finding(
                "materialization.unobserved",
                planned.id,
                expected="measured",
                observed=sorted(unseen),
                events=unseen.values(),
            )


def _saw_nothing(state: RunState, body: MaterializationObserved, fact: str) -> bool:
    """A probe of a realization counted none, or names no range, where it found bytes: then it did not look there."""
    if trust(body.bytes, BYTES) != "observed" or not body.bytes.value or trust(body.live) != "observed":
        return False
    if state.opened is None:
        return False
    if fact == "ranges":
        return state.opened.body.purpose == "realization" and not body.ranges
    return bool(number(getattr(body, fact), None) == 0)


@declare(MATERIALIZATION, "materialization.claim-contradicted")
def claim_and_observation_agree(plan: Plan, state: RunState) -> Iterator[Finding]:
    """What the adapter claims of a materialization is what the probe saw, no witness saw otherwise, and what was seen
    fits where it was seen: in ranges that are large enough and no other's at that time, and in as many pages of shared
    memory as the kernel counts.

    Two who look at the same memory and differ cannot both be believed. A claim without a figure, or with one that cannot
    be, cannot be compared, and is unknown.
    """
    for planned, found in each_found(plan, state):
        for fact in ("unit", "resource", "representation", "bytes", "tensors", "role", "persistence"):
            claims = known_values(found, fact, "realized")
            seen = known_values(found, fact, "observed")
            tolerance = planned.tolerance_bytes if fact == "bytes" else None
            said = {item.value for item in claims}
            looked = {item.value for item in seen}
            if said and looked and not _agree(said, looked, tolerance):
                yield finding(
                    "materialization.claim-contradicted",
                    planned.id,
                    expected={fact: sorted(said, key=str)},
                    observed={fact: sorted(looked, key=str)},
                    events=[*claims.values(), *seen.values()],
                )
        unknown = {
            fact: event
            for fact in ("bytes", "tensors", "streamed_bytes", "elapsed_ns")
            for item, event in found.said.get(fact, {}).items()
            if item.origin == "realized" and item.trust == "unknown"
        }
        if unknown:
            yield finding(
                "materialization.claim-contradicted",
                planned.id,
                expected="a claim to compare",
                observed=dict.fromkeys(sorted(unknown), "not known"),
                events=unknown.values(),
                unknown=True,
            )
    yield from range_contradictions(plan, state)
    yield from page_contradictions(plan, state)
    for witness in state.witnesses:
        yield from witness_contradictions(plan, state, witness)


def _agree(said: set[Any], looked: set[Any], tolerance: int | None) -> bool:
    if tolerance is None:
        return said == looked and len(said) == 1
    return all(within(value, other, tolerance) for value in said for other in looked)


@declare(MATERIALIZATION, "materialization.content-mismatch")
def resident_bytes_are_the_source_bytes(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Where content was verified, the digest of the resident bytes read back is the one that the source bytes give; of one
    unit in one layout, wherever it lies, that is one digest, and no digest is of two different sizes.

    The right number of wrong bytes decodes to something else. Half a verification settles nothing, and is unknown.
    """
    for planned, found in each_found(plan, state):
        for said, event in found.said.get("content", {}).items():
            source, resident = said.value
            if source != resident:
                yield finding(
                    "materialization.content-mismatch",
                    planned.id,
                    expected=source or "not known",
                    observed=resident or "not known",
                    events=[event],
                    unknown=source is None or resident is None,
                )
    for doubt in content_doubts(plan, state):
        yield finding(
            "materialization.content-mismatch",
            doubt.name,
            expected=doubt.expected,
            observed=doubt.observed,
            events=doubt.events,
        )


@declare(MATERIALIZATION, "materialization.forbidden")
def nothing_forbidden_persists(plan: Plan, state: RunState) -> Iterator[Finding]:
    """No unit persists on a Memory Resource where the plan forbids it: not by its role, nor by never being released.

    An accelerator's copy needs no persistent host copy; a plan says so by forbidding it.
    """
    forbidden = {
        (item.logical_state_id, item.memory_resource_id) for item in plan.document.forbidden_persistent_materializations
    }
    for name, found in sorted(state.materializations.items()):
        planned = plan.materializations.get(name)
        units = {said.value for said in known_values(found, "unit")}
        resources = {said.value for said in known_values(found, "resource")}
        hits = sorted(pair for pair in forbidden if pair[0] in units and pair[1] in resources)
        if not hits or not found.live:
            continue
        lasts = (planned is not None and planned.persistence == "persistent") or any(
            said.value == "persistent" for said in known_values(found, "persistence")
        )
        yield finding(
            "materialization.forbidden",
            name,
            expected="released before the end",
            observed={"logical_state_id": hits[0][0], "memory_resource_id": hits[0][1]},
            events=_first(found),
            unknown=not lasts and unfinished(state),
        )
