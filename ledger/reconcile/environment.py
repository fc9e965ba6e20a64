"""Family `environment`: the machine and the checkpoint are the planned ones, as seen and not as copied from the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ledger.bodies import CheckpointFile, EnvironmentObserved, ObservedComputeUnit, ObservedMemoryResource, Violation
from ledger.documents import Finding
from ledger.measurement import Measurement
from ledger.plan import ComputeUnit, MemoryResource, Plan, PlannedFile
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.peak import required_bytes
from ledger.reconcile.reading import HOST_KINDS, known, number, shown
from ledger.run_state import BYTES, RunState, Seen, trust

ENVIRONMENT: list[Invariant] = []

OF_A_DEVICE = ".vram"
"""What the key of a device's own memory ends with; what stands before it names the device, and its address space."""


# --- binding ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """A planned Compute Unit or Memory Resource and what of the machine it is: bound, absent, or not known."""

    plan_id: str
    key: str | None
    certainty: Literal["bound", "absent", "unknown"]


def bind_environment(plan: Plan, environment: EnvironmentObserved) -> tuple[dict[str, str], list[Violation]]:
    """(plan id -> observed key, every reason why the plan does not fit the machine).

    The rule that the judge applies afterwards: Compute Units bind by kind and device UUID, Memory Resources by kind and,
    where a device carries them, by that device; each must hold what the plan may have live on it at once.
    """
    units = bind_compute_units(plan, environment)
    resources = bind_memory_resources(plan, environment, units)
    violations = []
    for bound in units.values():
        if bound.key is None:
            planned = plan.compute_units[bound.plan_id]
            wanted = f"kind {planned.kind!r}" + (f" with device {planned.device_uuid}" if planned.device_uuid else "")
            seen = ", ".join(_unit_text(unit) for unit in environment.compute_units) or "none"
            violations.append(
                Violation(
                    code="environment.unit-mismatch",
                    subject=bound.plan_id,
                    message=f"Compute Unit of {wanted} planned; this machine shows {seen}",
                )
            )
    for bound in resources.values():
        kind = plan.memory_resources[bound.plan_id].kind
        if bound.key is None:
            violations.append(
                Violation(
                    code="environment.resource-missing",
                    subject=bound.plan_id,
                    message=f"Memory Resource of kind {kind!r} planned; this machine shows none for it",
                )
            )
    for name, (needed, capacity) in _overfull(plan, environment, resources).items():
        violations.append(
            Violation(
                code="environment.capacity-exceeded",
                subject=name,
                message=f"{needed} bytes may be live at once, but {resources[name].key} of this machine has {capacity}",
            )
        )
    keys = {bound.plan_id: bound.key for bound in (*units.values(), *resources.values()) if bound.key is not None}
    return keys, violations


def bind_compute_units(
    plan: Plan, environment: EnvironmentObserved, recorded: Mapping[str, str] | None = None
) -> dict[str, Bound]:
    """Each planned Compute Unit: by kind, and by device UUID where the plan names one. A device is bound once.

    `recorded` are bindings that the run itself recorded; they bind only where they fit.
    """
    bound: dict[str, Bound] = {}
    taken: set[str] = set()
    for planned in sorted(plan.compute_units.values(), key=lambda unit: (unit.device_uuid is None, unit.id)):
        candidates = [
            unit
            for unit in environment.compute_units
            if (recorded or {}).get(planned.id, unit.key) == unit.key and unit.key not in taken
        ]
        fitting = [unit for unit in candidates if _unit_fits(planned, unit) is True]
        if fitting:
            bound[planned.id] = Bound(planned.id, fitting[0].key, "bound")
            if planned.kind != "cpu":
                taken.add(fitting[0].key)
        elif any(_unit_fits(planned, unit) is None for unit in candidates):
            bound[planned.id] = Bound(planned.id, None, "unknown")
        else:
            bound[planned.id] = Bound(planned.id, None, "absent")
    return bound


def _unit_fits(planned: ComputeUnit, seen: ObservedComputeUnit) -> bool | None:
    facts: list[tuple[Measurement, str]] = [(seen.kind, planned.kind)]
    if planned.device_uuid is not None:
        facts.append((seen.device_uuid, planned.device_uuid))
    return _all_equal(facts)


