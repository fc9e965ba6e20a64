"""Every bad ledger is named as what it is, at its first bad position; the good one passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.audit import verify_ledger
from ledger.errors import LedgerError
from tests.zoo import ledgers


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zoo")
    path = ledgers.good(folder / "good.db")
    (folder / "good.pin").write_bytes(ledgers.pinned(path))
    return path


def test_the_good_ledger_is_valid_with_its_pin_and_unanchored_without(good: Path) -> None:
    with_pin = verify_ledger(good, pin=good.with_suffix(".pin"), use_state=False)
    assert (with_pin.status, with_pin.problems) == ("valid", [])
    assert set(with_pin.checks.model_dump().items()) >= {
        ("chain", "ok"), ("plan", "ok"), ("blobs", "ok"), ("pin", "ok"), ("judge", "not-checked"),
    }  # fmt: skip
    without = verify_ledger(good, use_state=False)
    assert (without.status, without.problems, without.checks.pin) == ("valid-unanchored", [], "not-checked")
    assert without.verdict is None


@pytest.mark.parametrize("name", sorted(ledgers.BAD))
def test_a_bad_ledger_is_named(name: str, good: Path, tmp_path: Path) -> None:
    bad = ledgers.BAD[name]
    path = tmp_path / "bad.db"
    ledgers.make(name, good, path)
    found = verify_ledger(path, pin=good.with_suffix(".pin"), use_state=False)
    assert found.status == "broken"
    assert found.problems[0].code == bad.code, found.problems
    if name == "page-damaged":  # where SQLite laid the page out is not ours to say
        assert found.problems[0].position is not None
    else:
        assert found.problems[0].position == bad.position, found.problems
    alone = verify_ledger(path, use_state=False)
    if bad.by_pin:
        # Every row fits every other: without something kept elsewhere nobody can tell.
        assert alone.status == "valid-unanchored", alone.problems
    else:
        assert alone.status == "broken"
        assert alone.problems[0].code == bad.code


def test_every_kind_of_problem_of_a_ledger_is_in_the_zoo() -> None:
    kinds = {"content", "linkage", "gap", "unknown-type", "blob-missing", "blob-altered", "tail", "rollback", "fork"}
    assert {bad.code for bad in ledgers.BAD.values()} == kinds


def test_a_file_that_is_no_ledger_is_an_error_and_not_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database")
    with pytest.raises(LedgerError):
        verify_ledger(tmp_path / "text.db", use_state=False)
    with pytest.raises(LedgerError):
        verify_ledger(tmp_path / "absent.db", use_state=False)
    assert not (tmp_path / "absent.db").exists()
