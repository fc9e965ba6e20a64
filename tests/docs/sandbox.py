"""The folder in which the pages' commands are run: a tiny model that can read text, its plan, runs, keys and evidence."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from realizer.cli.main import run
from tests.builders.checkpoints import tiny_model

PREPARED = (
    "plan draft my-model -o draft.json",
    'reference draft.json --prompt "The capital of France is" -o reference.safetensors',
    "plan freeze draft.json --reference reference.safetensors -o plan.json",
    "realize plan.json --reference reference.safetensors",
    "realize plan.json --reference reference.safetensors",
    "keygen -o lab.pem",
    "export @latest --key lab.pem -o evidence.json",
    "pin -o ledger.pin",
)
"""What a page may take for given. Private keys and folders are not: a page that needs one shows how it is made."""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def execute(line: str) -> Ran:
    """Run one command line of this program, or `mkdir`, in this process and the current folder; comments are taken off."""
    arguments = shlex.split(line, comments=True)
    if arguments[:2] == ["mkdir", "-p"]:
        for name in arguments[2:]:
            Path(name).mkdir(parents=True, exist_ok=True)
        return Ran(0, "", "")
    if arguments[0] != "tally":
        raise AssertionError(f"{line!r} is no command of this program: mark its block `<!-- not run: REASON -->`")
    if arguments[1] == "keygen":  # it refuses to overwrite a key, and a page shows how to make one
        for suffix in (".pem", ".pub"):
            Path(arguments[arguments.index("-o") + 1]).with_suffix(suffix).unlink(missing_ok=True)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments[1:])
    return Ran(code, out.getvalue(), err.getvalue())


def prepare(folder: Path) -> None:
    """Fill the folder."""
    tiny_model(folder / "my-model")
    add_tokenizer(folder / "my-model")
    (folder / "build").mkdir()
    (folder / "build" / "sample").symlink_to(folder / "my-model")
    with inside(folder):
        for line in PREPARED:
            ran = execute(f"tally {line}")
            assert ran.code == 0, f"{line}: {ran.err}"
    (folder / "lab.pem").unlink()


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """With the folder as the current one, its own state, and nothing of the caller's settings."""
    kept, before = dict(os.environ), Path.cwd()
    for name in ("TALLY_LEDGER", "TALLY_DEBUG", "PAGER"):
        os.environ.pop(name, None)
    os.environ |= {"TALLY_STATE_DIR": str(folder / "state"), "TALLY_PASSPHRASE": "of the sandbox", "COLUMNS": "100"}
    os.chdir(folder)
    stdin = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(b""))
    try:
        yield
    finally:
        sys.stdin = stdin
        os.chdir(before)
        os.environ.clear()
        os.environ |= kept


def add_tokenizer(model: Path) -> None:
    """A tokenizer whose every word is one of the tiny model's 96 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[UNK]", *(f"word{number}" for number in range(1, 90)), "The", "capital", "of", "France", "is"]
    bare = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]").save_pretrained(model)
