"""Family `staging`."""

from __future__ import annotations

from ledger.bodies import (
    AuthorityEstablished,
    Body,
    ExecutionActivated,
    MaterializationObserved,
    MaterializationReleased,
    MemorySampled,
    ReclamationObserved,
    ReleaseAuthorized,
    ReleaseRefused,
)
from tests.builders.runs import changed, inserted, materialized, moved, size
from tests.ledger.judge_cases.case import BUFFERS, MIB, STAGE, UNKNOWN, WEIGHTS, Bodies, Case, probe
from tests.ledger.judge_cases.steps import (
    PLAN,
    added,
    chain,
    grown,
    owner_holds,
    reclaimed,
    released,
    removed,
    repeated,
)

NO_RELEASE = [removed(MaterializationReleased), removed(ReclamationObserved), removed(ReleaseAuthorized)]


def released_after_decode(run: Bodies) -> Bodies:
    """All that belongs to the release comes after the last decode, in its own order."""

    def of_release(body: Body) -> bool:
        if isinstance(body, MemorySampled):
            return body.label.startswith(("before-release:", "after-release:"))
        if isinstance(body, ReclamationObserved):
            return body.phase == "after-release"
        return isinstance(body, ReleaseAuthorized | MaterializationReleased)

    rest = [body for body in run if not of_release(body)]
    return inserted(rest, [body for body in run if of_release(body)], before=MemorySampled, label="after-decode")


STAGINGS = [
    Case(
        "staging is still there at the end",
        "FAIL",
        {"materialization.not-live", "staging.not-released", "materialization.forbidden"},
        run=chain(*NO_RELEASE),
    ),
    Case(
        "the release was refused, and staging kept",
        "FAIL",
        {"materialization.not-live", "staging.not-released", "materialization.forbidden"},
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
                    "census": body.census.model_copy(update={"by_owner": {**body.census.by_owner, STAGE: size(4096)}})
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
        {"materialization.not-live", "staging.rematerialized", "materialization.forbidden"},
        run=added(materialized(PLAN, PLAN.materializations[STAGE]), AuthorityEstablished),
    ),
    Case(
        "staging was seen live after its release",
        "FAIL",
        {"materialization.not-live", "staging.rematerialized", "materialization.forbidden"},
        run=lambda run: inserted(
            run,
            [b for b in run if isinstance(b, MaterializationObserved) and b.materialization_id == STAGE],
            before=AuthorityEstablished,
        ),
    ),
    Case(
        "released twice, each time as authorised",
        "FAIL",
        {"staging.rematerialized"},
        run=lambda run: inserted(
            run,
            [body for body in run if isinstance(body, ReleaseAuthorized | MaterializationReleased)],
            before=AuthorityEstablished,
        ),
    ),
    Case(
        "the census just after the release still finds it alive",
        "FAIL",
        {"staging.owner-alive"},
        run=chain(
            grown("rss_anon", 256 * MIB, f"after-release:{STAGE}"),
            owner_holds(STAGE, 256 * MIB, f"after-release:{STAGE}"),
        ),
    ),
    Case(
        "released only after the last decode",
        "FAIL",
        {"staging.not-released"},
        run=released_after_decode,
    ),
    Case(
        "one authorization of five names nothing",
        "INDETERMINATE",
        {"run.incomplete"},
        run=repeated(ReleaseAuthorized, {"qualifying_ids": []}, at=3, total=5),
    ),
]
