"""Samples that no label keeps: of each stretch in which nothing came or went, those that show most or least of something.

Between two changes of what is there, with the same owners in the census, every rule about a sample asks whether some
figure, or a sum of figures, is too large or too small. Whoever keeps the samples with the largest and the smallest of
each keeps one that breaks the rule, if any does.
"""

from __future__ import annotations

from functools import lru_cache
from operator import gt, lt
from typing import Any, NamedTuple

from ledger.bodies import MemorySampled
from ledger.folding.keeping import overflow
from ledger.run_state import (
    MOST_LABELS,
    OBSERVERS,
    READ_AT_EACH_SAMPLE,
    TREE_CLASSES,
    TREE_MAPPINGS,
    RunState,
    Seen,
    Stretch,
)

JUDGED = tuple(sorted(READ_AT_EACH_SAMPLE))
NUMBERS = frozenset({int, float})


def stretch(state: RunState, sequence: int, body: MemorySampled) -> None:
    """Keep the sample whole where it shows more, or less, of something than every other of its stretch."""
    names, values = _figures(body)
    key = (state.changes, names)
    ends = state.stretches.get(key)
    if ends is None:
        if len(state.stretches) >= MOST_LABELS:
            overflow(state, "samples")
            return
        seen = Seen(sequence, body)
        each = [seen] * len(values)
        state.stretches[key] = Stretch(values, each, values.copy(), each.copy())
        return
    # There are some forty, of which hardly ever one is new: all are asked at once, in C.
    if any(map(lt, values, ends.low)) or any(map(gt, values, ends.high)):
        seen = Seen(sequence, body)
        for at, value in enumerate(values):
            if value < ends.low[at]:
                ends.low[at], ends.lowest[at] = value, seen
            elif value > ends.high[at]:
                ends.high[at], ends.highest[at] = value, seen


def _figures(body: MemorySampled) -> tuple[tuple[str, ...], list[int | float]]:
    """Everything about a sample that rules compare, and how many of its figures no probe gave, by name; after those names
    come the names of what is not known: that it is not is noted of every sample."""
    process, cuda, census = body.process, body.cuda, body.census
    owners, roles = (census.by_owner, census.evidence_host_by_role) if census is not None else ({}, {})
    layout = _layout(tuple(process), tuple(cuda), census is not None, tuple(owners), tuple(roles))
    shown = [process[name] for name in layout.process]
    shown += [cuda[key] for key in layout.cuda]
    if census is not None:
        shown += [owners[owner] for owner in layout.owners]
        shown += [roles[role] for role in layout.roles]
        shown += [census.unowned_host_bytes, census.unowned_device_bytes, census.unowned_host_storages]
    said = [figure.__dict__ for figure in shown]  # one look at each model: it is much dearer than one at a dict
    values: list[Any] = [fields["value"] for fields in said]
    sources: list[str] = [fields["source"] for fields in said]
    told = len(sources) - sum(map(sources.count, OBSERVERS))
    if NUMBERS.issuperset(map(type, values)):
        found: dict[str, int | float] = dict(zip(layout.names, values, strict=True))
        _derive(found, layout, told)
        return layout.all_known, [*found.values()]
    found = {name: value for name, value in zip(layout.names, values, strict=True) if type(value) in NUMBERS}
    not_known = [f"{name}, not known" for name in layout.names if name not in found]
    _derive(found, layout, told)
    return (*found, *not_known), [*found.values()]


class _Layout(NamedTuple):
    """How the figures of samples that name the same ones follow each other."""

    process: tuple[str, ...]
    cuda: tuple[str, ...]
    owners: tuple[str, ...]
    roles: tuple[str, ...]
    names: tuple[str, ...]
    """Of all that are shown."""
    owned: tuple[str, ...] | None
    """Those of them that an owner explains; null without a census."""
    all_known: tuple[str, ...]
    """What is found where every one of them is known, in order."""


@lru_cache(maxsize=64)
def _layout(
    process: tuple[str, ...], cuda: tuple[str, ...], census: bool, owners: tuple[str, ...], roles: tuple[str, ...]
) -> _Layout:
    judged = tuple(name for name in JUDGED if name in process)
    cuda, owners, roles = tuple(sorted(cuda)), tuple(sorted(owners)), tuple(sorted(roles))
    owned = (*(f"owner {owner}" for owner in owners), *(f"evidence {role}" for role in roles))
    unowned = ("unowned host", "unowned device", "unowned storages") if census else ()
    names = (*judged, *(f"cuda {key}" for key in cuda), *owned, *unowned)
    layout = _Layout(judged, cuda, owners, roles, names, owned if census else None, ())
    found: dict[str, int | float] = dict.fromkeys(names, 0)
    _derive(found, layout, 0)
    return layout._replace(all_known=tuple(found))


def _derive(found: dict[str, int | float], layout: _Layout, told: int) -> None:
    """Add the sums and differences that rules compare."""
    _sums(found)
    for key in layout.cuda:
        if key.endswith(".reserved"):
            _device(found, key.removesuffix(".reserved"))
    if layout.owned is not None:
        owned = sum([found[name] for name in layout.owned if name in found])
        found["owned"] = owned
        if "tree_sum" in found:
            found["tree_sum beyond owners"] = found["tree_sum"] - owned
    found["told"] = told


CLASSES = TREE_CLASSES[:-1]
FILES = tuple(name for name in TREE_MAPPINGS if name != "checkpoint_mappings")


def _sums(found: dict[str, int | float]) -> None:
    """The tree's sum beyond pages that private memory, shared memory and both can hold, and what misfits come from."""
    try:
        tree, resident = found["tree_sum"], found["vm_rss"]
        anonymous, shared, swap, huge = (found[name] for name in CLASSES)
        files = sum([found[name] for name in FILES])
    except KeyError:
        return
    away = swap + huge
    found["beyond private"] = tree - anonymous - away
    found["beyond shared"] = tree - shared - away - files
    found["beyond classes"] = tree - anonymous - shared - away
    found["beyond pages"] = tree - anonymous - shared - away - files
    found["beyond both"] = tree - anonymous - shared - away - away - files
    if "rss_file" in found and "vm_hwm" in found:
        found["vm_rss beyond parts"] = resident - anonymous - shared - found["rss_file"]
        found["vm_hwm beyond vm_rss"] = found["vm_hwm"] - resident


def _device(found: dict[str, int | float], device: str) -> None:
    """What the pool has beyond its tensors, and the driver beyond the pool."""
    reserved = found.get(f"cuda {device}.reserved")
    for name in ("allocated", "process"):
        other = found.get(f"cuda {device}.{name}")
        if other is not None and reserved is not None:
            found[f"cuda {device} {name} beyond reserved"] = other - reserved
