"""`python -m tests.docs.walk`: carry the README's walk out with the sample model, and put what was printed into the page.

Needs the sample model in build/sample (`make sample`). The commands are the page's own; only what follows them is renewed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import NOT_RUN, ROOT, blocks

README = ROOT / "README.md"


def renew() -> None:
    """Rewrite the page's `console` blocks. Raises CalledProcessError when a command of the page fails."""
    sample = ROOT / "build" / "sample"
    if not sample.exists():
        raise SystemExit("there is no build/sample: make it with `make sample`")
    page = README.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        tally = bin_folder / "tally"
        tally.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m realizer.cli.main "$@"\n')
        tally.chmod(0o755)
        (folder / "build").mkdir()
        (folder / "build" / "sample").symlink_to(sample.resolve())
        environment = {
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TALLY_STATE_DIR": str(folder / "state"),
            "TALLY_PASSPHRASE": "of the walk",
            "COLUMNS": "100",
        }
        environment.pop("TALLY_LEDGER", None)
        for block in blocks(README):
            if block.language not in ("sh", "console") or NOT_RUN.match(block.marker):
                continue
            for line in block.commands:
                sys.stderr.write(f"{line}\n")
                done = subprocess.run(
                    line, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
                )
                if block.language == "console":
                    old = "```console\n" + "\n".join(block.lines) + "\n```"
                    new = f"```console\n$ {line}\n{nameless(done.stdout.rstrip())}\n```"
                    page = page.replace(old, new)
    README.write_text(page, encoding="utf-8")


def nameless(printed: str) -> str:
    """What was printed without the names of whose machine it was."""
    return re.sub(r"^by( +).*, process (\d+)$", r"by\1me on my-machine, process \2", printed, flags=re.M)


if __name__ == "__main__":
    renew()
