"""Rows of a query as a table, drawn line by line: of any number and width of rows in the time that printing them takes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import click
from rich.cells import cell_len, chop_cells

from realizer.cli.rendering import confined, inert, on_terminal, width

MOST_DRAWN = 16 * 1024 * 1024
"""Characters of cells after which a table ends: its columns are as wide as their widest, so that it is held whole."""
MOST_PADDING = 400
"""Columns to which a short cell is filled up where nothing is wrapped: one long cell must not widen every line to its own."""
FEWEST_FOR_VALUES = 10
GAP = "  "


@dataclass(frozen=True)
class Printed:
    """How many rows were printed, and whether there were more than could be."""

    rows: int
    cut: bool = False


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Printed:
    """Print a table with a header; where the columns shown are too few for it, one row below the other.

    NULL is empty, columns of numbers are aligned right. On a terminal, what does not fit the screen goes through the
    pager.
    """
    numeric = [True] * len(columns)
    cells: list[list[str]] = []
    drawn, cut = 0, False
    for row in rows:
        if drawn > MOST_DRAWN:
            cut = True
            break
        numeric = [was and isinstance(v, int | float | None) for was, v in zip(numeric, row, strict=True)]
        cells.append(["" if value is None else inert(value) for value in row])
        drawn += sum(map(len, cells[-1]))
    names = [inert(name) for name in columns]
    widths = [max(map(_width, column)) for column in zip(names, *cells, strict=True)]
    if not confined():
        widths = [min(wide, MOST_PADDING) for wide in widths]
    if not confined() or sum(widths) + len(GAP) * (len(names) - 1) <= width():
        lines = _table(names, cells, widths, [is_number and bool(cells) for is_number in numeric])
    else:
        lines = _one_below_the_other(names, cells)
    if on_terminal() and len(cells) >= shutil.get_terminal_size().lines:
        os.environ.setdefault("LESS", "-FRX")
        click.echo_via_pager((line + "\n" for line in lines), color=True)
    else:
        for line in lines:
            sys.stdout.write(line + "\n")
    return Printed(len(cells), cut)


def _width(text: str) -> int:
    """Columns of a terminal that the text takes."""
    return len(text) if text.isascii() else cell_len(text)


def _table(
    names: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool]
) -> Iterator[str]:
    yield _faint(_line(names, widths, right))
    for row in cells:
        yield _line(row, widths, right)


def _line(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = []
    for text, wide, is_right in zip(texts, widths, right, strict=True):
        padding = " " * (wide - _width(text))
        parts.append(padding + text if is_right else text + padding)
    return GAP.join(parts).rstrip()


def _one_below_the_other(names: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Name and value a line, an empty line between rows; a long value goes on below itself."""
    label = max(map(_width, names))
    room = max(width() - label - len(GAP), FEWEST_FOR_VALUES)
    for number, row in enumerate(cells):
        if number:
            yield ""
        for name, text in zip(names, row, strict=True):
            first, *more = _folded(text, room)
            yield (_faint(name + " " * (label - _width(name))) + GAP + first).rstrip()
            for part in more:
                yield " " * (label + len(GAP)) + part


def _folded(text: str, room: int) -> list[str]:
    if text.isascii():
        return [text[at : at + room] for at in range(0, len(text), room)] or [""]
    return chop_cells(text, room)


def _faint(text: str) -> str:
    return click.style(text, dim=True) if on_terminal() and not os.environ.get("NO_COLOR") else text
