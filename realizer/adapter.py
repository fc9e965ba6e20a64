"""What an adapter is: the protocol between the engine and somebody's model, and the registry that finds adapters.

An adapter knows the model and nothing else. It never touches the ledger, never writes a verdict and never says where
memory is: the engine hands it ranges, it fills them, and what it says of them is a claim that probes check. Adapters
are found through the entry points of group `tallystick.adapters`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol

from ledger.errors import CheckpointError, NotFound, TallyError, install
from ledger.plan import Plan

if TYPE_CHECKING:
    import torch

    from realizer.checkpoint import Checkpoint
    from realizer.loader import Loader
    from realizer.memory import MemoryRange

ENTRY_POINT_GROUP = "tallystick.adapters"
RANGE_ALIGNMENT = 256
"""Bytes. Tensors in a range start at multiples of it: vector loads and device copies are aligned, and cuBLAS, which picks
its kernels by how far pointers are aligned up to 256 bytes, picks those that it picks for tensors on their own."""

DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "BOOL": 8, "U8": 8, "I8": 8,
    "F16": 16, "BF16": 16, "U16": 16, "I16": 16, "F32": 32, "U32": 32, "I32": 32, "F64": 64, "U64": 64, "I64": 64,
    "C64": 64,
}  # fmt: skip
"""Bits an element takes, by the dtype names of the safetensors format."""

TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F16": "float16", "BF16": "bfloat16", "U16": "uint16", "I16": "int16",
    "F32": "float32", "U32": "uint32", "I32": "int32", "F64": "float64", "U64": "uint64", "I64": "int64",
    "C64": "complex64",
}  # fmt: skip
"""torch's names of the safetensors dtypes whose elements torch can address one by one."""

COMPUTED = "recomputed by the adapter from its sources"
"""What a row of a tensor list says where the digest to compare with is the adapter's word, not the loader's."""

MODES = ("eager", "cuda-graph")
"""The modes in which decode may run."""


@dataclass(frozen=True)
class TensorPlace:
    """One tensor of a layout: where in its range it lies. `dtype` is a safetensors dtype name, `offset` is in bytes.

    `sources` are the checkpoint keys that it is made of: their bytes one after another, so that one key means a copy
    byte for byte; unless it is `derived`, computed from them by the adapter (cast, repeated, reduced).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    sources: tuple[str, ...] = ()
    derived: bool = False

    @property
    def bytes(self) -> int:
        """Bytes the tensor takes, without alignment padding. Raises TallyError for a dtype that has no such name."""
        elements = 1
        for extent in self.shape:
            elements *= extent
        if self.dtype not in DTYPE_BITS:
            raise TallyError(
                f"tensor {self.name!r} has dtype {self.dtype!r}; expected a safetensors name: {', '.join(DTYPE_BITS)}"
            )
        return (elements * DTYPE_BITS[self.dtype] + 7) // 8


@dataclass(frozen=True)
class Layout:
    """How one materialization lies in its range. A representation name is observed only where this is what is found."""

    representation: str
    places: tuple[TensorPlace, ...]

    @property
    def bytes(self) -> int:
        """Sum of the tensors' bytes: the plan's `expected_bytes` (padding does not count)."""
        return sum(place.bytes for place in self.places)

    @property
    def length(self) -> int:
        """Bytes of the range that holds it, padding included."""
        return max((place.offset + place.bytes for place in self.places), default=0)


def pack(representation: str, tensors: Sequence[tuple[str, str, tuple[int, ...], tuple[str, ...]]]) -> Layout:
    """The layout that puts (name, dtype, shape, sources) one after another, each at a multiple of RANGE_ALIGNMENT."""
    places, offset = [], 0
    for name, dtype, shape, sources in tensors:
        place = TensorPlace(name, dtype, shape, offset, sources)
        places.append(place)
        offset += -(-place.bytes // RANGE_ALIGNMENT) * RANGE_ALIGNMENT
    return Layout(representation, tuple(places))


def tensors_of(layout: Layout, memory: MemoryRange) -> dict[str, torch.Tensor]:
    """A tensor over the range for every place, by the place's name, with its dtype and shape.

    Raises TallyError for a place outside the range, and for a dtype whose elements torch does not address.
    """
    import torch

    if odd := next((place for place in layout.places if place.dtype not in TORCH_NAMES), None):
        raise TallyError(f"no torch dtype addresses single elements of {odd.dtype}, which {odd.name!r} has")
    return {
        place.name: memory.tensor(getattr(torch, TORCH_NAMES[place.dtype]), place.shape, place.offset)
        for place in layout.places
    }


@dataclass(frozen=True)
class Claim:
    """What an adapter says it realised. Bytes are of tensors, without padding; `unplanned_bytes` what it kept besides."""

    representation: str
    bytes: int
    tensors: int
    streamed_bytes: int | None = None
    unplanned_bytes: int | None = None


@dataclass(frozen=True)
class StepOutput:
    """What a prefill or a decode run took in and gave: `input` [n, hidden], `output` [n, width], tokens chosen or fed."""

    input: torch.Tensor
    output: torch.Tensor
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Draft:
    """What an adapter contributes to a plan: every list in the plan's own JSON form, for the machine at hand."""

    logical_state_units: list[dict[str, Any]]
    materializations: list[dict[str, Any]]
    authorities: list[dict[str, Any]]
    execution: list[dict[str, Any]]
    forbidden_persistent_materializations: list[dict[str, Any]]
    options: dict[str, Any]
    plan_version: str


