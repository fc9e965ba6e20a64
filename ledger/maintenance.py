"""Looking after a ledger: back it up, copy it between backends, and say what state it is in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ledger import canonical, database, schema, sqlite, store
from ledger.database import Database
from ledger.errors import LedgerBroken, LedgerError
from ledger.postgres import PostgresDatabase
from ledger.sqlite import SqliteDatabase
from ledger.store import Store

EVENTS_A_COMMIT = 2_000


def backup(source: str | Path, destination: Path) -> None:
    """Copy an SQLite ledger to a new file through SQLite's backup API, while others may write, and verify the copy.

    The copy is whole or not there: it is written beside its place, checked, synced and then put into it. Raises
    LedgerError when the destination exists, LedgerBroken when what was written does not hold what was read.
    """
    if database.is_postgres(source):
        raise LedgerError(
            "a PostgreSQL ledger is backed up with PostgreSQL's own tools",
            f"`tally db copy {database.hide_password(str(source))} {destination}` writes it to a file",
        )
    path = database.sqlite_path(source)
    database.refuse_version(sqlite.identify_sqlite(path), str(path))
    if destination.exists():
        raise LedgerError(f"{destination} exists already", "name a new file")
    if not destination.absolute().parent.is_dir():
        raise LedgerError(f"cannot write {destination}: there is no such folder", "make the folder first")
    base = SqliteDatabase(path)
    draft = destination.with_name(f".{destination.name}.{os.getpid()}.new")
    try:
        target = base.driver.connect(str(draft), isolation_level=None)
        try:
            # All pages in one step: with a log writers go on meanwhile, and their writes do not restart it.
            base.reader().backup(target, pages=-1)
            target.execute("PRAGMA synchronous = EXTRA")
            # The copy stands alone: no log beside it that could be left behind.
            target.execute("PRAGMA journal_mode = delete").fetchall()
        finally:
            target.close()
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        verify_backup(base, draft)
        os.link(draft, destination)
        sqlite.sync_folder(destination.absolute().parent)
    except base.driver.Error as error:
        raise LedgerError(
            f"the backup to {destination} failed: {error}", "free space, or name another place"
        ) from error
    except OSError as error:
        raise LedgerError(f"the backup to {destination} failed: {error.strerror}", "name another place") from error
    finally:
        base.close()
        draft.unlink(missing_ok=True)


def verify_backup(source: Database, path: Path) -> None:
    """Raise LedgerBroken unless the file is sound and holds the source's rows, up to where it was copied.

    The source may have grown meanwhile, so it is the copy's rows that are laid against the source's.
    """
    copied = SqliteDatabase(path)
    try:
        problems = [row[0] for row in copied.select("PRAGMA integrity_check")]
        if problems != ["ok"]:
            raise LedgerBroken(f"the copy is damaged: {problems[0]}", "the disk is not to be trusted: write elsewhere")
        missing = copied.missing_guards()
        if missing:
            raise LedgerBroken(f"the copy has no guards: {', '.join(missing)}", "`tally db upgrade` on the source")
        ((events,),) = copied.select("SELECT count(*) FROM events")
        _compare_rows(source, copied, events)
    finally:
        copied.close()


def copy(source: str | Path, destination: str | Path) -> None:
    """Copy a ledger into a new one, on either backend, byte for byte: events, blobs, checkpoints and origin; verify it.

    A copy that stopped halfway is continued when the destination holds the beginning of the same ledger. Raises
    LedgerError when it holds anything else, LedgerBroken when the source's rows are not what their hashes say.
    """
    with Store.open(source) as read:
        _begin(destination, read)
        with Store.open(destination, write=True) as written:
            _copy_events(read, written)
            copied = written.size()
            for digest in read.blob_digests():
                data, media_type = read.blob(digest), read.blob_media_type(digest)
                if data is None or media_type is None or written.put_blob(data, media_type) != digest:
                    raise LedgerBroken(f"blob {digest} is not what its digest says", "`tally verify` the source")
            for tree_size, root, note in read.checkpoints():
                written.put_checkpoint(tree_size, root, note)
            _compare_rows(read.base, written.base, copied)


def _begin(destination: str | Path, read: Store) -> None:
    """Make the destination with the source's origin, or find that it holds the beginning of the same ledger."""
    origin_row = read.base.select("SELECT origin, created_at FROM ledger")[0]
    if database.is_postgres(destination):
        base = PostgresDatabase(str(destination))
        try:
            if base.version() is None:
                store.create_postgres(base, origin_row)
        finally:
            base.close()
    else:
        path = database.sqlite_path(destination)
        if not path.exists():
            sqlite.create_sqlite(path, schema.create_statements("sqlite"), origin_row)
    with Store.open(destination) as found:
        if found.origin != read.origin:
            raise LedgerError(
                f"{found.base.shown} holds another ledger (origin {found.origin}, not {read.origin})",
                "copy into an empty place",
            )


def _copy_events(read: Store, written: Store) -> None:
    """Append the events that the destination does not have, their bytes and hashes as they stand."""
    start = written.size()
    _compare_rows(read.base, written.base, start)
    batch: list[tuple[int, str, str]] = []
    for event in read.recorded(start=start):
        if canonical.event_hash(event.envelope) != event.hash:
            raise LedgerBroken(f"event at position {event.position} is not what its hash says", "`tally verify` it")
        batch.append((event.position, event.envelope, event.hash))
        if len(batch) == EVENTS_A_COMMIT:
            written.insert_recorded(batch)
            batch = []
    written.insert_recorded(batch)


