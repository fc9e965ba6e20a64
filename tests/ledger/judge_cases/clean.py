"""Runs that carry the plan out: nothing is found, or nothing that matters."""

from __future__ import annotations

from ledger.bodies import MaterializationSkipped, ReleaseAuthorized, VerdictRecorded
from tests.builders.runs import clean_bodies
from tests.ledger.judge_cases.case import MIB, UNKNOWN, WEIGHTS, Case, claim, probe
from tests.ledger.judge_cases.steps import (
    PASS,
    PLAN,
    added,
    appended,
    at_the_end,
    chain,
    correctness,
    decode,
    digest,
    expects,
    grown,
    never_realised,
    observed,
    opening,
    optional_cache,
    part,
    realized,
)

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
        run=observed(WEIGHTS, source_digest=probe(digest("aa")), resident_digest=probe(digest("aa"))),
    ),
    Case("host memory grew by less than the noise", "PASS", PASS, run=grown("rss_anon", 40 * MIB)),
    Case(
        "device memory grew by less than may be unattributed",
        "PASS",
        PASS,
        device="gpu",
        run=at_the_end(
            {
                "cuda/cuda:0.allocated": probe(312 * MIB),
                "cuda/cuda:0.reserved": probe(312 * MIB),
                "cuda/cuda:0.process": probe(812 * MIB),
            }
        ),
    ),
    Case(
        "a verdict and nothing else follows the close",
        "PASS",
        PASS,
        run=appended(VerdictRecorded(judge_version="1", verdict="PASS", assurance="observed", codes=[])),
    ),
    Case("a witness that saw the same", "PASS", PASS, witness=lambda run: run),
    Case(
        "a verdict that a later process appends carries no elapsed time",
        "PASS",
        PASS,
        run=appended(VerdictRecorded(judge_version="1", verdict="PASS", assurance="observed", codes=[])),
        elapsed=lambda index: index if index < len(clean_bodies(PLAN)) else None,
    ),
]
