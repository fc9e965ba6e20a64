"""Every way to change one recorded field of the clean run: what the table of unjudged fields is held against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args, get_origin

from ledger.bodies import Body, MaterializationObserved, MaterializationRealized, RunOpened
from ledger.events import Event
from ledger.fold import fold
from ledger.measurement import Frozen, Measurement, claimed, unavailable
from ledger.plan import Plan
from ledger.reconcile import judge
from tests.builders.runs import GIB, MIB, changed, clean_bodies, edited_plan, gpu_plan, run_events, small_plan, text

Path = tuple[str, ...]

STAGE, WEIGHTS = "mat.weights.stage", "mat.weights.resident"


class Change(NamedTuple):
    """One field of one event changed: the event's index, its type, where, how, and the body after it."""

    index: int
    kind: str
    path: Path
    how: str
    body: Body

    @property
    def field(self) -> str:
        """Where, with places in lists and the names of owners left open."""
        return "/".join(self.path)


@dataclass(frozen=True)
class Form:
    """A plan and the run that carries it out exactly."""

    plan: Plan
    bodies: list[Body]
    witnessed: bool = False

    def events(self) -> list[Event]:
        return run_events(self.bodies, self.plan)


def streamed() -> Form:
    """A plan whose staging is a ring, and a run whose content was verified."""
    plan = edited_plan(gpu_plan(), lambda document: document["materializations"][0].update(streamed_bytes=512 * MIB))
    run = changed(
        clean_bodies(plan),
        MaterializationRealized,
        {"streamed_bytes": claimed(512 * MIB, "bytes", "adapter")},
        materialization_id=WEIGHTS,
    )
    digest = text("sha256:" + "aa" * 32, "sha256")
    return Form(
        plan,
        changed(
            run,
            MaterializationObserved,
            {"source_digest": digest, "resident_digest": digest},
            materialization_id=WEIGHTS,
        ),
    )


def forms() -> dict[str, Form]:
    return {
        "cpu": Form(small_plan(), clean_bodies(small_plan())),
        "gpu": Form(gpu_plan(), clean_bodies(gpu_plan())),
        "streamed": streamed(),
    }


def changes(bodies: list[Body]) -> Iterator[Change]:
    """Every change of every field of every event."""
    for index, body in enumerate(bodies):
        for path, how, new in _changed(body, ()):
            if isinstance(new, Body):
                yield Change(index, body.TYPE, path, how, new)


def _changed(value: Any, path: Path) -> Iterator[tuple[Path, str, Any]]:
    """(where, how, the value with that one thing changed)."""
    if isinstance(value, Measurement):
        yield from ((path, how, new) for how, new in _measurements(value))
    elif isinstance(value, Frozen):
        for name, form in type(value).model_fields.items():
            if get_origin(form.annotation) is Literal:
                for other in get_args(form.annotation):
                    if other != getattr(value, name):
                        yield (*path, name), other, value.model_copy(update={name: other})
                continue
            for where, how, new in _changed(getattr(value, name), (*path, name)):
                yield where, how, value.model_copy(update={name: new})
    elif isinstance(value, list):
        if value:
            yield path, "emptied", []
            yield path, "shortened", value[1:]
            yield path, "first one twice", [value[0], *value]
        for at, item in enumerate(value):
            for where, how, new in _changed(item, (*path, "*")):
                yield where, how, [*value[:at], new, *value[at + 1 :]]
    elif isinstance(value, dict):
        for key, item in value.items():
            open_ended = path and path[-1] in ("by_owner", "evidence_host_by_role")
            here = (*path, "*" if open_ended else key)
            yield here, "removed", {name: kept for name, kept in value.items() if name != key}
            yield here, "renamed", {("other" if name == key else name): kept for name, kept in value.items()}
            for where, how, new in _changed(item, here):
                yield where, how, {**value, key: new}
    elif isinstance(value, bool) or value is None:
        yield from () if value is None else [(path, "other", not value)]
    elif isinstance(value, int):
        yield from ((path, how, new) for how, new in (("near", value + 1), ("far", value + GIB), ("negative", -1)))
    elif isinstance(value, str):
        yield path, "other", f"other {value}"


def _measurements(value: Measurement) -> Iterator[tuple[str, Measurement]]:
    def now(**facts: Any) -> Measurement:
        return value.model_copy(update=facts)

    if value.value is None:
        yield "known", now(value="something", status="measured", detail=None)
        return
    if isinstance(value.value, str) and value.value.startswith("sha256:"):
        yield "other", now(value="sha256:" + "b0" * 32)
        yield "a word", now(value="none")
    elif isinstance(value.value, str):
        yield "other", now(value=f"other {value.value}")
    else:
        yield "near", now(value=value.value + 1)
        yield "far", now(value=value.value + 4 * GIB)
        yield "negative", now(value=-1)
        if value.value:
            yield "zero", now(value=0)
        yield "a word", now(value="none")
    yield "unknown", unavailable(value.unit, value.method, "could not be read")
    yield "declared", now(source="declared", status="stated")
    if value.source != "adapter":
        yield "claimed", now(source="adapter")
    if value.unit is not None:
        yield "unit", now(unit="KiB")
        yield "no unit", now(unit=None)


class Court:
    """Judges changed runs against the judgement of the unchanged one."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.events = form.events()
        first = self.events[0].body
        assert isinstance(first, RunOpened)
        self.bodies: list[Body] = [event.body for event in self.events]
        self.clean = self.verdict(self.events)

    def verdict(self, events: list[Event]) -> tuple[str, str, list[str]]:
        judgement = judge(self.form.plan, fold(events))
        return judgement.verdict, judgement.assurance, judgement.codes

    def silent(self, bodies: list[Body]) -> bool:
        """Nothing is found, and the assurance is what it was."""
        return self.verdict(self.recorded(bodies)) == self.clean

    def recorded(self, bodies: list[Body]) -> list[Event]:
        """Those bodies as events, in order; envelopes are of the first one's making."""
        like = self.events[0]
        return [
            like.model_copy(update={"sequence": at, "elapsed_ns": at, "type": body.TYPE, "body": body})
            for at, body in enumerate(bodies)
        ]

    def after(self, change: Change) -> list[Body]:
        return [*self.bodies[: change.index], change.body, *self.bodies[change.index + 1 :]]
