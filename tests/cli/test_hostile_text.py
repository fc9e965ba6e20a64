"""A run whose every name wants to be more than text: every command that prints shows it inert, whatever it is shown as."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from ledger.bodies import MemorySampled, RunOpened
from ledger.plan import Plan
from realizer.cli.rendering import ACTING_CATEGORIES, _acts
from tests.builders.runs import changed, clean_bodies, sealed, small_plan, text
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, SECOND, seed

HOSTILE = "=x<script>alert(1)</script>\x1b[31m\x9b2J\u202egpj\u2066\r\nINJECTED|`@a [b](c)\u2028\x07"
"""Markup, terminal escapes of one byte and of two, reading direction, line ends of three kinds, a table's border."""

NAMES = (
    "mat.weights.stage",
    "mat.kv-cache",
    "state.kv-cache",
    "exec.decode",
    "kv-cache-epoch-1",
    "model-native-resident",
)


def hostile_plan() -> Plan:
    """The small plan with what would run in its ids, lineage and representations."""
    document = json.dumps(json.loads(small_plan().data))
    for name in NAMES:
        document = document.replace(f'"{name}"', json.dumps(name + HOSTILE))
    made = json.loads(document)
    made.pop("digest", None)
    return sealed(made)


@pytest.fixture
def hostile(tally: Tally, tmp_path: Path) -> Path:
    """./tally.db with two runs of such a plan, opened by somebody who is no friend either; ./plan.json and ./evidence.json."""
    plan = hostile_plan()
    opening = {
        "labels": {"a" + HOSTILE: HOSTILE},
        "challenge": HOSTILE,
        "hostname": text(HOSTILE),
        "user": text(HOSTILE),
        "argv": text(HOSTILE),
    }
    bodies = changed(clean_bodies(plan), RunOpened, opening)
    other = changed(bodies, MemorySampled, {"label": "closing" + HOSTILE}, label="closing")
    seed(tmp_path / "tally.db", plan, (FIRST, bodies), (SECOND, other))
    (tmp_path / "plan.json").write_bytes(plan.data)
    (tmp_path / "other.json").write_bytes(small_plan().data)
    assert tally("supersede", FIRST, "--by", SECOND, "--reason", HOSTILE).code == 0
    assert tally("export", SECOND, "-o", "evidence.json").code == 0
    return tmp_path


COMMANDS = [
    ("runs",),
    ("show", FIRST),
    ("show", "evidence.json"),
    ("log", FIRST),
    ("watch", FIRST),
    ("replay", FIRST),
    ("replay", FIRST, "--at", "20"),
    ("replay", FIRST, "--step"),
    ("replay", FIRST, "--timeline"),
    ("reconcile", SECOND),
    ("compare", FIRST, SECOND),
    ("compare", FIRST, SECOND, "--all"),
    ("weights", FIRST),
    ("query", "select * from materializations"),
    ("query", "select * from events"),
    ("query", f'select 1 as "{HOSTILE}"'),
    ("query", f"select nothing as '{HOSTILE}"),
    ("query", "select :p as p", "-p", f"p={HOSTILE}"),
    ("query", "--named", HOSTILE),
    ("query", "--named", "where-is-tensor", "-p", f"tensor={HOSTILE}"),
    ("verify",),
    ("verify", "evidence.json"),
    ("verify", "evidence.json", "--challenge", "another" + HOSTILE),
    ("evidence", "show", "evidence.json"),
    ("plan", "show", "plan.json"),
    ("plan", "check", "plan.json"),
    ("plan", "diff", "plan.json", "other.json"),
    ("plan", "freeze", "plan.json", "-o", "frozen.json"),
    ("db", "check"),
    ("report", FIRST, "-o", HOSTILE.replace("/", "")),
    ("trace", FIRST, "-o", "trace.json"),
    ("invariants", HOSTILE),
    ("show", HOSTILE),
    ("show", "./" + HOSTILE),
    ("runs", "--ledger", HOSTILE),
    ("runs", HOSTILE),
    (HOSTILE,),
]


def acting(shown: str) -> set[str]:
    return {character for character in shown if character != "\n" and _acts(character)}


@pytest.mark.parametrize("columns", [None, "80"], ids=["pipe", "80 columns"])
def test_every_command_shows_hostile_text_inert(
    tally: Tally, hostile: Path, columns: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    told = 0
    for command in COMMANDS:
        ran = tally(*command)
        assert ran.code in (0, 1, 2, 3), (command, ran.err)
        for shown in (ran.out, ran.err):
            assert acting(shown) == set(), command
            if columns is None:  # else a long name is folded anywhere
                assert not [line for line in shown.split("\n") if line.startswith("INJECTED")], command
            told += "INJECTED" in shown
        assert "internal error" not in ran.err, (command, ran.err)
    assert told > len(COMMANDS) / 2, "the hostile text is what was shown"
    assert {"Cc", "Cf", "Zl"} <= ACTING_CATEGORIES


@pytest.mark.parametrize(
    "arguments", [("compare", FIRST, SECOND, "--md"), ("compare", SECOND, "evidence.json", "--md")]
)
def test_markdown_of_hostile_runs_is_a_table_of_code(tally: Tally, hostile: Path, arguments: tuple[str, ...]) -> None:
    shown = tally(*arguments).out
    assert acting(shown) == set()
    for line in shown.split("\n"):
        outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line)
        assert "<script" not in outside
        assert "](c)" not in outside
        assert "@a" not in outside
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (4, 5), line


def test_pages_and_traces_of_hostile_runs_hold_text_alone(tally: Tally, hostile: Path) -> None:
    for arguments in (("report", FIRST), ("report", FIRST, "--compare", SECOND), ("report", "evidence.json")):
        assert tally(*arguments, "-o", "page.html").code == 0
        page = (hostile / "page.html").read_text("utf-8")
        assert acting(page) == set()
        assert "<script>alert" not in page
        assert html.escape("<script>alert(1)</script>") in page
    assert tally("trace", FIRST, "-o", "trace.json").code == 0
    trace = (hostile / "trace.json").read_text("ascii")
    assert acting(trace) == set()
    assert "INJECTED" in trace


def test_json_documents_carry_hostile_text_as_escapes(tally: Tally, hostile: Path) -> None:
    for command in (("show", FIRST), ("replay", FIRST), ("compare", FIRST, SECOND), ("query", "select * from events")):
        shown = tally(*command, "--json").out
        assert acting(shown) == set(), command
        assert HOSTILE in json.dumps(json.loads(shown), ensure_ascii=False) or "INJECTED" in shown


def test_csv_keeps_the_value_and_only_a_terminal_makes_it_inert(tally: Tally, hostile: Path) -> None:
    """Another program reads it: `=x` stays, as the command's help warns."""
    out = tally("query", "select materialization_id as m from materializations order by 1", "--csv").out
    assert f'"mat.kv-cache{HOSTILE}'.replace("\r", "") in out.replace("\r", "")
    assert "spreadsheet" in tally("query", "--help").out
