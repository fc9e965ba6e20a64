"""What a witness saw beside what the run's own probes say: two who look at the same thing and differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledger.documents import Finding
from ledger.plan import Plan
from ledger.reconcile.catalogue import finding
from ledger.reconcile.reading import (
    FINAL_LABELS,
    known_values,
    number,
    samples_at,
    samples_since_baseline,
    shown,
    unfinished,
    within,
)
from ledger.run_state import DEMANDED_LABELS, STANDING_LABELS, Figure, MaterializationState, RunState

COMPARED = ("tree_sum", "rss_anon", "rss_shmem", "vm_swap", "checkpoint_mappings")
"""Figures of the process tree that both sides take at a sample of the same label (bytes)."""

WATCHED_BY_BOTH = ("tree_accesses", "mapped_files", "open_descriptors")
"""Figures of the watch of which a witness sees no more than the run's own probes, unless somebody looked away."""

CODE = "materialization.claim-contradicted"


def witness_contradictions(plan: Plan, state: RunState, witness: RunState) -> Iterator[Finding]:
    """Where the witness saw something else: of a materialization and its release, of the tree's memory at one label, of
    mappings since the release, of accesses.

    Memory is compared within the plan's noise, since the two do not look at the same instant. Sequences of the witness's
    own run stand in `observed`.
    """
    by = witness.run_id or "a witness"
    for name, seen in sorted(witness.materializations.items()):
        if name not in state.materializations or not state.materializations[name].observed:
            yield from _seen_alone(plan, state, seen, by)
        else:
            yield from _seen_otherwise(plan, state.materializations[name], seen, by)
            yield from _seen_after_release(state.materializations[name], seen, witness, by)
    yield from _censused(plan, state, witness, by)
    for label in sorted(set(state.samples) & set(witness.samples)):
        every = label in STANDING_LABELS or label.startswith(DEMANDED_LABELS)
        ours_there, theirs_there = samples_at(state, label), samples_at(witness, label)
        for mine in ours_there if every else ours_there[-1:]:
            for other in theirs_there if every else theirs_there[-1:]:
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
    yield from _seen_since_release(plan, state, witness, by)
    for name, seen in sorted(witness.materializations.items()):
        own = state.materializations.get(name)
        if own is not None:
            yield from _seen_of_release(own, seen, by)
    claimed, watched = _most(state, "read_bytes"), _most(witness, "read_bytes")
    if claimed is not None and watched is not None and watched.value - claimed.value > plan.host_noise_bytes:
        yield _saw_more("checkpoint", "read_bytes", claimed, watched, by)
    for what in WATCHED_BY_BOTH:
        claimed, watched = _most(state, what), _most(witness, what)
        if claimed is not None and watched is not None and watched.value > claimed.value:
            yield _saw_more("checkpoint", what, claimed, watched, by)
    claimed, accesses = _most(state, "tree_accesses"), witness.source_accesses.kept.get("tree")
    if claimed is not None and claimed.value == 0 and accesses:
        yield finding(
            CODE,
            "checkpoint accesses",
            expected={"tree_accesses": 0},
            observed={"source.accessed": len(accesses), "witness": by, "sequence": accesses[0].sequence},
            events=[claimed.sequence],
        )


def _seen_alone(plan: Plan, state: RunState, seen: MaterializationState, by: str) -> Iterator[Finding]:
    """A materialization that the run's own probes never saw; one of the plan's may have come after a run that broke off."""
    if seen.seen_live is not None:
        yield finding(
            CODE,
            seen.id,
            expected="not observed by the run" if seen.id in plan.materializations else "nothing of that name",
            observed={"bytes": shown(seen.observed[-1].body.bytes), "witness": by, "sequence": seen.seen_live},
            unknown=seen.id in plan.materializations and unfinished(state),
        )


def _seen_otherwise(plan: Plan, own: MaterializationState, seen: MaterializationState, by: str) -> Iterator[Finding]:
    """Each fact of which the witness ever saw another value than the run's probes. What was released may be gone."""
    planned = plan.materializations.get(own.id)
    for fact in ("resource", "representation", "bytes", "live"):
        tolerance = planned.tolerance_bytes if planned is not None and fact == "bytes" else None
        ours, theirs = _believed(own, fact), _believed(seen, fact)
        odd = {
            value: event
            for value, event in theirs.items()
            if not any(value == other or (fact == "bytes" and within(value, other, tolerance)) for other in ours)
            and not (fact == "live" and value == 0 and own.released)
        }
        if ours and odd:
            yield finding(
                CODE,
                own.id,
                expected={fact: _alone(ours)},
                observed={fact: _alone(odd), "witness": by, "sequence": min(odd.values())},
                events=ours.values(),
            )


