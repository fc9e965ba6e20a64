"""Family `staging`: what has a bounded lifetime was given up, rightly, wholly and in order."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.documents import Finding
from ledger.plan import Materialization, Plan
from ledger.plan_doctrine import qualifying_finals
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.reading import (
    exists,
    extremes_differ,
    fits,
    fits_at,
    number,
    places,
    reclaimed_in_time,
    samples_at_rest,
    spread,
    transient,
    unfinished,
)
from ledger.run_state import Extremes, MaterializationState, RunState

STAGING: list[Invariant] = []

NOW = 2**62
"""Later than any sequence."""


def qualifying_ids(plan: Plan, state: RunState, staging_id: str, *, before: int = NOW) -> list[str]:
    """The materializations for whose sake that staging may be released: the rule of engine and judge alike.

    Each is distinct from it, of the same unit, required and persistent, and was observed live with planned resource,
    representation and bytes before sequence `before`. Sorted; empty: the release may not be.
    """
    planned = plan.materializations.get(staging_id)
    if planned is None:
        return []
    return sorted(
        final.id
        for final in qualifying_finals(plan, planned)
        if fits_at(final, state.materializations.get(final.id), before) is True
    )


def _found(plan: Plan, state: RunState) -> Iterator[tuple[Materialization, MaterializationState]]:
    for planned in transient(plan):
        found = state.materializations.get(planned.id)
        if found is not None:
            yield planned, found


@declare(STAGING, "staging.not-released")
def staging_is_released(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Whatever is planned as transient and was realised is released before the run ends, and before the last decode.

    A staging bank that is still live at the end is an implicit host mirror. One that every decode could still read leaves
    open whether what stays suffices.
    """
    for planned, found in _found(plan, state):
        if exists(found) and not found.released:
            yield finding(
                "staging.not-released",
                planned.id,
                expected="materialization.released",
                observed=found.refused[-1].body.reason if found.refused else "not released",
                events=[found.spans[0][0], *(seen.sequence for seen in found.refused)],
                unknown=unfinished(state),
            )
        elif found.released and state.last_decode is not None and state.last_decode < found.released[0].sequence:
            yield finding(
                "staging.not-released",
                planned.id,
                expected="released before the last decode",
                observed="released after it",
                events=[state.last_decode, found.released[0].sequence],
            )


