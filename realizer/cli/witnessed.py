"""What a witness saw of each process, a line for each: device bytes, host bytes by class, checkpoint files, what is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from realizer.cli.rendering import cell, heading, in_bytes, joined, measured, table

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
COUNTS = ("checkpoint_mappings", "open_descriptors")


def witnessed_parts(state: RunState) -> Iterator[RenderableType]:
    """The processes as the witness last saw them, what it could not read and why, and the checkpoint files mapped."""
    seen = state.sample("closing")
    if state.opened is None or state.opened.body.purpose != "witness" or seen is None:
        return
    sample = seen.body
    processes = by_process(sample)
    names = [name if fact in COUNTS else in_bytes(name) for fact, name in SHOWN]
    rows, unread = [], []
    for pid, facts in processes.items():
        unknown = [name for name, figure in facts.items() if not figure.known]
        devices = ", ".join(f"{device} {measured(figure)}" for device, figure in on_devices(sample, pid).items())
        figures = (measured(facts.get(fact)) for fact, _ in SHOWN)
        unknowns = cell(len(unknown), "yellow" if unknown else "")
        rows.append((str(pid), measured(facts.get("command")), devices or "none", *figures, unknowns))
        if unknown:
            unread.append(joined((f"not known of {pid}:", "yellow"), ", ".join(unknown), separator=" "))
    yield from ("", heading("Processes"))
    yield table(("pid", "command", "devices", *names, "unknown"), rows, right=(*names, "unknown"))
    yield from unread
    for reason in reasons(sample, processes):
        yield joined(("not known:", "yellow"), reason, separator=" ")
    if sample.mapped_files:
        yield joined(("checkpoint files mapped:", "dim"), ", ".join(sample.mapped_files), separator=" ")
    if state.source_watch is not None:
        watch = state.source_watch.body
        told = f"by the processes {measured(watch.tree_accesses)}, by others {measured(watch.other_accesses)}"
        yield joined(("accesses to the checkpoint:", "dim"), told, separator=" ")


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


def reasons(sample: MemorySampled, processes: dict[int, dict[str, Measurement]]) -> list[str]:
    """Why something could not be read, each reason once."""
    found = []
    for facts in processes.values():
        found += [f"{figure.method}: {figure.detail}" for figure in facts.values() if not figure.known]
    whole = {name: figure for name, figure in sample.process.items() if not _OF_PROCESS.fullmatch(name)}
    for name, figure in {**whole, **sample.cuda}.items():
        if not figure.known:
            found.append(f"{name}: {figure.detail}")
    return list(dict.fromkeys(found))
