"""The project's pages as tests read them: code blocks with their markers, links, and words that look like commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "docs/*/*.md", "plans/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")


@dataclass
class Block:
    """A fenced block: the page and line it begins at, its language, its lines, and the comment right before it."""

    page: Path
    line: int
    language: str
    marker: str
    lines: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Command lines: all of an `sh` block, those after `$` of a `console` block; continued ones joined."""
        joined = "\n".join(self.lines).replace("\\\n", " ").splitlines()
        if self.language == "console":
            joined = [line[2:] for line in joined if line.startswith("$ ")]
        return [line for line in joined if line.strip() and not line.lstrip().startswith("#")]


def blocks(page: Path) -> list[Block]:
    """The page's fenced blocks. Fails for one that does not end."""
    found: list[Block] = []
    current: Block | None = None
    before = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if current is not None:
            if line.startswith("```"):
                found.append(current)
                current, before = None, ""
            else:
                current.lines.append(line)
        elif line.startswith("```"):
            current = Block(page, number, line[3:].strip(), before)
        elif line.strip():
            before = line.strip()
    assert current is None, f"{current and current.where}: the block does not end"
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def links(page: Path) -> list[str]:
    """Targets of the page's links and pictures that are no URLs."""
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))
    return [target for target in found if "://" not in target and not target.startswith("mailto:")]


def anchors(page: Path) -> set[str]:
    """What the page's headings are reached by."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def spoken_commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """(where, words after `tally`) of everything on the page that looks like a command line of this program."""
    for block in blocks(page):
        lines = block.commands if block.language in ("sh", "console") else block.lines
        for line in lines:
            for part in re.split(r"[|;&<>]|\s#", line):
                match = re.match(r"\s*(?:\$ )?tally ([a-z-].*)", part)
                if match is not None and block.language in ("sh", "console", ""):
                    yield block.where, words(match[1])
    for said in re.findall(r"`tally ([a-z-][^`\n]*)`", prose(page)):
        yield page.name, words(re.split(r"[|;&<>]", said)[0])


def words(line: str) -> list[str]:
    """The line's words, brackets of a synopsis and trailing punctuation taken off."""
    bare = re.sub(r"[\[\]…]", " ", line)
    try:
        return shlex.split(bare)
    except ValueError:
        return bare.split()


def unknown(said: list[str], root: click.Group) -> str | None:
    """The first word that the program does not know as a command or option, or None."""
    command: click.Command = root
    context = click.Context(root, info_name="tally", **root.context_settings)  # a command keeps the help option it made
    rest = list(said)
    while isinstance(command, click.Group) and rest:
        word = rest[0]
        if word.startswith("-"):
            break
        found = command.get_command(context, word.rstrip(".,"))
        if found is None:
            return word
        command, rest = found, rest[1:]
        context = click.Context(command, info_name=word, parent=context)
    options = {
        name for parameter in command.get_params(context) for name in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in rest:
        name = word.partition("=")[0].rstrip(".,")
        if name.startswith("-") and name != "-" and name not in options:
            return name
    return None
