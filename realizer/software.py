"""Who and what runs: software versions and digests, the source commit, and the process, with secrets masked."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata, util
from pathlib import Path

from ledger.bodies import AdapterIdentity, SoftwareIdentity
from ledger.errors import TallyError
from ledger.measurement import Measurement, Measurements, measured, unavailable
from ledger.plan import Plan
from realizer import answers
from realizer.adapter import ENTRY_POINT_GROUP, Adapter, adapter_for

DISTRIBUTION = "tallystick"
PACKAGES = ("ledger", "realizer", "adapters", "migrations")
LIBRARIES = (
    "torch", "transformers", "safetensors", "huggingface-hub", "tokenizers", "numpy", "nvidia-ml-py", "psutil",
    "pydantic", "pydantic-core", "rfc8785", "sqlalchemy", "pysqlite3", "cryptography", "securesystemslib", "triton",
)  # fmt: skip
"""Distributions whose version is recorded where they are installed."""
PRIVATE = "withheld: the run was recorded as private"
MASK = "***"

_SECRET_NAME = re.compile(
    r"^(?!no-).*(pass(word|wd|phrase)?|secrets?|token|credentials?|auth|api[-_]?keys?|access[-_]?keys?)$", re.I
)
"""Names of options and assignments whose value is hidden. `--tokens` are ids to decode, `--no-…` takes no value."""
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{10,}|gh[pousr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}|sk-[A-Za-z0-9_-]{10,}|xox[a-z]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{12,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]*)"
)
"""Forms of well-known tokens: hubs, code hosts, chat and cloud services, JSON Web Tokens."""
_URL_USER = re.compile(r"(?<=://)([^/@\s:]*):([^@\s]*)@")
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z][\w.-]*)=(?P<value>[^&\s;]+)")


def software_identity() -> SoftwareIdentity:
    """Versions of what is installed, the source commit of a checkout, and a digest of the installed files."""
    versions = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for name in (DISTRIBUTION, *LIBRARIES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # not installed: it took no part
    if "torch" in sys.modules:
        # its own word names the build (+cpu, +cu130), which the distribution's metadata may leave out
        versions["torch"] = str(sys.modules["torch"].__version__)
    commit, dirty = source_state()
    return SoftwareIdentity(
        versions=versions, source_commit=commit, source_dirty=dirty, files_digest=installed_digest()
    )


def source_state(folder: Path | None = None) -> tuple[Measurement, Measurement]:
    """(commit, 1 or 0 for changes against it) of the checkout that the packages are imported from.

    A commit that the installer recorded (direct_url.json, PEP 610) stands in where there is no checkout; whether the
    files were changed since, the digest of the installed files says.
    """
    root = folder or _package_folder("ledger").parent
    method = "git, in the folder that the packages are imported from"
    try:
        top = _git(root, "rev-parse", "--show-toplevel")
        if Path(top).resolve() != root.resolve():
            raise TallyError(f"the packages' folder is not the top of a checkout but lies in {Path(top).name}")
        _git(root, "ls-files", "--error-unmatch", "ledger/__init__.py")
        commit = _git(root, "rev-parse", "HEAD")
        changes = _git(root, "status", "--porcelain", "--", *PACKAGES, "pyproject.toml")
    except TallyError as error:
        recorded = _recorded_commit() if folder is None else None
        dirty = unavailable("flag", method, error.message)
        if recorded is not None:
            return measured(recorded, None, "commit that the installer recorded (direct_url.json)"), dirty
        return unavailable(None, method, error.message), dirty
    return measured(commit, None, method), measured(int(bool(changes)), "flag", method)


def _git(root: Path, *arguments: str) -> str:
    """What git prints. Raises TallyError with its first line when it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TallyError(f"git cannot be run: {error}") from error
    if done.returncode != 0:
        first = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise TallyError(f"git {arguments[0]}: {first}")
    return done.stdout.strip()


def _recorded_commit() -> str | None:
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if not text:
        return None
    commit = json.loads(text).get("vcs_info", {}).get("commit_id")
    return commit if isinstance(commit, str) else None


def installed_digest() -> Measurement:
    """`sha256:` over one line `HEX  PATH` a file of our packages as imported, sorted by path, compiled files aside."""
    return _files_digest(PACKAGES)


def _files_digest(packages: Sequence[str]) -> Measurement:
    method = f"SHA-256 over the files of {', '.join(packages)} as imported"
    lines = []
    try:
        for package in packages:
            for name, path in _package_files(package):
                with path.open("rb") as file:
                    lines.append((name, hashlib.file_digest(file, "sha256").hexdigest()))
    except (TallyError, OSError) as error:
        return unavailable(None, method, str(error))
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(lines))
    return measured("sha256:" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest(), None, method)


