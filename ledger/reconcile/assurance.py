"""How much a verdict rests on: somebody's word, independent probes, or digests of the bytes themselves."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.bodies import Assurance, MaterializationObserved
from ledger.measurement import Measurement
from ledger.plan import Plan
from ledger.reconcile.content import content_doubts
from ledger.reconcile.reading import every_sample, known, persistent, planned_in_order
from ledger.run_state import READ_AT_EACH_SAMPLE, Extremes, MaterializationState, RunState, is_digest, trust

LEVELS: tuple[Assurance, ...] = ("declared", "observed", "content-verified")


def assurances(plan: Plan, state: RunState) -> dict[str, Assurance]:
    """Assurance of every planned materialization that events speak of."""
    doubted = {doubt.name for doubt in content_doubts(plan, state)}
    return {
        planned.id: assurance_of(state.materializations[planned.id], planned.id in doubted)
        for planned in planned_in_order(plan)
        if planned.id in state.materializations
    }


def assurance_of(found: MaterializationState, doubted: bool = False) -> Assurance:
    """`observed` when every observation was measured by probe or witness, `content-verified` when source and resident
    digests were measured as well and agree, and no other materialization's digest shows that they cannot be of these bytes
    (`doubted`), else `declared`."""
    if not found.observed:
        return "declared"
    for seen in found.observed:
        body = seen.body
        facts = (body.memory_resource_id, body.representation, body.bytes, body.storages, body.tensors, body.live)
        if any(trust(measurement) != "observed" for measurement in facts):
            return "declared"
    if any(
        said.origin == "observed" and said.trust == "declared"
        for fact in ("resource", "representation", "bytes", "storages", "tensors", "live")
        for said in found.said.get(fact, {})
    ):
        return "declared"
    return "content-verified" if not doubted and all(_verified(seen.body) for seen in found.observed) else "observed"


def _verified(body: MaterializationObserved) -> bool:
    source, resident = body.source_digest, body.resident_digest
    if source is None or resident is None or trust(source) != "observed" or trust(resident) != "observed":
        return False
    return source.value == resident.value and is_digest(source)


def overall(plan: Plan, state: RunState) -> Assurance:
    """The least over the required persistent materializations of `immutable_source` units; the others need `observed`.

    Where the plan has none of those, nothing can be better than `observed`. Where a figure of memory, release, decode or
    checkpoint access that the verdict rests on is somebody's word, the whole is `declared`.
    """
    if (
        state.imported
        or rests_on_somebodys_word(state)
        or any(trust(one) == "declared" for one in _identity(plan, state))
    ):
        return "declared"
    least = LEVELS.index("content-verified")
    levels = assurances(plan, state)
    sources = 0
    for planned in persistent(plan):
        if planned.requirement != "required":
            continue
        level = LEVELS.index(levels.get(planned.id, "declared"))
        unit = plan.units.get(planned.logical_state_id)
        if unit is not None and unit.semantic_class == "immutable_source":
            sources += 1
            least = min(least, level)
        elif level == 0:
            least = 0
    return LEVELS[least if sources else min(least, LEVELS.index("observed"))]


def _identity(plan: Plan, state: RunState) -> Iterator[Measurement]:
    """What shows that the checkpoint is the planned one: its digests, or its name where those do not settle it; its files."""
    planned = plan.document.model
    files = {file.name: file for file in plan.document.checkpoint.files} if plan.document.checkpoint else {}
    for seen in state.openings:
        model = seen.body.model
        if model is not None:
            asked = [
                figure
                for digest, figure in (
                    (planned.config_digest, model.config_digest),
                    (planned.headers_digest, model.headers_digest),
                )
                if digest is not None
            ]
            yield from asked
            if len(asked) < 2 or not all(known(figure) for figure in asked):
                yield from (model.repository, model.revision)
        for file in seen.body.checkpoint_files:
            if file.name in files:
                yield file.size
                if files[file.name].digest is not None:
                    yield file.digest


def rests_on_somebodys_word(state: RunState) -> bool:
    """Some figure that rules read beside the materializations themselves was declared or derived, not measured."""
    return (
        any(trust(figure) == "declared" for figure in _single_figures(state))
        or any(extremes.declared is not None for extremes in _many_figures(state))
        or any(decode.digest_declared is not None for decode in state.decodes.values())
    )


def _single_figures(state: RunState) -> Iterator[Measurement]:
    for seen in state.references:
        yield seen.body.digest
    for execution in state.executions.values():
        for activated in execution.activations:
            yield activated.body.compute_unit_id
    for sampled in every_sample(state):
        process, census = sampled.body.process, sampled.body.census
        yield from (process[key] for key in READ_AT_EACH_SAMPLE if key in process)
        yield from sampled.body.cuda.values()
        if census is not None:
            yield from (census.unowned_host_bytes, census.unowned_device_bytes, census.unowned_host_storages)
            yield from census.by_owner.values()


def _many_figures(state: RunState) -> Iterator[Extremes]:
    yield from state.watch.values()
    for found in state.materializations.values():
        yield from (found.bytes_before, found.bytes_after, found.released_bytes, found.owners_total, found.owners_alive)
        for phase in found.reclamations.values():
            yield from (phase.owners_total, phase.owners_alive, phase.region_mapped, phase.ratio)
            yield from (phase.tree_before, phase.tree_after)
    for decode in state.decodes.values():
        yield from (decode.plan_lookups, decode.tokens, decode.prefill_tokens, decode.elapsed_ns)
        for side in (decode.input, decode.output):
            yield from (side.exact, side.within_tolerance, side.max_absolute, side.max_relative)
            yield from (side.nan_count, side.inf_count)
