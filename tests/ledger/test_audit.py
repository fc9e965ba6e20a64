"""The audit on both backends: what is valid there, and that columns, guards gone and long reports are dealt with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger import audit, canonical, pins
from ledger.audit import verify_ledger
from ledger.bodies import RunOpened
from ledger.errors import LedgerError
from ledger.evidence import verify
from ledger.export import export_run
from ledger.intake import import_evidence
from ledger.maintenance import copy
from ledger.migrate import upgrade
from ledger.recording import ListLedger
from ledger.sqlite import sqlite_driver
from ledger.store import Store
from tests.builders.judged import KEY, PLAN, add_run, draft, fill, one_run, run_bodies, run_id, stored
from tests.builders.ledgers import small_drafts
from tests.builders.runs import gpu_plan, record
from tests.zoo.ledgers import Raw

OTHER = "sha256:" + "ab" * 32


def test_a_ledger_is_valid_on_every_backend_and_gives_the_same_evidence(location: str, tmp_path: Path) -> None:
    original = stored(tmp_path / "original.db", one_run())
    copy(original, location)
    with Store.open(location) as store:
        note, _ = pins.note(store)
        data = export_run(store, run_id(1), KEY)
    (tmp_path / "ledger.pin").write_bytes(note)
    document = verify_ledger(location, pin=tmp_path / "ledger.pin", use_state=False)
    assert (document.status, document.problems) == ("valid", [])
    with Store.open(original) as store:
        assert export_run(store, run_id(1), KEY) == data
    assert verify(data, public_key=KEY.public_key(), pin=note).status == "valid"


def test_an_edit_is_named_on_every_backend(location: str) -> None:
    with Store.open(location, write=True, create=True) as store:
        fill(store, one_run())
        if store.base.dialect == "postgresql":
            with store.base.transaction() as transaction:
                transaction.execute("ALTER TABLE events DISABLE TRIGGER USER")
                transaction.execute(
                    "UPDATE events SET envelope = replace(envelope, '\"node-a\"', '\"node-b\"') WHERE position = 7"
                )
    if "://" not in location:
        with Raw(Path(location)) as raw:
            raw.put(7, raw.changed(7, node_id="node-b"), rehash=False)
    document = verify_ledger(location, use_state=False)
    assert (document.status, document.problems[0].code, document.problems[0].position) == ("broken", "content", 7)


@pytest.mark.parametrize(
    ("change", "position"),
    [
        (lambda text: text.replace('{"id":"', '{"id":"a","id":"', 1), 3),
        (lambda text: re.sub(r'"actor":{("id":"[^"]*"),("kind":"[^"]*")}', r'"actor":{\2,\1}', text), 3),
        (lambda text: text.replace('"kind":', '"kind": ', 1), 3),
        (lambda text: text.replace('{"id":"', '{"id":"\\u0041', 1), 3),
        (lambda text: re.sub(r'"elapsed_ns":[0-9]+', f'"elapsed_ns":{2**53}', text), 3),
        *[
            (lambda text, to=number: re.sub(r'"elapsed_ns":[0-9]+', f'"elapsed_ns":{to}', text), 3)
            for number in ("1.0", "-0.0", "1e+16", "9007199254740992.0", "1e-6", "1.5e-6", "0.10")
        ],
        (lambda text: re.sub(r'"elapsed_ns":[0-9]+', '"elapsed_ns":0.0000015', text), None),
        (lambda text: re.sub(r'"actor":{(.*?)}', '"actor":{\\1,"\ufffd":1,"\U0001f600":1}', text), 3),
        (lambda text: re.sub(r'"actor":{(.*?)}', '"actor":{\\1,"\U0001f600":1,"\ufffd":1}', text), None),
    ],
    ids=["a key twice", "keys out of order", "a blank", "an escape", "2**53",
         "1.0", "-0.0", "1e+16", "2**53 as a float", "1e-6", "1.5e-6", "0.10", "1.5e-6 as RFC 8785 has it",
         "sorted by UTF-8", "sorted by UTF-16"],
)  # fmt: skip
def test_an_envelope_in_another_form_than_was_appended_is_named(
    tmp_path: Path, change: Callable[[str], str], position: int | None
) -> None:
    path = stored(tmp_path / "t.db", one_run())
    with Raw(path) as raw:
        text = change(raw.envelope(3))
        assert text != raw.envelope(3)
        raw.put(3, text)
    found = [problem for problem in verify_ledger(path, use_state=False).problems if problem.code == "content"]
    assert [(problem.position, problem.detail[:22]) for problem in found[:1]] == (
        [(position, "not what was appended:")] if position is not None else []
    )


def test_verify_and_the_next_write_have_one_rule_for_what_the_schema_holds(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.db", one_run())
    for sql, name in (
        ("DROP TRIGGER events_no_update", "events_no_update"),
        ("CREATE VIEW json_each AS SELECT 1 AS key", "json_each"),
        ("CREATE INDEX two ON ledger_version (version_num)", "two"),
        ("CREATE TRIGGER evil BEFORE INSERT ON ledger_version BEGIN SELECT 1; END", "evil"),
        ("DROP VIEW runs", "runs"),
    ):
        connection = sqlite_driver().connect(str(path), isolation_level=None)
        connection.execute(sql)
        connection.close()
        (problem,) = verify_ledger(path, use_state=False).problems
        assert (problem.code, f" {name} is not as" in problem.detail) == ("content", True), problem
        with pytest.raises(LedgerError, match=f"not this program's: {name} .*db upgrade"):
            Store.open(path, write=True)
        upgrade(path)
        assert verify_ledger(path, use_state=False).status == "valid-unanchored"
        Store.open(path, write=True).close()


def test_statistics_for_the_planner_are_no_strangers(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.db", one_run())
    connection = sqlite_driver().connect(str(path), isolation_level=None)
    connection.execute("ANALYZE")
    connection.close()
    assert verify_ledger(path, use_state=False).status == "valid-unanchored"


def test_columns_are_read_where_the_table_could_let_them_lie(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.db", one_run())
    with Store.open(path) as store:
        assert audit._columns_generated(store)
    with Raw(path) as raw:
        raw.unconstrained()
    with Store.open(path) as store:
        assert not audit._columns_generated(store)
    of_the_table = verify_ledger(path, use_state=False).problems
    assert {(problem.code, problem.position) for problem in of_the_table} == {("content", None)}
    for column, value in (("type", "run.closed"), ("sequence", 5), ("node_id", None), ("event_id", "x"),
                          ("recorded_at", "x")):  # fmt: skip
        with Raw(path) as raw:
            (before,) = raw.run(f"SELECT {column} FROM events WHERE position = 3")[0]
            raw.run(f"UPDATE events SET {column} = ? WHERE position = 3", value)
        problem, *others = verify_ledger(path, use_state=False).problems
        assert (problem.code, problem.position, others) == ("content", 3, of_the_table)
        with Raw(path) as raw:
            raw.run(f"UPDATE events SET {column} = ? WHERE position = 3", before)


def test_a_rewritten_ledger_gives_a_report_of_bounded_length(tmp_path: Path) -> None:
    contents = ListLedger()
    for number in (1, 2):
        add_run(contents, number, bodies=run_bodies())
    path = stored(tmp_path / "t.db", contents)
    with Raw(path) as raw:
        raw.run("UPDATE events SET hash = printf('%064d', position)")
    document = verify_ledger(path, use_state=False)
    assert len(document.problems) == audit.MAX_PROBLEMS
    assert [problem.position for problem in document.problems] == list(range(audit.MAX_PROBLEMS))


def test_pages_and_checkpoints_fall_where_they_fall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roots at checkpoint sizes come out the same however the rows are read."""
    contents = one_run()
    path = stored(tmp_path / "t.db", contents)
    with Store.open(path, write=True) as store:
        for size in (0, 1, 7, 8, 9, len(contents.recorded)):
            checkpoint = pins._extended(store, None, size)
            text = pins.format_checkpoint(checkpoint.origin, size, checkpoint.root)
            store.put_checkpoint(size, checkpoint.root_hex, text)
    for page in (1, 3, 8, 1000):
        monkeypatch.setattr(audit, "PAGE", page)
        seen: list[tuple[int, int]] = []
        document = verify_ledger(path, use_state=False, progress=lambda done, total: seen.append((done, total)))  # noqa: B023 - called at once
        assert (document.status, document.problems) == ("valid-unanchored", [])
        assert seen[-1] == (len(contents.recorded),) * 2
        assert len(seen) == -(-len(contents.recorded) // page)


def test_a_damaged_tree_that_hands_out_rows_in_circles_ends_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(tmp_path / "t.db", one_run())
    with Store.open(path) as store:
        rows = list(store.rows())
    monkeypatch.setattr(audit._Audit, "_page", lambda self, start: rows[:3])
    document = verify_ledger(path, use_state=False)
    assert (document.status, document.problems[0].code, document.problems[0].position) == ("broken", "content", 3)


def test_documents_under_no_digest_are_named(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.db", one_run())
    with Raw(path) as raw:
        raw.run("DROP TABLE blobs")
        raw.run("CREATE TABLE blobs (digest, media_type, data)")
        raw.run("INSERT INTO blobs VALUES (NULL, 'x', x'00')")
    problems = verify_ledger(path, use_state=False).problems
    assert [problem.code for problem in problems if "not as this program makes it" not in problem.detail] == [
        "blob-missing",
        "blob-altered",
    ]


def test_a_row_that_cannot_be_read_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.db", one_run())
    with Raw(path) as raw:
        raw.unconstrained()
        raw.run("UPDATE events SET node_id = CAST(x'ff' AS TEXT) WHERE position IN (4, 9)")
    problems = verify_ledger(path, use_state=False).problems
    assert [(problem.code, problem.position) for problem in problems if "cannot be read" in problem.detail] == [
        ("content", 4),
        ("content", 9),
    ]


def test_others_may_append_while_a_ledger_is_verified(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.db", one_run())

    def append(_done: int, _total: int) -> None:
        with Store.open(path, write=True) as store:
            if store.next_sequence(run_id(9)) == 0:
                store.append(run_id(9), 0, small_drafts(run_id(9), 2))

    document = verify_ledger(path, use_state=False, progress=append)
    assert (document.status, document.problems) == ("valid-unanchored", [])


@pytest.mark.parametrize(
    ("change", "named"), [({"hash": "ab" * 32}, "none before it"), ({"digest": OTHER}, "the one with that hash is of")]
)
def test_a_freezing_that_nobody_recorded_is_named(tmp_path: Path, change: dict[str, str], named: str) -> None:
    ledger = one_run()
    cited = next(event.body.frozen for event in ledger.events() if isinstance(event.body, RunOpened))
    assert cited is not None
    forged = record(run_bodies(frozen=cited.model_copy(update=change)), PLAN, ledger=ListLedger(), frozen=False)
    path = stored(tmp_path / "t.db", ledger)
    with Store.open(path, write=True) as store:
        store.append(run_id(2), 0, [draft(event.body, run_id(2), event.sequence) for event in forged.events()])
    document = verify_ledger(path, use_state=False)
    place = len(ledger.recorded)
    assert [(one.code, one.position) for one in document.problems] == [("linkage", place)]
    assert named in document.problems[0].detail
    assert (document.status, document.checks.chain) == ("broken", "failed")


def test_a_run_that_came_from_another_ledger_cites_a_freezing_that_came_along(tmp_path: Path) -> None:
    with Store.open(stored(tmp_path / "theirs.db", one_run())) as theirs:
        data = export_run(theirs, run_id(1), KEY)
    mine = ListLedger()
    add_run(mine, 7, gpu_plan())
    path = stored(tmp_path / "mine.db", mine, [gpu_plan()])
    with Store.open(path, write=True) as store:
        import_evidence(store, data)
    assert verify_ledger(path, use_state=False).status == "valid-unanchored"


@pytest.mark.parametrize(
    "change",
    [lambda event: event | {"w": 1}, lambda event: {key: item for key, item in event.items() if key != "actor"}],
    ids=["one more", "one less"],
)
def test_an_envelope_with_other_fields_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    path = stored(tmp_path / "t.db", one_run())
    with Raw(path) as raw:
        raw.put(3, canonical.encode(change(json.loads(raw.envelope(3)))))
    first = verify_ledger(path, use_state=False).problems[0]
    assert (first.position, first.detail) == (3, "the envelope does not have an envelope's fields")
