"""From an open ledger to evidence: which events, which proofs, which prior runs; and a ledger's view for verifying one.

Everything is taken as at the tree that ends with the run's first verdict (else with its last event), so that exporting
again gives the same bytes however much the ledger has grown.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import canonical
from ledger.bodies import RunClosed, RunOpened, RunSuperseded, VerdictRecorded
from ledger.body_parts import ModelIdentity
from ledger.checkpoints import Checkpoint
from ledger.errors import LedgerBroken, NotFound, PlanError, TallyError
from ledger.events import Event, read_event
from ledger.evidence import Evidence, EvidenceInput, LedgerView, PriorRun, Proven, seal
from ledger.evidence_checks import expected_blobs
from ledger.measurement import Measurement
from ledger.merkle import HASH_BYTES, Frontier, inclusion_proofs
from ledger.plan import Plan, parse_plan
from ledger.recording import Recorded
from ledger.store import Store

_SIGNS = tuple(f'"type":"{body.TYPE}"' for body in (RunOpened, RunClosed, VerdictRecorded))
"""How the events that say how a run went are told without parsing all: in a body's strings quotes are escaped."""


def export_run(store: Store, run_id: str, key: Ed25519PrivateKey | None = None, *, attach: bool = False) -> bytes:
    """The evidence file of a run; signed when a key is given; with `attach`, documents that events refer to are in it.

    Raises NotFound for an unknown run, TallyError for one without a plan, LedgerBroken when the ledger lacks its plan or
    a document to attach, EvidenceBroken when what the ledger holds does not hold together.
    """
    return seal(evidence_input(store, run_id, attach=attach), key)


def left_out(bundle: EvidenceInput) -> list[str]:
    """Digests of the documents that a run's events refer to and its evidence does not carry."""
    streams = [[read_event(one.recorded.envelope) for one in stream] for stream in (bundle.events, *bundle.witnesses)]
    named = expected_blobs(parse_plan(bundle.plan_data, what="the run's plan"), streams)
    return [digest for digest in named if digest not in bundle.attached]


def evidence_input(store: Store, run_id: str, *, attach: bool = False) -> EvidenceInput:
    """What a run's evidence is made of, read out of a ledger (see `export_run`)."""
    records, events = _run(store, run_id)
    opened = events[0].body
    assert isinstance(opened, RunOpened), "_run returns a stream that begins with run.opened"
    if opened.plan is None:
        watched = f"`tally export {opened.witness_of}`" if opened.witness_of else "the run that it watched"
        raise TallyError(f"run {run_id} is a witness without a plan of its own", f"it is exported with {watched}")
    plan_data = _blob(store, opened.plan.blob_digest, "the run's plan")
    plan = parse_plan(plan_data, what="the run's plan")
    size = records[-1].position + 1
    survey = _survey(store, size)
    frozen = survey.recorded.get(opened.frozen.position) if opened.frozen else None
    if frozen is None and opened.frozen is not None:
        # The run came from another ledger, where the freezing stood elsewhere.
        frozen = next((place for place in survey.recorded.values() if place.hash == opened.frozen.hash), None)
    witnesses = _witnesses(store, run_id, size)
    attached = {}
    if attach:
        streams = [events, *([read_event(place.envelope) for place in witness] for witness in witnesses)]
        wanted = expected_blobs(plan, streams)
        attached = {digest: _blob(store, digest, "a document that events refer to") for digest in wanted}
    every = [*records, *([frozen] if frozen else []), *(place for witness in witnesses for place in witness)]
    root, proofs = inclusion_proofs(survey.nodes(), [place.position for place in every], size)
    return EvidenceInput(
        plan_data=plan_data,
        events=[Proven(place, proofs[place.position]) for place in records],
        checkpoint=Checkpoint(store.origin, size, root),
        plan_frozen=Proven(frozen, proofs[frozen.position]) if frozen else None,
        witnesses=[[Proven(place, proofs[place.position]) for place in witness] for witness in witnesses],
        prior_runs=_prior_runs(store, survey, plan, opened.model, records[0].position),
        attached=attached,
    )


