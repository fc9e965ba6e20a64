"""Bad ledgers: each attack as a function on a good SQLite ledger, with the kind and position that must be named.

`python -m tests.zoo.ledgers FOLDER` writes all of them there, with the pin that was taken before the attack.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger import canonical, pins, schema
from ledger.bodies import RunSuperseded
from ledger.merkle import root_from_leaves
from ledger.recording import ListLedger
from ledger.sqlite import sqlite_driver
from ledger.store import Store
from tests.builders.judged import PLAN, add_run, draft, fill, run_bodies, run_id
from tests.builders.runs import edited_plan

FAR = 10**6
"""Beyond every position here: where rows wait while others are moved."""
TARGET = 5
"""An event in the middle of the first run; its sequence is TARGET - 1, since position 0 is the plan's freezing."""


def good(path: Path) -> Path:
    """A freezing, a judged run, a second judged run, and a supersession; checkpoints of each stage kept inside."""
    ledger = ListLedger()
    add_run(ledger, 1, bodies=run_bodies())
    add_run(ledger, 2, bodies=run_bodies())
    first = run_id(1)
    body = RunSuperseded(reason="measured again", by=run_id(2))
    ledger.append(first, len(ledger.events(first)), [draft(body, first, len(ledger.events(first)))])
    with Store.open(path, write=True, create=True) as store:
        fill(store, ledger)
    return path


def pinned(path: Path) -> bytes:
    """The pin of a ledger as it stands."""
    with Store.open(path) as store:
        return pins.note(store)[0]


def origin_of(path: Path) -> str:
    """The random id of the ledger in that file."""
    with Store.open(path) as store:
        return store.origin


# --- tools of the attacker ----------------------------------------------------------------------------------------


