"""The report: one self-contained HTML page about a run, verdict first, that opens offline and asks nothing of a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ledger.compare_markdown import ratio as quotient
from ledger.counting import counted
from ledger.documents import ComparisonDocument, Finding, VerificationDocument
from ledger.events import Event
from ledger.glossary import HELD
from ledger.plan import Plan
from ledger.reconcile import INVARIANTS, JUDGE_VERSION, Judgement
from ledger.reconcile.residue import unexplained_at_the_end
from ledger.report import wording
from ledger.report.chart import LEFT, RIGHT, WIDTH, Chart, draw
from ledger.report.rows import (
    DecodeRow,
    EventRow,
    MaterializationRow,
    decode_rows,
    event_row,
    materialization_rows,
    release_rows,
    resource_rows,
)
from ledger.report.timeline import Reader, Timeline
from ledger.run_state import RunState

MOST_EVENTS = 2_000
"""Events that a page lists; those that findings name are listed whatever their number."""

MOST_BODIES = 500
"""Events whose whole body a page holds."""

SEVERITIES = ("error", "unknown", "note")


@dataclass(frozen=True)
class Link:
    """A place to go to from the page: for pages that are served."""

    href: str
    text: str


@dataclass(frozen=True)
class Provenance:
    """Where the run was read from and what fixes it: for the section on hashes. What is null was not looked up.

    `origin` is the ledger's random id; `head` the hex hash of the run's last event; `root` the hex Merkle root over the
    first `tree_size` events of the ledger.
    """

    location: str
    origin: str | None = None
    first_position: int | None = None
    last_position: int | None = None
    head: str | None = None
    tree_size: int | None = None
    root: str | None = None
    checkpoint: str | None = None


@dataclass(frozen=True)
class Beside:
    """The other run of a comparison."""

    document: ComparisonDocument
    plan: Plan | None
    events: Iterable[Event]
    state: RunState
    judgement: Judgement | None


@dataclass
class Side:
    """One run as the page tells it."""

    key: str
    plan: Plan | None
    state: RunState
    judgement: Judgement | None
    timeline: Timeline
    chart: Chart
    materializations: list[MaterializationRow]
    events: list[EventRow] = field(default_factory=list)
    left_out: int = 0
    decodes: list[DecodeRow] = field(default_factory=list)


def render_report(
    plan: Plan | None,
    events: Iterable[Event],
    state: RunState,
    judgement: Judgement | None,
    *,
    verification: VerificationDocument | None = None,
    comparison: Beside | None = None,
    provenance: Provenance | None = None,
    links: Sequence[Link] = (),
) -> str:
    """The page. `state` is what `events` fold to; a run without a plan (a witness) has no judgement.

    Everything in it comes from the arguments: no clock is read and no file but the page's own templates, so the same run
    gives the same page. Text from the run is escaped, and what would act on a reader's screen is spelt out.
    """
    findings = _ordered(judgement)
    cited = {sequence for finding in findings for sequence in finding.events[:200]}
    reader = Reader()
    listed: list[EventRow] = []
    decodes: list[DecodeRow] = []
    left_out = 0
    for event in reader.through(events):
        decodes += decode_rows(event, len(decodes))
        if len(listed) < MOST_EVENTS or event.sequence in cited:
            listed.append(event_row(event, whole=len(listed) < MOST_BODIES or event.sequence in cited))
        else:
            left_out += 1
    timeline = reader.timeline(plan, state)
    other = _other(comparison) if comparison is not None else None
    until = None if other is None else max(_length(timeline), _length(other[0]))
    side = _side("a", plan, state, judgement, timeline, findings, until)
    side.events, side.left_out, side.decodes = listed, left_out, decodes
    beside = None
    if comparison is not None and other is not None:
        beside = _side(
            "b", comparison.plan, comparison.state, comparison.judgement, other[0], [], until, decodes=other[1]
        )
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            run=side,
            beside=beside,
            differences=_differences(comparison) if comparison is not None else None,
            same=comparison.document.same if comparison is not None else None,
            findings=findings,
            listed={row.sequence for row in listed},
            statements=_statements(),
            row_of={number: row.number for row in side.materializations for number, _ in row.findings},
            releases=release_rows(plan, state),
            resources=resource_rows(plan, state),
            noise=wording.size(plan.host_noise_bytes) if plan is not None else None,
            unexplained=_unexplained(plan, state) if plan is not None else None,
            verification=verification,
            provenance=provenance,
            judge_version=JUDGE_VERSION,
            links=links,
            **assets(),
        )
    )


def _unexplained(plan: Plan, state: RunState) -> str:
    found = unexplained_at_the_end(plan, state)
    return wording.size(found) if found is not None else "unknown"


def _length(timeline: Timeline) -> int:
    return timeline.end - timeline.start


def _other(comparison: Beside) -> tuple[Timeline, list[DecodeRow]]:
    reader = Reader()
    decodes: list[DecodeRow] = []
    for event in reader.through(comparison.events):
        decodes += decode_rows(event, len(decodes))
    return reader.timeline(comparison.plan, comparison.state), decodes


def _side(
    key: str,
    plan: Plan | None,
    state: RunState,
    judgement: Judgement | None,
    timeline: Timeline,
    findings: Sequence[Finding],
    until: int | None,
    *,
    decodes: list[DecodeRow] | None = None,
) -> Side:
    rows = materialization_rows(plan, state, judgement, findings)
    chart = draw(
        key,
        plan,
        timeline,
        state,
        conditions={row.id: (row.condition, f"{row.figure} · {row.condition}") for row in rows},
        anchors={row.id: f"{key}-row-{row.number}" for row in rows},
        findings=[(f"finding-{number}", finding) for number, finding in enumerate(findings)],
        until=until,
    )
    return Side(key, plan, state, judgement, timeline, chart, rows, decodes=decodes or [])


def _ordered(judgement: Judgement | None) -> list[Finding]:
    """Findings, errors first."""
    if judgement is None:
        return []
    return sorted(judgement.findings, key=lambda finding: SEVERITIES.index(finding.severity))


@cache
def _statements() -> dict[str, str]:
    """Code -> what must hold, and why."""
    return {code: " ".join(one.statement.split()) for one in INVARIANTS for code in one.codes}


MOST_DIFFERENCES = 500


@dataclass(frozen=True)
class DifferenceRow:
    path: str
    a: str
    b: str
    ratio: str
    expected: bool


def _differences(comparison: Beside) -> list[DifferenceRow]:
    """What differs first, then what every two runs differ in; timings with their ratio."""
    found = sorted(comparison.document.differences, key=lambda difference: difference.kind == "expected")
    rows = []
    for difference in found[:MOST_DIFFERENCES]:
        timed = quotient(difference)
        a, b = (
            wording.duration(value)
            if timed is not None and isinstance(value, int | float)
            else wording.shortened(wording.compact(value), 300)
            for value in (difference.a, difference.b)
        )
        shown = f"{timed:.2f} ×" if timed is not None else ""
        rows.append(DifferenceRow(difference.path, a, b, shown, difference.kind == "expected"))
    return rows


# --- templates ----------------------------------------------------------------------------------------------------


def _finalize(value: Any) -> Any:
    """What a template prints: text made inert (escaping comes after), markup of our own as it is."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return wording.inert(value)
    return "" if value is None else value


