"""`tally log` and `tally watch`: a run's events as they were recorded, or as they are being recorded."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from ledger.errors import NotFound
from realizer.cli.options import RunName, json_option, ledger_option, run_argument
from realizer.cli.rendering import (
    cell,
    confined,
    duration,
    emit_json_line,
    emit_line,
    inert,
    joined,
    say,
    show,
    table,
)
from realizer.cli.resolving import open_run

if TYPE_CHECKING:
    from rich.text import Text

    from ledger.events import Event

POLL_SECONDS = 0.25
REMARK = " " * 7
TYPE_STYLES = {
    "run": "bold",
    "plan": "cyan",
    "environment": "cyan",
    "reference": "cyan",
    "materialization": "green",
    "release": "yellow",
    "reclamation": "yellow",
    "authority": "magenta",
    "execution": "magenta",
    "decode": "magenta",
    "source": "magenta",
    "memory": "dim",
    "verdict": "bold",
}


def event_columns(event: Event) -> tuple[Text, Text, Text, Text]:
    """Sequence, the run's own clock, type, and subject with what the event says."""
    from realizer.cli.narration import narrate, subject

    clock = duration(event.elapsed_ns) if event.elapsed_ns is not None else "later"
    about = subject(event.body)
    said = joined((about, "bold"), narrate(event.body)) if about else cell(narrate(event.body))
    style = TYPE_STYLES.get(event.type.split(".")[0], "")
    return cell(f"{event.sequence:>4}", "dim"), cell(f"{clock:>9}", "dim"), cell(f"{event.type:<24}", style), said


def show_events(events: Iterable[tuple[Event, Sequence[str]]], *, pager: bool = True) -> None:
    """Events, each with remarks below it: a table for a terminal, a line each (as they come) for anything else."""
    if not confined():
        for event, remarks in events:
            emit_line("  ".join(column.plain for column in event_columns(event)).rstrip())
            for remark in remarks:
                emit_line(f"{REMARK}{inert(remark)}")
        return
    rows: list[tuple[object, ...]] = []
    for event, remarks in events:
        rows.append(event_columns(event))
        rows += [("", "", "", cell(remark, "dim")) for remark in remarks]
    show(table(("", "", "", ""), rows), pager=pager)


@click.command()
@run_argument()
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only events of this type or family; repeatable.")
@ledger_option
@json_option
def log(run: str, types: tuple[str, ...], ledger: str, as_json: bool) -> None:
    """Print a run's events in order.

    With --json one envelope a line, byte for byte as recorded.

    \b
    Examples:
      tally log @latest
      tally log @latest --type materialization --type run.closed
      tally log @latest --json | jq .body
    """
    from ledger.events import read_event

    _refuse_unknown(types)
    with open_run(run, ledger) as source:
        chosen = (
            (recorded, event)
            for recorded in source.recorded()
            if _wanted((event := read_event(recorded.envelope)).type, types)
        )
        if as_json:
            for recorded, _ in chosen:
                emit_json_line(recorded.envelope)
            return
        show_events((event, ()) for _, event in chosen)


def _refuse_unknown(types: tuple[str, ...]) -> None:
    """Raise UsageError for a type or family that no event has: nothing printed would read as nothing recorded."""
    from ledger.bodies import BODY_BY_TYPE

    for wanted in types:
        if not any(_wanted(kind, (wanted,)) for kind in BODY_BY_TYPE):
            raise click.UsageError(f"--type {wanted!r} is no event's type; there are {', '.join(sorted(BODY_BY_TYPE))}")


def _wanted(kind: str, types: tuple[str, ...]) -> bool:
    return not types or any(kind == wanted or kind.startswith(f"{wanted}.") for wanted in types)


@click.command()
@click.argument("run", type=RunName(), metavar="[RUN]", required=False)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop waiting when nothing was recorded for that long.",
)
@ledger_option
@json_option
def watch(run: str | None, timeout: float | None, ledger: str, as_json: bool) -> None:
    """Follow a run that another process is writing.

    Until it is closed. Without RUN, the newest one.

    \b
    Example:
      tally watch @latest
    """
    from ledger.events import read_event
    from ledger.store import Store

    with Store.open(ledger) as store:
        run_id = store.resolve(run or "@latest")
        say(f"watching {run_id}; interrupt to stop")
        start, last = 0, time.monotonic()
        while True:
            closed = False
            for recorded in store.recorded(run_id, start=start):
                event = read_event(recorded.envelope)
                closed = closed or event.type == "run.closed"
                _follow(recorded.envelope, event, as_json)
                start, last = recorded.position + 1, time.monotonic()
            if closed:
                return
            if timeout is not None and time.monotonic() - last > timeout:
                raise NotFound(f"nothing was recorded for {timeout:g} s and the run is not closed", "is it running?")
            time.sleep(POLL_SECONDS)


def _follow(envelope: str, event: Event, as_json: bool) -> None:
    if as_json:
        emit_json_line(envelope)
    else:
        show_events([(event, ())], pager=False)
    sys.stdout.flush()
