"""Every command that the pages show is run, or its block says why not; what they show as printed is what is printed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.pages import NOT_RUN, PAGES, ROOT, Block, blocks

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.docs.sandbox import Ran, execute, inside, prepare

LANGUAGES = {"sh", "console", "text", "toml", "sql", "python", "json", "mermaid"}
EXPECTED = re.compile(r"# exit (\d+)$")
HEADING = re.compile(r"[A-Z][A-Z ,]{3,}")
"""A section of what is printed: capital letters at the line's beginning."""


def run_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in ("sh", "console") and not NOT_RUN.match(block.marker)]


SHOWING = [page for page in PAGES if run_blocks(page)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sandbox")
    prepare(folder)
    return folder


@pytest.mark.parametrize("page", SHOWING, ids=[str(page.relative_to(ROOT)) for page in SHOWING])
def test_what_the_page_shows_is_what_happens(page: Path, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True, symlinks=True)
    with inside(tmp_path):
        for block in run_blocks(page):
            for line in block.commands:
                ran = execute(line)
                wanted = EXPECTED.search(line)
                assert ran.code == int(wanted[1] if wanted else 0), f"{block.where}: {line}\n{ran.out}{ran.err}"
                if block.language == "console":
                    _same_structure(block, ran)


def _same_structure(block: Block, ran: Ran) -> None:
    """The sections that the block shows are printed, in their order, and no other."""
    shown = [found[0].strip() for line in block.lines if (found := HEADING.match(line))]
    printed = [found[0].strip() for line in ran.out.splitlines() if (found := HEADING.match(line))]
    assert shown == printed, f"{block.where}: run `python -m tests.docs.walk` to renew it"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.where}: a block needs one of {sorted(LANGUAGES)}"
        assert block.language != "console" or len(block.commands) == 1, f"{block.where}: one command a console block"


def test_a_command_of_somebody_else_has_to_be_marked() -> None:
    with pytest.raises(AssertionError, match="not run: REASON"):
        execute("rm -rf /")
    assert NOT_RUN.match("<!-- not run: needs a GPU -->")
    assert not NOT_RUN.match("<!-- not run:  -->")


def test_a_section_that_is_not_printed_any_more_is_found() -> None:
    block = Block(ROOT / "README.md", 1, "console", "", ["$ tally x", "PASS  assurance", "", "RELEASE"])
    _same_structure(block, Ran(0, "PASS  assurance\n\nRELEASE\nstaging\n", ""))
    with pytest.raises(AssertionError, match=r"tests\.docs\.walk"):
        _same_structure(block, Ran(0, "PASS  assurance\n\nGIVEN BACK\n", ""))


def test_enough_is_run() -> None:
    count = sum(len(block.commands) for page in SHOWING for block in run_blocks(page))
    assert count > 25
