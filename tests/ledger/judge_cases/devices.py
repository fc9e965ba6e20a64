"""Devices: which one was bound, where owners lie, what was sampled."""

from __future__ import annotations

from ledger.bodies import MemorySampled
from tests.builders.runs import changed
from tests.ledger.judge_cases.case import MIB, Case, probe
from tests.ledger.judge_cases.steps import PASS, at_the_end, bound_to, chain, elsewhere_on, flat_device

DEVICES = [
    Case(
        "everything on a device that no sample covers, beside the one that the run bound",
        "FAIL",
        {"materialization.resource-mismatch", "memory.device-residue-unknown"},
        device="gpu",
        run=chain(elsewhere_on("cuda:1"), flat_device("cuda:0")),
    ),
    Case(
        "everything bound to, and on, a device that no sample covers",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=chain(bound_to("cuda:1"), elsewhere_on("cuda:1"), flat_device("cuda:0")),
    ),
    Case(
        "owners on a device that holds no more than before",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=lambda run: changed(
            run,
            MemorySampled,
            {
                "cuda/cuda:0.allocated": probe(0),
                "cuda/cuda:0.reserved": probe(0),
                "cuda/cuda:0.peak": probe(0),
                "cuda/cuda:0.process": probe(500 * MIB),
            },
        ),
    ),
    Case(
        "the pool of pinned memory keeps what was released",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=at_the_end({"cuda/host_pool": probe(65 * MIB)}),
    ),
    Case(
        "the pool of pinned memory keeps a little",
        "PASS",
        PASS,
        device="gpu",
        run=at_the_end({"cuda/host_pool": probe(63 * MIB)}),
    ),
]
