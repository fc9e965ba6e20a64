"""Ten thousand mutations of good evidence, verified with key and pin: none accepted, none crashes, each within 2 s.

Half of them leave the envelope's own form alone and change what is signed, so that the signature is what refuses them.
The same kinds of change are then sealed anew with the right key, or left unsigned, so that chain, proofs and pin have to.
"""

from __future__ import annotations

import base64
import copy
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger import canonical
from ledger.checkpoints import Checkpoint
from ledger.documents import VerificationDocument
from ledger.evidence import open_evidence, verify
from ledger.evidence_form import envelope_file
from tests.builders.evidence import envelope, file_of, set_envelope, statement_of
from tests.builders.judged import KEY, OTHER_KEY
from tests.zoo import evidence

PUBLIC = KEY.public_key()
SECONDS = 2.0
BYTES = 7_000
STATEMENTS = 3_500
RESEALED = 700

ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> evidence.Files:
    return evidence.files(tmp_path_factory.mktemp("mutations"))


@pytest.fixture(scope="module")
def pin(files: evidence.Files) -> Checkpoint:
    return open_evidence(files.good).checkpoint


def refused(data: bytes, slowest: list[float], **anchors: Any) -> VerificationDocument:
    """Verify, and hold to what every mutation is held to."""
    started = time.process_time()
    document = verify(data, **anchors)
    took = time.process_time() - started
    slowest[0] = max(slowest[0], took)
    assert took < SECONDS
    assert document.status != "valid", data[:200]
    return document


# --- changes to the bytes of the file -----------------------------------------------------------------------------


def flip_bit(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


def other_byte(data: bytes, dice: random.Random) -> bytes:
    """Another character of base64's own alphabet, so that the form still holds."""
    at = dice.randrange(len(data))
    return data[:at] + bytes([dice.choice(ALPHABET)]) + data[at + 1 :]


def cut(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data))
    return data[:start] + data[start + dice.choice((1, 2, 3, 4, 8, 400)) :]


def truncate(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def insert(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + bytes(dice.randrange(256) for _ in range(dice.choice((1, 2, 4)))) + data[at:]


def repeat(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data))
    length = dice.choice((1, 4, 64, 1024))
    return data[: start + length] + data[start:]


def near_the_signature(data: bytes, dice: random.Random) -> bytes:
    """The last 200 bytes hold key id and signature: every place there gets its share."""
    at = len(data) - 1 - dice.randrange(200)
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(7)]) + data[at + 1 :]


def pad_bits(data: bytes, dice: random.Random) -> bytes:
    """Spare bits of the signature's last base64 character, any of the 15 other values."""
    end = data.rindex(b'=="}')
    value = ALPHABET.index(data[end - 1])
    return data[: end - 1] + bytes([ALPHABET[value ^ dice.randrange(1, 16)]]) + data[end:]


ON_BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bit, other_byte, cut, truncate, insert, repeat, near_the_signature, pad_bits,
)  # fmt: skip


def test_changed_bytes_are_refused(files: evidence.Files, pin: Checkpoint) -> None:
    dice = random.Random(20261129)
    slowest, tried = [0.0], Counter[str]()
    while tried.total() < BYTES:
        mutate = ON_BYTES[tried.total() % len(ON_BYTES)]
        data = mutate(files.good, dice)
        if data == files.good:
            continue
        tried[mutate.__name__] += 1
        assert refused(data, slowest, public_key=PUBLIC, pin=pin).status == "broken"
    assert min(tried.values()) > BYTES // len(ON_BYTES) - 2, tried


# --- changes to the statement -------------------------------------------------------------------------------------


