"""What event bodies are made of: frozen values, each documented field by field. `ledger.bodies` holds the events."""

from __future__ import annotations

from pydantic import Field

from ledger.measurement import Frozen, Measurement, Measurements


class PlanReference(Frozen):
    """Which plan a run carries out.

    claimed_digest: what the document says of itself; null when it says nothing.
    computed_digest: by the digest rule, from the content; the run's chain begins with it.
    blob_digest: SHA-256 of the plan file's bytes, which lie in `blobs`.
    plan_schema: the dialect.
    """

    claimed_digest: str | None
    computed_digest: str
    blob_digest: str
    plan_schema: str


class FreezingReference(Frozen):
    """The `plan.frozen` event that this run cites.

    hash, position, digest: of that event: its hash, its place in the ledger, the plan digest it froze.
    ledger_size: how many events the ledger held when the run was about to be opened: an earlier freezing lies below.
    """

    hash: str
    position: int
    digest: str
    ledger_size: int | None = None


class AdapterIdentity(Frozen):
    """The adapter that carries the plan out.

    name, version: as the adapter calls itself.
    distribution: the package it came from, with its version.
    files_digest: SHA-256 over the files of the package that its class is in; null for one of this program's own, which
    `software.files_digest` covers, and in runs that did not record it.
    """

    name: str
    version: str
    distribution: str | None = None
    files_digest: Measurement | None = None


class SoftwareIdentity(Frozen):
    """What ran.

    versions: of the interpreter, this program and the libraries that matter, by name.
    source_commit: of the checkout that ran.
    source_dirty: 1 when files differed from that commit, else 0.
    files_digest: SHA-256 over the installed files of this program.
    """

    versions: dict[str, str]
    source_commit: Measurement
    source_dirty: Measurement
    files_digest: Measurement


class CheckpointFile(Frozen):
    """One checkpoint file.

    name: relative to the checkpoint's directory.
    size: bytes.
    digest: SHA-256 of the file, where it was hashed.
    """

    name: str
    size: Measurement
    digest: Measurement


class ModelIdentity(Frozen):
    """What the checkpoint says of itself.

    repository, revision: as declared in the directory or by the hub's cache path.
    config_digest: SHA-256 of config.json.
    headers_digest: SHA-256 over all tensor headers (name, dtype, shape, file, span).
    directory: where it lay.
    """

    repository: Measurement
    revision: Measurement
    config_digest: Measurement
    headers_digest: Measurement
    directory: Measurement


class ObservedMemoryResource(Frozen):
    """A memory domain as the machine shows it.

    key: the machine's own name for it.
    kind: `system-ram`, `shared-memory` or `accelerator-vram`.
    capacity_bytes, available_bytes: bytes, in all and free at that moment.
    parent: `key` of the resource that it is carved from.
    """

    key: str
    kind: Measurement
    capacity_bytes: Measurement
    available_bytes: Measurement
    parent: str | None = None


class ObservedComputeUnit(Frozen):
    """A Compute Unit as the machine shows it.

    key: the machine's own name for it.
    kind: `cpu` or `cuda-gpu`.
    device_uuid: of an accelerator; of a CPU domain unavailable, since it has none.
    name: the product's name.
    memory_resources: keys of the memory it reaches.
    """

    key: str
    kind: Measurement
    device_uuid: Measurement
    name: Measurement
    memory_resources: list[str] = Field(default_factory=list)


class Violation(Frozen):
    """One reason why a plan is refused.

    code: of the check.
    subject: id of the part.
    message: what is wrong.
    """

    code: str
    subject: str
    message: str


class AddressRange(Frozen):
    """Where live storage lies.

    space: `host` or a device; addresses are in its address space.
    start, length: first address, and bytes.
    """

    space: str
    start: int
    length: int


class BoundState(Frozen):
    """One piece of required state as found at activation.

    memory_resource_id: where it was observed.
    """

    logical_state_id: str
    materialization_id: str
    memory_resource_id: str


class Deviation(Frozen):
    """A tensor laid against its reference; a figure that is not finite is null and `failed`.

    exact: 1 when shape, dtype and bits are equal, else 0.
    max_absolute, max_relative: largest |found - reference|, and that over |reference| (computed in float64).
    nan_count, inf_count: elements.
    within_tolerance: 1 or 0, where the plan states one.
    """

    exact: Measurement
    max_absolute: Measurement
    max_relative: Measurement
    nan_count: Measurement
    inf_count: Measurement
    within_tolerance: Measurement | None = None


class Census(Frozen):
    """Live tensor storages, each counted once; new since the baseline only.

    by_owner: bytes by the materialization whose range they lie in.
    unowned_host_bytes, unowned_device_bytes: what no owner explains.
    unowned_host_storages: how many those are on the host.
    evidence_host_by_role: bytes held for the comparison itself, such as the reference.
    """

    by_owner: Measurements = Field(default_factory=dict)
    unowned_host_bytes: Measurement
    unowned_device_bytes: Measurement
    unowned_host_storages: Measurement
    evidence_host_by_role: Measurements = Field(default_factory=dict)
