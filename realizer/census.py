"""The tensor census: every live storage that the interpreter knows, attributed by address and counted once.

Nobody is asked. The garbage collector's list holds every tensor and storage object; storages are told apart by where
they lie, so views and ties count once. What only C++ code holds is not in that list: the ranges' own accounts and the
process tree's figures stand beside it for that.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from typing import TYPE_CHECKING, Any

from ledger.bodies import Census
from ledger.measurement import Measurement, measured
from realizer.adapter import TORCH_NAMES, Layout, TensorPlace
from realizer.memory import DeviceRange, MemoryRange, Ranges

if TYPE_CHECKING:
    import torch

EVIDENCE_PREFIX = "evidence:"

_RAW = frozenset({"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0"})
"""Dtypes that may lie there as plain bytes: not every torch version has a type for them."""


@dataclass(frozen=True)
class LiveTensor:
    """A tensor or storage object as found; it holds no reference to it. `dtype` is empty for a bare storage."""

    space: str
    storage_start: int
    storage_bytes: int
    start: int
    extent: int
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool


@dataclass(frozen=True)
class Scan:
    """One pass over the collector's list. `unreadable` counts tensors that have no plain storage (sparse, fake)."""

    tensors: tuple[LiveTensor, ...]
    unreadable: int

    def within(self, memory: MemoryRange) -> list[LiveTensor]:
        """Those whose storage begins in the range; for device ranges, which are one storage, those lying in it."""
        return [found for found in self.tensors if found.space == memory.space and memory.contains(found.start)]


def scan(leave_out: Iterable[MemoryRange] = ()) -> Scan:
    """Every live tensor and storage. The own buffers of device ranges in `leave_out` are the ranges, and no views."""
    import torch

    buffers = [memory.buffer for memory in leave_out if isinstance(memory, DeviceRange)]
    own = {id(buffer) for buffer in buffers}
    # torch keeps a storage's Python object as long as the storage lives, so a bare one there says nothing of a holder
    own_starts = {buffer.data_ptr() for buffer in buffers if buffer is not None}
    found: list[LiveTensor] = []
    unreadable = 0
    for thing in _live(torch.Tensor, torch.UntypedStorage):
        if id(thing) in own:
            continue
        bare = issubclass(type(thing), torch.UntypedStorage)
        try:
            live = _look(thing, bare=bare)
        except (RuntimeError, NotImplementedError, TypeError):
            unreadable += 1
            continue
        if live is not None and not (bare and live.start in own_starts):
            found.append(live)
    return Scan(tuple(found), unreadable)


def _look(thing: Any, *, bare: bool) -> LiveTensor | None:
    """What one object occupies; None when it occupies nothing."""
    device = thing.device
    if device.type == "meta":
        return None
    storage = thing if bare else thing.untyped_storage()
    size = storage.nbytes()
    start = storage.data_ptr()
    if size == 0 or start == 0:
        return None
    space = "host" if device.type == "cpu" else str(device)
    if bare:
        return LiveTensor(space, start, size, start, size, "", (), True)
    shape, size_of_one = tuple(thing.shape), thing.element_size()
    contiguous = bool(thing.is_contiguous())
    count = thing.numel()
    if count and not contiguous:
        count = sum((n - 1) * s for n, s in zip(shape, thing.stride(), strict=True)) + 1
    first = start + thing.storage_offset() * size_of_one
    return LiveTensor(space, start, size, first, count * size_of_one, _dtype_name(thing.dtype), shape, contiguous)


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def spans(memory: MemoryRange, tensors: Iterable[LiveTensor]) -> list[tuple[int, int]]:
    """(start, end) of what they keep alive in the range, joined. A device range's storage is the range itself, so
    there each tensor counts by its own extent."""
    device = isinstance(memory, DeviceRange)
    return union(
        (found.start, found.start + found.extent)
        if device
        else (found.storage_start, found.storage_start + found.storage_bytes)
        for found in tensors
    )


def union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans sorted, overlapping and touching ones joined, empty ones dropped."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def total(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


def match(layout: Layout, memory: MemoryRange, tensors: Sequence[LiveTensor]) -> tuple[int, TensorPlace | None]:
    """How many places of the layout hold a live tensor of their dtype, shape and address, and the first that does not."""
    by_start: dict[int, list[LiveTensor]] = {}
    for found in tensors:
        by_start.setdefault(found.start, []).append(found)
    matched, missing = 0, None
    for place in layout.places:
        if place.bytes == 0 or any(_fits(place, found) for found in by_start.get(memory.start + place.offset, ())):
            matched += 1
        elif missing is None:
            missing = place
    return matched, missing


