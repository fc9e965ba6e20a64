"""People's own SQL against a ledger: one statement, read-only, within a time and a row limit; and the named queries.

On SQLite the file is opened with `mode=ro`, and an authorizer that denies by default lets through nothing but reading the
ledger's tables and views with known functions; a progress handler watches the clock. On PostgreSQL the statement runs as
a cursor in a read-only transaction under a statement timeout, after the same kind of default-deny reading of its words,
because a read-only transaction alone still lets a privileged role write files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from ledger import database, postgres, schema, sqlite
from ledger.errors import QueryError
from ledger.named_queries import DEFAULTS, NAMED, NamedQuery
from ledger.sql_words import Statement, read_statement, refuse_unknown_words
from ledger.views import views

__all__ = ["NAMED", "NamedQuery", "OpenQuery", "QueryResult", "open_query", "run_query", "schema_text"]

MAX_RESULT_BYTES = 64 * 1024 * 1024
"""Where a collected result is cut off whatever the row limit, and the most that one row may take."""

MAX_SQLITE_BYTES = 512 * 1024 * 1024
"""What SQLite may allocate once a query has run in this process: a value can be made a gigabyte long in one step."""

FETCHED_ROWS = 500
"""How many rows PostgreSQL hands out at a time."""

PROGRESS_OPERATIONS = 1_000
"""How many steps of SQLite's machine pass between two looks at the clock; about 0.1 ms."""


@dataclass(frozen=True)
class QueryResult:
    """Rows as raw values: integers, finite floats, text or None. Binary values come as hexadecimal text.

    `truncated` says that the row or size limit cut the result off.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool


class OpenQuery:
    """An answer that is read row by row, so that it takes the memory of one row however long it is.

    Rows are as in a QueryResult; reading them raises QueryError as `run_query` does. `truncated` is told once they are
    read: the row limit cut the answer off. `read` is about how many bytes were read so far.
    """

    def __init__(self, columns: list[str], fetched: Iterator[Any], limit: int) -> None:
        self.columns = columns
        self.truncated = False
        self.read = 0
        self._fetched = fetched
        self._limit = limit

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for number, row in enumerate(self._fetched):
            if number == self._limit:
                self.truncated = True
                return
            wide = sum(map(_width, row))
            if wide > MAX_RESULT_BYTES:
                raise QueryError(f"a row of the result is larger than {MAX_RESULT_BYTES} bytes", "select less of it")
            self.read += wide
            yield row if _PLAIN.issuperset(map(type, row)) else tuple(_plain(value) for value in row)


def run_query(
    location: str | Path, sql: str, parameters: Mapping[str, object], *, seconds: float = 10, rows: int = 10_000
) -> QueryResult:
    """Run one SELECT against a ledger. `parameters` are bound to `:name` in it; a named query's may be left out.

    Raises QueryError when the statement is wrong, does more than read, is more than one, or runs longer than `seconds`;
    LedgerError when there is no such ledger. Never writes and never creates a file.
    """
    collected: list[tuple[Any, ...]] = []
    before = 0
    with open_query(location, sql, parameters, seconds=seconds, rows=rows) as answer:
        for row in answer:
            if before > MAX_RESULT_BYTES:
                return QueryResult(answer.columns, collected, True)
            before = answer.read
            collected.append(row)
        return QueryResult(answer.columns, collected, answer.truncated)


@contextmanager
def open_query(
    location: str | Path, sql: str, parameters: Mapping[str, object], *, seconds: float = 10, rows: int = 10_000
) -> Iterator[OpenQuery]:
    """Like `run_query`, for an answer of any size: it is read while the block lasts.

    `seconds` limits the time that the database takes, not the reader's.
    """
    statement = read_statement(sql)
    bound = _bind(statement, {**DEFAULTS.get(statement.text, {}), **parameters})
    if database.is_postgres(location):
        with _on_postgres(str(location), statement, bound, seconds, rows) as answer:
            yield answer
    else:
        with _on_sqlite(database.sqlite_path(location), statement, bound, seconds, rows) as answer:
            yield answer


def _bind(statement: Statement, parameters: Mapping[str, object]) -> dict[str, object]:
    """The parameters, when they are exactly those that the statement names."""
    missing = sorted(statement.parameters - parameters.keys())
    if missing:
        raise QueryError(f"parameter :{missing[0]} is not given", f"add `-p {missing[0]}=VALUE`")
    unknown = sorted(parameters.keys() - statement.parameters)
    if unknown:
        named = ", ".join(f":{name}" for name in sorted(statement.parameters)) or "none"
        raise QueryError(f"the query has no parameter :{unknown[0]}", f"its parameters: {named}")
    return dict(parameters)


def _width(value: Any) -> int:
    """About how long the value is when it is printed."""
    if value.__class__ is str:
        return len(value)
    return 2 * len(value) if isinstance(value, bytes | memoryview) else 8


_PLAIN = frozenset({int, str, type(None)})
"""Types whose values JSON carries as they are."""


def _plain(value: Any) -> Any:
    """A value as JSON can carry it: no binary, no Decimal, no date, no infinity."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return str(value)


