"""What the host holds while weights are streamed, what it gets back afterwards, and how fast a cold file comes in; on a CPU.

A synthetic checkpoint is streamed through a ring in private memory into a shared-memory bank, and staged whole and carried
on, each load in a process of its own, since the kernel's high-water mark is the process's. The peak is VmHWM less what
was resident before and less the bank, which stays; give-back is by the probes of the process tree, as a run records it.
For the cold row the file's pages are dropped (`posix_fadvise`) before plain sequential reading and before ours, alternating,
and the median of the rounds' ratios counts; it settles nothing where pages stayed.
`python benchmarks/staging.py [--size MIB] [--rounds N] [--folder DIR]` prints one JSON line per figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.load import MIB, WINDOW, synthetic
from benchmarks.load_device import make_cold, read_through, status_bytes
from realizer.adapter import Layout, pack
from realizer.checkpoint import Checkpoint, open_checkpoint
from realizer.loader import Loader
from realizer.memory import SHARED_MEMORY, SYSTEM_RAM, Ranges
from realizer.probes import Probes

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = int(WINDOW * 1.1) + 64 * MIB
GIVE_BACK = 0.99
COLD = 0.95


def layout_of(checkpoint: Checkpoint) -> Layout:
    return pack("benchmark", [(key, entry.dtype, entry.shape, (key,)) for key, entry in checkpoint.tensors.items()])


def one(checkpoint: Checkpoint, way: str) -> dict[str, float]:
    """One load in this process: seconds (of clock and processors), bytes of host peak over idle and bank, ratio given back."""
    layout, ranges = layout_of(checkpoint), Ranges()
    probes = Probes(ranges, checkpoint.paths)
    probes.baseline()
    loader = Loader(checkpoint)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    idle = status_bytes("VmRSS")
    started, processors = time.perf_counter(), time.process_time()
    bank = ranges.allocate(SHARED_MEMORY, layout.length, owner="bank")
    staging = ranges.allocate(SYSTEM_RAM, WINDOW if way == "streamed" else layout.length, owner="staging")
    if way == "streamed":
        loader.stream(layout, staging, bank)
    else:
        loader.read(layout, staging)
        loader.copy(layout, staging, bank)
    seconds, processors = time.perf_counter() - started, time.process_time() - processors
    peak = status_bytes("VmHWM") - idle - bank.length
    before = probes.sample("before").process["tree_sum"].value
    length = staging.length
    ranges.free(staging)
    after = probes.sample("after").process["tree_sum"].value
    if not isinstance(before, int) or not isinstance(after, int):
        raise SystemExit("the process tree's memory cannot be read here")
    return {"seconds": seconds, "processors": processors, "peak": peak, "give_back": (before - after) / length}


def apart(source: Path, way: str) -> dict[str, float]:
    """`one` in a process of its own."""
    command = [sys.executable, __file__, "--source", str(source), "--one", way]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(source: Path, rounds: int) -> None:
    checkpoint = open_checkpoint(source)
    read_through(checkpoint)
    streamed = [apart(source, "streamed") for _ in range(rounds)]
    full = [apart(source, "full") for _ in range(rounds)]
    peak = statistics.median(found["peak"] for found in streamed)
    say("host peak while streaming", value=int(peak), unit="bytes", target=ALLOWED, ok=peak <= ALLOWED)
    for way, taken in (("full", full), ("streamed", streamed)):
        ratio = statistics.median(found["give_back"] for found in taken)
        # The ring is too small for its return to stand out from an interpreter's own pages.
        target = GIVE_BACK if way == "full" else None
        ok = None if target is None else ratio >= target
        say(f"given back after release, {way}", ratio=round(ratio, 4), target=target, ok=ok)
    cold(checkpoint, source, rounds)


def cold(checkpoint: Checkpoint, source: Path, rounds: int) -> None:
    plain, ours, stayed = [], [], 0.0
    for _ in range(rounds):
        stayed = max(stayed, make_cold(checkpoint))
        plain.append(read_through(checkpoint).total)
        stayed = max(stayed, make_cold(checkpoint))
        ours.append(apart(source, "streamed"))
    ratio = statistics.median(one / found["seconds"] for one, found in zip(plain, ours, strict=True))
    ok = ratio >= COLD if stayed < 0.01 else None
    # Where the processors' share alone is as long as plain reading, they and not the disk are the limit.
    share = statistics.median(found["processors"] for found in ours) / len(os.sched_getaffinity(0))
    say(
        "cold load, against sequential reading",
        ratio=round(ratio, 3),
        target=COLD,
        ok=ok,
        pages_that_stayed=stayed,
        plain_seconds=round(statistics.median(plain), 3),
        processor_seconds_a_core=round(share, 3),
    )


def say(name: str, **figure: object) -> None:
    print(json.dumps({"name": name, **figure}), flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", type=int, default=512, metavar="MIB")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--folder", help="where the checkpoint goes; a temporary folder otherwise")
    options.add_argument("--source", type=Path, help="the checkpoint to load (what each round is given)")
    options.add_argument("--one", metavar="WAY", help="load once that way (what each round runs)")
    chosen = options.parse_args()
    if chosen.one:
        print(json.dumps(one(open_checkpoint(chosen.source), chosen.one)))
        return
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        measure(synthetic(Path(folder) / "model", chosen.size * MIB), chosen.rounds)


if __name__ == "__main__":
    main()
