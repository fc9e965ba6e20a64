"""Bringing checkpoint bytes into memory ranges: parallel positioned reads, scattered to their places, whole or streamed.

No file is ever mapped. Neighbours on disk are read by one `preadv` that scatters them to wherever they belong. In full
form (`read`) a staging range takes the checkpoint's bytes and `copy` carries them on; in streamed form (`stream`) they
pass through a ring of slots, so that no more than the ring is live in host memory. With digests on, every tensor is
hashed while its bytes are in the reader's hands.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from threading import Condition, Lock
from typing import TYPE_CHECKING

from ledger.errors import CheckpointError, RealizationFailed
from realizer.adapter import Layout, TensorPlace
from realizer.checkpoint import Checkpoint, CheckpointShard, Progress, absent, collector_paused
from realizer.memory import MemoryRange, PrivateRange, SharedRange
from realizer.procfs import PAGE
from realizer.scatter import (
    READ_BYTES,
    SKIP_BYTES,
    Piece,
    Segment,
    Window,
    cut_windows,
    group_reads,
    pieces_of,
    spread_windows,
    tensor_spans,
)

if TYPE_CHECKING:
    import torch

MIB = 1024 * 1024
DEVICE_SLOT_BYTES = 16 * MIB
"""A ring slot on the way to a device, where the window allows: enough for a copy to run at the bus's rate."""

HOST_SLOT_BYTES = MIB
"""A ring slot between host ranges: small enough that what was read is copied on while still cached."""


