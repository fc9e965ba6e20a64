"""`keygen`, `export`, `verify FILE`, `evidence show` and `import`: a run out of the ledger, and into another."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import stat
import threading
from pathlib import Path

import pytest

from ledger.plan import Plan
from tests.builders.runs import small_plan
from tests.cli.conftest import Ran, Tally
from tests.cli.seeding import FIRST, OTHER, SECOND
from tests.cli.test_weights import listing


@pytest.fixture
def key(tally: Tally, tmp_path: Path) -> Path:
    assert tally("keygen", "-o", "test.pem", "--no-passphrase").code == 0
    return tmp_path / "test.pem"


@pytest.fixture
def evidence(tally: Tally, ledger: Path, key: Path, tmp_path: Path) -> Path:
    """The signed evidence of the second run."""
    ran = tally("export", SECOND, "--key", key, "-o", "evidence.json")
    assert ran.code == 0, ran.err
    return tmp_path / "evidence.json"


# --- keys ---------------------------------------------------------------------------------------------------------


def test_keygen_writes_a_private_and_a_public_key(tally: Tally, tmp_path: Path) -> None:
    ran = tally("keygen", "-o", "k.pem", "--no-passphrase", "--json")
    assert ran.code == 0
    assert ran.json["file"] == "k.pub"
    assert stat.S_IMODE((tmp_path / "k.pem").stat().st_mode) == 0o600
    assert b"PUBLIC KEY" in (tmp_path / "k.pub").read_bytes()
    again = tally("keygen", "-o", "k.pem", "--no-passphrase")
    assert again.code == 1
    assert "never overwritten" in again.error_line


def test_keygen_wants_a_passphrase_and_asks_nobody_without_a_terminal(
    tally: Tally, ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tally("keygen", "-o", "k.pem")
    assert ran.code == 1
    assert "TALLY_PASSPHRASE" in ran.error_line
    assert not (tmp_path / "k.pem").exists()
    monkeypatch.setenv("TALLY_PASSPHRASE", "correct horse")
    assert tally("keygen", "-o", "k.pem").code == 0
    assert b"ENCRYPTED" in (tmp_path / "k.pem").read_bytes()
    assert tally("export", FIRST, "--key", "k.pem", "-o", "e.json").code == 0
    monkeypatch.setenv("TALLY_PASSPHRASE", "wrong")
    assert tally("export", FIRST, "--key", "k.pem", "-o", "e.json").code == 1
    monkeypatch.delenv("TALLY_PASSPHRASE")
    assert tally("export", FIRST, "--key", "k.pem", "-o", "e.json").code == 1
    assert tally("keygen", "-o", "name-without-suffix", "--no-passphrase").code == 2


# --- export and verify --------------------------------------------------------------------------------------------


def test_evidence_is_valid_with_its_key_and_not_authenticated_without(
    tally: Tally, evidence: Path, tmp_path: Path
) -> None:
    ran = tally("verify", evidence, "--key", "test.pub", "--json")
    assert (ran.code, ran.json["status"], ran.json["verdict"]) == (0, "valid", "PASS")
    assert set(ran.json["checks"].values()) == {"ok", "not-checked"}
    ran = tally("verify", evidence)
    assert ran.code == 0
    assert ran.out.startswith("NOT AUTHENTICATED")
    assert tally("verify", evidence, "--json").json["status"] == "valid-unanchored"
    assert tally("keygen", "-o", "other.pem", "--no-passphrase").code == 0
    assert tally("verify", evidence, "--key", "other.pub").code == 4
    assert "NOT AUTHENTICATED" not in tally("verify", evidence, "--key", "other.pub").out
    (tmp_path / "cut.json").write_bytes(evidence.read_bytes()[:-1])
    ran = tally("verify", "cut.json", "--key", "test.pub")
    assert (ran.code, "its signature was not checked" in ran.out, "no --key" in ran.out) == (4, True, False)


def test_verifying_evidence_uses_a_ledger_only_when_told(tally: Tally, evidence: Path, ledger: Path) -> None:
    ledger.rename(ledger.with_suffix(".away"))
    document = tally("verify", evidence, "--json").json
    assert "unchecked" in document["completeness"]
    ran = tally("verify", evidence, "--ledger", ledger.with_suffix(".away"), "--json")
    assert ran.code == 0, ran.err
    assert ran.json["completeness"].startswith("complete:")
    assert not ledger.exists()


def test_unsigned_evidence_is_a_warning_and_broken_under_a_key(tally: Tally, ledger: Path, key: Path) -> None:
    ran = tally("export", FIRST, "-o", "unsigned.json")
    assert ran.code == 0
    assert "not signed" in ran.err
    assert tally("verify", "unsigned.json").code == 0
    assert tally("verify", "unsigned.json", "--key", "test.pub").code == 4


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", 4), (b"{}", 4), (b"not json", 4), (b'{"payloadType": 1}', 4), (b"\xff" * 40, 4)],
)
def test_malformed_evidence_is_broken_and_exits_4(tally: Tally, tmp_path: Path, content: bytes, code: int) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    ran = tally("verify", "bad.json", "--json")
    assert ran.code == code
    assert ran.json["problems"][0]["code"] == "format"
    for arguments in (("show",), ("replay",), ("reconcile",), ("evidence", "show")):
        ran = tally(*arguments, "./bad.json")
        assert (ran.code, ran.out) == (4, "")
        assert ran.error_line


def test_one_changed_byte_is_found(tally: Tally, evidence: Path) -> None:
    data = bytearray(evidence.read_bytes())
    data[len(data) // 2] ^= 1
    evidence.write_bytes(bytes(data))
    ran = tally("verify", evidence, "--key", "test.pub")
    assert (ran.code, "get it anew from whoever made it" in ran.out) == (4, True)


def test_a_missing_file_is_one_line_and_exit_1(tally: Tally) -> None:
    ran = tally("verify", "absent.json")
    assert ran.code == 1
    assert "absent.json" in ran.error_line


def test_an_unmet_requirement_is_listed_and_exits_3(tally: Tally, evidence: Path, tmp_path: Path) -> None:
    ran = tally("verify", evidence, "--require", "frozen,signature,assurance=content-verified", "--json")
    assert ran.code == 3
    assert {line.split(":")[0] for line in ran.json["unmet"]} == {"signature", "assurance"}
    assert tally("verify", evidence, "--require", "frozen,signature", "--key", "test.pub").code == 0
    assert tally("verify", evidence, "--challenge", "nonce").code == 3
    ran = tally("verify", evidence, "--require", "nonsense")
    assert ran.code == 2
    assert "nonsense" in ran.err
    assert "first-run" in ran.err
    policy = tmp_path / "tally-policy.toml"
    policy.write_text('format = "tally.policy/1"\nrequire = ["signature", "frozen"]\nkey = "test.pub"\n')
    assert tally("verify", evidence, "--policy", policy).code == 0
    policy.write_text('format = "tally.policy/1"\nrequire = ["signature", "first-run"]\nkey = "test.pub"\n')
    assert tally("verify", evidence, "--policy", policy).code == 3


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_a_gate_that_demands_nothing_is_a_mistake(tally: Tally, evidence: Path, text: str, tmp_path: Path) -> None:
    ran = tally("verify", evidence, "--require", text)
    assert (ran.code, ran.out) == (2, "")
    assert "demands nothing" in ran.err
    policy = tmp_path / "tally-policy.toml"
    policy.write_text('format = "tally.policy/1"\nrequire = []\n')
    ran = tally("verify", evidence, "--policy", policy)
    assert (ran.code, ran.out) == (1, "")
    assert "demands nothing" in ran.error_line


def test_an_option_only_tightens_a_policy(tally: Tally, evidence: Path, ledger: Path, tmp_path: Path) -> None:
    assert tally("keygen", "--no-passphrase", "-o", "other.pem").code == 0
    for name in ("ledger.pin", "same.pin"):
        assert tally("pin", "-o", name).code == 0
    size = (tmp_path / "ledger.pin").read_text().split("\n")
    (tmp_path / "other.pin").write_text(f"{size[0]}\n1\n{size[2]}\n")
    shutil.copy(tmp_path / "test.pub", tmp_path / "again.pub")
    policy = tmp_path / "tally-policy.toml"
    digest = (
        tally("verify", evidence, "--require", f"plan=sha256:{'0' * 64}", "--json")
        .json["unmet"][0]
        .split()[5]
        .rstrip(",")
    )
    assert digest.startswith("sha256:")

    def under(demands: str, *options: object) -> Ran:
        policy.write_text(f'format = "tally.policy/1"\n{demands}\n')
        return tally("verify", evidence, "--policy", policy, *options)

    assert under('key = "test.pub"', "--key", "again.pub").code == 0, "the same key under another name"
    assert under('pin = "ledger.pin"', "--pin", "same.pin", "--ledger", ledger).code == 0
    for demands, options in (
        ('key = "test.pub"', ("--key", "other.pub")),
        ('pin = "ledger.pin"', ("--pin", "other.pin")),
        ('challenge = "one"', ("--challenge", "two")),
    ):
        ran = under(demands, *options)
        assert (ran.code, ran.out) == (2, "")
        assert str(options[1]) in ran.err
        assert demands.split('"')[1] in ran.err
    wrong = f"sha256:{'0' * 64}"
    assert under(f'require = ["plan={digest}"]', "--require", f"plan={digest},plan={wrong}").code == 0
    assert under(f'require = ["plan={wrong}"]', "--require", f"plan={digest}").code == 3


def test_a_run_that_did_not_pass_verifies_as_such_and_exits_3(tally: Tally, ledger: Path) -> None:
    assert tally("export", OTHER, "-o", "other.json").code == 0
    ran = tally("verify", "other.json", "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "INDETERMINATE")


def test_broken_outranks_a_verdict_that_is_not_pass(tally: Tally, ledger: Path, key: Path) -> None:
    assert tally("export", OTHER, "-o", "other.json").code == 0
    assert tally("verify", "other.json", "--key", "test.pub").code == 4


# --- looking into it ----------------------------------------------------------------------------------------------


def test_evidence_show_says_what_is_stated_and_checks_nothing(
    tally: Tally, evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = tally("evidence", "show", evidence)
    assert re.search(r"^let pass +67108864 bytes of host memory unexplained", ran.out, re.MULTILINE)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "PASS" in ran.out
    assert "DOES NOT PROVE" in ran.out
    scope = ran.out[ran.out.index("SHOWS") :].splitlines()
    assert all(line.startswith(("- ", "  ")) for line in scope if line and not line.isupper())
    document = tally("evidence", "show", evidence, "--json").json
    assert (document["run_id"], document["attempts_before"], document["frozen_at"]) == (SECOND, 1, 0)
    statement = json.loads(tally("evidence", "show", evidence, "--statement").out)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"


def test_runs_are_read_from_evidence_without_a_ledger(tally: Tally, evidence: Path, ledger: Path) -> None:
    expected = {name: tally(name, SECOND, "--json").json for name in ("show", "reconcile", "replay")}
    log = tally("log", SECOND, "--json").out
    ledger.unlink()
    for name, document in expected.items():
        assert tally(name, evidence, "--json").json == document
    assert tally("log", evidence, "--json").out == log
    ran = tally("compare", evidence, evidence, "--json")
    assert (ran.code, ran.json["same"]) == (0, True)


def test_evidence_is_imported_without_changing_its_bytes(tally: Tally, evidence: Path, ledger: Path) -> None:
    ran = tally("import", evidence, "--ledger", "other.db", "--json")
    assert (ran.code, ran.json["run_id"], ran.json["verdict"]) == (0, SECOND, "PASS")
    assert tally("log", SECOND, "--ledger", "other.db", "--json").out == tally("log", SECOND, "--json").out
    again = tally("import", evidence, "--ledger", "other.db")
    assert again.code == 0
    assert "already" in again.err
    assert tally("import", evidence, "--plan", "plan.json").code == 2


def test_broken_evidence_is_not_imported(tally: Tally, evidence: Path, tmp_path: Path) -> None:
    envelope = json.loads(evidence.read_bytes())
    payload = base64.b64decode(envelope["payload"]).replace(b"example/small", b"example/other")
    altered = {**envelope, "payload": base64.b64encode(payload).decode("ascii")}
    evidence.write_text(json.dumps(altered, separators=(",", ":")) + "\n")
    ran = tally("import", evidence, "--ledger", "other.db")
    assert ran.code == 4
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize("content", [b"not json", b"[]", b'{"schema": "other"}'])
def test_importing_what_is_neither_result_nor_evidence_is_one_line(
    tally: Tally, tmp_path: Path, plan_file: Path, content: bytes
) -> None:
    (tmp_path / "file.json").write_bytes(content)
    ran = tally("import", "file.json", "--plan", plan_file)
    assert ran.code == 1
    assert ran.error_line
    assert not (tmp_path / "tally.db").exists()


def test_a_result_needs_its_plan(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text("{}")
    ran = tally("import", "file.json")
    assert ran.code == 2
    assert "--plan" in ran.err


def test_evidence_can_come_through_a_pipe_with_a_name(tally: Tally, evidence: Path) -> None:
    """As `verify <(...)` gives it: what was read of it once is gone."""
    reading, writing = os.pipe()

    def feed() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(evidence.read_bytes())

    feeder = threading.Thread(target=feed)
    feeder.start()
    ran = tally("verify", f"/dev/fd/{reading}", "--json")
    feeder.join()
    os.close(reading)
    assert (ran.code, ran.json["status"]) == (0, "valid-unanchored"), ran


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (b"not json", "`tally export`"),
        (b"{}\n", "`tally export`"),
        (small_plan().data, "`tally plan check`"),
        (b"-----BEGIN PUBLIC KEY-----\n", "--key"),
        ("tally/x\n1\nroot\n\n\u2014 tally/x c2ln\n".encode(), "--pin"),
    ],
    ids=["nothing", "text", "an object", "a plan", "a key", "a pin"],
)
def test_a_file_that_is_no_evidence_is_called_so(tally: Tally, tmp_path: Path, data: bytes, said: str) -> None:
    """The document and the exit code are those of broken evidence: a script sees no difference."""
    (tmp_path / "file").write_bytes(data)
    ran = tally("verify", "file")
    assert ran.code == 4
    assert ran.out.splitlines()[0] == "NOT AN EVIDENCE FILE  file"
    assert said in ran.out.splitlines()[-1]
    assert tally("verify", "-", stdin=data).out.startswith("NOT AN EVIDENCE FILE  -")
    document = tally("verify", "file", "--json").json
    assert (document["status"], document["problems"][0]["code"]) == ("broken", "format")


def test_one_earlier_run_is_one(tally: Tally, ledger: Path) -> None:
    assert tally("export", SECOND, "-o", "evidence.json").code == 0
    ran = tally("verify", "evidence.json", "--require", "first-run")
    assert ran.code == 3
    assert "1 earlier run of this model is listed" in ran.out


def test_documents_that_a_file_leaves_out_are_told_when_it_is_made_and_when_it_is_imported(
    tally: Tally, tmp_path: Path, plan: Plan
) -> None:
    listing(tmp_path / "tally.db", plan, b"[]")
    ran = tally("export", FIRST, "-o", "named.json")
    assert "1 document is named by digest only; --attach" in ran.err
    ran = tally("export", FIRST, "-o", "attached.json", "--attach", "--json")
    assert (ran.json["facts"]["documents_left_out"], "by digest only" in ran.err) == (0, False)

    ran = tally("import", "named.json", "--ledger", "other.db")
    assert "1 document is named by digest only and not in this ledger" in ran.err
    assert tally("verify", "other.db", "--json").json["problems"][0]["code"] == "blob-missing"
    ran = tally("import", "attached.json", "--ledger", "other.db")
    assert "by digest only" not in ran.err
    assert tally("verify", "other.db").code == 0
    assert "by digest only" not in tally("import", "named.json", "--ledger", "other.db").err, "the ledger has it now"
