"""Comparison of two runs: the same run is the same, and each kind of planted difference is found where it was planted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ledger.bodies import (
    AddressRange,
    AuthorityEstablished,
    Body,
    DecodeRan,
    EnvironmentObserved,
    ExecutionActivated,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationSkipped,
    MemorySampled,
    ReclamationObserved,
    ReferenceBound,
    ReleaseAuthorized,
    RunClosed,
    RunOpened,
    RunSuperseded,
    SourceAccessed,
    SourceWatched,
)
from ledger.compare import ComparedRun, compare, render_markdown
from ledger.documents import ComparisonDocument
from ledger.fold import fold
from ledger.measurement import claimed, measured, stated, unavailable
from ledger.plan import Plan
from ledger.reconcile import judge
from tests.builders.runs import (
    MIB,
    TOKENS,
    changed,
    clean_bodies,
    count,
    edited_plan,
    flag,
    gpu_plan,
    inserted,
    measurement_paths,
    moved,
    run_events,
    size,
    small_plan,
    text,
    with_values,
    without,
)

STAGE, RESIDENT, CACHE = "mat.weights.stage", "mat.weights.resident", "mat.kv-cache"
OTHER_RUN = "01920000-0000-7000-8000-000000000002"
UNKNOWN = unavailable("bytes", "smaps", "no such file")

Edit = Callable[[list[Body]], list[Body]]


def compared(bodies: list[Body], plan: Plan, **options: Any) -> ComparedRun:
    state = fold(run_events(bodies, plan, **options))
    return ComparedRun(plan, state, judge(plan, state))


def against_clean(edit: Edit, plan: Plan | None = None) -> ComparisonDocument:
    plan = plan or small_plan()
    clean = clean_bodies(plan)
    return compare(compared(clean, plan), compared(edit(clean), plan, run_id=OTHER_RUN))


def paths(comparison: ComparisonDocument, kind: str = "different") -> set[str]:
    """Paths of that kind, without what the judge made of the difference; a materialization's by its id alone."""
    judged = ("verdict", "assurance", "findings[", "accounting.")
    return {
        re.sub(r"^materializations\[(.*?)\]", r"\1", item.path)
        for item in comparison.differences
        if item.kind == kind and not item.path.startswith(judged)
    }


def set_(kind: type[Body], change: dict[str, Any], **fields: Any) -> Edit:
    return lambda bodies: changed(bodies, kind, change, **fields)


OBSERVED = {"materialization_id": RESIDENT}

