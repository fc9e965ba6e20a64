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
HEADING = re.compile(r"[A-Z][A-Z ,()]{3,}")
"""A section of what is printed, its unit included: a first cell of capital letters alone."""
REMARK = re.compile(r"[a-z ]+: ")
"""A line that is no row: what it is about, and then the figures."""


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
    """Headings, columns and labels that the block shows are printed, in their order, and no other."""
    shown = skeleton([line for line in block.lines if not line.startswith("$ ")])
    assert shown == skeleton(ran.out.splitlines()), f"{block.where}: run `python -m tests.docs.walk` to renew it"


def skeleton(lines: list[str]) -> list[tuple[str, ...]]:
    """What does not depend on the model or the moment: headings, the columns below them, each row's label, and remarks with
    their figures masked. Findings and free text are left out."""
    found: list[tuple[str, ...]] = []
    section, below = "", False
    for line in lines:
        cells = re.split(r" {2,}", line.rstrip())
        if HEADING.fullmatch(cells[0]):
            section, below = cells[0], True
            found.append((section,))
            continue
        if len(cells) > 1 and cells[0] and section != "FINDINGS":
            is_columns = below and not re.search(r"\d", line)
            found.append(tuple(cells) if is_columns else (cells[0],))
        elif REMARK.match(line):
            found.append((re.sub(r"\d+", "#", line.rstrip()),))
        below = False
    return found


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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("MEMORY OF THE TREE (BYTES)", "MEMORY OF THE TREE"),
        ("planned (bytes)", "planned"),
        ("persistent, required", "persistent"),
        ("mat.kv-cache", "mat.cache"),
        ("accesses 0, others 0", "accesses 0, strangers 0"),
    ],
)
def test_a_heading_a_column_and_a_label_that_changed_are_found(before: str, after: str) -> None:
    printed = (
        "PASS  assurance observed\n\nMATERIALIZATIONS\nmaterialization  planned (bytes)  state\n"
        "mat.kv-cache               5898480  live\ncheckpoint since: accesses 0, others 0\n\n"
        "MEMORY OF THE TREE (BYTES)\nat        anon\nbaseline  12\n\nACCOUNTING (BYTES)\npersistent, required  280827232\n"
    )
    block = Block(ROOT / "README.md", 1, "console", "", ["$ tally x", *printed.splitlines()])
    other_figures = re.sub(r"\d+", "7", printed)
    _same_structure(block, Ran(0, other_figures, ""))
    with pytest.raises(AssertionError, match=r"tests\.docs\.walk"):
        _same_structure(block, Ran(0, other_figures.replace(before.replace("0", "7"), after.replace("0", "7")), ""))


def test_enough_is_run() -> None:
    count = sum(len(block.commands) for page in SHOWING for block in run_blocks(page))
    assert count > 25
