"""The wheel, built from the sdist, and fresh environments outside the checkout that hold it and what it declares, no more.

Nothing is downloaded: dependencies are links to what the tests' own environment has installed, taken from the declared
requirements, so that one which is used and not declared is missing there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = (".*", "__pycache__", "build", "dist", "*.egg-info")


def run(arguments: Sequence[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that has to succeed, in a folder, knowing nothing of the checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TALLY_", "PIP_"))}
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=folder,
        env={**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
    return done


@dataclass(frozen=True)
class Wheel:
    """What is in the wheel."""

    path: Path

    @property
    def names(self) -> list[str]:
        with ZipFile(self.path) as archive:
            return archive.namelist()

    @property
    def metadata(self) -> Message:
        with ZipFile(self.path) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(archive.read(name).decode())

    def requirements(self, extra: str = "") -> Iterator[Requirement]:
        """What is declared for this machine, with an extra or without."""
        for text in self.metadata.get_all("Requires-Dist", []):
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                yield requirement


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built from a copy of the checkout."""
    copy = tmp_path_factory.mktemp("checkout") / "tallystick"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    run([sys.executable, "-c", "from setuptools import build_meta; build_meta.build_sdist('dist')"], copy)
    (made,) = (copy / "dist").glob("*.tar.gz")
    return made


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """The wheel, built from what the sdist holds and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    run([*command, "--wheel-dir", folder, source], folder)
    (made,) = folder.glob("*.whl")
    return Wheel(made)


@dataclass(frozen=True)
class Installed:
    """A fresh environment with the wheel in it, and an empty folder to work in."""

    prefix: Path
    folder: Path

    def __call__(self, *arguments: str | Path) -> str:
        """Standard output of `tally ARGUMENTS`."""
        return self.run(self.prefix / "bin" / "tally", *arguments)

    def python(self, code: str) -> str:
        return self.run(self.prefix / "bin" / "python", "-c", code)

    def run(self, *command: str | Path) -> str:
        state = str(self.folder / "state")
        return run(command, self.folder, TALLY_STATE_DIR=state, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1").stdout


def install(wheel: Wheel, folder: Path, extra: str = "") -> Installed:
    """An environment with the wheel and links to what it declares, with an extra or without."""
    prefix = folder / "environment"
    venv.create(prefix, symlinks=True, with_pip=False)
    (packages,) = prefix.glob("lib/python*/site-packages")
    for found in _closure(list(wheel.requirements(extra))):
        _link(found, packages)
    command = [sys.executable, "-m", "pip", "--python", prefix / "bin" / "python", "install", "--quiet"]
    run([*command, "--no-deps", "--no-index", wheel.path], folder)
    work = folder / "work"
    work.mkdir()
    return Installed(prefix, work)


def _closure(requirements: list[Requirement]) -> Iterator[Distribution]:
    """The installed distributions that these requirements ask for, and what those ask for in turn."""
    seen: set[tuple[str, frozenset[str]]] = set()
    while requirements:
        requirement = requirements.pop()
        key = (requirement.name.lower(), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # whether it is needed shows when the commands run
        assert requirement.specifier.contains(found.version, prereleases=True), f"{requirement}: {found.version}"
        yield found
        for text in found.requires or []:
            inner = Requirement(text)
            extras = requirement.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                requirements.append(inner)


def _link(found: Distribution, packages: Path) -> None:
    """Links to the top-level names that a distribution installed."""
    tops = {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        target = Path(str(found.locate_file(top)))
        if target.exists() and not (packages / top).exists():
            (packages / top).symlink_to(target)


@pytest.fixture(scope="session")
def base(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install tallystick`: what an auditor has."""
    return install(wheel, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def realizing(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install 'tallystick[realize]'`."""
    pytest.importorskip("torch", reason="torch is not installed (extra `realize`)")
    return install(wheel, tmp_path_factory.mktemp("realizing"), "realize")
