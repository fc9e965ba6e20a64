"""A ledger in an SQLite file: which library and journal are durable, what is a ledger's file at all, connections, guards."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ledger import schema
from ledger.database import Database, Refused, Row, Transaction, differing, squeeze
from ledger.errors import LedgerBroken, LedgerError
from ledger.schema import Dialect
from ledger.views import create_views

BUSY_SECONDS = 60
"""How long an append waits for another writer before it gives up."""


def loses_commits(version: tuple[int, ...]) -> bool:
    """This SQLite can lose committed writes in WAL mode: 3.7.0 to 3.51.2, but 3.44.6 and 3.50.7."""
    return (3, 7, 0) <= version <= (3, 51, 2) and version not in ((3, 44, 6), (3, 50, 7))


def sqlite_driver() -> Any:
    """The DB-API module to use: Python's own, or pysqlite3 where Python links an affected SQLite and it is installed."""
    if loses_commits(sqlite3.sqlite_version_info):
        with suppress(ImportError):
            import pysqlite3.dbapi2

            if not loses_commits(pysqlite3.dbapi2.sqlite_version_info):
                return pysqlite3.dbapi2
    return sqlite3


def journal_for(driver: Any) -> tuple[str, str]:
    """(journal mode, synchronous) that is durable with this SQLite: WAL and FULL, or DELETE and EXTRA where affected."""
    return ("delete", "EXTRA") if loses_commits(driver.sqlite_version_info) else ("wal", "FULL")


def absent(path: Path) -> bool:
    """Nothing is at the path. Raises LedgerError when that cannot be found out."""
    try:
        return not path.exists()
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error.strerror}") from error


def identify_sqlite(path: Path) -> int:
    """The schema version of the ledger in a file, read from its header; opens and creates nothing.

    Raises LedgerError when there is no file, or one that is no ledger.
    """
    try:
        if not path.is_file():
            if path.exists():
                raise LedgerError(f"{path} is no ledger: it is not a file")
            raise LedgerError(
                f"no ledger at {path}", "name one with --ledger or TALLY_LEDGER, or record a run to begin one"
            )
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error.strerror}") from error
    if not header:
        raise LedgerError(f"{path} is empty and no ledger", "remove it, and the next run begins a ledger there")
    if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
        raise LedgerError(f"{path} is no ledger: it is not an SQLite file", "it was left untouched")
    if int.from_bytes(header[68:72], "big") != schema.APPLICATION_ID:
        raise LedgerError(f"{path} is another program's database, not a ledger", "it was left untouched")
    return int.from_bytes(header[60:64], "big")


def refuse_read_only(path: Path) -> None:
    """Raise LedgerError when the file or its folder may not be written, even by one whom permissions do not bind."""
    unwritable = path.exists() and (path.stat().st_mode & 0o222 == 0 or not os.access(path, os.W_OK))
    folder = path.absolute().parent
    if not unwritable and folder.exists():
        unwritable = folder.stat().st_mode & 0o222 == 0 or not os.access(folder, os.W_OK)
    if unwritable:
        raise LedgerError(f"ledger {path} is read-only", "make it and its folder writable, or name another ledger")


def sqlite_error(error: Exception, shown: str) -> LedgerError:
    """The LedgerError for what SQLite's driver raised."""
    text = str(error)
    if type(error).__name__ == "IntegrityError":
        return Refused(f"ledger {shown} refused the row: {text}")
    if isinstance(error, MemoryError):
        return LedgerError(f"ledger {shown} holds a value that is too large for the memory there is", "free memory")
    if isinstance(error, UnicodeDecodeError) or "decode to UTF-8" in text:
        # The driver itself fails so when what SQLite says of a damaged file is not UTF-8.
        return LedgerBroken(f"ledger {shown} is damaged: its text is not UTF-8", "restore a backup")
    if "locked" in text or "busy" in text:
        return LedgerError(f"ledger {shown} stayed locked by another writer for {BUSY_SECONDS} s", "try again")
    if "readonly" in text:
        return LedgerError(f"ledger {shown} is read-only", "make it and its folder writable, or name another ledger")
    if "malformed" in text or "not a database" in text or text.startswith(("no such table", "no such column")):
        return LedgerBroken(f"ledger {shown} is damaged: {text}", "restore a backup; `tally verify` says what is wrong")
    if "unable to open" in text:
        return LedgerError(f"cannot open ledger {shown}: {text}")
    return LedgerError(f"ledger {shown}: {text}; nothing was recorded by this call", "free space or repair the disk")


class SqliteTransaction(Transaction):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(sql, parameters).fetchall()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self._connection.execute(sql, parameters)

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)


