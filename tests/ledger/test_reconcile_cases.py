"""What the judge says of the clean run with one thing changed: a table that needs no knowledge of the code."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.events import (
    AddressRange,
    AuthorityEstablished,
    Census,
    DecodeRan,
    EnvironmentObserved,
    ExecutionActivated,
    FreezingReference,
    MaterializationFailed,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationSkipped,
    MaterializationStarted,
    MemorySampled,
    PlanAccepted,
    PlanRejectedEvent,
    ReclamationObserved,
    ReferenceBound,
    ReleaseAuthorized,
    ReleaseRefused,
    RunClosed,
    RunOpened,
    RunSuperseded,
    SourceAccessed,
    SourceWatched,
    VerdictRecorded,
    Violation,
)
from ledger.reconcile import INVARIANTS
from tests.builders.runs import (
    GIB,
    changed,
    inserted,
    materialized,
    moved,
    sample,
    small_plan,
    without,
)
from tests.ledger.cases import (
    BASELINE,
    BUFFERS,
    CACHE,
    FAILED,
    MIB,
    STAGE,
    UNKNOWN,
    WEIGHTS,
    Bodies,
    Case,
    claim,
    declared,
    default,
    judged,
    probe,
)

PASS: set[str] = set()
PLAN = small_plan()


# --- small sentences that the cases are made of ----------------------------------------------------------------------


def observed(name: str, **facts: Any):
    """The probe saw other facts of that materialization."""
    return lambda run: changed(run, MaterializationObserved, facts, materialization_id=name)


def realized(name: str, **facts: Any):
    """The adapter claimed other facts of that materialization."""
    return lambda run: changed(run, MaterializationRealized, facts, materialization_id=name)


def both(name: str, **facts: Any):
    """Everybody says the same other thing of that materialization: begun, claimed and seen so."""

    def apply(run: Bodies) -> Bodies:
        run = changed(run, MaterializationStarted, facts, materialization_id=name)
        run = changed(run, MaterializationRealized, facts, materialization_id=name)
        looked = {
            fact: probe(value) if fact in ("memory_resource_id", "representation") else value
            for fact, value in facts.items()
        }
        return changed(run, MaterializationObserved, looked, materialization_id=name)

    return apply


def released(**facts: Any):
    return lambda run: changed(run, MaterializationReleased, facts)


def reclaimed(phase: str, **facts: Any):
    return lambda run: changed(run, ReclamationObserved, facts, phase=phase)


def sampled(label: str, **facts: Any):
    """Another figure of the process tree at that sample."""
    return lambda run: changed(
        run, MemorySampled, {f"process/{key}": value for key, value in facts.items()}, label=label
    )


def at_the_end(change: dict[str, Any]):
    """Another figure after decode and at the closing sample."""

    def apply(run: Bodies) -> Bodies:
        for label in ("after-decode", "closing"):
            run = changed(run, MemorySampled, change, label=label)
        return run

    return apply


def grown(key: str, size: int):
    """The process tree holds `size` bytes more of one class at the end."""

    def apply(run: Bodies) -> Bodies:
        for label in ("after-decode", "closing"):
            index = next(i for i, body in enumerate(run) if isinstance(body, MemorySampled) and body.label == label)
            figures = run[index].process
            more = {f"process/{name}": probe(figures[name].value + size) for name in (key, "tree_sum")}
            run = changed(run, MemorySampled, more, label=label)
        return run

    return apply


def decode(change: dict[str, Any], **which: Any):
    return lambda run: changed(run, DecodeRan, change, **which)


def watch(**facts: Any):
    return lambda run: changed(run, SourceWatched, facts)


def authority(**facts: Any):
    return lambda run: changed(run, AuthorityEstablished, facts)


def activation(**facts: Any):
    return lambda run: changed(run, ExecutionActivated, facts)


def opening(**facts: Any):
    return lambda run: changed(run, RunOpened, {key.replace("__", "."): value for key, value in facts.items()})


def environment(change: dict[str, Any]):
    return lambda run: changed(run, EnvironmentObserved, change)


def chain(*steps: Any):
    """Several changes, one after another."""

    def apply(run: Bodies) -> Bodies:
        for step in steps:
            run = step(run)
        return run

    return apply


def removed(kind: type, **which: Any):
    return lambda run: without(run, kind, **which)


def added(body: Any, before: type, **where: Any):
    return lambda run: inserted(run, body, before=before, **where)


def appended(*bodies: Any):
    return lambda run: [*run, *bodies]


def part(kind: str, name: str, **values: Any):
    """Another value in the plan's list `kind` at the entry `name`."""

    def edit(document: dict[str, Any]) -> None:
        for item in document[kind]:
            if item.get("id", item.get("logical_state_id")) == name:
                item.update(values)

    return edit


def expects(**values: Any):
    return lambda document: document["memory_expectations"].update(values)


def correctness(**values: Any):
    return lambda document: document["correctness"].update(values)


def capacity(resource: str, size: int):
    def edit(document: dict[str, Any]) -> None:
        for item in document["resources"]["nodes"][0]["memory_resources"]:
            if item["id"] == resource:
                item["capacity_bytes"] = size

    return edit


def optional_cache(document: dict[str, Any]) -> None:
    """The plan also allows an optional cache of the buffers."""
    document["materializations"].append(
        {
            "id": "mat.cache",
            "logical_state_id": "state.buffers",
            "memory_resource_id": "node-a.shm",
            "representation": "buffers-cached",
            "role": "optional_cache",
            "persistence": "persistent",
            "requirement": "optional",
            "expected_bytes": 4096,
        }
    )


def shared_staging(document: dict[str, Any]) -> None:
    """Staging lies in shared memory."""
    part("materializations", STAGE, memory_resource_id="node-a.shm")(document)


def accessed(who: Any, access: Any = "open") -> SourceAccessed:
    return SourceAccessed(
        path=probe("model.safetensors"),
        access=access,
        attributed_to=who,
        pid=probe(4242),
        count=probe(1),
        means="inotify",
    )


def stranger(name: str = "mat.stranger") -> list[Any]:
    """A materialization that the plan does not have, begun, claimed and seen on shared memory."""
    like = PLAN.materializations[BUFFERS]
    bodies = materialized(PLAN, like)
    return [body.model_copy(update={"materialization_id": name}) for body in bodies]


def first_bodies(count: int):
    """The run was killed after so many events."""
    return lambda run: run[:count]


def interrupted(outcome: Any, after: int, **why: Any):
    """The run was closed as `outcome` after so many events."""
    return lambda run: [*run[:after], RunClosed(outcome=outcome, **why)]


def without_owner(census: Census | None, name: str) -> Census | None:
    if census is None:
        return None
    return census.model_copy(update={"by_owner": {key: value for key, value in census.by_owner.items() if key != name}})


