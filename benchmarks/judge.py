"""How fast a long run is folded and judged, against reading its rows and `json.loads` of each; and in how much memory.

The run is the clean small one with a long decode in it: repetitions, free samples of memory and accesses of others to the
checkpoint, all through the store on SQLite. Slices of both sides alternate, so that other load on the machine falls on
both alike; their times are summed. `python benchmarks/judge.py [--events N] [--folder DIR]` prints one JSON line per
figure, and a table to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ledger import canonical, sqlite
from ledger.bodies import Body, SourceAccessed
from ledger.fold import fold
from ledger.measurement import measured, unavailable
from ledger.plan import Plan
from ledger.reconcile import judge
from ledger.recording import ListLedger
from ledger.run_state import RunState
from ledger.store import Store
from tests.builders.runs import RUN_ID, clean_bodies, decoded, edited_plan, opened, record, sample, small_plan

Maker = Callable[[int, str], str]
"""(sequence, previous) -> envelope."""

SLICE = 20_000
TARGET_RATIO = 2.5
TARGET_BYTES = 200 * 1024 * 1024
KINDS = 10
"""Of ten events in the long part, six are repetitions, three are samples and one is an access."""


def long_plan(events: int) -> Plan:
    """The small plan with as many repetitions as the run has."""
    return edited_plan(small_plan(), lambda document: document["correctness"].update(repetitions=repetitions(events)))


def repetitions(events: int) -> int:
    return events * 6 // KINDS


def long_run(events: int) -> Iterator[str]:
    """Envelopes of the whole run, chained, in order; the many ones made from templates, since RFC 8785 is slow."""
    plan = long_plan(events)
    few = clean_bodies(edited_plan(plan, lambda document: document["correctness"].update(repetitions=0)))
    few[0] = opened(plan)
    head = record(few, plan, frozen=False)
    envelopes = [recorded.envelope for recorded in head.recorded]
    decode_at = next(n for n, body in enumerate(few) if body.TYPE == "decode.ran") + 1
    previous = plan.computed_digest.removeprefix("sha256:")
    sequence = 0
    for at in (*map(placed, envelopes[:decode_at]), *[None], *map(placed, envelopes[decode_at:])):
        for maker in [at] if at is not None else many(plan, few, events):
            envelope = maker(sequence, previous)
            yield envelope
            previous = canonical.event_hash(envelope)
            sequence += 1


def placed(envelope: str) -> Maker:
    """A maker of that one envelope at another place of the chain."""
    event = json.loads(envelope)

    def at(sequence: int, previous: str) -> str:
        place = {"previous": previous, "sequence": sequence, "elapsed_ns": sequence, "event_id": event_id(sequence)}
        return canonical.encode(event | place)

    return at


def event_id(sequence: int) -> str:
    return f"01920000-0000-7000-8000-{sequence:012x}"


def many(plan: Plan, few: list[Body], events: int) -> Iterator[Maker]:
    """Makers of the long part's envelopes."""
    access = SourceAccessed(
        path=measured("model.safetensors", None, "inotify"),
        access="open",
        attributed_to="other",
        pid=unavailable(None, "inotify", "it does not say"),
        count=measured(1, "count", "inotify"),
        means="inotify",
    )
    live = [item.id for item in plan.materializations.values() if item.persistence == "persistent"]
    makers = {
        "decode": template(plan, few[0], decoded("exec.decode", "repetition", 987654321), "987654321"),
        "sample": template(plan, few[0], sample(plan, "free-987654321", live), "987654321"),
        "access": template(plan, few[0], access, None),
    }
    number = 0
    for index in range(events):
        kind = index % KINDS
        if kind < 6:
            yield makers["decode"](number)
            number += 1
        else:
            yield makers["sample" if kind < 9 else "access"](index)


def template(plan: Plan, first: Body, body: Body, mark: str | None) -> Callable[[int], Maker]:
    """A maker of envelopes like that of `body`, with `mark` replaced by a number, and its place in the chain."""
    ledger: ListLedger = record([first, body], plan, frozen=False)
    event = json.loads(ledger.recorded[1].envelope)
    places = {"elapsed_ns": 876543210, "event_id": "@event", "previous": "@previous", "sequence": 765432109}
    text = canonical.encode(event | places)

    def of(number: int) -> Maker:
        numbered = text.replace(mark, str(number)) if mark is not None else text

        def at(sequence: int, previous: str) -> str:
            return (
                numbered.replace("876543210", str(sequence), 1)
                .replace("@event", event_id(sequence), 1)
                .replace("@previous", previous, 1)
                .replace("765432109", str(sequence), 1)
            )

        return at

    return of


def write(path: Path, events: int) -> int:
    """Record the long run; its number of events."""
    with Store.open(path, write=True, create=True) as store:
        rows: list[tuple[int, str, str]] = []
        position = 0
        for envelope in long_run(events):
            rows.append((position, envelope, canonical.event_hash(envelope)))
            position += 1
            if len(rows) == SLICE:
                store.insert_recorded(rows)
                rows = []
        store.insert_recorded(rows)
    return position


def resident(key: str) -> int:
    """Bytes of VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"this kernel does not say {key}")


def measure(path: Path, events: int, total: int) -> None:
    """Read, fold and judge, and read and parse, slice by slice; print the figures."""
    plan = long_plan(events)
    driver = sqlite.sqlite_driver()
    rows = driver.connect(str(path)).execute("SELECT envelope FROM events ORDER BY position")
    with Store.open(path) as store:
        ours = store.events(RUN_ID)
        state: RunState | None = None
        parsing = folding = 0.0
        Path("/proc/self/clear_refs").write_text("5")
        idle = resident("VmRSS")
        while True:
            started = time.perf_counter()
            read = sum(1 for (envelope,) in islice(rows, SLICE) if json.loads(envelope))
            parsing += time.perf_counter() - started
            if not read:
                break
            started = time.perf_counter()
            state = fold(islice(ours, SLICE), state)
            folding += time.perf_counter() - started
    if state is None or state.events_seen != total:
        raise SystemExit(f"folded {state.events_seen if state else 0} of {total} events")
    started = time.perf_counter()
    judgement = judge(plan, state)
    judging = time.perf_counter() - started
    if judgement.codes != ["decode.access-unknown", "plan.freezing-not-recorded"]:
        raise SystemExit(f"the long run was judged {judgement.verdict}: {judgement.codes}")
    grown = resident("VmHWM") - idle
    ratio = (folding + judging) / parsing
    print(
        f"{total:,} events: rows and json.loads {parsing:.1f} s; read, fold {folding:.1f} s, judge {judging * 1e3:.0f} ms;"
        f" ratio {ratio:.2f}; peak {grown / 2**20:.0f} MiB over idle",
        file=sys.stderr,
    )
    name = f"fold and judge {total:,} events"
    against = {"name": f"{name}, against rows and json.loads", "ratio": round(ratio, 3), "target": TARGET_RATIO}
    print(json.dumps({**against, "ok": ratio <= TARGET_RATIO}))
    memory = {"name": f"{name}, peak memory over idle in bytes", "value": grown, "target": TARGET_BYTES}
    print(json.dumps({**memory, "ok": grown <= TARGET_BYTES}))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--events", type=int, default=1_000_000, help="events of the long part")
    options.add_argument("--folder", help="where the ledger goes; a temporary folder otherwise")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        path = Path(folder) / "tally.db"
        total = write(path, chosen.events)
        measure(path, chosen.events, total)


if __name__ == "__main__":
    main()
