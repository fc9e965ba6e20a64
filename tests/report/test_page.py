"""The report as text: what it tells, what it links, and that text from a run stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from ledger.bodies import MaterializationObserved, MemorySampled, RunClosed, RunOpened
from ledger.compare import ComparedRun, compare
from ledger.documents import Checks, Problem, VerificationDocument
from ledger.measurement import measured, unavailable
from ledger.report import Beside, Provenance
from ledger.report import page as page_module
from ledger.report.page import environment
from ledger.report.wording import compact, duration, inert, model, pretty, said, size
from ledger.views import PROCESS_COLUMNS
from realizer.cli.portrait import _model
from tests.builders.runs import changed, clean_bodies, gpu_plan, small_plan
from tests.report.conftest import HOSTILE, Told


class Anchors(HTMLParser):
    """Ids, links into the page, elements and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.elements: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "action", "srcset", "poster", "data") and value:
                (self.targets if value.startswith("#") else self.addresses).append(value)
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("which", ["clean", "flawed", "hostile"])
def test_every_link_leads_somewhere_on_the_page(which: str, request: pytest.FixtureRequest) -> None:
    told: Told = request.getfixturevalue(which)
    found = Anchors(told.page())
    assert found.targets
    assert {target[1:] for target in found.targets} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


@pytest.mark.parametrize("which", ["clean", "hostile"])
def test_nothing_is_fetched_and_one_script_may_run(which: str, request: pytest.FixtureRequest) -> None:
    html = request.getfixturevalue(which).page()
    found = Anchors(html)
    assert found.addresses == ["data:,"]
    assert not {"img", "iframe", "object", "embed", "video", "audio"} & set(found.elements)
    assert found.handlers == []
    assert found.elements.count("script") == 2  # the samples as data, and the page's own
    assert "url(http" not in html
    assert "@import" not in html


def test_how_large_a_copy_would_pass_is_said(clean: Told) -> None:
    text = " ".join(Anchors(clean.page()).text.split())
    assert "host memory, unexplained0 B the plan lets 64.0 MiB pass: a copy that small is not found" in text


def test_the_same_run_gives_the_same_page(clean: Told) -> None:
    assert clean.page() == clean.page()


def test_hostile_text_is_told_and_does_nothing(hostile: Told) -> None:
    html = hostile.page()
    assert "<img" not in html
    assert "<script>alert" not in html
    for acting in ("\x1b", "\u202e"):
        assert acting not in html
    text = Anchors(html).text
    assert inert(HOSTILE) in text
    assert "\\x1b[31m\\u202egpj" in text


def test_hostile_text_in_a_provenance_and_a_verification_is_inert(clean: Told) -> None:
    problems = [Problem(code="format", detail="<b>\u202e</b>")]
    verification = VerificationDocument(status="broken", checks=Checks(signature="failed"), problems=problems)
    html = clean.page(
        verification=verification,
        provenance=Provenance(location="<i>\x1b", origin="o", head="aa", checkpoint="<u>\n\u202e", last_position=3),
    )
    assert not {"<b>", "<i>", "<u>"} & set(re.findall(r"<[biu]>", html))
    assert "\u202e" not in html
    assert "Evidence broken" in html


def test_the_verdict_comes_first_and_findings_link_to_their_events(flawed: Told) -> None:
    html = flawed.page()
    assert html.index(">FAIL<") < html.index('id="timeline"') < html.index('id="materializations"')
    article = html[html.index('id="finding-0"') :].partition("</article>")[0]
    assert "staging.owner-alive" in html
    sequences = flawed.judgement.findings[0].events
    assert sequences
    assert all(f'href="#event-{sequence}"' in article for sequence in sequences)


def test_rows_say_what_was_planned_and_what_was_observed(clean: Told) -> None:
    wrong = measured(12_345, "bytes", "live storages by address")
    told = Told(clean.plan, changed(clean.bodies, MaterializationObserved, {"bytes": wrong}))
    planned = clean.plan.document.materializations[0].expected_bytes
    assert f"planned {planned:,} B" in told.page()
    assert "≠ 12,345 B" in told.page()
    assert "≠" not in clean.page()


def test_a_model_of_a_folder_is_told_in_the_words_of_the_command() -> None:
    """A name that is a number has no commas in it, and the table's last column is what is held, not a sum."""
    plan = small_plan()
    unknown = unavailable(None, "directory", "the directory does not say where it came from")
    opening = {
        "model.repository": unknown,
        "model.revision": unknown,
        "model.directory": measured("../mine", None, "path"),
        "pid": measured(13987, None, "getpid"),
    }
    told = Told(plan, changed(clean_bodies(plan), RunOpened, opening))
    text = Anchors(told.page()).text
    assert told.state.opened is not None
    identity = told.state.opened.body.model
    assert identity is not None
    assert _model(identity) == model(identity) == "in ../mine; the directory does not say where it came from"
    assert model(identity) in text
    assert "process 13987" in text
    assert "13,987" not in text
    assert "held" in text


