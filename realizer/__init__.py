"""Carrying a plan out: the machine, memory, loading, probes, the lifecycle, the commands. Never writes SQL."""
