"""Ways in which loading weights or keeping records has gone wrong for others, each by its name, and that it cannot here.

The rooms' own tests go further into each. Here stands the smallest case, and what would happen without the protection.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger import canonical, pins
from ledger.audit import verify_ledger
from ledger.bodies import DecodeRan, MemorySampled, ReclamationObserved
from ledger.errors import CheckpointError, Conflict, EventError, PlanError
from ledger.fold import fold
from ledger.maintenance import backup
from ledger.measurement import measured
from ledger.plan import parse_plan
from ledger.query import run_query
from ledger.reconcile import judge
from ledger.recording import uuid7
from ledger.sqlite import sqlite_driver
from ledger.store import Store
from tests.builders.checkpoints import raw_bytes, tiny_model, write_checkpoint, write_safetensors
from tests.builders.ledgers import PLAN, draft, record_run, small_body, small_drafts
from tests.builders.machine import cpu_machine
from tests.builders.runs import changed, clean_bodies, gpu_plan, matching, run_events, sample, size, small_plan

MIB = 1 << 20

Raw = tuple[str, tuple[int, ...], bytes]


def raw(dtype: str, *shape: int, seed: int = 1) -> Raw:
    return dtype, shape, raw_bytes(dtype, shape, seed)


def codes(bodies: list[Any], plan: Any) -> set[str]:
    return {finding.code for finding in judge(plan, fold(run_events(bodies, plan))).findings}


# --- checkpoints --------------------------------------------------------------------------------------------------


def loaded(directory: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """The bytes of every tensor as the loader puts them into memory, and the address of each."""
    pytest.importorskip("torch")
    from realizer.adapter import pack
    from realizer.checkpoint import open_checkpoint
    from realizer.loader import Loader
    from realizer.memory import Ranges

    checkpoint = open_checkpoint(directory)
    layout = pack("test", [(key, entry.dtype, entry.shape, (key,)) for key, entry in checkpoint.tensors.items()])
    ranges = Ranges()
    memory = ranges.allocate("system-ram", layout.length, owner="test")
    Loader(checkpoint, threads=1).read(layout, memory)
    view = memory.view()
    found = {place.name: bytes(view[place.offset : place.offset + place.bytes]) for place in layout.places}
    addresses = {place.name: memory.start + place.offset for place in layout.places}
    view.release()
    assert ranges.free_all() == []
    return found, addresses


def test_a_tensor_of_odd_length_shifts_the_alignment_of_those_behind_it(tmp_path: Path) -> None:
    """Seven bytes of U8 put the F32 behind them at an address that vector loads and device kernels refuse."""
    from realizer.checkpoint import open_checkpoint

    tensors = {"scales": raw("U8", 7), "weight": raw("F32", 5, 3, seed=2)}
    directory = write_checkpoint(tmp_path, [tensors])
    shard = open_checkpoint(directory).files[0]
    assert (open_checkpoint(directory).tensors["weight"].start - shard.data_start) % 4 == 3
    found, addresses = loaded(directory)
    assert found == {key: data for key, (_, _, data) in tensors.items()}
    assert addresses["weight"] % 256 == 0


def test_a_header_over_100_mb_takes_memory_before_it_is_refused(tmp_path: Path) -> None:
    """The file says how long its header is, and a reader that believes it reads that much."""
    from realizer.checkpoint import open_checkpoint

    write_checkpoint(tmp_path, [{"a": raw("U8", 1)}])
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little") + b"{")
        os.truncate(file.fileno(), 8 + 100_000_001)
    with pytest.raises(CheckpointError, match="claims a header of 100000001 bytes, more than the format's 100000000"):
        open_checkpoint(tmp_path)


def test_dtypes_of_four_bits_and_scales_of_exponents_alone(tmp_path: Path) -> None:
    """F4 and F8_E8M0 are dtypes that readers do not know, or count as a byte an element."""
    tensors = {"blocks": raw("F4", 7, 6), "scales": raw("F8_E8M0", 13, seed=2)}
    found, _ = loaded(write_checkpoint(tmp_path / "whole", [tensors]))
    assert found == {key: data for key, (_, _, data) in tensors.items()}
    assert [len(data) for data in found.values()] == [21, 13]
    with pytest.raises(CheckpointError, match="not whole bytes"):
        loaded(write_checkpoint(tmp_path / "half", [{"blocks": ("F4", (13,), bytes(7))}]))


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def sharded(folder: Path) -> Path:
    return write_checkpoint(folder, [{"a": raw("F32", 4), "b": raw("F32", 4, seed=2)}, {"c": raw("F32", 4, seed=3)}])


@pytest.mark.parametrize("named", [FIRST, SECOND])
def test_an_index_that_names_a_stale_duplicate(tmp_path: Path, named: str) -> None:
    """A shard left over from another export has a tensor too, and which of the two is loaded is left to the index."""
    from realizer.checkpoint import open_checkpoint

    directory = sharded(tmp_path)
    write_safetensors(directory / SECOND, {"c": raw("F32", 4, seed=3), "a": raw("F32", 4, seed=9)})
    index = directory / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["a"] = named
    index.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=f"tensor 'a' is in two shards: {FIRST} and {SECOND}"):
        open_checkpoint(directory)


def test_a_missing_shard_leaves_weights_as_they_were_initialised(tmp_path: Path) -> None:
    from realizer.checkpoint import open_checkpoint

    directory = sharded(tmp_path)
    (directory / SECOND).unlink()
    with pytest.raises(CheckpointError, match=f"names '{SECOND}', which is not there"):
        open_checkpoint(directory)


def test_tied_weights_are_counted_once_and_need_no_key_of_their_own(tmp_path: Path) -> None:
    """A head that is tied to the embedding has no key in the file; made of its own it is a second copy."""
    pytest.importorskip("torch")
    from adapters.causal_lm import CausalLM
    from realizer.checkpoint import open_checkpoint
    from realizer.drafting import DraftOptions, draft_plan

    checkpoint = open_checkpoint(tiny_model(tmp_path, tied=True))
    assert "lm_head.weight" not in checkpoint.tensors
    plan = parse_plan(draft_plan(checkpoint, CausalLM, cpu_machine(), DraftOptions()))
    assert plan.materializations["mat.weights.resident"].expected_bytes == checkpoint.tensor_bytes
    assert CausalLM.unsupported(checkpoint) is None


# --- memory -------------------------------------------------------------------------------------------------------


def sampler(*files: Path) -> Callable[[str], MemorySampled]:
    """Samples of this process, after a baseline."""
    from realizer.memory import Ranges
    from realizer.probes import Probes

    probes = Probes(Ranges(), files)
    probes.baseline()
    return probes.sample


def test_one_live_view_keeps_a_whole_file_mapped(tmp_path: Path) -> None:
    """All tensors but one are gone, and every page of the file that was touched is still there."""
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    safetensors.save_file({"big": torch.zeros(8 * MIB), "small": torch.zeros(4)}, path)
    look = sampler(path)
    tensors = safetensors.load_file(path)
    assert float(tensors["big"].sum()) == 0
    view = tensors["small"][1:2]
    del tensors
    kept = look("kept").process["checkpoint_mappings"]
    del view
    gone = look("gone").process["checkpoint_mappings"]
    assert isinstance(kept.value, int)
    assert kept.value >= 32 * MIB
    assert gone.value == 0


def test_a_pinned_pool_keeps_the_pages_of_freed_staging() -> None:
    """A pool of pinned memory takes a freed buffer back and keeps its pages: free for the program, not for the machine."""
    plan = gpu_plan()
    bodies = clean_bodies(plan)
    assert codes(bodies, plan) == set()
    (release, *_) = [bodies[at] for at in matching(bodies, ReclamationObserved, phase="after-release")]
    kept = changed(
        bodies,
        ReclamationObserved,
        {
            "region_mapped": measured(1, "flag", "smaps"),
            "tree_after": release.tree_before,  # type: ignore[attr-defined]
            "ratio": measured(0.0, "ratio", "tree before and after"),
        },
        phase="after-release",
    )
    # The sample of the same point still shows the pages gone, and two who differ are not believed without a word.
    assert codes(kept, plan) == {"memory.not-reclaimed", "memory.reclaim-unknown"}


def test_staging_of_our_own_leaves_no_page_behind() -> None:
    pytest.importorskip("torch")
    from realizer.memory import allocate

    area = allocate("system-ram", 32 * MIB, owner="staging")
    view = area.view()
    view[:] = b"\1" * len(view)
    view.release()
    assert area.mapped().value == 1
    area.free()
    assert area.mapped().value == 0


def test_the_page_cache_is_not_taken_for_a_mirror(tmp_path: Path) -> None:
    """Reading a checkpoint fills the machine's page cache, which no process holds and the kernel drops when it likes."""
    pytest.importorskip("torch")
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": ("U8", (64 * MIB,), bytes(64 * MIB))})
    look = sampler(path)
    with path.open("rb") as file:
        while file.read(MIB):
            pass
    found = look("read").process
    assert (found["checkpoint_mappings"].value, found["new_file_mappings"].value) == (0, 0)
    plan = small_plan()
    bodies = [
        body.model_copy(update={"host": body.host | {"cached": size(64 << 30, "/proc/meminfo")}})
        if isinstance(body, MemorySampled) and body.label != "baseline"
        else body
        for body in clean_bodies(plan)
    ]
    assert codes(bodies, plan) == set()
    mapped = [
        body.model_copy(update={"process": body.process | {"checkpoint_mappings": size(64 << 30, "smaps")}})
        if isinstance(body, MemorySampled) and body.label == "closing"
        else body
        for body in bodies
    ]
    assert "memory.host-mirror" in codes(mapped, plan)


