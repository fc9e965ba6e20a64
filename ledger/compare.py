"""Two runs side by side: typed differences, with what is bound to differ kept apart from what is not."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ledger.compare_markdown import render_markdown
from ledger.documents import ComparisonDocument, Difference, Finding
from ledger.measurement import Measurement
from ledger.plan import DEFAULT_HOST_NOISE_BYTES, Plan
from ledger.plan_diff import plan_differences
from ledger.run_facts import Fact, Facts, Rule, run_facts, steps
from ledger.run_state import RunState

if TYPE_CHECKING:
    from ledger.reconcile import Judgement

__all__ = ["ComparedRun", "compare", "render_markdown"]

ABSENT = Fact("not recorded")


@dataclass(frozen=True)
class ComparedRun:
    """One side: the run's state; its plan and judgement where it has them (a witness without a plan has neither)."""

    plan: Plan | None
    state: RunState
    judgement: Judgement | None

    @property
    def noise(self) -> int:
        """Bytes by which host memory may differ and mean nothing."""
        return self.plan.host_noise_bytes if self.plan is not None else DEFAULT_HOST_NOISE_BYTES


def compare(a: ComparedRun, b: ComparedRun) -> ComparisonDocument:
    """Every difference between two runs, sorted by path.

    Kind `expected`: times, ids, addresses, counters of the machine, and memory within the smaller `host_noise_bytes` of
    the two plans; `same` ignores these. Laws: a run does not differ from itself; `compare(b, a)` is `compare(a, b)` with
    the sides changed.
    """
    noise = min(a.noise, b.noise)
    differences = [
        *_plans(a, b),
        *_order(a.state, b.state),
        *_facts(_all_facts(a), _all_facts(b), noise),
        *_findings(a, b, noise),
    ]
    return ComparisonDocument(
        a=a.state.run_id or "",
        b=b.state.run_id or "",
        same=all(difference.kind == "expected" for difference in differences),
        differences=sorted(differences, key=lambda difference: difference.path),
    )


def _plans(a: ComparedRun, b: ComparedRun) -> Iterator[Difference]:
    if a.plan is None or b.plan is None or a.plan.data == b.plan.data:
        return
    for difference in plan_differences(a.plan, b.plan):
        yield difference.model_copy(update={"path": f"plan.{difference.path}"})


# --- order --------------------------------------------------------------------------------------------------------


def _order(a: RunState, b: RunState) -> Iterator[Difference]:
    """Steps that only one run has, and steps of both that came in another order: the fewest whose moving explains it."""
    in_a, in_b = steps(a), steps(b)
    for name in sorted(set(in_a) ^ set(in_b)):
        yield Difference(path=f"order[{name}]", a=name in in_a, b=name in in_b, kind="different")
    common_a = [name for name in in_a if name in set(in_b)]
    common_b = [name for name in in_b if name in set(in_a)]
    for name in sorted(set(common_a) - _longest_common(*sorted([common_a, common_b]))):
        yield Difference(path=f"order[{name}]", a=_after(common_a, name), b=_after(common_b, name), kind="different")


def _longest_common(one: list[str], two: list[str]) -> set[str]:
    """A longest subsequence of two orders of the same names: by place in the other, a longest increasing subsequence
    (patience sorting)."""
    place = {name: index for index, name in enumerate(two)}
    tops: list[int] = []
    ends: list[str] = []
    before: dict[str, str | None] = {}
    for name in one:
        pile = bisect_left(tops, place[name])
        before[name] = ends[pile - 1] if pile else None
        tops[pile : pile + 1] = [place[name]]
        ends[pile : pile + 1] = [name]
    kept: set[str] = set()
    last = ends[-1] if ends else None
    while last is not None:
        kept.add(last)
        last = before[last]
    return kept


def _after(names: list[str], name: str) -> str:
    """Where a step stands: after which other one."""
    place = names.index(name)
    return f"after {names[place - 1]}" if place else "first"


# --- facts --------------------------------------------------------------------------------------------------------


