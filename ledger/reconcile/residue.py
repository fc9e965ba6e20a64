"""What host and devices hold beyond the baseline, and how much of it live owners explain."""

from __future__ import annotations

from typing import NamedTuple

from ledger.bodies import Census, MemorySampled
from ledger.measurement import Measurement, measured, unavailable
from ledger.plan import Plan
from ledger.reconcile.peak import is_transient
from ledger.reconcile.reading import is_host, number, place_of, samples_at
from ledger.run_state import RunState, Seen


class Growth(NamedTuple):
    """Bytes that the process tree holds more than at the baseline, what live owners explain, and what is left; beside it
    what the owners have in all."""

    grown: int | float
    explained: int | float
    unexplained: int | float
    owned: int | float


def host_growth(plan: Plan, state: RunState, seen: Seen[MemorySampled]) -> Growth | None:
    """Growth of the process tree at that sample over the baseline, of several the one that leaves most unexplained; null
    where a figure that it needs is not known."""
    census = seen.body.census
    if census is None:
        return None
    owned = host_owned(plan, state, census)
    most: Growth | None = None
    for baseline in samples_at(state, "baseline"):
        before, now = number(baseline.body.process.get("tree_sum")), number(seen.body.process.get("tree_sum"))
        if before is None or now is None:
            return None
        explained: int | float = 0
        for kind, size in owned.items():
            held = pages_grown(baseline.body, seen.body, PAGES_OF[kind])
            explained += size if held is None else min(size, held)
        growth = Growth(now - before, explained, now - before - explained, sum(owned.values()))
        if most is None or growth.unexplained > most.unexplained:
            most = growth
    return most


def unexplained_at_the_end(plan: Plan, state: RunState) -> int | float | None:
    """Bytes of the process tree at the closing sample that no owner explains; null where that is not known."""
    closing = state.sample("closing")
    growth = host_growth(plan, state, closing) if closing is not None else None
    return growth.unexplained if growth is not None else None


def host_owned(plan: Plan, state: RunState, census: Census) -> dict[str, int | float]:
    """Live bytes on the host that owners explain: in private (`anonymous`) and in `shared` memory."""
    evidence = sum(number(figure) or 0 for figure in census.evidence_host_by_role.values())
    owned: dict[str, int | float] = {"anonymous": evidence, "shared": 0}
    for owner, figure in census.by_owner.items():
        place = place_of(plan, state, owner)
        if is_host(plan, place):
            shared = plan.memory_resources[str(place)].kind == "shared-memory"
            owned["shared" if shared else "anonymous"] += number(figure) or 0
    return owned


PAGES_OF = {
    "anonymous": ("rss_anon", "vm_swap", "hugetlb"),
    "shared": ("rss_shmem", "vm_swap", "hugetlb", "new_file_mappings", "new_tmpfs_files"),
}
"""Which pages of the process tree can hold what lives in private and in shared memory.

An owner explains no more than such pages grew: a bank of shared memory without pages explains no private copy of it.
"""


def pages_grown(baseline: MemorySampled, seen: MemorySampled, keys: tuple[str, ...]) -> int | float | None:
    """Bytes by which those classes of pages grew in all, at least 0; null where one is not known."""
    grown: int | float = 0
    for key in keys:
        before, now = number(baseline.process.get(key)), number(seen.process.get(key))
        if before is None or now is None:
            return None
        grown += now - before
    return max(grown, 0)


def unaccounted_evidence(plan: Plan, state: RunState, census: Census) -> dict[str, int | float]:
    """Role -> bytes of evidence on the host that no event accounts for, where they are above the plan's noise together.

    What was loaded of the reference is no larger than the file that was bound; of other roles no event says how large
    they are.
    """
    sizes = [number(seen.body.size) or 0 for seen in state.references]
    beyond: dict[str, int | float] = {}
    for role, figure in census.evidence_host_by_role.items():
        accounted = max(sizes, default=0) if role == "reference" else 0
        rest = (number(figure) or 0) - accounted
        if rest > 0:
            beyond[role] = rest
    return beyond if sum(beyond.values()) > plan.host_noise_bytes else {}


def held_at_baseline(plan: Plan, baseline: MemorySampled) -> dict[str, int | float]:
    """What a baseline shows that none may: a census knows only what is new since, and nothing was realised yet (bytes)."""
    held: dict[str, int | float] = {}
    if mapped := number(baseline.process.get("checkpoint_mappings")):
        held["checkpoint_mappings"] = mapped
    if baseline.census is not None:
        if (ownerless := number(baseline.census.unowned_host_bytes) or 0) > plan.host_noise_bytes:
            held["unowned_host_bytes"] = ownerless
        held |= {f"owner {owner}": size for owner, one in baseline.census.by_owner.items() if (size := number(one))}
    return held


