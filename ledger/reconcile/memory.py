"""Family `memory`: no hidden copy lives, nothing unexplained is held, and what was staged went back to the system.

Two questions stay apart. Who owns live state: live owners decide mirror and unplanned. Who holds pages: ownerless pages
decide give-back and what is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.documents import Finding
from ledger.fold import TREE_CLASSES, TREE_MAPPINGS, ReclamationState, RunState, Seen
from ledger.plan import Plan
from ledger.reconcile.accounting import (
    account,
    has_device,
    named,
    reported_unplanned,
    transient_peak,
)
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.peak import peaks
from ledger.reconcile.reading import (
    FINAL_LABELS,
    census_at,
    known,
    number,
    place_of,
    places,
    reclaimed_in_time,
    shown,
    spread,
    transient,
)
from ledger.reconcile.residue import device_residues, device_transient_peak, host_growth

MEMORY: list[Invariant] = []


@declare(MEMORY, "memory.unplanned-persistent")
def no_unplanned_state_lives(plan: Plan, state: RunState) -> Iterator[Finding]:
    """At the end no live storage stands without an owner that plan and events name, on a device or under another name,
    and no adapter reports unplanned bytes.

    What nobody planned takes memory that nobody accounted for. (Ownerless host storages are the host mirror.)
    """
    allowed = plan.document.memory_expectations.unplanned_persistent_bytes
    for label in FINAL_LABELS:
        at = census_at(state, label)
        if at is None:
            continue
        seen, census = at
        live: dict[str, int | float] = {
            owner: value
            for owner, figure in census.by_owner.items()
            if not named(plan, state, owner) and (value := number(figure))
        }
        ownerless = number(census.unowned_device_bytes)
        if ownerless:
            live["no owner, on a device"] = ownerless
        if sum(live.values()) > allowed:
            yield finding(
                "memory.unplanned-persistent",
                label,
                expected=allowed,
                observed=dict(sorted(live.items())),
                events=[seen.sequence],
            )
    reported = reported_unplanned(state)
    if sum(reported.values()) > allowed:
        yield finding(
            "memory.unplanned-persistent",
            "reported",
            expected=allowed,
            observed=reported,
            events=[seen.sequence for name in reported for seen in state.materializations[name].realized[:1]],
        )
    for name, found in sorted(state.materializations.items()):
        for said, event in found.said.get("unplanned_bytes", {}).items():
            if said.trust == "unknown":
                yield finding(
                    "memory.unplanned-persistent",
                    name,
                    expected=allowed,
                    observed="reported as not known",
                    events=[event],
                    unknown=True,
                )


@declare(MEMORY, "memory.host-mirror")
def no_host_mirror_lives(plan: Plan, state: RunState) -> Iterator[Finding]:
    """After the last decode and at the end, no host storage lives outside what the plan declares, and no mapping of a
    checkpoint file is resident.

    A resident copy never needs a persistent host copy; a framework that keeps its file mapped keeps one all the same.
    """
    allowed = plan.document.memory_expectations.unexplained_persistent_host_mirror_bytes
    for label in FINAL_LABELS:
        seen = state.sample(label)
        if seen is None:
            continue
        census = seen.body.census
        figures = {
            "unowned_host_bytes": number(census.unowned_host_bytes) if census is not None else None,
            "checkpoint_mappings": number(seen.body.process.get("checkpoint_mappings")),
        }
        live: dict[str, object] = {what: value for what, value in figures.items() if value}
        if sum(value or 0 for value in figures.values()) > allowed:
            if seen.body.mapped_files:
                live["files"] = sorted(seen.body.mapped_files)[:16]
            yield finding("memory.host-mirror", label, expected=allowed, observed=live, events=[seen.sequence])


@declare(MEMORY, "memory.mirror-unknown")
def host_memory_is_explained(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Baseline, the sample after decode and the closing one were taken, every sample was readable, and what the process
    tree grew by is explained by live owners, within the plan's noise.

    Pages that no owner explains may be a copy that no census sees: a map of a scratch file, a child process, a file in
    memory.
    """
    baseline = state.sample("baseline")
    gaps = _gaps(baseline, TREE_CLASSES, census=False)
    if baseline is not None and state.first_step is not None and baseline.sequence > state.first_step:
        gaps["sample"] = "taken after the run's first step"
    if gaps:
        yield finding(
            "memory.mirror-unknown",
            "baseline",
            expected="measured",
            observed=gaps,
            events=[baseline.sequence if baseline else None],
        )
    unread = {
        what: event
        for what, event in state.sample_gaps.items()
        if not what.startswith("cuda/") and what != "census/unowned_device_bytes"
    }
    if unread:
        yield finding(
            "memory.mirror-unknown", "samples", expected="measured", observed=sorted(unread), events=unread.values()
        )
    for label in FINAL_LABELS:
        seen = state.sample(label)
        gaps = _gaps(seen, TREE_CLASSES + TREE_MAPPINGS, census=True)
        if seen is not None and state.last_step is not None and seen.sequence < state.last_step:
            gaps["sample"] = "taken before the run's last step"
        if gaps:
            yield finding(
                "memory.mirror-unknown",
                label,
                expected="measured",
                observed=gaps,
                events=[seen.sequence if seen else None],
            )
        growth = host_growth(plan, state, label)
        if growth is not None and seen is not None and growth.unexplained > plan.host_noise_bytes:
            yield finding(
                "memory.mirror-unknown",
                f"{label} growth",
                expected=f"at most {plan.host_noise_bytes}",
                observed={**growth._asdict(), **_grown_classes(baseline, seen)},
                events=[baseline.sequence if baseline else None, seen.sequence],
            )


