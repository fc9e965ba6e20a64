"""Reading a plan file, and what a plan says at a glance: for people, and as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from realizer.cli.files import read_input
from realizer.cli.rendering import cell, facts, heading, inert, joined, short_digest, size, table, width

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ledger.plan import Plan
    from realizer.cli.documents import PlanSummaryDocument

WIDE = 110
"""Columns from which on the representation gets a column of its own."""


def read_plan(name: str, what: str = "plan") -> Plan:
    """The plan in that file; `-` is standard input. Raises PlanError naming the file."""
    from ledger.plan import parse_plan

    return parse_plan(read_input(name, what), what=f"{what} {name!r}")


def plan_parts(found: Plan) -> Iterator[RenderableType]:
    """The plan for a terminal: which state stays where in which form, and what must hold."""
    document = found.document
    memory = _persistent_bytes(found)
    yield joined(("PLAN", "bold"), short_digest(found.computed_digest), seal_text(found))
    yield facts(
        [
            ("schema", f"{found.schema}, version {document.plan_version}"),
            ("model", f"{document.model.repository} @ {document.model.revision}"),
            ("adapter", document.adapter.name if document.adapter else "none named"),
            ("reference", short_digest(found.correctness.reference_digest)),
            ("correctness", _correctness(found)),
            ("give-back", f"at least {found.host_give_back_ratio:.0%} of staging, unless its private region is gone"),
        ]
    )
    yield from ("", heading("Materializations"), _materializations(found))
    resources = [
        (r.id, r.kind, r.parent or "", size(memory[r.id]), size(r.capacity_bytes))
        for r in found.memory_resources.values()
    ]
    columns = ("resource", "kind", "carved from", "to stay", "capacity")
    yield from ("", heading("Memory"), table(columns, resources, right=columns[-2:]))
    yield from _rest(found)


def seal_text(found: Plan) -> tuple[str, str]:
    """Whether the plan is what its digest says, and the style to say it in."""
    if found.frozen:
        return ("frozen", "bold green")
    if found.claimed_digest is None:
        return ("a draft, not frozen", "yellow")
    return (f"CHANGED: it claims {inert(found.claimed_digest)}", "bold red")


def _correctness(found: Plan) -> str:
    wanted = found.correctness
    bound = "exact" if wanted.mode == "exact" else f"within atol {wanted.atol}, rtol {wanted.rtol}"
    return f"{'prefill and ' if wanted.prefill else ''}{wanted.repetitions} repetitions, {bound}"


def _materializations(found: Plan) -> RenderableType:
    rows: list[list[object]] = []
    wide = width() >= WIDE
    for m in found.document.materializations:
        bytes_text = size(m.expected_bytes)
        if m.streamed_bytes is not None:
            bytes_text += f" (ring; {size(m.streamed_bytes)} pass)"
        optional = "" if m.requirement == "required" else ", optional"
        if wide:
            rows.append([m.id, m.role, m.memory_resource_id, bytes_text, m.representation, m.persistence + optional])
        else:
            rows.append([m.id, m.role, m.memory_resource_id, bytes_text])
            rows.append([cell(f"  {m.representation}", "dim"), cell(m.persistence + optional, "dim"), "", ""])
    columns = ("materialization", "role", "where", "bytes")
    return table((*columns, "representation", "persistence") if wide else columns, rows, right=("bytes",))


def _rest(found: Plan) -> Iterator[RenderableType]:
    document = found.document
    if document.authorities:
        yield from ("", heading("Authority"))
        holders = [(a.lineage, a.logical_state_id, a.materialization_id) for a in document.authorities]
        yield table(("lineage", "state", "held by"), holders)
    if document.execution:
        yield from ("", heading("Execution"))
        bound = [
            (e.id, e.compute_unit_id, ", ".join(r.logical_state_id for r in e.required_state))
            for e in document.execution
        ]
        yield table(("execution", "on", "requires"), bound)
    if document.forbidden_persistent_materializations:
        yield from ("", heading("Must not stay"))
        forbidden = [(f.logical_state_id, f.memory_resource_id) for f in document.forbidden_persistent_materializations]
        yield table(("state", "on"), forbidden)


def _persistent_bytes(found: Plan) -> dict[str, int]:
    """Required persistent bytes per Memory Resource, what is carved from it included."""
    total = dict.fromkeys(found.memory_resources, 0)
    for m in found.document.materializations:
        if m.persistence == "persistent" and m.requirement == "required":
            for resource in found.resource_and_parents(m.memory_resource_id):
                if resource in total:
                    total[resource] += m.expected_bytes
    return total


def plan_summary(found: Plan) -> PlanSummaryDocument:
    """The plan without its tensor keys."""
    from realizer.cli.documents import PlannedMaterialization, PlanSummaryDocument

    document = found.document
    units = found.units
    return PlanSummaryDocument(
        schema_name=found.schema,
        plan_version=document.plan_version,
        plan_digest=found.computed_digest,
        claimed_digest=found.claimed_digest,
        frozen=found.frozen,
        repository=document.model.repository,
        revision=document.model.revision,
        adapter=document.adapter.name if document.adapter else None,
        reference_digest=found.correctness.reference_digest,
        repetitions=found.correctness.repetitions,
        mode=found.correctness.mode,
        materializations=[
            PlannedMaterialization(
                id=m.id,
                logical_state_id=m.logical_state_id,
                semantic_class=units[m.logical_state_id].semantic_class if m.logical_state_id in units else None,
                memory_resource_id=m.memory_resource_id,
                representation=m.representation,
                role=m.role,
                persistence=m.persistence,
                requirement=m.requirement,
                expected_bytes=m.expected_bytes,
                streamed_bytes=m.streamed_bytes,
            )
            for m in document.materializations
        ],
        persistent_required_bytes=_persistent_bytes(found),
        capacity_bytes={r.id: r.capacity_bytes for r in found.memory_resources.values()},
    )
