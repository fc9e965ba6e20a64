"""A run at a glance, for people: verdict first, then planned against observed, release, authority, decode, memory, findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from realizer.cli.hints import command
from realizer.cli.narration import CLASSES, ratio, region
from realizer.cli.rendering import (
    OUTCOME_STYLES,
    SEVERITY_STYLES,
    VERDICT_STYLES,
    amount,
    cell,
    confined,
    facts,
    heading,
    in_bytes,
    inert,
    joined,
    json_value,
    measured,
    short_digest,
    size,
    table,
)
from realizer.cli.witnessed import witnessed_parts

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ledger.bodies import ModelIdentity, ReclamationObserved
    from ledger.documents import Accounting, Finding
    from ledger.plan import Plan
    from ledger.reconcile import Judgement
    from ledger.run_state import DecodeState, Extremes, MaterializationState, RunState

LONGEST_VALUE = 160
"""Characters of an expected or observed value that a terminal shows; --json has all of it."""


def portrait(plan: Plan | None, state: RunState, judgement: Judgement | None) -> Iterator[RenderableType]:
    """Everything about the run that fits a screen or two."""
    yield verdict_line(state, judgement)
    yield facts(_identity(state))
    if state.rejected is not None:
        yield from ("", heading("Rejected"))
        yield table(
            ("code", "subject", "why"),
            [(v.code, v.subject, v.message) for v in state.rejected.body.violations],
        )
    if state.materializations or (plan is not None and state.accepted is not None):
        yield from ("", heading("Materializations"), _materializations(plan, state))
    yield from _release(plan, state, judgement)
    yield from _authority(state)
    yield from _decode(state)
    yield from _memory(state)
    yield from witnessed_parts(state)
    for witness in state.witnesses:
        yield from _witness(witness)
    if judgement is not None:
        if state.materializations:
            yield from _accounting(plan, state, judgement.accounting)
        yield from findings_parts(judgement.findings)
        if any(found.code == "materialization.content-mismatch" for found in judgement.findings):
            lists = command("weights", state.run_id or "@latest", ledger=True)
            yield joined((f"`{lists}` names the tensors that differ, and why others were not compared", "dim"))


def _witness(witness: RunState) -> Iterator[RenderableType]:
    """A process that watched the run from outside, and what it last saw; where it contradicts, a finding says so."""
    yield from ("", heading("Witness"))
    yield facts(
        [
            ("run", witness.run_id or "unknown"),
            ("by", f"a process of its own, {measured(witness.opened.body.pid)}" if witness.opened else "unknown"),
            ("samples", f"{witness.samples_seen}, {witness.outcome}"),
        ]
    )
    yield from witnessed_parts(witness)


def brief(plan: Plan | None, state: RunState, judgement: Judgement | None) -> Iterator[RenderableType]:
    """A run that did not come to its end: what stopped it is said elsewhere, this is how far it came."""
    yield verdict_line(state, judgement)
    if state.materializations:
        yield from ("", heading("Materializations"), _materializations(plan, state), "")
    if judgement is not None:
        lines = []
        if state.rejected is not None:
            count = len(state.rejected.body.violations)
            lines.append(("violations", f"{count}, of the plan: together they are one finding, plan.rejected"))
        show_it = f"`{command('show', state.run_id or '@latest', ledger=True)}` lists them"
        lines.append(("findings", f"{_counts(judgement.findings)}, of the run; {show_it}"))
        yield facts(lines)


def verdict_line(state: RunState, judgement: Judgement | None) -> Text:
    """Verdict, assurance and outcome; and whether another run took this one's place."""
    parts: list[object] = []
    if judgement is not None:
        parts += [(judgement.verdict, VERDICT_STYLES[judgement.verdict]), f"assurance {judgement.assurance}"]
    else:
        parts.append(("NOT JUDGED", "bold"))
    if judgement is None and state.opened is not None and state.opened.body.plan is None:
        parts.append(("no plan to be judged by", "dim"))
    if judgement is None and state.closed is None and len(parts) == 1:
        parts.append(("not closed yet: the verdict is on the whole run", "dim"))
    else:
        parts.append((state.outcome, OUTCOME_STYLES[state.outcome]))
    if state.superseded_by is not None:
        parts.append((f"superseded by {state.superseded_by}", "yellow"))
    return joined(*parts)


def _identity(state: RunState) -> Iterator[tuple[str, object]]:
    yield "run", state.run_id or "unknown"
    if state.opened is None:
        return
    opened = state.opened.body
    if opened.plan is not None:
        yield "plan", joined(short_digest(opened.plan.computed_digest), (_freezing(state), "dim"))
    if opened.model is not None:
        yield "model", _model(opened.model)
    if opened.adapter is not None:
        yield "adapter", f"{opened.adapter.name} {opened.adapter.version}"
    yield "by", f"{measured(opened.user)} on {measured(opened.hostname)}, process {measured(opened.pid)}"
    if opened.witness_of is not None:
        yield "witness of", opened.witness_of
    if opened.labels:
        yield "labels", ", ".join(f"{key}={value}" for key, value in sorted(opened.labels.items()))
    if opened.challenge is not None:
        yield "challenge", opened.challenge
    if state.closed is not None and state.closed.body.error_type is not None:
        yield "stopped by", cell(f"{state.closed.body.error_type}: {state.closed.body.message}", "red")


