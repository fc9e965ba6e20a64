"""How fast checkpoint bytes come into shared memory on a CPU, against the loaders that people would pick instead.

Every way ends with all tensors owned and fully written: a lazy map does not count. Ours ends in a shared-memory range of
exact layout, allocated (and its staging returned) within the time: `direct` (read where they stay), `streamed` (through a ring in
private memory) and `full` (a whole staging copy, then carried on). Page cache warm; every load in a process of its own,
as a first load is; rounds of all ways alternating, so that other load on the machine falls on all. The fastest round of
each counts; the median, and the rate per second of processor time, are shown beside it.
`python benchmarks/load.py [CHECKPOINT] [--rounds N] [--synthetic MIB]` prints one JSON line per figure, and a table to
standard error. Without a checkpoint, one of a few large tensors is written to a temporary folder. With `--device cuda` the
rows for a GPU are measured instead, as `load_device.py` says.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from realizer.adapter import Layout, pack
from realizer.checkpoint import Checkpoint, open_checkpoint
from realizer.loader import Loader
from realizer.memory import SHARED_MEMORY, SYSTEM_RAM, Ranges

TARGET = 1.0
MIB = 1024 * 1024
WINDOW = 8 * MIB
OURS = ("direct", "streamed", "full")
COUNTED = ("direct", "streamed")
"""The ways of ours that the target is set for; `full` writes every byte twice by design and is shown beside them."""

Way = Callable[[], object]


def synthetic(folder: Path, size: int) -> Path:
    """A checkpoint of eight equal bf16 tensors."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "none"}')
    rows = size // 8 // 2 // 1024
    tensors = {f"t{n}": torch.full((rows, 1024), n, dtype=torch.bfloat16) for n in range(8)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def our_ways(checkpoint: Checkpoint) -> dict[str, Way]:
    """Ours, each from allocation to a full bank, what was staged returned."""
    keys = [(key, entry.dtype, entry.shape, (key,)) for key, entry in checkpoint.tensors.items()]
    layout: Layout = pack("benchmark", keys)

    def direct() -> object:
        ranges = Ranges()
        Loader(checkpoint).read(layout, ranges.allocate(SHARED_MEMORY, layout.length, owner="bank"))
        return ranges

    def streamed() -> object:
        ranges = Ranges()
        bank = ranges.allocate(SHARED_MEMORY, layout.length, owner="bank")
        ring = ranges.allocate(SYSTEM_RAM, WINDOW, owner="ring")
        Loader(checkpoint).stream(layout, ring, bank)
        ranges.free(ring)
        return ranges

    def full() -> object:
        ranges, loader = Ranges(), Loader(checkpoint)
        stage = ranges.allocate(SYSTEM_RAM, layout.length, owner="stage")
        loader.read(layout, stage)
        loader.copy(layout, stage, ranges.allocate(SHARED_MEMORY, layout.length, owner="bank"))
        ranges.free(stage)
        return ranges

    return {"direct": direct, "streamed": streamed, "full": full}


def peers(checkpoint: Checkpoint) -> tuple[dict[str, Way], dict[str, str]]:
    """The peers that are installed, and why the others are left out."""
    paths = [str(path) for path in checkpoint.paths]

    def mapped() -> object:
        return [{key: tensor.clone() for key, tensor in load_file(path).items()} for path in paths]

    def positioned() -> object:
        loaded = []
        for path in paths:
            with safe_open(path, "pt", backend="pread") as file:
                loaded.append({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 - no mapping
        return loaded

    ways: dict[str, Way] = {"safetensors mmap": mapped, "safetensors pread": positioned}
    left_out: dict[str, str] = {}
    for name, module, build in (
        ("fastsafetensors", "fastsafetensors", _fastsafetensors),
        ("runai-model-streamer", "runai_model_streamer", _runai),
    ):
        try:
            importlib.import_module(module)
        except ImportError as error:
            left_out[name] = str(error)
            continue
        ways[name] = build(paths)
    return ways, left_out


def _fastsafetensors(paths: list[str]) -> Way:
    from fastsafetensors import fastsafe_open

    def load() -> object:
        with fastsafe_open(paths, device="cpu", nogds=True) as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping; they own its buffer

    return load


def _runai(paths: list[str]) -> Way:
    from runai_model_streamer import SafetensorsStreamer

    def load() -> object:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(paths)
            return dict(streamer.get_tensors())  # owned by default

    return load


def timed(way: Way) -> tuple[float, float]:
    """(seconds of wall clock, seconds of processor time) that one load takes."""
    processor, started = time.process_time(), time.perf_counter()
    result = way()
    taken = time.perf_counter() - started, time.process_time() - processor
    del result
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkpoint", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--synthetic", type=int, default=512, metavar="MIB", help="size without a checkpoint")
    parser.add_argument("--one", metavar="WAY", help="load once that way and print its seconds (what each round runs)")
    parser.add_argument("--device", default="cpu", help="cpu, or a torch device such as cuda:0")
    arguments = parser.parse_args()
    if arguments.device != "cpu":
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(Path(__file__).with_name("load_device.py")), "--device", arguments.device]
            raise SystemExit(subprocess.run([*command, "--folder", folder], check=False).returncode)
    with tempfile.TemporaryDirectory() as folder:
        source = arguments.checkpoint or synthetic(Path(folder) / "model", arguments.synthetic * MIB)
        checkpoint = open_checkpoint(source)
        if arguments.one:
            print(json.dumps(timed((our_ways(checkpoint) | peers(checkpoint)[0])[arguments.one])))
        else:
            measure(checkpoint, source, arguments.rounds)


def measure(checkpoint: Checkpoint, source: Path, rounds: int) -> None:
    """Rounds of all ways alternating, each load in a process of its own: no memory is there from a load before."""
    for path in checkpoint.paths:
        with path.open("rb") as file:
            while file.read(16 * MIB):
                pass
    others, left_out = peers(checkpoint)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in (*OURS, *others)}
    for _ in range(rounds):
        for name in list(times):
            command = [sys.executable, __file__, str(source), "--one", name]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode == 0:
                times[name].append(tuple(json.loads(run.stdout.splitlines()[-1])))
            elif name in OURS:
                raise SystemExit(run.stderr)
            else:
                left_out[name] = (run.stderr.strip().splitlines() or [f"exit {run.returncode}"])[-1]
                del times[name]
    report(checkpoint, times, left_out)


