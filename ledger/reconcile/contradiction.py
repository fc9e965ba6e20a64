"""What cannot all be true: what a witness saw beside what the run's own probes say, and ranges beside one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ledger.bodies import AddressRange
from ledger.documents import Finding
from ledger.plan import Plan
from ledger.reconcile.catalogue import finding
from ledger.reconcile.reading import is_host, known, number, samples_at, samples_at_rest, shown, within
from ledger.reconcile.residue import PAGES_OF, host_owned, pages_grown
from ledger.run_state import BYTES, DEMANDED_LABELS, STANDING_LABELS, Figure, MaterializationState, RunState

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
        own = state.materializations.get(name)
        if not seen.observed or own is None or not own.observed:
            continue
        theirs, ours = seen.observed[-1], own.observed[-1]
        for fact in ("memory_resource_id", "representation", "bytes", "live"):
            left, right = getattr(ours.body, fact), getattr(theirs.body, fact)
            tolerance = plan.materializations[name].tolerance_bytes if name in plan.materializations else None
            unit = BYTES if fact == "bytes" else None
            if not known(left, unit) or not known(right, unit) or left.value == right.value:
                continue
            if fact == "bytes" and within(number(left), number(right), tolerance):
                continue
            yield finding(
                CODE,
                name,
                expected={fact: shown(left)},
                observed={fact: shown(right), "witness": by, "sequence": theirs.sequence},
                events=[ours.sequence],
            )
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


def page_contradictions(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Where owners have more in shared memory than pages that could hold it came to be, by more than the plan's noise.

    A resident bank without pages is not resident.
    """
    for seen in samples_at_rest(state):
        census = seen.body.census
        owned = host_owned(plan, state, census)["shared"] if census is not None else 0
        for baseline in samples_at(state, "baseline"):
            held = pages_grown(baseline.body, seen.body, PAGES_OF["shared"])
            if held is not None and owned - held > plan.host_noise_bytes:
                yield finding(
                    CODE,
                    f"{seen.body.label} shared memory",
                    expected=f"pages for {owned} bytes that owners have",
                    observed=f"{held} bytes of pages",
                    events=[baseline.sequence, seen.sequence],
                )


def range_contradictions(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Where a materialization was seen that its bytes do not fit, or where another one was live at the same time.

    Two at one address are one: the second copy, or the distinct final, is not there.
    """
    spaces_of: dict[str, dict[str, int]] = {}
    placed: list[tuple[str, int, int, str, int]] = []
    for name, found in sorted(state.materializations.items()):
        for seen in found.observed:
            held = _covered(seen.body.ranges)
            size = number(seen.body.bytes)
            spare = (plan.materializations[name].tolerance_bytes or 0) if name in plan.materializations else 0
            if seen.body.ranges and size is not None and size > held + spare:
                yield finding(
                    CODE, name, expected=f"ranges of {size} bytes", observed=f"ranges of {held}", events=[seen.sequence]
                )
            if any(one.start < 0 or one.length < 0 for one in seen.body.ranges):
                odd = [[one.start, one.length] for one in seen.body.ranges]
                yield finding(CODE, name, expected="addresses", observed=odd, events=[seen.sequence])
            place = seen.body.memory_resource_id
            spaces = sorted({one.space for one in seen.body.ranges})
            if known(place):
                for space in spaces:
                    spaces_of.setdefault(str(place.value), {}).setdefault(space, seen.sequence)
            host = is_host(plan, str(place.value)) if known(place) and place.value in plan.memory_resources else None
            if host is not None and any((space == "host") is not host for space in spaces):
                yield finding(CODE, name, expected=f"ranges of {place.value}", observed=spaces, events=[seen.sequence])
        for seen in found.observed[-1:]:
            placed += [
                (one.space, one.start, one.start + one.length, name, seen.sequence)
                for one in seen.body.ranges
                if one.length > 0
            ]
    for resource, where in sorted(spaces_of.items()):
        if len(where) > 1:
            yield finding(CODE, resource, expected="one address space", observed=sorted(where), events=where.values())
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


def _covered(ranges: Sequence[AddressRange]) -> int:
    """Bytes that the ranges cover, each address once."""
    covered = 0
    reached: dict[str, int] = {}
    for one in sorted(ranges, key=lambda item: (item.space, item.start)):
        start = max(one.start, reached.get(one.space, one.start))
        end = max(one.start + one.length, start)
        covered += end - start
        reached[one.space] = end
    return covered


def _together(one: MaterializationState, other: MaterializationState) -> bool:
    """Both were there at some point."""
    return any(
        (ended is None or ended > also_began) and (also_ended is None or also_ended > began)
        for began, ended in one.spans
        for also_began, also_ended in other.spans
    )


def _most(state: RunState, what: str) -> Figure | None:
    figures = state.watch.get(what)
    return figures.high if figures is not None else None
