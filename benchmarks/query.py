"""How fast people's questions are answered: run list, one run, each named query, on 1,000 runs and 200,000 events.

The figures are seconds against a target of one second on two cores; `ratio` is seconds over target, so 1 or less is ok.
`python benchmarks/query.py [--runs N] [--postgres URL] [--keep PATH]`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ledger.bodies import VerdictRecorded
from ledger.canonical import encode
from ledger.events import Actor
from ledger.query import NAMED, run_query
from ledger.recording import Draft, uuid7
from ledger.store import Store
from tests.builders.runs import clean_bodies, edited_plan, small_plan

TARGET_SECONDS = 1.0
EXTRA_MATERIALIZATIONS = 37
"""So many beside the small plan's make a run of 200 events."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=1_000)
    options.add_argument("--postgres", metavar="URL", help="a PostgreSQL database to fill and ask instead")
    options.add_argument("--keep", metavar="PATH", help="where the ledger is kept, and used again")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        location = chosen.postgres or chosen.keep or str(Path(folder) / "tally.db")
        if chosen.postgres or not Path(location).exists():
            fill(location, chosen.runs)
        ask(location)


def fill(location: str, runs: int) -> None:
    """Record `runs` runs of 200 events each, with the blobs that list their tensors."""

    def more(document: dict[str, Any]) -> None:
        resident = document["materializations"][2]
        document["materializations"] += [
            {**resident, "id": f"mat.buffers.{number:02d}"} for number in range(EXTRA_MATERIALIZATIONS)
        ]

    plan = edited_plan(small_plan(), more)
    bodies = clean_bodies(plan)
    with Store.open(location, write=True, create=True) as store:
        store.put_blob(plan.data, "application/json")
        tensors = [
            {
                "name": f"model.blocks.{number}.weight",
                "dtype": "bfloat16",
                "shape": [576, 576],
                "offset": number * 663_552,
                "bytes": 663_552,
                "device": "cpu",
                "source_digest": None,
                "resident_digest": None,
                "why": "storage in the range of mat.weights.resident",
            }
            for number in range(272)
        ]
        started = time.perf_counter()
        for number in range(runs):
            # Every run has a listing of its own: addresses and digests differ in practice.
            tensors[0]["why"] = f"run {number}"
            blob = store.put_blob(encode(tensors).encode(), "application/json")
            run_id = uuid7()
            drafts = []
            verdict = VerdictRecorded(
                judge_version="1",
                verdict="PASS" if number % 7 else "FAIL",
                assurance="observed",
                codes=[] if number % 7 else ["staging.owner-alive", "memory.not-reclaimed"],
            )
            for sequence, body in enumerate([*bodies, verdict]):
                if getattr(body, "materialization_id", None) == "mat.weights.resident" and hasattr(
                    body, "tensors_blob"
                ):
                    body = body.model_copy(update={"tensors_blob": blob})
                drafts.append(
                    Draft(
                        event_id=uuid7(),
                        run_id=run_id,
                        body=body,
                        recorded_at=f"2026-11-{1 + number % 28:02d}T12:00:{sequence % 60:02d}.{number % 1000:06d}Z",
                        elapsed_ns=sequence * 1_000_000,
                        node_id="node-a",
                        actor=Actor(kind="realizer", id="tallystick"),
                    )
                )
            store.append(run_id, 0, drafts)
        print(
            f"{runs} runs of {len(bodies) + 1} events recorded in {time.perf_counter() - started:.0f} s",
            file=sys.stderr,
        )


def ask(location: str) -> None:
    """Time every question, the median of three, and print one JSON line each."""
    with Store.open(location) as store:
        newest, before = store.resolve("@latest"), store.resolve("@latest~1")
        given = {"a": before, "b": newest, "tensor": "model.blocks.7.weight"}
        questions: dict[str, Callable[[], int]] = {
            "runs": lambda: len(store.runs()),
            "one run": lambda: len(list(store.recorded(newest))),
            "one run's materializations": lambda: len(
                run_query(location, "SELECT * FROM materializations WHERE run_id = :run", {"run": newest}).rows
            ),
        }
        for query in NAMED.values():
            needed = {name: given[name] for name in query.parameters if name not in query.defaults}
            questions[query.name] = lambda sql=query.sql, needed=needed: len(  # type: ignore[misc]
                run_query(location, sql, needed, seconds=60).rows
            )
            if "run" in query.parameters:
                questions[f"{query.name}, one run"] = lambda sql=query.sql, needed=needed: len(  # type: ignore[misc]
                    run_query(location, sql, {**needed, "run": newest}, seconds=60).rows
                )
        print(f"{'question':36} {'rows':>7} {'seconds':>8}", file=sys.stderr)
        for name, question in questions.items():
            seconds, rows = sorted(timed(question) for _ in range(3))[1]
            ratio = round(seconds / TARGET_SECONDS, 3)
            print(json.dumps({"name": f"query: {name}", "ratio": ratio, "target": 1.0, "ok": ratio <= 1.0}))
            print(f"{name:36} {rows:7} {seconds:8.3f}", file=sys.stderr)


def timed(question: Callable[[], int]) -> tuple[float, int]:
    started = time.perf_counter()
    rows = question()
    return time.perf_counter() - started, rows


if __name__ == "__main__":
    main()
