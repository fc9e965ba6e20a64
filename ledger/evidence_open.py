"""Reading an evidence file strictly: exactly one byte form is accepted, in bounded memory and time.

Nothing is believed here: parsing says only what the file states. `ledger.evidence_checks` says whether it holds together.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from ledger import canonical
from ledger.canonical import StrictJsonError
from ledger.checkpoints import Checkpoint, NoteError, parse_checkpoint
from ledger.errors import EventError, EvidenceBroken, PlanError
from ledger.events import Event, read_event
from ledger.evidence_form import (
    MAX_FILE_BYTES,
    MAX_STRUCTURE,
    PAYLOAD_TYPE,
    PriorRun,
    SealedEvent,
    Statement,
    to_json,
)
from ledger.plan import Plan, parse_plan
from ledger.recording import Recorded
from ledger.shape import MAX_PARTS, ShapeError, refuse_other_shape

MAX_EXPLAINED_BYTES = 1024 * 1024

_HEX_64 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FILE = re.compile(
    rb'\{"payload":"([A-Za-z0-9+/]*={0,2})","payloadType":"'
    + re.escape(PAYLOAD_TYPE.encode("ascii"))
    + rb'","signatures":\[(?:\{"keyid":"([0-9a-f]{64})","sig":"([A-Za-z0-9+/]{86}==)"\})?\]\}\n'
)
"""The one form of the file. Its strings are plain ASCII and its keys in order: this is the RFC 8785 form."""


@dataclass(frozen=True)
class Envelope:
    """The DSSE envelope: the payload's exact bytes, and the one signature as (key id, 64 bytes), or None."""

    payload: bytes
    signature: tuple[str, bytes] | None


@dataclass(frozen=True)
class Evidence:
    """What an evidence file states about one run.

    `recorded` are the run's events with their leaf index in the original ledger; `statement_text` is the signed JSON text.
    """

    envelope: Envelope
    statement: Statement
    statement_text: str
    checkpoint: Checkpoint
    recorded: list[Recorded]
    plan_frozen: Recorded | None
    witness_records: list[list[Recorded]]

    @property
    def run_id(self) -> str:
        return self.statement.predicate.run_id

    @cached_property
    def plan(self) -> Plan:
        """The plan in the file. Raises EvidenceBroken when it is no plan."""
        try:
            return parse_plan(self.statement.predicate.plan.text.encode("utf-8"), what="plan in the evidence")
        except (PlanError, UnicodeEncodeError) as error:
            raise EvidenceBroken(str(error)) from error

    @cached_property
    def events(self) -> list[Event]:
        """The run's events. Raises EvidenceBroken for one that this program cannot read."""
        return _read(self.recorded)

    @cached_property
    def witnesses(self) -> list[list[Event]]:
        """The events of each witness, in order. Raises EvidenceBroken for one that this program cannot read."""
        return [_read(records) for records in self.witness_records]

    @property
    def prior_runs(self) -> list[PriorRun]:
        return list(self.statement.predicate.prior_runs)

    @cached_property
    def blobs(self) -> dict[str, bytes]:
        """The documents carried in the file by digest, the plan among them. Raises EvidenceBroken for bad base64."""
        found = {self.plan.blob_digest: self.plan.data}
        for blob in self.statement.predicate.blobs:
            if blob.data is not None:
                found[blob.digest] = decode_base64(blob.data, f"blob {blob.digest}")
        return found


def _read(records: list[Recorded]) -> list[Event]:
    events = []
    for place in records:
        try:
            events.append(read_event(place.envelope))
        except (EventError, StrictJsonError) as error:
            raise EvidenceBroken(f"event at position {place.position} cannot be read: {error.message}") from error
    return events


def open_envelope(data: bytes) -> Envelope:
    """The DSSE envelope of an evidence file. Raises EvidenceBroken naming the first thing that is not its form."""
    if len(data) > MAX_FILE_BYTES:
        raise EvidenceBroken(f"evidence is {len(data)} bytes long; more than {MAX_FILE_BYTES} is refused unread")
    match = _FILE.fullmatch(data)
    if match is None:
        raise EvidenceBroken(*_why_no_envelope(data))
    payload = decode_base64(match[1].decode("ascii"), "payload")
    if match[2] is None:
        return Envelope(payload, None)
    return Envelope(payload, (match[2].decode("ascii"), decode_base64(match[3].decode("ascii"), "sig")))


