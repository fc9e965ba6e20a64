"""The judge: (plan, RunState) to findings, one small pure function per invariant, and a verdict from them alone."""

from ledger.reconcile.catalogue import Invariant, markdown, severity
from ledger.reconcile.judgement import (
    INVARIANTS,
    JUDGE_VERSION,
    Judgement,
    judge,
    run_document,
    verdict_document,
    verdict_of,
    why_no_witness,
)
from ledger.reconcile.staging import qualifying_ids

__all__ = [
    "INVARIANTS",
    "JUDGE_VERSION",
    "Invariant",
    "Judgement",
    "judge",
    "markdown",
    "qualifying_ids",
    "run_document",
    "severity",
    "verdict_document",
    "verdict_of",
    "why_no_witness",
]
