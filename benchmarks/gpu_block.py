"""The published block at full size on a GPU, from nothing to evidence: synthesise, draft, reference, freeze, realise, export.

    python benchmarks/gpu_block.py --folder /mnt/local/block --out results

Both forms run: staged whole in host memory as published, and streamed through a small window. Everything is printed as one
JSON line a figure (`{"name": ..., "value": ..., "expected": ..., "ok": ...}`) and a table to standard error; evidence of
both runs and the figures are written to `--out`. `--tiny` does the same in seconds, on any machine. Exit status 1 when a
figure is not what it should be.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers

from adapters.qwen3_5_moe import Qwen35Moe
from adapters.qwen3_5_moe.native import compare
from adapters.qwen3_5_moe.published import R1_MACHINE
from adapters.qwen3_5_moe.shape import PUBLISHED, TINY
from adapters.qwen3_5_moe.synth import revision_of, write_checkpoint
from adapters.qwen3_5_moe.unplanned import load_block
from benchmarks.figures import Figures
from ledger.bodies import PlanFrozen
from ledger.errors import PlanRejected
from ledger.events import Actor, Event
from ledger.evidence import verify
from ledger.export import export_run
from ledger.plan import Plan, freeze, parse_plan
from ledger.reconcile import Judgement
from ledger.recording import Recorder, uuid7
from ledger.store import Store
from realizer import engine
from realizer.checkpoint import Checkpoint, open_checkpoint
from realizer.decode import load_fixture, save_fixture
from realizer.drafting import DraftOptions, draft_plan
from realizer.environment import observe_environment
from realizer.recorded import realize_into

PUBLISHED_BYTES = {
    "checkpoint-native-host": 8_636_596_224,
    "freetoken-native-device": 1_689_347_736,
    "freetoken-nvfp4-slot-banks": 8_636_596_224,
    "freetoken-block-runtime-device": 32_718_848,
    "freetoken-runtime-snapshot-device": 32_718_848,
}
PERSISTENT_REQUIRED = 10_391_381_656
STAGING_STORAGES = 114
Form = Literal["full", "streamed"]
FORMS: tuple[Form, ...] = ("full", "streamed")
MIB = 1024 * 1024
GIVE_BACK = 0.99


@contextmanager
def timed(figures: Figures, name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    figures.add(f"{name}.seconds", round(time.perf_counter() - started, 3))


def synthesise(figures: Figures, folder: Path, tiny: bool) -> Checkpoint:
    """The checkpoint, made unless it is there already with the right revision."""
    shape = TINY if tiny else PUBLISHED
    directory = folder / "checkpoint"
    if directory.exists():
        found = open_checkpoint(str(directory))
        if found.revision == revision_of(shape, 0):
            return found
        shutil.rmtree(directory)
    started = time.perf_counter()
    written = write_checkpoint(shape, directory)
    seconds = time.perf_counter() - started
    figures.add("synth.bytes", written.bytes)
    figures.add("synth.gb_per_second", round(written.bytes / seconds / 1e9, 3))
    with timed(figures, "open_checkpoint"):
        return open_checkpoint(str(directory))


def drafted(checkpoint: Checkpoint, device: str, staging: Form) -> Plan:
    environment = observe_environment()
    return parse_plan(draft_plan(checkpoint, Qwen35Moe, environment, DraftOptions(device=device, staging=staging)))


def sealed(store: Store, draft: Plan, reference_digest: str) -> Plan:
    """The plan frozen, its freezing recorded before any run of it."""
    plan = freeze(draft, reference_digest=reference_digest)
    blob = store.put_blob(plan.data, "application/json")
    recorder = Recorder(
        store.append, run_id=uuid7(), node_id="node-a", actor=Actor(kind="operator", id="gpu_block"), clock=None
    )
    recorder(PlanFrozen(digest=plan.computed_digest, blob_digest=blob))
    return plan


def realise(ledger: Path, plan: Plan, checkpoint: Checkpoint, reference: Path) -> tuple[str, Judgement]:
    """One run to its recorded verdict; the run's id."""
    request = {"checkpoint": str(checkpoint.directory), "reference": reference, "adapter": Qwen35Moe}
    with realize_into(ledger, plan, verify_content=True, **request) as run:
        return run.run_id, run.judgement


