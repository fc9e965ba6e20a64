"""`tally import RESULT --plan PLAN`: a published result becomes a run of declared facts, judged for itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger.canonical import sha256_digest
from ledger.store import Store
from tests.builders.r1_results import r1_bytes, r1_plan
from tests.cli.conftest import Tally

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"


@pytest.fixture
def result(tally: Tally, tmp_path: Path) -> tuple[str, str, str]:
    """The arguments that import the builders' result."""
    (tmp_path / "result.json").write_bytes(r1_bytes())
    (tmp_path / "r1-plan.json").write_bytes(r1_plan().data)
    return "result.json", "--plan", "r1-plan.json"


def test_a_result_becomes_a_run_with_its_verdict(tally: Tally, tmp_path: Path, result: tuple[str, str, str]) -> None:
    ran = tally("import", *result, "--json")
    assert ran.code == 3, ran.err
    document = ran.json
    assert (document["format"], document["assurance"]) == ("tally.run/1", "declared")
    assert document["verdict"] in ("FAIL", "INDETERMINATE")
    events = [json.loads(line) for line in tally("log", document["run_id"], "--json").out.splitlines()]
    assert [event["type"] for event in events[-2:]] == ["run.closed", "verdict.recorded"]
    assert {event["actor"]["kind"] for event in events[:-1]} == {"importer"}
    assert {event["elapsed_ns"] for event in events} == {None}
    assert events[0]["body"]["purpose"] == "import"
    assert events[-1]["body"]["verdict"] == document["verdict"]
    with Store.open(tmp_path / "tally.db") as store:
        assert store.blob(sha256_digest(r1_bytes())) == r1_bytes()
    assert tally("verify").code == 0
    assert tally("reconcile", "@latest", "--json").json["verdict"] == document["verdict"]


def test_a_result_of_another_plan_is_refused_and_nothing_recorded(
    tally: Tally, tmp_path: Path, result: tuple[str, str, str], plan_file: Path
) -> None:
    ran = tally("import", "result.json", "--plan", plan_file)
    assert ran.code == 1
    assert ran.error_line
    assert not (tmp_path / "tally.db").exists()


def test_the_published_result_is_imported_and_judged(tally: Tally) -> None:
    if not (REFERENCE / "r1-result.json").exists():
        pytest.skip(f"the published result is not at {REFERENCE}")
    ran = tally("import", REFERENCE / "r1-result.json", "--plan", REFERENCE / "r1-frozen-plan.json", "--json")
    assert (ran.code, ran.json["verdict"], ran.json["assurance"]) == (3, "FAIL", "declared")
    errors = {finding["code"] for finding in ran.json["findings"] if finding["severity"] == "error"}
    assert errors == {"memory.not-reclaimed"}
