"""What only a ledger on PostgreSQL can meet: roles, truncation, other programs' tables, passwords, columns compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger import canonical, schema
from ledger.audit import verify_ledger
from ledger.database import hide_password
from ledger.errors import LedgerBroken, LedgerError
from ledger.maintenance import backup, check
from ledger.migrate import upgrade
from ledger.postgres import PostgresDatabase
from ledger.query import run_query
from ledger.recording import uuid7
from ledger.store import Store
from tests.builders.ledgers import record_run, small_drafts


@pytest.fixture
def database(postgres: Callable[[], str]) -> str:
    return postgres()


def as_owner(location: str, *statements: str) -> list[Any]:
    """Run statements as the ledger's owner, outside the store; the last one's rows."""
    import psycopg

    rows: list[Any] = []
    with psycopg.connect(location.replace("+psycopg", ""), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
    return rows


def current_schema(location: str) -> str:
    return str(as_owner(location, "SELECT current_schema()")[0][0])


def test_the_documented_role_appends_and_can_do_no_more(database: str) -> None:
    with Store.open(database, write=True, create=True) as store:
        record_run(store)
    role, login = f"writers_{current_schema(database)}", f"login_{current_schema(database)}"
    as_owner(
        database, *schema.postgres_role(role, current_schema(database)), f"CREATE ROLE {login} LOGIN IN ROLE {role}"
    )
    restricted = database.replace("postgres:@", f"{login}:@").replace("//postgres@", f"//{login}@")
    assert login in restricted
    with Store.open(restricted, write=True) as store:
        run_id = uuid7()
        store.append(run_id, 0, small_drafts(run_id, 3))
        store.put_blob(b"x", "text/plain")
        store.put_checkpoint(3, "0" * 64, "note")
        assert len(store.runs()) == 2
        before = list(store.recorded())
        for statement in (
            "UPDATE events SET hash = hash",
            "DELETE FROM events",
            "TRUNCATE events",
            "TRUNCATE events, blobs, checkpoints, ledger CASCADE",
            "DROP TABLE events CASCADE",
            "DROP TRIGGER events_no_change ON events",
            "ALTER TABLE events DISABLE TRIGGER ALL",
            "ALTER TABLE events ADD COLUMN x int",
            "CREATE TRIGGER x BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION ledger_guard_event()",
            "CREATE OR REPLACE FUNCTION ledger_guard_event() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
            "SET session_replication_role = replica",
            "UPDATE blobs SET media_type = 'x'",
            "DELETE FROM checkpoints",
            "UPDATE ledger SET origin = 'x'",
            f"UPDATE {schema.VERSION_TABLE} SET version_num = '9'",
        ):
            with pytest.raises(LedgerError), store.base.transaction() as transaction:
                transaction.execute(statement)
        assert list(store.recorded()) == before
    assert run_query(restricted, "SELECT count(*) AS n FROM runs", {}).rows == [(2,)]
    found = check(restricted)
    assert (found["role_may_change_events"], found["problems"]) == (False, [])
    with pytest.raises(LedgerError):
        Store.open(f"{restricted}x", write=True)


def test_doctor_tells_a_role_that_could_change_events(database: str) -> None:
    from realizer.cli.doctor import ledger_and_pin

    Store.open(database, write=True, create=True).close()
    by = {diagnosis.subject: diagnosis for diagnosis in ledger_and_pin(database)}
    assert (by["ledger"].state, by["ledger role"].state) == ("ok", "note")
    assert "may change events" in by["ledger role"].found


def test_the_documentation_states_the_role() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "postgresql.md").read_text()
    for statement in schema.postgres_role("tally_writer"):
        assert f"{statement};\n" in page


def test_the_owner_is_stopped_by_the_guards(database: str) -> None:
    import psycopg

    with Store.open(database, write=True, create=True) as store:
        record_run(store)
        before = list(store.recorded())
    for statement in (
        "TRUNCATE events",
        "TRUNCATE ledger, events, blobs, checkpoints",
        "DELETE FROM events",
        "INSERT INTO events (position, envelope, hash) SELECT position, envelope, hash FROM events"
        " ON CONFLICT (position) DO UPDATE SET hash = 'x'",
    ):
        with pytest.raises(psycopg.Error):
            as_owner(database, statement)
    with Store.open(database) as store:
        assert list(store.recorded()) == before


@pytest.mark.parametrize("table", ["events", "blobs", schema.VERSION_TABLE])
def test_another_programs_tables_are_left_alone(database: str, table: str) -> None:
    as_owner(database, f"CREATE TABLE {table} (x int)", f"INSERT INTO {table} VALUES (1)")
    with pytest.raises(LedgerError, match=f"holds another program's tables: {table}"):
        Store.open(database, write=True, create=True)
    for attempt in (lambda: Store.open(database), lambda: check(database), lambda: upgrade(database)):
        with pytest.raises(LedgerError, match="no ledger in"):
            attempt()
    tables = as_owner(database, "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace")
    assert tables == [(table,)]


def test_a_newer_ledger_is_refused(database: str) -> None:
    Store.open(database, write=True, create=True).close()
    as_owner(database, f"UPDATE {schema.VERSION_TABLE} SET version_num = '0099'")
    for attempt in (
        lambda: Store.open(database),
        lambda: Store.open(database, write=True, create=True),
        lambda: run_query(database, "SELECT 1", {}),
        lambda: check(database),
        lambda: upgrade(database),
    ):
        with pytest.raises(LedgerError, match="schema 99; this program knows up to"):
            attempt()


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(LedgerError, match="cannot connect to ledger") as raised:
        Store.open("postgresql+psycopg://me:hunter2@127.0.0.1:1/nowhere")
    assert "\n" not in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert "does the server run there" in str(raised.value.hint)


def test_passwords_are_not_shown() -> None:
    shown = hide_password("postgresql+psycopg://me:hunter2@host/db?sslmode=require")
    assert shown == "postgresql+psycopg://me:***@host/db?sslmode=require"
    assert hide_password("postgresql://host/db?password=hunter2&user=x") == "postgresql://host/db?password=***&user=x"
    assert hide_password("folder/tally.db") == "folder/tally.db"


def test_a_backup_is_postgresqls_own_business(database: str, tmp_path: Any) -> None:
    Store.open(database, write=True, create=True).close()
    with pytest.raises(LedgerError, match="PostgreSQL's own tools") as raised:
        backup(database, tmp_path / "x.db")
    assert "tally db copy" in str(raised.value)


def test_a_server_that_goes_away_is_an_error_and_a_later_append_works(database: str) -> None:
    run_id = uuid7()
    with Store.open(database, write=True, create=True) as store:
        store.append(run_id, 0, small_drafts(run_id, 1))
        assert isinstance(store.base, PostgresDatabase)
        as_owner(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'",
        )
        drafts = small_drafts(run_id, 1, start=1)
        with pytest.raises(LedgerError):
            store.append(run_id, 1, drafts)
        store.append(run_id, 1, drafts)
        with pytest.raises(LedgerError):
            store.size()
        assert store.size() == 2


def test_stored_columns_are_those_of_sqlite(database: str, tmp_path: Any) -> None:
    from ledger.maintenance import copy

    with Store.open(tmp_path / "tally.db", write=True, create=True) as store:
        record_run(store)
        rows = list(store.rows())
    copy(tmp_path / "tally.db", database)
    with Store.open(database) as store:
        assert list(store.rows()) == rows
        assert all(row[2] == canonical.event_hash(row[1]) for row in rows)


# --- what a server lets others lay over tables and views ----------------------------------------------------------

OVER_TABLES = {
    "rule swallow on events": "CREATE RULE swallow AS ON INSERT TO events DO INSTEAD NOTHING",
    "rule also on blobs": "CREATE RULE also AS ON INSERT TO blobs DO ALSO NOTIFY blobs",
    "row security on events": "ALTER TABLE events ENABLE ROW LEVEL SECURITY",
    "row security on checkpoints": "ALTER TABLE checkpoints FORCE ROW LEVEL SECURITY",
    "child table invented on events": "CREATE TABLE invented () INHERITS (events)",
}


@pytest.mark.parametrize("intruder", OVER_TABLES)
def test_what_lies_over_a_table_is_named_everywhere(database: str, intruder: str) -> None:
    with Store.open(database, write=True, create=True) as store:
        record_run(store)
    as_owner(database, OVER_TABLES[intruder])
    for attempt in (
        lambda: Store.open(database, write=True),
        lambda: run_query(database, "SELECT 1 AS n", {}),
        lambda: upgrade(database),
    ):
        with pytest.raises(LedgerError, match=intruder):
            attempt()
    with Store.open(database) as store, pytest.raises(LedgerBroken, match=intruder):
        store.runs()
    assert intruder in " ".join(check(database)["problems"])
    audited = verify_ledger(database, use_state=False)
    assert audited.status == "broken"
    assert any(intruder in problem.detail for problem in audited.problems)


def test_rows_hidden_by_row_security_are_not_taken_for_all(database: str) -> None:
    with Store.open(database, write=True, create=True) as store:
        record_run(store)
        role = f"readers_{current_schema(database)}"
        within = current_schema(database)
        as_owner(
            database,
            f"CREATE ROLE {role} LOGIN",
            f"GRANT USAGE ON SCHEMA {within} TO {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {within} TO {role}",
            "ALTER TABLE events ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY first_two ON events FOR SELECT USING (position < 2)",
        )
    restricted = database.replace("postgres:@", f"{role}:@").replace("//postgres@", f"//{role}@")
    with Store.open(restricted) as store:
        assert store.size() == 2
    audited = verify_ledger(restricted, use_state=False)
    assert any("row security on events" in problem.detail for problem in audited.problems)


ALTERED = {
    "verdicts": (
        "CREATE OR REPLACE VIEW verdicts AS SELECT run_id, sequence, position, recorded_at, 0::numeric AS elapsed_ns,"
        " 'PASS'::text AS verdict, 'observed'::text AS assurance, '1'::text AS judge_version, NULL::text AS codes"
        " FROM events WHERE type = 'verdict.recorded'"
    ),
    "tensors": "DROP VIEW tensors",
    "executions": "ALTER VIEW executions RENAME COLUMN run_id TO run",
    r"ledger_number\(value jsonb\)": (
        "CREATE OR REPLACE FUNCTION ledger_number(value jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE"
        " AS 'SELECT 0::numeric'"
    ),
    r"ledger_array\(data bytea\)": "ALTER FUNCTION ledger_array(bytea) SET search_path = elsewhere",
}


@pytest.mark.parametrize("name", ALTERED)
def test_altered_views_and_their_functions_are_refused_and_put_back(database: str, name: str) -> None:
    with Store.open(database, write=True, create=True) as store:
        record_run(store)
        assert store.runs()
    as_owner(database, ALTERED[name])
    with Store.open(database) as store, pytest.raises(LedgerBroken, match=f"did not make so: {name}"):
        store.runs()
    with pytest.raises(LedgerBroken, match=f"did not make so: {name}"):
        run_query(database, "SELECT 1 AS n", {})
    with Store.open(database, write=True):
        pass  # appending reads no view
    audited = verify_ledger(database, use_state=False)
    assert any("is not as this program makes it" in problem.detail for problem in audited.problems)
    assert any("views are altered" in problem for problem in check(database)["problems"])
    upgrade(database)
    assert check(database)["problems"] == []
    with Store.open(database) as store:
        assert store.runs()


def test_a_guards_function_with_a_search_path_of_its_own_is_altered(database: str) -> None:
    Store.open(database, write=True, create=True).close()
    as_owner(database, "ALTER FUNCTION ledger_guard_event() SET search_path = elsewhere")
    with pytest.raises(LedgerError, match="events_insert_guard"):
        Store.open(database, write=True)
    upgrade(database)
    Store.open(database, write=True).close()


def test_whoever_could_read_a_view_can_read_it_put_back(database: str) -> None:
    Store.open(database, write=True, create=True).close()
    role, within = f"asking_{current_schema(database)}", current_schema(database)
    as_owner(
        database,
        f"CREATE ROLE {role}",
        f"GRANT USAGE ON SCHEMA {within} TO {role}",
        f"GRANT SELECT ON runs TO {role}",
        "GRANT SELECT ON runs TO PUBLIC",
        "ALTER VIEW runs RENAME COLUMN run_id TO run",
    )
    upgrade(database)
    ((granted,),) = as_owner(database, "SELECT relacl::text FROM pg_class WHERE oid = to_regclass('runs')")
    assert f"{role}=r/" in granted
    assert "{=r/" in granted or ",=r/" in granted


def test_where_views_cannot_be_compared_that_is_said(database: str) -> None:
    Store.open(database, write=True, create=True).close()
    read_only = f"{database}%20-cdefault_transaction_read_only%3Don"
    with Store.open(read_only) as store, pytest.raises(LedgerError, match="cannot be compared") as raised:
        store.runs()
    assert "temporary views" in str(raised.value)
