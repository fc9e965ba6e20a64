"""`tally import`: a published result as a run of declared events, or a verified evidence file into the ledger."""

from __future__ import annotations

import click

from ledger.counting import counted
from ledger.errors import TallyError
from realizer.cli.files import read_input
from realizer.cli.options import FileName, json_option, ledger_option
from realizer.cli.plan_views import read_plan
from realizer.cli.rendering import emit_json, say, show, warn
from realizer.cli.resolving import open_run, require_unbroken


@click.command("import")
@click.argument("file", type=FileName())
@click.option(
    "--plan", "plan_file", type=FileName(), metavar="PLAN", help="The plan that the published result realised."
)
@ledger_option
@json_option
def import_(file: str, plan_file: str | None, ledger: str, as_json: bool) -> int:
    """Import a published RESULT of a PLAN, or an evidence file.

    A result becomes a run whose facts are marked as declared; its verdict is recorded, and what the result says of
    itself is not believed. Evidence keeps its bytes; no verdict is added. Exit 3 when the verdict is not PASS.

    \b
    Examples:
      tally import result.json --plan plan.json
      tally import evidence.json
    """
    from ledger.canonical import StrictJsonError, decode

    data = read_input(file, "file")
    try:
        document = decode(data, what=f"file {file!r}")
    except StrictJsonError as error:
        raise TallyError(error.message, "import takes a published result or an evidence file, both JSON") from error
    if isinstance(document, dict) and "payloadType" in document:
        if plan_file is not None:
            raise click.UsageError("evidence carries its plan: leave --plan out")
        run_id = _evidence(data, file, ledger)
    else:
        if plan_file is None:
            raise click.UsageError("a published result needs --plan PLAN, the plan that it realised")
        run_id = _result(data, plan_file, ledger)
    return _tell(run_id, ledger, as_json)


def _evidence(data: bytes, file: str, ledger: str) -> str:
    """Add a verified run, with its witnesses and documents, to the ledger; every event keeps its bytes."""
    from ledger.evidence import verify
    from ledger.intake import import_evidence
    from realizer.cli.access import writable_ledger

    require_unbroken(file, verify(data))
    with writable_ledger(ledger) as store:
        taken = import_evidence(store, data)
    if not taken.added:
        say("the ledger holds this run already; nothing was appended")
    if taken.missing:
        absent = counted(len(taken.missing), "document is", "documents are")
        warn(
            f"{absent} named by digest only and not in this ledger: `tally verify` calls it broken"
            " (blob-missing) until a file of this run that was exported with --attach is imported as well"
        )
    return taken.run_id


def _result(data: bytes, plan_file: str, ledger: str) -> str:
    """Append the result's events, close the run as it says, and record the verdict."""
    from ledger.importers import import_r1_result
    from ledger.recording import uuid7
    from realizer.cli.access import imported_drafts, writable_ledger
    from realizer.cli.resolving import from_store
    from realizer.recorded import append_verdict

    plan = read_plan(plan_file)
    imported = import_r1_result(data, plan)
    with writable_ledger(ledger) as store:
        store.put_blob(plan.data, "application/json")
        store.put_blob(data, "application/json")
        run_id = uuid7()
        node_id = plan.document.resources.nodes[0].id if plan.document.resources.nodes else "unknown"
        store.append(run_id, 0, imported_drafts(run_id, node_id, imported.bodies))
        source = from_store(store, run_id)
        state, judgement = source.judged()
        if judgement is not None and state.closed is not None:
            append_verdict(store, source.run_id, judgement)
    return run_id


def _tell(run_id: str, ledger: str, as_json: bool) -> int:
    """Show the imported run as judged; the exit status."""
    from ledger.reconcile import run_document
    from realizer.cli.portrait import portrait

    with open_run(run_id, ledger) as source:
        state, judgement = source.judged()
        if as_json:
            emit_json(run_document(state, judgement))
        else:
            say(f"imported as run {run_id}")
            show(*portrait(source.plan, state, judgement))
    return 0 if judgement is not None and judgement.verdict == "PASS" else 3
