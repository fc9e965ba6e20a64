"""Family `execution`."""

from __future__ import annotations

from ledger.bodies import (
    AuthorityEstablished,
    BoundState,
    DecodeRan,
    ExecutionActivated,
    MaterializationObserved,
    MemorySampled,
)
from tests.builders.runs import changed, inserted, moved
from tests.ledger.judge_cases.case import CACHE, STAGE, UNKNOWN, Bodies, Case, probe
from tests.ledger.judge_cases.steps import activation, chain, removed


def _bound(run: Bodies) -> list[BoundState]:
    return next(body.state for body in run if isinstance(body, ExecutionActivated))


STAGED = BoundState(logical_state_id="state.weights", materialization_id=STAGE, memory_resource_id="node-a.ram")

EXECUTIONS = [
    Case(
        "never activated, though it decoded",
        "FAIL",
        {"execution.not-activated", "decode.before-activation"},
        run=removed(ExecutionActivated),
    ),
    Case(
        "activated on another Compute Unit",
        "FAIL",
        {"execution.unit-mismatch"},
        run=activation(compute_unit_id=probe("gpu7")),
    ),
    Case(
        "activated with another strategy unit",
        "FAIL",
        {"execution.unit-mismatch"},
        run=activation(strategy_unit="something else"),
    ),
    Case(
        "where the parameters are could not be found",
        "INDETERMINATE",
        {"execution.unit-mismatch"},
        run=activation(compute_unit_id=UNKNOWN),
        unknown={"execution.unit-mismatch"},
    ),
    Case(
        "an execution that nobody planned",
        "FAIL",
        {"execution.unplanned"},
        run=lambda run: inserted(
            run,
            [
                body.model_copy(update={"execution_id": "exec.other"})
                for body in run
                if isinstance(body, ExecutionActivated)
            ],
            before=DecodeRan,
        ),
    ),
    Case(
        "activated twice",
        "FAIL",
        {"execution.unplanned"},
        run=lambda run: inserted(run, [body for body in run if isinstance(body, ExecutionActivated)], before=DecodeRan),
    ),
    Case(
        "nothing was bound for the cache",
        "FAIL",
        {"execution.state-not-live"},
        run=lambda run: [
            body.model_copy(update={"state": [one for one in body.state if one.materialization_id != CACHE]})
            if isinstance(body, ExecutionActivated)
            else body
            for body in run
        ],
    ),
    Case(
        "bound to staging that was released",
        "FAIL",
        {"execution.state-not-live"},
        run=activation(**{"state.0.materialization_id": STAGE}),
    ),
    Case(
        "activated before the cache was observed",
        "FAIL",
        {"execution.state-not-live"},
        run=chain(
            lambda run: moved(
                run,
                MaterializationObserved,
                materialization_id=CACHE,
                before=DecodeRan,
            ),
            lambda run: moved(run, AuthorityEstablished, before=DecodeRan),
        ),
    ),
    Case(
        "bound to the weights on another Memory Resource than where they were seen",
        "FAIL",
        {"execution.state-not-live"},
        run=lambda run: changed(run, ExecutionActivated, {"state.0.memory_resource_id": "node-a.ram"}),
    ),
    Case(
        "bound to something more, which is nowhere",
        "FAIL",
        {"execution.state-not-live"},
        run=lambda run: [
            body.model_copy(
                update={
                    "state": [
                        *body.state,
                        BoundState(
                            logical_state_id="state.other",
                            materialization_id="mat.none",
                            memory_resource_id="node-a.ram",
                        ),
                    ]
                }
            )
            if isinstance(body, ExecutionActivated)
            else body
            for body in run
        ],
    ),
    Case(
        "bound to staging as well, which is released before decode",
        "FAIL",
        {"execution.state-not-live"},
        run=chain(
            lambda run: changed(run, ExecutionActivated, {"state": [*_bound(run), STAGED]}),
            lambda run: moved(
                run,
                ExecutionActivated,
                before=MemorySampled,
                where={"label": f"before-release:{STAGE}"},
            ),
        ),
    ),
]
