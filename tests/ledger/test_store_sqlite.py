"""What only a ledger in a file can meet: foreign and odd files, permissions, journal modes, forks, backups."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import pytest

from ledger import database, schema, sqlite
from ledger.bodies import RunSuperseded
from ledger.canonical import sha256_digest
from ledger.errors import LedgerBroken, LedgerError, TallyError
from ledger.maintenance import backup, check
from ledger.migrate import upgrade
from ledger.query import run_query
from ledger.recording import uuid7
from ledger.store import Store
from tests.builders.judged import draft, run_id
from tests.builders.ledgers import record_run, small_drafts
from tests.zoo import ledgers


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger with one run, closed."""
    path = tmp_path / "tally.db"
    with Store.open(path, write=True, create=True) as store:
        record_run(store)
    return path


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with the digest of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def stamped(path: Path, application_id: int, user_version: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE other (x)")
    connection.execute(f"PRAGMA application_id = {application_id}")
    connection.execute(f"PRAGMA user_version = {user_version}")
    connection.commit()
    connection.close()


def foreign_wal(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("CREATE TABLE other (x)")
    connection.close()


ODD_FILES = {
    "text": (lambda path: path.write_text("not a database, and longer than a header " * 9), "not an SQLite file"),
    "short": (lambda path: path.write_bytes(b"SQLite format 3\x00"), "not an SQLite file"),
    "empty": (lambda path: path.write_bytes(b""), "is empty and no ledger"),
    "folder": (lambda path: path.mkdir(), "it is not a file"),
    "other program's": (lambda path: stamped(path, 0, 0), "another program's database"),
    "other program's, with a log": (foreign_wal, "another program's database"),
    "newer": (lambda path: stamped(path, schema.APPLICATION_ID, schema.VERSION + 1), "this program knows up to"),
    "absent": (lambda path: None, "no ledger at"),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_ledger_is_refused_and_left_untouched(tmp_path: Path, kind: str) -> None:
    make, message = ODD_FILES[kind]
    path = tmp_path / "tally.db"
    make(path)
    before = contents(tmp_path)
    attempts = [
        lambda: Store.open(path),
        lambda: Store.open(path, write=True),
        lambda: Store.open(f"sqlite:///{path}"),
        lambda: run_query(path, "SELECT 1", {}),
        lambda: check(path),
        lambda: upgrade(path),
        lambda: backup(path, tmp_path / "backup.db"),
    ]
    if kind != "absent":
        attempts.append(lambda: Store.open(path, write=True, create=True))
    for attempt in attempts:
        with pytest.raises(LedgerError, match=message):
            attempt()
        assert contents(tmp_path) == before


def test_an_older_ledger_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "tally.db"
    stamped(path, schema.APPLICATION_ID, schema.VERSION - 1)
    with pytest.raises(LedgerError, match="tally db upgrade"):
        Store.open(path)


def test_a_path_that_cannot_be_looked_at_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 300), tmp_path / "file" / "tally.db"):
        (tmp_path / "file").touch()
        for write in (False, True):
            with pytest.raises(LedgerError):
                Store.open(path, write=write, create=write)
    assert list(contents(tmp_path)) == ["file"]


def test_an_url_of_another_kind_names_no_ledger() -> None:
    with pytest.raises(LedgerError, match=r"mysql://me:\*\*\*@host/x names no ledger"):
        Store.open("mysql://me:secret@host/x")


def test_no_ledger_is_begun_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no folder"):
        Store.open(tmp_path / "no" / "tally.db", write=True, create=True)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_read_only_ledger_can_be_read_and_not_written(ledger: Path, what: str) -> None:
    target = ledger if what == "file" else ledger.parent
    target.chmod(0o444 if what == "file" else 0o555)
    before = contents(ledger.parent)
    try:
        with pytest.raises(LedgerError, match="is read-only"):
            Store.open(ledger, write=True)
        with pytest.raises(LedgerError, match="is read-only"):
            upgrade(ledger)
        if what == "folder":
            with pytest.raises(LedgerError, match="is read-only"):
                Store.open(ledger.with_name("new.db"), write=True, create=True)
        with Store.open(ledger) as store:
            assert store.size() > 0
            assert len(list(store.recorded())) == store.size()
    finally:
        target.chmod(0o755)
    assert contents(ledger.parent) == before


def test_reading_leaves_the_folder_as_it_was(ledger: Path) -> None:
    before = contents(ledger.parent)
    with Store.open(ledger) as store:
        assert store.runs()
    run_query(ledger, "SELECT * FROM runs", {})
    check(ledger)
    assert contents(ledger.parent) == before


def test_a_reader_that_closes_does_not_disturb_a_writer(ledger: Path) -> None:
    run_id = uuid7()
    with Store.open(ledger, write=True) as writer:
        size = writer.size()
        writer.append(run_id, 0, small_drafts(run_id, 2))
        with Store.open(ledger) as reader:
            assert reader.size() == size + 2
        writer.append(run_id, 2, small_drafts(run_id, 2, start=2))
    with Store.open(ledger) as reader:
        assert reader.size() == size + 4


def test_writers_are_durable_by_pragma(ledger: Path) -> None:
    with Store.open(ledger, write=True) as store:
        run_id = uuid7()
        store.append(run_id, 0, small_drafts(run_id, 1))
        assert isinstance(store.base, sqlite.SqliteDatabase)
        connection = store.base.connect_for_upgrade()
        found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert found == (["wal", 2] if store.base.journal == "wal" else ["delete", 3])
        assert connection.execute("PRAGMA trusted_schema").fetchone()[0] == (0 if store.base.journal == "wal" else 1)


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 4), False),
    ],
)
def test_versions_that_may_lose_commits(version: tuple[int, int, int], affected: bool) -> None:
    assert sqlite.loses_commits(version) is affected


