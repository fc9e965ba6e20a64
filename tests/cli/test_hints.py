"""Commands that are printed as the next thing to try run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ledger.plan import parse_plan
from realizer.cli.hints import on_the_same_ledger
from tests.builders.checkpoints import tiny_model
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["runs"], "none (`tally runs` lists them)"),
        (["runs", "--ledger", "my ledger.db"], "none (`tally runs --ledger 'my ledger.db'` lists them)"),
        (["--ledger=a.db", "show"], "none (`tally runs --ledger a.db` lists them)"),
        (["show", "--", "--ledger", "a.db"], "none (`tally runs` lists them)"),
    ],
)
def test_hints_of_errors_name_the_ledger_that_was_given(arguments: list[str], shown: str) -> None:
    assert on_the_same_ledger("none (`tally runs` lists them)", arguments) == shown


def test_hints_that_name_their_own_ledger_or_none_are_left_alone() -> None:
    for text in (
        "`tally db copy a.db b.db`",
        "`tally keygen`",
        "`tally realize PLAN` makes one",
        "`tally verify FILE`",
    ):
        assert on_the_same_ledger(text, ["--ledger", "x.db"]) == text


def test_a_hint_of_an_error_runs_as_printed(tally: Tally, ledger: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "another place" / "led'ger.db"
    elsewhere.parent.mkdir()
    ledger.rename(elsewhere)
    ran = tally("show", "ffff", "--ledger", elsewhere)
    (hint,) = re.findall(r"`tally ([^`]*)`", ran.error_line)
    again = tally(*shlex.split(hint))
    assert again.code == 0, again.err
    assert FIRST in again.out


def test_next_steps_run_as_printed_from_draft_to_plan(tally: Tally, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = tmp_path / "my model"
    tiny_model(model)
    ran = tally("plan", "draft", model, "-o", "the draft.json")
    assert ran.code == 0, ran.err
    for step in ("reference", "plan freeze"):
        shown = ran.err.splitlines()[-1].partition("; next: tally ")[2]
        assert shown.startswith(step)
        ran = tally(*shlex.split(shown))
        assert ran.code == 0, (shown, ran.err)
    assert parse_plan((tmp_path / "plan.json").read_bytes()).frozen


def test_token_ids_are_asked_for_only_where_nothing_reads_a_prompt(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    from adapters.causal_lm import CausalLM

    tiny_model(tmp_path / "model")
    assert "--tokens 1,2,3,4" in tally("plan", "draft", "model", "-o", "draft.json").err
    monkeypatch.setattr(CausalLM, "tokens", lambda checkpoint, prompt: list(prompt.encode()))
    ran = tally("plan", "draft", "model", "-o", "draft.json")
    assert ran.err.endswith("; next: tally reference draft.json --checkpoint model -o reference.safetensors\n")
