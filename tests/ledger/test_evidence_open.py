"""Strict reading in bounded time: inputs made to be slow or large, and the depth of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from ledger import canonical
from ledger.bodies import RunOpened
from ledger.canonical import MAX_DEPTH, StrictJsonError
from ledger.errors import EvidenceBroken
from ledger.events import read_event
from ledger.evidence import verify
from ledger.evidence_form import MAX_FILE_BYTES, MAX_STRUCTURE, Statement, envelope_file
from ledger.evidence_open import open_envelope, read_statement
from ledger.export import export_run
from ledger.plan import parse_plan
from ledger.shape import LARGE, MAX_PARTS
from ledger.store import Store
from tests.builders.evidence import edited, envelope, set_envelope, statement_of
from tests.builders.judged import PLAN, one_run, run_bodies, run_id, stored

HOSTILE = {
    "too-long": b"x" * (MAX_FILE_BYTES + 1),
    "all-quotes": b'"' * 10_000_000,
    "all-backslashes": b'{"payload":"' + b"\\" * 10_000_000,
    "unended-string": b'{"payload":"' + b'\\"' * 5_000_000,
    "brackets": b"[" * 10_000_000,
    "pairs": b"[]," * 5_000_000,
    "payload-without-end": b'{"payload":"' + b"A" * 20_000_000,
    "equals-signs": b'{"payload":"' + b"=" * 10_000_000 + b'"}\n',
    "payload-of-quotes": envelope_file(b'"' * 5_000_000, []),
    "payload-of-escapes": envelope_file(b'"' + b'\\"' * 4_000_000, []),
    "payload-deep": envelope_file(b'{"a":' * 1_000_000, []),
    "payload-wide": envelope_file(b"[" + b"0," * (MAX_STRUCTURE - 10) + b"0]", []),
    "payload-too-wide": envelope_file(b"[" + b"0," * MAX_STRUCTURE + b"0]", []),
    "payload-long-number": envelope_file(b"1" * 5_000_000, []),
    "payload-long-string": envelope_file(b'"' + b"x" * 20_000_000 + b'"', []),
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with Store.open(stored(tmp_path_factory.mktemp("open") / "t.db", one_run(bodies=run_bodies()))) as store:
        return export_run(store, run_id(1))


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_input_is_refused_soon(name: str) -> None:
    started = time.process_time()
    document = verify(HOSTILE[name])
    assert (document.status, [problem.code for problem in document.problems]) == ("broken", ["format"])
    assert time.process_time() - started < 4, "bounded, and by far"


def test_a_large_file_is_not_explained_at_length() -> None:
    with pytest.raises(EvidenceBroken) as caught:
        open_envelope(HOSTILE["pairs"])
    assert len(str(caught.value)) < 300


def test_a_statement_too_wide_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(EvidenceBroken, match=str(MAX_STRUCTURE)):
        read_statement(open_envelope(HOSTILE["payload-too-wide"]))


def never(*_: object, **__: object) -> None:
    raise AssertionError("validated what has not the form")


def unfinished(length: int) -> bytes:
    """Blobs that lack a field each, in a statement that lacks nearly all: a validator would list every one of them."""
    statement = b'{"_type":"https://in-toto.io/Statement/v1","predicate":{"blobs":['
    return envelope_file(statement + b'{"data":null},' * length + b"{}]}}", [])


Edit = Callable[[dict[str, Any]], object]
MISSHAPEN: dict[str, tuple[Edit, str]] = {
    "blobs lack a field": (lambda p: p.update(blobs=[{"data": None}] * 50), "predicate.blobs.0: 'digest' is missing"),
    "blobs have another": (lambda p: p.update(blobs=[{"data": None, "digest": "", "x": 1}]), "'x' is not known"),
    "a field is missing": (lambda p: p.pop("scope"), "predicate: 'scope' is missing"),
    "many fields more": (lambda p: p.update({f"x{n}": 1 for n in range(50)}), "predicate: 'x0' is not known"),
    "a list for an object": (lambda p: p.update(plan=[]), "predicate.plan: list is no object"),
    "an object for a list": (lambda p: p.update(events={}), "predicate.events: dict is no list"),
    "a list for a dictionary": (lambda p: p["accounting"].update(evidenceHostByRole=[]), "list is no object"),
    "text for a number": (lambda p: p["events"][0].update(position="1"), "predicate.events.0.position: str is none of"),
    "true for a number": (lambda p: p["events"][0].update(position=True), "bool is none of int"),
    "null for text": (lambda p: p.update(checkpoint=None), "predicate.checkpoint: NoneType is none of str"),
    "another word": (lambda p: p.update(verdict="SURE"), "predicate.verdict: 'SURE' is none of"),
    "no word": (lambda p: p.update(verdict=[]), "predicate.verdict: list is none of"),
    "more nodes than a proof has": (lambda p: p["events"][0].update(inclusion=["00" * 32] * 65), "65 nodes are more"),
    "many runs": (lambda p: p.update(priorRuns=[{}] * (MAX_PARTS + 1)), f"more than {MAX_PARTS} parts"),
    "many parts of anything": (
        lambda p: p["findings"].append({"observed": [{"a": [0]}] * MAX_PARTS, **FINDING}),
        f"more than {MAX_PARTS} parts",
    ),
}
FINDING = {"code": "", "events": [], "expected": None, "severity": "note", "subject": ""}


@pytest.mark.parametrize("name", MISSHAPEN)
def test_the_first_place_that_has_not_the_form_ends_the_reading(
    name: str, sealed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validator, which would list every error with what it was given, does not see it."""
    monkeypatch.setattr(Statement, "model_validate_json", never)
    edit, said = MISSHAPEN[name]
    document = verify(edited(sealed, edit))
    assert (document.status, [problem.code for problem in document.problems]) == ("broken", ["format"])
    assert said in document.problems[0].detail
    assert len(document.problems[0].detail) < 200
    with pytest.raises(AssertionError, match="validated"):
        verify(sealed)