# --- records ------------------------------------------------------------------------------------------------------


def audited_with(path: Path, change: Callable[[str], str]) -> list[str]:
    """What verifying says of a ledger into which a second event went past the store, its envelope changed, its hash right."""
    run_id = uuid7()
    with Store.open(path, write=True, create=True) as store:
        (first,) = store.append(run_id, 0, small_drafts(run_id, 1))
    envelope = change(draft(run_id, small_body(1)).seal(1, first.hash))
    connection = sqlite_driver().connect(str(path))
    row = (1, envelope, canonical.event_hash(envelope))
    connection.execute("INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)", row)
    connection.commit()
    connection.close()
    return [problem.detail for problem in verify_ledger(path, use_state=False).problems if problem.position == 1]


def test_json_with_a_key_twice_says_two_things_to_two_readers(tmp_path: Path) -> None:
    plan = small_plan()
    twice = plan.data.replace(b'"plan_version"', b'"plan_version":"other","plan_version"', 1)
    assert json.loads(twice) == json.loads(plan.data), "most readers take the last one and say nothing"
    with pytest.raises(PlanError, match="twice"):
        parse_plan(twice)
    assert audited_with(tmp_path / "sound.db", str) == []
    (said,) = audited_with(tmp_path / "bad.db", lambda text: text.replace('"sequence":1', '"sequence":1,"sequence":2'))
    assert "twice" in said, "SQLite takes the first one"


