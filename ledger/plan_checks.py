"""What makes a well-formed plan wrong: every violation at once, each found by one small function.

`ledger.plan` reads a document; here it is held against itself, without looking at a machine, a checkpoint or an
adapter. A reference that leads nowhere is reported once, where it stands; the checks that would follow it skip it.
This file holds identity, references and resources; `ledger.plan_forms` fields and numbers, `ledger.plan_doctrine`
state, staging, authority and execution.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from ledger.bodies import Violation
from ledger.plan import Link, Plan
from ledger.plan_diff import plan_differences
from ledger.plan_doctrine import DOCTRINE_CHECKS, node_of_resources
from ledger.plan_forms import FORM_CHECKS, check_frozen

__all__ = ["check_plan", "plan_differences"]


def check_plan(plan: Plan, *, require_frozen: bool = False, adapter_known: bool = True) -> list[Violation]:
    """Every violation of the plan, sorted by code and subject; an empty list is a plan that may be realised.

    `require_frozen`: an unfrozen plan is a violation too (`plan.not-frozen`). `adapter_known` is what the caller found
    out about the adapter that the plan names: false adds `plan.adapter-unknown`.
    """
    found = [violation for check in (*FORM_CHECKS, *RESOURCE_CHECKS, *DOCTRINE_CHECKS) for violation in check(plan)]
    if require_frozen:
        found += check_frozen(plan)
    if not adapter_known:
        name = plan.document.adapter.name if plan.document.adapter else "(none)"
        found.append(Violation(code="plan.adapter-unknown", subject=name, message=f"no adapter {name!r} is installed"))
    unique = {(violation.code, violation.subject, violation.message): violation for violation in found}
    return [unique[key] for key in sorted(unique)]


def _links(plan: Plan) -> dict[str, Link]:
    return {link.id: link for link in plan.document.resources.links}


# --- identity and references --------------------------------------------------------------------------------------


def unique_ids(plan: Plan) -> Iterator[Violation]:
    """Ids are unique per kind and not empty; a link's source must not be both a backing source and a Memory Resource.

    Findings, events and references name things by id: two things of one name could hide behind each other.
    """
    document, resources = plan.document, plan.document.resources
    kinds: dict[str, list[str]] = {
        "node": [node.id for node in resources.nodes],
        "compute unit": [unit.id for node in resources.nodes for unit in node.compute_units],
        "memory resource or backing source": [
            *(resource.id for node in resources.nodes for resource in node.memory_resources),
            *(source.id for source in resources.backing_sources),
        ],
        "link": [link.id for link in resources.links],
        "logical state unit": [unit.id for unit in document.logical_state_units],
        "materialization": [materialization.id for materialization in document.materializations],
        "execution": [execution.id for execution in document.execution],
    }
    for kind, ids in kinds.items():
        for identity, count in Counter(ids).items():
            if count > 1:
                yield Violation(
                    code="plan.duplicate-id", subject=identity, message=f"{count} things of kind {kind} have this id"
                )
            if not identity.strip():
                yield Violation(code="plan.empty-id", subject=identity, message=f"a {kind} has an empty id")


def references(plan: Plan) -> Iterator[Violation]:
    """Whatever is named exists."""
    document = plan.document
    sources = {source.id for source in document.resources.backing_sources}
    units, resources, materializations = plan.units, plan.memory_resources, plan.materializations
    named: list[tuple[str, str, str, object]] = []
    for node in document.resources.nodes:
        for compute_unit in node.compute_units:
            named += [(compute_unit.id, "memory resource", name, resources) for name in compute_unit.memory_resources]
        named += [
            (resource.id, "parent memory resource", resource.parent, resources)
            for resource in node.memory_resources
            if resource.parent is not None
        ]
    for link in document.resources.links:
        named.append((link.id, "link source", link.source, sources | set(resources)))
        named.append((link.id, "link target (a memory resource)", link.target, resources))
    for unit in document.logical_state_units:
        if unit.backing_source_id is not None:
            named.append((unit.id, "backing source", unit.backing_source_id, sources))
        named += [(unit.id, "reconstruction input", name, units) for name in unit.reconstruction_inputs]
    for materialization in document.materializations:
        named.append((materialization.id, "logical state unit", materialization.logical_state_id, units))
        named.append((materialization.id, "memory resource", materialization.memory_resource_id, resources))
        if materialization.path_id is not None:
            named.append((materialization.id, "link (path_id)", materialization.path_id, _links(plan)))
    for authority in document.authorities:
        named.append((authority.lineage, "logical state unit", authority.logical_state_id, units))
        named.append((authority.lineage, "materialization", authority.materialization_id, materializations))
    for execution in document.execution:
        named.append((execution.id, "compute unit", execution.compute_unit_id, plan.compute_units))
        for required in execution.required_state:
            named.append((execution.id, "logical state unit", required.logical_state_id, units))
            named += [(execution.id, "memory resource", name, resources) for name in required.memory_resources]
    for forbidden in document.forbidden_persistent_materializations:
        subject = "forbidden_persistent_materializations"
        named.append((subject, "logical state unit", forbidden.logical_state_id, units))
        named.append((subject, "memory resource", forbidden.memory_resource_id, resources))
    for resource_id in document.memory_expectations.transient_peak_bytes or {}:
        named.append(("memory_expectations.transient_peak_bytes", "memory resource", resource_id, resources))
    for subject, kind, name, known in named:
        if name not in known:  # type: ignore[operator]
            yield Violation(
                code="plan.unknown-reference",
                subject=subject,
                message=f"names {kind} {name!r}, which is not in the plan",
            )


def something_planned(plan: Plan) -> Iterator[Violation]:
    """At least one materialization is planned: a plan that asks for nothing would pass whatever happened."""
    if not plan.document.materializations:
        yield Violation(code="plan.empty", subject="materializations", message="no materialization is planned")


# --- resources ----------------------------------------------------------------------------------------------------


def parents(plan: Plan) -> Iterator[Violation]:
    """A Memory Resource is carved from one of its own Node, and never, through others, from itself."""
    node_of = node_of_resources(plan)
    for resource in plan.memory_resources.values():
        if resource.parent is None or resource.parent not in plan.memory_resources:
            continue
        chain = list(plan.resource_and_parents(resource.id))
        last = plan.memory_resources.get(chain[-1])
        if last is not None and last.parent == resource.id:
            yield Violation(
                code="plan.parent-cycle",
                subject=resource.id,
                message=f"is carved from itself: {' <- '.join(map(repr, chain))}",
            )
        if node_of[resource.parent] != node_of[resource.id]:
            yield Violation(
                code="plan.resource-elsewhere",
                subject=resource.id,
                message=f"is on node {node_of[resource.id]!r} but carved from {resource.parent!r} "
                f"of node {node_of[resource.parent]!r}",
            )


def compute_unit_resources(plan: Plan) -> Iterator[Violation]:
    """A Compute Unit's Memory Resources belong to its own Node."""
    node_of = node_of_resources(plan)
    for node in plan.document.resources.nodes:
        for unit in node.compute_units:
            for name in unit.memory_resources:
                if node_of.get(name, node.id) != node.id:
                    yield Violation(
                        code="plan.resource-elsewhere",
                        subject=unit.id,
                        message=f"is on node {node.id!r} but claims memory resource {name!r} of node {node_of[name]!r}",
                    )


