"""Find, run and check migrations: bring an older ledger to this program's schema, and put guards back that are gone.

Alembic runs the steps under `migrations/`; it takes half a second to import, so only `upgrade` imports it. Every step, its
record and the guards are one transaction under the ledger's write lock: all of it, or nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ledger import database, schema, sqlite
from ledger.database import Database
from ledger.errors import LedgerBroken, LedgerError
from ledger.postgres import PostgresDatabase, placeholders
from ledger.sqlite import SqliteDatabase
from ledger.views import create_views

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine


def upgrade(location: str | Path, *, mended: list[str] | None = None) -> tuple[int, int]:
    """Bring a ledger to this version and restore its guards; returns the schema versions before and after.

    Events keep their bytes. On a current ledger only guards that are gone or altered are put back. `mended` gets a line
    for each guard, view and index that was put back, and for each dropped that is not this program's. Raises LedgerError for
    a ledger that is absent, another program's, newer or read-only, and LedgerBroken when guards cannot be put back.
    """
    base = _identify(location)
    try:
        return _upgrade(base, [] if mended is None else mended), schema.VERSION
    finally:
        base.close()


def _identify(location: str | Path) -> Database:
    if database.is_postgres(location):
        postgres = PostgresDatabase(str(location))
        if postgres.version() is None:
            postgres.close()
            raise LedgerError(f"no ledger in {postgres.shown}", "record a run there to begin one, or name another")
        return postgres
    path = database.sqlite_path(location)
    database.refuse_newer(sqlite.identify_sqlite(path), str(path))
    sqlite.refuse_read_only(path)
    return SqliteDatabase(path)


def _upgrade(base: Database, mended: list[str]) -> int:
    """Steps and guards in one transaction; returns the version that was found under the lock."""
    import sqlalchemy

    engine = _engine(base)
    try:
        with engine.begin() as connection:
            before = _recorded_version(connection)
            database.refuse_newer(before, base.shown)
            if before < schema.VERSION:
                _run_steps(connection)
            if base.dialect == "sqlite":
                # The header repeats the record; where they differ the record says which steps were run.
                connection.exec_driver_sql(f"PRAGMA user_version = {schema.VERSION}")
            _restore_guards(base, connection, mended)
        if base.dialect == "postgresql":
            _restore_postgres_views(base, engine, mended)
        if base.dialect == "sqlite":
            # A file's header is looked at before its log: move the new version there where no reader is in the way.
            with suppress(base.driver.Error):
                base.connect_for_upgrade().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return before
    except sqlalchemy.exc.DBAPIError as error:
        raise base.translate(error.orig if isinstance(error.orig, Exception) else error) from error
    finally:
        engine.dispose()


def _engine(base: Database) -> Engine:
    """An SQLAlchemy engine over one connection of ours, whose transactions begin with the ledger's write lock."""
    import sqlalchemy

    def lock(connection: Connection) -> None:
        if base.dialect == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({schema.APPEND_LOCK})")

    engine = sqlalchemy.create_engine(
        "sqlite://" if base.dialect == "sqlite" else "postgresql+psycopg://",
        creator=base.connect_for_upgrade,
        module=base.driver,
        poolclass=sqlalchemy.StaticPool,
    )
    sqlalchemy.event.listen(engine, "begin", lock)
    return engine


def _recorded_version(connection: Connection) -> int:
    rows = [tuple(row) for row in connection.exec_driver_sql(f"SELECT version_num FROM {schema.VERSION_TABLE}")]
    if len(rows) != 1 or not re.fullmatch(r"[0-9]{1,9}", str(rows[0][0]), re.ASCII):
        raise LedgerBroken(f"the ledger's record of its version is damaged: {rows[:2]!r}", "restore a backup")
    return int(rows[0][0])


def _run_steps(connection: Connection) -> None:
    """Run the pending steps in the connection's open transaction."""
    import alembic.command
    import alembic.config

    import migrations

    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, schema.revision())