def _grown_classes(baseline: Seen | None, seen: Seen) -> dict[str, object]:
    """By how much each class of pages grew over the baseline (bytes), where both are known."""
    grown: dict[str, object] = {}
    for key in TREE_CLASSES:
        before = number(baseline.body.process.get(key)) if baseline is not None else None
        now = number(seen.body.process.get(key))
        if key != "tree_sum" and before is not None and now is not None:
            grown[key] = now - before
    return grown


def _gaps(seen: Seen | None, keys: tuple[str, ...], *, census: bool) -> dict[str, str]:
    """What of a sample is not known."""
    if seen is None:
        return {"sample": "not recorded"}
    gaps = {key: "not known" for key in keys if not known(seen.body.process.get(key))}
    if census:
        taken = seen.body.census
        if taken is None:
            gaps["census"] = "not recorded"
        else:
            figures = {
                "unowned_host_bytes": taken.unowned_host_bytes,
                "unowned_host_storages": taken.unowned_host_storages,
                **{f"owner {owner}": figure for owner, figure in taken.by_owner.items()},
                **{f"evidence {role}": figure for role, figure in taken.evidence_host_by_role.items()},
            }
            gaps |= {name: "not known" for name, figure in figures.items() if not known(figure)}
    return gaps


@declare(MEMORY, "memory.device-residue-unknown")
def device_memory_is_explained(plan: Plan, state: RunState) -> Iterator[Finding]:
    """What a device holds more than at the baseline is explained by live owners, within the plan's unattributed bytes.

    Where the plan uses a device, its allocator was read at every sample, and at the baseline, after decode and at the end
    at least. Residue that no owner explains is reported, never dropped.
    """
    unread = {
        what: event
        for what, event in state.sample_gaps.items()
        if what == "census/unowned_device_bytes" or what.endswith((".allocated", ".reserved", ".peak"))
    }
    if unread and has_device(plan):
        yield finding(
            "memory.device-residue-unknown",
            "samples",
            expected="measured",
            observed=sorted(unread),
            events=unread.values(),
        )
    for label in FINAL_LABELS:
        residues = device_residues(plan, state, label)
        seen = state.sample(label)
        events = [seen.sequence if seen else None]
        if residues is None:
            if has_device(plan):
                yield finding(
                    "memory.device-residue-unknown", label, expected="measured", observed="not known", events=events
                )
            continue
        for device, figures in sorted(residues.items()):
            if figures.unexplained is None:
                yield finding(
                    "memory.device-residue-unknown",
                    f"{label} {device}",
                    expected="measured",
                    observed="not known",
                    events=events,
                )
            elif figures.unexplained > plan.unattributed_bytes:
                yield finding(
                    "memory.device-residue-unknown",
                    f"{label} {device}",
                    expected=f"at most {plan.unattributed_bytes}",
                    observed=figures._asdict(),
                    events=events,
                )


