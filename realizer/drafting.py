"""Drafting a plan for the machine at hand: what the machine shows, what the checkpoint's headers say, what the adapter
plans on them, put together as an unfrozen `tallystick.plan/1` document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ledger import canonical
from ledger.bodies import EnvironmentObserved, ObservedComputeUnit, ObservedMemoryResource
from ledger.errors import TallyError
from ledger.measurement import Measurement
from ledger.plan import (
    DEFAULT_GIVE_BACK_RATIO,
    DEFAULT_HOST_NOISE_BYTES,
    DEFAULT_REPETITIONS,
    DEFAULT_UNATTRIBUTED_BYTES,
    TALLY_SCHEMA,
)
from realizer import answers
from realizer.adapter import Adapter, DraftRequest
from realizer.checkpoint import Checkpoint, Progress

SWARM, NODE, SOURCE = "local", "node-a", "checkpoint"
RAM, SHM = f"{NODE}.ram", f"{NODE}.shm"
LOCAL_REVISION = "local"
"""The revision of a checkpoint that does not say which it is; its digests bind it all the same."""


@dataclass(frozen=True)
class DraftOptions:
    """What the person drafting may choose. `device` is `cpu` or a torch device such as `cuda` or `cuda:1`."""

    device: str = "cpu"
    staging: Literal["full", "streamed"] = "full"
    adapter_options: Mapping[str, Any] | None = None
    repetitions: int = DEFAULT_REPETITIONS
    atol: float | None = None
    rtol: float | None = None
    hash_files: bool = False


@dataclass(frozen=True)
class Machine:
    """This machine's part of the plan, and what an adapter needs to know of it."""

    resources: dict[str, Any]
    compute_unit_id: str
    by_kind: dict[str, str]
    links: dict[tuple[str, str], str]


def draft_plan(
    checkpoint: Checkpoint,
    adapter: type[Adapter],
    environment: EnvironmentObserved,
    options: DraftOptions | None = None,
    *,
    source: str | None = None,
    progress: Progress | None = None,
) -> bytes:
    """The draft's bytes in the published file form; `parse_plan` reads them, `freeze` seals them.

    `source` is what the person called the checkpoint, for one that does not say what it is. Raises TallyError when the
    machine lacks the device or does not show a capacity, and what the adapter's `draft` raises.
    """
    options = options or DraftOptions()
    repository = checkpoint.repository or source or str(checkpoint.directory)
    revision = checkpoint.revision or LOCAL_REVISION
    machine = machine_part(environment, options.device, repository, revision)
    part = answers.draft(
        adapter,
        checkpoint,
        DraftRequest(
            device=options.device,
            staging=options.staging,
            compute_unit_id=machine.compute_unit_id,
            backing_source_id=SOURCE,
            resources=machine.by_kind,
            links=machine.links,
            options=options.adapter_options or {},
        ),
    )
    document = {
        "schema": TALLY_SCHEMA,
        "plan_version": part.plan_version,
        "model": {
            "repository": repository,
            "revision": revision,
            "config_digest": checkpoint.config_digest,
            "headers_digest": checkpoint.headers_digest,
        },
        "resources": machine.resources,
        "logical_state_units": part.logical_state_units,
        "materializations": part.materializations,
        "authorities": part.authorities,
        "execution": part.execution,
        "forbidden_persistent_materializations": part.forbidden_persistent_materializations,
        "memory_expectations": {
            "persistent_optional_bytes": sum(
                made["expected_bytes"]
                for made in part.materializations
                if (made["persistence"], made["requirement"]) == ("persistent", "optional")
            ),
            "unexplained_persistent_host_mirror_bytes": 0,
            "unplanned_persistent_bytes": 0,
            "host_give_back_ratio": DEFAULT_GIVE_BACK_RATIO,
            "host_noise_bytes": DEFAULT_HOST_NOISE_BYTES,
            "unattributed_bytes": DEFAULT_UNATTRIBUTED_BYTES,
        },
        "adapter": {"name": adapter.name, "options": part.options},
        "checkpoint": {"files": _files(checkpoint, options.hash_files, progress)},
        "correctness": _correctness(options),
    }
    return canonical.r1_file(document)


