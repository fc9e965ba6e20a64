"""What cannot all be true: what a witness saw beside what the run's own probes say, and ranges beside one another."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.documents import Finding
from ledger.fold import Figure, MaterializationState, RunState
from ledger.plan import Plan
from ledger.reconcile.catalogue import finding
from ledger.reconcile.reading import is_host, known, number, shown, within

COMPARED = ("tree_sum", "rss_anon", "rss_shmem", "checkpoint_mappings")
"""Figures of the process tree that both sides take at a sample of the same label (bytes)."""

CODE = "materialization.claim-contradicted"


def witness_contradictions(plan: Plan, state: RunState, witness: RunState) -> Iterator[Finding]:
    """Where the witness saw something else: of a materialization, of the tree's memory at one label, of accesses.

    Memory is compared within the plan's noise, since the two do not look at the same instant. Sequences of the witness's
    own run stand in `observed`.
    """
    by = witness.run_id or "a witness"
    for name, seen in sorted(witness.materializations.items()):
        own = state.materializations.get(name)
        if not seen.observed or own is None or not own.observed:
            continue
        theirs, ours = seen.observed[-1], own.observed[-1]
        for fact in ("memory_resource_id", "representation", "bytes", "live"):
            left, right = getattr(ours.body, fact), getattr(theirs.body, fact)
            tolerance = plan.materializations[name].tolerance_bytes if name in plan.materializations else None
            if not known(left) or not known(right) or left.value == right.value:
                continue
            figures = number(left), number(right)
            if fact == "bytes" and within(*figures, tolerance):
                continue
            yield finding(
                CODE,
                name,
                expected={fact: shown(left)},
                observed={fact: shown(right), "witness": by, "sequence": theirs.sequence},
                events=[ours.sequence],
            )
    for label in sorted(set(state.samples) & set(witness.samples)):
        mine, other = state.sample(label), witness.sample(label)
        if mine is None or other is None:
            continue
        for key in COMPARED:
            left, right = number(mine.body.process.get(key)), number(other.body.process.get(key))
            if left is not None and right is not None and abs(left - right) > plan.host_noise_bytes:
                yield finding(
                    CODE,
                    f"{label}.{key}",
                    expected=left,
                    observed={key: right, "witness": by, "sequence": other.sequence},
                    events=[mine.sequence],
                )
    claimed, watched = _most_accesses(state), _most_accesses(witness)
    if claimed is not None and watched is not None and watched.value > claimed.value:
        yield finding(
            CODE,
            "checkpoint",
            expected={"tree_accesses": claimed.value},
            observed={"tree_accesses": watched.value, "witness": by, "sequence": watched.sequence},
            events=[claimed.sequence],
        )


def range_contradictions(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Where a materialization was seen that its bytes do not fit, or where another one was live at the same time.

    Two at one address are one: the second copy, or the distinct final, is not there.
    """
    placed: list[tuple[str, int, int, str, int]] = []
    for name, found in sorted(state.materializations.items()):
        for seen in found.observed:
            held = sum(one.length for one in seen.body.ranges)
            size = number(seen.body.bytes)
            spare = (plan.materializations[name].tolerance_bytes or 0) if name in plan.materializations else 0
            if seen.body.ranges and size is not None and size > held + spare:
                yield finding(
                    CODE, name, expected=f"ranges of {size} bytes", observed=f"ranges of {held}", events=[seen.sequence]
                )
            place = seen.body.memory_resource_id
            spaces = sorted({one.space for one in seen.body.ranges})
            host = is_host(plan, str(place.value)) if known(place) and place.value in plan.memory_resources else None
            if host is not None and any((space == "host") is not host for space in spaces):
                yield finding(CODE, name, expected=f"ranges of {place.value}", observed=spaces, events=[seen.sequence])
        for seen in found.observed[-1:]:
            placed += [
                (one.space, one.start, one.start + one.length, name, seen.sequence)
                for one in seen.body.ranges
                if one.length > 0
            ]
    placed.sort()
    for at, (space, _, end, name, sequence) in enumerate(placed):
        for other_space, other_start, _, other, other_sequence in placed[at + 1 :]:
            if other_space != space or other_start >= end:
                break
            if other != name and _together(state.materializations[name], state.materializations[other]):
                yield finding(
                    CODE,
                    name,
                    expected="a range of its own",
                    observed=f"overlaps that of {other}",
                    events=[sequence, other_sequence],
                )
                break


def _together(one: MaterializationState, other: MaterializationState) -> bool:
    """Both were there at some point."""
    return any(
        (ended is None or ended > also_began) and (also_ended is None or also_ended > began)
        for began, ended in one.spans
        for also_began, also_ended in other.spans
    )


def _most_accesses(state: RunState) -> Figure | None:
    accesses = state.watch.get("tree_accesses")
    return accesses.high if accesses is not None else None