PLANTED: list[tuple[str, Edit, set[str]]] = [
    # run and software
    (
        "outcome",
        set_(RunClosed, {"outcome": "failed", "error_type": "OSError", "message": "no space"}),
        {"run.outcome", "run.error"},
    ),
    ("superseded", lambda bodies: [*bodies, RunSuperseded(reason="wrong host", by=OTHER_RUN)], {"run.superseded"}),
    ("purpose", set_(RunOpened, {"purpose": "witness"}), {"run.purpose"}),
    ("provenance", set_(RunOpened, {"provenance": {"note": "x"}}), {"run.provenance[note]"}),
    ("a library's version", set_(RunOpened, {"software/versions/torch": "2.11.0"}), {"software.versions[torch]"}),
    ("source commit", set_(RunOpened, {"software.source_commit": text("ff" * 20)}), {"software.source_commit"}),
    ("uncommitted changes", set_(RunOpened, {"software.source_dirty": flag(1)}), {"software.source_dirty"}),
    ("adapter", set_(RunOpened, {"adapter.version": "9"}), {"software.adapter"}),
    ("revision", set_(RunOpened, {"model.revision": text("1" * 40)}), {"model.revision"}),
    (
        "a checkpoint file",
        set_(RunOpened, {"checkpoint_files.0.digest": text("sha256:" + "aa" * 32)}),
        {"model.files[model.safetensors].digest"},
    ),
    (
        "reference",
        set_(ReferenceBound, {"digest": text("sha256:" + "99" * 32), "provenance": {"cache": "DynamicCache"}}),
        {
            "reference.digest",
            "reference.provenance[cache]",
            "reference.provenance[attention]",
            "reference.provenance[dtype]",
            *(f"reference.provenance[{name}]" for name in TOKENS),
        },
    ),
    # environment
    (
        "processor",
        set_(EnvironmentObserved, {"compute_units.0.name": text("another")}),
        {"environment.compute_units[cpu].name"},
    ),
    (
        "capacity",
        set_(EnvironmentObserved, {"memory_resources.0.capacity_bytes": size(32 * 1024 * MIB)}),
        {"environment.memory_resources[ram].capacity_bytes"},
    ),
    (
        "capacity declared, not seen",
        set_(
            EnvironmentObserved,
            {"memory_resources.0.capacity_bytes": stated(16 * 1024 * MIB, "bytes", "doc", source="declared")},
        ),
        {"environment.memory_resources[ram].capacity_bytes.trust"},
    ),
    ("kernel", set_(EnvironmentObserved, {"facts.kernel": text("Linux 7")}), {"environment.facts[kernel]"}),
    # materializations
    (
        "one is missing",
        lambda bodies: [body for body in bodies if getattr(body, "materialization_id", "") != "mat.buffers.resident"],
        {"mat.buffers.resident"},
    ),
    (
        "one more",
        lambda bodies: inserted(
            bodies, MaterializationSkipped(materialization_id="mat.extra", reason="full"), before=RunClosed
        ),
        {"mat.extra"},
    ),
    ("bytes", set_(MaterializationObserved, {"bytes": size(256 * MIB - 1)}, **OBSERVED), {f"{RESIDENT}.bytes"}),
    ("bytes not known", set_(MaterializationObserved, {"bytes": UNKNOWN}, **OBSERVED), {
        f"{RESIDENT}.bytes", f"{RESIDENT}.bytes.trust"}),
    ("bytes claimed", set_(MaterializationRealized, {"bytes": claimed(1, "bytes", "a")}, **OBSERVED), {
        f"{RESIDENT}.claimed.bytes"}),
    ("resource", set_(MaterializationObserved, {"memory_resource_id": text("node-a.ram")}, **OBSERVED), {
        f"{RESIDENT}.memory_resource_id"}),
    ("representation", set_(MaterializationObserved, {"representation": text("other")}, **OBSERVED), {
        f"{RESIDENT}.representation"}),
    ("role", set_(MaterializationObserved, {"role": "optional_cache"}, **OBSERVED), {f"{RESIDENT}.role"}),
    ("content", set_(MaterializationObserved, {"resident_digest": text("sha256:00")}, **OBSERVED), {
        f"{RESIDENT}.resident_digest", f"{RESIDENT}.resident_digest.trust"}),
    ("not live", set_(MaterializationObserved, {"live": flag(0)}, **OBSERVED), {f"{RESIDENT}.seen_live"}),
    ("seen twice", lambda bodies: inserted(
        bodies,
        next(body for body in bodies if isinstance(body, MaterializationObserved) and body.materialization_id == CACHE),
        before=MemorySampled,
        label="closing",
    ), {f"{CACHE}.events"}),
    # release
    ("no release", lambda bodies: without(bodies, MaterializationReleased), {
        f"{STAGE}.events", f"{STAGE}.live", f"{STAGE}.release.bytes_before", f"{STAGE}.release.bytes_after",
        f"{STAGE}.release.released_bytes", f"{STAGE}.release.owners_total", f"{STAGE}.release.owners_alive",
        "order[materialization.released mat.weights.stage]"}),
    ("qualifying ids", set_(ReleaseAuthorized, {"qualifying_ids": [CACHE]}), {f"{STAGE}.release.qualifying_ids"}),
    ("bytes after", set_(MaterializationReleased, {"bytes_after": size(1)}), {f"{STAGE}.release.bytes_after"}),
    ("a live owner", set_(MaterializationReleased, {"owners_alive": count(1)}), {f"{STAGE}.release.owners_alive"}),
    ("memory kept", set_(ReclamationObserved, {"tree_after": size(900 * MIB)}, phase="after-decode"), {
        f"{STAGE}.reclamation[after-decode].given_back"}),
    ("region still mapped", set_(ReclamationObserved, {"region_mapped": flag(1)}, phase="after-release"), {
        f"{STAGE}.reclamation[after-release].region_mapped"}),
    # authority and execution
    ("lineage", set_(AuthorityEstablished, {"lineage": text("epoch-2")}), {"authorities[state.kv-cache].lineage"}),
    ("lineage not seen", set_(AuthorityEstablished, {"owner_range": None}), {"authorities[state.kv-cache].owner_seen"}),
    ("owner", set_(AuthorityEstablished, {"materialization_id": RESIDENT}), {
        "authorities[state.kv-cache].materialization_id"}),
    ("no authority", lambda bodies: without(bodies, AuthorityEstablished), {"authorit"}),
    ("compute unit", set_(ExecutionActivated, {"compute_unit_id": text("gpu7")}), {
        "executions[exec.decode].compute_unit_id"}),
    ("bound state", set_(ExecutionActivated, {"state": []}), {"executions[exec.decode].state"}),
    # decode
    ("tokens", set_(DecodeRan, {"tokens_digest": text("sha256:" + "11" * 32)}, phase="repetition"), {
        "decode[exec.decode].tokens"}),
    ("output of one repetition", set_(DecodeRan, {"output_digest": text("sha256:" + "12" * 32)}, repetition=2), {
        "decode[exec.decode].outputs"}),
    ("deviation", set_(DecodeRan, {"output.max_absolute": measured(1e-3, None, "m")}, repetition=1), {
        "decode[exec.decode].output.max_absolute"}),
    ("not a number", set_(DecodeRan, {"input.nan_count": count(3)}, phase="prefill"), {
        "decode[exec.decode].input.nan_count"}),
    ("a repetition less", lambda bodies: without(bodies, DecodeRan, repetition=3), {
        "decode[exec.decode].repetitions", "decode[exec.decode].numbered"}),
    ("mode", set_(DecodeRan, {"mode": "cuda-graph"}, repetition=0), {"decode[exec.decode].modes"}),
    ("plan consulted", set_(DecodeRan, {"plan_lookups": count(1)}, repetition=0), {"decode[exec.decode].plan_lookups"}),
    # source
    ("checkpoint read", lambda bodies: inserted(
        bodies,
        SourceAccessed(
            path=text("a"), access="open", attributed_to="tree", pid=count(1), count=count(1), means="inotify"
        ),
        before=SourceWatched,
    ), {"source.accesses[tree]", "order[source.accessed tree]"}),
    ("another process read it", set_(SourceWatched, {"other_accesses": count(2)}), {"source.seen_by_others"}),
    ("watch not armed", set_(SourceWatched, {"armed": flag(0)}), {"source.armed"}),
    # memory
    ("host peak", set_(MemorySampled, {"process/vm_hwm": size(4096 * MIB)}, label="after-decode"), {
        "memory.peaks[process/vm_hwm]", "memory.samples[after-decode].process[vm_hwm]"}),
    ("anonymous memory not known", set_(MemorySampled, {"process/rss_anon": UNKNOWN}, label="closing"), {
        "memory.samples[closing].process[rss_anon]"}),
    ("unowned storage", set_(MemorySampled, {"census.unowned_host_bytes": size(256 * MIB)}, label="closing"), {
        "memory.samples[closing].unowned_host_bytes"}),
    ("a mapped file", set_(MemorySampled, {"mapped_files": ["/model.safetensors"]}, label="closing"), {
        "memory.samples[closing].mapped_files"}),
    ("a sample missing", lambda bodies: without(bodies, MemorySampled, label="closing"), {"closing"}),
    # order
    ("authority before activation", lambda bodies: moved(bodies, ExecutionActivated, before=AuthorityEstablished), {
        "order"}),
    ("release after decode", lambda bodies: moved(
        bodies, MaterializationReleased, before=MemorySampled, where={"label": "closing"}
    ), {"order[materialization.released mat.weights.stage]"}),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), [case[1:] for case in PLANTED], ids=[case[0] for case in PLANTED])
