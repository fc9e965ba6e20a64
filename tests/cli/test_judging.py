"""`show`, `reconcile`, `invariants` and `compare`: verdicts with their exit codes, for people and for scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledger import documents
from ledger.bodies import Body, MaterializationReleased, ReclamationObserved, RunOpened
from ledger.plan import Plan
from ledger.reconcile import INVARIANTS
from realizer.cli import documents as command_documents
from tests.builders.runs import changed, clean_bodies, small_plan, with_values, without
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, OTHER, SECOND, seed

HOSTILE = "\x1b[2J\u202e<b>|`x`"


def staging_kept(plan: Plan) -> list[Body]:
    """A run whose staging is never released."""
    bodies = without(clean_bodies(plan), MaterializationReleased)
    return without(bodies, ReclamationObserved)


@pytest.fixture
def judged(tally: Tally, tmp_path: Path, plan: Plan) -> Path:
    """A ledger with a run that passes, one that fails, and one that is incomplete."""
    bodies = clean_bodies(plan)
    seed(tmp_path / "tally.db", plan, (FIRST, bodies), (SECOND, staging_kept(plan)), (OTHER, bodies[:12]))
    return tmp_path / "tally.db"


# --- reconcile ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "code", "verdict"), [(FIRST, 0, "PASS"), (SECOND, 3, "FAIL"), (OTHER, 3, "INDETERMINATE")]
)
def test_reconcile_exits_by_the_verdict(tally: Tally, judged: Path, run: str, code: int, verdict: str) -> None:
    ran = tally("reconcile", run, "--json")
    assert (ran.code, ran.json["format"], ran.json["verdict"]) == (code, "tally.verdict/1", verdict)
    assert ran.json["run_id"] == run
    text = tally("reconcile", run)
    assert text.code == code
    assert text.out.startswith(verdict)


def test_findings_are_told_errors_first_with_expected_observed_and_events(tally: Tally, judged: Path) -> None:
    document = tally("reconcile", SECOND, "--json").json
    assert {"staging.not-released"} <= {finding["code"] for finding in document["findings"]}
    lines = tally("reconcile", SECOND).out.splitlines()
    severities = [line.split()[0] for line in lines if line.startswith(("error", "unknown", "note"))]
    assert severities == sorted(severities, key=["error", "unknown", "note"].index)
    assert any(line.strip().startswith("expected") for line in lines)


def test_the_verdict_is_judged_by_exit_code_of_the_process_too(tally: Tally, judged: Path) -> None:
    for run, code in ((FIRST, 0), (SECOND, 3)):
        command = [sys.executable, "-m", "realizer.cli.main", "reconcile", run, "--ledger", str(judged)]
        assert subprocess.run(command, capture_output=True, timeout=60).returncode == code


# --- show ---------------------------------------------------------------------------------------------------------


def test_show_says_the_verdict_first_and_fits_80_columns(
    tally: Tally, judged: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for run, verdict in ((FIRST, "PASS"), (SECOND, "FAIL"), (OTHER, "INDETERMINATE")):
        ran = tally("show", run)
        assert ran.code == 0
        assert ran.out.startswith(verdict)
        assert max(map(len, ran.out.splitlines())) <= 80
        assert all(materialization.id in ran.out for materialization in plan.document.materializations)


def test_show_json_is_the_run_document(tally: Tally, judged: Path, plan: Plan) -> None:
    document = tally("show", FIRST, "--json").json
    assert (document["format"], document["run_id"], document["plan_digest"]) == (
        "tally.run/1",
        FIRST,
        plan.computed_digest,
    )
    assert document["accounting"]["persistent_required"]["value"] == 256 * 2**20 + 256 + 2 * 8 * 2**20
    assert document["accounting"]["transient_upper_bound"]["source"] == "derived"
    assert document["findings"] == []


def test_hostile_text_in_a_ledger_is_inert_everywhere(tally: Tally, tmp_path: Path) -> None:
    plan = small_plan(plan_version=HOSTILE)
    bodies = [
        with_values(body, {"labels": {HOSTILE: HOSTILE}, "challenge": HOSTILE}) if isinstance(body, RunOpened) else body
        for body in clean_bodies(plan)
    ]
    other = changed(bodies, RunOpened, {"adapter.name": HOSTILE})
    seed(tmp_path / "tally.db", plan, (FIRST, bodies), (SECOND, other))
    commands: list[tuple[str, ...]] = [
        ("show", FIRST),
        ("log", FIRST),
        ("replay", FIRST),
        ("replay", FIRST, "--step"),
        ("compare", FIRST, SECOND),
        ("compare", FIRST, SECOND, "--md"),
        ("query", "select envelope from events"),
        ("show", FIRST, "--json"),
    ]
    for command in commands:
        out = tally(*command).out
        assert "\x1b" not in out, command
        assert "\u202e" not in out, command
    assert "\\x1b[2J\\u202e<b>|`x`" in tally("show", FIRST).out
    assert tally("log", FIRST, "--json").out.count("\u202e") > 0, "envelopes keep their bytes in a pipe"


# --- invariants ---------------------------------------------------------------------------------------------------


def test_invariants_print_every_code_with_its_statement(tally: Tally) -> None:
    document = tally("invariants", "--json").json
    assert [entry["codes"] for entry in document["invariants"]] == [list(i.codes) for i in INVARIANTS]
    assert all(len(entry["statement"]) > 20 for entry in document["invariants"])
    text = tally("invariants").out
    assert all(code in text for invariant in INVARIANTS for code in invariant.codes)


def test_statements_are_indented_on_every_line_of_80_columns(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = tally("invariants").out.splitlines()
    assert max(map(len, lines)) <= 80
    codes = {code for invariant in INVARIANTS for code in invariant.codes}
    assert {line.split()[0] for line in lines if line and not line.startswith("  ")} == codes


def test_one_invariant_is_chosen_by_code_or_family(tally: Tally) -> None:
    chosen = tally("invariants", "staging.not-released", "--json").json["invariants"]
    assert [entry["codes"] for entry in chosen] == [["staging.not-released"]]
    family = tally("invariants", "staging", "--json").json["invariants"]
    assert {entry["family"] for entry in family} == {"staging"}
    assert len(family) > 3
    ran = tally("invariants", "staging.nonsense")
    assert ran.code == 1
    assert "staging.nonsense" in ran.error_line


# --- compare ------------------------------------------------------------------------------------------------------


def test_two_clean_runs_are_the_same(tally: Tally, ledger: Path) -> None:
    ran = tally("compare", FIRST, SECOND, "--json")
    assert ran.code == 0
    assert (ran.json["format"], ran.json["same"], ran.json["a"], ran.json["b"]) == (
        "tally.comparison/1",
        True,
        FIRST,
        SECOND,
    )
    assert {difference["kind"] for difference in ran.json["differences"]} == {"expected"}
    text = tally("compare", FIRST, SECOND)
    assert text.code == 0
    assert text.out.startswith("SAME")


def test_runs_that_differ_say_where_and_exit_3(tally: Tally, judged: Path) -> None:
    ran = tally("compare", FIRST, SECOND, "--json")
    assert (ran.code, ran.json["same"]) == (3, False)
    paths = {d["path"] for d in ran.json["differences"] if d["kind"] == "different"}
    assert "verdict" in paths
    text = tally("diff", FIRST, SECOND)
    assert text.code == 3
    assert text.out.startswith("DIFFERENT")
    assert all(path in text.out for path in paths)


def test_comparison_as_markdown(tally: Tally, judged: Path) -> None:
    ran = tally("compare", FIRST, SECOND, "--md")
    assert ran.code == 3
    lines = ran.out.splitlines()
    assert any(line.startswith("**The runs differ in ") for line in lines)
    rows = [line for line in lines if line.startswith("| `")]
    assert rows
    assert all(line.replace("\\|", "").count("|") in (4, 5) for line in rows)
    assert tally("compare", FIRST, SECOND, "--md", "--json").code == 2


def test_markdown_keeps_its_lines_on_a_terminal(tally: Tally, judged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piped = tally("compare", FIRST, SECOND, "--md").out
    monkeypatch.setattr("realizer.cli.rendering.on_terminal", lambda: True)
    assert tally("compare", FIRST, SECOND, "--md").out == piped


def test_what_is_expected_to_differ_is_summarised_and_listed_on_demand(tally: Tally, ledger: Path) -> None:
    short, full = tally("compare", FIRST, SECOND).out, tally("compare", FIRST, SECOND, "--all").out
    expected = tally("compare", FIRST, SECOND, "--json").json["differences"]
    assert "EXPECTED TO DIFFER" in short
    assert all(difference["path"] in full for difference in expected)


# --- completion of runs -------------------------------------------------------------------------------------------


def test_runs_are_completed(tally: Tally, judged: Path) -> None:
    def complete(words: str, position: int) -> list[Any]:
        environment = {
            **os.environ,
            "_TALLY_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(position),
            "TALLY_LEDGER": str(judged),
        }
        command = [sys.executable, "-m", "realizer.cli.main"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        return done.stdout.split()

    assert complete("tally show ", 2) == [f"plain,{run}" for run in (OTHER, SECOND, FIRST)] + ["plain,@latest"]
    assert complete("tally show 0193", 2) == [f"plain,{OTHER}"]
    assert complete("tally supersede x --by @", 4) == ["plain,@latest"]


MODELS = {
    model.model_fields["format"].default: model
    for module in (documents, command_documents)
    for model in vars(module).values()
    if isinstance(model, type) and issubclass(model, documents.Document) and "format" in model.model_fields
}


@pytest.mark.parametrize(
    "command",
    [
        ("runs",),
        ("show", FIRST),
        ("reconcile", FIRST),
        ("replay", FIRST),
        ("replay", FIRST, "--timeline"),
        ("compare", FIRST, SECOND),
        ("invariants",),
        ("weights", FIRST),
        ("verify",),
        ("db", "check"),
        ("db", "upgrade"),
        ("db", "backup", "copy.db"),
        ("db", "copy", "tally.db", "copy.db"),
        ("pin", "-o", "ledger.pin"),
        ("query", "--list"),
        ("query", "--schema"),
        ("keygen", "-o", "k.pem", "--no-passphrase"),
        ("supersede", FIRST, "--by", SECOND, "--reason", "x"),
    ],
    ids=" ".join,
)
def test_documents_are_of_their_form_and_alone_on_standard_output(
    tally: Tally, judged: Path, command: tuple[str, ...]
) -> None:
    ran = tally(*command, "--json")
    assert ran.err == ""
    model = MODELS[ran.json["format"]]
    assert model.model_validate_json(ran.out, strict=True).model_dump(mode="json") == ran.json
