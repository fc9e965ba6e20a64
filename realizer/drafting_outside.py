"""Drafting a plan for an engine that we did not write: from its checkpoint and the operator's words alone.

Such a plan says where the weights stay, how many bytes they are give or take, whether the host may keep a copy, and
what is staged on the way. It has no adapter, and its decode is not compared: nobody but the engine can carry it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger import canonical
from ledger.bodies import EnvironmentObserved
from ledger.errors import CheckpointError, TallyError
from ledger.plan import (
    DEFAULT_GIVE_BACK_RATIO,
    DEFAULT_HOST_NOISE_BYTES,
    DEFAULT_UNATTRIBUTED_BYTES,
    OUTSIDE_ENGINE,
    TALLY_SCHEMA,
)
from realizer.checkpoint import open_checkpoint
from realizer.drafting import LOCAL_REVISION, RAM, SOURCE, Machine, machine_part
from realizer.memory_range import round_up
from realizer.procfs import PAGE
from realizer.witness import checkpoint_files

WEIGHTS, EXECUTION = "state.weights", "exec.serve"
REPRESENTATION = "engine-native"
DEFAULT_TOLERANCE_BYTES = 1024 * 1024 * 1024
"""For the engine's context, workspaces and cache, which a device's figure by process has in it."""
OPTIONS = {
    "host_mirror": "forbidden (default) or allowed: may the host keep a copy of what is resident",
    "staging": "yes or no (default: yes for a device): do all weights pass through host memory at once",
    "resident_bytes": "bytes of the weights where they stay (default: those of the checkpoint's tensors)",
    "tolerance_bytes": f"give or take (default: {DEFAULT_TOLERANCE_BYTES})",
}
"""What the operator may say with --option, and what it means."""


@dataclass(frozen=True)
class OutsideModel:
    """What the checkpoint says: bytes of its tensors (of its files, where the format is not read), identity, files."""

    repository: str
    revision: str
    bytes: int
    config_digest: str | None
    headers_digest: str | None
    files: list[Path]


def outside_model(name: str) -> OutsideModel:
    """The checkpoint in a folder, or one file. Raises CheckpointError when there is none there."""
    path = Path(name)
    if not path.exists():
        raise CheckpointError(
            f"no checkpoint at {name!r}", "an outside engine's plan needs the folder or file it loads"
        )
    files = checkpoint_files(path)
    whole = sum(file.stat().st_size for file in files)
    if path.is_dir():
        try:
            found = open_checkpoint(name)
        except CheckpointError:
            return OutsideModel(name, LOCAL_REVISION, whole, None, None, files)
        total = sum(entry.bytes for entry in found.tensors.values())
        revision = found.revision or LOCAL_REVISION
        return OutsideModel(found.repository or name, revision, total, found.config_digest, found.headers_digest, files)
    return OutsideModel(name, LOCAL_REVISION, whole, None, None, files)


def draft_outside_plan(name: str, environment: EnvironmentObserved, device: str, options: Mapping[str, str]) -> bytes:
    """The draft's bytes, as `draft_plan` gives them. Raises TallyError for an option that there is not or a word that it
    does not take, and what `outside_model` raises."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TallyError(
            f"an outside engine's plan has no option {unknown[0]!r}",
            "; ".join(f"{option}: {meaning}" for option, meaning in OPTIONS.items()),
        )
    model = outside_model(name)
    machine = machine_part(environment, device, model.repository, model.revision)
    on_device = device != "cpu"
    mirror = _word(options, "host_mirror", ("forbidden", "allowed"), "forbidden") == "allowed"
    staged = _word(options, "staging", ("yes", "no"), "yes" if on_device else "no") == "yes"
    if staged and not on_device:
        raise TallyError("on the CPU the host's memory is where the weights stay: nothing is staged there")
    stays = next(found for kind, found in machine.by_kind.items() if kind != "system-ram") if on_device else RAM
    resident = _number(options, "resident_bytes", model.bytes)
    tolerance = _number(options, "tolerance_bytes", DEFAULT_TOLERANCE_BYTES)
    materializations = [
        _materialization("mat.weights.resident", stays, "required_residency", "persistent", resident)
        | {"tolerance_bytes": tolerance}
    ]
    if staged:
        materializations.insert(0, _materialization("mat.weights.stage", RAM, "staging", "transient", model.bytes))
    return canonical.r1_file(
        {
            "schema": TALLY_SCHEMA,
            "plan_version": "1",
            "model": {
                "repository": model.repository,
                "revision": model.revision,
                "config_digest": model.config_digest,
                "headers_digest": model.headers_digest,
            },
            "resources": machine.resources,
            "logical_state_units": [{"id": WEIGHTS, "semantic_class": "immutable_source", "backing_source_id": SOURCE}],
            "materializations": materializations,
            "execution": [_execution(machine, stays)],
            "forbidden_persistent_materializations": [{"logical_state_id": WEIGHTS, "memory_resource_id": RAM}]
            if on_device and not mirror
            else [],
            "memory_expectations": {
                "persistent_optional_bytes": 0,
                "unexplained_persistent_host_mirror_bytes": sum(
                    round_up(file.stat().st_size, PAGE) for file in model.files
                )
                if mirror
                else 0,
                "unplanned_persistent_bytes": 0,
                "host_give_back_ratio": DEFAULT_GIVE_BACK_RATIO,
                "host_noise_bytes": DEFAULT_HOST_NOISE_BYTES,
                "unattributed_bytes": DEFAULT_UNATTRIBUTED_BYTES,
            },
            "checkpoint": {"files": [{"name": file.name, "size": file.stat().st_size} for file in model.files]},
            "correctness": {"prefill": True, "repetitions": 0, "mode": "exact"},
        }
    )


def _materialization(name: str, resource: str, role: str, persistence: str, size: int) -> dict[str, Any]:
    return {
        "id": name,
        "logical_state_id": WEIGHTS,
        "memory_resource_id": resource,
        "representation": REPRESENTATION if role != "staging" else f"{REPRESENTATION}-staged",
        "role": role,
        "persistence": persistence,
        "requirement": "required",
        "expected_bytes": size,
    }


def _execution(machine: Machine, stays: str) -> dict[str, Any]:
    return {
        "id": EXECUTION,
        "compute_unit_id": machine.compute_unit_id,
        "strategy_unit": OUTSIDE_ENGINE,
        "required_state": [
            {"logical_state_id": WEIGHTS, "memory_resources": [stays], "representations": [REPRESENTATION]}
        ],
    }


def _word(options: Mapping[str, str], name: str, allowed: tuple[str, ...], otherwise: str) -> str:
    word = options.get(name, otherwise)
    if word not in allowed:
        raise TallyError(f"option {name}={word!r} is none of {', '.join(allowed)}", OPTIONS[name])
    return word


def _number(options: Mapping[str, str], name: str, otherwise: int) -> int:
    text = options.get(name)
    if text is None:
        return otherwise
    if not text.isdecimal():
        raise TallyError(f"option {name}={text!r} is no number of bytes", OPTIONS[name])
    return int(text)
