"""Events: measurements, the envelope and its chain, the recorder, reading back and upcasting."""

from __future__ import annotations

import json
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ledger import canonical
from ledger.bodies import (
    AFTER_CLOSE,
    BODIES,
    BODY_BY_TYPE,
    Body,
    MemorySampled,
    PlanFrozen,
    PlanReference,
    RunClosed,
    RunOpened,
    RunSuperseded,
    SoftwareIdentity,
)
from ledger.errors import EventError, TallyError
from ledger.events import NO_PLAN, UPCASTS, Actor, first_previous, read_event
from ledger.measurement import Measurement, claimed, measured, stated, unavailable
from ledger.recording import Draft, ListLedger, Recorder, uuid7

DIGEST = "sha256:" + "ab" * 32
ACTOR = Actor(kind="realizer", id="test")
UNKNOWN = unavailable(None, "test", "not looked")


def opened(plan: PlanReference | None) -> RunOpened:
    software = SoftwareIdentity(versions={}, source_commit=UNKNOWN, source_dirty=UNKNOWN, files_digest=UNKNOWN)
    return RunOpened(
        purpose="witness", plan=plan, software=software, argv=UNKNOWN, user=UNKNOWN, hostname=UNKNOWN, pid=UNKNOWN
    )


def draft(body: Body, run_id: str = "run") -> Draft:
    return Draft("event", run_id, body, "2026-11-29T12:00:00.000000Z", 0, "node-a", ACTOR)


def envelope(event: Body, **changes: Any) -> str:
    return json.dumps(json.loads(draft(event).seal(0, NO_PLAN)) | changes)


# --- measurements -------------------------------------------------------------------------------------------------