def test_a_planted_difference_is_found_where_it_was_planted(edit: Edit, expected: set[str]) -> None:
    comparison = against_clean(edit)
    found = paths(comparison)
    assert not comparison.same
    for path in expected:
        assert any(path in item for item in found), f"{path} not in {sorted(found)}"
    for item in found:
        assert any(path in item for path in expected), f"{item} was not planted"


@pytest.mark.parametrize("plan", [small_plan(), gpu_plan()], ids=["cpu", "gpu"])
def test_a_run_does_not_differ_from_itself(plan: Plan) -> None:
    run = compared(clean_bodies(plan), plan)
    comparison = compare(run, run)
    assert comparison.differences == []
    assert comparison.same


def test_two_runs_alike_differ_only_in_what_is_expected() -> None:
    comparison = against_clean(lambda bodies: bodies)
    assert comparison.same
    assert {item.path for item in comparison.differences} == {"run.id"}


EXPECTED: list[tuple[str, Edit, set[str]]] = [
    ("host, user, process", set_(RunOpened, {"pid": count(7), "user": text("x"), "hostname": text("y")}), {
        "run.pid", "run.user", "run.hostname"}),
    ("arguments, labels, challenge", set_(RunOpened, {
        "argv": text("tally"), "labels": {"purpose": "other", "b": "1"}, "challenge": "c"}), {
        "run.argv", "run.labels[purpose]", "run.labels[b]", "run.challenge"}),
    ("checkpoint folder", set_(RunOpened, {"model.directory": text("elsewhere")}), {"model.directory"}),
    ("free memory", set_(EnvironmentObserved, {"memory_resources.0.available_bytes": size(5)}), {
        "environment.memory_resources[ram].available_bytes"}),
    ("addresses", set_(MaterializationObserved, {
        "ranges": [AddressRange(space="host", start=4096, length=256 * MIB)]}, **OBSERVED), {
        f"{RESIDENT}.ranges"}),
    ("times", set_(MaterializationRealized, {"elapsed_ns": measured(9, "ns", "clock")}, **OBSERVED), {
        f"{RESIDENT}.elapsed_ns"}),
    ("decode times", set_(DecodeRan, {"elapsed_ns": measured(80_000_000, "ns", "clock")}, repetition=2), {
        "decode[exec.decode].slowest_ns"}),
    ("page faults", set_(MemorySampled, {"process/minor_faults": count(1)}, label="closing"), {
        "memory.samples[closing].process[minor_faults]"}),
    ("memory within the noise", set_(MemorySampled, {"process/vm_rss": size(800 * MIB)}, label="closing"), {
        "memory.samples[closing].process[vm_rss]"}),
    ("the machine's memory", set_(MemorySampled, {"host/mem_available": size(1)}, label="closing"), {
        "memory.samples[closing].host[mem_available]"}),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), [case[1:] for case in EXPECTED], ids=[case[0] for case in EXPECTED])
