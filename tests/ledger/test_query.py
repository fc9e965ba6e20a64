"""User SQL is answered within its limits and can do nothing else; views and named queries say what the events say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import (
    AuthorityEstablished,
    MaterializationFailed,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationSkipped,
    MaterializationStarted,
    MemorySampled,
    VerdictRecorded,
)
from ledger.errors import LedgerError, QueryError
from ledger.measurement import unavailable
from ledger.postgres import PostgresDatabase
from ledger.query import NAMED, QueryResult, run_query, schema_text
from ledger.store import Store
from ledger.views import views
from tests.builders.ledgers import PLAN, record_run
from tests.builders.runs import changed, clean_bodies, gpu_plan, inserted, moved, size, text, without

PASS = VerdictRecorded(judge_version="1", verdict="PASS", assurance="observed", codes=[])
FAIL = VerdictRecorded(
    judge_version="1", verdict="FAIL", assurance="declared", codes=["staging.owner-alive", "memory.not-reclaimed"]
)
MIB = 1024 * 1024


@pytest.fixture
def ledger(location: str) -> str:
    """A ledger with a run that passed."""
    with Store.open(location, write=True, create=True) as store:
        record_run(store, [*clean_bodies(PLAN), PASS])
    return location


def ask(location: str, sql: str, **parameters: object) -> list[dict[str, Any]]:
    result = run_query(location, sql, parameters)
    assert not result.truncated
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def named(location: str, name: str, **parameters: object) -> list[dict[str, Any]]:
    return ask(location, NAMED[name].sql, **parameters)


# --- the sandbox --------------------------------------------------------------------------------------------------

HOSTILE = {
    "attach": "ATTACH DATABASE '{folder}/evil.db' AS evil",
    "vacuum into": "VACUUM INTO '{folder}/evil.db'",
    "vacuum": "VACUUM",
    "pragma write": "PRAGMA user_version = 9",
    "pragma journal": "PRAGMA journal_mode = delete",
    "pragma query_only": "PRAGMA query_only = off",
    "pragma function": "SELECT * FROM pragma_table_info('events')",
    "load_extension": "SELECT load_extension('{folder}/evil')",
    "load_extension, hidden": "SELECT \"load_extension\"('{folder}/evil')",
    "writefile": "SELECT writefile('{folder}/evil', 'x')",
    "readfile": "SELECT readfile('/etc/passwd')",
    "edit": "SELECT edit('x', 'touch {folder}/evil')",
    "tokenizer": "SELECT fts3_tokenizer('x', x'00')",
    "pages of the file": "SELECT * FROM sqlite_dbpage",
    "pragma schema": "PRAGMA writable_schema = on",
    "two statements": "SELECT 1; DELETE FROM events",
    "two statements, hidden": "SELECT 1 /* ; */; -- ;\n DROP TABLE events",
    "delete": "DELETE FROM events",
    "update": "UPDATE events SET hash = 'x'",
    "insert": "INSERT INTO blobs VALUES ('x', 'y', 'z')",
    "replace": "REPLACE INTO ledger VALUES ('x', 'y')",
    "insert from with": "WITH x AS (SELECT 1) INSERT INTO blobs SELECT 1, 2, 3 FROM x",
    "returning": "DELETE FROM events RETURNING *",
    "delete in with": "WITH gone AS (DELETE FROM events RETURNING *) SELECT * FROM gone",
    "create": "CREATE TABLE evil (x)",
    "create temporary": "CREATE TEMP TABLE evil (x)",
    "create as": "CREATE TABLE evil AS SELECT * FROM events",
    "select into": "SELECT * INTO evil FROM events",
    "drop trigger": "DROP TRIGGER events_no_delete",
    "drop table": "DROP TABLE events",
    "alter": "ALTER TABLE events RENAME TO evil",
    "reindex": "REINDEX",
    "analyze": "ANALYZE",
    "begin": "BEGIN IMMEDIATE",
    "commit": "COMMIT",
    "savepoint": "SAVEPOINT evil",
    "detach": "DETACH DATABASE main",
    "endless": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
    "endless, sorted": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n ORDER BY -x",
    "enormous join": "SELECT count(*) FROM events a, events b, events c, events d, events e, events f WHERE a.hash > f.hash",
    "value of any size": "SELECT zeroblob(1000000000)",
    "text of any size": "SELECT printf('%1000000000d', 1)",
    "copy to a file": "COPY (SELECT 1) TO '{folder}/evil'",
    "copy to a program": "COPY (SELECT 1) TO PROGRAM 'touch {folder}/evil'",
    "read a file": "SELECT pg_read_file('/etc/passwd')",
    "read a file, quoted": "SELECT \"pg_read_file\"('/etc/passwd')",
    "read a file, spaced": "SELECT pg_catalog . pg_read_file /* x */ ('/etc/passwd')",
    "read a file, escaped name": "SELECT U&\"pg\\005fread_file\"('/etc/passwd')",
    "a call behind an escaped quote": "SELECT E'\\'' || lo_export(1, '{folder}/evil') || E'\\''",
    "a call behind dollar quotes": "SELECT $x$'$x$ || lo_export(1, '{folder}/evil') || $x$'$x$",
    "large object": "SELECT lo_export(lo_creat(-1), '{folder}/evil')",
    "setting": "SELECT set_config('transaction_read_only', 'off', false)",
    "set": "SET TRANSACTION READ WRITE",
    "lock": "SELECT pg_advisory_lock(499918861433)",
    "sleep": "SELECT pg_sleep(60)",
    "sleep as a table": "SELECT * FROM pg_sleep(60) AS slept(x)",
    "large object from a file": "SELECT lo_import('/etc/passwd')",
    "a folder": "SELECT * FROM pg_ls_dir('/')",
    "read write": "SELECT 1; SET TRANSACTION READ WRITE; DELETE FROM events",
    "setting, local": "SET LOCAL transaction_read_only = off",
    "lock rows": "SELECT * FROM events FOR UPDATE",
    "password hashes": "SELECT * FROM pg_authid",
    "catalogue": "SELECT * FROM information_schema.tables",
    "anonymous block": "DO $$ BEGIN DELETE FROM events; END $$",
    "call": "CALL evil()",
    "explain analyze": "EXPLAIN ANALYZE DELETE FROM events",
    "listen": "LISTEN x",
    "prepare": "PREPARE evil AS DELETE FROM events",
    "dblink as a table": "SELECT * FROM dblink('dbname=postgres', 'DELETE FROM events') AS t(x text)",
    "dblink": "SELECT dblink('dbname=postgres', 'DELETE FROM events')",
    "query to xml": "SELECT query_to_xml('DELETE FROM events', true, false, '')",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_sql_is_refused_or_stopped(
    location: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with Store.open(location, write=True, create=True) as store:
        record_run(store)
        store.put_blob(b"x", "text/plain")
        before = list(store.recorded()), list(store.blob_digests()), store.origin
    files = sorted(tmp_path.rglob("*"))
    started = time.monotonic()
    with pytest.raises(QueryError):
        run_query(location, HOSTILE[kind].format(folder=folder), {}, seconds=0.3)
    assert time.monotonic() - started < 20, "stopped, not waited for"
    assert sorted(tmp_path.rglob("*")) == files
    with Store.open(location, write=True) as store:
        assert (list(store.recorded()), list(store.blob_digests()), store.origin) == before


def test_time_and_rows_are_limited(ledger: str) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT {} FROM n"
    with pytest.raises(QueryError, match=r"stopped after 0\.2 s"):
        run_query(ledger, endless.format("count(*)"), {}, seconds=0.2)
    first = run_query(ledger, endless.format("x"), {}, rows=7)
    assert first == QueryResult(["x"], [(number,) for number in range(1, 8)], True)
    exact = run_query(ledger, "SELECT position FROM events ORDER BY position", {}, rows=43)
    assert (len(exact.rows), exact.truncated) == (43, False)


def test_huge_values_are_cut_off(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.query.MAX_RESULT_BYTES", 100_000)
    result = run_query(ledger, "SELECT a.envelope FROM events AS a, events AS b", {})
    assert result.truncated
    assert 100_000 < sum(len(envelope) for (envelope,) in result.rows) < 200_000


def test_a_value_made_enormous_is_stopped(tmp_path: Path) -> None:
    """In one step, which no clock interrupts; in a process of its own, whose memory is looked at."""
    path = tmp_path / "tally.db"
    with Store.open(path, write=True, create=True) as store:
        record_run(store)
    x = "hex(hex(hex(hex(envelope))))"
    grown = f"replace(replace({x}, '3', {x}), '3', {x})"
    code = f"""