def test_a_measured_value_is_observed() -> None:
    measurement = measured(0, "bytes", "smaps")
    assert (measurement.value, measurement.status, measurement.known, measurement.observed) == (
        0,
        "measured",
        True,
        True,
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("make", [measured, claimed, lambda *rest: stated(*rest, source="derived")])
def test_a_number_that_is_not_finite_is_null_and_failed(make: Any, value: float) -> None:
    measurement = make(value, None, "deviation")
    assert (measurement.value, measurement.status, measurement.known) == (None, "failed", False)
    assert f"not finite: {value}" in measurement.detail


@pytest.mark.parametrize("value", [2**53, -(2**53), 1e300, 2.0**53])
def test_a_number_too_large_to_be_recorded_is_null_and_failed(value: float) -> None:
    measurement = measured(value, None, "deviation")
    assert (measurement.value, measurement.status, measurement.observed) == (None, "failed", False)
    assert canonical.encode(measurement.model_dump(mode="json"))


def test_a_missing_value_is_unavailable_and_never_zero() -> None:
    measurement = measured(None, "bytes", "smaps", detail="no such file")
    assert (measurement.value, measurement.status, measurement.detail) == (None, "unavailable", "no such file")
    assert not measurement.known


@pytest.mark.parametrize(
    ("measurement", "known", "observed"),
    [
        (measured(1, None, "m"), True, True),
        (measured(1, None, "m", source="witness"), True, True),
        (claimed(1, None, "m"), True, False),
        (stated(1, None, "m", source="derived"), True, False),
        (stated(1, None, "m", source="declared"), True, False),
        (stated(1, None, "m", source="default"), True, False),
        (unavailable(None, "m", "why"), False, False),
        (Measurement(value=1, source="probe", method="m", status="unavailable"), False, False),
        (Measurement(value=0, source="probe", method="m", status="failed"), False, False),
    ],
)
def test_who_speaks_decides_what_is_known_and_what_observed(
    measurement: Measurement, known: bool, observed: bool
) -> None:
    assert (measurement.known, measurement.observed) == (known, observed)


@given(st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_every_measurement_can_be_recorded(value: float | str) -> None:
    measurement = measured(value, "bytes", "m")
    recorded = json.loads(canonical.encode(measurement.model_dump(mode="json")))
    assert Measurement.model_validate(recorded) == measurement
    assert measurement.known == (measurement.value is not None)


def test_events_are_frozen_and_refuse_unknown_fields() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        measured(1, None, "m").value = 2  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        RunClosed(outcome="completed", verdict="PASS")  # type: ignore[call-arg]


# --- types --------------------------------------------------------------------------------------------------------


def test_every_type_has_one_body_and_a_family() -> None:
    assert len(BODY_BY_TYPE) == len(BODIES)
    assert all("." in kind for kind in BODY_BY_TYPE)
    assert set(BODY_BY_TYPE) >= AFTER_CLOSE


# --- chain --------------------------------------------------------------------------------------------------------


def recorded_run(ledger: ListLedger, run_id: str, plan: PlanReference | None) -> None:
    record = Recorder(ledger.append, run_id=run_id, node_id="node-a", actor=ACTOR)
    record(opened(plan))
    record(MemorySampled(label="baseline", process={"vm_rss": measured(1, "bytes", "status")}))
    record(RunClosed(outcome="completed"))


PLAN = PlanReference(claimed_digest=DIGEST, computed_digest=DIGEST, blob_digest=DIGEST, plan_schema="s")


def test_a_run_is_a_chain_from_the_plan_digest() -> None:
    ledger = ListLedger()
    recorded_run(ledger, "one", PLAN)
    chain = ledger.events("one")
    assert [event.sequence for event in chain] == [0, 1, 2]
    assert chain[0].previous == "ab" * 32
    for (before, event), recorded in zip(pairwise(chain), ledger.recorded, strict=False):
        assert event.previous == recorded.hash == canonical.event_hash(recorded.envelope)
        assert event.elapsed_ns >= before.elapsed_ns >= 0


def test_runs_interleave_with_chains_of_their_own_and_gapless_positions() -> None:
    ledger = ListLedger()
    first = Recorder(ledger.append, run_id="one", node_id="n", actor=ACTOR)
    second = Recorder(ledger.append, run_id="two", node_id="n", actor=ACTOR)
    first(opened(PLAN))
    second(opened(None))
    first(RunClosed(outcome="completed"))
    second(RunClosed(outcome="failed", error_type="X", message="m"))
    assert [recorded.position for recorded in ledger.recorded] == [0, 1, 2, 3]
    assert ledger.events("two")[0].previous == NO_PLAN
    assert ledger.events("two")[1].previous == ledger.recorded[1].hash
    assert [event.run_id for event in ledger.events()] == ["one", "two", "one", "two"]


def test_a_plan_is_frozen_in_a_stream_of_its_own() -> None:
    assert first_previous(PlanFrozen(digest=DIGEST, blob_digest=DIGEST)) == "ab" * 32
    with pytest.raises(EventError, match=r"begins with run\.opened or plan\.frozen, not run\.closed"):
        first_previous(RunClosed(outcome="completed"))


def test_append_at_a_taken_or_future_sequence_is_refused() -> None:
    ledger = ListLedger()
    recorded_run(ledger, "one", None)
    for sequence in (0, 2, 4):
        with pytest.raises(EventError, match="at sequence 3"):
            ledger.append("one", sequence, [draft(RunClosed(outcome="completed"), "one")])
    assert len(ledger.recorded) == 3


def test_an_append_that_fails_leaves_nothing() -> None:
    ledger = ListLedger()
    bad = MemorySampled(label="a\x00b", process={})
    with pytest.raises(EventError):
        ledger.append("run", 0, [draft(opened(None)), draft(bad)])
    assert ledger.recorded == []
    assert len(ledger.append("run", 0, [draft(opened(None))])) == 1


def test_the_recorder_uses_the_runs_own_clock_or_none() -> None:
    ledger = ListLedger()
    ticks = count(1000, 7)
    record = Recorder(ledger.append, run_id="one", node_id="n", actor=ACTOR, clock=lambda: next(ticks))
    record(opened(None))
    record(RunClosed(outcome="completed"))
    later = Recorder(ledger.append, run_id="one", node_id="n", actor=ACTOR, next_sequence=2, clock=None)
    later(RunSuperseded(reason="r", by="two"))
    assert [event.elapsed_ns for event in ledger.events()] == [7, 14, None]
    assert [event.sequence for event in ledger.events()] == [0, 1, 2]


def test_ids_are_version_7_and_sort_by_time() -> None:
    first, second = uuid7(1_000), uuid7(1_001)
    assert first < second
    assert first != uuid7(1_000)
    for identity in (first, second):
        assert [len(part) for part in identity.split("-")] == [8, 4, 4, 4, 12]
        assert identity[14] == "7"
        assert identity[19] in "89ab"


# --- reading back -------------------------------------------------------------------------------------------------


def test_what_was_recorded_is_read_back() -> None:
    body = MemorySampled(label="baseline", process={"vm_rss": measured(3, "bytes", "status")}, mapped_files=["/a"])
    event = read_event(draft(body).seal(5, "aa"))
    assert (event.body, event.sequence, event.previous, event.type) == (body, 5, "aa", "memory.sampled")


@pytest.mark.parametrize(
    ("changes", "message", "unknown"),
    [
        ({"type": "run.exploded"}, "unknown event type 'run.exploded'", True),
        ({"type": None}, "unknown event type None", True),
        ({"type": ["run.closed"]}, "unknown event type", True),
        ({"type_version": 2}, "this program knows up to 1", True),
        ({"type_version": 0}, "no upcast to 1", True),
        ({"type_version": "1"}, "unknown event type", True),
        ({"type_version": None}, "unknown event type", True),
        ({"body": {}}, "not the form of run.closed: body.outcome", False),
        ({"body": {"outcome": "completed", "extra": 1}}, "body.extra", False),
        ({"body": {"outcome": "wonderful"}}, "body.outcome", False),
        ({"body": None}, "not the form of run.closed", False),
        ({"sequence": "0"}, "sequence", False),
        ({"sequence": 0.5}, "sequence", False),
        ({"sequence": True}, "sequence", False),
        ({"sequence": None}, "sequence", False),
        ({"v": 2}, "v", False),
        ({"surplus": 1}, "surplus", False),
        ({"actor": {"kind": "wizard", "id": "x"}}, "actor.kind", False),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(changes: dict[str, Any], message: str, unknown: bool) -> None:
    with pytest.raises(EventError) as caught:
        read_event(envelope(RunClosed(outcome="completed"), **changes))
    assert message in str(caught.value)
    assert caught.value.unknown_type is unknown
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "1", "{", '"x"', "{}", '{"type":"run.closed"}', '{"a":1,"a":2}'])
def test_garbage_is_refused_with_an_error_of_ours(text: str) -> None:
    with pytest.raises(TallyError) as caught:
        read_event(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_refused_with_an_error_of_ours(text: str) -> None:
    with pytest.raises(TallyError):
        read_event(text)


def test_older_versions_are_upcast_on_read_and_their_bytes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    old = envelope(RunClosed(outcome="completed"), body={"ending": "completed"})
    monkeypatch.setattr(RunClosed, "VERSION", 3)
    monkeypatch.setitem(UPCASTS, ("run.closed", 1), lambda body: {"result": body["ending"]})
    monkeypatch.setitem(UPCASTS, ("run.closed", 2), lambda body: {"outcome": body["result"]})
    event = read_event(old)
    assert event.body == RunClosed(outcome="completed")
    assert event.type_version == 3
    assert json.loads(old)["type_version"] == 1


def test_an_upcast_that_does_not_fit_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    old = envelope(RunClosed(outcome="completed"))
    monkeypatch.setattr(RunClosed, "VERSION", 2)
    monkeypatch.setitem(UPCASTS, ("run.closed", 1), lambda body: {"elsewhere": body["outcome"]})
    with pytest.raises(EventError, match=r"not the form of run\.closed") as caught:
        read_event(old)
    assert not caught.value.unknown_type


def test_a_body_that_fits_two_versions_is_still_upcast(monkeypatch: pytest.MonkeyPatch) -> None:
    old = envelope(RunClosed(outcome="completed"))
    monkeypatch.setattr(RunClosed, "VERSION", 2)
    monkeypatch.setitem(UPCASTS, ("run.closed", 1), lambda body: body | {"message": "upcast"})
    assert read_event(old).body.message == "upcast"


def test_an_older_body_that_its_upcast_cannot_take_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunClosed, "VERSION", 2)
    monkeypatch.setitem(UPCASTS, ("run.closed", 1), lambda body: {"outcome": body["ending"]})
    for body in ({}, None, [], "x"):
        with pytest.raises(EventError, match=r"not the form of run\.closed version 1"):
            read_event(envelope(RunClosed(outcome="completed"), type_version=1, body=body))
