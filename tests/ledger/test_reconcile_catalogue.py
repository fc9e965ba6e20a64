"""The catalogue of invariants, the documentation generated from it, and the pure functions beside the invariants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import (
    Body,
    EnvironmentObserved,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationStarted,
    MemorySampled,
    ObservedComputeUnit,
    ObservedMemoryResource,
)
from ledger.fold import fold
from ledger.measurement import Measurement, measured, stated, unavailable
from ledger.plan import Plan
from ledger.reconcile import INVARIANTS, Judgement, judge, markdown, severity
from ledger.reconcile.accounting import account
from ledger.reconcile.environment import bind_environment
from ledger.reconcile.peak import peaks, required_bytes
from tests.builders.runs import (
    GIB,
    GPU_UUID,
    MIB,
    changed,
    clean_bodies,
    edited_plan,
    environment,
    gpu_plan,
    moved,
    run_events,
    small_plan,
    without,
)

Bodies = list[Body]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "invariants.md"


def judged(bodies: Bodies, plan: Plan) -> Judgement:
    return judge(plan, fold(run_events(bodies, plan)))


# --- catalogue and documentation ----------------------------------------------------------------------------------


def test_the_documentation_is_what_the_catalogue_says() -> None:
    assert DOCUMENT.read_text() == markdown(INVARIANTS), "run `python -m ledger.reconcile > docs/invariants.md`"


def test_the_table_has_every_code_with_its_severity_and_statement() -> None:
    table = markdown(INVARIANTS)
    for invariant in INVARIANTS:
        for code in invariant.codes:
            (row,) = [line for line in table.splitlines() if line.startswith(f"| `{code}` |")]
            _, _, level, statement, _ = row.split("|")
            assert level.strip() == severity(code)
            assert statement.strip() == " ".join(invariant.statement.split())


def test_the_module_prints_the_table() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "ledger.reconcile"], capture_output=True, text=True, check=True, cwd=DOCUMENT.parents[1]
    )
    assert printed.stdout == markdown(INVARIANTS)


# --- assurance ----------------------------------------------------------------------------------------------------


def verified(bodies: Bodies, name: str) -> Bodies:
    return changed(
        bodies,
        MaterializationObserved,
        {
            "source_digest": measured("sha256:" + "aa" * 32, None, "sha256"),
            "resident_digest": measured("sha256:" + "aa" * 32, None, "sha256"),
        },
        materialization_id=name,
    )


def declared_only(bodies: Bodies, name: str) -> Bodies:
    """The observation of that materialization is a document's word."""
    (before,) = [b for b in bodies if isinstance(b, MaterializationObserved) and b.materialization_id == name]
    facts = ("memory_resource_id", "representation", "bytes", "storages", "tensors", "live")
    word = {
        fact: stated(value, None, "document", source="declared")
        for fact in facts
        if (value := getattr(before, fact).value) is not None
    }
    return changed(bodies, MaterializationObserved, word, materialization_id=name)


def test_assurance_is_content_verified_when_the_weights_are() -> None:
    plan = small_plan()
    judgement = judged(verified(clean_bodies(plan), "mat.weights.resident"), plan)
    assert (judgement.verdict, judgement.assurance) == ("PASS", "content-verified")
    assert judgement.assurances["mat.weights.resident"] == "content-verified"
    assert judgement.assurances["mat.kv-cache"] == "observed"


def test_assurance_of_staging_counts_for_nothing() -> None:
    plan = small_plan()
    bodies = verified(clean_bodies(plan), "mat.weights.stage")
    assert judged(bodies, plan).assurance == "observed"


@pytest.mark.parametrize("name", ["mat.weights.resident", "mat.kv-cache", "mat.buffers.resident"])
def test_one_declared_required_persistent_one_makes_all_declared_and_is_no_mismatch(name: str) -> None:
    plan = small_plan()
    bodies = declared_only(verified(clean_bodies(plan), "mat.weights.resident"), name)
    if name == "mat.weights.resident":
        bodies = declared_only(clean_bodies(plan), name)
    judgement = judged(bodies, plan)
    assert judgement.assurance == "declared"
    assert (judgement.verdict, judgement.codes) == ("PASS", [])


def test_assurance_without_an_immutable_source_is_at_most_observed() -> None:
    def derived(document: dict[str, Any]) -> None:
        document["logical_state_units"][0]["semantic_class"] = "derived_reconstructible"

    plan = edited_plan(small_plan(), derived)
    assert judged(verified(clean_bodies(plan), "mat.weights.resident"), plan).assurance == "observed"


