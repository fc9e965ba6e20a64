"""Copies under other names: as evidence, or from before the baseline."""

from __future__ import annotations

from ledger.bodies import MemorySampled, ReferenceBound
from ledger.measurement import measured
from tests.builders.runs import changed, size
from tests.ledger.judge_cases.case import MIB, WEIGHTS, Bodies, Case, probe
from tests.ledger.judge_cases.steps import PASS, at_the_end, chain, grown, owner_holds


def bound_reference(length: int):
    """The reference's file has so many bytes."""
    return lambda run: changed(run, ReferenceBound, {"size": measured(length, "bytes", "stat")})


def at_the_baseline(change: dict[str, object]):
    return lambda run: changed(run, MemorySampled, change, label="baseline")


def evidence(role: str, more: int):
    """At the end the tree holds so many bytes more, which are said to be evidence of that role."""

    def apply(run: Bodies) -> Bodies:
        return chain(grown("rss_anon", more), at_the_end({f"census/evidence_host_by_role/{role}": size(more)}))(run)

    return apply


COPIES = [
    Case(
        "a copy of the weights, said to be the reference",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=evidence("reference", 256 * MIB),
    ),
    Case(
        "a copy of the weights, said to be the reference, whose file is small",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=chain(bound_reference(MIB), evidence("reference", 256 * MIB)),
    ),
    Case(
        "a large reference, of a file as large",
        "PASS",
        PASS,
        run=chain(bound_reference(256 * MIB), evidence("reference", 256 * MIB)),
    ),
    Case(
        "a copy of the weights, said to be evidence of some other kind",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=chain(bound_reference(256 * MIB), evidence("other", 256 * MIB)),
    ),
    Case(
        "the checkpoint is mapped at the baseline",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=at_the_baseline({"process/checkpoint_mappings": probe(256 * MIB)}),
    ),
    Case(
        "storages without an owner at the baseline",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=at_the_baseline({"census/unowned_host_bytes": probe(256 * MIB)}),
    ),
    Case(
        "the weights are there at the baseline",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=owner_holds(WEIGHTS, 256 * MIB, "baseline"),
    ),
]
