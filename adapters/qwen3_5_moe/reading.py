"""What the adapter makes of a plan that is given: its options, its layouts, and everything that speaks against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.qwen3_5_moe import layout
from adapters.qwen3_5_moe.keys import DiskTensor, disk_tensors, selected_keys
from adapters.qwen3_5_moe.published import REPOSITORY
from adapters.qwen3_5_moe.repack import pieces
from adapters.qwen3_5_moe.shape import PUBLISHED, BlockShape
from ledger.errors import CheckpointError, TallyError
from ledger.plan import R1_SCHEMA, Materialization, Plan, keys_digest
from realizer.adapter import Layout, TensorPlace
from realizer.checkpoint import Checkpoint

PAGE = 4096
MOST_NAMED = 10
"""Tensors named one by one when a checkpoint does not fit: another model's may differ in tens of thousands."""

DEFAULTS: Mapping[str, int] = {
    "start_layer": PUBLISHED.start,
    "end_layer": PUBLISHED.end,
    "pages": PUBLISHED.pages,
    "page_tokens": PUBLISHED.page_tokens,
    "decode_steps": 8,
}
SIZES = ("window_bytes", "non_routed_window_bytes")

REQUIRED = (layout.NATIVE, layout.SLOT_BANKS, layout.RUNTIME)
"""Representations that decoding cannot do without."""


def options_of(given: Mapping[str, Any]) -> dict[str, int]:
    """The options with their defaults, all positive integers but `start_layer`, which may be 0.

    Raises TallyError for one that is unknown or no such integer.
    """
    if odd := sorted(set(given) - {*DEFAULTS, *SIZES}):
        raise TallyError(f"qwen3_5_moe has no option {odd[0]!r}", f"options: {', '.join(sorted({*DEFAULTS, *SIZES}))}")
    options = dict(DEFAULTS)
    for name, value in given.items():
        try:
            options[name] = int(str(value))  # as a plan or a command line gives it; 1.5 and true are no integers
        except ValueError as error:
            raise TallyError(f"option {name} is {value!r}, not an integer") from error
        if options[name] < (name != "start_layer"):
            raise TallyError(f"option {name} is {options[name]}, too small")
    return options


def options_from(plan: Plan) -> dict[str, int]:
    """The plan's options; the R1 dialect says the layers in its adapter data, and the rest is as published."""
    if plan.document.adapter is not None:
        return options_of(plan.document.adapter.options)
    spec = plan.document.adapter_data.get("spec")
    named = spec if isinstance(spec, dict) else {}
    return options_of({name: named[name] for name in ("start_layer", "end_layer") if name in named})


def shape_for(checkpoint: Checkpoint, options: Mapping[str, int]) -> BlockShape:
    """The block of that checkpoint that the options name. Raises CheckpointError when it has no such layers."""
    return BlockShape.from_config(
        checkpoint.config,
        start=options["start_layer"],
        end=options["end_layer"],
        pages=options["pages"],
        page_tokens=options["page_tokens"],
    )


def mismatches(shape: BlockShape, checkpoint: Checkpoint) -> Iterator[str]:
    """What of the block's selected tensors the checkpoint lacks, or has in another dtype or shape."""
    wanted = set(selected_keys(shape))
    for tensor in disk_tensors(shape):
        if tensor.key not in wanted:
            continue
        entry = checkpoint.tensors.get(tensor.key)
        if entry is None:
            yield f"tensor {tensor.key!r} is not in the checkpoint"
        elif entry.shape != tensor.shape or entry.dtype not in _dtypes(tensor):
            yield (
                f"tensor {tensor.key!r} is {entry.dtype} {list(entry.shape)}, expected {tensor.dtype} "
                f"{list(tensor.shape)}"
            )


def _dtypes(tensor: DiskTensor) -> tuple[str, ...]:
    """What a tensor may be on disk: some checkpoints keep the decay's parameters in F32, which the layout holds anyway."""
    return (tensor.dtype, "F32") if tensor.key.endswith((".A_log", ".dt_bias")) else (tensor.dtype,)