def _all_equal(facts: list[tuple[Measurement, str]]) -> bool | None:
    if any(known(measurement) and measurement.value != wanted for measurement, wanted in facts):
        return False
    return True if all(known(measurement) for measurement, _ in facts) else None


def _unit_text(unit: ObservedComputeUnit) -> str:
    uuid = f" {unit.device_uuid.value}" if unit.device_uuid.value else ""
    return f"{unit.kind.value or 'a unit of unknown kind'}{uuid}"


def bind_memory_resources(
    plan: Plan,
    environment: EnvironmentObserved,
    units: Mapping[str, Bound],
    recorded: Mapping[str, str] | None = None,
) -> dict[str, Bound]:
    """Each planned Memory Resource: by kind; where a bound device carries it, among that device's own."""
    bound: dict[str, Bound] = {}
    for planned in sorted(plan.memory_resources.values(), key=lambda resource: resource.id):
        candidates = [
            resource
            for resource in _carried(plan, environment, units, planned)
            if (recorded or {}).get(planned.id, resource.key) == resource.key
        ]
        fitting = [resource for resource in candidates if known(resource.kind) and resource.kind.value == planned.kind]
        if fitting:
            bound[planned.id] = Bound(planned.id, fitting[0].key, "bound")
        elif any(not known(resource.kind) for resource in candidates):
            bound[planned.id] = Bound(planned.id, None, "unknown")
        else:
            bound[planned.id] = Bound(planned.id, None, "absent")
    return bound


def _carried(
    plan: Plan, environment: EnvironmentObserved, units: Mapping[str, Bound], planned: MemoryResource
) -> list[ObservedMemoryResource]:
    """Observed resources that may be the planned one: its device's, else the machine's."""
    owners = {
        bound.key
        for unit in plan.compute_units.values()
        if planned.id in unit.memory_resources and (bound := units[unit.id]).key is not None
    }
    if owners and planned.kind not in HOST_KINDS:
        theirs = {key for unit in environment.compute_units if unit.key in owners for key in unit.memory_resources}
        return [resource for resource in environment.memory_resources if resource.key in theirs]
    return list(environment.memory_resources)


def _overfull(
    plan: Plan, environment: EnvironmentObserved, resources: Mapping[str, Bound]
) -> dict[str, tuple[int, int | float]]:
    """Planned resource -> (bytes that may be live at once, observed capacity), where the first is more."""
    capacities: dict[str, int | float] = {}
    for resource in environment.memory_resources:
        if (size := number(resource.capacity_bytes)) is not None:
            capacities[resource.key] = min(size, capacities.get(resource.key, size))
    found = {}
    for name, needed in required_bytes(plan).items():
        key = resources[name].key
        capacity = capacities.get(key) if key is not None else None
        if capacity is not None and needed > capacity:
            found[name] = (needed, capacity)
    return found


def bindings_of(
    plan: Plan, state: RunState, seen: Seen[EnvironmentObserved]
) -> tuple[dict[str, Bound], dict[str, Bound]]:
    """(Compute Units, Memory Resources) as bound by what the run recorded, checked against what was seen."""
    recorded = state.accepted.body.bindings if state.accepted is not None else {}
    units = bind_compute_units(plan, seen.body, recorded)
    return units, bind_memory_resources(plan, seen.body, units, recorded)


def device_spaces(plan: Plan, state: RunState) -> dict[str, str]:
    """Planned Memory Resource of a device -> the address space of the device that it was bound to, where that is known."""
    spaces = {}
    for seen in state.environments:
        for bound in bindings_of(plan, state, seen)[1].values():
            if bound.key is not None and bound.key.endswith(OF_A_DEVICE):
                spaces[bound.plan_id] = bound.key.removesuffix(OF_A_DEVICE)
    return spaces


# --- invariants ---------------------------------------------------------------------------------------------------


