"""Samples that no label keeps: of each stretch in which nothing came or went, those that show most or least of something.

Between two changes of what is there, with the same owners in the census, every rule about a sample asks whether some
figure, or a sum of figures, is too large or too small. Whoever keeps the samples with the largest and the smallest of
each keeps one that breaks the rule, if any does.
"""

from __future__ import annotations

from operator import gt, lt

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
    found, not_known = _figures(body)
    key = (state.changes, (*found, *not_known))
    values = [*found.values()]
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


def _figures(body: MemorySampled) -> tuple[dict[str, int | float], list[str]]:
    """Everything about a sample that rules compare, and how many of its figures no probe gave; beside it the names of
    those that are not known: that they are not is noted of every sample."""
    process, census = body.process, body.census
    shown = {name: process[name] for name in JUDGED if name in process}
    for key, figure in sorted(body.cuda.items()):
        shown[f"cuda {key}"] = figure
    if census is not None:
        for owner, figure in sorted(census.by_owner.items()):
            shown[f"owner {owner}"] = figure
        for role, figure in sorted(census.evidence_host_by_role.items()):
            shown[f"evidence {role}"] = figure
        shown["unowned host"] = census.unowned_host_bytes
        shown["unowned device"] = census.unowned_device_bytes
        shown["unowned storages"] = census.unowned_host_storages
    values = {name: figure.value for name, figure in shown.items()}
    found: dict[str, int | float] = {name: value for name, value in values.items() if type(value) in NUMBERS}  # type: ignore[misc]
    not_known = [f"{name}, not known" for name in shown if name not in found] if len(found) < len(shown) else []
    told = 0
    for figure in shown.values():
        told += figure.source not in OBSERVERS
    _sums(found)
    for key in body.cuda:
        if key.endswith(".reserved"):
            _device(found, key.removesuffix(".reserved"))
    if census is not None:
        owned = sum([number for name, number in found.items() if name.startswith(("owner ", "evidence "))])
        found["owned"] = owned
        if "tree_sum" in found:
            found["tree_sum beyond owners"] = found["tree_sum"] - owned
    found["told"] = told
    return found, not_known


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
