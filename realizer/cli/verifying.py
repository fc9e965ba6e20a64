"""`tally verify` (alias `fsck`): is this ledger, or this evidence file, what was recorded, and what does it prove?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from ledger.errors import LedgerBroken, NotFound
from realizer.cli.access import shown_ledger
from realizer.cli.files import read_input
from realizer.cli.hints import on_the_same_ledger
from realizer.cli.options import DEFAULT_LEDGER, FileName, json_option
from realizer.cli.outputs import SQLITE_MAGIC
from realizer.cli.rendering import VERDICT_STYLES, cell, emit_json, facts, heading, joined, progress_bar, show, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ledger.checkpoints import Checkpoint
    from ledger.documents import VerificationDocument
    from ledger.evidence import LedgerView, Requirements

STATUS_STYLES = {"valid": "bold green", "valid-unanchored": "bold yellow", "broken": "bold red"}
T = TypeVar("T")
CHECK_STYLES = {"ok": "green", "failed": "bold red", "not-checked": "dim"}


@click.command()
@click.argument("file", type=FileName(), required=False)
@click.option(
    "--key", type=FileName(), metavar="NAME.pub", help="The public key that must have signed the evidence, or the pin."
)
@click.option("--pin", "pin", type=FileName(), metavar="PIN", help="A checkpoint kept elsewhere that must still hold.")
@click.option(
    "--ledger",
    type=FileName(),
    metavar="URL|PATH",
    help="The ledger; with an evidence file, prove from it that nothing was left out: prior runs, events, witnesses.",
)
@click.option("--challenge", metavar="TEXT", help="The challenge that the run must have been opened with.")
@click.option("--require", "required", metavar="LIST", help="Requirements, comma-separated: signature,pin,frozen,...")
@click.option(
    "--policy", type=FileName(), metavar="FILE", help="A tally-policy.toml that holds requirements and anchors."
)
@json_option
def verify(
    file: str | None,
    key: str | None,
    pin: str | None,
    ledger: str | None,
    challenge: str | None,
    required: str | None,
    policy: str | None,
    as_json: bool,
) -> int:
    """Verify an evidence file or a ledger.

    FILE is either; without it the ledger is verified. Evidence is checked part by part, then folded and judged
    again: neither ledger nor network is needed. Exit 4 when something is broken, 3 when the verdict is not PASS or
    a requirement is not met.

    \b
    Examples:
      tally verify
      tally verify evidence.json --key tally.pub
      tally verify evidence.json --require signature,frozen,assurance=content-verified
    """
    wanted = Wanted(key, pin, ledger, challenge, required, policy)
    of_ledger = file is None or _is_ledger(file)
    if of_ledger:
        document, stranger = _verified_ledger(file, wanted), None
    else:
        document, stranger = _verified_evidence(str(file), wanted)
    if as_json:
        emit_json(document)
    elif stranger is not None:
        show(*_stranger_parts(document, str(file), stranger))
    else:
        location = file or wanted.ledger or os.environ.get("TALLY_LEDGER") or DEFAULT_LEDGER
        show(
            *_parts(document, shown_ledger(location), of_ledger=of_ledger),
            *_next_step(document, wanted, file, of_ledger),
        )
    return exit_code(document)


@dataclass(frozen=True)
class Wanted:
    """What the options ask for, by their names."""

    key: str | None
    pin: str | None
    ledger: str | None
    challenge: str | None
    require: str | None
    policy: str | None


def exit_code(document: VerificationDocument) -> int:
    """4 for broken, which outranks 3 for a verdict other than PASS or an unmet requirement; else 0."""
    if document.status == "broken":
        return 4
    return 3 if document.unmet or document.verdict in ("FAIL", "INDETERMINATE") else 0


def _is_ledger(file: str) -> bool:
    """An SQLite file or a PostgreSQL URL. Raises NotFound for a file that is not there.

    What can be read only once (a pipe) is no ledger, and is not looked into.
    """
    if file == "-" or (Path(file).exists() and not Path(file).is_file()):
        return False
    if "://" in file:
        return True
    try:
        with Path(file).open("rb") as opened:
            return opened.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError as error:
        raise NotFound(f"{file!r} cannot be read: {error.strerror}", "name an evidence file or a ledger") from error


def _verified_ledger(file: str | None, wanted: Wanted) -> VerificationDocument:
    from ledger.audit import verify_ledger
    from ledger.keys import load_public

    if file is not None and wanted.ledger is not None:
        raise click.UsageError("FILE is a ledger itself: leave --ledger out")
    for option in ("challenge", "require", "policy"):
        if getattr(wanted, option) is not None:
            raise click.UsageError(f"--{option} is for evidence files; a ledger is anchored by --pin")
    if wanted.key is not None and wanted.pin is None:
        raise click.UsageError("for a ledger --key is the key that signed the pin: give --pin too")
    location = file or wanted.ledger or os.environ.get("TALLY_LEDGER") or DEFAULT_LEDGER
    public_key = load_public(Path(wanted.key)) if wanted.key else None
    try:
        with progress_bar("verifying", unit="events") as progress:
            return verify_ledger(
                location, pin=Path(wanted.pin) if wanted.pin else None, progress=progress, public_key=public_key
            )
    except LedgerBroken as error:
        # Elsewhere the hint is this very command.
        raise LedgerBroken(error.message, "it cannot be read far enough to say more: restore a backup") from error


def _verified_evidence(file: str, wanted: Wanted) -> tuple[VerificationDocument, str | None]:
    """What verifying says; and, for bytes that nobody meant as evidence, what they may be instead."""
    from ledger import evidence, keys
    from ledger.evidence_form import PAYLOAD_TYPE

    require = _required(wanted.require)
    policy = evidence.read_policy(Path(wanted.policy)) if wanted.policy else evidence.Policy()
    data = read_input(file, "evidence")
    key = _agreed("key", wanted.key, policy.key, lambda name: keys.load_public(Path(name)), keys.key_id)
    pin = _agreed("pin", wanted.pin, policy.pin, lambda name: evidence.read_pin(read_input(name, "pin")), repr)
    challenge = _agreed("challenge", wanted.challenge, policy.challenge, str, str)
    document = evidence.verify(
        data,
        public_key=key,
        pin=pin,
        challenge=challenge,
        require=require | policy.require,
        prior_runs_from_ledger=_ledger_view(data, wanted.ledger, pin) if wanted.ledger else None,
    )
    return document, _what_it_may_be(data) if PAYLOAD_TYPE.encode() not in data else None


def _required(text: str | None) -> Requirements:
    """What --require demands. Raises UsageError for what is no requirement, and for none."""
    from ledger.evidence import PolicyError, Requirements

    if text is None:
        return Requirements()
    try:
        return Requirements.parse(text)
    except PolicyError as error:
        raise click.UsageError(f"--require {text[:200]!r}: {error}") from error


def _agreed(
    what: str,
    option: str | None,
    policy: Path | str | None,
    read: Callable[[str], T],
    identity: Callable[[T], str],
) -> T | None:
    """What the option and the policy name, the policy's where only that does.

    An option may only add to a policy: raises UsageError where they name two different things.
    """
    given = None if option is None else read(option)
    demanded = None if policy is None else read(str(policy))
    if given is not None and demanded is not None and identity(given) != identity(demanded):
        raise click.UsageError(
            f"--{what} {option!r} is not the {what} of the policy, {str(policy)!r}: an option cannot take its place"
        )
    return given if given is not None else demanded


def _what_it_may_be(data: bytes) -> str:
    """Which command takes a file that is no evidence, by what stands in it."""
    if not data:
        return "it is empty"
    for mark, what in (
        (b"tallystick.plan/", "it looks like a plan: `tally plan check` takes it"),
        (b"inferswarm.r1.frozen-plan/", "it looks like a plan: `tally plan check` takes it"),
        (b"BEGIN PUBLIC KEY", "it looks like a public key: give it with --key"),
        (b"BEGIN ENCRYPTED PRIVATE KEY", "it is a private key: keep it to yourself"),
        (b"BEGIN PRIVATE KEY", "it is a private key: keep it to yourself"),
        ("\n\u2014 ".encode(), "it looks like a pin: give it with --pin"),
    ):
        if mark in data:
            return what
    return "evidence is made by `tally export`"


def _stranger_parts(document: VerificationDocument, file: str, what: str) -> Iterator[RenderableType]:
    yield joined(("NOT AN EVIDENCE FILE", "bold red"), file)
    yield from (cell(problem.detail) for problem in document.problems)
    yield cell(what)


def _ledger_view(data: bytes, ledger: str, pin: Checkpoint | None) -> LedgerView | None:
    """What the verifier's own ledger says; null for evidence that is broken, which `verify` tells in full."""
    from ledger.errors import EvidenceBroken
    from ledger.evidence import open_evidence
    from ledger.export import ledger_view
    from ledger.store import Store

    with Store.open(ledger) as store:
        try:
            opened = open_evidence(data)
        except EvidenceBroken:
            return None
        return ledger_view(store, opened, pin)


