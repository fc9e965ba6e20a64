"""Verify an evidence file without tallystick: with the standard library and `cryptography` alone, by docs/evidence.md.

    python verify_evidence.py EVIDENCE.json [--key NAME.pub] [--pin PIN]

Checks form, signature, chain, plan, proofs, documents and pin. It does not judge: the verdict is printed as stated.
Exit 0 when everything holds, 1 when something does not (said on standard error).
"""

import argparse
import base64
import hashlib
import json
import re
import sys
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key

TYPE = "application/vnd.in-toto+json"
FILE = re.compile(
    r'\{"payload":"([A-Za-z0-9+/]*={0,2})","payloadType":"application/vnd\.in-toto\+json","signatures":'
    r'\[(?:\{"keyid":"([0-9a-f]{64})","sig":"([A-Za-z0-9+/]{86}==)"\})?\]\}\n',
    re.ASCII,
)


class Broken(Exception):
    """Something in the file does not hold."""


def hold(condition, what):
    """Raise Broken unless the condition holds."""
    if not condition:
        raise Broken(what)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def strict(text, what):
    """Parse JSON; no key twice, no NaN."""

    def pairs(items):
        hold(len(dict(items)) == len(items), f"{what}: a key occurs twice")
        return dict(items)

    def constant(name):
        raise Broken(f"{what}: {name} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except ValueError as error:
        raise Broken(f"{what}: {error}") from error


def base64_bytes(text, what):
    data = base64.b64decode(text, validate=True)
    hold(base64.b64encode(data).decode() == text, f"{what}: base64 is not canonical")
    return data


def open_envelope(data, key):
    """The statement in the file; its signature verified first when a key is given."""
    match = FILE.fullmatch(data.decode("utf-8", "replace"))
    hold(match, "the file is not a DSSE envelope in its exact form")
    payload = base64_bytes(match[1], "payload")
    if key is not None:
        hold(match[2], "the file is not signed")
        public = key.public_bytes_raw().hex()
        text = f'{{"keytype":"ed25519","keyval":{{"public":"{public}"}},"scheme":"ed25519"}}'
        hold(match[2] == sha256(text.encode()), "signed by another key")
        signed = f"DSSEv1 {len(TYPE)} {TYPE} {len(payload)} ".encode() + payload
        try:
            key.verify(base64_bytes(match[3], "sig"), signed)
        except InvalidSignature as error:
            raise Broken("the signature does not hold") from error
    return strict(payload.decode("utf-8"), "statement")


def event_hash(envelope):
    return sha256(b"\x00" + envelope.encode("utf-8"))


def chain(run_id, events, first, what):
    """Check one stream; returns its events, parsed."""
    previous, parsed = first, []
    for sequence, event in enumerate(events):
        value = strict(event["envelope"], what)
        where = f"{what}, sequence {sequence}"
        hold(value["run_id"] == run_id, f"{where}: of another run")
        hold(value["sequence"] == sequence, f"{where}: has sequence {value['sequence']}")
        hold(value["previous"] == previous, f"{where}: not linked to the event before it")
        previous = event_hash(event["envelope"])
        parsed.append(value)
    hold(parsed, f"{what}: no events")
    return parsed


def root_of(leaf, index, size, siblings):
    """The root that an inclusion proof leads to (RFC 9162, 2.1.3.2)."""
    hold(0 <= index < size, "a position lies outside the tree")
    node, last = leaf, size - 1
    for sibling in siblings:
        hold(last > 0, "an inclusion proof is too long")
        if index % 2 == 1 or index == last:
            node = hashlib.sha256(b"\x01" + sibling + node).digest()
            while index % 2 == 0 and index > 0:
                index, last = index >> 1, last >> 1
        else:
            node = hashlib.sha256(b"\x01" + node + sibling).digest()
        index, last = index >> 1, last >> 1
    hold(last == 0, "an inclusion proof is too short")
    return node


def checkpoint(text):
    """(origin, size, root) from the three lines; a signed note's further lines are passed over."""
    origin, size, root = text.split("\n\n")[0].rstrip("\n").split("\n")
    return origin, int(size), base64_bytes(root, "root")


def plan_digest(text):
    plan = strict(text, "plan")
    plan.pop("digest", None)
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + sha256(text.encode() + b"\n")


def verify(data, key=None, pin=None):
    """Check everything but the judgement; returns the statement. Raises Broken."""
    statement = open_envelope(data, key)
    hold(statement["_type"] == "https://in-toto.io/Statement/v1", "not an in-toto Statement v1")
    hold(statement["predicateType"] == "urn:tallystick:evidence:1", "another kind of predicate")
    predicate = statement["predicate"]
    hold(predicate["format"] == "tally.evidence/1", "another format")

    plan = predicate["plan"]
    hold("sha256:" + sha256(plan["text"].encode()) == plan["blobDigest"], "the plan's bytes have another digest")
    hold(plan_digest(plan["text"]) == plan["digest"], "the plan has another digest")

    run_id, events = predicate["runId"], predicate["events"]
    opened, *rest = chain(run_id, events, plan["digest"].removeprefix("sha256:"), "run")
    hold(opened["type"] == "run.opened", "the run does not begin with run.opened")
    hold(opened["body"]["plan"]["blob_digest"] == plan["blobDigest"], "run.opened names another plan")
    hold(opened["body"]["plan"]["computed_digest"] == plan["digest"], "run.opened names another plan digest")
    last = events[-1]["envelope"]
    hold(
        statement["subject"][0]["digest"]
        == {"planDigest": plan["digest"].removeprefix("sha256:"), "sha256": sha256(plan["text"].encode())},
        "the first subject is not the plan",
    )
    hold(
        statement["subject"][-1]["digest"] == {"eventHash": event_hash(last), "sha256": sha256(last.encode())},
        "the last subject is not the last event",
    )

    sealed = list(events)
    frozen, cited = predicate["planFrozen"], opened["body"]["frozen"]
    hold((frozen is None) == (cited is None), "the freezing cited and the one carried do not agree")
    if frozen is not None:
        hold(event_hash(frozen["envelope"]) == cited["hash"], "the freezing carried is not the one cited")
        sealed.append(frozen)
    streams = [[opened, *rest]]
    for witness in predicate["witnesses"]:
        first = strict(witness["events"][0]["envelope"], "witness")
        hold(first["body"]["witness_of"] == run_id, "a witness watched another run")
        bound = first["body"]["plan"]["computed_digest"].removeprefix("sha256:") if first["body"]["plan"] else "0" * 64
        streams.append(chain(witness["runId"], witness["events"], bound, "witness"))
        sealed += witness["events"]

    origin, size, root = checkpoint(predicate["checkpoint"])
    hold(events[-1]["position"] == size - 1, "the run's last event is not the tree's last leaf")
    hold(len({event["position"] for event in sealed}) == len(sealed), "two events at one position")
    for event in sealed:
        leaf = bytes.fromhex(event_hash(event["envelope"]))
        siblings = [bytes.fromhex(node) for node in event["inclusion"]]
        found = root_of(leaf, event["position"], size, siblings)
        hold(found == root, f"no proof that the event at position {event['position']} is in the tree")

    listed = {blob["digest"] for blob in predicate["blobs"]} | {plan["blobDigest"]}
    for blob in predicate["blobs"]:
        if blob["data"] is not None:
            digest = "sha256:" + sha256(base64_bytes(blob["data"], "document"))
            hold(digest == blob["digest"], f"document {blob['digest']} has other bytes")
    for event in (event for stream in streams for event in stream):
        if event["type"] == "materialization.observed" and event["body"]["tensors_blob"]:
            hold(event["body"]["tensors_blob"] in listed, "a document that an event refers to is not listed")

    if pin is not None:
        pinned_origin, pinned_size, pinned_root = checkpoint(pin)
        hold(pinned_origin == origin, "the pin is of another ledger")
        hold(
            pinned_size == size,
            f"the pin is of {pinned_size} events, the file of {size}: nothing here lays the one against the other;"
            " `tally verify EVIDENCE.json --pin PIN --ledger LEDGER` does",
        )
        hold(pinned_root == root, "the pin has another root: the ledger was rewritten")
    return statement


def main():
    parser = argparse.ArgumentParser(description="Verify an evidence file without tallystick.")
    parser.add_argument("evidence")
    parser.add_argument("--key")
    parser.add_argument("--pin")
    options = parser.parse_args()
    key = pin = None
    try:
        if options.key:
            key = load_pem_public_key(Path(options.key).read_bytes())
        if options.pin:
            pin = Path(options.pin).read_bytes().decode("utf-8")
        statement = verify(Path(options.evidence).read_bytes(), key, pin)
    except (Broken, OSError, KeyError, IndexError, TypeError, ValueError) as error:
        sys.stderr.write(f"BROKEN: {error}\n")
        return 1
    predicate = statement["predicate"]
    lines = [
        "signature: " + ("verified" if key else "NOT AUTHENTICATED (no --key)"),
        "pin: " + ("holds" if pin else "not checked (no --pin)"),
        f"run {predicate['runId']}: {len(predicate['events'])} events, chain and proofs hold",
        f"attempts before this one, by the signer's word: {len(predicate['priorRuns'])}",
        f"verdict as stated, not judged again here: {predicate['verdict']} ({predicate['assurance']})",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
