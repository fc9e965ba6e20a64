"""`plan draft`, `reference` and `realize` on a tiny model: exit codes, what is recorded, and that nothing is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ledger.canonical import r1_file
from ledger.errors import RealizationFailed
from ledger.plan import Plan, parse_plan
from ledger.store import Store
from realizer import drafting
from realizer.cli.realization import _answer
from tests.builders.checkpoints import tiny_model
from tests.builders.runs import edited_plan
from tests.cli.conftest import Tally

pytest.importorskip("torch")
pytest.importorskip("transformers")

TALLY = [sys.executable, "-m", "realizer.cli.main"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, its draft, reference and frozen plan, and the ledger that the freezing is in."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model(folder / "model")
    environment = {**os.environ, "TALLY_STATE_DIR": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    for arguments in (
        ["plan", "draft", "model", "--option", "max_cache_length=32", "--repetitions", "2", "-o", "draft.json"],
        ["reference", "draft.json", "--tokens", "3,5,7", "-o", "reference.safetensors"],
        ["plan", "freeze", "draft.json", "--reference", "reference.safetensors", "-o", "plan.json"],
    ):
        done = subprocess.run([*TALLY, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
    return folder


@pytest.fixture
def tiny(made: Path, tally: Tally, tmp_path: Path) -> Path:
    """A copy of it as the current folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def recorded(folder: Path, run_id: str = "@latest") -> list[dict[str, Any]]:
    with Store.open(folder / "tally.db") as store:
        return [json.loads(place.envelope) for place in store.recorded(store.resolve(run_id))]


def types(folder: Path) -> list[str]:
    return [event["type"] for event in recorded(folder)]


# --- done ---------------------------------------------------------------------------------------------------------


def test_a_realization_passes_is_recorded_and_its_verdict_appended(tally: Tally, tiny: Path) -> None:
    ran = tally(
        "realize",
        "plan.json",
        "--reference",
        "reference.safetensors",
        "--label",
        "who=test",
        "--challenge",
        "n",
        "--json",
    )
    assert ran.code == 0, ran.err
    document = ran.json
    assert (document["format"], document["outcome"], document["verdict"]) == ("tally.run/1", "completed", "PASS")
    assert document["assurance"] == "observed"
    events = recorded(tiny, document["run_id"])
    opened = events[0]["body"]
    assert (opened["labels"], opened["challenge"]) == ({"who": "test"}, "n")
    assert opened["frozen"] == {
        "hash": json.loads(json.dumps(opened["frozen"]["hash"])),
        "position": 0,
        "digest": parse_plan((tiny / "plan.json").read_bytes()).computed_digest,
        "ledger_size": 1,
    }
    assert [event["type"] for event in events[-2:]] == ["run.closed", "verdict.recorded"]
    last = events[-1]
    assert (last["actor"]["kind"], last["elapsed_ns"], last["body"]["verdict"]) == ("judge", None, "PASS")
    assert last["node_id"] == events[0]["node_id"]
    assert tally("runs", "--json").json["runs"][0]["verdict"] == "PASS"
    assert tally("verify", "--json").json["status"] == "valid"
    size = len(recorded(tiny))
    assert tally("reconcile", "@latest").code == 0
    assert len(recorded(tiny)) == size, "reconcile records nothing"


