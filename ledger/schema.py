"""What a ledger is made of: tables, guards and the PostgreSQL role, as literal statements for both backends.

One table of facts, `events`, append-only. Only `position`, `envelope` and `hash` are written; every other column is
generated from the envelope by the database itself, so a column cannot say anything else than the bytes that were hashed.
Guards (triggers) refuse update, delete, replacement, a position that is not the next, and a sequence that does not
continue its run. They are rails for honest programs, not proof: whoever may drop a trigger may drop these, and the
chain, the tree and the pins are what notices. `ledger.views` holds the views over these tables.
"""

from __future__ import annotations

from typing import Literal

from ledger.views import create_views

Dialect = Literal["sqlite", "postgresql"]

VERSION = 3
"""The schema this program writes and reads: the number of the newest migration, and SQLite's `user_version`."""

APPLICATION_ID = int.from_bytes(b"Taly", "big")
"""SQLite's `application_id`, at byte 68 of the file: how a ledger is told from another program's database."""

VERSION_TABLE = "ledger_version"
"""Where Alembic keeps the number of the newest migration applied, as "0001", "0002"."""

TABLES = ("ledger", "events", "blobs", "checkpoints")


def revision(version: int = VERSION) -> str:
    """The migration's name for a schema number: 2 -> "0002"."""
    return f"{version:04d}"


# --- SQLite -------------------------------------------------------------------------------------------------------

SQLITE_TABLES: dict[str, str] = {
    "ledger": """
CREATE TABLE ledger (
  origin TEXT NOT NULL PRIMARY KEY,
  created_at TEXT NOT NULL
) STRICT""",
    "events": """
CREATE TABLE events (
  position INTEGER NOT NULL PRIMARY KEY CHECK (position >= 0),
  envelope TEXT NOT NULL,
  hash TEXT NOT NULL UNIQUE CHECK (length(hash) = 64),
  event_id TEXT NOT NULL GENERATED ALWAYS AS (json_extract(envelope, '$.event_id')) VIRTUAL UNIQUE,
  run_id TEXT NOT NULL GENERATED ALWAYS AS (json_extract(envelope, '$.run_id')) VIRTUAL,
  sequence INTEGER NOT NULL GENERATED ALWAYS AS (json_extract(envelope, '$.sequence')) VIRTUAL,
  type TEXT NOT NULL GENERATED ALWAYS AS (json_extract(envelope, '$.type')) VIRTUAL,
  recorded_at TEXT NOT NULL GENERATED ALWAYS AS (json_extract(envelope, '$.recorded_at')) VIRTUAL,
  node_id TEXT NOT NULL GENERATED ALWAYS AS (json_extract(envelope, '$.node_id')) VIRTUAL,
  materialization_id TEXT GENERATED ALWAYS AS (json_extract(envelope, '$.body.materialization_id')) VIRTUAL,
  tensors_blob TEXT GENERATED ALWAYS AS (json_extract(envelope, '$.body.tensors_blob')) VIRTUAL,
  UNIQUE (run_id, sequence)
) STRICT""",
    "blobs": """
CREATE TABLE blobs (
  digest TEXT NOT NULL PRIMARY KEY CHECK (digest LIKE 'sha256:%' AND length(digest) = 71),
  media_type TEXT NOT NULL,
  data BLOB NOT NULL
) STRICT""",
    "checkpoints": """
CREATE TABLE checkpoints (
  tree_size INTEGER NOT NULL CHECK (tree_size >= 0),
  root TEXT NOT NULL,
  note TEXT NOT NULL,
  PRIMARY KEY (tree_size, note)
) STRICT""",
}

SQLITE_INDEXES: dict[str, str] = {
    "events_by_type": "CREATE INDEX events_by_type ON events (type, run_id)",
    "events_by_materialization": "CREATE INDEX events_by_materialization"
    " ON events (run_id, materialization_id, type) WHERE materialization_id IS NOT NULL",
    "events_by_blob": "CREATE INDEX events_by_blob ON events (tensors_blob) WHERE tensors_blob IS NOT NULL",
}

SQLITE_KEYS = (
    "sqlite_autoindex_ledger_1",
    "sqlite_autoindex_events_1",
    "sqlite_autoindex_events_2",
    "sqlite_autoindex_events_3",
    "sqlite_autoindex_blobs_1",
    "sqlite_autoindex_checkpoints_1",
    f"sqlite_autoindex_{VERSION_TABLE}_1",
)
"""The indexes that SQLite makes itself for the tables' keys."""


def _sqlite_guard(table: str, action: str) -> str:
    return f"""
CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} BEGIN
  SELECT RAISE(ABORT, '{table} is append-only: {action.lower()} refused');
END"""


