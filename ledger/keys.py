"""Ed25519 signing keys as PEM files: made with a passphrase, read back, and named by a key id.

The key id is the one that securesystemslib computes, so that its verifier finds the signature: hex SHA-256 over
`{"keytype":"ed25519","keyval":{"public":"<hex>"},"scheme":"ed25519"}`. It names a key and proves nothing.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledger.errors import TallyError

PRIVATE_SUFFIX = ".pem"
PUBLIC_SUFFIX = ".pub"
MAX_KEY_BYTES = 64 * 1024


class KeyProblem(TallyError):
    """A key file that cannot be read, is of another kind, or whose passphrase is wrong or missing."""


class PassphraseNeeded(KeyProblem):
    """The private key is encrypted and no passphrase was given."""


def key_id(public_key: Ed25519PublicKey) -> str:
    """The key's id, 64 hex digits."""
    public = public_key.public_bytes_raw().hex()
    text = f'{{"keytype":"ed25519","keyval":{{"public":"{public}"}},"scheme":"ed25519"}}'
    return sha256(text.encode("ascii")).hexdigest()


def generate(path: Path, passphrase: str | None) -> Path:
    """Write a new private key to `path` (NAME.pem, mode 0600) and its public key to NAME.pub, which is returned.

    With a passphrase the private key is encrypted. Raises KeyProblem when the name does not end in .pem, when either
    file exists (nothing is ever overwritten), or for an empty passphrase.
    """
    if path.suffix != PRIVATE_SUFFIX:
        raise KeyProblem(f"{path} is no name for a private key: it must end in {PRIVATE_SUFFIX}", "use -o NAME.pem")
    if passphrase == "":
        raise KeyProblem("the passphrase is empty", "give one, or say --no-passphrase")
    public_path = path.with_suffix(PUBLIC_SUFFIX)
    for existing in (path, public_path):
        if existing.exists():
            raise KeyProblem(f"{existing} exists; a key is never overwritten", "choose another name")
    key = Ed25519PrivateKey.generate()
    encryption: serialization.KeySerializationEncryption = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase.encode("utf-8"))
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    _write_new(path, private, 0o600)
    _write_new(public_path, public_pem(key.public_key()), 0o644)
    return public_path


def public_pem(public_key: Ed25519PublicKey) -> bytes:
    """The public key as PEM (SubjectPublicKeyInfo)."""
    return public_key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise KeyProblem(f"key file {path} cannot be written: {error.strerror}", "choose another place") from error
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def is_named_pipe(path: Path) -> bool:
    """Whether reading the path may wait for ever for a writer. /dev/fd/N, as <(...) gives it, is a pipe that somebody has
    open: that has no name of its own. Raises OSError."""
    return path.is_fifo() and Path(os.path.realpath(path)).is_fifo()


def _read(path: Path, what: str) -> bytes:
    try:
        if is_named_pipe(path):
            raise KeyProblem(f"{what} {path} is a named pipe, which may wait for ever", "give a file")
        with path.open("rb") as file:
            data = file.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        raise KeyProblem(f"{what} {path} cannot be read: {error.strerror}", "make one with `tally keygen`") from error
    if len(data) > MAX_KEY_BYTES:
        raise KeyProblem(f"{what} {path} is longer than any key: more than {MAX_KEY_BYTES} bytes")
    return data


def load_private(path: Path, passphrase: str | None = None) -> Ed25519PrivateKey:
    """The private key of a PEM file.

    Raises PassphraseNeeded when it is encrypted and none was given; KeyProblem when the file cannot be read, the
    passphrase is wrong, or it holds no Ed25519 private key. A passphrase that is not needed is ignored.
    """
    data = _read(path, "private key")
    if b"PRIVATE KEY" not in data:
        raise KeyProblem(f"{path} holds no private key", f"give the {PRIVATE_SUFFIX} file, not the {PUBLIC_SUFFIX} one")
    encrypted = b"ENCRYPTED" in data
    if encrypted and passphrase is None:
        raise PassphraseNeeded(f"private key {path} is encrypted", "set TALLY_PASSPHRASE, or run on a terminal")
    try:
        key = serialization.load_pem_private_key(
            data, passphrase.encode("utf-8") if encrypted and passphrase is not None else None
        )
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = "wrong passphrase, or the file is damaged" if encrypted else "the file is damaged"
        raise KeyProblem(f"private key {path} cannot be opened: {why}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyProblem(f"{path} holds a key that is not Ed25519", "make one with `tally keygen`")
    return key


def load_public(path: Path) -> Ed25519PublicKey:
    """The public key of a PEM file. Raises KeyProblem when it cannot be read or holds no Ed25519 public key."""
    data = _read(path, "public key")
    if b"PRIVATE KEY" in data:
        raise KeyProblem(
            f"{path} holds a private key", f"give its {PUBLIC_SUFFIX} file; keep the private key to yourself"
        )
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyProblem(f"{path} holds no public key: not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyProblem(f"{path} holds a key that is not Ed25519", "make one with `tally keygen`")
    return key
