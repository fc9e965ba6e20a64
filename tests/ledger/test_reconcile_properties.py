"""Laws of the judge over every event and every measurement: unknown never passes, order of lists does not matter."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.bodies import Body, MemorySampled, RunClosed, RunOpened
from ledger.documents import Finding
from ledger.errors import EventError
from ledger.fold import fold
from ledger.measurement import Measurement, unavailable
from ledger.plan import Plan
from ledger.reconcile import INVARIANTS, judge, qualifying_ids, run_document, severity, verdict_document, verdict_of
from tests.builders.runs import (
    clean_bodies,
    edited_plan,
    gpu_plan,
    measurement_paths,
    run_events,
    small_plan,
    with_values,
)
from tests.ledger.test_fold import any_events

PLANS = {"cpu": small_plan(), "gpu": gpu_plan()}

TOLD_AND_NOT_JUDGED = {
    "run.opened": {
        "software/*": "who ran it; no plan asks",
        "argv": "hidden by --private",
        "user": "hidden by --private",
        "hostname": "hidden by --private",
        "pid": "hidden by --private",
        "model/directory": "hidden by --private",
        "model/repository": "a local directory has none; the planned digests settle which model it is",
        "model/revision": "a local directory has none; the planned digests settle which model it is",
    },
    "environment.observed": {
        "facts/*": "told for people",
        "compute_units/*/name": "told for people",
        "memory_resources/*/available_bytes": "changes from second to second",
    },
    "materialization.realized": {"elapsed_ns": "time is not judged"},
    "decode.ran": {
        "input/within_tolerance": "the plan asks for exactness",
        "output/within_tolerance": "the plan asks for exactness",
    },
    "reclamation.observed": {"system/*": "machine-wide figures are never judged"},
    "memory.sampled": {
        "host/*": "machine-wide figures are never judged",
        "cgroup/*": "only a cgroup that holds the tree alone says something",
        "process/vm_pin": "told for people",
        "process/minor_faults": "told for people",
        "process/major_faults": "told for people",
        "process/swap_in": "told for people",
        "process/swap_out": "told for people",
        "cuda/cuda:0.process": "a container may not see its processes on the device; used where it can",
        "cuda/host_pool": "pinned pages are the process tree's, and judged there",
    },
}
"""Event type -> measurement -> why a run may PASS without it. Everything else must be known."""


def may_be_unknown(kind: str, path: tuple[str, ...], plan: Plan) -> bool:
    text = "/".join(path)
    if text == "census/unowned_device_bytes":
        return not any(unit.kind == "cuda-gpu" for unit in plan.compute_units.values())
    for pattern in TOLD_AND_NOT_JUDGED.get(kind, {}):
        parts = pattern.split("/")
        if text == pattern or (
            len(parts) <= len(path) and all(part in ("*", found) for part, found in zip(parts, path, strict=False))
        ):
            return True
    return False


def value_at(body: Any, path: tuple[str, ...]) -> Measurement:
    for part in path:
        body = (
            body[int(part)] if isinstance(body, list) else body[part] if isinstance(body, dict) else getattr(body, part)
        )
    assert isinstance(body, Measurement)
    return body


def every_measurement(plan: Plan) -> list[tuple[int, tuple[str, ...]]]:
    return [
        (index, path)
        for index, body in enumerate(clean_bodies(plan))
        for path in measurement_paths(body)
        if value_at(body, path).known
    ]


@pytest.mark.parametrize("device", PLANS)
def test_a_measurement_that_is_not_known_never_passes(device: str) -> None:
    plan = PLANS[device]
    bodies = clean_bodies(plan)
    passed, failed_to_pass = [], []
    events = run_events(bodies, plan)
    for index, path in every_measurement(plan):
        before = value_at(bodies[index], path)
        unknown = unavailable(before.unit, before.method, "could not be read")
        changed = with_values(bodies[index], {"/".join(path) if len(path) > 1 else path[0]: unknown})
        judged = [*events]
        # run.opened cites the freezing in its recorded form
        if isinstance(changed, RunOpened):
            changed = changed.model_copy(update={"frozen": events[0].body.frozen})
        judged[index] = events[index].model_copy(update={"body": changed})
        verdict = judge(plan, fold(judged)).verdict
        expected_to_pass = may_be_unknown(bodies[index].TYPE, path, plan)
        if verdict == "PASS" and not expected_to_pass:
            passed.append((bodies[index].TYPE, path))
        if verdict != "PASS" and expected_to_pass:
            failed_to_pass.append((bodies[index].TYPE, path))
    assert passed == []
    assert failed_to_pass == []


@pytest.mark.parametrize("device", PLANS)
def test_an_adapters_claim_in_place_of_a_probe_never_passes(device: str) -> None:
    """What must be known must not be the adapter's word, nor a default, either."""
    plan = PLANS[device]
    bodies = clean_bodies(plan)
    events = run_events(bodies, plan)
    passed = []
    for index, path in every_measurement(plan):
        before = value_at(bodies[index], path)
        if may_be_unknown(bodies[index].TYPE, path, plan) or before.source == "adapter":
            continue
        for source, status in (("adapter", "measured"), ("default", "stated")):
            claim = before.model_copy(update={"source": source, "status": status})
            changed = with_values(bodies[index], {"/".join(path) if len(path) > 1 else path[0]: claim})
            if isinstance(changed, RunOpened):
                changed = changed.model_copy(update={"frozen": events[0].body.frozen})
            judged = [*events]
            judged[index] = events[index].model_copy(update={"body": changed})
            if judge(plan, fold(judged)).verdict == "PASS":
                passed.append((bodies[index].TYPE, getattr(bodies[index], "label", None), path, source))
    assert passed == []


