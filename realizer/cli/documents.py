"""The JSON documents of commands that have no form of the contract's own (`ledger.documents` holds those that do)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ledger.bodies import Assurance, Verdict, Violation
from ledger.canonical import sha256_digest
from ledger.documents import Difference, Document, Finding, Outcome
from ledger.measurement import Measurement


class PlanCheckDocument(Document):
    """`tally plan check`: every violation at once; none means that nothing in the plan contradicts itself."""

    format: Literal["tally.plan-check/1"] = "tally.plan-check/1"
    plan_digest: str
    claimed_digest: str | None
    frozen: bool
    accepted: bool
    violations: list[Violation]


class PlannedMaterialization(Document):
    id: str
    logical_state_id: str
    semantic_class: str | None
    memory_resource_id: str
    representation: str
    role: str
    persistence: str
    requirement: str
    expected_bytes: int
    streamed_bytes: int | None


class PlanSummaryDocument(Document):
    """`tally plan show`: what the plan says, without its tensor keys."""

    format: Literal["tally.plan-summary/1"] = "tally.plan-summary/1"
    schema_name: str
    plan_version: str
    plan_digest: str
    claimed_digest: str | None
    frozen: bool
    repository: str
    revision: str
    adapter: str | None
    reference_digest: str | None
    repetitions: int
    mode: str
    materializations: list[PlannedMaterialization]
    persistent_required_bytes: dict[str, int]
    """Per Memory Resource, what is carved from it included."""
    capacity_bytes: dict[str, int]


class PlanDifferenceDocument(Document):
    """`tally plan diff`: where two plans differ."""

    format: Literal["tally.plan-difference/1"] = "tally.plan-difference/1"
    a: str
    b: str
    same: bool
    differences: list[Difference]


class WrittenDocument(Document):
    """A command that wrote a file: where, what kind of thing, its size in bytes and SHA-256, and facts about it."""

    format: Literal["tally.written/1"] = "tally.written/1"
    what: str
    file: str
    size: int
    digest: str
    facts: dict[str, str | int | None] = Field(default_factory=dict)

    @classmethod
    def of_bytes(
        cls, what: str, file: str, data: bytes, facts: dict[str, str | int | None] | None = None
    ) -> WrittenDocument:
        """For bytes that were written to `file`."""
        return cls(what=what, file=file, size=len(data), digest=sha256_digest(data), facts=facts or {})

    @classmethod
    def of_file(cls, what: str, file: str, facts: dict[str, str | int | None] | None = None) -> WrittenDocument:
        """For a file as it now stands; it is read in pieces."""
        with Path(file).open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            return cls(what=what, file=file, size=opened.tell(), digest=f"sha256:{digest}", facts=facts or {})


class ServingDocument(Document):
    """`tally serve`: where the pages are, printed once the port is open."""

    format: Literal["tally.serving/1"] = "tally.serving/1"
    url: str


class SynthesisDocument(Document):
    """`tally synth`: the checkpoint that was written; `size` is its tensors' bytes."""

    format: Literal["tally.synthesis/1"] = "tally.synthesis/1"
    adapter: str
    directory: str
    tensors: int
    size: int
    revision: str


class AppendedDocument(Document):
    """A command that appended one event."""

    format: Literal["tally.appended/1"] = "tally.appended/1"
    run_id: str
    type: str
    position: int
    hash: str


class MaterializationRow(Document):
    """One materialization as folded: planned and observed beside each other (null: not in the plan, not observed)."""

    id: str
    state: str
    role: str | None
    memory_resource_id: str | None
    planned_bytes: int | None
    observed_bytes: Measurement | None


class StateDocument(Document):
    """`tally replay`: the state that the run's events up to `sequence` fold to."""

    format: Literal["tally.state/1"] = "tally.state/1"
    run_id: str
    plan_digest: str | None
    sequence: int
    """The last event folded."""
    last_sequence: int
    """The run's last event."""
    last_type: str
    outcome: Outcome
    accepted: bool
    materializations: list[MaterializationRow]
    authorities: dict[str, str]
    executions: list[str]
    prefills: int
    repetitions: int
    memory_labels: list[str]
    verdicts: list[Verdict]
    superseded_by: str | None


class ListedTensor(Document):
    """One tensor as it was placed. `source_digest` is null where the source's bytes were not digested; `why` says it."""

    name: str
    dtype: str
    shape: list[int]
    bytes: int
    offset: int
    device: str
    source_digest: str | None
    resident_digest: str | None
    why: str


class TensorRow(ListedTensor):
    """A listed tensor, what it belongs to, and what its two digests show.

    `same`: the resident bytes are the source's. `computed`: they are those that the adapter computed for it, its word.
    """

    materialization: str
    content: Literal["same", "computed", "differs", "unknown"]


