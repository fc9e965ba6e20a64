"""Every plan that the project shows is frozen, well formed, and named in the list beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.canonical import r1_file
from ledger.plan import parse_plan
from ledger.plan_checks import check_plan

PLANS = Path(__file__).resolve().parents[2] / "plans"


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.json")), ids=lambda path: path.name)
def test_a_plan_that_is_shown_is_frozen_and_sound(path: Path) -> None:
    plan = parse_plan(path.read_bytes())
    assert plan.frozen
    assert check_plan(plan, require_frozen=True) == []
    assert r1_file(plan.raw) == plan.data


def test_the_list_names_every_plan_and_no_other() -> None:
    text = (PLANS / "README.md").read_text()
    named = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert named == {path.name for path in PLANS.glob("*.json")}
    assert named
