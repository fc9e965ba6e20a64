"""`tally plan`: what it says of good plans, bad plans and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger.canonical import r1_file, sha256_digest
from ledger.plan import OUTSIDE_ENGINE, Plan, parse_plan
from ledger.store import Store
from tests.builders.runs import edited_plan, plan_document, small_plan
from tests.cli.conftest import Tally


@pytest.fixture
def draft_file(tmp_path: Path) -> Path:
    path = tmp_path / "draft.json"
    path.write_bytes(r1_file(plan_document()))
    return path


def test_show_fits_80_columns_and_says_what_stays_where(
    tally: Tally, plan_file: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = tally("plan", "show", plan_file)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    for materialization in plan.document.materializations:
        assert materialization.id in ran.out
        assert str(materialization.expected_bytes) in ran.out
    assert "frozen" in ran.out
    assert "kv-cache-epoch-1" in ran.out


def test_show_json_sums_per_memory_resource_and_its_parent(tally: Tally, plan_file: Path, plan: Plan) -> None:
    shown = tally("plan", "show", plan_file, "--json").json
    assert shown["format"] == "tally.plan-summary/1"
    assert shown["plan_digest"] == plan.computed_digest
    assert shown["frozen"] is True
    stays = 256 * 2**20 + 256 + 2 * 8 * 2**20
    assert shown["persistent_required_bytes"] == {"node-a.ram": stays, "node-a.shm": stays}
    assert [m["id"] for m in shown["materializations"]] == [m.id for m in plan.document.materializations]


def test_a_changed_plan_is_called_changed(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    path = tmp_path / "changed.json"
    path.write_bytes(r1_file({**plan.raw, "plan_version": "other"}))
    assert "CHANGED" in tally("plan", "show", path).out
    assert tally("plan", "show", path, "--json").json["frozen"] is False
    ran = tally("plan", "check", path, "--json")
    assert ran.code == 3
    assert [v["code"] for v in ran.json["violations"]] == ["plan.digest-mismatch"]


def test_check_lists_every_violation_and_exits_3(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    def break_it(document: dict) -> None:  # type: ignore[type-arg]
        document["materializations"][0]["memory_resource_id"] = "nowhere"
        document["materializations"][1]["logical_state_id"] = "state.absent"
        document["materializations"][2]["expected_bytes"] = -1

    path = tmp_path / "bad.json"
    path.write_bytes(edited_plan(plan, break_it).data)
    ran = tally("plan", "check", path)
    assert ran.code == 3
    assert all(word in ran.out for word in ("nowhere", "state.absent", "-1"))
    document = tally("plan", "check", path, "--json").json
    assert document["accepted"] is False
    assert len(document["violations"]) >= 3


def test_check_of_a_good_plan_is_silent_about_violations(tally: Tally, plan_file: Path) -> None:
    ran = tally("plan", "check", plan_file)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("ok")


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"not json", "is not JSON"),
        (b"[1]", "is no plan"),
        (b'{"schema": "x"}', "expected one of"),
        (b'{"schema": "tallystick.plan/1"}', "not its form"),
        (b'{"schema": 1, "schema": 2}', "occurs twice"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "is not JSON"),
    ],
)
def test_a_file_that_is_no_plan_is_one_line_and_exit_1(
    tally: Tally, tmp_path: Path, command: str, content: bytes, expected: str
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    ran = tally("plan", command, path)
    assert (ran.code, ran.out) == (1, "")
    assert expected in ran.error_line


def test_a_missing_file_is_one_line(tally: Tally) -> None:
    ran = tally("plan", "show", "absent.json")
    assert ran.code == 1
    assert "absent.json" in ran.error_line


def test_a_plan_is_read_from_standard_input(tally: Tally, plan: Plan) -> None:
    assert tally("plan", "check", "-", stdin=plan.data).code == 0


def test_hostile_names_in_a_plan_are_shown_inert(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    def poison(document: dict) -> None:  # type: ignore[type-arg]
        document["model"]["repository"] = "evil\x1b[2J\u202emodel"

    path = tmp_path / "hostile.json"
    path.write_bytes(edited_plan(plan, poison).data)
    shown = tally("plan", "show", path).out
    assert "evil\\x1b[2J\\u202emodel" in shown
    assert "\x1b" not in shown
    assert tally("plan", "show", path, "--json").json["repository"] == "evil\x1b[2J\u202emodel"


def test_diff_says_where_two_plans_differ_and_exits_0(
    tally: Tally, tmp_path: Path, plan_file: Path, plan: Plan
) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(small_plan(plan_version="small-2").data)
    ran = tally("plan", "diff", plan_file, other)
    assert ran.code == 0
    assert "small-2" in ran.out
    document = tally("plan", "diff", plan_file, other, "--json").json
    assert document["same"] is False
    assert {"plan_version", "digest"} <= {d["path"] for d in document["differences"]}
    assert tally("plan", "diff", plan_file, plan_file, "--json").json["same"] is True


# --- freeze -------------------------------------------------------------------------------------------------------


def test_freeze_seals_binds_the_reference_and_records_it(tally: Tally, draft_file: Path, tmp_path: Path) -> None:
    fixture = tmp_path / "reference.safetensors"
    fixture.write_bytes(b"what a model gave")
    ran = tally(
        "plan", "freeze", draft_file, "--reference", fixture, "-o", "plan.json", "--note", "for the test", "--json"
    )
    assert ran.code == 0, ran.err
    frozen = parse_plan((tmp_path / "plan.json").read_bytes())
    assert frozen.frozen
    assert frozen.correctness.reference_digest == sha256_digest(b"what a model gave")
    with Store.open(tmp_path / "tally.db") as store:
        recorded = store.frozen(frozen.computed_digest)
        assert recorded is not None
        body = json.loads(recorded.envelope)["body"]
        assert body == {"digest": frozen.computed_digest, "blob_digest": frozen.blob_digest, "note": "for the test"}
        assert store.blob(frozen.blob_digest) == frozen.data
        assert store.size() == 1
    assert ran.json == {
        "format": "tally.appended/1",
        "run_id": json.loads(recorded.envelope)["run_id"],
        "type": "plan.frozen",
        "position": 0,
        "hash": recorded.hash,
    }


def test_freezing_without_the_reference_that_decode_needs_is_said(tally: Tally, draft_file: Path) -> None:
    raw = json.loads(draft_file.read_bytes())
    raw["correctness"] |= {"reference_digest": None, "prefill": True}
    draft_file.write_text(json.dumps(raw))
    ran = tally("plan", "freeze", draft_file, "-o", "plan.json")
    assert ran.code == 0
    assert "no reference is bound" in ran.err
    draft_file.with_name("r").write_bytes(b"what a model gave")
    assert "no reference" not in tally("plan", "freeze", draft_file, "--reference", "r", "-o", "plan.json").err


def test_freezing_a_plan_for_a_watch_says_what_it_can_come_to(tally: Tally, draft_file: Path) -> None:
    raw = json.loads(draft_file.read_bytes())
    raw["correctness"] |= {"reference_digest": None, "prefill": True}
    raw["execution"][0]["strategy_unit"] = OUTSIDE_ENGINE
    raw.pop("adapter", None)
    draft_file.write_text(json.dumps(raw))
    ran = tally("plan", "freeze", draft_file, "-o", "plan.json")
    assert ran.code == 0
    assert "reference" not in ran.err
    assert "a watched run is never a PASS" in ran.err


def test_freezing_twice_records_once_and_writes_the_same_bytes(tally: Tally, draft_file: Path, tmp_path: Path) -> None:
    assert tally("plan", "freeze", draft_file, "-o", "a.json").code == 0
    ran = tally("plan", "freeze", draft_file, "-o", "b.json")
    assert ran.code == 0
    assert "was frozen before" in ran.err
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    with Store.open(tmp_path / "tally.db") as store:
        assert store.size() == 1


def test_freeze_to_standard_output_prints_the_plan_alone(tally: Tally, draft_file: Path) -> None:
    ran = tally("plan", "freeze", draft_file, "-o", "-")
    assert ran.code == 0
    assert parse_plan(ran.out.encode()).frozen
    ran = tally("plan", "freeze", draft_file, "-o", "-", "--json")
    assert ran.code == 2


def test_a_freezing_that_cannot_be_written_is_not_recorded(tally: Tally, draft_file: Path, tmp_path: Path) -> None:
    ran = tally("plan", "freeze", draft_file, "-o", "no/such/folder/plan.json")
    assert ran.code == 1
    assert "no/such/folder" in ran.error_line
    with Store.open(tmp_path / "tally.db") as store:
        assert store.size() == 0


def test_a_plan_that_was_edited_after_freezing_is_not_frozen_again(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    path = tmp_path / "edited.json"
    path.write_bytes(r1_file({**plan.raw, "plan_version": "edited"}))
    ran = tally("plan", "freeze", path, "-o", "plan.json")
    assert ran.code == 1
    assert "edited after freezing" in ran.error_line
    assert not (tmp_path / "plan.json").exists()
    assert not (tmp_path / "tally.db").exists()


def test_a_device_that_is_not_there_is_named_with_what_to_try(tally: Tally, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.builders.checkpoints import tiny_model

    tiny_model(tmp_path / "model")
    ran = tally("plan", "draft", "model", "--device", "cuda:7", "-o", "draft.json")
    assert ran.code == 1
    assert "there is no device cuda:7" in ran.error_line
    assert "`tally doctor`" in ran.error_line
    assert "--device cpu" in ran.error_line
