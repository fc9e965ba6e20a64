"""The trace against the Trace Event Format: what each phase must carry, slices that nest, counters that are numbers."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from ledger.bodies import MemorySampled
from ledger.fold import fold
from ledger.measurement import unavailable
from ledger.report import render_trace
from ledger.report.trace import trace
from tests.builders.runs import clean_bodies, gpu_plan, run_events
from tests.report.conftest import Told

REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
    "M": {"name", "pid", "args"},
}
METADATA = {"process_name", "thread_name"}


def problems(document: dict[str, Any]) -> list[str]:
    """What in the document is not as the format says."""
    found = []
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for entry in document["traceEvents"]:
        missing = REQUIRED.get(entry["ph"], {"a known phase"}) - entry.keys()
        if missing:
            found.append(f"{entry['ph']} {entry.get('name')}: {sorted(missing)} missing")
            continue
        if not isinstance(entry["pid"], int) or not isinstance(entry.get("tid", 0), int):
            found.append(f"{entry['name']}: pid and tid are integers")
        if entry.get("ts", 0) < 0:
            found.append(f"{entry['name']}: before the beginning")
        if entry["ph"] == "X":
            if entry["dur"] < 0:
                found.append(f"{entry['name']}: ends before it begins")
            slices[entry["pid"], entry["tid"]].append((entry["ts"], entry["ts"] + entry["dur"]))
        if entry["ph"] == "i" and entry["s"] not in ("g", "p", "t"):
            found.append(f"{entry['name']}: scope {entry['s']}")
        if entry["ph"] == "M" and (entry["name"] not in METADATA or not isinstance(entry["args"].get("name"), str)):
            found.append(f"metadata {entry['name']}")
        if entry["ph"] == "C" and not all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in entry["args"].values()
        ):
            found.append(f"counter {entry['name']}")
    for place, spans in slices.items():
        ends: list[float] = []
        for began, ended in sorted(spans, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= began:
                ends.pop()
            if ends and ended > ends[-1] + 1e-6:
                found.append(f"slices of {place} overlap without nesting")
            ends.append(ended)
    return found


@pytest.mark.parametrize("which", ["clean", "flawed", "hostile"])
def test_the_trace_is_of_the_format(which: str, request: pytest.FixtureRequest) -> None:
    told: Told = request.getfixturevalue(which)
    text = render_trace(told.plan, told.events, told.state, told.judgement)
    assert problems(json.loads(text)) == []
    assert "\x1b" not in text
    assert "\\u202e" not in text.replace("\\\\u202e", "")


@pytest.mark.parametrize(
    "broken",
    [
        {"ph": "X", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "X", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": 0, "dur": -1},
        {"ph": "C", "name": "a", "pid": 1, "ts": 0, "args": {"a": None}},
        {"ph": "i", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": 0, "s": "q"},
        {"ph": "M", "name": "colour", "pid": 1, "args": {"name": "a"}},
        {"ph": "?", "name": "a"},
    ],
)
def test_the_check_sees_what_is_not_of_the_format(broken: dict[str, Any]) -> None:
    assert problems({"traceEvents": [broken]})


def test_overlapping_slices_are_seen() -> None:
    first = {"ph": "X", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": 0, "dur": 10}
    assert problems({"traceEvents": [first, {**first, "ts": 5}]})
    assert not problems({"traceEvents": [first, {**first, "ts": 5, "dur": 5}]})


def test_every_planned_materialization_has_its_slice_on_its_resource(clean: Told) -> None:
    document = trace(clean.plan, clean.events, clean.state)
    names = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    slices = {
        e["name"]: e for e in document["traceEvents"] if e.get("cat") == "materialization" and "planned" in e["args"]
    }
    for materialization in clean.plan.document.materializations:
        entry = slices[materialization.id]
        assert names[entry["pid"]].startswith(materialization.memory_resource_id)
        assert entry["args"]["expected_bytes"] == materialization.expected_bytes
    stage = slices["mat.weights.stage"]
    released = next(e for e in clean.events if e.type == "materialization.released")
    assert stage["ts"] + stage["dur"] == pytest.approx((released.elapsed_ns - clean.events[0].elapsed_ns) / 1_000)


def test_each_sample_is_a_counter_and_decodes_are_slices(clean: Told) -> None:
    entries = trace(clean.plan, clean.events, clean.state)["traceEvents"]
    samples = [e for e in clean.events if e.type == "memory.sampled"]
    counters = [e for e in entries if e["ph"] == "C" and e["name"] == "process tree, held (bytes)"]
    assert [e["args"]["tree_sum"] for e in counters] == [s.body.process["tree_sum"].value for s in samples]
    assert {e["name"] for e in entries if e["ph"] == "X" and e["cat"] == "phase"} == {
        "prepare",
        "materialize",
        "release",
        "authority and execution",
        "decode",
    }


def test_what_could_not_be_read_is_left_out_of_the_counter(clean: Told) -> None:
    gone = unavailable("bytes", "read", "not permitted")
    bodies = [
        body.model_copy(update={"process": {**body.process, "rss_anon": gone}})
        if isinstance(body, MemorySampled)
        else body
        for body in clean.bodies
    ]
    told = Told(clean.plan, bodies)
    counters = [
        e for e in trace(told.plan, told.events, told.state)["traceEvents"] if e["name"] == "process tree (bytes)"
    ]
    assert counters
    assert all("rss_anon" not in e["args"] and "rss_shmem" in e["args"] for e in counters)


def test_devices_have_counters() -> None:
    plan = gpu_plan()
    events = run_events(clean_bodies(plan), plan)
    entries = trace(plan, events, fold(events))["traceEvents"]
    assert any(e["ph"] == "C" and e["name"] == "device cuda:0 (bytes)" and "allocated" in e["args"] for e in entries)


def test_a_run_without_a_clock_is_laid_out_by_event(clean: Told) -> None:
    events = run_events(clean.bodies, clean.plan, elapsed=[None] * len(clean.bodies))
    document = trace(clean.plan, events, fold(events))
    assert document["otherData"]["clock"] == "sequence"
    assert problems(document) == []
    whole = next(e for e in document["traceEvents"] if e.get("cat") == "run")
    assert whole["dur"] == (len(events) - 1) * 1_000
