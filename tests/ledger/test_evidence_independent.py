"""Evidence checked by other people's code: securesystemslib, pymerkle, and a script that knows only the documentation."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pymerkle
import pytest
from pymerkle.core import _inclusion_path_layout
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from ledger import keys
from ledger.checkpoints import format_checkpoint
from ledger.evidence import open_evidence
from ledger.evidence_checks import sealed_events
from tests.builders.evidence import file_of, statement_of
from tests.builders.judged import KEY, OTHER_KEY
from tests.zoo import evidence

SCRIPT = Path(__file__).parents[2] / "docs" / "verify_evidence.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> evidence.Files:
    return evidence.files(tmp_path_factory.mktemp("independent"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_evidence", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- securesystemslib ---------------------------------------------------------------------------------------------


def test_securesystemslib_opens_the_envelope_and_finds_the_signature(files: evidence.Files) -> None:
    envelope = Envelope.from_dict(json.loads(files.good))
    key = SSlibKey.from_crypto(KEY.public_key())
    assert envelope.verify([key], 1) == {key.keyid: key}
    assert json.loads(envelope.payload)["predicate"]["runId"] == open_evidence(files.good).run_id
    with pytest.raises(VerificationError):
        Envelope.from_dict(json.loads(files.good)).verify([SSlibKey.from_crypto(OTHER_KEY.public_key())], 1)


def test_our_file_is_what_securesystemslib_would_have_written(files: evidence.Files) -> None:
    assert Envelope.from_dict(json.loads(files.good)).to_dict() == json.loads(files.good)


# --- pymerkle -----------------------------------------------------------------------------------------------------


def test_pymerkle_verifies_every_inclusion_proof(files: evidence.Files) -> None:
    opened = open_evidence(files.good)
    size, root = opened.checkpoint.size, opened.checkpoint.root
    checked = 0
    for sealed, place in sealed_events(opened):
        leaf = bytes.fromhex(place.hash)
        path = [leaf, *(bytes.fromhex(node) for node in sealed.inclusion)]
        rule, _ = _inclusion_path_layout(place.position + 1, size)
        proof = pymerkle.InclusionProof("sha256", True, size, place.position + 1, rule, path)
        pymerkle.verify_inclusion(leaf, root, proof, index=place.position + 1, size=size)
        if len(path) > 1:
            path[-1] = bytes(32)
            broken = pymerkle.InclusionProof("sha256", True, size, place.position + 1, rule, path)
            with pytest.raises(pymerkle.InvalidProof):
                pymerkle.verify_inclusion(leaf, root, broken, index=place.position + 1, size=size)
        checked += 1
    assert checked == len(opened.recorded) + 4, "the run, the freezing, and the witness's three"


# --- the standalone script ----------------------------------------------------------------------------------------


def test_the_script_agrees_that_the_good_file_holds(files: evidence.Files, tmp_path: Path) -> None:
    checkpoint = open_evidence(files.good).checkpoint
    pin = tmp_path / "ledger.pin"
    pin.write_text(format_checkpoint(checkpoint.origin, checkpoint.size, checkpoint.root))
    (tmp_path / "e.json").write_bytes(files.good)
    (tmp_path / "k.pub").write_bytes(keys.public_pem(KEY.public_key()))
    command = [
        sys.executable,
        "-I",
        str(SCRIPT),
        str(tmp_path / "e.json"),
        "--key",
        str(tmp_path / "k.pub"),
        "--pin",
        str(pin),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "signature: verified" in done.stdout
    assert "PASS (observed)" in done.stdout
    (tmp_path / "e.json").write_bytes(files.good[:-1])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("BROKEN: ")


def test_the_script_uses_nothing_of_ours() -> None:
    text = SCRIPT.read_text()
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"cryptography"}


SUBTLE = {
    "unknown-type", "newer-type-version", "body-of-wrong-form", "blanks-in-an-envelope", "prior-run-after",
    "prior-run-twice", "verdict-edited", "assurance-edited", "environment-dropped", "scope-edited", "unknown-field",
    "field-dropped", "blob-twice", "blob-nobody-asked-for", "subject-added", "witness-twice", "plan-is-none",
}  # fmt: skip
"""What the script leaves to the program: event types and bodies, canonical envelopes, the form of every field, judging."""


def test_the_script_refuses_what_we_refuse(files: evidence.Files, script: ModuleType) -> None:
    refused = 0
    for name, (forge, _) in evidence.HELD.items():
        data = forge(files)
        try:
            script.verify(data, KEY.public_key())
        except (script.Broken, KeyError, IndexError, TypeError, ValueError):
            refused += 1
        else:
            assert name in SUBTLE, name
    assert refused >= len(evidence.HELD) - len(SUBTLE)
    for name, forge_form in evidence.FORM.items():
        if not name.startswith("statement-"):
            with pytest.raises((script.Broken, ValueError, TypeError, RecursionError)):
                script.verify(forge_form(files.good), KEY.public_key())


def test_the_script_holds_to_key_and_pin(files: evidence.Files, script: ModuleType) -> None:
    checkpoint = open_evidence(files.good).checkpoint
    pin = format_checkpoint(checkpoint.origin, checkpoint.size, checkpoint.root)
    assert script.verify(files.good, KEY.public_key(), pin) == statement_of(files.good)
    for says, other in (
        ("another ledger", format_checkpoint("another", checkpoint.size, checkpoint.root)),
        (f"of {checkpoint.size + 1} events", format_checkpoint(checkpoint.origin, checkpoint.size + 1, bytes(32))),
        ("another root", format_checkpoint(checkpoint.origin, checkpoint.size, bytes(32))),
    ):
        with pytest.raises(script.Broken, match=says):
            script.verify(files.good, None, other)
    with pytest.raises(script.Broken, match="another key"):
        script.verify(files.good, OTHER_KEY.public_key())
    with pytest.raises(script.Broken, match="not signed"):
        script.verify(file_of(statement_of(files.good)), KEY.public_key())
    with pytest.raises(script.Broken, match="the pin"):
        script.verify(files.good, None, format_checkpoint(checkpoint.origin, checkpoint.size, bytes(32)))