def _why_no_envelope(data: bytes) -> tuple[str, str | None]:
    """(what is wrong, what was expected) for bytes that are not an evidence file; large ones are not parsed for it."""
    expected = "evidence is one DSSE envelope in canonical form (RFC 8785) and a newline, made by `tally export`"
    if len(data) > MAX_EXPLAINED_BYTES:
        return "evidence is not a DSSE envelope in its canonical form", expected
    try:
        raw = canonical.decode(data, what="evidence")
    except StrictJsonError as error:
        return error.message, expected
    if not isinstance(raw, dict) or raw.keys() != {"payload", "payloadType", "signatures"}:
        fields = ", ".join(sorted(raw))[:200] if isinstance(raw, dict) else type(raw).__name__
        return f"evidence is not an envelope of payload, payloadType and signatures: it is {fields}", expected
    if raw["payloadType"] != PAYLOAD_TYPE:
        return f"payload type is {str(raw['payloadType'])[:80]!r}, expected {PAYLOAD_TYPE!r}", None
    signatures = raw["signatures"]
    if not isinstance(signatures, list) or len(signatures) > 1:
        return "signatures must be a list of one signature, or empty in unsigned evidence", None
    return "evidence has the parts of an envelope, but not its exact form", expected


def decode_base64(text: str, what: str) -> bytes:
    """The bytes of canonical base64: standard alphabet, padded, pad bits zero. Raises EvidenceBroken naming `what`."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise EvidenceBroken(f"{what} is not base64: {error}") from error
    if base64.b64encode(data).decode("ascii") != text:
        raise EvidenceBroken(f"{what} is not canonical base64: padding or pad bits differ")
    return data


def read_statement(envelope: Envelope) -> Evidence:
    """The statement in an envelope's payload. Raises EvidenceBroken naming the first thing that is not its form."""
    payload = envelope.payload
    structure = payload.count(b",") + payload.count(b"{") + payload.count(b"[")
    if structure > MAX_STRUCTURE:
        raise EvidenceBroken(f"statement has {structure} parts; more than {MAX_STRUCTURE} are refused")
    try:
        refuse_other_shape(canonical.decode(payload, what="statement"), Statement, exact=True, most=MAX_PARTS)
        # Strict, so that "1" is no number and 1 no string.
        statement = Statement.model_validate_json(payload, strict=True, by_alias=True, by_name=False)
    except StrictJsonError as error:
        raise EvidenceBroken(error.message) from error
    except ShapeError as error:
        raise EvidenceBroken(f"statement has not its form: {error.message}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise EvidenceBroken(f"statement has not its form: {where}: {first['msg']}") from error
    text = payload.decode("utf-8")
    try:
        # Written again it must be the same: canonical, no key twice, no field left out for a default to fill.
        same = canonical.is_form(text, to_json(statement))
    except EventError as error:
        raise EvidenceBroken(f"statement: {error.message}") from error
    if not same:
        raise EvidenceBroken("statement is not in its exact form: RFC 8785, with every field there")
    predicate = statement.predicate
    try:
        checkpoint = parse_checkpoint(predicate.checkpoint)
    except NoteError as error:
        raise EvidenceBroken(f"checkpoint in the evidence: {error.message}") from error
    return Evidence(
        envelope=envelope,
        statement=statement,
        statement_text=text,
        checkpoint=checkpoint,
        recorded=[_recorded(sealed) for sealed in predicate.events],
        plan_frozen=_recorded(predicate.plan_frozen) if predicate.plan_frozen else None,
        witness_records=[[_recorded(sealed) for sealed in witness.events] for witness in predicate.witnesses],
    )


def _recorded(sealed: SealedEvent) -> Recorded:
    return Recorded(sealed.position, sealed.envelope, canonical.event_hash(sealed.envelope))


def hex_nodes(nodes: list[str]) -> list[bytes] | None:
    """Proof nodes from hex; None when one is not 64 lower-case hex digits."""
    if not all(_HEX_64.fullmatch(node) for node in nodes):
        return None
    return [bytes.fromhex(node) for node in nodes]
