"""Bringing checkpoint bytes into memory ranges: parallel positioned reads, scattered to their places, whole or streamed.

No file is ever mapped. Neighbours on disk are read by one `preadv`, in the files' order. In full form (`read`) it scatters
them into a staging range and `copy` carries that on; in streamed form (`stream`) they pass through a ring of slots, so that
no more than the ring is live in host memory, and go from there to wherever they belong. With digests on, every tensor is
hashed while its bytes are in the reader's hands, but for those that would keep everybody waiting.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from ledger.errors import CheckpointError, RealizationFailed
from realizer import scatter
from realizer.adapter import Layout
from realizer.checkpoint import HASH_CHUNK, Checkpoint, CheckpointShard, Progress, collector_paused
from realizer.memory import MemoryRange, PrivateRange, SharedRange
from realizer.memory_range import round_up
from realizer.procfs import PAGE
from realizer.scatter import (
    READ_PARTS,
    Item,
    Part,
    Piece,
    Pieces,
    Runs,
    Window,
    Windows,
    alternating,
    cut_windows,
    pieces_of,
    spread_windows,
)

if TYPE_CHECKING:
    from realizer.device_copies import DeviceCopies

MIB = 1024 * 1024
DEVICE_SLOT_BYTES = 8 * MIB
"""A ring slot on the way to a device, where the window allows eight: what is done once a window costs more than the wait for
a copy (one H200, 16 threads, a ring of 256 MiB: 13 GB/s with slots of 2 MiB, 21 with 4, 38 with 8, 41 with 16)."""

HOST_SLOT_BYTES = MIB
"""A ring slot between host ranges: small enough that what was read is copied on while still cached."""

GATHER_BYTES = 256
"""Tensors smaller than this on average are moved together after one read, not scattered by the read itself."""

APART_BYTES = 64 * MIB
"""Only tensors longer than this are worth a hash of their own, apart from the readers."""


class Loader:
    """Reads byte ranges of one checkpoint into memory ranges.

    With `digests` every tensor is hashed as it is read. One that is longer than a reader's even share of the work would
    keep all of them waiting, since a hash takes a tensor's bytes one after another: its file is read once more for it by a
    thread of its own, which may outlast the call. Files are open only while they are read; one that changed since its
    header was read is refused.
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
        self.progress = progress
        self._digests: dict[str, str] = {}
        self._apart: list[tuple[str, Future[str]]] = []

    @property
    def digests(self) -> dict[str, str]:
        """`sha256:` of every tensor read with digests on, by checkpoint key. Waits for those still being hashed.

        Raises CheckpointError when one of their files cannot be read any more.
        """
        while self._apart:
            key, digest = self._apart[0]
            self._digests[key] = digest.result()
            self._apart.pop(0)
        return self._digests

    def read(self, layout: Layout, memory: MemoryRange) -> int:
        """Fill a host range with the layout's tensors, byte for byte as on disk; returns the bytes read."""
        _held("read(layout, memory)", layout, memory)
        return self.read_pieces(pieces_of(layout, self.checkpoint), memory)

    def read_pieces(self, pieces: Pieces | Sequence[Piece], memory: MemoryRange) -> int:
        """Fill places of a host range. Raises CheckpointError for absent tensors and files that end early or changed."""
        if isinstance(memory, SharedRange):  # which fills faster from a buffer than by reading into its mapping
            ring = PrivateRange(self.threads * HOST_SLOT_BYTES, owner="evidence:reader")
            try:
                return self.stream_pieces(pieces, ring, memory)
            finally:
                ring.free()
        with collector_paused():
            cut = cut_windows(self._within(pieces, memory.length), scatter.READ_BYTES, READ_PARTS)
        with self._session("reading", cut) as session:

            def fill(window: Window, _: None) -> None:
                runs = cut.runs(window)
                start, end = int(runs.target.min()), int((runs.target + runs.length).max())
                if end - start <= 2 * scatter.READ_BYTES:  # not when its tensors go far apart
                    _fault_in(memory, start, end - start)
                with memory.view() as view:
                    session.scatter(window, view)
                    session.digest(window, lambda part: view[part.target : part.target + part.length])

            session.each_with(fill, cut.windows, lambda: None)
        return session.total

    def stream(self, layout: Layout, ring: MemoryRange, target: MemoryRange) -> int:
        """Bring the layout's tensors into `target` (host or device) through `ring`; returns the bytes that passed."""
        _held("stream(layout, ring, target)", layout, ring, target)
        _from_host("stream(layout, ring, target)", ring)
        return self.stream_pieces(pieces_of(layout, self.checkpoint), ring, target)

    def stream_pieces(self, pieces: Pieces | Sequence[Piece], ring: MemoryRange, target: MemoryRange) -> int:
        """Bring pieces into `target` through the slots of `ring`: windows of the files, each read whole, then copied on.

        Bytes of the target that belong to no piece are left as they are.
        """
        slots, slot_bytes = self._slots(ring, target)
        with collector_paused():
            cut = cut_windows(self._within(pieces, target.length), slot_bytes)
        windows: Sequence[Window]
        if self.verify:
            windows = spread_windows(cut)
        else:
            windows = _taking_turns(cut.windows, target, lambda window: int(cut.target[window.parts.start]))
        free: SimpleQueue[_Slot] = SimpleQueue()
        for number in range(slots):
            free.put(_Slot(number * slot_bytes))
        send = _copies(ring, target)
        with self._session("streaming", cut) as session:

            def carry(window: Window, slot: _Slot) -> None:
                try:
                    send.wait(slot)
                    with ring.view() as view, view[slot.offset : slot.offset + window.length] as part:
                        session.read(window, part)
                        send.copy(slot, cut.runs(window))
                        session.digest(window, lambda p: part[p.at : p.at + p.length])
                finally:
                    free.put(slot)

            # Windows get their slots in their own order: no part of a tensor waits for a slot while a later part holds
            # one and waits for its turn to be hashed.
            try:
                session.each_with(carry, windows, free.get)
            finally:
                send.finish()
        return session.total

    def _slots(self, ring: MemoryRange, target: MemoryRange) -> tuple[int, int]:
        """(number, bytes) of the slots that the whole ring is cut into, in whole pages."""
        if target.space == "host":
            slots = max(1, ring.length // HOST_SLOT_BYTES)
        else:
            slots = max(1, ring.length // min(DEVICE_SLOT_BYTES, max(MIB, ring.length // 8)))
        each = ring.length // slots
        return slots, each // PAGE * PAGE or each

    def copy(self, layout: Layout, source: MemoryRange, target: MemoryRange) -> int:
        """Carry the layout's bytes from a host range to the same places of another range; returns the tensors' bytes.

        Whatever lies there is carried on, padding and derived places too (`read` and `stream` refuse those): no checkpoint
        key is looked at. Raises RealizationFailed for a source that is not in host memory, and for a range too short.
        """
        _held("copy(layout, source, target)", layout, source, target)
        _from_host("copy(layout, source, target)", source)
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
            _put(target, at, source.start + at, min(HOST_SLOT_BYTES, length - at))

        starts = _taking_turns(range(0, length, HOST_SLOT_BYTES), target, int)
        with ThreadPoolExecutor(self.threads, thread_name_prefix="copy") as pool:
            list(pool.map(carry, starts))
        return layout.bytes

    def _within(self, pieces: Pieces | Sequence[Piece], length: int) -> Pieces:
        """The pieces by columns. Raises RealizationFailed for one outside a range of `length` bytes."""
        columns = pieces if isinstance(pieces, Pieces) else Pieces.of(pieces, self.checkpoint.tensors)
        outside = ((columns.offset < 0) | (columns.offset + columns.length > length)).nonzero()[0]
        if len(outside):
            first = int(outside[0])
            start, end = int(columns.offset[first]), int(columns.offset[first] + columns.length[first])
            raise RealizationFailed(
                f"tensor {columns.keys[first]!r} would lie at bytes {start} to {end} of a range of {length}"
            )
        return columns

    @contextmanager
    def _session(self, what: str, cut: Windows) -> Iterator[_Session]:
        names = {window.file for window in cut.windows}
        shards = {shard.name: shard for shard in self.checkpoint.files if shard.name in names}
        hashes = self._hashes(cut, shards) if self.verify else None
        with ExitStack() as stack:
            descriptors = {name: stack.enter_context(_opened(shard)) for name, shard in shards.items()}
            session = _Session(what, descriptors, self.threads, cut, hashes, self.progress)
            yield session
        if hashes is not None:
            self._digests.update(hashes.digests())

    def _hashes(self, cut: Windows, shards: dict[str, CheckpointShard]) -> _Hashes:
        """Hashes of all pieces; those that are to be hashed apart are begun at once."""
        pieces, counts = cut.pieces, cut.parts_of_pieces()
        share = max(APART_BYTES, pieces.bytes // self.threads)
        apart = ((counts > 1) & (pieces.length > share)).nonzero()[0].tolist()
        if apart:
            pool = ThreadPoolExecutor(len(apart), thread_name_prefix="digest")
            for number in apart:
                start, length = int(pieces.start[number]), int(pieces.length[number])
                shard = shards[pieces.files[int(pieces.file[number])]]
                self._apart.append((pieces.keys[number], pool.submit(_digest_of, shard, start, length)))
            pool.shutdown(wait=False)
        return _Hashes(pieces.keys, counts.tolist(), set(apart))


def _held(call: str, layout: object, *ranges: object) -> None:
    """Raises RealizationFailed when the arguments of a call are not what its name for them says."""
    if not isinstance(layout, Layout) or not all(hasattr(given, "space") for given in ranges):
        given = ", ".join(type(each).__name__ for each in (layout, *ranges))
        raise RealizationFailed(
            f"loader.{call} was given {given}", "a Layout comes first, then the ranges that the engine handed out"
        )


def _from_host(call: str, memory: MemoryRange) -> None:
    if memory.space != "host":
        raise RealizationFailed(
            f"loader.{call} was given the range of {memory.owner}, in {memory.space}, to take bytes from",
            "they come out of host memory: are the ranges swapped?",
        )


def _taking_turns(items: Sequence[Item], target: MemoryRange, offset: Callable[[Item], int]) -> Sequence[Item]:
    """The items in the order in which threads write them: a shared range's files take turns, as each lets one writer in.

    `offset` gives the byte of the target at which an item begins.
    """
    if not isinstance(target, SharedRange):
        return items
    return alternating(items, lambda item: target.file_of(offset(item)))


def _copies(ring: MemoryRange, target: MemoryRange) -> _HostCopies | DeviceCopies:
    if target.space == "host":
        return _HostCopies(ring, target)
    from realizer.device_copies import DeviceCopies

    return DeviceCopies(ring, target)


def _digest_of(shard: CheckpointShard, start: int, length: int) -> str:
    """`sha256:` of a span of the file, read for it alone."""
    digest, position, end = hashlib.sha256(), start, start + length
    buffer = memoryview(bytearray(min(HASH_CHUNK, length)))
    with _opened(shard) as descriptor:
        while position < end:
            part = buffer[: min(len(buffer), end - position)]
            _read_fully(descriptor, shard.name, position, [part])
            digest.update(part)
            position += len(part)
    return f"sha256:{digest.hexdigest()}"


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
        cut: Windows,
        hashes: _Hashes | None,
        progress: Progress | None,
    ) -> None:
        self.what = what
        self.total = cut.pieces.bytes
        self._cut = cut
        self._descriptors = descriptors
        self._threads = threads
        self._hashes = hashes
        self._progress = progress
        self._lock = Lock()
        self._done = 0
        self._failure: BaseException | None = None
        if progress:
            progress(what, 0, self.total)

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

    def read(self, window: Window, part: memoryview) -> None:
        """Read the window whole, what lies between its tensors included."""
        _read_fully(self._descriptors[window.file], window.file, window.position, [part])
        self._advance(window)

    def scatter(self, window: Window, view: memoryview) -> None:
        """Read the window's tensors to their places in the target; what lies between them goes nowhere."""
        runs = self._cut.runs(window)
        if len(runs.at) > 1 and int(runs.length.sum()) < GATHER_BYTES * len(runs.at):
            self._gather(window, runs, view)
            return
        scrap = memoryview(bytearray(scatter.SKIP_BYTES))
        buffers: list[memoryview] = []
        position = 0
        try:
            for at, target, length in zip(*(column.tolist() for column in runs), strict=True):
                if at > position:
                    buffers.append(scrap[: at - position])
                buffers.append(view[target : target + length])
                position = at + length
            _read_fully(self._descriptors[window.file], window.file, window.position, buffers)
        finally:
            for buffer in buffers:
                buffer.release()
        self._advance(window)

    def _gather(self, window: Window, runs: Runs, view: memoryview) -> None:
        """The same for many small tensors: read what they lie in, and move their bytes all at once."""
        whole = np.empty(window.length, np.uint8)
        with whole.data as part:
            _read_fully(self._descriptors[window.file], window.file, window.position, [part])
        ends = np.cumsum(runs.length)
        step = np.arange(int(ends[-1]))
        np.frombuffer(view, np.uint8)[np.repeat(runs.target - ends + runs.length, runs.length) + step] = whole[
            np.repeat(runs.at - ends + runs.length, runs.length) + step
        ]
        self._advance(window)

    def digest(self, window: Window, of: Callable[[Part], memoryview]) -> None:
        """Hash the window's tensors, or their parts, whose bytes `of` gives."""
        if self._hashes is not None:
            for part in self._cut.parts(window):
                with of(part) as data:
                    self._hashes.update(part, data)

    def _advance(self, window: Window) -> None:
        if self._progress:
            with self._lock:
                self._done += int(self._cut.runs(window).length.sum())
                self._progress(self.what, self._done, self.total)


def _read_fully(descriptor: int, name: str, position: int, buffers: list[memoryview]) -> None:
    """Fill the buffers from `position` on. Raises CheckpointError when the file ends before they are full."""
    end = position + sum(len(buffer) for buffer in buffers)
    rest = list(buffers)
    while position < end:
        try:
            count = os.preadv(descriptor, rest, position)
        except OSError as error:
            rest.clear()
            raise CheckpointError(
                f"checkpoint file {name!r} cannot be read at byte {position}: {error.strerror}",
                "is the disk well?",
            ) from error
        if count == 0:
            rest.clear()  # a view kept by the traceback would keep the range in use
            raise CheckpointError(
                f"checkpoint file {name!r} ended at byte {position} while it was read", "was it cut meanwhile?"
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
    """SHA-256 of every piece: of one in parts, part by part in the tensor's order whichever thread has the part.

    `parts` is how many parts each piece has, none if it is empty; `apart` are pieces that others hash.
    """

    def __init__(self, keys: Sequence[str], parts: list[int], apart: set[int]) -> None:
        self._keys = keys
        self._parts = parts
        self._apart = apart
        self._found: dict[str, str] = {}
        self._hash: dict[int, Any] = {}
        self._reached: dict[int, int] = {}
        for number, count in enumerate(parts):
            if number in apart:
                continue
            if count == 0:
                self._found[keys[number]] = _sha256(b"")
            elif count > 1:
                self._hash[number], self._reached[number] = hashlib.sha256(), 0
        self._turn = Condition()
        self._stopped = False

    def update(self, part: Part, data: memoryview) -> None:
        """Hash a part, once those before it have been."""
        piece = part.piece
        if self._parts[piece] == 1:
            self._found[self._keys[piece]] = _sha256(data)
            return
        if piece in self._apart:
            return
        with self._turn:
            self._turn.wait_for(lambda: self._stopped or self._reached[piece] == part.within)
            if self._stopped:
                raise RealizationFailed("loading stopped: another reader failed")
        self._hash[piece].update(data)
        with self._turn:
            self._reached[piece] += part.length
            self._turn.notify_all()

    def stop(self) -> None:
        """Wake every waiting reader: the part that they wait for will not come."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def digests(self) -> dict[str, str]:
        """By key, of all but those hashed apart; complete once every part was hashed."""
        return self._found | {self._keys[piece]: f"sha256:{found.hexdigest()}" for piece, found in self._hash.items()}


class _Slot:
    """A part of the ring; `event` is set while a device copy out of it may be running."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.event: Any = None


class _HostCopies:
    """Copies out of the ring into a host range; done when `copy` returns. Only tensors' bytes are moved."""

    def __init__(self, ring: MemoryRange, target: MemoryRange) -> None:
        self._ring, self._target = ring, target

    def wait(self, slot: _Slot) -> None:
        """Nothing is under way."""

    def copy(self, slot: _Slot, runs: Runs) -> None:
        """Move runs of the slot."""
        for at, target, length in zip(*(column.tolist() for column in runs), strict=True):
            _put(self._target, target, self._ring.start + slot.offset + at, length)

    def finish(self) -> None:
        """Nothing is under way."""


def _fault_in(memory: MemoryRange, start: int, length: int) -> None:
    """Have the kernel bring the pages of a span in together, which costs less than a fault for each as it is written."""
    if isinstance(memory, (PrivateRange, SharedRange)):
        first = start // PAGE * PAGE
        memory.populate(first, min(round_up(start + length, PAGE), memory.length) - first)


def _put(target: MemoryRange, at: int, source: int, length: int) -> None:
    """Copy bytes from an address into a host range, both checked by the callers, without holding the interpreter lock."""
    if length >= PAGE:
        if isinstance(target, SharedRange) and target.write(at, source, length):
            return
        _fault_in(target, at, length)
    ctypes.memmove(target.start + at, source, length)


def _inside(length: int, *limits: int) -> None:
    if any(length > limit for limit in limits):
        raise RealizationFailed(f"a layout of {length} bytes does not fit ranges of {list(limits)} bytes")


def _sha256(data: bytes | memoryview) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
