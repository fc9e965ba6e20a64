"""A checkpoint with random weights to try the adapter on: `python -m tally_adapter_example.sample FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tally_adapter_example.model import VOCABULARY, WEIGHTS


def write_checkpoint(folder: Path, width: int = 64, seed: int = 1) -> None:
    """Write config.json and model.safetensors; the same seed gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(VOCABULARY, width, generator=generator) for name in WEIGHTS}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "bag-of-bytes", "width": width}) + "\n")


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]))
