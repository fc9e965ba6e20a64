"""What of a plan an outsider can tell: device bytes of a unit alone on its device, and staging that went."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.bodies import Body, MemorySampled, RunOpened
from ledger.fold import fold
from ledger.measurement import measured, unavailable
from ledger.plan_checks import check_plan
from ledger.reconcile import judge
from ledger.recording import Recorder
from realizer.outside import device_residents, staging_gone
from tests.builders.outside import machine, staged_plan
from tests.builders.runs import edited_plan

MIB = 1024**2
SIZE = 1024 * MIB
PLAN = staged_plan(SIZE, tolerance_bytes=str(512 * MIB))
RESIDENT, STAGE = "mat.weights.resident", "mat.weights.stage"


def sampled(tree_sum: int | None, device: int | None = None) -> MemorySampled:
    names = ("rss_anon", "rss_shmem", "rss_file", "vm_swap", "new_file_mappings", "new_tmpfs_files", "tree_sum")
    unknown = unavailable("bytes", "m", "may not be read", source="witness")
    known = measured(tree_sum, "bytes", "m", source="witness") if tree_sum is not None else unknown
    on_device = measured(device, "bytes", "NVML", source="witness") if device is not None else unknown
    return MemorySampled(label="x", process=dict.fromkeys(names, known), cuda={"cuda:0.process": on_device})


def findings(*bodies: Body) -> list[tuple[str, str, str]]:
    """(code, severity, subject) that the judge finds in a witness's run of these bodies."""
    from ledger.bodies import PlanReference, SoftwareIdentity
    from ledger.events import Actor
    from ledger.recording import ListLedger

    ledger = ListLedger()
    actor = Actor(kind="witness", id="test")
    record = Recorder(ledger.append, run_id="0" * 36, node_id="node-a", actor=actor, clock=None)
    unknown = unavailable(None, "m", "withheld")
    reference = PlanReference(
        claimed_digest=PLAN.claimed_digest,
        computed_digest=PLAN.computed_digest,
        blob_digest=PLAN.blob_digest,
        plan_schema=PLAN.schema,
    )
    software = SoftwareIdentity(versions={}, source_commit=unknown, source_dirty=unknown, files_digest=unknown)
    who: dict[str, Any] = dict.fromkeys(("argv", "user", "hostname", "pid"), unknown)
    record(RunOpened(purpose="witness", plan=reference, software=software, **who))
    for body in bodies:
        record(body)
    judged = judge(PLAN, fold(ledger.events()))
    return [(found.code, found.severity, found.subject) for found in judged.findings]


def test_a_plan_for_an_outside_engine_is_a_plan() -> None:
    assert check_plan(PLAN) == []
    assert PLAN.materializations[RESIDENT].tolerance_bytes == 512 * MIB
    forbidden = PLAN.document.forbidden_persistent_materializations
    assert [(item.logical_state_id, item.memory_resource_id) for item in forbidden] == [("state.weights", "node-a.ram")]
    allowed = staged_plan(SIZE, host_mirror="allowed", staging="no")
    assert check_plan(allowed) == []
    assert allowed.document.forbidden_persistent_materializations == []
    assert allowed.document.memory_expectations.unexplained_persistent_host_mirror_bytes == SIZE
    assert list(allowed.materializations) == [RESIDENT]


@pytest.mark.parametrize(
    ("held", "wrong"),
    [(SIZE, False), (SIZE + 500 * MIB, False), (SIZE + 513 * MIB, True), (SIZE - 513 * MIB, True), (0, True)],
)
def test_device_bytes_within_the_tolerance(held: int, wrong: bool) -> None:
    (seen,) = device_residents(PLAN, machine(), sampled(0, held))
    found = findings(seen)
    assert (("materialization.bytes-mismatch", "error", RESIDENT) in found) is wrong


def test_device_bytes_that_nobody_gives_are_unknown() -> None:
    (seen,) = device_residents(PLAN, machine(), sampled(0))
    assert (seen.bytes.value, seen.memory_resource_id.value) == (None, None)
    assert not [found for found in findings(seen) if found[1] == "error"]


def test_of_two_units_on_one_device_nothing_is_said() -> None:
    def second(document: Any) -> None:
        resident = document["materializations"][-1]
        document["materializations"].append({**resident, "id": "mat.more"})

    assert list(device_residents(edited_plan(PLAN, second), machine(), sampled(0, SIZE))) == []


@pytest.mark.parametrize(
    ("first", "highest", "now", "expected"),
    [
        (0, SIZE, SIZE, "kept"),
        (0, SIZE, SIZE // 2, "kept"),
        (0, SIZE, SIZE // 10, "gone"),
        (4 * SIZE, 5 * SIZE, 4 * SIZE, "gone"),
        (4 * SIZE, 5 * SIZE, 5 * SIZE, "kept"),
        (SIZE // 20, SIZE // 20, SIZE // 20, "gone"),
        (SIZE, SIZE, SIZE, "unknown"),
        (None, SIZE, SIZE, "unknown"),
        (0, SIZE, None, "unknown"),
    ],
)
def test_staging_that_went(first: int | None, highest: int | None, now: int | None, expected: str) -> None:
    (reclaimed,) = staging_gone(PLAN, sampled(first), sampled(highest), sampled(now))
    ratio = reclaimed.ratio.value
    assert reclaimed.materialization_id == STAGE
    if expected == "unknown":
        assert ratio is None
        assert reclaimed.ratio.detail
    else:
        assert isinstance(ratio, float)
        assert (ratio >= PLAN.host_give_back_ratio) is (expected == "gone")
    found = findings(reclaimed)
    assert (("memory.not-reclaimed", "error", f"{STAGE} after-release") in found) is (expected == "kept")
