"""The JSON documents that commands print with `--json`: the contract that scripts and other checkers rely on.

Each carries `format` with an integer version. Readers refuse a newer one.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ledger.bodies import Assurance, Verdict
from ledger.measurement import Measurement

Severity = Literal["error", "unknown", "note"]
Outcome = Literal["completed", "failed", "aborted", "rejected", "incomplete"]
CheckState = Literal["ok", "failed", "not-checked"]


class Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Finding(Document):
    """One departure from the plan, or one thing that is not known. `events` are sequences within the run."""

    code: str
    severity: Severity
    subject: str
    expected: Any = None
    observed: Any = None
    events: list[int] = Field(default_factory=list)


class Accounting(Document):
    """Bytes as accounted, each a Measurement; `transient_upper_bound` is derived and never called measured."""

    persistent_required: Measurement
    persistent_optional: Measurement
    unplanned_persistent: Measurement
    host_mirror: Measurement
    evidence_host_by_role: dict[str, Measurement]
    staging_before: Measurement
    staging_after: Measurement
    transient_upper_bound: Measurement
    transient_peak: Measurement


class RunDocument(Document):
    format: Literal["tally.run/1"] = "tally.run/1"
    run_id: str
    plan_digest: str | None
    outcome: Outcome
    verdict: Verdict | None
    assurance: Assurance | None
    accounting: Accounting | None
    findings: list[Finding]
    superseded_by: str | None = None
    witnessed: list[str] = Field(default_factory=list)


class RunSummary(Document):
    """A row of `tally runs`: the verdict is the recorded one, or null."""

    run_id: str
    plan_digest: str | None
    outcome: Outcome
    verdict: Verdict | None
    assurance: Assurance | None
    opened_at: str
    purpose: str
    superseded_by: str | None = None


class RunsDocument(Document):
    format: Literal["tally.runs/1"] = "tally.runs/1"
    runs: list[RunSummary]


class VerdictDocument(Document):
    format: Literal["tally.verdict/1"] = "tally.verdict/1"
    run_id: str
    verdict: Verdict
    assurance: Assurance
    findings: list[Finding]


class Checks(Document):
    signature: CheckState = "not-checked"
    pin: CheckState = "not-checked"
    chain: CheckState = "not-checked"
    plan: CheckState = "not-checked"
    blobs: CheckState = "not-checked"
    judge: CheckState = "not-checked"


ProblemCode = Literal[
    "content",
    "linkage",
    "gap",
    "unknown-type",
    "blob-missing",
    "blob-altered",
    "tail",
    "rollback",
    "fork",
    "signature",
    "format",
    "proof",
    "judge",
]


class Problem(Document):
    code: ProblemCode
    position: int | None = None
    sequence: int | None = None
    detail: str


class VerificationDocument(Document):
    format: Literal["tally.verification/1"] = "tally.verification/1"
    status: Literal["valid", "valid-unanchored", "broken"]
    checks: Checks
    problems: list[Problem] = Field(default_factory=list)
    """Each once, though two pins may say the same."""
    verdict: Verdict | None = None
    assurance: Assurance | None = None
    recorded_verdict: Verdict | None = None
    judge_version: str | None = None
    completeness: str | None = None
    unmet: list[str] = Field(default_factory=list)

    @field_validator("problems")
    @classmethod
    def _each_once(cls, problems: list[Problem]) -> list[Problem]:
        return list(dict.fromkeys(problems))


class Difference(Document):
    path: str
    a: Any = None
    b: Any = None
    kind: Literal["different", "expected"]


class ComparisonDocument(Document):
    format: Literal["tally.comparison/1"] = "tally.comparison/1"
    a: str
    b: str
    same: bool
    differences: list[Difference]
