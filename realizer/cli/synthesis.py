"""`tally synth`: a synthetic checkpoint of an adapter's model, for trying things out without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ledger.counting import counted
from ledger.errors import NotFound, TallyError
from realizer.cli.options import FileName, json_option, pairs
from realizer.cli.rendering import amount, emit_json, progress_bars, say


@click.command()
@click.argument("adapter")
@click.option("--option", "options", multiple=True, metavar="K=V", help="An option of the adapter's; repeatable.")
@click.option(
    "-o", "--output", type=FileName(), metavar="DIR", required=True, help="The new directory for the checkpoint."
)
@json_option
def synth(adapter: str, options: tuple[str, ...], output: str, as_json: bool) -> None:
    """Write a synthetic checkpoint of ADAPTER's model.

    It has the real names, types and files, at a tiny size or at any that the adapter's options ask for; the same
    options give the same bytes.

    \b
    Example:
      tally synth ADAPTER --option seed=1 -o ./synthetic
    """
    from realizer import answers
    from realizer.adapter import load_adapter
    from realizer.cli.documents import SynthesisDocument

    found: Any = load_adapter(adapter)
    if not hasattr(found, "synth"):
        raise NotFound(f"adapter {adapter!r} writes no synthetic checkpoints", "an adapter offers that, or does not")
    folder = Path(output)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise TallyError(f"{output} exists, and is no empty folder", "name a new one, or remove that")
    with progress_bars() as progress:
        written = answers.synth(found, folder, {**pairs(options, "--option"), "progress": progress})
    document = SynthesisDocument(
        adapter=adapter, directory=output, tensors=written.tensors, size=written.bytes, revision=written.revision
    )
    if as_json:
        emit_json(document)
    else:
        say(f"{output}: {counted(document.tensors, 'tensor')}, {amount(document.size)}, revision {document.revision}")
