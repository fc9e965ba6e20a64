"""Import of published R1 results: what a document says, what it does not say, and what the judge makes of both."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from ledger.bodies import (
    Body,
    DecodeRan,
    EnvironmentObserved,
    MaterializationObserved,
    MaterializationReleased,
    MemorySampled,
    PlanAccepted,
    ReclamationObserved,
    ReferenceBound,
    RunOpened,
    SourceWatched,
)
from ledger.documents import Finding
from ledger.errors import TallyError
from ledger.fold import fold
from ledger.importers import ImportedRun, import_r1_result
from ledger.measurement import Measurement
from ledger.plan import Plan, parse_plan
from ledger.reconcile import Judgement, judge
from tests.builders.damage import damaged
from tests.builders.r1_results import (
    BASELINE,
    BUFFERS,
    CACHE,
    IDLE_ANON_KIB,
    IDLE_FILE_KIB,
    STAGE,
    STAGED_KIB,
    WEIGHTS,
    Document,
    checkpoint,
    r1_bytes,
    r1_document,
    r1_plan,
)
from tests.builders.runs import MIB, measurement_paths, run_events, small_plan

REFERENCE = Path(__file__).parents[2] / ".." / "shared" / "reference"
PLAN = r1_plan()

Edit = Callable[[Document], Any]


def imported(edit: Edit | None = None, plan: Plan = PLAN) -> ImportedRun:
    return import_r1_result(r1_bytes(edit, plan), plan)


def judged(run: ImportedRun, plan: Plan = PLAN) -> Judgement:
    elapsed: list[int | None] = [None] * len(run.bodies)
    return judge(plan, fold(run_events(run.bodies, plan, frozen=False, elapsed=elapsed)))


def codes(judgement: Judgement, *severities: str) -> set[str]:
    return {item.code for item in judgement.findings if item.severity in severities}


def materialization(name: str, **fields: Any) -> Edit:
    def edit(document: Document) -> None:
        for item in document["observed"]["materializations"]:
            if item["materialization_id"] == name:
                item.update(fields)

    return edit


def at(*path: Any, **fields: Any) -> Edit:
    """Update the object at that path of the document."""

    def edit(document: Any) -> None:
        for key in path:
            document = document[key]
        document.update(fields)

    return edit


def lacking(*path: Any) -> Edit:
    """Take out what is at that path."""

    def edit(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return edit


def kept_in_shared_memory(document: Document) -> None:
    """Staging in shared memory that stays after the release, as in the published run."""
    for index, point in enumerate(document["observed"]["process_checkpoints"]):
        process = point["process"]
        process["RssAnon_kib"] = IDLE_ANON_KIB
        process["RssShmem_kib"] = STAGED_KIB if index else 0


# --- a faithful document ------------------------------------------------------------------------------------------


def test_a_faithful_document_has_no_error_and_still_proves_little() -> None:
    judgement = judged(imported())
    assert (judgement.verdict, judgement.assurance) == ("INDETERMINATE", "declared")
    assert codes(judgement, "error") == set()
    assert codes(judgement, "unknown") == {
        "authority.not-observed",
        "decode.access-unknown",
        "decode.missing",
        "decode.not-repeatable",
        "decode.reference-missing",
        "environment.not-observed",
        "materialization.unobserved",
        "memory.device-residue-unknown",
        "memory.mirror-unknown",
        "memory.reclaim-unknown",
        "staging.owners-unknown",
    }
    assert set(judgement.assurances.values()) == {"declared"}


def test_nothing_in_an_imported_run_claims_to_have_been_looked_at() -> None:
    for body in imported().bodies:
        for path in measurement_paths(body):
            measurement: Any = body
            for part in path:
                measurement = measurement[part] if isinstance(measurement, dict) else (
                    measurement[int(part)] if isinstance(measurement, list) else getattr(measurement, part)
                )  # fmt: skip
            assert measurement.source in ("declared", "derived"), (body.TYPE, path)
            assert measurement.status in ("stated", "unavailable"), (body.TYPE, path)


def test_events_stand_in_the_order_that_the_checkpoints_fix() -> None:
    def name(body: Body) -> str:
        identity = getattr(body, "materialization_id", None) or getattr(body, "label", None) or ""
        return f"{body.TYPE} {identity} {getattr(body, 'phase', '')}".strip()

    assert [name(body) for body in imported().bodies] == [
        "run.opened",
        "environment.observed",
        "plan.accepted",
        "memory.sampled baseline",
        f"materialization.observed {STAGE}",
        "memory.sampled after_selective_host_materialization",
        "memory.sampled after_accelerator_cache_allocation",
        f"materialization.observed {WEIGHTS}",
        f"materialization.observed {BUFFERS}",
        f"materialization.observed {CACHE}",
        f"materialization.observed {BASELINE}",
        f"memory.sampled before-release:{STAGE}",
        f"release.authorized {STAGE}",
        f"materialization.released {STAGE}",
        f"memory.sampled after-release:{STAGE}",
        f"reclamation.observed {STAGE} after-release",
        f"authority.established {CACHE}",
        "execution.activated",
        "reference.bound",
        "decode.ran  prefill",
        *["decode.ran  repetition"] * 4,
        "memory.sampled after-decode",
        f"reclamation.observed {STAGE} after-decode",
        "source.watched",
        "memory.sampled closing",
        "run.closed",
    ]


def sampled(run: ImportedRun) -> dict[str, MemorySampled]:
    return {body.label: body for body in run.bodies if isinstance(body, MemorySampled)}


def one(run: ImportedRun, kind: type[Any], **fields: Any) -> Any:
    (found,) = [
        body
        for body in run.bodies
        if isinstance(body, kind) and all(getattr(body, name) == value for name, value in fields.items())
    ]
    return found


def test_every_process_checkpoint_is_kept_with_its_own_label_in_bytes() -> None:
    document = r1_document(PLAN)
    samples = sampled(imported())
    by_document = {
        str(body.host["document_label"].value): body for body in samples.values() if "document_label" in body.host
    }
    assert list(by_document) == [point["label"] for point in document["observed"]["process_checkpoints"]]
    baseline = samples["baseline"].process
    assert baseline["rss_anon"].value == IDLE_ANON_KIB * 1024
    assert baseline["rss_file"].value == IDLE_FILE_KIB * 1024
    assert baseline["tree_sum"].value == IDLE_ANON_KIB * 1024
    staged = samples[f"before-release:{STAGE}"]
    assert staged.process["rss_anon"].value == (IDLE_ANON_KIB + STAGED_KIB) * 1024
    assert staged.cuda["cuda:0.allocated"].value == 272 * MIB + 256
    assert staged.cuda["role.other.snapshot"].value == 8 * MIB
    assert staged.host["vmstat.pgfault"].value == 5
    assert staged.census is not None
    assert staged.census.evidence_host_by_role["reference"].value == 4096


def test_what_is_bound_to_what_is_the_documents_word() -> None:
    run = imported()
    assert one(run, PlanAccepted).bindings == {
        "gpu0": "cuda:0",
        "gpu0.vram": "cuda:0.vram",
        "node-a.ram": "node-a.ram",
    }
    tensors = {
        body.materialization_id: body.tensors.value for body in run.bodies if isinstance(body, MaterializationObserved)
    }
    assert tensors == {STAGE: 12, WEIGHTS: None, BUFFERS: None, CACHE: None, BASELINE: None}
    assert one(imported(lacking("correctness", "prefill")), ReferenceBound).digest.known is False
    assert sampled(run)["baseline"].process["ru_maxrss"].value == (IDLE_ANON_KIB + IDLE_FILE_KIB) * 1024


def test_give_back_is_worked_out_from_the_checkpoints_around_the_release() -> None:
    run = imported()
    for phase in ("after-release", "after-decode"):
        reclaimed = one(run, ReclamationObserved, phase=phase)
        assert reclaimed.tree_before.value - reclaimed.tree_after.value == STAGED_KIB * 1024
        assert reclaimed.ratio.value == 1.0
        assert reclaimed.ratio.source == "derived"
        assert not reclaimed.region_mapped.known
    assert not one(run, ReclamationObserved, phase="after-release").owners_alive.known
    assert one(run, ReclamationObserved, phase="after-decode").owners_alive.value == 0
    assert one(run, ReclamationObserved, phase="after-decode").owners_total.value == 12


def test_provenance_and_memory_report_are_kept() -> None:
    data = r1_bytes()
    run = import_r1_result(data, PLAN)
    opened = one(run, RunOpened)
    assert opened.purpose == "import"
    assert opened.provenance == {
        "document_schema": "inferswarm.r1.frozen-plan-realization/1",
        "document_digest": "sha256:" + hashlib.sha256(data).hexdigest(),
        "document_status": "R1_FROZEN_PLAN_REALIZATION_PASS",
        "base": "0123abc",
        "issue": "https://example.org/1",
        "scope.proves": "one plan",
    }
    assert opened.plan.computed_digest == PLAN.computed_digest
    assert opened.hostname.value == "lab"
    assert run.blob_digest == opened.provenance["document_digest"]
    assert run.document == json.loads(data)
    report = sampled(run)["closing"]
    assert report.host["persistent_required_bytes"].value == 272 * MIB + 256
    assert report.host["transient_upper_bound_status"].value == "CALCULATED"
    assert report.census is not None
    assert report.census.evidence_host_by_role["reference"].value == 4096
    assert judged(run).accounting.evidence_host_by_role["reference"].value == 4096


def test_provenance_cannot_pass_for_the_importers_own() -> None:
    run = imported(at("provenance", document_digest="sha256:other", count=3, list=["a"]))
    opened = one(run, RunOpened)
    assert opened.provenance["document_digest"] == run.blob_digest
    assert (opened.provenance["count"], opened.provenance["list"]) == ("3", '["a"]')


def test_a_deviation_too_large_to_record_is_failed_and_not_dropped() -> None:
    run = imported(at("correctness", "prefill", "output", max_relative_deviation=1e300))
    figure = one(run, DecodeRan, phase="prefill").output.max_relative
    assert (figure.value, figure.status) == (None, "failed")
    assert "decode.non-finite" in codes(judged(run), "error", "unknown")


def test_the_machine_is_known_by_its_device_name_where_one_gpu_is_named() -> None:
    environment = one(imported(), EnvironmentObserved)
    assert [unit.key for unit in environment.compute_units] == ["cuda:0"]
    assert environment.compute_units[0].memory_resources == ["cuda:0.vram"]
    assert {resource.key for resource in environment.memory_resources} == {"node-a.ram", "cuda:0.vram"}


# --- judged by what is in it --------------------------------------------------------------------------------------

LIES: list[tuple[str, Edit, set[str]]] = [
    ("staging still live", materialization(STAGE, lifecycle_state="live"), {"staging.not-released"}),
    ("resident released", materialization(WEIGHTS, lifecycle_state="released"), {"materialization.not-live"}),
    ("fewer bytes", materialization(WEIGHTS, observed_bytes=1), {"materialization.bytes-mismatch"}),
    ("another resource", materialization(WEIGHTS, actual_memory_resource_id="node-a.ram"), {
        "materialization.resource-mismatch"}),
    ("another form", materialization(CACHE, actual_representation="other"), {
        "materialization.representation-mismatch"}),
    ("another unit", materialization(BUFFERS, logical_state_id="state.weights"), {"materialization.state-mismatch"}),
    ("another persistence", materialization(BASELINE, persistence="transient"), {
        "materialization.persistence-mismatch"}),
    ("another role", materialization(BASELINE, intended_role="optional_cache"), {"materialization.role-mismatch"}),
    ("a materialization missing", lacking("observed", "materializations", 4), {"materialization.missing"}),
    ("one that nobody planned", lambda document: document["observed"]["materializations"].append(
        document["observed"]["materializations"][1] | {"materialization_id": "mat.copy"}
    ), {"materialization.unplanned", "memory.unplanned-persistent"}),
    ("some staging left", materialization(STAGE, observed_bytes_after_release=5), {"staging.bytes-after-nonzero"}),
    ("staging smaller than planned", materialization(STAGE, observed_bytes_before_release=5), {
        "staging.bytes-before-mismatch", "staging.released-bytes-mismatch"}),
    ("released for the wrong sake", materialization(STAGE, release_qualifying_materialization_ids=[CACHE]), {
        "staging.release-unqualified"}),
    ("released for its own sake", materialization(STAGE, release_qualifying_materialization_ids=[STAGE]), {
        "staging.release-unqualified"}),
    ("released without a reason", materialization(STAGE, release_qualifying_materialization_ids=None), {
        "staging.release-unqualified"}),
    ("live staging tensors", at("correctness", dead_staging_tensor_count=11), {"staging.owner-alive"}),
    ("memory kept", kept_in_shared_memory, {"memory.not-reclaimed"}),
    ("no authority", at("observed", authorities=[]), {"authority.missing"}),
    ("another lineage", at("observed", "authorities", 0, lineage="other"), {"authority.lineage-mismatch"}),
    ("two authorities", lambda document: document["observed"]["authorities"].append(
        dict(document["observed"]["authorities"][0])
    ), {"authority.duplicate"}),
    ("owned by another", at("observed", "authorities", 0, materialization_id=BASELINE), {
        "authority.materialization-mismatch"}),
    ("never active", at("observed", "execution", 0, status="PLANNED"), {"execution.not-activated"}),
    ("on another unit", at("observed", "execution", 0, compute_unit_id="gpu1"), {"execution.unit-mismatch"}),
    ("another strategy", at("observed", "execution", 0, strategy_unit="other"), {"execution.unit-mismatch"}),
    ("one more execution", lambda document: document["observed"]["execution"].append(
        document["observed"]["execution"][0] | {"execution_id": "exec.other"}
    ), {"execution.unplanned"}),
    ("another GPU", at("resources", "physical", gpu_uuid="GPU-other"), {"environment.unit-mismatch"}),
    ("a smaller GPU", at("resources", "physical", gpu_total_memory_bytes=MIB), {"environment.capacity-exceeded"}),
    ("another model", at("resources", model_repository="other/model"), {"environment.model-mismatch"}),
    ("another revision", at("resources", model_revision="f" * 40), {"environment.model-mismatch"}),
    ("not valid", at("validation", passed=False), {"plan.rejected"}),
    ("deviation", at("correctness", "decode_runs", 2, "output", exact_equality=False, max_absolute_deviation=0.5), {
        "decode.deviation"}),
    ("deviation of prefill", at("correctness", "prefill", "input", exact_equality=False), {"decode.deviation"}),
    ("equal, but not", at("correctness", "prefill", "input", max_absolute_deviation=0.1), {"decode.deviation"}),
    ("not a number", at("correctness", "decode_runs", 0, "output", nan_count=1), {"decode.non-finite"}),
    ("no prefill", lacking("correctness", "prefill"), {"decode.missing"}),
    ("a repetition less", lacking("correctness", "decode_runs", 3), {"decode.missing"}),
    ("the plan consulted", at("backend_execution", hot_path_plan_lookups=3), {"decode.plan-consulted"}),
    ("the source read", at("correctness", resident_source_access_attempts=1), {"decode.source-accessed"}),
    ("a loader called", at("correctness", "post_release_loader_sentinels", whole_shard_loader_calls=2), {
        "decode.source-accessed"}),
    ("unplanned bytes reported", at("memory", unplanned_persistent_bytes=MIB), {"memory.unplanned-persistent"}),
    ("a mirror reported", at("memory", unexplained_persistent_host_mirror_bytes=MIB), {"memory.host-mirror"}),
    ("staging reported after decode", at("memory", host_staging_bytes_after_repeated_execution=MIB), {
        "staging.owner-alive"}),
    ("a bank in the last checkpoint", at(
        "observed", "process_checkpoints", 5, host_expert_source_bank_bytes=MIB
    ), {"staging.owner-alive"}),
    ("a device role that nobody planned", at(
        "observed", "process_checkpoints", 5, other_deliberate_gpu_bytes_by_role={"snapshot": 8 * MIB, "more": MIB}
    ), {"memory.unplanned-persistent"}),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), [case[1:] for case in LIES], ids=[case[0] for case in LIES])
def test_what_the_document_says_against_the_plan_is_found(edit: Edit, expected: set[str]) -> None:
    judgement = judged(imported(edit))
    assert judgement.verdict == "FAIL"
    assert codes(judgement, "error") >= expected


def test_its_own_judgement_is_not_read() -> None:
    def boastful(document: Document) -> None:
        document.update(passed=True, status="PASS", reconciliation={"passed": True, "mismatches": []})
        document["correctness"]["passed"] = True

    def modest(document: Document) -> None:
        document.update(passed=False, status="FAIL", reconciliation={"passed": False, "mismatches": ["all"]})
        document["correctness"]["passed"] = False
        for run in document["correctness"]["decode_runs"]:
            run["passed"] = run["input"]["passed"] = run["output"]["passed"] = False

    assert judged(imported(boastful)).findings == judged(imported(modest)).findings
    for edit in (boastful, modest):
        lying = judged(imported(lambda document, edit=edit: (edit(document), kept_in_shared_memory(document))))
        assert lying.verdict == "FAIL"


def findings(judgement: Judgement, code: str) -> list[Finding]:
    return [item for item in judgement.findings if item.code == code]


def test_pages_that_no_role_explains_are_reported() -> None:
    def edit(document: Document) -> None:
        last = document["observed"]["process_checkpoints"][-1]
        last["process"]["RssAnon_kib"] += 200 * 1024
        last["cuda_allocated_bytes"] += 100 * MIB

    judgement = judged(imported(edit))
    (device,) = [
        item for item in findings(judgement, "memory.device-residue-unknown") if "after-decode" in item.subject
    ]
    assert device.observed["unexplained"] == 100 * MIB
    (host,) = [item for item in findings(judgement, "memory.mirror-unknown") if "growth" in item.subject]
    assert host.observed["unexplained"] == 200 * MIB - 4096


# --- what the document does not say -------------------------------------------------------------------------------

SILENCES: list[tuple[Any, ...]] = [
    ("validation",),
    ("resources",),
    ("resources", "physical"),
    ("resources", "resources"),
    ("resources", "device"),
    ("observed",),
    ("observed", "materializations"),
    ("observed", "authorities"),
    ("observed", "execution"),
    ("observed", "process_checkpoints"),
    ("observed", "process_checkpoints", 0),
    ("observed", "process_checkpoints", 3),
    ("observed", "process_checkpoints", 4),
    ("observed", "process_checkpoints", 5),
    ("observed", "process_checkpoints", 4, "process"),
    ("observed", "process_checkpoints", 4, "process", "RssShmem_kib"),
    ("observed", "process_checkpoints", 5, "cuda_allocated_bytes"),
    ("observed", "process_checkpoints", 5, "label"),
    ("observed", "materializations", 1, "observed_bytes"),
    ("observed", "materializations", 1, "lifecycle_state"),
    ("observed", "materializations", 1, "actual_representation"),
    ("observed", "materializations", 1, "logical_state_id"),
    ("observed", "materializations", 0, "observed_bytes_after_release"),
    ("observed", "materializations", 0, "observed_bytes_before_release"),
    ("observed", "authorities", 0, "lineage"),
    ("observed", "execution", 0, "compute_unit_id"),
    ("correctness",),
    ("correctness", "prefill", "input"),
    ("correctness", "prefill", "output", "nan_count"),
    ("correctness", "decode_runs", 1, "output", "exact_equality"),
    ("correctness", "decode_runs", 1, "repetition"),
    ("correctness", "staging_tensor_count"),
    ("correctness", "dead_staging_tensor_count"),
    ("correctness", "resident_source_access_attempts"),
    ("backend_execution",),
    ("memory",),
    ("memory", "unplanned_persistent_bytes"),
    ("provenance",),
    ("scope",),
    ("status",),
    ("plan", "file_sha256"),
    ("plan", "digest"),
]


@pytest.mark.parametrize(
    ("path", "null"),
    [(path, null) for path in SILENCES for null in (False, True) if not (null and isinstance(path[-1], int))],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "null" if value else "absent",
)
def test_a_part_that_is_missing_is_never_taken_for_good(path: tuple[Any, ...], null: bool) -> None:
    edit = at(*path[:-1], **{path[-1]: None}) if null else lacking(*path)
    faithful, judgement = judged(imported()), judged(imported(edit))
    assert judgement.verdict != "PASS"
    assert codes(judgement, "error", "unknown") >= codes(faithful, "error", "unknown") - {
        "authority.not-observed",  # of no authority, nothing can be unobserved
        "materialization.unobserved",
        "staging.owners-unknown",
        "memory.reclaim-unknown",
        "decode.not-repeatable",
    }


@pytest.mark.parametrize(
    ("edit", "kind", "fields", "figure"),
    [
        (lacking("observed", "materializations", 1, "observed_bytes"), MaterializationObserved, {
            "materialization_id": WEIGHTS}, "bytes"),
        (lacking("observed", "materializations", 1, "lifecycle_state"), MaterializationObserved, {
            "materialization_id": WEIGHTS}, "live"),
        (materialization(WEIGHTS, lifecycle_state="vanished"), MaterializationObserved, {
            "materialization_id": WEIGHTS}, "live"),
        (lacking("observed", "materializations", 0, "observed_bytes_after_release"), MaterializationReleased, {}, "bytes_after"),
        (lacking("observed", "process_checkpoints", 4, "process", "RssShmem_kib"), ReclamationObserved, {
            "phase": "after-release"}, "tree_after"),
        (lacking("observed", "process_checkpoints", 4, "process", "RssAnon_kib"), ReclamationObserved, {
            "phase": "after-release"}, "ratio"),
        (lacking("observed", "process_checkpoints", 4), ReclamationObserved, {"phase": "after-release"}, "ratio"),
        (lacking("observed", "process_checkpoints", 5), ReclamationObserved, {"phase": "after-decode"}, "ratio"),
        (materialization(STAGE, observed_bytes_before_release=None), ReclamationObserved, {
            "phase": "after-release"}, "ratio"),
        (lacking("correctness", "dead_staging_tensor_count"), ReclamationObserved, {
            "phase": "after-decode"}, "owners_alive"),
        (lacking("backend_execution"), DecodeRan, {"phase": "prefill"}, "plan_lookups"),
        (lambda document: document, SourceWatched, {}, "armed"),
    ],
)  # fmt: skip
def test_what_is_not_said_is_unavailable_and_not_zero(
    edit: Edit, kind: type[Body], fields: dict[str, Any], figure: str
) -> None:
    measurement: Measurement = getattr(one(imported(edit), kind, **fields), figure)
    assert (measurement.value, measurement.status) == (None, "unavailable")
    assert measurement.detail


def test_the_smallest_document_is_a_run_of_which_nothing_is_known() -> None:
    data = json.dumps(
        {"schema": "inferswarm.r1.frozen-plan-realization/1", "plan": {"digest": PLAN.computed_digest}}
    ).encode()
    run = import_r1_result(data, PLAN)
    assert [body.TYPE for body in run.bodies] == ["run.opened", "run.closed"]
    judgement = judged(run)
    assert judgement.verdict == "FAIL"
    assert {"materialization.missing", "authority.missing", "decode.missing"} <= codes(judgement, "error")


# --- checkpoints of other runners ---------------------------------------------------------------------------------


def test_labels_of_another_runner_are_kept_and_say_nothing_of_the_release() -> None:
    def edit(document: Document) -> None:
        for index, point in enumerate(document["observed"]["process_checkpoints"]):
            point["label"] = f"point-{index}"

    run = imported(edit)
    assert [label for label in sampled(run) if label.startswith("point")] == [f"point-{index}" for index in range(6)]
    assert not one(run, ReclamationObserved, phase="after-release").ratio.known


def test_a_checkpoint_between_known_ones_stays_between_them() -> None:
    def edit(document: Document) -> None:
        document["observed"]["process_checkpoints"].insert(4, checkpoint("pause", anon=STAGED_KIB, device=256))

    labels = list(sampled(imported(edit)))
    assert labels[3:6] == ["after_complete_accelerator_population", f"before-release:{STAGE}", f"after-release:{STAGE}"]


def test_several_stagings_share_the_drop_between_the_checkpoints() -> None:
    def edit(document: Document) -> None:
        items = document["observed"]["materializations"]
        items.append(copy.deepcopy(items[0]) | {"materialization_id": "mat.second.stage"})

    reclaimed = one(imported(edit), ReclamationObserved, phase="after-release", materialization_id=STAGE)
    assert reclaimed.ratio.value == 0.5
    assert not one(
        imported(edit), ReclamationObserved, phase="after-decode", materialization_id=STAGE
    ).owners_alive.known


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[]", "no JSON object with a `schema`"),
        (b"{}", "no JSON object with a `schema`"),
        (b'{"schema":"inferswarm.r1.frozen-plan/1"}', "expected 'inferswarm.r1.frozen-plan-realization/1'"),
        (b'{"schema":"inferswarm.r1.frozen-plan-realization/2"}', "expected 'inferswarm.r1.frozen-plan-realization/1'"),
        (b'{"schema":7}', "expected 'inferswarm.r1.frozen-plan-realization/1'"),
        (b'{"schema":"inferswarm.r1.frozen-plan-realization/1"}', "does not say which plan"),
        (b'{"schema":"inferswarm.r1.frozen-plan-realization/1","schema":""}', "occurs twice"),
        (b'{"schema":"inferswarm.r1.frozen-plan-realization/1","memory":{"a":1e999}}', "too large"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(TallyError) as caught:
        import_r1_result(data, PLAN)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (at("plan", digest="sha256:" + "00" * 32), "realised another plan"),
        (at("validation", digest="sha256:" + "00" * 32), "realised another plan"),
        (at("plan", file_sha256="00" * 32), "another file of this plan"),
        (at("observed", materializations={}), "observed.materializations"),
        (materialization(WEIGHTS, observed_bytes="many"), "observed_bytes"),
        (materialization(WEIGHTS, observed_bytes=1.5), "observed_bytes"),
        (materialization(WEIGHTS, observed_bytes=True), "observed_bytes"),
        (materialization(WEIGHTS, materialization_id=None), "materialization_id"),
        (at("observed", "process_checkpoints", 2, process=[]), "observed.process_checkpoints.2.process"),
        (at("observed", "process_checkpoints", 2, "process", VmRSS_kib="1 kB"), "VmRSS_kib"),
        (at("correctness", "prefill", "input", exact_equality="yes"), "correctness.prefill.input.exact_equality"),
        (at("correctness", decode_runs=4), "correctness.decode_runs"),
        (at("resources", "resources", nodes=[{}]), "resources.resources.nodes"),
        (lambda document: document.update(memory=[]), "memory"),
        (at("validation", required_bytes_by_memory={"gpu0.vram": 2**53}), "required_bytes_by_memory.gpu0.vram"),
        (at("memory", persistent_required_bytes=-(2**60)), "memory.persistent_required_bytes"),
    ],
)  # fmt: skip
def test_another_plan_or_a_part_of_the_wrong_form_is_refused_in_one_line(edit: Edit, message: str) -> None:
    with pytest.raises(TallyError) as caught:
        imported(edit)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_plan_given_must_be_the_plan_named() -> None:
    with pytest.raises(TallyError, match="realised another plan"):
        import_r1_result(r1_bytes(), small_plan())


@settings(max_examples=150, deadline=None)
@given(damaged(r1_document(PLAN)))
def test_a_damaged_document_is_refused_in_one_line_or_judged_and_never_passes(document: Document) -> None:
    refusal, verdict = "", ""
    try:
        run = import_r1_result(json.dumps(document).encode(), PLAN)
    except TallyError as error:
        refusal = str(error)
    else:
        verdict = judged(run).verdict
    assert "\n" not in refusal
    assert bool(refusal) != (verdict in ("FAIL", "INDETERMINATE"))


# --- the published run --------------------------------------------------------------------------------------------


@pytest.fixture
def published() -> tuple[ImportedRun, Plan]:
    if not (REFERENCE / "r1-result.json").is_file():
        pytest.skip("the published R1 plan and result are not beside this checkout")
    plan = parse_plan((REFERENCE / "r1-frozen-plan.json").read_bytes())
    return import_r1_result((REFERENCE / "r1-result.json").read_bytes(), plan), plan


def test_the_published_run_is_bound_to_the_published_plan(published: tuple[ImportedRun, Plan]) -> None:
    run, plan = published
    assert plan.frozen
    assert plan.blob_digest == "sha256:11bebfc891d078eafafeddc78a36bc7aba3943b97a849e02a72a480e55115062"
    assert run.blob_digest == "sha256:e7d04bbafb9a26178690a589c65301a4e8918e880e61bd11a56a5d6b07cb484e"
    assert one(run, RunOpened).plan.claimed_digest == plan.computed_digest == run.document["plan"]["digest"]


def test_the_published_run_fails_for_what_its_review_missed(published: tuple[ImportedRun, Plan]) -> None:
    run, plan = published
    judgement = judged(run, plan)
    assert (judgement.verdict, judgement.assurance) == ("FAIL", "declared")
    assert codes(judgement, "error") == {"memory.not-reclaimed"}
    assert not [code for code in judgement.codes if code.endswith("-mismatch")]
    assert codes(judgement, "unknown") >= {
        "authority.not-observed",
        "environment.not-observed",
        "memory.device-residue-unknown",
        "memory.mirror-unknown",
    }


def test_the_published_run_kept_its_shared_pages(published: tuple[ImportedRun, Plan]) -> None:
    run, plan = published
    kept = 9_519_620 * 1024
    for phase in ("after-release", "after-decode"):
        reclaimed = one(run, ReclamationObserved, phase=phase)
        assert reclaimed.classes_before["rss_shmem"].value == reclaimed.classes_after["rss_shmem"].value == kept
    samples = sampled(run)
    assert len(samples) == 7
    assert all(
        sample.process["rss_shmem"].value == kept
        for label, sample in samples.items()
        if label not in ("baseline", "closing")
    )
    found = findings(judged(run, plan), "memory.not-reclaimed")
    assert {item.subject for item in found} == {
        "mat.routed.ram-stage after-release",
        "mat.routed.ram-stage after-decode",
    }
    assert all(item.observed["rss_shmem"] == {"before": kept, "after": kept} for item in found)


def test_the_published_run_has_residues_beyond_its_accounted_roles(published: tuple[ImportedRun, Plan]) -> None:
    run, plan = published
    judgement = judged(run, plan)
    (device,) = [
        item for item in findings(judgement, "memory.device-residue-unknown") if "after-decode" in item.subject
    ]
    assert device.observed["explained"] == 10_391_381_656
    assert device.observed["unexplained"] == 10_468_338_688 - 10_391_381_656
    (host,) = [item for item in findings(judgement, "memory.mirror-unknown") if "growth" in item.subject]
    assert host.observed["explained"] == 327_680
    anonymous = (1_214_228 - 334_376) * 1024
    shared = (9_519_620 - 8_192) * 1024
    assert host.observed["grown"] == anonymous + shared
    assert (host.observed["rss_anon"], host.observed["rss_shmem"]) == (anonymous, shared)
    assert anonymous - 327_680 > plan.host_noise_bytes
    assert judgement.accounting.persistent_required.value == 10_391_381_656
    assert judgement.accounting.persistent_required.source == "declared"


def test_the_published_file_changed_by_one_figure_is_found(published: tuple[ImportedRun, Plan]) -> None:
    run, plan = published
    document = copy.deepcopy(run.document)
    document["observed"]["materializations"][2]["observed_bytes"] -= 1
    judgement = judged(import_r1_result(json.dumps(document).encode(), plan), plan)
    assert "materialization.bytes-mismatch" in codes(judgement, "error")