def never_realised(name: str):
    """Nothing was begun, seen, sampled or bound of that materialization."""

    def apply(run: Bodies) -> Bodies:
        kept: Bodies = []
        for body in run:
            if getattr(body, "materialization_id", None) == name or getattr(body, "label", "").endswith(f":{name}"):
                continue
            if isinstance(body, MemorySampled):
                body = body.model_copy(update={"census": without_owner(body.census, name)})
            if isinstance(body, ExecutionActivated):
                body = body.model_copy(update={"state": [one for one in body.state if one.materialization_id != name]})
            kept.append(body)
        return kept

    return apply


MISSING_WHEN_UNFINISHED = {
    "authority.missing",
    "decode.access-unknown",
    "decode.missing",
    "execution.not-activated",
    "materialization.missing",
    "memory.mirror-unknown",
}


# --- the cases ----------------------------------------------------------------------------------------------------

CLEAN = [
    Case("the plan carried out exactly, on the CPU", "PASS", PASS),
    Case("the plan carried out exactly, on a GPU", "PASS", PASS, device="gpu"),
    Case(
        "tensors agree within the planned tolerance, not bit for bit",
        "PASS",
        PASS,
        plan=correctness(mode="tolerance", atol=0.01, rtol=0.01),
        run=decode({"output.exact": probe(0), "output.max_absolute": probe(0.004), "output.max_relative": probe(0.1)}),
    ),
    Case(
        "bytes within the tolerance that the plan gives an outside engine",
        "PASS",
        PASS,
        plan=part("materializations", WEIGHTS, tolerance_bytes=4096),
        run=chain(observed(WEIGHTS, bytes=probe(256 * MIB + 4096)), realized(WEIGHTS, bytes=claim(256 * MIB + 4096))),
    ),
    Case(
        "an optional cache that was skipped",
        "PASS",
        PASS,
        plan=optional_cache,
        run=chain(
            never_realised("mat.cache"),
            added(MaterializationSkipped(materialization_id="mat.cache", reason="no room"), ReleaseAuthorized),
        ),
    ),
    Case(
        "an optional cache that was realised, as the plan expects",
        "PASS",
        PASS,
        plan=lambda document: (optional_cache(document), expects(persistent_optional_bytes=4096)(document))[0],
    ),
    Case(
        "a local directory without repository name, but with the planned digests",
        "PASS",
        PASS,
        run=opening(model__repository=UNKNOWN, model__revision=UNKNOWN),
    ),
    Case(
        "source and resident digests agree",
        "PASS",
        PASS,
        run=observed(WEIGHTS, source_digest=probe("sha256:aa"), resident_digest=probe("sha256:aa")),
    ),
    Case("host memory grew by less than the noise", "PASS", PASS, run=grown("rss_anon", 40 * MIB)),
    Case(
        "device memory grew by less than may be unattributed",
        "PASS",
        PASS,
        device="gpu",
        run=at_the_end({"cuda/cuda:0.allocated": probe(312 * MIB)}),
    ),
    Case(
        "a verdict and nothing else follows the close",
        "PASS",
        PASS,
        run=appended(VerdictRecorded(judge_version="1", verdict="PASS", assurance="observed", codes=[])),
    ),
    Case("a witness that saw the same", "PASS", PASS, witness=lambda run: run),
    Case(
        "events of a later process carry no elapsed time",
        "PASS",
        PASS,
        elapsed=lambda index: None if index % 2 else index,
    ),
]


PLANS = [
    Case(
        "the plan was never sealed",
        "FAIL",
        {"plan.digest-mismatch"},
        run=opening(plan__claimed_digest=None),
    ),
    Case(
        "the plan claims a digest that is not its own",
        "FAIL",
        {"plan.digest-mismatch"},
        run=opening(plan__claimed_digest="sha256:" + "00" * 32),
    ),
    Case(
        "the run cites no freezing",
        "PASS",
        {"plan.freezing-not-recorded"},
        frozen=False,
    ),
    Case(
        "judged by another plan than the run was opened under",
        "FAIL",
        {"plan.changed"},
        recorded_under=lambda document: document.update(plan_version="another"),
    ),
    Case(
        "run.opened names no plan at all",
        "FAIL",
        {"plan.changed", "plan.frozen-late"},
        run=opening(plan=None),
    ),
    Case(
        "the machine refused the plan",
        "FAIL",
        {"plan.rejected", "decode.reference-missing", *MISSING_WHEN_UNFINISHED},
        run=lambda run: [
            *run[:2],
            PlanRejectedEvent(violations=[Violation(code="environment.unit-mismatch", subject="cpu0", message="none")]),
            RunClosed(outcome="rejected"),
        ],
        unknown={"decode.reference-missing", "materialization.missing", "authority.missing", "decode.missing"},
    ),
    Case(
        "the run cites a freezing of another plan",
        "FAIL",
        {"plan.frozen-late"},
        run=opening(frozen=FreezingReference(hash="ab" * 32, position=0, digest="sha256:" + "11" * 32, ledger_size=1)),
    ),
    Case(
        "the run cites a freezing that came after it",
        "FAIL",
        {"plan.frozen-late"},
        run=opening(frozen=FreezingReference(hash="ab" * 32, position=7, digest=PLAN.computed_digest, ledger_size=7)),
    ),
    Case(
        "the run cites a freezing without saying how long the ledger was",
        "INDETERMINATE",
        {"plan.frozen-late"},
        run=opening(frozen=FreezingReference(hash="ab" * 32, position=0, digest=PLAN.computed_digest)),
        unknown={"plan.frozen-late"},
    ),
]

