"""A comparison as Markdown for pull requests: what differs, timings as ratios, and what was expected to differ, summed up."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from ledger import canonical
from ledger.counting import counted
from ledger.documents import ComparisonDocument, Difference

MOST_ROWS = 100
MOST_CHARACTERS = 200


def ratio(difference: Difference) -> float | None:
    """b / a of two durations; None where one is missing or a is zero."""
    a, b = difference.a, difference.b
    if not difference.path.endswith("_ns") or not isinstance(a, int | float) or not isinstance(b, int | float):
        return None
    return b / a if a else None


def render_markdown(comparison: ComparisonDocument) -> str:
    """GitHub-flavoured Markdown. Text from runs stands in code spans, where nothing of it is markup, link or mention."""
    different = [item for item in comparison.differences if item.kind == "different"]
    expected = [item for item in comparison.differences if item.kind == "expected"]
    timings = [(item, ratio(item)) for item in expected]
    verdict = "The runs are the same." if comparison.same else f"The runs differ in {counted(len(different), 'place')}."
    lines = [
        "### Comparison of two runs",
        "",
        f"A: {_code(comparison.a)}  ",
        f"B: {_code(comparison.b)}",
        "",
        f"**{verdict}**",
    ]
    if different:
        lines += ["", "| what | A | B |", "| --- | --- | --- |"]
        lines += [f"| {_code(item.path)} | {_code(item.a)} | {_code(item.b)} |" for item in different[:MOST_ROWS]]
        if len(different) > MOST_ROWS:
            lines += ["", f"… and {len(different) - MOST_ROWS} more."]
    measured = [(item, quotient) for item, quotient in timings if quotient is not None]
    if measured:
        lines += ["", "| time | A | B | B / A |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {_code(item.path)} | {item.a / 1e6:.3f} ms | {item.b / 1e6:.3f} ms | {quotient:.3f} |"
            for item, quotient in measured[:MOST_ROWS]
        ]
    rest = [item for item, quotient in timings if quotient is None]
    if rest:
        groups = Counter(item.path.partition("[")[0].partition(".")[0] for item in rest)
        named = ", ".join(f"{group} ({count})" for group, count in sorted(groups.items()))
        lines += ["", f"Expected to differ, and differing in {counted(len(rest), 'place')}: {named}."]
    return "\n".join(lines) + "\n"


def _code(value: Any) -> str:
    """The value as a code span that holds in a table: long text cut, control and direction marks spelt out."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    text = canonical.printable(text)
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]}… ({len(text)} characters)"
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    padding = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", "\\|")
