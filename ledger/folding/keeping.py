"""Keeping facts in bounded memory: the first ones and the newest stay, and what found no room is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ledger.run_state import KEPT, MOST_IDS, RunState

T = TypeVar("T")


def keep(kept: list[T], item: T, most: int = KEPT) -> None:
    """Append; when full, the last one makes room, so that the first ones and the newest stay."""
    if len(kept) < most:
        kept.append(item)
    else:
        kept[-1] = item


def keep_each(state: RunState, kind: str, kept: list[T], item: T) -> None:
    """Append what is judged one by one; one that makes room for another is counted as left out."""
    if len(kept) >= KEPT:
        overflow(state, kind)
    keep(kept, item)


def overflow(state: RunState, kind: str) -> None:
    state.overflowed[kind] = state.overflowed.get(kind, 0) + 1


def step(state: RunState, sequence: int) -> None:
    if state.first_step is None:
        state.first_step = sequence
    state.last_step = sequence


def slot(state: RunState, kind: str, mapping: dict[str, T], key: str, make: Callable[[], T]) -> T | None:
    """The entry of `key`, made when there is room; null when there is not."""
    found = mapping.get(key)
    if found is None:
        if len(mapping) >= MOST_IDS:
            overflow(state, kind)
            return None
        found = mapping[key] = make()
    return found