@pytest.mark.parametrize("device", PLANS)
def test_a_run_without_one_of_its_events_never_passes(device: str) -> None:
    plan = PLANS[device]
    events = run_events(clean_bodies(plan), plan)
    passed = [
        event.type
        for index, event in enumerate(events)
        if judge(plan, fold([*events[:index], *events[index + 1 :]])).verdict == "PASS"
    ]
    assert passed == []


@pytest.mark.parametrize("device", PLANS)
def test_a_killed_run_is_indeterminate_wherever_it_was_killed(device: str) -> None:
    plan = PLANS[device]
    events = run_events(clean_bodies(plan), plan)
    for length in range(len(events)):
        judgement = judge(plan, fold(events[:length]))
        assert judgement.verdict == "INDETERMINATE", (length, judgement.codes)
        assert "run.incomplete" in judgement.codes


@pytest.mark.parametrize("device", PLANS)
def test_a_failed_run_fails_for_having_failed_and_not_for_what_it_did_not_reach(device: str) -> None:
    plan = PLANS[device]
    bodies = clean_bodies(plan)
    for length in range(1, len(bodies)):
        events = run_events([*bodies[:length], RunClosed(outcome="failed", message="stopped")], plan)
        judgement = judge(plan, fold(events))
        errors = {finding.code for finding in judgement.findings if finding.severity == "error"}
        assert errors == {"run.failed"}, length


# --- independence of order ----------------------------------------------------------------------------------------


def shuffled(value: Any, chance: random.Random) -> Any:
    """The document with every list of objects in another order."""
    if isinstance(value, dict):
        return {key: shuffled(item, chance) for key, item in value.items()}
    if isinstance(value, list):
        items = [shuffled(item, chance) for item in value]
        chance.shuffle(items)
        return items
    return value


def without_digests(findings: list[Finding]) -> list[str]:
    return [finding.model_dump_json() for finding in findings if not finding.code.startswith("plan.")]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 100_000), device=st.sampled_from(sorted(PLANS)), damage=st.integers(0, 60))
