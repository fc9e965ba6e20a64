"""The wheel at work outside the checkout: an auditor's without torch, a realizer's with it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.builders.old_ledgers import migrated
from tests.packaging.conftest import ROOT, Installed

OLDER = ROOT / "tests/goldens/evidence-1.json"
EVIDENCE = [*sorted((ROOT / "docs" / "evidence").glob("*.evidence.json")), OLDER]


def test_the_commands_start_and_find_no_fault(base: Installed) -> None:
    assert base("--version") == f"tally {version('tallystick')}\n"
    found = {line["subject"]: line for line in json.loads(base("doctor", "--json"))["diagnoses"]}
    assert {line["state"] for line in found.values()} <= {"ok", "note"}
    assert found["torch"]["found"] == "not installed"
    assert str(base.prefix) in base.python("import ledger; print(ledger.__file__)")


def test_an_auditor_has_no_torch_and_needs_none(base: Installed) -> None:
    code = "import sys, ledger, realizer, ledger.report, ledger.store\nprint('torch' in sys.modules)\nimport torch"
    with pytest.raises(AssertionError, match="No module named 'torch'"):
        base.python(code)
    with pytest.raises(AssertionError, match=r"No module named 'torch' \(install the extra `realize`: "):
        base("synth", "qwen3_5_moe", "-o", "checkpoint")


@pytest.mark.parametrize("evidence", EVIDENCE, ids=lambda path: path.name)
def test_committed_evidence_verifies(base: Installed, evidence: Path) -> None:
    found = json.loads(base("verify", evidence, "--json"))
    judged = "not-checked" if evidence == OLDER else "ok"  # what an older judge concluded
    assert (found["status"], found["verdict"], found["checks"]["judge"]) == ("valid-unanchored", "PASS", judged)


def test_a_ledger_is_begun_asked_reported_and_verified(base: Installed) -> None:
    base("import", EVIDENCE[-1])
    assert json.loads(base("query", "SELECT count(*) AS n FROM runs", "--json"))[0]["n"] >= 1
    assert json.loads(base("reconcile", "@latest", "--json"))["verdict"] == "PASS"
    base("report", EVIDENCE[-1], "-o", "report.html")
    assert "<svg" in (base.folder / "report.html").read_text()
    assert json.loads(base("verify", "--json"))["status"] in ("valid", "valid-unanchored")


def test_an_older_ledger_is_migrated(base: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    old = base.folder / "old.db"
    migrated(str(old), 1, monkeypatch)
    base("db", "upgrade", "--ledger", old)
    assert json.loads(base("db", "check", "--ledger", old, "--json"))["facts"]["problems"] == []
    assert json.loads(base("query", "SELECT count(*) AS n FROM runs", "--ledger", old, "--json")) == [{"n": 1}]


def test_schemas_of_the_documents_come_with_the_wheel(base: Installed) -> None:
    base.run(base.prefix / "bin/python", "-m", "ledger.schemas", "schemas", "realizer.cli.documents")
    made = {path.name: path.read_text() for path in (base.folder / "schemas").iterdir()}
    assert made == {path.name: path.read_text() for path in (ROOT / "docs" / "schemas").iterdir()}


def test_another_package_of_our_name_is_told(base: Installed, tmp_path: Path) -> None:
    (packages,) = base.prefix.glob("lib/python*/site-packages")
    planted = packages / "adapterhub-1.0.dist-info"
    planted.mkdir()
    try:
        (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: adapterhub\nVersion: 1.0\n")
        (planted / "top_level.txt").write_text("adapters\n")
        (planted / "RECORD").write_text("adapters/__init__.py,,\n")
        with pytest.raises(AssertionError, match="adapterhub installs one of that name too"):
            base("doctor", "--json")
    finally:
        shutil.rmtree(planted)


REALIZE = """
import contextlib, io, json
from realizer.cli.main import run

def tally(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(arguments)
    assert code == 0, (arguments, code, out.getvalue())
    return out.getvalue()

tally("synth", "qwen3_5_moe", "-o", "checkpoint")
tally("plan", "draft", "checkpoint", "--adapter", "qwen3_5_moe", "-o", "draft.json")
tally("reference", "draft.json", "--checkpoint", "checkpoint", "-o", "reference.safetensors")
tally("plan", "freeze", "draft.json", "--reference", "reference.safetensors", "-o", "plan.json")
tally("realize", "plan.json", "--checkpoint", "checkpoint", "--reference", "reference.safetensors")
tally("show", "@latest")
tally("keygen", "-o", "my.pem", "--no-passphrase")
tally("export", "@latest", "--key", "my.pem", "-o", "evidence.json")
print(tally("verify", "evidence.json", "--key", "my.pub", "--json"))
"""


def test_from_synthetic_weights_to_evidence(realizing: Installed) -> None:
    found = json.loads(realizing.python(REALIZE))
    assert (found["status"], found["verdict"]) == ("valid", "PASS")
    with sqlite3.connect(realizing.folder / "tally.db") as ledger:
        assert ledger.execute("SELECT count(*) FROM events WHERE type = 'verdict.recorded'").fetchone() == (1,)
    assert str(realizing.prefix) in realizing.python("import adapters; print(adapters.__file__)")
