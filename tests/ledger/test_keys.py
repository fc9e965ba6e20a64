"""Key files: what is written, with which mode, and what is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import SSlibKey

from ledger import keys
from ledger.keys import KeyProblem, PassphraseNeeded


def test_a_generated_pair_signs_and_verifies(tmp_path: Path) -> None:
    public_path = keys.generate(tmp_path / "lab.pem", "correct horse")
    assert public_path == tmp_path / "lab.pub"
    assert stat.S_IMODE((tmp_path / "lab.pem").stat().st_mode) == 0o600
    private = keys.load_private(tmp_path / "lab.pem", "correct horse")
    keys.load_public(public_path).verify(private.sign(b"x"), b"x")
    assert b"ENCRYPTED PRIVATE KEY" in (tmp_path / "lab.pem").read_bytes()
    with pytest.raises(PassphraseNeeded, match="encrypted"):
        keys.load_private(tmp_path / "lab.pem")
    with pytest.raises(KeyProblem, match="wrong passphrase"):
        keys.load_private(tmp_path / "lab.pem", "wrong")


def test_without_a_passphrase_one_given_is_ignored(tmp_path: Path) -> None:
    keys.generate(tmp_path / "plain.pem", None)
    assert b"ENCRYPTED" not in (tmp_path / "plain.pem").read_bytes()
    first = keys.load_private(tmp_path / "plain.pem")
    second = keys.load_private(tmp_path / "plain.pem", "not needed")
    assert first.private_bytes_raw() == second.private_bytes_raw()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.pub").write_text("mine")
    with pytest.raises(KeyProblem, match="never overwritten"):
        keys.generate(tmp_path / "a.pem", None)
    assert not (tmp_path / "a.pem").exists()
    keys.generate(tmp_path / "b.pem", None)
    with pytest.raises(KeyProblem, match="never overwritten"):
        keys.generate(tmp_path / "b.pem", None)
    with pytest.raises(KeyProblem, match=r"\.pem"):
        keys.generate(tmp_path / "key", None)
    with pytest.raises(KeyProblem, match="empty"):
        keys.generate(tmp_path / "c.pem", "")
    with pytest.raises(KeyProblem, match="cannot be written"):
        keys.generate(tmp_path / "absent" / "d.pem", None)


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    keys.generate(tmp_path / "k.pem", None)
    other = generate_private_key(SECP256R1())
    (tmp_path / "ec.pem").write_bytes(
        other.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "ec.pub").write_bytes(
        other.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "text").write_text("no key")
    (tmp_path / "long").write_bytes(b"PRIVATE KEY" + b"x" * keys.MAX_KEY_BYTES)
    (tmp_path / "cut.pem").write_bytes((tmp_path / "k.pem").read_bytes()[:60])
    for name, message in [
        ("k.pub", "no private key"),
        ("ec.pem", "not Ed25519"),
        ("absent", "cannot be read"),
        ("long", "longer than any key"),
        ("cut.pem", "damaged"),
    ]:
        with pytest.raises(KeyProblem, match=message):
            keys.load_private(tmp_path / name)
    for name, message in [("k.pem", "holds a private key"), ("ec.pub", "not Ed25519"), ("text", "no public key")]:
        with pytest.raises(KeyProblem, match=message):
            keys.load_public(tmp_path / name)


def test_the_key_id_is_the_one_securesystemslib_computes() -> None:
    public = Ed25519PrivateKey.from_private_bytes(b"7" * 32).public_key()
    assert keys.key_id(public) == SSlibKey.from_crypto(public).keyid


def test_a_named_pipe_is_no_key_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lab.pem")
    for load in (keys.load_private, keys.load_public):
        with pytest.raises(KeyProblem, match="named pipe"):
            load(tmp_path / "lab.pem")
    reading, writing = os.pipe()
    try:
        os.write(writing, keys.public_pem(Ed25519PrivateKey.generate().public_key()))
        os.close(writing)
        assert keys.load_public(Path(f"/dev/fd/{reading}"))
    finally:
        os.close(reading)
