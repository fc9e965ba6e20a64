"""The tables of a report: a run's facts as rows, planned beside observed, each with the events that say so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ledger import bodies
from ledger.documents import Finding
from ledger.events import Event
from ledger.measurement import Measurement
from ledger.plan import Materialization, Plan
from ledger.reconcile import Judgement
from ledger.reconcile.peak import required_bytes
from ledger.report.wording import deviation, grouped, how, inert, number, said, shortened, size
from ledger.run_state import MaterializationState, RunState, condition

MOST_DECODES = 400
NUMBERED = frozenset({"pid"})
"""Numbers that name something and count nothing."""

PLAIN_FIGURES = ("rss_anon", "rss_shmem", "rss_file", "tree_sum")


@dataclass(frozen=True)
class Pair:
    """Something planned and the same thing observed. `agrees` is null where one of them is not known."""

    planned: str | None
    observed: str
    source: str
    agrees: bool | None
    declared: bool = False
    """Somebody's word, at which nobody looked."""


@dataclass(frozen=True)
class MaterializationRow:
    """One materialization, planned or not, in its row."""

    number: int
    id: str
    unit: str
    role: str
    requirement: str
    place: Pair
    representation: Pair
    bytes: Pair
    tensors: str
    claimed: str
    condition: str
    tone: str
    figure: str
    assurance: str
    events: list[tuple[str, int]]
    findings: list[tuple[int, Finding]]

    @property
    def differs(self) -> bool:
        """Something observed is not as planned, or not known, or a finding is about it."""
        return bool(self.findings) or any(
            pair.agrees is not True for pair in (self.place, self.representation, self.bytes)
        )


def is_about(finding: Finding, name: str) -> bool:
    """The finding's subject is that id, or begins with it (`ID after-release`)."""
    return finding.subject == name or finding.subject.startswith(f"{name} ")


def materialization_rows(
    plan: Plan | None, state: RunState, judgement: Judgement | None, findings: Sequence[Finding]
) -> list[MaterializationRow]:
    """Planned ones in the plan's order, then what no plan names."""
    planned = plan.materializations if plan is not None else {}
    names = [*planned, *(name for name in state.materializations if name not in planned)]
    return [
        _row(number, name, planned.get(name), state.materializations.get(name), judgement, findings)
        for number, name in enumerate(names)
    ]


def _row(
    number: int,
    name: str,
    wanted: Materialization | None,
    found: MaterializationState | None,
    judgement: Judgement | None,
    findings: Sequence[Finding],
) -> MaterializationRow:
    # A staging form is judged by what was seen while it was there, so the first look counts and not the last.
    seen = found.observed[0].body if found is not None and found.observed else None
    claim = found.realized[0].body if found is not None and found.realized else None
    begun = found.started[0].body if found is not None and found.started else claim
    word, tone = condition(found)
    observed_bytes = seen.bytes if seen is not None else None
    return MaterializationRow(
        number=number,
        id=name,
        unit=wanted.logical_state_id if wanted is not None else begun.logical_state_id if begun is not None else "",
        role=wanted.role if wanted is not None else begun.role if begun is not None else "unplanned",
        requirement=f"{wanted.requirement}, {wanted.persistence}" if wanted is not None else "not in the plan",
        place=_pair(wanted.memory_resource_id if wanted else None, seen.memory_resource_id if seen else None),
        representation=_pair(wanted.representation if wanted else None, seen.representation if seen else None),
        bytes=_bytes(wanted, observed_bytes),
        tensors=said(seen.tensors) if seen is not None else "not observed",
        claimed=f"claimed {said(claim.bytes)}" if claim is not None else "nothing claimed",
        condition=word,
        tone=tone,
        figure=said(observed_bytes) if observed_bytes is not None else "not observed",
        assurance=judgement.assurances.get(name, "") if judgement is not None else "",
        events=_sequences(found),
        findings=[(place, finding) for place, finding in enumerate(findings) if is_about(finding, name)],
    )


def _pair(planned: str | None, observed: Measurement | None) -> Pair:
    known = observed is not None and observed.known and planned is not None
    return Pair(
        planned,
        said(observed) if observed is not None else "not observed",
        how(observed),
        observed.value == planned if known and observed is not None else None,
        _declared(observed),
    )


