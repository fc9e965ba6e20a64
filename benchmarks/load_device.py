"""The load rows for a GPU, side by side in one run: the block of many tensors, a few large ones, warm and cold, verified.

    python benchmarks/load_device.py --folder /mnt/local/load [--device cuda:0] [--rounds 3]

A synthetic checkpoint of the block (10.3 GB in 44,362 selected tensors) and one of a few large tensors are written to
`--folder` unless they are there. Ours and safetensors' `load_file` alternate, the fastest round of each counts. Ours is
timed from the plan's rings being mapped and registered to their being given back; opening the checkpoint (which `load_file`
has within its time) is shown beside it. One JSON line a figure, and a table to standard error; exit status 1 when a figure
misses its target. `--tiny` runs the same on small sizes, on a CPU too, where no target binds.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from safetensors.torch import load_file

from adapters.qwen3_5_moe import Qwen35Moe
from adapters.qwen3_5_moe.shape import PUBLISHED, TINY
from adapters.qwen3_5_moe.synth import revision_of, write_checkpoint
from ledger.plan import Plan, parse_plan
from realizer.adapter import Layout, PlanHandle, pack
from realizer.checkpoint import Checkpoint, open_checkpoint
from realizer.content import content_of
from realizer.drafting import DraftOptions, draft_plan
from realizer.environment import observe_environment
from realizer.loader import Loader
from realizer.memory import ACCELERATOR_VRAM, SHARED_MEMORY, SYSTEM_RAM, Ranges

MIB = 1024 * 1024
LARGE_TENSORS = 16
LARGE_WINDOW = 256 * MIB
BLOCK_TIMES, LARGE_TIMES = 5.0, 3.0
STREAMING_SHARE, COLD_SHARE = 0.5, 0.95
VERIFICATION_TIMES = 2.0
GIVE_BACK = 0.99


@dataclass
class Figures:
    """What was measured against its target; a figure without a target is shown beside the others."""

    judged: bool
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, ratio: float, target: float | None = None, *, most: bool = False, **beside: Any) -> None:
        held = target is None or not self.judged or (ratio <= target if most else ratio >= target)
        sense = {} if target is None else {"sense": "at most" if most else "at least"}
        line = {"name": name, "ratio": round(ratio, 3), "target": target, "ok": held, **sense, **beside}
        self.lines.append(line)
        print(json.dumps(line), flush=True)

    def table(self) -> str:
        rows = [f"{'':34} {'ratio':>9}  {'target':>14}"]
        for line in self.lines:
            target = "" if line["target"] is None else f"{line['sense']} {line['target']:g}"
            beside = ", ".join(f"{key} {value}" for key, value in list(line.items())[4:] if key != "sense")
            rows.append(
                f"{line['name']:34} {line['ratio']:9.3f}  {target:>14}  {'ok' if line['ok'] else 'NO'}  {beside}"
            )
        return "\n".join(rows)


@dataclass
class Loaded:
    """One load: the tensors' bytes, the seconds of its parts, and what the host held."""

    bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    held: Any = None
    streaming: float = 0.0
    """Seconds of them spent in streaming, from planning the reads to the last copy's end."""
    streamed: int = 0
    """Bytes that passed a ring meanwhile."""
    host_peak: int = 0
    give_back: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add what happens inside to that part's seconds."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def shown(self) -> dict[str, float]:
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}


class TimedLoader(Loader):
    """A loader that adds up the seconds of its calls that stream."""

    streaming = 0.0
    streamed = 0

    def stream_pieces(self, *arguments: Any) -> int:
        """As `Loader.stream_pieces`, which returns when the last copy is done."""
        started = time.perf_counter()
        streamed = super().stream_pieces(*arguments)
        self.streaming += time.perf_counter() - started
        self.streamed += streamed
        return streamed


def settle(device: torch.device) -> None:
    """Between loads: nothing of the last stays in memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def finished(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def status_bytes(name: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}")


def proportional_bytes() -> int:
    """Proportional set size of this process, in bytes (it has no children)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/smaps_rollup has no Pss")