def pool_growth(state: RunState, seen: Seen[MemorySampled]) -> int | float | None:
    """Bytes that torch's pool of pinned host memory holds more than at the baseline; null where not known."""
    return max(
        (
            grown
            for baseline in samples_at(state, "baseline")
            if (grown := _grown(baseline.body, seen.body, "host_pool")) is not None
        ),
        default=None,
    )


class Residue(NamedTuple):
    """Bytes that one device holds more than at the baseline, by its allocator and by the driver's view of the process,
    what live owners have there, and the larger rest; null where the allocator was not read (owners on a device that no
    sample covers), or says it has more than it took from the driver, or than the driver gave."""

    allocated: int | float | None
    process: int | float | None
    explained: int | float
    unexplained: int | float | None


def device_residues(plan: Plan, state: RunState, seen: Seen[MemorySampled]) -> dict[str, Residue] | None:
    """Device -> residue at that sample over the baseline, of several the one that leaves most unexplained; null where no
    device was sampled or the census is missing or not known."""
    baselines, census = samples_at(state, "baseline"), seen.body.census
    if not baselines or census is None:
        return None
    keys = [key for one in (*baselines, seen) for key in one.body.cuda]
    devices = sorted({key.removesuffix(".allocated") for key in keys if key.endswith(".allocated")})
    if not devices or number(census.unowned_device_bytes) is None:
        return None
    owned = _owned_by_device(plan, state, census, devices)
    unsampled = {device: Residue(None, None, size, None) for device, size in owned.items() if device not in devices}
    return unsampled | {
        device: max(
            (
                _residue(baseline.body, seen.body, device, owned.get(device, 0), plan.unattributed_bytes)
                for baseline in baselines
            ),
            key=lambda residue: float("inf") if residue.unexplained is None else residue.unexplained,
        )
        for device in devices
    }


def _residue(before: MemorySampled, now: MemorySampled, device: str, owned: int | float, noise: int) -> Residue:
    allocated = _grown(before, now, f"{device}.allocated")
    process, reserved = _grown(before, now, f"{device}.process"), _grown(before, now, f"{device}.reserved")
    if allocated is None:
        return Residue(None, process, owned, None)
    unexplained = allocated - owned
    pool, taken, held = (number(now.cuda.get(f"{device}.{name}")) for name in ("reserved", "allocated", "process"))
    if pool is not None and taken is not None and not taken <= pool <= (pool if held is None else held + noise):
        return Residue(None, process, owned, None)  # figures that contradict one another say nothing
    if process is not None and reserved is not None:
        # What the driver sees beyond the allocator's pool, less owned ranges that did not come from that pool.
        unexplained = max(unexplained, process - reserved - max(owned - allocated, 0))
    return Residue(allocated, process, owned, unexplained)


def _grown(before: MemorySampled, now: MemorySampled, key: str) -> int | float | None:
    first, then = number(before.cuda.get(key)), number(now.cuda.get(key))
    return None if first is None or then is None else then - first


def _owned_by_device(plan: Plan, state: RunState, census: Census, devices: list[str]) -> dict[str, int | float]:
    """Live bytes of planned and named owners on each device: by the space of their ranges, else on the only device, else
    on one that is not known."""
    owned: dict[str, int | float] = {}
    for owner, figure in census.by_owner.items():
        found = state.materializations.get(owner)
        if is_host(plan, place_of(plan, state, owner)):
            continue
        ranges = found.observed[-1].body.ranges if found is not None and found.observed else []
        device = ranges[0].space if ranges else devices[0] if len(devices) == 1 else "a device"
        if held := number(figure):
            owned[device] = owned.get(device, 0) + held
    return owned


def device_transient_peak(plan: Plan, state: RunState, resource_id: str) -> Measurement:
    """How far the device's allocator rose over the baseline beyond the planned persistent bytes of that resource."""
    method = "highest allocator peak, less allocated at the baseline and planned persistent bytes"
    on_it = [planned for planned in plan.materializations.values() if planned.memory_resource_id == resource_id]
    spaces = {
        one.space
        for planned in on_it
        if (found := state.materializations.get(planned.id)) is not None
        for seen in found.observed
        for one in seen.body.ranges
    }
    baseline = state.sample("baseline")
    if len(spaces) != 1 or baseline is None:
        return unavailable("bytes", method, "device or baseline is not known")
    (device,) = spaces
    start = number(baseline.body.cuda.get(f"{device}.allocated"))
    peak = state.peaks.get(f"cuda/{device}.peak")
    if start is None or peak is None or f"cuda/{device}.peak" in state.sample_gaps:
        return unavailable("bytes", method, f"the allocator of {device} was not read at every sample")
    lasting = sum(planned.expected_bytes for planned in on_it if not is_transient(planned))
    return measured(max(peak.value - start - lasting, 0), "bytes", method)