class Raw:
    """A ledger file opened past the store, its guards dropped; they are put back at the end, as by one who hides that."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite_driver().connect(str(path), isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        self.connection.execute("PRAGMA synchronous = OFF")
        for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            self.connection.execute(f"DROP TRIGGER {name}")

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        present = {name for (name,) in self.run("SELECT name FROM sqlite_master WHERE type IN ('table', 'trigger')")}
        for name, sql in schema.guards("sqlite").items():
            if name not in present and name.split("_", 1)[0] in present:
                self.run(sql)
        self.connection.close()

    def run(self, sql: str, *parameters: Any) -> list[Any]:
        return self.connection.execute(sql, parameters).fetchall()

    def envelope(self, position: int) -> str:
        return str(self.run("SELECT envelope FROM events WHERE position = ?", position)[0][0])

    def size(self) -> int:
        return int(self.run("SELECT count(*) FROM events")[0][0])

    def put(self, position: int, envelope: str, *, rehash: bool = True) -> None:
        """Replace an envelope, and the hash beside it unless told not to."""
        self.run("UPDATE events SET envelope = ? WHERE position = ?", envelope, position)
        if rehash:
            self.run("UPDATE events SET hash = ? WHERE position = ?", canonical.event_hash(envelope), position)

    def changed(self, position: int, **fields: Any) -> str:
        """The envelope there with top-level fields replaced, in canonical form."""
        return canonical.encode({**json.loads(self.envelope(position)), **fields})

    def rewrite(self, start: int) -> None:
        """Give every event from `start` on the linkage that a forger would: previous and hash made to fit."""
        heads: dict[str, str] = {}
        for position in range(self.size()):
            value = json.loads(self.envelope(position))
            run = value["run_id"]
            if position >= start:
                if run in heads:
                    value["previous"] = heads[run]
                self.put(position, canonical.encode(value))
            heads[run] = canonical.event_hash(self.envelope(position))

    def shift(self, start: int, by: int) -> None:
        """Move the positions from `start` on."""
        self.run("UPDATE events SET position = position + ? WHERE position >= ?", FAR, start)
        self.run("UPDATE events SET position = position + ? WHERE position >= ?", by - FAR, FAR)

    def swap(self, one: int, other: int) -> None:
        for place, to in ((one, FAR), (other, one), (FAR, other)):
            self.run("UPDATE events SET position = ? WHERE position = ?", to, place)

    def unconstrained(self) -> None:
        """Make the events table anew, with plain columns in place of the generated and unique ones."""
        columns = "position, envelope, hash, event_id, run_id, sequence, type, recorded_at, node_id"
        views = self.run("SELECT name, sql FROM sqlite_master WHERE type = 'view'")
        for name, _ in views:
            self.run(f"DROP VIEW {name}")
        self.run(f"CREATE TABLE plain AS SELECT {columns} FROM events")
        self.run("DROP TABLE events")
        self.run("ALTER TABLE plain RENAME TO events")
        for _, sql in views:
            self.run(sql)


# --- the attacks --------------------------------------------------------------------------------------------------


def edited(path: Path) -> None:
    with Raw(path) as raw:
        raw.put(TARGET, raw.changed(TARGET, node_id="node-b"), rehash=False)


def edited_one_character(path: Path) -> None:
    with Raw(path) as raw:
        text = raw.envelope(TARGET)
        raw.put(TARGET, text.replace('"recorded_at":"2026', '"recorded_at":"2025', 1), rehash=False)


def hash_edited(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("UPDATE events SET hash = ? WHERE position = ?", "0" * 64, TARGET)


def edited_and_rehashed(path: Path) -> None:
    with Raw(path) as raw:
        raw.put(TARGET, raw.changed(TARGET, node_id="node-b"))


def rewritten(path: Path) -> None:
    with Raw(path) as raw:
        raw.put(TARGET, raw.changed(TARGET, node_id="node-b"))
        raw.rewrite(TARGET + 1)


def last_rewritten(path: Path) -> None:
    with Raw(path) as raw:
        last = raw.size() - 1
        raw.put(last, raw.changed(last, node_id="node-b"))


def deleted(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("DELETE FROM events WHERE position = ?", TARGET)


def deleted_and_closed_up(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("DELETE FROM events WHERE position = ?", TARGET)
        raw.shift(TARGET + 1, -1)


def deleted_and_renumbered(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("DELETE FROM events WHERE position = ?", TARGET)
        raw.shift(TARGET + 1, -1)
        for position in range(TARGET, raw.size()):
            value = json.loads(raw.envelope(position))
            if value["run_id"] == run_id(1):
                raw.put(position, raw.changed(position, sequence=value["sequence"] - 1))


def run_deleted(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("DELETE FROM events WHERE run_id = ?", run_id(1))
        for to, (position,) in enumerate(raw.run("SELECT position FROM events ORDER BY position")):
            raw.run("UPDATE events SET position = ? WHERE position = ?", to, position)


def reordered(path: Path) -> None:
    with Raw(path) as raw:
        raw.swap(TARGET, TARGET + 1)


def reordered_across_runs(path: Path) -> None:
    """The supersession, appended last, is put before the second run: every chain still holds."""
    with Raw(path) as raw:
        last = raw.size() - 1
        (first,) = raw.run("SELECT min(position) FROM events WHERE run_id = ?", run_id(2))[0]
        raw.run("UPDATE events SET position = ? WHERE position = ?", FAR, last)
        raw.run("UPDATE events SET position = position + ? WHERE position >= ? AND position < ?", 2 * FAR, first, last)
        raw.run("UPDATE events SET position = position + ? WHERE position > ?", 1 - 2 * FAR, FAR)
        raw.run("UPDATE events SET position = ? WHERE position = ?", first, FAR)


def renumbered(path: Path) -> None:
    with Raw(path) as raw:
        raw.put(TARGET, raw.changed(TARGET, sequence=900))


def positions_shifted(path: Path) -> None:
    with Raw(path) as raw:
        raw.shift(TARGET, 1)


def truncated(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("DELETE FROM events WHERE position >= ?", raw.size() - 2)


def truncated_beside_its_checkpoint(path: Path) -> None:
    """The ledger kept a checkpoint of its own; who cut the tail forgot it."""
    with Store.open(path, write=True) as store:
        note, root = pins.note(store)
        store.put_checkpoint(store.size(), root, note.decode())
    truncated(path)


def checkpoint_forged(path: Path) -> None:
    with Store.open(path, write=True) as store:
        note = pins.format_checkpoint(store.origin, 3, root_from_leaves([b"x" * 32]))
        store.put_checkpoint(3, pins.parse_checkpoint(note).root_hex, note)


def restored(path: Path) -> None:
    """An older copy of the file, from before the second run."""
    origin = origin_of(path)
    path.unlink()
    ledger = ListLedger()
    add_run(ledger, 1, bodies=run_bodies())
    with Store.open(path, write=True, create=True) as store:
        fill(store, ledger)
    guards = schema.guards("sqlite")
    with Raw(path) as raw:
        raw.run("UPDATE ledger SET origin = ?", origin)
        for sql in guards.values():
            raw.run(sql)


def forked(path: Path) -> None:
    """An older copy on which other runs were then recorded, more than there were."""
    origin = origin_of(path)
    path.unlink()
    ledger = ListLedger()
    for number in (1, 3, 4, 5):
        add_run(ledger, number, bodies=run_bodies())
    with Store.open(path, write=True, create=True) as store:
        fill(store, ledger)
    guards = schema.guards("sqlite")
    with Raw(path) as raw:
        raw.run("UPDATE ledger SET origin = ?", origin)
        for sql in guards.values():
            raw.run(sql)


def half_batch(path: Path) -> None:
    """Of a batch of five events the middle three never reached the disk."""
    with Raw(path) as raw:
        raw.run("DELETE FROM events WHERE position BETWEEN ? AND ?", TARGET, TARGET + 2)


def log_lost(path: Path) -> None:
    """The file copied without the write-ahead log that held the last run."""
    origin = origin_of(path)
    path.unlink()
    ledger = ListLedger()
    add_run(ledger, 1, bodies=run_bodies())
    with Store.open(path, write=True, create=True) as store:
        fill(store, ledger)
    guards = schema.guards("sqlite")
    with Raw(path) as raw:
        raw.run("UPDATE ledger SET origin = ?", origin)
        for sql in guards.values():
            raw.run(sql)
        raw.run("PRAGMA journal_mode = WAL")
        raw.run("PRAGMA wal_autocheckpoint = 0")
        raw.run("PRAGMA wal_checkpoint(TRUNCATE)")
        rest = ListLedger()
        add_run(rest, 1, bodies=run_bodies())
        add_run(rest, 2, bodies=run_bodies())
        for place in rest.recorded[raw.size() :]:
            raw.run(
                "INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)",
                place.position,
                place.envelope,
                place.hash,
            )
        copy = path.with_suffix(".copy")
        shutil.copyfile(path, copy)
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    copy.rename(path)


def blob_dropped(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("DELETE FROM blobs WHERE digest = ?", PLAN.blob_digest)


def blob_altered(path: Path) -> None:
    with Raw(path) as raw:
        raw.run(
            "UPDATE blobs SET data = ? WHERE digest = ?", PLAN.data.replace(b"small-1", b"small-2"), PLAN.blob_digest
        )


def unreferenced_blob_altered(path: Path) -> None:
    with Store.open(path, write=True) as store:
        digest = store.put_blob(b"a census", "application/json")
    with Raw(path) as raw:
        raw.run("UPDATE blobs SET data = ? WHERE digest = ?", b"another", digest)


def other_plan(path: Path) -> None:
    """The second run is made to name another plan's document, everything after it re-linked."""
    plan = edited_plan(PLAN, lambda document: document.update(plan_version="other"))
    with Store.open(path, write=True) as store:
        store.put_blob(plan.data, "application/json")
    with Raw(path) as raw:
        (position,) = raw.run("SELECT position FROM events WHERE run_id = ? AND sequence = 0", run_id(2))[0]
        body = json.loads(raw.envelope(position))["body"]
        body["plan"]["blob_digest"] = plan.blob_digest
        raw.put(position, raw.changed(position, body=body))
        raw.rewrite(position + 1)


