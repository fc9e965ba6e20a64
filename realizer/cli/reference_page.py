"""The command reference, docs/cli.md, made from the commands themselves: `python -m realizer.cli.reference_page`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from realizer.cli.main import ALIASES, COMMANDS, tally

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
COLUMNS = 80

EXIT_CODES = {
    0: "done",
    1: "error: also a realization that failed, whatever its verdict, and a ledger that is foreign, newer, absent (for "
    "commands that only read) or read-only (for those that write)",
    2: "usage: an unknown command or option, or one that is missing",
    3: "from `realize`, `reconcile`, `import`, `verify FILE`, `compare` and `plan check` alone: the verdict is FAIL or "
    "INDETERMINATE, runs differ, a plan was rejected, a requirement is not met",
    4: "a ledger or evidence is broken; outranks 3",
    130: "interrupted: the run is closed as aborted and folds to incomplete",
}

INTRODUCTION = """\
# Commands

Made from the commands by `python -m realizer.cli.reference_page`; a test holds it current.

A **RUN** is a full id, a unique prefix of one, `@latest`, `@latest~N` (the Nth before it), or an evidence file where
that makes sense. `@latest` counts realizations and imports in the order in which they were opened, and leaves witnesses
(`tally observe`) out: ask for those by id. **The ledger** is `--ledger`, else `TALLY_LEDGER`, else `./tally.db`.

Data goes to standard output, talk and progress to standard error; bars are drawn on a terminal only. `-` is standard
input or output. `--json` prints a document with a `format` and raw integers; sizes with units are for terminals.
`NO_COLOR` is honoured, and `PAGER` is used where a terminal is too small. An error is one line with the next thing to
try; `TALLY_DEBUG=1` adds the traceback.

Completion: `eval "$(_TALLY_COMPLETE=bash_source tally)"`, likewise `zsh_source` and `fish_source`.
"""


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "## Exit codes", "", "| code | meaning |", "| ---: | --- |"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += ["", "Scripts that must tell FAIL from INDETERMINATE read the JSON.", ""]
    settings = {**tally.context_settings, "terminal_width": COLUMNS, "max_content_width": COLUMNS}
    root = click.Context(tally, info_name="tally", **settings)
    for name in COMMANDS:
        command = tally.get_command(root, name)
        if command is not None:
            lines += _sections(command, name, root)
    return "\n".join(lines).rstrip() + "\n"


def _sections(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=COLUMNS, max_content_width=COLUMNS)
    aliases = [alias for alias, target in ALIASES.items() if target == name and parent.command is tally]
    yield f"{'##' if parent.command is tally else '###'} {context.command_path}"
    yield ""
    if aliases:
        yield f"Alias: {', '.join(f'`tally {alias}`' for alias in aliases)}."
        yield ""
    yield "```text"
    yield command.get_help(context)
    yield "```"
    yield ""
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _sections(found, child, context)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
