"""`tally plan`: drafting, freezing, showing, checking and comparing frozen plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ledger.counting import counted
from ledger.errors import NotFound, PlanError, PlanRejected, TallyError
from realizer.cli.files import read_input, replacing, write_output, writing
from realizer.cli.hints import command
from realizer.cli.options import FileName, json_option, ledger_option, output_option, pairs, refuse_two_documents
from realizer.cli.plan_views import plan_parts, plan_summary, read_plan, seal_text
from realizer.cli.rendering import (
    amount,
    emit_json,
    facts,
    joined,
    json_value,
    progress_bars,
    say,
    show,
    stack,
    table,
    warn,
)

if TYPE_CHECKING:
    from ledger.plan import Plan
    from realizer.adapter import Adapter
    from realizer.checkpoint import Checkpoint
    from realizer.drafting import DraftOptions


@click.group()
def plan() -> None:
    """Draft, freeze, show, check and compare plans.

    \b
    Example:
      tally plan draft HuggingFaceTB/SmolLM2-135M-Instruct -o draft.json
    """


@plan.command()
@click.argument("model", type=FileName(), required=False)
@click.option("--revision", metavar="R", help="The model's revision: a commit of the hub's repository.")
@click.option("--adapter", metavar="NAME", help="The adapter that realises it; without it the first that can.")
@click.option("--device", metavar="D", default="cpu", show_default=True, help="Where it is to run: cpu, cuda:0, ...")
@click.option(
    "--staging",
    type=click.Choice(["full", "streamed"]),
    default="full",
    show_default=True,
    help="Weights pass through host memory all at once, or through a small window.",
)
@click.option("--option", "options", multiple=True, metavar="K=V", help="An option of the adapter's; repeatable.")
@click.option("--repetitions", type=click.IntRange(min=0), help="How often decode is repeated.")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance of decode, in place of exact.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance of decode, in place of exact.")
@click.option("--hash-files", is_flag=True, help="Bind the checkpoint files' SHA-256 digests too (reads them whole).")
@click.option("--observe", is_flag=True, help="For an engine that is watched from outside: no adapter carries it out.")
@click.option("--published", metavar="NAME", help="Rebuild a published plan of the adapter; it comes out frozen.")
@output_option("the draft", "plan")
@json_option
def draft(
    model: str | None,
    revision: str | None,
    adapter: str | None,
    device: str,
    staging: Literal["full", "streamed"],
    options: tuple[str, ...],
    repetitions: int | None,
    atol: float | None,
    rtol: float | None,
    hash_files: bool,
    observe: bool,
    published: str | None,
    output: str,
    as_json: bool,
) -> None:
    """Draft a plan for MODEL on this machine.

    MODEL is a directory with a safetensors checkpoint, or a repository of the hub. The expected bytes are exact; only
    the files' headers are read for them.

    \b
    Examples:
      tally plan draft ./my-model -o draft.json
      tally plan draft HuggingFaceTB/SmolLM2-135M-Instruct -o draft.json
      tally plan draft ./my-model --option max_cache_length=512 -o draft.json
      tally plan draft ./my-model --observe --device cuda:0 --option host_mirror=forbidden -o draft.json
      tally plan draft --adapter ADAPTER --published NAME -o plan.json
    """
    refuse_two_documents(output, as_json)
    if published is not None:
        data = _published(adapter, published, model)
    elif model is None:
        raise click.UsageError("Missing argument 'MODEL': a checkpoint directory or a repository of the hub")
    elif observe:
        data = _outside(model, device, pairs(options, "--option"))
    else:
        from realizer.drafting import DraftOptions

        chosen = DraftOptions(
            device=device,
            staging=staging,
            adapter_options=pairs(options, "--option"),
            atol=atol,
            rtol=rtol,
            hash_files=hash_files,
        )
        if repetitions is not None:
            chosen = replace(chosen, repetitions=repetitions)
        data = _drafted(model, revision, adapter, chosen)
    made = _accepted(data, adapter, published)
    write_output(output, data, "the plan")
    total = sum(m.expected_bytes for m in made.document.materializations if m.persistence == "persistent")
    if total <= made.host_noise_bytes:
        warn(
            f"a hidden copy of all {amount(total)} would pass: the plan lets {amount(made.host_noise_bytes)} of host memory "
            "go unexplained (memory_expectations.host_noise_bytes)"
        )
    if as_json:
        emit_json(plan_summary(made))
    elif output != "-":
        state = "frozen" if made.frozen else "a draft"
        count = counted(len(made.document.materializations), "materialization")
        say(f"{output}: {state}, {count}, {amount(total)} to stay; next: {_next_step(made, output, model)}")


def _outside(model: str, device: str, options: dict[str, str]) -> bytes:
    from realizer.drafting_outside import draft_outside_plan
    from realizer.environment import observe_environment
    from realizer.nvml import Devices

    return draft_outside_plan(model, observe_environment(devices=Devices().observe), device, options)


def _accepted(data: bytes, adapter: str | None, published: str | None) -> Plan:
    """The plan, when `tally plan check` would take it. Raises PlanError or PlanRejected otherwise: nothing is written."""
    from ledger.plan import parse_plan
    from ledger.plan_checks import check_plan

    what = "the published plan" if published is not None else "the plan drafted here"
    made = parse_plan(data, what=what)
    violations = check_plan(made)
    if violations:
        named = made.document.adapter.name if made.document.adapter else adapter
        refused = PlanRejected(
            f"{what} does not hold and was not written"
            + (f": adapter {named!r} or what it was asked for is at fault" if named else ""),
            [f"{found.code} {found.subject}: {found.message}" for found in violations],
        )
        refused.exit_code = TallyError.exit_code  # 3 is the answer of commands that judge; this one failed to draft
        raise refused
    return made


TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
"""Where one of these is in a checkpoint's folder, a prompt can be read: the adapter need not be asked, which takes a while."""


