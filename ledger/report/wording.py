"""How values read on a page: sizes, times and measurements in words, and text from outside made inert."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup, escape

from ledger import canonical
from ledger.bodies import Deviation, ModelIdentity
from ledger.measurement import Measurement

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
LONGEST_VALUE = 2_000
"""Characters of one value that a page shows; the ledger has all of it."""


def inert(value: object) -> str:
    """Text in which nothing acts: control characters, direction marks and their like are spelt out (`\\u202e`).

    HTML's own characters are the template's business, which escapes every value.
    """
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else canonical.printable(text)


def size(count: float) -> str:
    """Bytes with a binary unit."""
    value, unit = float(count), UNITS[0]
    for unit in UNITS:
        if abs(value) < 1024 or unit == UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{value:.0f} B"
    return f"{value:.2f} {unit}" if abs(value) < 10 else f"{value:.1f} {unit}"


def grouped(count: float) -> str:
    """A number with commas between its thousands."""
    return f"{count:,}" if isinstance(count, int) else f"{count:g}"


def duration(nanoseconds: float) -> str:
    """A span of time in the unit that suits it."""
    seconds = nanoseconds / 1e9
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.1f} ms"
    if abs(seconds) < 120:
        return f"{seconds:.2f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


def said(measurement: Measurement | None) -> str:
    """A measurement's value in its unit; what is not known is called by its status, never 0."""
    if measurement is None:
        return "not recorded"
    value = measurement.value
    if value is None:
        return measurement.status
    if isinstance(value, int | float):
        if measurement.unit == "bytes":
            return size(value)
        if measurement.unit in ("ns", "nanoseconds"):
            return duration(value)
        return grouped(value)
    return shortened(value)


def number(measurement: Measurement) -> str:
    """A number that names something (a process, say), so that its digits are not grouped."""
    return str(measurement.value) if isinstance(measurement.value, int) else said(measurement)


def model(identity: ModelIdentity) -> str:
    """Repository and revision; where the checkpoint does not say, its directory, where that is known."""
    if identity.repository.value is None and identity.directory.value is not None:
        return f"in {said(identity.directory)}; {identity.repository.detail or 'repository unavailable'}"
    return f"{said(identity.repository)} @ {said(identity.revision)}"


def how(measurement: Measurement | None) -> str:
    """Where a measurement comes from, for a tooltip: the raw value, who says so, by what means, and what went wrong."""
    if measurement is None:
        return "no event says it"
    parts = [measurement.source, measurement.status, measurement.method]
    if isinstance(measurement.value, int | float):
        parts.insert(0, f"{measurement.value} {measurement.unit or ''}".strip())
    if measurement.detail:
        parts.append(measurement.detail)
    return " · ".join(parts)


def ratio(measurement: Measurement | None) -> str:
    """A ratio as a percentage."""
    value = measurement.value if measurement is not None else None
    return f"{value:.2%}" if isinstance(value, int | float) else said(measurement)


def deviation(found: Deviation) -> str:
    """How far from the reference: exact, or the largest deviations with what was not a number."""
    if found.exact.value == 1:
        return "exact"
    odd = "".join(
        f", {said(count)} {name}"
        for name, count in (("NaN", found.nan_count), ("Inf", found.inf_count))
        if count.value != 0
    )
    return f"max |Δ| {said(found.max_absolute)}, relative {said(found.max_relative)}{odd}"


def shortened(text: str, longest: int = LONGEST_VALUE) -> str:
    """The text, its end left off and counted where it is very long."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def compact(value: Any) -> str:
    """A value out of a document on one line: text as it is, lists and objects by their parts, null as `null`."""
    return shortened(_told(value))


def _told(value: Any, *, inner: bool = False) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value:
        parts = ", ".join(f"{key}: {_told(item, inner=True)}" for key, item in sorted(value.items()))
        return f"({parts})" if inner else parts
    if isinstance(value, list) and value:
        parts = ", ".join(_told(item, inner=True) for item in value)
        return f"[{parts}]" if inner else parts
    if type(value) is int:
        return grouped(value)
    return json.dumps(value, ensure_ascii=False)


def digest(text: str | None) -> Markup:
    """A digest that breaks anywhere, or a word for none."""
    if not text:
        return Markup('<span class="dim">none</span>')
    return Markup('<code class="digest">{}</code>').format(inert(text))


def pretty(value: Any, longest: int = 20_000) -> Markup:
    """A document as indented JSON over many lines, each inert and escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    cut = len(text) > longest
    shown = text[:longest] if cut else text
    if not shown.replace("\n", "").isprintable():
        shown = "\n".join(map(inert, shown.split("\n")))
    if cut:
        shown += f"\n… ({len(text)} characters; `tally log --json` has all of them)"
    return escape(shown)
