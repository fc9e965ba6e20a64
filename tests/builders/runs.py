"""A small plan, the run that a real engine would record for it, and the tools to change one thing in it.

Laws: `judge(plan, fold(events(record(clean_bodies(plan), plan))))` is PASS with assurance `observed`, for `small_plan()`
and for `gpu_plan()`; the same bodies always give the same envelopes, ids and times included.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ledger import canonical
from ledger.bodies import (
    AdapterIdentity,
    AddressRange,
    AuthorityEstablished,
    Body,
    BoundState,
    Census,
    CheckpointFile,
    DecodeRan,
    Deviation,
    EnvironmentObserved,
    ExecutionActivated,
    FreezingReference,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationStarted,
    MemorySampled,
    ModelIdentity,
    ObservedComputeUnit,
    ObservedMemoryResource,
    PlanAccepted,
    PlanFrozen,
    PlanReference,
    ReclamationObserved,
    ReferenceBound,
    ReleaseAuthorized,
    RunClosed,
    RunOpened,
    SoftwareIdentity,
    SourceWatched,
)
from ledger.events import Actor, Event
from ledger.measurement import Frozen, Measurement, claimed, measured, unavailable
from ledger.plan import Materialization, Plan, freeze, parse_plan
from ledger.recording import Draft, ListLedger

MIB = 1024 * 1024
GIB = 1024 * MIB

RUN_ID = "01920000-0000-7000-8000-000000000001"
FREEZING_ID = "01920000-0000-7000-8000-0000000000ff"
NODE = "node-a"
LINEAGE = "kv-cache-epoch-1"
REFERENCE_DIGEST = "sha256:" + "5e" * 32
CONFIG_DIGEST = "sha256:" + "c0" * 32
HEADERS_DIGEST = "sha256:" + "4e" * 32
TOKENS = {
    "prefill_tokens": "8",
    "prefill_tokens_digest": "sha256:" + "70" * 32,
    "decode_tokens": "8",
    "decode_tokens_digest": "sha256:" + "70" * 32,
}
"""What the reference says comes out."""
GPU_UUID = "GPU-00000000-1111-2222-3333-444444444444"

HOST_KINDS = ("system-ram", "shared-memory")


# --- plans --------------------------------------------------------------------------------------------------------


def plan_document() -> dict[str, Any]:
    """The document of `small_plan()`, unfrozen, as plain JSON: one CPU node, resident state in shared memory."""

    def materialization(name: str, unit: str, representation: str, role: str, size: int, **more: Any) -> dict[str, Any]:
        return {
            "id": name,
            "logical_state_id": unit,
            "memory_resource_id": "node-a.shm",
            "representation": representation,
            "role": role,
            "persistence": "persistent",
            "requirement": "required",
            "expected_bytes": size,
            **more,
        }

    return {
        "schema": "tallystick.plan/1",
        "plan_version": "small-1",
        "model": {
            "repository": "example/small",
            "revision": "0" * 40,
            "config_digest": CONFIG_DIGEST,
            "headers_digest": HEADERS_DIGEST,
        },
        "resources": {
            "swarm_id": "local",
            "nodes": [
                {
                    "id": NODE,
                    "compute_units": [
                        {
                            "id": "cpu0",
                            "kind": "cpu",
                            "device_uuid": None,
                            "memory_resources": ["node-a.ram", "node-a.shm"],
                        }
                    ],
                    "memory_resources": [
                        {"id": "node-a.ram", "kind": "system-ram", "capacity_bytes": 16 * GIB},
                        {
                            "id": "node-a.shm",
                            "kind": "shared-memory",
                            "capacity_bytes": 8 * GIB,
                            "parent": "node-a.ram",
                        },
                    ],
                }
            ],
            "backing_sources": [
                {"id": "checkpoint", "kind": "checkpoint", "repository": "example/small", "revision": "0" * 40}
            ],
            "links": [
                {"id": "checkpoint-to-ram", "kind": "bounded-read", "source": "checkpoint", "target": "node-a.ram"},
                {"id": "ram-to-shm", "kind": "host-copy", "source": "node-a.ram", "target": "node-a.shm"},
            ],
        },
        "logical_state_units": [
            {
                "id": "state.weights",
                "semantic_class": "immutable_source",
                "backing_source_id": "checkpoint",
                "selection": {
                    "patterns": ["*"],
                    "count": 1,
                    "keys_digest": canonical.sha256_digest(b"weight\n"),
                },
            },
            {
                "id": "state.buffers",
                "semantic_class": "derived_reconstructible",
                "reconstruction_inputs": ["state.weights"],
            },
            {"id": "state.kv-cache", "semantic_class": "mutable_authoritative"},
            {
                "id": "state.replay-baseline",
                "semantic_class": "derived_reconstructible",
                "reconstruction_inputs": ["state.kv-cache"],
            },
        ],
        "materializations": [
            materialization(
                "mat.weights.stage",
                "state.weights",
                "checkpoint-native-host",
                "staging",
                256 * MIB,
                memory_resource_id="node-a.ram",
                persistence="transient",
                path_id="checkpoint-to-ram",
            ),
            materialization(
                "mat.weights.resident",
                "state.weights",
                "checkpoint-native-resident",
                "required_residency",
                256 * MIB,
                path_id="ram-to-shm",
            ),
            materialization("mat.buffers.resident", "state.buffers", "buffers-resident", "required_residency", 256),
            materialization("mat.kv-cache", "state.kv-cache", "static-kv-cache", "mutable_authority", 8 * MIB),
            materialization(
                "mat.replay-baseline",
                "state.replay-baseline",
                "static-kv-cache-copy",
                "required_test_state",
                8 * MIB,
            ),
        ],
        "authorities": [
            {"lineage": LINEAGE, "logical_state_id": "state.kv-cache", "materialization_id": "mat.kv-cache"}
        ],
        "execution": [
            {
                "id": "exec.decode",
                "compute_unit_id": "cpu0",
                "strategy_unit": "causal-lm.decode",
                "required_state": [
                    {
                        "logical_state_id": unit,
                        "memory_resources": ["node-a.shm"],
                        "representations": [representation],
                    }
                    for unit, representation in (
                        ("state.weights", "checkpoint-native-resident"),
                        ("state.buffers", "buffers-resident"),
                        ("state.kv-cache", "static-kv-cache"),
                    )
                ],
            }
        ],
        "forbidden_persistent_materializations": [
            {"logical_state_id": "state.weights", "memory_resource_id": "node-a.ram"}
        ],
        "memory_expectations": {
            "persistent_optional_bytes": 0,
            "unexplained_persistent_host_mirror_bytes": 0,
            "unplanned_persistent_bytes": 0,
        },
        "adapter": {"name": "causal_lm", "options": {}},
        "checkpoint": {"files": [{"name": "model.safetensors", "size": 256 * MIB + 1024}]},
        "correctness": {
            "reference_digest": REFERENCE_DIGEST,
            "prefill": True,
            "repetitions": 4,
            "mode": "exact",
        },
    }


def gpu_document() -> dict[str, Any]:
    """The document of `gpu_plan()`: the same states, resident on one GPU."""
    document = plan_document()
    (node,) = document["resources"]["nodes"]
    node["compute_units"] = [
        {"id": "gpu0", "kind": "cuda-gpu", "device_uuid": GPU_UUID, "memory_resources": ["gpu0.vram"]}
    ]
    node["memory_resources"] = [
        {"id": "node-a.ram", "kind": "system-ram", "capacity_bytes": 16 * GIB},
        {"id": "gpu0.vram", "kind": "accelerator-vram", "capacity_bytes": 8 * GIB},
    ]
    document["resources"]["links"][1] = {
        "id": "ram-to-vram",
        "kind": "host-to-device",
        "source": "node-a.ram",
        "target": "gpu0.vram",
    }
    for materialization in document["materializations"]:
        if materialization["memory_resource_id"] == "node-a.shm":
            materialization["memory_resource_id"] = "gpu0.vram"
        if materialization.get("path_id") == "ram-to-shm":
            materialization["path_id"] = "ram-to-vram"
    (execution,) = document["execution"]
    execution["compute_unit_id"] = "gpu0"
    for required in execution["required_state"]:
        required["memory_resources"] = ["gpu0.vram"]
    return document


def sealed(document: dict[str, Any]) -> Plan:
    """The document as a frozen plan."""
    document = {key: value for key, value in document.items() if key != "digest"}
    return freeze(parse_plan(canonical.r1_file(document)))


def small_plan(**changes: Any) -> Plan:
    """The small plan, frozen; keywords replace top-level fields of the document."""
    return sealed({**plan_document(), **changes})


def gpu_plan(**changes: Any) -> Plan:
    """The small plan for one GPU, frozen; keywords replace top-level fields of the document."""
    return sealed({**gpu_document(), **changes})


def edited_plan(plan: Plan, edit: Callable[[dict[str, Any]], None]) -> Plan:
    """A plan of its own: a copy of the document after `edit` has changed it in place, frozen anew."""
    document = copy.deepcopy(plan.raw)
    edit(document)
    return sealed(document)


# --- the clean run ------------------------------------------------------------------------------------------------


def count(value: int, method: str = "counted") -> Measurement:
    return measured(value, "count", method)


def flag(value: int, method: str = "looked") -> Measurement:
    return measured(value, None, method)


def size(value: int, method: str = "live storages by address") -> Measurement:
    return measured(value, "bytes", method)


def text(value: str, method: str = "read") -> Measurement:
    return measured(value, None, method)


def opened(plan: Plan, **changes: Any) -> RunOpened:
    """run.opened of a realization; `record` fills in the freezing that it cites."""
    body = RunOpened(
        purpose="realization",
        plan=PlanReference(
            claimed_digest=plan.claimed_digest,
            computed_digest=plan.computed_digest,
            blob_digest=plan.blob_digest,
            plan_schema=plan.schema,
        ),
        adapter=AdapterIdentity(name="causal_lm", version="0.1.0", distribution="tallystick"),
        software=SoftwareIdentity(
            versions={"tallystick": "0.1.0", "python": "3.11.2", "torch": "2.13.0+cpu"},
            source_commit=text("0123456789abcdef0123456789abcdef01234567", "git rev-parse"),
            source_dirty=flag(0, "git status"),
            files_digest=text("sha256:" + "f1" * 32, "sha256 over installed files"),
        ),
        argv=text("tally realize plan.json", "sys.argv"),
        user=text("someone", "getpwuid"),
        hostname=text("node-a", "uname"),
        pid=count(4242, "getpid"),
        labels={"purpose": "test"},
        model=ModelIdentity(
            repository=text(plan.document.model.repository, "snapshot folder"),
            revision=text(plan.document.model.revision, "snapshot folder"),
            config_digest=text(plan.document.model.config_digest or CONFIG_DIGEST, "sha256 of config.json"),
            headers_digest=text(plan.document.model.headers_digest or HEADERS_DIGEST, "sha256 of tensor headers"),
            directory=text("checkpoint", "as given"),
        ),
        checkpoint_files=[
            CheckpointFile(
                name=file.name,
                size=size(file.size, "stat"),
                digest=text(file.digest, "sha256") if file.digest else unavailable(None, "sha256", "not hashed"),
            )
            for file in (plan.document.checkpoint.files if plan.document.checkpoint else [])
        ],
    )
    return body.model_copy(update=changes)


def environment(plan: Plan) -> EnvironmentObserved:
    """The machine that the plan was made for, as probes would find it."""
    keys = bindings(plan)
    units = []
    for unit in plan.compute_units.values():
        units.append(
            ObservedComputeUnit(
                key=keys[unit.id],
                kind=text(unit.kind, "torch"),
                device_uuid=text(unit.device_uuid, "NVML")
                if unit.device_uuid
                else unavailable(None, "none", "a CPU domain has no device UUID"),
                name=text("a processor", "cpuinfo"),
                memory_resources=[keys[resource] for resource in unit.memory_resources],
            )
        )
    resources = [
        ObservedMemoryResource(
            key=keys[resource.id],
            kind=text(resource.kind, "meminfo"),
            capacity_bytes=size(resource.capacity_bytes, "meminfo"),
            available_bytes=size(resource.capacity_bytes // 2, "meminfo"),
            parent=keys[resource.parent] if resource.parent else None,
        )
        for resource in plan.memory_resources.values()
    ]
    return EnvironmentObserved(
        compute_units=units, memory_resources=resources, facts={"kernel": text("Linux 6.1", "uname")}
    )


def bindings(plan: Plan) -> dict[str, str]:
    """Plan id -> the machine's own key, as the realizer names them."""
    keys: dict[str, str] = {}
    devices = 0
    for unit in plan.compute_units.values():
        if unit.kind == "cpu":
            keys[unit.id] = "cpu"
        else:
            keys[unit.id] = f"cuda:{devices}"
            for name in unit.memory_resources:
                keys[name] = f"cuda:{devices}.vram"
            devices += 1
    for resource in plan.memory_resources.values():
        names = {"system-ram": "ram", "shared-memory": "shm"}
        keys.setdefault(resource.id, names.get(resource.kind, resource.id))
    return keys


