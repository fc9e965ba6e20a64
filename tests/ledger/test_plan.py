"""The plan: strict reading, the digest rule, freezing, and the questions a plan answers of itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import canonical
from ledger import plan as plans
from ledger.errors import PlanError
from ledger.plan import R1_SCHEMA, Selection, freeze, keys_digest, parse_plan
from tests.builders.damage import damaged
from tests.builders.runs import gpu_plan, plan_document, small_plan

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "reference" / "r1-frozen-plan.json"
REFERENCE = "sha256:" + "12" * 32


def unfrozen(**changes: Any) -> plans.Plan:
    return parse_plan(json.dumps(plan_document() | changes).encode())


# --- digest -------------------------------------------------------------------------------------------------------


def test_published_plan_has_the_digests_it_was_published_with() -> None:
    if not PUBLISHED.is_file():
        pytest.skip("the published R1 plan is not beside this checkout")
    plan = parse_plan(PUBLISHED.read_bytes())
    assert plan.frozen
    assert plan.computed_digest == "sha256:430f84e406f51d037ab8ae2844865ff4d6b60d17a1d43d54180d509682ca2281"
    assert plan.blob_digest == "sha256:11bebfc891d078eafafeddc78a36bc7aba3943b97a849e02a72a480e55115062"
    assert canonical.r1_file(plan.raw) == plan.data
    assert freeze(plan) == plan


def test_the_digest_is_over_the_document_without_it() -> None:
    plan = unfrozen()
    text = json.dumps(plan_document(), sort_keys=True, separators=(",", ":")) + "\n"
    assert plan.computed_digest == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    assert unfrozen(digest="sha256:anything").computed_digest == plan.computed_digest


def test_unknown_fields_are_kept_and_hashed() -> None:
    document = plan_document()
    document["resources"]["nodes"][0]["surprise"] = 1
    plan = parse_plan(json.dumps(document).encode())
    assert plan.raw["resources"]["nodes"][0]["surprise"] == 1
    assert plan.computed_digest != unfrozen().computed_digest
    assert freeze(plan).raw["resources"]["nodes"][0]["surprise"] == 1


# --- freezing -----------------------------------------------------------------------------------------------------


def test_freezing_sets_the_digest_and_nothing_else() -> None:
    plan = unfrozen()
    frozen = freeze(plan)
    assert not plan.frozen
    assert frozen.frozen
    assert frozen.claimed_digest == frozen.computed_digest == plan.computed_digest
    assert {key: value for key, value in frozen.raw.items() if key != "digest"} == plan.raw
    assert freeze(frozen) == frozen


def test_freezing_binds_the_reference() -> None:
    plan = unfrozen()
    frozen = freeze(plan, reference_digest=REFERENCE)
    assert frozen.frozen
    assert frozen.correctness.reference_digest == REFERENCE
    assert frozen.correctness.repetitions == plan.correctness.repetitions
    assert frozen.computed_digest != plan.computed_digest


@pytest.mark.parametrize("correctness", [None, {}, {"repetitions": 2}])
def test_the_reference_is_bound_whatever_stood_there(correctness: Any) -> None:
    frozen = freeze(unfrozen(correctness=correctness), reference_digest=REFERENCE)
    assert frozen.correctness.reference_digest == REFERENCE


def test_an_edited_frozen_plan_is_not_frozen_again_silently() -> None:
    edited = small_plan().raw | {"plan_version": "edited"}
    plan = parse_plan(json.dumps(edited).encode())
    assert not plan.frozen
    with pytest.raises(PlanError, match="edited after freezing"):
        freeze(plan)


def test_the_published_dialect_binds_no_reference() -> None:
    document = {
        key: value for key, value in plan_document().items() if key not in ("adapter", "checkpoint", "correctness")
    }
    plan = parse_plan(json.dumps(document | {"schema": R1_SCHEMA}).encode())
    assert freeze(plan).frozen
    with pytest.raises(PlanError, match="binds no reference"):
        freeze(plan, reference_digest=REFERENCE)


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON"),
        (b"\x80", "is not UTF-8"),
        (b"null", "no JSON object with a `schema`"),
        (b"[]", "no JSON object with a `schema`"),
        (b"{}", "no JSON object with a `schema`"),
        (b'{"schema":"other/1"}', "schema 'other/1', expected one of"),
        (b'{"schema":["tallystick.plan/1"]}', "expected one of"),
        (b'{"schema":null}', "expected one of"),
        (b'{"schema":"tallystick.plan/1","schema":"tallystick.plan/1"}', "occurs twice"),
        (b'{"schema":"tallystick.plan/2"}', "expected one of"),
        (b'{"schema":"tallystick.plan/1"}', "plan_version: Field required"),
        (b'{"schema":"tallystick.plan/1","plan_version":1e400}', "too large"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(data, what="plan.json")
    assert message in str(caught.value)
    assert str(caught.value).startswith("plan.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("materializations", 0, "expected_bytes"), "1024"),
        (("materializations", 0, "expected_bytes"), 1024.0),
        (("materializations", 0, "expected_bytes"), True),
        (("materializations", 0, "expected_bytes"), None),
        (("materializations", 0, "role"), "keeper"),
        (("materializations", 0, "persistence"), "forever"),
        (("materializations", 0, "requirement"), "maybe"),
        (("materializations", 0), "mat"),
        (("materializations",), {}),
        (("logical_state_units", 0, "semantic_class"), "mutable"),
        (("logical_state_units", 0, "reconstruction_inputs"), "state.weights"),
        (("resources", "nodes", 0, "memory_resources", 0, "capacity_bytes"), "16 GiB"),
        (("authorities", 0, "lineage"), 1),
        (("model",), None),
        (("memory_expectations", "host_give_back_ratio"), "most"),
        (("correctness", "mode"), "roughly"),
    ],
)
def test_a_part_of_the_wrong_form_is_refused_and_named(path: tuple[Any, ...], value: Any) -> None:
    document: Any = plan_document()
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(PlanError) as caught:
        parse_plan(json.dumps(document).encode())
    assert "has the schema of a plan but not its form" in str(caught.value)
    assert ".".join(str(part) for part in path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hostile_name_in_a_wrong_part_stays_in_one_line() -> None:
    with pytest.raises(PlanError) as caught:
        unfrozen(memory_expectations={"transient_peak_bytes": {"a\nb\x1b[31m": "x"}})
    assert str(caught.value).isprintable()
    assert r"a\nb\x1b[31m" in str(caught.value)


def test_many_wrong_parts_are_counted_not_listed_without_end() -> None:
    document = plan_document()
    for materialization in document["materializations"]:
        materialization["role"] = materialization["persistence"] = "wrong"
    with pytest.raises(PlanError, match=r"and 5 more$"):
        parse_plan(json.dumps(document).encode())


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_refused_with_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(data)
    assert "\n" not in str(caught.value)


@given(damaged(plan_document()))
def test_a_damaged_plan_is_read_or_refused_with_an_error_of_ours(document: dict[str, Any]) -> None:
    refusal = ""
    try:
        plan = parse_plan(json.dumps(document).encode())
    except PlanError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert refusal or freeze(plan).frozen


@given(st.dictionaries(st.text("abc é😀", min_size=1, max_size=5), st.integers(-9, 9) | st.text("xyzé", max_size=4)))
def test_reading_a_frozen_plan_gives_the_same_plan(adapter_data: dict[str, Any]) -> None:
    plan = freeze(unfrozen(adapter_data=adapter_data))
    again = parse_plan(plan.data)
    assert again == plan
    assert again.frozen
    assert again.raw["adapter_data"] == adapter_data
    assert parse_plan(json.dumps(plan.raw, indent=7).encode()).computed_digest == plan.computed_digest


# --- what a plan says ---------------------------------------------------------------------------------------------


def test_what_the_published_dialect_does_not_say_is_a_default() -> None:
    document = {
        key: value for key, value in plan_document().items() if key not in ("adapter", "checkpoint", "correctness")
    }
    plan = parse_plan(json.dumps(document | {"schema": R1_SCHEMA}).encode())
    correctness = plan.correctness
    assert (correctness.prefill, correctness.repetitions, correctness.mode) == (True, 4, "exact")
    assert correctness.reference_digest is None
    assert plan.host_give_back_ratio == 0.80
    assert plan.host_noise_bytes == plan.unattributed_bytes == 64 * 1024 * 1024


def test_zero_is_an_expectation_and_no_missing_one() -> None:
    plan = small_plan(memory_expectations={"host_give_back_ratio": 0, "host_noise_bytes": 0, "unattributed_bytes": 0})
    assert (plan.host_give_back_ratio, plan.host_noise_bytes, plan.unattributed_bytes) == (0, 0, 0)


def test_a_resource_counts_in_what_it_is_carved_from() -> None:
    plan = small_plan()
    assert list(plan.resource_and_parents("node-a.shm")) == ["node-a.shm", "node-a.ram"]
    assert list(plan.resource_and_parents("node-a.ram")) == ["node-a.ram"]
    assert list(plan.resource_and_parents("nowhere")) == ["nowhere"]
    assert list(gpu_plan().resource_and_parents("gpu0.vram")) == ["gpu0.vram"]


def test_parents_in_a_circle_end() -> None:
    document = plan_document()
    document["resources"]["nodes"][0]["memory_resources"][0]["parent"] = "node-a.shm"
    plan = parse_plan(json.dumps(document).encode())
    assert list(plan.resource_and_parents("node-a.ram")) == ["node-a.ram", "node-a.shm"]


def test_where_ids_repeat_the_first_stands() -> None:
    document = plan_document()
    document["materializations"].append(document["materializations"][1] | {"id": "mat.weights.stage"})
    document["logical_state_units"].append({"id": "state.weights", "semantic_class": "mutable_authoritative"})
    plan = parse_plan(json.dumps(document).encode())
    assert plan.materializations["mat.weights.stage"].role == "staging"
    assert plan.units["state.weights"].semantic_class == "immutable_source"


def test_selection_by_pattern() -> None:
    selection = Selection(patterns=["block.*", "head"], exclude=["*.scale"], count=2, keys_digest=REFERENCE)
    chosen = [key for key in ("block.a", "block.a.scale", "head", "tail", "Block.a") if selection.matches(key)]
    assert chosen == ["block.a", "head"]


def test_the_digest_of_a_key_list_does_not_depend_on_its_order() -> None:
    expected = "sha256:" + hashlib.sha256("a\nb\né\n".encode()).hexdigest()
    assert keys_digest(["é", "b", "a"]) == keys_digest(["a", "b", "é"]) == expected
    assert keys_digest(["ab"]) != keys_digest(["a", "b"])
