"""Family `materialization`."""

from __future__ import annotations

from ledger.bodies import (
    AddressRange,
    AuthorityEstablished,
    ExecutionActivated,
    MaterializationFailed,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationSkipped,
    MaterializationStarted,
    MemorySampled,
    ReleaseAuthorized,
)
from ledger.measurement import claimed
from tests.builders.runs import GIB, changed, inserted, materialized, moved, sample
from tests.ledger.judge_cases.case import (
    BASELINE,
    BUFFERS,
    CACHE,
    MIB,
    STAGE,
    UNKNOWN,
    WEIGHTS,
    Case,
    claim,
    declared,
    default,
    probe,
)
from tests.ledger.judge_cases.steps import (
    PASS,
    PLAN,
    added,
    both,
    chain,
    digest,
    grown,
    looked_again,
    never_realised,
    observed,
    part,
    range_of,
    realized,
    removed,
    stranger,
    watch,
    without_owner,
)

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
            "memory.mirror-unknown",  # the pages that the tree holds are shared ones
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
        run=realized(STAGE, streamed_bytes=claimed(256 * MIB, "bytes", "adapter")),
    ),
    Case(
        "a bank filled from a ring through which less went than planned",
        "FAIL",
        {"materialization.bytes-mismatch"},
        plan=part("materializations", STAGE, streamed_bytes=512 * MIB),
        run=realized(WEIGHTS, streamed_bytes=claimed(256 * MIB, "bytes", "adapter")),
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
        run=observed(WEIGHTS, source_digest=probe(digest("aa")), resident_digest=probe(digest("ab"))),
    ),
    Case(
        "the resident bytes could not be read back",
        "INDETERMINATE",
        {"materialization.content-mismatch"},
        run=observed(WEIGHTS, source_digest=probe(digest("aa")), resident_digest=UNKNOWN),
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
    Case(
        "two materializations are one piece of memory",
        "FAIL",
        {"materialization.claim-contradicted"},
        run=observed(BASELINE, ranges=[range_of(CACHE)]),
    ),
    Case(
        "the resident weights are the staged ones under another name",
        "FAIL",
        {"materialization.claim-contradicted"},
        run=observed(WEIGHTS, ranges=[range_of(STAGE)]),
    ),
    Case(
        "resident where something lay that was released before",
        "PASS",
        PASS,
        run=chain(
            lambda run: moved(run, MaterializationStarted, before=ExecutionActivated, materialization_id=BUFFERS),
            lambda run: moved(run, MaterializationRealized, before=ExecutionActivated, materialization_id=BUFFERS),
            lambda run: moved(run, MaterializationObserved, before=ExecutionActivated, materialization_id=BUFFERS),
            removed(MemorySampled, label=f"materialized:{BUFFERS}"),
            added(sample(PLAN, f"materialized:{BUFFERS}", [WEIGHTS, BUFFERS, CACHE, BASELINE]), ExecutionActivated),
            observed(BUFFERS, ranges=[range_of(STAGE)]),
        ),
    ),
    Case(
        "a claim of fewer than no bytes streamed, where nothing streams",
        "INDETERMINATE",
        {"materialization.claim-contradicted"},
        run=realized(WEIGHTS, streamed_bytes=claimed(-1, "bytes", "adapter")),
        unknown={"materialization.claim-contradicted"},
    ),
    Case(
        "a claim of bytes streamed, where nothing streams",
        "FAIL",
        {"materialization.bytes-mismatch"},
        run=realized(WEIGHTS, streamed_bytes=claimed(4096, "bytes", "adapter")),
    ),
    Case(
        "more bytes than the range has in which they were seen",
        "FAIL",
        {"materialization.claim-contradicted"},
        run=observed(WEIGHTS, ranges=[AddressRange(space="host", start=4096, length=4096)]),
    ),
    Case(
        "seen on the host, at a device's addresses",
        "FAIL",
        {"materialization.claim-contradicted"},
        run=observed(WEIGHTS, ranges=[AddressRange(space="cuda:0", start=4096, length=256 * MIB)]),
    ),
    Case(
        "bytes seen nowhere in particular",
        "INDETERMINATE",
        {"materialization.unobserved"},
        run=observed(WEIGHTS, ranges=[]),
    ),
    Case(
        "bytes seen without a storage that has them",
        "INDETERMINATE",
        {"materialization.unobserved"},
        run=observed(WEIGHTS, storages=probe(0)),
    ),
    Case(
        "neither claim nor probe counts a tensor, yet there are bytes",
        "INDETERMINATE",
        {"materialization.unobserved"},
        run=chain(observed(WEIGHTS, tensors=probe(0)), realized(WEIGHTS, tensors=claim(0))),
    ),
    Case(
        "said to have failed, and realised all the same",
        "FAIL",
        {"materialization.missing"},
        run=added(MaterializationFailed(materialization_id=WEIGHTS, error_type="E", message="no"), ReleaseAuthorized),
    ),
    Case(
        "a fifth figure, beyond tolerance, after four within it",
        "INDETERMINATE",
        {"run.incomplete"},
        plan=part("materializations", WEIGHTS, tolerance_bytes=4096),
        run=looked_again(WEIGHTS, *({"bytes": probe(256 * MIB + more)} for more in (1, 2, 3, MIB * MIB, 0))),
    ),
    Case(
        "content that differs, after four looks at which it agreed",
        "INDETERMINATE",
        {"run.incomplete"},
        run=looked_again(
            WEIGHTS,
            *(
                {"source_digest": probe(digest(f"0{n}")), "resident_digest": probe(digest(f"0{n % 4}"))}
                for n in range(6)
            ),
        ),
    ),
]
