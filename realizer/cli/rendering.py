"""How the commands speak: data on standard output, talk on standard error, and text from outside shown inert.

Whatever comes out of a ledger, a plan, an evidence file or an error message was written by somebody else. `inert` is
the one place where such text is made safe to print, and every function here that prints uses it.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.progress import TaskID

    from ledger.measurement import Measurement

UNBOUNDED_WIDTH = 10_000
"""Columns for output that no terminal shows: nothing is wrapped or cut there, so that it can be searched."""

NOT_PLAIN = re.compile(r"[^\x20-\x7e]")
NOT_PLAIN_LINES = re.compile(r"[^\x20-\x7e\n\r\t]")
ACTING_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that act instead of being seen: controls, direction marks, surrogates, line separators."""

VERDICT_STYLES = {"PASS": "bold green", "FAIL": "bold red", "INDETERMINATE": "bold yellow"}
SEVERITY_STYLES = {"error": "red", "unknown": "yellow", "note": "dim"}
OUTCOME_STYLES = {"completed": "green", "failed": "red", "rejected": "red", "aborted": "yellow", "incomplete": "yellow"}


# --- text from outside --------------------------------------------------------------------------------------------


def inert(text: object) -> str:
    """`text` with everything that would act on a terminal spelt out instead (`\\x1b`, `\\u202e`).

    Control characters (tabs and line ends too), direction and other format marks, surrogates and line separators lose
    their effect; letters of every script stay. Law: `inert(inert(t)) == inert(t)`.
    """
    shown = text if isinstance(text, str) else str(text)
    return NOT_PLAIN.sub(lambda found: _spelt(found[0]) if _acts(found[0]) else found[0], shown)


def _acts(character: str) -> bool:
    return unicodedata.category(character) in ACTING_CATEGORIES


def _spelt(character: str) -> str:
    known = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if known:
        return known
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def inert_json(text: str) -> str:
    """JSON text of the same value in which every acting character is written as a JSON escape."""
    return NOT_PLAIN_LINES.sub(lambda found: _json_escape(found[0]) if _acts(found[0]) else found[0], text)


def _json_escape(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 0x7F else f"\\u{ord(character):04x}"


def cell(text: object, style: str = "") -> Text:
    """Inert text for a table or a line; nothing in it is read as markup."""
    return Text(inert(text), style=style)


# --- where it goes ------------------------------------------------------------------------------------------------


def on_terminal() -> bool:
    """Standard output is a terminal."""
    return sys.stdout.isatty()


def _width(stream: Any) -> int:
    if stream.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(shutil.get_terminal_size().columns, 20)
    return UNBOUNDED_WIDTH


def width() -> int:
    """Columns of standard output; very many where no terminal shows it."""
    return _width(sys.stdout)


def confined() -> bool:
    """Somebody looks at it in so many columns: a terminal, or COLUMNS says so. Long names may be shortened then."""
    return width() < UNBOUNDED_WIDTH


def _console(stream: Any, width: int | None = None) -> Console:
    return Console(file=stream, width=width or _width(stream), markup=False, emoji=False, highlight=False)


def say(message: object, *, style: str = "") -> None:
    """One line of talk, on standard error."""
    _console(sys.stderr).print(Text(inert(message), style=style), soft_wrap=True)


def complain(message: object, more: Sequence[object] = ()) -> None:
    """An error: one line on standard error, and a line for each of many reasons."""
    console = _console(sys.stderr)
    line = Text("tally: ", style="red")
    line.append(inert(message), style="default")
    console.print(line, soft_wrap=True)
    for reason in more:
        console.print(Text(f"  {inert(reason)}"), soft_wrap=True)


def warn(message: object) -> None:
    """One line on standard error about something that was done all the same."""
    line = Text("warning: ", style="yellow")
    line.append(inert(message), style="default")
    _console(sys.stderr).print(line, soft_wrap=True)


def emit_json(document: BaseModel | Mapping[str, Any] | Sequence[Any]) -> None:
    """A JSON document on standard output, indented."""
    value = document.model_dump(mode="json") if hasattr(document, "model_dump") else document
    emit_line(inert_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)))


def emit_json_line(text: str) -> None:
    """JSON text as it stands, on a line of its own; on a terminal its acting characters are JSON escapes."""
    emit_line(inert_json(text) if on_terminal() else text)


def emit_text(text: str) -> None:
    """A line of somebody's text on standard output: as it stands in a pipe, inert on a terminal."""
    emit_line(inert(text) if on_terminal() else text)


def emit_line(text: str) -> None:
    """A line of data that is already safe to print, on standard output."""
    sys.stdout.write(text + "\n")


