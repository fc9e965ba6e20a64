"""`python -m ledger.event_page` writes docs/events.md to stdout, from the docstrings of the bodies and their parts."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from inspect import getdoc
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from ledger import body_parts
from ledger.bodies import AFTER_CLOSE, BODIES, Body
from ledger.measurement import Frozen, Measurement

SHARED = {
    "materialization_id": "Id of the materialization in the plan.",
    "logical_state_id": "Id of its Logical State Unit in the plan.",
    "memory_resource_id": "Id of the Memory Resource in the plan.",
    "representation": "In which form, as planned, or as the adapter calls it.",
    "role": "As planned.",
    "persistence": "As planned.",
    "by": "Id of the run that takes its place.",
}
"""Fields that mean the same wherever a docstring says nothing else."""

INTRODUCTION = """\
# Events

Every type of event with its fields. Made from the code by `python -m ledger.event_page`; a test compares the two. The JSON
Schema is [tally.event-1.json](schemas/tally.event-1.json).

An event is one envelope, RFC 8785 canonical JSON, stored, hashed and exported as the very bytes that were appended:
`v`, `event_id` and `run_id` (UUIDv7), `sequence` (from 0, without a gap, per run), `previous` (hash of the event before; of the
first one the plan's digest), `type`, `type_version`, `recorded_at` (UTC, the machine's word), `elapsed_ns` (the run's own
monotonic clock; null when a later process appended it), `node_id`, `actor` (`kind` and `id`), `body`. Its hash is
SHA-256 of a zero byte and those bytes. Nothing is ever changed: a correction is a later event.

A **Measurement** is a figure with where it comes from: `value` (null when it is not known), `unit`, `source` (`probe` and
`witness` looked; `adapter` claims; `derived`, `declared` and `default` did not look), `method`, `status` (`measured`, `stated`,
`unavailable`, `failed`) and `detail` (why). **Measurements** is an object of them by name.
"""

_FIELD = re.compile(r"(\w+(?:, \w+)*): (.*)")


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "## The types", "", "| type | what it says |", "| --- | --- |"]
    lines += [f"| [`{body.TYPE}`](#{body.TYPE.replace('.', '')}) | {summary(body)} |" for body in BODIES]
    lines += [
        "",
        f"After `run.closed` only {' and '.join(f'`{name}`' for name in sorted(AFTER_CLOSE))} may follow.",
        "",
    ]
    for body in BODIES:
        lines += _section(body, f"`{body.TYPE}`")
    lines += ["## Parts", "", "Values that several bodies are made of.", ""]
    for part in parts():
        lines += _section(part, part.__name__, level=3)
    return "\n".join(lines).rstrip() + "\n"


def parts() -> list[type[Frozen]]:
    """Every part of a body, in the order of their definition."""
    found = [value for value in vars(body_parts).values() if isinstance(value, type) and issubclass(value, Frozen)]
    return [part for part in found if part not in (Frozen, Measurement)]


def summary(form: type[BaseModel]) -> str:
    """What the form says, in its docstring's first words."""
    return (getdoc(form) or "").partition("\n\n")[0].replace("\n", " ")


def described(form: type[BaseModel]) -> dict[str, str]:
    """What the docstring says after its summary: the text by field name, and under `by` who appends it and when."""
    found: dict[str, str] = {}
    known = {"by", *(field.alias or name for name, field in form.model_fields.items())}
    names: list[str] = []
    for line in (getdoc(form) or "").partition("\n\n")[2].splitlines():
        match = _FIELD.fullmatch(line)
        if match is not None and known.issuperset(match[1].split(", ")):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        else:
            for name in names:
                found[name] += " " + line.strip()
    return found


def meaning(form: type[Frozen], name: str) -> str:
    """What the field means. Raises KeyError for one that nobody describes."""
    said = described(form)
    if name in said and not (name == "by" and issubclass(form, Body)):
        return said[name]
    return SHARED[name]


def _section(form: type[Frozen], title: str, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {title}"
    yield ""
    yield summary(form)
    yield ""
    if issubclass(form, Body):
        yield f"Appended by {described(form)['by']}"
        yield ""
    yield "| field | form | meaning |"
    yield "| --- | --- | --- |"
    for name, field in form.model_fields.items():
        yield f"| `{name}` | {form_of(field.annotation)} | {cell(meaning(form, name))} |"
    yield ""


def form_of(annotation: Any) -> str:
    """The form of a field for a reader: `Measurement`, `text or null`, `list of Violation`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(form_of(part) for part in inner)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is list:
        return f"list of {form_of(inner[0])}"
    if origin is dict:
        return "Measurements" if inner[1] is Measurement else f"object of {form_of(inner[1])}"
    plain = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "anything"}
    return plain.get(annotation) or str(annotation.__name__)


def cell(text: str) -> str:
    """The text as it may stand in a table."""
    return (text[:1].upper() + text[1:]).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
