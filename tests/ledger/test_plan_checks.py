"""Plan checks: each violation made by one small edit of a plan that has none, with the exact codes it comes with."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from ledger.errors import PlanError
from ledger.plan import R1_SCHEMA, Plan, parse_plan
from ledger.plan_checks import check_plan
from ledger.plan_doctrine import forbidden_by, qualifying_finals, reaches
from tests.builders.damage import damaged
from tests.builders.runs import GIB, MIB, edited_plan, gpu_document, gpu_plan, plan_document, sealed, small_plan

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "reference" / "r1-frozen-plan.json"

Document = dict[str, Any]
Edit = Callable[[Document], None]


def codes(plan: Plan, **asked: bool) -> set[str]:
    return {violation.code.removeprefix("plan.") for violation in check_plan(plan, **asked)}


def part(document: Document, identity: str) -> Document:
    """The part of the document with that id."""
    resources = document["resources"]
    everything = chain(
        document["logical_state_units"],
        document["materializations"],
        document["execution"],
        resources["links"],
        resources["backing_sources"],
        resources["nodes"],
        chain.from_iterable(node["compute_units"] for node in resources["nodes"]),
        chain.from_iterable(node["memory_resources"] for node in resources["nodes"]),
    )
    return next(item for item in everything if item["id"] == identity)


def put(identity: str, **fields: Any) -> Edit:
    """Set fields of the part with that id."""
    return lambda document: part(document, identity).update(fields)


def top(**fields: Any) -> Edit:
    return lambda document: document.update(fields)


def inside(name: str, **fields: Any) -> Edit:
    return lambda document: document[name].update(fields)


def add(name: str, like: str | None = None, **fields: Any) -> Edit:
    """Append to a top-level list, a copy of the part with that id where given."""
    return lambda document: document[name].append({**(part(document, like) if like else {}), **fields})


def authority(**fields: Any) -> Edit:
    return lambda document: document["authorities"][0].update(fields)


def required(**fields: Any) -> Edit:
    return lambda document: document["execution"][0]["required_state"][0].update(fields)


def forbid(unit: str, resource: str) -> Edit:
    return add("forbidden_persistent_materializations", logical_state_id=unit, memory_resource_id=resource)


def resource(**fields: Any) -> Edit:
    return lambda document: document["resources"]["nodes"][0]["memory_resources"].append(
        {"kind": "system-ram", "capacity_bytes": GIB, **fields}
    )


def second_node(*edits: Edit) -> Edit:
    """Another Node with memory and a Compute Unit of its own."""

    def edit(document: Document) -> None:
        document["resources"]["nodes"].append(
            {
                "id": "node-b",
                "compute_units": [{"id": "cpu-b", "kind": "cpu", "memory_resources": ["node-b.ram"]}],
                "memory_resources": [{"id": "node-b.ram", "kind": "system-ram", "capacity_bytes": 16 * GIB}],
            }
        )
        for each in edits:
            each(document)

    return edit


def both(*edits: Edit) -> Edit:
    def edit(document: Document) -> None:
        for each in edits:
            each(document)

    return edit


def link(**fields: Any) -> Edit:
    return lambda document: document["resources"]["links"].append({"id": "another", "kind": "copy", **fields})


def drop(name: str, identity: str) -> Edit:
    return lambda document: document[name].remove(part(document, identity))


STAGE, RESIDENT, CACHE, BASELINE = "mat.weights.stage", "mat.weights.resident", "mat.kv-cache", "mat.replay-baseline"
LARGE = 2**53

CASES: list[tuple[str, Edit, set[str]]] = [
    # fields, digests, numbers
    ("unknown field of the plan", top(priority=1), {"unknown-field"}),
    ("unknown field named like an attribute", top(schema_="x"), {"unknown-field"}),
    ("unknown field deep inside", put(STAGE, prefetch=True), {"unknown-field"}),
    ("unknown field of the model", inside("model", owner="x"), {"unknown-field"}),
    ("unknown field of what an execution requires", required(hint=1), {"unknown-field"}),
    ("unknown field of what decode must match", inside("correctness", seed=1), {"unknown-field"}),
    ("unknown expectation", inside("memory_expectations", page_size=1), {"unknown-field"}),
    ("digest of another form", inside("correctness", reference_digest="md5:00"), {"digest-form"}),
    ("digest in upper case", inside("model", config_digest="sha256:" + "AB" * 32), {"digest-form"}),
    ("digest with a line end", inside("model", headers_digest="sha256:" + "ab" * 32 + "\n"), {"digest-form"}),
    ("negative bytes", put(STAGE, expected_bytes=-1), {"negative"}),
    ("negative streamed bytes", put(STAGE, streamed_bytes=-1), {"negative"}),
    ("negative tolerance", put(RESIDENT, tolerance_bytes=-1), {"negative"}),
    ("negative capacity", put("node-a.shm", capacity_bytes=-1), {"negative", "capacity-exceeded"}),
    ("negative noise", inside("memory_expectations", host_noise_bytes=-1), {"negative"}),
    ("negative repetitions", inside("correctness", repetitions=-1), {"negative"}),
    ("negative file size", top(checkpoint={"files": [{"name": "a", "size": -1}]}), {"negative"}),
    ("negative bytes do not make room", put(CACHE, expected_bytes=-16 * GIB), {"negative"}),
    ("bytes beyond 2**53", put(STAGE, expected_bytes=LARGE), {"number-unsafe", "capacity-exceeded"}),
    ("capacity beyond 2**53", put("node-a.ram", capacity_bytes=LARGE), {"number-unsafe"}),
    ("adapter's number beyond 2**53", top(adapter_data={"a": [{"b": -LARGE}]}), {"number-unsafe"}),
    ("streamed bytes on residency", put(RESIDENT, streamed_bytes=1), {"streamed-not-staging"}),
    (
        "selection of nothing",
        put("state.weights", selection={"patterns": [], "count": 0, "keys_digest": "sha256:" + "00" * 32}),
        {"selection-empty"},
    ),
    (
        "selection by no pattern",
        put("state.weights", selection={"patterns": [], "count": 1, "keys_digest": "sha256:" + "00" * 32}),
        {"selection-empty"},
    ),
    # correctness and expectations
    ("tolerance without bounds", inside("correctness", mode="tolerance"), {"correctness-inconsistent"}),
    ("tolerance without rtol", inside("correctness", mode="tolerance", atol=0.1), {"correctness-inconsistent"}),
    ("exact with a bound", inside("correctness", rtol=0.1), {"correctness-inconsistent"}),
    (
        "negative bound",
        inside("correctness", mode="tolerance", atol=-0.1, rtol=0.1),
        {"correctness-inconsistent"},
    ),
    ("nothing compared", inside("correctness", prefill=False, repetitions=0), {"correctness-inconsistent"}),
    ("give-back above one", inside("memory_expectations", host_give_back_ratio=1.1), {"expectation-inconsistent"}),
    ("give-back below zero", inside("memory_expectations", host_give_back_ratio=-0.1), {"expectation-inconsistent"}),
    (
        "optional bytes that nothing plans",
        inside("memory_expectations", persistent_optional_bytes=1),
        {"expectation-inconsistent"},
    ),
    # ids and references
    ("materialization twice", add("materializations", BASELINE), {"duplicate-id"}),
    ("unit twice", add("logical_state_units", "state.buffers"), {"duplicate-id"}),
    ("execution twice", add("execution", "exec.decode"), {"duplicate-id"}),
    ("link twice", link(id="ram-to-shm", source="node-a.ram", target="node-a.shm"), {"duplicate-id"}),
    ("resource twice", resource(id="node-a.ram"), {"duplicate-id"}),
    ("resource named like the checkpoint", resource(id="checkpoint"), {"duplicate-id"}),
    ("compute unit twice", second_node(put("cpu-b", id="cpu0", memory_resources=[])), {"duplicate-id", "state-unreachable"}),
    ("empty id", resource(id=" "), {"empty-id"}),
    ("unknown unit", put(BASELINE, logical_state_id="state.none"), {"unknown-reference"}),
    ("unknown resource", put(BASELINE, memory_resource_id="nowhere"), {"unknown-reference"}),
    ("unknown path", put(STAGE, path_id="no-way"), {"unknown-reference"}),
    ("unknown backing source", put("state.weights", backing_source_id="none"), {"unknown-reference"}),
    ("unknown reconstruction input", put("state.buffers", reconstruction_inputs=["none"]), {"unknown-reference"}),
    ("unknown parent", put("node-a.shm", parent="nowhere"), {"unknown-reference"}),
    (
        "unknown resource of a compute unit",
        put("cpu0", memory_resources=["node-a.ram", "nowhere"]),
        {"unknown-reference"},
    ),
    ("unknown compute unit", put("exec.decode", compute_unit_id="gpu9"), {"unknown-reference"}),
    ("unknown unit of an authority", authority(logical_state_id="none"), {
        "unknown-reference", "authority-missing", "authority-materialization"}),
    ("unknown owner of an authority", authority(materialization_id="none"), {"unknown-reference"}),
    ("unknown required unit", required(logical_state_id="none"), {"unknown-reference"}),
    ("unknown required resource", required(memory_resources=["node-a.shm", "nowhere"]), {"unknown-reference"}),
    ("unknown forbidden unit", forbid("none", "node-a.ram"), {"unknown-reference"}),
    ("unknown forbidden resource", forbid("state.weights", "nowhere"), {"unknown-reference"}),
    (
        "unknown resource of a peak",
        inside("memory_expectations", transient_peak_bytes={"nowhere": 1}),
        {"unknown-reference"},
    ),
    ("link from nowhere", link(source="nowhere", target="node-a.ram"), {"unknown-reference"}),
    ("link to nowhere", link(source="node-a.ram", target="nowhere"), {"unknown-reference"}),
    ("link to a backing source", link(source="node-a.ram", target="checkpoint"), {"unknown-reference"}),
    (
        "nothing planned",
        top(
            materializations=[],
            authorities=[],
            execution=[],
            logical_state_units=[],
            forbidden_persistent_materializations=[],
        ),
        {"empty"},
    ),
    # resources
    ("resource carved from itself", put("node-a.ram", parent="node-a.ram"), {"parent-cycle"}),
    ("resources carved from each other", put("node-a.ram", parent="node-a.shm"), {"parent-cycle"}),
    ("carved from another node's memory", second_node(put("node-b.ram", parent="node-a.ram")), {"resource-elsewhere"}),
    (
        "compute unit claims another node's memory",
        second_node(put("cpu-b", memory_resources=["node-a.ram"])),
        {"resource-elsewhere"},
    ),
    ("link to itself", link(source="node-a.ram", target="node-a.ram"), {"link-to-itself"}),
    ("path that ends elsewhere", put(RESIDENT, path_id="checkpoint-to-ram"), {"path-mismatch"}),
    (
        "path from another backing source",
        both(
            lambda document: document["resources"]["backing_sources"].append({"id": "other", "kind": "checkpoint"}),
            link(source="other", target="node-a.ram"),
            put(STAGE, path_id="another"),
        ),
        {"path-mismatch"},
    ),
    ("staging larger than memory", put(STAGE, expected_bytes=17 * GIB), {"capacity-exceeded"}),
    ("residency larger than its part", put("node-a.shm", capacity_bytes=GIB // 8), {"capacity-exceeded"}),
    ("parts larger than the whole", put("node-a.ram", capacity_bytes=520 * MIB), {"capacity-exceeded"}),
    (
        "a peak below one staging",
        inside("memory_expectations", transient_peak_bytes={"node-a.ram": MIB}),
        {"transient-peak-too-small"},
    ),
    # where state comes from
    ("immutable from nowhere", put("state.weights", backing_source_id=None), {"backing-source-missing"}),
    (
        "immutable but reconstructed",
        put("state.weights", reconstruction_inputs=["state.kv-cache"]),
        {"class-mismatch"},
    ),
    ("mutable but reconstructed", put("state.kv-cache", reconstruction_inputs=["state.weights"]), {"class-mismatch"}),
    ("derived from nothing", put("state.buffers", reconstruction_inputs=[]), {"reconstruction-inputs-missing"}),
    (
        "reconstructed from itself",
        put("state.buffers", reconstruction_inputs=["state.buffers"]),
        {"reconstruction-cycle"},
    ),
    (
        "reconstructed in a circle",
        both(
            put("state.buffers", reconstruction_inputs=["state.replay-baseline"]),
            put("state.replay-baseline", reconstruction_inputs=["state.buffers"]),
        ),
        {"reconstruction-cycle"},
    ),
    (
        "input that is only cached",
        both(
            put("mat.buffers.resident", role="optional_cache", requirement="optional"),
            put("state.replay-baseline", reconstruction_inputs=["state.buffers"]),
            lambda document: document["execution"][0]["required_state"].pop(1),
        ),
        {"input-not-retained"},
    ),
    (
        "input that is only staged",
        lambda document: both(
            drop("materializations", RESIDENT), lambda inner: inner["execution"][0]["required_state"].pop(0)
        )(document),
        {"input-not-retained", "staging-without-final"},
    ),
    # roles
    ("residency of mutable state", put(BASELINE, logical_state_id="state.kv-cache", role="required_residency"), {
        "role-mismatch"}),
    (
        "cache of mutable state",
        put(BASELINE, logical_state_id="state.kv-cache", role="optional_cache", requirement="optional"),
        {"role-mismatch"},
    ),
    ("authority over derived state", put(BASELINE, role="mutable_authority"), {"role-mismatch"}),
    ("authority over weights", put(RESIDENT, role="mutable_authority"), {"role-mismatch"}),
    ("staging marked persistent", put(STAGE, persistence="persistent"), {"persistence-mismatch", "forbidden-copy"}),
    ("residency marked transient", put(RESIDENT, persistence="transient"), {
        "persistence-mismatch", "staging-without-final", "state-unmaterialized", "input-not-retained"}),
    ("authority marked transient", put(CACHE, persistence="transient"), {
        "persistence-mismatch", "state-unmaterialized", "input-not-retained"}),
    ("test state marked transient", put(BASELINE, persistence="transient"), {"persistence-mismatch"}),
    ("test state marked optional", put(BASELINE, requirement="optional"), {"requirement-mismatch"}),
    ("residency marked optional", put("mat.buffers.resident", requirement="optional"), {
        "requirement-mismatch", "state-unmaterialized"}),
    ("cache marked required", put(BASELINE, role="optional_cache"), {"requirement-mismatch"}),
    # forbidden copies
    ("forbidden copy", forbid("state.weights", "node-a.shm"), {"forbidden-copy"}),
    (
        "host copy beside the planned one",
        add("materializations", RESIDENT, id="mat.copy", memory_resource_id="node-a.ram", path_id=None),
        {"forbidden-copy"},
    ),
    (
        "optional host copy",
        add(
            "materializations",
            RESIDENT,
            id="mat.copy",
            memory_resource_id="node-a.ram",
            path_id=None,
            role="optional_cache",
            requirement="optional",
        ),
        {"forbidden-copy"},
    ),
    (
        "forbidden copy in a part of the same kind",
        both(
            resource(id="node-a.numa1", parent="node-a.ram"),
            add("materializations", RESIDENT, id="mat.copy", memory_resource_id="node-a.numa1", path_id=None),
        ),
        {"forbidden-copy"},
    ),
    # staging, authority, execution
    (
        "staging of what is never resident",
        both(
            add("logical_state_units", "state.buffers", id="state.more"),
            put(STAGE, logical_state_id="state.more", path_id=None),
        ),
        {"staging-without-final"},
    ),
    (
        "staging whose final is optional",
        both(
            put(RESIDENT, role="optional_cache", requirement="optional"),
            lambda document: document["execution"][0]["required_state"].pop(0),
        ),
        {"staging-without-final", "input-not-retained"},
    ),
    (
        "staging on another node",
        second_node(put(STAGE, memory_resource_id="node-b.ram", path_id=None)),
        {"staging-elsewhere"},
    ),
    ("no authority", top(authorities=[]), {"authority-missing"}),
    (
        "two lineages",
        add("authorities", lineage="another", logical_state_id="state.kv-cache", materialization_id=CACHE),
        {"authority-duplicate"},
    ),
    (
        "one lineage twice",
        lambda document: document["authorities"].append(dict(document["authorities"][0])),
        {"authority-duplicate"},
    ),
    ("two owners", add("materializations", CACHE, id="mat.kv-cache.two"), {"authority-duplicate"}),
    ("authority without lineage", authority(lineage=""), {"lineage-missing"}),
    ("authority owned by test state", authority(materialization_id=BASELINE), {"authority-materialization"}),
    (
        "authority over weights by the cache",
        add("authorities", lineage="another", logical_state_id="state.weights", materialization_id=CACHE),
        {"authority-not-mutable", "authority-materialization"},
    ),
    ("required where it is not", required(memory_resources=["node-a.ram"]), {"state-unmaterialized"}),
    ("required nowhere", required(memory_resources=[]), {"state-unmaterialized"}),
    ("required in another form", required(representations=["other"]), {"state-unmaterialized"}),
    ("out of reach", put("cpu0", memory_resources=[]), {"state-unreachable"}),
    (
        "executed on another node",
        second_node(put("exec.decode", compute_unit_id="cpu-b")),
        {"state-unreachable"},
    ),
    (
        "a part is within reach, the whole is not",
        both(
            put("cpu0", memory_resources=["node-a.shm"]),
            required(memory_resources=["node-a.shm", "node-a.ram"]),
        ),
        {"state-unreachable"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_violation_with_the_exact_codes_it_comes_with(edit: Edit, expected: set[str]) -> None:
    plan = edited_plan(small_plan(), edit)
    assert codes(plan) == expected
    for violation in check_plan(plan):
        assert violation.message
        assert "\n" not in violation.message


def test_plans_without_a_violation() -> None:
    for plan in (small_plan(), gpu_plan()):
        assert check_plan(plan, require_frozen=True) == []


def test_the_published_plan_has_no_violation() -> None:
    if not PUBLISHED.is_file():
        pytest.skip("the published R1 plan is not beside this checkout")
    assert check_plan(parse_plan(PUBLISHED.read_bytes()), require_frozen=True) == []


ALLOWED: list[tuple[str, Edit]] = [
    ("staging in a forbidden place, for it goes", put(STAGE, memory_resource_id="node-a.ram")),
    ("several lists in another order", lambda document: document["materializations"].reverse()),
    ("the adapter's own words", top(adapter_data={"anything": [1.5, None, {"deep": "x"}]})),
    ("an adapter option of any name", lambda document: document["adapter"]["options"].update(window=3)),
    ("an execution without required state", lambda document: document["execution"][0]["required_state"].clear()),
    ("a part reached through the whole", put("cpu0", memory_resources=["node-a.ram"])),
    ("tolerance with both bounds", inside("correctness", mode="tolerance", atol=0, rtol=0.5)),
    ("a planned optional cache", both(
        add("materializations", "mat.buffers.resident", id="mat.cache", role="optional_cache", requirement="optional"),
        inside("memory_expectations", persistent_optional_bytes=256),
    )),
    ("streamed staging", put(STAGE, expected_bytes=MIB, streamed_bytes=256 * MIB)),
    ("derived state from a backing source", put("state.buffers", reconstruction_inputs=[], backing_source_id="checkpoint")),
    ("peaks one after another, where all at once would not fit", both(
        put("node-a.ram", capacity_bytes=800 * MIB),
        add("materializations", STAGE, id="mat.stage.two"),
        inside("memory_expectations", transient_peak_bytes={"node-a.ram": 256 * MIB}),
    )),
    ("exactly as much as there is", put("node-a.shm", capacity_bytes=272 * MIB + 256)),
    ("the largest safe integers", top(adapter_data={"a": LARGE - 1, "b": 1 - LARGE})),
    ("zero bytes", put("mat.buffers.resident", expected_bytes=0)),
    ("a snapshot of mutable state for a test", put(BASELINE, logical_state_id="state.kv-cache")),
]  # fmt: skip


@pytest.mark.parametrize("edit", [case[1] for case in ALLOWED], ids=[case[0] for case in ALLOWED])
def test_what_is_allowed(edit: Edit) -> None:
    assert check_plan(edited_plan(small_plan(), edit)) == []


def test_without_the_expected_peak_all_staging_counts_at_once() -> None:
    def edit(document: Document) -> None:
        put("node-a.ram", capacity_bytes=700 * MIB)(document)
        add("materializations", STAGE, id="mat.stage.two")(document)

    (violation,) = check_plan(edited_plan(small_plan(), edit))
    assert (violation.code, violation.subject) == ("plan.capacity-exceeded", "node-a.ram")
    peak = 2 * 256 * MIB + 272 * MIB + 256
    assert (
        f"{peak} bytes may be live at once ({272 * MIB + 256} persistent, {512 * MIB} transient)" in violation.message
    )


def test_on_a_gpu_the_host_copy_is_forbidden_and_out_of_reach() -> None:
    document = gpu_document()
    put(RESIDENT, memory_resource_id="node-a.ram", path_id=None)(document)
    required(memory_resources=["node-a.ram"])(document)
    assert codes(sealed(document)) == {"forbidden-copy", "state-unreachable"}


def test_a_digest_that_is_not_its_own() -> None:
    plan = parse_plan(json.dumps(small_plan().raw | {"plan_version": "edited"}).encode())
    assert codes(plan) == codes(plan, require_frozen=True) == {"digest-mismatch"}


def test_an_unfrozen_plan_is_a_violation_only_when_asked_for() -> None:
    plan = parse_plan(json.dumps(plan_document()).encode())
    assert codes(plan) == set()
    assert codes(plan, require_frozen=True) == {"not-frozen"}


def test_an_unknown_adapter_is_named() -> None:
    (violation,) = check_plan(small_plan(), adapter_known=False)
    assert (violation.code, violation.subject) == ("plan.adapter-unknown", "causal_lm")
    assert check_plan(small_plan(adapter=None), adapter_known=False)[0].subject == "(none)"


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (top(correctness={}), "correctness"),
        (top(adapter={"name": "x"}), "adapter"),
        (top(checkpoint={}), "checkpoint"),
        (inside("model", config_digest=None), "model.config_digest"),
        (put("node-a.ram", parent=None), "resources.nodes[node-a].memory_resources[node-a.ram].parent"),
        (put("state.weights", selection=None), "logical_state_units[state.weights].selection"),
        (put(STAGE, streamed_bytes=1), "materializations[mat.weights.stage].streamed_bytes"),
        (inside("memory_expectations", host_noise_bytes=1), "memory_expectations.host_noise_bytes"),
    ],
)
def test_fields_of_the_other_dialect_are_unknown_in_a_published_plan(edit: Edit, field: str) -> None:
    document = plan_document()
    for name in ("adapter", "checkpoint", "correctness"):
        del document[name]
    for name in ("config_digest", "headers_digest"):
        del document["model"][name]
    del part(document, "node-a.shm")["parent"]
    del part(document, "state.weights")["selection"]
    document["schema"] = R1_SCHEMA
    assert check_plan(sealed(document)) == []
    edit(document)
    (violation,) = check_plan(sealed(document))
    assert (violation.code, violation.subject) == ("plan.unknown-field", field)


def test_hostile_names_stay_in_one_line() -> None:
    hostile = "a\nb\x1b[31m"

    def edit(document: Document) -> None:
        put("node-a.ram", parent="node-a.shm")(document)
        authority(lineage=hostile)(document)
        add("authorities", lineage=hostile, logical_state_id="state.kv-cache", materialization_id=CACHE)(document)
        required(memory_resources=[hostile], representations=[hostile])(document)
        second_node(put("node-b", id=hostile), put(STAGE, memory_resource_id="node-b.ram", path_id=None))(document)
        inside("correctness", reference_digest=hostile)(document)
        put("node-b.ram", parent=hostile)(document)

    found = check_plan(edited_plan(small_plan(), edit))
    assert len(found) >= 8
    assert all(violation.message.isprintable() for violation in found)


def test_every_violation_is_reported_at_once() -> None:
    edits = [
        top(priority=1),
        put(STAGE, expected_bytes=-1),
        authority(lineage=" "),
        forbid("state.weights", "node-a.shm"),
        link(source="nowhere", target="node-a.ram"),
        inside("correctness", mode="tolerance"),
        required(representations=["other"]),
    ]
    found = check_plan(edited_plan(small_plan(), both(*edits)))
    assert {violation.code.removeprefix("plan.") for violation in found} == {
        "unknown-field",
        "negative",
        "lineage-missing",
        "forbidden-copy",
        "unknown-reference",
        "correctness-inconsistent",
        "state-unmaterialized",
    }
    assert len([violation for violation in found if violation.code == "plan.correctness-inconsistent"]) == 2


def test_violations_do_not_depend_on_the_order_of_lists() -> None:
    def damage(document: Document) -> None:
        for edit in (
            second_node(put("cpu-b", memory_resources=["node-a.ram"])),
            put(STAGE, persistence="persistent"),
            put(CACHE, expected_bytes=LARGE),
            put("state.buffers", reconstruction_inputs=["state.none"]),
            top(authorities=[]),
        ):
            edit(document)

    def shuffled(document: Document, seed: int) -> None:
        generator = random.Random(seed)
        for name in ("materializations", "logical_state_units", "execution", "forbidden_persistent_materializations"):
            generator.shuffle(document[name])
        for name in ("nodes", "links"):
            generator.shuffle(document["resources"][name])

    base = edited_plan(small_plan(), damage)
    expected = {(violation.code, violation.message) for violation in check_plan(base)}
    assert len(expected) >= 6
    for seed in range(5):
        plan = edited_plan(base, lambda document, seed=seed: shuffled(document, seed))
        found = check_plan(plan)
        assert {(violation.code, violation.message) for violation in found} == expected
        assert found == sorted(found, key=lambda violation: (violation.code, violation.subject, violation.message))


def test_the_rules_that_others_ask() -> None:
    plan = small_plan()
    staging = plan.materializations[STAGE]
    assert [final.id for final in qualifying_finals(plan, staging)] == [RESIDENT]
    assert qualifying_finals(plan, plan.materializations[RESIDENT]) == []
    assert forbidden_by(plan, "state.weights", "node-a.ram") is not None
    assert forbidden_by(plan, "state.weights", "node-a.shm") is None
    assert forbidden_by(plan, "state.kv-cache", "node-a.ram") is None
    assert reaches(plan, plan.compute_units["cpu0"], "node-a.shm")
    assert not reaches(plan, plan.compute_units["cpu0"], "nowhere")


@given(damaged(plan_document()))
def test_any_plan_that_can_be_read_can_be_checked(document: Document) -> None:
    try:
        plan = parse_plan(json.dumps(document).encode())
    except PlanError:
        return
    found = check_plan(plan, require_frozen=True)
    assert found, "an unfrozen plan is a violation where frozen ones are asked for"
    assert found == check_plan(plan, require_frozen=True)
    assert len(found) == len({(item.code, item.subject, item.message) for item in found})
    assert all("\n" not in item.message for item in found)
