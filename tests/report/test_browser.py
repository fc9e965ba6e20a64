"""The pages in a real browser: nothing complains, nothing is fetched, and what can be clicked, typed and zoomed works."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import MaterializationObserved, RunOpened
from ledger.compare import ComparedRun, compare
from ledger.measurement import measured
from ledger.report import Beside
from ledger.report.wording import inert
from tests.builders.runs import changed, clean_bodies, gpu_plan, small_plan
from tests.cli.seeding import FIRST, OTHER, SECOND, seed
from tests.report.conftest import HOSTILE, Open, Told

Write = Callable[[str], str]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("which", ["clean", "flawed", "hostile"])
def test_a_report_loads_without_a_complaint_or_a_request(
    which: str, theme: str, look: Open, written: Write, request: pytest.FixtureRequest
) -> None:
    told: Told = request.getfixturevalue(which)
    address = written(told.page())
    watched = look(address, theme=theme)
    assert watched.page.title().startswith(told.judgement.verdict)
    assert watched.complaints == []
    assert watched.requests == [address]
    paper = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 384) == (theme == "dark")


def test_the_page_fits_a_telephone(look: Open, written: Write, flawed: Told) -> None:
    page = look(written(flawed.page()), width=390).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_picture_shows_the_planned_rows(look: Open, written: Write, clean: Told) -> None:
    page = look(written(clean.page())).page
    lanes = page.eval_on_selector_all("svg.timeline .lane-row", "found => found.map(lane => lane.dataset.lane)")
    assert sorted(lanes) == sorted(clean.plan.materializations)
    for lane in clean.plan.materializations:
        box = page.locator(f'.lane-row[data-lane="{lane}"] rect.bar').last.bounding_box()
        assert box["width"] > 1
        assert box["height"] > 5
    headings = page.locator("svg.timeline .resource text.title").all_text_contents()
    for resource in clean.plan.memory_resources:
        assert any(heading.startswith(resource) for heading in headings)
    assert page.locator("svg.timeline path.curve").count() >= 4


def test_a_device_has_its_own_curves(look: Open, written: Write) -> None:
    plan = gpu_plan()
    watched = look(written(Told(plan, clean_bodies(plan)).page()))
    assert watched.page.get_by_text("device cuda:0", exact=True).is_visible()
    assert watched.complaints == []


def test_a_finding_links_to_its_event_and_its_row(look: Open, written: Write, flawed: Told) -> None:
    page = look(written(flawed.page())).page
    found = flawed.judgement.findings[0]
    page.locator("#finding-0 .links a").first.click()
    row = page.locator(f"#event-{found.events[0]}")
    assert page.url.endswith(f"#event-{found.events[0]}")
    assert _in_view(page, row)
    page.locator("#finding-0 h3 a").click()
    assert found.subject in page.locator(":target").inner_text()
    page.locator("tr:target a.pill").first.click()
    assert page.locator("article:target").get_attribute("id") == "finding-0"


def _in_view(page: Any, row: Any) -> bool:
    box = row.bounding_box()
    return bool(0 <= box["y"] <= page.viewport_size["height"])


def test_filters_show_what_fits_and_links_bring_hidden_rows_back(look: Open, written: Write, flawed: Told) -> None:
    page = look(written(flawed.page())).page
    shown = page.locator("#event-rows tbody tr:visible")
    everything = shown.count()
    assert everything == len(flawed.events)
    page.get_by_label("Family").select_option("memory")
    assert shown.count() == sum(event.type.startswith("memory.") for event in flawed.events)
    page.get_by_label("Filter events").fill("closing")
    assert shown.count() == 1
    page.get_by_label("Filter events").fill("no such thing")
    assert shown.count() == 0
    page.locator("#finding-0 .links a").first.click()
    page.wait_for_function(f"document.querySelectorAll('#event-rows tbody tr:not([hidden])').length === {everything}")
    rows = page.locator("#a-materializations tbody tr:visible")
    page.get_by_label("only what is not as planned").check()
    assert rows.all_inner_texts()[0].startswith("mat.weights.stage")
    assert rows.count() == 1


def test_what_differs_from_the_plan_is_listed_by_its_filter(look: Open, written: Write, clean: Told) -> None:
    wrong = changed(clean.bodies, MaterializationObserved, {"bytes": measured(1, "bytes", "looked")})
    page = look(written(Told(clean.plan, wrong).page())).page
    page.get_by_label("only what is not as planned").check()
    differing = page.locator("#a-materializations tbody tr:visible .differs")
    assert differing.count() >= 1
    page = look(written(clean.page())).page
    page.get_by_label("only what is not as planned").check()
    assert page.locator("#a-materializations tbody tr:visible").count() == 0


def test_hovering_tells_the_nearest_sample(look: Open, written: Write, clean: Told) -> None:
    page = look(written(clean.page())).page
    box = page.locator("svg.timeline").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 60)
    told = page.locator(".hover")
    assert told.is_visible()
    labels = {event.body.label for event in clean.events if event.type == "memory.sampled"}
    assert told.locator("b").inner_text() in labels
    assert "private (RssAnon)" in told.inner_text()
    page.mouse.move(box["x"] + 20, box["y"] + 60)
    assert not told.is_visible()


def _first_bar(page: Any) -> dict[str, float]:
    box: dict[str, float] = page.locator('.lane-row[data-lane="mat.weights.resident"] rect.bar').last.bounding_box()
    return box


def test_zooming_by_button_by_dragging_and_back(look: Open, written: Write, clean: Told) -> None:
    page = look(written(clean.page())).page
    figure, svg = page.locator("figure.chart"), page.locator("svg.timeline")
    whole = page.get_by_role("button", name="Whole run")
    before = _first_bar(page)
    assert whole.is_disabled()
    page.get_by_role("button", name="Zoom in").click()
    assert figure.get_attribute("data-zoomed") == "yes"
    assert _first_bar(page) != before
    whole.click()
    assert _first_bar(page) == before
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    page.mouse.up()
    assert figure.get_attribute("data-zoomed") == "yes"
    page.mouse.dblclick(box["x"] + box["width"] * 0.5, box["y"] + 60)
    assert figure.get_attribute("data-zoomed") == "no"
    assert _first_bar(page) == before


def test_the_picture_is_used_by_keyboard_and_read_aloud(look: Open, written: Write, clean: Told) -> None:
    page = look(written(clean.page())).page
    svg, aloud = page.locator("svg.timeline"), page.locator(".said")
    svg.focus()
    page.keyboard.press("Home")
    first = aloud.inner_text()
    assert first.startswith("baseline")
    assert "MiB" in first
    page.keyboard.press("ArrowRight")
    assert aloud.inner_text() != first
    page.keyboard.press("+")
    assert page.locator("figure.chart").get_attribute("data-zoomed") == "yes"
    page.keyboard.press("0")
    assert page.locator("figure.chart").get_attribute("data-zoomed") == "no"
    assert page.locator("svg.timeline title").first.text_content().startswith("Materializations by Memory Resource")
    unnamed = page.eval_on_selector_all(
        "a, button, input, select",
        "found => found.filter(e => !(e.ariaLabel || e.textContent.trim() || (e.labels && e.labels.length)))"
        ".map(e => e.outerHTML)",
    )
    assert unnamed == []


def test_print_is_light_and_whole(look: Open, written: Write, flawed: Told, tmp_path: Path) -> None:
    page = look(written(flawed.page()), theme="dark", width=760).page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("button:visible, input:visible, select:visible").count() == 0
    assert page.locator(".legend").is_visible()
    assert page.locator("svg.timeline").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#samples").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 760
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_without_a_script_everything_can_still_be_read(chromium: Any, written: Write, flawed: Told) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(written(flawed.page()))
    assert page.locator("#a-materializations tbody tr").count() == len(flawed.plan.materializations)
    assert page.locator('.lane-row[data-lane="mat.weights.resident"] rect.bar').last.bounding_box()["width"] > 1
    assert not page.get_by_role("button", name="Zoom in").is_visible()
    context.close()


def test_hostile_text_is_shown_and_does_nothing(look: Open, written: Write, hostile: Told) -> None:
    watched = look(written(hostile.page()))
    page = watched.page
    assert watched.complaints == []
    assert page.title() != "owned"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("#a-materializations").get_by_text(inert(HOSTILE)).first.is_visible()
    everything = page.evaluate("document.documentElement.outerHTML")
    assert "\x1b" not in everything
    assert "\u202e" not in everything
    page.locator("svg.timeline").focus()
    page.keyboard.press("End")
    assert watched.complaints == []


def test_two_runs_are_drawn_on_one_scale(look: Open, written: Write, clean: Told, flawed: Told) -> None:
    sides = [ComparedRun(told.plan, told.state, told.judgement) for told in (clean, flawed)]
    beside = Beside(compare(*sides), flawed.plan, flawed.events, flawed.state, flawed.judgement)
    watched = look(written(clean.page(comparison=beside)))
    charts = watched.page.locator("svg.timeline")
    assert charts.count() == 2
    lengths = charts.evaluate_all("found => found.map(svg => svg.dataset.end - svg.dataset.start)")
    assert lengths[0] == lengths[1]
    assert watched.page.locator("#different").get_by_text("staging.owner-alive").count() >= 1
    assert watched.complaints == []


# --- served -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`tally serve` as a process of its own on a free port; its address."""
    pytest.importorskip("datasette", reason="Datasette is not installed (extra `serve`)")
    folder = tmp_path_factory.mktemp("served")
    plan = small_plan()
    bodies = clean_bodies(plan)
    seed(folder / "tally.db", plan, (FIRST, bodies), (SECOND, bodies), (OTHER, bodies[:12]))
    process = subprocess.Popen(
        [sys.executable, "-m", "realizer.cli.main", "serve", "--port", "0", "--json", "--ledger", "tally.db"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2]), "TALLY_STATE_DIR": str(folder)},
    )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], 30)
        assert ready, "tally serve did not say where it listens"
        lines = [process.stdout.readline() for _ in range(4)]
        yield str(json.loads("".join(lines))["url"])
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_served_pages_load_and_ask_this_machine_alone(theme: str, served: str, look: Open) -> None:
    for path in ("", f"-/run/{FIRST}", f"-/compare?a={FIRST}&b={OTHER}", "-/queries", "tally", "tally/runs"):
        watched = look(served + path, theme=theme)
        watched.page.wait_for_load_state("networkidle")
        assert watched.complaints == [], path
        assert all(asked.startswith((served, "data:")) for asked in watched.requests), path


