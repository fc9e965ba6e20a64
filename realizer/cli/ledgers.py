"""`tally pin` and `db`: anchoring a ledger elsewhere, and looking after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ledger.counting import counted
from ledger.errors import LedgerBroken
from realizer.cli.access import shown_ledger
from realizer.cli.files import write_output
from realizer.cli.hints import command
from realizer.cli.options import FileName, json_option, ledger_option, output_option, refuse_two_documents
from realizer.cli.rendering import amount, emit_json, facts, json_value, progress_bar, say, show, size

if TYPE_CHECKING:
    from ledger.documents import Problem, VerificationDocument


def _recomputed(location: str) -> VerificationDocument:
    """What every envelope, hash, link and document of a ledger says when it is computed again; pins aside."""
    from ledger.audit import verify_ledger

    with progress_bar("verifying", unit="events") as progress:
        return verify_ledger(location, use_state=False, progress=progress)


def _told(problem: Problem) -> str:
    at = "" if problem.position is None else f" at position {problem.position}"
    return f"{problem.code}{at}: {problem.detail}"


def _refuse_broken_copy(destination: str) -> None:
    """Raise LedgerBroken, keeping the copy, where it holds what its ledger held and that is broken."""
    problems = _recomputed(destination).problems
    if problems:
        raise LedgerBroken(
            f"{shown_ledger(destination)} is a copy of a broken ledger, and was kept: {_told(problems[0])}",
            f"`{command('verify', shown_ledger(destination))}` lists everything",
        )


# --- pin ----------------------------------------------------------------------------------------------------------


@click.command()
@click.option("--accept", is_flag=True, help="Take the ledger as it is now for good, after a deliberate restore.")
@click.option("--key", type=FileName(), metavar="NAME.pem", help="Sign the pin with this private key.")
@output_option("the pin", "pin")
@ledger_option
@json_option
def pin(accept: bool, key: str | None, output: str, ledger: str, as_json: bool) -> None:
    """Write a checkpoint of the ledger, to keep elsewhere.

    Every event's hash is computed again first: a broken chain is not pinned. A later `verify --pin` proves that
    nothing before it changed.

    \b
    Examples:
      tally pin -o ledger.pin
      tally verify --pin ledger.pin
    """
    from ledger import pins
    from ledger.store import Store
    from realizer.cli.documents import PinDocument
    from realizer.cli.evidence_commands import private_key

    refuse_two_documents(output, as_json)
    signer = private_key(key) if key is not None else None
    found = _recomputed(ledger)
    if found.checks.chain == "failed":
        first = next((one for one in found.problems if not one.code.startswith("blob-")), found.problems[0])
        raise LedgerBroken(f"nothing was pinned: {_told(first)}", "`tally verify` says what is wrong")
    with Store.open(ledger) as store:
        if accept:
            pins.accept_pin(store)
        else:
            pins.check_pin(store)
        note, root = pins.note(store, signer)
        document = PinDocument(origin=store.origin, tree_size=store.size(), root=root, file=output, accepted=accept)
    write_output(output, note, "the pin")
    if as_json:
        emit_json(document)
    elif output != "-":
        say(f"{output}: {counted(document.tree_size, 'event')}, root {document.root}")


# --- db -----------------------------------------------------------------------------------------------------------


@click.group()
def db() -> None:
    """Upgrade, back up, check and copy ledgers.

    \b
    Example:
      tally db check
    """


@db.command()
@ledger_option
@json_option
def upgrade(ledger: str, as_json: bool) -> None:
    """Bring a ledger that an older version wrote up to this one. Events keep their bytes.

    \b
    Example:
      tally db upgrade --ledger old.db
    """
    from ledger.migrate import upgrade as run_migrations
    from realizer.cli.documents import UpgradeDocument

    mended: list[str] = []
    before, after = run_migrations(ledger, mended=mended)
    if as_json:
        emit_json(UpgradeDocument(ledger=shown_ledger(ledger), before=before, after=after, mended=mended))
    else:
        say(
            f"{shown_ledger(ledger)}: version {after}"
            + (", was current already" if before == after else f", was {before}")
            + (f"; {', '.join(mended)}" if mended else "")
        )
        if mended and before == after:
            say(f"`{command('verify', ledger=True)}` says whether anything was changed meanwhile")


@db.command()
@click.argument("destination", type=FileName(), metavar="DEST")
@ledger_option
@json_option
def backup(destination: str, ledger: str, as_json: bool) -> None:
    """Back a ledger up while it may be in use, and verify the copy.

    It is verified as `tally verify` does, pins aside. Exit 4 when the copy is broken because the ledger is; it is
    kept then.

    \b
    Example:
      tally db backup /backups/tally-2026-11-29.db
    """
    from ledger.maintenance import backup as write_backup
    from realizer.cli.documents import WrittenDocument

    write_backup(ledger, Path(destination))
    _refuse_broken_copy(destination)
    document = WrittenDocument.of_file("backup", destination, {"ledger": shown_ledger(ledger)})
    if as_json:
        emit_json(document)
    else:
        say(f"{destination}: {amount(document.size)}, verified")


@db.command("copy")
@click.argument("source", type=FileName(), metavar="SRC")
@click.argument("destination", type=FileName(), metavar="DST")
@json_option
def copy_ledger(source: str, destination: str, as_json: bool) -> None:
    """Copy a ledger into an empty place, and verify it.

    Between backends too, byte for byte; verified as `tally verify` does, pins aside. Go on with one of the two and
    retire the other: both have the same origin, and what the one appends makes the other look rolled back.

    \b
    Example:
      tally db copy tally.db postgresql+psycopg://tally@localhost/tally
    """
    from ledger.maintenance import copy
    from ledger.store import Store
    from realizer.cli.documents import CopyDocument

    copy(source, destination)
    _refuse_broken_copy(destination)
    with Store.open(destination) as store:
        events = store.size()
    if as_json:
        emit_json(CopyDocument(source=shown_ledger(source), destination=shown_ledger(destination), events=events))
    else:
        say(f"{shown_ledger(destination)}: {counted(events, 'event')}, verified")


@db.command("check")
@ledger_option
@json_option
def check_ledger(ledger: str, as_json: bool) -> int:
    """Say what state a ledger is in: version, guards, journal, sizes. Exit 1 when something should be repaired.

    `tally verify` checks what it holds.

    \b
    Example:
      tally db check
    """
    from ledger.maintenance import check
    from realizer.cli.documents import LedgerCheckDocument

    found = check(ledger)
    if as_json:
        emit_json(LedgerCheckDocument(ledger=shown_ledger(ledger), facts=found))
    else:
        show(facts((name, _fact(name, value)) for name, value in found.items()))
    if found.get("integrity", "ok") != "ok":
        return 4
    return 1 if found["problems"] else 0


def _fact(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("bytes"):
        return size(value)
    return "; ".join(map(str, value)) or "none" if isinstance(value, list) else json_value(value)