def _compare_rows(source: Database, copied: Database, events: int) -> None:
    """Raise LedgerBroken unless the first `events` rows, the copy's blobs and its checkpoints equal the source's."""
    for left, right in zip_longest(_event_rows(source, events), _event_rows(copied, events)):
        if left != right:
            place = (left or right or (0,))[0]
            raise LedgerBroken(f"the copy differs from the ledger at position {place}", "do not use the copy")
    for table, key in (("blobs", "digest"), ("checkpoints", "note"), ("ledger", "origin")):
        for (value,) in copied.select(f"SELECT {key} FROM {table}"):
            sql = f"SELECT * FROM {table} WHERE {key} = ?"
            if _plain(source.select(sql, (value,))) != _plain(copied.select(sql, (value,))):
                raise LedgerBroken(f"the copy differs from the ledger in {table}: {value}", "do not use the copy")


def _event_rows(base: Database, end: int) -> Iterator[tuple[Any, ...]]:
    after = -1
    while rows := base.select(
        "SELECT position, envelope, hash FROM events WHERE position > ? AND position < ? ORDER BY position LIMIT ?",
        (after, end, store.PAGE),
    ):
        yield from rows
        after = rows[-1][0]


def _plain(rows: list[database.Row]) -> list[database.Row]:
    """Rows with binary values as bytes, whatever the driver calls them."""
    return [tuple(bytes(v) if isinstance(v, memoryview | bytearray) else v for v in row) for row in rows]


def check(location: str | Path) -> dict[str, Any]:
    """What state a ledger is in, for `tally db check`: backend, version, guards, journal, sizes. Changes nothing.

    `problems` lists what should be repaired; it is empty for a sound ledger. What the events say is not looked at here.
    """
    if database.is_postgres(location):
        return _check_postgres(str(location))
    return _check_sqlite(database.sqlite_path(location))


def _check_sqlite(path: Path) -> dict[str, Any]:
    version = sqlite.identify_sqlite(path)
    database.refuse_newer(version, str(path))
    base = SqliteDatabase(path)
    try:
        found = _common(base, version)
        ((journal,),) = base.select("PRAGMA journal_mode")
        integrity = [row[0] for row in base.select("PRAGMA integrity_check(10)")]
        linked = base.driver.sqlite_version
        found |= {
            "journal": journal,
            "sqlite": linked,
            "sqlite_may_lose_commits": sqlite.loses_commits(base.driver.sqlite_version_info),
            "durable_with": f"journal {base.journal}, synchronous {base.synchronous}",
            "integrity": "ok" if integrity == ["ok"] else "; ".join(integrity),
            "file_bytes": path.stat().st_size,
            "log_bytes": _size(Path(f"{path}-wal")),
        }
        if integrity != ["ok"]:
            found["problems"].append(f"the file is damaged: {integrity[0]}")
        if journal == "wal" and base.journal != "wal":
            found["problems"].append(f"SQLite {linked} may lose commits in WAL mode; the next writer turns it off")
        return found
    finally:
        base.close()


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _check_postgres(location: str) -> dict[str, Any]:
    base = PostgresDatabase(location)
    try:
        version = base.version()
        if version is None:
            raise LedgerError(f"no ledger in {base.shown}", "record a run there to begin one, or name another")
        database.refuse_newer(version, base.shown)
        found = _common(base, version)
        ((server, durable, file_sync, role, may_change, size),) = base.select(
            "SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),"
            " current_user, has_table_privilege('events', 'UPDATE, DELETE, TRUNCATE'), pg_total_relation_size('events')"
        )
        found |= {
            "server": server,
            "synchronous_commit": durable,
            "fsync": file_sync,
            "role": role,
            "role_may_change_events": bool(may_change),
            "events_bytes": int(size),
        }
        if file_sync != "on":
            found["problems"].append("the server runs with fsync off: a crash may lose acknowledged events")
        return found
    finally:
        base.close()


def _common(base: Database, version: int) -> dict[str, Any]:
    """What both backends tell: version, guards, counts."""
    missing, altered = base.missing_guards(), base.altered_views()
    origins = base.select("SELECT origin FROM ledger")
    ((events, runs, blobs, blob_bytes, checkpoints),) = base.select(
        "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM events WHERE type = 'run.opened' AND sequence = 0),"
        " (SELECT count(*) FROM blobs), (SELECT coalesce(sum(length(data)), 0) FROM blobs),"
        " (SELECT count(*) FROM checkpoints)"
    )
    problems = (
        [f"guards are gone, or not this program's: {', '.join(missing)}; `tally db upgrade` puts them back"]
        if missing
        else []
    )
    if altered:
        problems.append(f"views are altered: {', '.join(altered)}; `tally db upgrade` puts them back")
    if len(origins) != 1:
        problems.append(f"the ledger has {len(origins)} origins; it should have one")
    if version < schema.VERSION:
        problems.append(f"schema {version} is older than this program's {schema.VERSION}: run `tally db upgrade`")
    return {
        "backend": base.dialect,
        "origin": ", ".join(str(origin) for (origin,) in origins),
        "version": version,
        "program_version": schema.VERSION,
        "guards": "ok" if not missing else "gone: " + ", ".join(missing),
        "events": int(events),
        "runs": int(runs),
        "blobs": int(blobs),
        "blob_bytes": int(blob_bytes),
        "checkpoints": int(checkpoints),
        "problems": problems,
    }