def report(checkpoint: Checkpoint, times: dict[str, list[tuple[float, float]]], left_out: dict[str, str]) -> None:
    size = checkpoint.tensor_bytes
    best = {name: min(wall for wall, _ in taken) for name, taken in times.items()}
    fastest = min((name for name in best if name not in OURS), key=best.__getitem__)
    print(f"{size / 1e9:.3f} GB in {len(checkpoint.tensors)} tensors, {os.cpu_count()} cores", file=sys.stderr)
    print(f"{'':22} {'best':>8} {'median':>8} {'a core':>8}  GB/s", file=sys.stderr)
    for name in sorted(best, key=best.__getitem__):
        median = statistics.median(wall for wall, _ in times[name])
        core = min(processor for _, processor in times[name])
        rates = " ".join(f"{size / seconds / 1e9:8.2f}" for seconds in (best[name], median, core))
        print(f"{name:22} {rates}", file=sys.stderr)
    for name, why in left_out.items():
        print(f"{name:22} left out: {why}", file=sys.stderr)
    for name in OURS:
        ratio = best[fastest] / best[name]
        target = TARGET if name in COUNTED else None
        figure = {
            "name": f"load.cpu.{name}",
            "ratio": round(ratio, 3),
            "target": target,
            "ok": target is None or ratio >= target,
            "against": fastest,
            "gb_per_s": round(size / best[name] / 1e9, 3),
            "peer_gb_per_s": round(size / best[fastest] / 1e9, 3),
            "bytes": size,
            "tensors": len(checkpoint.tensors),
        }
        print(json.dumps(figure))


if __name__ == "__main__":
    main()
