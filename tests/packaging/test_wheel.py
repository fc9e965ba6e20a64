"""What the wheel holds and says of itself: the four packages and their data, no more; torch in extras alone."""

from __future__ import annotations

import ast
import tarfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.packaging.conftest import ROOT, Wheel

PACKAGES = ("adapters", "ledger", "migrations", "realizer")
HEAVY = {"torch", "transformers", "safetensors", "huggingface-hub", "numpy", "nvidia-ml-py", "datasette", "psycopg"}
SUFFIXES = {".py", ".css", ".js", ".j2", ".mako", ".sql", ".typed"}


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Wheel) -> None:
    held = {name for name in wheel.names if ".dist-info/" not in name}
    ours = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == ours
    assert {Path(name).suffix for name in held} == SUFFIXES
    assert {f"{package}/py.typed" for package in ("adapters", "ledger", "realizer")} <= held


def test_the_top_level_names_are_the_four(wheel: Wheel) -> None:
    assert {name.split("/")[0] for name in wheel.names if ".dist-info/" not in name} == set(PACKAGES)


def test_nothing_of_torch_is_required_by_the_base(wheel: Wheel) -> None:
    base = {Requirement(str(requirement)).name.lower() for requirement in wheel.requirements()}
    assert "sqlalchemy" in base
    assert base & HEAVY == set()
    assert {requirement.name.lower() for requirement in wheel.requirements("realize")} >= {"torch", "transformers"}


def test_what_the_wheel_says_of_itself(wheel: Wheel) -> None:
    said = wheel.metadata
    assert (said["Name"], said["License-Expression"], said["License-File"]) == ("tallystick", "Apache-2.0", "LICENSE")
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.names)
    assert said["Description-Content-Type"] == "text/markdown"
    assert (ROOT / "README.md").read_text().strip() == str(said.get_payload()).strip()
    classifiers = said.get_all("Classifier", [])
    assert "Operating System :: POSIX :: Linux" in classifiers
    assert not any(classifier.startswith("License ::") for classifier in classifiers)  # the expression says it


def test_the_sdist_holds_what_the_wheel_is_built_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    made = {"PKG-INFO", "setup.cfg", "tallystick.egg-info"}
    assert tops - made == {*PACKAGES, "LICENSE", "README.md", "pyproject.toml"}


def test_every_package_is_listed_for_the_wheel() -> None:
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert set(listed) == found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_of_the_packages_reaches_outside_them(package: str) -> None:
    outside = {"tests", "benchmarks", "plans", "docs"}
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {name.split(".")[0] for name in names} & outside, path
