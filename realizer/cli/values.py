"""What any option or argument may hold, whichever command it is of: text that is UTF-8, numbers that are numbers.

Text and numbers go into plans, events and documents, which are JSON: bytes that are no UTF-8, NaN, infinity and whole
numbers beyond 2^53 - 1 cannot stand there. Said here, before a command does anything, so that no option can forget it.
"""

from __future__ import annotations

import math
from typing import Any

import click

from ledger.canonical import MAX_SAFE_INTEGER


class Words(click.ParamType[str]):
    """Text as it was typed; refused where its bytes are no UTF-8."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not UTF-8 text", param, ctx)
        return text


class Real(click.FloatRange):
    """A number in its range, neither NaN nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number in its range, and small enough for any reader of JSON."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(super().convert(value, param, ctx))
        if abs(number) > MAX_SAFE_INTEGER:
            self.fail(f"{value} is more than {MAX_SAFE_INTEGER}", param, ctx)
        return number


def strict(command: click.Command) -> click.Command:
    """The command, and those in it, with every free text and number held to these types."""
    for parameter in command.params:
        kind = parameter.type
        if kind is click.STRING:
            parameter.type = Words()
        elif type(kind) in (click.FloatRange, click.IntRange):
            ranged: Any = kind
            made = Real if type(kind) is click.FloatRange else Whole
            parameter.type = made(ranged.min, ranged.max, ranged.min_open, ranged.max_open, ranged.clamp)
    if isinstance(command, click.Group):
        for member in command.commands.values():
            strict(member)
    return command
