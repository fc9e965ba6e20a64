"""Sealing: from a run's envelopes and proofs to the signed file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import canonical
from ledger.bodies import RunOpened
from ledger.checkpoints import Checkpoint, format_checkpoint
from ledger.errors import EvidenceBroken
from ledger.events import Event, read_event
from ledger.evidence_checks import expected_blobs, structural_faults, subjects
from ledger.evidence_form import (
    FORMAT,
    MAX_FILE_BYTES,
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    Predicate,
    PriorRun,
    SealedBlob,
    SealedEvent,
    SealedPlan,
    SealedWitness,
    Statement,
    envelope_file,
    pre_authentication_encoding,
    to_json,
)
from ledger.evidence_open import open_envelope, read_statement
from ledger.evidence_scope import conclude
from ledger.keys import key_id
from ledger.plan import parse_plan
from ledger.recording import Recorded


@dataclass(frozen=True)
class Proven:
    """An envelope in its place, with its inclusion proof: nodes of 32 raw bytes from the leaf upwards."""

    recorded: Recorded
    inclusion: Sequence[bytes]


@dataclass(frozen=True)
class EvidenceInput:
    """What a run's evidence is made of, as read out of a ledger.

    `events` run to the first verdict, else to the run's last event; `checkpoint` is of the tree that ends there.
    `attached` holds the documents (by digest) to carry in the file; others that events refer to are named by digest.
    """

    plan_data: bytes
    events: Sequence[Proven]
    checkpoint: Checkpoint
    plan_frozen: Proven | None = None
    witnesses: Sequence[Sequence[Proven]] = ()
    prior_runs: Sequence[PriorRun] = ()
    attached: Mapping[str, bytes] = field(default_factory=dict)


def seal(bundle: EvidenceInput, key: Ed25519PrivateKey | None = None) -> bytes:
    """The evidence file. Deterministic: the same input and key give the same bytes. Without a key it is unsigned.

    Raises EvidenceBroken when what is to be sealed does not hold together (a broken ledger makes no evidence) or when
    the file would be larger than any reader takes.
    """
    payload = canonical.encode(to_json(make_statement(bundle))).encode("utf-8")
    signatures = []
    if key is not None:
        signatures.append((key_id(key.public_key()), key.sign(pre_authentication_encoding(payload))))
    data = envelope_file(payload, signatures)
    if len(data) > MAX_FILE_BYTES:
        raise EvidenceBroken(
            f"the evidence would be {len(data)} bytes; readers take at most {MAX_FILE_BYTES}", "leave --attach out"
        )
    faults = structural_faults(read_statement(open_envelope(data)))
    if faults:
        first = faults[0].problem
        where = "" if first.position is None else f" at position {first.position}"
        raise EvidenceBroken(
            f"nothing was sealed: what the ledger holds does not hold together: {first.code}{where}: {first.detail}",
            "`tally verify` names what is wrong with the ledger",
        )
    return data


def make_statement(bundle: EvidenceInput) -> Statement:
    """The in-toto Statement about a run, its conclusions drawn anew from the events.

    Raises EvidenceBroken for events that do not begin with run.opened, PlanError and EventError for what cannot be read.
    """
    plan = parse_plan(bundle.plan_data, what="the run's plan")
    records = [proven.recorded for proven in bundle.events]
    events = _events(bundle.events)
    if not events or not isinstance(events[0].body, RunOpened):
        raise EvidenceBroken("nothing was sealed: the events do not begin with run.opened")
    witnesses = [_events(witness) for witness in bundle.witnesses]
    conclusions = conclude(plan, events, witnesses)
    blobs = [
        SealedBlob(
            digest=digest,
            data=base64.b64encode(bundle.attached[digest]).decode("ascii") if digest in bundle.attached else None,
        )
        for digest in expected_blobs(plan, [events, *witnesses])
    ]
    return Statement(
        statement_type=STATEMENT_TYPE,
        subject=subjects(plan, records, events),
        predicate_type=PREDICATE_TYPE,
        predicate=Predicate(
            format=FORMAT,
            run_id=events[0].run_id,
            plan=SealedPlan(text=plan.data.decode("utf-8"), blob_digest=plan.blob_digest, digest=plan.computed_digest),
            events=[_sealed(proven) for proven in bundle.events],
            plan_frozen=_sealed(bundle.plan_frozen) if bundle.plan_frozen else None,
            witnesses=[
                SealedWitness(run_id=events[0].run_id, events=[_sealed(proven) for proven in witness])
                for events, witness in zip(witnesses, bundle.witnesses, strict=True)
            ],
            checkpoint=format_checkpoint(bundle.checkpoint.origin, bundle.checkpoint.size, bundle.checkpoint.root),
            prior_runs=list(bundle.prior_runs),
            blobs=blobs,
            environment=conclusions.environment,
            judge_version=conclusions.judge_version,
            verdict=conclusions.verdict,
            assurance=conclusions.assurance,
            findings=conclusions.findings,
            accounting=conclusions.accounting,
            scope=conclusions.scope,
        ),
    )


def _events(proven: Sequence[Proven]) -> list[Event]:
    return [read_event(item.recorded.envelope) for item in proven]


def _sealed(proven: Proven) -> SealedEvent:
    return SealedEvent(
        position=proven.recorded.position,
        envelope=proven.recorded.envelope,
        inclusion=[node.hex() for node in proven.inclusion],
    )