# `INSERT OR REPLACE` deletes the old row without firing a delete trigger (unless recursive_triggers is on), so taken
# values are refused before the insert. Generated columns are there in a BEFORE trigger already.
SQLITE_GUARDS: dict[str, str] = {
    **{
        f"{table}_no_{action.lower()}": _sqlite_guard(table, action)
        for table in TABLES
        for action in ("UPDATE", "DELETE")
    },
    "ledger_insert_guard": """
CREATE TRIGGER ledger_insert_guard BEFORE INSERT ON ledger BEGIN
  SELECT RAISE(ABORT, 'ledger has its origin already') WHERE EXISTS (SELECT 1 FROM ledger);
END""",
    "events_insert_guard": """
CREATE TRIGGER events_insert_guard BEFORE INSERT ON events BEGIN
  SELECT RAISE(ABORT, 'events: position is not the next')
    WHERE NEW.position IS NOT (SELECT coalesce(max(position), -1) + 1 FROM events);
  SELECT RAISE(ABORT, 'events: hash is taken')
    WHERE EXISTS (SELECT 1 FROM events WHERE hash = NEW.hash);
  SELECT RAISE(ABORT, 'events: event_id is taken')
    WHERE EXISTS (SELECT 1 FROM events WHERE event_id = NEW.event_id);
  SELECT RAISE(ABORT, 'events: sequence is taken or not the next of its run')
    WHERE NEW.sequence IS NOT
      (SELECT coalesce(max(sequence), -1) + 1 FROM events WHERE run_id = NEW.run_id);
END""",
    "blobs_insert_guard": """
CREATE TRIGGER blobs_insert_guard BEFORE INSERT ON blobs BEGIN
  SELECT RAISE(ABORT, 'blobs: digest is taken') WHERE EXISTS (SELECT 1 FROM blobs WHERE digest = NEW.digest);
END""",
    "checkpoints_insert_guard": """
CREATE TRIGGER checkpoints_insert_guard BEFORE INSERT ON checkpoints BEGIN
  SELECT RAISE(ABORT, 'checkpoints: note is taken')
    WHERE EXISTS (SELECT 1 FROM checkpoints WHERE tree_size = NEW.tree_size AND note = NEW.note);
END""",
}

# --- PostgreSQL ---------------------------------------------------------------------------------------------------

# UNIQUE is refused on virtual columns, hence STORED. `document` is the envelope parsed once, so that views need not parse
# it for every column. Rows up to a page stay whole: taking them out of line and compressing them costs more than it saves.
POSTGRES_TABLES: dict[str, str] = {
    "ledger": """
CREATE TABLE ledger (
  origin text NOT NULL PRIMARY KEY,
  created_at text NOT NULL
)""",
    "events": """
CREATE TABLE events (
  position bigint NOT NULL PRIMARY KEY CHECK (position >= 0),
  envelope text NOT NULL,
  hash text NOT NULL UNIQUE CHECK (length(hash) = 64),
  event_id text NOT NULL GENERATED ALWAYS AS (envelope::json ->> 'event_id') STORED UNIQUE,
  run_id text NOT NULL GENERATED ALWAYS AS (envelope::json ->> 'run_id') STORED,
  sequence bigint NOT NULL GENERATED ALWAYS AS ((envelope::json ->> 'sequence')::bigint) STORED,
  type text NOT NULL GENERATED ALWAYS AS (envelope::json ->> 'type') STORED,
  recorded_at text NOT NULL GENERATED ALWAYS AS (envelope::json ->> 'recorded_at') STORED,
  node_id text NOT NULL GENERATED ALWAYS AS (envelope::json ->> 'node_id') STORED,
  materialization_id text GENERATED ALWAYS AS (envelope::json #>> '{body,materialization_id}') STORED,
  tensors_blob text GENERATED ALWAYS AS (envelope::json #>> '{body,tensors_blob}') STORED,
  document jsonb NOT NULL GENERATED ALWAYS AS (envelope::jsonb) STORED,
  UNIQUE (run_id, sequence)
) WITH (toast_tuple_target = 8160)""",
    "blobs": """
CREATE TABLE blobs (
  digest text NOT NULL PRIMARY KEY CHECK (digest LIKE 'sha256:%' AND length(digest) = 71),
  media_type text NOT NULL,
  data bytea NOT NULL
)""",
    "checkpoints": """
CREATE TABLE checkpoints (
  tree_size bigint NOT NULL CHECK (tree_size >= 0),
  root text NOT NULL,
  note text NOT NULL,
  PRIMARY KEY (tree_size, note)
)""",
}