class SqliteDatabase(Database):
    """A ledger in an SQLite file, identified before (`identify_sqlite`)."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path, driver: Any | None = None) -> None:
        self.path = path
        self.location = self.shown = str(path)
        self.driver = driver or sqlite_driver()
        self.journal, self.synchronous = journal_for(self.driver)
        self._lock = threading.RLock()
        self._write_connection: Any | None = None
        self._read_connection: Any | None = None
        self._process = os.getpid()
        self._found_log = self._log_exists()

    def _log_exists(self) -> bool:
        return _log(self.path).exists()

    def _connect(self, mode: str) -> Any:
        # Read-write connections use mode=rw: SQLite would otherwise create a missing file.
        uri = f"file:{_quote(self.path)}?mode={mode}"
        try:
            connection = self.driver.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
            )
            # Older versions (3.40 is one) call JSON functions unsafe in a schema that is not trusted.
            if not loses_commits(self.driver.sqlite_version_info):
                connection.execute("PRAGMA trusted_schema = OFF")
            return connection
        except self.driver.Error as error:
            raise self.translate(error) from error

    def reader(self) -> Any:
        """The driver's own connection for reading, opened with `mode=ro`; it closes with this object."""
        self._same_process()
        if self._read_connection is None:
            connection = self._connect("ro")
            try:
                connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
            except self.driver.Error as error:
                connection.close()
                # A WAL file system that may not be written cannot hold the shared index; without a log none is needed.
                if "unable to open" not in str(error) or self._log_exists():
                    raise self.translate(error) from error
                connection = self._connect("ro&immutable=1")
            self._read_connection = connection
        return self._read_connection

    def _writer(self) -> Any:
        self._same_process()
        if self._write_connection is None:
            connection = self._connect("rw")
            try:
                mode = self._settle_journal(connection)
                connection.execute(f"PRAGMA synchronous = {'FULL' if mode == 'wal' else 'EXTRA'}")
                connection.execute("PRAGMA recursive_triggers = ON")
            except self.driver.Error as error:
                connection.close()
                raise self.translate(error) from error
            if mode == "wal" and self.journal != "wal":
                connection.close()
                raise LedgerError(
                    f"ledger {self.shown} has journal mode wal, in which SQLite {self.driver.sqlite_version} may lose"
                    " commits, and other programs keep it open so",
                    "close them, or install pysqlite3",
                )
            self._write_connection = connection
        return self._write_connection

    def _settle_journal(self, connection: Any) -> str:
        """Turn the journal to the mode that is durable with this SQLite, where nobody is in the way; the mode it has."""
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != self.journal:
            # Our own reader would be in the way too; the next reading opens another.
            if self._read_connection is not None:
                self._read_connection.close()
                self._read_connection = None
            with suppress(self.driver.OperationalError):
                (mode,) = connection.execute(f"PRAGMA journal_mode = {self.journal}").fetchone()
        return str(mode)

    def _same_process(self) -> None:
        # An SQLite connection carried over a fork would drop the parent's file locks.
        if os.getpid() != self._process:
            raise LedgerError("a ledger opened before a fork cannot be used after it", "open it again in the child")

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        with self._lock:
            try:
                return self.reader().execute(sql, parameters).fetchall()
            except (self.driver.Error, UnicodeDecodeError, MemoryError) as error:
                raise self.translate(error) from error

    def chunks(self, sql: str, size: int) -> Iterator[list[Row]]:
        """The rows that a statement gives, `size` at a time, for what goes over a whole index; one read transaction."""
        with self._lock:
            try:
                cursor = self.reader().execute(sql)
                while rows := cursor.fetchmany(size):
                    yield rows
            except (self.driver.Error, UnicodeDecodeError, MemoryError) as error:
                raise self.translate(error) from error

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._lock:
            connection = self._writer()
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield SqliteTransaction(connection)
                connection.execute("COMMIT")
            except (self.driver.Error, MemoryError) as error:
                self._give_up()
                raise self.translate(error) from error
            except BaseException:
                self._give_up()
                raise

    def _give_up(self) -> None:
        """Roll back; a connection that cannot even do that is closed, and the next transaction opens another."""
        connection = self._write_connection
        if connection is None or not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except self.driver.Error:
            connection.close()
            self._write_connection = None

    def notices(self) -> list[str]:
        if not loses_commits(self.driver.sqlite_version_info):
            return []
        return [
            f"SQLite {self.driver.sqlite_version} can lose committed events in WAL mode: {self.shown} is written with a"
            f" {self.journal} journal and synchronous {self.synchronous}, which is safe and slower; pysqlite3 is the remedy"
        ]

    def connect_for_upgrade(self) -> Any:
        return self._writer()

    def translate(self, error: Exception) -> LedgerError:
        return sqlite_error(error, self.shown)

    def guards(self, select: Callable[[str], list[Row]]) -> dict[str, str]:
        # The tables' own definitions guard too: their keys, and the columns generated from the envelope. A table of
        # somebody else's could stand in for a function of SQLite's. Statistics for the planner say nothing of an event.
        found = _forms(
            select(
                "SELECT name, sql FROM sqlite_master WHERE type IN ('trigger', 'table')"
                " AND NOT (type = 'table' AND name IN ('sqlite_stat1', 'sqlite_stat4'))"
            )
        )
        if schema.VERSION_TABLE in found:
            found[schema.VERSION_TABLE] += f" | {select(f'SELECT * FROM {schema.VERSION_TABLE} LIMIT 3')}"
        return found

    def expected_guards(self) -> dict[str, str]:
        expected = {**schema.SQLITE_TABLES, **schema.guards("sqlite"), schema.VERSION_TABLE: schema.version_table()}
        found = _forms(expected.items())
        found[schema.VERSION_TABLE] += f" | {[(schema.revision(),)]}"
        return found

    def altered_views(self, select: Callable[[str], list[Row]] | None = None) -> list[str]:
        # All that there are: an index of somebody else's on our tables would be asked too, and a view could stand in for
        # a function of SQLite's. What SQLite makes itself for a key has no text.
        rows = (select or self.select)(
            "SELECT name, coalesce(sql, '') FROM sqlite_master WHERE type IN ('index', 'view')"
        )
        keys = dict.fromkeys(schema.SQLITE_KEYS, "")
        return differing(_forms(rows), _forms({**schema.SQLITE_INDEXES, **create_views("sqlite"), **keys}.items()))

    def close(self) -> None:
        """Close both connections. A reader leaves the folder as it found it: no log that was not there before."""
        with self._lock:
            connections = [self._read_connection, self._write_connection]
            self._read_connection = self._write_connection = None
            for connection in connections:
                if connection is not None:
                    connection.close()
        if connections[0] is not None and connections[1] is None:
            sweep_log(self.path, self.driver, found_log=self._found_log)