def _model(model: ModelIdentity) -> str:
    """Repository and revision; where the checkpoint does not say, its directory, where that is known."""
    if model.repository.value is None and model.directory.value is not None:
        return f"in {measured(model.directory)}; {model.repository.detail or 'repository unavailable'}"
    return f"{measured(model.repository)} @ {measured(model.revision)}"


def _freezing(state: RunState) -> str:
    cited = state.opened.body.frozen if state.opened else None
    return f"frozen at position {cited.position}" if cited is not None else "no freezing recorded"


# --- sections -----------------------------------------------------------------------------------------------------


TONES = {"good": "green", "bad": "red", "open": "yellow", "dim": "dim"}
"""How a word about a materialization is coloured."""


def _materializations(plan: Plan | None, state: RunState) -> RenderableType:
    from ledger.run_state import condition

    planned = plan.materializations if plan is not None else {}
    rows = []
    for name in [*planned, *(name for name in state.materializations if name not in planned)]:
        wanted, found = planned.get(name), state.materializations.get(name)
        seen = found.observed[-1].body if found is not None and found.observed else None
        observed = measured(seen.bytes) if seen is not None else "not observed"
        matches = seen is not None and wanted is not None and seen.bytes.value == wanted.expected_bytes
        place = wanted.memory_resource_id if wanted is not None else measured(seen.memory_resource_id) if seen else ""
        word, tone = condition(found)
        rows.append(
            (
                name,
                place,
                size(wanted.expected_bytes) if wanted is not None else cell("unplanned", "red"),
                cell(observed, "" if matches else "yellow"),
                cell(word, TONES[tone]),
            )
        )
    planned_bytes, observed_bytes = in_bytes("planned"), in_bytes("observed")
    columns = ("materialization", "where", planned_bytes, observed_bytes, "state")
    return table(columns, rows, right=(planned_bytes, observed_bytes))


def _release(plan: Plan | None, state: RunState, judgement: Judgement | None) -> Iterator[RenderableType]:
    rows = []
    remarks: list[Text] = []
    blamed = {f.subject for f in judgement.findings if f.code == "memory.not-reclaimed"} if judgement else set()
    for name, found in state.materializations.items():
        for phase, reclaimed in found.reclamations.items():
            if reclaimed.first is None:
                continue
            body = reclaimed.first.body
            rows.append(
                (
                    name,
                    phase,
                    extreme(reclaimed.given_back, high=False, as_bytes=True),
                    ratio(body.ratio),
                    region(body.region_mapped),
                    f"{measured(body.owners_alive)} of {measured(body.owners_total)}",
                )
            )
            if plan is not None and judgement is not None and f"{name} {phase}" not in blamed:
                remarks += _low_ratio(plan, name, phase, found, body)
        for refused in found.refused:
            rows.append((name, "refused", "", "", "", refused.body.reason))
    if rows:
        back = in_bytes("given back")
        columns = ("staging", "phase", back, "ratio", "region", "owners alive")
        yield from ("", heading("Release"), table(columns, rows, right=(back, "ratio")))
        yield from remarks


def _low_ratio(
    plan: Plan, name: str, phase: str, found: MaterializationState, body: ReclamationObserved
) -> Iterator[Text]:
    """Why a share of the tree's pages below the planned one is no finding."""
    low, staged = body.ratio.value, found.bytes_before.high
    if not isinstance(low, int | float) or low >= plan.host_give_back_ratio or staged is None:
        return
    why = "that is of the whole process tree, which took other pages meanwhile"
    if staged.value <= plan.host_noise_bytes:
        why = f"so few bytes are within the plan's noise allowance of {amount(plan.host_noise_bytes)} for the process tree"
    yield cell(
        f"{name} {phase}: {ratio(body.ratio)} is less than planned, but {why}; its region is gone, which settles it"
    )


def extreme(found: Extremes, *, high: bool, as_bytes: bool = False) -> str:
    """The highest or lowest of many measurements; unknown as soon as one of them is."""
    if found.unknown is not None:
        return "unknown"
    figure = found.high if high else found.low
    if figure is None:
        return "not recorded"
    return size(figure.value) if as_bytes else f"{figure.value:g}"


def _authority(state: RunState) -> Iterator[RenderableType]:
    rows = [
        (unit, measured(seen.body.lineage), seen.body.materialization_id, measured(seen.body.memory_resource_id))
        for unit, established in state.authorities.items()
        for seen in established
    ]
    if rows:
        yield from ("", heading("Authority"), table(("state", "lineage", "held by", "where"), rows))


