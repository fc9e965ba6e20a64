"""What the full-size realizations on a GPU print: each figure as a JSON line as it comes, and a table of them all."""

from __future__ import annotations

import json
from typing import Any


class Figures:
    """What was measured, printed as it comes; `failed` counts what is not as expected."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def add(self, name: str, value: Any, expected: Any = None, ok: bool | None = None) -> None:
        """One figure. Without `ok` it has to equal what is expected; without either it is only reported."""
        held = ok if ok is not None else (None if expected is None else value == expected)
        line = {"name": name, "value": value, "expected": expected, "ok": held}
        self.lines.append(line)
        print(json.dumps(line), flush=True)

    def judge(self, name: str, value: float | None, limit: str, held: bool, *, judged: bool) -> None:
        """A figure with a limit, which binds where `judged`."""
        self.add(name, value, limit if judged else None, held if judged else None)

    @property
    def failed(self) -> list[str]:
        return [line["name"] for line in self.lines if line["ok"] is False]

    def table(self) -> str:
        rows = [
            (line["name"], str(line["value"]), {True: "ok", False: "NO", None: ""}[line["ok"]]) for line in self.lines
        ]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:<{width}}  {value:<40.40}  {held}" for name, value, held in rows)
