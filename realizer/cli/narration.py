"""One line for people about each event: what it was about, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger import bodies
from ledger.counting import counted
from ledger.measurement import Measurement
from realizer.cli.rendering import amount, inert, measured, on_terminal, short_digest

CLASSES = (
    ("rss_anon", "anon"),
    ("rss_shmem", "shared"),
    ("rss_file", "file"),
    ("vm_swap", "swap"),
    ("tree_sum", "held"),
)
"""The process tree's figures that are shown, and what they are called: what is held is not the sum of those beside it."""


def subject(body: bodies.Body) -> str:
    """What the event is about: the id that it names, or nothing."""
    for name in ("materialization_id", "execution_id", "label"):
        value = getattr(body, name, None)
        if isinstance(value, str):
            return inert(value)
    if isinstance(body, bodies.AuthorityEstablished):
        return inert(body.logical_state_id)
    return ""


def narrate(body: bodies.Body) -> str:
    """What the event says, in one inert line."""
    told = _TOLD.get(type(body))
    return inert(told(body)) if told else ""


def _opened(body: Any) -> str:
    plan = short_digest(body.plan.computed_digest) if body.plan else "no plan"
    watched = f", witness of {body.witness_of}" if body.witness_of else ""
    labels = "".join(f", {key}={value}" for key, value in sorted(body.labels.items()))
    return f"{body.purpose} of {plan}{watched}{labels}"


def _closed(body: Any) -> str:
    return f"{body.outcome}: {body.error_type}: {body.message}" if body.error_type else str(body.outcome)


def _environment(body: Any) -> str:
    units = ", ".join(measured(unit.name) for unit in body.compute_units)
    resources = ", ".join(f"{r.key} {_size(r.capacity_bytes)}" for r in body.memory_resources)
    return f"{units}; {resources}"


def _size(measurement: Measurement | None) -> str:
    """Bytes inside a sentence: said to be bytes where they are the raw integer."""
    known = measurement is not None and measurement.value is not None and not on_terminal()
    return f"{measured(measurement)} bytes" if known else measured(measurement)


def _claimed(body: Any) -> str:
    return f"claimed {_size(body.bytes)} in {counted(measured(body.tensors), 'tensor')}, {measured(body.elapsed_ns)}"


def _observed(body: Any) -> str:
    live = {1: "live", 0: "not live"}.get(body.live.value, measured(body.live))
    return f"{live}, {_size(body.bytes)} in {counted(measured(body.tensors), 'tensor')} on {measured(body.memory_resource_id)}"


def _released(body: Any) -> str:
    return (
        f"{_size(body.bytes_before)} before, {_size(body.bytes_after)} after; "
        f"owners alive {measured(body.owners_alive)} of {measured(body.owners_total)}"
    )


def _reclaimed(body: Any) -> str:
    return f"{body.phase}: ratio {ratio(body.ratio)}, region {region(body.region_mapped)}"


def ratio(measurement: Measurement) -> str:
    """A give-back ratio as a percentage; unknown by its status."""
    value = measurement.value
    return f"{value:.2%}" if isinstance(value, int | float) else measured(measurement)


def region(measurement: Measurement) -> str:
    """Whether a region still stands in smaps."""
    if measurement.value is None:
        return measured(measurement)
    return "still mapped" if measurement.value else "gone"


def deviation(found: bodies.Deviation) -> str:
    """How far from the reference: exact, or the largest deviations with NaN and Inf counts."""
    if found.exact.value == 1:
        return "exact"
    counts = "".join(
        f", {measured(count)} {name}"
        for name, count in (("NaN", found.nan_count), ("Inf", found.inf_count))
        if count.value != 0
    )
    return f"max |d| {measured(found.max_absolute)}, relative {measured(found.max_relative)}{counts}"


def _decode(body: Any) -> str:
    what = "prefill" if body.phase == "prefill" else f"repetition {body.repetition}"
    unit = "token" if body.tokens.value == 1 else "tokens"
    return (
        f"{what} ({body.mode}): {deviation(body.output)}, {measured(body.tokens)} {unit}, {measured(body.elapsed_ns)}"
    )


def _watched(body: Any) -> str:
    return (
        f"own accesses {measured(body.tree_accesses)}, others {measured(body.other_accesses)}, "
        f"files mapped {measured(body.mapped_files)}, open {measured(body.open_descriptors)}"
    )


def _sampled(body: Any) -> str:
    shown = [(name, body.process.get(key)) for key, name in CLASSES]
    told = ", ".join(f"{name} {measured(value)}" for name, value in shown if value is not None)
    return told if on_terminal() or not told else f"bytes: {told}"


_TOLD: dict[type[bodies.Body], Callable[[Any], str]] = {
    bodies.PlanFrozen: lambda b: f"{short_digest(b.digest)}{f': {b.note}' if b.note else ''}",
    bodies.RunOpened: _opened,
    bodies.RunClosed: _closed,
    bodies.VerdictRecorded: lambda b: f"{b.verdict}, {b.assurance}{': ' + ', '.join(b.codes) if b.codes else ''}",
    bodies.RunSuperseded: lambda b: f"by {b.by}: {b.reason}",
    bodies.EnvironmentObserved: _environment,
    bodies.PlanAccepted: lambda b: ", ".join(
        f"{key} {amount(value)}" for key, value in sorted(b.required_bytes.items())
    ),
    bodies.PlanRejectedEvent: lambda b: "; ".join(f"{v.code} {v.subject}: {v.message}" for v in b.violations),
    bodies.ReferenceBound: lambda b: short_digest(measured(b.digest)),
    bodies.MaterializationStarted: lambda b: f"{b.role} on {b.memory_resource_id} as {b.representation}",
    bodies.MaterializationRealized: _claimed,
    bodies.MaterializationObserved: _observed,
    bodies.MaterializationSkipped: lambda b: b.reason,
    bodies.MaterializationFailed: lambda b: f"{b.error_type}: {b.message}",
    bodies.ReleaseAuthorized: lambda b: f"by {', '.join(b.qualifying_ids)}",
    bodies.ReleaseRefused: lambda b: b.reason,
    bodies.MaterializationReleased: _released,
    bodies.ReclamationObserved: _reclaimed,
    bodies.AuthorityEstablished: lambda b: f"lineage {measured(b.lineage)} held by {b.materialization_id}",
    bodies.ExecutionActivated: lambda b: f"on {measured(b.compute_unit_id)} with {len(b.state)} pieces of state",
    bodies.DecodeRan: _decode,
    bodies.SourceAccessed: lambda b: (
        f"{b.access} of {measured(b.path)} by {b.attributed_to}, {counted(measured(b.count), 'time')}"
    ),
    bodies.SourceWatched: _watched,
    bodies.MemorySampled: _sampled,
}
