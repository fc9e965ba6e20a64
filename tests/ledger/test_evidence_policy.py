"""Requirements and policy files: what is read, joined and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.evidence import PolicyError, Requirements, read_policy
from ledger.evidence_policy import NAMES, known

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def test_a_list_of_requirements() -> None:
    parsed = Requirements.parse(f"signature, pin,frozen,assurance=observed,plan={DIGEST}")
    assert parsed == Requirements(frozenset({"signature", "pin", "frozen"}), "observed", (DIGEST,))
    assert Requirements.parse(",".join(NAMES)).names == NAMES.keys()


def test_of_two_levels_the_stronger_stands() -> None:
    for text in ("assurance=observed,assurance=content-verified", "assurance=content-verified,assurance=declared"):
        assert Requirements.parse(text).assurance == "content-verified"
    joined = Requirements.parse("pin,assurance=observed") | Requirements.parse(f"signature,plan={DIGEST}")
    assert joined == Requirements(frozenset({"pin", "signature"}), "observed", (DIGEST,))
    assert (Requirements() | Requirements()) == Requirements()
    assert (Requirements() | joined) == (joined | Requirements()) == joined
    assert (joined | Requirements.parse("assurance=declared")).assurance == "observed"


def test_of_two_lists_of_plans_those_in_both_remain() -> None:
    both = f"plan={DIGEST},plan={OTHER}"
    assert Requirements.parse(both).plans == (DIGEST, OTHER), "in one list: one or the other"
    assert (Requirements.parse(both) | Requirements.parse(f"plan={OTHER}")).plans == (OTHER,)
    assert (Requirements.parse(f"plan={DIGEST}") | Requirements.parse(both)).plans == (DIGEST,)
    none = Requirements.parse(f"plan={DIGEST}") | Requirements.parse(f"plan={OTHER}")
    assert none.plans == (), "no plan can be both, and that is no reason to take any"
    assert (none | Requirements()).plans == ()


@pytest.mark.parametrize("text", ["", ",", " , ,"])
def test_a_list_that_demands_nothing_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="demands nothing") as caught:
        Requirements.parse(text)
    assert "signature" in (caught.value.hint or "")


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
    path.write_text('format = "tally.policy/1"\nkey = "release.pub"\n')
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
        ("#" * (64 * 1024 + 1), "longer than"),
        ("a." * 30_000 + "a = 1", "more than 64 dots"),
        ('format = "tally.policy/1"\n[' + ".".join("a" * 66) + "]", "more than 64 dots"),
        ('format = "tally.policy/1"', "demands nothing"),
        ('format = "tally.policy/1"\nrequire = []', "demands nothing"),
        ('format = "tally.policy/1"\nrequire = []\nkey = "a.pub"', "demands nothing"),
        ('format = "tally.policy/1"\nkey = ""', "`key`"),
        ('format = "tally.policy/1"\npin = ""', "`pin`"),
        ('format = "tally.policy/1"\nchallenge = ""', "`challenge`"),
    ],
)
def test_a_policy_that_cannot_be_read_as_meant_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=message):
        read_policy(path)


def test_of_very_many_unknown_keys_a_few_are_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('format = "tally.policy/1"\n' + "".join(f"key{number}{'x' * 99} = 1\n" for number in range(500)))
    with pytest.raises(PolicyError, match="and 495 more") as caught:
        read_policy(path)
    assert len(caught.value.message) < 400 + len(str(path))


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
