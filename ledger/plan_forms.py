"""Plan checks of form: fields, digests, numbers, and what the plan says of correctness and memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from ledger.bodies import Violation
from ledger.canonical import MAX_SAFE_INTEGER
from ledger.plan import (
    R1_SCHEMA,
    LogicalStateUnit,
    Materialization,
    MemoryExpectations,
    MemoryResource,
    ModelReference,
    Part,
    Plan,
    PlanDocument,
    PlannedFile,
)

DIGEST_FORM = re.compile(r"sha256:[0-9a-f]{64}")

BEYOND_R1: dict[type[Part], frozenset[str]] = {
    PlanDocument: frozenset({"adapter", "checkpoint", "correctness"}),
    ModelReference: frozenset({"config_digest", "headers_digest"}),
    MemoryResource: frozenset({"parent"}),
    LogicalStateUnit: frozenset({"selection"}),
    Materialization: frozenset({"streamed_bytes", "tolerance_bytes"}),
    MemoryExpectations: frozenset(
        {"host_give_back_ratio", "host_noise_bytes", "unattributed_bytes", "transient_peak_bytes"}
    ),
}
"""Fields that only `tallystick.plan/1` has. In a published R1 plan they are unknown."""


def _parts(value: object, path: str) -> Iterator[tuple[str, Part]]:
    """Every plan part with its path: list items by their id where they have one, else by index."""
    if isinstance(value, Part):
        yield path, value
        for name, field in type(value).model_fields.items():
            key = field.alias or name
            yield from _parts(getattr(value, name), f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _parts(item, f"{path}[{getattr(item, 'id', None) or index}]")


def unknown_fields(plan: Plan) -> Iterator[Violation]:
    """Every field is one that the plan's dialect knows.

    Unknown fields are kept and hashed, so they cannot be lost; but a field that nobody reads may be a wish that nobody
    grants, so the plan is refused. `adapter_data` and `adapter.options` are the adapter's own words and are free.
    """
    for path, part in _parts(plan.document, ""):
        names = set(part.model_extra or {})
        if plan.schema == R1_SCHEMA:
            names |= BEYOND_R1.get(type(part), frozenset()) & part.model_fields_set
        for name in sorted(names):
            yield Violation(
                code="plan.unknown-field",
                subject=f"{path}.{name}" if path else name,
                message=f"is no field of {plan.schema}",
            )


def digest(plan: Plan) -> Iterator[Violation]:
    """A digest that the plan claims is the one its content has."""
    if plan.claimed_digest is not None and not plan.frozen:
        yield Violation(
            code="plan.digest-mismatch",
            subject="digest",
            message=f"the plan claims {plan.claimed_digest}, but its content has {plan.computed_digest}",
        )


def check_frozen(plan: Plan) -> Iterator[Violation]:
    """The plan carries a digest. Asked only of a plan that is to be realised."""
    if plan.claimed_digest is None:
        yield Violation(
            code="plan.not-frozen",
            subject="digest",
            message="the plan carries no digest: freeze it with `tally plan freeze`",
        )


def digest_forms(plan: Plan) -> Iterator[Violation]:
    """A digest is `sha256:` and 64 lower-case hex digits; another form could never be met."""
    document = plan.document
    digests: list[tuple[str, str | None]] = [
        ("model.config_digest", document.model.config_digest),
        ("model.headers_digest", document.model.headers_digest),
        ("correctness.reference_digest", document.correctness.reference_digest if document.correctness else None),
    ]
    digests += [
        (f"{unit.id}.selection.keys_digest", unit.selection.keys_digest)
        for unit in document.logical_state_units
        if unit.selection
    ]
    digests += [(f"checkpoint file {file.name}", file.digest) for file in _checkpoint_files(plan)]
    for subject, value in digests:
        if value is not None and not DIGEST_FORM.fullmatch(value):
            yield Violation(
                code="plan.digest-form", subject=subject, message=f"{value!r} is not sha256: and 64 hex digits"
            )


def _checkpoint_files(plan: Plan) -> list[PlannedFile]:
    return plan.document.checkpoint.files if plan.document.checkpoint else []


def sizes(plan: Plan) -> Iterator[Violation]:
    """Bytes and counts are not negative."""
    document, expectations = plan.document, plan.document.memory_expectations
    numbers: list[tuple[str, int | None]] = [
        (f"{resource.id}.capacity_bytes", resource.capacity_bytes) for resource in plan.memory_resources.values()
    ]
    for materialization in document.materializations:
        numbers += [
            (f"{materialization.id}.{name}", getattr(materialization, name))
            for name in ("expected_bytes", "streamed_bytes", "tolerance_bytes")
        ]
    numbers += [
        (f"memory_expectations.{name}", getattr(expectations, name))
        for name in (
            "persistent_optional_bytes",
            "unexplained_persistent_host_mirror_bytes",
            "unplanned_persistent_bytes",
            "host_noise_bytes",
            "unattributed_bytes",
        )
    ]
    numbers += [
        (f"memory_expectations.transient_peak_bytes.{name}", value)
        for name, value in (expectations.transient_peak_bytes or {}).items()
    ]
    numbers += [
        (f"{unit.id}.selection.count", unit.selection.count) for unit in document.logical_state_units if unit.selection
    ]
    numbers += [(f"checkpoint file {file.name}", file.size) for file in _checkpoint_files(plan)]
    if document.correctness is not None:
        numbers.append(("correctness.repetitions", document.correctness.repetitions))
    for subject, value in numbers:
        if value is not None and value < 0:
            yield Violation(code="plan.negative", subject=subject, message=f"is {value}, which is less than nothing")


def safe_integers(plan: Plan) -> Iterator[Violation]:
    """Every integer, the adapter's included, is below 2**53: above, two readers may read two numbers."""
    for path, value in unsafe_integers(plan.raw):
        yield Violation(
            code="plan.number-unsafe", subject=path, message=f"{value} does not lie between -2**53 and 2**53"
        )


