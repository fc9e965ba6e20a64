"""Family `memory`, afterwards: what was staged went back to the operating system, by the process tree's own figures."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.documents import Finding
from ledger.fold import ReclamationState, RunState
from ledger.plan import Plan
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.reading import number, place_of, places, reclaimed_in_time, shown, spread, transient

GIVE_BACK: list[Invariant] = []


@declare(GIVE_BACK, "memory.not-reclaimed")
def staging_went_back(plan: Plan, state: RunState) -> Iterator[Finding]:
    """After the release, and after the last decode, staging went back to the operating system: its region is gone, or the
    process tree shrank by at least the planned share of it.

    A region gone settles memory of the process's own. For shared memory somebody else may still hold the pages, so that
    the ratio is asked too. Freed in a framework's eyes is not given back. A witness sees pages go and no release.
    """
    outsider = state.opened is not None and state.opened.body.purpose == "witness"
    for planned in transient(plan):
        found = state.materializations.get(planned.id)
        if found is None or not (found.released or outsider):
            continue
        resource = plan.memory_resources.get(place_of(plan, state, planned.id) or planned.memory_resource_id)
        shared = resource is not None and resource.kind == "shared-memory"
        for phase, reclaimed in sorted(found.reclamations.items()):
            mapped = reclaimed.region_mapped
            gone = mapped.high is not None and mapped.high.value == 0 and mapped.unknown is None
            ratio = _lowest_ratio(reclaimed, found.bytes_before.high.value if found.bytes_before.high else None)
            if ratio is None or (gone and not shared) or ratio >= plan.host_give_back_ratio:
                continue
            yield finding(
                "memory.not-reclaimed",
                f"{planned.id} {phase}",
                expected=f"at least {plan.host_give_back_ratio} of the staging bytes",
                observed={
                    "ratio": ratio,
                    "region_mapped": spread(mapped),
                    "given_back": spread(reclaimed.given_back),
                    **_classes(reclaimed),
                },
                events=[*places(reclaimed.ratio), *places(reclaimed.given_back)],
            )


def _classes(reclaimed: ReclamationState) -> dict[str, object]:
    """Each class of pages before the release and now (bytes), where it was recorded: which of them stayed."""
    if reclaimed.first is None:
        return {}
    before, after = reclaimed.first.body.classes_before, reclaimed.first.body.classes_after
    sides = {"before": before, "after": after}
    return {
        key: {
            side: shown(figures.get(key)) if number(figures.get(key)) is None else number(figures.get(key))
            for side, figures in sides.items()
        }
        for key in sorted({*before, *after})
    }


def _lowest_ratio(reclaimed: ReclamationState, staged: int | float | None) -> float | None:
    """The lower of the recorded ratio and the one that the recorded tree sums give."""
    ratios = [reclaimed.ratio.low.value] if reclaimed.ratio.low is not None else []
    if reclaimed.given_back.low is not None and staged:
        ratios.append(reclaimed.given_back.low.value / staged)
    return min(ratios) if ratios else None


@declare(GIVE_BACK, "memory.reclaim-unknown")
def giving_back_was_measured(plan: Plan, state: RunState) -> Iterator[Finding]:
    """For each released staging, samples around the release and the reclamation after it and after the last decode were
    taken, with region, tree and ratio readable.

    Where a cgroup holds the tree alone, what it holds fell as well, within the plan's noise. Machine-wide figures swing
    with other processes and are never judged.
    """
    for planned in transient(plan):
        found = state.materializations.get(planned.id)
        if found is None or not found.released:
            continue
        unknown: dict[str, object] = {}
        events: list[int | None] = [found.released[0].sequence]
        for phase in ("after-release", "after-decode"):
            reclaimed = reclaimed_in_time(state, found, phase)
            if reclaimed is None:
                unknown[phase] = "not recorded then"
                continue
            figures = {
                "region_mapped": reclaimed.region_mapped,
                "tree": reclaimed.given_back,
                "ratio": reclaimed.ratio,
            }
            gaps = [what for what, extremes in figures.items() if extremes.unknown is not None]
            if gaps:
                unknown[phase] = gaps
                events.append(reclaimed.first.sequence if reclaimed.first else None)
        released = found.released[0].sequence
        before, after = (state.labels.get(f"{when}-release:{planned.id}") for when in ("before", "after"))
        if before is None or before > released:
            unknown["sample before the release"] = "not recorded then"
        if after is None or after < released:
            unknown["sample after the release"] = "not recorded then"
        unknown |= _own_cgroup(plan, state, planned.id, found.bytes_before.high.value if found.bytes_before.high else 0)
        if unknown:
            yield finding("memory.reclaim-unknown", planned.id, expected="measured", observed=unknown, events=events)


def _own_cgroup(plan: Plan, state: RunState, name: str, staged: int | float) -> dict[str, object]:
    """What the figures of a cgroup that holds the tree alone leave in doubt: it kept more than noise of what was staged."""
    before, after = state.sample(f"before-release:{name}"), state.sample(f"after-release:{name}")
    if before is None or after is None:
        return {}
    held = []
    for seen in (before, after):
        group = seen.body.cgroup
        current = number(group.get("current"))
        if number(group.get("others")) != 0 or current is None:
            return {}
        held.append(current + (number(group.get("swap")) or 0))
    fell = held[0] - held[1]
    return {"own cgroup fell by": fell} if fell + plan.host_noise_bytes < plan.host_give_back_ratio * staged else {}
