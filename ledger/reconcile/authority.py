"""Family `authority`: one lineage defines each mutable unit, owned by live state and read back from it."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.bodies import AuthorityEstablished
from ledger.documents import Finding
from ledger.plan import Authority, Plan
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.reading import bytes_of, fits, known, shown, unfinished
from ledger.run_state import RunState, Seen, trust

AUTHORITY: list[Invariant] = []


def _established(plan: Plan, state: RunState) -> Iterator[tuple[Authority, Seen[AuthorityEstablished]]]:
    for planned in sorted(plan.document.authorities, key=lambda item: (item.logical_state_id, item.lineage)):
        for seen in state.authorities.get(planned.logical_state_id, []):
            yield planned, seen


@declare(AUTHORITY, "authority.missing")
def authority_is_established(plan: Plan, state: RunState) -> Iterator[Finding]:
    """For each planned authority one was established, before the first decode.

    Mutable state that nobody defines is anybody's, and a decode changes it.
    """
    decodes = [found.first for found in state.decodes.values() if found.first is not None]
    for planned in plan.document.authorities:
        if not state.authorities.get(planned.logical_state_id):
            yield finding(
                "authority.missing",
                planned.logical_state_id,
                expected=planned.lineage,
                observed="not established",
                unknown=unfinished(state),
            )
        elif decodes and (first := state.authorities[planned.logical_state_id][0].sequence) > min(decodes):
            yield finding(
                "authority.missing",
                planned.logical_state_id,
                expected="established before the first decode",
                observed="established after it",
                events=[min(decodes), first],
            )


@declare(AUTHORITY, "authority.duplicate")
def one_authority_for_each_unit(plan: Plan, state: RunState) -> Iterator[Finding]:
    """No unit has more authorities established than are planned for it: one for a mutable unit, none for others.

    Two who may define the same state make two states.
    """
    planned: dict[str, int] = {}
    for authority in plan.document.authorities:
        planned[authority.logical_state_id] = planned.get(authority.logical_state_id, 0) + 1
    for unit, kept in sorted(state.authorities.items()):
        if len(kept) > min(planned.get(unit, 0), 1):
            yield finding(
                "authority.duplicate",
                unit,
                expected=min(planned.get(unit, 0), 1),
                observed=len(kept),
                events=[seen.sequence for seen in kept],
            )


@declare(AUTHORITY, "authority.materialization-mismatch")
def owner_is_the_planned_materialization(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The owner is the planned materialization, on its planned Memory Resource.

    Authority is no place, but it has an owner, and the plan names it.
    """
    for planned, seen in _established(plan, state):
        body = seen.body
        owner = plan.materializations.get(planned.materialization_id)
        wrong = {}
        if body.materialization_id != planned.materialization_id:
            wrong["materialization_id"] = body.materialization_id
        place = body.memory_resource_id
        if owner is not None and known(place) and place.value != owner.memory_resource_id:
            wrong["memory_resource_id"] = str(place.value)
        if wrong:
            yield finding(
                "authority.materialization-mismatch",
                planned.logical_state_id,
                expected={
                    "materialization_id": planned.materialization_id,
                    "memory_resource_id": owner.memory_resource_id if owner else None,
                },
                observed=wrong,
                events=[seen.sequence],
            )


@declare(AUTHORITY, "authority.lineage-mismatch")
def lineage_is_the_planned_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The lineage read back from the owner is the planned one.

    State of another lineage is another history.
    """
    for planned, seen in _established(plan, state):
        lineage = seen.body.lineage
        if trust(lineage) != "unknown" and lineage.value != planned.lineage:
            yield finding(
                "authority.lineage-mismatch",
                planned.logical_state_id,
                expected=planned.lineage,
                observed=shown(lineage),
                events=[seen.sequence],
            )


@declare(AUTHORITY, "authority.owner-not-live")
def owner_is_live(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The owner is a materialization that was observed live as planned, and was not released.

    An authority over state that is not there defines nothing.
    """
    for planned, seen in _established(plan, state):
        owner = plan.materializations.get(seen.body.materialization_id)
        found = state.materializations.get(seen.body.materialization_id)
        live: bool | None = False
        if owner is not None and found is not None and found.live and found.observed:
            live = fits(owner, found.observed[-1])
        if live is not True:
            yield finding(
                "authority.owner-not-live",
                planned.logical_state_id,
                expected="observed live as planned",
                observed="released" if found is not None and found.released else "not so observed",
                events=[seen.sequence],
                unknown=live is None or (found is not None and not found.observed and found.live),
            )


@declare(AUTHORITY, "authority.before-realization")
def authority_follows_realisation(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Authority was established after its owner was realised and seen.

    One that comes first was derived from the plan and not from state.
    """
    for planned, seen in _established(plan, state):
        found = state.materializations.get(seen.body.materialization_id)
        kept = (found.observed or found.realized) if found is not None else []
        if kept and kept[0].sequence > seen.sequence:
            yield finding(
                "authority.before-realization",
                planned.logical_state_id,
                expected="after its owner was seen",
                observed="before",
                events=[seen.sequence, kept[0].sequence],
            )


@declare(AUTHORITY, "authority.not-observed")
def authority_comes_from_state(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Lineage and place were read from the owner's memory, at a range that is one of those seen of it.

    A lineage that repeats the plan's always agrees with the plan.
    """
    for planned, seen in _established(plan, state):
        body = seen.body
        why = {}
        for what, measurement in (("lineage", body.lineage), ("memory_resource_id", body.memory_resource_id)):
            if trust(measurement) != "observed":
                why[what] = shown(measurement)
        found = state.materializations.get(body.materialization_id)
        ranges = [one for item in (found.observed if found is not None else []) for one in item.body.ranges]
        owner = body.owner_range
        if owner is None:
            why["owner_range"] = "not recorded"
        elif not any(
            one.space == owner.space
            and one.start <= owner.start
            and owner.start + owner.length <= one.start + one.length
            for one in ranges
        ):
            why["owner_range"] = "not within a range where the owner was seen"
        elif owner.length < (bytes_of(plan, state, body.materialization_id) or 1):
            why["owner_range"] = f"{owner.length} bytes, too few to hold the owner"
        if why:
            yield finding(
                "authority.not-observed",
                planned.logical_state_id,
                expected="read back from the owner's memory",
                observed=why,
                events=[seen.sequence],
            )
