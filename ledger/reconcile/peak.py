"""Bytes over time: what a plan may have live at once on a Memory Resource, and what a run had, as its events order it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ledger.plan import Materialization, Plan
from ledger.reconcile.reading import bytes_of, place_of, planned_in_order
from ledger.run_state import RunState


class Peak(NamedTuple):
    """The most that was live at once: bytes, and the sequence at which it was reached."""

    bytes: int
    sequence: int | None


def is_transient(planned: Materialization) -> bool:
    return planned.persistence == "transient" or planned.role == "staging"


def required_bytes(plan: Plan) -> dict[str, int]:
    """Bytes that the plan may have live at once on each Memory Resource, what is carved from it included.

    Persistent bytes, plus all transient ones together, unless the plan expects less (`transient_peak_bytes`), which is
    never less than the largest of them.
    """
    lasting: dict[str, int] = dict.fromkeys(plan.memory_resources, 0)
    passing: dict[str, list[int]] = {name: [] for name in plan.memory_resources}
    for planned in planned_in_order(plan):
        size = max(planned.expected_bytes, 0)
        for resource_id in plan.resource_and_parents(planned.memory_resource_id):
            if resource_id not in lasting:
                continue
            if is_transient(planned):
                passing[resource_id].append(size)
            else:
                lasting[resource_id] += size
    expected = plan.document.memory_expectations.transient_peak_bytes or {}
    return {
        name: lasting[name] + (sum(passing[name]) if name not in expected else max(expected[name], *passing[name], 0))
        for name in sorted(lasting)
    }


def peaks(plan: Plan, state: RunState, names: Iterable[str]) -> dict[str, Peak]:
    """The most bytes of those materializations live at once, for each Memory Resource with what is carved from it.

    Each counts from the event that began it to its release, with its observed bytes (planned ones where not known).
    """
    changes: list[tuple[int, int, str]] = []
    for name in names:
        found = state.materializations.get(name)
        resource_id, size = place_of(plan, state, name), bytes_of(plan, state, name)
        if found is None or resource_id is None or size is None:
            continue
        for began, ended in found.spans:
            changes.append((began, size, resource_id))
            if ended is not None:
                changes.append((ended, -size, resource_id))
    live: dict[str, int] = {}
    most: dict[str, Peak] = {}
    for sequence, change, resource_id in sorted(changes):
        for name in list(plan.resource_and_parents(resource_id)):
            live[name] = live.get(name, 0) + change
            if live[name] > most.get(name, Peak(0, None)).bytes:
                most[name] = Peak(live[name], sequence)
    return most
