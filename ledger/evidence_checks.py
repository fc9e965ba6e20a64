"""Whether an evidence file holds together: chain, order, proofs, subjects, plan and blobs, each fault named.

Pure and key-free: this shows that nothing in the file contradicts anything else in it. Who made it is the signature's to
say, and whether a ledger really was in that state the pin's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ledger import canonical
from ledger.bodies import MaterializationObserved, PlanFrozen, RunOpened, VerdictRecorded
from ledger.canonical import StrictJsonError
from ledger.documents import Problem, ProblemCode
from ledger.errors import EventError, EvidenceBroken
from ledger.events import Event, first_previous, read_event
from ledger.evidence_form import SealedEvent, Subject
from ledger.evidence_open import Evidence, decode_base64, hex_nodes
from ledger.merkle import verify_inclusion
from ledger.plan import Plan
from ledger.recording import Recorded

CheckName = Literal["signature", "pin", "chain", "plan", "blobs", "judge"]


MAX_DETAIL = 2_000
"""Characters of a fault that are kept."""


@dataclass(frozen=True)
class Fault:
    """A problem, and the check that it fails."""

    check: CheckName
    problem: Problem


def fault(
    check: CheckName, code: ProblemCode, detail: str, *, position: int | None = None, sequence: int | None = None
) -> Fault:
    """A fault from its parts; what the file says of itself is quoted no longer than anybody reads."""
    return Fault(check, Problem(code=code, detail=detail[:MAX_DETAIL], position=position, sequence=sequence))


def structural_faults(evidence: Evidence) -> list[Fault]:
    """Everything in the file that contradicts something else in it; first faults of a stream first."""
    faults: list[Fault] = []
    plan = _plan(evidence, faults)
    events = _stream(evidence, faults, evidence.run_id, evidence.recorded, "run")
    if events and plan is not None:
        faults += _opening(evidence, plan, events[0])
        faults += _frozen(evidence, events[0])
    faults += _ending(evidence, events)
    witnesses = _witnesses(evidence, faults)
    faults += _proofs(evidence)
    if events and plan is not None:
        faults += _subjects(evidence, plan, events)
        faults += _blobs(evidence, plan, [events, *witnesses])
    faults += _prior_runs(evidence)
    return faults


def _plan(evidence: Evidence, faults: list[Fault]) -> Plan | None:
    sealed = evidence.statement.predicate.plan
    try:
        plan = evidence.plan
    except EvidenceBroken as error:
        faults.append(fault("plan", "format", error.message))
        return None
    for name, stated, computed in (
        ("plan digest", sealed.digest, plan.computed_digest),
        ("digest of the plan's bytes", sealed.blob_digest, plan.blob_digest),
    ):
        if stated != computed:
            faults.append(fault("plan", "content", f"the {name} is {computed}; the file states {stated}"))
    return plan


def _stream(
    evidence: Evidence, faults: list[Fault], run_id: str, records: list[Recorded], what: str
) -> list[Event] | None:
    """The events of one stream when all of it holds; None, with the first fault added, when not."""
    events: list[Event] = []
    seen: set[str] = set()
    previous: str | None = None
    last_position = -1
    for sequence, place in enumerate(records):
        event = _event(faults, place, sequence, what)
        if event is None:
            return None
        wrong = _out_of_place(event, place, run_id, sequence, previous, last_position)
        if wrong is None and event.event_id in seen:
            wrong = "content", f"event id {event.event_id} occurs twice"
        if wrong is None and place.position >= evidence.checkpoint.size:
            wrong = "proof", f"position lies outside the checkpoint's tree of {evidence.checkpoint.size} events"
        if wrong is not None:
            code, detail = wrong
            faults.append(fault("chain", code, f"{what}: {detail}", position=place.position, sequence=sequence))
            return None
        seen.add(event.event_id)
        previous, last_position = place.hash, place.position
        events.append(event)
    return events


def _event(faults: list[Fault], place: Recorded, sequence: int, what: str) -> Event | None:
    try:
        canonical.decode_canonical(place.envelope, what="the envelope")
        return read_event(place.envelope)
    except (StrictJsonError, EventError) as error:
        code: ProblemCode = "unknown-type" if getattr(error, "unknown_type", False) else "content"
        faults.append(fault("chain", code, f"{what}: {error.message}", position=place.position, sequence=sequence))
        return None


def _out_of_place(
    event: Event, place: Recorded, run_id: str, sequence: int, previous: str | None, last_position: int
) -> tuple[ProblemCode, str] | None:
    if event.run_id != run_id:
        return "content", f"the event belongs to run {event.run_id}, not {run_id}"
    if event.sequence != sequence:
        return "gap", f"the event's sequence is {event.sequence}, expected {sequence}"
    if previous is not None and event.previous != previous:
        return "linkage", f"`previous` is {event.previous}, but the event before it has hash {previous}"
    if place.position <= last_position:
        return "linkage", f"its position does not follow position {last_position} of the event before it"
    return None


def _opening(evidence: Evidence, plan: Plan, first: Event) -> list[Fault]:
    place = evidence.recorded[0]
    if not isinstance(first.body, RunOpened) or first.body.plan is None:
        return [fault("chain", "content", "the run does not begin with run.opened and a plan", position=place.position)]
    expected = plan.computed_digest.removeprefix("sha256:")
    found = []
    if first.previous != expected:
        found.append(
            fault(
                "plan",
                "linkage",
                f"the run was opened on plan {first.previous}; the plan in the file has digest {expected}",
                position=place.position,
                sequence=0,
            )
        )
    reference = first.body.plan
    for name, stated, computed in (
        ("claimed digest", reference.claimed_digest, plan.claimed_digest),
        ("digest of bytes", reference.blob_digest, plan.blob_digest),
        ("schema", reference.plan_schema, plan.schema),
    ):
        if stated != computed:
            detail = f"run.opened names a plan with {name} {stated}; the plan in the file has {computed}"
            found.append(fault("plan", "content", detail, position=place.position, sequence=0))
    return found


def _frozen(evidence: Evidence, first: Event) -> list[Fault]:
    cited = first.body.frozen if isinstance(first.body, RunOpened) else None
    place = evidence.plan_frozen
    if cited is None and place is None:
        return []
    if cited is None or place is None:
        what = "carries a plan.frozen event that run.opened does not cite"
        if place is None:
            what = "lacks the plan.frozen event that run.opened cites"
        return [fault("chain", "proof", f"the evidence {what}")]
    faults: list[Fault] = []
    event = _event(faults, place, 0, "freezing")
    if event is None:
        return faults
    if place.hash != cited.hash:
        detail = f"freezing: run.opened cites {cited.hash}, the evidence carries {place.hash}"
        return [fault("chain", "linkage", detail, position=place.position)]
    body = event.body
    if not isinstance(body, PlanFrozen) or event.sequence != 0:
        return [fault("chain", "content", "freezing: not a plan.frozen event", position=place.position)]
    if body.digest != cited.digest or event.previous != first_previous(body):
        return [fault("chain", "linkage", "freezing: it is of another digest than cited", position=place.position)]
    return []


def _ending(evidence: Evidence, events: list[Event] | None) -> list[Fault]:
    last = evidence.recorded[-1]
    if last.position != evidence.checkpoint.size - 1:
        detail = f"the tree has {evidence.checkpoint.size} events, but the run's last event here is not its last leaf"
        return [fault("chain", "tail", detail, position=last.position, sequence=len(evidence.recorded) - 1)]
    for sequence, event in enumerate((events or [])[:-1]):
        if isinstance(event.body, VerdictRecorded):
            detail = "the evidence ends at the first verdict, and events follow it here"
            return [fault("chain", "tail", detail, position=evidence.recorded[sequence].position, sequence=sequence)]
    return []


def _witnesses(evidence: Evidence, faults: list[Fault]) -> list[list[Event]]:
    streams = []
    ids = [witness.run_id for witness in evidence.statement.predicate.witnesses]
    if len(set(ids)) != len(ids) or evidence.run_id in ids:
        faults.append(fault("chain", "format", "a witness occurs twice, or is the run itself"))
    for run_id, records in zip(ids, evidence.witness_records, strict=True):
        events = _stream(evidence, faults, run_id, records, f"witness {run_id}")
        if events is None:
            continue
        opened = events[0].body if events else None
        if not isinstance(opened, RunOpened) or opened.witness_of != evidence.run_id:
            faults.append(fault("chain", "content", f"run {run_id} is no witness of run {evidence.run_id}"))
            continue
        if events[0].previous != first_previous(opened):
            detail = f"witness {run_id}: its first event is not linked to its plan"
            faults.append(fault("chain", "linkage", detail, position=records[0].position, sequence=0))
            continue
        streams.append(events)
    return streams


def sealed_events(evidence: Evidence) -> Iterator[tuple[SealedEvent, Recorded]]:
    """Every envelope in the file with its place: the run's, the freezing, the witnesses'."""
    predicate = evidence.statement.predicate
    yield from zip(predicate.events, evidence.recorded, strict=True)
    if predicate.plan_frozen is not None and evidence.plan_frozen is not None:
        yield predicate.plan_frozen, evidence.plan_frozen
    for witness, records in zip(predicate.witnesses, evidence.witness_records, strict=True):
        yield from zip(witness.events, records, strict=True)


def _proofs(evidence: Evidence) -> Iterator[Fault]:
    tree = evidence.checkpoint
    positions: set[int] = set()
    for sealed, place in sealed_events(evidence):
        nodes = hex_nodes(sealed.inclusion)
        leaf = bytes.fromhex(place.hash)
        if nodes is None or not verify_inclusion(leaf, place.position, tree.size, nodes, tree.root):
            detail = f"no proof that this event is leaf {place.position} of the checkpoint's tree of {tree.size}"
            yield fault("chain", "proof", detail, position=place.position)
            return
        if place.position in positions:
            yield fault("chain", "proof", "two events claim one position", position=place.position)
            return
        positions.add(place.position)


def _subjects(evidence: Evidence, plan: Plan, events: list[Event]) -> list[Fault]:
    if evidence.statement.subject == subjects(plan, evidence.recorded, events):
        return []
    return [fault("plan", "content", "the statement's subjects are not the plan, files and last event that it carries")]


def subjects(plan: Plan, records: list[Recorded], events: list[Event]) -> list[Subject]:
    """What the statement is about, in this order: the plan, the checkpoint files hashed in the run, its last event.

    `sha256` is over the bytes of the plan file, of the checkpoint file, and of the envelope. The plan also has
    `planDigest` (the R1 rule), the event `eventHash` (SHA-256(0x00 || envelope), its leaf).
    """
    found = [
        Subject(
            name="plan",
            digest={
                "planDigest": plan.computed_digest.removeprefix("sha256:"),
                "sha256": plan.blob_digest.removeprefix("sha256:"),
            },
        )
    ]
    opened = events[0].body
    for file in opened.checkpoint_files if isinstance(opened, RunOpened) else []:
        if file.digest.observed and isinstance(file.digest.value, str):
            digest = file.digest.value.removeprefix("sha256:")
            found.append(Subject(name=f"checkpoint/{file.name}", digest={"sha256": digest}))
    last = records[-1]
    digest = canonical.sha256_digest(last.envelope.encode("utf-8")).removeprefix("sha256:")
    name = f"run/{events[-1].run_id}/{len(records) - 1}"
    found.append(Subject(name=name, digest={"eventHash": last.hash, "sha256": digest}))
    return found


def blob_references(events: list[Event]) -> Iterator[str]:
    """Digests of the documents that these events refer to, plans included."""
    for event in events:
        body = event.body
        if isinstance(body, PlanFrozen):
            yield body.blob_digest
        elif isinstance(body, RunOpened) and body.plan is not None:
            yield body.plan.blob_digest
        elif isinstance(body, MaterializationObserved) and body.tensors_blob is not None:
            yield body.tensors_blob


def expected_blobs(plan: Plan, streams: list[list[Event]]) -> list[str]:
    """Digests that stand in the predicate's `blobs`: all that these streams refer to but the plan itself, sorted."""
    return sorted({digest for events in streams for digest in blob_references(events)} - {plan.blob_digest})


