"""`python -m ledger.plan_page docs/plan.md` renews the reference in that page: every field of a plan, every check of one.

What stands above the marker is written by hand and kept.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel

from ledger import plan, plan_checks, plan_doctrine, plan_forms
from ledger.bodies import Violation
from ledger.event_page import cell, described, form_of, summary
from ledger.plan import Part, Plan, PlanDocument
from ledger.plan_forms import BEYOND_R1

MARKER = "<!-- below: made by `python -m ledger.plan_page docs/plan.md` -->\n"
Check = Callable[[Plan], Iterator[Violation]]
CHECKS: tuple[Check, ...] = (
    *plan_forms.FORM_CHECKS, *plan_checks.RESOURCE_CHECKS, *plan_doctrine.DOCTRINE_CHECKS, plan_forms.check_frozen,
)  # fmt: skip
SHARED = {"id": "What findings, events and other parts call it."}
_CODE = re.compile(r'code="(plan\.[a-z-]+)"')


def renewed(page: str) -> str:
    """The page with its reference made anew. Raises ValueError for a page without the marker."""
    written, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER.strip()!r}")
    return written + marker + reference()


def reference() -> str:
    """Every part of a plan with its fields, then every check with its codes."""
    lines = ["", "## Fields", "", "Fields marked * are those of `tallystick.plan/1` alone.", ""]
    for part in parts():
        lines += _fields(part)
    lines += ["## Checks", "", "| code | what must hold |", "| --- | --- |"]
    for check in CHECKS:
        statement = " ".join((inspect.getdoc(check) or "").partition("\n\n")[0].split())
        lines += [f"| `{code}` | {statement} |" for code in codes(check)]
    return "\n".join(lines).rstrip() + "\n"


def parts() -> list[type[Part]]:
    """The document, then its parts in the order of their definition."""
    found = [value for value in vars(plan).values() if isinstance(value, type) and issubclass(value, Part)]
    return [PlanDocument, *(part for part in found if part not in (Part, PlanDocument))]


def codes(check: Check) -> list[str]:
    """The codes that a check may report, in the order in which its source names them."""
    source = inspect.getsource(check)
    if "_inconsistent(" in source:
        source += inspect.getsource(plan_forms._inconsistent)
    return list(dict.fromkeys(_CODE.findall(source)))


def meaning(part: type[BaseModel], name: str) -> str:
    """What a field means. Raises KeyError for one that nobody describes."""
    said = described(part)
    return said[name] if name in said else SHARED[name]


def _fields(part: type[Part]) -> Iterator[str]:
    yield f"### {part.__name__}"
    yield ""
    yield summary(part)
    yield ""
    yield "| field | form | meaning |"
    yield "| --- | --- | --- |"
    for name, field in part.model_fields.items():
        shown = field.alias or name
        mark = " *" if name in BEYOND_R1.get(part, frozenset()) else ""
        needed = "" if field.is_required() else ", may be left out"
        yield f"| `{shown}`{mark} | {form_of(field.annotation)}{needed} | {cell(meaning(part, shown))} |"
    yield ""


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(renewed(target.read_text(encoding="utf-8")), encoding="utf-8")
