"""Events, blobs and checkpoints, append-only, with their guards.

Literal statements: what this step made stays what it made, whatever the program's schema becomes.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQLITE = [
    """
CREATE TABLE ledger (
  origin TEXT NOT NULL PRIMARY KEY,
  created_at TEXT NOT NULL
) STRICT
""",
    """
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
) STRICT
""",
    """
CREATE TABLE blobs (
  digest TEXT NOT NULL PRIMARY KEY CHECK (digest LIKE 'sha256:%' AND length(digest) = 71),
  media_type TEXT NOT NULL,
  data BLOB NOT NULL
) STRICT
""",
    """
CREATE TABLE checkpoints (
  tree_size INTEGER NOT NULL CHECK (tree_size >= 0),
  root TEXT NOT NULL,
  note TEXT NOT NULL,
  PRIMARY KEY (tree_size, note)
) STRICT
""",
    """
CREATE INDEX events_by_type ON events (type, run_id)
""",
    """
CREATE INDEX events_by_materialization ON events (run_id, materialization_id, type) WHERE materialization_id IS NOT NULL
""",
    """
CREATE INDEX events_by_blob ON events (tensors_blob) WHERE tensors_blob IS NOT NULL
""",
    """
CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger BEGIN
  SELECT RAISE(ABORT, 'ledger is append-only: update refused');
END
""",
    """
CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger BEGIN
  SELECT RAISE(ABORT, 'ledger is append-only: delete refused');
END
""",
    """
CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN
  SELECT RAISE(ABORT, 'events is append-only: update refused');
END
""",
    """
CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN
  SELECT RAISE(ABORT, 'events is append-only: delete refused');
END
""",
    """
CREATE TRIGGER blobs_no_update BEFORE UPDATE ON blobs BEGIN
  SELECT RAISE(ABORT, 'blobs is append-only: update refused');
END
""",
    """
CREATE TRIGGER blobs_no_delete BEFORE DELETE ON blobs BEGIN
  SELECT RAISE(ABORT, 'blobs is append-only: delete refused');
END
""",
    """
CREATE TRIGGER checkpoints_no_update BEFORE UPDATE ON checkpoints BEGIN
  SELECT RAISE(ABORT, 'checkpoints is append-only: update refused');
END
""",
    """
CREATE TRIGGER checkpoints_no_delete BEFORE DELETE ON checkpoints BEGIN
  SELECT RAISE(ABORT, 'checkpoints is append-only: delete refused');
END
""",
    """
CREATE TRIGGER ledger_insert_guard BEFORE INSERT ON ledger BEGIN
  SELECT RAISE(ABORT, 'ledger has its origin already') WHERE EXISTS (SELECT 1 FROM ledger);
END
""",
    """
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
END
""",
    """
CREATE TRIGGER blobs_insert_guard BEFORE INSERT ON blobs BEGIN
  SELECT RAISE(ABORT, 'blobs: digest is taken') WHERE EXISTS (SELECT 1 FROM blobs WHERE digest = NEW.digest);
END
""",
    """
CREATE TRIGGER checkpoints_insert_guard BEFORE INSERT ON checkpoints BEGIN
  SELECT RAISE(ABORT, 'checkpoints: note is taken')
    WHERE EXISTS (SELECT 1 FROM checkpoints WHERE tree_size = NEW.tree_size AND note = NEW.note);
END
""",
    """
PRAGMA application_id = 1415670905
""",
    """
PRAGMA user_version = 1
""",
]

POSTGRESQL = [
    """
CREATE TABLE ledger (
  origin text NOT NULL PRIMARY KEY,
  created_at text NOT NULL
)
""",
    """
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
) WITH (toast_tuple_target = 8160)
""",
    """
CREATE TABLE blobs (
  digest text NOT NULL PRIMARY KEY CHECK (digest LIKE 'sha256:%' AND length(digest) = 71),
  media_type text NOT NULL,
  data bytea NOT NULL
)
""",
    """
CREATE TABLE checkpoints (
  tree_size bigint NOT NULL CHECK (tree_size >= 0),
  root text NOT NULL,
  note text NOT NULL,
  PRIMARY KEY (tree_size, note)
)
""",
    """
CREATE INDEX events_by_type ON events (type, run_id, position)
""",
    """
CREATE INDEX events_by_materialization ON events (run_id, materialization_id, type, position) WHERE materialization_id IS NOT NULL
""",
    """
CREATE INDEX events_by_blob ON events (tensors_blob) WHERE tensors_blob IS NOT NULL
""",
    """
CREATE FUNCTION ledger_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, lower(TG_OP);
END $$
""",
    """
CREATE FUNCTION ledger_guard_origin() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM ledger) THEN
    RAISE EXCEPTION 'ledger has its origin already';
  END IF;
  RETURN NEW;
END $$
""",
    """
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
END $$
""",
    """
CREATE TRIGGER ledger_no_change BEFORE UPDATE OR DELETE ON ledger
  FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()
""",
    """
CREATE TRIGGER events_no_change BEFORE UPDATE OR DELETE ON events
  FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()
""",
    """
CREATE TRIGGER blobs_no_change BEFORE UPDATE OR DELETE ON blobs
  FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()
""",
    """
CREATE TRIGGER checkpoints_no_change BEFORE UPDATE OR DELETE ON checkpoints
  FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()
""",
    """
CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON ledger
  FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_change()
""",
    """
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events
  FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_change()
""",
    """
CREATE TRIGGER blobs_no_truncate BEFORE TRUNCATE ON blobs
  FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_change()
""",
    """
CREATE TRIGGER checkpoints_no_truncate BEFORE TRUNCATE ON checkpoints
  FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_change()
""",
    """
CREATE TRIGGER ledger_insert_guard BEFORE INSERT ON ledger
  FOR EACH ROW EXECUTE FUNCTION ledger_guard_origin()
""",
    """
CREATE TRIGGER events_insert_guard BEFORE INSERT ON events
  FOR EACH ROW EXECUTE FUNCTION ledger_guard_event()
""",
]


def upgrade() -> None:
    for statement in SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL:
        op.execute(statement)