def address_range(plan: Plan, materialization: Materialization) -> AddressRange:
    """The one range of a materialization: distinct, page-rounded, in the address space of its resource."""
    index = sorted(plan.materializations).index(materialization.id)
    length = -(-max(materialization.expected_bytes, 1) // 4096) * 4096
    return AddressRange(
        space=space(plan, materialization), start=0x7F00_0000_0000 + index * 0x10_0000_0000, length=length
    )


def space(plan: Plan, materialization: Materialization) -> str:
    resource = plan.memory_resources.get(materialization.memory_resource_id)
    if resource is None or resource.kind in HOST_KINDS:
        return "host"
    return bindings(plan)[resource.id].removesuffix(".vram")


def sample(
    plan: Plan, label: str, live: Iterable[str], *, high: int | None = None, peak: int | None = None
) -> MemorySampled:
    """memory.sampled with the materializations in `live` alive and nothing else beyond the idle process.

    `high` (bytes over idle) is what VmHWM rose to in this step; `peak` likewise for the device.
    """
    anon = shmem = device = 0
    owners: dict[str, Measurement] = {}
    for name in live:
        materialization = plan.materializations[name]
        expected = materialization.expected_bytes
        owners[name] = size(expected)
        resource = plan.memory_resources[materialization.memory_resource_id]
        if resource.kind == "system-ram":
            anon += expected
        elif resource.kind == "shared-memory":
            shmem += expected
        else:
            device += expected
    idle_anon, idle_file, idle_device = 300 * MIB, 200 * MIB, 0
    resident = idle_anon + idle_file + anon + shmem
    figures = {
        "vm_rss": resident,
        "vm_hwm": max(resident, idle_anon + idle_file + (high or 0)),
        "rss_anon": idle_anon + anon,
        "rss_file": idle_file,
        "rss_shmem": shmem,
        "vm_swap": 0,
        "hugetlb": 0,
        "vm_pin": 0,
        "new_file_mappings": 0,
        "checkpoint_mappings": 0,
        "new_tmpfs_files": 0,
        "tree_sum": idle_anon + anon + shmem,
    }
    counts = {"minor_faults": 90_000, "major_faults": 3, "swap_in": 0, "swap_out": 0}
    cuda: dict[str, Measurement] = {}
    for unit in plan.compute_units.values():
        if unit.kind != "cpu":
            key = bindings(plan)[unit.id]
            cuda[f"{key}.allocated"] = size(idle_device + device, "torch allocator")
            cuda[f"{key}.reserved"] = size(idle_device + device, "torch allocator")
            cuda[f"{key}.peak"] = size(max(idle_device + device, peak or 0), "torch allocator")
            cuda[f"{key}.process"] = size(500 * MIB + device, "NVML")
    if cuda:
        cuda["host_pool"] = size(0, "torch host allocator")
    return MemorySampled(
        label=label,
        process={key: size(value, "/proc, process tree") for key, value in figures.items()}
        | {key: count(value, "/proc, process tree") for key, value in counts.items()},
        host={"mem_available": size(12 * GIB, "/proc/meminfo")},
        cgroup={
            "current": size(GIB + anon + shmem, "memory.current of the memory cgroup"),
            "others": measured(3, "processes", "cgroup.procs, here and below, less the tree"),
        },
        cuda=cuda,
        census=Census(
            by_owner=owners,
            unowned_host_bytes=size(0, "gc census"),
            unowned_device_bytes=size(0, "gc census"),
            unowned_host_storages=count(0, "gc census"),
            evidence_host_by_role={"reference": size(64 * 1024, "registered evidence")},
        ),
    )


def materialized(plan: Plan, materialization: Materialization) -> list[Body]:
    """started, realized (the adapter's claim), observed (the probe's view)."""
    as_planned = {
        "materialization_id": materialization.id,
        "logical_state_id": materialization.logical_state_id,
        "role": materialization.role,
        "persistence": materialization.persistence,
    }
    return [
        MaterializationStarted(
            **as_planned,
            memory_resource_id=materialization.memory_resource_id,
            representation=materialization.representation,
        ),
        MaterializationRealized(
            **as_planned,
            memory_resource_id=materialization.memory_resource_id,
            representation=materialization.representation,
            bytes=claimed(materialization.expected_bytes, "bytes", "adapter"),
            tensors=claimed(2, "count", "adapter"),
            unplanned_bytes=claimed(0, "bytes", "adapter"),
            elapsed_ns=measured(5_000_000, "ns", "monotonic clock"),
        ),
        MaterializationObserved(
            **as_planned,
            memory_resource_id=text(materialization.memory_resource_id, "address in the range of that resource"),
            representation=text(materialization.representation, "dtype, shape and offset of every tensor"),
            bytes=size(materialization.expected_bytes),
            storages=count(2),
            tensors=count(2),
            live=flag(1),
            ranges=[address_range(plan, materialization)],
        ),
    ]


def reclaimed(plan: Plan, materialization: Materialization, phase: Any, before: int, after: int) -> ReclamationObserved:
    return ReclamationObserved(
        materialization_id=materialization.id,
        phase=phase,
        owners_total=count(2, "weak references"),
        owners_alive=count(0, "weak references"),
        region_mapped=flag(0, "smaps"),
        tree_before=size(before, "/proc, process tree"),
        tree_after=size(after, "/proc, process tree"),
        ratio=measured((before - after) / materialization.expected_bytes, "ratio", "tree before and after"),
        system={"anon_and_shmem": size(2 * GIB, "/proc/meminfo")},
    )


def deviation() -> Deviation:
    """Bit-equal."""
    return Deviation(
        exact=flag(1, "torch.equal"),
        max_absolute=measured(0.0, None, "max |a-b|"),
        max_relative=measured(0.0, None, "max |a-b|/|b|"),
        nan_count=count(0),
        inf_count=count(0),
        within_tolerance=flag(1, "allclose"),
    )


def decoded(execution_id: str, phase: Any, repetition: int | None) -> DecodeRan:
    return DecodeRan(
        execution_id=execution_id,
        phase=phase,
        repetition=repetition,
        input=deviation(),
        output=deviation(),
        tokens=count(8),
        tokens_digest=text("sha256:" + "70" * 32, "sha256"),
        output_digest=text("sha256:" + ("90" if phase == "prefill" else "0d") * 32, "sha256"),
        elapsed_ns=measured(40_000_000, "ns", "monotonic clock"),
        plan_lookups=count(0, "plan handle"),
    )


def clean_bodies(plan: Plan) -> list[Body]:
    """The bodies of a run that carries the plan out exactly, run.opened to run.closed, in the engine's order."""
    staging = [item for item in plan.materializations.values() if item.persistence == "transient"]
    bodies: list[Body] = [
        opened(plan),
        environment(plan),
        PlanAccepted(required_bytes=_required_bytes(plan), bindings=bindings(plan)),
        ReferenceBound(
            planned_digest=plan.correctness.reference_digest,
            digest=text(plan.correctness.reference_digest or REFERENCE_DIGEST, "sha256 of the file"),
            provenance={"cache": "StaticCache", "attention": "sdpa", "dtype": "bfloat16", **TOKENS},
        ),
        sample(plan, "baseline", []),
    ]
    live: list[str] = []
    for materialization in plan.materializations.values():
        bodies += materialized(plan, materialization)
        live.append(materialization.id)
        bodies.append(sample(plan, f"materialized:{materialization.id}", live))
    for materialization in staging:
        before = sample(plan, f"before-release:{materialization.id}", live)
        live.remove(materialization.id)
        after = sample(plan, f"after-release:{materialization.id}", live)
        bodies += [
            before,
            ReleaseAuthorized(
                materialization_id=materialization.id,
                qualifying_ids=sorted(
                    other.id
                    for other in plan.materializations.values()
                    if other.logical_state_id == materialization.logical_state_id
                    and other.id != materialization.id
                    and (other.persistence, other.requirement) == ("persistent", "required")
                ),
            ),
            MaterializationReleased(
                materialization_id=materialization.id,
                bytes_before=size(materialization.expected_bytes),
                bytes_after=size(0),
                released_bytes=size(materialization.expected_bytes),
                owners_total=count(2, "weak references"),
                owners_alive=count(0, "weak references"),
            ),
            after,
            reclaimed(plan, materialization, "after-release", _tree(before), _tree(after)),
        ]
    for authority in plan.document.authorities:
        owner = plan.materializations[authority.materialization_id]
        bodies.append(
            AuthorityEstablished(
                logical_state_id=authority.logical_state_id,
                materialization_id=authority.materialization_id,
                memory_resource_id=text(owner.memory_resource_id, "address in the range of that resource"),
                lineage=text(authority.lineage, "tag read back from the range"),
                owner_range=address_range(plan, owner),
            )
        )
    for execution in plan.document.execution:
        bodies.append(
            ExecutionActivated(
                execution_id=execution.id,
                compute_unit_id=text(execution.compute_unit_id, "device of the parameters"),
                strategy_unit=execution.strategy_unit,
                state=[
                    BoundState(
                        logical_state_id=item.logical_state_id,
                        materialization_id=item.id,
                        memory_resource_id=item.memory_resource_id,
                    )
                    for required in execution.required_state
                    for item in plan.materializations.values()
                    if item.logical_state_id == required.logical_state_id and item.persistence == "persistent"
                ],
            )
        )
        if plan.correctness.prefill:
            bodies.append(decoded(execution.id, "prefill", None))
        bodies += [decoded(execution.id, "repetition", number) for number in range(plan.correctness.repetitions)]
    after_decode = sample(plan, "after-decode", live)
    bodies.append(after_decode)
    for materialization in staging:
        before_tree = next(
            _tree(body)
            for body in bodies
            if isinstance(body, MemorySampled) and body.label == f"before-release:{materialization.id}"
        )
        bodies.append(reclaimed(plan, materialization, "after-decode", before_tree, _tree(after_decode)))
    return [*bodies, watched(), sample(plan, "closing", live), RunClosed(outcome="completed")]


def watched(**changes: Any) -> SourceWatched:
    """A watch that held and saw nothing."""
    body = SourceWatched(
        armed=flag(1, "inotify"),
        overflowed=flag(0, "inotify"),
        network_filesystem=flag(0, "statfs"),
        tree_accesses=count(0),
        other_accesses=count(0),
        mapped_files=count(0, "/proc/PID/maps"),
        open_descriptors=count(0, "/proc/PID/fd"),
        read_bytes=size(0, "/proc/PID/io rchar across decode"),
        means=["inotify", "audit hook", "descriptors", "maps", "rchar"],
    )
    return body.model_copy(update=changes)


def _required_bytes(plan: Plan) -> dict[str, int]:
    needed: dict[str, int] = {}
    for item in plan.materializations.values():
        if item.requirement == "required" and item.persistence == "persistent":
            needed[item.memory_resource_id] = needed.get(item.memory_resource_id, 0) + item.expected_bytes
    return needed


def _tree(sampled: MemorySampled) -> int:
    value = sampled.process["tree_sum"].value
    assert isinstance(value, int), "builders only make known tree sums"
    return value


# --- changing one thing -------------------------------------------------------------------------------------------


def matching(bodies: list[Body], kind: type[Body], **fields: Any) -> list[int]:
    """Indices of the bodies of that type whose fields have those values. Raises LookupError when there is none."""
    found = [
        index
        for index, body in enumerate(bodies)
        if isinstance(body, kind) and all(getattr(body, name) == value for name, value in fields.items())
    ]
    if not found:
        raise LookupError(f"no {kind.TYPE} with {fields}")
    return found


def changed(bodies: list[Body], kind: type[Body], change: dict[str, Any], **fields: Any) -> list[Body]:
    """The bodies with `change` (dotted path -> new value) applied to every match."""
    indices = set(matching(bodies, kind, **fields))
    return [with_values(body, change) if index in indices else body for index, body in enumerate(bodies)]


def without(bodies: list[Body], kind: type[Body], **fields: Any) -> list[Body]:
    """The bodies without the matches."""
    indices = set(matching(bodies, kind, **fields))
    return [body for index, body in enumerate(bodies) if index not in indices]


def inserted(bodies: list[Body], new: Body | list[Body], *, before: type[Body], **fields: Any) -> list[Body]:
    """The bodies with `new` put just before the first match."""
    index = matching(bodies, before, **fields)[0]
    return [*bodies[:index], *(new if isinstance(new, list) else [new]), *bodies[index:]]


def moved(
    bodies: list[Body], kind: type[Body], *, before: type[Body], where: dict[str, Any] | None = None, **fields: Any
) -> list[Body]:
    """The bodies with the matches of `kind` taken out and put just before the first match of `before`."""
    indices = set(matching(bodies, kind, **fields))
    taken = [body for index, body in enumerate(bodies) if index in indices]
    rest = [body for index, body in enumerate(bodies) if index not in indices]
    return inserted(rest, taken, before=before, **(where or {}))


def with_values(body: Any, change: dict[str, Any]) -> Any:
    """The body with values set at dotted paths; numbers index lists, other parts are field names or dictionary keys.

    A dictionary key that holds dots is reached with `/` as the separator instead: `process/vm_rss`, `cuda/cuda:0.peak`.
    A measurement without a unit takes the unit of the one whose place it takes.
    """
    for path, value in change.items():
        body = _set(body, path.split("/") if "/" in path else path.split("."), value)
    return body


def _set(holder: Any, path: list[str], value: Any) -> Any:
    if not path:
        if isinstance(holder, Measurement) and isinstance(value, Measurement) and value.unit is None:
            return value.model_copy(update={"unit": holder.unit})
        return value
    head, *rest = path
    if isinstance(holder, Frozen):
        if head not in type(holder).model_fields:
            raise LookupError(f"{type(holder).__name__} has no field {head}")
        return holder.model_copy(update={head: _set(getattr(holder, head), rest, value)})
    if isinstance(holder, list):
        return [_set(item, rest, value) if index == int(head) else item for index, item in enumerate(holder)]
    if isinstance(holder, dict):
        return {**holder, head: _set(holder.get(head) if not rest else holder[head], rest, value)}
    raise LookupError(f"cannot go into {type(holder).__name__} with {head!r}")


def measurement_paths(body: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every Measurement in a body."""
    if isinstance(body, Measurement):
        yield prefix
    elif isinstance(body, Frozen):
        for name in type(body).model_fields:
            yield from measurement_paths(getattr(body, name), (*prefix, name))
    elif isinstance(body, dict):
        for key, item in body.items():
            yield from measurement_paths(item, (*prefix, key))
    elif isinstance(body, list):
        for index, item in enumerate(body):
            yield from measurement_paths(item, (*prefix, str(index)))


# --- recording ----------------------------------------------------------------------------------------------------


def record(
    bodies: list[Body],
    plan: Plan,
    *,
    run_id: str = RUN_ID,
    ledger: ListLedger | None = None,
    frozen: bool = True,
    elapsed: list[int | None] | None = None,
) -> ListLedger:
    """The ledger after the plan was frozen (unless `frozen` is False) and the run recorded.

    run.opened is made to cite that freezing, unless it cites one already. `elapsed` gives the run's monotonic times;
    without it an event a millisecond. Ids and times are the same every time.
    """
    ledger = ledger or ListLedger()
    actor = Actor(kind="realizer", id="tallystick 0.1")
    if frozen and not any(event.body.TYPE == PlanFrozen.TYPE for event in ledger.events()):
        body: Body = PlanFrozen(digest=plan.computed_digest, blob_digest=plan.blob_digest)
        ledger.append(FREEZING_ID, 0, [_draft(FREEZING_ID, body, 0, None, actor)])
    drafts = []
    for index, body in enumerate(bodies):
        if isinstance(body, RunOpened) and body.frozen is None and frozen:
            body = body.model_copy(update={"frozen": _citation(ledger)})
        drafts.append(_draft(run_id, body, index, elapsed[index] if elapsed is not None else index * 1_000_000, actor))
    ledger.append(run_id, 0, drafts)
    return ledger


def _citation(ledger: ListLedger) -> FreezingReference | None:
    for place, event in zip(ledger.recorded, ledger.events(), strict=True):
        if isinstance(event.body, PlanFrozen):
            return FreezingReference(
                hash=place.hash, position=place.position, digest=event.body.digest, ledger_size=len(ledger.recorded)
            )
    return None


def _draft(run_id: str, body: Body, index: int, elapsed_ns: int | None, actor: Actor) -> Draft:
    return Draft(
        event_id=f"{run_id[:-12]}{int(run_id[-4:], 16):04x}{index:08x}",
        run_id=run_id,
        body=body,
        recorded_at=f"2026-11-29T12:{index // 60 % 60:02d}:{index % 60:02d}.000000Z",
        elapsed_ns=elapsed_ns,
        node_id=NODE,
        actor=actor,
    )


def run_events(bodies: list[Body], plan: Plan, **options: Any) -> list[Event]:
    """The events of the run that `record` makes, without the freezing."""
    return record(bodies, plan, **options).events(options.get("run_id", RUN_ID))