@dataclass(frozen=True)
class Reading:
    """A plan as this adapter reads it: the block's shape, and each materialization's layout and what it stages for."""

    plan: Plan
    shape: BlockShape
    layouts: Mapping[str, Layout]

    @classmethod
    def of(cls, plan: Plan, shape: BlockShape) -> Reading:
        banks = layout.routed_banks(shape, layout.HOST_BANKS)
        known = {
            made.representation: made
            for made in (
                banks,
                Layout(layout.SLOT_BANKS, banks.places),
                layout.non_routed(shape),
                layout.runtime_state(shape),
                layout.runtime_state(shape, layout.SNAPSHOT),
                layout.graph_io(shape),
            )
        }
        layouts = {}
        for planned in plan.document.materializations:
            if planned.representation == layout.RING:
                layouts[planned.id] = Layout(layout.RING, (TensorPlace("ring", "U8", (planned.expected_bytes,), 0),))
            elif planned.representation in known:
                layouts[planned.id] = known[planned.representation]
        return cls(plan, shape, layouts)

    def by_representation(self, representation: str) -> list[Materialization]:
        return [m for m in self.plan.document.materializations if m.representation == representation]

    def one(self, representation: str) -> Materialization | None:
        """The materialization of that representation, or None."""
        found = self.by_representation(representation)
        return found[0] if found else None

    def staging_for(self, resident: Materialization) -> Materialization | None:
        """What the plan stages for the same state, or None."""
        return next(
            (
                m
                for m in self.plan.document.materializations
                if m.role == "staging" and m.logical_state_id == resident.logical_state_id
            ),
            None,
        )

    def violations(self, checkpoint: Checkpoint) -> list[tuple[str, str]]:
        """Everything that speaks against carrying the plan out, with the plan part that it is about."""
        return [
            *self._tensors(checkpoint),
            *self._parts(),
            *self._selections(),
            *self._widths(checkpoint),
        ]

    def _tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
        """The first few tensors that are not as they should be, and how many more."""
        problems = list(mismatches(self.shape, checkpoint))
        yield from (("checkpoint", problem) for problem in problems[:MOST_NAMED])
        if len(problems) > MOST_NAMED:
            yield "checkpoint", f"{len(problems) - MOST_NAMED} more tensors are absent or of another dtype or shape"

    def _parts(self) -> Iterator[tuple[str, str]]:
        for planned in self.plan.document.materializations:
            if planned.id not in self.layouts:
                yield planned.id, f"the adapter makes no representation {planned.representation!r}"
        for representation in sorted({made.representation for made in self.layouts.values()} - {layout.RING}):
            for extra in self.by_representation(representation)[1:]:
                yield extra.id, f"the block has one materialization of {representation!r}; this is another"
        for representation in REQUIRED:
            if self.one(representation) is None:
                yield "execution", f"the block needs a materialization of {representation!r}; none is planned"
        order = [planned.id for planned in self.plan.document.materializations]
        residents = [m for name in (layout.NATIVE, layout.SLOT_BANKS) for m in self.by_representation(name)]
        for staging in (m for m in self.plan.document.materializations if m.role == "staging"):
            served = next((m for m in residents if m.logical_state_id == staging.logical_state_id), None)
            if served is None:
                yield staging.id, "it stages for nothing that the block keeps"
            elif order.index(staging.id) > order.index(served.id):
                yield staging.id, f"it stages for {served.id}, which the plan realises before it"
            elif staging.representation == layout.HOST_BANKS and served.representation != layout.SLOT_BANKS:
                yield staging.id, f"the banks are staged, and {served.id} holds none"
            if (staging.representation == layout.RING) != (staging.streamed_bytes is not None):
                yield staging.id, f"{layout.RING!r} and `streamed_bytes` go together"
            if staging.representation == layout.RING and staging.expected_bytes < PAGE:
                yield staging.id, f"a ring of {staging.expected_bytes} bytes is smaller than a page of {PAGE}"

    def _selections(self) -> Iterator[tuple[str, str]]:
        """Keys that the plan lists or selects are those that the block reads, no fewer and no more."""
        allowed = self.plan.document.adapter_data.get("allowed_tensor_keys")
        if allowed is not None and (not isinstance(allowed, list) or allowed != selected_keys(self.shape)):
            count = len(allowed) if isinstance(allowed, list) else 0
            yield (
                "adapter_data",
                f"allowed_tensor_keys ({count}) are not the {len(selected_keys(self.shape))} keys of the block in order",
            )
        for representation in (layout.NATIVE, layout.SLOT_BANKS):
            part = self.one(representation)
            unit = self.plan.units.get(part.logical_state_id) if part is not None else None
            if unit is None or unit.selection is None:
                continue
            keys = unit_keys(self.shape, routed=representation == layout.SLOT_BANKS)
            if (unit.selection.count, unit.selection.keys_digest) != (len(keys), keys_digest(keys)):
                yield unit.id, f"it selects {unit.selection.count} tensors; the block reads other ones ({len(keys)})"

    def _widths(self, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
        """Fused tensors are filled exactly by their sources."""
        if next(mismatches(self.shape, checkpoint), None) is not None:
            return
        for name in (layout.NATIVE, layout.SLOT_BANKS):
            part = self.one(name)
            if part is None:
                continue
            try:
                pieces(self.layouts[part.id], checkpoint.tensors)
            except CheckpointError as error:
                yield part.id, error.message


def recognises(plan: Plan) -> bool:
    """An R1 plan of this model's repository."""
    spec = plan.document.adapter_data.get("spec")
    return plan.schema == R1_SCHEMA and isinstance(spec, dict) and spec.get("model_repository") == REPOSITORY


def unit_keys(shape: BlockShape, *, routed: bool) -> list[str]:
    """The keys of the routed experts, or of everything else that the block reads."""
    return [key for key in selected_keys(shape) if (".mlp.experts." in key) == routed]
