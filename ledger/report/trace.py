"""A run as a Chrome trace (the JSON object format of the Trace Event Format), which Perfetto and chrome://tracing open.

Each Memory Resource is a process whose threads are its materializations; the run's own steps are another; memory comes
as counters. Times are microseconds of the run's clock; a run without one is laid out by event, a millisecond each.
Source of the layout: "Trace Event Format", the phases X (complete), i (instant), C (counter), M (metadata).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ledger.events import Event
from ledger.plan import Plan
from ledger.reconcile import Judgement
from ledger.report.timeline import Lane, Timeline, read_timeline
from ledger.report.wording import inert
from ledger.run_state import RunState

RUN = 1
"""The process that shows the run's own steps; Memory Resources come after it."""

WHOLE, PHASES, DECODES, SAMPLES = 1, 2, 3, 4
"""Its threads."""

PHASE_OF = {
    "run.opened": "prepare",
    "materialization.started": "materialize",
    "release.authorized": "release",
    "release.refused": "release",
    "authority.established": "authority and execution",
    "decode.ran": "decode",
    "run.closed": "closed",
}
"""The event that begins each phase; what stands between belongs to the one before."""

COUNTERS = {
    "process tree": ("process/", ("rss_anon", "rss_shmem", "rss_file", "vm_swap", "hugetlb")),
    "process tree, held": ("process/", ("tree_sum",)),
    "host": ("host/", ("anon_pages", "shmem")),
}
"""Counter track -> prefix and figures; figures of devices are taken as they are found."""


def render_trace(
    plan: Plan | None, events: Iterable[Event], state: RunState, judgement: Judgement | None = None
) -> str:
    """The trace as JSON text. `state` is what the events fold to."""
    return json.dumps(trace(plan, events, state, judgement), ensure_ascii=True, allow_nan=False)


def trace(
    plan: Plan | None, events: Iterable[Event], state: RunState, judgement: Judgement | None = None
) -> dict[str, Any]:
    """The trace as a document: `traceEvents` in order of time, metadata first, and what the run was in `otherData`."""
    kinds: list[tuple[int, str]] = []

    def noted() -> Iterator[Event]:
        for event in events:
            if event.type in PHASE_OF and (not kinds or PHASE_OF[kinds[-1][1]] != PHASE_OF[event.type]):
                kinds.append((event.sequence, event.type))
            yield event

    timeline = read_timeline(plan, noted(), state)
    metadata, slices = _lanes(plan, timeline)
    entries = [*_run(timeline, state, kinds), *slices, *_counters(timeline)]
    entries.sort(key=lambda entry: (entry["ts"], -entry.get("dur", 0)))
    return {
        "traceEvents": [*_run_names(), *metadata, *entries],
        "displayTimeUnit": "ms",
        "otherData": {
            "run_id": inert(state.run_id or ""),
            "outcome": state.outcome,
            "verdict": judgement.verdict if judgement is not None else "not judged",
            "plan_digest": plan.computed_digest if plan is not None else "none",
            "clock": "elapsed_ns" if timeline.timed else "sequence",
        },
    }


def _time(timeline: Timeline, at: int) -> float:
    """Microseconds since the run's first event."""
    return (at - timeline.start) / 1_000 if timeline.timed else (at - timeline.start) * 1_000.0


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": {"name": inert(name)}}


def _run_names() -> Iterator[dict[str, Any]]:
    yield _named("process_name", RUN, WHOLE, "run")
    for thread, name in ((WHOLE, "run"), (PHASES, "phases"), (DECODES, "decode"), (SAMPLES, "samples")):
        yield _named("thread_name", RUN, thread, name)


def _slice(
    timeline: Timeline, name: str, category: str, place: tuple[int, int], span: tuple[int, int], **arguments: Any
) -> dict[str, Any]:
    began, ended = _time(timeline, span[0]), _time(timeline, span[1])
    return {
        "ph": "X",
        "name": inert(name),
        "cat": category,
        "pid": place[0],
        "tid": place[1],
        "ts": began,
        "dur": max(ended - began, 0.0),
        "args": {key: inert(value) if isinstance(value, str) else value for key, value in arguments.items()},
    }


