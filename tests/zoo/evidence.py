"""Bad evidence: each forgery as a function on good files, with the problem that it must be named as.

Those of the form are bytes that no program of ours writes. The others are statements that do not hold together, sealed
with the right key, so that nothing but the checks themselves stands in their way.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger import canonical
from ledger.bodies import MaterializationObserved
from ledger.checkpoints import format_checkpoint, parse_checkpoint
from ledger.export import export_run
from ledger.recording import ListLedger
from ledger.store import Store
from tests.builders.evidence import envelope, file_of, set_envelope, statement_of
from tests.builders.judged import (
    KEY,
    OTHER_KEY,
    PLAN,
    TENSORS,
    add_run,
    add_verdict,
    add_witness,
    fill,
    run_bodies,
    run_id,
    stored,
)
from tests.builders.runs import edited_plan, with_values

OTHER_PLAN = edited_plan(PLAN, lambda document: document.update(plan_version="other"))


@dataclass(frozen=True)
class Files:
    """Good evidence of one ledger: `good` with prior runs, a witness and an attached document; `other` of another plan."""

    good: bytes
    other: bytes
    ledger: Path


def files(folder: Path) -> Files:
    """Make the good files, always the same but for the ledger's random origin."""
    digest = canonical.sha256_digest(TENSORS)
    bodies = [
        with_values(body, {"tensors_blob": digest}) if isinstance(body, MaterializationObserved) else body
        for body in run_bodies(challenge="nonce")
    ]
    contents = ListLedger()
    add_run(contents, 1, OTHER_PLAN, bodies=run_bodies(OTHER_PLAN))
    add_run(contents, 2, bodies=bodies, verdict=False)
    add_witness(contents, 3, run_id(2))
    add_verdict(contents, run_id(2))
    path = stored(folder / "tally.db", contents, (PLAN, OTHER_PLAN))
    with Store.open(path, write=True) as store:
        fill(store, contents)
        store.put_blob(TENSORS, "application/json")
    with Store.open(path) as store:
        return Files(export_run(store, run_id(2), KEY, attach=True), export_run(store, run_id(1), KEY), path)


# --- the form -----------------------------------------------------------------------------------------------------


def outer(data: bytes, edit: Callable[[dict[str, Any]], Any]) -> bytes:
    """The file with its envelope changed, canonical again; the payload and its signature stay."""
    value = json.loads(data)
    edit(value)
    return canonical.encode(value).encode() + b"\n"


