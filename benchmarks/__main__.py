"""`make bench`: the budgets row by row, what this machine measured for each, and whether it was met.

One script after another runs, each measuring ratios side by side; its figures are kept as JSON lines (`--lines FILE`) and
laid against the budgets in one table: met, missed, not settled (the figure is too unsure, or cannot show it here), or
skipped, with the reason. A row for which a script printed nothing is a fault of the harness, and the exit status 1; a
missed budget is not. `--quick` runs everything at sizes too small to judge, to show that the table is whole.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINES = ROOT / "build" / "bench" / "figures.jsonl"
GPU = "needs a GPU that torch can use"

Figure = dict[str, Any]
"""`name`, `ratio` or `value`, `target`, `ok` (true, false, or null where it settles nothing), and what else the script says."""


@dataclass(frozen=True)
class Row:
    """One budget: what is measured, the target in words, and how the names of its figures begin."""

    what: str
    budget: str
    figures: str | tuple[str, ...]
    needs: str | None = None


BUDGETS = (
    Row("durable append, 1 event a commit", "at least 0.8 of raw SQLite", "durable append, 1 event a"),
    Row("durable append, 1,000 a commit", "at least 0.7 of raw SQLite", "durable append, 1,000"),
    Row("fold and judge a long run", "at most 2.5 times rows and json.loads; 200 MiB", "fold and judge"),
    Row("verify a ledger", "at most 1.6 times rows, SHA-256, json.loads", "verify ledger"),
    Row("streamed load to a GPU, many tensors", "at least 5 times load_file", "load.device.block", GPU),
    Row("streamed load to a GPU, few large tensors", "at least 3 times load_file", "load.device.large", GPU),
    Row("streaming to a GPU", "at least 0.5 of the pinned copy's rate", "load.device.streaming", GPU),
    Row("streamed load, cold", "at least 0.95 of sequential reading", ("cold load", "load.device.cold")),
    Row("load on CPU into shared memory", "at least 1.0 of the fastest peer", "load.cpu"),
    Row("host peak while streaming", "window + 10 % + 64 MiB", ("host peak", "load.device.host_peak")),
    Row("host memory given back", "at least 0.99 of the staging bytes", ("given back", "load.device.give_back")),
    Row("decode with recording on", "at most 1.01 times; no plan looks, no writes", "decode"),
    Row("content verification", "at most 2 times the load, 16 cores and a GPU", "load.device.verification", GPU),
    Row("start-up of tally --version", "at most 0.25 s over python", "start-up: tally --version"),
    Row('start-up of tally query "select 1"', "at most 0.6 s over python", "start-up: tally query"),
    Row("verify evidence of 200 events", "under 1 s over start-up", "verify evidence"),
    Row("named queries on 1,000 runs", "at most 1 s each", "query:"),
    Row("pages of the site on 1,000 runs", "at most 1 s each", "page:"),
    Row("watching a decode from outside", "at most 0.01 of its time", "watching"),
)


def scripts(quick: bool, events: int, sample: Path, gpu: bool, folder: Path) -> list[list[str]]:
    """Each script with its arguments, the short ones first."""
    model = [str(sample)] if sample.is_dir() and not quick else []

    def size(option: str, small: object, full: object = None) -> list[str]:
        value = small if quick else full
        return [] if value is None else [option, str(value)]

    found = [
        ["startup.py", *size("--rounds", 1)],
        ["append.py", *size("--rounds", 1)],
        ["query.py", *size("--runs", 3)],
        ["pages.py", *size("--runs", 3)],
        ["decode.py", *model, *size("--pairs", 4)],
        ["witness.py", *model, *size("--pairs", 2)],
        ["staging.py", *size("--size", 8), *size("--rounds", 1)],
        ["load.py", *model, *size("--synthetic", 8), *size("--rounds", 1)],
        ["verify.py", *size("--events", 2_000, events)],
        ["judge.py", *size("--events", 2_000, events)],
    ]
    if gpu:
        found.append(["load_device.py", "--folder", str(folder / "device"), *(["--tiny"] if quick else [])])
    return found


def has_gpu() -> bool:
    """Whether torch can use a GPU here."""
    import torch

    return torch.cuda.is_available()


def run(script: Sequence[str]) -> tuple[list[Figure], str | None]:
    """The figures that a script printed, and what is wrong when it printed none or failed."""
    name, *arguments = script
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name)), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    if not figures:
        return [], f"{name} printed no figure (exit {done.returncode}): {last}"
    missed = any(figure.get("ok") is False for figure in figures)
    return figures, f"{name} ended with {done.returncode}: {last}" if done.returncode and not missed else None


def state(figures: Sequence[Figure], quick: bool) -> str:
    """What a row's figures amount to."""
    judged = [figure["ok"] for figure in figures if figure.get("target") is not None]
    if quick:
        return "measured"
    if False in judged:
        return "MISSED"
    return "not settled" if None in judged or not judged else "met"


