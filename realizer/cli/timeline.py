"""A run drawn over its own clock in a terminal: what lay where from when to when, and memory under it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ledger.counting import counted
from realizer.cli.documents import Mark, Sample, Span, TimelineDocument, TimelineRow
from realizer.cli.rendering import duration, joined, size, width

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ledger.events import Event
    from ledger.run_state import RunState
    from realizer.cli.resolving import RunSource

CURVES = (("tree_sum", "memory held"), ("rss_anon", "private"), ("rss_shmem", "shared"))
"""Figures of `memory.sampled` that are drawn, and what they are called."""

MARKED = {
    "materialization.released": "released",
    "authority.established": "authority",
    "execution.activated": "execution",
    "decode.ran": "decode",
    "run.closed": "closed",
}
"""Events that are marked, and the word whose first letter marks them."""

WIDEST = 160
LEVELS = "▁▂▃▄▅▆▇█"
PLAIN_LEVELS = "_.-=+*%#"
"""For output that cannot encode blocks."""


def timeline(source: RunSource, stop: int) -> TimelineDocument:
    """Spans, samples and marks up to event `stop`, on the run's own clock or, where it has none, by sequence."""
    from ledger.bodies import MemorySampled
    from ledger.fold import fold

    times: list[int | None] = []
    samples: list[tuple[int, MemorySampled]] = []
    marks: list[tuple[int, str]] = []

    def looked_at() -> Iterator[Event]:
        for event in source.events():
            if event.sequence > stop or (event.elapsed_ns is None and event.type.startswith(("verdict.", "run.super"))):
                continue
            times.append(event.elapsed_ns)
            if isinstance(event.body, MemorySampled):
                samples.append((event.sequence, event.body))
            if event.type in MARKED:
                marks.append((event.sequence, MARKED[event.type]))
            yield event

    state = fold(looked_at())
    timed = bool(times) and all(time is not None for time in times)
    at = [time for time in times if time is not None] if timed else list(range(len(times)))
    return TimelineDocument(
        run_id=source.run_id,
        clock="elapsed_ns" if timed else "sequence",
        start=at[0],
        end=max(at),
        materializations=list(_rows(source, state, at)),
        samples=[
            Sample(
                at=at[sequence],
                label=body.label,
                values={key: body.process[key].value for key, _ in CURVES if key in body.process},
            )
            for sequence, body in samples
        ],
        marks=[Mark(at=at[sequence], what=what) for sequence, what in marks],
    )


def _rows(source: RunSource, state: RunState, at: Sequence[int]) -> Iterator[TimelineRow]:
    from ledger.run_state import condition

    planned = source.plan.materializations if source.plan is not None else {}
    for name in [*planned, *(name for name in state.materializations if name not in planned)]:
        found = state.materializations.get(name)
        wanted = planned.get(name)
        spans = [] if found is None else found.seen_spans
        yield TimelineRow(
            id=name,
            state=condition(found)[0],
            memory_resource_id=wanted.memory_resource_id if wanted is not None else None,
            spans=[Span(began=at[began], ended=None if ended is None else at[ended]) for began, ended in spans],
        )


def drawn(document: TimelineDocument) -> Iterator[RenderableType]:
    """The document as bars and curves, as wide as there is room."""
    names = [row.id for row in document.materializations] + [name for _, name in CURVES]
    label = max(map(len, names), default=0) + 2
    columns = max(min(width(), WIDEST) - label - 12, 10)
    start, end = document.start, document.end
    span = _length(document, end - start)
    yield joined(
        ("TIMELINE", "bold"), f"{span} by the run's own clock" if document.clock == "elapsed_ns" else "by event"
    )
    for row in document.materializations:
        bar = bar_of(row.spans, start, end, columns)
        ended = bool(row.spans) and row.spans[-1].ended is not None
        yield joined((f"{row.id:<{label - 2}}", ""), (bar, "cyan" if ended else "green"), (row.state, "dim"))
    for key, name in CURVES:
        points = [(sample.at, value) for sample in document.samples if isinstance(value := sample.values.get(key), int)]
        if points:
            most = max(value for _, value in points)
            yield joined((f"{name:<{label - 2}}", ""), curve_of(points, start, end, columns), (size(most), "dim"))
    if document.marks:
        yield joined((" " * (label - 2), ""), (marks_of(document.marks, start, end, columns), "magenta"))
        words = dict.fromkeys(mark.what for mark in document.marks)
        yield joined((" " * (label - 2), ""), (", ".join(f"{word[0]} {word}" for word in words), "dim"))


def _length(document: TimelineDocument, length: int) -> str:
    return duration(length) if document.clock == "elapsed_ns" else counted(length, "event")


def _column(at: int, start: int, end: int, columns: int) -> int:
    return min((at - start) * columns // max(end - start, 1), columns - 1)


def bar_of(spans: Iterable[Span], start: int, end: int, columns: int) -> str:
    """`columns` characters: filled where it was there. What was there however shortly fills one."""
    filled, empty = ("█", "·") if _blocks() else ("#", ".")
    bar = [empty] * columns
    for span in spans:
        first = _column(span.began, start, end, columns)
        last = columns - 1 if span.ended is None else max(_column(span.ended, start, end, columns) - 1, first)
        bar[first : last + 1] = filled * (last + 1 - first)
    return "".join(bar)


def curve_of(points: Sequence[tuple[int, int]], start: int, end: int, columns: int) -> str:
    """`columns` characters, each as high as the highest sample in it; between samples the last one stands.

    Before the first sample nothing is known, and nothing is drawn.
    """
    levels = LEVELS if _blocks() else PLAIN_LEVELS
    most = max(max(value for _, value in points), 1)
    highest: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, value in points:
        column = _column(at, start, end, columns)
        highest[column] = max(value, highest.get(column, value))
        last[column] = value
    line: list[str] = []
    standing: int | None = None
    for column in range(columns):
        height = highest.get(column, standing)
        line.append(" " if height is None else levels[min(height * len(levels) // (most + 1), len(levels) - 1)])
        standing = last.get(column, standing)
    return "".join(line)


def marks_of(marks: Iterable[Mark], start: int, end: int, columns: int) -> str:
    """`columns` characters with the first letter of what happened there; of several in one column the last."""
    line = [" "] * columns
    for mark in marks:
        line[_column(mark.at, start, end, columns)] = mark.what[0]
    return "".join(line)


def _blocks() -> bool:
    """Standard output can encode block characters."""
    try:
        LEVELS.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