def _correctness(options: DraftOptions) -> dict[str, Any]:
    """Exact unless a tolerance was given; then the missing half of it is zero."""
    stated: dict[str, Any] = {"prefill": True, "repetitions": options.repetitions, "mode": "exact"}
    if options.atol is not None or options.rtol is not None:
        stated |= {"mode": "tolerance", "atol": options.atol or 0.0, "rtol": options.rtol or 0.0}
    return stated


def _files(checkpoint: Checkpoint, hashed: bool, progress: Progress | None) -> list[dict[str, Any]]:
    described = checkpoint.describe_files(hashed=hashed, progress=progress)
    return [
        {"name": file.name, "size": file.size.value, **({"digest": file.digest.value} if hashed else {})}
        for file in described
    ]


def machine_part(environment: EnvironmentObserved, device: str, repository: str, revision: str) -> Machine:
    units = {unit.key: unit for unit in environment.compute_units}
    observed = {resource.key: resource for resource in environment.memory_resources}
    ram = _resource(observed, "ram", RAM)
    if device == "cpu":
        where, kind = "cpu0", "shared-memory"
        second = {**_resource(observed, "shm", SHM), "parent": RAM}
        unit = _unit(units, "cpu", where, [RAM, SHM])
    else:
        key = "cuda:0" if device == "cuda" else device
        where, kind = f"gpu{key.removeprefix('cuda:')}", "accelerator-vram"
        second = _resource(observed, f"{key}.vram", f"{where}.vram")
        unit = _unit(units, key, where, [second["id"]])
    stays = second["id"]
    backing = {"id": SOURCE, "kind": "checkpoint", "repository": repository, "revision": revision}
    links = [
        {"id": "checkpoint-to-ram", "kind": "bounded-read", "source": SOURCE, "target": RAM},
        {
            "id": f"ram-to-{'shm' if device == 'cpu' else 'vram'}",
            "kind": "host-copy" if device == "cpu" else "device-copy",
            "source": RAM,
            "target": stays,
        },
    ]
    return Machine(
        resources={
            "swarm_id": SWARM,
            "nodes": [{"id": NODE, "compute_units": [unit], "memory_resources": [ram, second]}],
            "backing_sources": [backing],
            "links": links,
        },
        compute_unit_id=where,
        by_kind={"system-ram": RAM, kind: stays},
        links={(link["source"], link["target"]): link["id"] for link in links},
    )


def _resource(observed: Mapping[str, ObservedMemoryResource], key: str, plan_id: str) -> dict[str, Any]:
    resource = observed.get(key)
    if resource is None:
        device = key.partition(".")[0]
        wanted = (
            f"there is no device {device} on this machine"
            if device.startswith("cuda:")
            else f"this machine shows no memory {key!r}"
        )
        raise TallyError(
            f"{wanted}; it has: {', '.join(sorted(observed))}",
            "`tally doctor` says which devices are seen and why not; --device cpu drafts for this machine's own memory",
        )
    kind = _value(resource.kind, f"kind of {key}", str)
    return {"id": plan_id, "kind": kind, "capacity_bytes": _value(resource.capacity_bytes, f"capacity of {key}", int)}


def _unit(
    units: Mapping[str, ObservedComputeUnit], key: str, plan_id: str, memory_resources: list[str]
) -> dict[str, Any]:
    unit = units.get(key)
    if unit is None:
        raise TallyError(
            f"this machine shows no Compute Unit {key!r}; it has: {', '.join(sorted(units))}",
            "draft for one of those, with --device",
        )
    return {
        "id": plan_id,
        "kind": _value(unit.kind, f"kind of {key}", str),
        "device_uuid": unit.device_uuid.value,
        "memory_resources": memory_resources,
    }


def _value(found: Measurement, what: str, kind: type) -> Any:
    """The measured value. A plan cannot be drafted on what could not be read."""
    if not isinstance(found.value, kind):
        raise TallyError(f"the {what} could not be read: {found.detail or found.status}")
    return found.value
