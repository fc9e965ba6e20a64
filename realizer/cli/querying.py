"""`tally query`: one SQL statement or a named query, its answer as a table, JSON or CSV, row by row within limits."""

from __future__ import annotations

import csv
import json
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ledger.counting import counted
from ledger.errors import NotFound, QueryError
from realizer.cli.files import read_input
from realizer.cli.options import json_option, ledger_option, pairs
from realizer.cli.rendering import (
    cell,
    complain,
    emit_json,
    emit_json_line,
    emit_line,
    facts,
    indented,
    inert,
    inert_json,
    on_terminal,
    show,
    table,
    warn,
)
from realizer.cli.tabular import Printed, show_rows

if TYPE_CHECKING:
    from rich.console import RenderableType


def _complete_named(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from ledger.named_queries import NAMED

    return [name for name in NAMED if name.startswith(incomplete)]


Row: TypeAlias = tuple[Any, ...]

MOST_ROWS = 10_000
TABLE_ROWS = 1_000
"""A table is for reading; more than that is asked for."""


@click.command()
@click.argument("sql", required=False)
@click.option(
    "--named",
    metavar="NAME",
    shell_complete=_complete_named,
    help="A query that comes with the program; --list names them.",
)
@click.option("--list", "list_named", is_flag=True, help="List the named queries.")
@click.option("--schema", is_flag=True, help="List the views and columns, documented.")
@click.option(
    "-p",
    "--parameter",
    "parameters",
    multiple=True,
    metavar="K=V",
    help="Bind :K; V may be @latest; a run of a named query may be a prefix. Repeat.",
)
@click.option("--jsonl", is_flag=True, help="One JSON object a line.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header line.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, help="Time limit."
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    help=f"Row limit (default: {MOST_ROWS}; for a table {TABLE_ROWS}).",
)
@ledger_option
@json_option
def query(
    sql: str | None,
    named: str | None,
    list_named: bool,
    schema: bool,
    parameters: tuple[str, ...],
    jsonl: bool,
    as_csv: bool,
    seconds: float,
    rows: int | None,
    ledger: str,
    as_json: bool,
) -> None:
    """Ask the ledger one SQL statement, read-only and within limits. SQL may be - for standard input.

    --csv keeps values as they were recorded: a spreadsheet may take one that begins with = + - or @ for a formula.

    \b
    Examples:
      tally query "select run_id, outcome from runs"
      tally query --named memory-over-time -p run=@latest --csv
      tally query --schema
    """
    if sum((as_json, jsonl, as_csv)) > 1:
        raise click.UsageError("--json, --jsonl and --csv exclude each other")
    if sum((sql is not None, named is not None, list_named, schema)) != 1:
        raise click.UsageError("give one of: an SQL statement, --named NAME, --list, --schema")
    if list_named or schema:
        _describe(schema, as_json)
        return
    from ledger.query import open_query

    statement = _statement(sql, named)
    drawn = not (as_json or jsonl or as_csv)
    limit = rows or (TABLE_ROWS if drawn else MOST_ROWS)
    with (
        bounded(seconds) as watchdog,
        open_query(ledger, statement, _bound(parameters, ledger, named), seconds=seconds, rows=limit) as answer,
    ):
        found = watchdog.over(answer)
        if drawn:
            printed = show_rows(answer.columns, found)
        elif as_csv:
            printed = _print_csv(answer.columns, found)
        else:
            printed = _print_objects(answer.columns, found, lines=jsonl)
    if printed.cut:
        warn(
            f"only the first {counted(printed.rows, 'row')}: more is too much for a table; --jsonl and --csv print any amount"
        )
    elif answer.truncated:
        more = f"; --jsonl and --csv print up to {MOST_ROWS}" if drawn and rows is None else ""
        warn(f"only the first {counted(printed.rows, 'row')}; --rows N raises the limit{more}")


GRACE_SECONDS = 5
"""How long a query may outlive its time limit before the process goes."""
LOOK_SECONDS = 0.25
"""How often that is looked at."""
QUERY_BYTES = 1024**3
"""Address space that a query may take: several times the largest result, its values on their way included."""


class Watchdog:
    """Ends the process when one wait for the database takes longer than `limit` seconds.

    It bounds what the databases' own limits do not: SQLite looks at the clock between steps, and `instr` of two long
    texts is one step. Nothing interrupts that but the end of the process; a query writes nothing, so that is safe. A
    reader who takes his time over what is printed is not timed.
    """

    def __init__(self, limit: float, give_up: Callable[[], None]) -> None:
        self._limit, self._give_up = limit, give_up
        self._since: float | None = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def over(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows, each wait for one of them watched."""
        waited = iter(rows)
        while True:
            self._since = time.monotonic()
            row = next(waited, None)
            self._since = None
            if row is None:
                return
            yield row

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            since = self._since
            if since is not None and time.monotonic() - since > self._limit:
                self._give_up()


@contextmanager
def bounded(seconds: float) -> Iterator[Watchdog]:
    """Bound a query's memory, and each wait for it; what is printed of it included."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    wanted = pages * resource.getpagesize() + QUERY_BYTES
    watchdog = Watchdog(seconds + GRACE_SECONDS, lambda: _give_up(seconds))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (wanted if soft < 0 else min(soft, wanted), hard))
        yield watchdog
    except MemoryError as error:
        raise QueryError("the query was stopped: it needs too much memory", "make its values smaller") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        watchdog.end()


def _give_up(seconds: float) -> None:
    complain(
        f"the query was stopped after {seconds:g} s: one step of it could not be interrupted (make its values smaller)"
    )
    os._exit(1)


def _statement(sql: str | None, named: str | None) -> str:
    if named is not None:
        from ledger.query import NAMED

        if named not in NAMED:
            raise NotFound(f"no named query {named!r}; there are {', '.join(sorted(NAMED))}", "`tally query --list`")
        return NAMED[named].sql
    if sql == "-":
        try:
            return read_input("-", "SQL").decode("utf-8")
        except UnicodeDecodeError as error:
            raise QueryError(f"the SQL on standard input is not UTF-8: {error.reason}") from error
    return sql or ""


def _bound(parameters: tuple[str, ...], ledger: str, named: str | None) -> dict[str, object]:
    """Parameters as values: integers and numbers as such, @latest and its kin as run ids, as whatever a named query wants
    as a run may be said in any way that names one."""
    from ledger.named_queries import RUN_PARAMETERS

    given = pairs(parameters, "-p")
    runs = {
        key: value
        for key, value in given.items()
        if value.startswith("@") or (named is not None and key in RUN_PARAMETERS)
    }
    bound = {key: _number(value) for key, value in given.items() if key not in runs}
    if runs:
        from ledger.store import Store

        with Store.open(ledger) as store:
            bound |= {key: store.resolve(value) for key, value in runs.items()}
    return bound


def _number(text: str) -> object:
    """The number that the text is the usual way of writing, else the text."""
    for kind in (int, float):
        try:
            number: float = kind(text)
        except ValueError:
            continue
        if str(number) == text and math.isfinite(number):
            return number
    return text


def _print_objects(columns: Sequence[str], rows: Iterable[Row], *, lines: bool) -> Printed:
    """Row by row, an object a line or an array of them; nothing is printed before the first row is there."""
    if len(set(columns)) < len(columns):
        raise QueryError("two columns have one name, which a JSON object cannot carry", "name them with `as`")
    number = 0
    for number, row in enumerate(rows, 1):
        text = json.dumps(
            dict(zip(columns, row, strict=True)), indent=None if lines else 2, ensure_ascii=False, allow_nan=False
        )
        if lines:
            emit_json_line(text)
        else:
            _put_member(inert_json(text), first=number == 1)
    if not lines:
        emit_line("\n]" if number else "[]")
    return Printed(number)


def _put_member(text: str, *, first: bool) -> None:
    """One indented member of an array that is printed member by member."""
    sys.stdout.write(("[\n  " if first else ",\n  ") + text.replace("\n", "\n  "))


def _print_csv(columns: Sequence[str], rows: Iterable[Row]) -> Printed:
    """Row by row; nothing is printed before the first row is there."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    make_safe = inert if on_terminal() else _as_it_is
    header = [make_safe(name) for name in columns]
    number = 0
    for number, row in enumerate(rows, 1):
        if number == 1:
            writer.writerow(header)
        writer.writerow(["" if value is None else make_safe(value) for value in row])
    if not number:
        writer.writerow(header)
    return Printed(number)


def _as_it_is(value: object) -> object:
    return value


def _describe(schema: bool, as_json: bool) -> None:
    from ledger.query import NAMED, schema_text
    from realizer.cli.documents import LedgerSchemaDocument, NamedQueriesDocument, NamedQueryDocument

    if schema:
        lines = schema_text()
        if as_json:
            emit_json(LedgerSchemaDocument(lines=lines))
        else:
            show(*_schema_parts(lines))
        return
    queries = [
        NamedQueryDocument(name=q.name, description=q.description, parameters=list(q.parameters), sql=q.sql)
        for q in NAMED.values()
    ]
    if as_json:
        emit_json(NamedQueriesDocument(queries=queries))
    else:
        rows = [(q.name, " ".join(q.parameters), q.description) for q in queries]
        show(table(("name", "parameters", "what it shows"), rows))


def _schema_parts(lines: Sequence[str]) -> Iterator[RenderableType]:
    """Each title, and its indented columns as names and texts, so that a long text stays beside its name."""
    first = True
    for is_column, group in groupby(lines, key=lambda line: line.startswith(" ")):
        if is_column:
            pairs = (line.strip().partition("  ") for line in group)
            yield indented(facts((name, text.strip()) for name, _, text in pairs))
        else:
            for line in group:
                if not first:
                    yield ""
                yield cell(line, "bold")
                first = False