def _parts(document: VerificationDocument, shown: str, *, of_ledger: bool) -> Iterator[RenderableType]:
    if not of_ledger and document.checks.signature == "not-checked":
        # A file may be refused before its signature is looked at, whatever key was given.
        why = "its signature was not checked" if document.status == "broken" else "no --key was given"
        yield joined(("NOT AUTHENTICATED", "bold yellow"), f"{why}: nothing says who made this file")
    yield joined((document.status.upper(), STATUS_STYLES[document.status]), shown)
    if document.verdict is not None:
        line: list[object] = [(document.verdict, VERDICT_STYLES[document.verdict]), f"assurance {document.assurance}"]
        if document.recorded_verdict is not None:
            line.append(
                (f"recorded {document.recorded_verdict}; judged again by judge {document.judge_version}", "dim")
            )
        yield joined(*line)
    checks = document.checks.model_dump()
    yield facts((name, cell(state, CHECK_STYLES[state])) for name, state in checks.items())
    if document.completeness is not None:
        yield facts([("pinned" if of_ledger else "whole", document.completeness)])
    if document.problems:
        yield ""
        yield heading("Problems")
        yield table(
            ("code", "position", "sequence", "what"),
            [
                (p.code, "" if p.position is None else p.position, "" if p.sequence is None else p.sequence, p.detail)
                for p in document.problems
            ],
            right=("position", "sequence"),
        )
    if document.unmet:
        yield ""
        yield heading("Not met")
        yield from (cell(f"  {requirement}") for requirement in document.unmet)


