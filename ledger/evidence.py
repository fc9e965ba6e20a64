"""Sealed evidence: seal a run, open a file, verify it by judging the raw events again.

Laws: `verify(seal(bundle, key), public_key=key.public_key())` is valid; `seal` is deterministic; whoever verifies needs the
file alone: no ledger, no network, no torch. Keys are never taken from the file, and bytes are verified as received.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ledger.bodies import RunOpened, VerdictRecorded
from ledger.checkpoints import Checkpoint, NoteError, parse_checkpoint
from ledger.counting import counted
from ledger.documents import Checks, CheckState, Problem, ProblemCode, VerificationDocument
from ledger.errors import EvidenceBroken, TallyError
from ledger.evidence_checks import CheckName, Fault, fault, structural_faults
from ledger.evidence_form import PriorRun, pre_authentication_encoding
from ledger.evidence_open import Envelope, Evidence, open_envelope, read_statement
from ledger.evidence_policy import ASSURANCES, Policy, PolicyError, Requirements, read_policy
from ledger.evidence_scope import Conclusions, conclude
from ledger.evidence_seal import EvidenceInput, Proven, seal
from ledger.fold import fold
from ledger.keys import key_id
from ledger.reconcile import why_no_witness

__all__ = [
    "Evidence",
    "EvidenceInput",
    "LedgerView",
    "Policy",
    "PolicyError",
    "PriorRun",
    "Proven",
    "Requirements",
    "open_evidence",
    "read_pin",
    "read_policy",
    "seal",
    "verify",
]

UNCHECKED = (
    "completeness unchecked: the prior runs, the end of the run and the list of witnesses are the signer's word; "
    "give --ledger to prove them"
)


MAX_REASONS = 3
MAX_PROBLEMS = 50
"""Problems listed; a file can be made to have a million."""


@dataclass(frozen=True)
class LedgerView:
    """What a verifier's own ledger says: its roots at the sizes asked for, and what the evidence must hold to be whole.

    `roots` maps a tree size to its root, for those sizes that the ledger has reached; computed from the envelopes' bytes.
    `prior_runs`, `run_events` (how many events the run has) and `witnesses` (run that names it as watched -> how many
    events) are as at the evidence's size. `later_events` counts those of the run after that, up to its first verdict and
    without supersessions: evidence that ends before the verdict has left something out.
    """

    origin: str
    size: int
    roots: Mapping[int, bytes]
    prior_runs: Sequence[PriorRun]
    run_events: int
    later_events: int
    witnesses: Mapping[str, int]


@dataclass
class _Answer:
    """The verification as it comes together."""

    states: dict[CheckName, CheckState] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    completeness: str | None = None
    complete: bool = False
    conclusions: Conclusions | None = None
    evidence: Evidence | None = None
    anchored: bool = False

    def add(self, faults: Sequence[Fault]) -> None:
        for found in faults:
            self.states[found.check] = "failed"
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append(found.problem)

    def settle(self, *checks: CheckName) -> None:
        """Those of the checks that nothing failed are ok."""
        for check in checks:
            self.states.setdefault(check, "ok")

    def document(self) -> VerificationDocument:
        broken = bool(self.problems)
        recorded = None
        if self.evidence is not None:
            recorded = self.evidence.statement.predicate.verdict
            if not broken:
                verdicts = [event.body for event in self.evidence.events if isinstance(event.body, VerdictRecorded)]
                recorded = verdicts[0].verdict if verdicts else recorded
        return VerificationDocument(
            status="broken" if broken else "valid" if self.anchored else "valid-unanchored",
            checks=Checks(**self.states),
            problems=self.problems,
            verdict=self.conclusions.verdict if self.conclusions else None,
            assurance=self.conclusions.assurance if self.conclusions else None,
            recorded_verdict=recorded,
            judge_version=self.conclusions.judge_version if self.conclusions else None,
            completeness=self.completeness,
            unmet=self.unmet,
        )


def open_evidence(data: bytes) -> Evidence:
    """What the file states, once its form, chain and proofs hold. Signature, pin and judgement are `verify`'s.

    Raises EvidenceBroken with the first fault.
    """
    evidence = read_statement(open_envelope(data))
    faults = structural_faults(evidence)
    if faults:
        problem = faults[0].problem
        where = "" if problem.position is None else f" at position {problem.position}"
        raise EvidenceBroken(
            f"evidence is broken: {problem.code}{where}: {problem.detail}", "`tally verify` lists all of it"
        )
    return evidence


def read_pin(data: bytes | str) -> Checkpoint:
    """The checkpoint of a pin file. Raises NoteError when it is none."""
    try:
        return parse_checkpoint(data if isinstance(data, str) else data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise NoteError(f"not a checkpoint: not UTF-8 at byte {error.start}") from error


def verify(
    data: bytes,
    *,
    public_key: Ed25519PublicKey | None = None,
    pin: Checkpoint | bytes | str | None = None,
    challenge: str | None = None,
    require: Requirements | None = None,
    prior_runs_from_ledger: LedgerView | None = None,
) -> VerificationDocument:
    """Verify an evidence file: form, signature over the received bytes, chain, proofs, plan, blobs, pin, and the judgement.

    `pin` is a checkpoint kept elsewhere; `prior_runs_from_ledger` a view of the verifier's own ledger, which proves the
    list of prior runs complete and connects pins of other sizes. Never raises for what the file holds: a file that is no
    evidence is `broken` with a `format` problem. Raises NoteError for a pin that is none.
    """
    require = require or Requirements()
    wanted = pin if pin is None or isinstance(pin, Checkpoint) else read_pin(pin)
    answer = _Answer()
    try:
        envelope = open_envelope(data)
        if public_key is not None:
            answer.add(_signature(envelope, public_key))
            if answer.problems:
                return _finished(answer, require, challenge)
            answer.settle("signature")
            answer.anchored = True
        evidence = answer.evidence = read_statement(envelope)
    except EvidenceBroken as error:
        answer.problems.append(Problem(code="format", detail=error.message))
        return _finished(answer, require, challenge)
    answer.add(structural_faults(evidence))
    answer.settle("chain", "plan")
    if all(blob.data is not None for blob in evidence.statement.predicate.blobs):
        answer.settle("blobs")
    if wanted is not None:
        _pin(answer, evidence, wanted, prior_runs_from_ledger)
    _completeness(answer, evidence, prior_runs_from_ledger)
    if not answer.problems:
        _judge(answer, evidence)
    return _finished(answer, require, challenge)


def _signature(envelope: Envelope, public_key: Ed25519PublicKey) -> list[Fault]:
    if envelope.signature is None:
        return [fault("signature", "signature", "the file is not signed, and a key was given")]
    key, signature = envelope.signature
    expected = key_id(public_key)
    if key != expected:
        return [fault("signature", "signature", f"signed by key {key[:16]}…, not by the given key {expected[:16]}…")]
    try:
        public_key.verify(signature, pre_authentication_encoding(envelope.payload))
    except InvalidSignature:
        return [
            fault("signature", "signature", "the signature does not hold: the statement or the signature was altered")
        ]
    return []


def _pin(answer: _Answer, evidence: Evidence, pin: Checkpoint, view: LedgerView | None) -> None:
    """Lay the checkpoint in the file against the pin. Only a pin that covers the whole tree anchors the run."""
    tree = evidence.checkpoint
    if pin.origin != tree.origin:
        detail = f"the pin is of ledger {pin.origin}, the evidence of ledger {tree.origin}"
        answer.add([fault("pin", "fork", detail)])
    elif pin.size == tree.size:
        if pin.root != tree.root:
            detail = f"at size {pin.size} the pin has root {pin.root_hex}, the evidence {tree.root_hex}"
            answer.add([fault("pin", "fork", detail, position=pin.size - 1)])
        else:
            answer.settle("pin")
            answer.anchored = True
    elif view is None or not {pin.size, tree.size} <= view.roots.keys():
        older = pin.size < tree.size
        why = (
            "is older than the run, and cannot vouch for it" if older else "is newer, and nothing here connects the two"
        )
        hint = "verify with --ledger, or with a pin taken right after the run"
        answer.unmet.append(f"pin: it is at size {pin.size}, the evidence at {tree.size}; it {why}: {hint}")
    elif (view.roots[pin.size], view.roots[tree.size]) != (pin.root, tree.root):
        which = "pin" if view.roots[pin.size] != pin.root else "evidence"
        answer.add([fault("pin", "fork", f"the ledger given has another root than the {which} at that size")])
    elif pin.size == 0:
        answer.unmet.append(f"pin: it is at size 0, and vouches for none of the run's {len(evidence.recorded)} events")
    else:
        answer.settle("pin")
        if pin.size > tree.size:
            answer.anchored = True
        else:
            covered = sum(place.position < pin.size for place in evidence.recorded)
            answer.unmet.append(
                f"pin: it holds, but at size {pin.size} it is older than the run, which ends at {tree.size}: it covers "
                f"{covered} of the run's {len(evidence.recorded)} events"
            )


def _completeness(answer: _Answer, evidence: Evidence, view: LedgerView | None) -> None:
    tree = evidence.checkpoint
    if view is None:
        answer.completeness = UNCHECKED
        return
    if view.origin != tree.origin or view.roots.get(tree.size) != tree.root:
        answer.completeness = "completeness unchecked: the ledger given is not the one that the evidence is from"
        detail = f"the ledger given does not have root {tree.root_hex} at size {tree.size}"
        code: ProblemCode = "rollback" if view.origin == tree.origin and view.size < tree.size else "fork"
        answer.add([fault("chain", code, detail)])
        return
    lacking = {
        "the run": _cut_run(evidence, view),
        "the witnesses": _cut_witnesses(evidence, view),
        "the prior runs": _other_prior_runs(evidence, view),
    }
    differing = [what for what, faults in lacking.items() if faults]
    for faults in lacking.values():
        answer.add(faults)
    if differing:
        answer.completeness = f"incomplete: the ledger differs from the evidence on {', '.join(differing)}"
        return
    answer.complete = True
    held = f"{counted(len(view.prior_runs), 'prior run')} and {counted(len(view.witnesses), 'witness', 'witnesses')}"
    answer.completeness = (
        f"complete: the ledger has the same {counted(view.run_events, 'event')}, {held} at size {tree.size}"
    )


def _cut_run(evidence: Evidence, view: LedgerView) -> list[Fault]:
    """The run has as many events in the ledger at the evidence's size, and does not go on after it to a verdict."""
    stated = len(evidence.recorded)
    if view.run_events != stated:
        detail = f"the run has {view.run_events} events in the ledger at that size, {stated} in the evidence"
        return [fault("chain", "tail", detail)]
    if view.later_events and not isinstance(evidence.events[-1].body, VerdictRecorded):
        detail = (
            f"the evidence ends after {stated} events of the run, without a verdict; in the ledger {view.later_events} "
            "more follow"
        )
        return [fault("chain", "tail", detail, position=evidence.recorded[-1].position, sequence=stated - 1)]
    return []


