"""What follows from a run's events: the judgement, and the statement of what the evidence proves and what it does not.

The scope is derived from what was measured, so that a file cannot claim a proof that its events do not carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledger.bodies import (
    Assurance,
    DecodeRan,
    EnvironmentObserved,
    FreezingReference,
    MaterializationObserved,
    ReclamationObserved,
    RunOpened,
    SourceWatched,
    Verdict,
)
from ledger.documents import Finding
from ledger.events import Event
from ledger.evidence_form import (
    Scope,
    SealedAccounting,
    SealedEnvironment,
    sealed_accounting,
    sealed_environment,
)
from ledger.fold import fold
from ledger.plan import Plan
from ledger.reconcile import JUDGE_VERSION, judge, why_no_witness
from ledger.run_state import RunState

NEVER_PROVED = (
    "That the events are true: whoever controls the process can write invented ones. A witness process, content digests, "
    "a verifier's challenge and a pin kept elsewhere narrow that and do not close it.",
    "When anything happened: the wall clock is the machine's own word.",
    "That no copy was made after the closing sample, or from a mapping made before the watch began.",
    "That the run was not superseded after this file was made.",
    "Where the checkpoint comes from: a digest shows that bytes are the same, not whose they are.",
)


@dataclass(frozen=True)
class Conclusions:
    """What judging the raw events again gives; everything in a statement that was not recorded."""

    environment: SealedEnvironment | None
    judge_version: str
    verdict: Verdict
    assurance: Assurance
    findings: list[Finding]
    accounting: SealedAccounting
    scope: Scope


def conclude(plan: Plan, events: Sequence[Event], witnesses: Sequence[Sequence[Event]]) -> Conclusions:
    """Fold and judge a run with its witnesses. Pure: the same plan and events always give the same conclusions."""
    state = fold(events)
    watching = [fold(witness) for witness in witnesses]
    judgement = judge(plan, state, watching)
    observed = [event.body for event in events if isinstance(event.body, EnvironmentObserved)]
    findings = list(judgement.findings)
    return Conclusions(
        environment=sealed_environment(observed[0] if observed else None),
        judge_version=JUDGE_VERSION,
        verdict=judgement.verdict,
        assurance=judgement.assurance,
        findings=findings,
        accounting=sealed_accounting(judgement.accounting),
        scope=scope(plan, events, [witness.run_id or "" for witness in watching if counts(state, witness)], findings),
    )


def counts(state: RunState, witness: RunState) -> bool:
    """Whether a run that watched this one counts as its witness, by the judge's rule."""
    return why_no_witness(state, witness) is None


def scope(plan: Plan, events: Sequence[Event], witnesses: Sequence[str], findings: Sequence[Finding]) -> Scope:
    """What these events show, what they leave unknown, and what they cannot show; `witnesses` are ids of those that count."""
    opened = events[0].body
    assert isinstance(opened, RunOpened), "the first event of a run was checked to be run.opened"
    proves = [f"The {len(events)} events here are the run's first, in order and without a gap, and none was altered."]
    unknown: list[str] = []
    limits = list(NEVER_PROVED)
    _freezing(opened.frozen, proves, unknown)
    _residency(plan, events, proves, unknown, limits)
    _staging(events, proves, unknown)
    _decode(plan, events, proves, unknown)
    _watch(events, proves, unknown)
    hashed = [file.name for file in opened.checkpoint_files if file.digest.observed]
    if hashed:
        proves.append(f"The checkpoint files were hashed in this run: {', '.join(hashed)}.")
    else:
        unknown.append("Which bytes the checkpoint files held: they were not hashed in this run.")
    if opened.challenge is not None:
        proves.append("The run was opened after the challenge that it names was given out.")
    else:
        limits.append("That the run is recent: it was opened without a verifier's challenge.")
    if witnesses:
        proves.append(f"A separate process recorded what it saw of this run: {', '.join(witnesses)}.")
    else:
        limits.append("That the process told the truth about itself: no separate process watched it.")
    if opened.purpose == "import":
        limits.append("That any of it was observed: the run was imported from somebody's published result.")
    unknown += [f"{finding.code}: {finding.subject}" for finding in findings if finding.severity == "unknown"]
    return Scope(proves=proves, unknown=unknown, does_not_prove=limits)


def _freezing(frozen: FreezingReference | None, proves: list[str], unknown: list[str]) -> None:
    if frozen is None:
        unknown.append("Whether the plan was frozen before the run: no freezing is recorded.")
    else:
        proves.append(f"The run cites the plan's freezing, {frozen.digest}, recorded in this ledger.")


def _residency(plan: Plan, events: Sequence[Event], proves: list[str], unknown: list[str], limits: list[str]) -> None:
    wanted = [
        item.id
        for item in plan.materializations.values()
        if (item.persistence, item.requirement) == ("persistent", "required")
    ]
    bodies = [event.body for event in events if isinstance(event.body, MaterializationObserved)]
    seen = {body.materialization_id for body in bodies if body.live.observed and body.live.value == 1}
    seen_wanted = [item for item in wanted if item in seen]
    if seen_wanted:
        names = ", ".join(seen_wanted)
        proves.append(f"Seen live by probes that do not ask the adapter, {len(seen_wanted)} of {len(wanted)}: {names}.")
    for item in wanted:
        if item not in seen:
            unknown.append(f"Whether {item} was ever live: no probe saw it.")
    verified = [
        body.materialization_id
        for body in bodies
        if body.source_digest is not None
        and body.resident_digest is not None
        and body.source_digest.observed
        and body.resident_digest.observed
    ]
    if verified:
        proves.append(f"Source bytes and resident bytes read back were both digested: {', '.join(verified)}.")
    limits += [
        f"That computed tensors of {body.materialization_id} follow from the source: {body.source_digest.detail}."
        for body in bodies
        if body.materialization_id in verified and body.source_digest is not None and body.source_digest.detail
    ]
    rest = [item for item in wanted if item not in verified]
    if rest:
        limits.append(f"That these hold the checkpoint's values: contents were not read back ({', '.join(rest)}).")


def _staging(events: Sequence[Event], proves: list[str], unknown: list[str]) -> None:
    for event in events:
        body = event.body
        if not isinstance(body, ReclamationObserved) or body.phase != "after-decode":
            continue
        if body.region_mapped.observed and body.region_mapped.value == 0:
            proves.append(f"The staging of {body.materialization_id} was no longer mapped after the last decode.")
        elif not body.region_mapped.observed and not body.ratio.observed:
            unknown.append(f"Whether the staging of {body.materialization_id} went back to the operating system.")


def _decode(plan: Plan, events: Sequence[Event], proves: list[str], unknown: list[str]) -> None:
    repetitions = [
        event.body for event in events if isinstance(event.body, DecodeRan) and event.body.phase == "repetition"
    ]
    exact = [body for body in repetitions if body.output.exact.observed and body.output.exact.value == 1]
    if repetitions:
        how = "bit for bit equal to the reference"
        proves.append(f"Of {len(repetitions)} repeated decodes, {len(exact)} gave an output {how}.")
    elif plan.document.execution:
        unknown.append("Whether decode is right: no repeated decode is recorded.")


def _watch(events: Sequence[Event], proves: list[str], unknown: list[str]) -> None:
    watched = [event.body for event in events if isinstance(event.body, SourceWatched)]
    if any(body.armed.observed and body.armed.value == 1 for body in watched):
        means = ", ".join(watched[-1].means)
        proves.append(f"Accesses to the checkpoint after the release were watched by: {means}.")
    else:
        unknown.append("Whether the checkpoint was read again after the release: nothing watched it.")
