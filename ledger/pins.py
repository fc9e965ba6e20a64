"""Pins: what a ledger's tree was, remembered outside the ledger, so that rollback and fork are noticed.

One file per origin in the user's state folder, as known_hosts remembers hosts: moved only forward, under a file lock,
after what it covers was committed. `note` makes the same three lines for keeping elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.checkpoints import (
    MAX_NOTE_CHARACTERS,
    ORIGIN,
    Checkpoint,
    NoteError,
    format_checkpoint,
    parse_checkpoint,
    sign_note,
)
from ledger.counting import counted
from ledger.errors import LedgerBroken, LedgerError
from ledger.keys import is_named_pipe
from ledger.merkle import Frontier

if TYPE_CHECKING:
    from ledger.store import Store

STATE_VARIABLE = "TALLY_STATE_DIR"
ACCEPT_HINT = (
    "another copy of this ledger may have gone on: then use that one and retire this; if this older copy was restored on"
    " purpose, `tally pin --accept -o accepted.pin` takes it as it is; else find out who changed it"
)


class Rollback(LedgerBroken):
    """The ledger holds fewer events than were pinned."""


class Fork(LedgerBroken):
    """The ledger holds other events than were pinned."""


def state_folder() -> Path:
    """$TALLY_STATE_DIR, else $XDG_STATE_HOME/tallystick, else ~/.local/state/tallystick. Nothing is created."""
    own = os.environ.get(STATE_VARIABLE)
    if own:
        return Path(own)
    base = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "tallystick"


def pin_path(origin: str) -> Path:
    """Where the pin of that ledger is kept. Raises LedgerError for an origin that is no plain name."""
    if not ORIGIN.fullmatch(origin):
        raise LedgerError(f"the ledger's origin {origin!r} is no plain name, so nothing can be pinned under it")
    return state_folder() / "pins" / origin


def read_pin_file(path: Path) -> tuple[Checkpoint, str]:
    """(checkpoint, the file's text). Raises LedgerError when the file cannot be read, NoteError when it is no pin."""
    try:
        if is_named_pipe(path):
            raise LedgerError(f"pin {path} is a named pipe, which may wait for ever", "give a file")
        with path.open("r", encoding="utf-8", newline="") as file:
            text = file.read(MAX_NOTE_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise NoteError(f"pin {path} is not UTF-8 text") from error
    except OSError as error:
        raise LedgerError(f"pin {path} cannot be read: {error.strerror}", "check the path") from error
    try:
        return parse_checkpoint(text), text
    except NoteError as error:
        raise NoteError(f"pin {path}: {error.message}", error.hint) from error


def state_pin(origin: str) -> Checkpoint | None:
    """The pin of that ledger in the state folder; None when there is none yet.

    Raises NoteError for a file that is no pin or is another ledger's, LedgerError for anything else that stands there and
    cannot be read as one: a pin put out of reach is no absent pin.
    """
    path = pin_path(origin)
    if not _stands(path):
        return None
    checkpoint, _ = read_pin_file(path)
    if checkpoint.origin != origin:
        raise NoteError(f"pin {path} is of ledger {checkpoint.origin}", "it was put there by hand: take it away")
    return checkpoint


def _stands(path: Path) -> bool:
    """Whether anything stands under the name of a pin. Raises LedgerError where that cannot be told, or is no file."""
    try:
        for name in (path, path.parent, state_folder()):
            try:
                name.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            # A link counts by what it leads to: one that leads nowhere is an error, not an absence.
            mode = name.stat().st_mode
            if not (stat.S_ISREG(mode) if name == path else stat.S_ISDIR(mode)):
                what = "the pin, is no file" if name == path else "where pins are kept, is no folder"
                raise LedgerError(f"{name}, {what}", "it was put there by hand: take it away")
            return name == path
    except OSError as error:
        raise LedgerError(
            f"pin {path} cannot be read: {error.strerror}", f"mend the folder, or set {STATE_VARIABLE}"
        ) from error
    return False


def check_pin(store: Store) -> None:
    """Prove that the ledger still begins with what was pinned in the state folder; without a pin there is nothing to prove.

    Raises Rollback or Fork (both LedgerBroken), each naming the pin and what the ledger has.
    """
    pin = state_pin(store.origin)
    if pin is not None:
        _extended(store, pin, pin.size)


def _extended(store: Store, pin: Checkpoint | None, size: int) -> Checkpoint:
    """The checkpoint of the first `size` events, once they are shown to begin with what was pinned."""
    frontier = Frontier()
    if pin is not None:
        total = store.size()
        if total < pin.size:
            frontier.extend(store.leaf_hashes(0, total))
            raise Rollback(rollback_text(pin, Checkpoint(store.origin, total, frontier.root())), ACCEPT_HINT)
        frontier.extend(store.leaf_hashes(0, pin.size))
        if frontier.size != pin.size or frontier.root() != pin.root:
            raise Fork(fork_text(pin, Checkpoint(store.origin, pin.size, frontier.root())), ACCEPT_HINT)
    frontier.extend(store.leaf_hashes(frontier.size, size))
    return Checkpoint(store.origin, frontier.size, frontier.root())


def rollback_text(pin: Checkpoint, found: Checkpoint) -> str:
    """What a rollback is told with: both sizes and roots."""
    return (
        f"rollback: ledger {pin.origin} was pinned at {counted(pin.size, 'event')} (root {pin.root_hex}) "
        f"and holds {found.size} (root {found.root_hex})"
    )


def fork_text(pin: Checkpoint, found: Checkpoint) -> str:
    """What a fork is told with: both roots at the pin's size."""
    if pin.origin != found.origin:
        return f"fork: the pin is of ledger {pin.origin}, this is ledger {found.origin}"
    return (
        f"fork: ledger {pin.origin} was pinned at {counted(pin.size, 'event')} with root {pin.root_hex}, "
        f"its first {counted(found.size, 'event has', 'events have')} root {found.root_hex}"
    )


def move_pin(store: Store) -> Checkpoint:
    """Move the pin in the state folder forward to what the ledger holds now, and return it.

    What was pinned before is proven to be a prefix first (Rollback or Fork otherwise, and the pin stays). A ledger that
    is open for writing keeps the checkpoint too: no anchor, but a tail that is cut off by accident shows by it anywhere.
    Raises LedgerError when the state folder cannot be written.
    """
    with _locked(store.origin) as path:
        # The size is read under the lock: whoever moved the pin before has committed what it covers.
        pin = state_pin(store.origin)
        moved = _extended(store, pin, max(store.size(), pin.size if pin else 0))
        if moved != pin:
            _write(path, moved)
            if store.writable:
                text = format_checkpoint(moved.origin, moved.size, moved.root)
                store.put_checkpoint(moved.size, moved.root_hex, text)
        return moved


def accept_pin(store: Store) -> Checkpoint:
    """Take the ledger as it is now for good, after a deliberate restore: the pin may move back, or to another root."""
    with _locked(store.origin) as path:
        accepted = _extended(store, None, store.size())
        _write(path, accepted)
        return accepted


def note(store: Store, key: Ed25519PrivateKey | None = None) -> tuple[bytes, str]:
    """(pin file, root in hex) of what the ledger holds now; a C2SP note signed under the origin's name when a key is given."""
    checkpoint = _extended(store, None, store.size())
    text = format_checkpoint(checkpoint.origin, checkpoint.size, checkpoint.root)
    if key is not None:
        text = sign_note(text, checkpoint.origin, key)
    return text.encode("utf-8"), checkpoint.root_hex


@contextmanager
def _locked(origin: str) -> Iterator[Path]:
    path = pin_path(origin)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(descriptor)


def _write(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file in one step, durable before it counts. The caller holds the lock, so one scratch name is enough."""
    scratch = path.with_name(path.name + ".new")
    try:
        with scratch.open("w", encoding="utf-8", newline="") as file:
            file.write(format_checkpoint(checkpoint.origin, checkpoint.size, checkpoint.root))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> LedgerError:
    return LedgerError(
        f"the pin cannot be kept in {state_folder()}: {error.strerror}", f"make it writable, or set {STATE_VARIABLE}"
    )