def _declared(observed: Measurement | None) -> bool:
    return observed is not None and observed.known and not observed.observed


def _bytes(wanted: Materialization | None, observed: Measurement | None) -> Pair:
    if observed is None:
        text = "not observed"
    elif isinstance(observed.value, int):
        text = f"{grouped(observed.value)} B"
    else:
        text = said(observed)
    agrees: bool | None = None
    if wanted is not None and observed is not None and isinstance(observed.value, int | float):
        agrees = abs(observed.value - wanted.expected_bytes) <= (wanted.tolerance_bytes or 0)
    return Pair(
        f"{grouped(wanted.expected_bytes)} B" if wanted is not None else None,
        text,
        how(observed),
        agrees,
        _declared(observed),
    )


def _sequences(found: MaterializationState | None) -> list[tuple[str, int]]:
    """The first event of each kind about it: what the event says, and its sequence."""
    if found is None:
        return []
    kinds: tuple[tuple[str, Sequence[Any]], ...] = (
        ("started", found.started),
        ("claimed", found.realized),
        ("observed", found.observed),
        ("skipped", found.skipped),
        ("failed", found.failed),
        ("authorized", found.authorized),
        ("refused", found.refused),
        ("released", found.released),
    )
    return [(word, seen[0].sequence) for word, seen in kinds if seen]


# --- release ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """What had gone back to the operating system at one look; `share` is 0 to 1 for drawing, null where not known."""

    name: str
    sequence: int
    given_back: str
    ratio: Measurement
    share: float | None
    region: str
    owners: str


@dataclass(frozen=True)
class ReleaseRow:
    id: str
    authorized: int | None
    qualifying: list[str]
    refused: list[tuple[int, str]]
    released: int | None
    bytes_before: Measurement | None
    bytes_after: Measurement | None
    released_bytes: Measurement | None
    owners: str
    phases: list[Phase]
    wanted: float


def release_rows(plan: Plan | None, state: RunState) -> list[ReleaseRow]:
    """Every materialization whose release was planned, decided or done."""
    rows = []
    planned = plan.materializations if plan is not None else {}
    for name in [*planned, *(name for name in state.materializations if name not in planned)]:
        found = state.materializations.get(name)
        staging = name in planned and planned[name].role == "staging"
        if found is None or not (staging or found.authorized or found.refused or found.released or found.reclamations):
            continue
        body = found.released[0].body if found.released else None
        rows.append(
            ReleaseRow(
                id=name,
                authorized=found.authorized[0].sequence if found.authorized else None,
                qualifying=list(found.authorized[0].body.qualifying_ids) if found.authorized else [],
                refused=[(seen.sequence, seen.body.reason) for seen in found.refused],
                released=found.released[0].sequence if found.released else None,
                bytes_before=body.bytes_before if body is not None else None,
                bytes_after=body.bytes_after if body is not None else None,
                released_bytes=body.released_bytes if body is not None else None,
                owners=f"{said(body.owners_alive)} of {said(body.owners_total)}"
                if body is not None
                else "not released",
                phases=list(_phases(found)),
                wanted=plan.host_give_back_ratio if plan is not None else 0.0,
            )
        )
    return rows


def _phases(found: MaterializationState) -> Iterator[Phase]:
    for name, reclaimed in found.reclamations.items():
        if reclaimed.first is None:
            continue
        body = reclaimed.first.body
        before, after = body.tree_before.value, body.tree_after.value
        known = isinstance(before, int | float) and isinstance(after, int | float)
        value = body.ratio.value
        yield Phase(
            name=name,
            sequence=reclaimed.first.sequence,
            given_back=size(before - after) if known else "unknown",  # type: ignore[operator]
            ratio=body.ratio,
            share=min(max(float(value), 0.0), 1.0) if isinstance(value, int | float) else None,
            region={0: "gone", 1: "still mapped"}.get(body.region_mapped.value, said(body.region_mapped)),  # type: ignore[arg-type]
            owners=f"{said(body.owners_alive)} of {said(body.owners_total)}",
        )


