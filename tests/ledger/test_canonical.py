"""Canonical bytes: RFC 8785 vectors, what may never be recorded, strict parsing, digests."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import canonical
from ledger.canonical import MAX_SAFE_INTEGER, StrictJsonError
from ledger.errors import EventError, TallyError

VECTORS = Path(__file__).parents[2] / ".." / "shared" / "reference" / "jcs"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(-1e15, 1e15)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc_é😀\n", max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", ["arrays", "french", "structures", "unicode", "weird"])
def test_published_vectors(name: str) -> None:
    if not VECTORS.is_dir():
        pytest.skip("published RFC 8785 vectors are not beside this checkout")
    value = canonical.decode((VECTORS / "input" / f"{name}.json").read_bytes())
    expected = bytes.fromhex((VECTORS / "outhex" / f"{name}.txt").read_text())
    assert canonical.encode(value).encode() == expected


def test_published_vector_with_a_number_that_may_not_be_recorded() -> None:
    if not VECTORS.is_dir():
        pytest.skip("published RFC 8785 vectors are not beside this checkout")
    value = canonical.decode((VECTORS / "input" / "values.json").read_bytes())
    with pytest.raises(EventError, match=r"1e\+30 is an integer of magnitude 2\*\*53 or more"):
        canonical.encode(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "x"]}, '{"a":[true,null,"x"],"b":1}'),
        (1.0, "1"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (333333333.33333329, "333333333.3333333"),
        (MAX_SAFE_INTEGER, "9007199254740991"),
        (-MAX_SAFE_INTEGER, "-9007199254740991"),
        ("€\u000f\n'\"\\", '"€\\u000f\\n\'\\"\\\\"'),
        ({"\U0001f600": 1, "\ufb33": 2}, '{"😀":1,"\ufb33":2}'),  # UTF-16 order: D83D comes before FB33
        ("\\u0000", '"\\\\u0000"'),  # six characters, not a NUL
        ("1" * 20, '"' + "1" * 20 + '"'),
    ],
)
def test_encoding(value: object, text: str) -> None:
    assert canonical.encode(value) == text


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        2**53,
        -(2**53),
        2.0**53,
        [{"deep": [1e17]}],
        {"max": 1e300},
        "a\x00b",
        {"\x00": 1},
        [["\x00"]],
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        b"bytes",
        {"set": {1}},
        object(),
    ],
    ids=repr,
)
def test_what_may_never_be_recorded(value: object) -> None:
    with pytest.raises(EventError) as caught:
        canonical.encode(value)
    assert "\n" not in str(caught.value)


def test_endless_nesting_is_an_error_of_ours() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(EventError):
        canonical.encode(value)


@given(json_values)
def test_decoding_gives_back_what_was_encoded(value: object) -> None:
    text = canonical.encode(value)
    assert canonical.decode(text) == value
    assert canonical.encode(canonical.decode(text)) == text


NUMBERS = [
    "0", "-0", "1.0", "-1.0", "1.50", "1.5", "1e5", "1E5", "1.5e-7", "1e-7", "1e-07", "0.00001", "0.000001", "1e21", "100000.25",
    "9007199254740991", "9007199254740992", "-9007199254740992", "9007199254740992.5", "123456789012345.6", "5e-324", "0.1",
    "0.10000000000000000555", "1000000000000000.5", "4e0", "0e0", "0.0",
]  # fmt: skip


@settings(max_examples=400)
@given(
    value=json_values,
    numbers=st.lists(st.sampled_from(NUMBERS), max_size=2),
    form=st.sampled_from(["canonical", "escaped", "spaced", "unsorted", "indented"]),
)
def test_a_text_is_of_canonical_form_exactly_where_written_again_it_is_the_same(
    value: object, numbers: list[str], form: str
) -> None:
    held = {"b": value, "a": "7,1.0]:1e5", "z": [f"@{at}" for at in range(len(numbers))]}
    if form == "canonical":
        text = canonical.encode(held)
    else:
        separators = (", ", ": ") if form == "spaced" else (",", ":")
        text = json.dumps(held, sort_keys=form != "unsorted", ensure_ascii=form == "escaped", separators=separators,
                          indent=1 if form == "indented" else None)  # fmt: skip
    for at, number in enumerate(numbers):
        text = text.replace(f'"@{at}"', number)

    def slowly() -> bool:
        try:
            return canonical.encode(canonical.decode(text)) == text
        except TallyError:
            return False

    try:
        canonical.decode_canonical(text)
        found = True
    except TallyError:
        found = False
    assert found == slowly()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_of_canonical_form_exactly_as_it_is_written(number: str) -> None:
    for text in (f'{{"a":{number}}}', f'{{"a":[{number},1]}}', f'{{"a":[1,{number}]}}', f"[{number}]", number):
        value = canonical.decode(text)
        try:
            same = canonical.encode(value) == text
        except EventError as error:
            with pytest.raises(EventError, match=re.escape(error.message)):
                canonical.is_form(text, value)
        else:
            assert canonical.is_form(text, value) == same, text


@given(st.dictionaries(st.text("abcdef", min_size=1), st.integers(-9, 9)))
def test_key_order_does_not_matter(value: dict[str, int]) -> None:
    assert canonical.encode(dict(reversed(list(value.items())))) == canonical.encode(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not JSON"),
        (b"{} x", "is not JSON"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"\xff", "is not UTF-8"),
        (b'{"a":1,"a":1}', "'a' occurs twice"),
        (b'{"o":{"a":1,"b":2,"a":3}}', "'a' occurs twice"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[-Infinity]", "Infinity is not JSON"),
        (b'{"a":1e400}', "1e400 is too large"),
        (b"[-1e400]", "too large"),
        (b"1" * 5000, "not usable JSON"),
        (b'"\\u0000"', "U+0000"),
        (b'{"\\u0000":1}', "U+0000"),
        (b'"a\x00"', "is not JSON"),
        (b'"\\ud800"', "lone surrogate"),
        ('"\ud800"', "lone surrogate"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "nested deeper than 64"),
    ],
)
def test_ambiguous_or_garbled_text_is_refused_in_one_line(text: str | bytes, message: str) -> None:
    with pytest.raises(StrictJsonError) as caught:
        canonical.decode(text, what="FILE")
    assert message in str(caught.value)
    assert str(caught.value).startswith("FILE")
    assert "\n" not in str(caught.value)


def test_brackets_inside_strings_are_no_nesting() -> None:
    text = json.dumps({"a": "[" * 500 + '"\\' + "{" * 500, "b": [[1]]})
    assert canonical.decode(text)["b"] == [[1]]


def test_nesting_up_to_the_limit_is_read() -> None:
    value = canonical.decode("[" * 64 + "]" * 64)
    depth = 0
    while value:
        (value,) = value
        depth += 1
    assert depth == 63


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_any_input_is_read_or_refused_with_an_error_of_ours(data: str | bytes) -> None:
    refusal = ""
    try:
        value = canonical.decode(data)
    except TallyError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert refusal or json.loads(data) == value


def test_event_hash_is_the_leaf_hash() -> None:
    assert canonical.event_hash("{}") == hashlib.sha256(b"\x00{}").hexdigest()
    assert canonical.event_hash(b"{}") == canonical.event_hash("{}")


def test_r1_digest_is_over_sorted_ascii_with_a_final_newline_and_without_the_digest() -> None:
    document = {"schema": "s", "b": "é", "a": [1, {"digest": "kept"}]}
    bytes_ = b'{"a":[1,{"digest":"kept"}],"b":"\\u00e9","schema":"s"}\n'
    expected = "sha256:" + hashlib.sha256(bytes_).hexdigest()
    assert canonical.r1_digest(document) == expected
    assert canonical.r1_digest({**document, "digest": "anything"}) == expected


def test_r1_file_form() -> None:
    assert canonical.r1_file({"b": "é", "a": [1]}) == b'{\n  "a": [\n    1\n  ],\n  "b": "\\u00e9"\n}\n'