def test_nanoseconds_are_not_cut_by_a_database(tmp_path: Path) -> None:
    """A time column keeps microseconds, and a double loses the last digits of nanoseconds since the epoch."""
    run_id, elapsed = uuid7(), 2**53 - 1
    (first,) = small_drafts(run_id, 1)
    exact = draft(run_id, sample(PLAN, "one", []), elapsed_ns=elapsed)
    stamp = "2026-11-29T12:00:00.000001Z"
    later = draft(run_id, sample(PLAN, "two", []), recorded_at=stamp, elapsed_ns=elapsed - 1)
    with Store.open(tmp_path / "tally.db", write=True, create=True) as store:
        store.append(run_id, 0, [first, exact, later])
    with Store.open(tmp_path / "tally.db") as store:
        events = list(store.events(run_id))
    assert [event.elapsed_ns for event in events[1:]] == [elapsed, elapsed - 1]
    assert events[2].recorded_at == stamp
    asked = run_query(tmp_path / "tally.db", "SELECT elapsed_ns, recorded_at FROM memory_samples ORDER BY sequence", {})
    assert [row[0] for row in asked.rows] == [elapsed, elapsed - 1]
    assert asked.rows[1][1] == stamp
    with pytest.raises(EventError):
        draft(run_id, small_body(3), elapsed_ns=2**53).seal(3, "0" * 64)


