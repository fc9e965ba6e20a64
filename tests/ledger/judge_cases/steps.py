"""The small sentences that cases are made of: each takes the clean run, or the plan, and changes one thing."""

from __future__ import annotations

from typing import Any

from ledger.bodies import (
    AddressRange,
    AuthorityEstablished,
    Census,
    DecodeRan,
    EnvironmentObserved,
    ExecutionActivated,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationStarted,
    MemorySampled,
    PlanAccepted,
    ReclamationObserved,
    ReleaseAuthorized,
    RunClosed,
    RunOpened,
    SourceAccessed,
    SourceWatched,
)
from tests.builders.runs import (
    address_range,
    changed,
    inserted,
    matching,
    materialized,
    small_plan,
    with_values,
    without,
)
from tests.builders.runs import size as bytes_seen
from tests.ledger.judge_cases.case import BUFFERS, MIB, STAGE, Bodies, probe

PASS: set[str] = set()
PLAN = small_plan()


# --- small sentences that the cases are made of ----------------------------------------------------------------------


def observed(name: str, **facts: Any):
    """The probe saw other facts of that materialization."""
    return lambda run: changed(run, MaterializationObserved, facts, materialization_id=name)


def realized(name: str, **facts: Any):
    """The adapter claimed other facts of that materialization."""
    return lambda run: changed(run, MaterializationRealized, facts, materialization_id=name)


def both(name: str, **facts: Any):
    """Everybody says the same other thing of that materialization: begun, claimed and seen so."""

    def apply(run: Bodies) -> Bodies:
        run = changed(run, MaterializationStarted, facts, materialization_id=name)
        run = changed(run, MaterializationRealized, facts, materialization_id=name)
        looked = {
            fact: probe(value) if fact in ("memory_resource_id", "representation") else value
            for fact, value in facts.items()
        }
        return changed(run, MaterializationObserved, looked, materialization_id=name)

    return apply


def released(**facts: Any):
    return lambda run: changed(run, MaterializationReleased, facts)


def reclaimed(phase: str, **facts: Any):
    return lambda run: changed(run, ReclamationObserved, facts, phase=phase)


def sampled(label: str, **facts: Any):
    """Another figure of the process tree at that sample."""
    return lambda run: changed(
        run, MemorySampled, {f"process/{key}": value for key, value in facts.items()}, label=label
    )


def at_the_end(change: dict[str, Any]):
    """Another figure after decode and at the closing sample."""

    def apply(run: Bodies) -> Bodies:
        for label in ("after-decode", "closing"):
            run = changed(run, MemorySampled, change, label=label)
        return run

    return apply


def grown(key: str, size: int, *labels: str):
    """The process tree holds `size` bytes more of one class at the end, or at those samples, in every figure that counts
    them."""

    def apply(run: Bodies) -> Bodies:
        for label in labels or ("after-decode", "closing"):
            counted = {key, "tree_sum", *(("vm_rss", "vm_hwm") if key.startswith("rss_") else ())}
            for index, body in enumerate(run):
                if isinstance(body, MemorySampled) and body.label == label:
                    more = {f"process/{name}": probe(body.process[name].value + size) for name in counted}
                    run = [*run[:index], with_values(body, more), *run[index + 1 :]]
                if isinstance(body, ReclamationObserved) and label in (body.phase, f"{body.phase}:{STAGE}"):
                    more = {"tree_after": probe(body.tree_after.value + size)}
                    run = [*run[:index], with_values(body, more), *run[index + 1 :]]
        return run

    return apply


def digest(pair: str) -> str:
    """The digest of those two hexadecimal digits, over and over."""
    return "sha256:" + pair * 32


def decode(change: dict[str, Any], **which: Any):
    return lambda run: changed(run, DecodeRan, change, **which)


def watch(**facts: Any):
    return lambda run: changed(run, SourceWatched, facts)


def authority(**facts: Any):
    return lambda run: changed(run, AuthorityEstablished, facts)


def activation(**facts: Any):
    return lambda run: changed(run, ExecutionActivated, facts)


def opening(**facts: Any):
    return lambda run: changed(run, RunOpened, {key.replace("__", "."): value for key, value in facts.items()})


def environment(change: dict[str, Any]):
    return lambda run: changed(run, EnvironmentObserved, change)


def chain(*steps: Any):
    """Several changes, one after another."""

    def apply(run: Bodies) -> Bodies:
        for step in steps:
            run = step(run)
        return run

    return apply


def removed(kind: type, **which: Any):
    return lambda run: without(run, kind, **which)


def added(body: Any, before: type, **where: Any):
    return lambda run: inserted(run, body, before=before, **where)


def appended(*bodies: Any):
    return lambda run: [*run, *bodies]


def part(kind: str, name: str, **values: Any):
    """Another value in the plan's list `kind` at the entry `name`."""

    def edit(document: dict[str, Any]) -> None:
        for item in document[kind]:
            if item.get("id", item.get("logical_state_id")) == name:
                item.update(values)

    return edit


def expects(**values: Any):
    return lambda document: document["memory_expectations"].update(values)


def correctness(**values: Any):
    return lambda document: document["correctness"].update(values)


def capacity(resource: str, size: int):
    def edit(document: dict[str, Any]) -> None:
        for item in document["resources"]["nodes"][0]["memory_resources"]:
            if item["id"] == resource:
                item["capacity_bytes"] = size

    return edit


def optional_cache(document: dict[str, Any]) -> None:
    """The plan also allows an optional cache of the buffers."""
    document["materializations"].append(
        {
            "id": "mat.cache",
            "logical_state_id": "state.buffers",
            "memory_resource_id": "node-a.shm",
            "representation": "buffers-cached",
            "role": "optional_cache",
            "persistence": "persistent",
            "requirement": "optional",
            "expected_bytes": 4096,
        }
    )