def report(figures: Figures, form: str, plan: Plan, events: list[Event], judgement: Judgement, tiny: bool) -> None:
    """The figures of one run, from its events alone."""

    def of(kind: str) -> list[Any]:
        return [event.body for event in events if event.type == kind]

    add = figures.add
    add(f"{form}.verdict", judgement.verdict, "PASS")
    add(f"{form}.assurance", judgement.assurance, "content-verified")
    for finding in judgement.findings:
        add(f"{form}.finding", f"{finding.severity} {finding.code} {finding.subject}", ok=finding.severity == "note")
    for body in of("materialization.observed"):
        planned = plan.materializations[body.materialization_id]
        expected = planned.expected_bytes
        if not tiny and planned.representation in PUBLISHED_BYTES:
            expected = PUBLISHED_BYTES[planned.representation]
        add(f"{form}.{planned.id}.bytes", body.bytes.value, expected)
    if not tiny:
        add(f"{form}.persistent_required", judgement.accounting.persistent_required.value, PERSISTENT_REQUIRED)
    for body in of("materialization.realized"):
        seconds = (body.elapsed_ns.value if body.elapsed_ns else 0) / 1e9
        add(f"{form}.{body.materialization_id}.seconds", round(seconds, 3))
        if seconds:
            add(f"{form}.{body.materialization_id}.gb_per_second", round(body.bytes.value / seconds / 1e9, 3))
    for body in of("materialization.released"):
        dead = (body.owners_total.value, body.owners_alive.value)
        staged = STAGING_STORAGES if form == "full" and not tiny else body.owners_total.value
        add(f"{form}.{body.materialization_id}.owners_total_alive", list(dead), [staged, 0])
    for body in of("reclamation.observed"):
        name = f"{form}.{body.materialization_id}.{body.phase}"
        add(f"{name}.region_mapped", body.region_mapped.value, 0)
        ratio = body.ratio.value
        enough = ratio is not None and ratio >= GIVE_BACK
        judged = body.phase == "after-release" and not tiny
        figures.judge(f"{name}.give_back", ratio, f"at least {GIVE_BACK}", enough, judged=judged)
    peaks(figures, form, plan, of("memory.sampled"))
    for body in of("decode.ran"):
        name = f"{form}.{body.phase}.{body.mode}" + ("" if body.repetition is None else f".{body.repetition}")
        add(f"{name}.exact", [body.input.exact.value, body.output.exact.value], [1, 1])
        add(f"{name}.plan_lookups", body.plan_lookups.value, 0)
        add(f"{name}.milliseconds", round(body.elapsed_ns.value / 1e6, 3))
    for body in of("source.watched"):
        add(f"{form}.source.tree_accesses", body.tree_accesses.value, 0)


def peaks(figures: Figures, form: str, plan: Plan, samples: list[Any]) -> None:
    """Host high-water mark over the baseline, and what the device held, at each sample."""
    baseline = next(body.process["vm_rss"].value for body in samples if body.label == "baseline")
    highest = max(body.process["vm_hwm"].value or 0 for body in samples)
    window = sum(m.expected_bytes for m in plan.document.materializations if m.role == "staging")
    limit = round(window * 1.1) + 64 * MIB
    grown = highest - baseline
    judged = form == "streamed" and torch.cuda.is_available()
    figures.judge(f"{form}.host_peak_over_baseline", grown, f"at most {limit}", grown <= limit, judged=judged)
    for body in samples:
        for key, found in sorted(body.cuda.items()):
            if key.endswith((".allocated", ".reserved", ".peak", ".process")) or key in ("host_pool", "pinned_ranges"):
                figures.add(f"{form}.{body.label}.{key}", found.value if found.known else f"unknown: {found.detail}")
        census = body.census
        if census is not None:
            figures.add(f"{form}.{body.label}.unowned_device", census.unowned_device_bytes.value)
            figures.add(f"{form}.{body.label}.unowned_host", census.unowned_host_bytes.value)