def sweep_log(path: Path, driver: Any, *, found_log: bool) -> None:
    """Let SQLite remove the empty log that a read-only connection made and cannot remove, unless it was there before.

    It goes through SQLite's own locks, so a writer that has come meanwhile keeps its log.
    """
    if found_log or not _log(path).exists() or not os.access(path, os.W_OK):
        return
    with suppress(driver.Error):  # left as it is when somebody else holds it: tidiness is no reason to fail
        connection = driver.connect(f"file:{_quote(path)}?mode=rw", uri=True, isolation_level=None, timeout=0)
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        finally:
            connection.close()


def _log(path: Path) -> Path:
    """Where SQLite keeps the file's log: beside the file itself, where `path` is a link to it."""
    return Path(f"{os.path.realpath(path)}-wal")


def _quote(path: Path) -> str:
    """A path as the path part of an SQLite URI."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def create_sqlite(path: Path, statements: Sequence[str], origin_row: tuple[str, str]) -> None:
    """Make a new ledger file, whole or not at all: built beside its place, synced, then linked into it.

    A ledger that another process put there first is left as it is. Raises LedgerError when the folder may not be written.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise LedgerError(f"cannot begin a ledger at {path}: there is no folder {folder}", "make the folder first")
    refuse_read_only(path)
    driver = sqlite_driver()
    journal, _ = journal_for(driver)
    draft = folder / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.new"
    try:
        connection = driver.connect(str(draft), isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA encoding = 'UTF-8'")
            connection.execute("BEGIN IMMEDIATE")
            for statement in statements:
                connection.execute(statement)
            connection.execute("INSERT INTO ledger (origin, created_at) VALUES (?, ?)", origin_row)
            connection.execute("COMMIT")
            connection.execute(f"PRAGMA journal_mode = {journal}")
        finally:
            connection.close()
        with suppress(FileExistsError):
            os.link(draft, path)
        sync_folder(folder)
    except driver.Error as error:
        raise sqlite_error(error, str(path)) from error
    except OSError as error:
        raise LedgerError(f"cannot begin a ledger at {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forms(statements: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Name -> statement without the white space that SQL does not need; a name that is there twice gets both."""
    found: dict[str, str] = {}
    for name, sql in statements:
        found[name] = found.get(name, "") + re.sub(r"\s*([(),])\s*", r"\1", squeeze(sql))
    return found
