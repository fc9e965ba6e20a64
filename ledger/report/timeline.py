"""A run laid out over its own clock: what lay where from when to when, memory at each sample, and the steps between.

Read from the events in one pass, in memory bounded by the plan and by `MOST_SAMPLES`, not by the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ledger.bodies import (
    AFTER_CLOSE,
    AuthorityEstablished,
    DecodeRan,
    ExecutionActivated,
    MaterializationReleased,
    MemorySampled,
    ReleaseAuthorized,
    ReleaseRefused,
    RunClosed,
)
from ledger.events import Event
from ledger.measurement import Measurements
from ledger.plan import Materialization, Plan
from ledger.run_state import RunState

MOST_SAMPLES = 2_000
"""Samples kept of a run; of more, every second is left out, and the higher of two neighbours stays."""

MOST_STEPS = 2_000
HEIGHT = "process/tree_sum"
"""The figure by which the higher of two samples is known."""


@dataclass(frozen=True)
class Span:
    """Between when a materialization existed, on the run's clock. `observed`: first seen live; `ended` null: still there."""

    began: int
    observed: int | None
    ended: int | None
    began_sequence: int
    ended_sequence: int | None


@dataclass(frozen=True)
class Lane:
    """One materialization id, planned or not, and its spans."""

    id: str
    planned: Materialization | None
    resource: str | None
    spans: list[Span]


@dataclass(frozen=True)
class Sample:
    """Memory at one moment: figures by `process/KEY`, `host/KEY` and `cuda/KEY`; null where it could not be read."""

    at: int
    sequence: int
    label: str
    values: dict[str, float | None]


@dataclass(frozen=True)
class Step:
    """Something that happened: from `began` to `at` where its length was measured, else at `at`."""

    kind: str
    what: str
    began: int
    at: int
    sequence: int


@dataclass
class Timeline:
    """The whole run. `timed` is false where the events carry no clock of the run: then one event is one tick."""

    start: int
    end: int
    timed: bool
    lanes: list[Lane]
    samples: list[Sample]
    steps: list[Step]
    thinned: bool = False
    steps_left_out: int = 0
    at: list[int] = field(default_factory=list)
    """When each event was, by sequence; what a later process appended stands at the end."""

    def when(self, sequence: int) -> int | None:
        """The moment of an event, or null for a sequence that the run has not."""
        return self.at[sequence] if 0 <= sequence < len(self.at) else None


@dataclass
class Reader:
    """Collects a timeline while events pass by: `through` yields them on, `timeline` lays out what was seen."""

    times: list[int | None] = field(default_factory=list)
    samples: list[tuple[int, str, dict[str, float | None]]] = field(default_factory=list)
    steps: list[tuple[str, str, int, int]] = field(default_factory=list)
    observed: dict[str, list[int]] = field(default_factory=dict)
    thinned: bool = False
    left_out: int = 0

    def through(self, events: Iterable[Event]) -> Iterator[Event]:
        """The same events, each noted."""
        for event in events:
            self._note(event)
            yield event

    def _note(self, event: Event) -> None:
        self.times.append(event.elapsed_ns if event.type not in AFTER_CLOSE else None)
        body = event.body
        if isinstance(body, MemorySampled):
            self._sample(event.sequence, body)
        elif event.type == "materialization.observed" and body.live.value == 1:
            seen = self.observed.setdefault(body.materialization_id, [])
            if len(seen) < 64:
                seen.append(event.sequence)
        elif step := _step(event):
            if len(self.steps) < MOST_STEPS:
                self.steps.append(step)
            else:
                self.left_out += 1

    def _sample(self, sequence: int, body: MemorySampled) -> None:
        values = {**_figures("process", body.process), **_figures("host", body.host), **_figures("cuda", body.cuda)}
        self.samples.append((sequence, body.label, values))
        if len(self.samples) >= 2 * MOST_SAMPLES:
            self.thinned = True
            pairs = zip(self.samples[::2], self.samples[1::2], strict=False)
            self.samples = [max(pair, key=lambda sample: sample[2].get(HEIGHT) or 0) for pair in pairs]

    def timeline(self, plan: Plan | None, state: RunState) -> Timeline:
        """What was seen, laid over the run's clock; `state` is what the same events folded to."""
        at, timed = _clock(self.times, state)
        planned = plan.materializations if plan is not None else {}
        names = [*planned, *(name for name in state.materializations if name not in planned)]
        return Timeline(
            start=at[0] if at else 0,
            end=max(at, default=0),
            timed=timed,
            lanes=[_lane(name, planned.get(name), state, self.observed.get(name, []), at) for name in names],
            samples=[Sample(at[sequence], sequence, label, values) for sequence, label, values in self.samples],
            steps=[
                Step(kind, what, max(at[sequence] - length, 0) if timed else at[sequence], at[sequence], sequence)
                for kind, what, length, sequence in self.steps
            ],
            thinned=self.thinned,
            steps_left_out=self.left_out,
            at=at,
        )


