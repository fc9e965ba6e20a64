"""Engines that are not ours, as small programs in processes of their own: each says `up` when it has loaded, and waits.

`running(PROGRAM, ARGUMENTS...)` starts one; each further line sent to it makes it take its next step and say `done`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024
SIZE = 48 * MIB
"""Bytes of a planted copy: far above what an interpreter's own memory moves by."""

SAY = "import sys\ndef say(text='up'):\n    print(text, flush=True); sys.stdin.readline()\n"
READ = "data = open(sys.argv[1], 'rb').read()\n"

QUIET = SAY + "say()\n"
MAPPED = SAY + (
    "import mmap\nfile = open(sys.argv[1], 'rb')\nkept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    "total = sum(kept[at] for at in range(0, len(kept), 4096))\nsay()\n"
)
COPIED = SAY + "file = open(sys.argv[1], 'rb')\nkept = file.read()\nfile.close()\nsay()\n"
OPEN = SAY + "kept = open(sys.argv[1], 'rb')\nsay()\n"
CHILD_COPY = SAY + (
    "import subprocess\nsay()\nchild = subprocess.Popen([sys.executable, '-c', \"import sys; data = open(sys.argv[1], 'rb')"
    ".read(); print('have', flush=True); sys.stdin.readline()\", sys.argv[1]], stdin=subprocess.PIPE, "
    "stdout=subprocess.PIPE)\nchild.stdout.readline()\nsay('done')\n"
    "child.communicate()\nsay('done')\n"
)
TMPFS_COPY = SAY + (
    "import os\nsay()\n" + READ + "open(sys.argv[2], 'wb').write(data)\ndel data\nsay('done')\nos.unlink(sys.argv[2])\n"
)
SCRATCH = SAY + (
    "import mmap, os, tempfile\nsay()\n" + READ + "scratch = tempfile.TemporaryFile(dir=sys.argv[2])\n"
    "scratch.truncate(len(data))\nkept = mmap.mmap(scratch.fileno(), len(data))\nkept[:] = data\ndel data\nsay('done')\n"
)
SHARED = SAY + (
    "import mmap, os\nsay()\n" + READ + "file = os.memfd_create('weights')\nos.ftruncate(file, len(data))\n"
    "kept = mmap.mmap(file, len(data))\nkept[:] = data\nsize = len(data)\ndel data\n"
    "ends = []\n"
    "for worker in range(2):\n"
    "    mine, theirs = os.pipe()\n"
    "    if os.fork() == 0:\n"
    "        total = sum(kept[at] for at in range(0, size, 4096))\n"
    "        os.write(theirs, b'up'); os.close(theirs)\n"
    "        sys.stdin.close(); import signal; signal.pause()\n"
    "    os.read(mine, 2); os.close(mine)\n"
    "say('done')\n"
)
REREADS = SAY + "say()\ndata = open(sys.argv[1], 'rb').read()\ndel data\nsay('done')\n"
TRANSFORMERS = SAY + (
    "import torch, transformers\n"
    "transformers.logging.set_verbosity_error(); transformers.logging.disable_progress_bar()\n"
    "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], disable_mmap=sys.argv[2] == 'copy')\n"
    "with torch.no_grad():\n"
    "    total = sum(float(p.sum()) for p in model.parameters())\n"
    "    model(torch.tensor([[3, 5, 7]]))\n"
    "say()\n"
)
"""A plain server: the checkpoint loaded the ordinary way, memory-mapped or (`copy`) read with the files closed."""

LLAMA_CPP = SAY + (
    "import xllamacpp as engine\nparameters = engine.CommonParams()\nparameters.model.path = sys.argv[1]\n"
    "parameters.n_ctx, parameters.warmup, parameters.cpuparams.n_threads = 256, False, 1\n"
    "modes = engine.llama_load_mode\n"
    "parameters.load_mode = modes.LLAMA_LOAD_MODE_MMAP if sys.argv[2] == 'map' else modes.LLAMA_LOAD_MODE_NONE\n"
    "kept = engine.Server(parameters)\nsay()\nimport os; os._exit(0)\n"
)
"""llama.cpp through its Python package xllamacpp: the GGUF file memory-mapped, or (`copy`) read."""


class Engine:
    """A running program."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def says(self, expected: str) -> None:
        """Wait for its next word. Raises AssertionError when it is another one, with what it complained of."""
        if self.process.stdout is None:
            raise AssertionError("its output is not read")
        line = self.process.stdout.readline().strip()
        if line != expected:
            raise AssertionError(f"the engine said {line!r}, not {expected!r}")

    def step(self) -> None:
        """Let it take its next step, and wait until that is done."""
        if self.process.stdin is None:
            raise AssertionError("it cannot be spoken to")
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.says("done")


@contextmanager
def running(program: str, *arguments: str | Path) -> Iterator[Engine]:
    """The program in a process (and group) of its own, loaded; it is killed with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        start_new_session=True,
    )
    try:
        engine = Engine(process)
        engine.says("up")
        yield engine
    finally:
        for pid in _descendants(process.pid):
            _end(pid)
        process.kill()
        process.communicate()


def _descendants(pid: int) -> list[int]:
    from realizer.process_tree import members
    from realizer.procfs import ProcFS

    return [found for found in members(ProcFS(), pid) if found != pid]


def _end(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return