def _believed(found: MaterializationState, fact: str) -> dict[Any, int]:
    """What was seen or stated of a fact, and where first; what an adapter claims is no sight."""
    return {
        said.value: event
        for said, event in known_values(found, fact, "observed").items()
        if said.trust in ("observed", "declared")
    }


def _alone(values: dict[Any, int]) -> Any:
    return next(iter(values)) if len(values) == 1 else sorted(values, key=str)


def _seen_after_release(
    own: MaterializationState, seen: MaterializationState, witness: RunState, by: str
) -> Iterator[Finding]:
    """Released staging that the witness saw live after a sample of its own that was asked for once it was gone."""
    since = _gone_since(witness, own.id)
    if _released(own) and since is not None and seen.seen_live is not None and seen.seen_live > since:
        yield finding(
            CODE,
            own.id,
            expected="released",
            observed={"live": 1, "witness": by, "sequence": seen.seen_live},
            events=[own.released[-1].sequence],
        )


def _released(own: MaterializationState) -> bool:
    return bool(own.released) and not own.live


def _gone_since(witness: RunState, name: str) -> int | None:
    """The witness's first sample whose label says that this one was released before; null when it took none.

    What it saw at other labels before cannot be placed: two runs have no order between them but by such labels.
    """
    labels = (*FINAL_LABELS, f"after-release:{name}")
    return min((witness.labels[label] for label in labels if label in witness.labels), default=None)


def _censused(plan: Plan, state: RunState, witness: RunState, by: str) -> Iterator[Finding]:
    """Owners in a census of the witness that nobody planned, or whose staging the run says to have released before."""
    for seen in samples_since_baseline(witness):
        census = seen.body.census
        for name, figure in sorted(census.by_owner.items()) if census is not None else ():
            live, own = number(figure), state.materializations.get(name)
            since = _gone_since(witness, name)
            if not live:
                continue
            if name not in plan.materializations and own is None:
                expected, events = "no such owner", []
            elif own is not None and _released(own) and since is not None and seen.sequence >= since:
                expected, events = "released", [own.released[-1].sequence]
            else:
                continue
            yield finding(
                CODE,
                name,
                expected=expected,
                observed={seen.body.label: live, "witness": by, "sequence": seen.sequence},
                events=events,
            )


def _seen_since_release(plan: Plan, state: RunState, witness: RunState, by: str) -> Iterator[Finding]:
    """What nobody may see any more from the first release on, seen by the witness, at whatever label, and not by the run."""
    allowed = plan.document.memory_expectations.unexplained_persistent_host_mirror_bytes
    for what in sorted(state.at_rest.keys() & witness.at_rest.keys()):
        ours, theirs = state.at_rest[what].high, witness.at_rest[what].high
        if ours is not None and theirs is not None and ours.value <= allowed < theirs.value:
            yield _saw_more("since the release", what, ours, theirs, by)


def _seen_of_release(own: MaterializationState, seen: MaterializationState, by: str) -> Iterator[Finding]:
    """More left of a released staging than the run's own probes found."""
    left = {"owners_alive": (own.owners_alive, seen.owners_alive), "bytes_after": (own.bytes_after, seen.bytes_after)}
    for phase in sorted(own.reclamations.keys() & seen.reclamations.keys()):
        ours, theirs = own.reclamations[phase], seen.reclamations[phase]
        left[f"{phase} owners_alive"] = (ours.owners_alive, theirs.owners_alive)
        left[f"{phase} region_mapped"] = (ours.region_mapped, theirs.region_mapped)
    for what, (mine, other) in left.items():
        if mine.high is not None and other.high is not None and other.high.value > mine.high.value:
            yield _saw_more(own.id, what, mine.high, other.high, by)


def _saw_more(subject: str, what: str, claimed: Figure, watched: Figure, by: str) -> Finding:
    return finding(
        CODE,
        subject,
        expected={what: claimed.value},
        observed={what: watched.value, "witness": by, "sequence": watched.sequence},
        events=[claimed.sequence],
    )


def _most(state: RunState, what: str) -> Figure | None:
    figures = state.watch.get(what)
    return figures.high if figures is not None else None
