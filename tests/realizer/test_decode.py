"""Deviations say what differs and never hide what is not finite; fixtures are read back as written, or refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ledger.errors import TallyError
from ledger.plan import Correctness, Plan
from realizer import decode
from realizer.adapter import Adapter, PlanHandle, ReferenceFixture, StepOutput
from realizer.decode import FixtureError, deviation, fixture_provenance, load_fixture, save_fixture, tensor_digest

NAN, INF = math.nan, math.inf


def vector(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def test_equal_bits_are_exact() -> None:
    found = deviation(vector(1, -2, 0), vector(1, -2, 0))
    assert (found.exact.value, found.max_absolute.value, found.max_relative.value) == (1, 0.0, 0.0)
    assert (found.nan_count.value, found.inf_count.value, found.within_tolerance) == (0, 0, None)


@pytest.mark.parametrize(
    ("a", "b", "absolute", "relative"),
    [
        (vector(1.0, 2.5), vector(1.0, 2.0), 0.5, 0.25),
        (vector(-4.0), vector(4.0), 8.0, 2.0),
        (vector(3, dtype=torch.int64), vector(4, dtype=torch.int64), 1.0, 0.25),
        (vector(1.0), vector(1.0, dtype=torch.bfloat16), 0.0, 0.0),
        (vector(-0.0), vector(0.0), 0.0, 0.0),
    ],
)
def test_what_differs_is_measured(a: torch.Tensor, b: torch.Tensor, absolute: float, relative: float) -> None:
    """Another dtype with the same value, and the other zero, are not exact either."""
    found = deviation(a, b)
    assert (found.exact.value, found.max_absolute.value, found.max_relative.value) == (0, absolute, relative)


@pytest.mark.parametrize(
    ("a", "b", "nan", "inf"),
    [
        (vector(NAN, 1), vector(1, 1), 1, 0),
        (vector(INF, 1), vector(1, 1), 0, 1),
        (vector(1, 1), vector(NAN, 1), 0, 0),
        (vector(1, 1), vector(-INF, 1), 0, 0),
        (vector(INF, 1), vector(INF, 1), 0, 1),
        (vector(NAN, NAN), vector(NAN, NAN), 2, 0),
    ],
)
def test_figures_that_are_not_finite_are_failed_and_never_a_number(
    a: torch.Tensor, b: torch.Tensor, nan: int, inf: int
) -> None:
    found = deviation(a, b, atol=10.0, rtol=10.0)
    assert (found.max_absolute.value, found.max_absolute.status) == (None, "failed")
    assert found.max_relative.status == "failed"
    assert (found.nan_count.value, found.inf_count.value) == (nan, inf)
    assert found.within_tolerance is not None
    assert found.within_tolerance.value == 0


def test_equal_bits_of_nan_are_exact_yet_not_finite() -> None:
    found = deviation(vector(NAN), vector(NAN))
    assert (found.exact.value, found.nan_count.value, found.max_absolute.status) == (1, 1, "failed")


def test_relative_deviation_from_zero_is_infinite_and_so_failed() -> None:
    found = deviation(vector(0.0, 1e-9), vector(0.0, 0.0))
    assert (found.max_absolute.value, found.max_relative.status) == (pytest.approx(1e-9), "failed")


@pytest.mark.parametrize(
    ("atol", "rtol", "within"),
    [(0.5, 0.0, 1), (0.49, 0.0, 0), (0.0, 0.25, 1), (0.0, 0.24, 0), (0.3, 0.1, 1), (None, 0.25, 1)],
)
def test_tolerance_is_absolute_plus_relative(atol: float | None, rtol: float, within: int) -> None:
    found = deviation(vector(2.5, 7.0), vector(2.0, 7.0), atol, rtol)
    assert found.within_tolerance is not None
    assert found.within_tolerance.value == within


def test_another_shape_is_not_exact_and_its_size_unknown() -> None:
    found = deviation(torch.zeros(2, 3), torch.zeros(3, 2), atol=1.0)
    assert (found.exact.value, found.max_absolute.status) == (0, "unavailable")
    assert found.within_tolerance is not None
    assert found.within_tolerance.value == 0
    assert "[2, 3], reference [3, 2]" in str(found.exact.detail)


def test_nothing_to_compare_is_unknown_not_zero() -> None:
    found = deviation(torch.zeros(0, 3), torch.zeros(0, 3))
    assert (found.max_absolute.value, found.max_absolute.status) == (None, "unavailable")


def test_a_digest_covers_dtype_shape_and_every_byte() -> None:
    base = torch.arange(6, dtype=torch.float32)
    digests = {
        tensor_digest(base),
        tensor_digest(base.reshape(2, 3)),
        tensor_digest(base.to(torch.float64)),
        tensor_digest(base.view(torch.int32)),
        tensor_digest(torch.tensor([0.0, 1, 2, 3, 4, 6])),
    }
    assert len(digests) == 5
    assert tensor_digest(base.reshape(2, 3).t().contiguous().t()) == tensor_digest(base.reshape(2, 3))


# --- fixtures -----------------------------------------------------------------------------------------------------


def fixture_of(**changes: torch.Tensor) -> ReferenceFixture:
    tensors = {
        "prefill.input": torch.full((2, 4), 1.5, dtype=torch.bfloat16),
        "prefill.output": torch.ones(2, 5),
        "decode.input": torch.zeros(3, 4, dtype=torch.bfloat16),
        "decode.output": torch.arange(15, dtype=torch.float32).reshape(3, 5),
        "prompt.tokens": torch.tensor([7, 8]),
        "decode.tokens": torch.tensor([1, 2, 3]),
    }
    return ReferenceFixture(tensors | changes, {"dtype": "BF16", "attention": "sdpa", "cache_class": "StaticCache"})


def test_a_fixture_is_read_back_as_written_and_always_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "deep" / "a.safetensors", tmp_path / "b.safetensors"
    assert save_fixture(fixture_of(), first) == save_fixture(fixture_of(), second)
    assert first.read_bytes() == second.read_bytes()
    found = load_fixture(first)
    assert dict(found.provenance) == dict(fixture_of().provenance)
    assert fixture_provenance(first) == dict(fixture_of().provenance)
    for name, tensor in fixture_of().tensors.items():
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == tensor.dtype
    assert str(first) not in Path("/proc/self/maps").read_text()


def test_what_is_no_fixture_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "f.safetensors"
    with pytest.raises(FixtureError, match="cannot be read: No such file"):
        load_fixture(path)
    for data in (b"", b"hello", b"\x05" + b"\0" * 7 + b"[1,2]", b"\xff" * 20):
        path.write_bytes(data)
        with pytest.raises(FixtureError, match="is no reference of format"):
            load_fixture(path)
    save_file({"prefill.input": torch.zeros(1)}, path)
    with pytest.raises(FixtureError, match="is no reference of format"):
        fixture_provenance(path)
    save_file({"prefill.input": torch.zeros(1)}, path, metadata={"format": "tallystick.reference/1"})
    with pytest.raises(FixtureError, match=r"has no tensor 'prefill\.output'"):
        load_fixture(path)
    save_fixture(fixture_of(), path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FixtureError, match="cannot be read"):
        load_fixture(path)
    with pytest.raises(FixtureError, match="has no tensor"):
        save_fixture(ReferenceFixture({"prefill.input": torch.zeros(1)}, {}), path)


# --- bodies -------------------------------------------------------------------------------------------------------


class Echo:
    """Gives back the reference itself; `looks` times it asks the plan on the way."""

    def __init__(self, handle: PlanHandle, looks: int = 0, shift: float = 0.0) -> None:
        self.handle, self.looks, self.shift = handle, looks, shift

    def prefill(self, fixture: ReferenceFixture) -> StepOutput:
        return self._step(fixture, "prefill")

    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        return self._step(fixture, "decode")

    def _step(self, fixture: ReferenceFixture, part: str) -> StepOutput:
        for _ in range(self.looks):
            assert self.handle.plan is not None
        output = fixture.tensors[f"{part}.output"] + self.shift
        return StepOutput(fixture.tensors[f"{part}.input"], output, (4, 2))


def handle_of() -> PlanHandle:
    return PlanHandle(cast(Plan, object()))


def test_bodies_say_what_ran_and_what_came_out() -> None:
    handle = handle_of()
    echo = cast(Adapter, Echo(handle))
    body = decode.prefill(echo, fixture_of(), "exec.decode", Correctness(), handle)
    assert (body.phase, body.repetition, body.mode, body.execution_id) == ("prefill", None, "eager", "exec.decode")
    assert (body.output.exact.value, body.tokens.value, body.plan_lookups.value) == (1, 2, 0)
    again = decode.repetition(echo, fixture_of(), "exec.decode", Correctness(), handle, 3, "cuda-graph")
    assert (again.phase, again.repetition, again.mode) == ("repetition", 3, "cuda-graph")
    assert again.output_digest.value == tensor_digest(fixture_of().tensors["decode.output"])
    assert again.tokens_digest.value == body.tokens_digest.value
    assert isinstance(again.elapsed_ns.value, int)
    assert again.elapsed_ns.value > 0


def test_plan_lookups_during_a_step_are_counted() -> None:
    handle = handle_of()
    assert handle.plan is not None
    echo = cast(Adapter, Echo(handle, looks=2))
    body = decode.repetition(echo, fixture_of(), "exec.decode", Correctness(), handle, 0)
    assert body.plan_lookups.value == 2


@pytest.mark.parametrize(("atol", "within"), [(0.5, 1), (0.1, 0)])
def test_a_tolerance_is_judged_only_where_the_plan_has_one(atol: float, within: int) -> None:
    handle = handle_of()
    echo = cast(Adapter, Echo(handle, shift=0.25))
    expected = Correctness(mode="tolerance", atol=atol, rtol=0.0)
    body = decode.prefill(echo, fixture_of(), "exec.decode", expected, handle)
    assert body.output.within_tolerance is not None
    assert (body.output.exact.value, body.output.within_tolerance.value) == (0, within)
    assert decode.prefill(echo, fixture_of(), "e", Correctness(), handle).output.within_tolerance is None


def test_a_mode_that_nobody_knows_is_refused() -> None:
    handle = handle_of()
    with pytest.raises(TallyError, match="neither eager nor cuda-graph"):
        decode.repetition(cast(Any, Echo(handle)), fixture_of(), "e", Correctness(), handle, 0, "compiled")


def test_warming_up_keeps_no_tensor() -> None:
    import gc

    def live() -> int:
        gc.collect()
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())

    before = live()
    decode.warm_up()
    assert live() == before
