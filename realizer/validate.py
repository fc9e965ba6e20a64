"""May this plan be carried out here? Plan, machine, checkpoint and adapter laid together; every violation at once.

Nothing is allocated before this has accepted. What is planned is bound to what the machine shows by the same rule that
the judge applies afterwards (`ledger.reconcile.environment`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledger.bodies import EnvironmentObserved, Violation
from ledger.errors import NotFound, TallyError
from ledger.plan import Plan
from ledger.plan_checks import check_plan
from ledger.reconcile.environment import bind_environment
from ledger.reconcile.peak import required_bytes
from realizer import answers
from realizer.adapter import Adapter, PlanHandle, adapter_for
from realizer.checkpoint import Checkpoint


@dataclass(frozen=True)
class Validation:
    """What came out: violations (none: accepted), the adapter ready to realise, and plan id -> observed key."""

    violations: list[Violation]
    bindings: dict[str, str]
    required_bytes: dict[str, int]
    adapter: Adapter | None


def validate(
    handle: PlanHandle,
    environment: EnvironmentObserved,
    checkpoint: Checkpoint,
    adapter: type[Adapter] | None,
    reference_digest: str | None,
) -> Validation:
    """Every reason why the plan cannot be carried out here.

    `adapter` null means the one that the plan names; another than that is a violation. `reference_digest` is that of the
    fixture at hand, or null.
    """
    plan = handle.plan
    violations = list(check_plan(plan))
    if not plan.frozen and plan.claimed_digest is None:
        violations.append(Violation(code="plan.not-frozen", subject="plan", message="it carries no digest: freeze it"))
    bindings, unbound = bind_environment(plan, environment)
    violations += unbound
    violations += _model(plan, checkpoint)
    violations += _reference(plan, reference_digest)
    violations += _ranges(plan)
    instance: Adapter | None = None
    try:
        adapter = adapter or adapter_for(plan)
        answers.require_members(adapter)
        planned = plan.document.adapter
        if planned is not None and planned.name != adapter.name:
            other = f"adapter {adapter.name!r} was asked for; the plan names {planned.name!r}"
            violations.append(Violation(code="adapter.not-planned", subject="plan", message=other))
        why = answers.unsupported(adapter, checkpoint)
        if why is not None:
            violations.append(Violation(code="adapter.unsupported", subject=adapter.name, message=why))
        else:
            instance = answers.built(adapter, handle, checkpoint)
            violations += [
                Violation(code="adapter.refused", subject=subject, message=message)
                for subject, message in answers.violations(instance)
            ]
            violations += _expected_bytes(plan, instance)
    except answers.AdapterFault:
        raise  # no fault of the plan: the run fails
    except NotFound as error:
        violations.append(Violation(code="adapter.unknown", subject="plan", message=str(error)))
    except TallyError as error:
        violations.append(Violation(code="adapter.refused", subject="plan", message=str(error)))
    return Validation(violations, bindings, required_bytes(plan), instance)


OWN_REMEDIES = {
    "plan.not-frozen": "seal the draft with `tally plan freeze`",
    "plan.digest-mismatch": "take the plan as it was frozen, or freeze it anew",
    "reference.mismatch": "give the fixture that the plan was frozen with as --reference",
}
"""What helps against a violation that no other machine, checkpoint or draft would mend, by its code."""


def remedy(violations: Sequence[Violation]) -> str:
    """What whoever asked for the plan may try: one piece of advice for each kind of violation, no piece twice."""
    redraft = "draft a plan for this machine and checkpoint with `tally plan draft`"
    return "; ".join(dict.fromkeys(OWN_REMEDIES.get(violation.code, redraft) for violation in violations))


def _model(plan: Plan, checkpoint: Checkpoint) -> list[Violation]:
    """The checkpoint at hand is the planned one: identity as far as either side knows it, then contents."""
    planned = plan.document.model
    pairs = [
        ("repository", planned.repository, checkpoint.repository),
        ("revision", planned.revision, checkpoint.revision),
    ]
    if planned.config_digest is not None:
        pairs.append(("config digest", planned.config_digest, checkpoint.config_digest))
    if planned.headers_digest is not None:
        pairs.append(("tensor headers digest", planned.headers_digest, checkpoint.headers_digest))
    violations = [
        Violation(
            code="model.mismatch",
            subject="model",
            message=f"{what}: planned {expected}, the checkpoint at hand has {found}",
        )
        for what, expected, found in pairs
        # A local directory has no repository name of its own: what it does not say cannot contradict the plan.
        if found is not None and found != expected
    ]
    names = {shard.name: shard for shard in checkpoint.files}
    for file in plan.document.checkpoint.files if plan.document.checkpoint else []:
        shard = names.get(file.name)
        if shard is None:
            violations.append(_file(file.name, "planned, but the checkpoint has no such file"))
        elif shard.size != file.size:
            violations.append(_file(file.name, f"{file.size} bytes planned, {shard.size} found"))
    for unit in plan.document.logical_state_units:
        if unit.selection is None:
            continue
        from ledger.plan import keys_digest

        keys = [key for key in checkpoint.tensors if unit.selection.matches(key)]
        if len(keys) != unit.selection.count or keys_digest(keys) != unit.selection.keys_digest:
            violations.append(
                Violation(
                    code="model.selection-mismatch",
                    subject=unit.id,
                    message=f"selects {unit.selection.count} planned tensors; in this checkpoint its patterns match "
                    f"{len(keys)}{' other ones' if len(keys) == unit.selection.count else ''}",
                )
            )
    return violations


def _file(name: str, message: str) -> Violation:
    return Violation(code="model.file-mismatch", subject=name, message=message)


def _reference(plan: Plan, reference_digest: str | None) -> list[Violation]:
    planned = plan.correctness.reference_digest
    if planned == reference_digest or planned is None:
        return []
    found = reference_digest or "none: give it with --reference"
    return [
        Violation(
            code="reference.mismatch",
            subject="correctness",
            message=f"the plan binds reference {planned}; the one at hand is {found}",
        )
    ]


def _ranges(plan: Plan) -> list[Violation]:
    """Memory Resource kinds that this realizer can allocate in."""
    from realizer.memory import KINDS

    return [
        Violation(
            code="environment.resource-unsupported",
            subject=materialization.id,
            message=f"memory kind {resource.kind!r} is none of those this program allocates in: {', '.join(KINDS)}",
        )
        for materialization in plan.document.materializations
        if (resource := plan.memory_resources.get(materialization.memory_resource_id)) is not None
        and resource.kind not in KINDS
    ]


def _expected_bytes(plan: Plan, adapter: Adapter) -> list[Violation]:
    """Planned representation and bytes are what the adapter's layout takes. A streamed ring is the plan's to size."""
    violations = []
    for materialization in plan.document.materializations:
        if materialization.streamed_bytes is not None:
            continue
        try:
            layout = answers.layout(adapter, materialization.id)
        except answers.AdapterFault:
            raise
        except TallyError as error:
            violations.append(Violation(code="adapter.refused", subject=materialization.id, message=str(error)))
            continue
        if layout.representation != materialization.representation:
            violations.append(
                Violation(
                    code="adapter.representation-unsupported",
                    subject=materialization.id,
                    message=f"representation {materialization.representation!r} planned; the adapter makes "
                    f"{layout.representation!r} here",
                )
            )
        elif layout.bytes != materialization.expected_bytes:
            violations.append(
                Violation(
                    code="adapter.bytes-mismatch",
                    subject=materialization.id,
                    message=f"{materialization.expected_bytes} bytes planned; this checkpoint's tensors take "
                    f"{layout.bytes}",
                )
            )
    return violations
