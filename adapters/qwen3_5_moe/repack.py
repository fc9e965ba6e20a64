"""From checkpoint tensors to a layout's places: which bytes are copied where, and how the derived places are computed.

Law: for every place that is not derived, its bytes are its sources' bytes one after another; so a layout is filled by
copying `pieces` and then writing what `derive` gives, and its content is checked against the same sources piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from ledger.errors import CheckpointError
from realizer.adapter import Layout, TensorPlace
from realizer.checkpoint import TensorEntry
from realizer.loader import Piece

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


def pieces(layout: Layout, entries: Entries) -> list[Piece]:
    """Every copied checkpoint tensor with the offset in the range where its bytes go.

    Raises CheckpointError when a source is absent or when the sources' bytes do not fill their place exactly.
    """
    found = []
    for place in layout.places:
        if place.derived or not place.sources:
            continue
        offset = place.offset
        for key in place.sources:
            found.append(Piece(key, offset))
            offset += _entry(entries, key).bytes
        if offset - place.offset != place.bytes:
            raise CheckpointError(
                f"the tensors of {place.name!r}, from {place.sources[0]!r} on, have {offset - place.offset} bytes; "
                f"{place.dtype} {list(place.shape)} takes {place.bytes}"
            )
    return found


def content(layout: Layout, entries: Entries) -> Layout:
    """The layout cut as finely as its content can be checked: one place a copied checkpoint tensor, derived places whole.

    A cut place is named after its checkpoint key and has that tensor's dtype and shape.
    """
    places: list[TensorPlace] = []
    for place in layout.places:
        if place.derived or not place.sources:
            places.append(place)
            continue
        offset = place.offset
        for key in place.sources:
            entry = _entry(entries, key)
            places.append(TensorPlace(key, entry.dtype, entry.shape, offset, (key,)))
            offset += entry.bytes
    return Layout(layout.representation, tuple(places))


def derived_keys(layout: Layout) -> list[str]:
    """The checkpoint keys that derived places are computed from, in the layout's order."""
    return [key for place in layout.places if place.derived for key in place.sources]


def derive(
    layout: Layout, entries: Entries, read: Callable[[str], torch.Tensor]
) -> Iterator[tuple[TensorPlace, torch.Tensor]]:
    """Every derived place with its tensor on the CPU, computed from the checkpoint tensors that `read` gives."""
    for place in layout.places:
        if place.derived:
            values = [read(key) for key in place.sources]
            yield place, _derived(place, values, [_rows(entries, key) for key in place.sources])


def _rows(entries: Entries, key: str) -> int:
    """Rows of the weight that a scale belongs to; of anything that is no scale, its own extent."""
    weight = f"{key.rpartition('.')[0]}.weight"
    entry = _entry(entries, weight if key.endswith(("_scale", "_scale_2")) else key)
    return entry.shape[0] if entry.shape else 1


def _derived(place: TensorPlace, values: Sequence[torch.Tensor], rows: Sequence[int]) -> torch.Tensor:
    """Scalars repeated for their rows (`row_scale` F32, `global` F16), the largest input scale, or a cast to F32."""
    dtype = TORCH_DTYPES[place.dtype]
    kind = place.name.rpartition(".")[2]
    if kind in ("row_scale", "global"):
        scalars = torch.stack([value.reshape(()) for value in values]).to(dtype)
        result = scalars.repeat_interleave(torch.tensor(rows))
    elif kind == "input_scale":
        result = torch.stack([value.reshape(()) for value in values]).max().to(dtype)
    else:
        result = values[0].to(dtype)
    if result.numel() * result.element_size() != place.bytes:
        raise CheckpointError(f"{place.name!r} came out with {result.numel()} elements, not as {list(place.shape)}")
    return result.reshape(place.shape)
