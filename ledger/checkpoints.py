"""Checkpoints of the tree as text that can be kept anywhere: C2SP tlog-checkpoint bodies and signed notes (Ed25519).

A checkpoint is three lines: the origin (whose tree), the tree size in decimal, the root in base64. A signed note is that
text, an empty line, and signature lines `— NAME base64(key hash || signature)`; forms as in C2SP `tlog-checkpoint` and
`signed-note`.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledger.errors import LedgerBroken, LedgerError
from ledger.merkle import HASH_BYTES

ED25519_NOTE = b"\x01"
"""The signature type byte of Ed25519 in the key hash of a signed note."""
KEY_HASH_BYTES = 4
SIGNATURE_BYTES = 64
MAX_NOTE_CHARACTERS = 64 * 1024
MAX_SIGNATURES = 16
MAX_TREE_SIZE = 2**53 - 1

ORIGIN = re.compile(r"(?!.*\.(?:lock|new)\Z)[0-9A-Za-z][0-9A-Za-z._-]{0,127}", re.ASCII)
"""What a ledger's origin looks like: a plain name, and none that stands beside a pin for another purpose."""

_SIZE = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_SIGNATURE_LINE = re.compile(r"— ([^\s+]+) ([A-Za-z0-9+/]+={0,2})")


class NoteError(LedgerError):
    """A checkpoint or signed note that has not its form."""


class NoteForged(LedgerBroken):
    """A signed note without a signature by the given key, or with one that does not hold."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of one ledger: `origin` is its random id, `size` its number of events, `root` 32 raw bytes."""

    origin: str
    size: int
    root: bytes

    @property
    def root_hex(self) -> str:
        return self.root.hex()

    def __str__(self) -> str:
        return f"size {self.size} root {self.root_hex[:16]}…"


def format_checkpoint(origin: str, size: int, root: bytes) -> str:
    """The checkpoint's text, each line ended by LF. Raises NoteError for an origin that is not one line of text."""
    if not origin or any(character.isspace() or ord(character) < 32 for character in origin):
        raise NoteError(f"origin {origin!r} cannot stand in a checkpoint: it must be one word of printable text")
    if not 0 <= size <= MAX_TREE_SIZE or len(root) != HASH_BYTES:
        raise NoteError(f"no checkpoint of size {size} with a root of {len(root)} bytes")
    return f"{origin}\n{size}\n{base64.b64encode(root).decode('ascii')}\n"


def parse_checkpoint(text: str) -> Checkpoint:
    """The checkpoint that its text or a note around it holds; signatures are not looked at.

    Law: `parse_checkpoint(format_checkpoint(o, s, r)) == Checkpoint(o, s, r)`. Raises NoteError for anything but an
    origin, a canonical decimal size and a canonical base64 root; extension lines, which the form allows, are refused
    because nothing of ours writes them.
    """
    if len(text) > MAX_NOTE_CHARACTERS:
        raise NoteError(f"not a checkpoint: longer than {MAX_NOTE_CHARACTERS} characters")
    body, separator, signatures = text.partition("\n\n")
    lines = (body + "\n" if separator else body).split("\n")
    if len(lines) != 4 or lines[3] != "":
        raise NoteError(
            "not a checkpoint: expected three lines (origin, size, root)",
            "make one with `tally pin -o FILE`",
        )
    if separator:
        _signature_lines(signatures)
    origin, size, root = lines[:3]
    if not _SIZE.fullmatch(size) or int(size) > MAX_TREE_SIZE:
        raise NoteError(f"not a checkpoint: size {size[:40]!r} is no canonical decimal number")
    checkpoint = Checkpoint(origin, int(size), decode_base64(root, HASH_BYTES, "checkpoint root"))
    format_checkpoint(checkpoint.origin, checkpoint.size, checkpoint.root)
    return checkpoint


def decode_base64(text: str, length: int, what: str) -> bytes:
    """Exactly `length` bytes from canonical base64 (padded, pad bits zero). Raises NoteError naming `what`."""
    data = _decode_canonical(text, what)
    if len(data) != length:
        raise NoteError(f"{what} has {len(data)} bytes, expected {length}")
    return data


def _decode_canonical(text: str, what: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoteError(f"{what} is not base64: {error}") from error
    if base64.b64encode(data).decode("ascii") != text:
        raise NoteError(f"{what} is not canonical base64: padding or pad bits differ")
    return data


def key_hash(name: str, public_key: Ed25519PublicKey) -> bytes:
    """The first four bytes of SHA-256(name || LF || 0x01 || public key): how a note names the key."""
    return sha256(name.encode("utf-8") + b"\n" + ED25519_NOTE + public_key.public_bytes_raw()).digest()[:KEY_HASH_BYTES]


def sign_note(text: str, name: str, key: Ed25519PrivateKey) -> str:
    """The signed note over `text` (which ends with LF). Deterministic: the same text and key give the same note.

    Raises NoteError for a text or name that cannot stand in a note.
    """
    if not text.endswith("\n") or "\n\n" in text:
        raise NoteError("only text of non-empty lines, the last one ended, can be signed as a note")
    if not name or re.search(r"[\s+]", name):
        raise NoteError(f"key name {name!r} may hold neither spaces nor plus signs")
    signature = key_hash(name, key.public_key()) + key.sign(text.encode("utf-8"))
    return f"{text}\n— {name} {base64.b64encode(signature).decode('ascii')}\n"


def verify_note(note: str, name: str, public_key: Ed25519PublicKey) -> str:
    """The text that `public_key` signed under `name`; signatures by other keys are passed over.

    Raises NoteError when the note has not its form, NoteForged when that key's signature is absent or does not hold.
    """
    if len(note) > MAX_NOTE_CHARACTERS:
        raise NoteError(f"not a note: longer than {MAX_NOTE_CHARACTERS} characters")
    text, separator, rest = note.partition("\n\n")
    if not separator:
        raise NoteForged("the note carries no signature, and one was expected", "make it with a key, or give no key")
    text += "\n"
    wanted = key_hash(name, public_key)
    held = False
    for found_name, signature in _signature_lines(rest):
        if found_name != name or signature[:KEY_HASH_BYTES] != wanted:
            continue
        try:
            public_key.verify(signature[KEY_HASH_BYTES:], text.encode("utf-8"))
        except InvalidSignature as error:
            raise NoteForged(
                f"the note's signature by {name!r} does not hold: text or signature was altered"
            ) from error
        held = True
    if not held:
        raise NoteForged(f"the note is not signed by the given key under the name {name!r}")
    return text


def _signature_lines(rest: str) -> list[tuple[str, bytes]]:
    lines = rest.split("\n")
    if lines[-1] != "" or not 2 <= len(lines) <= MAX_SIGNATURES + 1:
        raise NoteError(f"not a signed note: expected 1 to {MAX_SIGNATURES} signature lines, each ended by a newline")
    found = []
    for line in lines[:-1]:
        match = _SIGNATURE_LINE.fullmatch(line)
        if match is None:
            raise NoteError(f"not a signed note: {line[:60]!r} is no signature line")
        found.append((match[1], _decode_canonical(match[2], "note signature")))
    return found