def moved_to_another_plan(path: Path) -> None:
    """run.opened names another plan digest than the one its stream is linked to."""
    with Raw(path) as raw:
        body = json.loads(raw.envelope(1))["body"]
        body["plan"]["computed_digest"] = "sha256:" + "1" * 64
        raw.put(1, raw.changed(1, body=body))
        raw.rewrite(2)


def duplicate_key(path: Path) -> None:
    """Two node ids in one envelope: SQLite reads the first, Python the last."""
    with Raw(path) as raw:
        text = raw.envelope(TARGET)
        raw.put(TARGET, text.replace('"node_id":', '"node_id":"elsewhere","node_id":'))


def duplicate_key_in_body(path: Path) -> None:
    with Raw(path) as raw:
        text = raw.envelope(TARGET)
        raw.put(TARGET, text.replace('"body":{', '"body":{"x":1,"x":2,', 1))


def with_blanks(path: Path) -> None:
    with Raw(path) as raw:
        raw.put(TARGET, raw.envelope(TARGET).replace('"v":1', '"v": 1'))


def odd_number(path: Path) -> None:
    """The same number in another spelling: not the bytes that were appended."""
    with Raw(path) as raw:
        raw.put(TARGET, raw.envelope(TARGET).replace('"type_version":1', '"type_version":1.0'))