def test_the_outcome_for_people_fits_80_columns(tally: Tally, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = tally("realize", "plan.json", "--reference", "reference.safetensors", "--private")
    assert ran.code == 0, ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    assert ran.out.startswith("PASS")
    assert "released" in ran.out
    assert "FINDINGS  none" in ran.out
    opened = recorded(tiny)[0]["body"]
    assert {opened[name]["status"] for name in ("user", "hostname", "argv")} == {"unavailable"}


def test_two_runs_are_the_same_and_the_whole_walk_works(tally: Tally, tiny: Path) -> None:
    for _ in range(2):
        assert tally("realize", "plan.json", "--reference", "reference.safetensors").code == 0
    document = tally("compare", "@latest~1", "@latest", "--json").json
    different = {d["path"] for d in document["differences"] if d["kind"] == "different"}
    # While somebody edits the source beside the tests, the software differs, and nothing else may.
    assert not {path for path in different if not path.startswith("software.")}, different
    assert document["same"] is not bool(different)
    assert tally("keygen", "-o", "k.pem", "--no-passphrase").code == 0
    assert tally("export", "@latest", "--key", "k.pem", "-o", "evidence.json").code == 0
    ran = tally("verify", "evidence.json", "--key", "k.pub", "--require", "signature,frozen", "--json")
    assert (ran.code, ran.json["status"], ran.json["verdict"]) == (0, "valid", "PASS")


def test_a_password_in_the_arguments_is_not_recorded(tally: Tally, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        ["tally", "realize", "plan.json", "--ledger", "postgresql+psycopg://me:hunter2@host/db", "--token=abc"],
    )
    assert tally("realize", "plan.json").code == 3
    assert "hunter2" not in json.dumps(recorded(tiny))
    assert "realize" in recorded(tiny)[0]["body"]["argv"]["value"]


# --- rejected -----------------------------------------------------------------------------------------------------


def test_a_plan_with_violations_is_rejected_with_all_of_them(tally: Tally, tiny: Path) -> None:
    def break_it(document: dict[str, Any]) -> None:
        document["materializations"][0]["memory_resource_id"] = "nowhere"
        document["resources"]["nodes"][0]["memory_resources"][0]["capacity_bytes"] = 1024
        document["materializations"][1]["representation"] = "unheard-of"

    (tiny / "bad.json").write_bytes(edited_plan(parse_plan((tiny / "plan.json").read_bytes()), break_it).data)
    ran = tally("realize", "bad.json", "--checkpoint", "model", "--reference", "reference.safetensors", "--json")
    assert ran.code == 3
    assert all(word in ran.err for word in ("nowhere", "unheard-of", "capacity"))
    assert ran.json["outcome"] == "rejected"
    (found,) = [one for one in ran.json["findings"] if one["code"] == "plan.rejected"]
    count = len(found["observed"])
    assert f"{count} violations" in ran.err
    assert not {"materialization.started", "memory.sampled"} & set(types(tiny))
    assert types(tiny)[-3:] == ["plan.rejected", "run.closed", "verdict.recorded"]
    text = tally("realize", "bad.json", "--checkpoint", "model", "--reference", "reference.safetensors").out
    assert re.search(rf"violations +{count}, of the plan: together they are one finding, plan.rejected", text), text
    assert re.search(r"findings +1 error, .*, of the run; ", text), text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "reference"),
        (("--reference", "other.safetensors"), "reference"),
        (("--reference", "reference.safetensors", "--checkpoint", "other"), "digest"),
    ],
)
def test_another_reference_or_model_is_rejected(
    tally: Tally, tiny: Path, arguments: tuple[str, ...], said: str
) -> None:
    tiny_model(tiny / "other", tied=False)
    (tiny / "other.safetensors").write_bytes((tiny / "reference.safetensors").read_bytes() + b" ")
    ran = tally("realize", "plan.json", *arguments)
    assert ran.code in (1, 3)
    assert said in ran.err
    assert types(tiny)[-1] == "verdict.recorded"
    assert "materialization.started" not in types(tiny)


def test_another_adapter_than_the_planned_one_is_rejected(tally: Tally, tiny: Path) -> None:
    ran = tally("realize", "plan.json", "--reference", "reference.safetensors", "--adapter", "qwen3_5_moe")
    assert ran.code == 3
    assert "'qwen3_5_moe' was asked for; the plan names 'causal_lm'" in ran.err
    assert "materialization.started" not in types(tiny)


# --- failed -------------------------------------------------------------------------------------------------------


def truncated(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def garbled(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:8] + b"{" * 50 + path.read_bytes()[58:])


def missing(model: Path) -> None:
    (model / "model.safetensors").unlink()


@pytest.mark.parametrize("damage", [truncated, garbled, missing])
def test_a_damaged_checkpoint_is_one_line_and_the_run_is_closed_as_failed(
    tally: Tally, tiny: Path, damage: Any
) -> None:
    damage(tiny / "model")
    ran = tally("realize", "plan.json", "--reference", "reference.safetensors")
    assert ran.code == 1
    (line,) = [line for line in ran.err.splitlines() if line.startswith("tally: ")]
    assert "checkpoint" in line
    closed = [event for event in recorded(tiny) if event["type"] == "run.closed"]
    assert closed[0]["body"]["outcome"] == "failed"
    assert tally("runs", "--json").json["runs"][0]["outcome"] == "failed"


# --- not even opened ----------------------------------------------------------------------------------------------


def test_a_document_that_is_no_plan_opens_no_run_and_creates_no_ledger(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"schema": "x"}')
    ran = tally("realize", "file.json")
    assert ran.code == 1
    assert "is no plan" in ran.error_line
    assert not (tmp_path / "tally.db").exists()


