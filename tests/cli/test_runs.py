"""`runs`, `log`, `watch`, `supersede`: what runs there are, their events, and corrections."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import Body, MaterializationObserved, ReclamationObserved, RunClosed
from ledger.measurement import measured
from ledger.plan import Plan
from ledger.store import Store
from tests.builders.runs import changed, clean_bodies, edited_plan, small_plan
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, OTHER, SECOND, seed

READERS = [
    ("runs",),
    ("show", "@latest"),
    ("log", "@latest"),
    ("replay", "@latest"),
    ("reconcile", "@latest"),
    ("compare", "@latest", "@latest"),
    ("weights", "@latest"),
    ("watch", "@latest"),
    ("query", "select 1"),
    ("export", "@latest", "-o", "evidence.json"),
    ("pin", "-o", "ledger.pin"),
    ("db", "check"),
    ("db", "upgrade"),
    ("db", "backup", "copy.db"),
    ("verify",),
    ("supersede", "@latest", "--by", "@latest~1", "--reason", "test"),
]


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_an_absent_ledger_is_one_line_and_creates_nothing(
    tally: Tally, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ran = tally(*arguments)
    assert (ran.code, ran.out) == (1, "")
    assert "no ledger" in ran.error_line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
@pytest.mark.parametrize("content", [b"SQLite format 3\x00 but no more", b"some text\n", b"", None])
def test_a_foreign_file_is_said_to_be_one_and_left_alone(
    tally: Tally, tmp_path: Path, arguments: tuple[str, ...], content: bytes | None
) -> None:
    foreign = tmp_path / "tally.db"
    if content is None:
        import sqlite3

        connection = sqlite3.connect(foreign)
        connection.execute("create table events (position integer)")
        connection.commit()
        connection.close()
    else:
        foreign.write_bytes(content)
    before = foreign.read_bytes()
    ran = tally(*arguments)
    assert (ran.code, ran.out) == (1, "")
    assert "tally.db" in ran.error_line
    assert foreign.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name != "state"] == ["tally.db"]


# --- naming a run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "run_id"),
    [
        (FIRST, FIRST),
        (FIRST.upper(), FIRST),
        (OTHER[:4], OTHER),
        ("@latest", OTHER),
        ("@latest~0", OTHER),
        ("@latest~1", SECOND),
        ("@latest~2", FIRST),
    ],
)
def test_a_run_is_named_by_id_prefix_or_age(tally: Tally, ledger: Path, name: str, run_id: str) -> None:
    shown = tally("replay", name, "--json").json
    assert shown["run_id"] == run_id


@pytest.mark.parametrize("command", ["show", "log", "replay", "reconcile", "weights"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ffff", "no run ffff"),
        ("0192", "several runs"),
        ("@latest~3", "no run @latest~3"),
        ("@newest", "names no run"),
        ("nonsense", "names no run"),
        ("absent.json", "no such file"),
        ("no/such/file", "no such file"),
        ("\x1b[2J", "\\x1b[2J"),
    ],
)
def test_a_run_that_is_not_there_is_one_line_and_exit_1(
    tally: Tally, ledger: Path, command: str, name: str, said: str
) -> None:
    ran = tally(command, name)
    assert (ran.code, ran.out) == (1, "")
    assert said in ran.error_line
    assert "\x1b" not in ran.err


def test_the_ledger_is_the_option_then_the_variable_then_tally_db(
    tally: Tally, tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = clean_bodies(plan)
    seed(tmp_path / "tally.db", plan, (FIRST, bodies))
    seed(tmp_path / "variable.db", plan, (SECOND, bodies))
    seed(tmp_path / "option.db", plan, (OTHER, bodies))

    def found(*arguments: str) -> str:
        (run,) = tally("runs", "--json", *arguments).json["runs"]
        return str(run["run_id"])

    assert found() == FIRST
    monkeypatch.setenv("TALLY_LEDGER", "variable.db")
    assert found() == SECOND
    assert found("--ledger", str(tmp_path / "option.db")) == OTHER


# --- runs ---------------------------------------------------------------------------------------------------------


def test_runs_lists_them_oldest_first(tally: Tally, ledger: Path) -> None:
    document = tally("runs", "--json").json
    assert document["format"] == "tally.runs/1"
    assert [(run["run_id"], run["outcome"], run["verdict"]) for run in document["runs"]] == [
        (FIRST, "completed", None),
        (SECOND, "completed", None),
        (OTHER, "incomplete", None),
    ]
    text = tally("runs").out
    assert [line.split()[0] for line in text.splitlines()[1:]] == [FIRST, SECOND, OTHER]
    assert [run["run_id"] for run in tally("runs", "-n", "1", "--json").json["runs"]] == [OTHER]


def test_an_empty_ledger_has_no_runs(tally: Tally, tmp_path: Path) -> None:
    with Store.open(tmp_path / "tally.db", write=True, create=True):
        pass
    assert tally("runs", "--json").json["runs"] == []
    ran = tally("runs")
    assert (ran.code, ran.out) == (0, "")
    assert "no runs" in ran.err


# --- log and watch ------------------------------------------------------------------------------------------------


def test_log_json_is_the_envelopes_byte_for_byte(tally: Tally, ledger: Path) -> None:
    lines = tally("log", FIRST, "--json").out.splitlines()
    with Store.open(ledger) as store:
        assert lines == [recorded.envelope for recorded in store.recorded(FIRST)]


def test_log_tells_each_event_in_a_line(tally: Tally, ledger: Path, plan: Plan) -> None:
    lines = tally("log", FIRST).out.splitlines()
    bodies = clean_bodies(plan)
    assert len(lines) == len(bodies)
    for sequence, (line, body) in enumerate(zip(lines, bodies, strict=True)):
        assert line.split()[0] == str(sequence)
        assert body.TYPE in line


def test_log_chooses_types_and_families(tally: Tally, ledger: Path) -> None:
    lines = tally("log", FIRST, "--type", "decode", "--type", "run.closed", "--json").out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["decode.ran"] * 5 + ["run.closed"]
    assert tally("log", FIRST, "--type", "deco").out == ""


def test_watch_follows_a_run_until_it_is_closed(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    bodies = clean_bodies(plan)
    seed(tmp_path / "tally.db", plan, (FIRST, bodies[:-1]))
    command = [sys.executable, "-m", "realizer.cli.main", "watch", "--json", "--ledger", str(tmp_path / "tally.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watching:
        assert watching.stdout is not None
        seen = [json.loads(watching.stdout.readline())["type"] for _ in bodies[:-1]]
        assert seen == [body.TYPE for body in bodies[:-1]]
        time.sleep(0.3)
        assert watching.poll() is None
        append(tmp_path / "tally.db", RunClosed(outcome="completed"))
        assert json.loads(watching.stdout.readline())["type"] == "run.closed"
        assert watching.wait(timeout=10) == 0


def append(location: Path, body: Body) -> None:
    from realizer.recorded import latecomer

    with Store.open(location, write=True) as store:
        latecomer(store, FIRST, "node-a")(body)


def test_watch_gives_up_after_the_time_given(tally: Tally, ledger: Path) -> None:
    ran = tally("watch", OTHER, "--timeout", "0.1")
    assert ran.code == 1
    assert "nothing was recorded for 0.1 s" in ran.err


# --- corrections --------------------------------------------------------------------------------------------------


def test_supersede_records_a_correction_that_shows_everywhere(tally: Tally, ledger: Path) -> None:
    ran = tally("supersede", FIRST, "--by", SECOND, "--reason", "wrong fixture", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["type"] == "run.superseded"
    event = json.loads(tally("log", FIRST, "--type", "run.superseded", "--json").out)
    assert event["body"] == {"reason": "wrong fixture", "by": SECOND}
    assert event["actor"]["kind"] == "operator"
    assert event["elapsed_ns"] is None
    assert tally("runs", "--json").json["runs"][0]["superseded_by"] == SECOND
    assert tally("replay", FIRST, "--json").json["superseded_by"] == SECOND
    assert f"superseded by {SECOND}" in tally("show", FIRST).out
    lines = {line.split()[0]: line for line in tally("runs").out.splitlines()[1:]}
    assert [run for run, line in lines.items() if " superseded" in line] == [FIRST]


def test_two_runs_cannot_supersede_each_other(tally: Tally, ledger: Path) -> None:
    assert tally("supersede", FIRST, "--by", SECOND, "--reason", "x").code == 0
    ran = tally("supersede", SECOND, "--by", FIRST, "--reason", "y")
    assert (ran.code, f"{FIRST} is itself superseded by {SECOND}" in ran.error_line) == (1, True)
    assert tally("log", SECOND, "--type", "run.superseded", "--jsonl").out == ""


def test_a_run_cannot_supersede_itself(tally: Tally, ledger: Path) -> None:
    ran = tally("supersede", FIRST, "--by", FIRST, "--reason", "x")
    assert ran.code == 1
    assert "itself" in ran.error_line


def test_a_low_ratio_of_little_staging_beside_a_pass_is_told_in_words(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def little(document: dict[str, Any]) -> None:
        document["memory_expectations"]["host_noise_bytes"] = 10**12

    plan = edited_plan(small_plan(), little)
    low = changed(clean_bodies(plan), ReclamationObserved, {"ratio": measured(0.1, None, "computed")})
    seed(tmp_path / "tally.db", plan, (FIRST, low), (SECOND, clean_bodies(plan)))
    ran = tally("show", FIRST)
    assert ran.out.startswith("PASS")
    assert (
        "10.00% is less than planned, but so few bytes are within the plan's noise allowance of 1000000000000 bytes"
        in ran.out
    )
    assert "less than planned" not in tally("show", SECOND).out


def test_bytes_that_differ_are_said_to_be_listed_elsewhere(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    digests = {"source_digest": measured("sha256:" + "a" * 64, None, "read"), "resident_digest": measured(
        "sha256:" + "b" * 64, None, "read back"
    )}  # fmt: skip
    bodies = clean_bodies(plan)
    wrong = changed(bodies, MaterializationObserved, digests, materialization_id="mat.weights.resident")
    seed(tmp_path / "tally.db", plan, (FIRST, wrong), (SECOND, bodies))
    hint = f"`tally weights {FIRST}` names the tensors that differ"
    assert hint in tally("show", FIRST).out.replace("\n", " ")
    assert "tally weights" not in tally("show", SECOND).out


def test_a_pipe_is_told_the_unit_of_every_column_of_bytes(tally: Tally, ledger: Path) -> None:
    lines = tally("show", FIRST).out.splitlines()
    header = lines[lines.index("MATERIALIZATIONS") + 1]
    assert re.split("  +", header)[-3:] == ["planned (bytes)", "observed (bytes)", "state"]
    assert {"MEMORY OF THE PROCESS TREE (BYTES)", "ACCOUNTING (BYTES)"} <= set(lines)
    assert any(" bytes in " in line for line in tally("log", FIRST).out.splitlines())
