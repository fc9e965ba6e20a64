"""A published R1 result as the importer reads it: its parts, its process checkpoints in phases, and its word as
measurements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from ledger.measurement import Measurement, stated, unavailable
from ledger.plan import Plan
from ledger.r1_result import (
    CorrectnessReport,
    Observed,
    ObservedMaterialization,
    Physical,
    ProcessCheckpoint,
    ResourcesReport,
    Result,
    part,
)

STAGED, POPULATED, RELEASED, DECODED = range(1, 5)
"""What has happened by a process checkpoint; 0 is nothing yet."""

PHASE_OF_LABEL = {
    "process_baseline": 0,
    "after_selective_host_materialization": STAGED,
    "after_accelerator_cache_allocation": STAGED,
    "after_complete_accelerator_population": POPULATED,
    "after_plan_driven_staging_release": RELEASED,
    "after_repeated_plan_realized_decode": DECODED,
}
"""The labels of the published runner. A label of another name belongs to the phase of the one before it."""


def says(value: float | str | bool | None, unit: str | None, place: str) -> Measurement:
    """What stands at that place of the document; a truth value becomes 1 or 0."""
    if value is None:
        return unavailable(unit, place, "the document does not say", source="declared")
    return stated(int(value) if isinstance(value, bool) else value, unit, place, source="declared")


def silent(unit: str | None, why: str = "the document does not say") -> Measurement:
    return unavailable(unit, "published result document", why, source="declared")


def derived(value: float, unit: str | None, method: str) -> Measurement:
    return stated(value, unit, method, source="derived")


class Source:
    """The document's parts, empty ones where it is silent, with what several events ask of them."""

    def __init__(self, result: Result, plan: Plan, digest: str) -> None:
        self.result, self.plan, self.digest = result, plan, digest
        self.resources = part(result.resources, ResourcesReport)
        self.physical = part(self.resources.physical, Physical)
        self.observed = part(result.observed, Observed)
        self.correctness = part(result.correctness, CorrectnessReport)
        self.materializations = self.observed.materializations or []
        self.checkpoints = list(_phased(self.observed.process_checkpoints or []))
        named = self.resources.resources
        self.nodes = (named.nodes if named else None) or []
        self.keys = self._keys()

    def _keys(self) -> dict[str, str]:
        """Document's name of a Compute Unit or Memory Resource -> key: the device name where one GPU is named."""
        keys: dict[str, str] = {}
        units = [unit for node in self.nodes for unit in node.compute_units]
        for unit in units:
            keys[unit.id] = unit.id
        for node in self.nodes:
            keys |= {resource.id: resource.id for resource in node.memory_resources}
        devices = [unit for unit in units if unit.kind != "cpu"]
        if self.resources.device is not None and len(devices) == 1:
            keys[devices[0].id] = self.resources.device
            for resource_id in devices[0].memory_resources:
                if self._kind(resource_id) == "accelerator-vram":
                    keys[resource_id] = f"{self.resources.device}.vram"
        return keys

    def _kind(self, resource_id: str) -> str | None:
        return next(
            (item.kind for node in self.nodes for item in node.memory_resources if item.id == resource_id), None
        )

    def on_host(self, resource_id: str | None) -> bool:
        """A Memory Resource of the host's own memory, by the document's word or, where it names none, the plan's."""
        planned = self.plan.memory_resources.get(resource_id or "")
        kind = self._kind(resource_id or "") or (planned.kind if planned else None)
        return kind in ("system-ram", "shared-memory")

    @property
    def staging(self) -> list[ObservedMaterialization]:
        """Materializations that the document describes as staging or as released."""
        return [item for item in self.materializations if item.intended_role == "staging" or is_released(item)]

    def checkpoint_before(self, phase: int) -> ProcessCheckpoint | None:
        """The last checkpoint taken before that phase, when the phase itself has one."""
        before = [checkpoint for _, checkpoint in takewhile(lambda item: item[0] < phase, self.checkpoints)]
        return before[-1] if before and self.checkpoint_of(phase) is not None else None

    def checkpoint_of(self, phase: int) -> ProcessCheckpoint | None:
        """The first checkpoint of that phase."""
        return next((checkpoint for at, checkpoint in self.checkpoints if at == phase), None)


def _phased(checkpoints: list[ProcessCheckpoint]) -> Iterator[tuple[int, ProcessCheckpoint]]:
    """Each checkpoint with what has happened by it: phases only ever go forward."""
    phase = 0
    for checkpoint in checkpoints:
        phase = max(phase, PHASE_OF_LABEL.get(checkpoint.label or "", phase))
        yield phase, checkpoint


def is_released(item: ObservedMaterialization) -> bool:
    return item.lifecycle_state == "released"