def test_from_the_list_to_a_run_a_comparison_and_a_query(served: str, look: Open) -> None:
    page = look(served).page
    rows = page.locator("#runs tbody tr:visible")
    assert rows.count() == 3
    page.get_by_label("Filter runs").fill(SECOND)
    assert rows.count() == 1
    page.get_by_role("link", name=SECOND).click()
    assert page.locator(".verdict strong").inner_text() == "PASS"
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_label(f"A: {FIRST}").check()
    page.get_by_label(f"B: {OTHER}").check()
    page.get_by_role("button", name="Compare A with B").click()
    assert page.get_by_role("heading", name="Two runs side by side").is_visible()
    assert page.locator(".verdict strong").all_inner_texts() == ["PASS", "INDETERMINATE"]
    page.get_by_role("link", name="Named queries").click()
    page.get_by_role("link", name="memory-over-time").click()
    page.locator("table.rows-and-columns tbody tr").nth(10).wait_for()


def test_a_missing_run_has_a_page_that_says_so(served: str, look: Open) -> None:
    page = look(served + "-/run/ffff").page
    assert page.get_by_role("heading", name="Not found").is_visible()


def test_a_narrow_screen_is_told_that_the_picture_goes_on(look: Open, written: Write, clean: Told) -> None:
    address = written(clean.page())
    assert look(address, width=390).page.locator("figure.chart .narrow").first.is_visible()
    assert not look(address).page.locator("figure.chart .narrow").first.is_visible()


def test_two_long_digests_side_by_side_are_not_cut(look: Open, written: Write, clean: Told) -> None:
    other = Told(
        clean.plan,
        changed(clean.bodies, RunOpened, {"software.files_digest": measured("sha256:" + "0" * 64, None, "x")}),
    )
    document = compare(
        ComparedRun(clean.plan, clean.state, clean.judgement), ComparedRun(other.plan, other.state, other.judgement)
    )
    beside = Beside(document, other.plan, other.events, other.state, other.judgement)
    page = look(written(clean.page(comparison=beside))).page
    assert "0" * 64 in page.locator("#different").inner_text()
    assert (
        page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('#different').parentElement)")
        <= 0
    )


def test_a_named_query_fits_a_telephone(served: str, look: Open) -> None:
    page = look(f"{served}tally/memory-over-time?run={FIRST}", width=400).page
    assert page.get_by_text("FROM memory_samples").count() >= 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