ENVIRONMENTS = [
    Case(
        "nobody looked at the machine", "INDETERMINATE", {"environment.not-observed"}, run=removed(EnvironmentObserved)
    ),
    Case(
        "the environment is the plan's own words",
        "INDETERMINATE",
        {"environment.not-observed"},
        run=environment(
            {
                "compute_units.0.kind": declared("cpu"),
                "memory_resources.0.kind": declared("system-ram"),
                "memory_resources.0.capacity_bytes": declared(16 * GIB),
            }
        ),
    ),
    Case(
        "the kind of the Compute Unit could not be read",
        "INDETERMINATE",
        {"environment.not-observed"},
        run=environment({"compute_units.0.kind": UNKNOWN}),
    ),
    Case(
        "the machine has no such Compute Unit",
        "FAIL",
        {"environment.unit-mismatch"},
        run=environment({"compute_units.0.kind": probe("cuda-gpu")}),
    ),
    Case(
        "another GPU than the planned one",
        "FAIL",
        {"environment.unit-mismatch"},
        device="gpu",
        run=environment({"compute_units.0.device_uuid": probe("GPU-of-somebody-else")}),
    ),
    Case(
        "the GPU did not say which it is",
        "INDETERMINATE",
        {"environment.not-observed"},
        device="gpu",
        run=environment({"compute_units.0.device_uuid": UNKNOWN}),
    ),
    Case(
        "the plan was bound to something that the machine does not show",
        "FAIL",
        {"environment.unit-mismatch", "environment.resource-missing"},
        run=lambda run: changed(
            run, PlanAccepted, {"bindings": {"cpu0": "cpu-of-another", "node-a.ram": "ram-of-another"}}
        ),
    ),
    Case(
        "the machine has no shared memory",
        "FAIL",
        {"environment.resource-missing"},
        run=environment({"memory_resources.1.kind": probe("persistent-memory")}),
    ),
    Case(
        "the machine's memory is smaller than what the plan needs at once, staging included",
        "FAIL",
        {"environment.capacity-exceeded"},
        run=environment({"memory_resources.0.capacity_bytes": probe(300 * MIB)}),
    ),
    Case(
        "how large the machine's memory is could not be read",
        "INDETERMINATE",
        {"environment.not-observed"},
        run=environment({"memory_resources.0.capacity_bytes": UNKNOWN}),
    ),
    Case(
        "another model",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(model__repository=probe("example/other")),
    ),
    Case(
        "another revision of the model",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(model__revision=probe("1" * 40)),
    ),
    Case(
        "the same name, other tensors",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(model__headers_digest=probe("sha256:" + "99" * 32)),
    ),
    Case(
        "the checkpoint does not say what it is",
        "INDETERMINATE",
        {"environment.model-mismatch"},
        run=opening(model=None),
        unknown={"environment.model-mismatch"},
    ),
    Case(
        "a checkpoint file of another size",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(checkpoint_files__0__size=probe(5)),
    ),
    Case(
        "a planned file digest that was not computed",
        "INDETERMINATE",
        {"environment.model-mismatch"},
        plan=lambda document: document["checkpoint"]["files"][0].update(digest="sha256:" + "77" * 32),
        run=opening(checkpoint_files__0__digest=UNKNOWN),
        unknown={"environment.model-mismatch"},
    ),
]

MATERIALIZATIONS = [
    Case(
        "a required one was never realised, and its storage lives all the same",
        "FAIL",
        {"materialization.missing", "memory.unplanned-persistent", "memory.expectation-mismatch"},
        run=lambda run: [body for body in run if getattr(body, "materialization_id", None) != BASELINE],
    ),
    Case(
        "a required one was skipped",
        "FAIL",
        {"materialization.missing"},
        run=chain(
            never_realised(BASELINE),
            added(MaterializationSkipped(materialization_id=BASELINE, reason="no room"), ReleaseAuthorized),
        ),
    ),
    Case(
        "one was begun and failed, and the run went on",
        "FAIL",
        {"materialization.missing", "materialization.unobserved", "materialization.not-live"},
        run=chain(
            lambda run: [
                body.model_copy(update={"census": without_owner(body.census, BASELINE)})
                if isinstance(body, MemorySampled)
                else body
                for body in run
            ],
            removed(MaterializationObserved, materialization_id=BASELINE),
            removed(MaterializationRealized, materialization_id=BASELINE),
            added(
                MaterializationFailed(materialization_id=BASELINE, error_type="MemoryError", message="no room"),
                ReleaseAuthorized,
            ),
        ),
    ),
    Case(
        "a copy that the plan does not have, and was named",
        "FAIL",
        {"materialization.unplanned", "memory.expectation-mismatch"},
        run=added(stranger(), ReleaseAuthorized),
    ),
    Case(
        "a transient copy that the plan does not have, made and released",
        "FAIL",
        {"materialization.unplanned"},
        run=added(
            [
                *stranger(),
                MaterializationReleased(
                    materialization_id="mat.stranger",
                    bytes_before=probe(256),
                    bytes_after=probe(0),
                    released_bytes=probe(256),
                    owners_total=probe(1),
                    owners_alive=probe(0),
                ),
            ],
            ReleaseAuthorized,
        ),
    ),
    Case(
        "the resident weights realised twice under one id",
        "FAIL",
        {"materialization.duplicate"},
        run=added(materialized(PLAN, PLAN.materializations[WEIGHTS]), MemorySampled, label=f"before-release:{STAGE}"),
    ),
    Case(
        "a document that lists the replay baseline twice",
        "FAIL",
        {"materialization.duplicate"},
        run=lambda run: inserted(
            run,
            [
                body.model_copy(update={"live": declared(1), "ranges": []})
                for body in run
                if isinstance(body, MaterializationObserved) and body.materialization_id == BASELINE
            ],
            before=AuthorityEstablished,
        ),
    ),
    Case(
        "the probe looked twice and saw the same",
        "PASS",
        PASS,
        run=lambda run: inserted(
            run,
            [body for body in run if isinstance(body, MaterializationObserved) and body.materialization_id == BASELINE],
            before=AuthorityEstablished,
        ),
    ),
    Case(
        "the resident weights seen at a second place",
        "FAIL",
        {"materialization.duplicate"},
        run=lambda run: inserted(
            run,
            [
                body.model_copy(update={"ranges": [AddressRange(space="host", start=4096, length=256 * MIB)]})
                for body in run
                if isinstance(body, MaterializationObserved) and body.materialization_id == WEIGHTS
            ],
            before=AuthorityEstablished,
        ),
    ),
    Case(
        "right bytes of the wrong state",
        "FAIL",
        {"materialization.state-mismatch", "staging.release-unqualified", "execution.state-not-live"},
        run=both(WEIGHTS, logical_state_id="state.other"),
    ),
    Case(
        "the resident weights lie in private memory",
        "FAIL",
        {
            "materialization.resource-mismatch",
            "materialization.forbidden",
            "staging.release-unqualified",
            "execution.state-not-live",
        },
        run=both(WEIGHTS, memory_resource_id="node-a.ram"),
    ),
    Case(
        "a bank on the wrong device, claimed to be on the right one",
        "FAIL",
        {
            "materialization.resource-mismatch",
            "materialization.claim-contradicted",
            "authority.owner-not-live",
            "execution.state-not-live",
        },
        device="gpu",
        run=observed(CACHE, memory_resource_id=probe("node-a.ram")),
    ),
    Case(
        "tensors of another form than planned",
        "FAIL",
        {"materialization.representation-mismatch", "materialization.claim-contradicted", "execution.state-not-live"},
        run=observed(BUFFERS, representation=probe("other-form")),
    ),
    Case(
        "a byte too many",
        "FAIL",
        {"materialization.bytes-mismatch", "materialization.claim-contradicted"},
        run=observed(BUFFERS, bytes=probe(257)),
    ),
    Case(
        "resident weights half as large as planned, as claimed and as seen",
        "FAIL",
        {"materialization.bytes-mismatch", "staging.release-unqualified"},
        run=chain(observed(WEIGHTS, bytes=probe(128 * MIB)), realized(WEIGHTS, bytes=claim(128 * MIB))),
    ),
    Case(
        "streamed staging through which less went than planned",
        "FAIL",
        {"materialization.bytes-mismatch"},
        plan=part("materializations", STAGE, streamed_bytes=512 * MIB),
        run=realized(STAGE, streamed_bytes=claim(256 * MIB)),
    ),
    Case(
        "staging said to be persistent",
        "FAIL",
        {"materialization.persistence-mismatch"},
        run=both(STAGE, persistence="persistent"),
    ),
    Case(
        "a copy of the cache said to be authority",
        "FAIL",
        {"materialization.role-mismatch"},
        run=both(BASELINE, role="mutable_authority"),
    ),
    Case(
        "the resident weights were released as well",
        "FAIL",
        {"materialization.not-live"},
        run=added(
            [
                ReleaseAuthorized(materialization_id=WEIGHTS, qualifying_ids=[]),
                MaterializationReleased(
                    materialization_id=WEIGHTS,
                    bytes_before=probe(256 * MIB),
                    bytes_after=probe(0),
                    released_bytes=probe(256 * MIB),
                    owners_total=probe(2),
                    owners_alive=probe(0),
                ),
            ],
            MemorySampled,
            label="after-decode",
        ),
    ),
    Case(
        "the resident weights are gone from the closing census",
        "FAIL",
        {"materialization.not-live", "memory.mirror-unknown"},
        run=lambda run: [
            body.model_copy(update={"census": without_owner(body.census, WEIGHTS)})
            if isinstance(body, MemorySampled) and body.label == "closing"
            else body
            for body in run
        ],
    ),
    Case(
        "half of the resident weights are gone at the end",
        "FAIL",
        {"materialization.not-live", "memory.mirror-unknown"},
        run=lambda run: changed(run, MemorySampled, {f"census/by_owner/{WEIGHTS}": probe(128 * MIB)}, label="closing"),
    ),
    Case(
        "the probe saw the cache not live",
        "FAIL",
        {"materialization.not-live", "authority.owner-not-live", "execution.state-not-live"},
        run=observed(CACHE, live=probe(0)),
    ),
    Case(
        "no probe looked at the replay baseline",
        "INDETERMINATE",
        {"materialization.unobserved"},
        run=removed(MaterializationObserved, materialization_id=BASELINE),
    ),
    Case(
        "no probe looked at the resident weights",
        "FAIL",
        {"materialization.unobserved", "staging.release-unqualified", "execution.state-not-live"},
        run=removed(MaterializationObserved, materialization_id=WEIGHTS),
        unknown={"execution.state-not-live"},
    ),
    Case(
        "the observation repeats the adapter's claim",
        "INDETERMINATE",
        {"materialization.unobserved"},
        run=observed(BASELINE, bytes=claim(8 * MIB)),
    ),
    Case(
        "the observed bytes are a default",
        "INDETERMINATE",
        {"materialization.unobserved"},
        run=observed(BASELINE, bytes=default(8 * MIB)),
    ),
    Case(
        "how many bytes the weights take could not be read",
        "INDETERMINATE",
        {"materialization.unobserved", "staging.release-unqualified"},
        run=observed(WEIGHTS, bytes=UNKNOWN),
        unknown={"staging.release-unqualified"},
    ),
    Case(
        "the adapter claims fewer tensors than the probe saw",
        "FAIL",
        {"materialization.claim-contradicted"},
        run=realized(WEIGHTS, tensors=claim(1)),
    ),
    Case(
        "the adapter does not say how many bytes",
        "INDETERMINATE",
        {"materialization.claim-contradicted"},
        run=realized(WEIGHTS, bytes=UNKNOWN),
        unknown={"materialization.claim-contradicted"},
    ),
    Case(
        "a witness saw the weights elsewhere",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=observed(WEIGHTS, memory_resource_id=probe("node-a.ram")),
    ),
    Case(
        "a witness saw a gigabyte more at the end",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=grown("rss_anon", GIB),
    ),
    Case(
        "a witness saw the tree open the checkpoint",
        "FAIL",
        {"materialization.claim-contradicted"},
        witness=watch(tree_accesses=probe(3)),
    ),
    Case(
        "one flipped byte in a bank",
        "FAIL",
        {"materialization.content-mismatch"},
        run=observed(WEIGHTS, source_digest=probe("sha256:aa"), resident_digest=probe("sha256:ab")),
    ),
    Case(
        "the resident bytes could not be read back",
        "INDETERMINATE",
        {"materialization.content-mismatch"},
        run=observed(WEIGHTS, source_digest=probe("sha256:aa"), resident_digest=UNKNOWN),
        unknown={"materialization.content-mismatch"},
    ),
    Case(
        "a forbidden copy beside the planned one",
        "FAIL",
        {"materialization.forbidden", "materialization.unplanned", "memory.expectation-mismatch"},
        run=added(
            [
                body.model_copy(
                    update={
                        "logical_state_id": "state.weights",
                        "memory_resource_id": probe("node-a.ram")
                        if isinstance(body, MaterializationObserved)
                        else "node-a.ram",
                    }
                )
                for body in stranger("mat.mirror")
            ],
            ReleaseAuthorized,
        ),
    ),
]

