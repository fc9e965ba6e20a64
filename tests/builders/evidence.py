"""Evidence files taken apart and put together again: what a forger does, and what tests need for it."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import canonical
from ledger.checkpoints import format_checkpoint
from ledger.evidence_form import envelope_file, pre_authentication_encoding
from ledger.keys import key_id
from ledger.merkle import inclusion_proofs


def statement_of(data: bytes) -> dict[str, Any]:
    """The statement in a file, as JSON values."""
    value: dict[str, Any] = json.loads(base64.b64decode(json.loads(data)["payload"]))
    return value


def file_of(statement: dict[str, Any] | bytes, key: Ed25519PrivateKey | None = None) -> bytes:
    """A file around a statement (or around any payload bytes), signed when a key is given."""
    payload = statement if isinstance(statement, bytes) else canonical.encode(statement).encode("utf-8")
    signatures = [(key_id(key.public_key()), key.sign(pre_authentication_encoding(payload)))] if key else []
    return envelope_file(payload, signatures)


def edited(data: bytes, edit: Callable[[dict[str, Any]], Any], key: Ed25519PrivateKey | None = None) -> bytes:
    """The file after `edit` has changed a copy of its predicate in place, sealed again with `key`."""
    statement = copy.deepcopy(statement_of(data))
    edit(statement["predicate"])
    return file_of(statement, key)


def reproved(statement: dict[str, Any]) -> None:
    """Make a tree of its own for the events that a statement holds, as a forger without the ledger would.

    Positions are given anew from 0 in the order freezing, run; links and hashes inside the run, and the subjects, are made
    to fit; prior runs, which need places before the run, go.
    """
    predicate = statement["predicate"]
    predicate["priorRuns"] = []
    frozen = [predicate["planFrozen"]] if predicate["planFrozen"] else []
    previous = None
    for event in predicate["events"]:
        value = json.loads(event["envelope"])
        if previous is not None:
            value["previous"] = previous
        event["envelope"] = canonical.encode(value)
        previous = canonical.event_hash(event["envelope"])
    sealed = [*frozen, *predicate["events"]]
    leaves = [bytes.fromhex(canonical.event_hash(event["envelope"])) for event in sealed]
    root, proofs = inclusion_proofs(leaves, range(len(leaves)), len(leaves))
    for position, event in enumerate(sealed):
        event["position"] = position
        event["inclusion"] = [node.hex() for node in proofs[position]]
    last = predicate["events"][-1]["envelope"]
    digest = canonical.sha256_digest(last.encode("utf-8")).removeprefix("sha256:")
    statement["subject"][-1]["digest"] = {"eventHash": canonical.event_hash(last), "sha256": digest}
    origin = predicate["checkpoint"].split("\n")[0]
    predicate["checkpoint"] = format_checkpoint(origin, len(leaves), root)


def envelope(predicate: dict[str, Any], index: int) -> dict[str, Any]:
    """The envelope of one of the run's events, as JSON values."""
    value: dict[str, Any] = json.loads(predicate["events"][index]["envelope"])
    return value


def set_envelope(predicate: dict[str, Any], index: int, **fields: Any) -> None:
    """Replace top-level fields of an event's envelope; proofs and links are left as they were."""
    predicate["events"][index]["envelope"] = canonical.encode({**envelope(predicate, index), **fields})