def test_what_is_bound_to_differ_is_kept_apart(edit: Edit, expected: set[str]) -> None:
    comparison = against_clean(edit)
    assert comparison.same
    assert paths(comparison) == set()
    assert paths(comparison, "expected") == expected | {"run.id"}


def test_how_often_other_processes_read_the_checkpoint_is_their_affair() -> None:
    def read(times: int) -> list[Body]:
        return changed(clean_bodies(plan), SourceWatched, {"other_accesses": count(times)})

    plan = small_plan()
    comparison = compare(compared(read(19), plan), compared(read(6), plan, run_id=OTHER_RUN))
    assert comparison.same
    assert {item.path for item in comparison.differences} == {
        "run.id",
        "source.other_accesses",
        "findings[decode.access-unknown checkpoint].observed",
    }


def test_a_process_is_held_against_the_one_in_its_place_whatever_its_id() -> None:
    def watched(first: int, second: int, shared: int) -> list[Body]:
        figures = {
            f"process/pid:{first}.rss_anon": size(512 * MIB),
            f"process/pid:{second}.rss_anon": size(shared),
            f"cuda/cuda:0.pid:{second}": size(512 * MIB),
        }
        return changed(clean_bodies(plan), MemorySampled, figures, label="closing")

    plan = small_plan()
    one = compared(watched(7, 12, 256 * MIB), plan)
    assert compare(one, compared(watched(9, 70, 256 * MIB), plan, run_id=OTHER_RUN)).same
    other = compare(one, compared(watched(9, 70, 512 * MIB), plan, run_id=OTHER_RUN))
    assert paths(other) == {"memory.samples[closing].process[member:2.rss_anon]"}


def closing_rss(rss: int, plan: Plan) -> ComparisonDocument:
    return against_clean(set_(MemorySampled, {"process/vm_rss": size(rss)}, label="closing"), plan)


