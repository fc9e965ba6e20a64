"""Sealed evidence: the same bytes every time, verified from the file alone, anchored by key, pin and ledger."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledger import canonical, evidence_scope, pins
from ledger.bodies import Body, MaterializationObserved, RunOpened, RunSuperseded, VerdictRecorded
from ledger.body_parts import ModelIdentity
from ledger.checkpoints import Checkpoint, NoteError, parse_checkpoint
from ledger.errors import EvidenceBroken, LedgerBroken, LedgerError, NotFound, TallyError
from ledger.events import first_previous
from ledger.evidence import (
    LedgerView,
    PriorRun,
    Requirements,
    open_evidence,
    read_pin,
    verify,
)
from ledger.export import evidence_input, export_run, ledger_view
from ledger.intake import import_evidence
from ledger.measurement import measured
from ledger.merkle import Frontier
from ledger.recording import ListLedger
from ledger.store import Store
from tests.builders.evidence import edited, file_of, reproved, set_envelope, statement_of
from tests.builders.judged import (
    KEY,
    OTHER_KEY,
    PLAN,
    TENSORS,
    add_run,
    add_verdict,
    add_witness,
    draft,
    fill,
    one_run,
    run_bodies,
    run_id,
    stored,
)
from tests.builders.runs import edited_plan
from tests.zoo import evidence as zoo

PUBLIC = KEY.public_key()
FINDING = {"code": "run.failed", "severity": "error", "subject": "x", "expected": None, "observed": None, "events": []}


def model_of(headers: str, config: str) -> ModelIdentity:
    """What a run found of a checkpoint with those digests."""
    found = run_bodies()[0]
    assert isinstance(found, RunOpened)
    assert found.model is not None
    digests = {"headers_digest": headers, "config_digest": config}
    return found.model.model_copy(
        update={name: measured("sha256:" + digest * 32, None, "sha256") for name, digest in digests.items()}
    )


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one model, one of another, and a supersession of the first."""
    contents = ListLedger()
    other = edited_plan(
        PLAN,
        lambda document: document["model"].update(
            repository="example/other", headers_digest="sha256:" + "0e" * 32, config_digest="sha256:" + "0c" * 32
        ),
    )
    add_run(contents, 1, bodies=run_bodies())
    add_run(contents, 2, other, bodies=run_bodies(other, model=model_of("0e", "0c")))
    add_run(contents, 3, bodies=run_bodies(challenge="nonce-17"))
    return stored(tmp_path_factory.mktemp("ledger") / "tally.db", contents, (PLAN, other))


@pytest.fixture(scope="module")
def first(ledger: Path) -> bytes:
    with Store.open(ledger) as store:
        return export_run(store, run_id(1), KEY)


@pytest.fixture(scope="module")
def third(ledger: Path) -> bytes:
    with Store.open(ledger) as store:
        return export_run(store, run_id(3), KEY)


@pytest.fixture(scope="module")
def pin(third: bytes) -> Checkpoint:
    return open_evidence(third).checkpoint


# --- the file -----------------------------------------------------------------------------------------------------


def test_a_sealed_run_is_valid_by_its_key_and_judged_again(third: bytes) -> None:
    document = verify(third, public_key=PUBLIC)
    assert (document.status, document.problems, document.unmet) == ("valid", [], [])
    assert (document.verdict, document.assurance, document.recorded_verdict) == ("PASS", "observed", "PASS")
    assert document.judge_version == evidence_scope.JUDGE_VERSION
    checks = document.checks.model_dump()
    assert checks.pop("pin") == "not-checked"
    assert set(checks.values()) == {"ok"}
    assert (document.completeness or "").startswith("completeness unchecked")


def test_the_file_is_the_canonical_envelope_and_a_newline(third: bytes) -> None:
    outer = json.loads(third)
    assert third == canonical.encode(outer).encode() + b"\n"
    payload = base64.b64decode(outer["payload"], validate=True)
    statement = json.loads(payload)
    assert payload == canonical.encode(statement).encode()
    assert outer["payloadType"] == "application/vnd.in-toto+json"
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert len(outer["signatures"]) == 1


