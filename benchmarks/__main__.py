"""`make bench`: every figure of the budgets that this machine can measure, one script after another.

Each script prints one JSON line a figure; they are passed on as they come, and a table of all of them follows on standard
error. `--events N` makes the ledgers of the long measurements smaller than the budget's 1,000,000.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def scripts(events: int, sample: Path) -> list[list[str]]:
    """Each script with its arguments, the short ones first."""
    checkpoint = [str(sample)] if sample.is_dir() else []
    return [
        ["append.py"],
        ["query.py"],
        ["pages.py"],
        ["load.py", *checkpoint],
        ["verify.py", "--events", str(events)],
        ["judge.py", "--events", str(events)],
    ]


def main() -> int:
    options = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    options.add_argument("--events", type=int, default=1_000_000)
    options.add_argument("--sample", type=Path, default=HERE.parent / "build" / "sample")
    arguments = options.parse_args()
    figures: list[dict[str, object]] = []
    failed = []
    for script, *rest in scripts(arguments.events, arguments.sample):
        done = subprocess.run(
            [sys.executable, str(HERE / script), *rest], stdout=subprocess.PIPE, text=True, cwd=HERE.parent, check=False
        )
        sys.stdout.write(done.stdout)
        sys.stdout.flush()
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        figures += lines
        if not lines:
            failed.append(f"{script} printed no figure (exit {done.returncode})")
    width = max((len(str(figure.get("name"))) for figure in figures), default=4)
    for figure in figures:
        held = {True: "ok", False: "MISSED", None: ""}[figure.get("ok")]  # type: ignore[index]
        value = figure.get("ratio", figure.get("value"))
        print(
            f"{figure.get('name')!s:<{width}}  {value!s:<24} {figure.get('target', '')!s:<12} {held}", file=sys.stderr
        )
    for problem in failed:
        print(problem, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
