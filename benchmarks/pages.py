"""How fast pages are made: the served run list, a run's page, a comparison and JSON, on 1,000 runs and 200,000 events.

The figures are seconds against a target of one second on two cores; `ratio` is seconds over target, so 1 or less is ok.
`python benchmarks/pages.py [--runs N] [--keep PATH]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.query import TARGET_SECONDS, fill
from ledger.store import Store
from realizer.cli.site import LOOPBACK, site


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=1_000)
    options.add_argument("--keep", metavar="PATH", help="where the ledger is kept, and used again")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        location = Path(chosen.keep or Path(folder) / "tally.db")
        if not location.exists():
            fill(str(location), chosen.runs)
        asyncio.run(ask(location))


async def ask(location: Path) -> None:
    """Time every page, the first answer apart from the median of three after it, and print one JSON line each."""
    with Store.open(location) as store:
        newest, before = store.resolve("@latest"), store.resolve("@latest~1")
    client = site(location, LOOPBACK).client
    pages = {
        "run list": "/",
        "a run": f"/-/run/{newest}",
        "two runs": f"/-/compare?a={before}&b={newest}",
        "runs as JSON": f"/{location.stem}/runs.json?_size=1000",
        "a run's materializations as JSON": f"/{location.stem}/materializations.json?run_id={newest}",
    }
    print(f"{'page':36} {'bytes':>9} {'first':>8} {'seconds':>8}", file=sys.stderr)
    for name, path in pages.items():
        took = []
        for _ in range(4):
            started = time.perf_counter()
            answer = await client.get(path)
            took.append(time.perf_counter() - started)
            if answer.status_code != 200:
                raise SystemExit(f"{path} answered {answer.status_code}: {answer.text[:300]}")
        seconds = sorted(took[1:])[1]
        ratio = round(seconds / TARGET_SECONDS, 3)
        print(json.dumps({"name": f"page: {name}", "ratio": ratio, "target": 1.0, "ok": ratio <= 1.0}))
        print(f"{name:36} {len(answer.content):9} {took[0]:8.3f} {seconds:8.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