def test_the_subjects_are_the_plan_and_the_last_event(third: bytes) -> None:
    statement = statement_of(third)
    plan, last = statement["subject"]
    assert plan["digest"] == {
        "sha256": PLAN.blob_digest.removeprefix("sha256:"),
        "planDigest": PLAN.computed_digest.removeprefix("sha256:"),
    }
    envelope = statement["predicate"]["events"][-1]["envelope"]
    assert last["digest"]["eventHash"] == canonical.event_hash(envelope)
    assert last["digest"]["sha256"] == canonical.sha256_digest(envelope.encode()).removeprefix("sha256:")


def test_hashed_checkpoint_files_are_subjects(tmp_path: Path) -> None:
    opened = run_bodies()[0]
    assert isinstance(opened, RunOpened)
    hashed = [opened.checkpoint_files[0].model_copy(update={"digest": measured("sha256:" + "ab" * 32, None, "sha256")})]
    path = stored(tmp_path / "t.db", one_run(bodies=run_bodies(checkpoint_files=hashed)))
    with Store.open(path) as store:
        data = export_run(store, run_id(1), KEY)
    assert statement_of(data)["subject"][1] == {
        "name": "checkpoint/model.safetensors",
        "digest": {"sha256": "ab" * 32},
    }
    assert "hashed in this run: model.safetensors" in " ".join(statement_of(data)["predicate"]["scope"]["proves"])
    assert verify(data, public_key=PUBLIC).status == "valid"


def test_two_exports_are_the_same_bytes_however_the_ledger_grew(ledger: Path, first: bytes, tmp_path: Path) -> None:
    contents = ListLedger()
    add_run(contents, 1, bodies=run_bodies())
    path = stored(tmp_path / "t.db", contents)
    with Store.open(path) as store:
        before = export_run(store, run_id(1), KEY)
        unsigned = export_run(store, run_id(1))
    add_run(contents, 2, bodies=run_bodies())
    add_verdict(contents, run_id(1))
    events = contents.events(run_id(1))
    body = RunSuperseded(reason="measured again", by=run_id(2))
    contents.append(run_id(1), len(events), [draft(body, run_id(1), len(events))])
    with Store.open(path, write=True) as store:
        fill(store, contents)
        assert export_run(store, run_id(1), KEY) == before
        assert export_run(store, run_id(1)) == unsigned
    assert len(open_evidence(before).recorded) == len(events) - 1
    origins = {statement_of(data)["predicate"]["checkpoint"].split("\n")[0] for data in (first, before)}
    assert len(origins) == 2


def test_a_run_without_a_verdict_is_sealed_to_its_last_event(tmp_path: Path) -> None:
    contents = ListLedger()
    add_run(contents, 1, bodies=run_bodies()[:9], verdict=False)
    path = stored(tmp_path / "t.db", contents)
    with Store.open(path) as store:
        document = verify(export_run(store, run_id(1), KEY), public_key=PUBLIC)
    assert (document.status, document.verdict) == ("valid", "INDETERMINATE")


# --- key ----------------------------------------------------------------------------------------------------------


def test_without_a_key_nothing_is_anchored(ledger: Path, third: bytes) -> None:
    document = verify(third)
    assert (document.status, document.checks.signature, document.verdict) == ("valid-unanchored", "not-checked", "PASS")
    with Store.open(ledger) as store:
        unsigned = export_run(store, run_id(3))
    assert verify(unsigned).status == "valid-unanchored"
    document = verify(unsigned, public_key=PUBLIC)
    assert (document.status, document.checks.signature) == ("broken", "failed")
    assert [problem.code for problem in document.problems] == ["signature"]


