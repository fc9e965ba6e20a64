"""Runs to show, pages on disk, and a headless browser that notes every request and every complaint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import Body, MaterializationReleased, RunOpened
from ledger.events import Event
from ledger.fold import fold
from ledger.measurement import measured
from ledger.plan import Plan, freeze, parse_plan
from ledger.reconcile import Judgement, judge
from ledger.report import render_report
from ledger.run_state import RunState
from tests.builders.runs import changed, clean_bodies, run_events, small_plan

HOSTILE = "mat.<img src=x onerror=\"document.title='owned'\">'\x1b[31m\u202egpj"
"""A name that would run in a page, colour a terminal and turn the reading direction."""


@dataclass
class Told:
    """A run with everything that a report takes."""

    plan: Plan
    bodies: list[Body]
    events: list[Event] = field(init=False)
    state: RunState = field(init=False)
    judgement: Judgement = field(init=False)

    def __post_init__(self) -> None:
        self.events = run_events(self.bodies, self.plan)
        self.state = fold(self.events)
        self.judgement = judge(self.plan, self.state)

    def page(self, **given: Any) -> str:
        return render_report(self.plan, self.events, self.state, self.judgement, **given)


@pytest.fixture(scope="session")
def clean() -> Told:
    """A run that passes."""
    plan = small_plan()
    return Told(plan, clean_bodies(plan))


@pytest.fixture(scope="session")
def flawed() -> Told:
    """A run whose staging had an owner alive at its release."""
    plan = small_plan()
    alive = measured(1, None, "looked")
    return Told(plan, changed(clean_bodies(plan), MaterializationReleased, {"owners_alive": alive}))


@pytest.fixture(scope="session")
def hostile() -> Told:
    """A run in which one materialization's id, a label, the host's name and the arguments want to be more than text."""
    document = json.loads(json.dumps(json.loads(small_plan().data)).replace("mat.kv-cache", json.dumps(HOSTILE)[1:-1]))
    document.pop("digest")
    plan = freeze(parse_plan(json.dumps(document).encode()))
    opening = {
        "labels": {"<script>alert(1)</script>": HOSTILE},
        "hostname": measured("</script><script>alert(2)</script>", None, "read"),
        "argv": measured(HOSTILE, None, "read"),
    }
    return Told(plan, changed(clean_bodies(plan), RunOpened, opening))


CHROMIUM = os.environ.get("TALLY_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium; skipped with the reason where there is none, unless TALLY_NEEDS_BROWSER says it must be."""
    needed = os.environ.get("TALLY_NEEDS_BROWSER") == "1"
    if not needed:
        pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (extra `dev`)")
        if not Path(CHROMIUM).exists():
            pytest.skip(f"no browser at {CHROMIUM}: `apt-get install chromium`")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page being looked at, with what it asked for and what it complained about."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


Open = Callable[..., Watched]


@pytest.fixture
def look(chromium: Any) -> Iterator[Open]:
    """`look(url, theme="dark", width=1240)`: the page, loaded."""
    opened: list[Any] = []

    def go(url: str, *, theme: str = "light", width: int = 1240) -> Watched:
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        opened.append(page)
        page.set_default_timeout(15_000)
        watched = Watched(page)
        page.on("request", lambda request: watched.requests.append(request.url))
        page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (watched.complaints.append(dialog.message), dialog.dismiss()))
        page.on(
            "console",
            lambda said: watched.complaints.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.goto(url)
        return watched

    yield go
    for page in opened:
        page.close()


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    """A page as a file; its address."""

    def write(html: str) -> str:
        path = tmp_path / "report.html"
        path.write_text(html, "utf-8")
        return path.as_uri()

    return write
