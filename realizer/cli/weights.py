"""`tally weights`: every tensor of a run, where it lies, whether its bytes are the source's, and who says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import click

from ledger.counting import counted
from ledger.errors import LedgerBroken, NotFound
from realizer.cli.options import json_option, ledger_option, run_argument
from realizer.cli.rendering import cell, confined, emit_json, facts, joined, measured, show, size, table
from realizer.cli.resolving import RunSource, open_run

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from realizer.cli.documents import ListedTensor, TensorRow, WeightsDocument

NOT_VERIFIED = "not listed: its content was not verified (realize --verify-content)"
NOT_OF_SOURCE = "not listed: content is verified of what stays of an immutable source alone"


@click.command()
@run_argument()
@ledger_option
@json_option
def weights(run: str, ledger: str, as_json: bool) -> None:
    """List each tensor of a run, and whether it is the source's.

    Materialization, place, dtype, shape, bytes, and both digests or why there are none. Tensors are listed where
    content was verified; of other materializations it says how many tensors they hold. The bytes were read back once:
    what was written later is not seen. `as computed`: the digest to compare with is the adapter's word.

    \b
    Examples:
      tally weights @latest
      tally weights @latest --json | jq '.tensors[] | select(.content != "same")'
    """
    with open_run(run, ledger) as source:
        document = listed(source)
    if as_json:
        emit_json(document)
    else:
        show(*_parts(document))


def listed(source: RunSource) -> WeightsDocument:
    """The tensor lists that the run's observations refer to.

    Raises NotFound when a list is not at hand (evidence exported without --attach), LedgerBroken when it is none.
    """
    from pydantic import TypeAdapter, ValidationError

    from ledger.fold import fold
    from realizer.cli.documents import ListedTensor, ReadBack, TensorRow, UnlistedMaterialization, WeightsDocument

    of_lists = TypeAdapter(list[ListedTensor])
    rows: list[TensorRow] = []
    unlisted, read_back = [], []
    state = fold(source.events())
    last = {name: found.observed[-1] for name, found in state.materializations.items() if found.observed}
    asked = any(event.body.tensors_blob is not None for event in last.values())
    decodes = [decode.first for decode in state.decodes.values() if decode.first is not None]
    for name, event in last.items():
        body = event.body
        if body.tensors_blob is None:
            why = NOT_OF_SOURCE if asked else NOT_VERIFIED
            unlisted.append(UnlistedMaterialization(materialization=name, tensors=body.tensors, why=why))
            continue
        data = source.blob(body.tensors_blob)
        if data is None:
            raise NotFound(
                f"the tensor list of {name}, {body.tensors_blob}, is not at hand",
                "evidence carries it when exported with --attach; else ask the ledger",
            )
        try:
            rows += [
                TensorRow(materialization=name, content=_shown(row), **row.model_dump())
                for row in of_lists.validate_json(data, strict=True)
            ]
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise LedgerBroken(f"the tensor list of {name} has not its form: {where}: {first['msg']}") from error
        before = bool(decodes) and event.sequence < min(decodes)
        read_back.append(ReadBack(materialization=name, sequence=event.sequence, before_decode=before))
    return WeightsDocument(run_id=source.run_id, tensors=rows, unlisted=unlisted, read_back=read_back)


def _shown(row: ListedTensor) -> Literal["same", "computed", "differs", "unknown"]:
    """What a row's two digests show. A digest that the adapter computed is no digest of the source's bytes."""
    from realizer.adapter import COMPUTED

    if row.source_digest is None or row.resident_digest is None:
        return "unknown"
    if row.source_digest != row.resident_digest:
        return "differs"
    return "computed" if row.why == COMPUTED else "same"


def _parts(document: WeightsDocument) -> Iterator[RenderableType]:
    if document.tensors:
        if confined():
            rows: list[tuple[object, ...]] = [
                (row.name, row.dtype, "x".join(map(str, row.shape)), size(row.bytes), content(row))
                for row in document.tensors
            ]
            yield table(("tensor", "dtype", "shape", "bytes", "content"), rows, right=("bytes",))
        else:
            rows = [
                (
                    *(row.materialization, row.name, row.dtype, "x".join(map(str, row.shape)), size(row.bytes)),
                    *(
                        row.device,
                        row.offset,
                        row.source_digest or row.why,
                        row.resident_digest or "none",
                        content(row),
                    ),
                )
                for row in document.tensors
            ]
            columns = ("materialization", "tensor", "dtype", "shape", "bytes", "device", "offset", "source", "resident")
            yield table((*columns, "content"), rows, right=("bytes", "offset"))
        same, computed = (sum(row.content == shown for row in document.tensors) for shown in ("same", "computed"))
        yield joined(f"{same} of {len(document.tensors)} tensors hold the source's bytes")
        if computed:
            yield joined(f"{computed} of {len(document.tensors)} hold what the adapter computed for them: its word")
        for read in document.read_back:
            yield joined(
                f"{read.materialization} was read back at event {read.sequence}"
                f"{', before decode' if read.before_decode else ''}; what was written later is not seen"
            )
    if document.unlisted:
        yield facts(
            (u.materialization, joined(counted(measured(u.tensors), "tensor"), (u.why, "dim")))
            for u in document.unlisted
        )


def content(row: TensorRow) -> Text:
    """Whether the resident bytes are the source's, or why nobody knows."""
    said = {"same": ("same", "green"), "computed": ("as computed", "yellow"), "differs": ("DIFFERS", "bold red")}
    return cell(*said.get(row.content, (row.why, "yellow")))
