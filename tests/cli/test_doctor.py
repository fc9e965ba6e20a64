"""`tally doctor`: each check says ok on a sound machine and speaks up for the fault that it is there for."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from ledger.errors import install
from realizer.cli import doctor
from realizer.nvml import Device
from realizer.procfs import ProcFS
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


def test_a_pin_that_is_none_is_a_problem(
    tally: Tally, ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tally("supersede", FIRST, "--by", SECOND, "--reason", "x").code == 0
    (pin,) = (path for path in (tmp_path / "state" / "pins").iterdir() if path.suffix != ".lock")
    pin.write_text("something else")
    code, by = found(tally, doctor.ledger_and_pin, monkeypatch=monkeypatch)
    assert (code, by["ledger"]["state"], by["pin"]["state"]) == (1, "ok", "problem")
    assert str(pin) in by["pin"]["found"]


def test_too_little_disk_space_is_a_problem(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    code, by = found(tally, doctor.space, monkeypatch=monkeypatch)
    assert (code, by["space for ledger"]["state"], by["space for pins"]["state"]) == (0, "ok", "ok")
    usage = shutil.disk_usage(".")._replace(free=doctor.LITTLE - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    code, by = found(tally, doctor.space, monkeypatch=monkeypatch)
    assert (code, by["space for ledger"]["state"], by["space for pins"]["state"]) == (1, "problem", "problem")


def test_a_state_folder_that_is_none_is_a_problem(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TALLY_STATE_DIR", str(tmp_path / "file" / "state"))
    code, by = found(tally, doctor.space, monkeypatch=monkeypatch)
    assert (code, by["folder of pins"]["state"]) == (1, "problem")
    assert "TALLY_STATE_DIR" in by["folder of pins"]["remedy"]


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
    code, by = found(tally, doctor.clashes, monkeypatch=monkeypatch)
    assert (code, by["package adapters"]["state"]) == (1, "problem")
    assert "environment of its own" in by["package adapters"]["remedy"]
    monkeypatch.setattr(doctor, "packages_distributions", lambda: {"adapters": ["tallystick", "tallystick"]})
    assert found(tally, doctor.clashes, monkeypatch=monkeypatch) == (0, {})


def test_a_folder_that_hides_a_package_of_ours_is_a_problem(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "migrations", raising=False)
    code, by = found(tally, doctor.clashes, monkeypatch=monkeypatch)
    assert (code, set(by)) == (1, {"package migrations"})
    assert str(tmp_path / "migrations") in by["package migrations"]["found"]


def test_an_adapter_that_cannot_be_imported_is_told(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    broken = EntryPoint("broken", "no_such_module:Adapter", "tallystick.adapters")
    monkeypatch.setattr("realizer.adapter._entry_points", lambda: (broken,))
    code, by = found(tally, doctor.adapters, monkeypatch=monkeypatch)
    assert (code, by["adapter broken"]["state"]) == (0, "note")
    assert "no_such_module" in by["adapter broken"]["found"]


def test_a_missing_optional_package_is_a_note_naming_its_extra(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", ("no-such-package",))
    code, by = found(tally, doctor.versions, monkeypatch=monkeypatch)
    assert (code, by["no-such-package"]["state"]) == (0, "note")
    assert by["no-such-package"]["remedy"] == f"where it is needed, {install('realize')}"


def test_an_sqlite_that_loses_commits_is_told(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    class Affected:
        __name__ = "sqlite3"
        sqlite_version = "3.40.1"
        sqlite_version_info = (3, 40, 1)

    monkeypatch.setattr("ledger.sqlite.sqlite_driver", Affected)
    _, by = found(tally, doctor.sqlite, monkeypatch=monkeypatch)
    assert by["SQLite"]["state"] == "note"
    assert "delete" in by["SQLite"]["found"]


def test_the_machine_is_looked_at(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    _, by = found(tally, doctor.machine, monkeypatch=monkeypatch)
    assert by["Compute Unit cpu"]["state"] == "ok"
    assert by["memory ram"]["state"] == "ok"


def test_what_of_proc_cannot_be_read_is_told(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    _, by = found(tally, doctor.machine, monkeypatch=monkeypatch)
    assert "probes" in by or any(subject.startswith(("process ", "host ")) for subject in by)
    monkeypatch.setattr("realizer.probes.ProcFS", lambda: ProcFS(tmp_path / "none"))
    code, by = found(tally, doctor.machine, monkeypatch=monkeypatch)
    assert (code, by["process rss_anon"]["state"], "probes" in by) == (0, "note", False)
    assert "cannot be read here" in by["process rss_anon"]["found"]
    assert "INDETERMINATE" in by["process rss_anon"]["remedy"]


def test_a_device_that_torch_cannot_use_is_told(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")

    class Shown:
        problem = None
        devices = (Device("cuda:0", None, "GPU-1", "Some GPU"),)

        def close(self) -> None:
            pass

    monkeypatch.setattr("realizer.nvml.Devices", Shown)
    monkeypatch.setattr("realizer.environment._cuda", lambda facts: [])
    code, by = found(tally, doctor.machine, monkeypatch=monkeypatch)
    assert (code, by["GPU"]["state"]) == (0, "note")
    assert by["GPU"]["found"] == "the driver shows 1 (Some GPU), torch can use 0"
    Shown.devices = ()
    _, by = found(tally, doctor.machine, monkeypatch=monkeypatch)
    assert by["GPU"]["state"] == "ok"


def test_the_whole_of_it_fits_80_columns(tally: Tally, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", tuple(check for check in doctor.CHECKS if check is not doctor.machine))
    monkeypatch.setenv("COLUMNS", "80")
    ran = tally("doctor")
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "SQLite" in ran.out
