"""`query`, `pin`, `db` and `verify` of a ledger: asking it, anchoring it, and what is said when it was changed."""

from __future__ import annotations

import csv
import io
import json
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ledger.store import Store
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, OTHER, SECOND


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


# --- query --------------------------------------------------------------------------------------------------------


def test_a_query_prints_a_table_json_lines_or_csv(tally: Tally, ledger: Path) -> None:
    sql = "select run_id, outcome, 1 as one from runs order by run_id"
    rows = [
        {"run_id": FIRST, "outcome": "completed", "one": 1},
        {"run_id": SECOND, "outcome": "completed", "one": 1},
        {"run_id": OTHER, "outcome": "incomplete", "one": 1},
    ]
    assert tally("query", sql, "--json").json == rows
    assert [json.loads(line) for line in tally("query", sql, "--jsonl").out.splitlines()] == rows
    found = list(csv.DictReader(io.StringIO(tally("query", sql, "--csv").out)))
    assert found == [{key: str(value) for key, value in row.items()} for row in rows]
    table = [line.split() for line in tally("query", sql).out.splitlines()]
    assert table == [["run_id", "outcome", "one"], *([str(v) for v in row.values()] for row in rows)]


def test_rows_too_wide_for_the_screen_come_one_below_the_other(
    tally: Tally, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    wide = tally("query", "select run_id, plan_digest, outcome from runs order by run_id")
    assert wide.out.split()[:2] == ["run_id", FIRST]
    assert sum(line.startswith("outcome ") for line in wide.out.splitlines()) == 3
    assert max(map(len, wide.out.splitlines())) <= 60
    narrow = tally("query", "select run_id, outcome from runs order by run_id").out.splitlines()
    assert narrow[0].split() == ["run_id", "outcome"]
    assert narrow[1].split() == [FIRST, "completed"]


def test_a_query_from_standard_input_with_parameters(tally: Tally, ledger: Path) -> None:
    sql = b"select :n + 1 as n, count(*) as events, :t as t from events where run_id = :run"
    ran = tally("query", "-", "-p", "run=@latest", "-p", "n=41", "-p", "t=007", "--json", stdin=sql)
    assert ran.json == [{"n": 42, "events": 12, "t": "007"}]


def test_a_result_beyond_the_row_limit_is_cut_and_says_so(tally: Tally, ledger: Path) -> None:
    ran = tally("query", "select position from events", "--rows", "2", "--json")
    assert ran.code == 0
    assert len(ran.json) == 2
    assert "--rows" in ran.err


@pytest.mark.parametrize(
    "sql",
    [
        "selec 1",
        "select nothing from runs",
        "delete from events",
        "select 1; select 2",
        "attach 'new.db' as new",
        "vacuum into 'new.db'",
        "pragma journal_mode = off",
        "select load_extension('x')",
        "",
        "select :missing",
        "with recursive n(x) as (select 1 union all select x + 1 from n) select sum(x) from n",
    ],
)
def test_bad_or_hostile_sql_is_one_line_exit_1_and_changes_nothing(
    tally: Tally, ledger: Path, tmp_path: Path, sql: str
) -> None:
    before = ledger.read_bytes()
    ran = tally("query", sql, "--seconds", "0.3")
    assert (ran.code, ran.out) == (1, "")
    assert ran.error_line
    assert ledger.read_bytes() == before
    assert not (tmp_path / "new.db").exists()


def test_two_columns_of_one_name_are_not_merged_in_json(tally: Tally, ledger: Path) -> None:
    ran = tally("query", "select 1 as a, 2 as a", "--json")
    assert ran.code == 1
    assert "one name" in ran.error_line
    assert tally("query", "select 1 as a, 2 as a", "--csv").out == "a,a\n1,2\n"


def test_named_queries_are_listed_and_run(tally: Tally, ledger: Path) -> None:
    queries = tally("query", "--list", "--json").json["queries"]
    assert {"memory-over-time"} <= {query["name"] for query in queries}
    for query in queries:
        parameters = [f"-p{name}=@latest~1" for name in query["parameters"] if name in ("run", "a", "b")]
        ran = tally("query", "--named", query["name"], *parameters, "--json")
        assert ran.code in (0, 1), ran.err
        assert ran.code == 0 or "is not given" in ran.error_line
    assert tally("query", "--named", "memory-over-time", "-p", f"run={FIRST}", "--json").json
    ran = tally("query", "--named", "nonsense")
    assert ran.code == 1
    assert "memory-over-time" in ran.error_line


def test_long_texts_of_the_schema_stay_beside_their_names(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = tally("query", "--schema").out.splitlines()
    assert max(map(len, lines)) <= 60
    role = next(at for at, line in enumerate(lines) if line.startswith("  role "))
    assert lines[role].index("staging") == len(lines[role + 1]) - len(lines[role + 1].lstrip())


def test_the_schema_is_documented(tally: Tally, tmp_path: Path) -> None:
    shown = tally("query", "--schema").out
    assert all(name in shown for name in ("memory_samples", "decode_runs", "recorded_at"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [(), ("select 1", "--named", "x"), ("select 1", "--json", "--csv"), ("select 1", "-p", "novalue")]
)
def test_query_refuses_unclear_usage(tally: Tally, ledger: Path, arguments: tuple[str, ...]) -> None:
    assert tally("query", *arguments).code == 2


def test_hostile_text_out_of_a_ledger_is_inert_in_a_table(tally: Tally, ledger: Path) -> None:
    sql = "select char(27) || '[2J' || char(8238) as x"
    assert tally("query", sql).out.splitlines()[1].strip() == "\\x1b[2J\\u202e"
    assert tally("query", sql, "--json").json == [{"x": "\x1b[2J\u202e"}]


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
    assert "--accept" in ran.error_line
    assert tally("verify", "--json").json["problems"][0]["code"] == "rollback"
    assert tally("pin", "-o", "ledger.pin").code == 4
    assert not (tmp_path / "ledger.pin").exists()
    assert tally("pin", "--accept", "-o", "ledger.pin").code == 0
    assert tally(*arguments).code == 0


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
    assert tally("db", "upgrade").code == 0
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


DOUBLED = (
    "with recursive d (s, n) as (select 'a', 0 union all select s || s, n + 1 from d where n < 24),"
    " t as materialized (select s, cast(s as blob) as b from d order by n desc limit 1) select {} from t"
)
"""A text and a blob of 16 MiB, for what a statement does with them."""


@pytest.mark.parametrize(
    ("asked", "seconds", "said"),
    [
        ("instr(s, substr(s, 1, 8000000) || 'b')", 2, "could not be interrupted"),
        ("s like '%' || substr(s, 1, 49000) || 'b%'", 2, "could not be interrupted"),
        ("s, s, s, s, s", 90, "a row of the result is larger than"),  # long enough that memory ends it also when busy
        (", ".join(["b"] * 1500), 90, "needs too much memory"),
    ],
    ids=["one step for hours", "one match for hours", "a wide row", "a row wider than memory"],
)
def test_a_query_that_nothing_interrupts_is_stopped(ledger: Path, asked: str, seconds: int, said: str) -> None:
    """In a process of its own, since that is what ends."""
    before = ledger.read_bytes()
    code = "import sys; from realizer.cli import ledgers, main; ledgers.GRACE_SECONDS = 1; sys.exit(main.run(sys.argv[1:]))"
    command = [
        sys.executable,
        "-c",
        code,
        "query",
        DOUBLED.format(asked),
        "--seconds",
        str(seconds),
        "--ledger",
        str(ledger),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, said in done.stderr) == (1, "", True), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert ledger.read_bytes() == before


def test_what_confines_a_query_is_gone_after_it(tally: Tally, ledger: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS), threading.active_count()
    assert tally("query", "select 1 as one", "--json").json == [{"one": 1}]
    assert tally("query", "select nothing").code == 1
    assert (resource.getrlimit(resource.RLIMIT_AS), threading.active_count()) == before
