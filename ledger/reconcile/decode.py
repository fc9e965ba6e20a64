"""Family `decode`: what was realised decodes as the reference does, again and again, without a look at source or plan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from ledger.documents import Finding
from ledger.folding.sources import WATCHED
from ledger.plan import Execution, Plan
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.reading import extremes_differ, known, places, shown, spread, unfinished
from ledger.run_state import DecodeState, DeviationState, Extremes, RunState

DECODE: list[Invariant] = []


def _demanded(plan: Plan) -> list[Execution]:
    """Executions whose decode the plan demands."""
    expected = plan.correctness
    if not expected.prefill and expected.repetitions == 0:
        return []
    return sorted(plan.document.execution, key=lambda item: item.id)


def _decoded(plan: Plan, state: RunState) -> Iterator[tuple[str, DecodeState]]:
    """Planned executions that decoded."""
    for planned in sorted(plan.document.execution, key=lambda item: item.id):
        found = state.decodes.get(planned.id)
        if found is not None:
            yield planned.id, found


@declare(DECODE, "decode.missing")
def every_repetition_ran(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Prefill, where planned, and after each prefill every planned repetition of decode ran, took time and gave tokens;
    after each they are numbered without a gap, each once, also beyond the planned ones.

    One good decode shows that state was right once; repetitions from the restored baseline show that it stays right.
    """
    expected = plan.correctness
    for planned in _demanded(plan):
        found = state.decodes.get(planned.id) or DecodeState()
        seen = sum(1 for number in found.beyond if number < expected.repetitions)
        missing = max(expected.repetitions - found.repeated, 0) - seen
        first = islice(
            (number for number in range(found.repeated, expected.repetitions) if number not in found.beyond), 8
        )
        absent: dict[str, object] = {}
        if expected.prefill and not found.prefills:
            absent["prefill"] = "not recorded"
        given = {"tokens": found.tokens, "prefill tokens": found.prefill_tokens, "time": found.elapsed_ns}
        none = {what: "none" for what, figures in given.items() if figures.low is not None and figures.low.value == 0}
        absent |= none
        if expected.prefill and found.prefills and found.unfilled is not None:
            absent["prefill"] = "after a repetition"
        if found.unnumbered is not None:
            absent["number"] = "a repetition without one"
        if found.again is not None:
            absent["number again"] = "two repetitions with the same"
        if found.beyond or found.gap is not None:
            absent["numbers before"] = found.gap if found.gap is not None else min(found.beyond)
        if found.shortest is not None and found.shortest < expected.repetitions:
            absent["an earlier round"] = f"{expected.repetitions - found.shortest} missing"
        if missing > 0:
            absent["repetitions"] = f"{missing} missing: {', '.join(str(number) for number in first)}"
        if absent:
            yield finding(
                "decode.missing",
                planned.id,
                expected={"prefill": expected.prefill, "repetitions": expected.repetitions},
                observed=absent,
                events=[
                    found.unnumbered,
                    found.again,
                    found.unfilled,
                    *(event for what in none for event in places(given[what])),
                ],
                unknown=unfinished(state),
            )
        unknown = {what: figures.unknown for what, figures in given.items() if figures.unknown is not None}
        if unknown:
            yield finding(
                "decode.missing",
                planned.id,
                expected="measured",
                observed=dict.fromkeys(unknown, "not known"),
                events=unknown.values(),
                unknown=True,
            )


