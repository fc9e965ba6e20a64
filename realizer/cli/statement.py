"""What an evidence file states, for people: who signed, plan, attempts before, verdict, what is unknown, the scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ledger.counting import counted
from realizer.cli.documents import EvidenceSummaryDocument, StatedScope
from realizer.cli.portrait import findings_parts
from realizer.cli.rendering import (
    OUTCOME_STYLES,
    VERDICT_STYLES,
    amount,
    bullets,
    cell,
    facts,
    heading,
    joined,
    short_digest,
    table,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ledger.evidence import Evidence


def evidence_summary(opened: Evidence) -> EvidenceSummaryDocument:
    """The statement as `tally.evidence-summary/1`."""
    predicate = opened.statement.predicate
    signature = opened.envelope.signature
    return EvidenceSummaryDocument(
        run_id=predicate.run_id,
        plan_digest=predicate.plan.digest,
        key_id=signature[0] if signature else None,
        origin=opened.checkpoint.origin,
        tree_size=opened.checkpoint.size,
        events=len(opened.recorded),
        witnesses=len(opened.witness_records),
        frozen_at=opened.plan_frozen.position if opened.plan_frozen else None,
        attempts_before=len(predicate.prior_runs),
        judge_version=predicate.judge_version,
        verdict=predicate.verdict,
        assurance=predicate.assurance,
        findings=predicate.findings,
        scope=StatedScope(
            proves=predicate.scope.proves,
            unknown=predicate.scope.unknown,
            does_not_prove=predicate.scope.does_not_prove,
        ),
    )


def statement_parts(opened: Evidence) -> Iterator[RenderableType]:
    """The same for a terminal."""
    summary = evidence_summary(opened)
    predicate = opened.statement.predicate
    yield joined(
        (summary.verdict, VERDICT_STYLES[summary.verdict]),
        f"assurance {summary.assurance}",
        (f"as stated, judge {summary.judge_version}; `tally verify` checks and judges again", "dim"),
    )
    frozen = "no freezing recorded" if summary.frozen_at is None else f"frozen at position {summary.frozen_at}"
    yield facts(
        [
            ("signed by", f"key {summary.key_id}" if summary.key_id else cell("nobody: NOT AUTHENTICATED", "yellow")),
            ("run", summary.run_id),
            ("plan", joined(short_digest(summary.plan_digest), (frozen, "dim"))),
            (
                "ledger",
                f"{summary.origin}, {counted(summary.tree_size, 'event')}, root {short_digest(opened.checkpoint.root_hex)}",
            ),
            ("events", f"{summary.events}, and {counted(summary.witnesses, 'witness', 'witnesses')}"),
            ("attempts before", str(summary.attempts_before)),
            (
                "let pass",
                f"{amount(opened.plan.host_noise_bytes)} of host memory unexplained: a copy that small is not found",
            ),
        ]
    )
    if predicate.prior_runs:
        yield from ("", heading("Attempts before this one"))
        yield table(
            ("run", "outcome", "verdict", "position"),
            [
                (run.run_id, cell(run.outcome, OUTCOME_STYLES[run.outcome]), run.verdict or "none", run.position)
                for run in predicate.prior_runs
            ],
            right=("position",),
        )
    yield from findings_parts(summary.findings)
    for title, sentences in (
        ("Shows", summary.scope.proves),
        ("Unknown", summary.scope.unknown),
        ("Does not prove", summary.scope.does_not_prove),
    ):
        if sentences:
            yield from ("", heading(title))
            yield bullets(sentences)
