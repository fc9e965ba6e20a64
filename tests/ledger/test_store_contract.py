"""What every backend of the store must do: one suite, run on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ledger import canonical
from ledger.bodies import MemorySampled, PlanFrozen, RunClosed, RunSuperseded, VerdictRecorded
from ledger.errors import Conflict, EventError, LedgerError, NotFound
from ledger.events import Actor
from ledger.maintenance import check, copy
from ledger.measurement import measured
from ledger.recording import ListLedger, Recorder, uuid7
from ledger.store import Store
from tests.builders.ledgers import PLAN, draft, record_run, small_body, small_drafts
from tests.builders.runs import clean_bodies, opened


def chain_holds(store: Store) -> None:
    """Positions are 0, 1, 2, ...; every run's sequences too; every hash and every link is right."""
    heads: dict[str, tuple[int, str]] = {}
    for expected, recorded in enumerate(store.recorded()):
        assert recorded.position == expected
        assert canonical.event_hash(recorded.envelope) == recorded.hash
        event = canonical.decode(recorded.envelope)
        sequence, previous = heads.get(event["run_id"], (-1, PLAN.computed_digest.removeprefix("sha256:")))
        assert event["sequence"] == sequence + 1
        assert event["previous"] == previous
        heads[event["run_id"]] = (event["sequence"], recorded.hash)


def test_same_events_have_the_same_bytes_and_hashes_as_in_memory(location: str) -> None:
    run_id = uuid7()
    drafts = [draft(run_id, body) for body in clean_bodies(PLAN)]
    memory = ListLedger()
    memory.append(run_id, 0, drafts)
    with Store.open(location, write=True, create=True) as store:
        assert store.append(run_id, 0, drafts) == memory.recorded
        assert list(store.recorded(run_id)) == memory.recorded
        assert [event.body for event in store.events(run_id)] == clean_bodies(PLAN)
        chain_holds(store)


