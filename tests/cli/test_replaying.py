"""`tally replay`: the folded state at any event, and what each event changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger.plan import Plan
from tests.builders.runs import clean_bodies
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, OTHER


def states(tally: Tally, *arguments: str) -> dict[str, str]:
    document = tally("replay", *arguments, "--json").json
    return {row["id"]: row["state"] for row in document["materializations"]}


def test_a_whole_run_folds_to_its_end(tally: Tally, ledger: Path, plan: Plan) -> None:
    document = tally("replay", FIRST, "--json").json
    assert document["format"] == "tally.state/1"
    assert document["plan_digest"] == plan.computed_digest
    assert (document["outcome"], document["last_type"]) == ("completed", "run.closed")
    assert document["sequence"] == document["last_sequence"] == len(clean_bodies(plan)) - 1
    assert (document["prefills"], document["repetitions"]) == (1, 4)
    assert document["authorities"] == {"state.kv-cache": "mat.kv-cache"}
    assert states(tally, FIRST) == {
        "mat.weights.stage": "released",
        "mat.weights.resident": "live",
        "mat.buffers.resident": "live",
        "mat.kv-cache": "live",
        "mat.replay-baseline": "live",
    }


@pytest.mark.parametrize(
    ("at", "stage", "resident"),
    [
        (0, "never begun", "never begun"),
        (5, "started", "never begun"),
        (6, "claimed", "never begun"),
        (7, "live", "never begun"),
        (11, "live", "live"),
        (27, "released", "live"),
    ],
)
def test_the_state_at_an_event_is_what_had_happened_by_then(
    tally: Tally, ledger: Path, at: int, stage: str, resident: str
) -> None:
    found = states(tally, FIRST, "--at", str(at))
    assert (found["mat.weights.stage"], found["mat.weights.resident"]) == (stage, resident)
    assert tally("replay", FIRST, "--at", str(at), "--json").json["outcome"] == "incomplete"


def test_a_killed_run_shows_how_far_it_came(tally: Tally, ledger: Path) -> None:
    document = tally("replay", OTHER, "--json").json
    assert document["outcome"] == "incomplete"
    assert document["last_type"] == "materialization.observed"
    text = tally("replay", OTHER).out
    assert "incomplete" in text
    assert "never begun" in text


def test_it_says_that_nothing_is_executed_and_fits_80_columns(
    tally: Tally, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = tally("replay", FIRST)
    assert "nothing was executed" in ran.err
    assert max(map(len, ran.out.splitlines())) <= 80


def test_an_event_past_the_end_is_one_line(tally: Tally, ledger: Path) -> None:
    ran = tally("replay", OTHER, "--at", "99")
    assert ran.code == 1
    assert "its last is 11" in ran.error_line
    assert tally("replay", OTHER, "--at", "-1").code == 2


def test_steps_say_what_each_event_changed(tally: Tally, ledger: Path, plan: Plan) -> None:
    steps = [json.loads(line) for line in tally("replay", FIRST, "--step", "--json").out.splitlines()]
    assert [step["type"] for step in steps] == [body.TYPE for body in clean_bodies(plan)]
    changed = {step["sequence"]: step["changed"] for step in steps}
    assert changed[7] == ["mat.weights.stage: claimed -> live"]
    assert changed[26] == ["mat.weights.stage: its release is authorized by mat.weights.resident"]
    assert changed[27] == ["mat.weights.stage: live -> released"]
    assert changed[30] == ["state.kv-cache: authority with mat.kv-cache"]
    assert changed[36] == ["exec.decode: 4 repetitions"]
    assert changed[len(steps) - 1] == ["outcome: incomplete -> completed"]
    text = tally("replay", FIRST, "--step", "--at", "7").out.splitlines()
    assert text[-1].strip() == "mat.weights.stage: claimed -> live"


def test_the_verdict_is_said_where_the_run_is_closed_and_not_before(tally: Tally, ledger: Path, plan: Plan) -> None:
    last = len(clean_bodies(plan)) - 1
    assert tally("replay", FIRST).out.splitlines()[1].startswith("PASS  assurance observed  completed")
    assert tally("replay", FIRST, "--at", str(last)).out.splitlines()[1].startswith("PASS")
    before = tally("replay", FIRST, "--at", str(last - 1)).out
    assert before.splitlines()[1] == "NOT JUDGED  not closed yet: the verdict is on the whole run"
    assert "FINDINGS" not in before
    assert tally("replay", OTHER).out.splitlines()[1].startswith("INDETERMINATE")
