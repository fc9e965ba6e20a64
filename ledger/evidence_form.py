"""The form of an evidence file: the in-toto Statement, its predicate, and the DSSE envelope's exact bytes.

Keys inside the predicate are lowerCamelCase, as in-toto asks; event envelopes and the plan stand in it as text, byte for
byte, and are never taken apart and put together again.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ledger.bodies import Assurance, EnvironmentObserved, Verdict
from ledger.documents import Accounting, Finding, Outcome
from ledger.measurement import Frozen, Measurement, Measurements

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:tallystick:evidence:1"
FORMAT = "tally.evidence/1"

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Larger files are refused unread: reading one takes a small multiple of its size in memory."""
MAX_STRUCTURE = 4_000_000
"""Brackets and commas in a statement, at most: bounds the objects that parsing can make."""
SIGNATURE_BYTES = 64


class Sealed(Frozen):
    """Base of predicate parts: frozen, strict, keys in lowerCamelCase."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )


class Subject(Frozen):
    """What the statement is about. Digest names: `sha256` of bytes; others are explained where they are made."""

    name: str
    digest: dict[str, str]


class SealedPlan(Sealed):
    """The plan file's text, its SHA-256 (`sha256:<hex>`) and the plan digest as computed by the R1 rule."""

    text: str
    blob_digest: str
    digest: str


class SealedEvent(Sealed):
    """One envelope, its leaf index, and its inclusion proof: hex nodes from the leaf upwards (RFC 9162 2.1.3.1)."""

    position: int
    envelope: str
    inclusion: list[str]


class SealedWitness(Sealed):
    """The events of a run that watched this one, as far as the tree reaches."""

    run_id: str
    events: list[SealedEvent]


class PriorRun(Sealed):
    """A run of the same model that was opened earlier in this ledger, as at the evidence's tree size.

    `position` is that of its first event; `outcome` is `incomplete` and `verdict` null where nothing was recorded yet.
    """

    run_id: str
    plan_digest: str
    outcome: Outcome
    verdict: Verdict | None
    position: int


class SealedBlob(Sealed):
    """A document that events refer to; `data` is base64, or null where only the digest is given."""

    digest: str
    data: str | None


class SealedComputeUnit(Sealed):
    key: str
    kind: Measurement
    device_uuid: Measurement
    name: Measurement
    memory_resources: list[str]


class SealedMemoryResource(Sealed):
    key: str
    kind: Measurement
    capacity_bytes: Measurement
    available_bytes: Measurement
    parent: str | None


class SealedEnvironment(Sealed):
    """The machine as `environment.observed` has it."""

    compute_units: list[SealedComputeUnit]
    memory_resources: list[SealedMemoryResource]
    facts: Measurements


class SealedAccounting(Sealed):
    """Bytes as the judge accounts them; `transient_upper_bound` is derived, never measured."""

    persistent_required: Measurement
    persistent_optional: Measurement
    unplanned_persistent: Measurement
    host_mirror: Measurement
    evidence_host_by_role: dict[str, Measurement]
    staging_before: Measurement
    staging_after: Measurement
    transient_upper_bound: Measurement
    transient_peak: Measurement


class Scope(Sealed):
    """What this evidence shows, what is unknown in it, and what it does not prove. Derived from what was measured."""

    proves: list[str]
    unknown: list[str]
    does_not_prove: list[str]


class Predicate(Sealed):
    """One run. Everything above `environment` is what was recorded; the rest follows from it and can be judged again."""

    format: Literal["tally.evidence/1"]
    run_id: str
    plan: SealedPlan
    events: list[SealedEvent] = Field(min_length=1)
    plan_frozen: SealedEvent | None
    witnesses: list[SealedWitness]
    checkpoint: str
    prior_runs: list[PriorRun]
    blobs: list[SealedBlob]
    environment: SealedEnvironment | None
    judge_version: str
    verdict: Verdict
    assurance: Assurance
    findings: list[Finding]
    accounting: SealedAccounting
    scope: Scope


class Statement(Frozen):
    """An in-toto Statement v1 with our predicate."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    statement_type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[Subject]
    predicate_type: Literal["urn:tallystick:evidence:1"] = Field(alias="predicateType")
    predicate: Predicate


def sealed_environment(body: EnvironmentObserved | None) -> SealedEnvironment | None:
    """The environment in the predicate's form."""
    return None if body is None else SealedEnvironment.model_validate(_plain(body))


def sealed_accounting(accounting: Accounting) -> SealedAccounting:
    """The accounting in the predicate's form."""
    return SealedAccounting.model_validate(_plain(accounting))


def _plain(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="python")


def to_json(statement: Statement) -> dict[str, Any]:
    """The statement as JSON values, keys as in the file."""
    return statement.model_dump(mode="json", by_alias=True)


def pre_authentication_encoding(payload: bytes) -> bytes:
    """What DSSE signs: `DSSEv1 SP LEN(type) SP type SP LEN(payload) SP payload` (DSSE protocol, PAE)."""
    kind = PAYLOAD_TYPE.encode("ascii")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def envelope_file(payload: bytes, signatures: list[tuple[str, bytes]]) -> bytes:
    """The file: the RFC 8785 form of the DSSE envelope around `payload`, and a newline.

    `signatures` are (key id, signature). Every string here is plain ASCII and the keys are in order, so this is the
    canonical form by construction.
    """
    listed = ",".join(
        f'{{"keyid":"{key}","sig":"{base64.b64encode(signature).decode("ascii")}"}}' for key, signature in signatures
    )
    head = b'{"payload":"' + base64.b64encode(payload)
    return head + f'","payloadType":"{PAYLOAD_TYPE}","signatures":[{listed}]}}\n'.encode("ascii")
