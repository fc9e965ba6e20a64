"""Decode laid against its reference: fixtures on disk, deviations, and the `decode.ran` bodies.

Nothing is recorded and no plan is read while the model runs; the handle's count of look-ups before and after says so.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ledger.bodies import DecodeRan, Deviation
from ledger.canonical import sha256_digest
from ledger.errors import TallyError
from ledger.measurement import Measurement, measured, unavailable
from ledger.plan import Correctness
from realizer import answers
from realizer.adapter import MODES, Adapter, PlanHandle, ReferenceFixture, StepOutput

if TYPE_CHECKING:
    import torch

FIXTURE_FORMAT = "tallystick.reference/1"
FIXTURE_TENSORS = (
    "prefill.input",
    "prefill.output",
    "decode.input",
    "decode.output",
    "prompt.tokens",
    "decode.tokens",
)
MAKE_ONE = "make one with `tally reference`"


class FixtureError(TallyError):
    """A reference fixture that cannot be read or is none."""


def fixture_bytes(fixture: ReferenceFixture) -> bytes:
    """The fixture as one safetensors file, provenance in its metadata. The same fixture gives the same bytes.

    Raises FixtureError when a tensor is missing.
    """
    from safetensors.torch import save

    missing = [name for name in FIXTURE_TENSORS if name not in fixture.tensors]
    if missing:
        raise FixtureError(f"the reference has no tensor {missing[0]!r}")
    metadata = {"format": FIXTURE_FORMAT, **fixture.provenance}
    # apart: safetensors refuses tensors that share memory, as a fixture's inputs and outputs may
    apart = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in fixture.tensors.items()}
    return _sorted_metadata(save(apart, metadata))


def save_fixture(fixture: ReferenceFixture, path: Path) -> str:
    """Write the fixture's bytes to a file; returns its `sha256:` digest. Raises FixtureError."""
    data = fixture_bytes(fixture)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise FixtureError(f"reference {str(path)!r} cannot be written: {error.strerror}") from error
    return sha256_digest(data)


def _sorted_metadata(data: bytes) -> bytes:
    """The same file with its header's keys sorted: safetensors writes metadata in no fixed order."""
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def expected_tokens(prefill: Sequence[int], decoded: Sequence[int]) -> dict[str, str]:
    """Which tokens come out of prefill and of each decode, as a fixture's provenance says it: how many, and their digest.

    The judge holds a bit-exact run to them.
    """
    given = {"prefill": prefill, "decode": decoded}
    return {f"{phase}_tokens": str(len(tokens)) for phase, tokens in given.items()} | {
        f"{phase}_tokens_digest": tokens_digest(tokens) for phase, tokens in given.items()
    }


