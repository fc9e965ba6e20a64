"""The table of budgets: every row met, missed, not settled or skipped for a reason, and a script that says nothing is a fault.

What is tested is the harness, at sizes too small to judge; speeds are not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as bench
from benchmarks.__main__ import BUDGETS, GPU, Figure, run, scripts, state, table

FROM_NOTHING = ("gpu_block.py", "model_device.py")
"""Scripts that show a model realised at full size: no budget's rows, and longer than a table should take."""


def figures(**changes: Any) -> list[Figure]:
    """One figure for every budget, met."""
    return [
        {
            "name": row.figures if isinstance(row.figures, str) else row.figures[0],
            "ratio": 1.0,
            "target": 1.0,
            "ok": True,
        }
        | changes
        for row in BUDGETS
    ]


def test_every_budget_has_one_row_and_a_state() -> None:
    rows = list(table(figures(), gpu=True, quick=False))
    assert [row[0] for row in rows] == [row.what for row in BUDGETS]
    assert {row[3] for row in rows} == {"met"}
    rows = list(table(figures(), gpu=False, quick=False))
    assert [row[3] for row in rows if row[3] != "met"] == [f"skipped: {GPU}"] * 4
    assert {row[3] for row in table(figures(ok=False), gpu=True, quick=False)} == {"MISSED"}
    assert {row[3] for row in table(figures(ok=None), gpu=True, quick=False)} == {"not settled"}
    assert {row[3] for row in table(figures(ok=False), gpu=True, quick=True)} == {"measured"}


def test_no_figure_belongs_to_two_budgets() -> None:
    for figure in figures():
        own = [row.what for row in BUDGETS if figure["name"].startswith(row.figures)]
        assert len(own) == 1, figure["name"]


def test_a_budget_without_a_figure_is_a_fault() -> None:
    rows = list(table(figures()[1:], gpu=True, quick=False))
    assert rows[0][3].startswith("no figure")
    assert rows[1][3] == "met"


def test_one_missed_figure_misses_the_row_and_one_without_a_target_does_not_count() -> None:
    met, missed = {"target": 1, "ok": True}, {"target": 1, "ok": False}
    unsure, beside = {"target": 1, "ok": None}, {"target": None, "ok": None}
    assert state([met, missed, unsure], quick=False) == "MISSED"
    assert state([met, unsure], quick=False) == "not settled"
    assert state([met, beside], quick=False) == "met"
    assert state([beside], quick=False) == "not settled"


def test_a_script_that_fails_or_says_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "__main__.py"))
    line = json.dumps({"name": "x", "ratio": 1, "target": 1, "ok": True})
    for body, shown, fault in (
        (f"print({line!r})", 1, None),
        (f"print({line!r}); raise SystemExit('broke')", 1, "ended with 1: broke"),
        ("print('nothing of use')", 0, "printed no figure"),
        ("raise SystemExit('broke')", 0, "printed no figure (exit 1): broke"),
    ):
        (tmp_path / "script.py").write_text(body)
        found, said = run(["script.py"])
        assert len(found) == shown
        assert (said is None) if fault is None else (said is not None and fault in said)
    (tmp_path / "script.py").write_text(f"print({line.replace('true', 'false')!r}); raise SystemExit(1)")
    assert run(["script.py"])[1] is None, "a missed budget may end a script with 1"


def test_every_script_there_is_runs_in_the_table(tmp_path: Path) -> None:
    folder = Path(bench.__file__).parent
    named = {script[0] for script in scripts(False, 10, tmp_path, True, tmp_path)}
    assert {path.name for path in folder.glob("*.py")} - named == {"__main__.py", "figures.py", *FROM_NOTHING}
    assert all("--events" not in script or "2000" in script for script in scripts(True, 10, tmp_path, False, tmp_path))


@pytest.mark.parametrize("name", ["append.py", "judge.py", "startup.py", "verify.py"])
def test_a_script_prints_figures_that_belong_to_budgets(name: str, tmp_path: Path) -> None:
    (script,) = [script for script in scripts(True, 10, tmp_path, False, tmp_path) if script[0] == name]
    found, fault = run(script)
    assert fault is None
    for figure in found:
        assert any(figure["name"].startswith(row.figures) for row in BUDGETS), figure
        assert isinstance(figure.get("ratio", figure.get("value")), int | float)
        assert figure["target"] is not None
        assert figure["ok"] in (True, False, None)


@pytest.mark.parametrize("name", FROM_NOTHING)
def test_a_model_is_realised_from_nothing(name: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")] if name == "gpu_block.py" else []
    found, fault = run([name, "--tiny", "--folder", str(tmp_path), *out])
    assert fault is None
    judged = {figure["name"]: figure["ok"] for figure in found if figure["ok"] is not None}
    assert judged["full.verdict"] is judged["streamed.verdict"] is True
    assert set(judged.values()) == {True}