POSTGRES_INDEXES: dict[str, str] = {
    "events_by_type": "CREATE INDEX events_by_type ON events (type, run_id, position)",
    "events_by_materialization": "CREATE INDEX events_by_materialization"
    " ON events (run_id, materialization_id, type, position) WHERE materialization_id IS NOT NULL",
    "events_by_blob": "CREATE INDEX events_by_blob ON events (tensors_blob) WHERE tensors_blob IS NOT NULL",
}

POSTGRES_FUNCTIONS: dict[str, str] = {
    "ledger_refuse_change": """
CREATE FUNCTION ledger_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, lower(TG_OP);
END $$""",
    "ledger_guard_origin": """
CREATE FUNCTION ledger_guard_origin() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM ledger) THEN
    RAISE EXCEPTION 'ledger has its origin already';
  END IF;
  RETURN NEW;
END $$""",
    "ledger_guard_event": """
CREATE FUNCTION ledger_guard_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.position IS DISTINCT FROM (SELECT coalesce(max(position), -1) + 1 FROM events) THEN
    RAISE EXCEPTION 'events: position is not the next';
  END IF;
  IF (NEW.envelope::json ->> 'sequence')::bigint IS DISTINCT FROM
      (SELECT coalesce(max(sequence), -1) + 1 FROM events WHERE run_id = NEW.envelope::json ->> 'run_id') THEN
    RAISE EXCEPTION 'events: sequence is taken or not the next of its run';
  END IF;
  RETURN NEW;
END $$""",
    # A value that is no number reads as null, so that one odd event cannot break a view.
    "ledger_number": """
CREATE FUNCTION ledger_number(value jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN jsonb_typeof(value) = 'number' THEN value::numeric END
$$""",
    # Bytes that are no JSON array read as an empty one.
    "ledger_array": """
CREATE FUNCTION ledger_array(data bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE value jsonb;
BEGIN
  value := convert_from(data, 'UTF8')::jsonb;
  RETURN CASE WHEN jsonb_typeof(value) = 'array' THEN value ELSE '[]'::jsonb END;
EXCEPTION WHEN data_exception THEN
  RETURN '[]'::jsonb;
END $$""",
}

POSTGRES_GUARDS: dict[str, str] = {
    **{
        f"{table}_no_change": f"""
CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table}
  FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()"""
        for table in TABLES
    },
    **{
        f"{table}_no_truncate": f"""
CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}
  FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_change()"""
        for table in TABLES
    },
    "ledger_insert_guard": """
CREATE TRIGGER ledger_insert_guard BEFORE INSERT ON ledger
  FOR EACH ROW EXECUTE FUNCTION ledger_guard_origin()""",
    "events_insert_guard": """
CREATE TRIGGER events_insert_guard BEFORE INSERT ON events
  FOR EACH ROW EXECUTE FUNCTION ledger_guard_event()""",
}

APPEND_LOCK = int.from_bytes(b"tally", "big")
"""Key of the PostgreSQL advisory lock that every append holds until its transaction ends: positions stay gapless."""


def postgres_role(role: str, schema: str = "public") -> list[str]:
    """Statements that make `role` a writer who can append and read, and neither change, delete nor drop a guard.

    Run them as the ledger's owner, after the ledger was begun; programs then connect as a member of `role`, never as the
    owner. `schema` is where the ledger's tables are.
    """
    quoted, within = (f'"{name.replace(chr(34), chr(34) * 2)}"' for name in (role, schema))
    return [
        f"CREATE ROLE {quoted} NOLOGIN",
        f"GRANT USAGE ON SCHEMA {within} TO {quoted}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {within} TO {quoted}",
        *(f"GRANT INSERT ON {within}.{table} TO {quoted}" for table in TABLES),
    ]


def guards(dialect: Dialect) -> dict[str, str]:
    """Trigger name -> statement that creates it."""
    return {name: sql.strip() for name, sql in (SQLITE_GUARDS if dialect == "sqlite" else POSTGRES_GUARDS).items()}


def version_table() -> str:
    """The statement that makes the version table, which is Alembic's own."""
    return (
        f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL,"
        f" CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
    )


def create_statements(dialect: Dialect) -> list[str]:
    """Every statement that makes an empty ledger of the current version, in order; the version table included."""
    if dialect == "sqlite":
        parts = [SQLITE_TABLES, SQLITE_INDEXES, SQLITE_GUARDS]
    else:
        parts = [POSTGRES_TABLES, POSTGRES_INDEXES, POSTGRES_FUNCTIONS, POSTGRES_GUARDS]
    statements = [sql.strip() for part in parts for sql in part.values()]
    statements += create_views(dialect).values()
    statements += [
        version_table(),
        f"INSERT INTO {VERSION_TABLE} (version_num) VALUES ('{revision()}')",
    ]
    if dialect == "sqlite":
        statements += [f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}"]
    return statements