def not_json(path: Path) -> None:
    with Raw(path) as raw:
        raw.unconstrained()
        raw.put(TARGET, "no JSON at all")


def not_text(path: Path) -> None:
    with Raw(path) as raw:
        raw.unconstrained()
        raw.run("UPDATE events SET envelope = CAST(envelope AS BLOB) WHERE position = ?", TARGET)


def not_utf8(path: Path) -> None:
    with Raw(path) as raw:
        raw.unconstrained()
        raw.run("UPDATE events SET envelope = CAST(x'7bff7d' AS TEXT) WHERE position = ?", TARGET)


def field_missing(path: Path) -> None:
    with Raw(path) as raw:
        value = json.loads(raw.envelope(TARGET))
        del value["actor"]
        raw.put(TARGET, canonical.encode(value))


def field_of_wrong_type(path: Path) -> None:
    with Raw(path) as raw:
        raw.unconstrained()
        raw.put(TARGET, raw.changed(TARGET, run_id=[1]))


def column_says_otherwise(path: Path) -> None:
    """The generated columns were made plain ones, and one of them hides an event from its run."""
    with Raw(path) as raw:
        raw.unconstrained()
        raw.run("UPDATE events SET run_id = ? WHERE position = ?", run_id(9), TARGET)


def _swap_index(path: Path, columns: str) -> None:
    """The rows stay whole, but the index over those columns is swapped for one without the event at TARGET."""
    with Raw(path) as raw:
        raw.run(f"CREATE INDEX partial ON events ({columns}) WHERE position <> {TARGET}")
        raw.run("PRAGMA writable_schema = ON")
        ((index,),) = raw.run(
            "SELECT name FROM pragma_index_list('events') AS list WHERE (SELECT group_concat(name) FROM"
            " pragma_index_info(list.name)) = ? AND list.name <> 'partial'",
            columns,
        )
        root = "(SELECT rootpage FROM sqlite_master WHERE name = 'partial')"
        raw.run(f"UPDATE sqlite_master SET rootpage = {root} WHERE name = ?", index)
        raw.run("DELETE FROM sqlite_master WHERE name = 'partial'")


def index_hides_an_event(path: Path) -> None:
    """Reading the run skips the event."""
    _swap_index(path, "run_id,sequence")


def index_hides_a_type(path: Path) -> None:
    """Asking for events of that type skips the event."""
    _swap_index(path, "type,run_id")


def _lie(path: Path, column: str, expression: str, *indexes: str) -> None:
    """Fill indexes while a generated column has another definition, then put the honest one back: only they lie."""
    honest = f"json_extract(envelope, '$.{column}')"
    for before, after, then in ((honest, expression, indexes), (expression, honest, ())):
        with Raw(path) as raw:
            raw.run("PRAGMA writable_schema = ON")
            raw.run("UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = 'events'", before, after)
            ((version,),) = raw.run("PRAGMA schema_version")
            raw.run(f"PRAGMA schema_version = {version + 1}")
        with Raw(path) as raw:
            for index in then:
                raw.run(f"REINDEX {index}")


def _exchanged(only: str = "1") -> str:
    """The run's id as an expression that exchanges the two runs, for events of which `only` is true."""
    found = "json_extract(envelope, '$.' || 'run_id')"
    return (
        f"CASE WHEN NOT ({only}) THEN {found} WHEN {found} = '{run_id(1)}' THEN '{run_id(2)}'"
        f" WHEN {found} = '{run_id(2)}' THEN '{run_id(1)}' ELSE {found} END"
    )


