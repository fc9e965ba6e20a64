"""A stand-in for a memory range: a bytearray with the same surface, for tests that need no real domain."""

from __future__ import annotations

import ctypes

import torch


class HeapRange:
    """Host bytes with `start`, `length`, `space`, `device`, `view` and `tensor` as a memory range has them."""

    kind = "system-ram"
    space = "host"

    def __init__(self, length: int, owner: str = "test", fill: int = 0) -> None:
        self.owner = owner
        self.length = length
        self.device = torch.device("cpu")
        self._bytes = bytearray([fill]) * length
        self.start = ctypes.addressof((ctypes.c_char * max(length, 1)).from_buffer(self._bytes)) if length else 0

    def view(self) -> memoryview:
        return memoryview(self._bytes)

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0) -> torch.Tensor:
        count = 1
        for extent in shape:
            count *= extent
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=offset).reshape(shape)

    def data(self) -> bytes:
        return bytes(self._bytes)
