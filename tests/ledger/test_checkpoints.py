"""Checkpoints and signed notes: the C2SP forms, and what is refused."""

from __future__ import annotations

import base64
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledger import checkpoints
from ledger.checkpoints import Checkpoint, NoteError, NoteForged

ROOT = sha256(b"root").digest()
TEXT = checkpoints.format_checkpoint("origin-1", 42, ROOT)
KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


def test_the_form_is_three_lines_and_reads_back() -> None:
    assert f"origin-1\n42\n{base64.b64encode(ROOT).decode()}\n" == TEXT
    assert checkpoints.parse_checkpoint(TEXT) == Checkpoint("origin-1", 42, ROOT)
    signed = checkpoints.sign_note(TEXT, "origin-1", KEY)
    assert checkpoints.parse_checkpoint(signed) == Checkpoint("origin-1", 42, ROOT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        TEXT.rstrip("\n"),
        TEXT + "extension\n",
        TEXT.replace("42", "042"),
        TEXT.replace("42", "+42"),
        TEXT.replace("42", "٤٢"),
        TEXT.replace("42", str(2**53)),
        TEXT.replace("origin-1", "two words"),
        TEXT.replace("origin-1", ""),
        TEXT.replace("=\n", "\n"),
        TEXT.replace("=\n", "==\n"),
        TEXT + "\n",
        TEXT + "\n— origin-1 !!!!\n",
        TEXT * 5000,
        TEXT.replace("\n", "\r\n"),
    ],
)
def test_any_other_form_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        checkpoints.parse_checkpoint(text)


def test_pad_bits_are_refused() -> None:
    """32 bytes leave two pad bits in the last base64 character: set, they decode alike."""
    root = base64.b64encode(ROOT).decode()
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = root[:-2] + alphabet[alphabet.index(root[-2]) + 1] + "="
    assert base64.b64decode(other) == ROOT
    with pytest.raises(NoteError, match="pad bits"):
        checkpoints.parse_checkpoint(f"origin-1\n42\n{other}\n")


def test_the_published_note_example_verifies() -> None:
    """The example of golang.org/x/mod/sumdb/note, the form that C2SP signed-note describes."""
    public = base64.b64decode("ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    assert public[:1] == checkpoints.ED25519_NOTE
    key = Ed25519PublicKey.from_public_bytes(public[1:])
    assert checkpoints.key_hash("PeterNeumann", key).hex() == "c74f20a3"
    text = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
    signature = "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
    note = f"{text}\n— PeterNeumann {signature}\n"
    assert checkpoints.verify_note(note, "PeterNeumann", key) == text


def test_signing_is_deterministic_and_every_change_is_refused() -> None:
    note = checkpoints.sign_note(TEXT, "origin-1", KEY)
    assert note == checkpoints.sign_note(TEXT, "origin-1", KEY)
    assert checkpoints.verify_note(note, "origin-1", KEY.public_key()) == TEXT
    for index in range(len(note)):
        altered = note[:index] + ("A" if note[index] != "A" else "B") + note[index + 1 :]
        with pytest.raises((NoteError, NoteForged)):
            checkpoints.verify_note(altered, "origin-1", KEY.public_key())


def test_a_foreign_or_missing_signature_is_forged() -> None:
    note = checkpoints.sign_note(TEXT, "origin-1", KEY)
    other = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    with pytest.raises(NoteForged, match="not signed by the given key"):
        checkpoints.verify_note(note, "origin-1", other.public_key())
    with pytest.raises(NoteForged, match="not signed by the given key"):
        checkpoints.verify_note(note, "origin-2", KEY.public_key())
    with pytest.raises(NoteForged, match="no signature"):
        checkpoints.verify_note(TEXT, "origin-1", KEY.public_key())
    both = note + checkpoints.sign_note(TEXT, "cosigner", other).removeprefix(TEXT + "\n")
    assert checkpoints.verify_note(both, "origin-1", KEY.public_key()) == TEXT
    assert checkpoints.verify_note(both, "cosigner", other.public_key()) == TEXT


def test_what_cannot_stand_in_a_note_is_not_signed() -> None:
    with pytest.raises(NoteError, match="non-empty lines"):
        checkpoints.sign_note("a\n\nb\n", "name", KEY)
    with pytest.raises(NoteError, match="key name"):
        checkpoints.sign_note("a\n", "na me", KEY)
    with pytest.raises(NoteError, match="origin"):
        checkpoints.format_checkpoint("a b", 1, ROOT)
    with pytest.raises(NoteError, match="no checkpoint"):
        checkpoints.format_checkpoint("a", -1, ROOT)