NO_RELEASE = [removed(MaterializationReleased), removed(ReclamationObserved), removed(ReleaseAuthorized)]

STAGINGS = [
    Case(
        "staging is still there at the end",
        "FAIL",
        {"staging.not-released", "materialization.forbidden"},
        run=chain(*NO_RELEASE),
    ),
    Case(
        "the release was refused, and staging kept",
        "FAIL",
        {"staging.not-released", "materialization.forbidden"},
        run=chain(
            *NO_RELEASE,
            added(
                ReleaseRefused(materialization_id=STAGE, qualifying_ids=[], reason="none qualifies"),
                AuthorityEstablished,
            ),
        ),
    ),
    Case("released without authorization", "FAIL", {"staging.release-unqualified"}, run=removed(ReleaseAuthorized)),
    Case(
        "authorised only after the release",
        "FAIL",
        {"staging.release-unqualified"},
        run=lambda run: moved(run, ReleaseAuthorized, before=AuthorityEstablished),
    ),
    Case(
        "authorised by the staging itself",
        "FAIL",
        {"staging.release-unqualified"},
        run=lambda run: changed(run, ReleaseAuthorized, {"qualifying_ids": [STAGE]}),
    ),
    Case(
        "authorised by one that qualifies and one that does not",
        "FAIL",
        {"staging.release-unqualified"},
        run=lambda run: changed(run, ReleaseAuthorized, {"qualifying_ids": [BUFFERS, WEIGHTS]}),
    ),
    Case(
        "authorised by nothing",
        "FAIL",
        {"staging.release-unqualified"},
        run=lambda run: changed(run, ReleaseAuthorized, {"qualifying_ids": []}),
    ),
    Case(
        "the final was only observed after the release",
        "FAIL",
        {"staging.released-before-final", "staging.release-unqualified"},
        run=lambda run: moved(run, MaterializationObserved, materialization_id=WEIGHTS, before=AuthorityEstablished),
    ),
    Case(
        "released from fewer bytes than planned",
        "FAIL",
        {"staging.bytes-before-mismatch"},
        run=released(bytes_before=probe(128 * MIB), released_bytes=probe(128 * MIB)),
    ),
    Case(
        "a megabyte of staging is left",
        "FAIL",
        {"staging.bytes-after-nonzero", "staging.released-bytes-mismatch"},
        run=released(bytes_after=probe(MIB), released_bytes=probe(255 * MIB)),
    ),
    Case(
        "the released bytes do not add up",
        "FAIL",
        {"staging.released-bytes-mismatch"},
        run=released(released_bytes=probe(200 * MIB)),
    ),
    Case(
        "what was left after the release could not be read",
        "INDETERMINATE",
        {"staging.bytes-after-nonzero"},
        run=released(bytes_after=UNKNOWN),
        unknown={"staging.bytes-after-nonzero"},
    ),
    Case("a live view of staging at the release", "FAIL", {"staging.owner-alive"}, run=released(owners_alive=probe(1))),
    Case(
        "a view of staging found alive only after the last decode",
        "FAIL",
        {"staging.owner-alive"},
        run=reclaimed("after-decode", owners_alive=probe(1)),
    ),
    Case(
        "a storage of released staging in the closing census",
        "FAIL",
        {"staging.owner-alive"},
        run=lambda run: [
            body.model_copy(
                update={
                    "census": body.census.model_copy(update={"by_owner": {**body.census.by_owner, STAGE: probe(4096)}})
                }
            )
            if isinstance(body, MemorySampled) and body.label == "closing" and body.census
            else body
            for body in run
        ],
    ),
    Case(
        "no owner of staging was ever counted",
        "INDETERMINATE",
        {"staging.owners-unknown"},
        run=released(owners_total=probe(0)),
    ),
    Case(
        "owners were not counted after the last decode",
        "INDETERMINATE",
        {"staging.owners-unknown", "memory.reclaim-unknown"},
        run=removed(ReclamationObserved, phase="after-decode"),
    ),
    Case(
        "owners were counted for the last time before decode",
        "INDETERMINATE",
        {"staging.owners-unknown", "memory.reclaim-unknown"},
        run=lambda run: moved(run, ReclamationObserved, phase="after-decode", before=ExecutionActivated),
    ),
    Case(
        "staging came back after its release",
        "FAIL",
        {"staging.rematerialized", "materialization.forbidden"},
        run=added(materialized(PLAN, PLAN.materializations[STAGE]), AuthorityEstablished),
    ),
    Case(
        "staging was seen live after its release",
        "FAIL",
        {"staging.rematerialized", "materialization.forbidden"},
        run=lambda run: inserted(
            run,
            [b for b in run if isinstance(b, MaterializationObserved) and b.materialization_id == STAGE],
            before=AuthorityEstablished,
        ),
    ),
]