def table(figures: Sequence[Figure], gpu: bool, quick: bool) -> Iterator[tuple[str, str, str, str]]:
    """(what, figure, budget, state) for every budget, in their order; a state that begins with `no figure` is a fault."""
    for row in BUDGETS:
        own = [figure for figure in figures if str(figure["name"]).startswith(row.figures)]
        if row.needs is not None and not gpu:
            yield row.what, "", row.budget, f"skipped: {row.needs}"
        elif not own:
            yield row.what, "", row.budget, "no figure: no script printed one"
        else:
            yield row.what, _shown(own), row.budget, state(own, quick)


def _shown(figures: Sequence[Figure]) -> str:
    """A row's figures in one cell: those with a target where there are any; of many the worst, by how many there are."""
    bound = [figure for figure in figures if figure.get("target") is not None] or list(figures)
    values = [figure.get("ratio", figure.get("value")) for figure in bound]
    if len(values) > 3:
        return f"{max(values)} at most, of {len(values)}"
    return ", ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in values)


def machine() -> str:
    """Where and when this was measured, in a line."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    load = ", ".join(f"{figure:.1f}" for figure in os.getloadavg())
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{now}; {os.cpu_count()} cores, {model}; Python {platform.python_version()}; load average {load}"


def main() -> int:
    options = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    options.add_argument("--quick", action="store_true", help="sizes too small to judge")
    options.add_argument("--events", type=int, default=1_000_000, help="of the ledgers of the long measurements")
    options.add_argument("--sample", type=Path, default=ROOT / "build" / "sample")
    options.add_argument("--lines", type=Path, default=LINES, help="where the figures go, one JSON document a line")
    chosen = options.parse_args()
    chosen.lines.parent.mkdir(parents=True, exist_ok=True)
    gpu, began = has_gpu(), machine()
    figures: list[Figure] = []
    faults = []
    for script in scripts(chosen.quick, chosen.events, chosen.sample, gpu, chosen.lines.parent):
        print(f"{' '.join(script)} ...", file=sys.stderr, flush=True)
        found, fault = run(script)
        figures += found
        faults += [fault] if fault else []
    head = {"name": "machine", "value": began, "quick": chosen.quick}
    chosen.lines.write_text("".join(json.dumps(line) + "\n" for line in (head, *figures)))
    rows = list(table(figures, gpu, chosen.quick))
    show(began, rows)
    print(f"\nthe figures, a JSON line each: {chosen.lines}")
    faults += [f"{what}: {how}" for what, _, _, how in rows if how.startswith("no figure")]
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if faults else 0


def show(began: str, rows: Sequence[tuple[str, str, str, str]]) -> None:
    """The table for people."""
    rows = [("budget", "figure", "target", "state"), *rows]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    print(began)
    for row in rows:
        print("  ".join([*(f"{cell:<{width}}" for cell, width in zip(row[:3], widths, strict=True)), row[3]]))


if __name__ == "__main__":
    sys.exit(main())
