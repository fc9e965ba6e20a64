"""Pages that are made from the code are current, and leave nothing out."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger import event_page
from ledger.bodies import BODIES, Body
from ledger.measurement import Frozen

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
