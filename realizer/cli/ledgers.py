"""`tally query`, `pin` and `db`: asking a ledger, anchoring it elsewhere, and looking after it."""

from __future__ import annotations

import csv
import json
import math
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ledger.errors import NotFound, QueryError
from realizer.cli.access import shown_ledger
from realizer.cli.files import read_input, write_output
from realizer.cli.options import json_option, ledger_option, output_option, pairs, refuse_two_documents
from realizer.cli.rendering import (
    amount,
    cell,
    complain,
    emit_json,
    emit_json_line,
    facts,
    indented,
    inert,
    json_value,
    on_terminal,
    records,
    say,
    show,
    size,
    table,
    warn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from ledger.query import QueryResult


# --- query --------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("sql", required=False)
@click.option("--named", metavar="NAME", help="A query that comes with the program; --list names them.")
@click.option("--list", "list_named", is_flag=True, help="List the named queries.")
@click.option("--schema", is_flag=True, help="List the views and columns, documented.")
@click.option(
    "-p", "--parameter", "parameters", multiple=True, metavar="K=V", help="Bind :K; V may be @latest. Repeat."
)
@click.option("--jsonl", is_flag=True, help="One JSON object a line.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header line.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, help="Time limit."
)
@click.option("--rows", type=click.IntRange(min=1), default=10_000, show_default=True, help="Row limit.")
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
    rows: int,
    ledger: str,
    as_json: bool,
) -> None:
    """Ask the ledger one SQL statement, read-only and within limits. SQL may be - for standard input.

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
    from ledger.query import run_query

    statement = _statement(sql, named)
    with confined(seconds):
        result = run_query(ledger, statement, _bound(parameters, ledger), seconds=seconds, rows=rows)
    _print_rows(result, as_json=as_json, jsonl=jsonl, as_csv=as_csv)
    if result.truncated:
        warn(f"only the first {len(result.rows)} rows; --rows N raises the limit")


GRACE_SECONDS = 5
"""How long a query may outlive its time limit before the process goes."""
QUERY_BYTES = 1024**3
"""Address space that a query may take: several times the largest result, its values on their way included."""


@contextmanager
def confined(seconds: float) -> Iterator[None]:
    """Bound what the databases' own limits do not: one step of a query that takes hours, one row of any size.

    SQLite looks at the clock between steps, and `instr` of two long texts is one step. Nothing interrupts that but the
    end of the process; a query writes nothing, so that is safe.
    """
    last_resort = threading.Timer(seconds + GRACE_SECONDS, _give_up, (seconds,))
    last_resort.daemon = True
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    wanted = pages * resource.getpagesize() + QUERY_BYTES
    last_resort.start()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (wanted if soft < 0 else min(soft, wanted), hard))
        yield
    except MemoryError as error:
        raise QueryError("the query was stopped: it needs too much memory", "make its values smaller") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        last_resort.cancel()
        last_resort.join()


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


def _bound(parameters: tuple[str, ...], ledger: str) -> dict[str, object]:
    """Parameters as values: integers and numbers as such, @latest and its kin as run ids."""
    given = pairs(parameters, "-p")
    bound = {key: _number(value) for key, value in given.items() if not value.startswith("@")}
    named = {key: value for key, value in given.items() if value.startswith("@")}
    if named:
        from ledger.store import Store

        with Store.open(ledger) as store:
            bound |= {key: store.resolve(value) for key, value in named.items()}
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


def _print_rows(result: QueryResult, *, as_json: bool, jsonl: bool, as_csv: bool) -> None:
    if as_json or jsonl:
        if len(set(result.columns)) < len(result.columns):
            raise QueryError("two columns have one name, which a JSON object cannot carry", "name them with `as`")
        objects = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        if as_json:
            emit_json(objects)
            return
        for item in objects:
            emit_json_line(json.dumps(item, ensure_ascii=False, allow_nan=False))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        make_safe = inert if on_terminal() else _as_it_is
        writer.writerow([make_safe(name) for name in result.columns])
        for row in result.rows:
            writer.writerow(["" if value is None else make_safe(value) for value in row])
    else:
        numeric = [
            name
            for index, name in enumerate(result.columns)
            if result.rows and all(isinstance(row[index], int | float | None) for row in result.rows)
        ]
        show(records(result.columns, [["" if v is None else v for v in row] for row in result.rows], right=numeric))


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
    for is_column, group in groupby(lines, key=lambda line: line.startswith(" ")):
        if is_column:
            pairs = (line.strip().partition("  ") for line in group)
            yield indented(facts((name, text.strip()) for name, _, text in pairs))
        else:
            yield from (cell(line, "bold") for line in group)


# --- pin ----------------------------------------------------------------------------------------------------------


@click.command()
@click.option("--accept", is_flag=True, help="Take the ledger as it is now for good, after a deliberate restore.")
@click.option("--key", metavar="NAME.pem", help="Sign the pin with this private key.")
@output_option("the pin")
@ledger_option
@json_option
def pin(accept: bool, key: str | None, output: str, ledger: str, as_json: bool) -> None:
    """Write a checkpoint of the ledger, to keep elsewhere.

    A later `verify --pin` proves that nothing before it changed.

    \b
    Examples:
      tally pin -o ledger.pin
      tally verify --pin ledger.pin
    """
    from ledger import pins
    from ledger.store import Store
    from realizer.cli.documents import PinDocument
    from realizer.cli.evidence_commands import private_key

    refuse_two_documents(output, as_json)
    signer = private_key(key) if key is not None else None
    with Store.open(ledger) as store:
        if accept:
            pins.accept_pin(store)
        else:
            pins.check_pin(store)
        note, root = pins.note(store, signer)
        document = PinDocument(origin=store.origin, tree_size=store.size(), root=root, file=output, accepted=accept)
    write_output(output, note, "the pin")
    if as_json:
        emit_json(document)
    elif output != "-":
        say(f"{output}: {document.tree_size} events, root {document.root}")


# --- db -----------------------------------------------------------------------------------------------------------


@click.group()
def db() -> None:
    """Upgrade, back up, check and copy ledgers.

    \b
    Example:
      tally db check
    """


@db.command()
@ledger_option
@json_option
def upgrade(ledger: str, as_json: bool) -> None:
    """Bring a ledger that an older version wrote up to this one. Events keep their bytes.

    \b
    Example:
      tally db upgrade --ledger old.db
    """
    from ledger.migrate import upgrade as run_migrations
    from realizer.cli.documents import UpgradeDocument

    before, after = run_migrations(ledger)
    if as_json:
        emit_json(UpgradeDocument(ledger=shown_ledger(ledger), before=before, after=after))
    else:
        say(
            f"{shown_ledger(ledger)}: version {after}"
            + (", was current already" if before == after else f", was {before}")
        )


@db.command()
@click.argument("destination", metavar="DEST")
@ledger_option
@json_option
def backup(destination: str, ledger: str, as_json: bool) -> None:
    """Back a ledger up while it may be in use, and verify the copy.

    \b
    Example:
      tally db backup /backups/tally-2026-11-29.db
    """
    from ledger.maintenance import backup as write_backup
    from realizer.cli.documents import WrittenDocument

    write_backup(ledger, Path(destination))
    document = WrittenDocument.of_file("backup", destination, {"ledger": shown_ledger(ledger)})
    if as_json:
        emit_json(document)
    else:
        say(f"{destination}: {amount(document.size)}, verified")


@db.command("copy")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@json_option
def copy_ledger(source: str, destination: str, as_json: bool) -> None:
    """Copy a ledger into an empty place, and verify it.

    Between backends too, byte for byte.

    \b
    Example:
      tally db copy tally.db postgresql+psycopg://tally@localhost/tally
    """
    from ledger.maintenance import copy
    from ledger.store import Store
    from realizer.cli.documents import CopyDocument

    copy(source, destination)
    with Store.open(destination) as store:
        events = store.size()
    if as_json:
        emit_json(CopyDocument(source=shown_ledger(source), destination=shown_ledger(destination), events=events))
    else:
        say(f"{shown_ledger(destination)}: {events} events, verified")


@db.command("check")
@ledger_option
@json_option
def check_ledger(ledger: str, as_json: bool) -> int:
    """Say what state a ledger is in: version, guards, journal, sizes. Exit 1 when something should be repaired.

    `tally verify` checks what it holds.

    \b
    Example:
      tally db check
    """
    from ledger.maintenance import check
    from realizer.cli.documents import LedgerCheckDocument

    found = check(ledger)
    if as_json:
        emit_json(LedgerCheckDocument(ledger=shown_ledger(ledger), facts=found))
    else:
        show(facts((name, _fact(name, value)) for name, value in found.items()))
    if found.get("integrity", "ok") != "ok":
        return 4
    return 1 if found["problems"] else 0


def _fact(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("bytes"):
        return size(value)
    return "; ".join(map(str, value)) or "none" if isinstance(value, list) else json_value(value)