def test_the_noise_is_the_plans() -> None:
    clean = next(
        body for body in clean_bodies(small_plan()) if isinstance(body, MemorySampled) and body.label == "closing"
    )
    rss = clean.process["vm_rss"].value
    assert isinstance(rss, int)
    noisy = small_plan(memory_expectations={"host_noise_bytes": 1000})
    for plan, noise in ((small_plan(), 64 * MIB), (noisy, 1000)):
        assert closing_rss(rss - noise, plan).same
        assert not closing_rss(rss - noise - 1, plan).same
        assert not closing_rss(rss + noise + 1, plan).same


def test_unknown_is_not_zero_and_true_is_not_one() -> None:
    zero = set_(MaterializationReleased, {"bytes_after": size(0)})
    unknown = set_(MaterializationReleased, {"bytes_after": UNKNOWN})
    assert against_clean(zero).same
    (difference,) = [item for item in against_clean(unknown).differences if item.path.endswith("release.bytes_after")]
    assert (difference.a, difference.b, difference.kind) == (0, "unknown", "different")


def test_other_plans_are_laid_side_by_side() -> None:
    one = small_plan()
    two = edited_plan(one, lambda document: document["materializations"][3].update(expected_bytes=4 * MIB))
    comparison = compare(compared(clean_bodies(one), one), compared(clean_bodies(two), two, run_id=OTHER_RUN))
    found = {item.path: (item.a, item.b) for item in comparison.differences if item.kind == "different"}
    assert found["plan.materializations[mat.kv-cache].expected_bytes"] == (8 * MIB, 4 * MIB)
    assert found["run.plan_digest"] == (one.computed_digest, two.computed_digest)
    assert found["materializations[mat.kv-cache].bytes"] == (8 * MIB, 4 * MIB)


def test_a_plan_whose_lists_are_ordered_otherwise_is_another_plan() -> None:
    one = small_plan()
    two = edited_plan(one, lambda document: document["logical_state_units"].reverse())
    comparison = compare(compared(clean_bodies(one), one), compared(clean_bodies(two), two, run_id=OTHER_RUN))
    assert paths(comparison) == {"run.plan_digest"}


def test_verdict_assurance_and_findings_are_compared() -> None:
    comparison = against_clean(lambda bodies: without(bodies, AuthorityEstablished))
    found = {item.path: (item.a, item.b) for item in comparison.differences if item.kind == "different"}
    assert found["verdict"] == ("PASS", "FAIL")
    (missing,) = [path for path in found if path.startswith("findings[authority.missing")]
    assert found[missing][0] is None
    assert found[missing][1][0]["severity"] == "error"


def test_a_moved_step_says_where_it_stood() -> None:
    comparison = against_clean(
        lambda bodies: moved(bodies, MaterializationReleased, before=MemorySampled, where={"label": "closing"})
    )
    (difference,) = [item for item in comparison.differences if item.path.startswith("order")]
    assert difference.path == "order[materialization.released mat.weights.stage]"
    assert (difference.a, difference.b) == ("after release.authorized mat.weights.stage", "after source.watched")


@pytest.mark.parametrize("edit", [case[1] for case in PLANTED], ids=[case[0] for case in PLANTED])
def test_changing_sides_changes_only_the_sides(edit: Edit) -> None:
    plan = small_plan()
    clean = clean_bodies(plan)
    one, two = compared(clean, plan), compared(edit(clean), plan, run_id=OTHER_RUN)
    there, back = compare(one, two), compare(two, one)
    assert (there.a, there.b) == (back.b, back.a)
    assert [(item.path, item.a, item.b, item.kind) for item in there.differences] == [
        (item.path, item.b, item.a, item.kind) for item in back.differences
    ]


def test_runs_without_a_plan_or_a_judgement_can_be_compared() -> None:
    plan = small_plan()
    bodies = clean_bodies(plan)
    state = fold(run_events(bodies, plan))
    bare = ComparedRun(None, state, None)
    assert compare(bare, bare).differences == []
    assert {item.path for item in compare(bare, compared(bodies, plan)).differences if item.path in ("verdict",)}
    assert compare(ComparedRun(None, fold([]), None), bare).a == ""


# --- for pull requests --------------------------------------------------------------------------------------------


