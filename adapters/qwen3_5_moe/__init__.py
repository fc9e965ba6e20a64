"""The adapter for a block of nvidia/Qwen3.6-35B-A3B-NVFP4: its layouts, arithmetic, published plan and synthetic twins."""

from typing import Any

__all__ = ["Qwen35Moe"]


def __getattr__(name: str) -> Any:
    """The adapter class, imported when first asked for: plans and layouts are to be had without torch."""
    if name == "Qwen35Moe":
        from adapters.qwen3_5_moe.adapter import Qwen35Moe

        return Qwen35Moe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
