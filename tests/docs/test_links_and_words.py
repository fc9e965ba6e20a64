"""No page names what is not there: links lead somewhere, commands and options exist, modules and functions too."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from realizer.cli.main import tally
from tests.docs.pages import PAGES, ROOT, anchors, links, prose, spoken_commands, unknown, words

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links to {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{page.name} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_and_options_exist(page: Path) -> None:
    for where, said in spoken_commands(page):
        assert unknown(said, tally) is None, f"{where}: tally {' '.join(said)}: no {unknown(said, tally)!r}"


def test_options_that_stand_alone_exist() -> None:
    known = set(re.findall(r"--[a-z][a-z-]+", (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")))
    for page in PAGES:
        for option in re.findall(r"`(--[a-z][a-z-]+)[^`]*`", prose(page)):
            assert option in known | {"--no-deps", "--no-build-isolation"}, f"{page.name}: {option}"


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ("realize plan.json --reference r", None),
        ("plan draft MODEL [--revision R] -o FILE", None),
        ("diff A B", None),
        ("relize plan.json", "relize"),
        ("plan thaw x", "thaw"),
        ("realize plan.json --fast", "--fast"),
        ("plan draft m --reference r", "--reference"),
    ],
)
def test_a_word_that_the_program_lacks_is_found(said: str, missing: str | None) -> None:
    assert unknown(words(said), tally) == missing


# --- names of the code --------------------------------------------------------------------------------------------

CODE = re.compile(
    r"`((?:ledger|realizer|adapters|migrations|tests|benchmarks)(?:[./][a-z0-9_A-Z]+)+(?:\.py)?/?)(?:\(\))?`"
)


def resolved(name: str) -> bool:
    """A path of the repository, or a dotted name of a module and what it defines (a class's members included)."""
    if "/" in name:
        return (ROOT / name).exists()
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:cut])
        source = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if source.is_file():
            return _defines(ast.parse(source.read_text(encoding="utf-8")), parts[cut:])
    return False


def _defines(tree: ast.AST, names: list[str]) -> bool:
    if not names:
        return True
    for node in ast.iter_child_nodes(tree):
        defined: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined = [node.name]
        elif isinstance(node, ast.Assign):
            defined = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined = [node.target.id]
        elif isinstance(node, ast.ImportFrom):
            defined = [alias.asname or alias.name for alias in node.names]
        if names[0] in defined and (len(names) == 1 or _defines(node, names[1:])):
            return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_modules_and_functions_that_a_page_names_exist(page: Path) -> None:
    for name in CODE.findall(page.read_text(encoding="utf-8")):
        assert resolved(name), f"{page.name} names {name}"


def test_the_page_of_the_architecture_names_the_code() -> None:
    found = CODE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(set(found)) > 40
    assert resolved("realizer.probes.Probes.observe")
    assert not resolved("realizer.probes.Probes.guess")
    assert not resolved("realizer/guesses.py")


def test_code_that_the_page_of_adapters_shows_is_that_of_the_example() -> None:
    from tests.docs.pages import blocks

    package = ROOT / "examples" / "tally_adapter_example"
    paths = [package / "pyproject.toml", *package.rglob("*.py"), ROOT / "tests" / "docs" / "stateless.py"]
    paths += [ROOT / "adapters" / "causal_lm.py", ROOT / "adapters" / "qwen3_5_moe" / "layout.py"]
    sources = [path.read_text(encoding="utf-8") for path in paths]
    shown = [block for block in blocks(ROOT / "docs" / "adapters.md") if block.language in ("python", "toml")]
    assert len(shown) > 5
    for block in shown:
        forms = [textwrap.indent("\n".join(block.lines), " " * depth) for depth in (0, 4, 8)]
        assert any(form in source for form in forms for source in sources), f"{block.where}: not in the example"