import re
from pathlib import Path
from ledger.errors import QueryError
from ledger.query import run_query
try:
    print("answered", run_query({str(path)!r}, {f"SELECT length({grown}) FROM events"!r}, {{}}, seconds=5))
except QueryError as error:
    print(error.message)
# Not ru_maxrss, which a process inherits from the one that started it.
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message, mebibytes = done.stdout.splitlines()
    assert message.startswith(("the query was stopped", "the query failed"))
    assert int(mebibytes) < 800


@pytest.mark.parametrize(
    "sql", ["", " ;; ", "-- nothing", "/* nothing */", "SELECT 'unclosed", 'SELECT "unclosed', "SELECT /*"]
)
def test_no_statement_is_an_error(ledger: str, sql: str) -> None:
    with pytest.raises(QueryError):
        run_query(ledger, sql, {})


@pytest.mark.parametrize(
    "sql", ["SELECT nothing FROM runs", "SELECT * FROM nowhere", "SELEKT 1", "SELECT (", "SELECT 1 +"]
)
def test_wrong_sql_is_one_line(ledger: str, sql: str) -> None:
    with pytest.raises(QueryError) as raised:
        run_query(ledger, sql, {})
    assert "\n" not in str(raised.value)


def test_honest_sql_is_answered(ledger: str) -> None:
    assert ask(ledger, "SELECT 1 AS one;") == [{"one": 1}]
    assert ask(ledger, "-- a comment\nSELECT 'a;b''c' AS text -- and another;\n") == [{"text": "a;b'c"}]
    assert ask(ledger, 'SELECT count(*) AS "a ; b" FROM events') == [{"a ; b": 43}]
    rows = ask(
        ledger,
        "WITH big AS (SELECT label, max(vm_rss) AS peak FROM memory_samples GROUP BY label)"
        " SELECT coalesce(label, '?') AS label, peak, rank() OVER (ORDER BY peak DESC) AS place FROM big"
        " WHERE label LIKE 'after%' ORDER BY place, label",
    )
    assert [row["label"] for row in rows] == ["after-decode", "after-release:mat.weights.stage"]