def _decode(state: RunState) -> Iterator[RenderableType]:
    rows: list[tuple[object, ...]] = []
    for name, execution in state.executions.items():
        unit = measured(execution.activations[-1].body.compute_unit_id) if execution.activations else "not recorded"
        decode = state.decodes.get(name)
        if decode is None:
            rows.append((name, unit, "0", "0", "not run", ""))
        else:
            rows.append(
                (
                    name,
                    f"{unit}, {' and '.join(sorted(decode.modes))}",
                    str(decode.prefills),
                    str(decode.runs),
                    _deviation(decode),
                    extreme(decode.plan_lookups, high=True),
                )
            )
    if not rows:
        return
    columns = ("execution", "on", "prefill", "repeated", "output", "plan looks")
    yield from ("", heading("Decode"), table(columns, rows, right=("prefill", "repeated", "plan looks")))
    if state.source_watch is not None:
        watch = state.source_watch.body
        yield joined(
            ("checkpoint since the release:", "dim"),
            f"own accesses {measured(watch.tree_accesses)}, others {measured(watch.other_accesses)}, "
            f"mapped {measured(watch.mapped_files)}",
            separator=" ",
        )


def _deviation(decode: DecodeState) -> Text:
    found = decode.output
    if found.exact.unknown is None and found.exact.low is not None and found.exact.low.value == 1:
        return cell("exact", "green")
    largest = extreme(found.max_absolute, high=True)
    return cell(f"max |d| {largest}", "yellow")


def _memory(state: RunState) -> Iterator[RenderableType]:
    """The process tree's classes at the labels that matter; all of them are in `tally log --type memory`."""
    rows = [
        (label, *(measured(found.body.process.get(key)) for key, _ in CLASSES))
        for label in state.samples
        if label in ("baseline", "after-decode", "closing") or label.startswith(("before-release", "after-release"))
        if (found := state.sample(label)) is not None
    ]
    if rows:
        names = [name for _, name in CLASSES]
        released = {label.partition(":")[2] for label, *_ in rows} - {""}
        if len(released) == 1:
            rows = [(label.partition(":")[0], *values) for label, *values in rows]
        yield from ("", heading(in_bytes("Memory of the process tree")), table(("at", *names), rows, right=names))


def _accounting(plan: Plan | None, state: RunState, accounting: Accounting | None) -> Iterator[RenderableType]:
    if accounting is None:
        return
    yield from ("", heading(in_bytes("Accounting")))
    yield facts(
        [
            ("persistent, required", measured(accounting.persistent_required)),
            ("persistent, unplanned", measured(accounting.unplanned_persistent)),
            ("host mirror, found", measured(accounting.host_mirror)),
            ("staging", f"{measured(accounting.staging_before)} before, {measured(accounting.staging_after)} after"),
            ("transient peak", measured(accounting.transient_peak)),
            *([("host, unexplained", _unexplained(plan, state))] if plan is not None else []),
        ]
    )


def _unexplained(plan: Plan, state: RunState) -> str:
    """Bytes of the tree at the end that no owner explains, and how many the plan lets pass: a copy that small is not found."""
    from ledger.reconcile.residue import unexplained_at_the_end

    found = unexplained_at_the_end(plan, state)
    return f"{size(found) if found is not None else 'unknown'}; the plan lets {size(plan.host_noise_bytes)} pass"


def findings_parts(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Each finding, errors first, with what was expected, what was observed and which events say so."""
    yield ""
    if not findings:
        yield joined(("FINDINGS", "bold"), ("none", "green"))
        return
    yield joined(("FINDINGS", "bold"), _counts(findings))
    order = list(SEVERITY_STYLES)
    for finding in sorted(findings, key=lambda finding: order.index(finding.severity)):
        yield joined((finding.severity, SEVERITY_STYLES[finding.severity]), (finding.code, "bold"), finding.subject)
        if finding.expected is not None:
            yield _said("expected", finding.expected)
        if finding.observed is not None:
            yield _said("observed", finding.observed)
        if finding.events:
            yield joined(("  events  ", "dim"), _sequences(finding.events), separator=" ")


def _counts(findings: Sequence[Finding]) -> str:
    counts = [f"{n} {name}" for name in SEVERITY_STYLES if (n := sum(f.severity == name for f in findings))]
    return ", ".join(counts) or "none"


def _said(what: str, value: object) -> Text:
    text = json_value(value)
    if confined() and len(text) > LONGEST_VALUE:
        text = text[:LONGEST_VALUE] + "…"
    return joined((f"  {what}", "dim"), text, separator=" ")


def _sequences(events: Sequence[int]) -> str:
    shown = ", ".join(str(sequence) for sequence in events[:12])
    return inert(shown + (f" and {len(events) - 12} more" if len(events) > 12 else ""))
