"""`tally report` and `tally trace`: a run as a page that opens offline, and as a trace for Perfetto."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ledger.errors import NotFound
from realizer.cli.access import shown_ledger
from realizer.cli.files import read_input, write_output
from realizer.cli.options import (
    FileName,
    RunName,
    json_option,
    ledger_option,
    output_option,
    refuse_two_documents,
    run_argument,
)
from realizer.cli.rendering import amount, emit_json, say
from realizer.cli.resolving import RunSource, is_evidence, open_run, require_unbroken

if TYPE_CHECKING:
    from ledger.documents import VerificationDocument
    from ledger.report import Provenance
    from ledger.store import Store


@click.command()
@run_argument()
@click.option(
    "--compare", "other", type=RunName(), metavar="OTHER", help="A second run, or an evidence file, to lay beside it."
)
@click.option(
    "--key",
    type=FileName(),
    metavar="NAME.pub",
    help="For an evidence file: the public key its signature must be made with.",
)
@output_option("the page", "page")
@ledger_option
@json_option
def report(run: str, other: str | None, key: str | None, output: str, ledger: str, as_json: bool) -> None:
    """Write a run as one HTML page.

    It opens offline and holds everything: verdict, findings, what was planned and observed, memory over time, hashes.
    Evidence is verified on the way, and the page says what came of it. Exit 4 when that is broken.

    \b
    Examples:
      tally report @latest -o report.html
      tally report evidence.json --key tally.pub -o report.html
      tally report @latest~1 --compare @latest -o two.html
    """
    refuse_two_documents(output, as_json)
    evidence = is_evidence(run)
    if key is not None and not evidence:
        raise click.UsageError("--key verifies an evidence file: a run in a ledger carries no signature")
    with ExitStack() as opened:
        source = opened.enter_context(open_run(run, ledger, told=True))
        verification = verified(run, key) if evidence else None
        page = page_of(
            source,
            opened.enter_context(open_run(other, ledger)) if other is not None else None,
            verification=verification,
            provenance=evidence_provenance(run) if evidence else ledger_provenance(ledger, source.run_id),
        )
    data = page.encode("utf-8")
    write_output(output, data, "the page")
    _tell("report", output, data, source.run_id, as_json)
    if verification is not None:
        require_unbroken(run, verification, "; the page was written, and says so")


@click.command()
@run_argument()
@output_option("the trace", "trace")
@ledger_option
@json_option
def trace(run: str, output: str, ledger: str, as_json: bool) -> None:
    """Write a run as a trace that Perfetto opens.

    Chrome's trace event format: slices for steps and materializations, counters for memory.

    \b
    Examples:
      tally trace @latest -o trace.json
      tally trace evidence.json -o - | gzip > trace.json.gz
    """
    refuse_two_documents(output, as_json)
    from ledger.report import render_trace

    with open_run(run, ledger) as source:
        state, judgement = source.judged()
        data = render_trace(source.plan, source.events(), state, judgement).encode("ascii")
    write_output(output, data, "the trace")
    _tell("trace", output, data, source.run_id, as_json)


def _tell(what: str, output: str, data: bytes, run_id: str, as_json: bool) -> None:
    from realizer.cli.documents import WrittenDocument

    if as_json:
        emit_json(WrittenDocument.of_bytes(what, output, data, {"run_id": run_id}))
    elif output != "-":
        say(f"{output}: run {run_id}, {amount(len(data))}; open it with {VIEWERS[what]}")


VIEWERS = {"report": "any browser", "trace": "https://ui.perfetto.dev or chrome://tracing"}


# --- what pages are made of ---------------------------------------------------------------------------------------


def page_of(source: RunSource, other: RunSource | None = None, **given: Any) -> str:
    """The page of a run, laid beside another where there is one; `given` goes on to `render_report`."""
    from ledger.compare import ComparedRun, compare
    from ledger.report import Beside, render_report

    state, judgement = source.judged()
    comparison = None
    if other is not None:
        beside, besides_judgement = other.judged()
        document = compare(
            ComparedRun(source.plan, state, judgement), ComparedRun(other.plan, beside, besides_judgement)
        )
        comparison = Beside(document, other.plan, other.events(), beside, besides_judgement)
    return render_report(source.plan, source.events(), state, judgement, comparison=comparison, **given)


def verified(evidence_file: str, key: str | None) -> VerificationDocument:
    """What verifying an evidence file says, with a key or without; problems are told and not raised."""
    from ledger import evidence, keys

    return evidence.verify(
        read_input(evidence_file, "evidence"),
        public_key=keys.load_public(Path(key)) if key is not None else None,
        pin=None,
        challenge=None,
    )


def evidence_provenance(evidence_file: str) -> Provenance:
    """What fixes a run that came in an evidence file: its places in the original ledger and that ledger's checkpoint."""
    from ledger.evidence import open_evidence
    from ledger.report import Provenance

    opened = open_evidence(read_input(evidence_file, "evidence"))
    return Provenance(
        location=evidence_file,
        origin=opened.checkpoint.origin,
        first_position=opened.recorded[0].position,
        last_position=opened.recorded[-1].position,
        head=opened.recorded[-1].hash,
        tree_size=opened.checkpoint.size,
        root=opened.checkpoint.root_hex,
    )


def ledger_provenance(ledger: str, run_id: str) -> Provenance:
    """What fixes a run in a ledger, with the Merkle root over the whole ledger as it stands."""
    from dataclasses import replace

    from ledger.merkle import Frontier
    from ledger.store import Store

    with Store.open(ledger) as store:
        frontier = Frontier()
        frontier.extend(store.leaf_hashes(0, store.size()))
        return replace(place_in(store, run_id), tree_size=frontier.size, root=frontier.root().hex())


def place_in(store: Store, run_id: str) -> Provenance:
    """Where a run stands in a ledger, and the newest checkpoint that the ledger keeps."""
    from ledger.report import Provenance

    first = last = None
    for recorded in store.recorded(run_id):
        first, last = first or recorded, recorded
    if first is None or last is None:
        raise NotFound(f"there is no run {run_id} in {shown_ledger(store.location)}", "`tally runs` lists the runs")
    kept = store.checkpoints()
    return Provenance(
        location=shown_ledger(store.location),
        origin=store.origin,
        first_position=first.position,
        last_position=last.position,
        head=last.hash,
        checkpoint=kept[-1][2] if kept else None,
    )
