"""Carrying a plan out: the machine, memory, loading, probes, the lifecycle, the commands. Never writes SQL.

What others may build on are the names below, documented in docs/library.md; a room is imported when one of its names is asked
for, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from realizer.adapter import Adapter as Adapter
    from realizer.adapter import Claim as Claim
    from realizer.adapter import Draft as Draft
    from realizer.adapter import DraftRequest as DraftRequest
    from realizer.adapter import Layout as Layout
    from realizer.adapter import PlanHandle as PlanHandle
    from realizer.adapter import ReferenceFixture as ReferenceFixture
    from realizer.adapter import StepOutput as StepOutput
    from realizer.adapter import TensorPlace as TensorPlace
    from realizer.adapter import load_adapter as load_adapter
    from realizer.adapter import pack as pack
    from realizer.adapter import tensors_of as tensors_of
    from realizer.checkpoint import Checkpoint as Checkpoint
    from realizer.checkpoint import open_checkpoint as open_checkpoint
    from realizer.engine import LiveRun as LiveRun
    from realizer.engine import Request as Request
    from realizer.engine import realize as realize
    from realizer.loader import Loader as Loader
    from realizer.memory import MemoryRange as MemoryRange
    from realizer.recorded import realize_into as realize_into

_ROOMS = {
    "Adapter": "realizer.adapter",
    "Checkpoint": "realizer.checkpoint",
    "Claim": "realizer.adapter",
    "Draft": "realizer.adapter",
    "DraftRequest": "realizer.adapter",
    "Layout": "realizer.adapter",
    "LiveRun": "realizer.engine",
    "Loader": "realizer.loader",
    "MemoryRange": "realizer.memory",
    "PlanHandle": "realizer.adapter",
    "ReferenceFixture": "realizer.adapter",
    "Request": "realizer.engine",
    "StepOutput": "realizer.adapter",
    "TensorPlace": "realizer.adapter",
    "load_adapter": "realizer.adapter",
    "open_checkpoint": "realizer.checkpoint",
    "pack": "realizer.adapter",
    "realize": "realizer.engine",
    "realize_into": "realizer.recorded",
    "tensors_of": "realizer.adapter",
}
"""Public name -> the room that holds it."""

__all__ = list(_ROOMS)


if not TYPE_CHECKING:  # a type checker is to refuse any other name

    def __getattr__(name: str) -> Any:
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
