"""Whether decoded JSON has exactly the fields of a model, told at the first place where it has not.

A validator collects every error with a copy of what it was given: of a file made for it, gigabytes. This stops at the first,
counts what there is, and leaves the validator nothing to complain of at length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from ledger.canonical import printable
from ledger.errors import EvidenceBroken

MAX_PARTS = 200_000
"""Items of lists and objects in a statement, proof nodes aside: more than the length of a file has room for with real events."""
MAX_NODES = 64
"""Nodes of an inclusion proof: more than any tree that can be counted has."""
MAX_NAME = 40

_SCALARS: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), NoneType: (NoneType,)}

_Check = Callable[[Any, str, "_Count"], None]


class _Count:
    """Parts seen so far."""

    def __init__(self) -> None:
        self.parts = 0

    def add(self, parts: int) -> None:
        self.parts += parts
        if self.parts > MAX_PARTS:
            raise EvidenceBroken(f"statement has more than {MAX_PARTS} parts, and is refused")


def refuse_other_shape(value: Any, model: type[BaseModel]) -> None:
    """Raise EvidenceBroken at the first place where the value is not of the model's form, every field there and no other.

    Looks at fields, kinds of values and their number, not at constraints between them.
    """
    _model(model)(value, "", _Count())


def _wrong(where: str, what: str) -> EvidenceBroken:
    return EvidenceBroken(f"statement has not its form: {where or 'the whole'}: {what}")


def _check_of(annotation: Any) -> _Check:
    origin = get_origin(annotation)
    if annotation is Any:
        return _anything
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation)
    if origin is list:
        return _items(_check_of(get_args(annotation)[0]))
    if origin is dict:
        return _entries(_check_of(get_args(annotation)[1]))
    if origin in (Union, UnionType):
        options = [option for option in get_args(annotation) if option is not NoneType]
        if len(options) == 1:
            return _optional(_check_of(options[0]))
    if origin is Literal:
        return _one_of(get_args(annotation))
    return _scalar(annotation)


def _scalar(annotation: Any) -> _Check:
    """A union of plain types, or one of them."""
    options = get_args(annotation) or (annotation,)
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

    def check(value: Any, where: str, count: _Count) -> None:
        if type(value) is not dict:
            raise _wrong(where, f"{type(value).__name__} is no object")
        if value.keys() != fields.keys():
            missing, unknown = sorted(fields.keys() - value.keys()), sorted(value.keys() - fields.keys())
            what = f"{missing[0]!r} is missing" if missing else f"{unknown[0][:MAX_NAME]!r} is not known"
            raise _wrong(where, what)
        for name, inner in fields.items():
            inner(value[name], f"{where}.{name}" if where else name, count)

    return check


def _anything(value: Any, where: str, count: _Count) -> None:
    """Any JSON: counted alone."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        inside = item.values() if type(item) is dict else item if type(item) is list else ()
        count.add(len(inside))
        waiting += inside
