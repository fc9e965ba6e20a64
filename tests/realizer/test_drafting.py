"""A draft is a whole plan for the machine at hand: every check passes, and every byte comes from the headers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from adapters.causal_lm import CausalLM
from ledger.bodies import EnvironmentObserved
from ledger.errors import TallyError
from ledger.measurement import unavailable
from ledger.plan import Plan, freeze, parse_plan
from ledger.plan_checks import check_plan
from realizer.checkpoint import Checkpoint, open_checkpoint
from realizer.drafting import DraftOptions, draft_plan
from tests.builders.checkpoints import tiny_model
from tests.builders.machine import GIB, GPU_UUID, cpu_machine, gpu_machine


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


def drafted(
    checkpoint: Checkpoint, options: DraftOptions | None = None, machine: EnvironmentObserved | None = None
) -> Plan:
    return parse_plan(draft_plan(checkpoint, CausalLM, machine or cpu_machine(), options))


@pytest.mark.parametrize("staging", ["full", "streamed"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_every_draft_passes_the_plan_checks_and_freezes(checkpoint: Checkpoint, staging: Any, device: str) -> None:
    plan = drafted(checkpoint, DraftOptions(device=device, staging=staging), gpu_machine())
    assert list(check_plan(plan)) == []
    assert plan.claimed_digest is None
    assert freeze(plan).frozen


def test_the_same_machine_and_checkpoint_give_the_same_bytes(checkpoint: Checkpoint) -> None:
    first, second = (draft_plan(checkpoint, CausalLM, cpu_machine()) for _ in range(2))
    assert first == second


def test_on_a_cpu_state_stays_in_shared_memory_and_staging_in_ram(checkpoint: Checkpoint) -> None:
    plan = drafted(checkpoint)
    (node,) = plan.document.resources.nodes
    assert [(r.id, r.kind, r.capacity_bytes, r.parent) for r in node.memory_resources] == [
        ("node-a.ram", "system-ram", 16 * GIB, None),
        ("node-a.shm", "shared-memory", 8 * GIB, "node-a.ram"),
    ]
    assert [(u.id, u.kind, u.device_uuid) for u in node.compute_units] == [("cpu0", "cpu", None)]
    assert plan.materializations["mat.weights.stage"].path_id == "checkpoint-to-ram"
    assert plan.materializations["mat.weights.resident"].path_id == "ram-to-shm"
    (forbidden,) = plan.document.forbidden_persistent_materializations
    assert (forbidden.logical_state_id, forbidden.memory_resource_id) == ("state.weights", "node-a.ram")


def test_on_a_gpu_state_stays_in_its_memory(checkpoint: Checkpoint) -> None:
    plan = drafted(checkpoint, DraftOptions(device="cuda", staging="streamed"), gpu_machine())
    assert plan.compute_units["gpu0"].device_uuid == GPU_UUID
    places = {item.id: item.memory_resource_id for item in plan.document.materializations}
    assert places.pop("mat.weights.stage") == "node-a.ram"
    assert set(places.values()) == {"gpu0.vram"}


def test_the_checkpoint_is_bound_by_digests_and_files(checkpoint: Checkpoint) -> None:
    plan = drafted(checkpoint, DraftOptions(hash_files=True))
    model = plan.document.model
    assert (model.config_digest, model.headers_digest) == (checkpoint.config_digest, checkpoint.headers_digest)
    assert (model.repository, model.revision) == (str(checkpoint.directory), "local")
    assert plan.document.checkpoint is not None
    (file,) = plan.document.checkpoint.files
    (hashed,) = checkpoint.hash_files()
    assert (file.name, file.size, file.digest) == (hashed.name, hashed.size.value, hashed.digest.value)
    unhashed = drafted(checkpoint).document.checkpoint
    assert unhashed is not None
    assert "digest" not in unhashed.files[0].model_fields_set


def test_what_the_person_called_the_checkpoint_stands_in_the_plan(checkpoint: Checkpoint) -> None:
    data = draft_plan(checkpoint, CausalLM, cpu_machine(), source="models/tiny")
    assert parse_plan(data).document.model.repository == "models/tiny"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (DraftOptions(), ("exact", None, None, 4)),
        (DraftOptions(atol=0.01, repetitions=7), ("tolerance", 0.01, 0.0, 7)),
        (DraftOptions(rtol=0.1), ("tolerance", 0.0, 0.1, 4)),
    ],
)
def test_correctness_is_exact_unless_a_tolerance_is_given(
    checkpoint: Checkpoint, options: DraftOptions, expected: tuple[Any, ...]
) -> None:
    found = drafted(checkpoint, options).correctness
    assert (found.mode, found.atol, found.rtol, found.repetitions) == expected


@pytest.mark.parametrize(
    ("device", "says"), [("cuda", "there is no device cuda:0"), ("mps", r"no memory 'mps\.vram'; it has: ram, shm")]
)
def test_a_device_that_is_not_there(checkpoint: Checkpoint, device: str, says: str) -> None:
    with pytest.raises(TallyError, match=says):
        drafted(checkpoint, DraftOptions(device=device))


def test_a_capacity_that_cannot_be_read_is_not_guessed(checkpoint: Checkpoint) -> None:
    machine = cpu_machine()
    ram, shm = machine.memory_resources
    blind = shm.model_copy(update={"capacity_bytes": unavailable("bytes", "statvfs", "no /dev/shm here")})
    with pytest.raises(TallyError, match="capacity of shm could not be read: no /dev/shm here"):
        drafted(checkpoint, machine=machine.model_copy(update={"memory_resources": [ram, blind]}))


def test_a_staging_that_is_neither(checkpoint: Checkpoint) -> None:
    with pytest.raises(TallyError, match="neither full nor streamed"):
        drafted(checkpoint, DraftOptions(staging="half"))  # type: ignore[arg-type]


def test_the_document_is_in_the_published_file_form(checkpoint: Checkpoint) -> None:
    data = draft_plan(checkpoint, CausalLM, cpu_machine())
    assert data == (json.dumps(json.loads(data), indent=2, sort_keys=True) + "\n").encode()


def test_none_of_these_rooms_imports_torch_when_imported() -> None:
    rooms = ("adapter", "checkpoint", "decode", "drafting", "loader", "sample")
    code = f"import sys, {', '.join(f'realizer.{room}' for room in rooms)}"
    code += "; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