PLACES: list[tuple[Any, ...]] = []
"""The places of the good statement, the same for every mutation of it."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every scalar, list and object inside a JSON value."""
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in children:
        found += places(item, (*path, key))
    return found


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def other_value(value: Any, dice: random.Random) -> Any:
    """Another value, of the same type more often than not."""
    if isinstance(value, bool) or value is None or dice.random() < 0.15:
        return dice.choice([0, 1, -1, "x", "", None, [], {}, 2**53 - 1, True, 0.5])
    if isinstance(value, int):
        return value + dice.choice((-1, 1, 2, 1000, -value))
    if isinstance(value, float):
        return value / 2
    if isinstance(value, str) and value:
        index = dice.randrange(len(value))
        return value[:index] + dice.choice('0123456789abcdefxyzPAS \n"é') + value[index + 1 :]
    return dice.choice(["x", 0, None])


def change_something(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    path = dice.choice(places(statement) if "predicate" not in statement else PLACES)
    at(statement, path[:-1])[path[-1]] = other_value(at(statement, path), dice)


def drop_something(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    path = dice.choice(PLACES)
    del at(statement, path[:-1])[path[-1]]


def change_an_envelope(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    """Something inside an event changed, canonical as ever."""
    predicate = statement["predicate"]
    index = dice.randrange(len(predicate["events"]))
    value = envelope(predicate, index)
    change_something(value, dice, {})
    predicate["events"][index]["envelope"] = canonical.encode(value)


def reorder_keys(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    """An envelope's keys in another order, or one of them twice."""
    event = dice.choice(statement["predicate"]["events"])
    pairs = list(json.loads(event["envelope"]).items())
    if dice.random() < 0.5:
        dice.shuffle(pairs)
    else:
        pairs.insert(dice.randrange(len(pairs)), dice.choice(pairs))
    event["envelope"] = "{" + ",".join(f"{json.dumps(key)}:{canonical.encode(value)}" for key, value in pairs) + "}"


def swap_events(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    events = statement["predicate"]["events"]
    one, other = dice.sample(range(len(events)), 2)
    events[one], events[other] = events[other], events[one]


def drop_events(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    events = statement["predicate"]["events"]
    start = dice.randrange(len(events))
    del events[start : start + dice.choice((1, 1, 2, 5, 100))]


def repeat_event(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    events = statement["predicate"]["events"]
    events.insert(dice.randrange(len(events) + 1), copy.deepcopy(dice.choice(events)))


def renumber(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    """An event dropped and those after it renumbered, links left as they were."""
    predicate = statement["predicate"]
    start = dice.randrange(1, len(predicate["events"]))
    del predicate["events"][start]
    for index in range(start, len(predicate["events"])):
        set_envelope(predicate, index, sequence=index)


def from_the_other_run(statement: dict[str, Any], dice: random.Random, other: dict[str, Any]) -> None:
    """Any part of another run's evidence: its proof, plan, event, checkpoint, freezing."""
    mine, theirs = statement["predicate"], other["predicate"]
    index = dice.randrange(min(len(mine["events"]), len(theirs["events"])))
    kind = dice.randrange(6)
    if kind == 0:
        mine["events"][index]["inclusion"] = theirs["events"][index]["inclusion"]
    elif kind == 1:
        mine["events"][index] = theirs["events"][index]
    elif kind == 2:
        mine["events"][index]["envelope"] = theirs["events"][index]["envelope"]
    else:
        key = ("plan", "checkpoint", "planFrozen")[kind - 3]
        mine[key] = theirs[key]


def edit_a_proof(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    proof = dice.choice(statement["predicate"]["events"])["inclusion"]
    kind = dice.randrange(3)
    if kind == 0:
        proof.insert(dice.randrange(len(proof) + 1), dice.choice(proof))
    elif kind == 1:
        del proof[dice.randrange(len(proof))]
    else:
        place = dice.randrange(len(proof))
        digits = f"{int(proof[place], 16) ^ 1 << dice.randrange(256):064x}"
        proof[place] = digits


def edit_the_outcome(statement: dict[str, Any], dice: random.Random, _: dict[str, Any]) -> None:
    """What the judge concluded: verdict, assurance, findings, accounting, environment, scope."""
    predicate = statement["predicate"]
    key = dice.choice(("verdict", "assurance", "findings", "accounting", "environment", "scope"))
    if isinstance(predicate[key], dict):
        inner = dice.choice(places(predicate[key]))
        at(predicate[key], inner[:-1])[inner[-1]] = other_value(at(predicate[key], inner), dice)
    else:
        predicate[key] = dice.choice(["PASS", "FAIL", "INDETERMINATE", "declared", "content-verified", None, []])


ON_STATEMENTS: tuple[Callable[[dict[str, Any], random.Random, dict[str, Any]], None], ...] = (
    change_something, drop_something, change_an_envelope, reorder_keys, swap_events, drop_events, repeat_event, renumber,
    from_the_other_run, edit_a_proof, edit_the_outcome,
)  # fmt: skip


def mutated(count: int, good: bytes, other: bytes, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """`count` statements, each with one change, every kind of change in turn."""
    dice = random.Random(seed)
    original, foreign = statement_of(good), statement_of(other)
    text = json.dumps(original)
    PLACES[:] = places(original)
    made = 0
    while made < count:
        mutate = ON_STATEMENTS[made % len(ON_STATEMENTS)]
        statement = json.loads(text)
        mutate(statement, dice, foreign)
        if statement != original:
            made += 1
            yield mutate.__name__, statement


def test_changed_statements_under_the_old_another_or_no_signature_are_refused(
    files: evidence.Files, pin: Checkpoint
) -> None:
    slowest = [0.0]
    (signature,) = json.loads(files.good)["signatures"]
    for number, (name, statement) in enumerate(mutated(STATEMENTS, files.good, files.other, 1)):
        payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        if number % 3 == 0:
            data = file_of(payload, OTHER_KEY)
        elif number % 3 == 1:
            data = file_of(payload)
        else:
            data = envelope_file(payload, [(signature["keyid"], base64.b64decode(signature["sig"]))])
        document = refused(data, slowest, public_key=PUBLIC, pin=pin)
        assert (document.status, document.checks.signature) == ("broken", "failed"), name


FREE = ("priorRuns", "judgeVersion", "witnesses", "scope")
"""What only the signer vouches for: prior runs and which witnesses there were; and, under another judge version, what
that judge concluded."""


def only_the_signer_knows(statement: dict[str, Any], good: dict[str, Any]) -> bool:
    """The change lies where nothing but the signature (and a ledger) can tell."""
    changed = {key for key in good["predicate"] if statement["predicate"].get(key) != good["predicate"][key]}
    outer = {key for key in good if key != "predicate" and statement.get(key) != good[key]}
    return not outer and changed <= set(FREE)


@pytest.mark.parametrize("key", [KEY, None], ids=["sealed-anew", "unsigned"])
def test_changed_statements_are_refused_by_chain_proofs_and_judge(
    files: evidence.Files, pin: Checkpoint, key: Any
) -> None:
    """No signature stands in the way here: what is left are the checks themselves, and the pin."""
    slowest = [0.0]
    good = statement_of(files.good)
    excused = 0
    for name, statement in mutated(RESEALED, files.good, files.other, 2 if key else 3):
        started = time.process_time()
        document = verify(file_of(statement, key), public_key=PUBLIC if key else None, pin=pin)
        slowest[0] = max(slowest[0], time.process_time() - started)
        if document.status != "broken":
            assert only_the_signer_knows(statement, good), (name, document)
            excused += 1
    assert slowest[0] < SECONDS
    assert excused < RESEALED // 20


def test_there_are_at_least_ten_thousand() -> None:
    assert BYTES + STATEMENTS >= 10_000


def test_the_folder_of_the_files_is_left_alone(files: evidence.Files, tmp_path: Path) -> None:
    """Verifying reads bytes and nothing else."""
    before = sorted(path.name for path in files.ledger.parent.iterdir())
    verify(files.good, public_key=PUBLIC)
    assert sorted(path.name for path in files.ledger.parent.iterdir()) == before
