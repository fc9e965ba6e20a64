"""The geometry of a run's picture: memory curves over the bars of its materializations, all on one clock.

The page draws this as inline SVG, whole and readable without a script; `data-` attributes carry the moments from which
the page's script draws it anew when somebody zooms. Lengths are in the SVG's own units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledger.documents import Finding
from ledger.plan import Plan
from ledger.report.rows import is_about
from ledger.report.timeline import Lane, Sample, Step, Timeline
from ledger.report.wording import duration, inert, size
from ledger.run_state import RunState

WIDTH = 1120
LEFT, RIGHT = 226, 942
"""Where the plot begins and ends; names stand left of it, figures right."""

LANE, HEADING, PANEL_GAP, AXIS = 22, 24, 14, 26
TICKS = 3

PROCESS = (
    ("process/tree_sum", "held", "sum"),
    ("process/rss_anon", "private (RssAnon)", "anon"),
    ("process/rss_shmem", "shared (RssShmem)", "shmem"),
    ("process/rss_file", "file (RssFile)", "file"),
    ("process/vm_swap", "swap (VmSwap)", "swap"),
    ("process/hugetlb", "huge pages", "huge"),
)
HOST = (("host/anon_pages", "AnonPages", "anon"), ("host/shmem", "Shmem", "shmem"))
DEVICE = (("allocated", "allocated", "anon"), ("reserved", "reserved", "file"), ("process", "process", "sum"))
OMITTED_WHERE_ZERO = frozenset({"process/vm_swap", "process/hugetlb"})
"""Curves that are left out when every sample read 0, so that the picture shows what there is."""


@dataclass(frozen=True)
class Curve:
    """One figure over time: runs of (moment, height) without a gap; `style` is the name of its colour."""

    name: str
    style: str
    runs: list[list[tuple[int, float]]]
    peak: str
    gaps: int


@dataclass(frozen=True)
class Tick:
    place: float
    text: str


@dataclass(frozen=True)
class Panel:
    """A strip of curves with its own scale of bytes."""

    title: str
    top: float
    height: float
    curves: list[Curve]
    ticks: list[Tick]


@dataclass(frozen=True)
class Bar:
    """One span of a lane. `ready` is where it was first seen live."""

    began: int
    ready: int | None
    ended: int
    released: bool
    text: str
    sequence: int


@dataclass(frozen=True)
class Row:
    """A lane as drawn: its name, the anchor it links to, its bars, and what stands right of it."""

    name: str
    anchor: str
    style: str
    top: float
    bars: list[Bar]
    text: str
    state: str
    flags: Sequence[tuple[str, str]] = field(default_factory=list)
    """(severity, anchor) of findings about it."""


@dataclass(frozen=True)
class Group:
    """The lanes of one Memory Resource under its heading."""

    title: str
    detail: str
    top: float
    rows: list[Row]


@dataclass(frozen=True)
class Mark:
    """A moment with a link: a step of the run, or an event that a finding names."""

    at: int
    began: int
    text: str
    style: str
    anchor: str


@dataclass(frozen=True)
class MarkRow:
    title: str
    top: float
    marks: list[Mark]


@dataclass(frozen=True)
class Chart:
    """Everything that is drawn, and what the script says of each sample."""

    key: str
    start: int
    end: int
    timed: bool
    height: float
    axis: float
    panels: list[Panel]
    groups: list[Group]
    marks: list[MarkRow]
    ticks: list[Tick]
    samples: list[dict[str, Any]]
    thinned: bool

    def x(self, at: float) -> float:
        """Where a moment lies."""
        return round(LEFT + (at - self.start) / max(self.end - self.start, 1) * (RIGHT - LEFT), 2)

    def path(self, curve: Curve) -> str:
        """The curve as an SVG path."""
        return " ".join(
            f"{'L' if number else 'M'}{self.x(at)} {y}" for run in curve.runs for number, (at, y) in enumerate(run)
        )

    def points(self, curve: Curve) -> str:
        """The curve's moments and heights for the script: `at,y at,y|at,y`."""
        return "|".join(" ".join(f"{at},{y}" for at, y in run) for run in curve.runs)

    def moment(self, at: int) -> str:
        """A moment in words, counted from the run's first event."""
        return moment(at, self.start, self.timed)


def moment(at: int, start: int, timed: bool) -> str:
    return duration(at - start) if timed else f"event {at}"


