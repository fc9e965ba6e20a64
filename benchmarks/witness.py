"""What watching costs the watched: the steps of a decode with a witness beside it and without, alternating in one run.

The watched process decodes a causal LM (the sample model where it is there, else one of 128 MiB made for it) whose
checkpoint stays memory-mapped, which is the dearest to look at, and reports the time of each block of steps, by the
clock and of its processor. One witness follows it, stopped for every other block and let go on for the next, in which it
looks at least once. The median over pairs of neighbouring blocks of (with - without) / without counts: other load on the
machine falls on both. A median that is not sure to within the target settles nothing.
`python benchmarks/witness.py [CHECKPOINT] [--pairs N]` prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

TARGET = 0.01
STEPS = 8
INTERVAL = "1.0"
"""Seconds between looks: the command's own default."""

WATCHED = """
import sys, time, torch, transformers
transformers.logging.set_verbosity_error(); transformers.logging.disable_progress_bar()
torch.set_num_threads(1)
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
steps = int(sys.argv[2])
with torch.no_grad():
    for parameter in model.parameters():
        parameter.sum()
    ids = torch.tensor([[3, 5, 7]])
    print('up', flush=True)
    for _ in sys.stdin:
        began, worked = time.perf_counter_ns(), time.process_time_ns()
        cache, token = None, ids
        for _ in range(steps):
            out = model(token, past_key_values=cache, use_cache=True)
            cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        print(time.perf_counter_ns() - began, time.process_time_ns() - worked, flush=True)
"""


def made(folder: Path) -> Path:
    """A causal LM of 128 MiB."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32768, hidden_size=512, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def word(process: subprocess.Popen[str]) -> str:
    """The process's next line. Raises RuntimeError when it ended instead."""
    line = process.stdout.readline().strip() if process.stdout is not None else ""
    if not line:
        raise RuntimeError("the process ended")
    return line


def block(watched: subprocess.Popen[str]) -> tuple[int, int]:
    """Nanoseconds of a block of steps: by the clock, and of the processor."""
    if watched.stdin is None:
        raise RuntimeError("the watched process cannot be spoken to")
    watched.stdin.write("go\n")
    watched.stdin.flush()
    clock, processor = word(watched).split()
    return int(clock), int(processor)


def witness(pid: int, checkpoint: Path, folder: Path) -> subprocess.Popen[str]:
    """A witness that has taken its first sample and goes on looking."""
    command = [sys.executable, "-m", "realizer.cli.main", "observe", "--pid", str(pid), "--follow"]
    command += ["--labels-from-stdin", "--interval", INTERVAL, "--checkpoint", str(checkpoint)]
    process = subprocess.Popen(
        [*command, "--ledger", str(folder / "tally.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TALLY_STATE_DIR": str(folder / "state")},
    )
    word(process)
    return process


Pair = tuple[tuple[int, int], tuple[int, int]]
"""A block without and a block with the witness, each by the clock and of the processor."""


def pairs(checkpoint: Path, count: int, folder: Path) -> list[Pair]:
    """Neighbouring blocks, which of them comes first alternating."""
    watched = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WATCHED, str(checkpoint), str(STEPS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    beside: subprocess.Popen[str] | None = None
    found = []
    try:
        word(watched)
        block(watched)
        beside = witness(watched.pid, checkpoint, folder)
        for number in range(count):
            times = {}
            for looking in (False, True) if number % 2 == 0 else (True, False):
                beside.send_signal(signal.SIGCONT if looking else signal.SIGSTOP)
                times[looking] = block(watched)
            found.append((times[False], times[True]))
        beside.send_signal(signal.SIGCONT)
        beside.communicate(timeout=60)
    finally:
        for process in (watched, beside):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
    return found


def cost(found: list[Pair], which: int, what: str) -> dict[str, object]:
    """The figure: median of the pairs, and how sure it is (the notch of a box plot: 1.57 quartile ranges / sqrt(n))."""
    costs = [(looked_at[which] - alone[which]) / alone[which] for alone, looked_at in found]
    low, middle, high = statistics.quantiles(costs, n=4)
    unsure = 1.57 * (high - low) / math.sqrt(len(costs))
    return {
        "name": f"watching, share of the watched decode's {what}",
        "value": round(middle, 4),
        "target": f"at most {TARGET}",
        "ok": middle <= TARGET if unsure <= TARGET else None,
        "unsure": round(unsure, 4),
        "pairs": len(found),
    }


def main() -> int:
    options = argparse.ArgumentParser(prog="benchmarks/witness.py", description=__doc__)
    options.add_argument("checkpoint", type=Path, nargs="?", default=ROOT / "build" / "sample")
    options.add_argument("--pairs", type=int, default=60)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        checkpoint = arguments.checkpoint
        if not (checkpoint / "config.json").exists():
            checkpoint = made(folder / "model")
        found = pairs(checkpoint, arguments.pairs, folder)
    for which, what in enumerate(("time by the clock", "processor time")):
        print(json.dumps(cost(found, which, what)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
