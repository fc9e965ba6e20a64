"""Pins in the state folder: moved forward, held to, taken anew only when asked."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ledger import checkpoints, pins
from ledger.audit import verify_ledger
from ledger.checkpoints import NoteError
from ledger.errors import LedgerBroken, LedgerError
from ledger.merkle import Frontier
from ledger.recording import ListLedger
from ledger.store import Store
from tests.builders.judged import KEY, OTHER_KEY, add_run, fill, one_run, run_bodies, stored


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv(pins.STATE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return stored(tmp_path / "tally.db", one_run(bodies=run_bodies()))


def grow(path: Path, number: int) -> None:
    everything = ListLedger()
    for known in range(1, number + 1):
        add_run(everything, known, bodies=run_bodies())
    with Store.open(path, write=True) as store:
        fill(store, everything)


def test_where_pins_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert pins.state_folder() == tmp_path / "state"
    monkeypatch.delenv(pins.STATE_VARIABLE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert pins.state_folder() == tmp_path / "xdg" / "tallystick"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert pins.state_folder() == tmp_path / "home" / ".local" / "state" / "tallystick"
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("origin", ["", "../escape", ".hidden", "a/b", "a b", "x" * 129, "a\nb"])
def test_an_origin_is_never_a_path(origin: str) -> None:
    with pytest.raises(LedgerError, match="no plain name"):
        pins.pin_path(origin)


def test_a_pin_moves_forward_and_holds(ledger: Path, state: Path) -> None:
    with Store.open(ledger) as store:
        pins.check_pin(store)
        assert pins.state_pin(store.origin) is None
        first = pins.move_pin(store)
        assert (first.size, pins.state_pin(store.origin)) == (store.size(), first)
        assert pins.move_pin(store) == first
    grow(ledger, 2)
    with Store.open(ledger) as store:
        pins.check_pin(store)
        second = pins.move_pin(store)
        assert second.size == store.size() > first.size
        assert pins.state_pin(store.origin) == second
    assert verify_ledger(ledger).status == "valid"
    assert verify_ledger(ledger, use_state=False).status == "valid-unanchored"


def test_a_rollback_is_named_with_both_and_can_be_accepted(ledger: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    shutil.copyfile(ledger, old)
    grow(ledger, 2)
    with Store.open(ledger) as store:
        pinned = pins.move_pin(store)
    shutil.copyfile(old, ledger)
    for suffix in ("-wal", "-shm"):
        Path(f"{ledger}{suffix}").unlink(missing_ok=True)
    with Store.open(ledger) as store:
        size, root = store.size(), pins.note(store)[1]
        for refuse in (pins.check_pin, pins.move_pin):
            with pytest.raises(pins.Rollback) as caught:
                refuse(store)
            for part in (str(pinned.size), pinned.root_hex, str(size), root, "--accept"):
                assert part in str(caught.value)
        assert pins.state_pin(store.origin) == pinned, "a refused pin stays"
        document = verify_ledger(ledger)
        assert (document.status, document.checks.pin) == ("broken", "failed")
        assert document.problems[0].code == "rollback"
        accepted = pins.accept_pin(store)
        assert accepted.size == size
        pins.check_pin(store)
    assert verify_ledger(ledger).status == "valid"


def test_a_fork_is_named_with_both(ledger: Path, tmp_path: Path) -> None:
    other = ListLedger()
    add_run(other, 3, bodies=run_bodies())
    add_run(other, 4, bodies=run_bodies())
    forked = stored(tmp_path / "other.db", other)
    with Store.open(ledger) as store:
        pinned = pins.move_pin(store)
    with Store.open(forked) as store:
        foreign = store.origin
        text = checkpoints.format_checkpoint(foreign, pinned.size, pinned.root)
        pins.pin_path(foreign).write_text(text)
        with pytest.raises(pins.Fork) as caught:
            pins.check_pin(store)
        assert isinstance(caught.value, LedgerBroken)
        assert caught.value.exit_code == 4
        for part in (foreign, pinned.root_hex, str(pinned.size)):
            assert part in str(caught.value)
    assert [problem.code for problem in verify_ledger(forked).problems] == ["fork"]


@pytest.mark.parametrize(
    "text", ["", "garbage", "origin\n1\n", "another-ledger\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n", "\xff"]
)
def test_a_garbled_state_pin_is_an_error_and_never_no_pin(ledger: Path, text: str) -> None:
    with Store.open(ledger) as store:
        path = pins.pin_path(store.origin)
        path.parent.mkdir(parents=True)
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(NoteError):
            pins.check_pin(store)
        with pytest.raises(NoteError):
            pins.move_pin(store)
    with pytest.raises(NoteError):
        verify_ledger(ledger)


def broken_link(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def link_loop(path: Path) -> None:
    path.symlink_to(path)


PUT_IN_PLACE = {
    "a link to nothing": broken_link,
    "a link to itself": link_loop,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize(
    ("level", "what"),
    [(level, what) for level in (0, 1, 2) for what in PUT_IN_PLACE if level == 0 or what != "a folder"],
)
def test_a_state_pin_put_out_of_reach_is_an_error_and_never_no_pin(ledger: Path, what: str, level: int) -> None:
    """The pin (level 0), the folder of pins or the state folder is replaced."""
    with Store.open(ledger) as store:
        pins.move_pin(store)
        place = [pins.pin_path(store.origin), *pins.pin_path(store.origin).parents][level]
        place.rename(place.with_name("away"))
        PUT_IN_PLACE[what](place)
        before = place.lstat().st_ino
        for refuse in (pins.check_pin, pins.move_pin, lambda _: verify_ledger(ledger)):
            with pytest.raises(LedgerError):
                refuse(store)
        assert place.lstat().st_ino == before, "nothing is written over it"
        place.rmdir() if what == "a folder" else place.unlink()
        place.with_name("away").rename(place)
        pins.check_pin(store)


def test_a_file_in_place_of_the_folder_of_pins_is_an_error(ledger: Path) -> None:
    with Store.open(ledger) as store:
        pins.move_pin(store)
        folder = pins.pin_path(store.origin).parent
        folder.rename(folder.with_name("away"))
        folder.touch()
        with pytest.raises(LedgerError, match="no folder"):
            pins.check_pin(store)
    with pytest.raises(LedgerError):
        verify_ledger(ledger)


def test_a_pin_that_may_not_be_looked_for_is_an_error(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with Store.open(ledger) as store:
        monkeypatch.setattr(Path, "lstat", refused)
        with pytest.raises(LedgerError, match="Permission denied"):
            pins.check_pin(store)


def test_a_pin_says_how_much_it_covers_and_one_of_nothing_anchors_nothing(ledger: Path, tmp_path: Path) -> None:
    with Store.open(ledger) as store:
        size = store.size()
        whole = pins.note(store)[0].decode()
        leaves = list(store.leaf_hashes(0, size))
        origin = store.origin
    frontier = Frontier()
    for covered in (0, 1, size - 1):
        frontier.extend(leaves[frontier.size : covered])
        path = tmp_path / f"{covered}.pin"
        path.write_text(checkpoints.format_checkpoint(origin, covered, frontier.root()))
        document = verify_ledger(ledger, pin=path)
        anchored = covered > 0
        assert document.status == ("valid" if anchored else "valid-unanchored")
        assert document.checks.pin == ("ok" if anchored else "not-checked")
        assert f"covers {covered} of {size} events" in (document.completeness or "")
    (tmp_path / "whole.pin").write_text(whole)
    assert verify_ledger(ledger, pin=tmp_path / "whole.pin").completeness is None
    pins.pin_path(origin).parent.mkdir(parents=True)
    pins.pin_path(origin).write_text((tmp_path / "0.pin").read_text())
    assert verify_ledger(ledger).status == "valid-unanchored"
    assert verify_ledger(ledger, pin=tmp_path / "whole.pin").status == "valid"


def test_a_pin_file_with_a_signature_is_held_to_its_key(ledger: Path, tmp_path: Path) -> None:
    with Store.open(ledger) as store:
        signed, _ = pins.note(store, KEY)
        unsigned, root = pins.note(store)
    assert signed.startswith(unsigned)
    assert root == checkpoints.parse_checkpoint(unsigned.decode()).root_hex
    (tmp_path / "signed.pin").write_bytes(signed)
    (tmp_path / "plain.pin").write_bytes(unsigned)
    good = verify_ledger(ledger, pin=tmp_path / "signed.pin", use_state=False, public_key=KEY.public_key())
    assert (good.status, good.checks.signature, good.checks.pin) == ("valid", "ok", "ok")
    for pin, key in (("signed.pin", OTHER_KEY), ("plain.pin", KEY)):
        bad = verify_ledger(ledger, pin=tmp_path / pin, use_state=False, public_key=key.public_key())
        assert (bad.status, bad.checks.signature) == ("broken", "failed")
        assert [problem.code for problem in bad.problems] == ["signature"]


def test_a_writer_keeps_the_checkpoint_in_the_ledger_too(ledger: Path) -> None:
    with Store.open(ledger, write=True) as store:
        moved = pins.move_pin(store)
        assert store.checkpoints() == [(moved.size, moved.root_hex, pins.note(store)[0].decode())]
        pins.move_pin(store)
        assert len(store.checkpoints()) == 1
    assert verify_ledger(ledger).status == "valid"


def test_an_empty_ledger_can_be_pinned(tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty.db", write=True, create=True) as store:
        assert pins.move_pin(store).size == 0
        pins.check_pin(store)
    document = verify_ledger(tmp_path / "empty.db")
    assert (document.status, document.problems) == ("valid-unanchored", [])
    assert "vouches for nothing" in (document.completeness or "")


def test_a_state_folder_that_cannot_be_written_says_so(ledger: Path, state: Path) -> None:
    state.write_text("a file where the folder should be")
    with Store.open(ledger) as store, pytest.raises(LedgerError, match=pins.STATE_VARIABLE):
        pins.move_pin(store)


def test_processes_that_move_one_pin_together_leave_the_furthest(ledger: Path) -> None:
    code = (
        "import sys\nfrom ledger import pins\nfrom ledger.store import Store\n"
        "with Store.open(sys.argv[1]) as store:\n    [pins.move_pin(store) for _ in range(20)]\n"
    )
    movers = [subprocess.Popen([sys.executable, "-c", code, str(ledger)]) for _ in range(3)]
    grow(ledger, 4)
    assert [mover.wait(timeout=60) for mover in movers] == [0, 0, 0]
    with Store.open(ledger) as store:
        moved = pins.move_pin(store)
        assert moved.size == store.size()
        assert pins.state_pin(store.origin) == moved


def test_progress_reaches_the_end(ledger: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify_ledger(ledger, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0


def test_a_named_pipe_is_no_pin_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger.pin")
    with pytest.raises(LedgerError, match="named pipe"):
        pins.read_pin_file(tmp_path / "ledger.pin")
