"""Plan and state laid together: every invariant asked, the verdict from the severities alone, and the documents of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ledger import canonical
from ledger.bodies import Assurance, Verdict
from ledger.documents import Accounting, Finding, RunDocument, VerdictDocument
from ledger.errors import EventError
from ledger.plan import Plan
from ledger.reconcile.accounting import account
from ledger.reconcile.assurance import assurances, overall
from ledger.reconcile.authority import AUTHORITY
from ledger.reconcile.catalogue import Invariant
from ledger.reconcile.decode import DECODE
from ledger.reconcile.environment import ENVIRONMENT
from ledger.reconcile.execution import EXECUTION
from ledger.reconcile.give_back import GIVE_BACK
from ledger.reconcile.materialization import MATERIALIZATION
from ledger.reconcile.memory import MEMORY
from ledger.reconcile.plan import PLAN
from ledger.reconcile.run import RUN
from ledger.reconcile.staging import STAGING
from ledger.run_state import RunState

JUDGE_VERSION = "1"
"""Changes whenever some plan and events may be judged otherwise than before."""

INVARIANTS: tuple[Invariant, ...] = tuple(
    invariant
    for family in (PLAN, ENVIRONMENT, MATERIALIZATION, STAGING, AUTHORITY, EXECUTION, DECODE, MEMORY, GIVE_BACK, RUN)
    for invariant in family
)


@dataclass(frozen=True)
class Judgement:
    """What the judge says of one run."""

    verdict: Verdict
    assurance: Assurance
    assurances: dict[str, Assurance]
    findings: list[Finding]
    accounting: Accounting
    witnessed: list[str]

    @property
    def codes(self) -> list[str]:
        """The codes found, sorted, each once."""
        return sorted({finding.code for finding in self.findings})


def judge(plan: Plan, state: RunState, witnesses: Sequence[RunState] = ()) -> Judgement:
    """Lay the plan and what happened together. Pure: the same plan and events give the same judgement everywhere.

    `witnesses` are the states of runs that watched this one. Any of them may contradict the run; which of them count as
    having witnessed it, `why_no_witness` says.
    """
    watched = replace(state, witnesses=tuple(witnesses))
    findings = [finding for invariant in INVARIANTS for finding in invariant.function(plan, watched)]
    return Judgement(
        verdict=verdict_of(findings),
        assurance=overall(plan, state),
        assurances=assurances(plan, state),
        findings=sorted(findings, key=_order),
        accounting=account(plan, state),
        witnessed=sorted(
            witness.run_id
            for witness in witnesses
            if witness.run_id is not None and why_no_witness(state, witness) is None
        ),
    )


def why_no_witness(state: RunState, witness: RunState) -> str | None:
    """Why a run that names this one as the one it watched does not count as its witness; None when it does.

    It went on to its end, recorded what it saw, and was a process other than the run's own. Whether it was, is not known
    where a process is withheld.
    """
    if witness.outcome != "completed":
        return f"it ended as {witness.outcome}"
    if not witness.samples_seen:
        return "it recorded no sample"
    if state.opened is None or witness.opened is None:
        return "which process it was is not recorded"
    ours, theirs = state.opened.body, witness.opened.body
    hosts = ours.hostname, theirs.hostname
    if all(host.known for host in hosts) and hosts[0].value != hosts[1].value:
        return None
    if not (ours.pid.known and theirs.pid.known):
        return "whether it was another process is not known: its id is withheld"
    return "it was the run's own process" if ours.pid.value == theirs.pid.value else None


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """Any error: FAIL; else any unknown: INDETERMINATE; else PASS. Notes change nothing."""
    severities = {finding.severity for finding in findings}
    if "error" in severities:
        return "FAIL"
    return "INDETERMINATE" if "unknown" in severities else "PASS"


def _order(finding: Finding) -> tuple[str, str, str, list[int], str]:
    try:
        observed = canonical.encode([finding.expected, finding.observed])
    except EventError:
        observed = repr((finding.expected, finding.observed))
    return finding.code, finding.subject, finding.severity, finding.events, observed


def run_document(state: RunState, judgement: Judgement | None) -> RunDocument:
    """`tally.run/1` of a run; without a judgement (a witness without a plan) nothing is judged."""
    reference = state.opened.body.plan if state.opened is not None else None
    return RunDocument(
        run_id=state.run_id or "",
        plan_digest=reference.computed_digest if reference is not None else None,
        outcome=state.outcome,
        verdict=judgement.verdict if judgement is not None else None,
        assurance=judgement.assurance if judgement is not None else None,
        accounting=judgement.accounting if judgement is not None else None,
        findings=judgement.findings if judgement is not None else [],
        superseded_by=state.superseded_by,
        witnessed=judgement.witnessed if judgement is not None else [],
    )


def verdict_document(state: RunState, judgement: Judgement) -> VerdictDocument:
    """`tally.verdict/1` of a judgement."""
    return VerdictDocument(
        run_id=state.run_id or "",
        verdict=judgement.verdict,
        assurance=judgement.assurance,
        findings=judgement.findings,
    )
