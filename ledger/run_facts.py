"""A run laid out flat: path -> fact, each with the rule by which two runs' facts are held against each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ledger.bodies import AddressRange, BoundState
from ledger.measurement import Measurement, Measurements
from ledger.run_state import DecodeState, DeviationState, Extremes, MaterializationState, RunState, trust

Rule = Literal["exact", "incidental", "memory", "time"]
"""How a fact is compared. `exact`: any difference is one. `incidental`: names, ids, addresses and counters of the
machine, which differ from run to run. `memory`: bytes, alike within the noise that the plan allows. `time`: never a
difference, shown as a ratio."""

_PID = re.compile(r"\bpid:(\d+)")
COUNTERS = frozenset({"minor_faults", "major_faults", "swap_in", "swap_out"})


class Fact(NamedTuple):
    value: Any
    rule: Rule = "exact"


Facts = dict[str, Fact]


@dataclass(frozen=True)
class Step:
    """One step of a run, by a name that is the same in every run of its plan, and its place in the run."""

    sequence: int
    name: str


def run_facts(state: RunState) -> Facts:
    """Everything of a run that may differ from another, by path."""
    facts: Facts = {}
    for section in SECTIONS:
        for path, fact in section(state):
            facts[path] = fact
    return facts


Section = Callable[[RunState], Iterator[tuple[str, Fact]]]


def _value(measurement: Measurement | None) -> Any:
    """The value where one is known, else why there is none. Unknown is never equal to zero."""
    if measurement is None:
        return "not recorded"
    return measurement.value if measurement.known else measurement.status


def _told(path: str, measurement: Measurement | None, rule: Rule = "exact") -> Iterator[tuple[str, Fact]]:
    """The value, and how far it can be trusted."""
    yield path, Fact(_value(measurement), rule)
    if measurement is not None:
        yield f"{path}.trust", Fact(trust(measurement))


def _range(extremes: Extremes | None) -> Any:
    """Lowest and highest as one value where they agree, beside the word `unknown` where some value was not."""
    if extremes is None:
        return "not recorded"
    values = [figure.value for figure in (extremes.low, extremes.high) if figure is not None]
    shown: list[Any] = values[:1] if len(set(values)) == 1 else values
    if extremes.unknown is not None:
        shown = [*shown, "unknown"]
    return shown[0] if len(shown) == 1 else shown


def _some(extremes: Extremes) -> Any:
    """Whether a count was ever above zero, or that it is not known."""
    if extremes.unknown is not None or extremes.high is None:
        return "unknown"
    return extremes.high.value > 0


def _figures(
    prefix: str, figures: Measurements, rule: Rule = "memory", members: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Fact]]:
    """Figures by key; counters and words of the machine are incidental. Of `members` by process id the place is told."""
    for key, measurement in figures.items():
        bytes_ = measurement.unit in ("bytes", None) and key not in COUNTERS
        yield f"{prefix}[{_by_place(key, members or {})}]", Fact(_value(measurement), rule if bytes_ else "incidental")


def _by_place(key: str, members: Mapping[str, str]) -> str:
    """The key, its process told by the place."""
    return _PID.sub(lambda found: members.get(found[1], found[0]), key)


def _members(keys: Iterable[str]) -> dict[str, str]:
    """Process id -> its place among those that the keys name, by their ids, which are other ones in every run."""
    pids = sorted({pid for key in keys for pid in _PID.findall(key)}, key=lambda pid: (len(pid), pid))
    return {pid: f"member:{place}" for place, pid in enumerate(pids, start=1)}


# --- the run ------------------------------------------------------------------------------------------------------


def _run(state: RunState) -> Iterator[tuple[str, Fact]]:
    yield "run.id", Fact(state.run_id, "incidental")
    yield "run.events", Fact(state.events_seen, "incidental")
    yield "run.outcome", Fact(state.outcome)
    yield "run.elapsed_ns", Fact(state.last_elapsed, "time")
    yield "run.superseded", Fact([seen.body.reason for seen in state.superseded])
    yield "run.superseded_by", Fact(state.superseded_by, "incidental")
    yield "run.after_close", Fact([kind for _, kind in state.after_close])
    yield "run.time_regressions", Fact(len(state.time_regressions))
    yield "run.left_out", Fact(dict(sorted(state.overflowed.items())))
    yield "run.witnesses", Fact(len(state.witnesses))
    if state.closed is not None:
        yield "run.error", Fact([state.closed.body.error_type, state.closed.body.message])
    if state.opened is None:
        return
    opened = state.opened.body
    yield "run.opened", Fact(len(state.openings))
    yield "run.purpose", Fact(opened.purpose)
    yield "run.plan_digest", Fact(opened.plan.computed_digest if opened.plan else None)
    yield "run.freezing_cited", Fact(opened.frozen is not None)
    yield "run.witness_of", Fact(opened.witness_of, "incidental")
    yield "run.challenge", Fact(opened.challenge, "incidental")
    for name in ("argv", "user", "hostname", "pid"):
        yield f"run.{name}", Fact(_value(getattr(opened, name)), "incidental")
    for name, label in opened.labels.items():
        yield f"run.labels[{name}]", Fact(label, "incidental")
    for name, text in opened.provenance.items():
        yield f"run.provenance[{name}]", Fact(text)


def _software(state: RunState) -> Iterator[tuple[str, Fact]]:
    if state.opened is None:
        return
    opened = state.opened.body
    for name, version in opened.software.versions.items():
        yield f"software.versions[{name}]", Fact(version)
    for name in ("source_commit", "source_dirty", "files_digest"):
        yield f"software.{name}", Fact(_value(getattr(opened.software, name)))
    yield "software.adapter", Fact(opened.adapter.model_dump() if opened.adapter else None)


def _model(state: RunState) -> Iterator[tuple[str, Fact]]:
    if state.opened is None:
        return
    opened = state.opened.body
    if opened.model is not None:
        for name in ("repository", "revision", "config_digest", "headers_digest"):
            yield f"model.{name}", Fact(_value(getattr(opened.model, name)))
        yield "model.directory", Fact(_value(opened.model.directory), "incidental")
    for file in opened.checkpoint_files:
        yield f"model.files[{file.name}].size", Fact(_value(file.size))
        yield f"model.files[{file.name}].digest", Fact(_value(file.digest))
    for seen in state.references[-1:]:
        body = seen.body
        yield "reference.planned_digest", Fact(body.planned_digest)
        yield from _told("reference.digest", body.digest)
        if body.size is not None:
            yield from _told("reference.size", body.size)
        for name, text in body.provenance.items():
            yield f"reference.provenance[{name}]", Fact(text)
    yield "reference.bound", Fact(len(state.references))


def _environment(state: RunState) -> Iterator[tuple[str, Fact]]:
    if state.rejected is not None:
        violations = sorted(f"{item.code} {item.subject}: {item.message}" for item in state.rejected.body.violations)
        yield "plan.violations", Fact(violations)
    if state.accepted is not None:
        for name, size in state.accepted.body.required_bytes.items():
            yield f"plan.required_bytes[{name}]", Fact(size)
        for name, key in state.accepted.body.bindings.items():
            yield f"plan.bindings[{name}]", Fact(key)
    if state.environment is None:
        return
    body = state.environment.body
    for unit in body.compute_units:
        path = f"environment.compute_units[{unit.key}]"
        for name in ("kind", "device_uuid", "name"):
            yield from _told(f"{path}.{name}", getattr(unit, name))
        yield f"{path}.memory_resources", Fact(sorted(unit.memory_resources))
    for resource in body.memory_resources:
        path = f"environment.memory_resources[{resource.key}]"
        yield from _told(f"{path}.kind", resource.kind)
        yield from _told(f"{path}.capacity_bytes", resource.capacity_bytes)
        yield f"{path}.available_bytes", Fact(_value(resource.available_bytes), "incidental")
        yield f"{path}.parent", Fact(resource.parent)
    for name, measurement in body.facts.items():
        yield f"environment.facts[{name}]", Fact(_value(measurement))


# --- materialization and release ----------------------------------------------------------------------------------


def _materializations(state: RunState) -> Iterator[tuple[str, Fact]]:
    for name, found in state.materializations.items():
        path = f"materializations[{name}]"
        yield f"{path}.events", Fact(_counts(found))
        yield f"{path}.live", Fact(found.live)
        yield from _as_realized(path, found)
        yield from _as_observed(path, found)
        yield from _as_released(path, found)


def _counts(found: MaterializationState) -> dict[str, int]:
    """How often each thing happened to it, as far as is kept, and how often out of turn."""
    kinds = ("started", "realized", "observed", "skipped", "failed", "authorized", "refused", "released")
    out_of_turn = ("duplicates", "rematerialized", "unauthorized")
    counts = {kind: len(getattr(found, kind)) for kind in (*kinds, *out_of_turn)}
    return {kind: count for kind, count in counts.items() if count}


def _as_realized(path: str, found: MaterializationState) -> Iterator[tuple[str, Fact]]:
    for seen in found.started[-1:]:
        yield f"{path}.begun", Fact(seen.body.model_dump(mode="json", exclude={"materialization_id"}))
    for realized in found.realized[-1:]:
        claim = realized.body
        names = ("logical_state_id", "memory_resource_id", "representation", "role", "persistence")
        yield f"{path}.claimed", Fact({name: getattr(claim, name) for name in names})
        for name in ("bytes", "tensors", "streamed_bytes", "unplanned_bytes"):
            yield f"{path}.claimed.{name}", Fact(_value(getattr(claim, name)))
        yield f"{path}.elapsed_ns", Fact(_value(claim.elapsed_ns), "time")
    for skipped in found.skipped[-1:]:
        yield f"{path}.skipped", Fact(skipped.body.reason)
    for failed in found.failed[-1:]:
        yield f"{path}.failed", Fact([failed.body.error_type, failed.body.message])


def _as_observed(path: str, found: MaterializationState) -> Iterator[tuple[str, Fact]]:
    for seen in found.observed[-1:]:
        body = seen.body
        yield f"{path}.logical_state_id", Fact(body.logical_state_id)
        yield f"{path}.role", Fact(body.role)
        yield f"{path}.persistence", Fact(body.persistence)
        for name in ("memory_resource_id", "representation", "bytes", "storages", "tensors"):
            yield from _told(f"{path}.{name}", getattr(body, name))
        yield from _told(f"{path}.seen_live", body.live)
        for name in ("source_digest", "resident_digest"):
            yield from _told(f"{path}.{name}", getattr(body, name))
        yield f"{path}.ranges", Fact(_ranges(body.ranges), "incidental")
        yield f"{path}.spaces", Fact(sorted(item.space for item in body.ranges))


def _ranges(ranges: Iterable[AddressRange]) -> list[str]:
    return [f"{item.space} {item.start:#x}+{item.length}" for item in ranges]


def _as_released(path: str, found: MaterializationState) -> Iterator[tuple[str, Fact]]:
    for authorized in found.authorized[-1:]:
        yield f"{path}.release.qualifying_ids", Fact(sorted(authorized.body.qualifying_ids))
    for refused in found.refused[-1:]:
        yield f"{path}.release.refused", Fact(refused.body.reason)
    if found.released:
        for name in ("bytes_before", "bytes_after", "released_bytes", "owners_total", "owners_alive"):
            yield f"{path}.release.{name}", Fact(_range(getattr(found, name)))
    for phase, reclaimed in found.reclamations.items():
        inner = f"{path}.reclamation[{phase}]"
        for name in ("owners_total", "owners_alive", "region_mapped"):
            yield f"{inner}.{name}", Fact(_range(getattr(reclaimed, name)))
        yield f"{inner}.given_back", Fact(_range(reclaimed.given_back), "memory")
        yield f"{inner}.count", Fact(reclaimed.count)


# --- authority, execution, decode ---------------------------------------------------------------------------------


def _authorities(state: RunState) -> Iterator[tuple[str, Fact]]:
    for unit, established in state.authorities.items():
        path = f"authorities[{unit}]"
        yield f"{path}.events", Fact(len(established))
        body = established[-1].body
        yield f"{path}.materialization_id", Fact(body.materialization_id)
        yield from _told(f"{path}.lineage", body.lineage)
        yield from _told(f"{path}.memory_resource_id", body.memory_resource_id)
        yield f"{path}.owner_range", Fact(_ranges([body.owner_range] if body.owner_range else []), "incidental")
        yield f"{path}.owner_seen", Fact(body.owner_range is not None)


def _executions(state: RunState) -> Iterator[tuple[str, Fact]]:
    for name, execution in state.executions.items():
        path = f"executions[{name}]"
        yield f"{path}.events", Fact(execution.count)
        body = execution.activations[-1].body
        yield from _told(f"{path}.compute_unit_id", body.compute_unit_id)
        yield f"{path}.strategy_unit", Fact(body.strategy_unit)
        yield f"{path}.state", Fact(sorted(_bound(item) for item in body.state))


def _bound(item: BoundState) -> str:
    return f"{item.logical_state_id} by {item.materialization_id} on {item.memory_resource_id}"


def _decodes(state: RunState) -> Iterator[tuple[str, Fact]]:
    for name, decode in state.decodes.items():
        path = f"decode[{name}]"
        yield from _decode(path, decode)
        for side, deviation in (("input", decode.input), ("output", decode.output)):
            yield from _deviation(f"{path}.{side}", deviation)


def _decode(path: str, decode: DecodeState) -> Iterator[tuple[str, Fact]]:
    yield f"{path}.prefills", Fact(decode.prefills)
    yield f"{path}.repetitions", Fact(decode.runs)
    yield f"{path}.numbered", Fact([decode.repeated, sorted(decode.beyond), decode.unnumbered is not None])
    yield f"{path}.modes", Fact(sorted(decode.modes))
    yield f"{path}.tokens", Fact(sorted(decode.token_digests))
    yield f"{path}.outputs", Fact(sorted(decode.output_digests))
    yield f"{path}.prefill_outputs", Fact(sorted(decode.prefill_digests))
    yield f"{path}.digests_known", Fact(decode.digest_unknown is None)
    yield f"{path}.plan_lookups", Fact(_range(decode.plan_lookups))
    yield f"{path}.fastest_ns", Fact(decode.elapsed_ns.low.value if decode.elapsed_ns.low else None, "time")
    yield f"{path}.slowest_ns", Fact(decode.elapsed_ns.high.value if decode.elapsed_ns.high else None, "time")


def _deviation(path: str, deviation: DeviationState) -> Iterator[tuple[str, Fact]]:
    for name in ("exact", "within_tolerance", "max_absolute", "max_relative", "nan_count", "inf_count"):
        yield f"{path}.{name}", Fact(_range(getattr(deviation, name)))
    yield f"{path}.finite", Fact(deviation.failed is None)


def _source(state: RunState) -> Iterator[tuple[str, Fact]]:
    rules: dict[str, Rule] = {"read_bytes": "memory", "other_accesses": "incidental"}
    for name, extremes in state.watch.items():
        yield f"source.{name}", Fact(_range(extremes), rules.get(name, "exact"))
        if name == "other_accesses":
            yield "source.seen_by_others", Fact(_some(extremes))
    for who, events in state.source_accesses.by.items():
        yield f"source.accesses[{who}]", Fact(events)


# --- memory -------------------------------------------------------------------------------------------------------


def _memory(state: RunState) -> Iterator[tuple[str, Fact]]:
    members = _members(state.peaks)
    for key, figure in state.peaks.items():
        counter = key.rpartition("/")[2] in COUNTERS
        yield f"memory.peaks[{_by_place(key, members)}]", Fact(figure.value, "incidental" if counter else "memory")
    for label, kept in state.samples.items():
        body = kept[-1].body
        path = f"memory.samples[{label}]"
        yield f"{path}.taken", Fact(True)
        members = _members(body.process)
        yield from _figures(f"{path}.process", body.process, members=members)
        yield from _figures(f"{path}.cuda", body.cuda, members=members)
        yield from _figures(f"{path}.host", body.host, "incidental")
        yield from _figures(f"{path}.cgroup", body.cgroup, "incidental")
        yield f"{path}.mapped_files", Fact(len(body.mapped_files))
        yield f"{path}.mapped_file_names", Fact(sorted(body.mapped_files), "incidental")
        if body.census is None:
            continue
        for owner, size in body.census.by_owner.items():
            yield f"{path}.owned[{owner}]", Fact(_value(size))
        yield f"{path}.unowned_host_bytes", Fact(_value(body.census.unowned_host_bytes), "memory")
        yield f"{path}.unowned_device_bytes", Fact(_value(body.census.unowned_device_bytes), "memory")
        yield f"{path}.unowned_host_storages", Fact(_value(body.census.unowned_host_storages), "incidental")
        yield from _figures(f"{path}.evidence", body.census.evidence_host_by_role)


SECTIONS: tuple[Section, ...] = (
    _run,
    _software,
    _model,
    _environment,
    _materializations,
    _authorities,
    _executions,
    _decodes,
    _source,
    _memory,
)

# --- order --------------------------------------------------------------------------------------------------------


def steps(state: RunState) -> list[str]:
    """The names of the run's steps, in the order in which they first happened."""
    found = list(_steps(state))
    return [step.name for step in sorted(found, key=lambda step: (step.sequence, step.name))]


