"""`tally reconcile`, `invariants` and `compare`: laying plan and events together, and two runs side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ledger.counting import counted
from ledger.errors import NotFound
from realizer.cli.options import json_option, ledger_option, run_argument
from realizer.cli.rendering import (
    SEVERITY_STYLES,
    cell,
    confined,
    duration,
    emit_json,
    emit_text,
    facts,
    heading,
    indented,
    joined,
    json_value,
    show,
    table,
)
from realizer.cli.resolving import RunSource, open_run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ledger.compare import ComparedRun
    from ledger.documents import ComparisonDocument, Difference
    from ledger.reconcile import Invariant


@click.command()
@run_argument()
@ledger_option
@json_option
def reconcile(run: str, ledger: str, as_json: bool) -> int:
    """Judge a run anew from its plan and events. Exit 3 when the verdict is not PASS. Nothing is recorded.

    \b
    Examples:
      tally reconcile @latest
      tally reconcile evidence.json --json
    """
    from ledger.reconcile import verdict_document
    from realizer.cli.portrait import findings_parts, verdict_line

    with open_run(run, ledger) as source:
        state, judgement = source.judged()
    if judgement is None:
        raise NotFound(
            f"run {source.run_id} has no plan to be judged by", "it is a witness: `tally show` tells its facts"
        )
    if as_json:
        emit_json(verdict_document(state, judgement))
    else:
        show(verdict_line(state, judgement), *findings_parts(judgement.findings))
    return 0 if judgement.verdict == "PASS" else 3


def _complete_code(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from ledger.reconcile import INVARIANTS

    return [code for invariant in INVARIANTS for code in invariant.codes if code.startswith(incomplete)]


@click.command()
@click.argument("code", required=False, shell_complete=_complete_code)
@json_option
def invariants(code: str | None, as_json: bool) -> None:
    """Print what the judge holds runs to, and why.

    All of it, or one by its CODE or family.

    \b
    Examples:
      tally invariants
      tally invariants staging.release-unqualified
    """
    from ledger.reconcile import INVARIANTS, JUDGE_VERSION, severity
    from realizer.cli.documents import InvariantDocument, InvariantsDocument

    chosen = [i for i in INVARIANTS if code is None or code in i.codes or code == i.family]
    if not chosen:
        raise NotFound(f"no invariant has the code {code!r}", "`tally invariants` lists them")
    if as_json:
        emit_json(
            InvariantsDocument(
                judge_version=JUDGE_VERSION,
                invariants=[
                    InvariantDocument(
                        codes=list(i.codes),
                        severities={name: severity(name) for name in i.codes},
                        family=i.family,
                        name=i.function.__name__,
                        statement=i.statement,
                    )
                    for i in chosen
                ],
            )
        )
        return
    show(*(part for i in chosen for part in _invariant_parts(i)))


def _invariant_parts(invariant: Invariant) -> Iterator[RenderableType]:
    from ledger.reconcile import severity

    for code in invariant.codes:
        level = severity(code)
        yield joined((code, "bold"), (level, SEVERITY_STYLES[level]))
    for number, section in enumerate(invariant.statement.split("\n\n")):
        if number:
            yield ""
        yield indented(cell(" ".join(section.split())))
    yield ""


@click.command()
@run_argument("a")
@run_argument("b")
@click.option("--all", "everything", is_flag=True, help="List what is expected to differ too.")
@click.option("--md", "as_markdown", is_flag=True, help="Markdown, for a pull request.")
@ledger_option
@json_option
def compare(a: str, b: str, everything: bool, as_markdown: bool, ledger: str, as_json: bool) -> int:
    """Lay two runs side by side.

    Exit 3 when they differ in more than what every two runs differ in. Times, ids, addresses and memory within the
    plan's noise are expected to differ and kept apart. Either run may be an evidence file.

    \b
    Examples:
      tally compare @latest~1 @latest
      tally compare evidence.json @latest --md
    """
    from ledger.compare import compare as lay_together
    from ledger.compare import render_markdown

    if as_json and as_markdown:
        raise click.UsageError("--json and --md exclude each other")
    with open_run(a, ledger) as first, open_run(b, ledger) as second:
        document = lay_together(_compared(first), _compared(second))
    if as_json:
        emit_json(document)
    elif as_markdown:
        for line in render_markdown(document).removesuffix("\n").split("\n"):
            emit_text(line)
    else:
        show(*_comparison_parts(document, everything))
    return 0 if document.same else 3


def _compared(source: RunSource) -> ComparedRun:
    from ledger.compare import ComparedRun

    state, judgement = source.judged()
    return ComparedRun(plan=source.plan, state=state, judgement=judgement)


def _split(document: ComparisonDocument) -> tuple[list[Difference], list[Difference]]:
    different = [d for d in document.differences if d.kind == "different"]
    return different, [d for d in document.differences if d.kind == "expected"]


def _comparison_parts(document: ComparisonDocument, everything: bool) -> Iterator[RenderableType]:
    different, expected = _split(document)
    count = counted(len(different), "difference")
    yield joined(("SAME", "bold green") if document.same else ("DIFFERENT", "bold red"), count)
    yield facts([("A", document.a), ("B", document.b)])
    if different:
        yield ""
        yield heading("Differences")
        yield from _listed(different)
    if expected:
        yield ""
        yield joined(
            ("EXPECTED TO DIFFER", "bold"), _by_part(expected), ("" if everything else "--all lists them", "dim")
        )
        if everything:
            yield from _listed(expected)
        elif timed := [d for d in expected if d.path.endswith("_ns")]:
            rows = [(d.path.removesuffix("_ns"), _span(d.a), _span(d.b), times(d.a, d.b)) for d in timed]
            yield table(("time", "A", "B", "B / A"), rows, right=("A", "B", "B / A"))


def _by_part(differences: list[Difference]) -> str:
    """How many there are in each part of a run."""
    counts = Counter(re.split(r"[.\[]", d.path, maxsplit=1)[0] for d in differences)
    return ", ".join(f"{part} {count}" for part, count in sorted(counts.items()))


def _span(value: object) -> str:
    return duration(value) if isinstance(value, int | float) else json_value(value)


def _listed(differences: list[Difference]) -> Iterator[RenderableType]:
    """A table where there is room; else two lines each."""
    if not confined():
        rows = [(d.path, json_value(d.a), json_value(d.b), times(d.a, d.b)) for d in differences]
        yield table(("path", "A", "B", "B / A"), rows, right=("B / A",))
        return
    for d in differences:
        ratio = times(d.a, d.b)
        yield cell(d.path, "bold")
        yield joined(
            "", (json_value(d.a), "red"), ("->", "dim"), (json_value(d.b), "green"), (ratio and f"x {ratio}", "dim")
        )


def times(a: object, b: object) -> str:
    """How many times A's number B's is; empty where that says nothing."""
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        return ""
    return f"{b / a:.3g}" if a else ""