def test_a_required_one_that_was_never_seen_leaves_nothing_but_words() -> None:
    plan = small_plan()
    bodies = without(clean_bodies(plan), MaterializationObserved, materialization_id="mat.kv-cache")
    assert judged(bodies, plan).assurance == "declared"


# --- accounting ---------------------------------------------------------------------------------------------------


def figures(bodies: Bodies, plan: Plan) -> dict[str, Any]:
    return dict(account(plan, fold(run_events(bodies, plan))))


def test_accounting_of_the_clean_run() -> None:
    plan = small_plan()
    found = figures(clean_bodies(plan), plan)
    values = {name: figure.value for name, figure in found.items() if isinstance(figure, Measurement)}
    assert values == {
        "persistent_required": 256 * MIB + 256 + 8 * MIB + 8 * MIB,
        "persistent_optional": 0,
        "unplanned_persistent": 0,
        "host_mirror": 0,
        "staging_before": 256 * MIB,
        "staging_after": 0,
        "transient_upper_bound": 256 * MIB,
        "transient_peak": 256 * MIB,
    }
    assert found["persistent_required"].status == "measured"
    assert (found["transient_upper_bound"].status, found["transient_upper_bound"].source) == ("stated", "derived")
    assert found["evidence_host_by_role"]["reference"].value == 64 * 1024


def test_what_is_not_known_stays_unavailable_and_names_what() -> None:
    plan = small_plan()
    unknown = unavailable("bytes", "looked", "could not be read")
    bodies = changed(clean_bodies(plan), MaterializationObserved, {"bytes": unknown}, materialization_id="mat.kv-cache")
    bodies = changed(bodies, MaterializationReleased, {"bytes_after": unknown})
    bodies = changed(bodies, MemorySampled, {"census": None, "process/vm_hwm": unknown}, label="closing")
    found = figures(bodies, plan)
    for name in ("persistent_required", "staging_after", "host_mirror", "unplanned_persistent", "transient_peak"):
        assert (found[name].value, found[name].status) == (None, "unavailable"), name
    assert "mat.kv-cache" in found["persistent_required"].detail
    assert found["staging_before"].value == 256 * MIB


def test_a_run_that_did_nothing_accounts_for_nothing_and_says_zero_of_nothing() -> None:
    plan = small_plan()
    found = figures(clean_bodies(plan)[:1], plan)
    assert found["persistent_required"].value is None
    assert found["host_mirror"].value is None
    assert found["transient_peak"].value is None


def test_a_sum_with_a_declared_part_is_declared() -> None:
    plan = small_plan()
    found = figures(declared_only(clean_bodies(plan), "mat.kv-cache"), plan)
    figure = found["persistent_required"]
    assert (figure.value, figure.source, figure.status) == (256 * MIB + 256 + 16 * MIB, "declared", "stated")


def test_reported_unplanned_bytes_are_added() -> None:
    plan = small_plan()
    report = measured(4096, "bytes", "adapter", source="adapter")
    bodies = changed(
        clean_bodies(plan), MaterializationRealized, {"unplanned_bytes": report}, materialization_id="mat.kv-cache"
    )
    assert figures(bodies, plan)["unplanned_persistent"].value == 4096


def test_streamed_bytes_count_in_the_upper_bound() -> None:
    plan = edited_plan(small_plan(), lambda document: document["materializations"][0].update(streamed_bytes=1024 * MIB))
    assert figures(clean_bodies(plan), plan)["transient_upper_bound"].value == (256 + 1024) * MIB


# --- peaks --------------------------------------------------------------------------------------------------------


def test_what_a_plan_may_have_at_once_counts_parts_in_the_whole() -> None:
    resident = 256 * MIB + 256 + 16 * MIB
    assert required_bytes(small_plan()) == {"node-a.ram": 256 * MIB + resident, "node-a.shm": resident}
    assert required_bytes(gpu_plan()) == {"gpu0.vram": resident, "node-a.ram": 256 * MIB}


def test_an_expected_transient_peak_stands_for_the_sum_but_never_below_the_largest() -> None:
    def two(document: dict[str, Any]) -> None:
        first = document["materializations"][0]
        document["materializations"].append({**first, "id": "mat.second.stage", "expected_bytes": 100 * MIB})

    plan = edited_plan(gpu_plan(), two)
    assert required_bytes(plan)["node-a.ram"] == 356 * MIB
    for expected, needed in ((300, 300), (10, 256)):
        limited = edited_plan(
            plan,
            lambda document, expected=expected: document["memory_expectations"].update(  # type: ignore[misc]
                transient_peak_bytes={"node-a.ram": expected * MIB}
            ),
        )
        assert required_bytes(limited)["node-a.ram"] == needed * MIB