def _next_step(made: Plan, output: str, model: str | None) -> str:
    """The command as it can be run: with the checkpoint's folder, which the plan does not name."""
    local = ["--checkpoint", model] if model is not None and Path(model).is_dir() else []
    if made.frozen:
        return command("realize", output, *local)
    if made.document.adapter is None:
        return command("plan", "freeze", output, "-o", "plan.json")
    ids = [] if not local or _tokens_known(made.document.adapter.name, local[1]) else ["--tokens", "1,2,3,4"]
    return command("reference", output, *local, *ids, "-o", "reference.safetensors")


def _tokens_known(adapter: str, folder: str) -> bool:
    """Whether a prompt can be read: by a tokenizer in the checkpoint's folder, or by the adapter without one."""
    if any((Path(folder) / name).exists() for name in TOKENIZERS):
        return True
    from realizer import answers
    from realizer.adapter import load_adapter
    from realizer.checkpoint import open_checkpoint
    from realizer.cli.realization import DEFAULT_PROMPT

    try:
        answers.tokens(load_adapter(adapter), open_checkpoint(folder), DEFAULT_PROMPT)
    except TallyError:
        return False
    return True


def _published(adapter: str | None, published: str, model: str | None) -> bytes:
    from realizer import answers
    from realizer.adapter import load_adapter

    if adapter is None:
        raise click.UsageError("--published needs --adapter: a published plan is its adapter's")
    if model is not None:
        raise click.UsageError("--published takes no MODEL: the published plan names it")
    found: Any = load_adapter(adapter)
    if not hasattr(found, "published"):
        raise PlanError(f"adapter {adapter!r} carries no published plans", "leave --published out to draft one")
    return answers.published(found, published)


def _drafted(model: str, revision: str | None, adapter: str | None, options: DraftOptions) -> bytes:
    from realizer.checkpoint import open_checkpoint
    from realizer.drafting import draft_plan
    from realizer.environment import observe_environment

    checkpoint = open_checkpoint(model, revision)
    chosen = _adapter(adapter, checkpoint)
    with progress_bars() as progress:
        return draft_plan(checkpoint, chosen, observe_environment(), options, source=model, progress=progress)


def _adapter(name: str | None, checkpoint: Checkpoint) -> type[Adapter]:
    """The adapter of that name, or the first that supports the checkpoint.

    Raises NotFound saying why each refused: the first key that does not map, or another kind of model.
    """
    from realizer import answers
    from realizer.adapter import adapter_names, load_adapter, missing_extra

    refusals, broken = [], []
    for candidate in [name] if name is not None else adapter_names():
        try:
            found = load_adapter(candidate)
            why = answers.unsupported(found, checkpoint)
        except TallyError as error:
            if name is not None:
                raise
            refusals.append(error.message)  # it names the adapter; another may do
            broken.append(error)
        else:
            if why is None:
                return found
            refusals.append(f"{candidate}: {why}")
    raise NotFound(
        f"no adapter can realise this checkpoint ({'; '.join(refusals) or 'none is installed'})",
        missing_extra(broken) or "install or write an adapter for this kind of model",
    )


