"""What a witness saw of each process, a line for each: host bytes by class, checkpoint files, devices; and what is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from realizer.cli.rendering import heading, in_bytes, inert, joined, measured, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ledger.bodies import MemorySampled
    from ledger.measurement import Measurement
    from ledger.run_state import RunState

_OF_PROCESS = re.compile(r"pid:(?P<pid>\d+)\.(?P<fact>\w+)")
_ON_DEVICE = re.compile(r"(?P<device>.+)\.pid:(?P<pid>\d+)")
SHOWN = (
    ("rss_anon", "anon"),
    ("rss_shmem", "shared"),
    ("rss_file", "file"),
    ("vm_swap", "swap"),
    ("checkpoint_mappings", "maps"),
    ("open_descriptors", "open"),
)
"""Facts of a process that have a column, and what it is called."""
MOST_NAMED = 4


def witnessed_parts(state: RunState) -> Iterator[RenderableType]:
    """The processes as the witness last saw them, what it could not read and why, and the checkpoint files mapped."""
    seen = state.sample("closing")
    if state.opened is None or state.opened.body.purpose != "witness" or seen is None:
        return
    sample = seen.body
    processes = by_process(sample)
    names = [name for _, name in SHOWN]
    rows = []
    for pid, facts in processes.items():
        figures = [_short(facts.get(fact)) for fact, _ in SHOWN]
        devices = ", ".join(f"{device} {_short(figure)}" for device, figure in on_devices(sample, pid).items())
        rows.append((str(pid), _short(facts.get("command")), *figures, *([devices or "none"] if sample.cuda else [])))
    yield from ("", heading(in_bytes("Processes")))
    columns = ("pid", "command", *names, *(["devices"] if sample.cuda else []))
    yield table(columns, rows, right=names)
    for what, reason in not_known(state, sample):
        yield joined(("not known", "yellow"), what, separator=" ").append(f": {inert(reason)}")
    if sample.mapped_files:
        yield joined(("checkpoint files mapped:", "dim"), ", ".join(sample.mapped_files), separator=" ")
    if state.source_watch is not None:
        watch = state.source_watch.body
        told = f"by the processes {measured(watch.tree_accesses)}, by others {measured(watch.other_accesses)}"
        yield joined(("accesses to the checkpoint:", "dim"), told, separator=" ")


def _short(figure: Measurement | None) -> str:
    """The value; what is not known takes one column, and its reason stands below."""
    return measured(figure) if figure is not None and figure.known else "?"


def by_process(sample: MemorySampled) -> dict[int, dict[str, Measurement]]:
    """Process id -> its facts, in the order of the sample."""
    found: dict[int, dict[str, Measurement]] = {}
    for key, figure in sample.process.items():
        matched = _OF_PROCESS.fullmatch(key)
        if matched is not None:
            found.setdefault(int(matched["pid"]), {})[matched["fact"]] = figure
    return dict(sorted(found.items()))


def on_devices(sample: MemorySampled, pid: int) -> dict[str, Measurement]:
    """Device -> bytes of that process there."""
    matches = ((_ON_DEVICE.fullmatch(key), figure) for key, figure in sample.cuda.items())
    return {
        matched["device"]: figure for matched, figure in matches if matched is not None and int(matched["pid"]) == pid
    }


def not_known(state: RunState, sample: MemorySampled) -> list[tuple[str, str]]:
    """(what of whom, why), each reason once however many processes share it."""
    of_processes: dict[str, tuple[list[str], list[int]]] = {}
    for pid, facts in by_process(sample).items():
        for name, figure in facts.items():
            if not figure.known:
                reason = re.sub(rf"\b{pid}\b", "PID", _reason(figure))
                names, pids = of_processes.setdefault(reason, ([], []))
                names += [name] if name not in names else []
                pids += [pid] if pid not in pids else []
    found = [(f"of {_some(pids)}: {', '.join(names)}", why) for why, (names, pids) in of_processes.items()]
    of_tree: dict[str, list[str]] = {}
    for name, figure in {**sample.process, **sample.cuda}.items():
        if not figure.known and not _OF_PROCESS.fullmatch(name):
            of_tree.setdefault(_reason(figure), []).append(name)
    if not sample.cuda:
        devices = state.environment.body.facts.get("cuda") if state.environment is not None else None
        if devices is not None and not devices.known:
            of_tree.setdefault(_reason(devices), []).append("device memory")
    if state.source_watch is not None:
        watch = state.source_watch.body
        for name, figure in (("accesses by the processes", watch.tree_accesses), ("by others", watch.other_accesses)):
            if not figure.known:
                of_tree.setdefault(_reason(figure), []).append(name)
    return found + [(f"of the tree: {', '.join(names)}", why) for why, names in of_tree.items()]


def _reason(figure: Measurement) -> str:
    return figure.detail or figure.status


def _some(pids: list[int]) -> str:
    """So many of them as a line has room for."""
    named = ", ".join(map(str, pids[:MOST_NAMED]))
    return named if len(pids) <= MOST_NAMED else f"{named} and {len(pids) - MOST_NAMED} more"
