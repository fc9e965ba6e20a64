"""A Tallystick adapter for a model kind of its own; docs/adapters.md explains it step by step."""

from tally_adapter_example.adapter import BagOfBytes

__all__ = ["BagOfBytes"]