def test_parameters_are_bound_and_never_pasted(ledger: str) -> None:
    sql = (
        "SELECT cast(:a AS text) AS a, cast(:b AS text) AS b, ':a' AS quoted, count(*) AS n FROM events WHERE type = :a"
    )
    hostile = "x' OR '1'='1"
    assert ask(ledger, sql, a=hostile, b="%") == [{"a": hostile, "b": "%", "quoted": ":a", "n": 0}]
    with pytest.raises(QueryError, match="parameter :b is not given"):
        run_query(ledger, sql, {"a": 1})
    with pytest.raises(QueryError, match="has no parameter :c"):
        run_query(ledger, sql, {"a": 1, "b": 2, "c": 3})
    with pytest.raises(QueryError, match="write it as :a"):
        run_query(ledger, "SELECT @a", {"a": 1})


def test_values_come_as_json_can_carry_them(ledger: str) -> None:
    with Store.open(ledger, write=True) as store:
        store.put_blob(b"\x00\xffx", "application/octet-stream")
    result = run_query(ledger, "SELECT data, 2.5 AS half, 9007199254740991 AS big, NULL AS none FROM blobs", {})
    assert result.rows == [("00ff78", 2.5, 9007199254740991, None)]
    json.dumps(result.rows, allow_nan=False)


