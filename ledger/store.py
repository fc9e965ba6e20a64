"""The store: append events to a ledger and read them back, durable, gapless and in order, on SQLite or PostgreSQL.

Every event gets its position and its sequence under the ledger's write lock, and an append is one transaction: all of it
or nothing. The database's keys and guards enforce the order; this room only asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from pydantic import ValidationError

from ledger import canonical, database, schema, sqlite
from ledger.bodies import BODY_BY_TYPE, PlanFrozen
from ledger.checkpoints import ORIGIN
from ledger.database import Database, Refused, Transaction
from ledger.documents import RunSummary
from ledger.errors import Conflict, EventError, LedgerBroken, LedgerError, NotFound
from ledger.events import ENVELOPE_VERSION, Event, first_previous, read_event
from ledger.postgres import PostgresDatabase
from ledger.recording import Draft, Recorded, timestamp, uuid7
from ledger.sqlite import SqliteDatabase

PAGE = 2_000
"""Rows read at a time: no read transaction outlives a page, so a long reading never holds up writers."""

EVENT_COLUMNS = ("position", "envelope", "hash", "event_id", "run_id", "sequence", "type", "recorded_at", "node_id")

_INSERT = "INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)"
_ENDS = (
    "SELECT (SELECT max(position) FROM events), sequence, hash, position, envelope FROM (SELECT 1 AS one) AS always"
    " LEFT JOIN (SELECT position, sequence, hash, envelope FROM events WHERE run_id = ? ORDER BY sequence DESC LIMIT 1)"
    " AS last ON one = 1"
)
_PLACE = re.compile(r',"run_id":"([^"\\]*)","sequence":(\d+),"type":"[^"\\]*","type_version":\d+,"v":\d+\}\Z')
"""How an envelope in canonical form ends."""
_LONGEST_END = 400
"""Characters."""
_ENDINGS = frozenset(
    f'{body.TYPE}","type_version":{body.VERSION},"v":{ENVELOPE_VERSION}}}' for body in BODY_BY_TYPE.values()
)
"""How those of today's forms end, from the type's name on: told without a search."""


class Store:
    """An open ledger. A context manager.

    Laws: what `append` returned is what `recorded` yields, whatever happens afterwards; positions are 0, 1, 2, ... in the
    order of commits; a second `append` of the same drafts changes nothing and returns the same.

    `origin` is the ledger's random id; `notices` are sentences that whoever writes should be told (an SQLite that needs a
    slower journal), mostly none.
    """

    def __init__(self, base: Database, *, write: bool) -> None:
        self.base = base
        self._writable = write
        self.location = base.location
        self.notices = base.notices()
        rows = base.select("SELECT origin FROM ledger")
        if len(rows) != 1:
            raise LedgerBroken(f"ledger {base.shown} has {len(rows)} origins; it should have one")
        if type(rows[0][0]) is not str or not ORIGIN.fullmatch(rows[0][0]):
            raise LedgerBroken(f"ledger {base.shown} has origin {rows[0][0]!r}, which is no plain name")
        self.origin: str = rows[0][0]
        self._views_are_ours = False

    @classmethod
    def open(cls, location: str | Path, *, write: bool = False, create: bool = False) -> Store:
        """Open a ledger by path, `sqlite:///` URL or `postgresql+psycopg://` URL; with `create`, begin one if absent.

        Raises LedgerError, having touched and created nothing, when there is none (and not `create`), when it is another
        program's or of another schema version, and, with `write`, when it is read-only or its guards are gone.
        """
        opened = (
            _open_postgres(str(location), create)
            if database.is_postgres(location)
            else _open_sqlite(database.sqlite_path(location), write, create)
        )
        try:
            if write:
                refuse_missing_guards(opened)
            return cls(opened, write=write)
        except BaseException:
            opened.close()
            raise

    def close(self) -> None:
        self.base.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- writing --------------------------------------------------------------------------------------------------

    def append(self, run_id: str, expected_sequence: int, drafts: list[Draft]) -> list[Recorded]:
        """Append drafts to a run as one durable transaction and say where they stand.

        Drafts that are recorded already, with the same bytes, are not appended again: their places are returned. Raises
        Conflict when the run's next sequence is not `expected_sequence`, LedgerError when an event id stands for
        something else, EventError when a value may not be recorded. Nothing is recorded then.
        """
        self._refuse_reader()
        _check_drafts(run_id, drafts)
        if not drafts:
            return []
        try:
            with self.base.transaction() as transaction:
                return self._append(transaction, run_id, expected_sequence, drafts)
        except Refused:
            # The place was free, so it is an event id that is taken: by these very drafts, or by something else.
            with self.base.transaction() as transaction:
                known = self._known(transaction, drafts)
            if known is None:
                raise
            return known

    def _append(
        self, transaction: Transaction, run_id: str, expected_sequence: int, drafts: list[Draft]
    ) -> list[Recorded]:
        ((last_position, last_sequence, previous, tail, envelope),) = transaction.select(_ENDS, (run_id,))
        if last_sequence is not None:
            self._refuse_misplaced(tail, envelope, run_id, last_sequence)
        next_sequence = 0 if last_sequence is None else last_sequence + 1
        if next_sequence != expected_sequence:
            known = self._known(transaction, drafts)
            if known is not None:
                return known
            raise Conflict(
                f"run {run_id} is at sequence {next_sequence}, not {expected_sequence}: another writer was first",
                "read the run again and retry",
            )
        if last_position is not None and not 0 <= last_position < canonical.MAX_SAFE_INTEGER:
            self._broken(last_position, "nothing can follow there")
        position = 0 if last_position is None else last_position + 1
        recorded = []
        for offset, draft in enumerate(drafts):
            envelope = draft.seal(expected_sequence + offset, previous or first_previous(draft.body))
            previous = canonical.event_hash(envelope)
            recorded.append(Recorded(position + offset, envelope, previous))
        transaction.insert(_INSERT, [(one.position, one.envelope, one.hash) for one in recorded])
        return recorded

    def _known(self, transaction: Transaction, drafts: list[Draft]) -> list[Recorded] | None:
        """Where the drafts stand already; None when none of them does. Raises LedgerError when only their ids do."""
        found: list[Recorded] = []
        for draft in drafts:
            rows = transaction.select(
                "SELECT position, envelope, hash, sequence FROM events WHERE event_id = ?", (draft.event_id,)
            )
            if not rows:
                continue
            position, envelope, digest, sequence = rows[0]
            place = canonical.decode(envelope, what="recorded event")
            if draft.seal(sequence, place["previous"]) != envelope:
                raise LedgerError(f"event id {draft.event_id} is recorded already, with other content")
            found.append(Recorded(position, envelope, digest))
        if found and len(found) != len(drafts):
            raise LedgerError(
                f"{len(found)} of these {len(drafts)} events are recorded already, the others are not",
                "append the others by themselves",
            )
        return found or None

    def put_blob(self, data: bytes, media_type: str) -> str:
        """Store bytes once, by content; returns `sha256:<hex>`. Idempotent; the first media type stays."""
        self._refuse_reader()
        digest = canonical.sha256_digest(data)
        with self.base.transaction() as transaction:
            if not transaction.select("SELECT 1 FROM blobs WHERE digest = ?", (digest,)):
                transaction.execute(
                    "INSERT INTO blobs (digest, media_type, data) VALUES (?, ?, ?)", (digest, media_type, data)
                )
        return digest

    def put_checkpoint(self, tree_size: int, root: str, note: str) -> None:
        """Keep a checkpoint of the tree: its size, its root as hex, and the note that states both. Idempotent."""
        self._refuse_reader()
        with self.base.transaction() as transaction:
            known = transaction.select("SELECT 1 FROM checkpoints WHERE tree_size = ? AND note = ?", (tree_size, note))
            if not known:
                transaction.execute(
                    "INSERT INTO checkpoints (tree_size, root, note) VALUES (?, ?, ?)", (tree_size, root, note)
                )

    def insert_recorded(self, rows: list[tuple[int, str, str]]) -> None:
        """Insert events that another ledger recorded, (position, envelope, hash) as they stand, as one transaction.

        The guards hold here too: positions and sequences continue what is there. Raises LedgerError otherwise.
        """
        self._refuse_reader()
        if rows:
            with self.base.transaction() as transaction:
                transaction.insert(_INSERT, rows)

    @property
    def writable(self) -> bool:
        """Opened for writing."""
        return self._writable

    def _refuse_reader(self) -> None:
        if not self._writable:
            raise LedgerError(f"ledger {self.base.shown} is open for reading only", "open it with write=True")

    # --- reading --------------------------------------------------------------------------------------------------

    def recorded(self, run_id: str | None = None, *, start: int = 0) -> Iterator[Recorded]:
        """Events by position from position `start` on; with `run_id` only that run's, in sequence order.

        Raises LedgerBroken where a row is not what its hash says, or a run has a gap.
        """
        for row in self._checked(run_id, start):
            yield Recorded(*row[:3])

    def _checked(self, run_id: str | None, start: int) -> Iterator[tuple[Any, ...]]:
        """Rows of `recorded`: position, envelope, hash."""
        after, sequence = start - 1, -1
        while True:
            if run_id is None:
                rows = self.base.select(
                    "SELECT position, envelope, hash FROM events WHERE position > ? ORDER BY position LIMIT ?",
                    (after, PAGE),
                )
            else:
                rows = self.base.select(
                    "SELECT position, envelope, hash, sequence FROM events"
                    " WHERE run_id = ? AND sequence > ? AND position >= ? ORDER BY sequence LIMIT ?",
                    (run_id, sequence, start, PAGE),
                )
            for row in rows:
                if run_id is not None:
                    if start <= 0 and row[3] != sequence + 1:
                        self._broken(row[0], f"run {run_id} has sequence {row[3]!r} after {sequence}")
                    sequence = row[3]
                    self._refuse_misplaced(row[0], row[1], run_id, sequence)
                self._refuse_altered(row[0], row[1], row[2])
                yield row
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _refuse_altered(self, position: object, envelope: object, digest: object) -> None:
        """Raise LedgerBroken for a row that is not what its hash says."""
        if type(position) is not int or type(envelope) is not str or canonical.event_hash(envelope) != digest:
            self._broken(position, "the event is not what its hash says")

    def _refuse_misplaced(self, position: object, envelope: object, run_id: str, sequence: object) -> None:
        """Raise LedgerBroken unless the envelope itself says that run and sequence: an index found it, and that can lie."""
        if (
            type(envelope) is str
            and type(sequence) is int
            and sequence >= 0
            and '"' not in run_id
            and "\\" not in run_id
        ):
            place = f',"run_id":"{run_id}","sequence":{sequence},"type":"'
            at = envelope.rfind(place, max(0, len(envelope) - _LONGEST_END))
            if at >= 0 and envelope[at + len(place) :] in _ENDINGS:
                return
        found = _PLACE.search(envelope, max(0, len(envelope) - _LONGEST_END)) if type(envelope) is str else None
        if found is None or (found[1], int(found[2])) != (run_id, sequence):
            said = f"sequence {found[2]} of run {found[1]}" if found else "no event's form"
            self._broken(position, f"asked for sequence {sequence!r} of run {run_id}, the event there has {said}")

    def _broken(self, position: object, what: str) -> NoReturn:
        raise LedgerBroken(
            f"ledger {self.base.shown} is broken at position {position!r}: {what}",
            "`tally verify` names everything that is wrong",
        )

    def events(self, run_id: str) -> Iterator[Event]:
        """A run's events in order, read and upcast. Raises EventError for one this version cannot read."""
        for row in self._checked(run_id, 0):
            yield read_event(row[1])

    def rows(self, start: int = 0, end: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Whole rows by position, `EVENT_COLUMNS` in order, for those who check the columns too; `end` is exclusive."""
        columns = ", ".join(EVENT_COLUMNS)
        after = start - 1
        while True:
            page = self.base.select(
                f"SELECT {columns} FROM events WHERE position > ? AND position < ? ORDER BY position LIMIT ?",
                (after, 2**62 if end is None else end, PAGE),
            )
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1][0]

    def next_sequence(self, run_id: str) -> int:
        """The sequence that the run's next event gets; 0 for a run that is not there."""
        return self._number("SELECT coalesce(max(sequence), -1) + 1 FROM events WHERE run_id = ?", (run_id,))

    def size(self) -> int:
        """Number of events, which is the size of the tree over them."""
        return self._number("SELECT count(*) FROM events")

    def _number(self, sql: str, parameters: tuple[Any, ...] = ()) -> int:
        return int(self.base.select(sql, parameters)[0][0])

    def blob(self, digest: str) -> bytes | None:
        """The bytes stored under a digest, or None."""
        rows = self.base.select("SELECT data FROM blobs WHERE digest = ?", (digest,))
        if rows and not isinstance(rows[0][0], bytes | bytearray | memoryview):
            raise LedgerBroken(f"blob {digest} of ledger {self.base.shown} is no bytes", "run `tally verify`")
        return bytes(rows[0][0]) if rows else None

    def blob_media_type(self, digest: str) -> str | None:
        """What a blob is said to be, or None where there is none."""
        rows = self.base.select("SELECT media_type FROM blobs WHERE digest = ?", (digest,))
        return str(rows[0][0]) if rows else None

    def blob_digests(self) -> Iterator[str]:
        """Every blob's digest, sorted."""
        for (digest,) in self.base.select("SELECT digest FROM blobs ORDER BY digest"):
            yield digest

    def leaf_hashes(self, start: int, end: int) -> Iterator[bytes]:
        """The 32-byte leaf hashes of positions `start` up to, not including, `end`."""
        for low in range(start, end, PAGE):
            rows = self.base.select(
                "SELECT position, hash FROM events WHERE position >= ? AND position < ? ORDER BY position",
                (low, min(low + PAGE, end)),
            )
            for position, digest in rows:
                try:
                    yield bytes.fromhex(digest)
                except (ValueError, TypeError):
                    self._broken(position, "its hash is none")

    def checkpoints(self) -> list[tuple[int, str, str]]:
        """(tree size, root, note), smallest tree first. Raises LedgerBroken for one that is not of that form."""
        rows = self.base.select("SELECT tree_size, root, note FROM checkpoints ORDER BY tree_size, note")
        for row in rows:
            if [type(value) for value in row] != [int, str, str]:
                raise LedgerBroken(f"ledger {self.base.shown} holds a checkpoint that is none", "run `tally verify`")
        return [(size, root, note) for size, root, note in rows]

    # --- runs -----------------------------------------------------------------------------------------------------

    def frozen(self, plan_digest: str) -> Recorded | None:
        """The earliest `plan.frozen` event of that plan digest, or None."""
        after = -1
        while rows := self.base.select(
            "SELECT position, envelope, hash FROM events WHERE type = ? AND position > ? ORDER BY position LIMIT ?",
            (PlanFrozen.TYPE, after, PAGE),
        ):
            for row in rows:
                event = canonical.decode(row[1], what="recorded event")
                if event.get("type") != PlanFrozen.TYPE:
                    self._broken(row[0], f"asked for a {PlanFrozen.TYPE}, the event there is a {event.get('type')}")
                body = event.get("body")
                if isinstance(body, dict) and body.get("digest") == plan_digest:
                    return Recorded(*row)
            after = rows[-1][0]
        return None

    def runs(self) -> list[RunSummary]:
        """Every run, oldest first, without folding: how it ended and the verdict recorded last."""
        self._trust_views()
        rows = self.base.select(
            "SELECT run_id, plan_digest, outcome, verdict, assurance, opened_at, purpose, superseded_by"
            " FROM runs ORDER BY position"
        )
        names = ("run_id", "plan_digest", "outcome", "verdict", "assurance", "opened_at", "purpose", "superseded_by")
        try:
            return [RunSummary(**dict(zip(names, row, strict=True))) for row in rows]
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise LedgerBroken(
                f"ledger {self.base.shown} lists a run whose {first['loc'][0]} has not the form of one: {first['msg']}",
                "`tally verify` names the event",
            ) from error

    def resolve(self, name: str) -> str:
        """The run id that a full id, a unique prefix, `@latest` or `@latest~N` names.

        `@latest` counts back over runs in the order they were opened, leaving witnesses out. Raises NotFound.
        """
        if match := re.fullmatch(r"@latest(?:~(\d{1,9}))?", name):
            back = int(match[1] or 0)
            self._trust_views()
            rows = self.base.select(
                "SELECT run_id FROM runs WHERE purpose <> 'witness' ORDER BY position DESC LIMIT 1 OFFSET ?", (back,)
            )
            if not rows:
                raise NotFound(f"there is no run {name} in {self.base.shown}", "`tally runs` lists the runs")
            return str(rows[0][0])
        prefix = name.lower()
        if not re.fullmatch(r"[0-9a-f-]{1,36}", prefix):
            raise NotFound(f"{name!r} names no run", "give a run id, a unique prefix of one, @latest or @latest~N")
        # Nothing in a prefix of hex digits and dashes is special to LIKE.
        rows = self.base.select(
            "SELECT run_id FROM events WHERE type = 'run.opened' AND sequence = 0 AND run_id LIKE ?"
            " ORDER BY run_id LIMIT 4",
            (prefix + "%",),
        )
        if not rows:
            raise NotFound(f"there is no run {name} in {self.base.shown}", "`tally runs` lists the runs")
        if len(rows) > 1:
            listed = ", ".join(run_id for (run_id,) in rows[:3]) + (", ..." if len(rows) > 3 else "")
            raise NotFound(f"{name} is the beginning of several runs: {listed}", "give more of it")
        return str(rows[0][0])

    def witnesses(self, run_id: str) -> list[str]:
        """The runs whose `run.opened` names this one in `witness_of`, oldest first."""
        self._trust_views()
        rows = self.base.select("SELECT run_id FROM runs WHERE witness_of = ? ORDER BY position", (run_id,))
        return [str(row[0]) for row in rows]

    def _trust_views(self) -> None:
        """Before the views are asked: they must be ours. Looked at once."""
        if not self._views_are_ours:
            self.base.refuse_altered_views()
            self._views_are_ours = True


def _check_drafts(run_id: str, drafts: list[Draft]) -> None:
    for draft in drafts:
        if draft.run_id != run_id:
            raise EventError(f"event {draft.event_id} belongs to run {draft.run_id}, not to {run_id}")
    if len({draft.event_id for draft in drafts}) != len(drafts):
        raise EventError("one event id occurs twice in what is to be appended")


def refuse_missing_guards(base: Database) -> None:
    """Raise LedgerError when guards (in SQLite: anything of the schema) are gone or altered, saying which and how to repair."""
    missing = base.missing_guards()
    if base.dialect == "sqlite":  # PostgreSQL compares views only for an owner, and an append goes through none
        missing = sorted(missing + base.altered_views())
    if missing:
        raise LedgerError(
            f"guards of ledger {base.shown} are gone, or not this program's: {', '.join(missing)}",
            "`tally verify` says whether it was changed meanwhile; `tally db upgrade` puts the guards back,"
            " `tally db copy` makes a sound ledger of what is recorded",
        )


def _open_sqlite(path: Path, write: bool, create: bool) -> Database:
    if create and sqlite.absent(path):
        sqlite.create_sqlite(path, schema.create_statements("sqlite"), (uuid7(), timestamp()))
    database.refuse_version(sqlite.identify_sqlite(path), str(path))
    if write:
        sqlite.refuse_read_only(path)
    return SqliteDatabase(path)


def _open_postgres(location: str, create: bool) -> Database:
    opened = PostgresDatabase(location)
    try:
        if create and opened.version() is None:
            create_postgres(opened)
        opened.require_version()
        return opened
    except BaseException:
        opened.close()
        raise


def create_postgres(base: PostgresDatabase, origin_row: tuple[str, str] | None = None) -> None:
    """Begin a ledger in a PostgreSQL database, in one transaction; `origin_row` is a copied ledger's own.

    Raises LedgerError where the names are taken or the database's encoding is not UTF8.
    """
    ((encoding,),) = base.select("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise LedgerError(f"database {base.shown} has encoding {encoding}; a ledger needs UTF8")
    with base.transaction() as transaction:
        # Another process may have begun it while this one waited for the lock.
        if base.version() is not None:
            return
        names = [*schema.TABLES, schema.VERSION_TABLE]
        taken = [name for name in names if transaction.select("SELECT to_regclass(?)", (name,))[0][0] is not None]
        if taken:
            raise LedgerError(
                f"{base.shown} holds another program's tables: {', '.join(taken)}", "give the ledger its own database"
            )
        for statement in schema.create_statements("postgresql"):
            transaction.execute(statement)
        transaction.execute(
            "INSERT INTO ledger (origin, created_at) VALUES (?, ?)", origin_row or (uuid7(), timestamp())
        )
