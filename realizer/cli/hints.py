"""Commands that are printed as the next thing to try: they run as they stand, on the ledger that was given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import click

_OF_A_LEDGER = re.compile(
    r"`(tally (?:runs|verify|pin --accept -o accepted.pin|db check|db upgrade|(?:show|log|reconcile|replay) [^`\s]+))`"
)
"""Hints that mean the ledger in hand: those that name another one, or a FILE, are left alone."""


def command(*words: str, ledger: bool = False) -> str:
    """`tally WORDS`, quoted for a shell; with the `--ledger` of the present command line where it reads a ledger."""
    given: list[str] = []
    context = click.get_current_context(silent=True)
    if (
        ledger
        and context is not None
        and context.get_parameter_source("ledger") is click.core.ParameterSource.COMMANDLINE
    ):
        given = ["--ledger", context.params["ledger"]]
    return shlex.join(["tally", *words, *given])


def on_the_same_ledger(text: str, arguments: Sequence[str]) -> str:
    """The text of an error in which hints about the ledger name the one that the command line gave, if it gave one."""
    location = _given(arguments)
    if location is None:
        return text
    return _OF_A_LEDGER.sub(lambda found: f"`{found[1]} --ledger {shlex.quote(location)}`", text)


def _given(arguments: Sequence[str]) -> str | None:
    found = None
    for number, word in enumerate(arguments):
        if word == "--":
            break
        if word == "--ledger" and number + 1 < len(arguments):
            found = arguments[number + 1]
        elif word.startswith("--ledger="):
            found = word.partition("=")[2]
    return found