# --- SQLite -------------------------------------------------------------------------------------------------------

# Numbers of SQLite's C interface (sqlite3.h): the drivers do not export all of them.
_OK, _DENY = 0, 1
_INTERRUPT, _AUTH = 9, 23
_READ, _SELECT, _FUNCTION, _RECURSIVE = 20, 21, 31, 33

SQLITE_FUNCTIONS = frozenset(
    """
    -> ->> abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce concat concat_ws cos cosh count
    cume_dist date datetime degrees dense_rank exp first_value floor glob group_concat hex if ifnull iif instr json
    json_array json_array_length json_each json_error_position json_extract json_group_array json_group_object json_object
    json_pretty json_quote json_tree json_type json_valid julianday lag last_value lead length like likelihood likely ln
    log log10 log2 lower ltrim max median min mod nth_value ntile nullif octet_length percent_rank percentile
    percentile_cont percentile_disc pi pow power quote radians random rank regexp replace round row_number rtrim sign sin
    sinh soundex sqlite_version sqrt strftime string_agg substr substring sum tan tanh time timediff total trim trunc
    typeof unhex unicode unistr unistr_quote unixepoch unlikely upper
    """.split()  # noqa: SIM905 - a word list is read as words
)
"""Functions that only compute. Left out on purpose: what loads code, and what makes values of any size from nothing."""

SQLITE_TABLES = frozenset(
    {*schema.TABLES, schema.VERSION_TABLE, "sqlite_master", "sqlite_schema", "json_each", "jsonb_each", "json_tree"}
)


JSONB_EACH = (3, 51, 0)
"""The first SQLite whose `jsonb_each` gives elements in its own form instead of text."""


@contextmanager
def _on_sqlite(
    path: Path, statement: Statement, parameters: dict[str, object], seconds: float, rows: int
) -> Iterator[OpenQuery]:
    database.refuse_version(sqlite.identify_sqlite(path), str(path))
    base = sqlite.SqliteDatabase(path)
    guard = Authorizer(view.name for view in views("sqlite"))
    clock = Clock(seconds)

    @contextmanager
    def told() -> Iterator[None]:
        """The database is at work: its time runs, and what it raises becomes one line."""
        clock.go()
        try:
            yield
        except MemoryError as error:
            raise QueryError("the query was stopped: it needs too much memory", "make its values smaller") from error
        except (base.driver.Error, base.driver.Warning, ValueError, OverflowError) as error:
            struck = getattr(error, "sqlite_errorcode", None)
            if (struck == _INTERRUPT and not clock.over) or (struck == _AUTH and not guard.denied):
                # Only the clock interrupts and only the guard denies, and says so. Else one of them failed to answer: the
                # operator's interrupt struck in it.
                raise KeyboardInterrupt from None
            raise _sqlite_refusal(error, guard, clock) from error
        finally:
            clock.rest()

    try:
        with told():
            base.refuse_altered_views()
            connection = base.reader()
            connection.execute(f"PRAGMA hard_heap_limit = {MAX_SQLITE_BYTES}").fetchall()
            if base.driver.sqlite_version_info >= JSONB_EACH:
                connection.execute(_tensors_of_jsonb())
            connection.text_factory = _lenient
            connection.set_authorizer(guard)
            connection.set_progress_handler(clock, PROGRESS_OPERATIONS)
            cursor = connection.execute(statement.text, parameters)
        columns = [column[0] for column in cursor.description or ()]
        yield OpenQuery(columns, _fetched(cursor.fetchone, told), rows)
    finally:
        base.close()


def _fetched(fetch: Callable[[], Any], told: Callable[[], Any]) -> Iterator[Any]:
    """Row after row until there is none."""
    while True:
        with told():
            row = fetch()
        if row is None:
            return
        yield row


def _tensors_of_jsonb() -> str:
    """The view `tensors` for this connection alone, by which SQLite writes no element as text only to parse it again."""
    (tensors,) = (view for view in views("sqlite") if view.name == "tensors")
    return replace(tensors, source=tensors.source.replace("json_each(", "jsonb_each(")).create("TEMP VIEW")


class Authorizer:
    """SQLite's authorizer callback, denying by default; `denied` remembers the first thing refused, in words."""

    def __init__(self, view_names: Iterable[str]) -> None:
        self._tables = SQLITE_TABLES | set(view_names)
        self.denied: str | None = None

    def __call__(
        self, action: int, first: str | None, second: str | None, schema_name: str | None, inner: str | None
    ) -> int:
        if action in (_SELECT, _RECURSIVE):
            return _OK
        if action == _FUNCTION:
            if second is not None and second.lower() in SQLITE_FUNCTIONS:
                return _OK
            return self._deny(f"the function {second}")
        if action == _READ:
            # What has no schema is a name of the statement's own: a subquery or a common table.
            # Nothing but this module makes temporary views.
            if not schema_name or (schema_name in ("main", "temp") and first in self._tables):
                return _OK
            return self._deny(f"reading {first}")
        return self._deny("anything but reading")

    def _deny(self, what: str) -> int:
        self.denied = self.denied or what
        return _DENY