@declare(STAGING, "staging.release-unqualified")
def release_was_authorised(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Every release follows an authorization of its own, whose ids are exactly those that qualified at that point.

    A distinct, required, persistent materialization of the same unit must have been observed live with planned resource,
    representation and bytes: otherwise the last good copy may have been thrown away.
    """
    for planned, found in _found(plan, state):
        for sequence in found.unauthorized:
            yield finding(
                "staging.release-unqualified",
                planned.id,
                expected="release.authorized before it",
                observed="released without",
                events=[sequence],
            )
        for authorization in found.authorized:
            at = authorization.sequence
            verdicts = {
                final.id: fits_at(final, state.materializations.get(final.id), at)
                for final in qualifying_finals(plan, planned)
            }
            qualified = sorted(name for name, fitting in verdicts.items() if fitting is True)
            unsure = sorted(name for name, fitting in verdicts.items() if fitting is None)
            recorded = authorization.body.qualifying_ids
            if sorted(recorded) == qualified and qualified:
                continue
            yield finding(
                "staging.release-unqualified",
                planned.id,
                expected=qualified,
                observed=sorted(recorded),
                events=[at],
                unknown=bool(unsure)
                and len(set(recorded)) == len(recorded)
                and set(qualified) <= set(recorded) <= set(qualified + unsure),
            )


@declare(STAGING, "staging.released-before-final")
def final_was_seen_before_the_release(plan: Plan, state: RunState) -> Iterator[Finding]:
    """A final was observed live before staging was released; one that is observed only afterwards came too late.

    Between release and observation nobody knew whether the state still existed. No flag in a summary could show this:
    only the order of events does.
    """
    for planned, found in _found(plan, state):
        finals = qualifying_finals(plan, planned)
        for released in found.released[:1]:
            at = released.sequence
            if any(fits_at(final, state.materializations.get(final.id), at) is not False for final in finals):
                continue
            later = [
                seen.sequence
                for final in finals
                if (other := state.materializations.get(final.id)) is not None
                for seen in other.observed
                if seen.sequence > at and fits(final, seen) is not False
            ]
            if later:
                yield finding(
                    "staging.released-before-final",
                    planned.id,
                    expected="a final observed first",
                    observed="observed after the release",
                    events=[at, min(later)],
                )


def _exactly(
    code: str, planned: Materialization, figures: Extremes, expected: int, tolerance: int | None = None
) -> Iterator[Finding]:
    if extremes_differ(figures, expected, tolerance):
        yield finding(code, planned.id, expected=expected, observed=spread(figures), events=places(figures))
    if figures.unknown is not None:
        yield finding(code, planned.id, expected=expected, observed="not known", events=[figures.unknown], unknown=True)


@declare(STAGING, "staging.bytes-before-mismatch")
def released_from_planned_bytes(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Just before its release, staging held the planned bytes.

    Released staging is judged as strictly as what stays: its absence afterwards says nothing of what it was.
    """
    for planned, found in _found(plan, state):
        yield from _exactly(
            "staging.bytes-before-mismatch",
            planned,
            found.bytes_before,
            planned.expected_bytes,
            planned.tolerance_bytes,
        )


@declare(STAGING, "staging.bytes-after-nonzero")
def nothing_is_left(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Just after its release, no byte of staging was live.

    A release that keeps some keeps a mirror.
    """
    for planned, found in _found(plan, state):
        yield from _exactly("staging.bytes-after-nonzero", planned, found.bytes_after, 0)


@declare(STAGING, "staging.released-bytes-mismatch")
def all_was_released(plan: Plan, state: RunState) -> Iterator[Finding]:
    """The bytes released are the bytes that were there.

    Three figures that do not add up were not all measured.
    """
    for planned, found in _found(plan, state):
        before, released = found.bytes_before, found.released_bytes
        pairs = ((released.low, before.low), (released.high, before.high))
        if any(left is not None and right is not None and left.value != right.value for left, right in pairs):
            yield finding(
                "staging.released-bytes-mismatch",
                planned.id,
                expected=spread(before),
                observed=spread(released),
                events=[*places(released), *places(before)],
            )
        if released.unknown is not None:
            yield finding(
                "staging.released-bytes-mismatch",
                planned.id,
                expected=spread(before),
                observed="not known",
                events=[released.unknown],
                unknown=True,
            )


@declare(STAGING, "staging.owner-alive")
def no_owner_survives(plan: Plan, state: RunState) -> Iterator[Finding]:
    """After the release and again after the last decode, no tensor, storage or view of staging is alive.

    One live view keeps every page, whatever a flag says.
    """
    for planned, found in _found(plan, state):
        counts = [found.owners_alive, *(phase.owners_alive for phase in found.reclamations.values())]
        alive = [figures for figures in counts if figures.high is not None and figures.high.value > 0]
        if alive:
            yield finding(
                "staging.owner-alive",
                planned.id,
                expected=0,
                observed=max(figures.high.value for figures in alive if figures.high is not None),
                events=[figures.high.sequence for figures in alive if figures.high is not None],
            )
        if not found.released or found.live:
            continue
        for seen in samples_at_rest(state):
            census = seen.body.census
            live = number(census.by_owner.get(planned.id)) if census is not None else None
            if live and seen.sequence > found.released[-1].sequence:
                yield finding(
                    "staging.owner-alive",
                    planned.id,
                    expected="no live storage",
                    observed={seen.body.label: live},
                    events=[seen.sequence],
                )


@declare(STAGING, "staging.owners-unknown")
def owners_were_counted(plan: Plan, state: RunState) -> Iterator[Finding]:
    """At the release, after it and after the last decode, owners were counted: some in all, and how many are alive.

    Counting none where there must have been some means that the counter saw nothing, not that nothing was there.
    """
    for planned, found in _found(plan, state):
        if not found.released:
            continue
        counts = [("release", found.owners_total, found.owners_alive)]
        for phase in ("after-release", "after-decode"):
            seen = reclaimed_in_time(state, found, phase)
            counts.append((phase, seen.owners_total if seen else Extremes(), seen.owners_alive if seen else Extremes()))
        unknown = {}
        events: list[int | None] = []
        for where, total, alive in counts:
            if total.low is None or total.unknown is not None or alive.low is None or alive.unknown is not None:
                unknown[where] = "not known"
            elif total.low.value == 0 and planned.expected_bytes > 0:
                unknown[where] = "no owner was ever counted"
            else:
                continue
            events += [*places(total), *places(alive)]
        if unknown:
            yield finding("staging.owners-unknown", planned.id, expected="counted", observed=unknown, events=events)


@declare(STAGING, "staging.rematerialized")
def staging_does_not_come_back(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Released staging is not realised, seen or released again.

    A staging that comes back after its release is a host copy that the release was to remove.
    """
    for planned, found in _found(plan, state):
        if found.rematerialized:
            yield finding(
                "staging.rematerialized",
                planned.id,
                expected="gone",
                observed="there again",
                events=found.rematerialized,
            )
