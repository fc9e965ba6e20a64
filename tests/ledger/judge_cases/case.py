"""How a case of the judge reads: one sentence, what is different from the clean run, the verdict, the exact codes.

Every case begins from the same small plan and the run that carries it out exactly (tests/builders/runs.py). `plan`
changes the plan's document in place before it is frozen; `run` changes what was recorded. Nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ledger.bodies import Body, Verdict
from ledger.fold import fold
from ledger.measurement import Measurement, claimed, measured, stated, unavailable
from ledger.plan import Plan
from ledger.reconcile import Judgement, judge
from ledger.run_state import RunState
from tests.builders.runs import MIB, clean_bodies, edited_plan, gpu_plan, record, small_plan
from tests.builders.runs import RUN_ID as RUN_ID

Bodies = list[Body]

STAGE, WEIGHTS, BUFFERS, CACHE, BASELINE = (
    "mat.weights.stage",
    "mat.weights.resident",
    "mat.buffers.resident",
    "mat.kv-cache",
    "mat.replay-baseline",
)


@dataclass(frozen=True)
class Case:
    """One sentence and what the judge must say."""

    title: str
    verdict: Verdict
    codes: set[str]
    run: Callable[[Bodies], Bodies] = lambda bodies: bodies
    plan: Callable[[dict[str, Any]], None] | None = None
    recorded_under: Callable[[dict[str, Any]], None] | None = None
    """The run was carried out under another plan than the one it is judged by."""
    device: str = "cpu"
    frozen: bool = True
    """The plan was frozen in this ledger before, and the run cites it."""
    elapsed: Callable[[int], int | None] | None = None
    witness: Callable[[Bodies], Bodies] | None = None
    envelope: Callable[[int], dict[str, Any]] | None = None
    """What else stands around the event of that index."""
    unknown: set[str] = field(default_factory=set)
    """Codes that are errors elsewhere, and unknown here because nobody can know."""

    def __str__(self) -> str:
        return self.title


def plan_of(case: Case) -> Plan:
    plan = small_plan() if case.device == "cpu" else gpu_plan()
    return edited_plan(plan, case.plan) if case.plan is not None else plan


def judged(case: Case) -> Judgement:
    """The judgement of the case."""
    plan = plan_of(case)
    carried_out = edited_plan(plan, case.recorded_under) if case.recorded_under is not None else plan
    bodies = case.run(clean_bodies(carried_out))
    elapsed = [case.elapsed(index) for index in range(len(bodies))] if case.elapsed is not None else None
    state = folded(bodies, carried_out, case.envelope, elapsed=elapsed, frozen=case.frozen)
    witnesses = []
    if case.witness is not None:
        witnesses.append(folded(case.witness(clean_bodies(plan)), plan, run_id=RUN_ID[:-1] + "2"))
    return judge(plan, state, witnesses)


def folded(
    bodies: Bodies, plan: Plan, envelope: Callable[[int], dict[str, Any]] | None = None, **options: Any
) -> RunState:
    events = record(bodies, plan, **options).events(options.get("run_id", RUN_ID))
    if envelope is not None:
        events = [event.model_copy(update=envelope(index)) for index, event in enumerate(events)]
    return fold(events)


# --- measurements that a case may put in place of a probe's ----------------------------------------------------------


def probe(value: float | str) -> Measurement:
    """A probe saw this value."""
    return measured(value, None, "looked")


def claim(value: float | str) -> Measurement:
    """The adapter says so."""
    return claimed(value, None, "adapter")


def declared(value: float | str) -> Measurement:
    """A document says so."""
    return stated(value, None, "document", source="declared")


def default(value: float | str) -> Measurement:
    """Nobody says so: a value filled in."""
    return stated(value, None, "literal", source="default")


UNKNOWN = unavailable(None, "looked", "could not be read")
FAILED = Measurement(value=None, source="probe", method="looked", status="failed", detail="not finite: nan")

__all__ = [
    "BASELINE",
    "BUFFERS",
    "CACHE",
    "FAILED",
    "MIB",
    "RUN_ID",
    "STAGE",
    "UNKNOWN",
    "WEIGHTS",
    "Bodies",
    "Case",
    "claim",
    "declared",
    "default",
    "folded",
    "judged",
    "plan_of",
    "probe",
]
