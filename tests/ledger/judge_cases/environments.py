"""Family `environment`."""

from __future__ import annotations

from ledger.bodies import EnvironmentObserved, PlanAccepted, RunClosed, RunOpened
from ledger.body_parts import AdapterIdentity
from ledger.measurement import measured
from tests.builders.runs import GIB, changed, moved, with_values
from tests.ledger.judge_cases.case import MIB, UNKNOWN, Case, declared, probe
from tests.ledger.judge_cases.steps import environment, opening, removed, repeated

ENVIRONMENTS = [
    Case(
        "nobody looked at the machine", "INDETERMINATE", {"environment.not-observed"}, run=removed(EnvironmentObserved)
    ),
    Case(
        "the environment is the plan's own words",
        "INDETERMINATE",
        {"environment.not-observed"},
        run=environment(
            {
                "compute_units.0.kind": declared("cpu"),
                "memory_resources.0.kind": declared("system-ram"),
                "memory_resources.0.capacity_bytes": declared(16 * GIB),
            }
        ),
    ),
    Case(
        "the kind of the Compute Unit could not be read",
        "INDETERMINATE",
        {"environment.not-observed"},
        run=environment({"compute_units.0.kind": UNKNOWN}),
    ),
    Case(
        "the machine has no such Compute Unit",
        "FAIL",
        {"environment.unit-mismatch"},
        run=environment({"compute_units.0.kind": probe("cuda-gpu")}),
    ),
    Case(
        "another GPU than the planned one",
        "FAIL",
        {"environment.unit-mismatch"},
        device="gpu",
        run=environment({"compute_units.0.device_uuid": probe("GPU-of-somebody-else")}),
    ),
    Case(
        "the GPU did not say which it is",
        "INDETERMINATE",
        {"environment.not-observed"},
        device="gpu",
        run=environment({"compute_units.0.device_uuid": UNKNOWN}),
    ),
    Case(
        "the plan was bound to something that the machine does not show",
        "FAIL",
        {"environment.unit-mismatch", "environment.resource-missing"},
        run=lambda run: changed(
            run, PlanAccepted, {"bindings": {"cpu0": "cpu-of-another", "node-a.ram": "ram-of-another"}}
        ),
    ),
    Case(
        "the machine has no shared memory",
        "FAIL",
        {"environment.resource-missing"},
        run=environment({"memory_resources.1.kind": probe("persistent-memory")}),
    ),
    Case(
        "the machine's memory is smaller than what the plan needs at once, staging included",
        "FAIL",
        {"environment.capacity-exceeded"},
        run=environment({"memory_resources.0.capacity_bytes": probe(300 * MIB)}),
    ),
    Case(
        "how large the machine's memory is could not be read",
        "INDETERMINATE",
        {"environment.not-observed"},
        run=environment({"memory_resources.0.capacity_bytes": UNKNOWN}),
    ),
    Case(
        "another model",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(model__repository=probe("example/other")),
    ),
    Case(
        "another revision of the model",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(model__revision=probe("1" * 40)),
    ),
    Case(
        "the same name, other tensors",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(model__headers_digest=probe("sha256:" + "99" * 32)),
    ),
    Case(
        "the checkpoint does not say what it is",
        "INDETERMINATE",
        {"environment.model-mismatch"},
        run=opening(model=None),
        unknown={"environment.model-mismatch"},
    ),
    Case(
        "a checkpoint file of another size",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(checkpoint_files__0__size=probe(5)),
    ),
    Case(
        "a planned file digest that was not computed",
        "INDETERMINATE",
        {"environment.model-mismatch"},
        plan=lambda document: document["checkpoint"]["files"][0].update(digest="sha256:" + "77" * 32),
        run=opening(checkpoint_files__0__digest=UNKNOWN),
        unknown={"environment.model-mismatch"},
    ),
    Case(
        "the machine was looked at only afterwards",
        "INDETERMINATE",
        {"environment.not-observed"},
        run=lambda run: moved(run, EnvironmentObserved, before=RunClosed),
    ),
    Case(
        "another machine between four looks at this one",
        "INDETERMINATE",
        {"run.incomplete"},
        run=repeated(EnvironmentObserved, {"compute_units": []}, at=3, total=5),
    ),
    Case(
        "the same Memory Resource is shown twice, once too small",
        "FAIL",
        {"environment.capacity-exceeded"},
        run=lambda run: [
            body.model_copy(
                update={
                    "memory_resources": [
                        *(with_values(one, {"capacity_bytes": probe(1)}) for one in body.memory_resources),
                        *body.memory_resources,
                    ]
                }
            )
            if isinstance(body, EnvironmentObserved)
            else body
            for body in run
        ],
    ),
    Case(
        "another adapter than the planned one realised it",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(adapter=AdapterIdentity(name="mlp_liar", version="1", distribution=None)),
    ),
    Case(
        "no adapter is recorded where the plan names one",
        "INDETERMINATE",
        {"environment.model-mismatch"},
        run=opening(adapter=None),
        unknown={"environment.model-mismatch"},
    ),
    Case(
        "a checkpoint file that the plan does not name",
        "FAIL",
        {"environment.model-mismatch"},
        run=opening(checkpoint_files__0__name="other.safetensors"),
        unknown=set(),
    ),
    Case(
        "a checkpoint file's size in KiB",
        "INDETERMINATE",
        {"environment.model-mismatch"},
        run=opening(checkpoint_files__0__size=measured(256 * MIB + 1024, "KiB", "stat")),
        unknown={"environment.model-mismatch"},
    ),
    Case(
        "a checkpoint file is named twice, once of another size",
        "FAIL",
        {"environment.model-mismatch"},
        run=lambda run: [
            body.model_copy(
                update={
                    "checkpoint_files": [
                        *(with_values(one, {"size": probe(1)}) for one in body.checkpoint_files),
                        *body.checkpoint_files,
                    ]
                }
            )
            if isinstance(body, RunOpened)
            else body
            for body in run
        ],
    ),
]
