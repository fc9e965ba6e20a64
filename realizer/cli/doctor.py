"""`tally doctor`: what on this machine would keep a run from being recorded, judged or observed as it should."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

import click

from ledger.counting import counted
from ledger.errors import LedgerBroken, LedgerError, TallyError, install
from realizer.cli.documents import Diagnosis, DoctorDocument
from realizer.cli.main import EXTRAS
from realizer.cli.options import json_option, ledger_option
from realizer.cli.rendering import amount, cell, emit_json, show, table

STATES = {"ok": "green", "note": "yellow", "problem": "bold red"}
BASE = ("tallystick", "click", "pydantic", "rich", "sqlalchemy", "alembic", "cryptography", "rfc8785", "orjson")
PACKAGES = ("ledger", "realizer", "adapters", "migrations")
LITTLE = 64 << 20
"""Bytes free below which a ledger is in danger: some runs' worth of events, and SQLite's log of them."""
OPTIONAL = ("torch", "transformers", "safetensors", "huggingface-hub", "nvidia-ml-py", "psycopg", "datasette")


@click.command()
@ledger_option
@json_option
def doctor(ledger: str, as_json: bool) -> int:
    """Look for what would keep runs from being recorded or observed.

    Versions, SQLite, the ledger and its pin, disk space, keys, adapters and name clashes, devices, and what of /proc
    cannot be read here. Exit 1 when there is a problem. Nothing is changed.

    \b
    Example:
      tally doctor
    """
    diagnoses = [found for check in CHECKS for found in check(ledger)]
    if as_json:
        emit_json(DoctorDocument(diagnoses=diagnoses))
    else:
        rows = [
            (cell(d.state, STATES[d.state]), d.subject, d.found + (f" ({d.remedy})" if d.remedy else ""))
            for d in diagnoses
        ]
        show(table(("", "what", "found"), rows))
    return 1 if any(d.state == "problem" for d in diagnoses) else 0


def _ok(subject: str, found: str) -> Diagnosis:
    return Diagnosis(state="ok", subject=subject, found=found, remedy=None)


def _note(subject: str, found: str, remedy: str | None = None) -> Diagnosis:
    return Diagnosis(state="note", subject=subject, found=found, remedy=remedy)


def _problem(subject: str, found: str, remedy: str | None) -> Diagnosis:
    return Diagnosis(state="problem", subject=subject, found=found, remedy=remedy)


# --- the program --------------------------------------------------------------------------------------------------


def versions(_ledger: str) -> Iterator[Diagnosis]:
    """The interpreter and the packages; a missing optional one is a note, naming the extra that brings it."""
    yield _ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _ok("packages", ", ".join(f"{name} {version(name)}" for name in BASE))
    for name in OPTIONAL:
        try:
            yield _ok(name, version(name))
        except PackageNotFoundError:
            extra = EXTRAS.get(name.replace("-", "_"), "realize")
            yield _note(name, "not installed", f"where it is needed, {install(extra)}")


def clashes(_ledger: str) -> Iterator[Diagnosis]:
    """The top-level names of ours are nobody else's too, and ours are the ones that Python finds."""
    ours = Path(__file__).resolve().parents[2]
    installed = packages_distributions()
    for name in PACKAGES:
        owners = sorted(set(installed.get(name, ())) - {"tallystick"})
        if owners:
            yield _problem(
                f"package {name}", f"{', '.join(owners)} installs one of that name too", "use an environment of its own"
            )
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            yield _problem(f"package {name}", "not found", "install tallystick anew")
        elif (place := Path(spec.origin).resolve().parent) != ours / name:
            yield _problem(f"package {name}", f"Python finds {place} in place of ours", "work in another folder")


def adapters(_ledger: str) -> Iterator[Diagnosis]:
    """Every adapter can be imported."""
    from realizer.adapter import adapter_names, load_adapter

    for name in adapter_names():
        try:
            loaded = load_adapter(name)
        except (TallyError, ModuleNotFoundError) as error:
            yield _note(f"adapter {name}", str(error))
        else:
            yield _ok(f"adapter {name}", f"version {loaded.version}")


# --- the ledger ---------------------------------------------------------------------------------------------------


def sqlite(_ledger: str) -> Iterator[Diagnosis]:
    """The linked SQLite does not lose commits, or the journal that it is used with does not let it."""
    from ledger.sqlite import journal_for, loses_commits, sqlite_driver

    driver = sqlite_driver()
    journal, synchronous = journal_for(driver)
    found = f"{driver.sqlite_version} through {driver.__name__.split('.')[0]}, journal {journal}, {synchronous}"
    if loses_commits(driver.sqlite_version_info):
        yield _note("SQLite", f"{found}: this version can lose commits in WAL mode", "pip install pysqlite3 is faster")
    else:
        yield _ok("SQLite", found)


