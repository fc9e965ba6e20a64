"""Canonical JSON bytes (RFC 8785), digests over them, and strict parsing.

Two serialisations live here, and no third: RFC 8785 for everything this project writes into a ledger or evidence, and
the published R1 rule (`r1_digest`) for plan digests. Parsing refuses what two readers could read differently.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

import rfc8785

from ledger.errors import EventError, TallyError

MAX_SAFE_INTEGER = 2**53 - 1
MAX_DEPTH = 64

LEAF_PREFIX = b"\x00"
"""RFC 9162 section 2.1.1: a leaf hash is SHA-256(0x00 || entry). An event's hash is that leaf hash."""
_LEAF_BEGINNING = LEAF_PREFIX.decode("ascii")


_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
"""A string (an unended one runs to the end of the text, so that the search stays linear) or one bracket."""


class StrictJsonError(TallyError):
    """JSON that is malformed or that two readers could read differently."""


def encode(value: Any) -> str:
    """The RFC 8785 text of `value`.

    Raises EventError for what must never be recorded: NaN, infinities, integers of magnitude 2**53 or more (floats that
    large are integers too, and would be read back as such), lone surrogates, U+0000, and anything that is not JSON.
    """
    try:
        text = rfc8785.dumps(value).decode("utf-8")
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise EventError(f"value has no canonical JSON form: {error}") from error
    if "\\u0000" in text and _holds_nul(value):
        raise EventError("value has no canonical JSON form here: a string holds U+0000, which databases cut or refuse")
    if ("e+" in text or isinstance(value, float) or _SIXTEEN_DIGITS.search(text)) and (
        large := _large_float(value)
    ) is not None:
        raise EventError(f"value has no canonical JSON form here: {large} is an integer of magnitude 2**53 or more")
    return text


_SIXTEEN_DIGITS = re.compile(r"[:,\[]-?[1-9][0-9]{15}")
"""Inside a value, a number of magnitude 2**53 reads so, or with an exponent: a cheap sieve before looking closely."""


def _large_float(value: Any) -> float | None:
    """A float of magnitude 2**53 or more somewhere in the value, or None."""
    if isinstance(value, float):
        return value if abs(value) > MAX_SAFE_INTEGER else None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((large for item in items if (large := _large_float(item)) is not None), None)


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(_holds_nul(key) or _holds_nul(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(_holds_nul(item) for item in value)
    return False


def decode_canonical(text: str, *, what: str = "JSON") -> Any:
    """The value of a text that must be in RFC 8785 form.

    Raises StrictJsonError as `decode` does, and EventError for another form or for what may never be recorded.
    """
    value = decode(text, what=what)
    if not is_form(text, value):
        raise EventError(f"{what} is not in canonical form (RFC 8785)")
    return value


def is_form(text: str, value: Any) -> bool:
    """Whether `text` is the RFC 8785 form of a value such as `decode` gives.

    Raises EventError as `encode` does. Of ASCII and plain numbers the standard library writes the same form, many times
    faster: only what is not the same there, or not plain, is written by the rules.
    """
    plain = (
        isinstance(value, dict)
        and text.isascii()
        and "\\u0000" not in text
        and (_ODD_NUMBER.search(text) is None or not _holds_odd_number(value))
    )
    return (plain and _compact(value) == text) or encode(value) == text


_ODD_NUMBER = re.compile(r"[:,\[](?<![0-9A-Za-z]:)-?(?:[0-9]{16}|[0-9]+(?:\.[0-9]+)?[eE]|[0-9]+\.0*[,\]}])")
"""Inside a value, a number that two writers could write differently reads so: of magnitude 2**53, with an exponent, or a
fraction of zero. Some text reads so too."""
_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def _holds_odd_number(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_odd_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) or (isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER)


def printable(text: str) -> str:
    """The text with everything that is no printable character spelt out, so that an error that quotes it is one line."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def decode(text: str | bytes, *, what: str = "JSON") -> Any:
    """Parse JSON, refusing duplicate keys, NaN and infinities, U+0000, lone surrogates, trailing text and deep nesting.

    Raises StrictJsonError naming `what` was being read.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="strict")
        _refuse_depth(text, what)
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except StrictJsonError as error:
        raise StrictJsonError(f"{what}: {error.message}") from None
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise StrictJsonError(
            f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except ValueError as error:  # an integer literal longer than Python's conversion limit
        raise StrictJsonError(f"{what} is not usable JSON: {error}") from error
    if "\\u" in text or not text.isascii():
        _refuse_text(value, what)
    return value


def _refuse_depth(text: str, what: str) -> None:
    """Refuse nesting beyond MAX_DEPTH before a recursive parser meets it. Brackets inside strings do not count."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        token = match[0]
        if token in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise StrictJsonError(f"{what} is nested deeper than {MAX_DEPTH} levels")
        elif token in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise StrictJsonError(f"key {key!r} occurs twice in one object")
            seen.add(key)
    return result


def _no_constant(name: str) -> Any:
    raise StrictJsonError(f"{name} is not JSON")


def _finite(literal: str) -> float:
    """A literal such as 1e400 is JSON, but this program and others would read infinity."""
    value = float(literal)
    if math.isinf(value):
        raise StrictJsonError(f"number {literal[:40]} is too large to be read")
    return value


def _refuse_text(value: Any, what: str) -> None:
    if isinstance(value, str):
        if "\x00" in value:
            raise StrictJsonError(f"{what} holds a string with U+0000")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise StrictJsonError(f"{what} holds a string with a lone surrogate") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_text(key, what)
            _refuse_text(item, what)
    elif isinstance(value, list):
        for item in value:
            _refuse_text(item, what)


def event_hash(envelope: str | bytes) -> str:
    """Hex SHA-256(0x00 || envelope bytes): the event's hash and its RFC 9162 leaf hash."""
    data = (_LEAF_BEGINNING + envelope).encode("utf-8") if isinstance(envelope, str) else LEAF_PREFIX + envelope
    return hashlib.sha256(data).hexdigest()


def sha256_digest(data: bytes) -> str:
    """`sha256:<hex>` of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def r1_digest(document: dict[str, Any]) -> str:
    """The plan digest by the published R1 rule, `sha256:<hex>`.

    Drop the top-level `digest`; serialise with sorted keys, separators "," and ":", ASCII escapes, plus one trailing
    newline; SHA-256.
    """
    payload = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False) + "\n"
    return sha256_digest(text.encode("ascii"))


def r1_file(document: dict[str, Any]) -> bytes:
    """The published file form: the whole document, two-space indent, sorted keys, ASCII escapes, one final newline."""
    return (json.dumps(document, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False) + "\n").encode("ascii")