def load_block(plan: Plan, checkpoint: Checkpoint, device: torch.device, *, verified: bool = False) -> Loaded:
    """Rings mapped and registered, weights and banks brought in through them, rings given back."""
    settle(device)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    idle = status_bytes("VmRSS")
    found = Loaded()
    with found.part("plan"):
        adapter, loader = Qwen35Moe(PlanHandle(plan), checkpoint), TimedLoader(checkpoint, digests=verified)
        ranges = Ranges()
    for planned in plan.document.materializations:
        if planned.role not in ("staging", "required_residency"):
            continue
        made, kind = adapter.layout(planned.id), plan.memory_resources[planned.memory_resource_id].kind
        with found.part("window" if planned.role == "staging" else "allocate"):
            memory = ranges.allocate(
                kind,
                made.length,
                owner=planned.id,
                device=str(device) if kind == ACCELERATOR_VRAM else None,
                pinned=device.type == "cuda" and planned.role == "staging",
            )
        with found.part(f"realize {planned.logical_state_id}" if planned.role != "staging" else "window"):
            adapter.realize(planned.id, memory, loader)
        if planned.role == "required_residency":
            found.bytes += made.bytes
            if verified:
                with found.part(f"content {planned.logical_state_id}"):
                    if differing := content_of(adapter, planned.id, memory, loader).differing:
                        raise SystemExit(f"{planned.id} differs from its source: {differing[:3]}")
    finished(device)
    window = [memory for memory in ranges if plan.materializations[memory.owner].role == "staging"]
    size = sum(memory.length for memory in window)
    before = proportional_bytes()
    with found.part("return"):
        for memory in window:
            adapter.release(memory.owner)
            ranges.free(memory)
    found.give_back = (before - proportional_bytes()) / size
    found.host_peak = status_bytes("VmHWM") - idle
    found.held = (adapter, ranges)
    found.streaming, found.streamed = loader.streaming, loader.streamed
    return found


def load_large(checkpoint: Checkpoint, layout: Layout, device: torch.device) -> Loaded:
    """A few large tensors through one ring."""
    settle(device)
    found, ranges = Loaded(bytes=layout.bytes), Ranges()
    cuda = device.type == "cuda"
    with found.part("window"):
        ring = ranges.allocate(SYSTEM_RAM, min(LARGE_WINDOW, layout.length), owner="ring", pinned=cuda)
    with found.part("allocate"):
        kind = ACCELERATOR_VRAM if cuda else SHARED_MEMORY
        bank = ranges.allocate(kind, layout.length, owner="bank", device=str(device) if cuda else None)
    with found.part("stream"):
        Loader(checkpoint).stream(layout, ring, bank)
        finished(device)
    with found.part("return"):
        ranges.free(ring)
    found.held = ranges
    return found


def load_peer(checkpoint: Checkpoint, device: torch.device) -> Loaded:
    """safetensors' own loader of the same files."""
    settle(device)
    found = Loaded()
    with found.part("load_file"):
        found.held = [load_file(shard.path, device=str(device)) for shard in checkpoint.files]
        finished(device)
    found.bytes = sum(t.numel() * t.element_size() for tensors in found.held for t in tensors.values())
    return found


def fastest(*ways: Callable[[], Loaded], rounds: int) -> list[Loaded]:
    """Rounds of all ways alternating, after one that does not count; the fastest of each, with its memory let go."""
    best: list[Loaded | None] = [None] * len(ways)
    for number in range(rounds + 1):
        for at, way in enumerate(ways):
            found = way()
            found.held = None
            known = best[at]
            if number and (known is None or found.total < known.total):
                best[at] = found
    return [found for found in best if found is not None]


def rate(found: Loaded) -> float:
    return found.bytes / found.total / 1e9


