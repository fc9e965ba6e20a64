"""Strict reading in bounded time: inputs made to be slow or large, and the depth of JSON."""

from __future__ import annotations

import time

import pytest

from ledger import canonical
from ledger.canonical import MAX_DEPTH, StrictJsonError
from ledger.errors import EvidenceBroken
from ledger.evidence import verify
from ledger.evidence_form import MAX_FILE_BYTES, MAX_STRUCTURE, envelope_file
from ledger.evidence_open import open_envelope, read_statement

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