@declare(MEMORY, "memory.peak-exceeded")
def peaks_stay_within_the_plan(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Over time, as the events order it, what is live on a Memory Resource and on what is carved from it stays within its
    capacity, and what is transient within the peak that the plan expects.

    Where the plan expects a peak, what was measured of the process tree, or of the device, is held to it as well, within
    the plan's noise. A plan that fits at the end may not fit on the way there.
    """
    for name, peak in sorted(peaks(plan, state, state.materializations).items()):
        resource = plan.memory_resources.get(name)
        if resource is not None and peak.bytes > resource.capacity_bytes:
            yield finding(
                "memory.peak-exceeded",
                name,
                expected=f"at most {resource.capacity_bytes}",
                observed=peak.bytes,
                events=[peak.sequence],
            )
    expected = plan.document.memory_expectations.transient_peak_bytes or {}
    passing = [item.id for item in transient(plan)]
    passing += [name for name in state.materializations if name not in plan.materializations]
    accounted = peaks(plan, state, passing)
    for name, limit in sorted(expected.items()):
        live = accounted.get(name)
        if live is not None and live.bytes > limit:
            yield finding(
                "memory.peak-exceeded",
                f"{name} transient",
                expected=f"at most {limit}",
                observed=live.bytes,
                events=[live.sequence],
            )
        resource = plan.memory_resources.get(name)
        if resource is None or resource.kind == "shared-memory":
            continue  # the process tree's peak counts shared pages with the RAM that they are carved from
        is_ram = resource.kind == "system-ram"
        peak_there = transient_peak(plan, state) if is_ram else device_transient_peak(plan, state, name)
        noise = plan.host_noise_bytes if is_ram else plan.unattributed_bytes
        value = number(peak_there)
        if value is None or value > limit + noise:
            yield finding(
                "memory.peak-exceeded",
                f"{name} measured",
                expected=f"at most {limit}, give or take {noise}",
                observed=shown(peak_there),
                unknown=value is None,
            )


@declare(MEMORY, "memory.not-reclaimed")
def staging_went_back(plan: Plan, state: RunState) -> Iterator[Finding]:
    """After the release, and after the last decode, staging went back to the operating system: its region is gone, or the
    process tree shrank by at least the planned share of it.

    A region gone settles private memory. For shared memory somebody else may still hold the pages, so that the ratio is
    asked too. Freed in a framework's eyes is not given back.
    """
    for planned in transient(plan):
        found = state.materializations.get(planned.id)
        if found is None or not found.released:
            continue
        resource = plan.memory_resources.get(place_of(plan, state, planned.id) or planned.memory_resource_id)
        private = resource is None or resource.kind == "system-ram"
        for phase, reclaimed in sorted(found.reclamations.items()):
            mapped = reclaimed.region_mapped
            gone = mapped.high is not None and mapped.high.value == 0 and mapped.unknown is None
            ratio = _lowest_ratio(reclaimed, found.bytes_before.high.value if found.bytes_before.high else None)
            if ratio is None or (gone and private) or ratio >= plan.host_give_back_ratio:
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


@declare(MEMORY, "memory.reclaim-unknown")
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


@declare(MEMORY, "memory.expectation-mismatch")
def figures_are_the_expected_ones(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Optional persistent, unplanned and mirrored bytes are exactly those that the plan expects.

    A plan that expects a figure is wrong about the run when another comes out, also a smaller one. A figure that is not
    known is unknown by its own code.
    """
    accounting = account(plan, state)
    expectations = plan.document.memory_expectations
    for what, expected, figure in (
        ("persistent_optional", expectations.persistent_optional_bytes, accounting.persistent_optional),
        ("unplanned_persistent", expectations.unplanned_persistent_bytes, accounting.unplanned_persistent),
        ("host_mirror", expectations.unexplained_persistent_host_mirror_bytes, accounting.host_mirror),
    ):
        value = number(figure)
        if value is not None and value != expected:
            yield finding("memory.expectation-mismatch", what, expected=expected, observed=value)
