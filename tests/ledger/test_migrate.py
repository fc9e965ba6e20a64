"""Migrations: the steps lead to the very schema that a new ledger has, keep events, and put guards back."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import migrations
from ledger import migrate, schema, sqlite
from ledger.database import squeeze
from ledger.errors import LedgerError
from ledger.maintenance import check
from ledger.migrate import upgrade
from ledger.postgres import PostgresDatabase
from ledger.store import Store
from tests.builders.ledgers import small_drafts
from tests.builders.old_ledgers import ORIGIN, RUN, migrated


def sqlite_schema(path: str) -> dict[tuple[str, str], str]:
    connection = sqlite.sqlite_driver().connect(path)
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    stamps = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    connection.close()
    found = {(kind, name): re.sub(r"\s*([(),])\s*", r"\1", squeeze(sql)) for kind, name, sql in rows}
    return {**found, ("stamps", ""): str(stamps)}


def postgres_schema(location: str) -> dict[str, list[tuple[Any, ...]]]:
    base = PostgresDatabase(location)
    ((name,),) = base.select("SELECT current_schema()")
    queries = {
        "columns": "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, is_generated,"
        " generation_expression FROM information_schema.columns WHERE table_schema = ?",
        "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = ?::regnamespace",
        "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = ?",
        "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = ?",
        "functions": "SELECT proname, prosrc, provolatile FROM pg_proc WHERE pronamespace = ?::regnamespace",
        "storage": "SELECT relname, reloptions FROM pg_class WHERE relnamespace = ?::regnamespace AND relkind = 'r'",
    }
    found = {
        what: sorted(tuple(str(value).replace(name, "") for value in row) for row in base.select(sql, (name,)))
        for what, sql in queries.items()
    }
    found["guards"] = sorted(base.guards(base.select).items())
    base.close()
    return found


def test_the_steps_make_the_schema_of_a_new_sqlite_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, new = str(tmp_path / "stepped.db"), str(tmp_path / "new.db")
    migrated(stepped, schema.VERSION, monkeypatch)
    Store.open(new, write=True, create=True).close()
    assert sqlite_schema(stepped) == sqlite_schema(new)


def test_the_steps_make_the_schema_of_a_new_postgresql_ledger(
    postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped, new = postgres(), postgres()
    migrated(stepped, schema.VERSION, monkeypatch)
    Store.open(new, write=True, create=True).close()
    assert postgres_schema(stepped) == postgres_schema(new)


@pytest.mark.parametrize("version", range(1, schema.VERSION))
def test_an_older_ledger_is_upgraded_and_keeps_its_events(
    location: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated(location, version, monkeypatch)
    for write in (False, True):
        with pytest.raises(LedgerError, match=f"schema {version}; this program needs {schema.VERSION}") as raised:
            Store.open(location, write=write)
        assert "tally db upgrade" in str(raised.value)
    found = check(location)
    assert (found["version"], found["events"]) == (version, 2)
    assert any("older" in problem for problem in found["problems"])
    assert upgrade(location) == (version, schema.VERSION)
    assert upgrade(location) == (schema.VERSION, schema.VERSION)
    assert check(location)["problems"] == []
    with Store.open(location, write=True) as store:
        assert (store.origin, store.size(), len(store.runs())) == (ORIGIN[0], 2, 1)
        store.append(RUN, 2, small_drafts(RUN, 1, start=2))


def test_an_upgrade_that_fails_changes_nothing(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrated(location, 1, monkeypatch)
    with monkeypatch.context() as patched:

        def fail(base: object, connection: object, mended: list[str]) -> None:
            raise LedgerError("the guards cannot be put back")

        patched.setattr(migrate, "_restore_guards", fail)
        with pytest.raises(LedgerError, match="cannot be put back"):
            upgrade(location)
    assert check(location)["version"] == 1
    assert upgrade(location) == (1, schema.VERSION)


def test_a_guard_that_was_hollowed_out_is_seen_and_restored(location: str) -> None:
    with Store.open(location, write=True, create=True) as store, store.base.transaction() as transaction:
        if store.base.dialect == "sqlite":
            transaction.execute("DROP TRIGGER events_insert_guard")
            transaction.execute("CREATE TRIGGER events_insert_guard BEFORE INSERT ON events BEGIN SELECT 1; END")
        else:
            transaction.execute(
                "CREATE OR REPLACE FUNCTION ledger_guard_event() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RETURN NEW; END $$"
            )
    with pytest.raises(LedgerError, match="are gone, or not this program's: events_insert_guard"):
        Store.open(location, write=True)
    upgrade(location)
    Store.open(location, write=True).close()


def test_a_disabled_postgresql_guard_counts_as_gone(postgres: Callable[[], str]) -> None:
    location = postgres()
    with Store.open(location, write=True, create=True) as store, store.base.transaction() as transaction:
        transaction.execute("ALTER TABLE events DISABLE TRIGGER events_no_change")
    with pytest.raises(LedgerError, match="events_no_change"):
        Store.open(location, write=True)
    upgrade(location)
    Store.open(location, write=True).close()


def test_every_version_has_its_step_and_imports_nothing_of_ours() -> None:
    folder = Path(migrations.__file__).parent / "versions"
    steps = sorted(folder.glob("v*.py"))
    assert [step.name[1:5] for step in steps] == [schema.revision(number + 1) for number in range(schema.VERSION)]
    for step in [*steps, folder.parent / "env.py"]:
        imported = {
            (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or ""
            for node in ast.walk(ast.parse(step.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert imported <= {"alembic", "pathlib"}, step.name


def test_opening_a_current_ledger_imports_no_migration_tool(tmp_path: Path) -> None:
    path = tmp_path / "tally.db"
    Store.open(path, write=True, create=True).close()
    code = (
        "import sys; from ledger.store import Store; from ledger.query import run_query;"
        f"Store.open({str(path)!r}, write=True).close(); run_query({str(path)!r}, 'SELECT 1', {{}});"
        "print([name for name in ('alembic', 'sqlalchemy', 'torch', 'migrations') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
