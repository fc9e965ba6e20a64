"""Family `memory`, while it lives: no hidden copy, nothing unexplained, no more at once than planned.

Two questions stay apart. Who owns live state: live owners decide mirror and unplanned. Who holds pages: ownerless pages
decide what is unknown, and give-back (`ledger.reconcile.give_back`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.bodies import MemorySampled
from ledger.documents import Finding
from ledger.plan import Plan
from ledger.reconcile.accounting import (
    account,
    beyond_plan,
    has_device,
    named,
    reported_unplanned,
    transient_peak,
)
from ledger.reconcile.catalogue import Invariant, declare, finding
from ledger.reconcile.peak import peaks
from ledger.reconcile.reading import (
    FINAL_LABELS,
    every_sample,
    known,
    number,
    samples_at,
    samples_at_rest,
    samples_since_baseline,
    shown,
    transient,
)
from ledger.reconcile.residue import (
    device_residues,
    device_transient_peak,
    held_at_baseline,
    host_growth,
    pool_growth,
    unaccounted_evidence,
)
from ledger.reconcile.sums import CLASSES, FILES, misfits
from ledger.run_state import BYTES, TREE_CLASSES, TREE_MAPPINGS, RunState, Seen

MEMORY: list[Invariant] = []

READ_OF_A_DEVICE = (".allocated", ".reserved", ".peak")
"""Figures of a device's allocator that every sample has."""


@declare(MEMORY, "memory.unplanned-persistent")
def no_unplanned_state_lives(plan: Plan, state: RunState) -> Iterator[Finding]:
    """No live storage has an owner that plan and events do not name, none has more than it was planned to have, from the
    first release on none stands on a device without an owner, and no adapter reports unplanned bytes.

    What nobody planned takes memory that nobody accounted for. (Ownerless host storages are the host mirror.)
    """
    allowed = plan.document.memory_expectations.unplanned_persistent_bytes
    at_rest = {seen.sequence for seen in samples_at_rest(state)}
    for seen in samples_since_baseline(state):
        census = seen.body.census
        if census is None:
            continue
        live: dict[str, int | float] = {
            owner: value
            for owner, figure in census.by_owner.items()
            if not named(plan, state, owner) and (value := number(figure))
        }
        live |= {f"{owner}, beyond its planned bytes": more for owner, more in beyond_plan(plan, census).items()}
        ownerless = number(census.unowned_device_bytes)
        if ownerless and seen.sequence in at_rest:
            live["no owner, on a device"] = ownerless
        if sum(live.values()) > allowed:
            yield finding(
                "memory.unplanned-persistent",
                seen.body.label,
                expected=allowed,
                observed=dict(sorted(live.items())),
                events=[seen.sequence],
            )
    yield from _highest_at_rest(state, "memory.unplanned-persistent", "unowned_device_bytes", allowed)
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
            if said.trust == "unknown" or not isinstance(said.value, int | float):
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
    """From the first release on, at every sample, no host storage lives outside what the plan declares, and no mapping of
    a checkpoint file is resident.

    A resident copy never needs a persistent host copy; a framework that keeps its file mapped keeps one all the same.
    """
    allowed = plan.document.memory_expectations.unexplained_persistent_host_mirror_bytes
    for seen in samples_at_rest(state):
        census = seen.body.census
        figures = {
            "unowned_host_bytes": number(census.unowned_host_bytes) if census is not None else None,
            "checkpoint_mappings": number(seen.body.process.get("checkpoint_mappings")),
        }
        live: dict[str, object] = {what: value for what, value in figures.items() if value}
        if sum(value or 0 for value in figures.values()) > allowed:
            if seen.body.mapped_files:
                live["files"] = sorted(seen.body.mapped_files)[:16]
            yield finding(
                "memory.host-mirror", seen.body.label, expected=allowed, observed=live, events=[seen.sequence]
            )
    for what in ("unowned_host_bytes", "checkpoint_mappings"):
        yield from _highest_at_rest(state, "memory.host-mirror", what, allowed)


