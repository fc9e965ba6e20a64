"""Samples that no label keeps: of each stretch in which nothing came or went, those that show most or least of something.

Between two changes of what is there, with the same owners in the census, every rule about a sample asks whether some
figure, or a sum of figures, is too large or too small. Whoever keeps the samples with the largest and the smallest of
each keeps one that breaks the rule, if any does.
"""

from __future__ import annotations

from ledger.bodies import MemorySampled
from ledger.folding.keeping import overflow
from ledger.run_state import (
    MOST_LABELS,
    NUMBER,
    OBSERVERS,
    READ_AT_EACH_SAMPLE,
    TREE_CLASSES,
    TREE_MAPPINGS,
    Ends,
    RunState,
    Seen,
)


def stretch(state: RunState, sequence: int, body: MemorySampled) -> None:
    """Keep the sample whole where it shows more, or less, of something than every other of its stretch."""
    census = body.census
    key = (state.changes, frozenset(census.by_owner) if census is not None else None)
    ends = state.stretches.get(key)
    if ends is None:
        if len(state.stretches) >= MOST_LABELS:
            overflow(state, "samples")
            return
        ends = state.stretches[key] = {}
    seen: Seen[MemorySampled] | None = None
    for name, value in _figures(body).items():
        end = ends.get(name)
        if end is not None and end.low <= value <= end.high:
            continue
        seen = seen or Seen(sequence, body)
        if end is None:
            ends[name] = Ends(value, seen, value, seen)
        elif value < end.low:
            ends[name] = end._replace(low=value, lowest=seen)
        else:
            ends[name] = end._replace(high=value, highest=seen)


def _figures(body: MemorySampled) -> dict[str, int | float]:
    """Everything about a sample that rules compare, and how many of its figures no probe gave. One that is not known is
    left out: that it is not is noted of every sample."""
    found: dict[str, int | float] = {}
    told = 0
    for key in READ_AT_EACH_SAMPLE:
        figure = body.process.get(key)
        if figure is not None and isinstance(figure.value, NUMBER):
            found[key] = figure.value
            told += figure.source not in OBSERVERS
    _sums(found)
    for key, figure in body.cuda.items():
        if isinstance(figure.value, NUMBER):
            found[f"cuda {key}"] = figure.value
            told += figure.source not in OBSERVERS
            if key.endswith(".reserved"):
                _device(found, body, key.removesuffix(".reserved"), figure.value)
    census = body.census
    if census is not None:
        owned: int | float = 0
        for kind, figures in (("owner", census.by_owner), ("evidence", census.evidence_host_by_role)):
            for name, figure in figures.items():
                if isinstance(figure.value, NUMBER):
                    found[f"{kind} {name}"] = figure.value
                    owned += figure.value
                    told += figure.source not in OBSERVERS
        for kind, figure in (
            ("host", census.unowned_host_bytes),
            ("device", census.unowned_device_bytes),
            ("storages", census.unowned_host_storages),
        ):
            if isinstance(figure.value, NUMBER):
                found[f"unowned {kind}"] = figure.value
                told += figure.source not in OBSERVERS
        found["owned"] = owned
        if "tree_sum" in found:
            found["tree_sum beyond owners"] = found["tree_sum"] - owned
    found["told"] = told
    return found


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


def _device(found: dict[str, int | float], body: MemorySampled, device: str, reserved: int | float) -> None:
    """What the pool has beyond its tensors, and the driver beyond the pool."""
    for name in ("allocated", "process"):
        other = body.cuda.get(f"{device}.{name}")
        if other is not None and isinstance(other.value, NUMBER):
            found[f"cuda {device} {name} beyond reserved"] = other.value - reserved
