"""`tally replay`: the state that a run's events fold to, at any of them. It folds what was recorded; nothing is executed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import click

from ledger.errors import NotFound
from realizer.cli.options import json_option, ledger_option, run_argument
from realizer.cli.rendering import emit_json, emit_json_line, inert, joined, measured, say, show, size
from realizer.cli.resolving import RunSource, open_run

if TYPE_CHECKING:
    from ledger.events import Event
    from ledger.run_state import RunState
    from realizer.cli.documents import StateDocument


@click.command()
@run_argument()
@click.option("--at", type=click.IntRange(min=0), metavar="SEQUENCE", help="Up to this event; else all of them.")
@click.option("--step", is_flag=True, help="Walk the events, with what each changed in the state.")
@click.option("--timeline", "as_timeline", is_flag=True, help="Draw materializations and memory over the run's clock.")
@ledger_option
@json_option
def replay(run: str, at: int | None, step: bool, as_timeline: bool, ledger: str, as_json: bool) -> None:
    """Show the state that a run's events fold to, up to any of them. Nothing is executed again.

    Where the run is closed by then, and at its last event, the state is judged as well.

    \b
    Examples:
      tally replay @latest
      tally replay @latest --at 12
      tally replay evidence.json --step
      tally replay @latest --timeline
    """
    if step and as_timeline:
        raise click.UsageError("--step and --timeline exclude each other")
    with open_run(run, ledger) as source:
        last = _last_sequence(source)
        if at is not None and at > last:
            raise NotFound(f"run {source.run_id} has no event {at}; its last is {last}", f"try --at {last}")
        stop = last if at is None else at
        if as_timeline:
            from realizer.cli.timeline import drawn, timeline

            document = timeline(source, stop)
            emit_json(document) if as_json else show(*drawn(document))
            return
        events = takewhile(lambda event: event.sequence <= stop, source.events())
        if step:
            _walk(events, source, as_json)
            return
        _show_state(events, source, stop, last, as_json)


def _last_sequence(source: RunSource) -> int:
    return sum(1 for _ in source.recorded()) - 1


def _show_state(events: Iterator[Event], source: RunSource, stop: int, last: int, as_json: bool) -> None:
    from ledger.fold import fold
    from ledger.reconcile import judge
    from realizer.cli.portrait import portrait

    reached: list[Event] = []

    def remembered() -> Iterator[Event]:
        for event in events:
            reached[:] = [event]
            yield event

    state = fold(remembered())
    if as_json:
        emit_json(state_document(state, source, reached[0], last))
        return
    judgement = None
    if source.plan is not None and (stop == last or state.closed is not None):
        state = replace(state, witnesses=tuple(source.witnesses()))
        judgement = judge(source.plan, state, state.witnesses)
    say(f"folded from the recorded events 0 to {stop} of {last}; nothing was executed again")
    show(joined((f"EVENT {stop} of {last}", "bold"), reached[0].type), *portrait(source.plan, state, judgement))


def state_document(state: RunState, source: RunSource, reached: Event, last: int) -> StateDocument:
    """The folded state as `tally.state/1`."""
    from ledger.run_state import condition
    from realizer.cli.documents import MaterializationRow, StateDocument

    planned = source.plan.materializations if source.plan is not None else {}
    rows = []
    for name in [*planned, *(name for name in state.materializations if name not in planned)]:
        wanted, found = planned.get(name), state.materializations.get(name)
        rows.append(
            MaterializationRow(
                id=name,
                state=condition(found)[0],
                role=wanted.role if wanted is not None else None,
                memory_resource_id=wanted.memory_resource_id if wanted is not None else None,
                planned_bytes=wanted.expected_bytes if wanted is not None else None,
                observed_bytes=found.observed[-1].body.bytes if found is not None and found.observed else None,
            )
        )
    return StateDocument(
        run_id=source.run_id,
        plan_digest=source.plan.computed_digest if source.plan is not None else None,
        sequence=reached.sequence,
        last_sequence=last,
        last_type=reached.type,
        outcome=state.outcome,
        accepted=state.accepted is not None,
        materializations=rows,
        authorities={unit: seen[-1].body.materialization_id for unit, seen in state.authorities.items()},
        executions=list(state.executions),
        prefills=sum(decode.prefills for decode in state.decodes.values()),
        repetitions=sum(decode.runs for decode in state.decodes.values()),
        memory_labels=list(state.samples),
        verdicts=[seen.body.verdict for seen in state.verdicts],
        superseded_by=state.superseded_by,
    )


# --- step by step -------------------------------------------------------------------------------------------------


def _walk(events: Iterator[Event], source: RunSource, as_json: bool) -> None:
    from realizer.cli.documents import StepDocument
    from realizer.cli.narration import subject
    from realizer.cli.streams import show_events

    if not as_json:
        say(f"folding {source.run_id} event by event; nothing is executed again")
        show_events(_steps(events))
        return
    for event, changed in _steps(events):
        document = StepDocument(sequence=event.sequence, type=event.type, subject=subject(event.body), changed=changed)
        emit_json_line(json.dumps(document.model_dump(mode="json"), ensure_ascii=False))


def _steps(events: Iterator[Event]) -> Iterator[tuple[Event, list[str]]]:
    from ledger.fold import fold
    from ledger.run_state import RunState

    state = RunState()
    for event in events:
        after = fold([event], state)
        yield event, list(changes(state, after))
        state = after


def changes(before: RunState, after: RunState) -> Iterator[str]:
    """One line for each thing in the state that an event changed, in words; else the names of the parts that did."""
    told = [
        *_materialization_changes(before, after),
        *_authority_changes(before, after),
        *_decode_changes(before, after),
        *_peak_changes(before, after),
    ]
    if before.outcome != after.outcome:
        told.append(f"outcome: {before.outcome} -> {after.outcome}")
    if before.superseded_by != after.superseded_by:
        told.append(f"superseded by {after.superseded_by}")
    yield from map(inert, told)
    if not told:
        parts = [f.name for f in fields(after) if getattr(before, f.name) != getattr(after, f.name)]
        yield from (f"{name}: recorded" for name in parts if name not in COUNTERS)


COUNTERS = frozenset({"events_seen", "last_elapsed", "samples_seen", "run_id", "samples"})
"""What changes with every event or sample, and so says nothing."""


def _materialization_changes(before: RunState, after: RunState) -> Iterator[str]:
    from ledger.run_state import condition

    for name, found in after.materializations.items():
        was = before.materializations.get(name)
        old, new = condition(was)[0], condition(found)[0]
        if old != new:
            yield f"{name}: {old} -> {new}"
        if len(found.authorized) > (len(was.authorized) if was else 0):
            yield f"{name}: its release is authorized by {', '.join(found.authorized[-1].body.qualifying_ids)}"
        if len(found.refused) > (len(was.refused) if was else 0):
            yield f"{name}: its release is refused"
        for phase, reclaimed in found.reclamations.items():
            if reclaimed.first is not None and (was is None or phase not in was.reclamations):
                yield f"{name}: {measured(reclaimed.first.body.ratio)} of its bytes given back {phase}"


def _authority_changes(before: RunState, after: RunState) -> Iterator[str]:
    for unit, established in after.authorities.items():
        if len(established) > len(before.authorities.get(unit, ())):
            yield f"{unit}: authority with {established[-1].body.materialization_id}"
    for name, execution in after.executions.items():
        if name not in before.executions or before.executions[name].count < execution.count:
            yield f"{name}: active"


def _decode_changes(before: RunState, after: RunState) -> Iterator[str]:
    for name, decode in after.decodes.items():
        was = before.decodes.get(name)
        if decode.prefills > (was.prefills if was else 0):
            yield f"{name}: {decode.prefills} prefill"
        if decode.runs > (was.runs if was else 0):
            yield f"{name}: {decode.runs} repetitions"


def _peak_changes(before: RunState, after: RunState) -> Iterator[str]:
    for name in PEAKS:
        figure = after.peaks.get(name)
        if figure is not None and (name not in before.peaks or before.peaks[name] != figure):
            yield f"highest {name.partition('/')[2]} so far: {size(figure.value)}"


PEAKS = ("process/tree_sum", "process/rss_anon", "process/rss_shmem")