def test_with_an_affected_sqlite_the_journal_is_turned_back(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger in WAL mode, then a writer that has only an affected SQLite: DELETE and EXTRA, and it is said."""
    monkeypatch.setattr(sqlite, "loses_commits", lambda version: True)
    assert sqlite.sqlite_driver() is sqlite3
    with Store.open(ledger, write=True) as store:
        run_id = uuid7()
        store.append(run_id, 0, small_drafts(run_id, 3))
        assert isinstance(store.base, sqlite.SqliteDatabase)
        connection = store.base.connect_for_upgrade()
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 3
        size = store.size()
        assert len(store.runs()) == 2
        (notice,) = store.notices
        assert "delete journal and synchronous EXTRA" in notice
    assert run_query(ledger, "SELECT count(*) AS n FROM memory_samples", {}).rows == [(10,)]
    found = check(ledger)
    assert (found["journal"], found["sqlite_may_lose_commits"]) == ("delete", True)
    assert "journal delete, synchronous EXTRA" in found["durable_with"]
    monkeypatch.undo()
    with Store.open(ledger, write=True) as store:
        store.append(run_id, 3, small_drafts(run_id, 1, start=3))
        assert store.size() == size + 1


def test_a_ledger_that_cannot_leave_wal_is_not_written(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sqlite.journal_for(sqlite.sqlite_driver())[0] != "wal":
        pytest.skip("this SQLite is affected, so the ledger was never in WAL mode")
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0)
    with Store.open(ledger, write=True) as other:
        run_id = uuid7()
        other.append(run_id, 0, small_drafts(run_id, 1))
        other.size()
        monkeypatch.setattr(sqlite, "loses_commits", lambda version: True)
        # The same library twice, as another process would have it: two libraries in one process break each other's locks.
        monkeypatch.setattr(sqlite, "sqlite_driver", lambda: other.base.driver)
        with Store.open(ledger, write=True) as store, pytest.raises(LedgerError, match=r"journal mode wal|locked"):
            store.append(run_id, 1, small_drafts(run_id, 1, start=1))
        assert other.size() == other.next_sequence(run_id) + 42


def test_a_store_carried_over_a_fork_is_refused(ledger: Path) -> None:
    with Store.open(ledger, write=True) as store:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                store.size()
                os.write(write, b"read on")
            except LedgerError as error:
                os.write(write, error.message.encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        assert b"opened before a fork" in os.read(read, 1000)
        os.close(read)
        assert store.size() > 0


def test_a_writer_that_waits_too_long_says_so(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0)
    run_id = uuid7()
    with Store.open(ledger, write=True) as one, Store.open(ledger, write=True) as other:
        with one.base.transaction() as transaction:
            assert transaction.select("SELECT 1") == [(1,)]
            with pytest.raises(LedgerError, match="stayed locked by another writer"):
                other.append(run_id, 0, small_drafts(run_id, 1))
        other.append(run_id, 0, small_drafts(run_id, 1))


def test_a_full_disk_loses_nothing_that_was_acknowledged(ledger: Path) -> None:
    run_id = uuid7()
    with Store.open(ledger, write=True) as store:
        store.append(run_id, 0, small_drafts(run_id, 1))
        assert isinstance(store.base, sqlite.SqliteDatabase)
        connection = store.base.connect_for_upgrade()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        size = store.size()
        with pytest.raises(LedgerError, match="full"):
            store.append(run_id, 1, small_drafts(run_id, 500, start=1))
        assert store.size() == size
        connection.execute("PRAGMA max_page_count = 1000000")
        store.append(run_id, 1, small_drafts(run_id, 500, start=1))
        assert store.size() == size + 500


def test_two_processes_that_begin_one_ledger_share_it(tmp_path: Path) -> None:
    path = tmp_path / "tally.db"
    statements = schema.create_statements("sqlite")
    sqlite.create_sqlite(path, statements, ("first", "2026"))
    sqlite.create_sqlite(path, statements, ("second", "2026"))
    with Store.open(path, write=True, create=True) as store:
        assert store.origin == "first"
    assert list(contents(tmp_path)) == ["tally.db"]


def test_a_table_made_anew_without_its_keys_is_seen(ledger: Path) -> None:
    """Columns that are not generated could say anything; putting triggers back does not make it sound."""
    connection = sqlite3.connect(ledger)
    kept = connection.execute("SELECT position, envelope, hash FROM events ORDER BY position").fetchall()
    for view in ("runs", "materializations", "tensors", "releases", "authorities", "executions"):
        connection.execute(f"DROP VIEW {view}")
    connection.execute("PRAGMA legacy_alter_table = ON")
    connection.execute("DROP TABLE events")
    columns = "position, envelope, hash, event_id, run_id, sequence, type, recorded_at, node_id, materialization_id, tensors_blob"
    connection.execute(f"CREATE TABLE events ({columns})")
    connection.executemany("INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)", kept)
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match=r"are gone, or not this program's: .*, events, events_by_blob"):
        Store.open(ledger, write=True)
    with pytest.raises(LedgerBroken, match="could not be put back: sqlite_autoindex_events_1"):
        upgrade(ledger)


def test_a_run_of_odd_form_is_broken_not_a_traceback(ledger: Path) -> None:
    connection = sqlite3.connect(ledger)
    connection.execute("DROP TRIGGER events_no_update")
    connection.execute(
        "UPDATE events SET envelope = replace(envelope, '\"realization\"', '7') WHERE type = 'run.opened'"
    )
    connection.execute(schema.guards("sqlite")["events_no_update"])
    connection.commit()
    connection.close()
    with Store.open(ledger) as store, pytest.raises(LedgerBroken, match="whose purpose has not the form"):
        store.runs()


# --- backup -------------------------------------------------------------------------------------------------------


def test_a_backup_holds_all_and_stands_alone(ledger: Path, tmp_path: Path) -> None:
    copied = tmp_path / "backup.db"
    with Store.open(ledger, write=True) as store:
        digest = store.put_blob(b"plan", "application/json")
        run_id = uuid7()
        store.append(run_id, 0, small_drafts(run_id, 3))
        backup(ledger, copied)  # while a writer has it open, its newest events still in the log
        everything, origin = list(store.recorded()), store.origin
    assert not Path(f"{copied}-wal").exists()
    with Store.open(copied, write=True) as store:
        assert (list(store.recorded()), store.origin, store.blob(digest)) == (everything, origin, b"plan")
        store.append(run_id, 3, small_drafts(run_id, 1, start=3))


def test_a_backup_never_overwrites(ledger: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(LedgerError, match="exists already"):
        backup(ledger, taken)
    with pytest.raises(LedgerError, match="no such folder"):
        backup(ledger, tmp_path / "no" / "backup.db")
    assert taken.read_text() == "mine"
    assert sorted(contents(tmp_path)) == ["taken", "tally.db"]


@pytest.mark.parametrize("damage", ["event", "blob", "guard", "page"])
def test_a_backup_that_differs_is_not_delivered(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    with Store.open(ledger, write=True) as store:
        digest = store.put_blob(b"plan", "application/json")
    from ledger import maintenance

    verify = maintenance.verify_backup

    def damaged(source: database.Database, path: Path) -> None:
        if damage == "page":
            data = bytearray(path.read_bytes())
            place = data.find(b"UNIQUE")
            data[4096:8192] = b"\xff" * 4096
            assert place >= 0
            path.write_bytes(data)
        else:
            connection = sqlite3.connect(path)
            for name in schema.SQLITE_GUARDS:
                connection.execute(f"DROP TRIGGER {name}")
            if damage == "event":
                connection.execute("UPDATE events SET envelope = replace(envelope, 'PASS', 'pass'), hash = upper(hash)")
            elif damage == "blob":
                connection.execute("UPDATE blobs SET data = x'00' WHERE digest = ?", (digest,))
            if damage != "guard":
                for sql in schema.guards("sqlite").values():
                    connection.execute(sql)
            connection.commit()
            connection.close()
        verify(source, path)

    monkeypatch.setattr(maintenance, "verify_backup", damaged)
    with pytest.raises(LedgerBroken):
        backup(ledger, tmp_path / "backup.db")
    assert sorted(contents(tmp_path)) == ["tally.db"]


def test_a_damaged_file_is_broken_not_a_traceback(ledger: Path) -> None:
    data = bytearray(ledger.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 200] = b"\xff" * 200
    ledger.write_bytes(data)
    with pytest.raises(TallyError) as raised:
        Store.open(ledger)
    assert isinstance(raised.value, LedgerBroken)
    assert raised.value.exit_code == 4


def test_check_sees_a_damaged_index(ledger: Path) -> None:
    connection = sqlite3.connect(ledger)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_master SET sql = replace(sql, 'type, run_id', 'run_id, type') WHERE name = 'events_by_type'"
    )
    connection.commit()
    connection.close()
    found = check(ledger)
    assert found["integrity"] != "ok"
    assert any("damaged" in problem for problem in found["problems"])


def test_replacement_is_refused_whatever_the_connection_sets(ledger: Path) -> None:
    """OR REPLACE would delete the old row without a delete trigger; the guard stops it on a connection of anybody's."""
    connection = sqlite.sqlite_driver().connect(str(ledger))
    before = connection.execute("SELECT position, envelope, hash FROM events ORDER BY position").fetchall()
    position, envelope, digest = before[3]
    other = before[5]
    for row in (
        (position, other[1], "f" * 64),
        (len(before), "{}", digest),
        (len(before), envelope, "f" * 64),
        (None, envelope, "f" * 64),
    ):
        for verb in ("INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE"):
            with pytest.raises(sqlite.sqlite_driver().Error):
                connection.execute(f"{verb} INTO events (position, envelope, hash) VALUES (?, ?, ?)", row)
    digest = sha256_digest(b"x")
    connection.execute("INSERT INTO blobs VALUES (?, 'text/plain', x'78')", (digest,))
    with pytest.raises(sqlite.sqlite_driver().Error, match="digest is taken"):
        connection.execute("INSERT OR REPLACE INTO blobs VALUES (?, 'text/plain', x'79')", (digest,))
    assert connection.execute("SELECT position, envelope, hash FROM events ORDER BY position").fetchall() == before
    connection.close()


def test_a_ledger_read_through_a_link_leaves_no_log_behind(tmp_path: Path) -> None:
    """SQLite keeps the log beside the file, wherever the link is."""
    (tmp_path / "real").mkdir()
    path, link = tmp_path / "real" / "tally.db", tmp_path / "link.db"
    with Store.open(path, write=True, create=True) as store:
        store.append("01920000-0000-7000-8000-000000000001", 0, small_drafts("01920000-0000-7000-8000-000000000001", 2))
    link.symlink_to(path)
    with Store.open(link) as store:
        assert store.size() == 2
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["link.db", "real", "tally.db"]


def test_a_log_is_looked_for_beside_the_file_that_a_link_names(tmp_path: Path) -> None:
    """Else a file that cannot be locked is read without its log, and what was committed last is not seen."""
    path, link = tmp_path / "tally.db", tmp_path / "link.db"
    (tmp_path / "tally.db-wal").write_bytes(b"x")
    link.symlink_to(path)
    assert sqlite.SqliteDatabase(link)._log_exists()


def test_an_event_that_an_index_gives_to_another_run_is_refused(tmp_path: Path) -> None:
    """`tally verify` names the index; until then nobody is shown one run's events, or appends to its end, as another's."""
    path = ledgers.good(tmp_path / "t.db")
    ledgers.indexes_exchange_runs(path)
    first = run_id(1)
    with Store.open(path, write=True) as store:
        with pytest.raises(
            LedgerBroken, match=f"asked for sequence 0 of run {first}, the event there has sequence 0 of"
        ):
            list(store.recorded(first))
        end = store.next_sequence(run_id(2))
        with pytest.raises(LedgerBroken, match=f"asked for sequence {end - 1} of run {run_id(2)}"):
            store.append(run_id(2), end, [draft(RunSuperseded(reason="x", by=first), run_id(2), end)])


@pytest.mark.parametrize(
    ("end", "stands"),
    [
        (',"run_id":"R","sequence":7,"type":"run.closed","type_version":1,"v":1}', True),
        (',"run_id":"R","sequence":7,"type":"of.tomorrow","type_version":12,"v":3}', True),
        (',"run_id":"R","sequence":8,"type":"run.closed","type_version":1,"v":1}', False),
        (',"run_id":"S","sequence":7,"type":"run.closed","type_version":1,"v":1}', False),
        (',"run_id":"R","sequence":7.0,"type":"run.closed","type_version":1,"v":1}', False),
        (',"run_id":"R","sequence":7,"type":"run.closed","type_version":1,"v":1} ', False),
        (',"run_id":"R","sequence":7,"type":"run.closed","type_version":1,"v":1},"run_id":"S"}', False),
        (
            ',"run_id":"R","sequence":7,"type":"x","run_id":"S","sequence":7,"type":"run.closed","type_version":1,"v":1}',
            False,
        ),
        (',"run_id":"R","sequence":7,"type":"' + "x" * 400 + '","type_version":1,"v":1}', False),
        ("", False),
    ],
)
def test_an_events_place_is_read_off_its_end(tmp_path: Path, end: str, stands: bool) -> None:
    with Store.open(ledgers.good(tmp_path / "t.db")) as store:
        for envelope in ('{"actor":{}' + end, '{"body":"' + "x" * 900 + '"' + end):
            if stands:
                store._refuse_misplaced(3, envelope, "R", 7)
            else:
                with pytest.raises(LedgerBroken, match=r"position 3: asked for sequence 7 of run R"):
                    store._refuse_misplaced(3, envelope, "R", 7)
        for run, sequence in (('R","sequence":7,"type":"run.closed', 7), ("R", 7.0), ("R", None), ("R", -7)):
            odd = f'{{"a":1,"run_id":"{run}","sequence":{sequence},"type":"run.closed","type_version":1,"v":1}}'
            with pytest.raises(LedgerBroken, match="position 3: asked for"):
                store._refuse_misplaced(3, odd, run, sequence)


def test_an_event_that_an_index_gives_another_type_is_no_freezing(tmp_path: Path) -> None:
    path = ledgers.good(tmp_path / "t.db")
    ledgers._lie(path, "type", "'plan.frozen'", "events_by_type")
    with Store.open(path) as store, pytest.raises(LedgerBroken, match=r"asked for a plan\.frozen"):
        store.frozen("sha256:" + "0" * 64)
