"""Family `memory`, afterwards: what was staged went back to the operating system, by the process tree's own figures."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.documents import Finding
from ledger.plan import Plan
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.reading import (
    each_found,
    number,
    place_of,
    places,
    reclaimed_in_time,
    samples_at,
    shown,
    spread,
    transient,
)
from ledger.reconcile.sums import misfits
from ledger.run_state import ReclamationState, RunState

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
    """For each released staging, samples around the release and the reclamation after it, with no step between, and the one
    after the last decode were taken, with region, tree and ratio readable.

    What the reclamation says of the tree is what those samples say, within the plan's noise, and adds up. Where a cgroup
    holds the tree alone, what it holds fell as well. Machine-wide figures swing with other processes and are never judged.
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
            unknown |= _beside_samples(plan, state, planned.id, phase, reclaimed)
        released = found.released[0].sequence
        last, following = _steps_beside(plan, state, released)
        before, after = (state.labels.get(f"{when}-release:{planned.id}") for when in ("before", "after"))
        if before is None or not last < before < released:
            unknown["sample before the release"] = "not recorded then"
        if after is None or not released < after < following:
            unknown["sample after the release"] = "not recorded then"
        first = found.reclamations.get("after-release")
        if first is not None and first.first is not None and not released < first.first.sequence < following:
            unknown["after-release"] = "not recorded then"
        unknown |= _own_cgroup(plan, state, planned.id, found.bytes_before.high.value if found.bytes_before.high else 0)
        if unknown:
            yield finding("memory.reclaim-unknown", planned.id, expected="measured", observed=unknown, events=events)


def _steps_beside(plan: Plan, state: RunState, released: int) -> tuple[int, float]:
    """The last step before that release and the first after it: what begins, is realised, released, bound or decoded."""
    steps = [seen.sequence for kept in state.authorities.values() for seen in kept]
    steps += [seen.sequence for one in state.executions.values() for seen in one.activations]
    steps += [one.first for one in state.decodes.values() if one.first is not None]
    for _, found in each_found(plan, state):
        for kept in (found.started, found.realized, found.released):
            steps += [seen.sequence for seen in kept]
    before, after = (one for one in steps if one < released), (one for one in steps if one > released)
    return max(before, default=-1), min(after, default=float("inf"))


def _beside_samples(
    plan: Plan, state: RunState, name: str, phase: str, reclaimed: ReclamationState
) -> dict[str, object]:
    """Tree sums of the reclamation that the samples of the same points contradict, or their own classes."""
    wrong: dict[str, object] = {}
    then = f"after-release:{name}" if phase == "after-release" else "after-decode"
    for side, label, figures in (
        ("before", f"before-release:{name}", reclaimed.tree_before),
        ("after", then, reclaimed.tree_after),
    ):
        for seen in samples_at(state, label):
            sampled = number(seen.body.process.get("tree_sum"))
            for figure in (figures.low, figures.high):
                if sampled is not None and figure is not None and abs(figure.value - sampled) > plan.host_noise_bytes:
                    wrong[f"{phase} tree {side}"] = {"is": figure.value, label: sampled}
        if reclaimed.first is not None:
            body = reclaimed.first.body
            classes = body.classes_before if side == "before" else body.classes_after
            total = body.tree_before if side == "before" else body.tree_after
            # How many share pages, only a sample says.
            trees = [seen.body.process for seen in samples_at(state, label) if "processes" in seen.body.process]
            members = {"processes": trees[0]["processes"]} if trees else {}
            if classes and (misfit := misfits({**classes, "tree_sum": total, **members}, plan.host_noise_bytes)):
                wrong[f"{phase} classes {side}"] = misfit
    return wrong


def _own_cgroup(plan: Plan, state: RunState, name: str, staged: int | float) -> dict[str, object]:
    """What the figures of a cgroup that holds the tree alone leave in doubt: it kept more than noise of what was staged."""
    before, after = state.sample(f"before-release:{name}"), state.sample(f"after-release:{name}")
    if before is None or after is None:
        return {}
    held = []
    for seen in (before, after):
        group = seen.body.cgroup
        current = number(group.get("current"))
        if number(group.get("others"), None) != 0 or current is None:
            return {}
        held.append(current + (number(group.get("swap")) or 0))
    fell = held[0] - held[1]
    return {"own cgroup fell by": fell} if fell + plan.host_noise_bytes < plan.host_give_back_ratio * staged else {}