def _cut_witnesses(evidence: Evidence, view: LedgerView) -> list[Fault]:
    """The runs that name this one as watched are those in the ledger at that size, with as many events."""
    sealed = zip(evidence.statement.predicate.witnesses, evidence.witness_records, strict=True)
    stated = {witness.run_id: len(records) for witness, records in sealed}
    found = []
    for run_id in sorted(stated.keys() | view.witnesses.keys()):
        there, here = view.witnesses.get(run_id, 0), stated.get(run_id, 0)
        if there != here:
            detail = f"witness {run_id} has {there} events in the ledger at that size, {here} in the evidence"
            found.append(fault("chain", "tail" if here else "proof", detail))
    return found


def _other_prior_runs(evidence: Evidence, view: LedgerView) -> list[Fault]:
    stated, found = evidence.prior_runs, list(view.prior_runs)
    if stated == found:
        return []
    in_file, in_ledger = set(stated), set(found)
    missing = [run for run in found if run not in in_file]
    extra = [run for run in stated if run not in in_ledger]
    if not missing and not extra:
        return [fault("chain", "proof", "the prior runs stated are those in the ledger, but not once each in order")]
    first = (missing or extra)[0]
    detail = f"prior run {first.run_id} is " + (
        "in the ledger, not so in the evidence" if missing else "not in the ledger"
    )
    return [fault("chain", "proof", detail, position=first.position)]