def _steps(state: RunState) -> Iterator[Step]:
    for seen in (state.opened, state.environment, state.accepted, state.rejected, state.closed, state.source_watch):
        if seen is not None:
            yield Step(seen.sequence, seen.body.TYPE)
    for reference in state.references[:1]:
        yield Step(reference.sequence, reference.body.TYPE)
    for label, kept in state.samples.items():
        yield Step(kept[0].sequence, f"memory.sampled {label}")
    for name, found in state.materializations.items():
        kinds: tuple[list[Any], ...] = (
            found.started, found.realized, found.observed, found.skipped, found.failed, found.authorized,
            found.refused, found.released,
        )  # fmt: skip
        for events in kinds:
            for event in events[:1]:
                yield Step(event.sequence, f"{event.body.TYPE} {name}")
        for phase, reclaimed in found.reclamations.items():
            if reclaimed.first is not None:
                yield Step(reclaimed.first.sequence, f"reclamation.observed {name} {phase}")
    for unit, established in state.authorities.items():
        yield Step(established[0].sequence, f"authority.established {unit}")
    for name, execution in state.executions.items():
        yield Step(execution.activations[0].sequence, f"execution.activated {name}")
    for name, decode in state.decodes.items():
        if decode.first is not None:
            yield Step(decode.first, f"decode.ran {name}")
    for who, accesses in state.source_accesses.kept.items():
        yield Step(accesses[0].sequence, f"source.accessed {who}")
