"""How long a command takes before it does anything: `tally --version` and `tally query "select 1"`, over `python -c pass`.

Rounds of the three alternate, so that other load on the machine falls on all; the median of the rounds' differences counts.
Neither command may import torch, which is looked at in the very processes that are timed.
`python benchmarks/startup.py [--rounds N]` prints one JSON line per figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ledger.store import Store

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {"tally --version": 0.25, 'tally query "select 1"': 0.6}
"""Seconds over the interpreter's own start, on two cores."""
COMMAND = """
import sys
from realizer.cli.main import run
code = run(sys.argv[1:])
sys.exit(code or (3 if "torch" in sys.modules else 0))
"""


def seconds(code: str, *arguments: str) -> float:
    """Seconds that `python -c CODE ARGUMENTS` takes. Exits when it fails, or says by 3 that it imported torch."""
    started = time.perf_counter()
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{arguments} ended with {done.returncode} (3: it imported torch): {done.stderr}")
    return taken


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=11)
    rounds = options.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "tally.db"
        Store.open(ledger, write=True, create=True).close()
        arguments = dict(zip(TARGETS, [("--version",), ("query", "select 1", "--ledger", str(ledger))], strict=True))
        over: dict[str, list[float]] = {name: [] for name in TARGETS}
        for number in range(rounds + 1):  # the first, which reads everything from the disk, does not count
            bare = seconds("pass")
            for name, given in arguments.items():
                taken = seconds(COMMAND, *given) - bare
                if number:
                    over[name].append(taken)
    for name, taken in over.items():
        median = statistics.median(taken)
        line = {"name": f"start-up: {name}", "value": round(median, 3), "unit": "seconds over python -c pass"}
        print(json.dumps({**line, "target": TARGETS[name], "ok": median <= TARGETS[name], "rounds": rounds}))


if __name__ == "__main__":
    main()