def _all_facts(run: ComparedRun) -> Facts:
    facts = run_facts(run.state)
    if run.judgement is not None:
        facts["verdict"] = Fact(run.judgement.verdict)
        facts["assurance"] = Fact(run.judgement.assurance)
        for name, assurance in run.judgement.assurances.items():
            facts[f"assurances[{name}]"] = Fact(assurance)
        for name, figure in run.judgement.accounting:
            facts |= _account(f"accounting.{name}", figure, "memory" if name in OF_THE_PROCESS else "exact")
    return facts


OF_THE_PROCESS = frozenset({"host_mirror", "transient_peak", "evidence_host_by_role"})
"""Accounts that hold figures of the process, which vary a little; the others are bytes of what was planned."""


def _account(path: str, figure: Any, rule: Rule) -> Facts:
    if isinstance(figure, Measurement):
        return {path: Fact(figure.value if figure.known else figure.status, rule)}
    return {f"{path}[{role}]": fact for role, size in figure.items() for fact in _account(path, size, rule).values()}


def _facts(a: Facts, b: Facts, noise: int) -> Iterator[Difference]:
    for path in a.keys() | b.keys():
        one, two = a.get(path, ABSENT), b.get(path, ABSENT)
        if _equal(one.value, two.value):
            continue
        rule: Rule = a[path].rule if path in a else b[path].rule
        expected = rule in ("incidental", "time") or (rule == "memory" and _close(one.value, two.value, noise))
        yield Difference(path=path, a=one.value, b=two.value, kind="expected" if expected else "different")


def _equal(a: Any, b: Any) -> bool:
    """Alike in value and in kind: 1 is not true, though Python holds them equal."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_equal(one, two) for one, two in zip(a, b, strict=True))
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _close(a: Any, b: Any, noise: float) -> bool:
    """Two figures, or lists or objects of figures, no further apart than the noise. A word (unknown) is close to nothing."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[key], b[key], noise) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_close(one, two, noise) for one, two in zip(a, b, strict=True))
    numbers = (int, float)
    if isinstance(a, numbers) and isinstance(b, numbers):
        return abs(a - b) <= noise
    return bool(a == b)


# --- findings -----------------------------------------------------------------------------------------------------


def _findings(a: ComparedRun, b: ComparedRun, noise: int) -> Iterator[Difference]:
    """Findings of only one run, and of both with another severity or another thing expected or observed."""
    in_a, in_b = _by_name(a), _by_name(b)
    for name in in_a.keys() | in_b.keys():
        ones, twos = in_a.get(name, []), in_b.get(name, [])
        path = f"findings[{name}]"
        if len(ones) != len(twos):
            yield Difference(path=path, a=_shown(ones), b=_shown(twos), kind="different")
            continue
        for one, two in zip(ones, twos, strict=True):
            for field in ("severity", "expected", "observed"):
                said, also = getattr(one, field), getattr(two, field)
                if not _equal(said, also):
                    alike = field != "severity" and _close(said, also, _leeway(one, two, noise))
                    kind: Literal["different", "expected"] = "expected" if alike else "different"
                    yield Difference(path=f"{path}.{field}", a=said, b=also, kind=kind)


def _leeway(one: Finding, two: Finding, noise: int) -> float:
    """How far figures in two findings of one name may lie apart and mean nothing. Where both only say that something is
    not known, the figures are what was seen by the way (accesses by other processes); what is known is compared as a fact."""
    if one.severity == two.severity == "unknown":
        return math.inf
    return noise if one.code.startswith("memory.") else 0


def _by_name(run: ComparedRun) -> dict[str, list[Finding]]:
    named: dict[str, list[Finding]] = {}
    for finding in run.judgement.findings if run.judgement is not None else []:
        named.setdefault(f"{finding.code} {finding.subject}", []).append(finding)
    return named


def _shown(findings: list[Finding]) -> Any:
    return [
        finding.model_dump(mode="json", include={"severity", "expected", "observed"}) for finding in findings
    ] or None
