"""What recording costs a decode: the same decode with the checkpoint watched and each repetition recorded durably, and bare.

A causal LM (the checkpoint given, else a tiny one made for it) is realised by the engine; on its live model decodes of
both kinds alternate, from the same restored baseline, so that other load on the machine falls on both. The median over pairs
of the ratio of their times counts. Looks at the plan and events appended while the model ran are counted in the same
decodes, and have to be none.
`python benchmarks/decode.py [CHECKPOINT] [--pairs N]` prints one JSON line per figure.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from adapters.causal_lm import CausalLM
from ledger.events import Actor
from ledger.plan import Plan, freeze, parse_plan
from ledger.recording import ListLedger, Recorder, uuid7
from ledger.store import Store
from realizer import decode, engine
from realizer.adapter import PlanHandle, ReferenceFixture
from realizer.checkpoint import Checkpoint, open_checkpoint
from realizer.drafting import DraftOptions, draft_plan
from realizer.environment import observe_environment
from realizer.watch import CheckpointWatch
from tests.builders.checkpoints import tiny_model

TARGET = 1.01
EXECUTION = "exec.decode"


def planned(checkpoint: Checkpoint, folder: Path) -> tuple[Plan, Path]:
    """A frozen plan of one repetition, and its reference."""
    options = DraftOptions(repetitions=1)
    draft = parse_plan(draft_plan(checkpoint, CausalLM, observe_environment(), options))
    reference = folder / "reference.safetensors"
    digest = decode.save_fixture(CausalLM.reference(draft, checkpoint, None, [3, 1, 4, 1, 5]), reference)
    return freeze(draft, reference_digest=digest), reference


class Counted:
    """An adapter whose decode is laid between two counts of the ledger's events."""

    def __init__(self, adapter: Any, store: Store) -> None:
        self._adapter, self._store = adapter, store
        self.written = 0

    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> Any:
        before = self._store.size()
        output = self._adapter.decode(fixture, mode)
        self.written += self._store.size() - before
        return output


def measure(run: engine.LiveRun, checkpoint: Checkpoint, reference: Path, pairs: int, store: Store) -> None:
    fixture, handle = decode.load_fixture(reference), PlanHandle(run.plan)
    recorder = Recorder(store.append, run_id=uuid7(), node_id="bench", actor=Actor(kind="realizer", id="benchmark"))
    recorder(opening(run))
    adapter = run.adapter
    counted = Counted(adapter, store)
    expected, ratios, looks = run.plan.correctness, [], 0

    def bare() -> float:
        adapter.restore_baseline()
        started = time.perf_counter_ns()
        adapter.decode(fixture)
        return time.perf_counter_ns() - started

    def recorded(number: int) -> float:
        nonlocal looks
        watch = CheckpointWatch(checkpoint.paths)
        watch.arm()
        watch.mark()
        adapter.restore_baseline()
        body = decode.repetition(adapter, fixture, EXECUTION, expected, handle, number)
        recorder(body)
        watch.close()
        looks += int(body.plan_lookups.value or 0)
        return float(body.elapsed_ns.value or math.nan)

    for number in range(pairs + 1):
        if number % 2:
            first, second = recorded(number), bare()
            with_it, without = first, second
        else:
            without, with_it = bare(), recorded(number)
        if number:  # the first pair warms up
            ratios.append(with_it / without)
    adapter.restore_baseline()
    decode.repetition(counted, fixture, EXECUTION, expected, handle, pairs + 1)  # type: ignore[arg-type] # only decode is called
    low, median, high = statistics.quantiles(ratios, n=4)
    unsure = 1.57 * (high - low) / math.sqrt(len(ratios))
    settled = unsure <= TARGET - 1
    line = {"name": "decode with recording", "ratio": round(median, 4), "target": TARGET, "unsure": round(unsure, 4)}
    print(json.dumps({**line, "ok": median <= TARGET if settled else None, "pairs": len(ratios)}))
    print(json.dumps({"name": "decode: plan looks", "value": looks, "target": 0, "ok": looks == 0}))
    written = counted.written
    print(json.dumps({"name": "decode: events written meanwhile", "value": written, "target": 0, "ok": written == 0}))


def opening(run: engine.LiveRun) -> Any:
    """The run's own first body, for the stream that the recorded decodes go to."""
    if run.state.opened is None:
        raise SystemExit("the run has no opening")
    return run.state.opened.body


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("checkpoint", type=Path, nargs="?")
    options.add_argument("--pairs", type=int, default=60)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        checkpoint = open_checkpoint(chosen.checkpoint or tiny_model(folder / "model"))
        plan, reference = planned(checkpoint, folder)
        memory = ListLedger()
        recorder = Recorder(memory.append, run_id=uuid7(), node_id="bench", actor=Actor(kind="realizer", id="bench"))
        request = engine.Request(plan, checkpoint=str(checkpoint.directory), reference=reference, adapter=CausalLM)
        with (
            Store.open(folder / "tally.db", write=True, create=True) as store,
            engine.realize(request, sink=recorder, put_blob=store.put_blob) as run,
        ):
            if run.judgement.verdict == "FAIL":
                raise SystemExit(f"the run fails: {run.judgement.codes}")
            measure(run, checkpoint, reference, chosen.pairs, store)


if __name__ == "__main__":
    main()