AUTHORITIES = [
    Case("no authority was established", "FAIL", {"authority.missing"}, run=removed(AuthorityEstablished)),
    Case(
        "two authorities for one state",
        "FAIL",
        {"authority.duplicate"},
        run=lambda run: inserted(
            run, [body for body in run if isinstance(body, AuthorityEstablished)], before=ExecutionActivated
        ),
    ),
    Case(
        "an authority for state that has none",
        "FAIL",
        {"authority.duplicate"},
        run=lambda run: inserted(
            run,
            [
                body.model_copy(update={"logical_state_id": "state.weights"})
                for body in run
                if isinstance(body, AuthorityEstablished)
            ],
            before=ExecutionActivated,
        ),
    ),
    Case(
        "the copy of the cache is made authority",
        "FAIL",
        {"authority.materialization-mismatch", "authority.not-observed"},
        run=authority(materialization_id=BASELINE),
    ),
    Case(
        "the owner lies on another Memory Resource",
        "FAIL",
        {"authority.materialization-mismatch"},
        run=authority(memory_resource_id=probe("node-a.ram")),
    ),
    Case("another lineage", "FAIL", {"authority.lineage-mismatch"}, run=authority(lineage=probe("epoch-2"))),
    Case(
        "the lineage repeats the plan's",
        "INDETERMINATE",
        {"authority.not-observed"},
        run=authority(lineage=declared("kv-cache-epoch-1")),
    ),
    Case("the lineage could not be read", "INDETERMINATE", {"authority.not-observed"}, run=authority(lineage=UNKNOWN)),
    Case("the owner has no range", "INDETERMINATE", {"authority.not-observed"}, run=authority(owner_range=None)),
    Case(
        "the owner's range is nowhere that the owner was seen",
        "INDETERMINATE",
        {"authority.not-observed"},
        run=authority(owner_range=AddressRange(space="host", start=4096, length=4096)),
    ),
    Case(
        "authority before its owner was realised",
        "FAIL",
        {"authority.before-realization"},
        run=lambda run: moved(run, AuthorityEstablished, before=MaterializationStarted),
    ),
    Case(
        "authority over released state",
        "FAIL",
        {"authority.owner-not-live", "authority.materialization-mismatch", "authority.not-observed"},
        run=authority(materialization_id=STAGE),
    ),
]

EXECUTIONS = [
    Case(
        "never activated, though it decoded",
        "FAIL",
        {"execution.not-activated", "decode.before-activation"},
        run=removed(ExecutionActivated),
    ),
    Case(
        "activated on another Compute Unit",
        "FAIL",
        {"execution.unit-mismatch"},
        run=activation(compute_unit_id=probe("gpu7")),
    ),
    Case(
        "activated with another strategy unit",
        "FAIL",
        {"execution.unit-mismatch"},
        run=activation(strategy_unit="something else"),
    ),
    Case(
        "where the parameters are could not be found",
        "INDETERMINATE",
        {"execution.unit-mismatch"},
        run=activation(compute_unit_id=UNKNOWN),
        unknown={"execution.unit-mismatch"},
    ),
    Case(
        "an execution that nobody planned",
        "FAIL",
        {"execution.unplanned"},
        run=lambda run: inserted(
            run,
            [
                body.model_copy(update={"execution_id": "exec.other"})
                for body in run
                if isinstance(body, ExecutionActivated)
            ],
            before=DecodeRan,
        ),
    ),
    Case(
        "activated twice",
        "FAIL",
        {"execution.unplanned"},
        run=lambda run: inserted(run, [body for body in run if isinstance(body, ExecutionActivated)], before=DecodeRan),
    ),
    Case(
        "nothing was bound for the cache",
        "FAIL",
        {"execution.state-not-live"},
        run=lambda run: [
            body.model_copy(update={"state": [one for one in body.state if one.materialization_id != CACHE]})
            if isinstance(body, ExecutionActivated)
            else body
            for body in run
        ],
    ),
    Case(
        "bound to staging that was released",
        "FAIL",
        {"execution.state-not-live"},
        run=activation(**{"state.0.materialization_id": STAGE}),
    ),
    Case(
        "activated before the cache was observed",
        "FAIL",
        {"execution.state-not-live"},
        run=chain(
            lambda run: moved(
                run,
                MaterializationObserved,
                materialization_id=CACHE,
                before=DecodeRan,
            ),
            lambda run: moved(run, AuthorityEstablished, before=DecodeRan),
        ),
    ),
]