def published_plan_is_rejected(figures: Figures, store: Store, checkpoint: Checkpoint) -> None:
    """The published plan names another GPU: refused for its UUID before anything is allocated."""
    plan = parse_plan(Qwen35Moe.published("r1-block-a"))
    recorder = Recorder(store.append, run_id=uuid7(), node_id="node-a", actor=Actor(kind="realizer", id="gpu_block"))
    request = engine.Request(plan=plan, checkpoint=str(checkpoint.directory), adapter=Qwen35Moe)
    try:
        with engine.realize(request, sink=recorder, put_blob=store.put_blob):
            figures.add("published.rejected", False, True)
    except PlanRejected as error:
        figures.add("published.rejected", True, True)
        named = [text for text in error.violations if R1_MACHINE.device_uuid in text]
        figures.add("published.reasons", error.violations, ok=bool(named))
    started = [event for event in store.events(recorder.run_id) if event.type == "materialization.started"]
    figures.add("published.materializations_started", len(started), 0)


def against_transformers(figures: Figures, checkpoint: Checkpoint, device: torch.device, tiny: bool) -> None:
    """The block against transformers' own modules on dequantised weights, and how far the routers agree."""
    shape = TINY if tiny else PUBLISHED
    block = load_block(shape, checkpoint, device)
    tokens = (torch.arange(32, device=device) * 7919 + 13) % shape.vocabulary
    comparison = compare(block, checkpoint, block.embed(tokens))
    for layer in comparison.layers:
        figures.add(
            f"transformers.layer.{layer.layer}",
            {
                "agreement": round(layer.agreement, 4),
                "max_absolute": layer.max_absolute,
                "mean_absolute": round(layer.mean_absolute, 6),
            },
            ok=layer.within,
        )
    figures.add("transformers.block_max_absolute", comparison.block_max_absolute)
    figures.add("transformers.block_mean_absolute", comparison.block_mean_absolute)
    figures.add("transformers.block_agreement", comparison.block_agreement)


def machine(figures: Figures, device: torch.device) -> None:
    figures.add("machine.python", platform.python_version())
    figures.add("machine.torch", torch.__version__)
    figures.add("machine.transformers", transformers.__version__)
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        figures.add("machine.gpu", f"{found.name}, {found.total_memory} bytes, GPU-{found.uuid}")


def settled(device: torch.device) -> None:
    """Between parts: nothing of the last stays in memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoint and the ledger are written")
    parser.add_argument("--out", type=Path, required=True, help="where evidence and figures go")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny block, in seconds")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="which forms to run")
    parser.add_argument("--skip-transformers", action="store_true", help="without the numerical comparison")
    arguments = parser.parse_args()
    figures, device = Figures(), torch.device(arguments.device)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine(figures, device)
    checkpoint = synthesise(figures, arguments.folder, arguments.tiny)
    reference = arguments.folder / "reference.safetensors"
    with timed(figures, "reference"):
        draft = drafted(checkpoint, arguments.device, "full")
        digest = save_fixture(Qwen35Moe.reference(draft, checkpoint, None, []), reference)
    settled(device)
    figures.add("reference.tokens", len(load_fixture(reference).tensors["prompt.tokens"]))
    ledger = arguments.folder / "tally.db"
    with Store.open(ledger, write=True, create=True) as store:
        published_plan_is_rejected(figures, store, checkpoint)
        plans = {form: sealed(store, drafted(checkpoint, arguments.device, form), digest) for form in arguments.forms}
    for form, plan in plans.items():
        with timed(figures, f"{form}.run"):
            run_id, judgement = realise(ledger, plan, checkpoint, reference)
        settled(device)
        with Store.open(ledger) as store:
            events, evidence = list(store.events(run_id)), export_run(store, run_id)
        report(figures, form, plan, events, judgement, arguments.tiny)
        modes = sorted({event.body.mode for event in events if event.type == "decode.ran"})
        figures.add(f"{form}.modes", modes, ["cuda-graph", "eager"] if device.type == "cuda" else ["eager"])
        (arguments.out / f"{form}.evidence.json").write_bytes(evidence)
        figures.add(f"{form}.evidence.bytes", len(evidence))
        figures.add(f"{form}.evidence.status", verify(evidence).status, "valid-unanchored")
    if not arguments.skip_transformers:
        with timed(figures, "transformers"):
            against_transformers(figures, checkpoint, device, arguments.tiny)
    (arguments.out / "figures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in figures.lines))
    print(figures.table(), file=sys.stderr)
    if figures.failed:
        print(f"not as expected: {', '.join(figures.failed)}", file=sys.stderr)
    return 1 if figures.failed else 0


if __name__ == "__main__":
    sys.exit(main())