def test_no_ledger_no_answer(location: str) -> None:
    with pytest.raises(LedgerError, match="no ledger"):
        run_query(location, "SELECT 1", {})


def test_a_query_runs_beside_a_writer(ledger: str) -> None:
    with Store.open(ledger, write=True) as store, store.base.transaction() as transaction:
        assert transaction.select("SELECT 1") == [(1,)]
        assert ask(ledger, "SELECT count(*) AS n FROM events") == [{"n": 43}]


# --- views --------------------------------------------------------------------------------------------------------


def test_every_documented_column_is_there_and_every_column_documented(ledger: str) -> None:
    lines = schema_text()
    documented: dict[str, list[str]] = {}
    table = ""
    for line in lines:
        if line.startswith("  "):
            name, _, description = line.strip().partition(" ")
            assert description.strip(), line
            documented[table].append(name)
        else:
            table = line.partition(":")[0]
            documented[table] = []
    promised = "runs materializations tensors releases authorities executions decode_runs memory_samples verdicts"
    assert set(promised.split()) <= set(documented)
    for table, columns in documented.items():
        found = run_query(ledger, f"SELECT * FROM {table} LIMIT 1", {}).columns
        assert [name for name in found if name != "document"] == columns, table


def test_views_say_what_the_events_say(ledger: str) -> None:
    (run,) = ask(ledger, "SELECT * FROM runs")
    assert (run["outcome"], run["verdict"], run["assurance"], run["events"]) == ("completed", "PASS", "observed", 43)
    assert (run["purpose"], run["adapter"], run["repository"]) == ("realization", "causal_lm", "example/small")
    assert (run["plan_digest"], run["plan_blob"]) == (PLAN.computed_digest, PLAN.blob_digest)
    assert json.loads(run["labels"]) == {"purpose": "test"}
    assert run["duration_ns"] == 41_000_000
    rows = {row["materialization_id"]: row for row in ask(ledger, "SELECT * FROM materializations")}
    assert set(rows) == set(PLAN.materializations)
    stage = rows["mat.weights.stage"]
    assert (stage["state"], stage["role"], stage["claimed_bytes"], stage["observed_bytes"]) == (
        "released",
        "staging",
        256 * MIB,
        256 * MIB,
    )
    assert (stage["started_sequence"], stage["realized_sequence"], stage["observed_sequence"]) == (5, 6, 7)
    assert (stage["duration_ns"], stage["released_sequence"]) == (1_000_000, 27)
    assert rows["mat.kv-cache"]["state"] == "observed"
    assert rows["mat.kv-cache"]["observed_by"] == "probe"
    (release,) = ask(ledger, "SELECT * FROM releases")
    assert (release["qualifying_ids"], release["released_bytes"], release["bytes_after"]) == (
        "mat.weights.resident",
        256 * MIB,
        0,
    )
    assert (release["give_back_ratio"], release["region_mapped"], release["owners_alive"]) == (1, 0, 0)
    assert release["give_back_ratio_after_decode"] == 1
    (authority,) = ask(ledger, "SELECT * FROM authorities")
    assert (authority["lineage"], authority["materialization_id"], authority["lineage_by"]) == (
        "kv-cache-epoch-1",
        "mat.kv-cache",
        "probe",
    )
    (execution,) = ask(ledger, "SELECT * FROM executions")
    assert execution["bound_state"] == (
        "mat.weights.resident@node-a.shm, mat.buffers.resident@node-a.shm, mat.kv-cache@node-a.shm"
    )
    decodes = ask(
        ledger, "SELECT phase, repetition, output_exact, max_absolute, plan_lookups FROM decode_runs ORDER BY sequence"
    )
    assert [(row["phase"], row["repetition"]) for row in decodes] == [
        ("prefill", None),
        *(("repetition", number) for number in range(4)),
    ]
    assert {(row["output_exact"], row["max_absolute"], row["plan_lookups"]) for row in decodes} == {(1, 0, 0)}
    samples = ask(ledger, "SELECT * FROM memory_samples ORDER BY sequence")
    assert (samples[0]["label"], samples[0]["tree_sum"], samples[0]["rss_anon"]) == ("baseline", 300 * MIB, 300 * MIB)
    assert samples[0]["cuda_allocated"] is None, "no device, no figure"
    (verdict,) = ask(ledger, "SELECT * FROM verdicts")
    assert (verdict["verdict"], verdict["codes"]) == ("PASS", None)
    assert ask(ledger, "SELECT * FROM verdict_codes") == ask(ledger, "SELECT * FROM tensors") == []


