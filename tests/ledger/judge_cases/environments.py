"""Family `environment`."""

from __future__ import annotations

from ledger.events import EnvironmentObserved, PlanAccepted
from tests.builders.runs import GIB, changed
from tests.ledger.judge_cases.case import MIB, UNKNOWN, Case, declared, probe
from tests.ledger.judge_cases.steps import environment, opening, removed

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
]