def ledger_view(store: Store, evidence: Evidence, pin: Checkpoint | None = None) -> LedgerView:
    """What this ledger says of the evidence: roots at its size and the pin's, and what it must hold to be whole.

    Everything is computed from the envelopes' bytes, not from stored hashes.
    """
    size, total = evidence.checkpoint.size, store.size()
    survey = _survey(store, min(size, total))
    wanted = {size} | ({pin.size} if pin is not None and pin.origin == store.origin else set())
    roots: dict[int, bytes] = {}
    frontier = Frontier()
    done = 0
    for at in sorted(at for at in wanted if at <= total):
        if at <= survey.size:
            frontier.extend(survey.nodes(done, at))
        else:
            frontier.extend(survey.nodes(done, survey.size))
            frontier.extend(_leaves(store, max(done, survey.size), at))
        done = at
        roots[at] = frontier.root()
    first = evidence.events[0].body
    model = first.model if isinstance(first, RunOpened) else None
    prior_runs = (
        _prior_runs(store, survey, evidence.plan, model, evidence.recorded[0].position) if size <= total else []
    )
    watching = [run for run, (_, opened) in survey.opened.items() if opened.witness_of == evidence.run_id]
    counted = _counted(store, {evidence.run_id, *watching}, size)
    run_events, later_events = counted.pop(evidence.run_id)
    return LedgerView(
        origin=store.origin,
        size=total,
        roots=roots,
        prior_runs=prior_runs,
        run_events=run_events,
        later_events=later_events,
        witnesses={run: count for run, (count, _) in counted.items()},
    )


def _counted(store: Store, runs: Set[str], size: int) -> dict[str, tuple[int, int]]:
    """Run -> (its events among the first `size`, its later ones up to its first verdict and without supersessions).

    Read from the rows in order, past every index: one that hides rows would hide what was left out.
    """
    signs = {f'"run_id":"{run}"': run for run in runs}
    counts = {run: [0, 0] for run in runs}
    judged: set[str] = set()
    for place in store.recorded():
        if not any(sign in place.envelope for sign in signs):
            continue
        event = read_event(place.envelope)
        run = event.run_id
        if run not in counts:
            continue
        if place.position < size:
            counts[run][0] += 1
        elif run not in judged and not isinstance(event.body, RunSuperseded):
            counts[run][1] += 1
        if isinstance(event.body, VerdictRecorded):
            judged.add(run)
    return {run: (within, later) for run, (within, later) in counts.items()}


def _leaves(store: Store, start: int, end: int) -> Iterator[bytes]:
    for place in store.recorded(start=start):
        if place.position >= end:
            return
        yield bytes.fromhex(canonical.event_hash(place.envelope))


def _run(store: Store, run_id: str) -> tuple[list[Recorded], list[Event]]:
    """The run's events up to its first verdict, else all of them."""
    records: list[Recorded] = []
    events: list[Event] = []
    for place in store.recorded(run_id):
        records.append(place)
        events.append(read_event(place.envelope))
        if isinstance(events[-1].body, VerdictRecorded):
            break
    if not events or not isinstance(events[0].body, RunOpened):
        raise NotFound(f"there is no run {run_id} in this ledger", "`tally runs` lists the runs")
    return records, events


def _blob(store: Store, digest: str, what: str) -> bytes:
    data = store.blob(digest)
    if data is None:
        raise LedgerBroken(
            f"the ledger does not hold {what}, {digest}", "`tally verify` names everything that is missing"
        )
    return data


def _witnesses(store: Store, run_id: str, size: int) -> list[list[Recorded]]:
    """Each witness's events that lie in the tree, by position of its first; a witness opened later has none."""
    streams = []
    for witness in store.witnesses(run_id):
        records = []
        for place in store.recorded(witness):
            if place.position >= size:
                break
            records.append(place)
        if records:
            streams.append(records)
    return sorted(streams, key=lambda records: records[0].position)


