"""`tally runs`, `show` and `supersede`: what runs there are, and one of them at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from ledger.errors import NotFound
from realizer.cli.access import shown_ledger
from realizer.cli.options import RunName, json_option, ledger_option, run_argument
from realizer.cli.rendering import (
    OUTCOME_STYLES,
    VERDICT_STYLES,
    cell,
    confined,
    emit_json,
    moment,
    say,
    show,
    table,
)
from realizer.cli.resolving import open_run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ledger.documents import RunSummary

SHORTEST_PREFIX = 13
"""Characters of a run id that a list shows at least: its milliseconds."""


@click.command()
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Only the newest N.")
@ledger_option
@json_option
def runs(limit: int | None, ledger: str, as_json: bool) -> None:
    """List the ledger's runs, the oldest first.

    Each with the verdict that was recorded when it was closed.

    \b
    Examples:
      tally runs
      tally runs -n 5 --json
    """
    from ledger.documents import RunsDocument
    from ledger.store import Store

    with Store.open(ledger) as store:
        found = store.runs()
    if limit is not None:
        found = found[-limit:]
    if as_json:
        emit_json(RunsDocument(runs=found))
        return
    if not found:
        say(f"no runs in {shown_ledger(ledger)}; `tally realize PLAN` makes one")
        return
    show(_run_table(found))


def _run_table(found: list[RunSummary]) -> RenderableType:
    """All of it where nobody looks at columns; else prefixes that suffice to name each run, and short digests."""
    ids = [run.run_id for run in found]
    if not confined():
        whole = [
            (run.run_id, run.opened_at, run.purpose, *_ended(run), run.assurance or "", run.plan_digest or "none")
            for run in found
        ]
        return table(("run", "opened", "purpose", "outcome", "verdict", "assurance", "plan"), whole)
    shown = SHORTEST_PREFIX
    while len({run_id[:shown] for run_id in ids}) < len(set(ids)):
        shown += 1
    rows = [
        (
            run.run_id[:shown],
            moment(run.opened_at),
            *_ended(run),
            (run.plan_digest or "none").removeprefix("sha256:")[:8],
        )
        for run in found
    ]
    return table(("run", "opened", "outcome", "verdict", "plan"), rows)


def _ended(run: RunSummary) -> tuple[Text, Text]:
    """Outcome (with the purpose, where it is no realization) and verdict."""
    outcome = cell(run.outcome, OUTCOME_STYLES[run.outcome])
    if confined() and run.purpose != "realization":
        outcome.append(f" {run.purpose}", style="dim")
    verdict = cell(run.verdict or "none", VERDICT_STYLES.get(run.verdict or "", "dim"))
    if run.superseded_by is not None:
        verdict.append(" superseded", style="yellow")
    return outcome, verdict


@click.command("show")
@run_argument()
@ledger_option
@json_option
def show_run(run: str, ledger: str, as_json: bool) -> None:
    """Show a run at a glance.

    Verdict and assurance, planned against observed, release and give-back, authority, decode, findings. The verdict
    is judged anew from the events. RUN may be an evidence file.

    \b
    Examples:
      tally show @latest
      tally show evidence.json --json
    """
    from ledger.reconcile import run_document
    from realizer.cli.portrait import portrait

    with open_run(run, ledger) as source:
        state, judgement = source.judged()
        if as_json:
            emit_json(run_document(state, judgement))
        else:
            show(*portrait(source.plan, state, judgement))


@click.command()
@run_argument()
@click.option("--by", type=RunName(), required=True, metavar="RUN", help="The run that takes its place.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; recorded as it stands.")
@ledger_option
@json_option
def supersede(run: str, by: str, reason: str, ledger: str, as_json: bool) -> None:
    """Record that another run takes a run's place. Nothing is edited or deleted.

    \b
    Example:
      tally supersede @latest~1 --by @latest --reason "wrong reference fixture"
    """
    from ledger.bodies import RunSuperseded
    from realizer.cli.access import writable_ledger
    from realizer.cli.documents import AppendedDocument
    from realizer.recorded import latecomer

    with writable_ledger(ledger, create=False) as store:
        run_id, other = store.resolve(run), store.resolve(by)
        if run_id == other:
            raise NotFound("a run cannot supersede itself", "name another run with --by")
        gone = [event.body.by for event in store.events(other) if event.type == RunSuperseded.TYPE]
        if gone:  # else two runs could supersede each other, and none would stand
            raise NotFound(f"run {other} is itself superseded by {gone[-1]}", "name the run that stands with --by")
        first = next(store.events(run_id))
        recorded = latecomer(store, run_id, first.node_id)(RunSuperseded(reason=reason, by=other))
    if as_json:
        emit_json(
            AppendedDocument(run_id=run_id, type=RunSuperseded.TYPE, position=recorded.position, hash=recorded.hash)
        )
    else:
        say(f"{run_id} is superseded by {other}; recorded at position {recorded.position}")
