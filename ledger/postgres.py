"""A ledger in PostgreSQL: connections, the append lock, guards as the server holds them. The other backend of the port.

Appends take an advisory lock for the length of their transaction, so that positions are given one after another.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ledger import schema
from ledger.database import Database, Refused, Row, Transaction, differing, hide_password, refuse_version, squeeze
from ledger.errors import LedgerError, install
from ledger.schema import Dialect
from ledger.views import create_views


def postgres_driver() -> Any:
    """psycopg. Raises LedgerError saying how to install it."""
    try:
        import psycopg
    except ImportError as error:
        raise LedgerError("a PostgreSQL ledger needs psycopg, which is not installed", install("postgres")) from error
    return psycopg


def postgres_connect(location: str, settings: Mapping[str, str] | None = None) -> Any:
    """An autocommit connection with server settings made for it. Raises LedgerError without the password in it."""
    psycopg = postgres_driver()
    conninfo = re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql://", location)
    connection = None
    try:
        connection = psycopg.connect(conninfo, autocommit=True, connect_timeout=10, client_encoding="UTF8")
        for name, value in (settings or {}).items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        return connection
    except psycopg.Error as error:
        if connection is not None:
            connection.close()
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LedgerError(
            f"cannot connect to ledger {hide_password(location)}: {first}",
            "does the server run there, and do host, port, user, password and database fit? `psql` says so too",
        ) from error


def postgres_error(error: Exception, shown: str) -> LedgerError:
    """The LedgerError for what psycopg raised."""
    name = type(error).__name__
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else name
    if name in ("RaiseException", "UniqueViolation", "CheckViolation", "NotNullViolation", "GeneratedAlways"):
        return Refused(f"ledger {shown} refused the row: {text}")
    if name == "InsufficientPrivilege":
        return LedgerError(f"ledger {shown} may not be changed so: {text}", "connect as a role that may append")
    if name == "ReadOnlySqlTransaction":
        return LedgerError(f"ledger {shown} is read-only: {text}")
    return LedgerError(f"ledger {shown}: {text}")


_OUR_TABLES = ", ".join(f"to_regclass('{table}')" for table in schema.TABLES)
_SETTINGS = "concat_ws(' ', l.lanname, CASE WHEN p.prosecdef THEN 'SECURITY DEFINER' END, p.proconfig::text)"
"""How a function (p) in its language (l) runs: a search path of its own would lead it to other tables."""


class PostgresTransaction(Transaction):
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._cursor.execute(placeholders(sql), parameters).fetchall()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self._cursor.execute(placeholders(sql), parameters)

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._cursor.executemany(placeholders(sql), rows)


def placeholders(sql: str) -> str:
    """Our statements' `?` as psycopg's `%s`; they hold no other `?`."""
    return sql.replace("%", "%%").replace("?", "%s")


class PostgresDatabase(Database):
    """A ledger in a PostgreSQL database, in the schema that the connection's search path names first."""

    dialect: Dialect = "postgresql"

    def __init__(self, location: str) -> None:
        self.location = location
        self.shown = hide_password(location)
        self.driver = postgres_driver()
        self._lock = threading.RLock()
        self._write_connection: Any | None = None
        self._read_connection: Any | None = None
        self._process = os.getpid()

    def _connection(self, *, write: bool) -> Any:
        if os.getpid() != self._process:
            raise LedgerError("a ledger opened before a fork cannot be used after it", "open it again in the child")
        current = self._write_connection if write else self._read_connection
        if current is None or current.closed:
            current = postgres_connect(
                self.location, {"synchronous_commit": "on"} if write else {"default_transaction_read_only": "on"}
            )
            if write:
                self._write_connection = current
            else:
                self._read_connection = current
        return current

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        with self._lock:
            try:
                cursor = self._connection(write=False).cursor()
                return cursor.execute(placeholders(sql), parameters).fetchall()
            except self.driver.Error as error:
                raise self.translate(error) from error

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        # Read committed on purpose: after the lock is taken, each statement sees what the last holder committed.
        with self._lock:
            try:
                connection = self._connection(write=True)
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (schema.APPEND_LOCK,))
                    yield PostgresTransaction(cursor)
            except self.driver.Error as error:
                raise self.translate(error) from error

    def version(self) -> int | None:
        """The schema version, or None where the database holds no ledger."""
        ours = self.select(
            "SELECT to_regclass('ledger'), to_regclass('events'), to_regclass(?)", (schema.VERSION_TABLE,)
        )
        if any(table is None for table in ours[0]):
            return None
        rows = self.select(f"SELECT version_num FROM {schema.VERSION_TABLE}")
        return int(rows[0][0]) if rows and str(rows[0][0]).isdecimal() else None

    def require_version(self) -> None:
        """Raise LedgerError unless the database holds a ledger of this program's version."""
        version = self.version()
        if version is None:
            raise LedgerError(f"no ledger in {self.shown}", "record a run there to begin one, or name another")
        refuse_version(version, self.shown)

    def connect_for_upgrade(self) -> Any:
        connection = self._connection(write=True)
        connection.autocommit = False
        return connection

    def translate(self, error: Exception) -> LedgerError:
        return postgres_error(error, self.shown)

    def guards(self, select: Callable[[str], list[Row]]) -> dict[str, str]:
        # The trigger's own definition, and the function behind it: either could have been hollowed out.
        rows = select(
            f"SELECT t.tgname, pg_get_triggerdef(t.oid), p.prosrc, {_SETTINGS} FROM pg_trigger AS t"
            " JOIN pg_proc AS p ON p.oid = t.tgfoid JOIN pg_language AS l ON l.oid = p.prolang"
            f" WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgrelid IN ({_OUR_TABLES})"
        )
        found = {name: f"{_trigger_form(made)} | {squeeze(body)} | {how}" for name, made, body, how in rows}
        return found | dict.fromkeys(self._intruders(select), "")

    def expected_guards(self) -> dict[str, str]:
        bodies = {
            name: squeeze(sql.split("$$")[1]) for name, sql in schema.POSTGRES_FUNCTIONS.items() if "trigger" in sql
        }
        found = {}
        for name, sql in schema.guards("postgresql").items():
            function = sql.rpartition("FUNCTION ")[2].removesuffix("()")
            found[name] = f"{_trigger_form(sql)} | {bodies[function]} | plpgsql"
        return found

    def _intruders(self, select: Callable[[str], list[Row]]) -> list[str]:
        """What PostgreSQL lets others lay over a table that swallows or changes rows, hides some or adds others."""
        return [
            f"{what} on {table}"
            for what, table in select(
                "SELECT 'rule ' || r.rulename, c.relname FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = r.ev_class"
                f" WHERE c.relkind <> 'v' AND c.oid IN ({_OUR_TABLES})"
                " UNION ALL SELECT 'row security', relname FROM pg_class"
                f" WHERE (relrowsecurity OR relforcerowsecurity) AND oid IN ({_OUR_TABLES})"
                " UNION ALL SELECT 'child table ' || c.relname, p.relname FROM pg_inherits AS i"
                " JOIN pg_class AS c ON c.oid = i.inhrelid JOIN pg_class AS p ON p.oid = i.inhparent"
                f" WHERE p.oid IN ({_OUR_TABLES})"
            )
        ]

    def altered_views(self, select: Callable[[str], list[Row]] | None = None) -> list[str]:
        # The server keeps no text of a view. So ours are made beside them, in a transaction that is rolled back, and what
        # the server says of both is compared. Sees what is committed: `select` cannot make anything, so it is not used.
        connection = postgres_connect(self.location)
        try:
            with connection.transaction(force_rollback=True), connection.cursor() as cursor:

                def ask(sql: str) -> list[Row]:
                    return cursor.execute(sql).fetchall()

                ours = create_views(self.dialect)
                found = _as_served(ask, {name: name for name in ours}, "current_schema()::regnamespace")
                for sql in _view_functions().values():
                    cursor.execute(sql.replace("CREATE FUNCTION ", "CREATE FUNCTION pg_temp.", 1))
                for name, sql in ours.items():
                    made = sql.replace(f"CREATE VIEW {name} ", f"CREATE TEMPORARY VIEW expected_{name} ", 1)
                    cursor.execute(made)
                expected = _as_served(ask, {f"expected_{name}": name for name in ours}, "pg_my_temp_schema()")
                return sorted(differing(found, expected) + self._intruders(ask))
        except (self.driver.errors.UndefinedFunction, self.driver.errors.UndefinedColumn):
            return sorted(
                create_views(self.dialect)
            )  # what ours are made of is not there: an older ledger, or less of one
        except (self.driver.errors.ReadOnlySqlTransaction, self.driver.errors.InsufficientPrivilege) as error:
            raise LedgerError(
                f"the views of ledger {self.shown} cannot be compared with this program's: {squeeze(str(error))}",
                "connect to a server that takes writes, as a role that may make temporary views",
            ) from error
        except self.driver.Error as error:
            raise self.translate(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        with self._lock:
            for connection in (self._read_connection, self._write_connection):
                if connection is not None:
                    connection.close()
            self._read_connection = self._write_connection = None


def _trigger_form(definition: str) -> str:
    """A trigger's definition with schema names taken off and UPDATE OR DELETE in one order."""
    text = squeeze(re.sub(r"\b[a-z_0-9]+\.(?=[a-z_])", "", definition))
    return text.replace("DELETE OR UPDATE", "UPDATE OR DELETE")


def _as_served(ask: Callable[[str], list[Row]], views: Mapping[str, str], namespace: str) -> dict[str, str]:
    """The server's own words for the views (name there -> name here) and the functions they call, in a namespace."""
    names = ", ".join(f"'{name}'" for name in views)
    functions = ", ".join(f"'{name}'" for name in _view_functions())
    rows = ask(
        "SELECT relname, pg_get_viewdef(oid) || coalesce(reloptions::text, '') FROM pg_class"
        f" WHERE relkind = 'v' AND relnamespace = {namespace} AND relname IN ({names})"
        " UNION ALL SELECT format('%s(%s)', p.proname, pg_get_function_identity_arguments(p.oid)),"
        f" concat_ws(' ', p.prosrc, {_SETTINGS}, p.provolatile, p.proisstrict, pg_get_function_result(p.oid))"
        " FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang"
        f" WHERE p.pronamespace = {namespace} AND p.proname IN ({functions})"
    )
    return {views.get(name, name): text for name, text in rows}


def _view_functions() -> dict[str, str]:
    """The functions that the views call."""
    return {name: sql.strip() for name, sql in schema.POSTGRES_FUNCTIONS.items() if "RETURNS trigger" not in sql}