def read_timeline(plan: Plan | None, events: Iterable[Event], state: RunState) -> Timeline:
    """The timeline of a run whose events fold to `state`."""
    reader = Reader()
    for _ in reader.through(events):
        pass
    return reader.timeline(plan, state)


def _clock(times: list[int | None], state: RunState) -> tuple[list[int], bool]:
    """When each event was: by the run's clock where its events carry one, else by sequence."""
    known = [time for time in times if time is not None]
    closing = state.closed.sequence if state.closed is not None else len(times) - 1
    if not known or any(time is None for time in times[: closing + 1]):
        return list(range(len(times))), False
    last = max(known)
    return [last if time is None else time for time in times], True


def _lane(name: str, planned: Materialization | None, state: RunState, observed: list[int], at: list[int]) -> Lane:
    found = state.materializations.get(name)
    resource = planned.memory_resource_id if planned is not None else None
    if resource is None and found is not None:
        named = [seen.body.memory_resource_id for seen in found.started]
        named += [seen.body.memory_resource_id for seen in found.realized]
        resource = named[0] if named else None
        if resource is None and found.observed:
            value = found.observed[0].body.memory_resource_id.value
            resource = str(value) if value is not None else None
    spans = []
    for began, ended in found.seen_spans if found is not None else []:
        first = next((s for s in observed if s >= began and (ended is None or s <= ended)), None)
        spans.append(
            Span(
                began=at[began],
                observed=at[first] if first is not None else None,
                ended=at[ended] if ended is not None else None,
                began_sequence=began,
                ended_sequence=ended,
            )
        )
    return Lane(name, planned, resource, spans)


def _figures(prefix: str, measurements: Measurements) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for key, measurement in measurements.items():
        value = measurement.value
        if value is None or isinstance(value, int | float):
            figures[f"{prefix}/{key}"] = value if measurement.known else None
    return figures


def _step(event: Event) -> tuple[str, str, int, int] | None:
    """(kind, what, length in nanoseconds, sequence) of an event that is a step of its own, else null."""
    body = event.body
    what: str
    length = 0
    if isinstance(body, DecodeRan):
        what = "prefill" if body.phase == "prefill" else f"repetition {body.repetition}"
        measured = body.elapsed_ns.value
        length = int(measured) if isinstance(measured, int | float) and measured > 0 else 0
    elif isinstance(body, AuthorityEstablished):
        what = f"authority of {body.logical_state_id} with {body.materialization_id}"
    elif isinstance(body, ExecutionActivated):
        what = f"{body.execution_id} activated"
    elif isinstance(body, ReleaseAuthorized):
        what = f"release of {body.materialization_id} authorized"
    elif isinstance(body, ReleaseRefused):
        what = f"release of {body.materialization_id} refused"
    elif isinstance(body, MaterializationReleased):
        what = f"{body.materialization_id} released"
    elif isinstance(body, RunClosed):
        what = f"run closed: {body.outcome}"
    else:
        return None
    return event.type, what, length, event.sequence