def _blobs(evidence: Evidence, plan: Plan, streams: list[list[Event]]) -> Iterator[Fault]:
    blobs = evidence.statement.predicate.blobs
    listed = [blob.digest for blob in blobs]
    there = set(listed)
    expected = expected_blobs(plan, streams)
    for digest in expected:
        if digest not in there:
            yield fault("blobs", "blob-missing", f"events refer to {digest}; the evidence does not list it")
    if not there <= set(expected) or listed != sorted(there):
        yield fault("blobs", "format", "the list of blobs is not the sorted list of what events refer to")
    for blob in blobs:
        if blob.data is None:
            continue
        try:
            computed = canonical.sha256_digest(decode_base64(blob.data, f"blob {blob.digest}"))
        except EvidenceBroken as error:
            yield fault("blobs", "format", error.message)
            continue
        if computed != blob.digest:
            yield fault("blobs", "blob-altered", f"blob {blob.digest} has digest {computed}")


def _prior_runs(evidence: Evidence) -> Iterator[Fault]:
    opened = evidence.recorded[0].position
    positions = [prior.position for prior in evidence.statement.predicate.prior_runs]
    ids = {prior.run_id for prior in evidence.statement.predicate.prior_runs}
    if positions != sorted(set(positions)) or len(ids) != len(positions) or evidence.run_id in ids:
        yield fault("chain", "format", "prior runs are not listed once each in order of position")
    if any(not 0 <= position < opened for position in positions):
        yield fault("chain", "format", f"a prior run does not lie before this run's first event at {opened}")