def host_to_device_limit(device: torch.device) -> float:
    """GB/s of copies of 256 MiB out of pinned host memory: the fastest of five."""
    source = torch.empty(LARGE_WINDOW, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    times = []
    for _ in range(6):
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return LARGE_WINDOW / min(times[1:]) / 1e9


def hashing_limit() -> float:
    """GB/s of SHA-256 on all cores together, each over its own 8 MiB: the fastest of three."""
    workers = os.cpu_count() or 1
    blocks = [np.random.default_rng(n).integers(0, 256, 8 * MIB, np.uint8).data for n in range(workers)]
    times = []
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(4):
            started = time.perf_counter()
            list(pool.map(lambda block: [hashlib.sha256(block).digest() for _ in range(4)], blocks))
            times.append(time.perf_counter() - started)
    return 4 * workers * 8 * MIB / min(times[1:]) / 1e9


def make_cold(checkpoint: Checkpoint) -> float:
    """Have the kernel drop the files' pages, again while it keeps some; the share of them that stayed nevertheless."""
    for _ in range(5):
        stayed = _drop(checkpoint)
        if stayed == 0:
            break
        time.sleep(0.2)  # pages that are on their way to a list of the kernel's are passed over
    return stayed


def _drop(checkpoint: Checkpoint) -> float:
    os.sync()
    resident = pages = 0
    for path in checkpoint.paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            for offset in range(0, os.fstat(descriptor).st_size, 64 * MIB):
                pages += 1
                with suppress(BlockingIOError):  # what it says where the page is not in memory, as it should be
                    resident += bool(os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT))
        finally:
            os.close(descriptor)
    return resident / pages


def read_through(checkpoint: Checkpoint) -> Loaded:
    """Plain sequential reading of the files, one after another, into one buffer."""
    found, buffer = Loaded(), memoryview(bytearray(16 * MIB))
    with found.part("read"):
        for path in checkpoint.paths:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    found.bytes += count
    return found


def cold(figures: Figures, plan: Plan, checkpoint: Checkpoint, device: torch.device, rounds: int) -> None:
    """Ours against plain reading, both of files whose pages were dropped, alternating."""
    kept, ours, plain = 0.0, [], []
    for _ in range(rounds):
        kept = max(kept, make_cold(checkpoint))
        plain.append(rate(read_through(checkpoint)))
        kept = max(kept, make_cold(checkpoint))
        found = load_block(plan, checkpoint, device)
        found.held = None
        ours.append(rate(found))
    figures.add(
        "load.device.cold",
        max(ours) / max(plain),
        COLD_SHARE if kept < 0.01 else None,
        gb_per_s=[round(found, 3) for found in ours],
        sequential_gb_per_s=[round(found, 3) for found in plain],
        how="posix_fadvise DONTNEED after sync, before every read",
        pages_that_stayed=round(kept, 4),
    )


def block(folder: Path, tiny: bool) -> Checkpoint:
    """The block's checkpoint, made unless it is there with the right revision."""
    shape, directory = (TINY if tiny else PUBLISHED), folder / "checkpoint"
    if not directory.exists():
        write_checkpoint(shape, directory)
    started = time.perf_counter()
    found = open_checkpoint(directory)
    print(f"checkpoint opened in {time.perf_counter() - started:.3f} s", file=sys.stderr)
    if found.revision != revision_of(shape, 0):
        raise SystemExit(f"{directory} holds another checkpoint")
    return found


