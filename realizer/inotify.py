"""The kernel's file notifications (inotify(7)), through the C library: opens and reads of files by their inodes.

Whoever opens a watched file, by whichever name or language, an event comes; not by whom. Equal events one after another
are merged by the kernel, so counts are lower bounds; that is also why closings are asked for.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_IN_ACCESS, _IN_OPEN, _IN_CLOSE = 0x1, 0x20, 0x8 | 0x10
_IN_UNMOUNT, _IN_OVERFLOW, _IN_IGNORED = 0x2000, 0x4000, 0x8000
_EVENT = struct.Struct("iIII")
"""struct inotify_event without its name: wd, mask, cookie, len."""
_libc = ctypes.CDLL(None, use_errno=True)

FileId = tuple[int, int]
"""Device and inode."""


@dataclass
class Batch:
    """What came since the last look, by file."""

    opens: Counter[FileId] = field(default_factory=Counter)
    reads: Counter[FileId] = field(default_factory=Counter)


class Inotify:
    """One notification queue. `problems` says what could not be watched; `overflowed` that events were lost."""

    def __init__(self) -> None:
        self.descriptor = -1
        self.problems: list[str] = []
        self.overflowed = False
        self._files: dict[int, tuple[FileId, str]] = {}

    @property
    def watching(self) -> bool:
        """At least one file is watched."""
        return self.descriptor >= 0 and bool(self._files)

    def watch(self, file: FileId, path: Path, name: str, *, reads: bool) -> None:
        """Watch opens of the file, and reads where asked; a file that is watched already gets the new choice."""
        if not self._open():
            return
        mask = _IN_OPEN | _IN_CLOSE | (_IN_ACCESS if reads else 0)
        number = _libc.inotify_add_watch(self.descriptor, os.fsencode(path), ctypes.c_uint32(mask))
        if number < 0:
            self._problem(f"inotify of {name}: {os.strerror(ctypes.get_errno())}")
        else:
            self._files[number] = (file, name)

    def _open(self) -> bool:
        if self.descriptor < 0:
            create = getattr(_libc, "inotify_init1", None)
            self.descriptor = create(os.O_NONBLOCK | os.O_CLOEXEC) if create is not None else -1
            if self.descriptor < 0:
                number = ctypes.get_errno() if create is not None else errno.ENOSYS
                self._problem(f"inotify: {os.strerror(number)}")
        return self.descriptor >= 0

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def drain(self) -> Batch:
        """Take every queued event."""
        batch = Batch()
        while self.descriptor >= 0:
            try:
                data = os.read(self.descriptor, 65536)
            except BlockingIOError:
                break
            except OSError as error:
                self._problem(f"inotify: {error.strerror}")
                break
            offset = 0
            while offset + _EVENT.size <= len(data):
                number, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                self._event(batch, number, mask)
        return batch

    def _event(self, batch: Batch, number: int, mask: int) -> None:
        if mask & _IN_OVERFLOW:
            self.overflowed = True
            return
        if number not in self._files:
            return
        file, name = self._files[number]
        if mask & (_IN_IGNORED | _IN_UNMOUNT):
            self._problem(f"inotify of {name}: the watch was lost with the file or its filesystem")
        batch.opens[file] += bool(mask & _IN_OPEN)
        batch.reads[file] += bool(mask & _IN_ACCESS)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
