"""`query`: its answer as a table, JSON or CSV, bounded in time and memory until the last line is printed."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest

from ledger.query import Authorizer
from ledger.sqlite import sqlite_driver
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, OTHER, SECOND

TALLY = [sys.executable, "-m", "realizer.cli.main"]
ENDLESS = "with recursive n(x) as (select 1 union all select x + 1 from n) select {} from n"


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
    whole = tally("query", "--named", "memory-over-time", "-p", f"run={FIRST}", "--json").json
    assert whole
    assert tally("query", "--named", "memory-over-time", "-p", f"run={FIRST[:8].upper()}", "--json").code == 1
    assert tally("query", "--named", "memory-over-time", "-p", f"run={FIRST.upper()}", "--json").json == whole
    absent = tally("query", "--named", "memory-over-time", "-p", "run=ffff", "--json")
    assert (absent.code, absent.out) == (1, "")
    assert "there is no run ffff" in absent.error_line, "an empty answer would look like a run without memory"
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


# --- without end --------------------------------------------------------------------------------------------------


def test_a_table_is_cut_at_what_can_be_read_and_says_how_to_get_the_rest(tally: Tally, ledger: Path) -> None:
    sql = ENDLESS.format("x")
    ran = tally("query", sql)
    assert ran.code == 0
    assert ran.out.split() == ["x", *(str(number) for number in range(1, 1001))]
    assert ran.error_line.endswith("--rows N raises the limit; --jsonl and --csv print up to 10000")
    assert len(tally("query", sql, "--jsonl").out.splitlines()) == 10_000
    assert len(tally("query", sql, "--rows", "1234").out.splitlines()) == 1235


@pytest.mark.parametrize("columns", [None, "80"], ids=["a pipe", "80 columns"])
def test_a_table_of_wide_rows_ends_before_it_is_too_much(
    tally: Tally, ledger: Path, columns: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("realizer.cli.tabular.MOST_DRAWN", 100_000)
    sql = "select a.envelope as a, b.envelope as b, a.position from events a, events b"
    ran = tally("query", sql, "--rows", "5000")
    assert ran.code == 0
    assert "--jsonl and --csv print any amount" in ran.error_line
    cells = sum(len(row["a"]) + len(row["b"]) for row in tally("query", sql, "--json", "--rows", "200").json)
    assert cells > 100_000, "more than fits is there to be had"
    assert len(ran.out) < 400_000
    if columns is not None:
        assert max(map(len, ran.out.splitlines())) <= 80


def test_one_long_cell_does_not_widen_every_line_to_its_own(tally: Tally, ledger: Path) -> None:
    sql = "select case position when 3 then printf('%.100000c', 'x') else 'y' end as a, position as b from events"
    assert tally("query", sql).code == 1, "printf makes values of any size, and is refused"
    ran = tally("query", sql.replace("printf('%.100000c', 'x')", "replace(hex(envelope), '7', hex(envelope))"))
    lines = ran.out.splitlines()
    assert len(max(lines, key=len)) > 50_000
    assert sorted(map(len, lines))[-2] < 500


@pytest.mark.parametrize("form", ["--json", "--jsonl", "--csv"])
def test_a_long_answer_is_printed_in_the_memory_of_a_row(ledger: Path, form: str) -> None:
    """87 MB of it, past what is allowed to be collected, in a process of its own, whose peak is read."""
    code = """
