"""From checkpoint tensors to a layout's places: which bytes are copied where, and how the derived places are computed.

Law: for every place that is not derived, its bytes are its sources' bytes one after another; so a layout is filled by
copying `pieces` and then writing what `derive` gives, and its content is checked against the same sources piece by piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch

from ledger.errors import CheckpointError
from realizer.adapter import Layout, TensorPlace
from realizer.checkpoint import TensorEntry, collector_paused
from realizer.scatter import Pieces

TORCH_DTYPES = {
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "I64": torch.int64,
}
"""The torch types of the dtype names that these layouts and their sources use."""

Entries = Mapping[str, TensorEntry]


def _entry(entries: Entries, key: str) -> TensorEntry:
    entry = entries.get(key)
    if entry is None:
        raise CheckpointError(
            f"the checkpoint has no tensor {key!r}", "is it the model that the plan is for, and whole?"
        )
    return entry


def pieces(layout: Layout, entries: Entries) -> Pieces:
    """Every copied checkpoint tensor with the offset in the range where its bytes go.

    Raises CheckpointError when a source is absent or when the sources' bytes do not fill their place exactly.
    """
    copied = [place for place in layout.places if place.sources and not place.derived]
    found, sizes = Pieces.laid_out(copied, entries)
    for place, size in zip(copied, sizes, strict=True):
        if size != place.bytes:
            raise CheckpointError(
                f"the tensors of {place.name!r}, from {place.sources[0]!r} on, have {size} bytes; "
                f"{place.dtype} {list(place.shape)} takes {place.bytes}"
            )
    return found


def content(layout: Layout, entries: Entries) -> Layout:
    """The layout cut as finely as its content can be checked: one place a copied checkpoint tensor, derived places whole.

    A cut place is named after its checkpoint key and has that tensor's dtype and shape.
    """
    places: list[TensorPlace] = []
    with collector_paused():
        for place in layout.places:
            if place.derived or not place.sources:
                places.append(place)
                continue
            offset = place.offset
            for key in place.sources:
                _, dtype, shape, _, start, end = _entry(entries, key)
                places.append(TensorPlace(key, dtype, shape, offset, (key,)))
                offset += end - start
    return Layout(layout.representation, tuple(places))


def derived_keys(layout: Layout) -> list[str]:
    """The checkpoint keys that derived places are computed from, in the layout's order."""
    return [key for place in layout.places if place.derived for key in place.sources]


class Reader(Protocol):
    """Gives checkpoint tensors on the CPU."""

    def __call__(self, key: str) -> torch.Tensor:
        """One tensor."""
        ...

    def scalars(self, keys: Sequence[str]) -> torch.Tensor:
        """Scales, which are F32 scalars, F32 [keys]: there are tens of thousands of them."""
        ...


def derive(layout: Layout, entries: Entries, read: Reader) -> Iterator[tuple[TensorPlace, torch.Tensor]]:
    """Every derived place with its tensor on the CPU, computed from the checkpoint tensors that `read` gives.

    Scalars repeated for their rows (`row_scale` F32, `global` F16), the largest input scale, or a cast to F32.
    """
    for place in layout.places:
        if not place.derived:
            continue
        dtype = TORCH_DTYPES[place.dtype]
        kind = place.name.rpartition(".")[2]
        if kind == "global":  # of matrices that have equally many rows
            result = (
                read.scalars(place.sources).to(dtype).repeat_interleave(math.prod(place.shape) // len(place.sources))
            )
        elif kind == "row_scale":
            rows = torch.tensor([_rows(entries, key) for key in place.sources])
            result = read.scalars(place.sources).to(dtype).repeat_interleave(rows)
        elif kind == "input_scale":
            result = read.scalars(place.sources).max().to(dtype)
        else:
            result = read(place.sources[0]).to(dtype)
        if result.numel() != math.prod(place.shape):
            raise CheckpointError(f"{place.name!r} came out with {result.numel()} elements, not as {list(place.shape)}")
        yield place, result.reshape(place.shape)


def _rows(entries: Entries, key: str) -> int:
    """Rows of the weight that a scale belongs to."""
    return _entry(entries, f"{key.rpartition('.')[0]}.weight").shape[0]
