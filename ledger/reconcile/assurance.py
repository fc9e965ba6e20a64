"""How much a verdict rests on: somebody's word, independent probes, or digests of the bytes themselves."""

from __future__ import annotations

from ledger.events import Assurance, MaterializationObserved
from ledger.fold import MaterializationState, RunState, trust
from ledger.plan import Plan
from ledger.reconcile.reading import persistent, planned_in_order

LEVELS: tuple[Assurance, ...] = ("declared", "observed", "content-verified")


def assurances(plan: Plan, state: RunState) -> dict[str, Assurance]:
    """Assurance of every planned materialization that events speak of."""
    return {
        planned.id: assurance_of(state.materializations[planned.id])
        for planned in planned_in_order(plan)
        if planned.id in state.materializations
    }


def assurance_of(found: MaterializationState) -> Assurance:
    """`observed` when every observation was measured by probe or witness, `content-verified` when source and resident
    digests were measured as well and agree, else `declared`."""
    if not found.observed:
        return "declared"
    for seen in found.observed:
        body = seen.body
        facts = (body.memory_resource_id, body.representation, body.bytes, body.storages, body.tensors, body.live)
        if any(trust(measurement) != "observed" for measurement in facts):
            return "declared"
    return "content-verified" if all(_verified(seen.body) for seen in found.observed) else "observed"


def _verified(body: MaterializationObserved) -> bool:
    source, resident = body.source_digest, body.resident_digest
    if source is None or resident is None or trust(source) != "observed" or trust(resident) != "observed":
        return False
    return source.value == resident.value


def overall(plan: Plan, state: RunState) -> Assurance:
    """The least over the required persistent materializations of `immutable_source` units; the others need `observed`.

    Where the plan has none of those, nothing can be better than `observed`.
    """
    least = LEVELS.index("content-verified")
    sources = 0
    for planned in persistent(plan):
        if planned.requirement != "required":
            continue
        found = state.materializations.get(planned.id)
        level = LEVELS.index(assurance_of(found)) if found is not None else 0
        unit = plan.units.get(planned.logical_state_id)
        if unit is not None and unit.semantic_class == "immutable_source":
            sources += 1
            least = min(least, level)
        elif level == 0:
            least = 0
    return LEVELS[least if sources else min(least, LEVELS.index("observed"))]