def _restore_guards(base: Database, connection: Connection, mended: list[str]) -> None:
    """Drop and create the guards that are not as they should be, then look again.

    Migrations may lose triggers without saying so (rebuilding a table drops them), so this runs at every upgrade.
    """

    def execute(sql: str) -> None:
        connection.exec_driver_sql(sql if base.dialect == "sqlite" else placeholders(sql))

    def select(sql: str) -> list[database.Row]:
        return [tuple(row) for row in connection.exec_driver_sql(sql)]

    triggers = schema.guards(base.dialect)
    if base.dialect == "sqlite":
        _restore_views(base, execute, select, mended)
        # A table of somebody else's may hold something of theirs: that is left to them.
        for (name,) in select("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            if name not in triggers:
                execute(f"DROP TRIGGER {_quoted(name)}")
                mended.append(f"trigger {name} dropped, it is not this program's")
    wrong = [name for name in base.missing_guards(select) if name in triggers]
    if wrong and base.dialect == "postgresql":
        for sql in schema.POSTGRES_FUNCTIONS.values():
            execute(sql.strip().replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1))
    for name in wrong:
        table = name.split("_", 1)[0]
        execute(f"DROP TRIGGER IF EXISTS {name}" + ("" if base.dialect == "sqlite" else f" ON {table}"))
        execute(triggers[name])
        mended.append(f"guard {name} put back")
    left = base.missing_guards(select)
    if left:
        raise LedgerBroken(
            f"ledger {base.shown}: guards could not be put back: {', '.join(left)}",
            "drop, as the owner, what is not the ledger's, or copy it with `tally db copy`",
        )


def _restore_views(
    base: Database,
    execute: Callable[[str], None],
    select: Callable[[str], list[database.Row]],
    mended: list[str],
) -> None:
    """Make the views and indexes of an SQLite ledger again that are not as they should be, and drop indexes not ours."""
    ours = {**schema.SQLITE_INDEXES, **create_views("sqlite")}
    for name in base.altered_views(select):
        for (kind,) in select(
            f"SELECT type FROM sqlite_master WHERE sql IS NOT NULL AND type <> 'trigger' AND name = {_string(name)}"
        ):
            execute(f"DROP {kind} {_quoted(name)}")
        if name in ours:
            execute(ours[name])
        mended.append(f"{name} put back" if name in ours else f"{name} dropped, it is not this program's")
    left = base.altered_views(select)
    if left:
        raise LedgerBroken(
            f"ledger {base.shown}: views or indexes could not be put back: {', '.join(left)}",
            "copy it with `tally db copy`, or restore a backup",
        )


def _restore_postgres_views(base: Database, engine: Engine, mended: list[str]) -> None:
    """The same on PostgreSQL, where only what is committed can be compared; who may read a view may do so afterwards."""
    ours = create_views("postgresql")
    altered = base.altered_views()
    if not altered:
        return
    with engine.begin() as connection:
        for sql in schema.POSTGRES_FUNCTIONS.values():
            sql = sql.strip().replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)
            connection.exec_driver_sql(placeholders(sql))
        for name in ours.keys() & set(altered):
            readers = connection.exec_driver_sql(
                "SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END FROM pg_class AS c,"
                f" aclexplode(c.relacl) AS a WHERE c.oid = to_regclass('{name}') AND a.privilege_type = 'SELECT'"
                " AND a.grantee <> c.relowner"
            ).fetchall()
            connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
            connection.exec_driver_sql(placeholders(ours[name]))
            for (reader,) in readers:
                connection.exec_driver_sql(f"GRANT SELECT ON {name} TO {reader}")
            mended.append(f"{name} put back")
    left = base.altered_views()
    if left:
        raise LedgerBroken(
            f"ledger {base.shown}: views could not be put back: {', '.join(left)}",
            "drop, as the owner, what is not the ledger's, or copy it with `tally db copy`",
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
