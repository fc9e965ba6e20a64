"""`tally replay --timeline`: what lay where from when to when, by the run's clock, and drawn within its columns."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from ledger.bodies import ReclamationObserved
from ledger.measurement import measured
from ledger.plan import Plan
from realizer.cli.documents import Mark, Span
from realizer.cli.timeline import bar_of, curve_of, marks_of
from tests.builders.runs import changed, clean_bodies
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, OTHER, seed


@pytest.mark.parametrize(
    ("spans", "bar"),
    [
        ([], "··········"),
        ([(0, None)], "██████████"),
        ([(50, None)], "·····█████"),
        ([(20, 50)], "··███·····"),
        ([(99, 99)], "·········█"),
        ([(30, 31)], "···█······"),
        ([(0, 10), (90, None)], "█········█"),
        ([(100, None)], "·········█"),
    ],
)
def test_bars_fill_the_columns_in_which_it_was_there(spans: list[tuple[int, int | None]], bar: str) -> None:
    assert bar_of([Span(began=began, ended=ended) for began, ended in spans], 0, 100, 10) == bar


@pytest.mark.parametrize(
    ("points", "curve"),
    [
        ([(0, 800)], "████████"),
        ([(50, 800)], "    ████"),
        ([(0, 0), (50, 800)], "▁▁▁▁████"),
        ([(0, 400), (50, 800), (51, 0)], "▄▄▄▄█▁▁▁"),
        ([(0, 0)], "▁▁▁▁▁▁▁▁"),
    ],
)
def test_curves_show_the_highest_of_a_column_and_keep_the_last(points: list[tuple[int, int]], curve: str) -> None:
    assert curve_of(points, 0, 100, 8) == curve


def test_marks_stand_at_their_time() -> None:
    assert marks_of([Mark(at=0, what="released"), Mark(at=100, what="closed")], 0, 100, 5) == "r   c"


def test_an_output_without_blocks_gets_plain_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert bar_of([Span(began=50, ended=None)], 0, 100, 4) == "..##"
    assert curve_of([(0, 0), (50, 800)], 0, 100, 4) == "__##"


def test_the_timeline_of_a_run(tally: Tally, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tally("replay", FIRST, "--timeline", "--json").json
    assert (document["format"], document["clock"]) == ("tally.timeline/1", "elapsed_ns")
    assert (document["start"], document["end"]) == (0, 41_000_000)
    spans = {row["id"]: row["spans"] for row in document["materializations"]}
    assert spans["mat.weights.stage"] == [{"began": 5_000_000, "ended": 27_000_000}]
    assert spans["mat.weights.resident"] == [{"began": 9_000_000, "ended": None}]
    assert document["samples"][0]["label"] == "baseline"
    assert [mark["what"] for mark in document["marks"]].count("decode") == 5
    monkeypatch.setenv("COLUMNS", "80")
    text = tally("replay", FIRST, "--timeline").out
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[1].endswith("released")
    assert text.splitlines()[2].endswith("live")


def test_what_a_look_after_its_release_still_found_goes_on(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    kept = changed(clean_bodies(plan), ReclamationObserved, {"region_mapped": measured(1, "flag", "smaps")})
    seed(tmp_path / "tally.db", plan, (FIRST, kept))
    stage = next(
        row
        for row in tally("replay", FIRST, "--timeline", "--json").json["materializations"]
        if row["id"] == "mat.weights.stage"
    )
    assert (stage["state"], stage["spans"]) == ("still mapped", [{"began": 5_000_000, "ended": None}])
    assert tally("replay", FIRST, "--timeline").out.splitlines()[1].endswith("still mapped")
    shown = tally("show", FIRST).out
    assert re.search(r"^mat\.weights\.stage .* still mapped$", shown, re.MULTILINE)
    (tmp_path / "page.html").unlink(missing_ok=True)
    assert tally("report", FIRST, "-o", "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "mat.weights.stage: from 5.0 ms, seen live at 7.0 ms, there to the end of the run" in page
    assert "released at" not in page


def test_it_stops_where_it_is_told_and_shows_what_never_began(tally: Tally, ledger: Path) -> None:
    document = tally("replay", FIRST, "--timeline", "--at", "20", "--json").json
    assert document["end"] == 20_000_000
    spans = {row["id"]: row["spans"] for row in document["materializations"]}
    assert spans["mat.weights.stage"] == [{"began": 5_000_000, "ended": None}]
    assert spans["mat.replay-baseline"] == []
    killed = tally("replay", OTHER, "--timeline").out
    assert "never" in killed
    assert tally("replay", FIRST, "--timeline", "--step").code == 2


def test_a_verdict_appended_later_does_not_lose_the_clock(tally: Tally, ledger: Path) -> None:
    assert tally("supersede", FIRST, "--by", OTHER, "--reason", "x").code == 0
    document = tally("replay", FIRST, "--timeline", "--json").json
    assert (document["clock"], document["end"]) == ("elapsed_ns", 41_000_000)
