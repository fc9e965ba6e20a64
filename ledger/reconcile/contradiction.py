"""What a witness saw of a run, laid beside what the run's own probes say."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.documents import Finding
from ledger.fold import Figure, RunState
from ledger.plan import Plan
from ledger.reconcile.catalogue import finding
from ledger.reconcile.reading import known, number, shown, within

COMPARED = ("tree_sum", "rss_anon", "rss_shmem", "checkpoint_mappings")
"""Figures of the process tree that both sides take at a sample of the same label (bytes)."""

CODE = "materialization.claim-contradicted"


def witness_contradictions(plan: Plan, state: RunState, witness: RunState) -> Iterator[Finding]:
    """Where the witness saw something else: of a materialization, of the tree's memory at one label, of accesses.

    Memory is compared within the plan's noise, since the two do not look at the same instant. Sequences of the witness's
    own run stand in `observed`.
    """
    by = witness.run_id or "a witness"
    for name, seen in sorted(witness.materializations.items()):
        own = state.materializations.get(name)
        if not seen.observed or own is None or not own.observed:
            continue
        theirs, ours = seen.observed[-1], own.observed[-1]
        for fact in ("memory_resource_id", "representation", "bytes", "live"):
            left, right = getattr(ours.body, fact), getattr(theirs.body, fact)
            tolerance = plan.materializations[name].tolerance_bytes if name in plan.materializations else None
            if not known(left) or not known(right) or left.value == right.value:
                continue
            figures = number(left), number(right)
            if fact == "bytes" and within(*figures, tolerance):
                continue
            yield finding(
                CODE,
                name,
                expected={fact: shown(left)},
                observed={fact: shown(right), "witness": by, "sequence": theirs.sequence},
                events=[ours.sequence],
            )
    for label in sorted(set(state.samples) & set(witness.samples)):
        mine, other = state.sample(label), witness.sample(label)
        if mine is None or other is None:
            continue
        for key in COMPARED:
            left, right = number(mine.body.process.get(key)), number(other.body.process.get(key))
            if left is not None and right is not None and abs(left - right) > plan.host_noise_bytes:
                yield finding(
                    CODE,
                    f"{label}.{key}",
                    expected=left,
                    observed={key: right, "witness": by, "sequence": other.sequence},
                    events=[mine.sequence],
                )
    claimed, watched = _most_accesses(state), _most_accesses(witness)
    if claimed is not None and watched is not None and watched.value > claimed.value:
        yield finding(
            CODE,
            "checkpoint",
            expected={"tree_accesses": claimed.value},
            observed={"tree_accesses": watched.value, "witness": by, "sequence": watched.sequence},
            events=[claimed.sequence],
        )


def _most_accesses(state: RunState) -> Figure | None:
    accesses = state.watch.get("tree_accesses")
    return accesses.high if accesses is not None else None