def _highest_at_rest(state: RunState, code: str, what: str, allowed: int) -> Iterator[Finding]:
    """The most that any sample since the first release showed, where that sample is not kept."""
    figures = state.at_rest.get(what)
    if figures is None or figures.high is None or figures.high.value <= allowed:
        return
    if figures.high.sequence not in {seen.sequence for seen in samples_at_rest(state)}:
        yield finding(
            code,
            "since the release",
            expected=allowed,
            observed={what: figures.high.value},
            events=[figures.high.sequence],
        )


@declare(MEMORY, "memory.mirror-unknown")
def host_memory_is_explained(plan: Plan, state: RunState) -> Iterator[Finding]:
    """Baseline, the sample after decode and the closing one were taken, every sample was readable and adds up, and what
    the process tree grew by since the baseline is explained by live owners from the first release on, within the plan's
    noise; nor do owners have more than it grew by, which says that the baseline was too high. The baseline itself holds
    nothing of the run's, and what is held for the comparison is no larger than what was bound for it.

    Pages that no owner explains may be a copy that no census sees: a map of a scratch file, a child process, a file in
    memory. A sum that is not that of its parts, or a baseline that holds what is gone since, would hide as much.
    """
    baseline = state.sample("baseline")
    for one in _or_none(samples_at(state, "baseline")):
        gaps = _gaps(one, TREE_CLASSES, census=False)
        if one is not None and state.first_step is not None and one.sequence > state.first_step:
            gaps["sample"] = "taken after the run's first step"
        if one is not None:
            gaps |= {what: f"{size} bytes held" for what, size in held_at_baseline(plan, one.body).items()}
        if gaps:
            yield finding(
                "memory.mirror-unknown",
                "baseline",
                expected="measured",
                observed=gaps,
                events=[one.sequence if one else None],
            )
    for seen in every_sample(state):
        if wrong := misfits(seen.body.process, plan.host_noise_bytes):
            yield finding(
                "memory.mirror-unknown",
                f"{seen.body.label} sum",
                expected="figures that add up",
                observed=wrong,
                events=[seen.sequence],
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
        for last in _or_none(samples_at(state, label)):
            gaps = _gaps(last, TREE_CLASSES + TREE_MAPPINGS, census=True)
            if last is not None and state.last_step is not None and last.sequence < state.last_step:
                gaps["sample"] = "taken before the run's last step"
            if gaps:
                yield finding(
                    "memory.mirror-unknown",
                    label,
                    expected="measured",
                    observed=gaps,
                    events=[last.sequence if last else None],
                )
    for seen in samples_at_rest(state):
        census = seen.body.census
        if census is not None and (beyond := unaccounted_evidence(plan, state, census)):
            yield finding(
                "memory.mirror-unknown",
                f"{seen.body.label} evidence",
                expected="no more than what was bound",
                observed=beyond,
                events=[seen.sequence],
            )
        growth = host_growth(plan, state, seen)
        if growth is None or census is None or number(census.unowned_host_bytes) is None:
            continue
        if number(census.unowned_host_storages, None) and not number(census.unowned_host_bytes):
            yield finding(
                "memory.mirror-unknown",
                f"{seen.body.label} storages",
                expected="no ownerless storage, or its bytes",
                observed=number(census.unowned_host_storages, None),
                events=[seen.sequence],
            )
        too_high = growth.owned - growth.grown > plan.host_noise_bytes
        if growth.unexplained > plan.host_noise_bytes or too_high:
            yield finding(
                "memory.mirror-unknown",
                f"{seen.body.label} growth",
                expected=f"at least {growth.owned}, which owners have"
                if too_high
                else f"at most {plan.host_noise_bytes}",
                observed={**growth._asdict(), **_grown_classes(baseline, seen)},
                events=[baseline.sequence if baseline else None, seen.sequence],
            )


def _or_none(kept: list[Seen[MemorySampled]]) -> list[Seen[MemorySampled] | None]:
    """The samples, or one that is not there."""
    return [*kept] or [None]


def _grown_classes(baseline: Seen | None, seen: Seen) -> dict[str, object]:
    """By how much each class of pages and files changed since the baseline (bytes), where both are known: their sum is
    what the tree grew by, but for pages that several share and files that a class counts already."""
    grown: dict[str, object] = {}
    for key in (*CLASSES, *FILES):
        before = number(baseline.body.process.get(key)) if baseline is not None else None
        now = number(seen.body.process.get(key))
        if before is not None and now is not None and now != before:
            grown[key] = now - before
    return grown


def _gaps(seen: Seen | None, keys: tuple[str, ...], *, census: bool) -> dict[str, str]:
    """What of a sample is not known."""
    if seen is None:
        return {"sample": "not recorded"}
    gaps = {key: "not known" for key in keys if not known(seen.body.process.get(key), BYTES)}
    if census:
        taken = seen.body.census
        if taken is None:
            gaps["census"] = "not recorded"
        else:
            figures = {
                "unowned_host_bytes": taken.unowned_host_bytes,
                **{f"owner {owner}": figure for owner, figure in taken.by_owner.items()},
                **{f"evidence {role}": figure for role, figure in taken.evidence_host_by_role.items()},
            }
            gaps |= {name: "not known" for name, figure in figures.items() if not known(figure, BYTES)}
            if not known(taken.unowned_host_storages):
                gaps["unowned_host_storages"] = "not known"
    return gaps


@declare(MEMORY, "memory.device-residue-unknown")
def device_memory_is_explained(plan: Plan, state: RunState) -> Iterator[Finding]:
    """What a device holds more than at the baseline is explained by live owners, from the first release on, within the
    plan's unattributed bytes; nor do owners have more there than it grew by. Pinned host memory that its pool keeps counts
    as such residue.

    Where the plan uses a device, its allocator was read at every sample, and at the baseline, after decode and at the end
    at least. Residue that no owner explains is reported, never dropped.
    """
    unread = {
        what: event
        for what, event in state.sample_gaps.items()
        if what == "census/unowned_device_bytes" or what.endswith(READ_OF_A_DEVICE)
    }
    for one in samples_at(state, "baseline")[:1]:
        for seen in samples_since_baseline(state):
            for what in one.body.cuda.keys() - seen.body.cuda.keys():
                if what.endswith(READ_OF_A_DEVICE):
                    unread.setdefault(f"cuda/{what}", seen.sequence)
    if unread and has_device(plan):
        yield finding(
            "memory.device-residue-unknown",
            "samples",
            expected="measured",
            observed=sorted(unread),
            events=unread.values(),
        )
    for label in FINAL_LABELS:
        if not samples_at(state, label) and has_device(plan):
            yield finding("memory.device-residue-unknown", label, expected="measured", observed="not known")
    for seen in samples_at_rest(state):
        residues, label, events = device_residues(plan, state, seen), seen.body.label, [seen.sequence]
        if (kept := pool_growth(state, seen)) is not None and kept > plan.unattributed_bytes:
            yield finding(
                "memory.device-residue-unknown",
                f"{label} host_pool",
                expected=f"at most {plan.unattributed_bytes}",
                observed=kept,
                events=events,
            )
        if residues is None:
            if has_device(plan) and label in FINAL_LABELS:
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
                continue
            grown = max(figures.allocated or 0, figures.process or 0)
            too_little = figures.explained - grown > plan.unattributed_bytes
            if figures.unexplained > plan.unattributed_bytes or too_little:
                yield finding(
                    "memory.device-residue-unknown",
                    f"{label} {device}",
                    expected=f"at least {figures.explained}, which owners have"
                    if too_little
                    else f"at most {plan.unattributed_bytes}",
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
