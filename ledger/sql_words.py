"""Reading a statement's words: its parameters, that it is only one, and, for PostgreSQL, that it knows no dangerous one.

This is no SQL parser. It splits text into strings, names, words, parameters and signs, the same way both databases do,
and refuses the spellings that they would split differently.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from ledger.errors import QueryError

_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>--[^\n]*|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/)
    | (?P<string>'(?:[^']|'')*')
    | (?P<name>"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\])
    | (?P<cast>::)
    | (?P<parameter>[:@$][A-Za-z_][A-Za-z0-9_]*)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<number>\d[\w.]*|\.\d[\w.]*)
    | (?P<sign>[^\s'"`])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str


@dataclass(frozen=True)
class Statement:
    """One statement: its text without a closing semicolon, the names of its `:name` parameters, and its tokens."""

    text: str
    parameters: frozenset[str]
    tokens: tuple[Token, ...]

    def for_psycopg(self) -> str:
        """The text with `:name` as `%(name)s`, as psycopg wants it."""
        return "".join(
            f"%({token.text[1:]})s" if token.kind == "parameter" else token.text.replace("%", "%%")
            for token in self.tokens
        )


def read_statement(sql: str) -> Statement:
    """Split one statement. Raises QueryError when there is none, more than one, or one that cannot be split."""
    if "\x00" in sql:
        raise QueryError("the query holds U+0000")
    tokens: list[Token] = []
    place = 0
    while place < len(sql):
        match = _TOKEN.match(sql, place)
        if match is None:
            raise QueryError(f"the query has an unclosed quote or comment: {sql[place : place + 20]!r}")
        tokens.append(Token(str(match.lastgroup), match[0]))
        place = match.end()
    if any(token.kind == "sign" and token.text == "/" and following.text == "*" for token, following in _pairs(tokens)):
        raise QueryError("the query has an unclosed or nested comment")
    while tokens and (tokens[-1].kind in ("space", "comment") or tokens[-1].text == ";"):
        tokens.pop()
    while tokens and tokens[0].kind in ("space", "comment"):
        tokens.pop(0)
    if not tokens:
        raise QueryError("the query is empty", 'give one SELECT: tally query "select * from runs"')
    if any(token.kind == "sign" and token.text == ";" for token in tokens):
        raise QueryError("the query has more than one statement; one is allowed")
    for token in tokens:
        if token.kind == "parameter" and not token.text.startswith(":"):
            raise QueryError(f"parameter {token.text} is not understood", f"write it as :{token.text[1:]}")
    parameters = frozenset(token.text[1:] for token in tokens if token.kind == "parameter")
    return Statement("".join(token.text for token in tokens), parameters, tuple(tokens))


def _pairs(tokens: list[Token]) -> list[tuple[Token, Token]]:
    return list(itertools.pairwise(tokens))


# --- PostgreSQL ---------------------------------------------------------------------------------------------------

_BEGINNINGS = frozenset({"select", "with", "values", "table"})

_BEFORE_PARENTHESIS = frozenset(
    """
    all and any array as between by case cast check distinct else end except exists filter from full group grouping having
    if ilike in inner intersect interval into is join lateral left like limit materialized not null offset on or order
    outer over partition recursive right row rows range select similar some then to union using values when where window
    with within
    """.split()  # noqa: SIM905 - a word list is read as words
)
"""Words of SQL itself after which a parenthesis is no call."""

_TYPES = frozenset("bigint char character decimal double float int integer numeric real smallint text varchar".split())  # noqa: SIM905

_FUNCTIONS = frozenset(
    """
    abs array_agg array_length array_position array_to_string ascii avg bit_length bool_and bool_or btrim ceil ceiling
    char_length character_length chr coalesce concat concat_ws count cume_dist date_part date_trunc decode degrees
    dense_rank div encode every exp extract first_value floor format generate_series greatest initcap json_agg
    json_array_elements json_array_elements_text json_array_length json_build_array json_build_object json_each
    json_each_text json_extract_path json_extract_path_text json_object_agg json_object_keys json_typeof jsonb_agg
    jsonb_array_elements jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each
    jsonb_each_text jsonb_extract_path jsonb_extract_path_text jsonb_object_agg jsonb_object_keys jsonb_path_exists
    jsonb_path_query jsonb_pretty jsonb_typeof lag last_value lead least left length ledger_array ledger_number ln log
    lower lpad ltrim max md5 min mod mode nth_value ntile nullif octet_length overlay percent_rank percentile_cont
    percentile_disc pi position power radians random rank regexp_count regexp_match regexp_matches regexp_replace
    regexp_split_to_table replace reverse right round row_number rpad rtrim sign split_part sqrt starts_with stddev strpos
    string_agg string_to_array substr substring sum to_char to_date to_json to_jsonb to_number to_timestamp translate trim
    trunc unnest upper variance width_bucket
    """.split()  # noqa: SIM905 - a word list is read as words
)
"""Functions that only compute. Everything that reads files, calls out, sets or locks is left out by not being named."""


def refuse_unknown_words(statement: Statement) -> None:
    """Raise QueryError unless the statement is a SELECT over plain tables with known functions, for PostgreSQL.

    A read-only transaction does not stop a privileged role from COPY TO PROGRAM, lo_export or pg_read_file; this does.
    """
    tokens = [token for token in statement.tokens if token.kind not in ("space", "comment")]
    first = tokens[0].text.lower()
    if first not in _BEGINNINGS and first != "(":
        raise QueryError(f"the query was refused: it begins with {tokens[0].text}", "a query reads, in one SELECT")
    for token in tokens:
        if token.kind == "name" and not token.text.startswith('"'):
            raise QueryError(f"the query was refused: {token.text} is no PostgreSQL name", 'quote names as "name"')
        if token.kind == "sign" and token.text in ("$", "\\"):
            raise QueryError(f"the query was refused: {token.text} is not allowed outside a string")
        if _plain(token).startswith("pg_") or _plain(token) == "information_schema":
            raise QueryError(
                f"the query was refused: {token.text} is not allowed", "`tally query --schema` lists views"
            )
    for token, following in _pairs(list(statement.tokens)):
        # E'', U&'' and their kin have escapes of their own, which would hide where the string ends.
        if token.kind == "word" and following.kind == "string" and len(token.text) == 1:
            raise QueryError(f"the query was refused: the string prefix {token.text} is not allowed")
        if token.kind == "sign" and token.text == "&" and following.kind in ("string", "name"):
            raise QueryError("the query was refused: Unicode-escaped strings are not allowed")
    for before, token, following in zip([Token("", ""), *tokens], tokens, [*tokens[1:], Token("", "")], strict=False):
        if following.text != "(" or token.kind not in ("word", "name"):
            continue
        known = _plain(token) in _FUNCTIONS or (
            token.kind == "word" and _plain(token) in (_BEFORE_PARENTHESIS | _TYPES)
        )
        # `WITH name (columns)` and `AS name (columns)` name something; they call nothing.
        if not known and before.text.lower() not in ("with", "recursive", "as"):
            raise QueryError(f"the query was refused: the function {token.text} is not allowed")


def _plain(token: Token) -> str:
    """A word or quoted name as PostgreSQL compares it."""
    if token.kind == "name":
        return token.text[1:-1].replace('""', '"')
    return token.text.lower() if token.kind == "word" else ""