class ReadBack(Document):
    """When a materialization's bytes were read back: the event's sequence, and whether it is before the first decode."""

    materialization: str
    sequence: int
    before_decode: bool


class UnlistedMaterialization(Document):
    """A materialization that was observed without a list of its tensors."""

    materialization: str
    tensors: Measurement
    why: str


class WeightsDocument(Document):
    """`tally weights`: every tensor that the run listed, and what it did not list."""

    format: Literal["tally.weights/1"] = "tally.weights/1"
    run_id: str
    tensors: list[TensorRow]
    unlisted: list[UnlistedMaterialization]
    read_back: list[ReadBack]


class Span(Document):
    """From when to when something was there; `ended` null: still there."""

    began: int
    ended: int | None


class TimelineRow(Document):
    """What was there from when to when; `state` is the word for what became of it, as `tally show` has it."""

    id: str
    state: str
    memory_resource_id: str | None
    spans: list[Span]


class Sample(Document):
    """The process tree's bytes at a label; a figure that was not known is null."""

    at: int
    label: str
    values: dict[str, int | float | str | None]


class Mark(Document):
    at: int
    what: str


class TimelineDocument(Document):
    """`tally replay --timeline`: the run over its clock, nanoseconds, or over its events where it has no clock."""

    format: Literal["tally.timeline/1"] = "tally.timeline/1"
    run_id: str
    clock: Literal["elapsed_ns", "sequence"]
    start: int
    end: int
    materializations: list[TimelineRow]
    samples: list[Sample]
    marks: list[Mark]


class StepDocument(Document):
    """`tally replay --step --json`: one event a line, with what it changed in the state."""

    format: Literal["tally.step/1"] = "tally.step/1"
    sequence: int
    type: str
    subject: str
    changed: list[str]


class InvariantDocument(Document):
    codes: list[str]
    severities: dict[str, str]
    family: str
    name: str
    statement: str


class InvariantsDocument(Document):
    """`tally invariants`: what the judge holds runs to."""

    format: Literal["tally.invariants/1"] = "tally.invariants/1"
    judge_version: str
    invariants: list[InvariantDocument]


class LedgerCheckDocument(Document):
    """`tally db check`: version, guards, journal and sizes of a ledger."""

    format: Literal["tally.ledger/1"] = "tally.ledger/1"
    ledger: str
    facts: dict[str, Any]


class Diagnosis(Document):
    """One thing that was looked at; `problem` keeps runs from being recorded or observed as they should."""

    state: Literal["ok", "note", "problem"]
    subject: str
    found: str
    remedy: str | None


class DoctorDocument(Document):
    """`tally doctor`: everything that was looked at."""

    format: Literal["tally.doctor/1"] = "tally.doctor/1"
    diagnoses: list[Diagnosis]


class UpgradeDocument(Document):
    """`tally db upgrade`: schema versions before and after; guards, views and indexes put back or dropped."""

    format: Literal["tally.upgrade/1"] = "tally.upgrade/1"
    ledger: str
    before: int
    after: int
    mended: list[str] = Field(default_factory=list)


class CopyDocument(Document):
    """`tally db copy`: from where to where, and how many events."""

    format: Literal["tally.copy/1"] = "tally.copy/1"
    source: str
    destination: str
    events: int


class NamedQueryDocument(Document):
    name: str
    description: str
    parameters: list[str]
    sql: str


class NamedQueriesDocument(Document):
    """`tally query --list`: the queries that come with the program."""

    format: Literal["tally.named-queries/1"] = "tally.named-queries/1"
    queries: list[NamedQueryDocument]


class LedgerSchemaDocument(Document):
    """`tally query --schema`: views and tables with their columns, as lines for people."""

    format: Literal["tally.ledger-schema/1"] = "tally.ledger-schema/1"
    lines: list[str]


class PinDocument(Document):
    """`tally pin`: the checkpoint that was written down."""

    format: Literal["tally.pin/1"] = "tally.pin/1"
    origin: str
    tree_size: int
    root: str
    file: str | None
    accepted: bool


class StatedScope(Document):
    """What the statement says it shows, what is unknown in it, and what it does not prove."""

    proves: list[str]
    unknown: list[str]
    does_not_prove: list[str]


class EvidenceSummaryDocument(Document):
    """`tally evidence show`: what the statement says. Nothing here was verified; `tally verify` does that."""

    format: Literal["tally.evidence-summary/1"] = "tally.evidence-summary/1"
    run_id: str
    plan_digest: str
    key_id: str | None
    origin: str
    tree_size: int
    events: int
    witnesses: int
    frozen_at: int | None
    attempts_before: int
    judge_version: str
    verdict: Verdict
    assurance: Assurance
    findings: list[Finding]
    scope: StatedScope