DECODES = [
    Case("one repetition of four is missing", "FAIL", {"decode.missing"}, run=removed(DecodeRan, repetition=2)),
    Case("prefill is missing", "FAIL", {"decode.missing"}, run=removed(DecodeRan, phase="prefill")),
    Case(
        "one repetition four times",
        "FAIL",
        {"decode.missing"},
        run=lambda run: changed(run, DecodeRan, {"repetition": 0}, phase="repetition"),
    ),
    Case(
        "decode before activation",
        "FAIL",
        {"decode.before-activation"},
        run=lambda run: moved(run, DecodeRan, phase="prefill", before=ExecutionActivated),
    ),
    Case("no reference", "FAIL", {"decode.reference-missing"}, run=removed(ReferenceBound)),
    Case(
        "the reference was bound after decode",
        "FAIL",
        {"decode.reference-missing"},
        run=lambda run: moved(run, ReferenceBound, before=SourceWatched),
    ),
    Case(
        "the reference's digest could not be computed",
        "INDETERMINATE",
        {"decode.reference-missing"},
        run=lambda run: changed(run, ReferenceBound, {"digest": UNKNOWN}),
        unknown={"decode.reference-missing"},
    ),
    Case(
        "another reference than the planned one",
        "FAIL",
        {"decode.reference-mismatch"},
        run=lambda run: changed(run, ReferenceBound, {"digest": probe("sha256:" + "13" * 32)}),
    ),
    Case(
        "the reference swapped before the repetitions",
        "FAIL",
        {"decode.reference-mismatch"},
        run=lambda run: inserted(
            run,
            [
                body.model_copy(update={"digest": probe("sha256:" + "13" * 32)})
                for body in run
                if isinstance(body, ReferenceBound)
            ],
            before=DecodeRan,
            phase="repetition",
        ),
    ),
    Case(
        "one repetition deviates in one element",
        "FAIL",
        {"decode.deviation"},
        run=decode({"output.exact": probe(0), "output.max_absolute": probe(0.5)}, repetition=3),
    ),
    Case(
        "equal by its own word, with a deviation above zero",
        "FAIL",
        {"decode.deviation"},
        run=decode({"output.max_absolute": probe(0.5)}, repetition=3),
    ),
    Case(
        "outside the planned tolerance",
        "FAIL",
        {"decode.deviation"},
        plan=correctness(mode="tolerance", atol=0.01, rtol=0.01),
        run=decode({"output.within_tolerance": probe(0)}, repetition=1),
    ),
    Case(
        "what went in deviates",
        "FAIL",
        {"decode.deviation"},
        run=decode({"input.exact": probe(0)}, phase="prefill"),
    ),
    Case(
        "whether it was equal is not known",
        "INDETERMINATE",
        {"decode.deviation"},
        run=decode({"output.exact": UNKNOWN}, repetition=0),
        unknown={"decode.deviation"},
    ),
    Case(
        "equality is the adapter's claim",
        "INDETERMINATE",
        {"decode.deviation"},
        run=decode({"output.exact": claim(1)}, repetition=0),
        unknown={"decode.deviation"},
    ),
    Case("a NaN came out", "FAIL", {"decode.non-finite"}, run=decode({"output.nan_count": probe(1)}, repetition=0)),
    Case("an infinity went in", "FAIL", {"decode.non-finite"}, run=decode({"input.inf_count": probe(2)}, repetition=0)),
    Case(
        "the largest deviation is no number",
        "FAIL",
        {"decode.non-finite", "decode.deviation"},
        run=decode({"output.max_absolute": FAILED}, repetition=0),
        unknown={"decode.deviation"},
    ),
    Case(
        "NaNs were not counted",
        "INDETERMINATE",
        {"decode.non-finite"},
        run=decode({"output.nan_count": UNKNOWN}, repetition=0),
        unknown={"decode.non-finite"},
    ),
    Case(
        "the last repetition gave other bytes",
        "FAIL",
        {"decode.not-repeatable"},
        run=decode({"output_digest": probe("sha256:" + "ee" * 32)}, repetition=3),
    ),
    Case(
        "the last repetition gave other tokens, within tolerance",
        "FAIL",
        {"decode.not-repeatable"},
        plan=correctness(mode="tolerance", atol=0.01, rtol=0.01),
        run=decode({"tokens_digest": probe("sha256:" + "ee" * 32)}, repetition=3),
    ),
    Case(
        "the output was not digested",
        "INDETERMINATE",
        {"decode.not-repeatable"},
        run=decode({"output_digest": UNKNOWN}, repetition=3),
        unknown={"decode.not-repeatable"},
    ),
    Case(
        "the tree opened the checkpoint during decode",
        "FAIL",
        {"decode.source-accessed"},
        run=added(accessed("tree"), SourceWatched),
    ),
    Case(
        "the watch counted an access of the tree", "FAIL", {"decode.source-accessed"}, run=watch(tree_accesses=probe(1))
    ),
    Case("the tree still maps the checkpoint", "FAIL", {"decode.source-accessed"}, run=watch(mapped_files=probe(1))),
    Case(
        "the tree still holds the checkpoint open",
        "FAIL",
        {"decode.source-accessed"},
        run=watch(open_descriptors=probe(2)),
    ),
    Case(
        "somebody else opened the checkpoint",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=added(accessed("other"), SourceWatched),
    ),
    Case("nobody watched the checkpoint", "INDETERMINATE", {"decode.access-unknown"}, run=removed(SourceWatched)),
    Case("the watch was never armed", "INDETERMINATE", {"decode.access-unknown"}, run=watch(armed=probe(0))),
    Case("the watch lost events", "INDETERMINATE", {"decode.access-unknown"}, run=watch(overflowed=probe(1))),
    Case(
        "the checkpoint is on a network filesystem",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=watch(network_filesystem=probe(1)),
    ),
    Case(
        "a gigabyte was read during decode, from a file nobody watched",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=watch(read_bytes=probe(GIB)),
    ),
    Case(
        "accesses are a literal zero of the adapter",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=watch(tree_accesses=claim(0)),
    ),
    Case(
        "the watch was summed up before decode",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=lambda run: moved(run, SourceWatched, before=ExecutionActivated),
    ),
    Case("decode looked into the plan", "FAIL", {"decode.plan-consulted"}, run=decode({"plan_lookups": probe(3)})),
    Case(
        "whether decode looked into the plan is not known",
        "INDETERMINATE",
        {"decode.plan-consulted"},
        run=decode({"plan_lookups": UNKNOWN}, phase="prefill"),
        unknown={"decode.plan-consulted"},
    ),
]

