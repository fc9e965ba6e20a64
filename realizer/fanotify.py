"""The kernel's word on who opens a file (fanotify(7)), where it gives one: the process id beside each open.

A process without privileges is told its own id and 0 for every other's; one with CAP_SYS_ADMIN all ids. Events name
files by their handles, which name_to_handle_at(2) gives for a path. Where kernel or filesystem offer none of this, the
queue stays closed, `problem` says why, and opens stay without an opener.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

from realizer.inotify import FileId

OTHER_PROCESS = 0
"""The id that the kernel gives an unprivileged listener for any process but its own."""

_CLOEXEC, _NONBLOCK, _REPORT_FID = 0x1, 0x2, 0x200
_MARK_ADD, _OPEN, _OVERFLOW = 0x1, 0x20, 0x4000
_AT_FDCWD = -100
_EVENT = struct.Struct("IBBHQii")
"""struct fanotify_event_metadata: event_len, vers, reserved, metadata_len, mask, fd, pid."""
_INFO = struct.Struct("BBH8sIi")
"""struct fanotify_event_info_fid up to the handle's bytes: type, pad, len, filesystem id, handle_bytes, handle_type."""
_INFO_TYPE_FID = 1
_HANDLE_BYTES = 128
_libc = ctypes.CDLL(None, use_errno=True)


class _Handle(ctypes.Structure):
    """struct file_handle with room for MAX_HANDLE_SZ bytes."""

    _fields_ = (("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * _HANDLE_BYTES))


class OpenerQueue:
    """Who opened which of the watched files since the last look."""

    def __init__(self) -> None:
        self.descriptor = -1
        self.problem: str | None = None
        self._files: dict[tuple[int, bytes], FileId] = {}

    def watch(self, file: FileId, path: Path) -> None:
        """Have opens of the file reported. Failing is said by `problem`: the other means of the watch go on."""
        if self.problem is not None:
            return
        try:
            if self.descriptor < 0:
                flags = _CLOEXEC | _NONBLOCK | _REPORT_FID
                self.descriptor = _call("fanotify_init", ctypes.c_uint(flags), ctypes.c_uint(os.O_RDONLY))
            name = os.fsencode(path)
            handle, mount = _Handle(_HANDLE_BYTES, 0), ctypes.c_int()
            _call("name_to_handle_at", _AT_FDCWD, name, ctypes.byref(handle), ctypes.byref(mount), 0)
            add, mask = ctypes.c_uint(_MARK_ADD), ctypes.c_uint64(_OPEN)
            _call("fanotify_mark", self.descriptor, add, mask, _AT_FDCWD, name)
            self._files[(handle.type, bytes(handle.handle[: handle.bytes]))] = file
        except OSError as error:
            self.problem = f"{error.filename}: {error.strerror}"
            self.close()

    def drain(self) -> list[tuple[FileId, int]]:
        """(file, process id) of each open that was queued; equal ones may have been merged."""
        found: list[tuple[FileId, int]] = []
        while self.descriptor >= 0:
            try:
                data = os.read(self.descriptor, 65536)
            except BlockingIOError:
                break
            except OSError as error:
                self.problem = f"fanotify: {error.strerror}"
                self.close()
                break
            offset = 0
            while offset + _EVENT.size <= len(data):
                length, _, _, header, mask, _, pid = _EVENT.unpack_from(data, offset)
                if mask & _OPEN and not mask & _OVERFLOW and length >= header + _INFO.size:
                    kind, _, _, _, size, handle_type = _INFO.unpack_from(data, offset + header)
                    start = offset + header + _INFO.size
                    file = self._files.get((handle_type, data[start : start + size]))
                    if kind == _INFO_TYPE_FID and file is not None:
                        found.append((file, pid))
                offset += length
        return found

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _call(name: str, *arguments: object) -> int:
    """A system call through the C library. Raises OSError with the call's name."""
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    result: int = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result
