"""The environment as found, what software runs, and process facts without their secrets."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import EnvironmentObserved, SoftwareIdentity
from realizer import environment, software
from realizer.environment import observe_environment, process_facts, software_identity
from realizer.procfs import ProcFS
from realizer.software import mask

torch = pytest.importorskip("torch")


# --- the machine --------------------------------------------------------------------------------------------------


def test_the_machine_shows_its_processor_and_both_kinds_of_host_memory() -> None:
    import psutil

    found = observe_environment()
    assert isinstance(found, EnvironmentObserved)
    units = {unit.key: unit for unit in found.compute_units}
    resources = {resource.key: resource for resource in found.memory_resources}
    assert units["cpu"].kind.value == "cpu"
    assert units["cpu"].memory_resources == ["ram", "shm"]
    assert units["cpu"].device_uuid.status == "unavailable"
    assert resources["ram"].kind.value == "system-ram"
    assert resources["ram"].parent is None
    assert resources["shm"].kind.value == "shared-memory"
    assert resources["shm"].parent == "ram"
    capacity = resources["ram"].capacity_bytes
    assert capacity.observed
    assert isinstance(capacity.value, int)
    assert 0 < capacity.value <= psutil.virtual_memory().total
    assert resources["shm"].capacity_bytes.value == capacity.value, "a memfd is bounded by memory, not by /dev/shm"


def test_every_fact_is_a_measurement_of_a_probe_and_ids_are_the_machines_own() -> None:
    found = observe_environment()
    facts = [*found.facts.values()]
    for unit in found.compute_units:
        facts += [unit.kind, unit.device_uuid, unit.name]
    for resource in found.memory_resources:
        facts += [resource.kind, resource.capacity_bytes, resource.available_bytes]
    assert {fact.source for fact in facts} == {"probe"}
    assert all(fact.detail for fact in facts if fact.value is None), "what is unknown says why"
    assert {unit.key for unit in found.compute_units} >= {"cpu"}


def _machine(tmp_path: Path, *, limit: str, current: str) -> ProcFS:
    group = tmp_path / "cgroup"
    (group / "job").mkdir(parents=True)
    (group / "job" / "memory.max").write_text(limit)
    (group / "job" / "memory.current").write_text(current)
    mine = tmp_path / "proc" / str(os.getpid())
    mine.mkdir(parents=True)
    (mine / "mountinfo").write_text(f"30 20 0:29 / {group} rw,nosuid - cgroup2 cgroup rw\n")
    (mine / "cgroup").write_text("0::/job\n")
    return ProcFS(tmp_path / "proc")


def test_a_cgroup_limit_is_the_capacity_when_it_is_smaller(tmp_path: Path) -> None:
    found = observe_environment(proc=_machine(tmp_path, limit="1000000", current="400000"))
    ram = found.memory_resources[0]
    assert (ram.capacity_bytes.value, ram.available_bytes.value) == (1_000_000, 600_000)
    assert "cgroup" in ram.capacity_bytes.method


@pytest.mark.parametrize("limit", ["max", str(2**62), "garbage"])
def test_no_limit_leaves_the_machines_memory(tmp_path: Path, limit: str) -> None:
    import psutil

    found = observe_environment(proc=_machine(tmp_path, limit=limit, current="5"))
    assert found.memory_resources[0].capacity_bytes.value == psutil.virtual_memory().total


def test_what_proc_does_not_show_is_unknown_with_the_reason(tmp_path: Path) -> None:
    found = observe_environment(proc=ProcFS(tmp_path))
    assert found.facts["swap_total"].status == "unavailable"
    assert "meminfo" in str(found.facts["swap_total"].detail)
    assert found.compute_units[0].name.status == "unavailable"


def test_no_memfd_means_no_known_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    shm = observe_environment().memory_resources[1]
    assert (shm.kind.value, shm.kind.status) == (None, "unavailable")
    assert "not implemented" in str(shm.kind.detail)


def test_psutil_that_fails_leaves_capacity_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    def refuse() -> None:
        raise RuntimeError("no /proc/meminfo here")

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    ram = observe_environment().memory_resources[0]
    assert (ram.capacity_bytes.status, ram.available_bytes.status) == ("unavailable", "unavailable")
    assert "no /proc/meminfo" in str(ram.capacity_bytes.detail)


class _Cuda:
    """As much of torch.cuda as the discovery asks, for a machine of two devices of which one fails."""

    class _Properties:
        name = "Accelerator"
        uuid = "1fc28f83-1d45-926e-54d0-ba1e835ef099"

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def get_device_properties(self, index: int) -> Any:
        if index == 1:
            raise RuntimeError("CUDA error: device is lost\nmore text")
        return self._Properties()

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 600, 1000


def test_devices_are_what_the_runtime_shows_and_a_lost_one_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", _Cuda())
    found = observe_environment()
    units = {unit.key: unit for unit in found.compute_units}
    resources = {resource.key: resource for resource in found.memory_resources}
    assert units["cuda:0"].kind.value == "cuda-gpu"
    assert units["cuda:0"].device_uuid.value == "GPU-1fc28f83-1d45-926e-54d0-ba1e835ef099"
    assert units["cuda:0"].memory_resources == ["cuda:0.vram"]
    assert resources["cuda:0.vram"].kind.value == "accelerator-vram"
    assert (resources["cuda:0.vram"].capacity_bytes.value, resources["cuda:0.vram"].available_bytes.value) == (
        1000,
        600,
    )
    assert units["cuda:1"].device_uuid.status == "unavailable"
    assert units["cuda:1"].device_uuid.detail == "CUDA error: device is lost"
    assert resources["cuda:1.vram"].capacity_bytes.status == "unavailable"


def test_private_withholds_what_is_not_judged() -> None:
    open_, private = observe_environment(), observe_environment(private=True)
    assert private.facts["kernel"].status == "unavailable"
    assert private.compute_units[0].name.status == "unavailable"
    assert private.memory_resources[0].capacity_bytes.value == open_.memory_resources[0].capacity_bytes.value


# --- the process --------------------------------------------------------------------------------------------------


def test_process_facts_are_this_process() -> None:
    facts = process_facts(argv=["tally", "realize", "plan.json"])
    assert facts["pid"].value == os.getpid()
    assert facts["argv"].value == "tally realize plan.json"
    assert facts["user"].known
    assert facts["hostname"].known


def test_private_facts_are_withheld_at_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise AssertionError("it was read although it is withheld")

    monkeypatch.setattr(software.getpass, "getuser", refuse)
    monkeypatch.setattr(software.socket, "gethostname", refuse)
    facts = process_facts(private=True)
    assert list(facts) == ["argv", "user", "hostname", "pid"]
    assert {(fact.value, fact.status) for fact in facts.values()} == {(None, "unavailable")}
    assert all("private" in str(fact.detail) for fact in facts.values())


def test_a_user_without_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(software.getpass, "getuser", refuse)
    assert "12345" in str(process_facts()["user"].detail)


def test_arguments_that_are_no_text_can_be_recorded() -> None:
    from ledger import canonical

    argv = process_facts(argv=["tally", os.fsdecode(b"\xff.json")])["argv"]
    assert "tally" in canonical.encode({"argv": argv.value})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--token", "abc", "x"], ["--token", "***", "x"]),
        (["--hf-token=abc"], ["--hf-token=***"]),
        (["--password", "--odd-one", "x"], ["--password", "***", "x"]),
        (["keygen", "--no-passphrase", "-o", "NAME.pem"], ["keygen", "--no-passphrase", "-o", "NAME.pem"]),
        (["--api-key", "k", "--key", "NAME.pem"], ["--api-key", "***", "--key", "NAME.pem"]),
        (["postgresql+psycopg://me:pw@db/x"], ["postgresql+psycopg://me:***@db/x"]),
        (["postgresql://db/x?user=me&password=pw"], ["postgresql://db/x?user=me&password=***"]),
        (["--label", "access_key=AB"], ["--label", "access_key=***"]),
        (["--ledger=postgresql://me:pw@db/x"], ["--ledger=postgresql://me:***@db/x"]),
        (["HF_TOKEN=abc"], ["HF_TOKEN=***"]),
        (["note hf_abcdefghijklmnop"], ["note ***"]),
        (["--label", "author=ann", "--passes", "3"], ["--label", "author=ann", "--passes", "3"]),
        (["realize", "plan.json", "--tokens", "1,2,3"], ["realize", "plan.json", "--tokens", "1,2,3"]),
        (["reference", "--tokens=1,2"], ["reference", "--tokens=1,2"]),
    ],
)
def test_secrets_in_arguments_are_masked_and_the_rest_is_kept(given: list[str], expected: list[str]) -> None:
    assert mask(given) == expected


# --- the software -------------------------------------------------------------------------------------------------


def test_the_software_is_named_by_version_commit_and_digest() -> None:
    found = software_identity()
    assert isinstance(found, SoftwareIdentity)
    assert found.versions["python"] == sys.version.split()[0]
    assert found.versions["torch"] == torch.__version__
    assert str(found.files_digest.value).startswith("sha256:")
    assert found.source_commit.known or found.source_commit.detail


def test_the_digest_is_over_every_installed_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in software.PACKAGES:
        (tmp_path / package / "__pycache__").mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text(package)
        (tmp_path / package / "__pycache__" / "x.pyc").write_text("compiled")
    monkeypatch.setattr(software, "_package_folder", lambda package: tmp_path / package)
    lines = "".join(
        f"{hashlib.sha256(package.encode()).hexdigest()}  {package}/__init__.py\n"
        for package in sorted(software.PACKAGES)
    )
    assert software.installed_digest().value == "sha256:" + hashlib.sha256(lines.encode()).hexdigest()
    (tmp_path / "ledger" / "more.py").write_text("")
    assert software.installed_digest().value != "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def test_a_package_that_is_missing_makes_the_digest_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "PACKAGES", ("ledger", "no_such_package"))
    found = software.installed_digest()
    assert found.status == "unavailable"
    assert "no_such_package" in str(found.detail)


def _checkout(folder: Path) -> None:
    (folder / "ledger").mkdir(parents=True)
    (folder / "ledger" / "__init__.py").write_text("")
    environment_ = {"GIT_CONFIG_GLOBAL": "/dev/null", "PATH": os.environ["PATH"], "HOME": str(folder)}
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "ledger"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, env=environment_)


def test_commit_and_changes_of_a_checkout(tmp_path: Path) -> None:
    _checkout(tmp_path)
    commit, dirty = software.source_state(tmp_path)
    head = subprocess.run(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert (commit.value, dirty.value) == (head.stdout.strip(), 0)
    (tmp_path / "elsewhere.txt").write_text("not ours")
    assert software.source_state(tmp_path)[1].value == 0
    (tmp_path / "ledger" / "new.py").write_text("")
    assert software.source_state(tmp_path)[1].value == 1


def test_a_folder_inside_somebody_elses_checkout_is_not_one(tmp_path: Path) -> None:
    _checkout(tmp_path)
    inner = tmp_path / "site-packages"
    inner.mkdir()
    commit, dirty = software.source_state(inner)
    assert (commit.status, dirty.status) == ("unavailable", "unavailable")
    assert "not the top" in str(commit.detail)


def test_without_git_or_a_checkout_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not a git repository" in str(software.source_state(tmp_path)[0].detail)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cannot be run" in str(software.source_state(tmp_path)[0].detail)


def test_the_commit_that_the_installer_recorded_stands_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            return '{"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}'

    monkeypatch.setattr(software, "_package_folder", lambda package: tmp_path / package)
    monkeypatch.setattr(software.metadata, "distribution", lambda name: Installed())
    commit, dirty = software.source_state()
    assert (commit.value, dirty.status) == ("abc123", "unavailable")


def test_what_others_call_is_offered_here() -> None:
    for name in ("observe_environment", "software_identity", "process_facts", "adapter_identity"):
        assert callable(getattr(environment, name))
    assert shlex.split(str(process_facts(argv=["a b", "c"])["argv"].value)) == ["a b", "c"]
