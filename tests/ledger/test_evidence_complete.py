"""Evidence laid against the ledger that it is from: what was left out of it, and which witnesses count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import Body, MaterializationObserved, RunClosed, RunOpened, RunSuperseded, VerdictRecorded
from ledger.body_parts import ModelIdentity
from ledger.documents import VerificationDocument
from ledger.evidence import EvidenceInput, Requirements, open_evidence, seal, verify
from ledger.evidence_scope import JUDGE_VERSION
from ledger.export import evidence_input, export_run, ledger_view
from ledger.measurement import measured, unavailable
from ledger.recording import ListLedger
from ledger.store import Store
from tests.builders.evidence import edited
from tests.builders.judged import (
    KEY,
    PLAN,
    add_run,
    add_verdict,
    add_witness,
    draft,
    fill,
    run_bodies,
    run_id,
    stored,
)
from tests.builders.runs import edited_plan, with_values

PUBLIC = KEY.public_key()


def contradicted() -> ListLedger:
    """A clean run whose witness saw the weights with another size, and which was not judged yet."""
    contents = ListLedger()
    bodies = run_bodies()
    add_run(contents, 1, bodies=bodies, verdict=False)
    weights = next(body for body in bodies if isinstance(body, MaterializationObserved))
    seen: list[Body] = [with_values(weights, {"bytes": measured(1, "bytes", "from outside")})]
    add_witness(contents, 2, run_id(1), seen=seen)
    return contents


@pytest.fixture
def failed(tmp_path: Path) -> tuple[Path, bytes]:
    """The ledger with the verdict, and the evidence as it could be sealed before the verdict was recorded."""
    contents = contradicted()
    path = stored(tmp_path / "tally.db", contents)
    with Store.open(path) as store:
        early = export_run(store, run_id(1), KEY)
    add_verdict(contents, run_id(1))
    with Store.open(path, write=True) as store:
        fill(store, contents)
    return path, early


def against(path: Path, data: bytes, require: str = "complete") -> VerificationDocument:
    with Store.open(path) as store:
        view = ledger_view(store, open_evidence(data))
    return verify(data, public_key=PUBLIC, require=Requirements.parse(require), prior_runs_from_ledger=view)


def resealed(path: Path, edit: Callable[[EvidenceInput], EvidenceInput]) -> bytes:
    """What somebody who reads the ledger can seal."""
    with Store.open(path) as store:
        return seal(edit(evidence_input(store, run_id(1))), KEY)


def test_the_whole_run_is_complete(failed: tuple[Path, bytes]) -> None:
    path, _ = failed
    document = against(path, resealed(path, lambda bundle: bundle))
    assert (document.status, document.unmet, document.verdict) == ("valid", [], "FAIL")
    assert "43 events, 0 prior runs and 1 witness at size" in (document.completeness or "")


def test_a_run_cut_before_its_verdict_is_not_complete(failed: tuple[Path, bytes]) -> None:
    path, early = failed
    assert open_evidence(early).events[-1].type != "verdict.recorded"
    assert verify(early, public_key=PUBLIC).status == "valid", "nothing but the ledger can say that more follows"
    document = against(path, early)
    assert (document.status, document.problems[0].code) == ("broken", "tail")
    assert "1 more follow" in document.problems[0].detail
    assert [line.partition(":")[0] for line in document.unmet] == ["complete"]


def test_a_supersession_after_a_run_without_a_verdict_leaves_it_complete(tmp_path: Path) -> None:
    contents = ListLedger()
    add_run(contents, 1, bodies=run_bodies(), verdict=False)
    path = stored(tmp_path / "tally.db", contents)
    with Store.open(path) as store:
        data = export_run(store, run_id(1), KEY)
    count = len(contents.events(run_id(1)))
    contents.append(run_id(1), count, [draft(RunSuperseded(reason="x", by=run_id(2)), run_id(1), count)])
    with Store.open(path, write=True) as store:
        fill(store, contents)
    document = against(path, data)
    assert (document.status, document.unmet) == ("valid", [])


@pytest.mark.parametrize(
    ("edit", "code", "said"),
    [
        (lambda bundle: replace(bundle, witnesses=[]), "proof", "3 events in the ledger at that size, 0 in"),
        (lambda bundle: replace(bundle, witnesses=[bundle.witnesses[0][:1]]), "tail", "at that size, 1 in"),
        (lambda bundle: replace(bundle, witnesses=[bundle.witnesses[0][:2]]), "tail", "at that size, 2 in"),
    ],
)
def test_a_witness_left_out_or_cut_is_named(
    failed: tuple[Path, bytes], edit: Callable[[EvidenceInput], EvidenceInput], code: str, said: str
) -> None:
    path, _ = failed
    contents = contradicted()
    count = len(contents.events(run_id(1)))
    # The verdict of a run that nobody contradicts, so that nothing but the ledger can tell.
    clean = VerdictRecorded(judge_version="0", verdict="PASS", assurance="observed", codes=[])
    contents.append(run_id(1), count, [draft(clean, run_id(1), count)])
    path = stored(path.with_name("other.db"), contents)
    data = resealed(path, edit)
    document = against(path, data)
    assert (document.status, document.problems[0].code) == ("broken", code)
    assert f"witness {run_id(2)} has" in document.problems[0].detail
    assert said in document.problems[0].detail
    assert (document.completeness or "").startswith("incomplete: ")
    assert "the witnesses" in (document.completeness or "")


def test_without_a_ledger_the_signers_word_is_called_so(failed: tuple[Path, bytes]) -> None:
    document = verify(failed[1], public_key=PUBLIC)
    for what in ("completeness unchecked", "the end of the run", "list of witnesses", "prior runs"):
        assert what in (document.completeness or "")


# --- which witness counts -----------------------------------------------------------------------------------------


def witnessed(tmp_path: Path, bodies: list[Body] | None = None, **options: Any) -> list[str]:
    """What is not met of `witness`, of a run watched so."""
    contents = ListLedger()
    add_run(contents, 1, bodies=bodies or run_bodies(), verdict=False)
    add_witness(contents, 2, run_id(1), **options)
    add_verdict(contents, run_id(1))
    with Store.open(stored(tmp_path / "tally.db", contents)) as store:
        data = export_run(store, run_id(1), KEY)
    document = verify(data, public_key=PUBLIC, require=Requirements.parse("witness"))
    assert document.status == "valid"
    told = " ".join(open_evidence(data).statement.predicate.scope.proves)
    assert ("A separate process" in told) == (not document.unmet)
    return document.unmet


OWN = run_bodies()[0]
assert isinstance(OWN, RunOpened)
HIDDEN = unavailable(None, "getpid", "withheld")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, None),
        ({"pid": OWN.pid, "hostname": measured("node-b", None, "uname")}, None),
        ({"pid": OWN.pid}, "it was the run's own process"),
        ({"pid": HIDDEN}, "its id is withheld"),
        ({"seen": []}, "it recorded no sample"),
        ({"seen": [RunClosed(outcome="aborted")]}, "it ended as aborted"),
    ],
)
def test_a_witness_that_counts_is_another_process_that_looked_to_the_end(
    options: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    unmet = witnessed(tmp_path, **options)
    assert len(unmet) == (0 if said is None else 1)
    assert said is None or said in unmet[0]


# --- the same model under another name ----------------------------------------------------------------------------


def prior_runs(tmp_path: Path, model: ModelIdentity, **planned: str | None) -> int:
    other = edited_plan(PLAN, lambda document: document["model"].update(repository="somebody/else", **planned))
    contents = ListLedger()
    add_run(contents, 1, other, bodies=run_bodies(other, model=model))
    add_run(contents, 2, bodies=run_bodies())
    with Store.open(stored(tmp_path / "tally.db", contents, (PLAN, other))) as store:
        return len(open_evidence(export_run(store, run_id(2), KEY)).prior_runs)


def test_an_earlier_run_of_the_same_checkpoint_under_another_name_is_a_prior_run(tmp_path: Path) -> None:
    assert isinstance(OWN, RunOpened)
    assert OWN.model is not None
    silent = {"headers_digest": None, "config_digest": None}
    strange = measured("sha256:" + "0d" * 32, None, "sha256")
    other = OWN.model.model_copy(update={"headers_digest": strange, "config_digest": strange})
    cases = {
        "found the same": (OWN.model, silent, 1),
        "found the same headers": (other.model_copy(update={"headers_digest": OWN.model.headers_digest}), silent, 1),
        "found the same configuration": (
            other.model_copy(update={"config_digest": OWN.model.config_digest}),
            silent,
            1,
        ),
        "planned the same": (other, {**silent, "headers_digest": OWN.model.headers_digest.value}, 1),
        "nothing the same": (other, silent, 0),
    }
    for name, (model, planned, expected) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        assert prior_runs(folder, model, **planned) == expected, name  # type: ignore[arg-type] # digests are text


# --- whose conclusions --------------------------------------------------------------------------------------------


def concluded_by(stated: str, recorded: str | None, tmp_path: Path) -> VerificationDocument:
    """A statement that names one judge and lies about the scope, of a run whose verdict names another."""
    contents = ListLedger()
    add_run(contents, 1, bodies=run_bodies(), verdict=recorded == JUDGE_VERSION)
    if recorded not in (None, JUDGE_VERSION):
        count = len(contents.events(run_id(1)))
        verdict = VerdictRecorded(judge_version=str(recorded), verdict="PASS", assurance="observed", codes=[])
        contents.append(run_id(1), count, [draft(verdict, run_id(1), count)])
    with Store.open(stored(tmp_path / "tally.db", contents)) as store:
        data = export_run(store, run_id(1), KEY)

    def lie(predicate: dict[str, Any]) -> None:
        predicate.update(judgeVersion=stated, verdict="FAIL")
        predicate["scope"]["proves"].append("Everything.")

    return verify(edited(data, lie, KEY), public_key=PUBLIC)


@pytest.mark.parametrize(
    ("stated", "recorded", "status", "judge"),
    [
        ("0", JUDGE_VERSION, "broken", "failed"),
        ("99", JUDGE_VERSION, "broken", "failed"),
        ("x", JUDGE_VERSION, "broken", "failed"),
        ("0", "0", "valid", "not-checked"),
        ("99", "99", "valid", "not-checked"),
        ("x", "0", "broken", "failed"),
        ("99", "0", "broken", "failed"),
        ("0", None, "valid", "not-checked"),
        (JUDGE_VERSION, "0", "broken", "failed"),
    ],
)
def test_a_statement_names_the_judge_of_the_recorded_verdict_or_ours(
    stated: str, recorded: str | None, status: str, judge: str, tmp_path: Path
) -> None:
    document = concluded_by(stated, recorded, tmp_path)
    assert (document.status, document.checks.judge) == (status, judge)
    assert (document.verdict, document.judge_version) == ("PASS", JUDGE_VERSION)
    assert {problem.code for problem in document.problems} <= {"judge"}


def test_a_judge_between_the_recorded_one_and_ours_may_have_concluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.evidence_scope.JUDGE_VERSION", "7")
    document = concluded_by("5", "3", tmp_path)
    assert (document.status, document.checks.judge) == ("valid", "not-checked")