def test_a_foreign_signature_is_broken(third: bytes) -> None:
    for data, key in ((third, OTHER_KEY), (file_of(statement_of(third), OTHER_KEY), KEY)):
        document = verify(data, public_key=key.public_key())
        assert (document.status, [problem.code for problem in document.problems]) == ("broken", ["signature"])
        assert document.verdict is None


# --- pin and ledger -----------------------------------------------------------------------------------------------


def test_a_pin_taken_right_after_the_run_anchors_it(third: bytes, pin: Checkpoint, ledger: Path) -> None:
    with Store.open(ledger) as store:
        note, _ = pins.note(store)
    assert read_pin(note) == pin
    for given in (pin, note, note.decode()):
        document = verify(third, pin=given)
        assert (document.status, document.checks.pin) == ("valid", "ok")


def forged(data: bytes) -> bytes:
    """An event changed, and everything made to fit that can be made to fit without the key."""
    statement = statement_of(data)
    set_envelope(statement["predicate"], 2, recorded_at="2026-11-29T12:00:00.000001Z")
    reproved(statement)
    return file_of(statement)


def test_another_tree_at_the_pins_size_is_a_fork(third: bytes, pin: Checkpoint) -> None:
    for wrong in (Checkpoint(pin.origin, pin.size, b"x" * 32), Checkpoint("elsewhere", pin.size, pin.root)):
        document = verify(third, pin=wrong, public_key=PUBLIC)
        assert (document.status, document.checks.pin) == ("broken", "failed")
        assert [problem.code for problem in document.problems] == ["fork"]
    forgery = forged(third)
    assert verify(forgery).status == "valid-unanchored", "a forger who makes everything fit is stopped by anchors alone"
    document = verify(forgery, pin=pin)
    assert (document.status, document.checks.pin) == ("valid-unanchored", "not-checked")
    assert document.unmet, "a pin that was given and does not connect is a requirement that is not met"
    at_its_size = open_evidence(forgery).checkpoint.size
    assert verify(forgery, pin=Checkpoint(pin.origin, at_its_size, pin.root)).status == "broken"


def test_pins_of_other_sizes_need_the_ledger(first: bytes, third: bytes, pin: Checkpoint, ledger: Path) -> None:
    earlier = open_evidence(first).checkpoint
    alone = verify(first, pin=pin)
    assert (alone.status, alone.checks.pin) == ("valid-unanchored", "not-checked")
    assert "--ledger" in alone.unmet[0]
    older = verify(third, pin=earlier)
    assert (older.checks.pin, len(older.unmet)) == ("not-checked", 1)
    with Store.open(ledger) as store:
        view = ledger_view(store, open_evidence(first), pin)
        newer = verify(first, pin=pin, prior_runs_from_ledger=view)
        assert (newer.status, newer.checks.pin, newer.unmet) == ("valid", "ok", [])
        held = verify(third, pin=earlier, prior_runs_from_ledger=ledger_view(store, open_evidence(third), earlier))
        # It holds, but what came after it could be anything.
        assert (held.status, held.checks.pin) == ("valid-unanchored", "ok")
        assert "older than the run" in held.unmet[0]
        assert "it covers 0 of the run's" in held.unmet[0]
        wrong = Checkpoint(pin.origin, pin.size, b"x" * 32)
        forked = verify(first, pin=wrong, prior_runs_from_ledger=ledger_view(store, open_evidence(first), wrong))
        assert (forked.status, forked.problems[0].code) == ("broken", "fork")


def test_a_pin_of_nothing_anchors_nothing(third: bytes, ledger: Path) -> None:
    nothing = Checkpoint(open_evidence(third).checkpoint.origin, 0, Frontier().root())
    with Store.open(ledger) as store:
        view = ledger_view(store, open_evidence(third), nothing)
    document = verify(third, pin=nothing, prior_runs_from_ledger=view, require=Requirements.parse("pin"))
    assert (document.status, document.checks.pin, document.problems) == ("valid-unanchored", "not-checked", [])
    assert ["size 0" in line for line in document.unmet] == [True]
    wrong = Checkpoint(nothing.origin, 0, b"x" * 32)
    with Store.open(ledger) as store:
        view = ledger_view(store, open_evidence(third), wrong)
    assert verify(third, pin=wrong, prior_runs_from_ledger=view).problems[0].code == "fork"