def test_what_was_not_measured_is_null_and_never_zero(location: str) -> None:
    unknown = unavailable("bytes", "smaps_rollup", "not on this kernel")
    bodies = changed(clean_bodies(gpu_plan()), MemorySampled, {"process.rss_anon": unknown}, label="closing")
    bodies = changed(bodies, MaterializationObserved, {"bytes": unknown}, materialization_id="mat.kv-cache")
    with Store.open(location, write=True, create=True) as store:
        record_run(store, bodies, plan=gpu_plan())
    (row,) = ask(location, "SELECT rss_anon, rss_file, cuda_allocated FROM memory_samples WHERE label = 'closing'")
    assert row["rss_anon"] is None
    assert (row["rss_file"], row["cuda_allocated"]) == (200 * MIB, 272 * MIB + 256)
    (row,) = ask(location, "SELECT observed_bytes FROM materializations WHERE materialization_id = 'mat.kv-cache'")
    assert row["observed_bytes"] is None


def test_states_of_materializations(location: str) -> None:
    bodies = without(clean_bodies(PLAN), MaterializationObserved, materialization_id="mat.kv-cache")
    bodies = without(bodies, MaterializationRealized, materialization_id="mat.replay-baseline")
    bodies = without(bodies, MaterializationObserved, materialization_id="mat.replay-baseline")
    bodies = inserted(
        bodies,
        [
            MaterializationSkipped(materialization_id="mat.skipped", reason="optional"),
            MaterializationFailed(materialization_id="mat.failed", error_type="OSError", message="no room"),
        ],
        before=AuthorityEstablished,
    )
    with Store.open(location, write=True, create=True) as store:
        record_run(store, bodies)
    rows = ask(location, "SELECT materialization_id, state, failure, skip_reason FROM materializations")
    assert {row["materialization_id"]: row["state"] for row in rows} == {
        "mat.weights.stage": "released",
        "mat.weights.resident": "observed",
        "mat.buffers.resident": "observed",
        "mat.kv-cache": "realized",
        "mat.replay-baseline": "started",
        "mat.skipped": "skipped",
        "mat.failed": "failed",
    }
    assert [row["failure"] for row in rows if row["state"] == "failed"] == ["no room"]


TENSORS = [
    {
        "name": "model.blocks.0.weight",
        "dtype": "bfloat16",
        "shape": [4, 8],
        "offset": 0,
        "bytes": 64,
        "device": "cpu",
        "source_digest": "sha256:aa",
        "resident_digest": "sha256:aa",
        "why": "in the range",
    },
    {"name": "model.blocks.1.weight", "dtype": "float32", "shape": [], "offset": 64, "bytes": 4, "device": "cpu"},
]