@declare(DECODE, "decode.before-activation")
def decode_follows_activation(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Decode ran after its execution was activated.

    What decoded before was bound to something that nobody recorded.
    """
    for name, found in _decoded(plan, state):
        execution = state.executions.get(name)
        activated = execution.activations[0].sequence if execution is not None else None
        if found.first is not None and (activated is None or found.first < activated):
            yield finding(
                "decode.before-activation",
                name,
                expected="execution.activated first",
                observed="decoded first",
                events=[found.first, activated],
            )


@declare(DECODE, "decode.reference-missing")
def reference_was_bound(plan: Plan, state: RunState) -> Iterator[Finding]:
    """A reference was bound, with its digest known, before the first decode that is compared with it.

    Agreement with nothing in particular says nothing.
    """
    demanded = _demanded(plan)
    if not demanded:
        return
    first = [found.first for _, found in _decoded(plan, state) if found.first is not None]
    if not state.references:
        yield finding(
            "decode.reference-missing",
            "correctness",
            expected="reference.bound",
            observed="not recorded",
            unknown=unfinished(state),
        )
        return
    if first and state.references[0].sequence > min(first):
        yield finding(
            "decode.reference-missing",
            "correctness",
            expected="bound before decode",
            observed="bound afterwards",
            events=[min(first), state.references[0].sequence],
        )
    for seen in state.references:
        if not known(seen.body.digest):
            yield finding(
                "decode.reference-missing",
                "correctness",
                expected="the digest of the reference",
                observed=shown(seen.body.digest),
                events=[seen.sequence],
                unknown=True,
            )


@declare(DECODE, "decode.reference-mismatch")
def reference_is_the_planned_one(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The reference is the one whose digest the plan binds, and the same one throughout.

    A reference swapped for the run's own output makes everything exact.
    """
    planned = plan.correctness.reference_digest
    digests: dict[str, int] = {}
    for seen in state.references:
        if known(seen.body.digest):
            digests.setdefault(str(seen.body.digest.value), seen.sequence)
        if planned is not None and seen.body.planned_digest != planned:
            yield finding(
                "decode.reference-mismatch",
                "correctness.planned_digest",
                expected=planned,
                observed=seen.body.planned_digest,
                events=[seen.sequence],
            )
    wrong = {digest: event for digest, event in digests.items() if planned is not None and digest != planned}
    if wrong or len(digests) > 1:
        yield finding(
            "decode.reference-mismatch",
            "correctness",
            expected=planned or "one reference",
            observed=sorted(digests),
            events=digests.values(),
        )


@declare(DECODE, "decode.deviation")
def decode_agrees_with_the_reference(plan: Plan, state: RunState) -> Iterator[Finding]:
    """What goes in and what comes out agrees with the reference: bit for bit, or within the planned tolerance. Where it is
    bit for bit, and the reference says which tokens come out, it is those.

    Bytes in the right place are worth what can be computed with them. Equal, yet with a deviation above zero, is no
    agreement either.
    """
    expected = plan.correctness
    if expected.mode == "exact":
        for name, found in _decoded(plan, state):
            yield from _other_tokens(state, name, found)
    for name, found in _decoded(plan, state):
        for side, figures in (("input", found.input), ("output", found.output)):
            wrong, unknown = _deviates(figures, exact=expected.mode == "exact", atol=expected.atol, rtol=expected.rtol)
            if not wrong and not unknown:
                continue
            told: dict[str, Any] = {what: spread(extremes) for what, extremes in wrong.items()}
            told |= {what: "not known" for what in unknown if what not in told}
            if wrong and figures.why is not None:
                told["because"] = figures.why
            yield finding(
                "decode.deviation",
                f"{name}.{side}",
                expected={"mode": expected.mode, "atol": expected.atol, "rtol": expected.rtol},
                observed=told,
                events=[event for extremes in (*wrong.values(), *unknown.values()) for event in places(extremes)],
                unknown=not wrong,
            )


def _other_tokens(state: RunState, name: str, found: DecodeState) -> Iterator[Finding]:
    """Tokens other than those that a bound reference says come out, by their number and their digest."""
    phases = (
        ("prefill", found.prefill_tokens, found.prefill_token_digests),
        ("decode", found.tokens, found.token_digests),
    )
    for reference in state.references:
        says = reference.body.provenance
        for phase, count, digests in phases:
            number, digest = says.get(f"{phase}_tokens"), says.get(f"{phase}_tokens_digest")
            wrong = {
                str(figure.value): figure.sequence
                for figure in (count.low, count.high)
                if number is not None and figure is not None and str(figure.value) != number
            }
            wrong |= {other: event for other, event in digests.items() if digest is not None and other != digest}
            if wrong:
                yield finding(
                    "decode.deviation",
                    f"{name}.{phase} tokens",
                    expected=[said for said in (number, digest) if said is not None],
                    observed=sorted(wrong),
                    events=[reference.sequence, *wrong.values()],
                )


def _deviates(
    figures: DeviationState, *, exact: bool, atol: float | None, rtol: float | None
) -> tuple[dict[str, Extremes], dict[str, Extremes]]:
    """(figures that depart, figures that are not known)."""
    wrong: dict[str, Extremes] = {}
    agreement = ("exact", figures.exact) if exact else ("within_tolerance", figures.within_tolerance)
    if extremes_differ(agreement[1], 1):
        wrong[agreement[0]] = agreement[1]
    most = figures.max_absolute.high
    if most is not None and ((exact and most.value > 0) or (not exact and not rtol and most.value > (atol or 0))):
        wrong["max_absolute"] = figures.max_absolute
    if exact and figures.max_relative.high is not None and figures.max_relative.high.value > 0:
        wrong["max_relative"] = figures.max_relative
    needed = dict([agreement], max_absolute=figures.max_absolute, max_relative=figures.max_relative)
    unknown = {what: extremes for what, extremes in needed.items() if extremes.unknown is not None}
    return wrong, unknown


@declare(DECODE, "decode.non-finite")
def nothing_is_nan_or_infinite(plan: Plan, state: RunState) -> Iterator[Finding]:
    """No NaN and no infinity goes in or comes out, and every largest deviation is a finite number.

    NaN compares as unequal to everything, so that a careless comparison passes it.
    """
    for name, found in _decoded(plan, state):
        for side, figures in (("input", found.input), ("output", found.output)):
            counts = {"nan_count": figures.nan_count, "inf_count": figures.inf_count}
            wrong = {what: spread(c) for what, c in counts.items() if c.high is not None and c.high.value > 0}
            events = [event for what in wrong for event in places(counts[what])]
            if figures.failed is not None:
                wrong["deviation"] = "not finite"
                events.append(figures.failed)
            if wrong:
                yield finding("decode.non-finite", f"{name}.{side}", expected=0, observed=wrong, events=events)
            unknown = {what: c for what, c in counts.items() if c.unknown is not None}
            if unknown:
                yield finding(
                    "decode.non-finite",
                    f"{name}.{side}",
                    expected=0,
                    observed=dict.fromkeys(unknown, "not known"),
                    events=[c.unknown for c in unknown.values()],
                    unknown=True,
                )


@declare(DECODE, "decode.not-repeatable")
def repetitions_give_the_same(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Every repetition from the restored baseline gives the same tokens and, where exactness is planned, the same bytes.

    State that a decode changes, and that is not restored, was not all of the state.
    """
    for name, found in _decoded(plan, state):
        kept = {"tokens": found.token_digests, "prefill tokens": found.prefill_token_digests}
        if plan.correctness.mode == "exact":
            kept |= {"output": found.output_digests, "prefill output": found.prefill_digests}
        differing = {what: digests for what, digests in kept.items() if len(digests) > 1}
        counts = {"number of tokens": found.tokens, "number of prefill tokens": found.prefill_tokens}
        differing |= {
            what: {str(figure.value): figure.sequence for figure in (count.low, count.high)}
            for what, count in counts.items()
            if count.low is not None and count.high is not None and count.low.value != count.high.value
        }
        if differing:
            yield finding(
                "decode.not-repeatable",
                name,
                expected="one digest",
                observed={what: sorted(digests) for what, digests in differing.items()},
                events=[event for digests in differing.values() for event in digests.values()],
            )
        if found.digest_unknown is not None:
            yield finding(
                "decode.not-repeatable",
                name,
                expected="one digest",
                observed="not known",
                events=[found.digest_unknown],
                unknown=True,
            )


@declare(DECODE, "decode.source-accessed")
def checkpoint_is_not_accessed(plan: Plan, state: RunState) -> Iterator[Finding]:
    """After the release the run's own process tree neither opens, maps nor holds a checkpoint file.

    A model that goes back to its checkpoint is not resident. Where the plan allows a host mirror, its files may stay
    mapped; how much of them is resident is `memory.host-mirror`.
    """
    mirror = plan.document.memory_expectations.unexplained_persistent_host_mirror_bytes
    forbidden = (
        ("tree_accesses", "open_descriptors") if mirror else ("tree_accesses", "mapped_files", "open_descriptors")
    )
    accesses = state.source_accesses
    kept = accesses.kept.get("tree", [])
    if kept:
        yield finding(
            "decode.source-accessed",
            "checkpoint",
            expected=0,
            observed={
                "accesses": accesses.by["tree"],
                "files": sorted({str(shown(seen.body.path)) for seen in kept}),
                "kinds": sorted({seen.body.access for seen in kept}),
            },
            events=[seen.sequence for seen in kept],
        )
    held = {
        what: figures
        for what in forbidden
        if (figures := state.watch.get(what)) is not None and figures.high is not None and figures.high.value > 0
    }
    if held:
        yield finding(
            "decode.source-accessed",
            "watch",
            expected=0,
            observed={what: spread(figures) for what, figures in held.items()},
            events=[event for figures in held.values() for event in places(figures)],
        )


@declare(DECODE, "decode.access-unknown")
def the_watch_held(plan: Plan, state: RunState) -> Iterator[Finding]:
    """From the release on the checkpoint was watched, without gaps, and nobody whom the watch cannot place touched it.

    An overflowed queue, a network file system, somebody else's open, no means to see anything, or more bytes read during
    decode than noise, each leave open whether the run accessed its source.
    """
    if not state.watches:
        yield finding("decode.access-unknown", "watch", expected="source.watched", observed="not recorded")
    elif state.last_decode is not None and (state.last_watch or 0) < state.last_decode:
        yield finding(
            "decode.access-unknown",
            "watch",
            expected="source.watched after the last decode",
            observed="summed up before",
            events=[state.last_watch, state.last_decode],
        )
    doubts: dict[str, object] = {}
    events: list[int | None] = []
    allowed = {"armed": (1, 1), "overflowed": (0, 0), "network_filesystem": (0, 0), "other_accesses": (0, 0)}
    allowed["read_bytes"] = (0, plan.host_noise_bytes)
    for what in WATCHED:
        figures = state.watch.get(what)
        if figures is None:
            continue
        low, high = allowed.get(what, (None, None))
        if figures.unknown is not None:
            doubts[what] = "not known"
        elif low is not None and high is not None and not _between(figures, low, high):
            doubts[what] = spread(figures)
        else:
            continue
        events += places(figures)
    if state.blind_watch is not None:
        doubts["means"] = "none"
        events.append(state.blind_watch)
    for who in ("other", "unknown"):
        kept = state.source_accesses.kept.get(who, [])
        if kept:
            doubts[f"accesses by {who}"] = state.source_accesses.by[who]
            events += [seen.sequence for seen in kept]
    if doubts:
        yield finding("decode.access-unknown", "checkpoint", expected="watched", observed=doubts, events=events)


def _between(figures: Extremes, low: int, high: int) -> bool:
    return (
        figures.low is not None and figures.high is not None and low <= figures.low.value and figures.high.value <= high
    )


@declare(DECODE, "decode.plan-consulted")
def decode_does_not_consult_the_plan(plan: Plan, state: RunState) -> Iterator[Finding]:
    """During decode the plan is not looked at.

    The plan is interpreted once, before; what the hot path needs is bound to state by then.
    """
    for name, found in _decoded(plan, state):
        lookups = found.plan_lookups
        if lookups.high is not None and lookups.high.value > 0:
            yield finding("decode.plan-consulted", name, expected=0, observed=spread(lookups), events=places(lookups))
        if lookups.unknown is not None:
            yield finding(
                "decode.plan-consulted", name, expected=0, observed="not known", events=[lookups.unknown], unknown=True
            )
