"""Plan checks of doctrine: where state comes from, roles and authority, forbidden copies, staging, and what executes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from ledger.bodies import Violation
from ledger.plan import (
    ComputeUnit,
    ForbiddenMaterialization,
    Materialization,
    Plan,
    Requirement,
    Role,
    SemanticClass,
)

ROLES_OF: dict[SemanticClass, frozenset[Role]] = {
    "immutable_source": frozenset({"staging", "required_residency", "required_test_state", "optional_cache"}),
    "derived_reconstructible": frozenset({"staging", "required_residency", "required_test_state", "optional_cache"}),
    "mutable_authoritative": frozenset({"staging", "mutable_authority", "required_test_state"}),
}
"""Roles that a unit's class admits. A lasting copy of mutable state that is no authority would be a second truth, so
residency and caches are not for mutable units; test state is a snapshot that nobody executes on."""

REQUIREMENT_OF: dict[Role, Requirement] = {
    "required_residency": "required",
    "mutable_authority": "required",
    "required_test_state": "required",
    "optional_cache": "optional",
}
"""Roles whose name already says whether they are required. Staging may be either."""


# --- rules that others ask too ------------------------------------------------------------------------------------


def qualifying_finals(plan: Plan, staging: Materialization) -> list[Materialization]:
    """The materializations that may stand in for `staging` once they are observed live: distinct from it, of the same
    unit, required and persistent."""
    return [
        other
        for other in plan.document.materializations
        if other.id != staging.id
        and other.logical_state_id == staging.logical_state_id
        and other.requirement == "required"
        and other.persistence == "persistent"
    ]


def reaches(plan: Plan, compute_unit: ComputeUnit, resource_id: str) -> bool:
    """Whether the Compute Unit can use state on that Memory Resource: it lists the resource or what that is carved from.

    Reaching a part does not reach the whole: a unit that lists only a child does not reach its parent.
    """
    return any(reached in compute_unit.memory_resources for reached in plan.resource_and_parents(resource_id))


def forbidden_by(plan: Plan, logical_state_id: str, resource_id: str) -> ForbiddenMaterialization | None:
    """The entry that forbids a persistent copy of the unit on that Memory Resource, or None.

    An entry forbids its resource and what is carved from it as memory of the same kind (a NUMA node of system RAM is
    system RAM). A part of another kind is a domain of its own: state that must not stay in system RAM may be planned
    into a shared-memory resource, where every byte of it is accounted for.
    """
    resource = plan.memory_resources.get(resource_id)
    for entry in plan.document.forbidden_persistent_materializations:
        if entry.logical_state_id != logical_state_id:
            continue
        if entry.memory_resource_id == resource_id:
            return entry
        forbidden = plan.memory_resources.get(entry.memory_resource_id)
        if (
            resource is not None
            and forbidden is not None
            and forbidden.kind == resource.kind
            and entry.memory_resource_id in plan.resource_and_parents(resource_id)
        ):
            return entry
    return None


def _listed(names: Iterable[str]) -> str:
    """Names in one line, whatever is in them."""
    return ", ".join(repr(name) for name in sorted(names)) or "none"


def node_of_resources(plan: Plan) -> dict[str, str]:
    """Memory Resource id -> id of its Node."""
    return {resource.id: node.id for node in plan.document.resources.nodes for resource in node.memory_resources}


# --- state --------------------------------------------------------------------------------------------------------


def sources_of_state(plan: Plan) -> Iterator[Violation]:
    """Where a unit can be had again fits its class.

    Immutable state comes from a backing source; derived state from reconstruction inputs or a backing source; mutable
    state from nowhere else, which is why somebody must have authority over it.
    """
    for unit in plan.document.logical_state_units:
        if unit.semantic_class == "immutable_source" and unit.backing_source_id is None:
            yield Violation(
                code="plan.backing-source-missing", subject=unit.id, message="is immutable but has no backing source"
            )
        if unit.semantic_class != "derived_reconstructible" and unit.reconstruction_inputs:
            yield Violation(
                code="plan.class-mismatch",
                subject=unit.id,
                message=f"has reconstruction inputs, which a unit of class {unit.semantic_class} cannot have",
            )
        if (
            unit.semantic_class == "derived_reconstructible"
            and not unit.reconstruction_inputs
            and unit.backing_source_id is None
        ):
            yield Violation(
                code="plan.reconstruction-inputs-missing",
                subject=unit.id,
                message="is derived, but from nothing: it has neither reconstruction inputs nor a backing source",
            )


def retained_inputs(plan: Plan) -> Iterator[Violation]:
    """Every reconstruction input is really retained: a required, persistent materialization of it is planned."""
    retained = {
        materialization.logical_state_id
        for materialization in plan.document.materializations
        if materialization.persistence == "persistent" and materialization.requirement == "required"
    }
    for unit in plan.document.logical_state_units:
        for name in unit.reconstruction_inputs:
            if name in plan.units and name not in retained:
                yield Violation(
                    code="plan.input-not-retained",
                    subject=unit.id,
                    message=f"would be reconstructed from {name!r}, which no required persistent materialization retains",
                )


def reconstruction_order(plan: Plan) -> Iterator[Violation]:
    """No unit is, through others, reconstructed from itself."""
    for unit in plan.document.logical_state_units:
        seen: set[str] = set()
        pending = list(unit.reconstruction_inputs)
        while pending:
            name = pending.pop()
            if name == unit.id:
                yield Violation(
                    code="plan.reconstruction-cycle", subject=unit.id, message="is reconstructed from itself"
                )
                break
            if name not in seen and name in plan.units:
                seen.add(name)
                pending += plan.units[name].reconstruction_inputs


def roles(plan: Plan) -> Iterator[Violation]:
    """A materialization's role is one that its unit's semantic class admits."""
    for materialization in plan.document.materializations:
        unit = plan.units.get(materialization.logical_state_id)
        if unit is not None and materialization.role not in ROLES_OF[unit.semantic_class]:
            yield Violation(
                code="plan.role-mismatch",
                subject=materialization.id,
                message=f"has role {materialization.role}, which a unit of class {unit.semantic_class} does not admit",
            )


def persistence(plan: Plan) -> Iterator[Violation]:
    """Staging is transient; whatever else is required is persistent, for only staging has a release rule."""
    for materialization in plan.document.materializations:
        if materialization.role == "staging":
            expected = "transient"
        elif materialization.role == "optional_cache":
            continue
        else:
            expected = "persistent"
        if materialization.persistence != expected:
            yield Violation(
                code="plan.persistence-mismatch",
                subject=materialization.id,
                message=f"has role {materialization.role}, which is {expected}, but is {materialization.persistence}",
            )


def requirements(plan: Plan) -> Iterator[Violation]:
    """A role whose name says required or optional is that."""
    for materialization in plan.document.materializations:
        expected = REQUIREMENT_OF.get(materialization.role)
        if expected is not None and materialization.requirement != expected:
            yield Violation(
                code="plan.requirement-mismatch",
                subject=materialization.id,
                message=f"has role {materialization.role}, which is {expected}, but is {materialization.requirement}",
            )


def forbidden_copies(plan: Plan) -> Iterator[Violation]:
    """No persistent materialization makes a copy that the plan forbids."""
    for materialization in plan.document.materializations:
        if materialization.persistence != "persistent":
            continue
        entry = forbidden_by(plan, materialization.logical_state_id, materialization.memory_resource_id)
        if entry is not None:
            yield Violation(
                code="plan.forbidden-copy",
                subject=materialization.id,
                message=f"keeps {materialization.logical_state_id!r} on {materialization.memory_resource_id!r}, "
                f"but a persistent copy on {entry.memory_resource_id!r} is forbidden",
            )


# --- staging, authority, execution --------------------------------------------------------------------------------


def staging_finals(plan: Plan) -> Iterator[Violation]:
    """Every staging has, on its own Node, a final that can authorise its release; else it could never go."""
    node_of = node_of_resources(plan)
    for staging in plan.document.materializations:
        if staging.role != "staging":
            continue
        finals = qualifying_finals(plan, staging)
        if not finals:
            yield Violation(
                code="plan.staging-without-final",
                subject=staging.id,
                message=f"no other required persistent materialization of {staging.logical_state_id!r} is planned, "
                "so nothing could authorise its release",
            )
            continue
        node = node_of.get(staging.memory_resource_id)
        nodes = {node_of[final.memory_resource_id] for final in finals if final.memory_resource_id in node_of}
        if node is not None and nodes and node not in nodes:
            yield Violation(
                code="plan.staging-elsewhere",
                subject=staging.id,
                message=f"is on node {node!r}, but what it is staged for is on {_listed(nodes)}",
            )


def authorities(plan: Plan) -> Iterator[Violation]:
    """Each mutable unit has exactly one authority with one lineage, owned by its one `mutable_authority`
    materialization; other units have none."""
    by_unit: defaultdict[str, list[str]] = defaultdict(list)
    for authority in plan.document.authorities:
        by_unit[authority.logical_state_id].append(authority.lineage)
        if not authority.lineage.strip():
            yield Violation(
                code="plan.lineage-missing", subject=authority.logical_state_id, message="its authority has no lineage"
            )
        unit = plan.units.get(authority.logical_state_id)
        if unit is not None and unit.semantic_class != "mutable_authoritative":
            yield Violation(
                code="plan.authority-not-mutable",
                subject=unit.id,
                message=f"has an authority, but its class is {unit.semantic_class}",
            )
        owner = plan.materializations.get(authority.materialization_id)
        if owner is not None and (
            owner.logical_state_id != authority.logical_state_id or owner.role != "mutable_authority"
        ):
            yield Violation(
                code="plan.authority-materialization",
                subject=authority.logical_state_id,
                message=f"its authority is {owner.id!r}, a {owner.role} of {owner.logical_state_id!r}; "
                f"expected a mutable_authority of {authority.logical_state_id!r}",
            )
    owners = Counter(
        materialization.logical_state_id
        for materialization in plan.document.materializations
        if materialization.role == "mutable_authority"
    )
    for unit in plan.document.logical_state_units:
        if unit.semantic_class != "mutable_authoritative":
            continue
        lineages = by_unit[unit.id]
        if not lineages:
            yield Violation(
                code="plan.authority-missing", subject=unit.id, message="is mutable but nothing has authority over it"
            )
        if len(lineages) > 1:
            yield Violation(
                code="plan.authority-duplicate",
                subject=unit.id,
                message=f"has {len(lineages)} authorities ({_listed(lineages)}); exactly one may define it",
            )
        if owners[unit.id] > 1:
            yield Violation(
                code="plan.authority-duplicate",
                subject=unit.id,
                message=f"has {owners[unit.id]} materializations of role mutable_authority; exactly one may define it",
            )


def required_state(plan: Plan) -> Iterator[Violation]:
    """What an execution requires is planned where it says, in a form it takes, within reach of its Compute Unit."""
    for execution in plan.document.execution:
        compute_unit = plan.compute_units.get(execution.compute_unit_id)
        for required in execution.required_state:
            for name in required.memory_resources:
                if compute_unit is not None and name in plan.memory_resources and not reaches(plan, compute_unit, name):
                    yield Violation(
                        code="plan.state-unreachable",
                        subject=execution.id,
                        message=f"requires {required.logical_state_id!r} on {name!r}, "
                        f"which compute unit {compute_unit.id!r} does not reach",
                    )
            if required.logical_state_id in plan.units and not any(
                materialization.logical_state_id == required.logical_state_id
                and materialization.memory_resource_id in required.memory_resources
                and materialization.representation in required.representations
                and materialization.persistence == "persistent"
                and materialization.requirement == "required"
                for materialization in plan.document.materializations
            ):
                yield Violation(
                    code="plan.state-unmaterialized",
                    subject=execution.id,
                    message=f"requires {required.logical_state_id!r} on {_listed(required.memory_resources)} "
                    f"as {_listed(required.representations)}, "
                    "but no required persistent materialization is planned so",
                )


DOCTRINE_CHECKS: tuple[Callable[[Plan], Iterator[Violation]], ...] = (
    sources_of_state,
    retained_inputs,
    reconstruction_order,
    roles,
    persistence,
    requirements,
    forbidden_copies,
    staging_finals,
    authorities,
    required_state,
)