def test_an_unknown_adapter_opens_no_run(tally: Tally, tiny: Path) -> None:
    ran = tally("realize", "plan.json", "--adapter", "nonsense")
    assert ran.code == 1
    assert "nonsense" in ran.err
    assert tally("runs", "--json").json["runs"] == []


def test_a_prompt_that_the_adapter_cannot_answer_opens_no_run(tally: Tally, tiny: Path) -> None:
    ran = tally("realize", "plan.json", "--adapter", "qwen3_5_moe", "--prompt", "Hello")
    assert (ran.code, ran.error_line) == (1, "tally: adapter 'qwen3_5_moe' answers no prompts (leave --prompt out)")
    assert tally("runs", "--json").json["runs"] == []


def test_a_ledger_that_cannot_be_written_stops_it_before_anything(tally: Tally, tiny: Path) -> None:
    (tiny / "foreign.db").write_text("not a ledger")
    ran = tally("realize", "plan.json", "--ledger", "foreign.db")
    assert ran.code == 1
    assert (tiny / "foreign.db").read_text() == "not a ledger"


def test_labels_have_a_form(tally: Tally, tiny: Path) -> None:
    assert tally("realize", "plan.json", "--label", "novalue").code == 2
    assert tally("realize", "plan.json", "--label", "a=1", "--label", "a=2").code == 2


# --- interrupted and killed ---------------------------------------------------------------------------------------