def test_a_database_copied_without_its_log_has_lost_its_newest_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cp tally.db` while a writer has it open copies the file as it was at the last checkpoint of its log."""
    monkeypatch.setenv("TALLY_STATE_DIR", str(tmp_path / "state"))
    ledger, copied, kept = tmp_path / "tally.db", tmp_path / "copied.db", tmp_path / "kept.db"
    with Store.open(ledger, write=True, create=True) as store:
        record_run(store)
    with Store.open(ledger, write=True) as store:
        record_run(store)
        if not Path(f"{ledger}-wal").exists():
            pytest.skip("this SQLite is used without a log")
        pins.move_pin(store)
        shutil.copy(ledger, copied)
        backup(ledger, kept)
    with Store.open(copied) as short, Store.open(kept) as whole, Store.open(ledger) as store:
        assert short.size() < whole.size() == store.size()
        with pytest.raises(pins.Rollback, match="rollback"):
            pins.check_pin(short)
        pins.check_pin(whole)
    assert [problem.code for problem in verify_ledger(copied).problems if problem.code == "rollback"] == ["rollback"]


def test_two_writers_cannot_fork_a_chain(tmp_path: Path) -> None:
    """Both read the same head, and both append what follows it."""
    run_id, path = uuid7(), tmp_path / "tally.db"
    with Store.open(path, write=True, create=True) as one, Store.open(path, write=True) as other:
        one.append(run_id, 0, small_drafts(run_id, 1))
        sequence = other.next_sequence(run_id)
        (head,) = one.append(run_id, sequence, small_drafts(run_id, 1, start=1))
        with pytest.raises(Conflict):
            other.append(run_id, sequence, small_drafts(run_id, 1, start=1))
        events = list(other.recorded(run_id))
    rival = draft(run_id, small_body(7)).seal(1, events[0].hash)
    with sqlite3.connect(path) as connection, pytest.raises(sqlite3.Error, match="sequence is taken"):
        connection.execute(
            "INSERT INTO events (position, envelope, hash) VALUES (2, ?, ?)", (rival, canonical.event_hash(rival))
        )
    with Store.open(path) as store:
        assert [event.hash for event in store.recorded(run_id)] == [events[0].hash, head.hash]


def _reversed(value: Any) -> Any:
    """The same JSON with the keys of every object in the other order."""
    if isinstance(value, dict):
        return {key: _reversed(item) for key, item in reversed(value.items())}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("damage", [False, True])
def test_a_verdict_does_not_depend_on_the_order_of_keys(damage: bool) -> None:
    plan = small_plan()
    other = parse_plan(json.dumps(_reversed(json.loads(plan.data))).encode())
    assert other.data != plan.data
    assert (other.computed_digest, other.claimed_digest) == (plan.computed_digest, plan.claimed_digest)
    bodies = clean_bodies(plan)
    if damage:
        bodies = [body for body in bodies if not isinstance(body, DecodeRan)]
    state = fold(run_events(bodies, plan))
    assert judge(other, state) == judge(plan, state)
    assert judge(plan, state).verdict == ("FAIL" if damage else "PASS")


def test_an_envelope_with_its_keys_in_another_order_is_not_what_was_appended(tmp_path: Path) -> None:
    def other(text: str) -> str:
        return json.dumps(_reversed(json.loads(text)), separators=(",", ":"))

    (said, *_) = audited_with(tmp_path / "tally.db", other)
    assert "not in canonical form" in said