class Loader:
    """Reads byte ranges of one checkpoint into memory ranges.

    `digests` fills with `sha256:` per checkpoint key as tensors are read, when asked for. Files are open only while a
    call runs; one that changed since its header was read is refused.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        threads: int | None = None,
        digests: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.threads = threads or min(16, os.cpu_count() or 1)
        self.verify = digests
        self.digests: dict[str, str] = {}
        self.progress = progress

    def read(self, layout: Layout, memory: MemoryRange) -> int:
        """Fill a host range with the layout's tensors, byte for byte as on disk; returns the bytes read."""
        return self.read_pieces(pieces_of(layout, self.checkpoint), memory)

    def read_pieces(self, pieces: Sequence[Piece], memory: MemoryRange) -> int:
        """Fill places of a host range. Raises CheckpointError for absent tensors and files that end early or changed."""
        with collector_paused():
            segments = self._segments(pieces, memory.length)
            batches = list(group_reads(segments))
        with self._session("reading", pieces, segments) as session:

            def fill(batch: list[Segment]) -> None:
                start = min(segment.target for segment in batch)
                end = max(segment.target + segment.length for segment in batch)
                if end - start <= 2 * READ_BYTES:  # not when its tensors go far apart
                    _fault_in(memory, start, end - start)
                with memory.view() as view:
                    session.read(batch, view, 0)

            session.each(fill, batches)
        return session.total

    def stream(self, layout: Layout, ring: MemoryRange, target: MemoryRange) -> int:
        """Bring the layout's tensors into `target` (host or device) through `ring`; returns the bytes that passed."""
        return self.stream_pieces(pieces_of(layout, self.checkpoint), ring, target)

    def stream_pieces(self, pieces: Sequence[Piece], ring: MemoryRange, target: MemoryRange) -> int:
        """Bring pieces into `target` through the slots of `ring`: windows of the target, each read, then copied whole.

        Bytes of a window that belong to no piece are left as they are on the host, and undefined on a device.
        """
        slots, slot_bytes = self._slots(ring, target)
        with collector_paused():
            segments = self._segments(pieces, target.length)
            windows = list(cut_windows(segments, slot_bytes))
        if self.verify:
            windows = spread_windows(windows)
        free: SimpleQueue[_Slot] = SimpleQueue()
        for number in range(slots):
            free.put(_Slot(number * slot_bytes))
        send = _DeviceCopies(ring, target) if target.space != "host" else _HostCopies(ring, target)
        with self._session("streaming", pieces, segments) as session:

            def carry(window: Window, slot: _Slot) -> None:
                try:
                    send.wait(slot)
                    with ring.view() as view, view[slot.offset : slot.offset + slot_bytes] as part:
                        for batch in window.batches:
                            session.read(batch, part, window.start)
                    send.copy(slot, window)
                finally:
                    free.put(slot)

            # Windows get their slots in their own order: no part of a tensor waits for a slot while a later part holds
            # one and waits for its turn to be hashed.
            session.each_with(carry, windows, free.get)
            send.finish()
        return session.total

    def _slots(self, ring: MemoryRange, target: MemoryRange) -> tuple[int, int]:
        """(number, bytes) of the slots that the whole ring is cut into, in whole pages; to a device at most two a thread."""
        if target.space == "host":
            slots = max(1, ring.length // HOST_SLOT_BYTES)
        else:
            slots = max(1, min(2 * self.threads, ring.length // DEVICE_SLOT_BYTES or ring.length // MIB))
        most = ring.length // slots
        return slots, most // PAGE * PAGE or most

    def copy(self, layout: Layout, source: MemoryRange, target: MemoryRange) -> int:
        """Carry the layout's bytes from a host range to the same places of another range; returns the tensors' bytes."""
        length = layout.length
        _inside(length, source.length, target.length)
        if target.space != "host":
            import torch

            there = target.tensor(torch.uint8, (length,))
            here = source.tensor(torch.uint8, (length,))
            there.copy_(here)
            del there, here
            return layout.bytes

        def carry(at: int) -> None:
            count = min(HOST_SLOT_BYTES, length - at)
            _fault_in(target, at, count)
            _move(target.start + at, source.start + at, count)

        with ThreadPoolExecutor(self.threads, thread_name_prefix="copy") as pool:
            list(pool.map(carry, range(0, length, HOST_SLOT_BYTES)))
        return layout.bytes

    def _segments(self, pieces: Sequence[Piece], length: int) -> list[Segment]:
        """One segment a piece, none for empty tensors. Raises RealizationFailed for a piece outside the range."""
        segments = []
        tensors = self.checkpoint.tensors
        for number, (key, offset) in enumerate(pieces):
            entry = tensors.get(key)
            if entry is None:
                raise absent(key)
            _, _, _, file, start, end = entry
            if offset < 0 or offset + end - start > length:
                raise RealizationFailed(
                    f"tensor {key!r} would lie at bytes {offset} to {offset + end - start} of a range of {length}"
                )
            if start < end:
                segments.append(Segment(file, start, offset, end - start, number, 0))
        return segments

    @contextmanager
    def _session(self, what: str, pieces: Sequence[Piece], segments: list[Segment]) -> Iterator[_Session]:
        names = {segment.file for segment in segments}
        hashes = _Hashes(pieces, segments) if self.verify else None
        with ExitStack() as stack:
            descriptors = {
                shard.name: stack.enter_context(_opened(shard))
                for shard in self.checkpoint.files
                if shard.name in names
            }
            session = _Session(what, descriptors, self.threads, sum(s.length for s in segments), hashes, self.progress)
            yield session
        if hashes is not None:
            self.digests.update(hashes.digests())


@contextmanager
def _opened(shard: CheckpointShard) -> Iterator[int]:
    """A descriptor of the shard. Raises CheckpointError when it is gone or no longer the file whose header was read."""
    try:
        descriptor = os.open(shard.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint file {shard.name!r} cannot be opened: {error.strerror}", "was it moved meanwhile?"
        ) from error
    try:
        status = os.fstat(descriptor)
        if (status.st_size, status.st_ino, status.st_mtime_ns) != (shard.size, shard.inode, shard.modified_ns):
            raise CheckpointError(
                f"checkpoint file {shard.name!r} changed since its header was read", "let nothing write to it meanwhile"
            )
        yield descriptor
    finally:
        os.close(descriptor)


class _Session:
    """One call's open files, threads, progress and hashes; the first failure stops the rest."""

    def __init__(
        self,
        what: str,
        descriptors: dict[str, int],
        threads: int,
        total: int,
        hashes: _Hashes | None,
        progress: Progress | None,
    ) -> None:
        self.what = what
        self.total = total
        self._descriptors = descriptors
        self._threads = threads
        self._hashes = hashes
        self._progress = progress
        self._lock = Lock()
        self._done = 0
        self._failure: BaseException | None = None
        if progress:
            progress(what, 0, total)

    def each(self, work: Callable[[list[Segment]], None], items: Sequence[list[Segment]]) -> None:
        """Do `work` on every item, in order of starting, on the session's threads."""
        self.each_with(lambda item, _: work(item), items, lambda: None)

    def each_with(self, work: Callable, items: Sequence, take: Callable) -> None:
        """Do `work(item, take())` on every item, in order of starting. The first failure stops the rest and is raised."""
        remaining = iter(items)
        turn = Lock()

        def worker() -> None:
            while self._failure is None:
                with turn:
                    item = next(remaining, None)
                    if item is None:
                        return
                    taken = take()
                try:
                    work(item, taken)
                except BaseException as error:  # noqa: BLE001 - carried to the calling thread and raised there
                    self._stop(error)

        pool = ThreadPoolExecutor(self._threads, thread_name_prefix=self.what)
        try:
            wait([pool.submit(worker) for _ in range(min(self._threads, len(items)))])
        except BaseException as error:  # an interrupt: no reader may outlive the range that it writes to
            self._stop(error)
            raise
        finally:
            pool.shutdown(wait=True)
        if self._failure is not None:
            raise self._failure

    def _stop(self, error: BaseException) -> None:
        self._failure = self._failure or error
        if self._hashes is not None:
            self._hashes.stop()

    def read(self, batch: list[Segment], view: memoryview, base: int) -> None:
        """Read one batch to `target - base` of the view, and hash it in turn."""
        scrap = bytearray(SKIP_BYTES)
        buffers: list[memoryview] = []
        position = batch[0].position
        try:
            for segment in batch:
                if segment.position > position:
                    buffers.append(memoryview(scrap)[: segment.position - position])
                buffers.append(view[segment.target - base : segment.target - base + segment.length])
                position = segment.position + segment.length
            _read_fully(self._descriptors[batch[0].file], batch[0], buffers)
            if self._hashes is not None:
                for segment in batch:
                    with view[segment.target - base : segment.target - base + segment.length] as part:
                        self._hashes.update(segment, part)
        finally:
            for buffer in buffers:
                buffer.release()
        with self._lock:
            self._done += sum(segment.length for segment in batch)
            if self._progress:
                self._progress(self.what, self._done, self.total)


def _read_fully(descriptor: int, first: Segment, buffers: list[memoryview]) -> None:
    """Fill the buffers from `first.position` on. Raises CheckpointError when the file ends before they are full."""
    position, wanted = first.position, sum(len(buffer) for buffer in buffers)
    end = position + wanted
    rest = list(buffers)
    while position < end:
        try:
            count = os.preadv(descriptor, rest, position)
        except OSError as error:
            rest.clear()
            raise CheckpointError(
                f"checkpoint file {first.file!r} cannot be read at byte {position}: {error.strerror}",
                "is the disk well?",
            ) from error
        if count == 0:
            rest.clear()  # a view kept by the traceback would keep the range in use
            raise CheckpointError(
                f"checkpoint file {first.file!r} ended at byte {position} while it was read", "was it cut meanwhile?"
            )
        position += count
        if position == end:
            return
        whole = 0
        while count >= len(rest[whole]):
            count -= len(rest[whole])
            whole += 1
        rest = rest[whole:]
        rest[0] = rest[0][count:]


class _Hashes:
    """SHA-256 of every piece, updated part by part in the tensor's order whichever thread has the part."""

    def __init__(self, pieces: Sequence[Piece], segments: list[Segment]) -> None:
        self._keys = [piece.key for piece in pieces]
        self._hash = {number: hashlib.sha256() for number in range(len(pieces))}
        self._reached = {segment.piece: 0 for segment in segments}
        self._turn = Condition()
        self._stopped = False

    def update(self, segment: Segment, part: memoryview) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._stopped or self._reached[segment.piece] == segment.within)
            if self._stopped:
                raise RealizationFailed("loading stopped: another reader failed")
        self._hash[segment.piece].update(part)
        with self._turn:
            self._reached[segment.piece] += segment.length
            self._turn.notify_all()

    def stop(self) -> None:
        """Wake every waiting reader: the part that they wait for will not come."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def digests(self) -> dict[str, str]:
        return {key: f"sha256:{self._hash[number].hexdigest()}" for number, key in enumerate(self._keys)}


class _Slot:
    """A part of the ring; `event` is set while a device copy out of it may be running."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.event: torch.cuda.Event | None = None


class _HostCopies:
    """Copies out of the ring into a host range; done when `copy` returns. Only tensors' bytes are moved."""

    def __init__(self, ring: MemoryRange, target: MemoryRange) -> None:
        self._ring, self._target = ring, target

    def wait(self, slot: _Slot) -> None:
        """Nothing is under way."""

    def copy(self, slot: _Slot, window: Window) -> None:
        _fault_in(self._target, window.start, window.length)
        for start, length in tensor_spans(window):
            here = self._ring.start + slot.offset + start - window.start
            _move(self._target.start + start, here, length)

    def finish(self) -> None:
        """Nothing is under way."""


class _DeviceCopies:
    """Asynchronous copies out of the ring into a device range, on a stream of their own."""

    def __init__(self, ring: MemoryRange, target: MemoryRange) -> None:
        import torch

        self._torch, self._ring, self._target = torch, ring, target
        self._stream = torch.cuda.Stream(device=target.device)

    def wait(self, slot: _Slot) -> None:
        if slot.event is not None:
            slot.event.synchronize()

    def copy(self, slot: _Slot, window: Window) -> None:
        torch = self._torch
        with torch.cuda.stream(self._stream):
            there = self._target.tensor(torch.uint8, (window.length,), window.start)
            here = self._ring.tensor(torch.uint8, (window.length,), slot.offset)
            there.copy_(here, non_blocking=True)
            slot.event = slot.event or torch.cuda.Event()
            slot.event.record(self._stream)
            del there, here

    def finish(self) -> None:
        self._stream.synchronize()


def _fault_in(memory: MemoryRange, start: int, length: int) -> None:
    """Have the kernel bring the pages of a span in together, which costs less than a fault for each as it is written."""
    if isinstance(memory, (PrivateRange, SharedRange)):
        first = start // PAGE * PAGE
        memory.populate(first, min(-(-(start + length) // PAGE) * PAGE, memory.length) - first)


def _move(target: int, source: int, length: int) -> None:
    """Copy bytes between addresses that the callers checked; releases the interpreter lock while it does."""
    ctypes.memmove(target, source, length)


def _inside(length: int, *limits: int) -> None:
    if any(length > limit for limit in limits):
        raise RealizationFailed(f"a layout of {length} bytes does not fit ranges of {list(limits)} bytes")


def range_digests(layout: Layout, memory: MemoryRange, threads: int | None = None) -> dict[str, str]:
    """`sha256:` of each place's bytes as they lie in the range now, by the place's name; read back from a device."""

    def digest(places: Sequence[TensorPlace]) -> list[tuple[str, str]]:
        if memory.space != "host":
            return [(place.name, _sha256(_read_back(memory, place))) for place in places]
        with memory.view() as view:
            found = []
            for place in places:
                with view[place.offset : place.offset + place.bytes] as part:
                    found.append((place.name, _sha256(part)))
            return found

    largest_first = sorted(layout.places, key=lambda place: -place.bytes)
    with ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="digest") as pool:
        return dict(pair for pairs in pool.map(digest, _shared_out(largest_first)) for pair in pairs)


def _shared_out(places: Sequence[TensorPlace]) -> Iterator[list[TensorPlace]]:
    """The places in groups of about READ_BYTES, so that small ones are not handed out one by one."""
    group: list[TensorPlace] = []
    size = 0
    for place in places:
        group.append(place)
        size += place.bytes
        if size >= READ_BYTES or len(group) == 1024:
            yield group
            group, size = [], 0
    if group:
        yield group


def _read_back(memory: MemoryRange, place: TensorPlace) -> bytes:
    import torch

    if not place.bytes:
        return b""
    return memory.tensor(torch.uint8, (place.bytes,), place.offset).cpu().numpy().tobytes()


def _sha256(data: bytes | memoryview) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
