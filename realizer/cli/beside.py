"""The witness that `tally realize --witness` starts beside its own engine, and how the two speak: a line for each sample."""

from __future__ import annotations

import os
import select
import subprocess
import sys

from realizer import process_tree
from realizer.cli.observing import DONE, READY
from realizer.cli.rendering import warn

PATIENCE_SECONDS = 30.0
"""How long an answer of the witness is waited for before the run goes on without."""


class Beside:
    """A witness process beside the engine of this one: asked for a sample whenever the engine took one.

    It is no part of the tree whose memory is counted, has a session of its own (an interrupt at the terminal is not for
    it), and outlives this process: when its standard input ends it closes what it saw. A witness that does not answer
    is said and left behind; the run goes on.
    """

    def __init__(self, pid: int, run_id: str, checkpoint: str | None, ledger: str, private: bool) -> None:
        command = [sys.executable, "-m", "realizer.cli.main", "observe", "--pid", str(pid), "--follow"]
        command += ["--labels-from-stdin", "--witness-of", run_id, "--interval", "0.5"]
        command += ["--checkpoint", checkpoint] if checkpoint else []
        command += ["--private"] if private else []
        self._process: subprocess.Popen[str] | None = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TALLY_LEDGER": ledger},  # a URL's password is nothing for a list of processes
            start_new_session=True,
        )
        process_tree.leave_out(self._process.pid)
        if not self._hears(READY):
            self._give_up("did not begin")

    def sampled(self, label: str) -> None:
        """The engine took a sample under that label: the witness takes one too, before the engine goes on."""
        process = self._process
        if process is None or process.stdin is None:
            return
        try:
            process.stdin.write(f"{label}\n")
            process.stdin.flush()
        except BrokenPipeError:
            self._give_up("has ended")
            return
        if not self._hears(label):
            self._give_up(f"did not answer at {label}")

    def close(self) -> None:
        """No more samples will be asked for; wait until the witness has closed its run."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        if not self._hears(DONE):
            self._give_up("did not close its run")
            return
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._give_up("does not end")
            return
        process_tree.take_back(process.pid)
        self._process = None

    def _hears(self, beginning: str) -> bool:
        process = self._process
        if process is None or process.stdout is None:
            return False
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_SECONDS)
        return bool(ready) and process.stdout.readline().startswith(beginning)

    def _give_up(self, why: str) -> None:
        warn(f"the witness {why}; the run goes on, unwitnessed from here")
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