@dataclass
class _Survey:
    """One pass over the first `size` events: their leaves, and the few events that say how runs went."""

    size: int = 0
    leaves: bytearray = field(default_factory=bytearray)
    recorded: dict[int, Recorded] = field(default_factory=dict)
    opened: dict[str, tuple[int, RunOpened]] = field(default_factory=dict)
    closed: dict[str, RunClosed] = field(default_factory=dict)
    verdicts: dict[str, VerdictRecorded] = field(default_factory=dict)

    def nodes(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Leaf hashes, 32 bytes each."""
        stop = (self.size if end is None else end) * HASH_BYTES
        for at in range(start * HASH_BYTES, stop, HASH_BYTES):
            yield bytes(self.leaves[at : at + HASH_BYTES])


def _survey(store: Store, size: int) -> _Survey:
    survey = _Survey()
    for place in store.recorded():
        if place.position >= size:
            break
        survey.leaves += bytes.fromhex(canonical.event_hash(place.envelope))
        survey.size += 1
        text = place.envelope
        if '"type":"plan.frozen"' in text:
            survey.recorded[place.position] = place
        elif any(sign in text for sign in _SIGNS):
            _note(survey, place, read_event(text))
    if survey.size != size:
        raise LedgerBroken(f"the ledger holds {survey.size} of the {size} events that it should", "run `tally verify`")
    return survey


def _note(survey: _Survey, place: Recorded, event: Event) -> None:
    body: Any = event.body
    if isinstance(body, RunOpened):
        survey.opened.setdefault(event.run_id, (place.position, body))
    elif isinstance(body, RunClosed):
        survey.closed.setdefault(event.run_id, body)
    elif isinstance(body, VerdictRecorded):
        survey.verdicts.setdefault(event.run_id, body)


def _prior_runs(store: Store, survey: _Survey, plan: Plan, model: ModelIdentity | None, before: int) -> list[PriorRun]:
    """Runs of the same model opened before that position, oldest first; witnesses are no runs of a model.

    The same model: repository and revision in the plan are the same, or the digest of the checkpoint's headers or of its
    configuration is, as planned or as found in the run: a plan can call a model what it likes. A run whose plan the ledger
    cannot show is listed too, since nobody can say that it was of another model.
    """
    found = []
    ours = _digests(plan, model)
    plans: dict[str, Plan | None] = {}
    for run_id, (position, opened) in survey.opened.items():
        if position >= before or opened.purpose == "witness" or opened.plan is None:
            continue
        digest = opened.plan.blob_digest
        if digest not in plans:
            plans[digest] = _stored_plan(store, digest)
        other = plans[digest]
        if other is not None and not _same_name(other, plan) and not ours & _digests(other, opened.model):
            continue
        closed, verdict = survey.closed.get(run_id), survey.verdicts.get(run_id)
        found.append(
            PriorRun(
                run_id=run_id,
                plan_digest=opened.plan.computed_digest,
                outcome=closed.outcome if closed else "incomplete",
                verdict=verdict.verdict if verdict else None,
                position=position,
            )
        )
    return sorted(found, key=lambda prior: prior.position)


def _stored_plan(store: Store, digest: str) -> Plan | None:
    data = store.blob(digest)
    if data is None:
        return None
    try:
        return parse_plan(data)
    except PlanError:
        return None


def _same_name(one: Plan, other: Plan) -> bool:
    left, right = one.document.model, other.document.model
    return (left.repository, left.revision) == (right.repository, right.revision)


def _digests(plan: Plan, model: ModelIdentity | None) -> set[tuple[str, str]]:
    """What tells the model apart: (kind, digest) of headers and configuration, as planned and as the run found them."""
    planned = plan.document.model
    found = {("headers", planned.headers_digest), ("config", planned.config_digest)}
    if model is not None:
        found |= {("headers", _text(model.headers_digest)), ("config", _text(model.config_digest))}
    return {(kind, digest) for kind, digest in found if digest is not None}


def _text(measurement: Measurement) -> str | None:
    return measurement.value if measurement.known and isinstance(measurement.value, str) else None