def _judge(answer: _Answer, evidence: Evidence) -> None:
    """Judge again. By the same judge version everything that was concluded must come out the same.

    What another version concluded cannot be checked here, so the statement may name no other than the run's own verdict
    does: a name made up would free every conclusion in the file from the check.
    """
    predicate = evidence.statement.predicate
    try:
        conclusions = conclude(evidence.plan, evidence.events, evidence.witnesses)
    except TallyError as error:
        answer.add([fault("judge", "judge", f"the events cannot be judged: {error.message}")])
        return
    answer.conclusions = conclusions
    if predicate.environment != conclusions.environment:
        answer.add([fault("judge", "judge", "the environment stated is not the one that the events hold")])
    ours = predicate.judge_version == conclusions.judge_version
    if ours:
        for name in ("verdict", "assurance", "findings", "accounting", "scope"):
            if getattr(predicate, name) != getattr(conclusions, name):
                answer.add([fault("judge", "judge", f"judged again, {name} differs from what is stated")])
    for event in evidence.events:
        body = event.body
        if not isinstance(body, VerdictRecorded):
            continue
        if not ours and not _came_after(predicate.judge_version, body.judge_version, conclusions.judge_version):
            detail = f"concluded by judge {predicate.judge_version!r}; the verdict recorded is judge {body.judge_version!r}'s"
            answer.add([fault("judge", "judge", detail, sequence=event.sequence)])
        if body.judge_version == conclusions.judge_version:
            again = (conclusions.verdict, conclusions.assurance)
            if (body.verdict, body.assurance) != again:
                detail = f"recorded {body.verdict} ({body.assurance}); judged again {again[0]} ({again[1]})"
                answer.add([fault("judge", "judge", detail, sequence=event.sequence)])
    answer.states.setdefault("judge", "ok" if ours else "not-checked")


