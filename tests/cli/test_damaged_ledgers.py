"""Commands on damaged ledgers: one line that says so and the status for broken, never a leaked exception."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ledger import pins
from ledger.sqlite import sqlite_driver
from ledger.store import Store
from tests.builders.judged import run_id
from tests.cli.conftest import Tally
from tests.zoo import ledgers
from tests.zoo.ledgers import Raw

RUN = run_id(1)
COMMANDS = [
    ("runs",),
    ("show", RUN),
    ("show", "@latest"),
    ("log", RUN),
    ("replay", RUN),
    ("weights", RUN),
    ("reconcile", RUN),
    ("compare", RUN, "@latest"),
    ("query", "select * from runs"),
    ("export", RUN, "-o", "evidence.json"),
    ("trace", RUN, "-o", "trace.json"),
    ("pin", "-o", "ledger.pin"),
    ("db", "check"),
    ("db", "backup", "backup.db"),
    ("supersede", RUN, "--by", "@latest", "--reason", "x"),
    ("db", "upgrade"),
    ("supersede", RUN, "--by", "@latest", "--reason", "x"),
]


def _sql(*statements: str) -> Callable[[Path], None]:
    def attack(path: Path) -> None:
        with Raw(path) as raw:
            for statement in statements:
                raw.run(statement)

    return attack


BROKEN: dict[str, Callable[[Path], None]] = {
    "origin gone": _sql("DELETE FROM ledger"),
    "two origins": _sql("INSERT INTO ledger VALUES ('other', 'x')"),
    "origin of another form": _sql("UPDATE ledger SET origin = '../../x'"),
    "origin beside another's pin": _sql("UPDATE ledger SET origin = origin || '.lock'"),
    "origin not UTF-8": _sql("UPDATE ledger SET origin = CAST(x'ff' AS TEXT)"),
    "origin of another type": _sql(
        "DROP TABLE ledger", "CREATE TABLE ledger (origin, created_at)", "INSERT INTO ledger VALUES (x'ff00', 1)"
    ),
    "no table ledger": _sql("DROP TABLE ledger"),
    "no table blobs": _sql("DROP TABLE blobs"),
}
NAMED = [
    "not-text", "deleted", "renumbered", "half-batch", "index-hides-an-event", "column-says-otherwise", "view-lies",
    "position-not-whole", "position-at-the-end-of-numbers", "hash-not-hexadecimal", "checkpoint-of-wrong-type",
    "blob-of-wrong-type",
]  # fmt: skip


@pytest.mark.parametrize("name", [*BROKEN, *NAMED])
def test_a_damaged_ledger_is_told_in_one_line(tally: Tally, tmp_path: Path, name: str) -> None:
    path = ledgers.good(tmp_path / "tally.db")
    attack = BROKEN[name] if name in BROKEN else ledgers.BAD[name].attack
    attack(path)
    verified = tally("verify")
    assert (verified.code, "tally verify" in verified.err) == (4, False), verified
    for command in COMMANDS:
        ran = tally(*command)
        assert ran.code in (0, 1, 3, 4), command
        assert "internal error" not in ran.err, (command, ran.err)


def test_a_fault_that_two_pins_show_is_told_once(tally: Tally, tmp_path: Path) -> None:
    path = ledgers.good(tmp_path / "tally.db")
    assert tally("pin", "-o", "ledger.pin").code == 0
    with Store.open(path) as store:
        pins.move_pin(store)
    ledgers.rewritten(path)
    for given in ((), ("--pin", "ledger.pin")):
        found = tally("verify", *given, "--json").json
        assert ([problem["code"] for problem in found["problems"]], found["checks"]["pin"]) == (["fork"], "failed")
        assert tally("verify", *given).out.count("fork: ledger") == 1


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("edited", "done to it from position 5 on; restore a backup, and verify that with a pin kept elsewhere"),
        ("checkpoint-forged", "done to it; restore a backup"),
        ("rewritten", "if the pin is this ledger's own, another copy of this ledger may have gone on"),
        ("truncated", "`tally pin --accept -o accepted.pin --ledger here.db` takes it as it is"),
        ("view-lies", "`tally db upgrade --ledger here.db` puts guards, views and indexes back"),
        ("blob-dropped", "exported with --attach"),
        ("unknown-type", "a newer version of this program"),
    ],
)
def test_a_broken_ledger_comes_with_what_to_do(tally: Tally, tmp_path: Path, name: str, advice: str) -> None:
    path = ledgers.good(tmp_path / "here.db")
    assert tally("pin", "-o", "ledger.pin", "--ledger", "here.db").code == 0
    assert "NEXT" not in tally("verify", "here.db", "--pin", "ledger.pin").out
    ledgers.BAD[name].attack(path)
    given = ("--pin", "ledger.pin") if ledgers.BAD[name].by_pin else ()
    for ledger in (("here.db",), ("--ledger", "here.db")):
        ran = tally("verify", *ledger, *given)
        assert ran.code == 4
        assert advice in " ".join(ran.out.partition("NEXT")[2].split())


@pytest.mark.parametrize("version", ["UPDATE ledger_version SET version_num = 'x'", "DELETE FROM ledger_version"])
def test_a_damaged_record_of_the_version_is_told(tally: Tally, tmp_path: Path, version: str) -> None:
    _sql(version)(ledgers.good(tmp_path / "tally.db"))
    ran = tally("db", "upgrade")
    assert (ran.code, "record of its version is damaged" in ran.error_line) == (4, True), ran


def test_views_that_lie_are_not_asked_and_are_put_back(tally: Tally, tmp_path: Path) -> None:
    ledgers.view_lies(ledgers.good(tmp_path / "tally.db"))
    for command in (("runs",), ("show", "@latest"), ("query", "select verdict from verdicts")):
        ran = tally(*command)
        assert (ran.code, "verdicts" in ran.error_line, ran.out) == (4, True, ""), command
    checked = tally("db", "check", "--json")
    assert (checked.code, "views are altered: verdicts" in str(checked.json["facts"]["problems"])) == (1, True)
    assert "verdicts put back" in str(tally("db", "upgrade", "--json").json["mended"])
    assert tally("verify", "--json").json["status"] == "valid-unanchored"
    assert tally("runs").code == 0


def test_a_trigger_that_swallows_events_keeps_the_ledger_from_being_written(tally: Tally, tmp_path: Path) -> None:
    path = ledgers.good(tmp_path / "tally.db")
    connection = sqlite_driver().connect(str(path))
    connection.execute("CREATE TRIGGER swallow BEFORE INSERT ON events BEGIN SELECT RAISE(IGNORE); END")
    connection.close()
    supersede = ("supersede", RUN, "--by", run_id(2), "--reason", "x")
    ran = tally(*supersede)
    assert (ran.code, "not this program's: swallow" in ran.error_line) == (1, True), ran
    assert "trigger swallow dropped" in tally("db", "upgrade").err
    assert tally(*supersede).code == 0
    assert tally("query", "select count(*) as n from events", "--json").json == [{"n": ledgers.SIZE + 1}]


def test_a_header_that_names_an_older_version_is_put_right(tally: Tally, tmp_path: Path) -> None:
    ledgers.good(tmp_path / "tally.db")
    _sql("PRAGMA user_version = 1")(tmp_path / "tally.db")
    assert (tally("runs").code, tally("db", "upgrade").code, tally("runs").code) == (1, 0, 0)


def test_a_file_cut_short_is_not_sent_round_in_circles(tally: Tally, tmp_path: Path) -> None:
    path = ledgers.good(tmp_path / "tally.db")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    ran = tally("verify")
    assert (ran.code, "tally verify" in ran.err + ran.out) == (4, False), ran