def indexes_exchange_runs(path: Path) -> None:
    """Whatever is asked of one run is answered out of the other; the rows are untouched."""
    every = ("sqlite_autoindex_events_3", "events_by_type", "events_by_materialization")
    _lie(path, "run_id", _exchanged(f"json_extract(envelope, '$.sequence') < {RUN_EVENTS}"), *every)


def index_exchanges_verdicts(path: Path) -> None:
    """Each run is given the other's verdict where a run is read."""
    kind = "json_extract(envelope, '$.' || 'type')"
    _lie(path, "run_id", _exchanged(f"{kind} = 'verdict.recorded'"), "sqlite_autoindex_events_3")


def index_over_types_exchanges_runs(path: Path) -> None:
    _lie(path, "run_id", _exchanged(), "events_by_type")


def index_hides_a_materialization(path: Path) -> None:
    found = "json_extract(envelope, '$.body.' || 'materialization_id')"
    _lie(path, "body.materialization_id", f"nullif({found}, 'mat.weights.stage')", "events_by_materialization")


def _object(sql: str) -> Callable[[Path], None]:
    """An attack that only changes what the schema holds."""

    def attack(path: Path) -> None:
        with Raw(path) as raw:
            raw.run(sql)

    return attack


def guard_dropped(path: Path) -> None:
    with Raw(path):
        pass
    connection = sqlite_driver().connect(str(path), isolation_level=None)
    connection.execute("DROP TRIGGER events_no_update")
    connection.close()


def view_lies(path: Path) -> None:
    """Every run passed, says the view; the rows are untouched."""
    with Raw(path) as raw:
        ((sql,),) = raw.run("SELECT sql FROM sqlite_master WHERE name = 'verdicts'")
        raw.run("DROP VIEW verdicts")
        raw.run(sql.replace("json_extract(e.envelope, '$.body.verdict')", "'PASS'", 1))


def column_lies(path: Path) -> None:
    """The definition of a generated column is swapped, so that views show every event as of one materialization."""
    with Raw(path) as raw:
        honest = "json_extract(envelope, '$.body.materialization_id')"
        raw.run("PRAGMA writable_schema = ON")
        raw.run("UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = 'events'", honest, "'x'")
    with Raw(path) as raw:
        raw.run("REINDEX")


def index_of_a_stranger(path: Path) -> None:
    with Raw(path) as raw:
        raw.run(f"CREATE INDEX strangers ON events (type, run_id) WHERE position <> {TARGET}")


def newer_envelope(path: Path) -> None:
    """An envelope of a version that this program does not know, linked as it should be."""
    with Raw(path) as raw:
        raw.put(TARGET, raw.changed(TARGET, v=2))
        raw.rewrite(TARGET + 1)


def position_not_whole(path: Path) -> None:
    with Raw(path) as raw:
        raw.unconstrained()
        raw.run("UPDATE events SET position = position + 0.5 WHERE position = ?", TARGET)