def ledger_and_pin(ledger: str) -> Iterator[Diagnosis]:
    """The ledger is sound, and still begins with what was pinned."""
    from ledger import pins
    from ledger.checkpoints import NoteError
    from ledger.maintenance import check
    from ledger.store import Store
    from realizer.cli.access import shown_ledger

    try:
        found = check(ledger)
        for problem in found["problems"]:
            yield _problem("ledger", problem, None)
        if not found["problems"]:
            held = f"{counted(found['events'], 'event')}, {counted(found['runs'], 'run')}"
            yield _ok("ledger", f"{shown_ledger(ledger)}: {held}, guards in place")
        if found.get("role_may_change_events"):
            role = f"role {found['role']} may change events"
            yield _note("ledger role", role, "docs/postgresql.md makes one that may not")
        with Store.open(ledger) as store:
            pin = pins.state_pin(store.origin)
            if pin is None:
                yield _note("pin", f"none in {pins.state_folder()}", "the next run makes one; `tally pin` another")
            else:
                pins.check_pin(store)
                yield _ok(
                    "pin",
                    f"holds at {counted(pin.size, 'event')}, by the hashes recorded; `tally verify` recomputes them",
                )
    except LedgerBroken as error:
        yield _problem("pin", error.message, error.hint)
    except NoteError as error:
        yield _problem("pin", error.message, error.hint)
    except LedgerError as error:
        absent = error.message.startswith("no ledger ")
        yield _note("ledger", error.message, error.hint) if absent else _problem("ledger", error.message, error.hint)


def space(ledger: str) -> Iterator[Diagnosis]:
    """There is room where the ledger and the pins are written, and they may be written there."""
    from ledger import pins
    from ledger.database import is_postgres, sqlite_path

    places = [] if is_postgres(ledger) else [("ledger", sqlite_path(ledger).absolute().parent, "--ledger")]
    places.append(("pins", pins.state_folder().absolute(), pins.STATE_VARIABLE))
    for what, place, setting in places:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            yield _problem(f"folder of {what}", f"{there} is no folder that may be written", f"name another: {setting}")
            continue
        free = shutil.disk_usage(there).free
        said = f"{amount(free)} free in {there}"
        if free < LITTLE:
            yield _problem(f"space for {what}", said, "free some: an event that cannot be written stops a run")
        else:
            yield _ok(f"space for {what}", said)


def keys(_ledger: str) -> Iterator[Diagnosis]:
    """Private keys in the current folder are readable by their owner alone."""
    for path in sorted(path for path in Path().glob("*.pem") if path.is_file()):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield _problem(f"key {path}", f"mode {mode:04o}: others may read it", f"chmod 600 {path}")
        else:
            yield _ok(f"key {path}", f"mode {mode:04o}")


# --- the machine --------------------------------------------------------------------------------------------------


def machine(_ledger: str) -> Iterator[Diagnosis]:
    """What runs can be placed on, and what probes cannot read here (such facts are unknown in every run)."""
    try:
        from realizer.environment import observe_environment
        from realizer.memory import Ranges
        from realizer.probes import Probes
    except ModuleNotFoundError as error:
        yield _note("machine", f"not looked at: {error.name} is not installed", install("realize"))
        return
    observed = observe_environment()
    for unit in observed.compute_units:
        yield _ok(f"Compute Unit {unit.key}", str(unit.name.value or unit.name.detail))
    for resource in observed.memory_resources:
        capacity = resource.capacity_bytes.value
        if isinstance(capacity, int):
            yield _ok(f"memory {resource.key}", amount(capacity))
        else:
            yield _problem(f"memory {resource.key}", str(resource.capacity_bytes.detail), None)
    yield from _unused_devices([unit.key for unit in observed.compute_units])
    probes = Probes(Ranges(), [])
    sample = probes.baseline()
    probes.close()
    unread = {
        f"{part} {name}": figure.detail or figure.status
        for part, figures in (("process", sample.process), ("host", sample.host))
        for name, figure in figures.items()
        if not figure.known
    }
    for name, why in unread.items():
        yield _note(name, f"cannot be read here: {why}", "runs here are INDETERMINATE where it matters")
    if not unread:
        yield _ok("probes", f"all {len(sample.process) + len(sample.host)} figures of processes and host can be read")


def _unused_devices(units: list[str]) -> Iterator[Diagnosis]:
    """A device that the driver shows and torch cannot use."""
    from realizer.nvml import Devices

    devices = Devices()
    try:
        usable = sum(key.startswith("cuda:") for key in units)
        if usable < len(devices.devices):
            names = ", ".join(device.name for device in devices.devices)
            found = f"the driver shows {len(devices.devices)} ({names}), torch can use {usable}"
            yield _note("GPU", found, "install a CUDA build of torch, and look at CUDA_VISIBLE_DEVICES")
        elif not usable:
            yield _ok("GPU", f"none ({devices.problem or 'the driver shows no device'})")
    finally:
        devices.close()


CHECKS: tuple[Callable[[str], Iterator[Diagnosis]], ...] = (
    versions, clashes, adapters, sqlite, ledger_and_pin, space, keys, machine
)  # fmt: skip
"""Every check yields what it found; adding one is writing one."""
