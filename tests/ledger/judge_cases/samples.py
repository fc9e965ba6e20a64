"""Samples under labels that no plan demands, after the release: one among many others counts like any."""

from __future__ import annotations

from collections.abc import Callable

from ledger.bodies import MemorySampled, SourceWatched
from ledger.run_state import MOST_LABELS
from tests.builders.runs import GIB, inserted, size, with_values
from tests.ledger.judge_cases.case import MIB, STAGE, WEIGHTS, Bodies, Case, probe
from tests.ledger.judge_cases.steps import PASS, without_owner

Change = Callable[[MemorySampled], MemorySampled]


def among(*changes: Change, labels: Callable[[int], str] = lambda number: "free"):
    """Before the watch is summed up, samples like that after decode, each changed by one of `changes`."""

    def apply(run: Bodies) -> Bodies:
        like = next(body for body in run if isinstance(body, MemorySampled) and body.label == "after-decode")
        taken: Bodies = [
            change(like.model_copy(update={"label": labels(number)})) for number, change in enumerate(changes)
        ]
        return inserted(run, taken, before=SourceWatched)

    return apply


def same(taken: MemorySampled) -> MemorySampled:
    return taken


def more(key: str, by: int, *sums: str) -> Change:
    """So many bytes more of one figure, and of the sums that have it."""

    def apply(taken: MemorySampled) -> MemorySampled:
        figures = taken.cuda if key.startswith("cuda") else taken.process
        raised = {name: figures[name].model_copy(update={"value": figures[name].value + by}) for name in (key, *sums)}
        return taken.model_copy(update={"cuda" if key.startswith("cuda") else "process": {**figures, **raised}})

    return apply


def owner(name: str, held: int) -> Change:
    return lambda taken: with_values(
        taken, {"census": taken.census.model_copy(update={"by_owner": {**taken.census.by_owner, name: size(held)}})}
    )


def value(path: str, figure: object) -> Change:
    return lambda taken: with_values(taken, {path: figure})


def chained(*changes: Change) -> Change:
    def apply(taken: MemorySampled) -> MemorySampled:
        for change in changes:
            taken = change(taken)
        return taken

    return apply


def hidden(change: Change) -> Callable[[Bodies], Bodies]:
    """That one sample is the fifth of nine of one label."""
    return among(*[same] * 4, change, *[same] * 4)


GROWN = more("rss_anon", GIB, "tree_sum", "vm_rss", "vm_hwm")

SAMPLES = [
    Case("many looks after the release that show nothing", "PASS", PASS, run=among(*[same] * 9)),
    Case(
        "looks after the release that differ a little, under more labels than are kept",
        "PASS",
        PASS,
        run=among(
            *[more("rss_anon", n * 4096, "tree_sum", "vm_rss", "vm_hwm") for n in range(MOST_LABELS + 50)],
            labels=lambda number: f"look-{number}",
        ),
    ),
    Case("one look of nine: the tree grew", "INDETERMINATE", {"memory.mirror-unknown"}, run=hidden(GROWN)),
    Case(
        "one look, under a label after more than are kept: the tree grew",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=among(*[same] * (MOST_LABELS + 50), GROWN, same, labels=lambda number: f"look-{number}"),
    ),
    Case(
        "one look of nine: private pages in place of the bank's",
        "FAIL",
        {"memory.mirror-unknown", "materialization.claim-contradicted"},
        run=hidden(chained(more("rss_anon", 200 * MIB, "vm_hwm"), more("rss_shmem", -200 * MIB))),
    ),
    Case(
        "one look of nine: figures that do not add up",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=hidden(more("rss_anon", 32 * MIB)),
    ),
    Case("one look of nine: staging is alive again", "FAIL", {"staging.owner-alive"}, run=hidden(owner(STAGE, 4096))),
    Case(
        "one look of nine: the resident bank is gone",
        "FAIL",
        {"materialization.not-live", "memory.mirror-unknown"},
        run=hidden(lambda taken: taken.model_copy(update={"census": without_owner(taken.census, WEIGHTS)})),
    ),
    Case(
        "one look of nine: the resident bank is half there",
        "FAIL",
        {"materialization.not-live", "memory.mirror-unknown"},
        run=hidden(owner(WEIGHTS, 128 * MIB)),
    ),
    Case(
        "one look of nine: an owner nobody planned", "FAIL", {"memory.unplanned-persistent"}, run=hidden(owner("x", 1))
    ),
    Case(
        "one look of nine: an owner with more than was planned",
        "FAIL",
        {"memory.unplanned-persistent"},
        run=hidden(owner(WEIGHTS, 256 * MIB + 4096)),
    ),
    Case(
        "one look of nine: host storage without an owner",
        "FAIL",
        {"memory.host-mirror"},
        run=hidden(value("census/unowned_host_bytes", probe(4096))),
    ),
    Case(
        "one look of nine: an ownerless storage without bytes",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=hidden(value("census/unowned_host_storages", probe(1))),
    ),
    Case(
        "one look of nine: evidence larger than what was bound",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=hidden(value("census/evidence_host_by_role/reference", probe(GIB))),
    ),
    Case(
        "one look of nine: the device's allocator grew",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=hidden(more("cuda:0.allocated", GIB, "cuda:0.reserved", "cuda:0.process", "cuda:0.peak")),
    ),
    Case(
        "one look of nine: the driver sees more than the allocator took",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=hidden(more("cuda:0.process", GIB)),
    ),
]