@declare(ENVIRONMENT, "environment.unit-mismatch")
def compute_units_are_the_planned_ones(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Each planned Compute Unit is one that the machine shows: of its kind and, where planned, with its device UUID.

    The same bytes on another device are another arrangement.
    """
    for seen in state.environments:
        units, _ = bindings_of(plan, state, seen)
        for bound in units.values():
            if bound.certainty == "absent":
                planned = plan.compute_units[bound.plan_id]
                yield finding(
                    "environment.unit-mismatch",
                    bound.plan_id,
                    expected={"kind": planned.kind, "device_uuid": planned.device_uuid},
                    observed=[_unit_text(unit) for unit in seen.body.compute_units],
                    events=[seen.sequence],
                )


@declare(ENVIRONMENT, "environment.resource-missing")
def memory_resources_exist(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Each planned Memory Resource is one that the machine shows: of its kind, on its device where a device carries it, and
    carved from the planned one where the machine says from which.

    State cannot be resident in memory that is not there.
    """
    for seen in state.environments:
        _, resources = bindings_of(plan, state, seen)
        for bound in resources.values():
            if bound.certainty == "absent":
                yield finding(
                    "environment.resource-missing",
                    bound.plan_id,
                    expected=plan.memory_resources[bound.plan_id].kind,
                    observed=sorted(str(resource.kind.value) for resource in seen.body.memory_resources),
                    events=[seen.sequence],
                )
        for planned in plan.memory_resources.values():
            whole = resources.get(planned.parent or "")
            key = resources[planned.id].key
            parents = {one.parent for one in seen.body.memory_resources if one.key == key and one.parent is not None}
            if whole is not None and whole.key is not None and key is not None and parents - {whole.key}:
                yield finding(
                    "environment.resource-missing",
                    planned.id,
                    expected=f"carved from {whole.key}",
                    observed=sorted(parents),
                    events=[seen.sequence],
                )


@declare(ENVIRONMENT, "environment.capacity-exceeded")
def machine_holds_the_plan(plan: Plan, state: RunState) -> Iterator[Finding]:
    """What the plan may have live at once on a Memory Resource, staging included, fits what the machine has there.

    Counting persistent bytes alone lets a staging larger than the host's memory pass.
    """
    for seen in state.environments:
        _, resources = bindings_of(plan, state, seen)
        for name, (needed, capacity) in _overfull(plan, seen.body, resources).items():
            yield finding(
                "environment.capacity-exceeded",
                name,
                expected=f"at most {capacity}",
                observed=needed,
                events=[seen.sequence],
            )


@declare(ENVIRONMENT, "environment.model-mismatch")
def checkpoint_is_the_planned_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The checkpoint is the planned model at the planned revision, with the planned config, tensor headers and files, and
    no others; the adapter that realises it is the one that the plan names.

    Another adapter knows another model by the same keys. Repository and revision may be unknown for a local directory:
    then the planned digests must settle it, and where the plan has none, whether it is the same model is unknown.
    """
    for opening in state.openings:
        model, planned = opening.body.model, plan.document.model
        facts = [
            ("repository", planned.repository, model.repository if model else None),
            ("revision", planned.revision, model.revision if model else None),
        ]
        digests = [
            ("config_digest", planned.config_digest, model.config_digest if model else None),
            ("headers_digest", planned.headers_digest, model.headers_digest if model else None),
        ]
        digests = [fact for fact in digests if fact[1] is not None]
        settled = len(digests) == 2 and all(known(seen) for _, _, seen in digests)
        for what, expected, seen in facts + digests:
            is_known = seen is not None and known(seen)
            if is_known and seen is not None and seen.value == expected:
                continue
            if not is_known and settled:
                continue
            yield finding(
                "environment.model-mismatch",
                f"model.{what}",
                expected=expected,
                observed=shown(seen),
                events=[opening.sequence],
                unknown=not is_known,
            )
        yield from _files(plan, opening)
        yield from _adapter(plan, opening)


def _adapter(plan: Plan, opening: Seen) -> Iterator[Finding]:
    """Plans of the R1 dialect name none; a witness and an importer have none."""
    planned, used = plan.document.adapter, opening.body.adapter
    if planned is None or opening.body.purpose != "realization" or (used is not None and used.name == planned.name):
        return
    yield finding(
        "environment.model-mismatch",
        "adapter",
        expected=planned.name,
        observed=used.name if used is not None else "not recorded",
        events=[opening.sequence],
        unknown=used is None,
    )


def _files(plan: Plan, opening: Seen) -> Iterator[Finding]:
    wanted = plan.document.checkpoint.files if plan.document.checkpoint else []
    others = sorted({file.name for file in opening.body.checkpoint_files} - {planned.name for planned in wanted})
    if wanted and others:
        yield finding(
            "environment.model-mismatch",
            "checkpoint.files",
            expected=sorted(planned.name for planned in wanted),
            observed={"not planned": others},
            events=[opening.sequence],
        )
    for planned in wanted:
        named = [file for file in opening.body.checkpoint_files if file.name == planned.name]
        for file in named or [None]:
            yield from _file(planned, file, opening)


def _file(planned: PlannedFile, file: CheckpointFile | None, opening: Seen) -> Iterator[Finding]:
    facts: list[tuple[str, object, Measurement | None]] = [("size", planned.size, file.size if file else None)]
    if planned.digest is not None:
        facts.append(("digest", planned.digest, file.digest if file else None))
    for what, expected, seen in facts:
        is_known = known(seen, BYTES if what == "size" else None)
        if is_known and seen is not None and seen.value == expected:
            continue
        yield finding(
            "environment.model-mismatch",
            f"{planned.name}.{what}",
            expected=expected,
            observed=shown(seen),
            events=[opening.sequence],
            unknown=not is_known,
        )


@declare(ENVIRONMENT, "environment.not-observed")
def environment_was_looked_at(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Kind, device UUID and capacity of what the plan uses were measured on the machine, before the run's first step.

    An environment that was declared, or copied from the plan, always fits the plan.
    """
    if not state.environments:
        yield finding(
            "environment.not-observed", "environment", expected="environment.observed", observed="not recorded"
        )
    if state.environments and state.first_step is not None and state.environments[0].sequence > state.first_step:
        yield finding(
            "environment.not-observed",
            "environment",
            expected="environment.observed before the first step",
            observed="afterwards",
            events=[state.first_step, state.environments[0].sequence],
        )
    if state.environments and state.accepted is not None and state.environments[0].sequence > state.accepted.sequence:
        yield finding(
            "environment.not-observed",
            "environment",
            expected="environment.observed before plan.accepted",
            observed="afterwards",
            events=[state.accepted.sequence, state.environments[0].sequence],
        )
    for seen in state.environments:
        units, resources = bindings_of(plan, state, seen)
        by_key = {unit.key: unit for unit in seen.body.compute_units}
        memory_by_key = {resource.key: resource for resource in seen.body.memory_resources}
        for bound in units.values():
            unit = by_key.get(bound.key) if bound.key is not None else None
            facts = [("kind", unit.kind)] if unit else []
            if unit and plan.compute_units[bound.plan_id].device_uuid is not None:
                facts.append(("device_uuid", unit.device_uuid))
            yield from _unseen(seen, bound, facts)
        for bound in resources.values():
            resource = memory_by_key.get(bound.key) if bound.key is not None else None
            facts = [("kind", resource.kind), ("capacity_bytes", resource.capacity_bytes)] if resource else []
            yield from _unseen(seen, bound, facts)


def _unseen(seen: Seen[EnvironmentObserved], bound: Bound, facts: list[tuple[str, Measurement]]) -> Iterator[Finding]:
    if bound.certainty == "unknown":
        yield finding(
            "environment.not-observed",
            bound.plan_id,
            expected="measured on the machine",
            observed="nothing on the machine is known to be it",
            events=[seen.sequence],
        )
    unmeasured = {
        what: shown(measurement)
        for what, measurement in facts
        if trust(measurement, BYTES if what == "capacity_bytes" else None) != "observed"
    }
    if unmeasured:
        yield finding(
            "environment.not-observed",
            bound.plan_id,
            expected="measured on the machine",
            observed=unmeasured,
            events=[seen.sequence],
        )
