"""How fast a ledger is verified, against reading its rows with one SHA-256 and one `json.loads` each; and an evidence file.

The ledger holds runs of 1,000 events of about 660 bytes. After each page the audit is paused and the baseline goes over the
same page, so that other load on the machine falls on both alike. Evidence of 200 events is verified by the command itself;
its processor time counts, less that of `tally --version`, which on an idle machine is the time a user waits. Modules are
compiled beforehand, as an installation leaves them, whatever this environment says of writing bytecode.
`python benchmarks/verify.py [--events N] [--folder DIR]` prints one JSON line per figure, and a table to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ledger import canonical, keys, schema, sqlite
from ledger.audit import verify_ledger
from ledger.bodies import MaterializationReleased, PlanFrozen
from ledger.events import Actor
from ledger.export import export_run
from ledger.recording import Draft, ListLedger
from ledger.store import Store
from tests.builders.judged import add_run, fill, run_bodies, run_id, stored
from tests.builders.runs import count, edited_plan, opened, size, small_plan

LEDGER_TARGET = 1.6
EVIDENCE_TARGET = 1.0
"""Seconds over start-up."""
EVIDENCE_EVENTS = 200
EVENTS_A_RUN = 1_000
ROUNDS = 5
PLAN = small_plan()


def envelopes(events: int) -> Iterator[str]:
    """Envelopes in order of position, each run chained; made from templates, since RFC 8785 is slow."""
    actor = Actor(kind="realizer", id="tallystick 0.1")
    released = MaterializationReleased(
        materialization_id="mat.weights.stage",
        bytes_before=size(2**28),
        bytes_after=size(0),
        released_bytes=size(2**28),
        owners_total=count(2, "weak references"),
        owners_alive=count(0, "weak references"),
    )
    stamp = "2026-11-29T12:00:00.000000Z"

    def template(body: object, run: str) -> str:
        return Draft("EVENT_ID", run, body, stamp, 1, "node-a", actor).seal(987654321, "PREVIOUS")  # type: ignore[arg-type] # any body

    freezing = PlanFrozen(digest=PLAN.computed_digest, blob_digest=PLAN.blob_digest)
    yield (
        template(freezing, "RUN")
        .replace("PREVIOUS", bare(PLAN.computed_digest))
        .replace("987654321", "0")
        .replace("EVENT_ID", f"{0:032x}")
        .replace('"RUN"', f'"{2**120:032x}"')
    )
    first, other = template(opened(PLAN), "RUN"), template(released, "RUN")
    previous = ""
    for number in range(events - 1):
        run, sequence = divmod(number, EVENTS_A_RUN)
        if sequence == 0:
            previous = bare(PLAN.computed_digest)
        text = first if sequence == 0 else other
        text = text.replace("PREVIOUS", previous).replace("987654321", str(sequence))
        text = text.replace("EVENT_ID", f"{number + 1:032x}").replace('"RUN"', f'"{run:032x}"')
        previous = canonical.event_hash(text)
        yield text


def bare(digest: str) -> str:
    return digest.removeprefix("sha256:")


def make_ledger(path: Path, events: int) -> None:
    """Written past the store's checks, which the audit is to make; the bytes are what the store would have written."""
    with Store.open(path, write=True, create=True) as store:
        store.put_blob(PLAN.data, "application/json")
    connection = sqlite.sqlite_driver().connect(str(path), isolation_level=None)
    try:
        connection.execute("DROP TRIGGER events_insert_guard")
        connection.execute("BEGIN")
        rows = ((position, text, canonical.event_hash(text)) for position, text in enumerate(envelopes(events)))
        connection.executemany("INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
        connection.execute(schema.guards("sqlite")["events_insert_guard"])
    finally:
        connection.close()


class Baseline:
    """Reading the rows, one SHA-256 and one json.loads each: what is called as the audit's progress."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite.sqlite_driver().connect(str(path), isolation_level=None)
        self.events = 0
        self.seconds = 0.0

    def __call__(self, done: int, total: int) -> None:
        started = time.perf_counter()
        cursor = self._connection.execute(
            "SELECT position, envelope, hash FROM events WHERE position >= ? AND position < ? ORDER BY position",
            (self.events, done),
        )
        for _, envelope, _ in cursor:
            sha256(envelope.encode("utf-8")).hexdigest()
            json.loads(envelope)
            self.events += 1
        self.seconds += time.perf_counter() - started


def measure_ledger(path: Path, events: int) -> tuple[float, float]:
    """(seconds of the audit, seconds of the baseline)."""
    baseline = Baseline(path)
    started = time.perf_counter()
    document = verify_ledger(path, use_state=False, progress=baseline)
    took = time.perf_counter() - started - baseline.seconds
    if document.status != "valid-unanchored" or baseline.events != events:
        raise SystemExit(
            f"the ledger that was made is {document.status}, {baseline.events} read: {document.problems[:3]}"
        )
    return took, baseline.seconds


def make_evidence(folder: Path) -> list[str]:
    """An evidence file of 200 events and its key; returns the arguments that verify it."""
    short = len(run_bodies(PLAN)) + 1 - PLAN.correctness.repetitions
    plan = edited_plan(PLAN, lambda document: document["correctness"].update(repetitions=EVIDENCE_EVENTS - short))
    contents = ListLedger()
    add_run(contents, 1, plan, bodies=run_bodies(plan))
    keys.generate(folder / "bench.pem", None)
    path = stored(folder / "evidence.db", contents, (plan,))
    with Store.open(path, write=True) as store:
        fill(store, contents, (plan,))
    with Store.open(path) as store:
        if store.next_sequence(run_id(1)) != EVIDENCE_EVENTS:
            raise SystemExit(f"the run has {store.next_sequence(run_id(1))} events, not {EVIDENCE_EVENTS}")
        data = export_run(store, run_id(1), keys.load_private(folder / "bench.pem"))
    (folder / "evidence.json").write_bytes(data)
    return ["verify", str(folder / "evidence.json"), "--key", str(folder / "bench.pub")]


def command_seconds(arguments: list[str], compiled: Path) -> float:
    """Seconds of processor time that the command took; bytecode is kept in the folder `compiled`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(compiled)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import sys\nfrom realizer.cli.main import main\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"tally {' '.join(arguments)} failed: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure verification against its budgets.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        make_ledger(folder / "tally.db", options.events)
        audit, baseline = measure_ledger(folder / "tally.db", options.events)
        ratio = audit / baseline
        figures.append(
            {"name": f"verify ledger, {options.events} events", "ratio": round(ratio, 3), "target": LEDGER_TARGET,
             "ok": ratio <= LEDGER_TARGET}
        )  # fmt: skip
        arguments = make_evidence(folder)
        compiled = folder / "bytecode"
        command_seconds(arguments, compiled)
        over = [command_seconds(arguments, compiled) - command_seconds(["--version"], compiled) for _ in range(ROUNDS)]
        seconds = statistics.median(over)
        figures.append(
            {"name": f"verify evidence, {EVIDENCE_EVENTS} events, processor seconds over start-up", "ratio": round(seconds, 3),
             "target": EVIDENCE_TARGET, "ok": seconds <= EVIDENCE_TARGET}
        )  # fmt: skip
    for figure in figures:
        print(json.dumps(figure))
    print(f"\n{'what':58} {'measured':>10} {'target':>8}", file=sys.stderr)
    for figure in figures:
        verdict = "ok" if figure["ok"] else "MISSED"
        print(f"{figure['name']:58} {figure['ratio']:>10} {figure['target']:>8}  {verdict}", file=sys.stderr)
    print(
        f"\naudit {audit:.2f} s ({audit / options.events * 1e6:.2f} us an event), reading, hashing and parsing alone "
        f"{baseline:.2f} s ({baseline / options.events * 1e6:.2f} us an event)",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