def _next_step(
    document: VerificationDocument, wanted: Wanted, file: str | None, of_ledger: bool
) -> Iterator[RenderableType]:
    """What to try, below the problems of what is broken."""
    if document.status != "broken":
        return
    yield ""
    yield heading("Next")
    if not of_ledger:
        yield cell("rely on nothing in it: get it anew from whoever made it, and ask them which key and pin are theirs")
        return
    location = file or wanted.ledger
    given = ["--ledger", shown_ledger(location)] if location else []
    yield cell(on_the_same_ledger(_remedy(document), given))


def _remedy(document: VerificationDocument) -> str:
    """What helps a ledger: by whether it disagrees with itself, with this program's schema, or only with what was pinned."""
    from ledger.pins import ACCEPT_HINT

    checks, codes = document.checks, {problem.code for problem in document.problems}
    if "failed" not in (checks.chain, checks.plan, checks.blobs):
        if codes == {"signature"}:
            return "ask whoever keeps the pin for pin and key again: this key did not sign this pin"
        return f"if the pin is this ledger's own, {ACCEPT_HINT}"
    if codes == {"unknown-type"}:
        return "a newer version of this program may have written it: verify it with that one"
    if codes == {"blob-missing"}:
        return "import the runs again from files exported with --attach; else restore a backup"
    positions = [problem.position for problem in document.problems if problem.position is not None]
    if not positions and codes == {"content"}:
        return "`tally db upgrade` puts guards, views and indexes back; where it is broken after that, restore a backup"
    since = f" from position {min(positions)} on" if positions else ""
    return (
        f"nothing mends what was recorded: keep this ledger apart, unchanged, to find out what was done to it{since};"
        " restore a backup, and verify that with a pin kept elsewhere (docs/operations.md)"
    )