MEMORIES = [
    Case(
        "the adapter reports bytes that nobody planned",
        "FAIL",
        {"memory.unplanned-persistent", "memory.expectation-mismatch"},
        run=realized(WEIGHTS, unplanned_bytes=claim(4096)),
    ),
    Case(
        "live storage under a name that no event has",
        "FAIL",
        {"memory.unplanned-persistent", "memory.expectation-mismatch"},
        run=lambda run: [
            body.model_copy(
                update={"census": body.census.model_copy(update={"by_owner": {**body.census.by_owner, "x": probe(64)}})}
            )
            if isinstance(body, MemorySampled) and body.label == "closing" and body.census
            else body
            for body in run
        ],
    ),
    Case(
        "ownerless storage on the device",
        "FAIL",
        {"memory.unplanned-persistent", "memory.expectation-mismatch"},
        device="gpu",
        run=at_the_end({"census/unowned_device_bytes": probe(MIB)}),
    ),
    Case(
        "a hidden host copy, alive in the census",
        "FAIL",
        {"memory.host-mirror", "memory.expectation-mismatch", "memory.mirror-unknown"},
        run=chain(grown("rss_anon", 256 * MIB), at_the_end({"census/unowned_host_bytes": probe(256 * MIB)})),
    ),
    Case(
        "a hidden host copy that is dropped before the closing sample",
        "FAIL",
        {"memory.host-mirror"},
        run=lambda run: changed(run, MemorySampled, {"census/unowned_host_bytes": probe(4096)}, label="after-decode"),
    ),
    Case(
        "the checkpoint file is still mapped and resident",
        "FAIL",
        {"memory.host-mirror", "memory.expectation-mismatch", "decode.source-accessed"},
        run=chain(
            at_the_end({"process/checkpoint_mappings": probe(256 * MIB), "mapped_files": ["model.safetensors"]}),
            watch(mapped_files=probe(1)),
        ),
    ),
    Case(
        "a shared map of an unlinked scratch file",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=grown("new_file_mappings", 128 * MIB),
    ),
    Case(
        "a file in a memory file system",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=grown("new_tmpfs_files", 128 * MIB),
    ),
    Case("a child process holds a copy", "INDETERMINATE", {"memory.mirror-unknown"}, run=grown("rss_anon", 256 * MIB)),
    Case("swapped out pages of a copy", "INDETERMINATE", {"memory.mirror-unknown"}, run=grown("vm_swap", 256 * MIB)),
    Case(
        "a small copy, above the noise that this plan allows",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        plan=expects(host_noise_bytes=MIB),
        run=grown("rss_anon", 2 * MIB),
    ),
    Case("no baseline", "INDETERMINATE", {"memory.mirror-unknown"}, run=removed(MemorySampled, label="baseline")),
    Case(
        "the baseline was taken when the model was loaded",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=lambda run: moved(run, MemorySampled, label="baseline", before=AuthorityEstablished),
    ),
    Case("no closing sample", "INDETERMINATE", {"memory.mirror-unknown"}, run=removed(MemorySampled, label="closing")),
    Case(
        "the closing sample was taken before decode",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=lambda run: moved(run, MemorySampled, label="closing", before=ExecutionActivated),
    ),
    Case(
        "no census at the end",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=at_the_end({"census": None}),
    ),
    Case(
        "the census is a literal zero of the adapter",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=at_the_end({"census/unowned_host_bytes": claim(0)}),
    ),
    Case(
        "a negative figure that would cancel out a mirror",
        "FAIL",
        {"memory.host-mirror", "memory.mirror-unknown"},
        run=at_the_end(
            {"census/unowned_host_bytes": probe(-256 * MIB), "process/checkpoint_mappings": probe(256 * MIB)}
        ),
    ),
    Case(
        "the kernel does not say how much is anonymous",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=sampled("closing", rss_anon=UNKNOWN),
    ),
    Case(
        "one sample on the way could not be read",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=sampled(f"materialized:{CACHE}", vm_hwm=UNKNOWN),
    ),
    Case(
        "the device holds more than its owners",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=at_the_end({"cuda/cuda:0.allocated": probe(GIB)}),
    ),
    Case(
        "the driver sees more than the allocator has",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=at_the_end({"cuda/cuda:0.process": probe(2 * GIB)}),
    ),
    Case(
        "the device was not read at the end",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=at_the_end({"cuda": {}}),
    ),
    Case(
        "the device's allocator could not be read",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=at_the_end({"cuda/cuda:0.allocated": UNKNOWN}),
    ),
    Case(
        "more than the capacity on the way, less at the end",
        "FAIL",
        {"memory.peak-exceeded"},
        plan=capacity("node-a.ram", 300 * MIB),
        run=environment({"memory_resources.0.capacity_bytes": probe(16 * GIB)}),
    ),
    Case(
        "more transient at once than the plan expects",
        "FAIL",
        {"memory.peak-exceeded"},
        plan=expects(transient_peak_bytes={"node-a.ram": 128 * MIB}),
    ),
    Case(
        "the process tree peaked above the expected transient peak",
        "FAIL",
        {"memory.peak-exceeded"},
        plan=expects(transient_peak_bytes={"node-a.ram": 256 * MIB}),
        run=sampled(f"materialized:{WEIGHTS}", vm_hwm=probe(2 * GIB)),
    ),
    Case(
        "an expected transient peak that was not measured",
        "INDETERMINATE",
        {"memory.peak-exceeded", "memory.mirror-unknown"},
        plan=expects(transient_peak_bytes={"node-a.ram": 256 * MIB}),
        run=sampled(f"materialized:{WEIGHTS}", vm_hwm=UNKNOWN),
        unknown={"memory.peak-exceeded"},
    ),
    Case(
        "the device peaked above the expected transient peak",
        "FAIL",
        {"memory.peak-exceeded"},
        device="gpu",
        plan=expects(transient_peak_bytes={"gpu0.vram": 16 * MIB}),
        run=lambda run: changed(run, MemorySampled, {"cuda/cuda:0.peak": probe(GIB)}, label=f"materialized:{CACHE}"),
    ),
    Case(
        "staging is still mapped, and nothing went back",
        "FAIL",
        {"memory.not-reclaimed"},
        run=reclaimed(
            "after-release", region_mapped=probe(1), ratio=probe(0.0), tree_before=probe(GIB), tree_after=probe(GIB)
        ),
    ),
    Case(
        "a ratio above the planned one that the tree's figures do not bear out",
        "FAIL",
        {"memory.not-reclaimed"},
        run=reclaimed("after-release", region_mapped=probe(1), tree_before=probe(GIB), tree_after=probe(GIB)),
    ),
    Case(
        "shared staging unmapped here, and still held elsewhere",
        "FAIL",
        {"memory.not-reclaimed"},
        plan=shared_staging,
        run=reclaimed("after-decode", ratio=probe(0.0)),
    ),
    Case(
        "the region is gone, though the tree grew meanwhile",
        "PASS",
        PASS,
        run=reclaimed("after-decode", ratio=probe(0.4), tree_after=probe(500 * MIB)),
    ),
    Case(
        "staging on the device is gone, and the host never held it",
        "PASS",
        PASS,
        device="gpu",
        plan=part("materializations", STAGE, memory_resource_id="gpu0.vram"),
    ),
    Case(
        "whether the region is mapped could not be read",
        "INDETERMINATE",
        {"memory.reclaim-unknown"},
        run=reclaimed("after-release", region_mapped=UNKNOWN),
    ),
    Case(
        "no reclamation was looked at after the release",
        "INDETERMINATE",
        {"memory.reclaim-unknown", "staging.owners-unknown"},
        run=removed(ReclamationObserved, phase="after-release"),
    ),
    Case(
        "the sample just before the release is missing",
        "INDETERMINATE",
        {"memory.reclaim-unknown"},
        run=removed(MemorySampled, label=f"before-release:{STAGE}"),
    ),
    Case(
        "a cgroup that holds the tree alone fell with it",
        "PASS",
        PASS,
        run=lambda run: changed(run, MemorySampled, {"cgroup/others": probe(0)}),
    ),
    Case(
        "a cgroup that others share kept its memory",
        "PASS",
        PASS,
        run=lambda run: changed(run, MemorySampled, {"cgroup/current": probe(GIB)}),
    ),
    Case(
        "a cgroup that holds the tree alone kept its memory",
        "INDETERMINATE",
        {"memory.reclaim-unknown"},
        run=chain(
            *(
                lambda run, label=label: changed(
                    run,
                    MemorySampled,
                    {"cgroup": {"others": probe(0), "current": probe(GIB)}},
                    label=f"{label}:{STAGE}",
                )
                for label in ("before-release", "after-release")
            )
        ),
    ),
    Case(
        "an optional cache that the plan's figures do not expect",
        "FAIL",
        {"memory.expectation-mismatch"},
        plan=optional_cache,
    ),
    Case(
        "the plan expects a mirror that is not there",
        "FAIL",
        {"memory.expectation-mismatch"},
        plan=expects(unexplained_persistent_host_mirror_bytes=4096),
    ),
]


