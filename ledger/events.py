"""The envelope around an event's body, read back: strict forms, versions and upcasts, and what a chain begins with.

An event is a frozen value. Its envelope's RFC 8785 text is what is hashed, stored and exported; nothing is ever
serialised a second time to check it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar, Union

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ledger import canonical
from ledger.bodies import BODIES, BODY_BY_TYPE, Body, PlanFrozen, RunOpened
from ledger.errors import EventError
from ledger.measurement import Frozen
from ledger.shape import LARGE, ShapeError, refuse_other_shape

ENVELOPE_VERSION = 1
NO_PLAN = "0" * 64
"""`previous` of sequence 0 in a stream that has no plan (a witness without one)."""

T = TypeVar("T", bound=str)
B = TypeVar("B", bound=Body)


class Actor(Frozen):
    """Who appended: the realizer, an importer, a witness, an operator at the command line, or the judge."""

    kind: Literal["realizer", "importer", "witness", "operator", "judge"]
    id: str


class Envelope(Frozen, Generic[T, B]):
    """One event as recorded. `elapsed_ns` is the run's own monotonic clock; null when a later process appended it."""

    v: Literal[1]
    event_id: str
    run_id: str
    sequence: int
    previous: str
    type: T
    type_version: int
    recorded_at: str
    elapsed_ns: int | None
    node_id: str
    actor: Actor
    body: B


Event = Envelope[Any, Any]


@cache
def _reader() -> TypeAdapter[Event]:
    union: Any = Union[tuple(Envelope[Literal[body.TYPE], body] for body in BODIES)]  # type: ignore[valid-type, name-defined]  # noqa: UP007 - built from a tuple
    # Looking each text up among those met before costs no less than making it anew, see the lab log.
    return TypeAdapter(Annotated[union, Field(discriminator="type")], config=ConfigDict(cache_strings="none"))


def event_schema() -> dict[str, Any]:
    """The JSON Schema of an envelope, one alternative for each event type."""
    return _reader().json_schema(mode="validation")


UPCASTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""(type, old version) -> body of the next version. Applied on read; the recorded bytes stay as they are."""


def read_event(envelope: str) -> Event:
    """The event that an envelope's text holds, older versions upcast.

    Raises EventError (with `unknown_type` set) for a type or version this program does not know, and EventError for a
    body that does not have the form of its type.
    """
    problem: ValidationError | None = None
    if len(envelope) <= LARGE or _is_current(canonical.decode(envelope, what="event")):
        try:
            event = _reader().validate_json(envelope, strict=True)
            if event.type_version == event.body.VERSION:
                return event
        except ValidationError as error:
            problem = error
    raw = canonical.decode(envelope, what="event")
    if not isinstance(raw, dict):
        raise EventError("event is no JSON object")
    kind, version = raw.get("type"), raw.get("type_version")
    known = BODY_BY_TYPE.get(kind) if isinstance(kind, str) else None
    if known is None or not isinstance(kind, str) or not isinstance(version, int):
        raise EventError(
            f"unknown event type {kind!r} version {version!r}",
            "it was written by another or newer program: read it with that version",
            unknown_type=True,
        )
    if version > known.VERSION:
        raise EventError(
            f"event type {kind!r} has version {version}; this program knows up to {known.VERSION}",
            "upgrade tallystick to read it",
            unknown_type=True,
        )
    if version == known.VERSION and problem is not None:
        raise _wrong_form(kind, problem) from problem
    while version < known.VERSION:
        upcast = UPCASTS.get((kind, version))
        if upcast is None:
            raise EventError(
                f"event type {kind!r} version {version} has no upcast to {known.VERSION}", unknown_type=True
            )
        try:
            raw["body"] = upcast(raw["body"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise EventError(f"event has not the form of {kind} version {version}: {error!r}") from error
        version += 1
    raw["type_version"] = version
    try:
        return _reader().validate_python(raw, strict=True)
    except ValidationError as error:
        raise _wrong_form(kind, error) from error


def _is_current(raw: Any) -> bool:
    """Whether a large event is of a type and version of today. Raises EventError when it is and has not its form.

    The validator would list every error in it.
    """
    if not isinstance(raw, dict):
        return False
    known = BODY_BY_TYPE.get(raw["type"]) if isinstance(raw.get("type"), str) else None
    if known is None or raw.get("type_version") != known.VERSION:
        return False
    if raw.keys() != Envelope.model_fields.keys():
        raise EventError("event has not the fields of an envelope")
    try:
        refuse_other_shape(raw["body"], known, where="body")
    except ShapeError as error:
        raise EventError(f"event has not the form of {known.TYPE}: {error.message}") from error
    return True


def _wrong_form(kind: str, problem: ValidationError) -> EventError:
    first = problem.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return EventError(f"event has not the form of {kind}: {canonical.printable(where)}: {first['msg']}")


def first_previous(body: Body) -> str:
    """`previous` of a stream's sequence 0: the bare hex of the plan digest as computed, or NO_PLAN without a plan.

    Raises EventError when a stream does not begin with `run.opened` or `plan.frozen`.
    """
    return first_link(body.TYPE, body.model_dump(include={"digest": True, "plan": {"computed_digest"}}))


def first_link(kind: str, body: Mapping[str, Any]) -> str:
    """The same for a body as it stands in an envelope. Raises KeyError, TypeError or AttributeError where it has not its form."""
    if kind == PlanFrozen.TYPE:
        digest: str = body["digest"]
    elif kind == RunOpened.TYPE:
        if body["plan"] is None:
            return NO_PLAN
        digest = body["plan"]["computed_digest"]
    else:
        raise EventError(f"a stream begins with run.opened or plan.frozen, not {kind}")
    return digest.removeprefix("sha256:")