@cache
def environment() -> Environment:
    """The templates, escaping everything, and complaining about names that are not there."""
    made = Environment(
        loader=PackageLoader("ledger.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "size": wording.size,
        "duration": wording.duration,
        "said": wording.said,
        "how": wording.how,
        "percent": wording.ratio,
        "deviation": wording.deviation,
        "compact": wording.compact,
        "digest": wording.digest,
        "grouped": wording.grouped,
        "number": wording.number,
        "model": wording.model,
        "counted": counted,
        "pretty": wording.pretty,
    }
    made.globals |= {"WIDTH": WIDTH, "LEFT": LEFT, "RIGHT": RIGHT, "HELD": HELD}
    return made


def prepare() -> None:
    """Compile every template, so that the first page that is asked for need not wait for it."""
    for name in environment().list_templates(extensions=["j2"]):
        environment().get_template(name)


@cache
def assets() -> dict[str, Any]:
    """The page's style and script, and the policy that lets nothing else run and nothing be fetched."""
    folder = files("ledger.report") / "templates"
    style = (folder / "page.css").read_text("utf-8")
    script = (folder / "page.js").read_text("utf-8")
    allowed = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'; "
        "base-uri 'none'; form-action 'self'"
    )
    return {"style": Markup(style), "script": Markup(script), "policy": policy}
