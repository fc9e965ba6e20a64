"""Devices: which one was bound, where owners lie, what was sampled."""

from __future__ import annotations

from tests.ledger.judge_cases.case import Case
from tests.ledger.judge_cases.steps import bound_to, chain, elsewhere_on, flat_device

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
]
