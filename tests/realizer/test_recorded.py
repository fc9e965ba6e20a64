"""Realizing into a ledger from a program: the record that the command leaves, whatever ends the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.causal_lm import CausalLM
from ledger.audit import verify_ledger
from ledger.bodies import PlanFrozen
from ledger.errors import PlanError, PlanRejected
from ledger.events import Event
from ledger.recording import uuid7
from ledger.store import Store
from realizer.answers import AdapterFault
from realizer.recorded import latecomer, realize_into
from tests.builders.realizations import Prepared, prepare


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def ledger(tmp_path: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger in which the plan was frozen."""
    monkeypatch.setenv("TALLY_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "tally.db"
    with Store.open(str(path), write=True, create=True) as store:
        plan = prepared.plan
        latecomer(store, uuid7(), "node-a")(PlanFrozen(digest=plan.computed_digest, blob_digest=plan.blob_digest))
    return path


def latest(ledger: Path) -> list[Event]:
    with Store.open(str(ledger)) as store:
        return list(store.events(store.resolve("@latest")))


def test_the_record_is_that_of_the_command(prepared: Prepared, ledger: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(prepared.plan.data)
    with realize_into(
        ledger, plan, checkpoint=str(prepared.checkpoint), reference=str(prepared.reference), labels={"by": "test"}
    ) as run:
        assert run.judgement.verdict == "PASS"
        assert run.judgement.findings == []
        assert next(run.model.parameters()).numel() > 0
        assert latest(ledger)[-1].type == "verdict.recorded", "it stands before the model is handed out"
        assert run.run_id == latest(ledger)[0].run_id
    events = latest(ledger)
    opened, verdict = events[0].body, events[-1]
    assert (opened.frozen.position, opened.frozen.ledger_size, opened.labels) == (0, 1, {"by": "test"})
    assert [event.type for event in events].count("verdict.recorded") == 1
    assert (verdict.actor.kind, verdict.elapsed_ns, verdict.body.verdict, verdict.body.codes) == (
        "judge",
        None,
        "PASS",
        [],
    )
    assert verify_ledger(ledger).status == "valid", "by the pin that was moved"
    with Store.open(str(ledger)) as store:
        assert store.blob(prepared.plan.blob_digest) == prepared.plan.data


def test_what_is_raised_in_the_block_passes_through_and_changes_nothing_recorded(
    prepared: Prepared, ledger: Path
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        realize_into(ledger, prepared.plan, checkpoint=str(prepared.checkpoint), reference=prepared.reference),
    ):
        raise ZeroDivisionError
    types = [event.type for event in latest(ledger)]
    assert types[-2:] == ["run.closed", "verdict.recorded"]
    assert types.count("verdict.recorded") == 1


class Failing(CausalLM):
    error: BaseException = RuntimeError("it broke")

    def realize(self, materialization_id: str, memory: Any, loader: Any) -> Any:
        raise self.error


class Interrupted(Failing):
    error = KeyboardInterrupt()


@pytest.mark.parametrize(
    ("wanted", "error", "outcome", "verdict"),
    [
        ({"adapter": Failing}, AdapterFault, "failed", "FAIL"),
        ({"adapter": Interrupted}, KeyboardInterrupt, "aborted", "INDETERMINATE"),
        ({"reference": None}, PlanRejected, "rejected", "FAIL"),
    ],
)
def test_a_run_that_ends_early_is_closed_and_judged(
    prepared: Prepared, ledger: Path, wanted: dict[str, Any], error: type[BaseException], outcome: str, verdict: str
) -> None:
    asked = {"checkpoint": str(prepared.checkpoint), "reference": prepared.reference, **wanted}
    with pytest.raises(error), realize_into(ledger, prepared.plan, **asked):
        raise AssertionError("a run that did not complete hands out no model")
    closed, judged = latest(ledger)[-2:]
    assert (closed.body.outcome, judged.body.verdict) == (outcome, verdict)


def test_a_plan_that_is_none_begins_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    for name, said in (("plan.json", "is no plan"), ("absent.json", "cannot be read")):
        with pytest.raises(PlanError, match=said), realize_into(tmp_path / "new.db", tmp_path / name):
            raise AssertionError("it began")
    assert not (tmp_path / "new.db").exists()
