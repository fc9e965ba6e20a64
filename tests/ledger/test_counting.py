"""Counted nouns: one of them is singular, also where the figure is text already."""

from __future__ import annotations

import pytest

from ledger.counting import counted


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (0, ("run",), "0 runs"),
        (1, ("run",), "1 run"),
        (2, ("run",), "2 runs"),
        ("1", ("tensor",), "1 tensor"),
        ("unavailable", ("tensor",), "unavailable tensors"),
        (1, ("witness", "witnesses"), "1 witness"),
        (2, ("witness", "witnesses"), "2 witnesses"),
    ],
)
def test_a_noun_agrees_with_its_number(count: object, words: tuple[str, ...], said: str) -> None:
    assert counted(count, *words) == said


def test_thousands_are_grouped_where_asked() -> None:
    assert counted(13987, "event") == "13987 events"
    assert counted(13987, "event", grouped=True) == "13,987 events"
