"""Whether decoded JSON has exactly the fields of a model, told at the first place where it has not.

A validator collects every error with a copy of what it was given: of a file made for it, gigabytes. This stops at the first,
counts what there is, and leaves the validator nothing to complain of at length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from ledger.canonical import printable
from ledger.errors import TallyError

MAX_PARTS = 200_000
"""Items of lists and objects in a statement, proof nodes aside: more than the length of a file has room for with real events."""
LARGE = 64 * 1024
"""Characters of an event, or of a plan, from which on its shape is looked at first: smaller ones cannot cost much."""
MAX_NODES = 64
"""Nodes of an inclusion proof: more than any tree that can be counted has."""
MAX_NAME = 40

_SCALARS: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), NoneType: (NoneType,)}

_Check = Callable[[Any, str, "_Count"], None]


class ShapeError(TallyError):
    """A value that has not a model's fields, or has more in it than is read."""


class _Count:
    """Parts seen so far, and how strictly fields are asked for."""

    def __init__(self, exact: bool, most: int | None) -> None:
        self.exact = exact
        self.most = most
        self.parts = 0

    def add(self, parts: int) -> None:
        self.parts += parts
        if self.most is not None and self.parts > self.most:
            raise ShapeError(f"it has more than {self.most} parts")


def refuse_other_shape(
    value: Any, model: type[BaseModel], *, where: str = "", exact: bool = False, most: int | None = None
) -> None:
    """Raise ShapeError at the first place where the value is not of the model's form; with `most`, where it has more parts.

    Looks at fields, kinds of values and their number, not at constraints between them. With `exact` every field must be
    there, else only those without a default. `where` is what the value is called.
    """
    _model(model)(value, where, _Count(exact, most))


def _wrong(where: str, what: str) -> ShapeError:
    return ShapeError(f"{where or 'the whole'}: {what}")


def _check_of(annotation: Any) -> _Check:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _check_of(get_args(annotation)[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation)
    if origin is list:
        return _items(_check_of(get_args(annotation)[0]))
    if origin is dict:
        return _entries(_check_of(get_args(annotation)[1]))
    if origin in (Union, UnionType):
        others = [option for option in get_args(annotation) if option is not NoneType]
        if len(others) == 1:
            return _optional(_check_of(others[0]))
    if origin is Literal:
        return _one_of(get_args(annotation))
    options = get_args(annotation) if origin in (Union, UnionType) else (annotation,)
    return _scalar(options) if all(option in _SCALARS for option in options) else _anything


def _scalar(options: tuple[Any, ...]) -> _Check:
    """One of some plain types."""
    kinds = {kind for option in options for kind in _SCALARS[option]}

    def check(value: Any, where: str, _count: _Count) -> None:
        # Not by isinstance: true is no number.
        if type(value) not in kinds:
            raise _wrong(
                where, f"{type(value).__name__} is none of {', '.join(sorted(kind.__name__ for kind in kinds))}"
            )

    return check


def _one_of(values: tuple[Any, ...]) -> _Check:
    def check(value: Any, where: str, _count: _Count) -> None:
        if type(value) is not str or value not in values:
            shown = repr(value[:MAX_NAME]) if type(value) is str else type(value).__name__
            raise _wrong(where, f"{shown} is none of {', '.join(map(repr, values))}")

    return check


def _optional(inner: _Check) -> _Check:
    def check(value: Any, where: str, count: _Count) -> None:
        if value is not None:
            inner(value, where, count)

    return check


def _items(inner: _Check) -> _Check:
    def check(value: Any, where: str, count: _Count) -> None:
        if type(value) is not list:
            raise _wrong(where, f"{type(value).__name__} is no list")
        if where.endswith(".inclusion"):
            if len(value) > MAX_NODES:
                raise _wrong(where, f"{len(value)} nodes are more than any proof has")
        else:
            count.add(len(value))
        for index, item in enumerate(value):
            inner(item, f"{where}.{index}", count)

    return check


def _entries(inner: _Check) -> _Check:
    def check(value: Any, where: str, count: _Count) -> None:
        if type(value) is not dict:
            raise _wrong(where, f"{type(value).__name__} is no object")
        count.add(len(value))
        for name, item in value.items():
            inner(item, f"{where}.{printable(name[:MAX_NAME])}", count)

    return check


@cache
def _model(model: type[BaseModel]) -> _Check:
    fields = {field.alias or name: _check_of(field.annotation) for name, field in model.model_fields.items()}
    required = {field.alias or name for name, field in model.model_fields.items() if field.is_required()}
    closed = model.model_config.get("extra") == "forbid"

    def check(value: Any, where: str, count: _Count) -> None:
        if type(value) is not dict:
            raise _wrong(where, f"{type(value).__name__} is no object")
        if value.keys() != fields.keys():
            missing = sorted((fields.keys() if count.exact else required) - value.keys())
            unknown = sorted(value.keys() - fields.keys()) if closed or count.exact else []
            if missing or unknown:
                what = f"{missing[0]!r} is missing" if missing else f"{unknown[0][:MAX_NAME]!r} is not known"
                raise _wrong(where, what)
        for name, inner in fields.items():
            if name in value:
                inner(value[name], f"{where}.{name}" if where else name, count)

    return check


def _anything(value: Any, where: str, count: _Count) -> None:
    """Any JSON, or what is left to the validator: counted alone."""
    if count.most is None:
        return
    waiting = [value]
    while waiting:
        item = waiting.pop()
        inside = item.values() if type(item) is dict else item if type(item) is list else ()
        count.add(len(inside))
        waiting += inside
