"""`kill -9` in the middle of a realization: what was recorded stays, the run is incomplete, the next one is unhindered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ledger.errors import LedgerError
from ledger.store import Store
from tests.builders.realizations import Prepared, prepare


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("killed"))


def tally(*arguments: str | Path, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "realizer.cli.main", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TALLY_LEDGER": str(folder / "tally.db"), "TALLY_STATE_DIR": str(folder / "state")},
    )


def recorded_types(ledger: Path, run_id: str) -> list[str]:
    with Store.open(ledger) as store:
        return [event.type for event in store.events(run_id)]


def wait_for(ledger: Path, wanted: str, process: subprocess.Popen[str]) -> str:
    """The id of the newest run once it has recorded an event of that type."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            with Store.open(ledger) as store:
                runs = store.runs()
                if runs and wanted in [event.type for event in store.events(runs[-1].run_id)]:
                    return runs[-1].run_id
        except LedgerError:
            pass  # not there yet, or just being made
        time.sleep(0.005)
    raise AssertionError(f"no {wanted} was recorded: {process.communicate()}")


def test_a_killed_realization_is_incomplete_and_hinders_nobody(prepared: Prepared, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(prepared.plan.data)
    ledger = tmp_path / "tally.db"
    realize = ("realize", plan, "--checkpoint", prepared.checkpoint, "--reference", prepared.reference)
    killed = []
    for moment in ("materialization.started", "release.authorized", "decode.ran"):
        process = tally(*realize, folder=tmp_path)
        run_id = wait_for(ledger, moment, process)
        before = recorded_types(ledger, run_id)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        after = recorded_types(ledger, run_id)
        assert after[: len(before)] == before  # what a reader has seen is never lost
        if "run.closed" not in after:  # it may have been quicker than the signal
            killed.append((run_id, moment, len(after)))
    assert killed

    for run_id, moment, events in killed:
        shown = tally("replay", run_id, "--json", folder=tmp_path)
        output, error = shown.communicate(timeout=120)
        assert shown.returncode == 0, error
        state = json.loads(output)
        assert (state["outcome"], state["last_sequence"]) == ("incomplete", events - 1), moment
        document = json.loads(tally("show", run_id, "--json", folder=tmp_path).communicate(timeout=120)[0])
        assert (document["outcome"], document["verdict"]) == ("incomplete", "INDETERMINATE"), moment
        assert "run.incomplete" in {finding["code"] for finding in document["findings"]}
        log = tally("log", run_id, "--json", folder=tmp_path).communicate(timeout=120)[0]
        assert len(log.splitlines()) == events

    listed = json.loads(tally("runs", "--json", folder=tmp_path).communicate(timeout=120)[0])["runs"]
    assert {run["run_id"] for run in listed if run["outcome"] == "incomplete"} == {run_id for run_id, _, _ in killed}

    again = tally(*realize, "--json", folder=tmp_path)
    output, error = again.communicate(timeout=240)
    assert again.returncode == 0, error
    assert json.loads(output)["verdict"] == "PASS"
    checked = tally("verify", "--json", folder=tmp_path)
    output, _ = checked.communicate(timeout=120)
    assert (checked.returncode, json.loads(output)["problems"]) == (0, [])
