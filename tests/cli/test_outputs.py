"""What `-o` may write over: an older output of the same kind; never a ledger, a key, an input, weights or a stranger's file."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.errors import TallyError
from ledger.plan import Plan
from realizer.cli.outputs import NAMES, Kind, refuse_overwriting
from tests.cli.conftest import Tally
from tests.cli.seeding import SECOND

FIXTURE_HEADER = b'{"__metadata__":{"format":"tallystick.reference/1"}}'
WEIGHTS_HEADER = b'{"__metadata__":{"format":"pt"}}'


def safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


SAMPLES: dict[Kind, bytes] = {
    "page": b"<!doctype html>\n<html></html>\n",
    "trace": b'{"traceEvents":[]}\n',
    "evidence": b'{"payload":"","payloadType":"x","signatures":[]}\n',
    "pin": b"origin\n12\n" + b"A" * 43 + b"=\n",
    "plan": b'{\n  "model": {},\n  "schema": "tallystick.plan/1"\n}\n',
    "fixture": safetensors(FIXTURE_HEADER),
}
OTHERS = {
    "a safetensors file that is no reference fixture": safetensors(WEIGHTS_HEADER),
    "a JSON document of another kind": b'{"architectures": []}',
    "a file of another kind": b"notes\n",
    "a key": b"-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n",
    "a PEM file": b"-----BEGIN CERTIFICATE-----\n",
    "an SQLite database": b"SQLite format 3\x00" + bytes(84),
}


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("there", SAMPLES)
def test_an_older_output_of_the_same_kind_alone_is_renewed(kind: Kind, there: Kind, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(SAMPLES[there])
    if kind == there:
        refuse_overwriting(str(path), kind, "the output")
        return
    with pytest.raises(TallyError, match=f"the output is not written over '.*': that is {NAMES[there]}"):
        refuse_overwriting(str(path), kind, "the output")


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("said", OTHERS)
def test_what_no_command_wrote_stays(kind: Kind, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OTHERS[said])
    with pytest.raises(TallyError, match=f"that is {said}") as raised:
        refuse_overwriting(str(path), kind, "the output")
    assert "\n" not in str(raised.value)


def test_a_safetensors_file_stays_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"torn")
    with pytest.raises(TallyError, match="a safetensors file"):
        refuse_overwriting(str(path), "fixture", "the fixture")


def test_new_and_empty_files_streams_and_pipes_pass(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("-", "/dev/stdout", "/dev/fd/1", "/dev/null", *(str(tmp_path / n) for n in ("new", "empty", "pipe"))):
        refuse_overwriting(name, "page", "the page")


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_what_sqlite_keeps_beside_a_database_stays_even_where_it_is_not_there_yet(ending: str, tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(OTHERS["an SQLite database"])
    with pytest.raises(TallyError, match=r"what SQLite keeps beside 'x\.db'"):
        refuse_overwriting(str(tmp_path / f"x.db{ending}"), "page", "the page")
    refuse_overwriting(str(tmp_path / f"y.db{ending}"), "page", "the page")
    with pytest.raises(TallyError, match="beside"):
        refuse_overwriting(str(tmp_path / f"y.db{ending}"), "page", "the page", ledger=tmp_path / "y.db")


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to], ids=["symlink", "hard link"])
def test_a_file_of_the_command_stays_by_whatever_name(link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    folder, outside = tmp_path / "m", tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    for path in (folder / "plan.json", folder / "deep" / "plan.json", tmp_path / "draft.json"):
        path.write_bytes(SAMPLES["plan"])
    link(outside, folder / "plan.json")
    for path in (folder / "plan.json", folder / "deep" / "plan.json", outside):
        with pytest.raises(TallyError, match="a file of the checkpoint"):
            refuse_overwriting(str(path), "plan", "the plan", folders=[("the checkpoint", folder)])
    again = tmp_path / "again"
    link(again, tmp_path / "draft.json")
    with pytest.raises(TallyError, match="that is an input of the command"):
        refuse_overwriting(str(again), "plan", "the plan", inputs=[tmp_path / "draft.json"])


def test_a_link_from_the_checkpoint_to_its_store_is_a_file_of_it(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "blob").write_bytes(SAMPLES["fixture"])
    (tmp_path / "m" / "model.safetensors").symlink_to(tmp_path / "blob")
    with pytest.raises(TallyError, match="a file of the checkpoint"):
        refuse_overwriting(str(tmp_path / "blob"), "fixture", "it", folders=[("the checkpoint", tmp_path / "m")])


# --- each command ---------------------------------------------------------------------------------------------------


def refused(tally: Tally, *arguments: str | Path, over: Path) -> str:
    """The one line with which the command refuses; what stood there is as it was."""
    before = over.read_bytes() if over.exists() else None
    ran = tally(*arguments, "-o", over)
    assert (ran.code, ran.out) == (1, "")
    assert (over.read_bytes() if over.exists() else None) == before
    return ran.error_line


@pytest.mark.parametrize("name", ["report", "export", "trace", "pin"])
def test_no_command_replaces_the_ledger_or_a_key(name: str, tally: Tally, ledger: Path, tmp_path: Path) -> None:
    given = [] if name == "pin" else ["@latest"]
    assert "that is the ledger" in refused(tally, name, *given, over=ledger)
    assert "that is the ledger" in refused(tally, name, *given, "--ledger", "sqlite:///tally.db", over=ledger)
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.close()
    assert "that is an SQLite database" in refused(tally, name, *given, over=other)
    assert tally("keygen", "--no-passphrase", "-o", "k.pem").code == 0
    for key in ("k.pem", "k.pub"):
        assert "that is a key" in refused(tally, name, *given, over=tmp_path / key)


@pytest.mark.parametrize("name", ["export", "pin"])
def test_the_key_that_signs_is_not_replaced(name: str, tally: Tally, ledger: Path, tmp_path: Path) -> None:
    tally("keygen", "--no-passphrase", "-o", "k.pem")
    given = [] if name == "pin" else ["@latest"]
    assert "an input of the command" in refused(tally, name, *given, "--key", "k.pem", over=tmp_path / "k.pem")


def test_evidence_is_not_replaced_by_what_is_made_of_it(tally: Tally, ledger: Path, tmp_path: Path) -> None:
    for name in ("e.json", "other.json"):
        assert tally("export", SECOND, "-o", name).code == 0
    for name in ("report", "trace"):
        assert "an input of the command" in refused(tally, name, "e.json", over=tmp_path / "e.json")
        assert "that is evidence" in refused(tally, name, "e.json", over=tmp_path / "other.json")
    assert "an input of the command" in refused(
        tally, "report", "e.json", "--compare", "other.json", over=tmp_path / "other.json"
    )


def test_every_output_is_renewed(tally: Tally, ledger: Path, plan_file: Path) -> None:
    for _ in range(2):
        assert tally("export", SECOND, "-o", "e.json").code == 0
        assert tally("report", "e.json", "-o", "r.html").code == 0
        assert tally("trace", "e.json", "-o", "t.json").code == 0
        assert tally("pin", "-o", "p").code == 0
        assert tally("plan", "freeze", plan_file, "-o", "frozen.json").code == 0


def test_freezing_replaces_neither_its_ledger_nor_its_draft(tally: Tally, plan_file: Path, tmp_path: Path) -> None:
    said = refused(tally, "plan", "freeze", plan_file, "--ledger", "q.db", over=tmp_path / "q.db")
    assert "that is the ledger" in said
    assert not (tmp_path / "q.db").exists()
    assert "an input of the command" in refused(tally, "plan", "freeze", plan_file, over=plan_file)


def test_a_draft_replaces_no_file_of_the_checkpoint(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps({"architectures": ["X"]}))
    assert "a file of the folder 'm'" in refused(tally, "plan", "draft", "--observe", "m", over=config)


def test_a_fixture_replaces_no_weights(tally: Tally, plan: Plan, plan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(safetensors(WEIGHTS_HEADER))
    assert "a file of the folder 'm'" in refused(
        tally, "reference", plan_file, "--tokens", "1", "--checkpoint", "m", over=weights
    )
    assert "no reference fixture" in refused(tally, "reference", plan_file, "--tokens", "1", over=weights)