def links(plan: Plan) -> Iterator[Violation]:
    """A link leads from one place to another."""
    for link in plan.document.resources.links:
        if link.source == link.target:
            yield Violation(
                code="plan.link-to-itself", subject=link.id, message=f"leads from {link.source!r} to itself"
            )


def paths(plan: Plan) -> Iterator[Violation]:
    """A materialization's path ends on its Memory Resource, and one that begins at a backing source begins at the unit's."""
    backing_sources = {source.id for source in plan.document.resources.backing_sources}
    by_id = _links(plan)
    for materialization in plan.document.materializations:
        link = by_id.get(materialization.path_id) if materialization.path_id is not None else None
        unit = plan.units.get(materialization.logical_state_id)
        if link is None:
            continue
        if link.target != materialization.memory_resource_id:
            yield Violation(
                code="plan.path-mismatch",
                subject=materialization.id,
                message=f"path {link.id!r} leads to {link.target!r}, "
                f"but the materialization is on {materialization.memory_resource_id!r}",
            )
        if (
            unit is not None
            and unit.backing_source_id in backing_sources
            and link.source in backing_sources
            and link.source != unit.backing_source_id
        ):
            yield Violation(
                code="plan.path-mismatch",
                subject=materialization.id,
                message=f"path {link.id!r} begins at {link.source!r}, "
                f"but the unit's backing source is {unit.backing_source_id!r}",
            )


def capacity(plan: Plan) -> Iterator[Violation]:
    """What may be live at once on a Memory Resource, persistent and transient, its parts included, fits into it.

    Transient bytes are all of its staging together, unless the plan expects less (`transient_peak_bytes`), which it can
    only where staging is given up one after another: never less than the largest of them.
    """
    declared = plan.document.memory_expectations.transient_peak_bytes or {}
    persistent: defaultdict[str, int] = defaultdict(int)
    transient: defaultdict[str, list[int]] = defaultdict(list)
    for materialization in plan.document.materializations:
        size = max(materialization.expected_bytes, 0)
        for resource_id in plan.resource_and_parents(materialization.memory_resource_id):
            if materialization.persistence == "persistent":
                persistent[resource_id] += size
            else:
                transient[resource_id].append(size)
    for resource in plan.memory_resources.values():
        staged = transient[resource.id]
        expected = declared.get(resource.id)
        if expected is not None and staged and expected < max(staged):
            yield Violation(
                code="plan.transient-peak-too-small",
                subject=resource.id,
                message=f"a transient peak of {expected} bytes is expected, but one staging alone takes {max(staged)}",
            )
        peak = persistent[resource.id] + (sum(staged) if expected is None else max(expected, *staged, 0))
        if peak > resource.capacity_bytes:
            yield Violation(
                code="plan.capacity-exceeded",
                subject=resource.id,
                message=f"{peak} bytes may be live at once ({persistent[resource.id]} persistent, "
                f"{peak - persistent[resource.id]} transient), but its capacity is {resource.capacity_bytes}",
            )


RESOURCE_CHECKS: tuple[Callable[[Plan], Iterator[Violation]], ...] = (
    unique_ids,
    references,
    something_planned,
    parents,
    compute_unit_resources,
    links,
    paths,
    capacity,
)