def test_what_is_held_has_one_definition() -> None:
    stated = PROCESS_COLUMNS["tree_sum"]
    assert stated in " ".join((MemorySampled.__doc__ or "").split())
    assert stated in Anchors(environment().from_string("{{ HELD }}").render()).text


def test_what_was_not_measured_is_called_so_and_never_zero(clean: Told) -> None:
    gone = unavailable("bytes", "read", "not permitted")
    told = Told(clean.plan, changed(clean.bodies, MaterializationObserved, {"bytes": gone}))
    row = told.page()
    row = row[row.index('id="a-row-0"') :].partition("</tr>")[0]
    assert "unavailable" in row
    assert ">0 B" not in row
    assert said(gone) == "unavailable"


def test_a_curve_has_a_gap_where_a_figure_could_not_be_read(clean: Told) -> None:
    gone = unavailable("bytes", "read", "not permitted")
    samples = [n for n, body in enumerate(clean.bodies) if isinstance(body, MemorySampled)]
    bodies = list(clean.bodies)
    broken = bodies[samples[2]]
    assert isinstance(broken, MemorySampled)
    bodies[samples[2]] = broken.model_copy(update={"process": {**broken.process, "rss_anon": gone}})
    html = Told(clean.plan, bodies).page()
    assert "(1 unknown)" in html
    paths = re.findall(r'class="curve c-anon" d="([^"]*)"', html)
    assert paths[0].count("M") == 2
    assert re.findall(r'class="curve c-anon" d="([^"]*)"', clean.page())[0].count("M") == 1


def test_devices_have_a_panel_of_their_own() -> None:
    plan = gpu_plan()
    html = Told(plan, clean_bodies(plan)).page()
    assert "device cuda:0" in html


def test_an_incomplete_run_and_a_failed_one_say_so(clean: Told) -> None:
    assert "Nobody closed this run" in Told(clean.plan, clean.bodies[:12]).page()
    failure = {"outcome": "failed", "error_type": "RealizationFailed", "message": "out of <memory>"}
    failed = Told(clean.plan, changed(clean.bodies, RunClosed, failure)).page()
    assert "Stopped by RealizationFailed: out of &lt;memory&gt;" in failed


def test_many_events_are_cut_but_those_that_findings_name_stay(flawed: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MOST_EVENTS", 3)
    html = flawed.page()
    cited = {sequence for finding in flawed.judgement.findings for sequence in finding.events}
    assert set(map(int, re.findall(r'<tr id="event-(\d+)"', html))) == cited | {0, 1, 2}
    assert "more events are not on this page" in html


def test_two_runs_side_by_side(clean: Told, flawed: Told) -> None:
    document = compare(
        ComparedRun(clean.plan, clean.state, clean.judgement), ComparedRun(flawed.plan, flawed.state, flawed.judgement)
    )
    beside = Beside(document, flawed.plan, flawed.events, flawed.state, flawed.judgement)
    found = Anchors(clean.page(comparison=beside))
    assert "staging.owner-alive" in found.text
    assert found.elements.count("svg") == 2
    assert {"a-row-0", "b-row-0", "different"} <= set(found.ids)
    assert {target[1:] for target in found.targets} <= set(found.ids)
    same = compare(*[ComparedRun(clean.plan, clean.state, clean.judgement)] * 2)
    alike = clean.page(comparison=Beside(same, clean.plan, clean.events, clean.state, clean.judgement))
    assert "The runs are the same" in alike


def test_a_witness_without_a_plan_has_a_page(clean: Told) -> None:
    html = page_module.render_report(None, clean.events, clean.state, None)
    assert "NOT JUDGED" in html


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (268_435_456, "256.0 MiB"), (-2048, "-2.00 KiB")],
)
def test_sizes(value: int, shown: str) -> None:
    assert size(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 s"), (1_500, "2 µs"), (1_500_000, "1.5 ms"), (2_500_000_000, "2.50 s"), (125 * 10**9, "2 min 05 s")],
)
def test_durations(value: int, shown: str) -> None:
    assert duration(value) == shown


def test_whole_numbers_in_a_document_are_grouped() -> None:
    assert compact({"a": 8_636_596_224, "b": [True, 0.5, None]}) == "a: 8,636,596,224, b: [true, 0.5, null]"


def test_documents_are_escaped_line_by_line() -> None:
    assert str(pretty({"<a>": "\u202e"})) == "{\n &#34;&lt;a&gt;&#34;: &#34;\\u202e&#34;\n}"
    assert str(pretty({"a": 1}, longest=3)) == "{\n \n… (11 characters; `tally log --json` has all of them)"


def test_small_plan_needs_no_scale_of_its_own() -> None:
    """A run that never sampled and never materialized still has a page."""
    plan = small_plan()
    assert "Nothing was decoded" in Told(plan, clean_bodies(plan)[:1]).page()
