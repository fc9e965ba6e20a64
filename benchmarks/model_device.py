"""A Llama-shaped model of a few GB through the commands, on a GPU, with content verified and a witness beside the engine.

    python benchmarks/model_device.py --folder /mnt/local/model [--device cuda:0] [--layers 24]

A random model is made in `--folder` unless it is there. Both forms are drafted, frozen with one reference and realised. Of
each run: the verdict and what it rests on, what was given back, whether decode was exact; and what NVML told the witness of
the engine's process beside the engine's own figures (what its allocator reserved, what it allocated itself), whose
difference is what the driver keeps for a context. One JSON line a figure; exit status 1 when one is not what it should be.
`--tiny` does the same in a minute on a CPU, where nothing is known of a device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers

from benchmarks.figures import Figures
from ledger.store import Store

ROOT = Path(__file__).resolve().parents[1]
MIB = 1024 * 1024
CONTEXT_BYTES = 1024 * MIB
"""The most that a context, its kernels and libraries may take of a device: an H200 shows 500 to 800 MiB."""
AGREEMENT_BYTES = 64 * MIB
"""The most by which two looks of NVML at one process may differ, taken one after the other."""


def made(folder: Path, layers: int, tiny: bool) -> Path:
    """A random Llama saved as transformers does, bf16, in shards of 2 GB."""
    if (folder / "config.json").exists():
        return folder
    size = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 96} if tiny else {}
    config = transformers.LlamaConfig(
        num_hidden_layers=layers, tie_word_embeddings=False, dtype="bfloat16", max_position_embeddings=2048,
        **({"num_attention_heads": 4, "num_key_value_heads": 2} if tiny else {"num_key_value_heads": 8}), **size,
    )  # fmt: skip
    torch.manual_seed(11)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.to("cpu").save_pretrained(folder, max_shard_size="2GB")
    return folder


def tally(*arguments: object, accepted: tuple[int, ...] = (0,)) -> str:
    """A command's standard output. Raises SystemExit when it ends otherwise than accepted."""
    command = [sys.executable, "-m", "realizer.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode not in accepted:
        raise SystemExit(f"{' '.join(command[2:])} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def value(figure: Any) -> int | None:
    return None if figure is None or figure.value is None else int(figure.value)


def samples(store: Store, run_id: str) -> dict[str, Any]:
    return {event.body.label: event.body for event in store.events(run_id) if event.type == "memory.sampled"}


def device_figures(figures: Figures, form: str, store: Store, run_id: str, key: str) -> None:
    """NVML's word to the witness beside the engine's own figures, at the last sample that both took while all was there."""
    bodies = [event.body for event in store.events(run_id)]
    (watch,) = store.witnesses(run_id)
    engine, witness = samples(store, run_id), samples(store, watch)
    label = "after-decode"
    inside, outside = engine[label].cuda, witness[label].cuda
    process, seen = value(inside.get(f"{key}.process")), value(outside.get(f"{key}.process"))
    own = sum(
        body.bytes.value
        for body in bodies
        if body.TYPE == "materialization.observed" and any(part.space == key for part in body.ranges)
    )
    reserved = value(inside.get(f"{key}.reserved"))
    add = figures.add
    add(f"{form}.nvml.witness_bytes", seen)
    add(f"{form}.nvml.engine_bytes", process)
    add(f"{form}.planned_on_device_bytes", own)
    add(f"{form}.allocator_reserved_bytes", reserved)
    if seen is None or process is None or reserved is None:
        add(f"{form}.nvml.why", (outside.get(f"{key}.process") or inside.get(f"{key}.process") or "no device here"))
        return
    add(
        f"{form}.nvml.difference_bytes",
        seen - process,
        f"within {AGREEMENT_BYTES}",
        ok=abs(seen - process) <= AGREEMENT_BYTES,
    )
    context = seen - max(own, reserved)
    add(f"{form}.context_bytes", context, f"0 to {CONTEXT_BYTES}", ok=0 <= context <= CONTEXT_BYTES)


def one_form(figures: Figures, form: str, folder: Path, model: Path, device: str, reference: Path) -> None:
    draft, plan, ledger = folder / f"{form}.draft.json", folder / f"{form}.plan.json", folder / "tally.db"
    for written in (draft, plan):
        written.unlink(missing_ok=True)
    tally("plan", "draft", model, "--device", device, "--staging", form, "-o", draft)
    if not reference.exists():
        began = time.perf_counter()
        tally("reference", draft, "--tokens", "3,1,4,1,5,9,2,6", "--checkpoint", model, "-o", reference)
        figures.add("reference.seconds", round(time.perf_counter() - began, 3))
    tally("plan", "freeze", draft, "--reference", reference, "-o", plan, "--ledger", ledger)
    began = time.perf_counter()
    text = tally(
        "realize", plan, "--checkpoint", model, "--reference", reference, "--verify-content", "--witness",
        "--ledger", ledger, "--json", accepted=(0, 3),
    )  # fmt: skip
    figures.add(f"{form}.seconds", round(time.perf_counter() - began, 3))
    run = json.loads(text)
    figures.add(f"{form}.verdict", run["verdict"], "PASS")
    figures.add(f"{form}.assurance", run["assurance"], "content-verified")
    figures.add(f"{form}.witnessed", run["witnessed"])
    for finding in run["findings"]:
        told = f"{finding['severity']} {finding['code']} {finding['subject']}"
        figures.add(f"{form}.finding", told, ok=finding["severity"] == "note")
    with Store.open(ledger) as store:
        for event in store.events(run["run_id"]):
            if event.type == "materialization.released":
                figures.add(f"{form}.{event.body.materialization_id}.released_bytes", value(event.body.released_bytes))
            if event.type == "decode.ran":
                exact = value(event.body.output.exact)
                figures.add(f"{form}.{event.body.phase}.{event.body.repetition}.{event.body.mode}.exact", exact, 1)
        device_figures(figures, form, store, run["run_id"], device if ":" in device else f"{device}:0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the model, the plans and the ledger are written"
    )
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=12, help="of 4,096 wide: 0.44 GB each, and 0.5 GB beside them")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, in a minute")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    figures = Figures()
    model = made(arguments.folder / "model", 2 if arguments.tiny else arguments.layers, arguments.tiny)
    figures.add("model.bytes", sum(path.stat().st_size for path in model.glob("*.safetensors")))
    for form in ("full", "streamed"):
        one_form(figures, form, arguments.folder, model, arguments.device, arguments.folder / "reference.safetensors")
    if figures.failed:
        print(f"not as expected: {', '.join(figures.failed)}", file=sys.stderr)
    return 1 if figures.failed else 0


if __name__ == "__main__":
    sys.exit(main())
