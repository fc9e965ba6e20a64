"""Options and arguments that several commands share, and completion of run names."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ledger.errors import TallyError

if TYPE_CHECKING:
    from realizer.cli.outputs import Kind

DEFAULT_LEDGER = "./tally.db"
EMPTY = ("", "sqlite:///")

F = TypeVar("F", bound=Callable[..., Any])


class Name(click.ParamType[str]):
    """What names something: never empty. An unset variable in a script must not turn a demand off, or name the folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in EMPTY:
            self.fail(f"{value!r} names no {self.name}: it is empty", param, ctx)
        return str(value)


class RunName(Name):
    """A run as people name it; completes to the ledger's runs, the newest first, or to evidence files."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        location = ctx.params.get("ledger") or DEFAULT_LEDGER
        file = [CompletionItem(incomplete, type="file")]
        if incomplete and Path(incomplete).exists():
            return file
        from ledger.store import Store

        try:
            with Store.open(location) as store:
                runs = store.runs()
        except TallyError:
            return file
        names = [CompletionItem(run.run_id, help=f"{run.opened_at[:19]} {run.outcome}") for run in reversed(runs)]
        return [item for item in [*names, CompletionItem("@latest")] if item.value.startswith(incomplete)] or file


class FileName(Name):
    """A file, a directory or `-`, checked where it is opened; completes to what is there."""

    name = "file"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def ledger_option(command: F) -> F:
    """`--ledger`, then TALLY_LEDGER, then ./tally.db."""
    return click.option(
        "--ledger",
        type=FileName(),
        metavar="URL|PATH",
        envvar="TALLY_LEDGER",
        default=DEFAULT_LEDGER,
        show_default=True,
        show_envvar=True,
        help="The ledger: an SQLite file, or a postgresql+psycopg:// URL.",
    )(command)


def json_option(command: F) -> F:
    """`--json`: the document in place of the text for people."""
    return click.option("--json", "as_json", is_flag=True, help="Print a JSON document on standard output.")(command)


def output_option(what: str, kind: Kind) -> Callable[[F], F]:
    """`-o FILE`, required; `-` is standard output. What may not be written over is refused before the command begins."""

    def decorate(command: F) -> F:
        @wraps(command)
        def guarded(*arguments: Any, **given: Any) -> Any:
            _spare_what_is_there(given["output"], kind, what)
            return command(*arguments, **given)

        option: Callable[[Any], F] = click.option(
            "-o",
            "--output",
            type=FileName(),
            metavar="FILE",
            required=True,
            help=f"Where {what} goes; - is standard output. Only an older one is written over.",
        )
        return option(guarded)

    return decorate


def _spare_what_is_there(output: str, kind: Kind, what: str) -> None:
    """Hold the output against every file, folder and ledger that the command line names."""
    from ledger.database import is_postgres, sqlite_path
    from realizer.cli.outputs import refuse_overwriting

    context = click.get_current_context()
    inputs, folders, ledger = [], [], None
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if not isinstance(parameter.type, FileName | RunName) or value is None or parameter.name == "output":
            continue
        if parameter.name == "ledger":
            ledger = None if is_postgres(value) else sqlite_path(value)
        elif Path(value).is_dir():
            folders.append((f"the folder {value!r}, which the command reads", Path(value)))
        else:
            inputs.append(Path(value))
    refuse_overwriting(output, kind, what, inputs=inputs, folders=folders, ledger=ledger)


def run_argument(name: str = "run", **attributes: Any) -> Callable[[F], F]:
    """A RUN: a full id, a unique prefix, @latest, @latest~N, or an evidence file."""

    def decorate(command: F) -> F:
        return click.argument(name, type=RunName(), metavar=name.upper(), **attributes)(command)

    return decorate


def refuse_two_documents(output: str, as_json: bool) -> None:
    """Standard output carries one document: `-o -` and `--json` exclude each other."""
    if as_json and output == "-":
        raise click.UsageError("-o - and --json both want standard output: give -o a file, or leave --json out")


def pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """`k=v` options as a dictionary. Raises UsageError for one without `=`, without a key, or given twice."""
    found: dict[str, str] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise click.UsageError(f"{option} {value!r} is not of the form key=value")
        if key in found:
            raise click.UsageError(f"{option} {key} is given twice")
        found[key] = text
    return found
