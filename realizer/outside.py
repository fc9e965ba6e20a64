"""What of a plan can be told from outside: device bytes of a unit that has a device to itself, and staging that went.

Everything else that a plan says (representation, owners, lineage, decode) no outsider sees, and no event is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.bodies import EnvironmentObserved, MaterializationObserved, MemorySampled, ReclamationObserved
from ledger.measurement import Measurement, measured, unavailable
from ledger.plan import Materialization, Plan
from ledger.reconcile.environment import bind_environment
from realizer.witness import tree_sum

HOST_KINDS = frozenset({"system-ram", "shared-memory"})
WITHIN = "a process's inside is not seen from outside"


def device_residents(
    plan: Plan, environment: EnvironmentObserved, sample: MemorySampled
) -> Iterator[MaterializationObserved]:
    """The persistent materialization of each device that has one planned on it alone: what the tree holds there.

    Of several on one device no outsider can tell which bytes are whose; then nothing is said.
    """
    bindings, _ = bind_environment(plan, environment)
    for name, resource in sorted(plan.memory_resources.items()):
        key = bindings.get(name, "")
        figure = sample.cuda.get(f"{key.removesuffix('.vram')}.process")
        planned = [
            item
            for item in plan.materializations.values()
            if item.memory_resource_id == name and item.persistence == "persistent"
        ]
        if resource.kind in HOST_KINDS or figure is None or len(planned) != 1:
            continue
        yield _resident(planned[0], name, key, figure)


def _resident(planned: Materialization, resource: str, key: str, figure: Measurement) -> MaterializationObserved:
    there = isinstance(figure.value, int) and figure.value > 0
    place = "where NVML shows the tree's memory, by device UUID"
    return MaterializationObserved(
        materialization_id=planned.id,
        logical_state_id=planned.logical_state_id,
        memory_resource_id=measured(resource, None, place, source="witness", detail=f"found on {key}")
        if there
        else unavailable(None, place, figure.detail or "nothing was seen there", source="witness"),
        representation=unavailable(None, "layout of live tensors", WITHIN, source="witness"),
        bytes=figure.model_copy(update={"detail": figure.detail or "the device context included"}),
        storages=unavailable("storages", "live storages", WITHIN, source="witness"),
        tensors=unavailable("tensors", "live tensors", WITHIN, source="witness"),
        live=unavailable("flag", "live storages", WITHIN, source="witness"),
    )


def staging_gone(
    plan: Plan, first: MemorySampled, highest: MemorySampled, now: MemorySampled
) -> Iterator[ReclamationObserved]:
    """For the plan's staging on the host: how much of it the trees gave back by `now`.

    Known where all that they hold is too little to be it, or where as much was seen to come since the `first` sample as
    the staging has; then the ratio is (highest - now) / staging bytes. Else it is unavailable: nobody saw it staged.
    """
    staged = [
        item
        for item in plan.materializations.values()
        if item.persistence == "transient"
        and (found := plan.memory_resources.get(item.memory_resource_id)) is not None
        and found.kind in HOST_KINDS
    ]
    total = sum(item.expected_bytes for item in staged)
    ratio = _ratio(total, tree_sum(first), tree_sum(highest), tree_sum(now), plan.host_give_back_ratio)
    for item in staged:
        yield ReclamationObserved(
            materialization_id=item.id,
            phase="after-release",
            owners_total=unavailable("owners", "live storages", WITHIN, source="witness"),
            owners_alive=unavailable("owners", "live storages", WITHIN, source="witness"),
            region_mapped=unavailable("flag", "the staging's mapping", WITHIN, source="witness"),
            tree_before=highest.process["tree_sum"],
            tree_after=now.process["tree_sum"],
            ratio=ratio,
            classes_before=_classes(highest),
            classes_after=_classes(now),
            system=now.host,
        )


def _classes(sample: MemorySampled) -> dict[str, Measurement]:
    names = ("rss_anon", "rss_shmem", "rss_file", "vm_swap", "new_file_mappings", "new_tmpfs_files", "tree_sum")
    return {name: sample.process[name] for name in names}


def _ratio(staged: int, first: int, highest: int, now: int, share: float) -> Measurement:
    """Of all host staging together: sums below zero are unknown ones."""
    method = "(highest tree sum seen - tree sum now) / staging bytes"
    if staged <= 0:
        return unavailable("ratio", method, "no staging bytes are planned", source="witness")
    if min(first, highest, now) < 0:
        return unavailable("ratio", method, "a tree sum is not known", source="witness")
    least = 1 - now / staged
    if least >= share:
        bound = "1 - tree sum now / staging bytes: what would be given back if all that is held were staging"
        return measured(least, "ratio", bound, source="witness")
    if highest - first >= share * staged:
        return measured((highest - now) / staged, "ratio", method, source="witness")
    why = f"no more than {highest - first} bytes were seen to come, of {staged} that are staged"
    return unavailable("ratio", method, why, source="witness")