def test_what_was_appended_is_there_after_reopening(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        run_id = uuid7()
        first = store.append(run_id, 0, small_drafts(run_id, 3))
        origin = store.origin
    with Store.open(location, write=True) as store:
        assert store.origin == origin
        second = store.append(run_id, 3, small_drafts(run_id, 2, start=3))
        assert list(store.recorded()) == first + second
        assert (store.size(), store.next_sequence(run_id), store.next_sequence(uuid7())) == (5, 5, 0)


def test_two_ledgers_have_two_origins(location: str, tmp_path: Path) -> None:
    with (
        Store.open(location, write=True, create=True) as one,
        Store.open(tmp_path / "other.db", write=True, create=True) as other,
    ):
        assert one.origin != other.origin


def test_one_writer_wins_and_the_other_can_retry(location: str) -> None:
    run_id = uuid7()
    with Store.open(location, write=True, create=True) as one, Store.open(location, write=True) as other:
        one.append(run_id, 0, small_drafts(run_id, 2))
        with pytest.raises(Conflict, match=r"at sequence 2, not 1"):
            other.append(run_id, 1, small_drafts(run_id, 1, start=1))
        assert other.size() == 2
        other.append(run_id, other.next_sequence(run_id), small_drafts(run_id, 1, start=2))
        assert one.size() == 3
        chain_holds(one)


def test_a_sequence_beyond_the_next_is_a_conflict(location: str) -> None:
    run_id = uuid7()
    with Store.open(location, write=True, create=True) as store:
        with pytest.raises(Conflict, match=r"at sequence 0, not 4"):
            store.append(run_id, 4, small_drafts(run_id, 1, start=4))
        assert store.size() == 0


def test_appending_again_returns_the_same_places(location: str) -> None:
    run_id = uuid7()
    drafts = small_drafts(run_id, 3)
    with Store.open(location, write=True, create=True) as store:
        first = store.append(run_id, 0, drafts)
        store.append(run_id, 3, small_drafts(run_id, 1, start=3))
        assert store.append(run_id, 0, drafts) == first
        assert store.append(run_id, 4, drafts) == first, "also by one who has read the next sequence again"
        assert store.append(run_id, 1, drafts[1:2]) == first[1:2]
        assert store.size() == 4


@pytest.mark.parametrize("expected_sequence", [1, 2])
def test_an_event_id_with_other_content_is_an_error(location: str, expected_sequence: int) -> None:
    run_id = uuid7()
    drafts = small_drafts(run_id, 2)
    with Store.open(location, write=True, create=True) as store:
        store.append(run_id, 0, drafts)
        other = replace(drafts[1], body=small_body(99))
        with pytest.raises(LedgerError, match="recorded already, with other content"):
            store.append(run_id, expected_sequence, [other])
        assert store.size() == 2


def test_an_event_id_of_another_run_is_an_error(location: str) -> None:
    one, other = uuid7(), uuid7()
    with Store.open(location, write=True, create=True) as store:
        (first,) = small_drafts(one, 1)
        store.append(one, 0, [first])
        with pytest.raises(LedgerError, match="recorded already"):
            store.append(other, 0, [replace(first, run_id=other)])
        assert store.size() == 1


def test_a_batch_that_is_partly_recorded_is_an_error(location: str) -> None:
    run_id = uuid7()
    drafts = small_drafts(run_id, 3)
    with Store.open(location, write=True, create=True) as store:
        store.append(run_id, 0, drafts[:2])
        with pytest.raises(LedgerError, match="2 of these 3 events are recorded already"):
            store.append(run_id, 0, drafts)
        with pytest.raises(LedgerError, match="1 of these 2 events are recorded already"):
            store.append(run_id, 2, [drafts[1], drafts[2]])
        assert store.size() == 2


def test_a_batch_is_recorded_whole_or_not_at_all(location: str) -> None:
    run_id = uuid7()
    bad = MemorySampled(label="x\x00y", process={})
    with Store.open(location, write=True, create=True) as store:
        with pytest.raises(EventError, match=r"U\+0000"):
            store.append(run_id, 0, [*small_drafts(run_id, 5), draft(run_id, bad)])
        assert store.size() == 0
        store.append(run_id, 0, small_drafts(run_id, 5))
        assert store.size() == 5


@pytest.mark.parametrize(
    "body",
    [
        MemorySampled(label="x", process={"vm_rss": measured(1, "bytes", "m").model_copy(update={"value": 2**53})}),
        MemorySampled(label="\ud800", process={}),
    ],
    ids=["2**53", "lone surrogate"],
)
def test_values_that_may_not_be_recorded_are_refused(location: str, body: MemorySampled) -> None:
    run_id = uuid7()
    with Store.open(location, write=True, create=True) as store:
        store.append(run_id, 0, small_drafts(run_id, 1))
        with pytest.raises(EventError, match="no canonical JSON form"):
            store.append(run_id, 1, [draft(run_id, body)])
        assert store.size() == 1


def test_any_text_comes_back_as_it_was(location: str) -> None:
    run_id = uuid7()
    label = "Ünïcode \U0001f9ee \u202e 'quotes\" \\ % ? :x \n\t\x01 \u2028"
    with Store.open(location, write=True, create=True) as store:
        (_, second) = store.append(
            run_id, 0, [draft(run_id, opened(PLAN)), draft(run_id, MemorySampled(label=label, process={}))]
        )
        assert list(store.recorded(run_id))[1] == second
        (_, event) = store.events(run_id)
        assert event.body.label == label


def test_drafts_of_another_run_and_repeated_ids_are_refused(location: str) -> None:
    run_id = uuid7()
    with Store.open(location, write=True, create=True) as store:
        with pytest.raises(EventError, match="belongs to run"):
            store.append(run_id, 0, small_drafts(uuid7(), 1))
        twice = small_drafts(run_id, 1) * 2
        with pytest.raises(EventError, match="occurs twice"):
            store.append(run_id, 0, twice)
        with pytest.raises(EventError, match=r"a stream begins with run\.opened"):
            store.append(run_id, 0, [draft(run_id, small_body(1))])
        assert store.append(run_id, 0, []) == []
        assert store.size() == 0


def test_a_reader_may_not_write(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        record_run(store)
        size = store.size()
    with Store.open(location) as store:
        run_id = uuid7()
        with pytest.raises(LedgerError, match="open for reading only"):
            store.append(run_id, 0, small_drafts(run_id, 1))
        with pytest.raises(LedgerError, match="open for reading only"):
            store.put_blob(b"x", "text/plain")
        with pytest.raises(LedgerError, match="open for reading only"):
            store.put_checkpoint(0, "0" * 64, "note")
        with pytest.raises(LedgerError):
            store.base.select("INSERT INTO checkpoints (tree_size, root, note) VALUES (1, 'x', 'y') RETURNING note")
        assert (store.size(), store.checkpoints()) == (size, [])


def test_the_database_refuses_change_deletion_and_replacement(location: str) -> None:
    run_id = uuid7()
    with Store.open(location, write=True, create=True) as store:
        rows = [(one.position, one.envelope, one.hash) for one in store.append(run_id, 0, small_drafts(run_id, 3))]
        store.put_blob(b"blob", "text/plain")
        store.put_checkpoint(1, "0" * 64, "note")
        next_envelope = small_drafts(run_id, 1, start=3)[0].seal(3, rows[-1][2])
        skipping = small_drafts(run_id, 1, start=5)[0].seal(5, rows[-1][2])
        free = "f" * 64
        attacks = [
            ("UPDATE events SET envelope = 'x' WHERE position = 1", ()),
            ("UPDATE events SET hash = ? WHERE position = 1", (free,)),
            ("UPDATE events SET position = 7 WHERE position = 2", ()),
            ("DELETE FROM events WHERE position = 2", ()),
            ("DELETE FROM events", ()),
            ("UPDATE blobs SET data = media_type", ()),
            ("DELETE FROM blobs", ()),
            ("DELETE FROM checkpoints", ()),
            ("UPDATE checkpoints SET root = 'x'", ()),
            ("UPDATE ledger SET origin = 'x'", ()),
            ("DELETE FROM ledger", ()),
            ("INSERT INTO ledger (origin, created_at) VALUES ('x', 'y')", ()),
            ("INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)", rows[1]),
            ("INSERT INTO events (position, envelope, hash) VALUES (3, ?, ?)", (next_envelope, rows[1][2])),
            ("INSERT INTO events (position, envelope, hash) VALUES (3, ?, ?)", (rows[1][1], free)),
            ("INSERT INTO events (position, envelope, hash) VALUES (4, ?, ?)", (next_envelope, free)),
            ("INSERT INTO events (position, envelope, hash) VALUES (3, ?, ?)", (skipping, free)),
            ("INSERT INTO events (position, envelope, hash) VALUES (3, 'no json', ?)", (free,)),
            ("INSERT INTO events (position, envelope, hash) VALUES (3, '{}', ?)", (free,)),
            ("INSERT INTO events (position, envelope, hash) VALUES (3, ?, 'short')", (next_envelope,)),
            ("INSERT INTO events (position, envelope, hash, run_id) VALUES (3, ?, ?, 'x')", (next_envelope, free)),
        ]
        for sql, parameters in attacks:
            with pytest.raises(LedgerError), store.base.transaction() as transaction:
                transaction.execute(sql, parameters)
            assert [(one.position, one.envelope, one.hash) for one in store.recorded()] == rows, sql
        assert store.blob(canonical.sha256_digest(b"blob")) == b"blob"
        assert store.checkpoints() == [(1, "0" * 64, "note")]
        store.append(run_id, 3, small_drafts(run_id, 1, start=3))


def test_columns_are_what_the_envelope_says(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        record_run(store)
        for row in store.rows():
            event = canonical.decode(row[1])
            assert row[2] == canonical.event_hash(row[1])
            assert row[3:] == tuple(
                event[name] for name in ("event_id", "run_id", "sequence", "type", "recorded_at", "node_id")
            )
        assert [row[0] for row in store.rows(2, 5)] == [2, 3, 4]


def test_reading_in_pages_misses_nothing(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.store.PAGE", 3)
    one, other = uuid7(), uuid7()
    with Store.open(location, write=True, create=True) as store:
        for start in range(0, 8, 2):
            for run_id in (one, other):
                store.append(run_id, start, small_drafts(run_id, 2, start=start))
        everything = list(store.recorded())
        assert [recorded.position for recorded in everything] == list(range(16))
        assert list(store.recorded(start=5)) == everything[5:]
        of_one = [recorded for recorded in everything if canonical.decode(recorded.envelope)["run_id"] == one]
        assert list(store.recorded(one)) == of_one
        assert list(store.recorded(one, start=5)) == [recorded for recorded in of_one if recorded.position >= 5]
        assert [leaf.hex() for leaf in store.leaf_hashes(2, 13)] == [recorded.hash for recorded in everything[2:13]]
        assert [row[0] for row in store.rows()] == list(range(16))


def test_blobs_are_stored_once_by_content(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        data = bytes(range(256)) * 10
        digest = store.put_blob(data, "application/octet-stream")
        assert digest == canonical.sha256_digest(data)
        assert store.put_blob(data, "text/plain") == digest
        assert (store.blob(digest), store.blob_media_type(digest)) == (data, "application/octet-stream")
        empty = store.put_blob(b"", "text/plain")
        assert store.blob(empty) == b""
        assert list(store.blob_digests()) == sorted([digest, empty])
        assert (store.blob("sha256:" + "0" * 64), store.blob_media_type("nothing")) == (None, None)


def test_checkpoints_are_kept_in_order(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        for size in (10, 2, 10):
            store.put_checkpoint(size, f"{size:064x}", f"note {size}")
        assert store.checkpoints() == [(2, f"{2:064x}", "note 2"), (10, f"{10:064x}", "note 10")]


def test_the_earliest_freezing_is_found(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        assert store.frozen(PLAN.computed_digest) is None
        streams = []
        for digest in ("sha256:" + "0" * 64, PLAN.computed_digest, PLAN.computed_digest):
            stream = uuid7()
            streams += store.append(stream, 0, [draft(stream, PlanFrozen(digest=digest, blob_digest=PLAN.blob_digest))])
        assert store.frozen(PLAN.computed_digest) == streams[1]
        assert store.runs() == [], "a freezing is no run"


def test_runs_are_listed_and_resolved(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        assert store.runs() == []
        with pytest.raises(NotFound, match="no run @latest"):
            store.resolve("@latest")
        first = record_run(store)
        second = record_run(store, clean_bodies(PLAN)[:5])
        third = record_run(store, purpose="witness", witness_of=first)
        recorder = Recorder(
            store.append,
            run_id=first,
            node_id="n",
            actor=Actor(kind="judge", id="j"),
            next_sequence=store.next_sequence(first),
            clock=None,
        )
        recorder(VerdictRecorded(judge_version="1", verdict="FAIL", assurance="observed", codes=["run.failed"]))
        recorder(RunSuperseded(reason="wrong plan", by=second))
        rows = {run.run_id: run for run in store.runs()}
        assert list(rows) == [first, second, third]
        assert (rows[first].outcome, rows[first].verdict, rows[first].assurance) == ("completed", "FAIL", "observed")
        assert (rows[first].superseded_by, rows[first].plan_digest) == (second, PLAN.computed_digest)
        assert (rows[second].outcome, rows[second].verdict, rows[second].superseded_by) == ("incomplete", None, None)
        assert rows[third].purpose == "witness"
        assert store.witnesses(first) == [third]
        assert store.witnesses(second) == []
        assert store.resolve("@latest") == second, "a witness is not the latest run"
        assert store.resolve("@latest~1") == store.resolve("@latest~01") == first
        assert store.resolve(first.upper()) == store.resolve(first) == first
        for name in ("@latest~2", "@latest~", "@newest", "zz", "", "0123%", "00000000"):
            with pytest.raises(NotFound):
                store.resolve(name)


def test_an_ambiguous_prefix_is_named(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        one = record_run(store, run_id="0192aaaa-0000-7000-8000-000000000001")
        record_run(store, run_id="0192aaaa-0000-7000-8000-000000000002")
        with pytest.raises(NotFound, match=r"beginning of several runs: 0192aaaa.*0001, 0192aaaa.*0002"):
            store.resolve("0192")
        assert store.resolve(one) == one


def test_a_closed_run_that_failed_says_so(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        record_run(store, [opened(PLAN), RunClosed(outcome="failed", error_type="X", message="no")])
        (run,) = store.runs()
        assert run.outcome == "failed"


def test_opening_for_writing_without_guards_is_refused(location: str) -> None:
    from ledger.migrate import upgrade

    with Store.open(location, write=True, create=True) as store:
        record_run(store)
        before = list(store.recorded())
        trigger, table = (
            ("events_no_delete", "") if store.base.dialect == "sqlite" else ("events_no_change", " ON events")
        )
        with store.base.transaction() as transaction:
            transaction.execute(f"DROP TRIGGER {trigger}{table}")
    with pytest.raises(LedgerError, match=f"are gone, or not this program's: {trigger}") as raised:
        Store.open(location, write=True)
    assert "tally db upgrade" in str(raised.value)
    with Store.open(location) as store:
        assert list(store.recorded()) == before, "it can still be read"
    assert trigger in check(location)["guards"]
    assert upgrade(location) == (check(location)["version"],) * 2
    assert check(location)["problems"] == []
    with Store.open(location, write=True) as store:
        assert list(store.recorded()) == before
        with pytest.raises(LedgerError), store.base.transaction() as transaction:
            transaction.execute("DELETE FROM events")


def test_a_copy_on_the_other_backend_is_the_same_byte_for_byte(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.maintenance.EVENTS_A_COMMIT", 50)
    source = tmp_path / "source.db"
    with Store.open(source, write=True, create=True) as store:
        record_run(store)
        record_run(store)
        store.put_blob(b"\x00\xff plan", "application/json")
        store.put_checkpoint(3, "ab" * 32, "note\n")
        everything, origin = list(store.recorded()), store.origin
    if location != str(source):
        copy(source, location)
    copy(source, location)  # once more finds that all is there
    with Store.open(source, write=True) as store:
        record_run(store)
        everything = list(store.recorded())
    copy(source, location)  # and then carries over what came since
    back = tmp_path / "back.db"
    copy(location, back)
    for place in (location, back):
        with Store.open(place) as store:
            assert (list(store.recorded()), store.origin) == (everything, origin)
            assert store.blob(canonical.sha256_digest(b"\x00\xff plan")) == b"\x00\xff plan"
            assert store.checkpoints() == [(3, "ab" * 32, "note\n")]


def test_a_copy_into_another_ledger_is_refused(location: str, tmp_path: Path) -> None:
    source = tmp_path / "source.db"
    for place in (source, location):
        with Store.open(place, write=True, create=True) as store:
            record_run(store)
    with Store.open(location) as store:
        before = list(store.recorded())
    with pytest.raises(LedgerError, match="holds another ledger"):
        copy(source, location)
    with Store.open(location) as store:
        assert list(store.recorded()) == before


def test_check_tells_the_state(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        record_run(store)
        store.put_blob(b"1234", "text/plain")
        origin, size = store.origin, store.size()
    found = check(location)
    assert (found["origin"], found["events"], found["runs"], found["blobs"], found["blob_bytes"]) == (
        origin,
        size,
        1,
        1,
        4,
    )
    assert (found["guards"], found["problems"]) == ("ok", [])
