"""The tables of docs/adapters.md against the protocol: every member is there, with the signature that the code has."""

from __future__ import annotations

import inspect
import re

import pytest

from realizer import answers
from realizer.adapter import Adapter
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")


def rows(heading: str, page: str = PAGE) -> list[list[str]]:
    """Cells of the rows of the section's table, its head left out."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def declared(name: str) -> tuple[str, str, str]:
    """(call, what it gives back, what it is called on), as the protocol declares the member."""
    member = inspect.getattr_static(Adapter, name, None)
    if member is None:
        return f"`{name}`", f"`{Adapter.__annotations__[name]}`", "class"
    if isinstance(member, property):
        return f"`{name}`", f"`{inspect.signature(member.fget).return_annotation}`", "object"
    on = "class" if isinstance(member, classmethod) else "object"
    signature = inspect.signature(member.__func__ if on == "class" else member)
    said = [
        parameter.name if parameter.default is parameter.empty else f'{parameter.name}="{parameter.default}"'
        for parameter in list(signature.parameters.values())[1:]
    ]
    return f"`{name}({', '.join(said)})`", f"`{signature.return_annotation}`", on


def test_every_member_is_listed_as_it_is_declared() -> None:
    names = ["__init__", *answers.MEMBERS]
    assert {tuple(row[:3]) for row in rows("Every member")} == {declared(name) for name in names}
    assert len(rows("Every member")) == len(names)
    public = {name for name in vars(Adapter) if not name.startswith("_")} | set(Adapter.__annotations__)
    assert public == set(answers.MEMBERS)
    assert all(row[3] and row[4] for row in rows("Every member"))


def test_optional_members_are_those_that_the_protocol_speaks_of() -> None:
    spoken = re.findall(r"`(\w+)\(", inspect.getdoc(Adapter) or "")
    listed = [name for row in rows(r"\d+\. What may come besides") for name in re.findall(r"`(\w+)\(", row[0])]
    assert sorted(listed) == sorted(spoken)
    assert len(listed) > 4


@pytest.mark.parametrize(
    ("said", "instead"),
    [("draft(checkpoint, request)", "draft(request)"), ("| `Draft` | class |", "| `Draft` | object |")],
)
def test_a_signature_that_is_another_is_found(said: str, instead: str) -> None:
    assert PAGE.count(said) == 1
    changed = {tuple(row[:3]) for row in rows("Every member", PAGE.replace(said, instead))}
    assert declared("draft") not in changed
