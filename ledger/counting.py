"""How many of something, in words: one run, two runs."""

from __future__ import annotations


def counted(count: object, one: str, more: str | None = None, *, grouped: bool = False) -> str:
    """`1 run`, `2 runs`, with commas between thousands where `grouped`; what is no number is taken as several."""
    shown = f"{count:,}" if grouped and isinstance(count, int) else f"{count}"
    return f"{shown} {one if shown == '1' else more or one + 's'}"