@dataclass(frozen=True)
class DraftRequest:
    """What the person drafting asked for, with the plan ids of this machine's resources.

    `device` is a torch device name. `resources` maps a Memory Resource kind (`system-ram`, `shared-memory`,
    `accelerator-vram`) to its plan id; `links` maps (source id, target id) to a link id.
    """

    device: str
    staging: str
    compute_unit_id: str
    backing_source_id: str
    resources: Mapping[str, str]
    links: Mapping[tuple[str, str], str]
    options: Mapping[str, Any] = field(default_factory=dict)


class PlanHandle:
    """The plan as the engine and the adapter see it; every look is counted, so that decode can show it made none."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.lookups = 0

    @property
    def plan(self) -> Plan:
        self.lookups += 1
        return self._plan


@dataclass(frozen=True)
class ReferenceFixture:
    """What an unplanned run gave: tensors by name (`prefill.input`, `prefill.output`, `decode.input`, `decode.output`,
    `prompt.tokens`, `decode.tokens`) and how it was made (cache class and length, dtype, attention, versions)."""

    tensors: Mapping[str, torch.Tensor]
    provenance: Mapping[str, str]


class Adapter(Protocol):
    """One model being realised. Built once per run, before anything is allocated.

    The engine calls, in this order: the constructor, `violations`, and for each materialization in plan order `layout`
    and `realize`; then `release` for each staging materialization; `activate`; and, when decode is planned, `prefill`,
    `save_baseline`, and per repetition `restore_baseline` and `decode`. `model` is what the caller may use afterwards.

    A class that derives from this one inherits `recognises`, `tokens` and `decode_modes`, and cannot be built while it
    lacks another member. It may have besides: `warm_up(device)`, called before the memory baseline; `answer(prompt,
    most_tokens) -> str` for `realize --prompt`; `content(materialization_id) -> Layout` and
    `derived_digests(materialization_id, loader)` for `--verify-content` of joined or computed tensors;
    `published(name) -> bytes` for `plan draft --published`; `synth(folder, options)` for `synth`.
    """

    name: str
    version: str

    def __init__(self, plan: PlanHandle, checkpoint: Checkpoint) -> None: ...

    @classmethod
    def recognises(cls, plan: Plan) -> bool:
        """Whether a plan that names no adapter (the R1 dialect) is this adapter's. Imports and allocates nothing."""
        return False

    @classmethod
    @abstractmethod
    def unsupported(cls, checkpoint: Checkpoint) -> str | None:
        """Why this checkpoint cannot be realised (naming the first key that does not map), or None."""
        ...

    @classmethod
    @abstractmethod
    def draft(cls, checkpoint: Checkpoint, request: DraftRequest) -> Draft:
        """The adapter's part of a plan, with exact expected bytes from the checkpoint's headers."""
        ...

    @classmethod
    @abstractmethod
    def reference(
        cls, plan: Plan, checkpoint: Checkpoint, prompt: str | None, tokens: Sequence[int]
    ) -> ReferenceFixture:
        """Run the unplanned model, with the run's cache class and length, dtype and attention."""
        ...

    @classmethod
    def tokens(cls, checkpoint: Checkpoint, prompt: str) -> list[int]:
        """The prompt's token ids by the checkpoint's own tokenizer. Raises CheckpointError where it has none."""
        raise CheckpointError(f"adapter {cls.name} has no tokenizer")

    @abstractmethod
    def violations(self) -> list[tuple[str, str]]:
        """(subject id, message) for everything in the plan that this adapter cannot carry out; nothing is allocated."""
        ...

    @abstractmethod
    def layout(self, materialization_id: str) -> Layout:
        """How that materialization will lie in its range."""
        ...

    @abstractmethod
    def realize(self, materialization_id: str, memory: MemoryRange, loader: Loader) -> Claim:
        """Fill the range. Keeps no storage outside the ranges it was given, nor a mapping of a checkpoint file."""
        ...

    def decode_modes(self) -> tuple[str, ...]:
        """The modes in which repeated decode runs here, in order: `eager`, and `cuda-graph` where it can be captured."""
        return ("eager",)

    @abstractmethod
    def release(self, materialization_id: str) -> None:
        """Drop every reference into that staging range. The engine unmaps it afterwards."""
        ...

    @abstractmethod
    def activate(self, execution_id: str) -> torch.device:
        """Bind execution to the realised state; the device that parameters are on."""
        ...

    @abstractmethod
    def prefill(self, fixture: ReferenceFixture) -> StepOutput:
        """Run the prompt from empty state."""
        ...

    @abstractmethod
    def save_baseline(self) -> None:
        """Copy the authoritative runtime state into the replay baseline's range."""
        ...

    @abstractmethod
    def restore_baseline(self) -> None:
        """Copy the replay baseline back into the authoritative runtime state."""
        ...

    @abstractmethod
    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        """Decode from the current state, as many steps as the fixture has. No plan look-up, no checkpoint access."""
        ...

    @property
    @abstractmethod
    def model(self) -> Any:
        """The live model, as realised."""
        ...