def test_large_events_and_plans_are_refused_at_the_first_place_too(
    sealed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 30_000

    def files(predicate: dict[str, Any]) -> None:
        event = envelope(predicate, 0)
        set_envelope(predicate, 0, body={**event["body"], "checkpoint_files": [{}] * many})

    def fields(predicate: dict[str, Any]) -> None:
        set_envelope(predicate, 0, body={**envelope(predicate, 0)["body"], **{f"k{n}": 1 for n in range(many)}})

    def old(predicate: dict[str, Any]) -> None:
        files(predicate)
        set_envelope(predicate, 0, type_version=0)

    def units(predicate: dict[str, Any]) -> None:
        plan = json.loads(predicate["plan"]["text"])
        plan["logical_state_units"] = [{}] * many
        predicate["plan"]["text"] = json.dumps(plan)

    told: list[object] = []
    monkeypatch.setattr("ledger.events._wrong_form", lambda *_: told.append("event"))
    for edit, said in (
        (files, "body.checkpoint_files.0: 'digest' is missing"),
        (fields, "body: 'k0' is not known"),
        (old, "has no upcast"),
        (units, "logical_state_units.0: 'id' is missing"),
    ):
        document = verify(edited(sealed, edit))
        assert document.status == "broken"
        assert said in document.problems[0].detail
    assert told == []


def test_a_large_event_and_a_large_plan_that_have_the_form_are_read(sealed: bytes) -> None:
    text = statement_of(sealed)["predicate"]["events"][0]["envelope"]
    value = json.loads(text)
    value["body"]["labels"] = {f"label{number}": "x" * 100 for number in range(2_000)}
    large = canonical.encode(value)
    assert len(large) > LARGE
    body = read_event(large).body
    assert isinstance(body, RunOpened)
    assert len(body.labels) == 2_000
    plan = json.loads(PLAN.data)
    plan["adapter_data"] = {"names": ["x" * 100] * 2_000}
    assert len(parse_plan(json.dumps(plan).encode()).data) > LARGE


def test_a_statement_that_lacks_nearly_all_is_refused_at_its_first_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Statement, "model_validate_json", never)
    (problem,) = verify(unfinished(1_000)).problems
    assert problem.detail == "statement has not its form: the whole: 'predicateType' is missing"


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, False),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), True),
        ('["' + "[" * 200 + '"]', False),
        ('["\\"' + "[" * 200 + '"]', False),
        ('["\\\\",' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "]", True),
        ("[" + "[]," * 200 + "[]]", False),
        ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), True),
    ],
)
def test_nesting_counts_brackets_outside_strings(text: str, deep: bool) -> None:
    if deep:
        with pytest.raises(StrictJsonError, match="nested deeper"):
            canonical.decode(text)
    else:
        canonical.decode(text)
