"""Accesses to the checkpoint and what watched for them."""

from __future__ import annotations

from ledger.bodies import SourceAccessed, SourceWatched
from ledger.folding.keeping import keep
from ledger.run_state import BYTES, KEPT_ACCESSES, Extremes, RunState, Seen

WATCHED = (
    "armed",
    "overflowed",
    "network_filesystem",
    "tree_accesses",
    "other_accesses",
    "mapped_files",
    "open_descriptors",
    "read_bytes",
)
FLAGS = frozenset({"armed", "overflowed", "network_filesystem"})


def accessed(state: RunState, sequence: int, body: SourceAccessed) -> None:
    accesses = state.source_accesses
    accesses.by[body.attributed_to] = accesses.by.get(body.attributed_to, 0) + 1
    keep(accesses.kept.setdefault(body.attributed_to, []), Seen(sequence, body), KEPT_ACCESSES)


def watched(state: RunState, sequence: int, body: SourceWatched) -> None:
    keep(state.watches, Seen(sequence, body))
    state.last_watch = sequence
    if not body.means and state.blind_watch is None:
        state.blind_watch = sequence
    for name in WATCHED:
        figures = state.watch.get(name)
        if figures is None:
            figures = Extremes(unit=BYTES if name == "read_bytes" else None, flag=name in FLAGS)
            state.watch[name] = figures
        figures.add(sequence, getattr(body, name))
