"""How fast the store appends, against raw SQLite doing the same: same driver, pragmas, row, canonicalisation and hash.

The same row is a row of the ledger's own table, with its generated columns and unique keys (`keyed`); what the store adds
to it, and what is measured, are guards, places given under the lock, conflict and idempotence. A table of three plain
columns without any key (`bare`) is timed beside it and shown, since the keys cost something too. Rounds of store and
baselines alternate, so that other load on the machine falls on all; the median of the rounds' ratios counts.
`python benchmarks/append.py [--folder DIR]` prints one JSON line per figure, and a table to standard error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ledger import canonical, schema, sqlite
from ledger.bodies import MaterializationStarted
from ledger.events import Actor, first_previous
from ledger.recording import Draft, timestamp, uuid7
from ledger.store import Store
from tests.builders.runs import opened, small_plan

TARGETS = {1: 0.8, 1_000: 0.7}
EVENTS_A_ROUND = {1: 300, 1_000: 3_000}


def drafts_of(run_id: str, count: int, *, first: bool) -> list[Draft]:
    """Drafts of about 660 bytes each; the first of a run opens it."""
    body = MaterializationStarted(
        materialization_id="mat.weights.resident",
        logical_state_id="state.weights",
        memory_resource_id="node-a.shm",
        representation="checkpoint-native-resident",
        role="required_residency",
        persistence="persistent",
    )
    actor = Actor(kind="realizer", id="tallystick 0.1")
    return [
        Draft(uuid7(), run_id, opened(small_plan()) if first and not n else body, timestamp(), n, "node-a", actor)
        for n in range(count)
    ]


class Raw:
    """SQLite by hand: what the same events cost with nothing around them."""

    def __init__(self, path: Path, *, keyed: bool) -> None:
        self.driver = sqlite.sqlite_driver()
        journal, synchronous = sqlite.journal_for(self.driver)
        self.connection = self.driver.connect(str(path), isolation_level=None)
        self.connection.execute(f"PRAGMA journal_mode = {journal}").fetchall()
        self.connection.execute(f"PRAGMA synchronous = {synchronous}")
        if keyed:
            self.connection.execute(schema.SQLITE_TABLES["events"])
            for statement in schema.SQLITE_INDEXES.values():
                self.connection.execute(statement)
        else:
            self.connection.execute(
                "CREATE TABLE events (position INTEGER PRIMARY KEY, envelope TEXT NOT NULL, hash TEXT NOT NULL) STRICT"
            )
        self.position = 0
        self.heads: dict[str, str] = {}

    def append(self, run_id: str, sequence: int, drafts: list[Draft]) -> None:
        previous = self.heads.get(run_id)
        rows = []
        for offset, draft in enumerate(drafts):
            envelope = draft.seal(sequence + offset, previous or first_previous(draft.body))
            previous = canonical.event_hash(envelope)
            rows.append((self.position + offset, envelope, previous))
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany("INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)", rows)
        self.connection.execute("COMMIT")
        self.position += len(rows)
        self.heads[run_id] = str(previous)


def rate(append: Callable[[str, int, list[Draft]], Any], events: int, a_commit: int) -> float:
    """Events a second of one round: a fresh run of `events`, `a_commit` at a time."""
    run_id = uuid7()
    drafts = drafts_of(run_id, events, first=True)
    started = time.perf_counter()
    for place in range(0, events, a_commit):
        append(run_id, place, drafts[place : place + a_commit])
    return events / (time.perf_counter() - started)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", help="where the files go; a temporary folder otherwise")
    options.add_argument("--rounds", type=int, default=15)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        place = Path(folder)
        with Store.open(place / "tally.db", write=True, create=True) as store:
            bare, keyed = Raw(place / "bare.db", keyed=False), Raw(place / "keyed.db", keyed=True)
            print(
                f"SQLite {bare.driver.sqlite_version}; events a second, median of {chosen.rounds} rounds",
                file=sys.stderr,
            )
            print(f"{'a commit':>8} {'store':>9} {'bare':>9} {'keyed':>9} {'/bare':>6} {'/keyed':>6}", file=sys.stderr)
            for a_commit, target in TARGETS.items():
                report(a_commit, target, chosen.rounds, store.append, bare.append, keyed.append)


def report(a_commit: int, target: float, count: int, *appends: Callable[[str, int, list[Draft]], Any]) -> None:
    """Alternate rounds of store, bare and keyed; print the figures."""
    rounds = [[rate(append, EVENTS_A_ROUND[a_commit], a_commit) for append in appends] for _ in range(count + 1)][1:]
    against_bare = statistics.median(store / bare for store, bare, _ in rounds)
    against_keyed = statistics.median(store / keyed for store, _, keyed in rounds)
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    print(
        f"{a_commit:8} {medians[0]:9.0f} {medians[1]:9.0f} {medians[2]:9.0f} {against_bare:6.2f} {against_keyed:6.2f}",
        file=sys.stderr,
    )
    name = f"durable append, {a_commit:,} event{'s' if a_commit > 1 else ''} a commit"
    line = {"name": name, "ratio": round(against_keyed, 3), "target": target, "ok": against_keyed >= target}
    print(json.dumps({**line, "ratio_against_bare": round(against_bare, 3), "events_a_second": round(medians[0])}))


if __name__ == "__main__":
    main()
