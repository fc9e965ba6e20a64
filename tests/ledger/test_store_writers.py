"""Many writers at once, and writers that die: nothing that was acknowledged is lost, on either backend."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledger import canonical
from ledger.errors import LedgerError
from ledger.maintenance import check
from ledger.recording import uuid7
from ledger.store import Store
from tests.builders.ledgers import PLAN, small_drafts
from tests.builders.writers import (
    Acknowledged,
    acknowledgements,
    append_through_faults,
    append_until_killed,
    drain,
    forked,
    next_words,
)

PROJECT = Path(__file__).resolve().parents[2]
PROCESSES, APPENDS = 8, 200
KILLS = {"sqlite": 200, "postgresql": 40}


def verified(location: str) -> tuple[dict[str, Acknowledged], list[dict[str, Any]]]:
    """Every event as an acknowledgement by its id, and the parsed envelopes, after checking positions, hashes and chains."""
    events: dict[str, Acknowledged] = {}
    envelopes = []
    heads: dict[str, tuple[int, str]] = {}
    with Store.open(location) as store:
        for place, recorded in enumerate(store.recorded()):
            assert recorded.position == place
            assert canonical.event_hash(recorded.envelope) == recorded.hash
            envelope = canonical.decode(recorded.envelope)
            run_id = envelope["run_id"]
            sequence, previous = heads.get(run_id, (-1, PLAN.computed_digest.removeprefix("sha256:")))
            assert (envelope["sequence"], envelope["previous"]) == (sequence + 1, previous)
            heads[run_id] = (sequence + 1, recorded.hash)
            events[envelope["event_id"]] = Acknowledged.of(recorded)
            envelopes.append(envelope)
        assert len(events) == len(envelopes) == store.size()
    return events, envelopes


def nothing_lost(acknowledged: list[Acknowledged], events: dict[str, Acknowledged]) -> None:
    """Each acknowledged event is there, at the position and with the hash that its writer was told."""
    lost = [one for one in acknowledged if events.get(one.event_id) != one]
    assert lost == []


def test_eight_processes_append_two_hundred_events_each(location: str) -> None:
    """Four of them to runs of their own, four to one run, where they must retry."""
    Store.open(location, write=True, create=True).close()
    shared = uuid7()
    runs = [uuid7() if number % 2 else shared for number in range(PROCESSES)]
    command = [sys.executable, "-m", "tests.builders.writers", location]
    workers = [
        subprocess.Popen([*command, run_id, str(APPENDS)], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for run_id in runs
    ]
    acknowledged = []
    for worker in workers:
        output, trouble = worker.communicate(timeout=240)
        assert worker.returncode == 0, trouble.decode()
        told = acknowledgements(output)
        assert len(told) == APPENDS
        acknowledged += told
    events, envelopes = verified(location)
    assert len(envelopes) == PROCESSES * APPENDS == 1600
    nothing_lost(acknowledged, events)
    assert len({one.position for one in acknowledged}) == 1600
    lengths = Counter(envelope["run_id"] for envelope in envelopes)
    assert lengths == {shared: 4 * APPENDS, **dict.fromkeys([run for run in runs if run != shared], APPENDS)}
    assert check(location)["problems"] == []


def test_two_hundred_kills_lose_nothing(location: str) -> None:
    """Kill a writer with SIGKILL at a random moment of its appending, again and again; then look at everything."""
    Store.open(location, write=True, create=True).close()
    kills = KILLS["postgresql" if "://" in location else "sqlite"]
    chance = random.Random(20261129)
    acknowledged: list[Acknowledged] = []
    run_id = uuid7()
    for number in range(kills):
        if number % 10 == 0:
            run_id = uuid7()
        child, read = forked(partial(_append, location, run_id, number))
        told, took = next_words(read), 0.005
        assert told == b"ready\n"
        # After some appends, at a random moment of one: as long as the last took, and half as long again.
        for _ in range(chance.randrange(1, 5)):
            begun = time.monotonic()
            told += next_words(read)
            took = time.monotonic() - begun
        time.sleep(chance.uniform(0, 1.5 * took))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "it was killed while it went on appending"
        assert os.WTERMSIG(status) == signal.SIGKILL
        acknowledged += acknowledgements(told + drain(read))
        if number % 25 == 24:
            nothing_lost(acknowledged, verified(location)[0])
    events, envelopes = verified(location)
    nothing_lost(acknowledged, events)
    assert len(acknowledged) > kills, "the kills came while there was something to lose"
    # What was not acknowledged may be there, but only whole: a batch was recorded with all its events or with none.
    batches = Counter(
        envelope["body"]["reason"] for envelope in envelopes if envelope["type"] == "materialization.skipped"
    )
    assert [reason for reason, count in batches.items() if count != int(reason.rpartition(" ")[2])] == []
    assert check(location)["problems"] == []
    run_id = uuid7()
    with Store.open(location, write=True) as store:
        store.append(run_id, 0, small_drafts(run_id, 3))
        assert store.size() == len(envelopes) + 3


def _append(location: str, run_id: str, seed: int, acknowledge: Callable[[bytes], object]) -> None:
    append_until_killed(location, run_id, acknowledge, seed)


def test_a_writer_killed_while_it_begins_a_ledger_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    chance = random.Random(7)
    started = time.monotonic()
    Store.open(tmp_path / "first.db", write=True, create=True).close()
    took = time.monotonic() - started
    begun = 0
    for number in range(30):
        path = tmp_path / f"{number}.db"

        def begin(acknowledge: Callable[[bytes], object], path: Path = path) -> None:
            acknowledge(b"ready\n")
            Store.open(path, write=True, create=True).close()
            signal.pause()

        child, read = forked(begin)
        assert next_words(read) == b"ready\n"
        time.sleep(chance.uniform(0, 1.5 * took))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        drain(read)
        if path.exists():
            begun += 1
            assert check(path)["problems"] == []
        run_id = uuid7()
        with Store.open(path, write=True, create=True) as store:
            store.append(run_id, 0, small_drafts(run_id, 2))
            assert store.size() == 2
    assert 0 < begun < 30, "some were begun before the kill, some were not"


# --- faults of the disk -------------------------------------------------------------------------------------------

FAULTS = {"pwrite64": ("EIO", "ENOSPC"), "fsync": ("EIO",)}
EVENTS_THROUGH_FAULTS = 3


def traced(location: str, run_id: str, folder: Path, inject: str | None) -> tuple[bytes, str]:
    """Run a writer under strace, with a fault or none; what it wrote to its pipe, and strace's log."""
    held, release = os.pipe()

    def work(acknowledge: Callable[[bytes], object]) -> None:
        os.read(held, 1)  # until strace is there
        append_through_faults(location, run_id, EVENTS_THROUGH_FAULTS, acknowledge)

    child, read = forked(work)
    log = folder / "strace.log"
    command = ["strace", "-f", "-q", "-p", str(child), "-o", str(log), "-e", "trace=pwrite64,fsync,fdatasync"]
    tracer = subprocess.Popen(
        [*command, *(["-e", f"inject={inject}"] if inject else [])], stderr=subprocess.PIPE, text=True
    )
    try:
        for _ in range(500):
            traced_by = re.search(r"TracerPid:\s*(\d+)", Path(f"/proc/{child}/status").read_text())
            if (traced_by and traced_by[1] != "0") or tracer.poll() is not None:
                break
            time.sleep(0.01)
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            pytest.skip(f"strace cannot trace here: {tracer.stderr.read().strip()[:200]}")
        os.write(release, b"x")
        told = drain(read)
        _, status = os.waitpid(child, 0)
        child = 0
        assert os.waitstatus_to_exitcode(status) == 0, told
        tracer.wait(timeout=30)
    finally:
        for end in (held, release):
            os.close(end)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if tracer.poll() is None:
            tracer.kill()
        tracer.wait()
        if tracer.stderr is not None:
            tracer.stderr.close()
    return told, log.read_text()