def _instant(
    timeline: Timeline, name: str, category: str, place: tuple[int, int], at: int, sequence: int
) -> dict[str, Any]:
    return {
        "ph": "i",
        "s": "t",
        "name": inert(name),
        "cat": category,
        "pid": place[0],
        "tid": place[1],
        "ts": _time(timeline, at),
        "args": {"sequence": sequence},
    }


def _run(timeline: Timeline, state: RunState, kinds: list[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    whole = (timeline.start, timeline.end)
    yield _slice(timeline, f"run {state.outcome}", "run", (RUN, WHOLE), whole, run_id=state.run_id or "")
    for number, (sequence, kind) in enumerate(kinds):
        if kind == "run.closed":
            continue
        following = kinds[number + 1][0] if number + 1 < len(kinds) else len(timeline.at) - 1
        span = (timeline.at[sequence], timeline.at[following])
        yield _slice(timeline, PHASE_OF[kind], "phase", (RUN, PHASES), span, sequence=sequence)
    for step in timeline.steps:
        if step.kind == "decode.ran" and step.at > step.began:
            span = (step.began, step.at)
            yield _slice(timeline, step.what, "decode", (RUN, DECODES), span, sequence=step.sequence)
        else:
            yield _instant(timeline, step.what, step.kind, (RUN, PHASES), step.at, step.sequence)
    for sample in timeline.samples:
        yield _instant(timeline, sample.label, "memory.sampled", (RUN, SAMPLES), sample.at, sample.sequence)


def _lanes(plan: Plan | None, timeline: Timeline) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Names of processes and threads; and the slices of materializations, planned and not."""
    resources = plan.memory_resources if plan is not None else {}
    processes: dict[str, int] = {name: RUN + 1 + number for number, name in enumerate(resources)}
    metadata: list[dict[str, Any]] = []
    slices: list[dict[str, Any]] = []
    named: set[int] = set()
    for thread, lane in enumerate(timeline.lanes, start=1):
        resource = lane.resource or "place unknown"
        process = processes.setdefault(resource, RUN + 1 + len(processes))
        if process not in named:
            named.add(process)
            kind = f" ({resources[resource].kind})" if resource in resources else ""
            metadata.append(_named("process_name", process, 0, resource + kind))
        metadata.append(_named("thread_name", process, thread, lane.id))
        slices += _materialized(timeline, lane, (process, thread))
    return metadata, slices


def _materialized(timeline: Timeline, lane: Lane, place: tuple[int, int]) -> Iterator[dict[str, Any]]:
    for span in lane.spans:
        end = timeline.end if span.ended is None else span.ended
        about: dict[str, Any] = {"began": span.began_sequence, "planned": lane.planned is not None}
        if lane.planned is not None:
            about |= {"role": lane.planned.role, "expected_bytes": lane.planned.expected_bytes}
        if span.ended_sequence is not None:
            about["released"] = span.ended_sequence
        yield _slice(timeline, lane.id, "materialization", place, (span.began, end), **about)
        if span.observed is not None:
            yield _slice(timeline, "until observed", "materialization", place, (span.began, span.observed))


def _counters(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Memory at each sample; what could not be read is left out of it, never 0."""
    for sample in timeline.samples:
        tracks = {
            track: {key: sample.values.get(prefix + key) for key in keys} for track, (prefix, keys) in COUNTERS.items()
        }
        for name, value in sample.values.items():
            if name.startswith("cuda/"):
                device, _, figure = name.removeprefix("cuda/").rpartition(".")
                tracks.setdefault(f"device {device or 'host pool'}", {})[figure] = value
        for track, figures in tracks.items():
            known = {inert(key): value for key, value in figures.items() if value is not None}
            if known:
                yield {
                    "ph": "C",
                    "name": inert(f"{track} (bytes)"),
                    "cat": "memory",
                    "pid": RUN,
                    "tid": 0,
                    "ts": _time(timeline, sample.at),
                    "args": known,
                }
