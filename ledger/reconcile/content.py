"""Digests laid beside one another: what one digest cannot be, whoever read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ledger.plan import Plan
from ledger.reconcile.reading import known, number
from ledger.run_state import RunState, is_digest, trust

PLACES = ("-host", "-resident", "-device")
"""Endings of representations that say where the same layout lies."""


class ContentDoubt(NamedTuple):
    """A materialization whose digests cannot be of its bytes, as another one's show."""

    name: str
    expected: str
    observed: str
    events: list[int]


def content_doubts(plan: Plan, state: RunState) -> list[ContentDoubt]:
    """Where one digest stands for different sizes, or one unit of the checkpoint has two in the same layout.

    Digests are over the tensors' names and bytes in a layout, so those of other layouts are not compared.
    """
    return sorted({(doubt.name, doubt.expected): doubt for doubt in _doubts(plan, state)}.values())


def _doubts(plan: Plan, state: RunState) -> Iterator[ContentDoubt]:
    sizes: dict[str, tuple[int | float, str, int]] = {}
    sources: dict[tuple[str, str, int | float], tuple[str, str, int]] = {}
    for name, found in sorted(state.materializations.items()):
        for seen in found.observed:
            body, size = seen.body, number(seen.body.bytes)
            if size is None:
                continue
            digests = [
                str(one.value)
                for one in (body.source_digest, body.resident_digest)
                if one is not None and trust(one) == "observed" and is_digest(one)
            ]
            for digest in digests:
                held, other, event = sizes.setdefault(digest, (size, name, seen.sequence))
                if held != size and other != name:
                    for mine, theirs, there in ((name, other, held), (other, name, size)):
                        yield ContentDoubt(
                            mine,
                            f"another digest than that of {there} bytes of {theirs}",
                            digest,
                            [event, seen.sequence],
                        )
            unit = plan.units.get(body.logical_state_id)
            of_source = unit is not None and unit.semantic_class == "immutable_source"
            if digests and of_source and known(body.representation):
                layout = _layout(str(body.representation.value))
                key = (body.logical_state_id, layout, size)
                first, other, event = sources.setdefault(key, (digests[0], name, seen.sequence))
                if first != digests[0] and other != name:
                    for mine, theirs, digest, differs in (
                        (name, other, first, digests[0]),
                        (other, name, digests[0], first),
                    ):
                        yield ContentDoubt(mine, f"{digest}, as {theirs}", differs, [event, seen.sequence])


def _layout(representation: str) -> str:
    """The representation without the place that it lies at."""
    for place in PLACES:
        representation = representation.removesuffix(place)
    return representation