def test_a_garbled_pin_is_an_error(third: bytes) -> None:
    for pin in (b"", b"\xff", "a\nb\nc\n"):
        with pytest.raises(NoteError):
            verify(third, pin=pin)


def test_prior_runs_are_those_of_the_same_model(first: bytes, third: bytes) -> None:
    assert open_evidence(first).prior_runs == []
    assert open_evidence(third).prior_runs == [
        PriorRun(run_id=run_id(1), plan_digest=PLAN.computed_digest, outcome="completed", verdict="PASS", position=1)
    ]


def test_prior_runs_are_as_at_the_end_of_the_tree(tmp_path: Path) -> None:
    """A run that was still open when this one ended, and was closed later, is listed as incomplete."""
    contents = ListLedger()
    bodies = run_bodies()
    add_run(contents, 1, bodies=bodies[:5], verdict=False)
    add_run(contents, 2, bodies=bodies)
    rest = [draft(body, run_id(1), 5 + index) for index, body in enumerate(bodies[5:])]
    contents.append(run_id(1), 5, rest)
    with Store.open(stored(tmp_path / "t.db", contents)) as store:
        data = export_run(store, run_id(2), KEY)
        view = ledger_view(store, open_evidence(data))
    (prior,) = open_evidence(data).prior_runs
    assert (prior.outcome, prior.verdict) == ("incomplete", None)
    assert verify(data, public_key=PUBLIC, prior_runs_from_ledger=view).status == "valid"


def test_a_ledger_proves_the_list_of_prior_runs(third: bytes, ledger: Path) -> None:
    with Store.open(ledger) as store:
        view = ledger_view(store, open_evidence(third))
        complete = verify(third, public_key=PUBLIC, prior_runs_from_ledger=view)
        assert (complete.status, (complete.completeness or "")[:9]) == ("valid", "complete:")
        for hidden in (
            edited(third, lambda predicate: predicate.update(priorRuns=[]), KEY),
            edited(third, lambda predicate: predicate["priorRuns"][0].update(verdict="FAIL"), KEY),
            edited(third, lambda predicate: predicate["priorRuns"][0].update(outcome="failed"), KEY),
        ):
            document = verify(hidden, public_key=PUBLIC, prior_runs_from_ledger=view)
            assert (document.status, document.problems[0].code) == ("broken", "proof")
            assert document.problems[0].position == 1
            assert (document.completeness or "").startswith("incomplete")


def test_another_ledger_proves_nothing(third: bytes, tmp_path: Path) -> None:
    with Store.open(stored(tmp_path / "other.db", one_run(bodies=run_bodies()))) as store:
        view = ledger_view(store, open_evidence(third))
    assert (verify(third, prior_runs_from_ledger=view).problems[0].code) == "fork"
    origin = open_evidence(third).checkpoint.origin
    cut = LedgerView(origin, view.size, {}, [], 0, 0, {})
    assert (verify(third, prior_runs_from_ledger=cut).problems[0].code) == "rollback"


# --- requirements -------------------------------------------------------------------------------------------------


def unmet(data: bytes, require: str, **options: Any) -> list[str]:
    demanded = Requirements.parse(require) if require else None
    return [line.partition(":")[0] for line in verify(data, require=demanded, **options).unmet]


