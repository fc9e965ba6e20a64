"""A verified evidence file into a ledger: the run's own bytes, appended as they are, with no verdict added."""

from __future__ import annotations

from dataclasses import dataclass

from ledger import canonical
from ledger.errors import EventError, LedgerError
from ledger.events import read_event
from ledger.evidence import open_evidence
from ledger.evidence_open import Evidence
from ledger.recording import Draft, Recorded
from ledger.store import Store

PLAN_MEDIA_TYPE = "application/json"
ATTACHED_MEDIA_TYPE = "application/octet-stream"


@dataclass(frozen=True)
class Taken(Draft):
    """An event that has its bytes already. Its place in its run is part of them, so only that place will do."""

    envelope: str

    def seal(self, sequence: int, previous: str) -> str:
        """The envelope itself. Raises EventError when the ledger would give the event another place in its run."""
        value = canonical.decode(self.envelope, what="event")
        if (value["sequence"], value["previous"]) != (sequence, previous):
            raise EventError(
                f"event {self.event_id} is number {value['sequence']} of run {self.run_id} and would become number {sequence}",
                "the ledger holds another run of that id",
            )
        return self.envelope


@dataclass(frozen=True)
class Intake:
    """What an import did: the run, where its events stand, how many events were new to the ledger, and the digests of the
    documents that the file names and neither holds: `verify_ledger` misses them."""

    run_id: str
    recorded: list[Recorded]
    added: int
    missing: list[str]


def import_evidence(store: Store, data: bytes) -> Intake:
    """Append the run of an evidence file, its plan's freezing and its witnesses, byte for byte. Idempotent.

    Chain and proofs are checked first (EvidenceBroken); signature and pin are for `evidence.verify`, before. Events that
    follow the tree's end (a later verdict, a supersession) are not in the file and so not in the ledger. Raises
    LedgerError when the ledger holds something else under the same ids, and nothing of that stream is appended then.
    """
    evidence = open_evidence(data)
    before = store.size()
    _documents(store, evidence)
    if evidence.plan_frozen is not None:
        _append(store, [evidence.plan_frozen])
    for records in evidence.witness_records:
        _append(store, records)
    recorded = _append(store, evidence.recorded)
    named = {blob.digest for blob in evidence.statement.predicate.blobs}
    return Intake(evidence.run_id, recorded, store.size() - before, sorted(named - set(store.blob_digests())))


def _documents(store: Store, evidence: Evidence) -> None:
    for digest, content in evidence.blobs.items():
        media_type = PLAN_MEDIA_TYPE if digest == evidence.plan.blob_digest else ATTACHED_MEDIA_TYPE
        store.put_blob(content, media_type)


def _append(store: Store, records: list[Recorded]) -> list[Recorded]:
    drafts: list[Draft] = [_draft(place.envelope) for place in records]
    run_id = drafts[0].run_id
    held = list(store.recorded(run_id))
    known = held[: len(records)]
    if [place.envelope for place in known] == [place.envelope for place in records[: len(known)]]:
        # A shorter part of the same stream is continued; what is there already stays where it is.
        return known + (store.append(run_id, len(known), drafts[len(known) :]) if len(known) < len(records) else [])
    raise LedgerError(
        f"the ledger holds other events under run id {run_id} than the evidence does",
        "import it into another ledger with --ledger, and compare the two",
    )


def _draft(envelope: str) -> Taken:
    event = read_event(envelope)
    return Taken(
        event_id=event.event_id,
        run_id=event.run_id,
        body=event.body,
        recorded_at=event.recorded_at,
        elapsed_ns=event.elapsed_ns,
        node_id=event.node_id,
        actor=event.actor,
        envelope=envelope,
    )
