"""The fold: total, deterministic, the same in any split, and bounded by the plan and not by the number of events."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.bodies import (
    Body,
    DecodeRan,
    MaterializationObserved,
    MaterializationReleased,
    MaterializationStarted,
    MemorySampled,
    PlanFrozen,
    ReclamationObserved,
    RunClosed,
    RunSuperseded,
    SourceAccessed,
    VerdictRecorded,
)
from ledger.events import Event
from ledger.fold import fold
from ledger.measurement import Measurement, measured, stated, unavailable
from ledger.reconcile.reading import every_sample
from ledger.run_state import KEPT_ACCESSES, MOST_IDS, MOST_LABELS, Extremes, RunState, condition, trust
from tests.builders.runs import (
    RUN_ID,
    changed,
    clean_bodies,
    decoded,
    gpu_plan,
    materialized,
    record,
    run_events,
    sample,
    small_plan,
)

PLAN = small_plan()
EVENTS = run_events(clean_bodies(PLAN), PLAN)


def any_events(seed: int, length: int) -> list[Event]:
    """Known events of two plans in an order that no run would have, some of them twice."""
    chance = random.Random(seed)
    pool: list[Body] = [*clean_bodies(PLAN), *clean_bodies(gpu_plan())]
    pool += [
        VerdictRecorded(judge_version="1", verdict="PASS", assurance="observed", codes=[]),
        RunSuperseded(reason="wrong", by=RUN_ID),
        PlanFrozen(digest=PLAN.computed_digest, blob_digest=PLAN.blob_digest),
        RunClosed(outcome="failed"),
    ]
    like = EVENTS[0]
    return [
        like.model_copy(
            update={
                "sequence": index,
                "elapsed_ns": chance.choice([None, index, index - 3]),
                "body": (body := chance.choice(pool)),
                "type": body.TYPE,
            }
        )
        for index in range(length)
    ]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(0, 80), cut=st.floats(0, 1))
def test_fold_in_two_halves_is_fold_at_once(seed: int, length: int, cut: float) -> None:
    events = any_events(seed, length)
    at = int(cut * length)
    whole = fold(events)
    half = fold(events[:at])
    before = fold(events[:at])
    assert fold(events[at:], half) == whole
    assert half == before, "the state given is left as it is"


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, len(EVENTS)), max_size=6))
def test_fold_in_any_split_is_fold_at_once(cuts: list[int]) -> None:
    state: RunState | None = None
    places = [0, *sorted(cuts), len(EVENTS)]
    for start, end in itertools.pairwise(places):
        state = fold(EVENTS[start:end], state)
    assert state == fold(EVENTS)


def test_event_by_event_is_fold_at_once() -> None:
    state = RunState()
    for event in EVENTS:
        state = fold([event], state)
    assert state == fold(EVENTS)


def test_the_clean_run_reads_as_what_it_was() -> None:
    state = fold(EVENTS)
    assert state.run_id == RUN_ID
    assert state.outcome == "completed"
    assert state.events_seen == len(EVENTS)
    assert set(state.materializations) == set(PLAN.materializations)
    stage = state.materializations["mat.weights.stage"]
    assert not stage.live
    assert stage.released[0].body.bytes_before.value == 256 * 1024 * 1024
    assert state.materializations["mat.weights.resident"].live
    assert state.decodes["exec.decode"].repeated == 4
    assert state.sample("closing").body.label == "closing"  # type: ignore[union-attr]
    assert state.peaks["process/rss_anon"].value == (300 + 256) * 1024 * 1024


@pytest.mark.parametrize(
    ("outcome", "last"),
    [
        ("completed", RunClosed(outcome="completed")),
        ("failed", RunClosed(outcome="failed")),
        ("aborted", RunClosed(outcome="aborted")),
        ("rejected", RunClosed(outcome="rejected")),
        ("incomplete", None),
    ],
)
def test_outcome(outcome: str, last: Body | None) -> None:
    bodies = clean_bodies(PLAN)[:-1] + ([last] if last is not None else [])
    assert fold(run_events(bodies, PLAN)).outcome == outcome


def test_what_follows_the_close_changes_nothing_but_is_noted() -> None:
    late = [*clean_bodies(PLAN), RunClosed(outcome="failed"), sample(PLAN, "closing", [])]
    state = fold(run_events(late, PLAN))
    assert state.outcome == "completed"
    assert [kind for _, kind in state.after_close] == ["run.closed", "memory.sampled"]
    assert state.sample("closing") == fold(EVENTS).sample("closing")


def test_supersession_after_the_close_is_part_of_the_run() -> None:
    state = fold(run_events([*clean_bodies(PLAN), RunSuperseded(reason="label", by="another")], PLAN))
    assert state.superseded_by == "another"
    assert state.after_close == []


def test_events_of_another_run_are_counted_and_left_out() -> None:
    other = record(clean_bodies(PLAN), PLAN, run_id=RUN_ID[:-1] + "7").events(RUN_ID[:-1] + "7")
    state = fold([*EVENTS, *other[:3]])
    assert state.overflowed == {"events of another run": 3}
    assert state.events_seen == len(EVENTS)


def test_going_on_after_a_release_is_told_from_a_second_copy() -> None:
    stage = PLAN.materializations["mat.weights.stage"]
    bodies = clean_bodies(PLAN)
    place = next(index for index, body in enumerate(bodies) if isinstance(body, MaterializationReleased))
    back = fold(run_events([*bodies[: place + 1], *materialized(PLAN, stage), *bodies[place + 1 :]], PLAN))
    twice = fold(run_events([*bodies[:place], *materialized(PLAN, stage), *bodies[place:]], PLAN))
    assert back.materializations[stage.id].rematerialized
    assert not back.materializations[stage.id].duplicates
    assert twice.materializations[stage.id].duplicates
    assert not twice.materializations[stage.id].rematerialized


def test_distinct_values_are_kept_until_they_cannot_all_be_as_planned() -> None:
    bodies: list[Body] = clean_bodies(PLAN)
    seen = next(body for body in bodies if isinstance(body, MaterializationObserved))
    many = [
        seen.model_copy(update={"memory_resource_id": measured(f"place-{number}", None, "looked")})
        for number in range(50)
    ]
    state = fold(run_events([bodies[0], *many], PLAN))
    assert len(state.materializations[seen.materialization_id].said["resource"]) == 4


# --- bounds -------------------------------------------------------------------------------------------------------


def repeated(body: Body, times: int) -> list[Event]:
    like = EVENTS[0]
    return [
        like.model_copy(update={"sequence": number + 1, "type": body.TYPE, "elapsed_ns": None, "body": body})
        for number in range(times)
    ]


def weight(value: Any) -> int:
    """How many things a state holds, bodies counted as one."""
    if isinstance(value, dict):
        return 1 + sum(weight(item) for item in value.values())
    if isinstance(value, list | set | tuple) and not hasattr(value, "_fields"):
        return 1 + sum(weight(item) for item in value)
    if hasattr(value, "__dataclass_fields__"):
        return 1 + sum(weight(getattr(value, name)) for name in value.__dataclass_fields__)
    return 1


@pytest.mark.parametrize("kind", sorted({type(event.body).TYPE for event in EVENTS} - {"run.closed"}))
def test_a_state_does_not_grow_with_the_events(kind: str) -> None:
    body = next(event.body for event in EVENTS if event.type == kind)
    few, many = fold(repeated(body, 40)), fold(repeated(body, 400))
    assert weight(few) == weight(many)


def test_repetitions_samples_and_accesses_in_great_number_stay_small() -> None:
    access = SourceAccessed(
        path=measured("model.safetensors", None, "inotify"),
        access="open",
        attributed_to="other",
        pid=unavailable(None, "inotify", "it does not say"),
        count=measured(1, "count", "inotify"),
        means="inotify",
    )
    like = EVENTS[0]
    bodies: list[Body] = []
    for number in range(3000):
        bodies += [decoded("exec.decode", "repetition", number), access, sample(PLAN, f"free-{number}", [])]
    events = [
        like.model_copy(update={"sequence": index, "type": body.TYPE, "elapsed_ns": index, "body": body})
        for index, body in enumerate(bodies)
    ]
    state = fold(events)
    assert state.decodes["exec.decode"].repeated == 3000
    assert state.decodes["exec.decode"].beyond == set()
    assert state.source_accesses.by == {"other": 3000}
    assert len(state.source_accesses.kept["other"]) == KEPT_ACCESSES
    assert len(state.samples) == MOST_LABELS
    assert state.samples_seen == 3000


def test_repetitions_out_of_order_are_all_counted() -> None:
    numbers = list(range(100))
    random.Random(1).shuffle(numbers)
    bodies = [decoded("exec.decode", "repetition", number) for number in numbers]
    state = fold(run_events([clean_bodies(PLAN)[0], *bodies], PLAN))
    assert state.decodes["exec.decode"].repeated == 100
    assert state.decodes["exec.decode"].beyond == set()


def test_more_ids_than_are_kept_are_said_to_be_left_out() -> None:
    started = next(body for body in clean_bodies(PLAN) if isinstance(body, MaterializationStarted))
    like = EVENTS[0]
    events = [
        like.model_copy(
            update={
                "sequence": number,
                "type": started.TYPE,
                "elapsed_ns": None,
                "body": started.model_copy(update={"materialization_id": f"mat.{number}"}),
            }
        )
        for number in range(MOST_IDS + 5)
    ]
    state = fold(events)
    assert len(state.materializations) == MOST_IDS
    assert state.overflowed == {"materializations": 5}


# --- measurements -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measurement", "level"),
    [
        (measured(1, None, "looked"), "observed"),
        (measured(1, None, "looked", source="witness"), "observed"),
        (measured(1, None, "adapter", source="adapter"), "claimed"),
        (stated(1, None, "sum", source="derived"), "declared"),
        (stated(1, None, "document", source="declared"), "declared"),
        (stated(1, None, "literal", source="default"), "unknown"),
        (unavailable(None, "looked", "no"), "unknown"),
        (measured(float("nan"), None, "looked"), "unknown"),
        (measured(-1, "bytes", "looked"), "unknown"),
        (measured("text", None, "looked"), "observed"),
    ],
)
def test_trust(measurement: Any, level: str) -> None:
    assert trust(measurement) == level


def test_extremes_keep_lowest_highest_and_the_first_unknown() -> None:
    figures = Extremes()
    for sequence, value in enumerate([5, 3, 9, 4]):
        figures.add(sequence, measured(value, "count", "looked"))
    assert (figures.low, figures.high, figures.unknown) == ((1, 3), (2, 9), None)
    figures.add(4, measured(0, "count", "adapter", source="adapter"))
    figures.add(5, unavailable("count", "looked", "no"))
    assert (figures.low, figures.high, figures.unknown) == ((1, 3), (2, 9), 4)


@settings(max_examples=150, deadline=None)
@given(
    said=st.lists(
        st.builds(
            Measurement,
            value=st.sampled_from([0, 1, 2, 1.5, -1, None, "text"]),
            unit=st.sampled_from(["bytes", None]),
            source=st.sampled_from(["probe", "declared", "adapter", "default"]),
            method=st.just("looked"),
            status=st.sampled_from(["measured", "stated", "failed"]),
        ),
        max_size=12,
    ),
    signed=st.booleans(),
    unit=st.sampled_from(["bytes", None]),
    flag=st.booleans(),
)
def test_extremes_are_those_of_all_that_is_believed(
    said: list[Measurement], signed: bool, unit: str | None, flag: bool
) -> None:
    """Also where the same is said many times over, which is not looked at twice."""

    def holds(figure: Measurement) -> bool:
        value = figure.value
        if not isinstance(value, int | float) or figure.source not in ("probe", "declared"):
            return False
        return (
            figure.status != "failed"
            and (signed or value >= 0)
            and (unit is None or figure.unit == unit)
            and (not flag or value in (0, 1))
        )

    figures = Extremes(signed=signed, unit=unit, flag=flag)
    for sequence, figure in enumerate(said):
        figures.add(sequence, figure)
    good = [(sequence, figure) for sequence, figure in enumerate(said) if holds(figure)]
    values: list[Any] = [figure.value for _, figure in good]
    ends = (
        [(next(s for s, figure in good if figure.value == end), end) for end in (min(values), max(values))]
        if good
        else []
    )
    assert [figures.low, figures.high] == (ends or [None, None])
    assert figures.unknown == next((sequence for sequence, figure in enumerate(said) if not holds(figure)), None)
    told = [s for s, figure in good if (figure.source, figure.status) != ("probe", "measured")]
    assert figures.declared == next(iter(told), None)


@pytest.mark.parametrize("side", ["input", "output"])
def test_the_same_deviation_again_changes_nothing_and_another_does(side: str) -> None:
    like = decoded("exec.decode", "repetition", 0)
    off = like.model_copy(update={side: like.output.model_copy(update={"nan_count": measured(3, "count", "counted")})})
    state = fold(run_events([clean_bodies(PLAN)[0], like, like, off, off, like], PLAN))
    found = getattr(state.decodes["exec.decode"], side)
    assert (found.nan_count.low, found.nan_count.high, found.exact.high) == ((1, 0), (3, 3), (1, 1))


def test_a_deviation_hidden_among_many_repetitions_is_kept() -> None:
    bodies = clean_bodies(PLAN)
    many = [decoded("exec.decode", "repetition", number) for number in range(500)]
    many[321] = changed([many[321]], DecodeRan, {"output.exact": measured(0, None, "looked")})[0]  # type: ignore[call-overload]
    state = fold(run_events([*bodies[:-1], *many], PLAN))
    low = state.decodes["exec.decode"].output.exact.low
    assert low is not None
    assert low.value == 0


def test_running_peaks_are_the_highest_of_any_sample() -> None:
    bodies = [clean_bodies(PLAN)[0], *(sample(PLAN, f"free-{n}", [], high=n * 1000) for n in (1, 900_000, 5))]
    state = fold(run_events(bodies, PLAN))
    assert state.peaks["process/vm_hwm"].value == max(
        body.process["vm_hwm"].value  # type: ignore[type-var]
        for body in bodies
        if isinstance(body, MemorySampled)
    )


def test_looks_that_all_differ_are_kept_by_what_they_show_and_not_by_their_number() -> None:
    def kept(times: int) -> int:
        like = sample(PLAN, "following", [])
        looks: list[Body] = [
            like.model_copy(update={"process": {**like.process, "tree_sum": measured(n, "bytes", "looked")}})
            for n in range(times)
        ]
        state = fold(run_events([clean_bodies(PLAN)[0], *looks], PLAN))
        return len({seen.sequence for seen in every_sample(state)})

    assert kept(400) == kept(40) < 10


def test_an_owner_that_is_not_known_makes_other_sums_than_one_that_is() -> None:
    like = sample(PLAN, "following", [])
    assert like.census is not None
    owners = {"a": measured(5, "bytes", "looked"), "b": measured(7, "bytes", "looked")}
    looks: list[Body] = [
        like.model_copy(update={"census": like.census.model_copy(update={"by_owner": by_owner})})
        for by_owner in (owners, owners, {**owners, "b": unavailable("bytes", "looked", "no")}, {"a": owners["a"]})
    ]
    state = fold(run_events([clean_bodies(PLAN)[0], *looks], PLAN))
    held = {names: dict(zip(names, ends.low, strict=False)) for (_, names), ends in state.stretches.items()}
    evidence = sum(figure.value for figure in like.census.evidence_host_by_role.values())  # type: ignore[misc]
    assert [figures["owned"] - evidence for figures in held.values()] == [12, 5, 5]
    assert ["owner b, not known" in names for names in held] == [False, True, False]


def test_stretches_without_room_are_said_to_be_left_out() -> None:
    like = sample(PLAN, "following", [])
    looks: list[Body] = [
        like.model_copy(
            update={"census": like.census.model_copy(update={"by_owner": {f"x{n}": measured(1, "bytes", "")}})}
        )  # type: ignore[union-attr]
        for n in range(MOST_LABELS + 3)
    ]
    assert fold(run_events([clean_bodies(PLAN)[0], *looks], PLAN)).overflowed == {"samples": 2}


@pytest.mark.parametrize(
    ("alive", "mapped", "told"),
    [
        (measured(0, "owners", ""), measured(0, "flag", ""), ("released", "good")),
        (measured(0, "owners", ""), unavailable("flag", "", "not readable"), ("released", "good")),
        (measured(0, "owners", ""), measured(1, "flag", ""), ("still mapped", "open")),
        (measured(18, "owners", ""), measured(0, "flag", ""), ("not gone", "bad")),
        (unavailable("owners", "", "no probe"), unavailable("flag", "", "not readable"), ("release claimed", "open")),
    ],
)
def test_what_was_only_said_to_be_released_is_not_called_so(
    alive: Measurement, mapped: Measurement, told: tuple[str, str]
) -> None:
    bodies = changed(clean_bodies(PLAN), ReclamationObserved, {"owners_alive": alive, "region_mapped": mapped})
    bodies = changed(bodies, MaterializationReleased, {"owners_alive": alive})
    found = fold(run_events(bodies, PLAN)).materializations["mat.weights.stage"]
    assert condition(found) == told
    ends = [end for _, end in found.seen_spans]
    assert ends == [found.release_sequence if told[0].startswith("release") else None], (
        "what is still there has not ended"
    )


@pytest.mark.parametrize(
    ("live", "told"),
    [
        (measured(1, "flag", "looked"), ("live", "good")),
        (measured(0, "flag", "looked"), ("not live", "bad")),
        (unavailable("flag", "looked", "not seen from outside"), ("liveness unknown", "open")),
    ],
)
def test_what_nobody_could_see_live_is_not_called_dead(live: Measurement, told: tuple[str, str]) -> None:
    plan = small_plan()
    seen = changed(
        clean_bodies(plan), MaterializationObserved, {"live": live}, materialization_id="mat.weights.resident"
    )
    state = fold(run_events(seen, plan))
    assert condition(state.materializations["mat.weights.resident"]) == told
    assert condition(None) == ("never begun", "bad")