def emit_bytes(data: bytes) -> None:
    """Bytes of a file, on standard output as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def show(*parts: RenderableType, pager: bool = True) -> None:
    """Print for people on standard output; on a terminal, what does not fit the screen goes through the pager."""
    buffer = io.StringIO()
    terminal = on_terminal()
    console = Console(
        file=buffer,
        width=_width(sys.stdout),
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    for part in parts:
        console.print(cell(part) if isinstance(part, str) else part)
    text = buffer.getvalue()
    if not terminal:
        text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    elif pager and text.count("\n") > shutil.get_terminal_size().lines:
        os.environ.setdefault("LESS", "-FRX")
        click.echo_via_pager(text, color=True)
        return
    sys.stdout.write(text)


# --- shapes -------------------------------------------------------------------------------------------------------


def heading(text: str) -> Text:
    """A section's heading."""
    return Text(text.upper(), style="bold")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = (), indent: int = 0
) -> Table:
    """A borderless table; cells are made inert, columns named in `right` are aligned right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, indent), show_header=any(columns), header_style="dim")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(item if isinstance(item, Text) else cell(item) for item in row))
    return made


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Name and value, one pair a line."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(cell(name), value if isinstance(value, Text) else cell(value))
    return made


def indented(part: RenderableType) -> RenderableType:
    """The part two columns further in, every line of it: those too that it is broken into for want of columns."""
    return Padding(part, (0, 0, 0, 2), expand=False)


def bullets(sentences: Iterable[object]) -> Table:
    """Sentences, one a line, each behind a dash and kept clear of it where it is broken."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for sentence in sentences:
        made.add_row("-", cell(sentence))
    return made


def joined(*parts: tuple[object, str] | object, separator: str = "  ") -> Text:
    """One line made of pieces, each text or (text, style)."""
    line = Text()
    for number, part in enumerate(parts):
        text, style = part if isinstance(part, tuple) else (part, "")
        if number:
            line.append(separator)
        line.append(inert(text), style=style)
    return line


def stack(*parts: RenderableType) -> Group:
    """Parts one below the other."""
    return Group(*parts)


# --- values -------------------------------------------------------------------------------------------------------

BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int | float, *, human: bool | None = None) -> str:
    """Bytes: with a unit on a terminal, the raw integer anywhere else."""
    if human is None:
        human = on_terminal()
    if not human:
        return str(count)
    value, unit = float(count), BINARY_UNITS[0]
    for unit in BINARY_UNITS:
        if abs(value) < 1024 or unit == BINARY_UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{int(value)} B"
    return f"{value:.2f} {unit}" if abs(value) < 10 else f"{value:.1f} {unit}"


def in_bytes(name: str) -> str:
    """The name of a column or section of sizes: its unit too, where its figures carry none."""
    return name if on_terminal() else f"{name} (bytes)"


def amount(count: int) -> str:
    """Bytes inside a sentence: like `size`, and said to be bytes where it is the raw integer."""
    return size(count) if on_terminal() else f"{count} bytes"


def duration(nanoseconds: int | float) -> str:
    """A span of time: readable on a terminal, raw nanoseconds anywhere else."""
    if not on_terminal():
        return f"{int(nanoseconds)} ns"
    seconds = nanoseconds / 1e9
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


def measured(measurement: Measurement | None) -> str:
    """A Measurement's value in its unit; what is not known is called by its status, never 0."""
    if measurement is None:
        return "not recorded"
    value = measurement.value
    if value is None:
        return measurement.status
    if measurement.unit == "bytes" and isinstance(value, int | float):
        return size(value)
    if measurement.unit in ("ns", "nanoseconds") and isinstance(value, int | float):
        return duration(value)
    return inert(value)


def short_digest(digest: str | None) -> str:
    """Enough of a digest to tell it from others where columns are few; all of it anywhere else."""
    if digest is None:
        return "none"
    if not confined() or len(digest) <= 24:
        return inert(digest)
    return inert(digest[:23] + "…")


def moment(recorded_at: str) -> str:
    """An event's time, to the second where columns are few."""
    if confined() and len(recorded_at) >= 19:
        return inert(recorded_at[:19].replace("T", " "))
    return inert(recorded_at)


def json_value(value: Any) -> str:
    """A value out of a document on one line, as JSON (text without its quotes)."""
    return inert(value) if isinstance(value, str) else inert(json.dumps(value, ensure_ascii=False, sort_keys=True))


# --- progress -----------------------------------------------------------------------------------------------------

Progress = Callable[[int, int], None]
FEWEST_BYTES = 4096
"""Totals below are counts of something else than bytes: of repetitions, or of files."""


@contextmanager
def progress_bar(label: str, *, unit: str = "bytes") -> Iterator[Progress | None]:
    """A callable (done, total) that draws a bar on standard error, or None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    counter = DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), counter, TimeRemainingColumn())
    with RichProgress(*columns, console=_console(sys.stderr), transient=True) as bars:
        task = bars.add_task(inert(label), total=None)

        def advance(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield advance


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A callable (what, done, total): a bar for each `what` on a terminal; a total of 0 is a remark, said anywhere."""
    if not sys.stderr.isatty():
        yield lambda what, _done, total: None if total else say(what)
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[amount]}"))
    with RichProgress(*columns, console=_console(sys.stderr), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            if not total:
                bars.console.print(Text(inert(what)))
                return
            if what not in tasks:
                tasks[what] = bars.add_task(inert(what), total=total, amount="")
            amount = (
                f"{done} of {total}"
                if total < FEWEST_BYTES
                else f"{size(done, human=True)} of {size(total, human=True)}"
            )
            bars.update(tasks[what], completed=done, total=total, amount=amount)

        yield advance