def position_at_the_end_of_numbers(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("UPDATE events SET position = ? WHERE position = ?", 2**63 - 1, SIZE - 1)


def hash_not_hexadecimal(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("UPDATE events SET hash = ? WHERE position = ?", "z" * 64, TARGET)


def checkpoint_of_wrong_type(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("DROP TABLE checkpoints")
        raw.run("CREATE TABLE checkpoints (tree_size, root, note)")
        raw.run("INSERT INTO checkpoints VALUES ('x', 1, x'ff')")


def blob_of_wrong_type(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("CREATE TEMP TABLE plain AS SELECT * FROM blobs")
        raw.run("DROP TABLE blobs")
        raw.run("CREATE TABLE blobs (digest, media_type, data)")
        raw.run("INSERT INTO blobs SELECT digest, media_type, 1000000000000 FROM plain")


def sequence_twice(path: Path) -> None:
    with Raw(path) as raw:
        raw.unconstrained()
        raw.run(
            "UPDATE events SET (envelope, hash, event_id, sequence, type, recorded_at) = (SELECT envelope, hash, event_id,"
            " sequence, type, recorded_at FROM events WHERE position = ?) WHERE position = ?",
            TARGET - 1,
            TARGET,
        )


def unknown_type(path: Path) -> None:
    with Raw(path) as raw:
        raw.put(TARGET, raw.changed(TARGET, type="materialization.wished"))
        raw.rewrite(TARGET + 1)


def newer_version(path: Path) -> None:
    with Raw(path) as raw:
        raw.put(TARGET, raw.changed(TARGET, type_version=99))
        raw.rewrite(TARGET + 1)


def stranger_begins(path: Path) -> None:
    """A stream that begins with neither run.opened nor plan.frozen."""
    with Raw(path) as raw:
        value = json.loads(raw.envelope(TARGET))
        value.update(run_id=run_id(8), sequence=0, previous="0" * 64, event_id=run_id(8))
        text = canonical.encode(value)
        raw.run(
            "INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)",
            raw.size(),
            text,
            canonical.event_hash(text),
        )


def appended_unlinked(path: Path) -> None:
    """An event put at the end of a run without its link."""
    with Raw(path) as raw:
        (position, sequence) = raw.run(
            "SELECT position, sequence FROM events WHERE run_id = ? ORDER BY sequence DESC LIMIT 1", run_id(2)
        )[0]
        text = raw.changed(position, sequence=sequence + 1, event_id=run_id(7), previous="0" * 64)
        raw.run(
            "INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)",
            raw.size(),
            text,
            canonical.event_hash(text),
        )


def other_ledger(path: Path) -> None:
    with Raw(path) as raw:
        raw.run("UPDATE ledger SET origin = 'another-origin'")


def page_damaged(path: Path) -> None:
    """Some bytes of a page in the middle of the file overwritten, as a bad disk does."""
    with sqlite3.connect(path) as connection:
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    at = data.find(b'"sequence":%d,' % TARGET) // page_size * page_size
    data[at : at + 200] = b"\xff" * 200
    path.write_bytes(data)


@dataclass(frozen=True)
class Bad:
    """An attack, the kind it must be named as, where (null: no single place), and whether only a pin shows it."""

    attack: Callable[[Path], None]
    code: str
    position: int | None
    by_pin: bool = False


# Positions: 0 the freezing; 1 to LAST the first run with its verdict; then the second; then the supersession.
RUN_EVENTS = len(run_bodies()) + 1
SECOND = 1 + RUN_EVENTS
SIZE = 2 + 2 * RUN_EVENTS
STAGE = 1 + next(
    sequence
    for sequence, body in enumerate(run_bodies())
    if getattr(body, "materialization_id", None) == "mat.weights.stage"
)
"""The first event of a materialization that one attack hides."""

BAD: dict[str, Bad] = {
    "edited": Bad(edited, "content", TARGET),
    "edited-one-character": Bad(edited_one_character, "content", TARGET),
    "hash-edited": Bad(hash_edited, "content", TARGET),
    "edited-and-rehashed": Bad(edited_and_rehashed, "linkage", TARGET + 1),
    "rewritten": Bad(rewritten, "fork", None, by_pin=True),
    "last-rewritten": Bad(last_rewritten, "fork", None, by_pin=True),
    "deleted": Bad(deleted, "gap", TARGET),
    "deleted-and-closed-up": Bad(deleted_and_closed_up, "gap", TARGET),
    "deleted-and-renumbered": Bad(deleted_and_renumbered, "linkage", TARGET),
    "run-deleted": Bad(run_deleted, "rollback", SIZE - RUN_EVENTS - 1, by_pin=True),
    "reordered": Bad(reordered, "gap", TARGET),
    "reordered-across-runs": Bad(reordered_across_runs, "fork", None, by_pin=True),
    "renumbered": Bad(renumbered, "gap", TARGET),
    "positions-shifted": Bad(positions_shifted, "gap", TARGET),
    "truncated": Bad(truncated, "rollback", SIZE - 2, by_pin=True),
    "truncated-beside-its-checkpoint": Bad(truncated_beside_its_checkpoint, "tail", SIZE - 2),
    "checkpoint-forged": Bad(checkpoint_forged, "fork", None),
    "restored": Bad(restored, "rollback", SECOND, by_pin=True),
    "forked": Bad(forked, "fork", None, by_pin=True),
    "half-batch": Bad(half_batch, "gap", TARGET),
    "log-lost": Bad(log_lost, "rollback", SECOND, by_pin=True),
    "blob-dropped": Bad(blob_dropped, "blob-missing", 0),
    "blob-altered": Bad(blob_altered, "blob-altered", 0),
    "unreferenced-blob-altered": Bad(unreferenced_blob_altered, "blob-altered", None),
    "other-plan": Bad(other_plan, "content", SECOND),
    "moved-to-another-plan": Bad(moved_to_another_plan, "linkage", 1),
    "duplicate-key": Bad(duplicate_key, "content", TARGET),
    "duplicate-key-in-body": Bad(duplicate_key_in_body, "content", TARGET),
    "with-blanks": Bad(with_blanks, "content", TARGET),
    "odd-number": Bad(odd_number, "content", TARGET),
    "not-json": Bad(not_json, "content", TARGET),
    "not-text": Bad(not_text, "content", TARGET),
    "not-utf8": Bad(not_utf8, "content", TARGET),
    "field-missing": Bad(field_missing, "content", TARGET),
    "field-of-wrong-type": Bad(field_of_wrong_type, "content", TARGET),
    "column-says-otherwise": Bad(column_says_otherwise, "content", TARGET),
    "index-hides-an-event": Bad(index_hides_an_event, "content", TARGET),
    "index-hides-a-type": Bad(index_hides_a_type, "content", TARGET),
    "indexes-exchange-runs": Bad(indexes_exchange_runs, "content", 1),
    "index-exchanges-verdicts": Bad(index_exchanges_verdicts, "content", RUN_EVENTS),
    "index-over-types-exchanges-runs": Bad(index_over_types_exchanges_runs, "content", 1),
    "index-hides-a-materialization": Bad(index_hides_a_materialization, "content", STAGE),
    "view-as-function": Bad(_object("CREATE VIEW json_each AS SELECT 1 AS key"), "content", None),
    "table-as-function": Bad(_object("CREATE TABLE json_tree (a)"), "content", None),
    "trigger-on-version": Bad(
        _object("CREATE TRIGGER evil BEFORE INSERT ON ledger_version BEGIN SELECT 1; END"), "content", None
    ),
    "index-on-version": Bad(_object("CREATE INDEX two ON ledger_version (version_num)"), "content", None),
    "version-edited": Bad(_object("UPDATE ledger_version SET version_num = '0009'"), "content", None),
    "version-dropped": Bad(_object("DROP TABLE ledger_version"), "content", None),
    "view-dropped": Bad(_object("DROP VIEW runs"), "content", None),
    "guard-dropped": Bad(guard_dropped, "content", None),
    "view-lies": Bad(view_lies, "content", None),
    "column-lies": Bad(column_lies, "content", None),
    "index-of-a-stranger": Bad(index_of_a_stranger, "content", None),
    "newer-envelope": Bad(newer_envelope, "unknown-type", TARGET),
    "position-not-whole": Bad(position_not_whole, "gap", TARGET),
    "position-at-the-end-of-numbers": Bad(position_at_the_end_of_numbers, "gap", SIZE - 1),
    "hash-not-hexadecimal": Bad(hash_not_hexadecimal, "content", TARGET),
    "checkpoint-of-wrong-type": Bad(checkpoint_of_wrong_type, "content", None),
    "blob-of-wrong-type": Bad(blob_of_wrong_type, "blob-altered", 0),
    "sequence-twice": Bad(sequence_twice, "gap", TARGET),
    "unknown-type": Bad(unknown_type, "unknown-type", TARGET),
    "newer-version": Bad(newer_version, "unknown-type", TARGET),
    "stranger-begins": Bad(stranger_begins, "content", SIZE),
    "appended-unlinked": Bad(appended_unlinked, "linkage", SIZE),
    "other-ledger": Bad(other_ledger, "fork", None, by_pin=True),
    "page-damaged": Bad(page_damaged, "content", None),
}


def make(name: str, source: Path, path: Path) -> None:
    """Copy a good ledger and attack the copy."""
    shutil.copyfile(source, path)
    BAD[name].attack(path)


def main(folder: Path) -> None:
    """Write the good ledger, its pin, and every bad one."""
    folder.mkdir(parents=True, exist_ok=True)
    source = good(folder / "good.db")
    (folder / "good.pin").write_bytes(pinned(source))
    for name in BAD:
        make(name, source, folder / f"{name}.db")
    print(f"{len(BAD) + 1} ledgers in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
