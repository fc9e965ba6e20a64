"""`tally weights`: every tensor of a run, where it lies, and whether its bytes are the source's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ledger.errors import LedgerBroken, NotFound
from realizer.cli.options import json_option, ledger_option, run_argument
from realizer.cli.rendering import cell, confined, emit_json, facts, joined, measured, show, size, table
from realizer.cli.resolving import RunSource, open_run

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from realizer.cli.documents import TensorRow, WeightsDocument

NOT_VERIFIED = "not listed: its content was not verified (realize --verify-content)"


@click.command()
@run_argument()
@ledger_option
@json_option
def weights(run: str, ledger: str, as_json: bool) -> None:
    """List each tensor of a run, and whether it is the source's.

    Materialization, place, dtype, shape, bytes, and both digests or why there are none. Tensors are listed where
    content was verified; of other materializations it says how many tensors they hold.

    \b
    Examples:
      tally weights @latest
      tally weights @latest --json | jq '.tensors[] | select(.source_digest != .resident_digest)'
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
    from realizer.cli.documents import ListedTensor, TensorRow, UnlistedMaterialization, WeightsDocument

    of_lists = TypeAdapter(list[ListedTensor])
    rows: list[TensorRow] = []
    unlisted = []
    for name, found in fold(source.events()).materializations.items():
        if not found.observed:
            continue
        body = found.observed[-1].body
        if body.tensors_blob is None:
            unlisted.append(UnlistedMaterialization(materialization=name, tensors=body.tensors, why=NOT_VERIFIED))
            continue
        data = source.blob(body.tensors_blob)
        if data is None:
            raise NotFound(
                f"the tensor list of {name}, {body.tensors_blob}, is not at hand",
                "evidence carries it when exported with --attach; else ask the ledger",
            )
        try:
            rows += [
                TensorRow(materialization=name, **row.model_dump()) for row in of_lists.validate_json(data, strict=True)
            ]
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise LedgerBroken(f"the tensor list of {name} has not its form: {where}: {first['msg']}") from error
    return WeightsDocument(run_id=source.run_id, tensors=rows, unlisted=unlisted)


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
        equal = sum(content(row).plain == "same" for row in document.tensors)
        yield joined(f"{equal} of {len(document.tensors)} tensors hold the source's bytes")
    if document.unlisted:
        yield facts(
            (u.materialization, joined(f"{measured(u.tensors)} tensors", (u.why, "dim"))) for u in document.unlisted
        )


def content(row: TensorRow) -> Text:
    """Whether the resident bytes are the source's, or why nobody knows."""
    if row.source_digest is None or row.resident_digest is None:
        return cell(row.why, "yellow")
    return cell("same", "green") if row.source_digest == row.resident_digest else cell("DIFFERS", "bold red")