def _came_after(stated: str, recorded: str, ours: str) -> bool:
    """Whether a statement may be by that judge: the one of the verdict recorded, or one between it and ours.

    A run of an old judge that a newer program sealed names the newer one.
    """
    if stated == recorded:
        return True
    versions = (recorded, stated, ours)
    return all(re.fullmatch("[0-9]{1,9}", text, re.ASCII) for text in versions) and int(recorded) < int(stated) < int(
        ours
    )


def _finished(answer: _Answer, require: Requirements, challenge: str | None) -> VerificationDocument:
    evidence = answer.evidence
    opened = None
    if evidence is not None and not answer.problems and isinstance(evidence.events[0].body, RunOpened):
        opened = evidence.events[0].body
    if challenge is not None and (opened is None or opened.challenge != challenge):
        found = "none" if opened is None or opened.challenge is None else repr(opened.challenge)
        answer.unmet.append(f"challenge: the run was opened with {found}, not with {challenge!r}")
    for name in sorted(require.names):
        why = _unmet(name, answer, evidence if opened is not None else None, challenge)
        if why is not None and not any(line.startswith(f"{name}:") for line in answer.unmet):
            answer.unmet.append(f"{name}: {why}")
    reached = answer.conclusions.assurance if answer.conclusions else None
    if require.assurance is not None and (
        reached is None or ASSURANCES.index(reached) < ASSURANCES.index(require.assurance)
    ):
        answer.unmet.append(f"assurance: {require.assurance} is required, {reached or 'none'} was reached")
    if require.plans is not None and (
        opened is None or evidence is None or evidence.plan.computed_digest not in require.plans
    ):
        digest = evidence.plan.computed_digest if opened is not None and evidence is not None else "unknown"
        answer.unmet.append(f"plan: the run's plan is {digest}, which is not among those required")
    return answer.document()


def _unwitnessed(evidence: Evidence) -> str | None:
    """Why no witness counts, by the judge's rule; None when one does."""
    state = fold(evidence.events)
    reasons = []
    for events in evidence.witnesses:
        reason = why_no_witness(state, fold(events))
        if reason is None:
            return None
        reasons.append(f"{events[0].run_id} does not count: {reason}")
    return "; ".join(reasons[:MAX_REASONS]) or "no separate process watched this run"


def _unmet(name: str, answer: _Answer, evidence: Evidence | None, challenge: str | None) -> str | None:
    """Why a requirement is not met, or None when it is. `evidence` is null unless everything in it holds together."""
    if name == "signature":
        return None if answer.states.get("signature") == "ok" else "no signature was verified: give --key"
    if name == "pin":
        return None if answer.states.get("pin") == "ok" else "no pin was verified: give --pin"
    if name == "challenge" and challenge is None:
        return "there is none to compare with: give --challenge"
    if evidence is None:
        return "the evidence is broken"
    if name == "frozen":
        place = evidence.plan_frozen
        if place is None:
            return "no freezing of the plan is recorded"
        opened = evidence.recorded[0].position
        return (
            None if place.position < opened else f"frozen at position {place.position}, opened before that at {opened}"
        )
    if name == "complete":
        return None if answer.complete else "it was not proven: give --ledger"
    if name == "first-run":
        if evidence.prior_runs:
            count = len(evidence.prior_runs)
            return f"{count} earlier {'run of this model is' if count == 1 else 'runs of this model are'} listed"
        vouched = answer.complete or answer.states.get("signature") == "ok"
        return None if vouched else "nobody vouches for the empty list: give --key or --ledger"
    if name == "blobs":
        return (
            None if answer.states.get("blobs") == "ok" else "documents are named by digest only: export with --attach"
        )
    if name == "witness":
        return _unwitnessed(evidence)
    return None