class Clock:
    """A query's time, and SQLite's progress callback: interrupts once it is over. It runs between `go` and `rest`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.over = False
        self._left = seconds
        self._since = time.monotonic()

    def go(self) -> None:
        self._since = time.monotonic()

    def rest(self) -> None:
        self._left -= time.monotonic() - self._since
        self.over = self.over or self._left < 0

    def __call__(self) -> int:
        self.over = time.monotonic() - self._since > self._left
        return int(self.over)


def _lenient(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _sqlite_refusal(error: Exception, guard: Authorizer, clock: Clock) -> QueryError:
    if clock.over:
        return _too_long(clock.seconds)
    if guard.denied:
        return QueryError(f"the query was refused: {guard.denied} is not allowed", "a query reads, in one SELECT")
    return QueryError(f"the query failed: {error}", "`tally query --schema` lists views and columns")


def _too_long(seconds: float) -> QueryError:
    return QueryError(f"the query was stopped after {seconds:g} s", "narrow it down, or raise the limit with --seconds")


# --- PostgreSQL ---------------------------------------------------------------------------------------------------


@contextmanager
def _on_postgres(
    location: str, statement: Statement, parameters: dict[str, object], seconds: float, rows: int
) -> Iterator[OpenQuery]:
    refuse_unknown_words(statement)
    base = postgres.PostgresDatabase(location)
    connection = None
    clock = Clock(seconds)

    @contextmanager
    def told() -> Iterator[None]:
        """The database is at work: its time runs over all that is fetched, and what it raises becomes one line."""
        if clock.over:
            raise _too_long(seconds)
        clock.go()
        try:
            yield
        except base.driver.errors.QueryCanceled as error:
            raise _too_long(seconds) from error
        except base.driver.Error as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise QueryError(
                f"the query failed: {lines[0]}", "`tally query --schema` lists views and columns"
            ) from error
        finally:
            clock.rest()

    try:
        base.require_version()
        base.refuse_altered_views()
        with told():
            connection = postgres.postgres_connect(
                location,
                {
                    "default_transaction_read_only": "on",
                    "statement_timeout": str(max(1, math.ceil(seconds * 1000))),
                    "lock_timeout": "2000",
                    "standard_conforming_strings": "on",
                    "timezone": "UTC",
                },
            )
        # A cursor takes one SELECT and nothing else, and hands out no more rows than are asked for.
        with connection.transaction(force_rollback=True), connection.cursor(name="query") as cursor:
            with told():
                cursor.execute(statement.for_psycopg(), parameters)
            waiting: list[Any] = []

            def fetch() -> Any:
                if not waiting:
                    waiting.extend(reversed(cursor.fetchmany(FETCHED_ROWS)))
                return waiting.pop() if waiting else None

            yield OpenQuery([column.name for column in cursor.description or ()], _fetched(fetch, told), rows)
    finally:
        if connection is not None:
            connection.close()
        base.close()


# --- what there is ------------------------------------------------------------------------------------------------

_TABLE_COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "events": (
        "one row per event, append-only; everything but position, envelope and hash is generated from the envelope",
        {
            "position": "the event's place in the ledger, from 0: its leaf in the Merkle tree",
            "envelope": "the event's exact bytes (RFC 8785 JSON text)",
            "hash": "hex SHA-256(0x00 || envelope)",
            "event_id": "UUID version 7",
            "run_id": "the run, or the freezing's own stream",
            "sequence": "its place in the run, from 0",
            "type": "such as materialization.observed",
            "recorded_at": "UTC, RFC 3339, by the machine's clock",
            "node_id": "the host",
            "materialization_id": "the materialization that the event is about, or NULL",
            "tensors_blob": "digest of the blob that lists the tensors seen, or NULL",
        },
    ),
    "blobs": (
        "large documents, stored once by content",
        {"digest": "sha256:<hex> of data", "media_type": "what it is", "data": "the bytes; queries show them as hex"},
    ),
    "checkpoints": (
        "checkpoints of the tree kept in the ledger",
        {"tree_size": "number of events", "root": "hex Merkle root (RFC 9162)", "note": "the C2SP note stating both"},
    ),
}


def schema_text() -> list[str]:
    """The views and tables with their documented columns, as lines for people: a title each, its columns indented."""
    lines: list[str] = []
    for view in views("sqlite"):
        lines += _described(view.name, view.description, {c.name: c.description for c in view.columns})
    for name, (description, columns) in _TABLE_COLUMNS.items():
        lines += _described(name, description, columns)
    return lines


def _described(name: str, description: str, columns: Mapping[str, str]) -> list[str]:
    width = max(map(len, columns))
    return [f"{name}: {description}", *(f"  {column:<{width}}  {text}" for column, text in columns.items())]
