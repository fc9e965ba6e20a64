"""`pin`, `db` and `verify` of a ledger: anchoring it, and what is said when it was changed."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from ledger.store import Store
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, SECOND


def tamper(location: Path, sql: str) -> None:
    """Change a ledger behind its back: guards dropped, as an attacker would."""
    connection = sqlite3.connect(location)
    triggers = [name for (name,) in connection.execute("select name from sqlite_master where type = 'trigger'")]
    definitions = [
        text for (text,) in connection.execute("select sql from sqlite_master where type = 'trigger' order by rowid")
    ]
    for name in triggers:
        connection.execute(f"drop trigger {name}")
    connection.execute(sql)
    for definition in definitions:
        connection.execute(definition)
    connection.commit()
    connection.close()


# --- verify and pin -----------------------------------------------------------------------------------------------


def test_a_clean_ledger_is_valid_unanchored_until_it_is_pinned(tally: Tally, ledger: Path, tmp_path: Path) -> None:
    document = tally("verify", "--json").json
    assert document["status"] == "valid-unanchored"
    assert (document["checks"]["judge"], document["verdict"]) == ("not-checked", None)
    ran = tally("pin", "-o", "ledger.pin", "--json")
    assert ran.code == 0, ran.err
    with Store.open(ledger) as store:
        assert (ran.json["tree_size"], ran.json["origin"]) == (store.size(), store.origin)
    ran = tally("verify", "--pin", "ledger.pin", "--json")
    assert (ran.code, ran.json["status"], ran.json["checks"]["pin"]) == (0, "valid", "ok")
    assert tally("fsck", ledger, "--pin", "ledger.pin").code == 0
    assert "VALID" in tally("verify", "--pin", "ledger.pin").out


def test_a_changed_ledger_is_broken_and_exits_4(tally: Tally, ledger: Path) -> None:
    tamper(
        ledger, "update events set envelope = replace(envelope, 'example/small', 'example/other') where position = 1"
    )
    ran = tally("verify", "--json")
    assert ran.code == 4
    assert ran.json["status"] == "broken"
    assert (ran.json["problems"][0]["code"], ran.json["problems"][0]["position"]) == ("content", 1)
    text = tally("verify")
    assert text.code == 4
    assert "BROKEN" in text.out
    assert "content" in text.out


def test_a_restored_old_file_is_a_rollback_for_verify_and_for_writers(
    tally: Tally, ledger: Path, tmp_path: Path
) -> None:
    shutil.copy(ledger, tmp_path / "old.db")
    arguments = ("supersede", FIRST, "--by", SECOND, "--reason", "x")
    assert tally(*arguments).code == 0
    ledger.unlink()
    shutil.copy(tmp_path / "old.db", ledger)
    ran = tally(*arguments)
    assert ran.code == 4
    assert "rollback" in ran.error_line
    assert tally("verify", "--json").json["problems"][0]["code"] == "rollback"
    assert tally("pin", "-o", "ledger.pin").code == 4
    assert not (tmp_path / "ledger.pin").exists()
    assert tally("runs").code == 0
    (hint,) = re.findall(r"`tally ([^`]*)`", ran.error_line)
    assert tally(*shlex.split(hint)).code == 0
    assert tally(*arguments).code == 0


def test_a_copy_that_went_on_is_named_to_whoever_appends_to_the_original(tally: Tally, ledger: Path) -> None:
    arguments = ("supersede", FIRST, "--by", SECOND, "--reason", "x", "--ledger")
    assert tally("db", "copy", ledger, "copied.db").code == 0
    assert tally(*arguments, "copied.db").code == 0
    ran = tally(*arguments, ledger)
    assert (ran.code, "another copy of this ledger may have gone on" in ran.error_line) == (4, True), ran
    assert tally("runs", "--ledger", ledger).code == 0
    (hint,) = re.findall(r"`tally ([^`]*)`", ran.error_line)
    assert tally(*shlex.split(hint)).code == 0
    assert tally(*arguments, ledger).code == 0


ALTER = "update events set envelope = replace(envelope, 'example/small', 'example/other') where position = 1"


def test_the_backup_of_an_altered_ledger_is_kept_and_not_called_verified(
    tally: Tally, ledger: Path, tmp_path: Path
) -> None:
    tamper(ledger, ALTER)
    ran = tally("db", "backup", "a copy.db")
    assert (ran.code, "verified" in ran.err, "content at position 1" in ran.error_line) == (4, False, True), ran
    assert (tmp_path / "a copy.db").exists()
    (hint,) = re.findall(r"`tally ([^`]*)`", ran.error_line)
    assert tally(*shlex.split(hint)).code == 4


def test_a_copy_of_a_ledger_that_lacks_a_document_is_not_called_verified(tally: Tally, ledger: Path) -> None:
    tamper(ledger, "delete from blobs")
    for command in (("backup", "backup.db"), ("copy", ledger, "copied.db")):
        ran = tally("db", *command)
        assert (ran.code, "verified" in ran.err, "blob-missing" in ran.error_line) == (4, False, True), ran
    assert tally("pin", "-o", "ledger.pin").code == 0, "what is pinned are the events"


@pytest.mark.parametrize("how", [(), ("--accept",)])
def test_an_altered_event_is_not_pinned(tally: Tally, ledger: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    """By the recorded hashes nothing has changed: they are computed again."""
    tamper(ledger, ALTER)
    ran = tally("pin", *how, "-o", "ledger.pin")
    assert (ran.code, "content at position 1" in ran.error_line, "tally verify" in ran.error_line) == (4, True, True)
    assert not (tmp_path / "ledger.pin").exists()


def test_a_signed_pin_is_verified_with_its_key(tally: Tally, ledger: Path) -> None:
    for name in ("a.pem", "b.pem"):
        assert tally("keygen", "-o", name, "--no-passphrase").code == 0
    assert tally("pin", "-o", "ledger.pin", "--key", "a.pem").code == 0
    assert tally("verify", "--pin", "ledger.pin", "--key", "a.pub").code == 0
    assert tally("verify", "--pin", "ledger.pin", "--key", "b.pub").code == 4
    assert tally("verify", "--key", "a.pub").code == 2


@pytest.mark.parametrize("option", ["--challenge", "--require", "--policy"])
def test_options_for_evidence_are_refused_for_a_ledger(tally: Tally, ledger: Path, option: str) -> None:
    ran = tally("verify", option, "frozen")
    assert ran.code == 2
    assert option in ran.err


def test_a_pin_that_is_none_is_one_line(tally: Tally, ledger: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.pin").write_text("no pin")
    ran = tally("verify", "--pin", "bad.pin")
    assert ran.code == 1
    assert "bad.pin" in ran.error_line


# --- states of a ledger -------------------------------------------------------------------------------------------


def test_writing_to_a_ledger_whose_guards_are_gone_refuses(tally: Tally, ledger: Path) -> None:
    connection = sqlite3.connect(ledger)
    (name,) = connection.execute("select name from sqlite_master where type = 'trigger' limit 1").fetchone()
    connection.execute(f"drop trigger {name}")
    connection.commit()
    connection.close()
    ran = tally("supersede", FIRST, "--by", SECOND, "--reason", "x")
    assert ran.code == 1
    assert "db upgrade" in ran.error_line
    assert tally("db", "check", "--json").code == 1
    ran = tally("db", "upgrade")
    assert (ran.code, f"guard {name} put back" in ran.err, "`tally verify`" in ran.err) == (0, True, True), ran
    assert "put back" not in tally("db", "upgrade").err
    assert tally("db", "check", "--json").code == 0
    assert tally("supersede", FIRST, "--by", SECOND, "--reason", "x").code == 0


def test_a_newer_ledger_is_refused_and_untouched(tally: Tally, ledger: Path) -> None:
    connection = sqlite3.connect(ledger)
    connection.execute("pragma user_version = 9999")
    connection.commit()
    connection.close()
    before = ledger.read_bytes()
    for arguments in (("runs",), ("supersede", FIRST, "--by", SECOND, "--reason", "x"), ("db", "upgrade")):
        ran = tally(*arguments)
        assert ran.code == 1
        assert "9999" in ran.error_line
    assert ledger.read_bytes() == before


def test_a_read_only_ledger_is_read_and_not_written(tally: Tally, ledger: Path, tmp_path: Path) -> None:
    ledger.chmod(stat.S_IRUSR)
    assert tally("runs").code == 0
    ran = tally("supersede", FIRST, "--by", SECOND, "--reason", "x")
    if ran.code == 0:
        pytest.skip("this user may write read-only files")
    assert ran.code == 1
    assert "read-only" in ran.error_line or "written" in ran.error_line


def test_backup_and_copy_are_whole_ledgers(tally: Tally, ledger: Path, tmp_path: Path) -> None:
    ran = tally("db", "backup", "backup.db", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["file"] == "backup.db"
    assert tally("db", "backup", "backup.db").code == 1
    ran = tally("db", "copy", ledger, "copied.db", "--json")
    assert ran.code == 0, ran.err
    for name in ("backup.db", "copied.db"):
        assert tally("verify", name).code == 0
        assert tally("runs", "--ledger", name, "--json").json == tally("runs", "--json").json


def test_check_tells_version_guards_journal_and_sizes(tally: Tally, ledger: Path) -> None:
    facts = tally("db", "check", "--json").json["facts"]
    assert facts["problems"] == []
    assert facts["events"] == 97
    assert {"version", "journal", "integrity", "origin"} <= facts.keys()
    assert "journal" in tally("db", "check").out
