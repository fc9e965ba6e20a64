"""Pages that are made from the code are current, and leave nothing out."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from ledger import event_page, plan_checks, plan_doctrine, plan_forms, plan_page
from ledger.bodies import BODIES, Body
from ledger.measurement import Frozen
from ledger.plan import Part, parse_plan

DOCS = Path(__file__).resolve().parents[2] / "docs"
FORMS: list[type[Frozen]] = [*BODIES, *event_page.parts()]


def test_the_page_of_events_is_current() -> None:
    remedy = "run `python -m ledger.event_page > docs/events.md`"
    assert (DOCS / "events.md").read_text(encoding="utf-8") == event_page.page(), remedy


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_body_says_who_appends_it_and_what_each_field_is(form: type[Frozen]) -> None:
    said = event_page.described(form)
    assert event_page.summary(form)
    if issubclass(form, Body):
        assert said["by"].endswith(".")
    for name in form.model_fields:
        assert event_page.meaning(form, name).endswith("."), name


def test_a_field_that_nobody_describes_is_found() -> None:
    class Odd(Frozen):
        """Something.

        known: a figure
        over two lines.
        """

        known: int
        forgotten: str

    assert event_page.meaning(Odd, "known") == "a figure over two lines."
    with pytest.raises(KeyError):
        event_page.meaning(Odd, "forgotten")


# --- the plan -----------------------------------------------------------------------------------------------------


def test_the_reference_of_the_plan_is_current() -> None:
    page = (DOCS / "plan.md").read_text(encoding="utf-8")
    assert page == plan_page.renewed(page), "run `python -m ledger.plan_page docs/plan.md`"


@pytest.mark.parametrize("part", plan_page.parts(), ids=lambda part: part.__name__)
def test_every_field_of_a_plan_is_described(part: type[Part]) -> None:
    for name, field in part.model_fields.items():
        assert plan_page.meaning(part, field.alias or name)


def test_every_code_of_a_plan_check_is_on_the_page() -> None:
    sources = "".join(Path(module.__file__ or "").read_text() for module in (plan_checks, plan_forms, plan_doctrine))
    named = set(re.findall(r'code="(plan\.[a-z-]+)"', sources))
    listed = {code for check in plan_page.CHECKS for code in plan_page.codes(check)}
    assert named - listed == {"plan.adapter-unknown"}, "reported by no check of its own"
    assert len(listed) > 30


def test_codes_that_realize_refuses_by_are_those_of_the_code() -> None:
    written = (DOCS / "plan.md").read_text(encoding="utf-8").partition(plan_page.MARKER)[0]
    told = set(re.findall(r"`((?:plan|environment|model|reference|adapter)\.[a-z-]+)`", written))
    files = ("realizer/validate.py", "realizer/engine.py", "ledger/reconcile/environment.py")
    known = {
        code
        for file in files
        for code in re.findall(r'code="([a-z]+\.[a-z-]+)"', (DOCS.parent / file).read_text(encoding="utf-8"))
    }
    assert {code for code in told if not code.startswith(("plan.", "adapter."))} <= known
    assert known - told == set()


def test_the_digest_rule_as_the_page_shows_it() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (DOCS / "plan.md").read_text(encoding="utf-8"), re.S)
    body, result = shown.strip().rsplit("\n", 1)
    data = (DOCS.parent / "plans" / "smollm2-135m-cpu.json").read_bytes()
    names = {"json": json, "hashlib": hashlib, "text": data.decode()}
    exec(body, names)
    assert eval(result, names) == parse_plan(data).computed_digest
