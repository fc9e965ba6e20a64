"""A figure together with where it comes from, so that a claim, a default and an observation cannot be confused.

What could not be measured is unknown, with the reason, and never zero.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ledger import canonical

Source = Literal["probe", "witness", "adapter", "derived", "declared", "default"]
Status = Literal["measured", "stated", "unavailable", "failed"]


class Frozen(BaseModel):
    """Base of every recorded value: immutable, strict about unknown fields, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Measurement(Frozen):
    """One fact with where it comes from.

    `value` is null exactly when `status` is `unavailable` or `failed`. `source` says who speaks: `probe` and `witness`
    looked themselves; `adapter` is a claim; `derived`, `declared` and `default` were not looked at (`stated`).
    """

    value: int | float | str | None
    unit: str | None = None
    source: Source
    method: str
    status: Status
    detail: str | None = None

    @property
    def known(self) -> bool:
        """A value is there, whoever says so. A value beside `unavailable` or `failed` is none."""
        return self.value is not None and self.status in ("measured", "stated")

    @property
    def observed(self) -> bool:
        """Somebody independent of the adapter and of the plan looked and saw a value."""
        return self.status == "measured" and self.source in ("probe", "witness") and self.value is not None


def measured(
    value: float | str | None, unit: str | None, method: str, *, source: Source = "probe", detail: str | None = None
) -> Measurement:
    """A measured value; a number that cannot be recorded becomes null and `failed`, saying what it was."""
    if value is None:
        return unavailable(unit, method, detail or "no value was read", source=source)
    return _recordable(value, unit, method, source, "measured", detail)


def _recordable(
    value: float | str, unit: str | None, method: str, source: Source, status: Status, detail: str | None = None
) -> Measurement:
    """The measurement, or a failed one for a number that is not finite or whose magnitude is 2**53 or more."""
    if isinstance(value, int | float) and not abs(value) <= canonical.MAX_SAFE_INTEGER:
        what = "not finite" if isinstance(value, float) and not math.isfinite(value) else "beyond 2**53"
        return Measurement(
            value=None, unit=unit, source=source, method=method, status="failed", detail=f"{what}: {value}"
        )
    return Measurement(value=value, unit=unit, source=source, method=method, status=status, detail=detail)


def stated(
    value: float | str, unit: str | None, method: str, *, source: Literal["derived", "declared", "default"]
) -> Measurement:
    """A value that nobody looked at: computed from others, declared in a document, or a default."""
    return _recordable(value, unit, method, source, "stated")


def claimed(value: float | str, unit: str | None, method: str) -> Measurement:
    """What an adapter says of its own work."""
    return _recordable(value, unit, method, "adapter", "measured")


def unavailable(unit: str | None, method: str, why: str, *, source: Source = "probe") -> Measurement:
    """What could not be read, and why. Unknown, never zero."""
    return Measurement(value=None, unit=unit, source=source, method=method, status="unavailable", detail=why)


Measurements = dict[str, Measurement]