def draw(
    key: str,
    plan: Plan | None,
    timeline: Timeline,
    state: RunState,
    *,
    conditions: dict[str, tuple[str, str]],
    anchors: dict[str, str],
    findings: Sequence[tuple[str, Finding]] = (),
    until: int | None = None,
) -> Chart:
    """Lay the picture out. `until` gives the end of the axis where two runs share a scale (length, not moment).

    `conditions`: per materialization the word for what became of it and the text right of its lane; `anchors`: where
    its row stands on the page; `findings`: (anchor, finding).
    """
    end = max(timeline.end, timeline.start + 1) if until is None else timeline.start + max(until, 1)
    panels = list(_panels(timeline))
    top = panels[-1].top + panels[-1].height + PANEL_GAP if panels else 8.0
    groups: list[Group] = []
    for title, detail, lanes in _grouped(plan, timeline.lanes):
        rows = []
        for number, lane in enumerate(lanes):
            flags = [(found.severity, anchor) for anchor, found in findings if is_about(found, lane.id)]
            word, text = conditions.get(lane.id, ("unplanned", ""))
            rows.append(
                Row(
                    name=inert(lane.id),
                    anchor=anchors.get(lane.id, ""),
                    style=lane.planned.role if lane.planned is not None else "unplanned",
                    top=top + HEADING + number * LANE,
                    bars=[_bar(lane, span, timeline) for span in lane.spans],
                    text=text,
                    state=word,
                    flags=flags[:3],
                )
            )
        groups.append(Group(title, detail, top, rows))
        top += HEADING + len(lanes) * LANE + 6
    marks = []
    for title, found in _marks(timeline, findings):
        marks.append(MarkRow(title, top + 4, found))
        top += LANE
    return Chart(
        key=key,
        start=timeline.start,
        end=end,
        timed=timeline.timed,
        height=top + AXIS + 8,
        axis=top + 6,
        panels=panels,
        groups=groups,
        marks=marks,
        ticks=[Tick(at, text) for at, text in time_ticks(timeline.start, end, timeline.timed)],
        samples=[_sample(sample, timeline) for sample in timeline.samples],
        thinned=timeline.thinned,
    )


def _sample(sample: Sample, timeline: Timeline) -> dict[str, Any]:
    shown = [(name, sample.values[key]) for key, name, _ in (*PROCESS, *HOST) if key in sample.values]
    shown += [(key.removeprefix("cuda/"), value) for key, value in sample.values.items() if key.startswith("cuda/")]
    return {
        "at": sample.at,
        "when": moment(sample.at, timeline.start, timeline.timed),
        "label": inert(sample.label),
        "values": [[inert(name), "unknown" if value is None else size(value)] for name, value in shown[:16]],
    }


def _bar(lane: Lane, span: Any, timeline: Timeline) -> Bar:
    end = timeline.end if span.ended is None else span.ended
    what = f"{inert(lane.id)}: from {moment(span.began, timeline.start, timeline.timed)}"
    if span.observed is not None:
        what += f", seen live at {moment(span.observed, timeline.start, timeline.timed)}"
    what += (
        f", released at {moment(end, timeline.start, timeline.timed)}"
        if span.ended is not None
        else ", there to the end of the run"
    )
    return Bar(span.began, span.observed, end, span.ended is not None, what, span.began_sequence)


def _grouped(plan: Plan | None, lanes: Sequence[Lane]) -> Iterator[tuple[str, str, list[Lane]]]:
    """Lanes by Memory Resource, in the plan's order; what lies nowhere that the plan names comes last."""
    resources = plan.memory_resources if plan is not None else {}
    by_place: dict[str | None, list[Lane]] = {name: [] for name in resources}
    for lane in lanes:
        by_place.setdefault(lane.resource, []).append(lane)
    for name, found in by_place.items():
        if not found:
            continue
        resource = resources.get(name) if name is not None else None
        if resource is None:
            yield (inert(name) if name is not None else "place unknown", "not in the plan", found)
        else:
            parent = f", carved from {inert(resource.parent)}" if resource.parent else ""
            yield inert(name), f"{inert(resource.kind)}, {size(resource.capacity_bytes)}{parent}", found


