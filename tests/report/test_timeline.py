"""The run laid over its clock: spans, samples when there are too many, what no plan names, and the scales."""

from __future__ import annotations

import pytest

from ledger.bodies import MaterializationStarted, MemorySampled
from ledger.fold import fold
from ledger.measurement import measured
from ledger.report import timeline as timeline_module
from ledger.report.chart import byte_step, time_ticks
from ledger.report.timeline import read_timeline
from tests.builders.runs import changed, inserted, run_events
from tests.report.conftest import Told


def test_spans_go_from_begun_over_seen_to_released(clean: Told) -> None:
    lanes = {lane.id: lane for lane in read_timeline(clean.plan, clean.events, clean.state).lanes}
    (staged,) = lanes["mat.weights.stage"].spans
    (resident,) = lanes["mat.weights.resident"].spans
    assert staged.observed is not None
    assert staged.ended is not None
    assert staged.began < staged.observed < staged.ended
    assert clean.events[staged.began_sequence].type == "materialization.started"
    assert clean.events[staged.ended_sequence or 0].type == "materialization.released"
    assert resident.ended is None


def test_what_no_plan_names_has_a_lane_of_its_own(clean: Told) -> None:
    stray = MaterializationStarted(
        materialization_id="mat.stray",
        logical_state_id="state.weights",
        memory_resource_id="node-a.ram",
        representation="copy",
        role="optional_cache",
        persistence="persistent",
    )
    told = Told(clean.plan, inserted(clean.bodies, stray, before=MaterializationStarted))
    lane = read_timeline(told.plan, told.events, told.state).lanes[-1]
    assert (lane.id, lane.planned, lane.resource) == ("mat.stray", None, "node-a.ram")
    html = told.page()
    assert 'data-lane="mat.stray"' in html
    assert "b-unplanned" in html


def test_of_too_many_samples_the_high_ones_stay(clean: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "MOST_SAMPLES", 8)
    sample = next(body for body in clean.bodies if isinstance(body, MemorySampled))
    peak = changed([sample], MemorySampled, {"process.tree_sum": measured(2**40, "bytes", "summed")})[0]
    many = inserted(clean.bodies, [*[sample] * 50, peak, *[sample] * 50], before=MaterializationStarted)
    events = run_events(many, clean.plan)
    found = read_timeline(clean.plan, events, fold(events))
    assert found.thinned
    assert len(found.samples) < 16
    assert max(s.values["process/tree_sum"] or 0 for s in found.samples) == 2**40
    assert [s.at for s in found.samples] == sorted(s.at for s in found.samples)
    assert not read_timeline(clean.plan, clean.events[:9], fold(clean.events[:9])).thinned


def test_events_of_a_later_process_stand_at_the_end(clean: Told) -> None:
    elapsed: list[int | None] = [number * 1_000 for number in range(len(clean.bodies))]
    events = run_events(clean.bodies, clean.plan, elapsed=elapsed)
    assert read_timeline(clean.plan, events, fold(events)).timed
    elapsed[5] = None
    events = run_events(clean.bodies, clean.plan, elapsed=elapsed)
    found = read_timeline(clean.plan, events, fold(events))
    assert not found.timed
    assert found.end == len(events) - 1


@pytest.mark.parametrize("length", [1, 7, 42, 999, 1_000, 10**6, 16_640_000_000, 3_600 * 10**9])
def test_an_axis_has_a_readable_number_of_ticks(length: int) -> None:
    ticks = time_ticks(500, 500 + length, True)
    assert ticks[0] == (500, "0")
    assert all(500 <= at <= 500 + length for at, _ in ticks)
    assert len(ticks) <= 12
    assert len(ticks) >= (5 if length >= 7 else 1)
    assert len({text for _, text in ticks}) == len(ticks)


@pytest.mark.parametrize("highest", [0, 1, 3, 1_000, 2**30, 2**30 + 1, 10**12])
def test_a_scale_of_bytes_has_few_lines(highest: int) -> None:
    step = byte_step(highest)
    assert step >= 1
    assert step & (step - 1) == 0
    assert highest / step <= 3 or step == 1