@pytest.mark.parametrize("jsonb_each", [(3, 51, 0), (9, 0, 0)], ids=["as this SQLite can", "as any SQLite can"])
def test_tensors_come_from_the_blob(
    location: str, jsonb_each: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.query.JSONB_EACH", jsonb_each)
    with Store.open(location, write=True, create=True) as store:
        good = store.put_blob(json.dumps(TENSORS).encode(), "application/json")
        odd = [
            store.put_blob(data, "application/json")
            for data in (
                b"\xff\xfe\x00",
                b'{"a": {"name": "model.blocks.0.weight"}}',
                b'[1, null, "text", [], "{", true, {}]',
                b"[",
                b"",
            )
        ]
        bodies = clean_bodies(PLAN)
        for materialization, blob in zip(PLAN.materializations, [good, *odd[:3], "sha256:" + "0" * 64], strict=True):
            bodies = changed(
                bodies, MaterializationObserved, {"tensors_blob": blob}, materialization_id=materialization
            )
        record_run(store, bodies)
        bodies = changed(bodies, MaterializationObserved, {"tensors_blob": odd[4]}, materialization_id="mat.kv-cache")
        run_id = record_run(store, bodies)
    rows = ask(location, "SELECT * FROM tensors WHERE name IS NOT NULL ORDER BY run_id, name")
    assert [(row["name"], row["shape"], row["bytes"], row["offset_bytes"]) for row in rows] == [
        ("model.blocks.0.weight", "[4,8]", 64, 0),
        ("model.blocks.1.weight", "[]", 4, 64),
    ] * 2
    assert rows[0]["resident_digest"] == "sha256:aa"
    assert rows[1]["resident_digest"] is None
    assert len(named(location, "where-is-tensor", tensor="model.blocks.0.weight")) == 2
    assert len(named(location, "where-is-tensor", tensor="%weight", run=run_id)) == 2
    assert named(location, "where-is-tensor", tensor="lm_head.weight") == []


# --- named queries ------------------------------------------------------------------------------------------------


def test_named_queries_answer_what_people_ask(location: str) -> None:
    clean = [*clean_bodies(PLAN), PASS]
    late = moved(clean, MaterializationReleased, before=MemorySampled, where={"label": "after-decode"})
    liar = changed(clean, MaterializationRealized, {"bytes": size(1)}, materialization_id="mat.kv-cache")
    liar = changed(
        liar, MaterializationRealized, {"representation": "other"}, materialization_id="mat.buffers.resident"
    )
    liar = changed(liar, AuthorityEstablished, {"lineage": text("kv-cache-epoch-2")})
    liar = [FAIL if body is PASS else body for body in liar]
    kept = without(clean, MaterializationReleased)
    with Store.open(location, write=True, create=True) as store:
        good, slow, liar_run, keeper = (record_run(store, bodies) for bodies in (clean, late, liar, kept))
    samples = named(location, "memory-over-time", run=good)
    assert [row["label"] for row in samples][:2] == ["baseline", "materialized:mat.weights.stage"]
    assert len(named(location, "memory-over-time")) == 40
    lateness = {row["run_id"]: row["why"] for row in named(location, "released-late")}
    assert lateness == {slow: "released after activation", keeper: "never released"}
    assert len(named(location, "released-late", wait_ns=0)) == 4
    slowest = named(location, "slowest-materializations", limit=3)
    assert len(slowest) == 3
    assert slowest[0]["duration_ns"] >= slowest[-1]["duration_ns"]
    codes = {(row["verdict"], row["code"]): row["runs"] for row in named(location, "verdicts-by-code")}
    assert codes == {("PASS", None): 3, ("FAIL", "staging.owner-alive"): 1, ("FAIL", "memory.not-reclaimed"): 1}
    claims = named(location, "contradicted-claims")
    assert {(row["run_id"], row["materialization_id"]) for row in claims} == {
        (liar_run, "mat.kv-cache"),
        (liar_run, "mat.buffers.resident"),
    }
    authority = named(location, "authority-over-time")
    assert [(row["run_id"], row["lineage"]) for row in authority] == [
        (good, "kv-cache-epoch-1"),
        (slow, "kv-cache-epoch-1"),
        (liar_run, "kv-cache-epoch-2"),
        (keeper, "kv-cache-epoch-1"),
    ]
    assert all(row["held_from"] <= row["held_until"] for row in authority)
    sides = {row["item"]: row for row in named(location, "side-by-side", a=good, b=liar_run)}
    assert (sides["verdict"]["a"], sides["verdict"]["b"], sides["verdict"]["laid"]) == ("PASS", "FAIL", "differs")
    assert sides["lineage of state.kv-cache"]["laid"] == "differs"
    assert sides["plan digest"]["laid"] == sides["bytes of mat.kv-cache"]["laid"] == "same"


def test_named_queries_are_described_and_their_parameters_real() -> None:
    asked = {"memory-over-time", "released-late", "slowest-materializations", "verdicts-by-code", "contradicted-claims"}
    assert asked | {"authority-over-time", "where-is-tensor", "side-by-side"} == set(NAMED)
    for name, query in NAMED.items():
        assert query.name == name
        assert query.description
        assert set(query.defaults) <= set(query.parameters)
        for parameter in query.parameters:
            assert f":{parameter}" in query.sql


def test_no_view_needs_a_started_event(location: str) -> None:
    """An imported run holds observations alone; its rows are there all the same."""
    bodies = without(without(clean_bodies(PLAN), MaterializationStarted), MaterializationRealized)
    with Store.open(location, write=True, create=True) as store:
        record_run(store, bodies)
    rows = ask(
        location, "SELECT logical_state_id, role, observed_bytes, claimed_bytes, duration_ns FROM materializations"
    )
    assert len(rows) == 5
    assert {row["claimed_bytes"] for row in rows} == {row["duration_ns"] for row in rows} == {None}
    assert all(row["logical_state_id"] and row["role"] and row["observed_bytes"] for row in rows)


def test_both_backends_have_the_same_views() -> None:
    left, right = views("sqlite"), views("postgresql")
    assert [(view.name, [column.name for column in view.columns]) for view in left] == [
        (view.name, [column.name for column in view.columns]) for view in right
    ]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_an_event_of_odd_shape_breaks_no_view(location: str) -> None:
    """Views over values of the wrong kind: text where a number belongs, an object where an array does."""
    body = clean_bodies(PLAN)[4].model_copy(update={"label": "odd"})
    assert isinstance(body, MemorySampled)
    odd = body.model_copy(update={"process": {"vm_rss": text("much"), "tree_sum": size(2**53 - 1)}})
    verdict = PASS.model_construct(judge_version="1", verdict="PASS", assurance="observed", codes={"a": 1})
    with Store.open(location, write=True, create=True) as store:
        record_run(store, [*clean_bodies(PLAN)[:4], odd, verdict])
    for view in views("sqlite"):
        run_query(location, f"SELECT * FROM {view.name}", {})
    (row,) = ask(location, "SELECT tree_sum, rss_anon FROM memory_samples")
    assert (row["tree_sum"], row["rss_anon"]) == (2**53 - 1, None)


def test_postgres_queries_hold_no_lock_afterwards(postgres: Any) -> None:
    location = postgres()
    with Store.open(location, write=True, create=True) as store:
        record_run(store)
    with pytest.raises(QueryError):
        run_query(location, "SELECT pg_advisory_lock(1)", {})
    base = PostgresDatabase(location)
    assert base.select("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
    base.close()


def test_a_query_waits_for_no_models_to_be_built() -> None:
    """Building the events' models takes longer than `select 1` may."""
    code = "import sys, ledger.query; print([name for name in ('pydantic', 'ledger.bodies') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
