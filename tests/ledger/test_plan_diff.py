"""Plan diff: parts matched by id, order and digest kept apart, long lists summed up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from ledger.errors import PlanError
from ledger.plan import Plan, parse_plan
from ledger.plan_checks import plan_differences
from tests.builders.damage import damaged
from tests.builders.runs import GIB, edited_plan, plan_document, small_plan


def differences(edit: Any) -> dict[str, tuple[Any, Any, str]]:
    found = plan_differences(small_plan(), edited_plan(small_plan(), edit))
    assert [difference.path for difference in found] == sorted(difference.path for difference in found)
    digests = [difference for difference in found if difference.path == "digest"]
    assert [difference.kind for difference in digests] == ["expected"]
    return {item.path: (item.a, item.b, item.kind) for item in found if item.path != "digest"}


def test_a_plan_does_not_differ_from_itself() -> None:
    assert plan_differences(small_plan(), small_plan()) == []


def test_a_changed_value_is_named_by_the_id_of_its_part() -> None:
    def edit(document: dict[str, Any]) -> None:
        document["materializations"].reverse()
        document["materializations"][-1]["expected_bytes"] = 7

    found = differences(edit)
    assert found.pop("materializations.order")[2] == "expected"
    assert found == {"materializations[mat.weights.stage].expected_bytes": (256 * 1024 * 1024, 7, "different")}


@pytest.mark.parametrize(
    ("edit", "path", "a", "b"),
    [
        (lambda document: document.update(priority=3), "priority", None, 3),
        (lambda document: document["correctness"].update(prefill=False), "correctness.prefill", True, False),
        (
            lambda document: document["resources"]["nodes"][0]["memory_resources"][1].update(capacity_bytes=GIB),
            "resources.nodes[node-a].memory_resources[node-a.shm].capacity_bytes",
            8 * GIB,
            GIB,
        ),
        (
            lambda document: document["authorities"][0].update(lineage="epoch-2"),
            "authorities[state.kv-cache/mat.kv-cache].lineage",
            "kv-cache-epoch-1",
            "epoch-2",
        ),
        (
            lambda document: document["checkpoint"]["files"][0].update(size=1),
            "checkpoint.files[model.safetensors].size",
            256 * 1024 * 1024 + 1024,
            1,
        ),
        (
            lambda document: document["execution"][0]["required_state"][0].update(representations=["x"]),
            "execution[exec.decode].required_state[state.weights].representations",
            ["checkpoint-native-resident"],
            ["x"],
        ),
    ],
)
def test_where_and_what_differs(edit: Any, path: str, a: Any, b: Any) -> None:
    assert differences(edit) == {path: (a, b, "different")}


def test_a_part_that_only_one_plan_has_is_shown_whole() -> None:
    found = differences(lambda document: document["authorities"].clear())
    ((path, (before, after, kind)),) = found.items()
    assert (path, after, kind) == ("authorities[state.kv-cache/mat.kv-cache]", None, "different")
    assert before["lineage"] == "kv-cache-epoch-1"


def test_values_of_another_type_differ() -> None:
    one = small_plan(adapter_data={"a": 1, "b": True, "c": [1], "d": {}})
    two = small_plan(adapter_data={"a": 1.0, "b": 1, "c": {}, "d": []})
    paths = [difference.path for difference in plan_differences(one, two) if difference.kind == "different"]
    assert paths == ["adapter_data.a", "adapter_data.b", "adapter_data.c", "adapter_data.d"]


def test_a_long_list_of_names_is_summed_up() -> None:
    one = small_plan(adapter_data={"keys": [f"key.{index}" for index in range(1000)]})
    two = small_plan(adapter_data={"keys": [f"key.{index}" for index in range(993)] + ["other"]})
    (difference,) = [item for item in plan_differences(one, two) if item.path == "adapter_data.keys"]
    assert difference.kind == "different"
    assert difference.a == {"items": 1000, "only_here": 7, "first": [f"key.{index}" for index in range(993, 998)]}
    assert difference.b == {"items": 994, "only_here": 1, "first": ["other"]}


def test_names_in_another_order_are_an_order() -> None:
    one = small_plan(adapter_data={"keys": ["a", "b", "b"]})
    two = small_plan(adapter_data={"keys": ["b", "a", "b"]})
    three = small_plan(adapter_data={"keys": ["a", "a", "b"]})
    (order,) = [item for item in plan_differences(one, two) if item.path != "digest"]
    assert (order.path, order.a, order.kind) == ("adapter_data.keys.order", ["a", "b", "b"], "expected")
    (counted,) = [item for item in plan_differences(one, three) if item.path != "digest"]
    assert (counted.path, counted.kind) == ("adapter_data.keys", "different")


def test_parts_of_one_name_are_laid_side_by_side_as_lists() -> None:
    def edit(document: dict[str, Any]) -> None:
        document["materializations"].append(dict(document["materializations"][0]))

    found = differences(edit)
    assert found["materializations"][2] == "different"


def test_only_the_digest_differs_between_a_draft_and_its_frozen_form() -> None:
    frozen = small_plan()
    draft = parse_plan(json.dumps({key: value for key, value in frozen.raw.items() if key != "digest"}).encode())
    (difference,) = plan_differences(draft, frozen)
    assert (difference.path, difference.a, difference.b, difference.kind) == (
        "digest",
        None,
        frozen.claimed_digest,
        "expected",
    )


def read(document: dict[str, Any]) -> Plan | None:
    try:
        return parse_plan(json.dumps(document).encode())
    except PlanError:
        return None


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@given(damaged(plan_document()), damaged(plan_document()))
def test_differences_are_the_same_from_both_sides_and_none_only_between_equals(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    a, b = read(one), read(two)
    if a is None or b is None:
        return
    there, back = plan_differences(a, b), plan_differences(b, a)
    assert [(item.path, item.a, item.b, item.kind) for item in there] == [
        (item.path, item.b, item.a, item.kind) for item in back
    ]
    equal = json.dumps(without_nulls(one), sort_keys=True) == json.dumps(without_nulls(two), sort_keys=True)
    assert (there == []) == equal