def test_each_requirement_is_met_or_named(first: bytes, third: bytes, pin: Checkpoint, ledger: Path) -> None:
    assert unmet(third, "signature,pin,frozen,challenge,blobs,assurance=observed", public_key=PUBLIC, pin=pin,
                 challenge="nonce-17") == []  # fmt: skip
    assert unmet(third, "signature,pin,challenge,complete,first-run,witness,assurance=content-verified") == [
        "challenge", "complete", "first-run", "pin", "signature", "witness", "assurance",
    ]  # fmt: skip
    assert unmet(first, "first-run", public_key=PUBLIC) == []
    assert unmet(first, "first-run") == ["first-run"], "an unsigned list that is empty is nobody's word"
    assert unmet(first, f"plan={PLAN.computed_digest}") == []
    assert unmet(first, f"plan=sha256:{'0' * 64}") == ["plan"]
    neither = Requirements.parse(f"plan={PLAN.computed_digest}") | Requirements.parse(f"plan=sha256:{'0' * 64}")
    assert [line.partition(":")[0] for line in verify(first, require=neither).unmet] == ["plan"]
    with Store.open(ledger) as store:
        view = ledger_view(store, open_evidence(third))
    assert unmet(third, "complete", prior_runs_from_ledger=view) == []
    assert unmet(third, "first-run", prior_runs_from_ledger=view) == ["first-run"]


def test_a_challenge_must_be_the_one_given(first: bytes, third: bytes) -> None:
    assert unmet(third, "", challenge="nonce-17") == []
    assert unmet(third, "", challenge="nonce-18") == ["challenge"]
    assert unmet(third, "challenge", challenge="nonce-18") == ["challenge"]
    assert unmet(first, "", challenge="nonce-17") == ["challenge"]


def test_a_plan_that_was_not_frozen_first_is_unmet(tmp_path: Path) -> None:
    contents = ListLedger()
    bodies: list[Body] = [body.model_copy(update={"frozen": None}) if isinstance(body, RunOpened) else body
                          for body in run_bodies()]  # fmt: skip
    drafts = [draft(body, run_id(1), index) for index, body in enumerate(bodies)]
    assert first_previous(drafts[0].body) == PLAN.computed_digest.removeprefix("sha256:")
    contents.append(run_id(1), 0, drafts)
    with Store.open(stored(tmp_path / "t.db", contents)) as store:
        data = export_run(store, run_id(1), KEY)
    assert unmet(data, "frozen", public_key=PUBLIC) == ["frozen"]


def test_broken_evidence_meets_no_requirement(third: bytes) -> None:
    broken = edited(third, lambda predicate: predicate["events"].pop(3), KEY)
    document = verify(broken, public_key=PUBLIC, require=Requirements.parse("frozen,first-run,assurance=declared"))
    assert document.status == "broken"
    assert [line.partition(":")[0] for line in document.unmet] == ["first-run", "frozen", "assurance"]


# --- witnesses and documents --------------------------------------------------------------------------------------


def with_blob(bodies: list[Body]) -> list[Body]:
    digest = canonical.sha256_digest(TENSORS)
    return [
        body.model_copy(update={"tensors_blob": digest}) if isinstance(body, MaterializationObserved) else body
        for body in bodies
    ]


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """A run with a document and a witness; the witness ends before the verdict."""
    contents = ListLedger()
    add_run(contents, 1, bodies=with_blob(run_bodies()), verdict=False)
    add_witness(contents, 2, run_id(1))
    add_verdict(contents, run_id(1))
    path = stored(tmp_path / "t.db", contents)
    with Store.open(path, write=True) as store:
        store.put_blob(TENSORS, "application/json")
    return path


def test_witnesses_are_exported_with_the_run(watched: Path) -> None:
    with Store.open(watched) as store:
        data = export_run(store, run_id(1), KEY)
        with pytest.raises(TallyError, match="witness"):
            export_run(store, run_id(2), KEY)
    evidence = open_evidence(data)
    assert [[event.type for event in events] for events in evidence.witnesses] == [
        ["run.opened", "memory.sampled", "run.closed"]
    ]
    assert unmet(data, "witness", public_key=PUBLIC) == []
    assert verify(data, public_key=PUBLIC).status == "valid"