def test_markdown_says_first_whether_they_differ() -> None:
    same = render_markdown(
        against_clean(set_(DecodeRan, {"elapsed_ns": measured(80_000_000, "ns", "c")}, repetition=2))
    )
    assert "**The runs are the same.**" in same
    assert "| `decode[exec.decode].slowest_ns` | 40.000 ms | 80.000 ms | 2.000 |" in same
    assert "Expected to differ, and differing in 1 place: run (1)." in same
    different = render_markdown(
        against_clean(set_(MaterializationObserved, {"role": "optional_cache"}, materialization_id=RESIDENT))
    )
    assert "**The runs differ in " in different
    assert "| `materializations[mat.weights.resident].role` | `required_residency` | `optional_cache` |" in different


HOSTILE = "a|b `tick` ``two`` <img src=x onerror=alert(1)> @someone #1 [x](http://e) \n| row |\u202e\x1b[31m"


def test_markdown_shows_hostile_text_inert() -> None:
    text_ = render_markdown(against_clean(set_(RunOpened, {"provenance": {"note": HOSTILE}})))
    (row,) = [line for line in text_.splitlines() if "run.provenance[note]" in line]
    assert "a\\|b" in row
    assert "\\n\\| row \\|\\u202e\\x1b[31m" in row
    assert "```a" in row.replace(" ", "")
    assert "\u202e" not in text_
    assert "\x1b" not in text_


def test_long_comparisons_are_cut_and_say_so() -> None:
    versions = {f"library-{number}": "1" for number in range(150)}
    text_ = render_markdown(against_clean(set_(RunOpened, {"software.versions": versions})))
    assert "more." in text_
    assert len(text_.splitlines()) < 130
    long = render_markdown(against_clean(set_(RunOpened, {"provenance": {"note": "x" * 5000}})))
    assert "(5000 characters)" in long
    assert "x" * 300 not in long


# --- nothing is left out ------------------------------------------------------------------------------------------

INCIDENTAL = {
    "run.opened": {"argv", "user", "hostname", "pid", "model.directory"},
    "environment.observed": {"memory_resources.available_bytes"},
    "materialization.realized": {"elapsed_ns"},
    "decode.ran": {"elapsed_ns", "tokens"},
    "memory.sampled": {
        *(f"process.{name}" for name in ("minor_faults", "major_faults", "swap_in", "swap_out")),
        "host.mem_available",
        "cgroup.current",
        "cgroup.others",
        "census.unowned_host_storages",
    },
    "reclamation.observed": {"system.anon_and_shmem", "ratio"},
}
"""What may become unknown without the runs being different: words of the machine, times, and what follows from others
(a ratio from the tree before and after, a token count from the tokens' digest)."""


def every_measurement() -> list[tuple[int, tuple[str, ...]]]:
    """(index of the body, path in it) of each known measurement of the clean run; of samples, the closing one's."""
    bodies = clean_bodies(small_plan())
    return [
        (index, path)
        for index, body in enumerate(bodies)
        if not isinstance(body, MemorySampled) or body.label == "closing"
        for path in measurement_paths(body)
        if value_at(body, path).known
    ]


def value_at(body: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if isinstance(body, list):
            body = body[int(part)]
        elif isinstance(body, dict):
            body = body[part]
        else:
            body = getattr(body, part)
    return body


def test_a_fact_that_becomes_unknown_makes_the_runs_different() -> None:
    plan = small_plan()
    bodies = clean_bodies(plan)
    clean = ComparedRun(plan, fold(run_events(bodies, plan)), None)
    overlooked: dict[str, set[str]] = {}
    for index, path in every_measurement():
        body = bodies[index]
        unknown = [*bodies[:index], with_values(body, {"/".join(path): UNKNOWN}), *bodies[index + 1 :]]
        if len(path) == 1:
            unknown[index] = body.model_copy(update={path[0]: UNKNOWN})
        other = ComparedRun(plan, fold(run_events(unknown, plan)), None)
        if compare(clean, other).same:
            name = ".".join(part for part in path if not part.isdigit())
            overlooked.setdefault(body.TYPE, set()).add(name)
    assert overlooked == INCIDENTAL


def test_an_event_that_is_missing_makes_the_runs_different() -> None:
    plan = small_plan()
    bodies = clean_bodies(plan)
    clean = ComparedRun(plan, fold(run_events(bodies, plan)), None)
    for index, body in enumerate(bodies[1:], start=1):
        other = ComparedRun(plan, fold(run_events(bodies[:index] + bodies[index + 1 :], plan)), None)
        assert not compare(clean, other).same, f"without {body.TYPE}"
