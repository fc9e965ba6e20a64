"""`tally weights`: tensors that were listed, those that differ, and what was not listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import MaterializationObserved
from ledger.canonical import sha256_digest
from ledger.plan import Plan
from ledger.store import Store
from realizer.adapter import COMPUTED
from tests.builders.runs import changed, clean_bodies
from tests.cli.conftest import Tally
from tests.cli.seeding import FIRST, seed

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def row(name: str, source: str | None, resident: str) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": "BF16",
        "shape": [2, 3],
        "bytes": 12,
        "offset": 64,
        "device": "host",
        "source_digest": source,
        "resident_digest": resident,
        "why": "its bytes were not digested while they were read" if source is None else "copied from the checkpoint",
    }


COMPUTED_ROW = {**row("scale", B, B), "why": COMPUTED}
ROWS = [row("same", A, A), row("flipped", A, B), row("unknown", None, B), COMPUTED_ROW]
SHOWN = ["same", "differs", "unknown", "computed"]


def listing(location: Path, plan: Plan, data: bytes, *, stored: bool = True) -> None:
    """A ledger whose run refers to `data` as the list of the resident weights' tensors."""
    bodies = changed(
        clean_bodies(plan),
        MaterializationObserved,
        {"tensors_blob": sha256_digest(data)},
        materialization_id="mat.weights.resident",
    )
    seed(location, plan, (FIRST, bodies))
    if stored:
        with Store.open(location, write=True) as store:
            store.put_blob(data, "application/json")


def test_each_tensor_is_listed_with_both_digests_or_why_not(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    listing(tmp_path / "tally.db", plan, json.dumps(ROWS).encode())
    document = tally("weights", FIRST, "--json").json
    assert document["format"] == "tally.weights/1"
    assert document["tensors"] == [
        {"materialization": "mat.weights.resident", "content": shown, **item}
        for shown, item in zip(SHOWN, ROWS, strict=True)
    ]
    unlisted = {item["materialization"]: item["why"] for item in document["unlisted"]}
    assert "immutable source alone" in unlisted["mat.kv-cache"], "content was verified, of the weights"
    (read_back,) = document["read_back"]
    assert read_back["before_decode"] is True
    text = tally("weights", FIRST).out
    assert "DIFFERS" in text
    assert "not digested" in text
    assert "1 of 4 tensors hold the source's bytes" in text
    assert "1 of 4 hold what the adapter computed for them: its word" in text
    assert f"read back at event {read_back['sequence']}, before decode" in text


def test_a_computed_tensor_that_differs_differs(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    listing(tmp_path / "tally.db", plan, json.dumps([{**COMPUTED_ROW, "resident_digest": A}]).encode())
    assert tally("weights", FIRST, "--json").json["tensors"][0]["content"] == "differs"
    assert "0 of 1 tensors hold the source's bytes" in tally("weights", FIRST).out


def test_it_fits_80_columns(tally: Tally, tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    listing(tmp_path / "tally.db", plan, json.dumps(ROWS).encode())
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, tally("weights", FIRST).out.splitlines())) <= 80


def test_a_run_without_lists_says_why(tally: Tally, ledger: Path) -> None:
    ran = tally("weights", FIRST)
    assert ran.code == 0
    assert "not verified" in ran.out
    assert tally("weights", FIRST, "--json").json["tensors"] == []


@pytest.mark.parametrize("data", [b"no list", b"{}", b'[{"name": 1}]', b"[1]", b""])
def test_a_list_that_is_none_is_broken(tally: Tally, tmp_path: Path, plan: Plan, data: bytes) -> None:
    listing(tmp_path / "tally.db", plan, data)
    ran = tally("weights", FIRST)
    assert (ran.code, ran.out) == (4, "")
    assert "mat.weights.resident" in ran.error_line


def test_a_list_that_is_missing_is_one_line(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    listing(tmp_path / "tally.db", plan, json.dumps(ROWS).encode(), stored=False)
    ran = tally("weights", FIRST)
    assert (ran.code, ran.out) == (1, "")
    assert "--attach" in ran.error_line
