"""`tally export`, `evidence` and `keygen`: sealing a run into a file that leaves the machine, and looking into one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from ledger.counting import counted
from ledger.errors import TallyError
from realizer.cli.files import read_input, write_output
from realizer.cli.hints import command
from realizer.cli.options import FileName, json_option, ledger_option, output_option, refuse_two_documents, run_argument
from realizer.cli.rendering import amount, emit_json, emit_json_line, say, show, warn

PASSPHRASE = "TALLY_PASSPHRASE"


def passphrase(prompt: str, *, confirm: bool = False) -> str | None:
    """TALLY_PASSPHRASE where it is set, else asked for on a terminal, else None."""
    given = os.environ.get(PASSPHRASE)
    if given:
        return given
    if not sys.stdin.isatty():
        return None
    asked: str = click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True)
    return asked


@click.command()
@click.option("--no-passphrase", is_flag=True, help="Leave the private key unencrypted; its mode is 0600 all the same.")
@click.option(
    "-o",
    "--output",
    type=FileName(),
    metavar="NAME.pem",
    required=True,
    help="The private key; NAME.pub is written beside it.",
)
@json_option
def keygen(no_passphrase: bool, output: str, as_json: bool) -> None:
    """Make an Ed25519 key pair to sign evidence with. The passphrase is asked for, or taken from TALLY_PASSPHRASE.

    \b
    Example:
      tally keygen -o tally.pem
    """
    from ledger import keys
    from realizer.cli.documents import WrittenDocument

    path = Path(output)
    if path.suffix != ".pem":
        raise click.UsageError(f"-o {output!r} must end in .pem; the public key takes the same name with .pub")
    secret = None if no_passphrase else passphrase("Passphrase", confirm=True)
    if secret is None and not no_passphrase:
        raise TallyError(
            "no passphrase for the private key, and no terminal to ask on", f"set {PASSPHRASE}, or pass --no-passphrase"
        )
    keys.generate(path, secret)
    public = path.with_suffix(".pub")
    if as_json:
        emit_json(WrittenDocument.of_file("public key", str(public), {"private_key": output}))
    else:
        say(f"{output} (private, mode 0600; keep it) and {public} (public, for those who verify)")


def private_key(name: str) -> Any:
    """The private key in NAME.pem; an encrypted one is opened with TALLY_PASSPHRASE or by asking."""
    from ledger import keys

    path = Path(name)
    try:
        return keys.load_private(path, os.environ.get(PASSPHRASE) or None)
    except keys.PassphraseNeeded:
        secret = passphrase(f"Passphrase of {name}")
        if secret is None:
            raise
        return keys.load_private(path, secret)


@click.command()
@run_argument()
@click.option(
    "--key",
    type=FileName(),
    metavar="NAME.pem",
    help="Sign with this private key; without one the file is NOT AUTHENTICATED.",
)
@click.option(
    "--attach",
    is_flag=True,
    help="Include the documents (lists of tensors) that are otherwise named by digest; importing needs them.",
)
@output_option("the evidence", "evidence")
@ledger_option
@json_option
def export(run: str, key: str | None, attach: bool, output: str, ledger: str, as_json: bool) -> None:
    """Seal a run into one file that anyone can check offline.

    It holds the plan, every event, proofs, verdict, findings, prior runs and the scope of what it proves.

    \b
    Example:
      tally export @latest --key tally.pem -o evidence.json
    """
    from ledger.evidence import seal
    from ledger.export import evidence_input, left_out
    from ledger.store import Store
    from realizer.cli.documents import WrittenDocument

    refuse_two_documents(output, as_json)
    signer = private_key(key) if key else None
    with Store.open(ledger) as store:
        run_id = store.resolve(run)
        bundle = evidence_input(store, run_id, attach=attach)
    data = seal(bundle, signer)
    absent = len(left_out(bundle))
    write_output(output, data, "the evidence")
    if absent:
        named = counted(absent, "document is", "documents are")
        say(f"{named} named by digest only; --attach takes them along, for whoever imports the file")
    if signer is None:
        warn("not signed: whoever reads it cannot know where it comes from; --key NAME.pem signs")
    if as_json:
        about: dict[str, str | int | None] = {
            "run_id": run_id, "signed": int(signer is not None), "documents_left_out": absent
        }  # fmt: skip
        emit_json(WrittenDocument.of_bytes("evidence", output, data, about))
    elif output != "-":
        say(f"{output}: run {run_id}, {amount(len(data))}; check it with `{command('verify', output)}`")


@click.group()
def evidence() -> None:
    """Look into evidence files.

    \b
    Example:
      tally evidence show evidence.json
    """


@evidence.command("show")
@click.argument("file", type=FileName())
@click.option("--statement", is_flag=True, help="Print the in-toto Statement as it stands in the file.")
@json_option
def show_evidence(file: str, statement: bool, as_json: bool) -> None:
    """Show what an evidence file states.

    Plan, attempts before, verdict, assurance, what is unknown, the scope. Nothing is verified here; `tally verify`
    does that.

    \b
    Examples:
      tally evidence show evidence.json
      tally evidence show evidence.json --statement | jq .subject
    """
    from ledger.evidence import open_evidence
    from realizer.cli.statement import evidence_summary, statement_parts

    opened = open_evidence(read_input(file, "evidence"))
    if statement:
        emit_json_line(opened.statement_text)
    elif as_json:
        emit_json(evidence_summary(opened))
    else:
        show(*statement_parts(opened))