def shared_staging(document: dict[str, Any]) -> None:
    """Staging lies in shared memory."""
    part("materializations", STAGE, memory_resource_id="node-a.shm")(document)


def accessed(who: Any, access: Any = "open") -> SourceAccessed:
    return SourceAccessed(
        path=probe("model.safetensors"),
        access=access,
        attributed_to=who,
        pid=probe(4242),
        count=probe(1),
        means="inotify",
    )


def stranger(name: str = "mat.stranger") -> list[Any]:
    """A materialization that the plan does not have, begun, claimed and seen on shared memory."""
    like = PLAN.materializations[BUFFERS]
    bodies = [body.model_copy(update={"materialization_id": name}) for body in materialized(PLAN, like)]
    elsewhere = AddressRange(space="host", start=0x7E00_0000_0000, length=4096)
    return changed(bodies, MaterializationObserved, {"ranges": [elsewhere]})


def first_bodies(count: int):
    """The run was killed after so many events."""
    return lambda run: run[:count]


def interrupted(outcome: Any, after: int, **why: Any):
    """The run was closed as `outcome` after so many events."""
    return lambda run: [*run[:after], RunClosed(outcome=outcome, **why)]


def without_owner(census: Census | None, name: str) -> Census | None:
    if census is None:
        return None
    return census.model_copy(update={"by_owner": {key: value for key, value in census.by_owner.items() if key != name}})


def never_realised(name: str):
    """Nothing was begun, seen, sampled or bound of that materialization."""

    def apply(run: Bodies) -> Bodies:
        kept: Bodies = []
        for body in run:
            if getattr(body, "materialization_id", None) == name or getattr(body, "label", "").endswith(f":{name}"):
                continue
            if isinstance(body, MemorySampled):
                body = body.model_copy(update={"census": without_owner(body.census, name)})
            if isinstance(body, ExecutionActivated):
                body = body.model_copy(update={"state": [one for one in body.state if one.materialization_id != name]})
            kept.append(body)
        return kept

    return apply


MISSING_WHEN_UNFINISHED = {
    "authority.missing",
    "decode.access-unknown",
    "decode.missing",
    "execution.not-activated",
    "materialization.missing",
    "memory.mirror-unknown",
}


def repeated(kind: type, change: dict[str, Any], at: int, total: int, **which: Any):
    """The first such event, `total` times over, with the change applied to number `at` alone."""

    def apply(run: Bodies) -> Bodies:
        first = matching(run, kind, **which)[0]
        copies = [with_values(run[first], change) if number == at else run[first] for number in range(total)]
        return [*run[:first], *copies, *run[first + 1 :]]

    return apply


def looked_again(name: str, *facts: dict[str, Any]):
    """The probe looked again, once for each of `facts`, and saw them."""

    def apply(run: Bodies) -> Bodies:
        seen = next(
            body for body in run if isinstance(body, MaterializationObserved) and body.materialization_id == name
        )
        return inserted(run, [with_values(seen, change) for change in facts], before=ReleaseAuthorized)

    return apply


def range_of(name: str) -> AddressRange:
    """Where the clean run's probe sees that materialization."""
    return address_range(PLAN, PLAN.materializations[name])


def owner_holds(name: str, size: int, *labels: str):
    """The censuses of those labels find so many live bytes under that owner."""

    def apply(run: Bodies) -> Bodies:
        return [
            body.model_copy(
                update={
                    "census": body.census.model_copy(
                        update={"by_owner": {**body.census.by_owner, name: bytes_seen(size)}}
                    )
                }
            )
            if isinstance(body, MemorySampled) and body.label in labels and body.census is not None
            else body
            for body in run
        ]

    return apply


def verified(name: str, content: str):
    """The content of that materialization was verified, and its source and resident bytes have this digest."""
    return observed(name, source_digest=probe(content), resident_digest=probe(content))


def elsewhere_on(device: str):
    """Whatever lies on a device lies on this one, owners' ranges included."""

    def moved(one: AddressRange) -> AddressRange:
        return one if one.space == "host" else one.model_copy(update={"space": device})

    def apply(run: Bodies) -> Bodies:
        return [
            body.model_copy(update={"ranges": [moved(one) for one in body.ranges]})
            if isinstance(body, MaterializationObserved)
            else body.model_copy(update={"owner_range": moved(body.owner_range)})
            if isinstance(body, AuthorityEstablished) and body.owner_range is not None
            else body
            for body in run
        ]

    return apply


def flat_device(device: str):
    """That device holds what an idle one does, at every sample."""
    figures = {"allocated": 0, "reserved": 0, "peak": 0, "process": 500 * MIB}
    return lambda run: changed(
        run, MemorySampled, {f"cuda/{device}.{name}": probe(value) for name, value in figures.items()}
    )


def bound_to(device: str):
    """The machine shows its device under this name, and the run bound the plan to that."""

    def renamed(text: str) -> str:
        return text.replace("cuda:0", device)

    def apply(run: Bodies) -> Bodies:
        kept: Bodies = []
        for body in run:
            if isinstance(body, EnvironmentObserved):
                units = [
                    unit.model_copy(
                        update={"key": renamed(unit.key), "memory_resources": [*map(renamed, unit.memory_resources)]}
                    )
                    for unit in body.compute_units
                ]
                resources = [one.model_copy(update={"key": renamed(one.key)}) for one in body.memory_resources]
                body = body.model_copy(update={"compute_units": units, "memory_resources": resources})
            if isinstance(body, PlanAccepted):
                bindings = {name: renamed(key) for name, key in body.bindings.items()}
                body = body.model_copy(update={"bindings": bindings})
            kept.append(body)
        return kept

    return apply