def large(folder: Path, tiny: bool) -> Checkpoint:
    """A checkpoint of equal U8 tensors of random bytes, made unless it is there."""
    directory, size = folder / "large", (MIB if tiny else 512 * MIB)
    if not directory.exists():
        directory.mkdir(parents=True)
        (directory / "config.json").write_text('{"model_type": "none"}')
        header = {
            f"t{n:02}": {"dtype": "U8", "shape": [size // 1024, 1024], "data_offsets": [n * size, (n + 1) * size]}
            for n in range(LARGE_TENSORS)
        }
        text = json.dumps(header).encode()
        noise = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        with (directory / "model.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for number in range(LARGE_TENSORS):
                file.write((noise ^ np.uint8(number)).data)
    return open_checkpoint(directory)


def opening_seconds(checkpoint: Checkpoint) -> float:
    started = time.perf_counter()
    open_checkpoint(checkpoint.directory)
    return time.perf_counter() - started


def measure(figures: Figures, folder: Path, device: torch.device, tiny: bool, rounds: int) -> None:
    checkpoint = block(folder, tiny)
    environment = observe_environment()
    plan = parse_plan(draft_plan(checkpoint, Qwen35Moe, environment, DraftOptions(str(device), "streamed")))
    ours, peer = fastest(
        lambda: load_block(plan, checkpoint, device), lambda: load_peer(checkpoint, device), rounds=rounds
    )
    opening = min(opening_seconds(checkpoint) for _ in range(3))
    shared: dict[str, Any] = {
        "seconds": round(ours.total, 3),
        "gb_per_s": round(rate(ours), 2),
        "load_file_gb_per_s": round(rate(peer), 2),
    }
    figures.add("load.device.block", rate(ours) / rate(peer), BLOCK_TIMES, **shared, parts=ours.shown())
    opened = ours.bytes / (ours.total + opening) / 1e9
    figures.add("load.device.block.opened", opened / rate(peer), opening_seconds=round(opening, 3))
    verified, plain = fastest(
        lambda: load_block(plan, checkpoint, device, verified=True),
        lambda: load_block(plan, checkpoint, device),
        rounds=rounds,
    )
    floor = 2 * verified.bytes / hashing_limit() / 1e9
    figures.add(
        "load.device.verification",
        (verified.total - plain.total) / plain.total,
        VERIFICATION_TIMES,
        most=True,
        verified_seconds=round(verified.total, 3),
        plain_seconds=round(plain.total, 3),
        hashing_alone_seconds=round(floor, 3),
        parts=verified.shown(),
    )
    window = sum(m.expected_bytes for m in plan.document.materializations if m.role == "staging")
    figures.add("load.device.host_peak", ours.host_peak / (window * 1.1 + 64 * MIB), 1.0, most=True, window=window)
    beside = verified.host_peak / (window * 1.1 + 64 * MIB)
    figures.add("load.device.host_peak.verified", beside, 1.0, most=True, window=window)
    figures.add("load.device.give_back", ours.give_back, GIVE_BACK, window=window)
    few = large(folder, tiny)
    layout = pack("large", [(key, entry.dtype, entry.shape, (key,)) for key, entry in few.tensors.items()])
    ours_few, peer_few = fastest(lambda: load_large(few, layout, device), lambda: load_peer(few, device), rounds=rounds)
    shared = {"gb_per_s": round(rate(ours_few), 2), "load_file_gb_per_s": round(rate(peer_few), 2)}
    figures.add("load.device.large", rate(ours_few) / rate(peer_few), LARGE_TIMES, **shared, parts=ours_few.shown())
    if device.type == "cuda":
        realizing = sum(seconds for part, seconds in ours.seconds.items() if part.startswith("realize"))
        limit = host_to_device_limit(device)
        for name, size, seconds in (
            ("block", ours.streamed, ours.streaming),
            ("large", ours_few.bytes, ours_few.seconds["stream"]),
        ):
            streaming = size / seconds / 1e9
            figures.add(
                f"load.device.streaming.{name}",
                streaming / limit,
                STREAMING_SHARE,
                gb_per_s=round(streaming, 2),
                limit_gb_per_s=round(limit, 2),
            )
        figures.add("load.device.realizing.block", ours.bytes / realizing / 1e9 / limit, seconds=round(realizing, 3))
    cold(figures, plan, checkpoint, device, min(rounds, 2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoints are written")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="small sizes: every step, no targets")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    where = torch.cuda.get_device_properties(device).name if device.type == "cuda" else platform.processor() or "CPU"
    figures = Figures(judged=device.type == "cuda" and not arguments.tiny)
    measure(figures, arguments.folder, device, arguments.tiny, arguments.rounds)
    print(f"{where}, {os.cpu_count()} cores, torch {torch.__version__}", file=sys.stderr)
    print(figures.table(), file=sys.stderr)
    return 0 if all(line["ok"] for line in figures.lines) else 1


if __name__ == "__main__":
    sys.exit(main())