def test_peaks_follow_the_order_of_events() -> None:
    plan = small_plan()
    state = fold(run_events(clean_bodies(plan), plan))
    resident = 256 * MIB + 256 + 16 * MIB
    most = peaks(plan, state, state.materializations)
    assert most["node-a.shm"].bytes == resident
    assert most["node-a.ram"].bytes == 256 * MIB + resident
    early = clean_bodies(plan)
    early = moved(
        early,
        MaterializationReleased,
        before=MaterializationStarted,
        where={"materialization_id": "mat.buffers.resident"},
    )
    released_early = fold(run_events(early, plan))
    assert peaks(plan, released_early, state.materializations)["node-a.ram"].bytes == 512 * MIB


# --- binding ------------------------------------------------------------------------------------------------------


def seen(value: str | int | None) -> Measurement:
    return measured(value, None, "looked") if value is not None else unavailable(None, "looked", "could not be read")


def in_bytes(value: int | None) -> Measurement:
    return seen(value).model_copy(update={"unit": "bytes"})


def gpu(key: str, uuid: str | None) -> ObservedComputeUnit:
    return ObservedComputeUnit(
        key=key, kind=seen("cuda-gpu"), device_uuid=seen(uuid), name=seen("a GPU"), memory_resources=[f"{key}.vram"]
    )


def memory(key: str, kind: str, size: int | None) -> ObservedMemoryResource:
    return ObservedMemoryResource(
        key=key, kind=seen(kind), capacity_bytes=in_bytes(size), available_bytes=in_bytes(size)
    )


TWO_GPUS = EnvironmentObserved(
    compute_units=[gpu("cuda:0", "GPU-other"), gpu("cuda:1", GPU_UUID)],
    memory_resources=[
        memory("ram", "system-ram", 64 * GIB),
        memory("cuda:0.vram", "accelerator-vram", 1 * MIB),
        memory("cuda:1.vram", "accelerator-vram", 8 * GIB),
    ],
)


def test_a_device_binds_by_its_uuid_and_its_memory_with_it() -> None:
    bindings, violations = bind_environment(gpu_plan(), TWO_GPUS)
    assert violations == []
    assert bindings == {"gpu0": "cuda:1", "gpu0.vram": "cuda:1.vram", "node-a.ram": "ram"}


def test_every_plan_fits_the_machine_that_it_was_made_for() -> None:
    for plan in (small_plan(), gpu_plan()):
        bindings, violations = bind_environment(plan, environment(plan))
        assert violations == []
        assert set(bindings) == {*plan.compute_units, *plan.memory_resources}


def test_two_devices_of_one_kind_are_never_bound_to_the_same_one() -> None:
    def two_devices(document: dict[str, Any]) -> None:
        (node,) = document["resources"]["nodes"]
        node["compute_units"] = [
            {"id": f"gpu{n}", "kind": "cuda-gpu", "device_uuid": None, "memory_resources": []} for n in range(3)
        ]

    bindings, violations = bind_environment(edited_plan(gpu_plan(), two_devices), TWO_GPUS)
    assert {bindings["gpu0"], bindings["gpu1"]} == {"cuda:0", "cuda:1"}
    unbound = [violation.subject for violation in violations if violation.code == "environment.unit-mismatch"]
    assert unbound == ["gpu2"]


def test_every_reason_is_named_at_once() -> None:
    nothing = EnvironmentObserved(compute_units=[], memory_resources=[memory("ram", "system-ram", MIB)])
    bindings, violations = bind_environment(gpu_plan(), nothing)
    assert bindings == {"node-a.ram": "ram"}
    assert sorted(violation.code for violation in violations) == [
        "environment.capacity-exceeded",
        "environment.resource-missing",
        "environment.unit-mismatch",
    ]


def test_what_is_not_known_does_not_bind() -> None:
    unknown = EnvironmentObserved(
        compute_units=[gpu("cuda:0", None)],
        memory_resources=[memory("ram", "system-ram", None), memory("cuda:0.vram", "accelerator-vram", 8 * GIB)],
    )
    bindings, violations = bind_environment(gpu_plan(), unknown)
    assert "gpu0" not in bindings
    assert [violation.code for violation in violations] == ["environment.unit-mismatch"]
