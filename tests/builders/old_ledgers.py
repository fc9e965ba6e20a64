"""Ledgers as programs of older schema versions left them, made by the migrations' own steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger import database, migrate, schema, sqlite
from ledger.canonical import event_hash
from ledger.events import first_previous
from ledger.postgres import PostgresDatabase
from ledger.sqlite import SqliteDatabase
from tests.builders.ledgers import small_drafts

RUN = "0192aaaa-0000-7000-8000-000000000001"
ORIGIN = ("0192aaaa-0000-7000-8000-00000000000f", "2026-11-29T12:00:00.000000Z")


def migrated(location: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger as the program of that schema version left it: made by the steps alone, with two events."""
    base: Any
    if database.is_postgres(location):
        base = PostgresDatabase(location)
    else:
        sqlite.sqlite_driver().connect(location).close()
        base = SqliteDatabase(Path(location))
    with monkeypatch.context() as patched:
        patched.setattr(schema, "VERSION", version)
        patched.setattr(migrate, "_restore_guards", lambda base, connection: None)
        engine = migrate._engine(base)
        with engine.begin() as connection:
            patched.setattr(schema, "revision", lambda number=version: f"{number:04d}")
            migrate._run_steps(connection)
        engine.dispose()
    base.close()
    base = PostgresDatabase(location) if database.is_postgres(location) else SqliteDatabase(Path(location))
    previous = None
    with base.transaction() as transaction:
        transaction.execute("INSERT INTO ledger (origin, created_at) VALUES (?, ?)", ORIGIN)
        for position, draft in enumerate(small_drafts(RUN, 2)):
            envelope = draft.seal(position, previous or first_previous(draft.body))
            previous = event_hash(envelope)
            transaction.insert(
                "INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)", [(position, envelope, previous)]
            )
    base.close()