@plan.command()
@click.argument("draft", type=FileName(), metavar="DRAFT")
@click.option("--reference", type=FileName(), metavar="FILE", help="The reference fixture whose digest the plan binds.")
@click.option("--note", metavar="TEXT", help="A remark that is recorded with the freezing.")
@output_option("the frozen plan", "plan")
@ledger_option
@json_option
def freeze(draft: str, reference: str | None, note: str | None, output: str, ledger: str, as_json: bool) -> None:
    """Seal a draft, and record that in the ledger.

    The reference's digest is bound into the plan, and the plan's own digest set. A run that cites this freezing can
    show that its plan was fixed before it began.

    \b
    Example:
      tally plan freeze draft.json --reference reference.safetensors -o plan.json
    """
    from ledger.bodies import PlanFrozen
    from ledger.canonical import sha256_digest
    from ledger.events import read_event
    from ledger.plan import freeze as seal
    from ledger.plan_checks import check_plan
    from ledger.recording import uuid7
    from realizer.cli.access import shown_ledger, writable_ledger
    from realizer.cli.documents import AppendedDocument
    from realizer.recorded import latecomer

    refuse_two_documents(output, as_json)
    drafted = read_plan(draft, "draft")
    reference_digest = sha256_digest(read_input(reference, "reference")) if reference else None
    frozen = seal(drafted, reference_digest=reference_digest)
    for violation in check_plan(frozen):
        warn(
            f"{violation.code} {violation.subject}: {violation.message}; frozen all the same, `realize` will refuse it"
        )
    wanted = frozen.correctness
    if frozen.outside:
        say("a plan of somebody else's engine: a watched run is never a PASS; at best INDETERMINATE with no error")
    elif (wanted.prefill or wanted.repetitions) and wanted.reference_digest is None:
        warn("no reference is bound, so that decode cannot be judged and no run can PASS; bind one with --reference")
    with writable_ledger(ledger) as store, replacing(output, "the frozen plan") as scratch:
        with writing(output, "the frozen plan"):
            scratch.write_bytes(frozen.data)
        recorded = store.frozen(frozen.computed_digest)
        if recorded is None:
            store.put_blob(frozen.data, "application/json")
            sink = latecomer(store, uuid7(), frozen.document.resources.nodes[0].id)
            recorded = sink(PlanFrozen(digest=frozen.computed_digest, blob_digest=frozen.blob_digest, note=note))
            done = "frozen"
        else:
            done = "was frozen before"
    if as_json:
        event = read_event(recorded.envelope)
        emit_json(
            AppendedDocument(run_id=event.run_id, type=event.type, position=recorded.position, hash=recorded.hash)
        )
    elif output != "-":
        say(
            f"{output}: {frozen.computed_digest} {done}, event at position {recorded.position} of {shown_ledger(ledger)}"
        )


@plan.command("show")
@click.argument("file", type=FileName())
@json_option
def show_plan(file: str, as_json: bool) -> None:
    """Show what a plan says.

    Which state stays where in which form, and what must hold.

    \b
    Example:
      tally plan show plan.json
    """
    found = read_plan(file)
    if as_json:
        emit_json(plan_summary(found))
        return
    show(*plan_parts(found))


@plan.command()
@click.argument("file", type=FileName())
@json_option
def check(file: str, as_json: bool) -> int:
    """Check a plan against itself: every violation at once. Exit 3 when there is one.

    \b
    Example:
      tally plan check plan.json
    """
    from ledger.plan_checks import check_plan
    from realizer.cli.documents import PlanCheckDocument

    found = read_plan(file)
    violations = check_plan(found)
    if as_json:
        emit_json(
            PlanCheckDocument(
                plan_digest=found.computed_digest,
                claimed_digest=found.claimed_digest,
                frozen=found.frozen,
                accepted=not violations,
                violations=violations,
            )
        )
    elif violations:
        show(
            joined((counted(len(violations), "violation"), "bold red"), file),
            table(("code", "subject", "what is wrong"), [(v.code, v.subject, v.message) for v in violations]),
        )
    else:
        show(joined(("ok", "bold green"), found.computed_digest, seal_text(found)))
    return 3 if violations else 0


@plan.command()
@click.argument("a", type=FileName(), metavar="A")
@click.argument("b", type=FileName(), metavar="B")
@json_option
def diff(a: str, b: str, as_json: bool) -> None:
    """Show where two plans differ.

    \b
    Example:
      tally plan diff old-plan.json plan.json
    """
    from ledger.plan_checks import plan_differences
    from realizer.cli.documents import PlanDifferenceDocument

    first, second = read_plan(a, "plan A"), read_plan(b, "plan B")
    differences = plan_differences(first, second)
    if as_json:
        emit_json(
            PlanDifferenceDocument(
                a=first.computed_digest, b=second.computed_digest, same=not differences, differences=differences
            )
        )
        return
    if not differences:
        show(joined(("same", "bold green"), first.computed_digest))
        return
    show(
        stack(facts([("A", f"{first.computed_digest}  {a}"), ("B", f"{second.computed_digest}  {b}")])),
        "",
        table(("path", "A", "B"), [(d.path, json_value(d.a), json_value(d.b)) for d in differences]),
    )
