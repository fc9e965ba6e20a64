"""The `tally` command: its sub-commands found on demand, and the one place where errors become output and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import click

from ledger.errors import PlanRejected, TallyError, install

INTERRUPTED = 130
SHOWN_CHARACTERS = 200
"""Of a name that is longer the rest is left out of messages."""

COMMANDS = {
    "plan": "plans:plan",
    "reference": "realization:reference",
    "realize": "realization:realize",
    "runs": "runs:runs",
    "show": "runs:show_run",
    "log": "streams:log",
    "watch": "streams:watch",
    "replay": "replaying:replay",
    "reconcile": "judging:reconcile",
    "invariants": "judging:invariants",
    "compare": "judging:compare",
    "weights": "weights:weights",
    "observe": "observing:observe",
    "supersede": "runs:supersede",
    "import": "importing:import_",
    "query": "querying:query",
    "report": "reporting:report",
    "trace": "reporting:trace",
    "serve": "serving:serve",
    "export": "evidence_commands:export",
    "verify": "verifying:verify",
    "evidence": "evidence_commands:evidence",
    "keygen": "evidence_commands:keygen",
    "pin": "ledgers:pin",
    "db": "ledgers:db",
    "synth": "synthesis:synth",
    "doctor": "doctor:doctor",
}
"""Command -> module of this package and the attribute in it, in the order of a run's life."""

ALIASES = {"diff": "compare", "fsck": "verify"}


EXTRAS = {
    "torch": "realize",
    "transformers": "realize",
    "safetensors": "realize",
    "huggingface_hub": "realize",
    "pynvml": "realize",
    "numpy": "realize",
    "psycopg": "postgres",
    "datasette": "serve",
}
"""Packages that the base install leaves out -> the extra that brings them."""


class OutputClosed(Exception):
    """Whoever read standard output went away (`tally log | head`)."""


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if target is None:
            return None
        module, attribute = target.split(":")
        from realizer.cli.values import strict

        command: click.Command = getattr(importlib.import_module(f"realizer.cli.{module}"), attribute)
        return strict(command)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise OutputClosed from None
        return result

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            # click looks for near names among the commands that are imported: here, none
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx) from error
        return ALIASES.get(name or "", name), command, rest


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"tally {version('tallystick')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def tally() -> None:
    """Carry out a frozen plan for loading a model, record every step, and judge it again.

    A RUN is a full id, a unique prefix of one, @latest, @latest~N, or an evidence file where that makes sense.
    @latest leaves out the runs of witnesses: ask for those by id.

    \b
    Example:
      tally plan draft HuggingFaceTB/SmolLM2-135M-Instruct -o draft.json
      tally reference draft.json --prompt "The capital of France is" -o reference.safetensors
      tally plan freeze draft.json --reference reference.safetensors -o plan.json
      tally realize plan.json --reference reference.safetensors
      tally show @latest
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the process exit status. Errors are one line on standard error, with what to try next."""
    try:
        result: Any = tally.main(args=list(arguments), prog_name="tally", standalone_mode=False)
    except click.ClickException as error:
        vars(error).update(message=_inert(error.message))  # click holds the attribute to be final
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return INTERRUPTED
    except TallyError as error:
        _complain(_runnable(error, arguments), *(error.violations if isinstance(error, PlanRejected) else ()))
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in EXTRAS:
            return _internal(error)
        extra = EXTRAS[package]
        _complain(f"this needs {_foremost(package, extra)}, which is not installed ({install(extra)})")
        return 1
    except OutputClosed:
        _close_output()
        return 1
    except OSError as error:
        about = f": {_short(str(error.filename))!r}" if error.filename is not None else ""
        _complain(f"the operating system refused: {error.strerror or error}{about}")
        return 1
    except Exception as error:  # noqa: BLE001 - the process boundary: whatever leaks is told in one line, not hidden
        return _internal(error)
    return result if isinstance(result, int) else 0


def _foremost(package: str, extra: str) -> str:
    """The package that the extra is there for, where that is missing too: torch, and not the numpy that came to be first."""
    chief = next(name for name, brings in EXTRAS.items() if brings == extra)
    return package if package == chief or find_spec(chief) is not None else chief


def _short(name: str) -> str:
    return name if len(name) <= SHOWN_CHARACTERS else f"{name[:SHOWN_CHARACTERS]}... ({len(name)} characters)"


def _inert(message: str) -> str:
    from realizer.cli.rendering import inert

    return inert(message)


def _runnable(error: TallyError, arguments: Sequence[str]) -> str:
    from realizer.cli.access import shown_ledger
    from realizer.cli.hints import on_the_same_ledger

    return on_the_same_ledger(str(error), [shown_ledger(word) if "://" in word else word for word in arguments])


def _internal(error: Exception) -> int:
    _complain(f"internal error, {type(error).__name__}: {error} (TALLY_DEBUG=1 shows where; please report it)")
    return 1


def _complain(message: str, *more: str) -> None:
    from realizer.cli.rendering import complain

    complain(message, more)
    if os.environ.get("TALLY_DEBUG") == "1" and sys.exc_info()[0] is not None:
        traceback.print_exc()


def _close_output() -> None:
    """The reader went away: nothing more can be said there, the flush at exit included."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def occupy_standard_streams() -> set[int]:
    """Open /dev/null in place of each standard stream that came closed; which they were.

    Left free, its number would go to the next file opened, a ledger it may be, and be written over. In place of standard
    input it is open for writing only: whoever asks for input is told that there is none, and does not read an empty one.
    """
    closed = set()
    for number, name, flags in ((0, "stdin", os.O_WRONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            closed.add(number)
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    return closed


def main() -> None:
    """The console script."""
    closed = occupy_standard_streams()
    if 1 in closed:
        # Before anything is done: what could not be told should not be recorded either.
        _complain("standard output is closed: give it a file, or /dev/null")
        sys.exit(1)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