def _fits(place: TensorPlace, found: LiveTensor) -> bool:
    if not found.contiguous or found.extent != place.bytes:
        return False
    if TORCH_NAMES.get(place.dtype) == found.dtype and found.shape == place.shape:
        return True
    if place.dtype == "F4" and found.dtype == "float4_e2m1fn_x2":  # two elements in each of torch's
        return found.shape == (*place.shape[:-1], place.shape[-1] // 2)
    return place.dtype in _RAW and found.dtype == "uint8"


@dataclass
class Remembered:
    """A storage known from before: where it lies, how long it was, and whether that very storage still lives."""

    space: str
    start: int
    bytes: int
    reference: Any

    @property
    def alive(self) -> bool:
        return not self.reference.expired()


@dataclass
class StorageBook:
    """Storages that the census can explain besides the ranges: those of the baseline, and evidence by role."""

    baseline: list[Remembered] = field(default_factory=list)
    evidence: dict[str, list[Remembered]] = field(default_factory=dict)

    def remember_baseline(self) -> None:
        """Every storage alive now is the baseline."""
        self.baseline = remember_all()

    def add_evidence(self, role: str, tensors: Iterable[torch.Tensor]) -> None:
        """Tensors kept on purpose, to compare with; on the host they are reported by their role."""
        self.evidence.setdefault(role, []).extend(remember(tensor) for tensor in tensors if tensor.numel())


def remember(tensor: torch.Tensor) -> Remembered:
    """A weak hold on the tensor's storage."""
    from torch.multiprocessing.reductions import StorageWeakRef

    storage = tensor.untyped_storage()
    space = "host" if tensor.device.type == "cpu" else str(tensor.device)
    return Remembered(space, storage.data_ptr(), storage.nbytes(), StorageWeakRef(storage))


def remember_all() -> list[Remembered]:
    """Weak holds on every live storage that the interpreter knows, each once."""
    found: dict[tuple[str, int], Remembered] = {}
    for tensor in _tensors():
        try:
            held = remember(tensor)
        except (RuntimeError, NotImplementedError, TypeError):
            continue  # no plain storage; `scan` counts it as unreadable
        if held.bytes:
            found.setdefault((held.space, held.start), held)
    return list(found.values())


def owners_in(memory: MemoryRange) -> list[Remembered]:
    """Weak holds on what keeps the range in use: its storages, each once, or the views of a device range's storage.

    A view's storage is the device range itself, so there the tensor is held weakly and not the storage.
    """
    own = memory.buffer if isinstance(memory, DeviceRange) else None
    found: dict[tuple[int, int], Remembered] = {}
    for tensor in _tensors():
        if tensor is own:
            continue
        try:
            held = remember(tensor) if own is None else _remember_view(tensor)
        except (RuntimeError, NotImplementedError, TypeError):
            continue
        if held.bytes and held.space == memory.space and memory.contains(held.start):
            found.setdefault((held.start, held.bytes), held)
    return list(found.values())


def _tensors() -> Iterator[torch.Tensor]:
    """Every live tensor that the interpreter knows; none in a process that never imported torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for thing in _live(torch.Tensor):
        if thing.device.type != "meta":
            yield thing


def _live(*kinds: type) -> list[Any]:
    """Every object of those types, or of types derived from them, that the garbage collector knows.

    Told by the type alone: `isinstance` would ask lazy proxies for their class and wake them up. There are hundreds of
    thousands of objects, so each distinct type is asked once, and what is done for every object is done in C.
    """
    things = gc.get_objects()
    types = [*map(type, things)]
    wanted = {kind for kind in set(types) if issubclass(kind, kinds)}
    return [*compress(things, map(wanted.__contains__, types))]


@dataclass(frozen=True)
class _ViewReference:
    tensor: weakref.ref[torch.Tensor]

    def expired(self) -> bool:
        return self.tensor() is None


def _remember_view(tensor: torch.Tensor) -> Remembered:
    space = "host" if tensor.device.type == "cpu" else str(tensor.device)
    reference = _ViewReference(weakref.ref(tensor))
    return Remembered(space, tensor.data_ptr(), tensor.numel() * tensor.element_size(), reference)


def take(ranges: Ranges, book: StorageBook) -> Census:
    """The census now: live bytes by owner, evidence by role, and what nobody explains."""
    found = scan(ranges)
    known: dict[tuple[str, int], int] = {}
    for held in book.baseline:
        if held.alive:
            known[(held.space, held.start)] = held.bytes
    roles: dict[str, list[tuple[int, int]]] = {role: [] for role in book.evidence}
    for role, holds in book.evidence.items():
        for held in holds:
            if held.alive and held.space == "host":
                roles[role].append((held.start, held.start + held.bytes))
            if held.alive:
                known[(held.space, held.start)] = max(held.bytes, known.get((held.space, held.start), 0))
    owners: dict[str, int] = {}
    explained: set[tuple[str, int]] = set()
    for memory in ranges:
        inside = found.within(memory)
        explained.update((live.space, live.storage_start) for live in inside)
        occupied = spans(memory, inside)
        if memory.owner.startswith(EVIDENCE_PREFIX):
            roles.setdefault(memory.owner.removeprefix(EVIDENCE_PREFIX), []).extend(occupied)
        else:
            owners[memory.owner] = owners.get(memory.owner, 0) + total(occupied)
    rest: dict[tuple[str, int], LiveTensor] = {}
    for live in found.tensors:
        key = (live.space, live.storage_start)
        if key not in explained and live.storage_bytes > known.get(key, 0):
            rest[key] = live
    method = "storages of live tensors by address, once each, new since the baseline"
    host = [live for live in rest.values() if live.space == "host"]
    device = [live for live in rest.values() if live.space != "host"]
    return Census(
        by_owner={owner: measured(count, "bytes", method) for owner, count in owners.items()},
        unowned_host_bytes=_sum(host, known, method),
        unowned_device_bytes=_sum(device, known, method),
        unowned_host_storages=measured(
            len(host),
            "storages",
            method,
            detail=f"{found.unreadable} tensors have no plain storage" if found.unreadable else None,
        ),
        evidence_host_by_role={
            role: measured(total(union(occupied)), "bytes", method) for role, occupied in roles.items()
        },
    )


def _sum(found: Sequence[LiveTensor], known: dict[tuple[str, int], int], method: str) -> Measurement:
    """Bytes of those storages; one that was known and has grown counts by its growth."""
    count = sum(live.storage_bytes - known.get((live.space, live.storage_start), 0) for live in found)
    largest = max(found, key=lambda live: live.storage_bytes, default=None)
    detail = None
    if largest is not None:
        what = f"{largest.dtype} {list(largest.shape)}" if largest.dtype else "a storage"
        detail = f"largest of {len(found)}: {what}, {largest.storage_bytes} bytes at {largest.start:#x}"
    return measured(count, "bytes", method, detail=detail)
