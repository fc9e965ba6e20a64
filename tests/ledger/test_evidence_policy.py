"""Requirements and policy files: what is read, joined and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.evidence import PolicyError, Requirements, read_policy
from ledger.evidence_policy import NAMES, known

DIGEST = "sha256:" + "a" * 64


def test_a_list_of_requirements() -> None:
    parsed = Requirements.parse(f"signature, pin,frozen,assurance=observed,plan={DIGEST}")
    assert parsed == Requirements(frozenset({"signature", "pin", "frozen"}), "observed", (DIGEST,))
    assert Requirements.parse("") == Requirements()
    assert Requirements.parse(",".join(NAMES)).names == NAMES.keys()


def test_of_two_levels_the_stronger_stands() -> None:
    for text in ("assurance=observed,assurance=content-verified", "assurance=content-verified,assurance=declared"):
        assert Requirements.parse(text).assurance == "content-verified"
    joined = Requirements.parse("pin,assurance=observed") | Requirements.parse(f"signature,plan={DIGEST}")
    assert joined == Requirements(frozenset({"pin", "signature"}), "observed", (DIGEST,))
    assert (Requirements() | Requirements()) == Requirements()
    assert (joined | Requirements.parse("assurance=declared")).assurance == "observed"


@pytest.mark.parametrize(
    "text",
    [
        "signatures",
        "Signature",
        "signature=yes",
        "assurance",
        "assurance=",
        "assurance=best",
        "plan=abc",
        "plan",
        "pin frozen",
    ],
)
def test_what_is_no_requirement_is_named_with_those_there_are(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Requirements.parse(f"frozen,{text}")
    assert repr(text) in caught.value.message
    for item in known():
        assert item in (caught.value.hint or "")


def test_a_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "tally-policy.toml"
    path.write_text(
        'format = "tally.policy/1"\n'
        'require = ["signature", "frozen", "assurance=content-verified"]\n'
        'key = "release.pub"\n'
        'pin = "/etc/ledger.pin"\n'
        'challenge = "nonce"\n'
    )
    policy = read_policy(path)
    assert policy.require == Requirements.parse("signature,frozen,assurance=content-verified")
    assert (policy.key, policy.pin, policy.challenge) == (tmp_path / "release.pub", Path("/etc/ledger.pin"), "nonce")
    path.write_text('format = "tally.policy/1"\n')
    assert read_policy(path).require == Requirements()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "format None"),
        ('format = "tally.policy/2"', "tally.policy/2"),
        ("format = ", "not TOML"),
        ('format = "tally.policy/1"\nrequires = ["pin"]', "unknown keys: requires"),
        ('format = "tally.policy/1"\nrequire = "pin"', "list of strings"),
        ('format = "tally.policy/1"\nrequire = [1]', "list of strings"),
        ('format = "tally.policy/1"\nrequire = ["pins"]', "'pins'"),
        ('format = "tally.policy/1"\nkey = 1', "`key`"),
        ('format = "tally.policy/1"\npin = "\\u0000"', "`pin`"),
        ("require = " + "[" * 5_000, "not TOML"),
        ("require = " + "{a = " * 5_000, "not TOML"),
        ("require = " + "9" * 5_000, "not TOML"),
        ("#" * (1024 * 1024 + 1), "longer than"),
    ],
)
def test_a_policy_that_cannot_be_read_as_meant_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=message):
        read_policy(path)


def test_an_absent_or_garbled_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        read_policy(tmp_path / "absent.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="not TOML"):
        read_policy(tmp_path / "bytes.toml")


def test_the_documentation_lists_every_requirement() -> None:
    text = (Path(__file__).parents[2] / "docs" / "trust.md").read_text(encoding="utf-8")
    for name, demand in NAMES.items():
        assert f"| `{name}` | {demand} |" in text
    assert "| `assurance=LEVEL` |" in text
    assert "| `plan=sha256:...` |" in text