def _marks(timeline: Timeline, findings: Sequence[tuple[str, Finding]]) -> Iterator[tuple[str, list[Mark]]]:
    styles = {"decode.ran": "decode", "run.closed": "closed", "authority.established": "authority"}
    steps = [s for s in timeline.steps if s.kind not in ("materialization.released", "decode.ran")]
    decodes = [s for s in timeline.steps if s.kind == "decode.ran"]

    def marked(chosen: Iterable[Step]) -> list[Mark]:
        return [
            Mark(s.at, s.began, f"{inert(s.what)}, {moment(s.at, timeline.start, timeline.timed)}",
                 styles.get(s.kind, "step"), f"event-{s.sequence}")
            for s in chosen
        ]  # fmt: skip

    if steps:
        yield "steps", marked(steps)
    if decodes:
        yield "decode", marked(decodes)
    pointed = [
        Mark(at, at, f"{found.severity}: {found.code} {inert(found.subject)}", f"flag-{found.severity}", anchor)
        for anchor, found in findings
        for sequence in found.events[:20]
        if (at := timeline.when(sequence)) is not None
    ]
    if pointed:
        yield "findings", pointed


# --- curves -------------------------------------------------------------------------------------------------------


def _panels(timeline: Timeline) -> Iterator[Panel]:
    top = 12.0
    devices: dict[str, list[tuple[str, str, str]]] = {}
    for sample in timeline.samples:
        for key in sample.values:
            device = key.removeprefix("cuda/").rpartition(".")[0]
            if key.startswith("cuda/") and device and device not in devices:
                devices[device] = [(f"cuda/{device}.{name}", text, style) for name, text, style in DEVICE]
    wanted = [
        ("process tree", 132.0, PROCESS),
        *((f"device {inert(device)}", 92.0, tuple(figures)) for device, figures in devices.items()),
        ("whole machine", 64.0, HOST),
    ]
    for title, height, figures in wanted:
        panel = _panel(title, top, height, figures, timeline.samples)
        if panel is not None:
            yield panel
            top += height + PANEL_GAP + 6


def _panel(
    title: str, top: float, height: float, figures: Sequence[tuple[str, str, str]], samples: Sequence[Sample]
) -> Panel | None:
    """The curves of a strip, scaled from 0 to its highest figure; null where no sample has any of them."""
    series: list[tuple[str, str, list[tuple[int, float | None]]]] = []
    for key, name, style in figures:
        points = [(sample.at, sample.values[key]) for sample in samples if key in sample.values]
        known = [value for _, value in points if value is not None]
        if known and not (key in OMITTED_WHERE_ZERO and not any(known)):
            series.append((name, style, points))
    if not series:
        return None
    highest = max(value for _, _, points in series for _, value in points if value is not None)
    step = byte_step(highest)
    scale = max(math.ceil(highest / step) * step, 1)
    curves = []
    for name, style, points in series:
        runs: list[list[tuple[int, float]]] = [[]]
        for at, value in points:
            if value is None:
                runs.append([])
            else:
                runs[-1].append((at, round(top + height - value / scale * height, 2)))
        peak = size(max(value for _, value in points if value is not None))
        gaps = sum(value is None for _, value in points)
        curves.append(Curve(name, style, [run for run in runs if run], peak, gaps))
    ticks = [
        Tick(round(top + height - value / scale * height, 2), size(value) if value else "0")
        for value in range(0, int(scale) + 1, step)
    ]
    return Panel(title, top, height, curves, ticks)


def byte_step(highest: float) -> int:
    """The distance of lines on a scale of bytes: a power of two that needs `TICKS` of them, or one or two more."""
    return 2 ** max(math.ceil(math.log2(max(highest, 1) / TICKS)), 0) if highest > 0 else 1


def time_ticks(start: int, end: int, timed: bool) -> list[tuple[int, str]]:
    """Moments to name on the axis: five to ten, at 1, 2 or 5 times a power of ten."""
    length = max(end - start, 1)
    step = 10 ** math.floor(math.log10(length))
    while length / step < 5 and step > 1:
        step = max(step // 2 if str(step)[0] != "5" else step * 2 // 5, 1)
    if not timed:
        return [(start + offset, str(start + offset)) for offset in range(0, length + 1, max(step, 1))]
    return [(start + offset, duration_tick(offset)) for offset in range(0, length + 1, step)]


def duration_tick(nanoseconds: int) -> str:
    """A moment on the axis, without digits that say nothing."""
    if nanoseconds == 0:
        return "0"
    for unit, divisor in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if nanoseconds >= divisor:
            return f"{nanoseconds / divisor:g} {unit}"
    return f"{nanoseconds} ns"