def start_and_stop(folder: Path, number: int) -> int:
    """Start a realization, send it a signal once it has begun to materialise, and wait for its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*TALLY, "realize", "plan.json", "--reference", "reference.safetensors"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with Store.open(folder / "tally.db") as store:
                if store.size() > 6:
                    break
            time.sleep(0.01)
        process.send_signal(number)
        return process.wait(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_closes_the_run_as_aborted(tally: Tally, tiny: Path, number: int) -> None:
    assert start_and_stop(tiny, number) == 130
    events = recorded(tiny)
    assert [event["type"] for event in events[-2:]] == ["run.closed", "verdict.recorded"]
    assert events[-2]["body"]["outcome"] == "aborted"
    assert events[-1]["body"]["verdict"] == "INDETERMINATE"
    assert "run.incomplete" in events[-1]["body"]["codes"]


def test_a_kill_loses_nothing_and_hinders_nobody(tally: Tally, tiny: Path) -> None:
    assert start_and_stop(tiny, signal.SIGKILL) == -signal.SIGKILL
    assert tally("runs", "--json").json["runs"][0]["outcome"] == "incomplete"
    state = tally("replay", "@latest", "--json").json
    assert state["outcome"] == "incomplete"
    assert state["last_sequence"] >= 5
    assert tally("verify").code == 0
    assert tally("realize", "plan.json", "--reference", "reference.safetensors").code == 0


# --- drafting -----------------------------------------------------------------------------------------------------


def test_a_draft_says_what_comes_next_and_is_no_frozen_plan(tally: Tally, tiny: Path) -> None:
    ran = tally("plan", "draft", "model", "-o", "new.json", "--staging", "streamed", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["frozen"] is False
    assert ran.json["materializations"][0]["streamed_bytes"] is not None
    assert tally("plan", "check", "new.json").code == 0
    assert "tally reference" in tally("plan", "draft", "model", "-o", "new.json").err


def test_a_model_smaller_than_what_the_plan_lets_pass_is_warned_of(
    tally: Tally, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "would pass: the plan lets 67108864 bytes of host memory go unexplained"
    assert said in tally("plan", "draft", "model", "-o", "new.json").err
    monkeypatch.setattr(drafting, "DEFAULT_HOST_NOISE_BYTES", 1024)
    ran = tally("plan", "draft", "model", "-o", "new.json")
    assert ran.code == 0
    assert "would pass" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("no/such/model",), 1, "no/such/model"),
        ((), 2, "MODEL"),
        (("model", "--option", "nonsense=1"), 1, "nonsense"),
        (("model", "--option", "nonsense"), 2, "key=value"),
        (("model", "--adapter", "nonsense"), 1, "nonsense"),
        (("model", "--device", "cuda:9"), 1, "cuda:9"),
        (("--published", "x"), 2, "--adapter"),
    ],
)
def test_drafting_refuses_in_one_line(
    tally: Tally, tiny: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = tally("plan", "draft", *arguments, "-o", "new.json")
    assert ran.code == code
    assert said in ran.err
    assert not (tiny / "new.json").exists()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("role", "wished", "role"), ("memory_resource_id", "nowhere", "adapter 'causal_lm'")],
)
def test_a_draft_that_would_not_pass_the_check_is_refused_and_not_written(
    tally: Tally, tiny: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: str, said: str
) -> None:
    from adapters import causal_lm

    honest = causal_lm.CausalLM.draft

    def faulty(checkpoint: Any, request: Any) -> Any:
        part = honest(checkpoint, request)
        part.materializations[0][field] = value
        return part

    monkeypatch.setattr(causal_lm.CausalLM, "draft", staticmethod(faulty))
    ran = tally("plan", "draft", "model", "-o", "new.json")
    assert (ran.code, said in ran.err) == (1, True), ran
    assert not (tiny / "new.json").exists()


def test_a_model_that_no_adapter_maps_is_refused_naming_the_key(tally: Tally, tiny: Path) -> None:
    tiny_model(tiny / "fused", "mixtral")
    ran = tally("plan", "draft", "fused", "-o", "new.json")
    assert ran.code == 1
    assert "maps to no parameter" in ran.error_line
    assert "'model." in ran.error_line


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--tokens", "a,b"), 2),
        (("--tokens", "-1"), 2),
        (("--tokens", "1", "--prompt", "x"), 2),
        (("--tokens", "999999"), 1),
        (("--prompt", "text for a model without a tokenizer"), 1),
        ((), 1),
    ],
)
def test_a_reference_refuses_bad_tokens(tally: Tally, tiny: Path, arguments: tuple[str, ...], code: int) -> None:
    ran = tally("reference", "draft.json", *arguments, "-o", "new.safetensors")
    assert ran.code == code
    assert not (tiny / "new.safetensors").exists()


def test_adapters_without_synthetic_checkpoints_or_published_plans_say_so(tally: Tally, tmp_path: Path) -> None:
    for arguments in (("synth", "causal_lm"), ("plan", "draft", "--adapter", "causal_lm", "--published", "x")):
        ran = tally(*arguments, "-o", "new")
        assert ran.code == 1
        assert "causal_lm" in ran.error_line
    assert not (tmp_path / "new").exists()


def test_a_synthetic_checkpoint_is_written_into_a_new_folder_alone(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("kept")
    ran = tally("synth", "qwen3_5_moe", "-o", "there")
    assert (ran.code, ran.out) == (1, "")
    assert ran.error_line == "tally: there exists, and is no empty folder (name a new one, or remove that)"
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [(KeyError("x"), "`answer` raised KeyError: 'x'"), (None, "`answer` gave back None; expected the text")],
)
def test_an_answer_that_fails_says_that_the_verdict_stands(answer: object, said: str) -> None:
    class Live:
        class adapter:  # noqa: N801 - what a live run has
            name = "mute"

            @staticmethod
            def answer(prompt: str, most_tokens: int) -> object:
                if isinstance(answer, Exception):
                    raise answer
                return answer

    with pytest.raises(RealizationFailed, match="the run is over, and its verdict stands") as raised:
        _answer(Live(), "x", 4)  # type: ignore[arg-type]
    assert f"adapter 'mute': {said}" in raised.value.message


def test_a_prompt_without_a_tokenizer_opens_no_run(tally: Tally, tiny: Path) -> None:
    ran = tally("realize", "plan.json", "--reference", "reference.safetensors", "--prompt", "Hello")
    assert ran.code == 1
    assert ran.error_line.startswith("tally: the prompt cannot be answered: there is no tokenizer in ")
    assert ran.error_line.endswith("(save the model's tokenizer in the checkpoint's folder, or leave --prompt out)")
    assert tally("runs", "--json").json["runs"] == []


def test_an_unfrozen_plan_is_rejected(tally: Tally, tiny: Path) -> None:
    raw = json.loads((tiny / "plan.json").read_bytes())
    del raw["digest"]
    (tiny / "unfrozen.json").write_bytes(r1_file(raw))
    ran = tally("realize", "unfrozen.json", "--reference", "reference.safetensors")
    assert ran.code == 3
    assert "freeze" in ran.err


def test_a_reference_that_is_no_file_begins_no_run(tally: Tally, tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "plan.json").write_bytes(plan.data)
    ran = tally("realize", "plan.json", "--reference", "nowhere.safetensors")
    assert ran.code == 1
    assert "nowhere.safetensors" in ran.error_line
    assert not (tmp_path / "tally.db").exists()