def payload(data: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """The file around changed payload bytes, signed by the right key."""
    return file_of(edit(base64.b64decode(json.loads(data)["payload"])), KEY)


def pad_bits(data: bytes) -> bytes:
    """The signature's base64 with one of its four spare bits set: it decodes to the same 64 bytes."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    text = json.loads(data)["signatures"][0]["sig"]
    other = text[:85] + alphabet[alphabet.index(text[85]) ^ 1] + "=="
    assert base64.b64decode(other) == base64.b64decode(text), "the spare bits are what is changed"
    return data.replace(text.encode(), other.encode())


FORM: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[:-40],
    "no-newline": lambda data: data[:-1],
    "two-newlines": lambda data: data + b"\n",
    "carriage-return": lambda data: data[:-1] + b"\r\n",
    "trailing-garbage": lambda data: data + b"{}\n",
    "leading-blank": lambda data: b" " + data,
    "byte-order-mark": lambda data: b"\xef\xbb\xbf" + data,
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "not-json": lambda data: b"<evidence/>\n",
    "another-json": lambda data: b"[]\n",
    "null": lambda data: b"null\n",
    "nan": lambda data: b"NaN\n",
    "deep": lambda data: b"[" * 100_000 + b"]" * 100_000,
    "deep-payload": lambda data: payload(data, lambda _: b"[" * 100_000 + b"]" * 100_000),
    "wide-payload": lambda data: payload(data, lambda _: b"[" + b"[]," * 2_000_000 + b"[]]"),
    "unknown-outer-field": lambda data: outer(data, lambda value: value.update(comment="x")),
    "outer-field-missing": lambda data: outer(data, lambda value: value.pop("signatures")),
    "outer-key-twice": lambda data: data.replace(b'{"payload":', b'{"payload":"AAAA","payload":', 1),
    "outer-keys-reordered": lambda data: json.dumps(dict(reversed(json.loads(data).items()))).encode() + b"\n",
    "blanks": lambda data: json.dumps(json.loads(data)).encode() + b"\n",
    "wrong-payload-type": lambda data: outer(data, lambda value: value.update(payloadType="application/json")),
    "payload-is-no-string": lambda data: outer(data, lambda value: value.update(payload=[value["payload"]])),
    "payload-not-base64": lambda data: data.replace(b'"payload":"', b'"payload":"!', 1),
    "payload-url-alphabet": lambda data: payload(data, lambda raw: raw).replace(b"+", b"-").replace(b"/", b"_"),
    "two-signatures": lambda data: outer(data, lambda value: value.update(signatures=value["signatures"] * 2)),
    "signature-with-more": lambda data: outer(data, lambda value: value["signatures"][0].update(cert="x")),
    "signature-without-keyid": lambda data: outer(data, lambda value: value["signatures"][0].pop("keyid")),
    "signature-cut": lambda data: outer(data, lambda value: value["signatures"][0].update(sig="AAAA")),
    "keyid-in-capitals": lambda data: outer(
        data, lambda value: value["signatures"][0].update(keyid=value["signatures"][0]["keyid"].upper())
    ),
    "pad-bits": pad_bits,
    "statement-key-twice": lambda data: payload(
        data, lambda raw: raw.replace(b'{"_type":', b'{"_type":"x","_type":', 1)
    ),
    "statement-blanks": lambda data: payload(data, lambda raw: raw.replace(b'"_type":', b'"_type": ', 1)),
    "statement-nan": lambda data: payload(data, lambda raw: raw.replace(b'"priorRuns":', b'"x":NaN,"priorRuns":', 1)),
    "statement-odd-number": lambda data: payload(data, lambda raw: raw.replace(b'"value":0}', b'"value":0.0}', 1)),
    "statement-escapes": lambda data: payload(data, lambda raw: raw.replace(b'"PASS"', b'"PA\\u0053S"', 1)),
    "statement-not-utf8": lambda data: payload(data, lambda raw: raw.replace(b"node-a", b"node-\xff", 1)),
    "statement-trailing": lambda data: payload(data, lambda raw: raw + b" "),
    "statement-is-a-list": lambda data: payload(data, lambda raw: b"[" + raw + b"]"),
}


def _statement(edit: Callable[[dict[str, Any]], Any]) -> Callable[[Files], bytes]:
    """A forgery that edits the whole statement of the good file, signed by the right key."""

    def forge(given: Files) -> bytes:
        statement = statement_of(given.good)
        edit(statement)
        return file_of(statement, KEY)

    return forge


def _predicate(edit: Callable[[dict[str, Any]], Any]) -> Callable[[Files], bytes]:
    return _statement(lambda statement: edit(statement["predicate"]))


def _with_other(edit: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[Files], bytes]:
    """A forgery that takes something from the other run's evidence."""

    def forge(given: Files) -> bytes:
        statement, other = statement_of(given.good), statement_of(given.other)
        edit(statement["predicate"], other["predicate"])
        return file_of(statement, KEY)

    return forge


def _swap(events: list[Any], one: int, other: int) -> None:
    events[one], events[other] = events[other], events[one]


def _checkpoint(predicate: dict[str, Any], **changes: Any) -> None:
    found = parse_checkpoint(predicate["checkpoint"])
    values = {"origin": found.origin, "size": found.size, "root": found.root, **changes}
    predicate["checkpoint"] = format_checkpoint(**values)


def _duplicate_key(predicate: dict[str, Any]) -> None:
    event = predicate["events"][3]
    event["envelope"] = event["envelope"].replace('"node_id":', '"node_id":"x","node_id":')


def _blanks(predicate: dict[str, Any]) -> None:
    event = predicate["events"][3]
    event["envelope"] = event["envelope"].replace('"v":1', '"v": 1')


def _edited_blob(predicate: dict[str, Any]) -> None:
    predicate["blobs"][0]["data"] = base64.b64encode(TENSORS + b" ").decode()


def _prior_after(predicate: dict[str, Any]) -> None:
    predicate["priorRuns"][0]["position"] = predicate["events"][1]["position"]


HELD: dict[str, tuple[Callable[[Files], bytes], str]] = {
    "event-dropped": (_predicate(lambda p: p["events"].pop(3)), "gap"),
    "first-event-dropped": (_predicate(lambda p: p["events"].pop(0)), "gap"),
    "tail-dropped": (_predicate(lambda p: p["events"].pop()), "tail"),
    "events-empty": (_predicate(lambda p: p["events"].clear()), "format"),
    "event-repeated": (_predicate(lambda p: p["events"].insert(3, p["events"][3])), "gap"),
    "events-swapped": (_predicate(lambda p: _swap(p["events"], 3, 4)), "gap"),
    "event-edited": (_predicate(lambda p: set_envelope(p, 3, node_id="node-b")), "linkage"),
    "last-event-edited": (_predicate(lambda p: set_envelope(p, -1, node_id="node-b")), "proof"),
    "event-of-another-run": (_with_other(lambda p, o: p["events"].__setitem__(3, o["events"][3])), "content"),
    "all-events-of-another-run": (_with_other(lambda p, o: p.update(events=o["events"])), "content"),
    "unknown-type": (_predicate(lambda p: set_envelope(p, 3, type="materialization.wished")), "unknown-type"),
    "newer-type-version": (_predicate(lambda p: set_envelope(p, 3, type_version=99)), "unknown-type"),
    "body-of-wrong-form": (_predicate(lambda p: set_envelope(p, 3, body={"x": 1})), "content"),
    "key-twice-in-an-envelope": (_predicate(_duplicate_key), "content"),
    "blanks-in-an-envelope": (_predicate(_blanks), "content"),
    "envelope-not-json": (_predicate(lambda p: p["events"][3].update(envelope="x")), "content"),
    "envelope-is-a-list": (_predicate(lambda p: p["events"][3].update(envelope="[]")), "content"),
    "run-id-edited": (_predicate(lambda p: p.update(runId=run_id(9))), "content"),
    "position-edited": (
        _predicate(lambda p: p["events"][3].update(position=p["events"][3]["position"] + 1)),
        "linkage",
    ),
    "first-position-edited": (_predicate(lambda p: p["events"][0].update(position=2)), "proof"),
    "position-negative": (_predicate(lambda p: p["events"][0].update(position=-1)), "linkage"),
    "position-outside": (_predicate(lambda p: p["events"][-1].update(position=10**6)), "proof"),
    "proof-node-edited": (_predicate(lambda p: p["events"][3]["inclusion"].__setitem__(0, "0" * 64)), "proof"),
    "proof-node-dropped": (_predicate(lambda p: p["events"][3]["inclusion"].pop()), "proof"),
    "proof-node-not-hex": (_predicate(lambda p: p["events"][3]["inclusion"].__setitem__(0, "x")), "proof"),
    "proof-of-another-event": (
        _predicate(lambda p: p["events"][3].update(inclusion=p["events"][5]["inclusion"])),
        "proof",
    ),
    "proof-of-another-run": (
        _with_other(lambda p, o: p["events"][3].update(inclusion=o["events"][3]["inclusion"])),
        "proof",
    ),
    "checkpoint-of-another-run": (_with_other(lambda p, o: p.update(checkpoint=o["checkpoint"])), "proof"),
    "checkpoint-root-edited": (_predicate(lambda p: _checkpoint(p, root=b"x" * 32)), "proof"),
    "checkpoint-size-edited": (_predicate(lambda p: _checkpoint(p, size=10**6)), "tail"),
    "checkpoint-garbled": (_predicate(lambda p: p.update(checkpoint="x")), "format"),
    "plan-of-another-run": (_with_other(lambda p, o: p.update(plan=o["plan"])), "linkage"),
    "plan-text-edited": (_predicate(lambda p: p["plan"].update(text=p["plan"]["text"] + "\n")), "content"),
    "plan-digest-edited": (_predicate(lambda p: p["plan"].update(digest="sha256:" + "0" * 64)), "content"),
    "plan-is-none": (_predicate(lambda p: p["plan"].update(text="{}")), "format"),
    "freezing-dropped": (_predicate(lambda p: p.update(planFrozen=None)), "proof"),
    "freezing-of-another-plan": (_with_other(lambda p, o: p.update(planFrozen=o["planFrozen"])), "linkage"),
    "freezing-is-an-event-of-the-run": (_predicate(lambda p: p.update(planFrozen=p["events"][1])), "linkage"),
    "witness-event-dropped": (_predicate(lambda p: p["witnesses"][0]["events"].pop(0)), "gap"),
    "witness-twice": (_predicate(lambda p: p["witnesses"].append(p["witnesses"][0])), "format"),
    "witness-of-nothing": (_predicate(lambda p: p["witnesses"][0]["events"].clear()), "content"),
    "witness-of-another-run": (
        _with_other(lambda p, o: p["witnesses"].append({"runId": o["runId"], "events": o["events"]})),
        "content",
    ),
    "subject-edited": (_statement(lambda s: s["subject"][0]["digest"].update(sha256="0" * 64)), "content"),
    "subject-added": (
        _statement(lambda s: s["subject"].append({"name": "x", "digest": {"sha256": "0" * 64}})),
        "content",
    ),
    "subjects-dropped": (_statement(lambda s: s["subject"].clear()), "content"),
    "blob-edited": (_predicate(_edited_blob), "blob-altered"),
    "blob-not-base64": (_predicate(lambda p: p["blobs"][0].update(data="!")), "format"),
    "blob-dropped": (_predicate(lambda p: p["blobs"].clear()), "blob-missing"),
    "blob-twice": (_predicate(lambda p: p["blobs"].append(p["blobs"][0])), "format"),
    "blob-nobody-asked-for": (
        _predicate(lambda p: p["blobs"].append({"digest": "sha256:" + "f" * 64, "data": None})),
        "format",
    ),
    "prior-run-after": (_predicate(_prior_after), "format"),
    "prior-run-twice": (_predicate(lambda p: p["priorRuns"].append(p["priorRuns"][0])), "format"),
    "verdict-edited": (_predicate(lambda p: p.update(verdict="FAIL")), "judge"),
    "assurance-edited": (_predicate(lambda p: p.update(assurance="content-verified")), "judge"),
    "environment-dropped": (_predicate(lambda p: p.update(environment=None)), "judge"),
    "scope-edited": (_predicate(lambda p: p["scope"]["doesNotProve"].clear()), "judge"),
    "unknown-field": (_predicate(lambda p: p.update(comment="x")), "format"),
    "field-dropped": (_predicate(lambda p: p.pop("priorRuns")), "format"),
    "field-of-another-type": (_predicate(lambda p: p["events"][0].update(position="1")), "format"),
    "field-in-snake-case": (_predicate(lambda p: p.update(run_id=p.pop("runId"))), "format"),
    "newer-format": (_predicate(lambda p: p.update(format="tally.evidence/2")), "format"),
    "other-predicate": (_statement(lambda s: s.update(predicateType="https://slsa.dev/provenance/v1")), "format"),
    "other-statement": (_statement(lambda s: s.update(_type="https://in-toto.io/Statement/v0.1")), "format"),
    "signed-by-another": (lambda given: file_of(statement_of(given.good), OTHER_KEY), "signature"),
    "unsigned": (lambda given: file_of(statement_of(given.good)), "signature"),
}
"""Name -> (forgery, code of the first problem). All but the last two are signed by the right key."""


def first_envelope(data: bytes) -> dict[str, Any]:
    """run.opened of a file, for tests that look at it."""
    return envelope(statement_of(data)["predicate"], 0)