def test_findings_do_not_depend_on_the_order_of_plan_lists(seed: int, device: str, damage: int) -> None:
    plan = PLANS[device]
    chance = random.Random(seed)
    other = edited_plan(plan, lambda document: document.update(shuffled(document, chance)))
    bodies = clean_bodies(plan)
    if damage < len(bodies) - 1:
        del bodies[damage + 1]
    state = fold(run_events(bodies, plan))
    assert without_digests(judge(plan, state).findings) == without_digests(judge(other, state).findings)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000), length=st.integers(0, 90))
def test_judging_never_raises_and_says_the_same_twice(seed: int, length: int) -> None:
    plan = PLANS["cpu"]
    events = any_events(seed, length)
    state = fold(events)
    judgement = judge(plan, state)
    assert judgement == judge(plan, fold(events))
    assert judgement.findings == sorted(judgement.findings, key=lambda finding: finding.code)
    run_document(state, judgement).model_dump_json()
    json.dumps([finding.model_dump(mode="json") for finding in judgement.findings], allow_nan=False)
    if judgement.verdict == "PASS":
        raise AssertionError("a run of random events passed")


ODD_VALUES = (None, "text", "", -1, 0, 1, 1.5, 2**53 - 1, -0.0)
ODD_SOURCES = (("probe", "measured"), ("adapter", "measured"), ("declared", "stated"), ("default", "stated"))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), device=st.sampled_from(sorted(PLANS)))
def test_no_value_of_any_measurement_breaks_fold_or_judge(data: st.DataObject, device: str) -> None:
    plan = PLANS[device]
    bodies = clean_bodies(plan)
    places = every_measurement(plan)
    for _ in range(data.draw(st.integers(1, 6))):
        index, path = data.draw(st.sampled_from(places))
        value = data.draw(st.sampled_from(ODD_VALUES))
        source, status = data.draw(st.sampled_from(ODD_SOURCES))
        odd = Measurement(
            value=value, source=source, method="odd", status="unavailable" if value is None else status, detail="odd"
        )
        bodies[index] = with_values(bodies[index], {"/".join(path) if len(path) > 1 else path[0]: odd})
    state = fold(run_events(bodies, plan))
    judgement = judge(plan, state, [state, fold(run_events(clean_bodies(plan), plan))])
    run_document(state, judgement).model_dump_json()


# --- verdict, severities, catalogue ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("severities", "verdict"),
    [
        ([], "PASS"),
        (["note"], "PASS"),
        (["note", "unknown"], "INDETERMINATE"),
        (["unknown", "error", "note"], "FAIL"),
        (["error"], "FAIL"),
    ],
)
def test_the_verdict_comes_from_the_severities_alone(severities: list[Any], verdict: str) -> None:
    findings = [Finding(code="x.y", severity=level, subject="s") for level in severities]
    assert verdict_of(findings) == verdict


def test_severities_follow_the_rule() -> None:
    codes = {code for invariant in INVARIANTS for code in invariant.codes}
    unknown = {code for code in codes if severity(code) == "unknown"}
    notes = {code for code in codes if severity(code) == "note"}
    assert notes == {"run.superseded", "plan.freezing-not-recorded"}
    assert unknown == {
        "authority.not-observed",
        "decode.access-unknown",
        "environment.not-observed",
        "materialization.unobserved",
        "memory.device-residue-unknown",
        "memory.mirror-unknown",
        "memory.reclaim-unknown",
        "run.incomplete",
        "staging.owners-unknown",
    }


CATALOGUE = {
    "plan": "digest-mismatch changed rejected frozen-late freezing-not-recorded",
    "environment": "unit-mismatch resource-missing capacity-exceeded model-mismatch not-observed",
    "materialization": "missing unplanned duplicate state-mismatch resource-mismatch representation-mismatch "
    "bytes-mismatch persistence-mismatch role-mismatch not-live unobserved claim-contradicted content-mismatch "
    "forbidden",
    "staging": "not-released release-unqualified released-before-final bytes-before-mismatch bytes-after-nonzero "
    "released-bytes-mismatch owner-alive owners-unknown rematerialized",
    "authority": "missing duplicate materialization-mismatch lineage-mismatch owner-not-live before-realization "
    "not-observed",
    "execution": "not-activated unit-mismatch unplanned state-not-live",
    "decode": "missing before-activation reference-missing reference-mismatch deviation non-finite not-repeatable "
    "source-accessed access-unknown plan-consulted",
    "memory": "unplanned-persistent host-mirror mirror-unknown device-residue-unknown peak-exceeded not-reclaimed "
    "reclaim-unknown expectation-mismatch",
    "run": "incomplete failed time-regressed event-after-close superseded",
}