def unsafe_integers(document: Any) -> Iterator[tuple[str, int]]:
    """Path and value of every integer of magnitude 2**53 or more in a JSON value."""
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", item) for index, item in enumerate(value) if not isinstance(item, str)]
        elif isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
            yield path, value


def streamed(plan: Plan) -> Iterator[Violation]:
    """Only staging is streamed through: `streamed_bytes` stands on nothing else."""
    for materialization in plan.document.materializations:
        if materialization.streamed_bytes is not None and materialization.role != "staging":
            yield Violation(
                code="plan.streamed-not-staging",
                subject=materialization.id,
                message=f"has streamed_bytes, but its role is {materialization.role}",
            )


def selections(plan: Plan) -> Iterator[Violation]:
    """A selection selects something."""
    for unit in plan.document.logical_state_units:
        if unit.selection is not None and (not unit.selection.patterns or unit.selection.count == 0):
            yield Violation(code="plan.selection-empty", subject=unit.id, message="its selection selects no tensor")


def correctness(plan: Plan) -> Iterator[Violation]:
    """What decode must match is said without contradiction, and something is compared where something executes."""
    wanted = plan.document.correctness
    if wanted is None:
        return
    bounds = {"atol": wanted.atol, "rtol": wanted.rtol}
    for name, bound in bounds.items():
        if wanted.mode == "tolerance" and bound is None:
            yield _inconsistent(f"mode is tolerance, but {name} is missing")
        if wanted.mode == "exact" and bound is not None:
            yield _inconsistent(f"mode is exact, but {name} is given")
        if bound is not None and bound < 0:
            yield _inconsistent(f"{name} is {bound}, which nothing could meet")
    if plan.document.execution and not wanted.prefill and wanted.repetitions == 0:
        yield _inconsistent("neither a prefill nor a repetition is to be compared")


def _inconsistent(message: str) -> Violation:
    return Violation(code="plan.correctness-inconsistent", subject="correctness", message=message)


def expectations(plan: Plan) -> Iterator[Violation]:
    """What is expected of memory can be met: a give-back between 0 and 1, no more optional bytes than are planned."""
    expected = plan.document.memory_expectations
    ratio = expected.host_give_back_ratio
    if ratio is not None and not 0 <= ratio <= 1:
        yield Violation(
            code="plan.expectation-inconsistent",
            subject="memory_expectations.host_give_back_ratio",
            message=f"is {ratio}; a ratio lies between 0 and 1",
        )
    optional = sum(
        max(materialization.expected_bytes, 0)
        for materialization in plan.document.materializations
        if materialization.requirement == "optional" and materialization.persistence == "persistent"
    )
    if expected.persistent_optional_bytes > optional:
        yield Violation(
            code="plan.expectation-inconsistent",
            subject="memory_expectations.persistent_optional_bytes",
            message=f"{expected.persistent_optional_bytes} bytes are expected, but {optional} are planned",
        )


FORM_CHECKS: tuple[Callable[[Plan], Iterator[Violation]], ...] = (
    unknown_fields,
    digest,
    digest_forms,
    sizes,
    safe_integers,
    streamed,
    selections,
    correctness,
    expectations,
)
