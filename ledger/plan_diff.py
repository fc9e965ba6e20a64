"""Two plans side by side: typed differences, with parts matched by their id and not by their place in a list."""

from __future__ import annotations

import json
from typing import Any

from ledger.documents import Difference
from ledger.plan import Plan

SHOWN_ITEMS = 5
"""Of a long list of names that differs, this many are shown from each side, beside the count."""


def plan_differences(a: Plan, b: Plan) -> list[Difference]:
    """What differs between two plans, sorted by path; empty exactly when their JSON is equal, an absent field and null
    being alike.

    Parts of a list are matched by `id`, or by `name` or what they refer to where they have none. Kind `expected` is
    what changes nothing that the judge looks at: the digest, which follows from the rest, and the order of lists.
    """
    found: list[Difference] = []
    _compare("", a.raw, b.raw, found)
    return sorted(found, key=lambda difference: difference.path)


def _compare(path: str, a: Any, b: Any, found: list[Difference]) -> None:
    if type(a) is type(b) and a == b and json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True):
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            _compare(f"{path}.{key}" if path else key, a.get(key), b.get(key), found)
        return
    if isinstance(a, list) and isinstance(b, list):
        _compare_lists(path, a, b, found)
        return
    kind = "expected" if path == "digest" else "different"
    found.append(Difference(path=path, a=a, b=b, kind=kind))


def _compare_lists(path: str, a: list[Any], b: list[Any], found: list[Difference]) -> None:
    named_a, named_b = _by_name(a), _by_name(b)
    if named_a is None or named_b is None:
        _compare_plain(path, a, b, found)
        return
    for name in sorted(named_a.keys() | named_b.keys()):
        _compare(f"{path}[{name}]", named_a.get(name), named_b.get(name), found)
    common_a = [name for name in named_a if name in named_b]
    common_b = [name for name in named_b if name in named_a]
    if common_a != common_b:
        found.append(Difference(path=f"{path}.order", a=common_a, b=common_b, kind="expected"))


def _by_name(items: list[Any]) -> dict[str, Any] | None:
    """The items by their name, in order; None when one has none or two share one."""
    named: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, dict):
            return None
        name = item.get("id", item.get("name"))
        if name is None:
            name = "/".join(
                str(item[key])
                for key in ("logical_state_id", "memory_resource_id", "materialization_id")
                if key in item
            )
        if not name or str(name) in named:
            return None
        named[str(name)] = item
    return named


def _compare_plain(path: str, a: list[Any], b: list[Any], found: list[Difference]) -> None:
    """Lists without names: by what each alone holds; where both hold the same, their order differs."""
    texts_a, texts_b = (
        [json.dumps(item, sort_keys=True) for item in a],
        [json.dumps(item, sort_keys=True) for item in b],
    )
    if sorted(texts_a) == sorted(texts_b):
        found.append(Difference(path=f"{path}.order", a=_shown(a), b=_shown(b), kind="expected"))
        return
    in_a, in_b = set(texts_a), set(texts_b)
    found.append(
        Difference(
            path=path,
            a=_shown(a, [item for item, text in zip(a, texts_a, strict=True) if text not in in_b]),
            b=_shown(b, [item for item, text in zip(b, texts_b, strict=True) if text not in in_a]),
            kind="different",
        )
    )


def _shown(items: list[Any], only: list[Any] | None = None) -> Any:
    """A short list as it is; of a long one its length and what only this side holds."""
    if len(items) <= SHOWN_ITEMS:
        return items
    shown: dict[str, Any] = {"items": len(items)}
    if only is not None:
        shown |= {"only_here": len(only), "first": only[:SHOWN_ITEMS]}
    return shown
