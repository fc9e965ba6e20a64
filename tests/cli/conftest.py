"""How tests of the commands run them: in this process through `run`, errors and exit codes included."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.plan import Plan
from realizer.cli.main import run
from tests.builders.runs import clean_bodies, small_plan
from tests.cli.seeding import FIRST, OTHER, SECOND, seed


@dataclass(frozen=True)
class Ran:
    """What a command line gave: exit status, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        import json

        return json.loads(self.out)

    @property
    def error_line(self) -> str:
        """The one line of the error; fails when there is another number of lines."""
        (line,) = self.err.splitlines()
        return line


Tally = Callable[..., Ran]


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tally:
    """`tally("runs", "--json", stdin=b"")` in an empty folder, with its own state folder and no ledger chosen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TALLY_STATE_DIR", str(tmp_path / "state"))
    for name in ("TALLY_LEDGER", "TALLY_DEBUG", "TALLY_PASSPHRASE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str | Path, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def plan() -> Plan:
    return small_plan()


@pytest.fixture
def ledger(tally: Tally, plan: Plan, tmp_path: Path) -> Path:
    """./tally.db with two clean runs and one, the newest, that a kill stopped before anything was released."""
    bodies = clean_bodies(plan)
    seed(tmp_path / "tally.db", plan, (FIRST, bodies), (SECOND, bodies), (OTHER, bodies[:12]))
    return tmp_path / "tally.db"


@pytest.fixture
def plan_file(tmp_path: Path, plan: Plan) -> Path:
    path = tmp_path / "plan.json"
    path.write_bytes(plan.data)
    return path