# --- resources ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResourceRow:
    id: str
    kind: str
    parent: str | None
    capacity: int
    required: int | None
    bound: str | None
    observed: Measurement | None

    @property
    def share(self) -> float | None:
        """How much of the planned capacity the plan requires, 0 to 1."""
        if self.required is None or self.capacity <= 0:
            return None
        return min(self.required / self.capacity, 1.0)


def resource_rows(plan: Plan | None, state: RunState) -> list[ResourceRow]:
    """Memory Resources as planned, and the observed ones that they were bound to."""
    if plan is None:
        return []
    required = required_bytes(plan)
    bindings = state.accepted.body.bindings if state.accepted is not None else {}
    observed = {r.key: r for r in state.environment.body.memory_resources} if state.environment is not None else {}
    return [
        ResourceRow(
            id=resource.id,
            kind=resource.kind,
            parent=resource.parent,
            capacity=resource.capacity_bytes,
            required=required.get(resource.id),
            bound=bindings.get(resource.id),
            observed=observed[key].capacity_bytes if (key := bindings.get(resource.id)) in observed else None,
        )
        for resource in plan.memory_resources.values()
    ]


# --- decode and events --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecodeRow:
    sequence: int
    execution: str
    what: str
    mode: str
    input: str
    output: str
    exact: bool
    tokens: str
    elapsed: str
    nanoseconds: float | None
    digest: str
    lookups: str


def decode_rows(event: Event, already: int) -> list[DecodeRow]:
    """The row of a decode event, or none: for other events, and past `MOST_DECODES`."""
    body = event.body
    if not isinstance(body, bodies.DecodeRan) or already >= MOST_DECODES:
        return []
    elapsed = body.elapsed_ns.value
    return [
        DecodeRow(
            sequence=event.sequence,
            execution=body.execution_id,
            what="prefill" if body.phase == "prefill" else f"repetition {body.repetition}",
            mode=body.mode,
            input=deviation(body.input),
            output=deviation(body.output),
            exact=body.output.exact.value == 1,
            tokens=said(body.tokens),
            elapsed=said(body.elapsed_ns),
            nanoseconds=float(elapsed) if isinstance(elapsed, int | float) else None,
            digest=said(body.output_digest),
            lookups=said(body.plan_lookups),
        )
    ]


@dataclass(frozen=True)
class EventRow:
    sequence: int
    elapsed: int | None
    recorded_at: str
    kind: str
    family: str
    subject: str
    summary: str
    body: dict[str, Any] | None


def event_row(event: Event, *, whole: bool) -> EventRow:
    """An event in a line; with `whole`, its body beside it."""
    body = event.body
    return EventRow(
        sequence=event.sequence,
        elapsed=event.elapsed_ns,
        recorded_at=event.recorded_at,
        kind=event.type,
        family=event.type.partition(".")[0],
        subject=subject(body),
        summary=summary(body),
        body=json.loads(body.model_dump_json()) if whole else None,
    )


SUBJECTS = ("materialization_id", "execution_id", "label", "logical_state_id")


def subject(body: bodies.Body) -> str:
    """What the event is about: the id that it names, or nothing."""
    return next((value for name in SUBJECTS if isinstance(value := getattr(body, name, None), str)), "")


def summary(body: bodies.Body) -> str:
    """What the event says, in a line: its values by name, measurements in their unit."""
    if isinstance(body, bodies.MemorySampled):
        return ", ".join(f"{key} {said(body.process[key])}" for key in PLAIN_FIGURES if key in body.process)
    parts = []
    for name in type(body).model_fields:
        value = getattr(body, name)
        if name in SUBJECTS or value is None or value in ({}, []):
            continue
        if isinstance(value, Measurement):
            shown = number(value) if name in NUMBERED else said(value)
        elif isinstance(value, bodies.Deviation):
            shown = deviation(value)
        elif isinstance(value, str | int):
            shown = str(value)
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            shown = ", ".join(value)
        elif isinstance(value, list | dict):
            shown = f"({len(value)})"
        else:
            continue
        parts.append(f"{name.replace('_', ' ')} {shortened(shown, 80)}")
    return inert(shortened(", ".join(parts), 260))