def test_a_fault_at_each_write_and_each_sync_in_turn_loses_nothing(tmp_path: Path) -> None:
    try:
        subprocess.run(["strace", "--version"], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("strace is not installed: faults cannot be injected")
    location = str(tmp_path / "tally.db")
    Store.open(location, write=True, create=True).close()
    told, log = traced(location, uuid7(), tmp_path, None)
    acknowledged = acknowledgements(told)
    assert len(acknowledged) == EVENTS_THROUGH_FAULTS
    counts = {name: len(re.findall(rf"\b{name}\(", log)) for name in (*FAULTS, "fdatasync")}
    assert counts["pwrite64"] > EVENTS_THROUGH_FAULTS
    assert counts["fsync"] >= EVENTS_THROUGH_FAULTS
    assert counts["fdatasync"] == 0, "else it would have to be injected too"
    hit = failed = 0
    for name, errors in FAULTS.items():
        # A few more than were counted: the file has grown since, and a retry writes again.
        for number in range(1, counts[name] + 4):
            error = errors[number % len(errors)]
            told, log = traced(location, uuid7(), tmp_path, f"{name}:error={error}:when={number}")
            hit += "(INJECTED)" in log
            failed += told.count(b"failed ")
            fresh = acknowledgements(told)
            assert len(fresh) == EVENTS_THROUGH_FAULTS, "after a fault the same writer goes on"
            acknowledged += fresh
            nothing_lost(acknowledged, verified(location)[0])
    assert hit >= counts["pwrite64"] + counts["fsync"], "every write and every sync was hit"
    assert failed, "a fault was seen as a failed append"
    events, _ = verified(location)
    assert len(events) == len(acknowledged), "a failed append that was tried again is recorded once"
    assert check(location)["problems"] == []


def test_an_error_at_commit_is_an_error_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    """All syncs fail: no append may return."""
    try:
        subprocess.run(["strace", "--version"], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("strace is not installed: faults cannot be injected")
    location = str(tmp_path / "tally.db")
    Store.open(location, write=True, create=True).close()
    told, log = traced(location, uuid7(), tmp_path, "fsync:error=EIO")
    assert "(INJECTED)" in log
    assert acknowledgements(told) == []
    assert b"failed " in told
    with Store.open(location, write=True) as store:
        run_id = uuid7()
        assert store.size() == 0
        store.append(run_id, 0, small_drafts(run_id, 1))
        with pytest.raises(LedgerError, match="another writer was first"):
            store.append(run_id, 0, small_drafts(run_id, 1))
