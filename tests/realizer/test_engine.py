"""The lifecycle on a tiny model: the order of events, what the machine shows, what is refused, what ends a run."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from adapters.causal_lm import CausalLM
from ledger.errors import CheckpointError, PlanRejected, RealizationFailed
from ledger.plan import MIB
from realizer.adapter import Claim
from realizer.process_tree import figures
from realizer.procfs import ProcFS
from tests.builders.realizations import Prepared, carry_out, prepare

ONCE_EACH = (
    "run.opened",
    "environment.observed",
    "reference.bound",
    "plan.accepted",
    "release.authorized",
    "materialization.released",
    "authority.established",
    "execution.activated",
    "source.watched",
    "run.closed",
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("streamed"), staging="streamed")


def test_a_run_passes_and_its_events_come_in_the_order_of_the_lifecycle(prepared: Prepared) -> None:
    carried = carry_out(prepared)
    assert carried.error is None
    assert (carried.judgement.verdict, carried.judgement.assurance, carried.codes) == (
        "PASS",
        "observed",
        {"plan.freezing-not-recorded"},
    )
    assert [kind for kind in carried.types if kind in ONCE_EACH] == list(ONCE_EACH)
    assert carried.types.count("decode.ran") == 5
    for planned in prepared.plan.materializations:
        assert [
            event.type
            for event in carried.events
            if getattr(event.body, "materialization_id", None) == planned and event.type.startswith("materialization.")
        ][:3] == ["materialization.started", "materialization.realized", "materialization.observed"]


def test_the_streamed_form_passes_too(streamed: Prepared) -> None:
    carried = carry_out(streamed)
    assert carried.error is None
    assert carried.judgement.verdict == "PASS", carried.judgement.findings
    realized = carried.state.materializations["mat.weights.resident"].realized[0].body
    assert realized.streamed_bytes is not None
    assert realized.streamed_bytes.value == realized.bytes.value


def test_the_live_model_is_the_one_that_was_proven_and_is_gone_afterwards(prepared: Prepared) -> None:
    spans: list[tuple[int, int]] = []
    inside: list[bool] = []

    def use(run: Any) -> None:
        observed = run.state.materializations["mat.weights.resident"].observed[0].body
        spans.extend((found.start, found.start + found.length) for found in observed.ranges)
        inside.extend(
            any(start <= parameter.data_ptr() < end for start, end in spans) for parameter in run.model.parameters()
        )
        assert run.judgement.verdict == "PASS"

    held: list[Any] = []
    carried = carry_out(prepared, use=lambda run: (use(run), held.append(run))[0])
    assert carried.error is None
    with pytest.raises(RealizationFailed, match="gone"):
        assert held[0].model
    assert len(inside) > 10
    assert all(inside)
    gc.collect()
    import os

    left = [entry for entry in ProcFS().maps(os.getpid()) if entry.path.startswith("/memfd:") and "tally" in entry.path]
    assert left == []


def test_a_model_kept_beyond_the_block_keeps_its_memory_and_is_warned_of(prepared: Prepared) -> None:
    kept: list[Any] = []
    with pytest.warns(ResourceWarning, match="still looked into"):
        carried = carry_out(prepared, use=lambda run: kept.append(run.model))
    assert carried.error is None
    assert float(next(kept[0].parameters()).float().abs().sum()) > 0  # it can be used: no view dangles


def test_a_private_run_records_no_name_of_the_machine(prepared: Prepared) -> None:
    carried = carry_out(prepared, private=True)
    opened = carried.state.opened
    assert opened is not None
    for measurement in (opened.body.hostname, opened.body.user, opened.body.argv):
        assert (measurement.value, measurement.status) == (None, "unavailable")
    assert opened.body.model is not None
    assert opened.body.model.directory.value is None
    assert all(str(prepared.checkpoint) not in event.model_dump_json() for event in carried.events)


# --- refused before anything is allocated -------------------------------------------------------------------------


def _missing_unit(raw: dict[str, Any]) -> None:
    raw["materializations"][1]["logical_state_id"] = "state.elsewhere"


def _missing_resource(raw: dict[str, Any]) -> None:
    raw["materializations"][1]["memory_resource_id"] = "node-b.ram"


def _other_representation(raw: dict[str, Any]) -> None:
    raw["materializations"][1]["representation"] = "checkpoint-native-elsewhere"


def _small_capacity(raw: dict[str, Any]) -> None:
    raw["resources"]["nodes"][0]["memory_resources"][1]["capacity_bytes"] = 4096


def _other_device(raw: dict[str, Any]) -> None:
    raw["resources"]["nodes"][0]["compute_units"][0] |= {"kind": "cuda-gpu", "device_uuid": "GPU-0"}


def _other_model(raw: dict[str, Any]) -> None:
    raw["model"]["headers_digest"] = "sha256:" + "0" * 64


def _other_file(raw: dict[str, Any]) -> None:
    raw["checkpoint"]["files"][0]["digest"] = "sha256:" + "0" * 64


def _other_bytes(raw: dict[str, Any]) -> None:
    raw["materializations"][1]["expected_bytes"] += 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_missing_unit, "state.elsewhere"),
        (_missing_resource, "node-b.ram"),
        (_other_representation, "checkpoint-native-elsewhere"),
        (_small_capacity, "4096"),
        (_other_device, "cpu0"),
        (_other_model, "tensor headers digest"),
        (_other_file, "model.safetensors"),
        (_other_bytes, "bytes planned"),
    ],
)
def test_a_plan_that_does_not_fit_is_rejected_with_nothing_allocated(
    prepared: Prepared, change: Any, named: str
) -> None:
    carried = carry_out(prepared, plan=prepared.changed(change))
    assert isinstance(carried.error, PlanRejected)
    assert named in " ".join(carried.error.violations)
    assert carried.types[-2:] == ["plan.rejected", "run.closed"]
    assert not [kind for kind in carried.types if kind.startswith(("materialization.", "memory."))]
    assert carried.state.outcome == "rejected"
    assert "plan.rejected" in carried.codes
    assert carried.judgement.verdict != "PASS"


def test_every_violation_is_listed_at_once(prepared: Prepared) -> None:
    def change(raw: dict[str, Any]) -> None:
        _other_representation(raw)
        _small_capacity(raw)
        _other_model(raw)

    carried = carry_out(prepared, plan=prepared.changed(change))
    assert isinstance(carried.error, PlanRejected)
    text = " ".join(carried.error.violations)
    assert all(part in text for part in ("checkpoint-native-elsewhere", "4096", "headers digest"))
    assert carried.error.hint is not None
    assert carried.error.hint.count("tally plan draft") == 1


def test_a_plan_edited_after_freezing_is_rejected(prepared: Prepared) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["plan_version"] = "edited"

    carried = carry_out(prepared, plan=prepared.changed(change, refreeze=False))
    assert isinstance(carried.error, PlanRejected)
    assert {"plan.digest-mismatch", "plan.rejected"} <= carried.codes
    assert carried.error.hint == "nothing was allocated; take the plan as it was frozen, or freeze it anew"


def test_whoever_waits_for_decode_sees_every_repetition(prepared: Prepared) -> None:
    said: list[tuple[str, int, int]] = []
    carried = carry_out(prepared, progress=lambda *step: said.append(step))
    assert carried.error is None
    repetitions = prepared.plan.correctness.repetitions
    wanted = [(done, 1 + repetitions) for done in range(2 + repetitions)]
    assert [(done, total) for what, done, total in said if what == "decode eager"] == wanted


def test_another_reference_and_none_are_rejected(prepared: Prepared, tmp_path: Path) -> None:
    from realizer.decode import load_fixture, save_fixture

    other = tmp_path / "other.safetensors"
    fixture = load_fixture(prepared.reference)
    fixture.tensors["decode.output"].add_(1)
    save_fixture(fixture, other)
    swapped = carry_out(prepared, reference=other)
    assert isinstance(swapped.error, PlanRejected)
    assert "decode.reference-mismatch" in swapped.codes
    missing = carry_out(prepared, reference=None)
    assert isinstance(missing.error, PlanRejected)
    assert "--reference" in " ".join(missing.error.violations)
    for error in (swapped.error, missing.error):
        assert error.hint == "nothing was allocated; give the fixture that the plan was frozen with as --reference"


# --- what ends a run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["truncated", "garbled", "missing"])
def test_a_bad_checkpoint_closes_the_run_as_failed(prepared: Prepared, tmp_path: Path, harm: str) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(prepared.checkpoint, copy)
    weights = copy / "model.safetensors"
    data = weights.read_bytes()
    if harm == "missing":
        weights.unlink()
    else:
        weights.write_bytes(data[: len(data) // 2] if harm == "truncated" else b"\xff" * 64 + data[64:])
    carried = carry_out(prepared, checkpoint=str(copy))
    assert isinstance(carried.error, CheckpointError)
    assert "\n" not in str(carried.error)
    assert carried.types == ["run.opened", "run.closed"]
    assert carried.state.outcome == "failed"
    assert "run.failed" in carried.codes


class Failing(CausalLM):
    """Breaks while the second materialization is being realised."""

    error: BaseException = RuntimeError("the\nadapter broke")

    def realize(self, materialization_id: str, memory: Any, loader: Any) -> Claim:
        if materialization_id == "mat.weights.resident":
            raise self.error
        return super().realize(materialization_id, memory, loader)


class Interrupted(Failing):
    error = KeyboardInterrupt()


class Exiting(Failing):
    error = SystemExit(0)


class Undecodable(Failing):
    error = OSError("no such file: weights-\udcff")


def test_an_adapter_that_breaks_leaves_a_failed_run_with_what_was_done(prepared: Prepared) -> None:
    carried = carry_out(prepared, adapter=Failing)
    assert isinstance(carried.error, RealizationFailed)
    assert isinstance(carried.error.__cause__, RuntimeError)
    assert carried.types[-2:] == ["materialization.failed", "run.closed"]
    assert carried.state.closed is not None
    assert carried.state.closed.body.error_type == "RuntimeError"
    assert carried.state.closed.body.message.startswith(
        "adapter 'causal_lm': `realize` raised RuntimeError: the adapter broke"
    )
    assert carried.state.materializations["mat.weights.stage"].live
    assert "run.failed" in carried.codes


def test_an_adapter_that_exits_ends_in_an_error_and_a_closed_run(prepared: Prepared) -> None:
    carried = carry_out(prepared, adapter=Exiting)
    assert isinstance(carried.error, RealizationFailed)
    assert (carried.types[-1], carried.state.outcome) == ("run.closed", "failed")


def test_an_error_that_names_a_file_which_is_no_text_closes_the_run(prepared: Prepared) -> None:
    carried = carry_out(prepared, adapter=Undecodable)
    assert isinstance(carried.error.__cause__, OSError)  # type: ignore[union-attr]
    assert carried.types[-2:] == ["materialization.failed", "run.closed"]
    assert carried.state.closed is not None
    assert "OSError: no such file: weights-\\udcff" in carried.state.closed.body.message


def test_an_interrupt_closes_the_run_as_aborted(prepared: Prepared) -> None:
    carried = carry_out(prepared, adapter=Interrupted)
    assert isinstance(carried.error, KeyboardInterrupt)
    assert carried.types[-1] == "run.closed"
    assert carried.state.outcome == "aborted"
    assert "run.incomplete" in carried.codes


def test_a_broken_run_gives_its_memory_back_and_the_next_run_is_unhindered(prepared: Prepared) -> None:
    import os

    gc.collect()
    before = figures(ProcFS(), os.getpid()).sums
    carry_out(prepared, adapter=Failing)
    gc.collect()
    after = figures(ProcFS(), os.getpid()).sums
    assert int(after["rss_shmem"].value or 0) <= int(before["rss_shmem"].value or 0)
    assert int(after["rss_anon"].value or 0) - int(before["rss_anon"].value or 0) < 32 * MIB
    next_one = carry_out(prepared).judgement
    assert next_one.verdict == "PASS", next_one.findings
