"""`tally doctor`: each check says ok on a sound machine and speaks up for the fault that it is there for."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from realizer.cli import doctor
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, SECOND


def found(tally: Tally, *checks: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status, and what was found by subject, by these checks alone."""
    monkeypatch.setattr(doctor, "CHECKS", checks)
    ran = tally("doctor", "--json")
    return ran.code, {diagnosis["subject"]: diagnosis for diagnosis in ran.json["diagnoses"]}


def test_a_sound_ledger_and_its_pin(tally: Tally, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, by = found(tally, doctor.ledger_and_pin, doctor.sqlite, monkeypatch=monkeypatch)
    assert (code, by["ledger"]["state"], by["pin"]["state"]) == (0, "ok", "note")
    assert tally("supersede", FIRST, "--by", SECOND, "--reason", "x").code == 0
    code, by = found(tally, doctor.ledger_and_pin, monkeypatch=monkeypatch)
    assert (code, by["pin"]["state"]) == (0, "ok")


def test_no_ledger_is_a_note_and_none_is_made(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, by = found(tally, doctor.ledger_and_pin, monkeypatch=monkeypatch)
    assert (code, by["ledger"]["state"]) == (0, "note")
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_is_a_problem(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tally.db").write_text("something else")
    code, by = found(tally, doctor.ledger_and_pin, monkeypatch=monkeypatch)
    assert (code, by["ledger"]["state"]) == (1, "problem")


def test_missing_guards_and_a_rollback_are_problems(
    tally: Tally, ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ledger, tmp_path / "old.db")
    assert tally("supersede", FIRST, "--by", SECOND, "--reason", "x").code == 0
    shutil.copy(tmp_path / "old.db", ledger)
    for suffix in ("-wal", "-shm"):
        Path(f"{ledger}{suffix}").unlink(missing_ok=True)
    connection = sqlite3.connect(ledger)
    (name,) = connection.execute("select name from sqlite_master where type = 'trigger' limit 1").fetchone()
    connection.execute(f"drop trigger {name}")
    connection.commit()
    connection.close()
    code, by = found(tally, doctor.ledger_and_pin, monkeypatch=monkeypatch)
    assert (code, by["ledger"]["state"], by["pin"]["state"]) == (1, "problem", "problem")
    assert name in by["ledger"]["found"]
    assert "rollback" in by["pin"]["found"]


def test_a_key_that_others_may_read_is_a_problem(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tally("keygen", "-o", "k.pem", "--no-passphrase").code == 0
    code, by = found(tally, doctor.keys, monkeypatch=monkeypatch)
    assert (code, by["key k.pem"]["state"]) == (0, "ok")
    (tmp_path / "k.pem").chmod(0o644)
    code, by = found(tally, doctor.keys, monkeypatch=monkeypatch)
    assert (code, by["key k.pem"]["state"]) == (1, "problem")
    assert "chmod 600" in by["key k.pem"]["remedy"]


def test_another_package_of_the_same_name_is_a_problem(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "packages_distributions", lambda: {"adapters": ["tallystick", "adapters"]})
    code, by = found(tally, doctor.adapters, monkeypatch=monkeypatch)
    assert (code, by["package adapters"]["state"]) == (1, "problem")
    monkeypatch.setattr(doctor, "packages_distributions", lambda: {"adapters": ["tallystick", "tallystick"]})
    code, by = found(tally, doctor.adapters, monkeypatch=monkeypatch)
    assert (code, "package adapters" in by) == (0, False)


def test_a_missing_optional_package_is_a_note_naming_its_extra(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", ("no-such-package",))
    code, by = found(tally, doctor.versions, monkeypatch=monkeypatch)
    assert (code, by["no-such-package"]["state"]) == (0, "note")
    assert "tallystick[realize]" in by["no-such-package"]["remedy"]


def test_an_sqlite_that_loses_commits_is_told(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    class Affected:
        __name__ = "sqlite3"
        sqlite_version = "3.40.1"
        sqlite_version_info = (3, 40, 1)

    monkeypatch.setattr("ledger.database.sqlite_driver", Affected)
    _, by = found(tally, doctor.sqlite, monkeypatch=monkeypatch)
    assert by["SQLite"]["state"] == "note"
    assert "delete" in by["SQLite"]["found"]


def test_the_machine_is_looked_at(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    _, by = found(tally, doctor.machine, monkeypatch=monkeypatch)
    assert by["Compute Unit cpu"]["state"] == "ok"
    assert by["memory ram"]["state"] == "ok"


def test_the_whole_of_it_fits_80_columns(tally: Tally, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", tuple(check for check in doctor.CHECKS if check is not doctor.machine))
    monkeypatch.setenv("COLUMNS", "80")
    ran = tally("doctor")
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "SQLite" in ran.out