def load_fixture(path: Path) -> ReferenceFixture:
    """Read a fixture into memory of its own (no mapping of the file stays). Raises FixtureError when it is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    data = _fixture_bytes(path)
    provenance = _provenance(path, data)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise FixtureError(f"reference {str(path)!r} cannot be read: {error}", MAKE_ONE) from error
    missing = [name for name in FIXTURE_TENSORS if name not in tensors]
    if missing:
        raise FixtureError(f"reference {str(path)!r} has no tensor {missing[0]!r}", MAKE_ONE)
    return ReferenceFixture({name: tensor.clone() for name, tensor in tensors.items()}, provenance)


def fixture_provenance(path: Path) -> dict[str, str]:
    """How the fixture says it was made. Raises FixtureError when it is none."""
    return _provenance(path, _fixture_bytes(path))


def _fixture_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FixtureError(f"reference {str(path)!r} cannot be read: {error.strerror}", MAKE_ONE) from error


def _provenance(path: Path, data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    try:
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {}) if length <= len(data) - 8 else {}
    except (ValueError, AttributeError, RecursionError):
        metadata = {}
    if not isinstance(metadata, dict) or metadata.get("format") != FIXTURE_FORMAT:
        raise FixtureError(f"{str(path)!r} is no reference of format {FIXTURE_FORMAT}", MAKE_ONE)
    return {str(key): str(value) for key, value in sorted(metadata.items()) if key != "format"}


# --- deviations ---------------------------------------------------------------------------------------------------


def deviation(
    found: torch.Tensor, reference: torch.Tensor, atol: float | None = None, rtol: float | None = None
) -> Deviation:
    """`found` laid against `reference`, both of any float or integer dtype, computed in float64 on the CPU.

    Exact means equal shape, dtype and bits. Relative is |found - reference| / |reference| where the reference is not
    zero; where it is zero and `found` is not, it is infinite. Figures that are not finite are null and failed. With a
    tolerance, `within_tolerance` is 1 when |found - reference| <= atol + rtol * |reference| everywhere and all is
    finite (the rule of torch.allclose).
    """
    import torch

    method = "compared in float64"
    here, there = found.detach().cpu(), reference.detach().cpu()
    if here.shape != there.shape:
        why = f"shape {list(here.shape)}, reference {list(there.shape)}"
        unknown = unavailable(None, method, why)
        no = measured(0, "flag", "shape and bits compared", detail=why)
        counts = [measured(int(test(here).sum()), "elements", "counted") for test in (torch.isnan, torch.isinf)]
        tolerated = None if atol is None and rtol is None else measured(0, "flag", method, detail=why)
        return Deviation(
            exact=no,
            max_absolute=unknown,
            max_relative=unknown,
            nan_count=counts[0],
            inf_count=counts[1],
            within_tolerance=tolerated,
        )
    exact = here.dtype == there.dtype and torch.equal(_bits(here), _bits(there))
    a, b = here.double(), there.double()
    finite = bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())
    difference = (a - b).abs()
    scale = b.abs()
    relative = torch.where(difference == 0, difference, difference / scale)
    tolerated = None
    if atol is not None or rtol is not None:
        inside = finite and bool((difference <= (atol or 0.0) + (rtol or 0.0) * scale).all())
        tolerated = measured(int(inside), "flag", f"|found - reference| <= {atol or 0.0} + {rtol or 0.0} * |reference|")
    return Deviation(
        exact=measured(int(exact), "flag", "shape, dtype and bits compared"),
        max_absolute=_most(difference, method),
        max_relative=_most(relative, method),
        nan_count=measured(int(torch.isnan(a).sum()), "elements", "counted"),
        inf_count=measured(int(torch.isinf(a).sum()), "elements", "counted"),
        within_tolerance=tolerated,
    )


def _most(values: torch.Tensor, method: str) -> Measurement:
    """The largest value; null and failed when it is not finite, unavailable when there is none to take."""
    if values.numel() == 0:
        return unavailable(None, method, "there are no elements to compare")
    return measured(float(values.max()), None, method)  # max of a NaN is NaN


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().flatten().view(torch.uint8)


def tensor_digest(tensor: torch.Tensor) -> str:
    """`sha256:` over dtype, shape and bytes (row-major)."""
    here = tensor.detach().cpu()
    head = f"{str(here.dtype).removeprefix('torch.')} {list(here.shape)}\n".encode()
    return "sha256:" + hashlib.sha256(head + _bits(here).numpy().tobytes()).hexdigest()


# --- runs ---------------------------------------------------------------------------------------------------------


def prefill(
    adapter: Adapter, fixture: ReferenceFixture, execution_id: str, expected: Correctness, handle: PlanHandle
) -> DecodeRan:
    """Run the prompt from empty state, then compare: the body to record once it is over."""
    return _run(
        lambda: answers.done(adapter, "prefill", fixture),
        "prefill",
        None,
        "eager",
        fixture,
        execution_id,
        expected,
        handle,
        adapter,
    )


def repetition(
    adapter: Adapter,
    fixture: ReferenceFixture,
    execution_id: str,
    expected: Correctness,
    handle: PlanHandle,
    number: int,
    mode: str = "eager",
) -> DecodeRan:
    """Decode once from the restored baseline, then compare: the body to record once it is over."""
    return _run(
        lambda: answers.done(adapter, "decode", fixture, mode),
        "repetition",
        number,
        mode,
        fixture,
        execution_id,
        expected,
        handle,
        adapter,
    )


def _run(
    step: Callable[[], StepOutput],
    phase: Literal["prefill", "repetition"],
    number: int | None,
    mode: str,
    fixture: ReferenceFixture,
    execution_id: str,
    expected: Correctness,
    handle: PlanHandle,
    adapter: Adapter,
) -> DecodeRan:
    if mode not in MODES:
        raise TallyError(f"decode mode {mode!r} is neither eager nor cuda-graph")
    looked = handle.lookups
    started = time.perf_counter_ns()
    output = answers.step(adapter, "prefill" if phase == "prefill" else "decode", step())
    _synchronise(output.output)
    elapsed = time.perf_counter_ns() - started
    looked = handle.lookups - looked
    part = "prefill" if phase == "prefill" else "decode"
    atol, rtol = (None, None) if expected.mode == "exact" else (expected.atol or 0.0, expected.rtol or 0.0)
    return DecodeRan(
        execution_id=execution_id,
        phase=phase,
        repetition=number,
        mode="eager" if mode == "eager" else "cuda-graph",
        input=deviation(output.input, fixture.tensors[f"{part}.input"], atol, rtol),
        output=deviation(output.output, fixture.tensors[f"{part}.output"], atol, rtol),
        tokens=measured(len(output.tokens), "tokens", "counted"),
        tokens_digest=measured(tokens_digest(output.tokens), None, "SHA-256 of the token ids, one a line"),
        output_digest=measured(tensor_digest(output.output), None, "SHA-256 of dtype, shape and bytes"),
        elapsed_ns=measured(elapsed, "ns", "monotonic clock around the step, device synchronised"),
        plan_lookups=measured(looked, "lookups", "plan handle's count before and after"),
    )


def tokens_digest(tokens: Sequence[int]) -> str:
    return sha256_digest("".join(f"{token}\n" for token in tokens).encode("ascii"))


def _synchronise(tensor: torch.Tensor) -> None:
    if tensor.device.type == "cuda":
        import torch

        torch.cuda.synchronize(tensor.device)


def warm_up(device: str = "cpu") -> None:
    """Have the libraries allocate what they keep for good (thread pools, kernels' workspaces) before the baseline."""
    import torch
    from torch.nn import functional

    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            rows = torch.ones((4, 256), dtype=dtype, device=device)
            square = torch.ones((256, 256), dtype=dtype, device=device)
            heads = functional.linear(rows, square).view(1, 4, 4, 64).transpose(1, 2)
            mask = torch.ones((4, 4), dtype=torch.bool, device=device)
            functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask).softmax(-1).exp().sum()
            functional.silu(rows[:1] @ square).double().cpu()
        _synchronise(torch.ones(1, device=device))
