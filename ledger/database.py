"""A ledger's database as the store sees it: one small port, with `ledger.sqlite` and `ledger.postgres` behind it.

The port is three verbs: select, transact, close. Reading and writing use separate connections, and the reading one
cannot write. A write transaction takes its lock before it reads, so what it reads of the chain's end is still true when
it commits. Driver errors leave here as LedgerError.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ledger import schema
from ledger.errors import LedgerBroken, LedgerError
from ledger.schema import Dialect

Row = tuple[Any, ...]


class Refused(LedgerError):
    """A guard or a constraint of the database refused a row."""


class Transaction(ABC):
    """A write transaction that holds the ledger's lock."""

    @abstractmethod
    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]: ...

    @abstractmethod
    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None: ...

    @abstractmethod
    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None: ...


class Database(ABC):
    """A ledger's database. Statements use `?` for parameters on every backend."""

    dialect: Dialect
    location: str
    driver: Any
    """The DB-API module."""
    shown: str
    """The location as it may be printed: without a password."""

    @abstractmethod
    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Rows as last committed, read by a connection that cannot write."""

    @abstractmethod
    def transaction(self) -> Any:
        """A context manager yielding a Transaction; commits durably at its end, rolls back on any exception."""

    @abstractmethod
    def connect_for_upgrade(self) -> Any:
        """The driver's own connection for writing, without an open transaction."""

    @abstractmethod
    def translate(self, error: Exception) -> LedgerError:
        """The LedgerError for what the driver raised."""

    @abstractmethod
    def guards(self, select: Callable[[str], list[Row]]) -> dict[str, str]:
        """Guard's name -> its definition as the database holds it; disabled triggers are left out."""

    @abstractmethod
    def expected_guards(self) -> dict[str, str]:
        """The same, as a ledger of this version has them."""

    @abstractmethod
    def close(self) -> None: ...

    def notices(self) -> list[str]:
        """What a person who writes here should know, a sentence each; empty where all is as it should be."""
        return []

    def missing_guards(self, select: Callable[[str], list[Row]] | None = None) -> list[str]:
        """Names of guards and tables that are gone or say something else than they should, sorted; read with `select`.

        One that is not ours counts too: a trigger could swallow or change what is appended.
        """
        return differing(self.guards(select or self.select), self.expected_guards())

    @abstractmethod
    def altered_views(self, select: Callable[[str], list[Row]] | None = None) -> list[str]:
        """Names of views and indexes that are gone or not as this version makes them, sorted; read with `select`.

        What is read through those need not be what is recorded. Raises LedgerError where they cannot be compared.
        """

    def refuse_altered_views(self) -> None:
        """Raise LedgerBroken when views or indexes are not as this version makes them."""
        altered = self.altered_views()
        if altered:
            raise LedgerBroken(
                f"ledger {self.shown} has views or indexes that this program did not make so: {', '.join(altered)}",
                "what is read through them need not be what is recorded; `tally db upgrade` puts them back",
            )


def differing(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Names that one has and the other has not, or not so; sorted."""
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def squeeze(sql: str) -> str:
    """A statement with its white space made single, for comparison."""
    return " ".join(sql.split())


# --- where ----------------------------------------------------------------------------------------------------------


def is_postgres(location: str | Path) -> bool:
    """The location names a PostgreSQL ledger: `postgresql+psycopg://...` (`postgresql://` is understood too)."""
    return isinstance(location, str) and re.match(r"postgres(ql)?(\+psycopg)?://", location) is not None


def sqlite_path(location: str | Path) -> Path:
    """The file that a path or a `sqlite:///` URL names. Raises LedgerError for another kind of URL, or an empty name."""
    text = str(location)
    if text in ("", "sqlite:///"):
        raise LedgerError(f"{text!r} names no ledger: it is empty", "give a path")
    if text.startswith("sqlite:///"):
        return Path(unquote(text.removeprefix("sqlite:///")))
    if re.match(r"[a-z][a-z0-9+.-]*://", text):
        raise LedgerError(
            f"{hide_password(text)} names no ledger",
            "give a path, sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE",
        )
    return Path(text)


def hide_password(location: str) -> str:
    """The URL without its password, for messages."""
    if "://" not in location:
        return location
    parts = urlsplit(location)
    if parts.password:
        host = parts.netloc.rpartition("@")[2]
        parts = parts._replace(netloc=f"{parts.username or ''}:***@{host}")
    return re.sub(r"(password=)[^&]*", r"\1***", urlunsplit(parts))


def refuse_newer(version: int, shown: str) -> None:
    """Raise LedgerError for a schema version that this program does not know."""
    if version > schema.VERSION:
        raise LedgerError(
            f"ledger {shown} has schema {version}; this program knows up to {schema.VERSION}",
            "upgrade tallystick to use it; it was left untouched",
        )


def refuse_version(version: int, shown: str) -> None:
    """Raise LedgerError unless the schema version is this program's."""
    refuse_newer(version, shown)
    if version < schema.VERSION:
        raise LedgerError(
            f"ledger {shown} has schema {version}; this program needs {schema.VERSION}",
            "run `tally db upgrade` (after `tally db backup`)",
        )
