"""What cannot all be true of what the run's own probes saw: pages beside owners, and ranges beside one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ledger.bodies import AddressRange
from ledger.documents import Finding
from ledger.plan import Plan
from ledger.reconcile.catalogue import finding
from ledger.reconcile.reading import is_host, known, number, samples_at, samples_at_rest
from ledger.reconcile.residue import PAGES_OF, host_owned, pages_grown
from ledger.run_state import MaterializationState, RunState

CODE = "materialization.claim-contradicted"


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