def load_adapter(name: str) -> type[Adapter]:
    """The adapter class of that name.

    Raises NotFound naming those there are, TallyError when several packages offer one of that name, or its import fails.
    """
    points = _entry_points()
    offered = {point.value: point for point in points if point.name == name}
    if not offered:
        known = ", ".join(sorted({point.name for point in points})) or "none"
        raise NotFound(f"no adapter named {name!r}; installed: {known}", "install the package that carries it")
    if len(offered) > 1:
        raise TallyError(
            f"several installed packages offer an adapter {name!r}: {', '.join(sorted(offered))}",
            "which one is meant must not be left to chance: uninstall the others",
        )
    (point,) = offered.values()
    try:
        adapter: type[Adapter] = point.load()
    except Exception as error:
        said = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise TallyError(f"adapter {name!r} cannot be imported: {said}", _import_hint(error, point)) from error
    from realizer import answers  # which builds on this module

    answers.require_members(adapter)
    if adapter.name != name:
        raise TallyError(
            f"adapter {name!r} calls itself {adapter.name!r}: the entry point and the class's `name` have to be the same",
            f"change `name` of {point.value}, or the entry point",
        )
    return adapter


def _import_hint(error: Exception, point: EntryPoint) -> str:
    """What to try: about this program's own packages where one of those is missing, else about the adapter's."""
    missing = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if missing in ("torch", "transformers", "safetensors", "numpy"):
        return install("realize")
    if missing in ("adapters", "realizer", "ledger"):
        return (
            f"does another package install a top-level `{missing}` too (AdapterHub's `adapters` is one)? `tally doctor`"
        )
    if isinstance(error, ModuleNotFoundError) and missing != point.module.partition(".")[0]:
        return f"the package that offers {point.value} needs {missing}: install it"
    return f"mend or reinstall the package that offers {point.value}"


def adapter_for(plan: Plan) -> type[Adapter]:
    """The adapter that the plan names or, in the R1 dialect, the one that recognises it. Raises NotFound."""
    if plan.document.adapter is not None:
        return load_adapter(plan.document.adapter.name)
    broken = []
    for name in adapter_names():
        try:
            adapter = load_adapter(name)
        except TallyError as error:
            broken.append(error)
            continue
        if adapter.recognises(plan):
            return adapter
    raise NotFound(
        "; ".join(
            [
                "the plan names no adapter and none of those installed recognises it",
                *(error.message for error in broken),
            ]
        ),
        missing_extra(broken) or "name one with --adapter",
    )


def missing_extra(broken: Iterable[TallyError]) -> str | None:
    """What to install where one of these errors of adapters is for want of it; before that no other advice helps."""
    return next((error.hint for error in broken if error.hint == install("realize")), None)


def _entry_points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def adapter_names() -> list[str]:
    """Names of the installed adapters, sorted."""
    return sorted({point.name for point in _entry_points()})