def test_documents_are_named_by_digest_or_attached(watched: Path) -> None:
    digest = canonical.sha256_digest(TENSORS)
    with Store.open(watched) as store:
        named, attached = export_run(store, run_id(1), KEY), export_run(store, run_id(1), KEY, attach=True)
    assert statement_of(named)["predicate"]["blobs"] == [{"digest": digest, "data": None}]
    assert digest not in open_evidence(named).blobs
    assert open_evidence(attached).blobs == {digest: TENSORS, PLAN.blob_digest: PLAN.data}
    assert verify(named, public_key=PUBLIC).checks.blobs == "not-checked"
    assert verify(attached, public_key=PUBLIC).checks.blobs == "ok"
    assert unmet(named, "blobs") == ["blobs"]
    assert unmet(attached, "blobs") == []


def test_what_the_ledger_lacks_is_not_sealed(watched: Path, tmp_path: Path) -> None:
    contents = one_run(bodies=with_blob(run_bodies()))
    lacking = tmp_path / "lacking.db"
    with Store.open(lacking, write=True, create=True) as store:
        fill(store, contents)
        with pytest.raises(LedgerBroken, match="document"):
            export_run(store, run_id(1), attach=True)
        with pytest.raises(NotFound):
            export_run(store, run_id(77))
    with Store.open(tmp_path / "planless.db", write=True, create=True) as store:
        fill(store, contents, plans=())
        with pytest.raises(LedgerBroken, match="plan"):
            export_run(store, run_id(1))


def test_a_broken_ledger_makes_no_evidence(ledger: Path, tmp_path: Path) -> None:
    from tests.zoo.ledgers import good, make

    source = good(tmp_path / "good.db")
    for name in ("edited-and-rehashed", "deleted-and-closed-up", "duplicate-key-in-body"):
        make(name, source, tmp_path / f"{name}.db")
        with Store.open(tmp_path / f"{name}.db") as store, pytest.raises((EvidenceBroken, TallyError)):
            export_run(store, run_id(1), KEY)


# --- another judge ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "FAIL"},
        {"assurance": "content-verified"},
        {"environment": None},
        {"findings": [FINDING]},
        {"scope": {"proves": ["Everything."], "unknown": [], "doesNotProve": []}},
    ],
)
def test_the_same_judge_must_come_to_the_same(third: bytes, change: dict[str, Any]) -> None:
    document = verify(edited(third, lambda predicate: predicate.update(change), KEY), public_key=PUBLIC)
    assert (document.status, document.checks.judge) == ("broken", "failed")
    assert {problem.code for problem in document.problems} == {"judge"}


def test_an_edited_accounting_is_broken(third: bytes) -> None:
    def edit(predicate: dict[str, Any]) -> None:
        predicate["accounting"]["hostMirror"]["value"] = 1

    assert verify(edited(third, edit, KEY), public_key=PUBLIC).problems[0].code == "judge"


def test_a_recorded_verdict_that_the_same_judge_does_not_give_is_broken(tmp_path: Path) -> None:
    contents = ListLedger()
    add_run(contents, 1, bodies=run_bodies(), verdict=False)
    count = len(contents.events(run_id(1)))
    lie = VerdictRecorded(judge_version=evidence_scope.JUDGE_VERSION, verdict="FAIL", assurance="observed", codes=[])
    contents.append(run_id(1), count, [draft(lie, run_id(1), count)])
    with Store.open(stored(tmp_path / "t.db", contents)) as store:
        document = verify(export_run(store, run_id(1), KEY), public_key=PUBLIC)
    assert (document.status, document.verdict) == ("broken", "PASS")
    assert (document.problems[0].code, document.problems[0].sequence) == ("judge", count)


# --- into a ledger ------------------------------------------------------------------------------------------------