def test_the_catalogue_is_whole_and_each_code_belongs_to_one_function() -> None:
    codes = [code for invariant in INVARIANTS for code in invariant.codes]
    assert len(codes) == len(set(codes))
    assert set(codes) == {f"{family}.{name}" for family, names in CATALOGUE.items() for name in names.split()}
    for invariant in INVARIANTS:
        assert {code.split(".")[0] for code in invariant.codes} == {invariant.family}
        assert len(invariant.statement.split()) > 12, f"{invariant.codes} says neither what nor why"


def test_a_function_reports_only_its_own_codes() -> None:
    plan = PLANS["cpu"]
    for seed in range(40):
        state = fold(any_events(seed, 70))
        for invariant in INVARIANTS:
            assert {finding.code for finding in invariant.function(plan, state)} <= set(invariant.codes)


# --- the release rule -----------------------------------------------------------------------------------------------


def test_the_release_rule_follows_the_events() -> None:
    plan = PLANS["cpu"]
    state = None
    said = []
    for event in run_events(clean_bodies(plan), plan):
        state = fold([event], state)
        said.append(tuple(qualifying_ids(plan, state, "mat.weights.stage")))
    seen = next(
        index
        for index, body in enumerate(clean_bodies(plan))
        if body.TYPE == "materialization.observed" and body.materialization_id == "mat.weights.resident"
    )
    assert said[:seen] == [()] * seen
    assert set(said[seen:]) == {("mat.weights.resident",)}


@pytest.mark.parametrize(
    "edit",
    [
        {"requirement": "optional"},
        {"persistence": "transient", "role": "staging"},
        {"logical_state_id": "state.buffers"},
    ],
    ids=["optional", "transient", "another unit"],
)
def test_what_is_not_a_required_persistent_form_of_the_unit_does_not_qualify(edit: dict[str, str]) -> None:
    def change(document: dict[str, Any]) -> None:
        document["materializations"][1].update(edit)

    plan = edited_plan(PLANS["cpu"], change)
    state = fold(run_events(clean_bodies(plan), plan))
    assert qualifying_ids(plan, state, "mat.weights.stage") == []


def test_staging_never_qualifies_for_itself_and_unknown_ids_qualify_nothing() -> None:
    plan = PLANS["cpu"]
    state = fold(run_events(clean_bodies(plan), plan))
    assert qualifying_ids(plan, state, "mat.weights.resident") == []
    assert qualifying_ids(plan, state, "mat.nowhere") == []


# --- documents ----------------------------------------------------------------------------------------------------


def test_documents_of_a_clean_run() -> None:
    plan = PLANS["cpu"]
    state = fold(run_events(clean_bodies(plan), plan))
    judgement = judge(plan, state)
    run = run_document(state, judgement)
    assert (run.format, run.verdict, run.assurance, run.outcome) == ("tally.run/1", "PASS", "observed", "completed")
    assert run.plan_digest == plan.computed_digest
    assert run.findings == []
    verdict = verdict_document(state, judgement)
    assert (verdict.run_id, verdict.verdict, verdict.assurance) == (state.run_id, "PASS", "observed")
    unjudged = run_document(state, None)
    assert (unjudged.verdict, unjudged.assurance, unjudged.accounting) == (None, None, None)


def test_a_stream_begins_with_its_opening() -> None:
    bodies: list[Body] = [body for body in clean_bodies(PLANS["cpu"]) if isinstance(body, MemorySampled)]
    with pytest.raises(EventError, match="begins with"):
        run_events(bodies, PLANS["cpu"])
