"""Digests of content, laid beside those of other materializations."""

from __future__ import annotations

from tests.ledger.judge_cases.case import BUFFERS, STAGE, WEIGHTS, Case
from tests.ledger.judge_cases.steps import PASS, chain, digest, part, verified

CONTENTS = [
    Case(
        "one digest for weights and buffers of different sizes",
        "FAIL",
        {"materialization.content-mismatch"},
        run=chain(*(verified(name, digest("aa")) for name in (WEIGHTS, BUFFERS))),
    ),
    Case(
        "another digest than that of the staging of the same unit",
        "FAIL",
        {"materialization.content-mismatch"},
        run=chain(verified(STAGE, digest("aa")), verified(WEIGHTS, digest("bb"))),
    ),
    Case(
        "staging and resident weights of one digest, buffers of another",
        "PASS",
        PASS,
        run=chain(*(verified(name, digest("aa")) for name in (STAGE, WEIGHTS)), verified(BUFFERS, digest("bb"))),
    ),
    Case(
        "another digest in another layout of the same unit",
        "PASS",
        PASS,
        plan=part("materializations", STAGE, representation="checkpoint-stream-ring"),
        run=chain(verified(STAGE, digest("aa")), verified(WEIGHTS, digest("bb"))),
    ),
]