def test_an_imported_run_keeps_its_bytes_and_gets_no_verdict(watched: Path, tmp_path: Path) -> None:
    with Store.open(watched) as store:
        data = export_run(store, run_id(1), KEY, attach=True)
        original = [place.envelope for place in store.recorded(run_id(1))]
    with Store.open(tmp_path / "other.db", write=True, create=True) as target:
        taken = import_evidence(target, data)
        assert [place.envelope for place in target.recorded(run_id(1))] == original
        assert taken.added == target.size() == len(original) + 4
        assert target.witnesses(run_id(1)) == [run_id(2)]
        assert target.blob(canonical.sha256_digest(TENSORS)) == TENSORS
        assert import_evidence(target, data).added == 0
        again = export_run(target, run_id(1), KEY, attach=True)
    assert verify(again, public_key=PUBLIC).status == "valid"
    theirs, ours = statement_of(data)["predicate"], statement_of(again)["predicate"]
    assert [event["envelope"] for event in theirs["events"]] == [event["envelope"] for event in ours["events"]]


def test_an_import_that_stopped_halfway_is_continued(first: bytes, tmp_path: Path) -> None:
    with Store.open(tmp_path / "half.db", write=True, create=True) as target:
        half = ListLedger()
        add_run(half, 1, bodies=run_bodies()[:7], verdict=False)
        fill(target, half)
        assert import_evidence(target, first).added == len(open_evidence(first).recorded) - 7


def test_another_run_under_the_same_id_is_refused(first: bytes, tmp_path: Path) -> None:
    different = ListLedger()
    add_run(different, 1, bodies=run_bodies(labels={"purpose": "another"}))
    path = stored(tmp_path / "t.db", different)
    with Store.open(path, write=True) as target:
        size = target.size()
        with pytest.raises(LedgerError, match="other events"):
            import_evidence(target, first)
        assert target.size() == size
    with Store.open(tmp_path / "new.db", write=True, create=True) as target:
        broken = edited(first, lambda predicate: predicate["events"].pop(3), KEY)
        with pytest.raises(EvidenceBroken):
            import_evidence(target, broken)
        assert target.size() == 0


# --- the auditor's install ----------------------------------------------------------------------------------------


def test_verifying_imports_neither_torch_nor_a_database(third: bytes, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_bytes(third)
    code = (
        "import sys, pathlib\nfrom ledger.evidence import verify\n"
        "print(verify(pathlib.Path(sys.argv[1]).read_bytes()).status)\n"
        "bad = {'torch', 'sqlalchemy', 'alembic', 'sqlite3', 'pysqlite3', 'ledger.store', 'realizer'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "e.json")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "valid-unanchored\n"), done.stderr


def test_the_input_names_what_the_file_carries(ledger: Path, third: bytes) -> None:
    with Store.open(ledger) as store:
        bundle = evidence_input(store, run_id(3))
    assert bundle.checkpoint == parse_checkpoint(statement_of(third)["predicate"]["checkpoint"])
    assert bundle.plan_frozen is not None
    assert bundle.plan_frozen.recorded.position == 0
    assert len(bundle.prior_runs) == 1


def test_prior_runs_repeated_are_broken_beside_a_ledger_too(tmp_path: Path) -> None:
    given = zoo.files(tmp_path)
    forged = zoo.HELD["prior-run-twice"][0](given)
    with Store.open(given.ledger) as store:
        view = ledger_view(store, open_evidence(given.good))
    document = verify(forged, prior_runs_from_ledger=view)
    assert document.status == "broken"
    assert [problem.code for problem in document.problems] == ["format", "proof"]


def test_a_file_of_very_many_faults_is_judged_quickly_and_told_shortly(tmp_path: Path) -> None:
    def crowd(predicate: dict[str, Any]) -> None:
        predicate["blobs"] = [{"digest": f"{number:05}{'x' * 5000}", "data": ""} for number in range(2_000)]

    document = verify(edited(zoo.files(tmp_path).good, crowd))
    assert (document.status, document.checks.blobs, len(document.problems)) == ("broken", "failed", 50)
    assert max(len(problem.detail) for problem in document.problems) <= 2_000