import re, sys
from pathlib import Path
from realizer.cli import main
code = main.run(sys.argv[1:])
print(re.search(r"VmHWM:[ \\t]*([0-9]+) kB", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""
    rows = 16_000
    wide = "replace(hex(a.envelope), '2', '0123456789')"
    sql = f"select {wide} || {wide} as wide, a.position as a, b.position as b, c.position as c from events a, events b, events c"
    done = subprocess.run(
        [sys.executable, "-c", code, "query", sql, form, "--rows", str(rows), "--seconds", "60"],
        capture_output=True,
        env={**os.environ, "TALLY_LEDGER": str(ledger)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, peak = done.stderr.split()
    assert len(done.stdout) > 64 * 1024 * 1024
    assert int(peak) * 1024 < len(done.stdout)
    if form == "--csv":
        assert done.stdout.count(b"\n") == rows + 1
    else:
        assert done.stdout.count(b'"wide"') == rows
    if form == "--json":
        assert len(json.loads(done.stdout)) == rows


def test_an_answer_that_is_stopped_half_way_is_an_error_and_no_document(tally: Tally, ledger: Path) -> None:
    sql = f"select 1 as x union all select * from ({ENDLESS.format('count(*)')})"
    ran = tally("query", sql, "--seconds", "0.3", "--json")
    assert ran.code == 1
    assert "stopped after 0.3 s" in ran.error_line
    with pytest.raises(json.JSONDecodeError):
        json.loads(ran.out)


def test_a_slow_reader_is_not_timed(ledger: Path) -> None:
    """The pipe stands full for longer than the query may take."""
    command = [*TALLY, "query", ENDLESS.format("x"), "--jsonl", "--rows", "30000", "--seconds", "6"]
    environment = {**os.environ, "TALLY_LEDGER": str(ledger)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b'{"x": 1}\n'
        assert started.stderr is not None
        time.sleep(8)
        out, err = started.stdout.read(), started.stderr.read()
    assert (started.returncode, out.count(b"\n"), b"only the first 30000 rows" in err) == (0, 29_999, True)


@pytest.fixture
def own_driver() -> None:
    """The driver as a command of its own has it: importing datasette makes it print what strikes in a callback."""
    sqlite_driver().enable_callback_tracebacks(False)


@pytest.mark.usefixtures("own_driver")
def test_an_interrupt_ends_a_query_at_once(tally: Tally, ledger: Path) -> None:
    """While SQLite is at work, which gives no row; the alarm stands for the operator's Ctrl-C."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    started = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        ran = tally("query", ENDLESS.format("count(*)"), "--seconds", "300")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (ran.code, ran.err.strip()) == (130, "tally: interrupted")
    assert time.monotonic() - started < 60


@pytest.mark.usefixtures("own_driver")
def test_an_interrupt_that_strikes_while_a_statement_is_looked_at_is_one(
    tally: Tally, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes an authorizer that raises for one that denies."""

    def strike(_guard: Authorizer, *_asked: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Authorizer, "__call__", strike)
    ran = tally("query", "select 1")
    assert (ran.code, ran.err.strip()) == (130, "tally: interrupted")


@pytest.mark.parametrize("form", ["--json", "--jsonl", "--csv"])
def test_an_interrupt_ends_what_is_being_printed(ledger: Path, form: str) -> None:
    command = [*TALLY, "query", ENDLESS.format("x"), form, "--seconds", "300", "--rows", "100000000"]
    environment = {**os.environ, "TALLY_LEDGER": str(ledger)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as started:
        assert started.stdout is not None
        started.stdout.readline()
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=60)
    assert (started.returncode, err.strip()) == (130, b"tally: interrupted")


@pytest.mark.parametrize("form", ["--json", "--jsonl", "--csv", None])
def test_a_closed_pipe_ends_a_query_quietly(ledger: Path, form: str | None) -> None:
    command = [*TALLY, "query", "select a.envelope, b.position from events a, events b", *([form] if form else [])]
    environment = {**os.environ, "TALLY_LEDGER": str(ledger)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as started:
        assert started.stdout is not None
        started.stdout.readline()
        started.stdout.close()
        assert started.stderr is not None
        assert started.stderr.read() == b""
    assert started.returncode == 1


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
    code = "import sys; from realizer.cli import main, querying; querying.GRACE_SECONDS = 1; sys.exit(main.run(sys.argv[1:]))"
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