def _package_files(package: str) -> Iterator[tuple[str, Path]]:
    """Every file of a package, or the one of a module that is in none, with the name that it has in the digest."""
    alone = sys.modules.get(package)
    if alone is not None and not hasattr(alone, "__path__"):
        if getattr(alone, "__file__", None) is None:
            raise TallyError(f"module {package} has no file")
        path = Path(str(alone.__file__))
        yield path.name, path
        return
    folder = _package_folder(package)
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield f"{package}/{path.relative_to(folder).as_posix()}", path


def _package_folder(package: str) -> Path:
    spec = util.find_spec(package)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not locations:
        raise TallyError(f"package {package} is not to be found", "reinstall tallystick")
    return Path(locations[0])


def adapter_identity(plan: Plan, adapter: type[Adapter] | None) -> AdapterIdentity | None:
    """The adapter that will carry the plan out, with the distribution it came in; None where there is none."""
    if adapter is None:
        try:
            adapter = adapter_for(plan)
        except TallyError:
            return None  # the validation that follows says so, naming those there are
    answers.require_names(adapter)
    distribution = None
    modules = {adapter.__module__}
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        if point.name == adapter.name and _offers(point, adapter):
            modules.add(point.module)
            if point.dist is not None:
                distribution = f"{point.dist.name} {point.dist.version}"
    return AdapterIdentity(
        name=adapter.name, version=adapter.version, distribution=distribution, files_digest=_adapter_digest(modules)
    )


def _offers(point: metadata.EntryPoint, adapter: type[Adapter]) -> bool:
    """Whether the entry point is that class, wherever it is defined (a package may export a class of a submodule of it).

    Nothing is imported: a class that is at hand has its module loaded already.
    """
    found: object = sys.modules.get(point.module)
    for name in filter(None, point.attr.split(".")):
        found = getattr(found, name, None)
    return found is adapter


def _adapter_digest(modules: set[str]) -> Measurement | None:
    """The digest of the files of the packages that the modules are in; None where all of them are of ours."""
    packages = {_outermost(module) for module in modules}
    if packages <= set(PACKAGES):
        return None
    return _files_digest(sorted(packages - set(PACKAGES)))


def _outermost(module: str) -> str:
    """The outermost package of a module that is no namespace (which others may share), else the module itself."""
    names = module.split(".")
    for count in range(1, len(names)):
        package = ".".join(names[:count])
        if getattr(sys.modules.get(package), "__file__", None) is not None:
            return package
    return module


def process_facts(*, private: bool = False, argv: Sequence[str] | None = None) -> Measurements:
    """`argv` (one shell line, secrets masked), `user`, `hostname` and `pid` of this process; all withheld when private."""
    facts = {
        "argv": ("the process's own arguments, secrets masked", lambda: shlex.join(mask(argv or sys.argv))),
        "user": ("getpass.getuser", getpass.getuser),
        "hostname": ("socket.gethostname", socket.gethostname),
        "pid": ("os.getpid", os.getpid),
    }
    found: Measurements = {}
    for name, (method, read) in facts.items():
        if private:
            found[name] = unavailable(None, method, PRIVATE)
            continue
        try:
            value = read()
        except (OSError, KeyError) as error:
            found[name] = unavailable(None, method, f"{type(error).__name__}: {error}")
            continue
        found[name] = measured(value if isinstance(value, int) else _printable(str(value)), None, method)
    return found


def mask(arguments: Sequence[str]) -> list[str]:
    """The arguments with what looks secret replaced: values of options and assignments by their names, passwords in
    URLs, and well-known forms of tokens."""
    masked = []
    hide_next = False
    for argument in arguments:
        if hide_next:
            masked.append(MASK)
            hide_next = False
            continue
        name, equals, _ = argument.partition("=")
        if argument.startswith("-") and _SECRET_NAME.search(name.lstrip("-")):
            masked.append(f"{name}={MASK}" if equals else argument)
            hide_next = not equals
            continue
        text = _URL_USER.sub(lambda found: f"{found[1]}:{MASK}@", argument)
        text = _ASSIGNED.sub(
            lambda found: f"{found['name']}={MASK}" if _SECRET_NAME.search(found["name"]) else found[0], text
        )
        masked.append(_SECRET_VALUE.sub(MASK, text))
    return masked


def _printable(text: str) -> str:
    """Arguments may hold bytes that are no UTF-8 (surrogates) and no JSON text may."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")