def from_outside(run: Bodies) -> Bodies:
    """A witness that only sees the machine, the process tree and accesses, with a run of its own under the same plan."""
    kept = [
        body.model_copy(update={"census": None}) if isinstance(body, MemorySampled) else body
        for body in run
        if isinstance(body, RunOpened | EnvironmentObserved | SourceWatched | RunClosed)
        or (isinstance(body, MemorySampled) and body.label in ("baseline", "after-decode", "closing"))
    ]
    return changed(kept, RunOpened, {"purpose": "witness", "model": None, "adapter": None})


SEEN_FROM_OUTSIDE = {
    "authority.missing",
    "decode.missing",
    "decode.reference-missing",
    "environment.model-mismatch",
    "execution.not-activated",
    "materialization.missing",
    "memory.mirror-unknown",
    "run.incomplete",
}

WITNESSES = [
    Case(
        "watched from outside: what only owners could tell is not known, and nothing is amiss",
        "INDETERMINATE",
        SEEN_FROM_OUTSIDE,
        run=from_outside,
        unknown=SEEN_FROM_OUTSIDE,
    ),
    Case(
        "watched from outside: the checkpoint stays mapped",
        "FAIL",
        {"memory.host-mirror", *SEEN_FROM_OUTSIDE},
        run=chain(
            at_the_end({"process/checkpoint_mappings": probe(256 * MIB), "mapped_files": ["model.safetensors"]}),
            from_outside,
        ),
        unknown=SEEN_FROM_OUTSIDE,
    ),
]

RUNS = [
    Case(
        "killed while loading",
        "INDETERMINATE",
        {"run.incomplete", "staging.not-released", "materialization.forbidden", *MISSING_WHEN_UNFINISHED},
        run=first_bodies(9),
        unknown={
            "staging.not-released",
            "materialization.forbidden",
            "materialization.missing",
            "authority.missing",
            "execution.not-activated",
            "decode.missing",
        },
    ),
    Case("killed just before it was closed", "INDETERMINATE", {"run.incomplete"}, run=removed(RunClosed)),
    Case(
        "interrupted by the operator",
        "INDETERMINATE",
        {"run.incomplete"},
        run=lambda run: [*run[:-1], RunClosed(outcome="aborted", error_type="KeyboardInterrupt")],
    ),
    Case(
        "failed at the very end",
        "FAIL",
        {"run.failed"},
        run=lambda run: [*run[:-1], RunClosed(outcome="failed", error_type="CheckpointError", message="truncated")],
    ),
    Case("nobody accepted the plan", "INDETERMINATE", {"run.incomplete"}, run=removed(PlanAccepted)),
    Case(
        "the plan was accepted after the first step",
        "INDETERMINATE",
        {"run.incomplete"},
        run=lambda run: moved(run, PlanAccepted, before=AuthorityEstablished),
    ),
    Case(
        "the adapter's claim was taken out",
        "INDETERMINATE",
        {"run.incomplete"},
        run=removed(MaterializationRealized, materialization_id=WEIGHTS),
    ),
    Case(
        "the clock went back",
        "FAIL",
        {"run.time-regressed"},
        elapsed=lambda index: index if index != 20 else 3,
    ),
    Case(
        "a fact added after the close",
        "FAIL",
        {"run.event-after-close"},
        run=appended(sample(PLAN, "closing", [])),
    ),
    Case(
        "closed a second time",
        "FAIL",
        {"run.event-after-close"},
        run=appended(RunClosed(outcome="completed")),
    ),
    Case(
        "superseded by another run",
        "PASS",
        {"run.superseded"},
        run=appended(RunSuperseded(reason="wrong label", by="01920000-0000-7000-8000-000000000009")),
    ),
]

CASES = [
    *CLEAN,
    *PLANS,
    *ENVIRONMENTS,
    *MATERIALIZATIONS,
    *STAGINGS,
    *AUTHORITIES,
    *EXECUTIONS,
    *DECODES,
    *MEMORIES,
    *WITNESSES,
    *RUNS,
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    judgement = judged(case)
    found = [
        f"{finding.severity} {finding.code} {finding.subject}: {finding.observed}" for finding in judgement.findings
    ]
    assert (judgement.verdict, set(judgement.codes)) == (case.verdict, case.codes), "\n".join(found)
    for finding in judgement.findings:
        if finding.code in case.unknown:
            assert finding.severity == "unknown", finding


def test_there_are_at_least_eighty_cases_and_their_titles_are_distinct() -> None:
    assert len(CASES) >= 80
    assert len({case.title for case in CASES}) == len(CASES)


def test_every_code_has_a_case() -> None:
    codes = {code for invariant in INVARIANTS for code in invariant.codes}
    covered = {code for case in CASES for code in case.codes}
    assert covered == codes
