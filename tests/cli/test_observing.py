"""`observe` and `realize --witness` on real processes: told without a plan, judged with one, and beside our own engine."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import MemorySampled
from ledger.errors import LedgerError
from ledger.store import Store
from tests.builders import engines
from tests.builders.checkpoints import tiny_model
from tests.builders.engines import MIB, SIZE, running
from tests.cli.conftest import Tally

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

if "RssAnon:" not in Path("/proc/self/status").read_text():
    pytest.skip("this kernel shows no memory classes in /proc/PID/status", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
TALLY = [sys.executable, "-m", "realizer.cli.main"]


def events_of(location: Path, run_id: str) -> list[dict[str, Any]]:
    with Store.open(location) as store:
        return [json.loads(place.envelope) for place in store.recorded(run_id)]


def newest(location: Path, purpose: str = "witness") -> str:
    with Store.open(location) as store:
        return [run.run_id for run in store.runs() if run.purpose == purpose][-1]


# --- an engine that is not ours -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal LM of about 128 MiB, so that it stands above an interpreter's noise; the sample model where there is one."""
    sample = ROOT / "build" / "sample"
    if (sample / "model.safetensors").exists():
        return sample
    folder = tmp_path_factory.mktemp("served")
    config = transformers.LlamaConfig(
        vocab_size=32768, hidden_size=512, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def frozen(tally: Tally, checkpoint: Path, *options: str) -> str:
    assert tally("plan", "draft", checkpoint, "--observe", *options, "-o", "draft.json").code == 0
    assert tally("plan", "check", "draft.json").code == 0
    assert tally("plan", "freeze", "draft.json", "-o", "plan.json").code == 0
    return "plan.json"


def observed(tally: Tally, pid: int, checkpoint: Path, *more: str) -> dict[str, Any]:
    ran = tally("observe", "--pid", str(pid), "--checkpoint", checkpoint, *more, "--json")
    assert ran.code == 0, ran.err
    document: dict[str, Any] = ran.json
    return document


def test_a_server_that_maps_its_checkpoint_fails_a_plan_without_a_mirror(
    tally: Tally, served: Path, tmp_path: Path
) -> None:
    plan = frozen(tally, served)
    with running(engines.TRANSFORMERS, served, "map") as engine:
        document = observed(tally, engine.pid, served, "--plan", plan)
    assert document["verdict"] == "FAIL"
    (mirror,) = [finding for finding in document["findings"] if finding["code"] == "memory.host-mirror"]
    assert mirror["severity"] == "error"
    assert mirror["observed"]["checkpoint_mappings"] > 64 * MIB
    assert mirror["observed"]["files"] == [str((served / "model.safetensors").resolve())]
    recorded = events_of(tmp_path / "tally.db", document["run_id"])[-1]
    assert (recorded["type"], recorded["body"]["verdict"]) == ("verdict.recorded", "FAIL")


def test_a_server_that_copies_its_checkpoint_keeps_no_mirror(tally: Tally, served: Path) -> None:
    plan = frozen(tally, served)
    with running(engines.TRANSFORMERS, served, "copy") as engine:
        document = observed(tally, engine.pid, served, "--plan", plan)
    assert document["verdict"] == "INDETERMINATE", "what only its inside could tell is not known"
    assert {finding["severity"] for finding in document["findings"]} <= {"unknown", "note"}
    assert "memory.host-mirror" not in {finding["code"] for finding in document["findings"]}


def test_a_mirror_that_the_operator_allows_is_none_to_find(tally: Tally, tmp_path: Path) -> None:
    path = weights_in(tmp_path)
    with (path / "model.gguf").open("ab") as file:
        file.write(b"no whole page")
    plan = frozen(tally, path, "--option", "host_mirror=allowed")
    with running(engines.MAPPED, path / "model.gguf") as engine:
        document = observed(tally, engine.pid, path, "--plan", plan)
    codes = {finding["code"] for finding in document["findings"]}
    assert "memory.host-mirror" not in codes
    assert {"open_descriptors"} == {
        what
        for finding in document["findings"]
        if finding["code"] == "decode.source-accessed"
        for what in finding["observed"]
    }, "the mapping is allowed; that the program holds the file open is another matter"


# --- told ---------------------------------------------------------------------------------------------------------


def weights_in(folder: Path) -> Path:
    """A checkpoint of a format that nobody here reads."""
    checkpoint = folder / "weights"
    checkpoint.mkdir()
    (checkpoint / "model.gguf").write_bytes(os.urandom(MIB) * (SIZE // MIB))
    return checkpoint


def test_without_a_plan_nothing_is_judged_and_the_facts_are_told(tally: Tally, tmp_path: Path) -> None:
    checkpoint = weights_in(tmp_path)
    with running(engines.MAPPED, checkpoint / "model.gguf") as engine:
        document = observed(tally, engine.pid, checkpoint, "--label", "engine=mapped")
    assert (document["verdict"], document["plan_digest"], document["outcome"]) == (None, None, "completed")
    run_id = document["run_id"]
    types = [event["type"] for event in events_of(tmp_path / "tally.db", run_id)]
    assert types == [
        "run.opened", "environment.observed", "memory.sampled", "memory.sampled", "source.watched", "run.closed",
    ]  # fmt: skip
    opened = events_of(tmp_path / "tally.db", run_id)[0]
    assert (opened["actor"]["kind"], opened["body"]["purpose"]) == ("witness", "witness")
    assert opened["previous"] == "0" * 64
    told = tally("show", run_id)
    assert told.code == 0
    assert "NOT JUDGED" in told.out
    (line,) = [line for line in told.out.splitlines() if line.startswith(str(engine.pid))]
    assert line.split()[-2:] == ["1", "2"], "one mapping, two descriptors"
    assert "not known of the tree: device memory" in told.out or "devices" in told.out, "no device is not 0 bytes"
    assert str(checkpoint / "model.gguf") in told.out


def test_reports_and_queries_take_a_witnessed_run_like_any_other(tally: Tally, tmp_path: Path) -> None:
    checkpoint = weights_in(tmp_path)
    plan = frozen(tally, checkpoint)
    with running(engines.MAPPED, checkpoint / "model.gguf") as engine:
        told = observed(tally, engine.pid, checkpoint)["run_id"]
        judged = observed(tally, engine.pid, checkpoint, "--plan", plan)["run_id"]
    for run_id in (told, judged):
        for arguments in (
            ("show", run_id), ("log", run_id), ("replay", run_id, "--json"), ("report", run_id, "-o", "report.html"),
            ("trace", run_id, "-o", "trace.json"),
        ):  # fmt: skip
            ran = tally(*arguments)
            assert ran.code == 0, (arguments, ran.err)
    assert tally("compare", told, judged).code == 3
    assert tally("verify").code == 0
    listed = tally("runs", "--json").json["runs"]
    assert [(run["purpose"], run["verdict"]) for run in listed] == [("witness", None), ("witness", "FAIL")]
    rows = tally("query", "SELECT label, checkpoint_mappings FROM memory_samples", "--json").json
    assert [row["checkpoint_mappings"] for row in rows] == [SIZE] * 4
    assert tally("export", judged, "-o", "evidence.json").code == 0
    assert tally("verify", "evidence.json", "--json").json["verdict"] == "FAIL"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--pid", "4194304"), 1, "no process 4194304"),
        (("--pid", "1", "--labels-from-stdin"), 2, "goes with --follow"),
        (("--pid", "1", "--follow", "--interval", "1e30"), 2, "not in the range"),
        (("--pid", "1", "--checkpoint", "nowhere"), 1, "no file with weights"),
        ((), 2, "Missing option"),
    ],
)
def test_what_cannot_be_watched_is_said_and_records_nothing(
    tally: Tally, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = tally("observe", *arguments)
    assert ran.code == code
    assert said in ran.err
    assert not (tmp_path / "tally.db").exists()


# --- over time ----------------------------------------------------------------------------------------------------


class Watch:
    """`tally observe --follow --labels-from-stdin` in a process of its own."""

    def __init__(self, folder: Path, pid: int, checkpoint: Path, *more: str) -> None:
        arguments = ["observe", "--pid", str(pid), "--checkpoint", str(checkpoint), "--follow", "--labels-from-stdin"]
        self.process = subprocess.Popen(
            [*TALLY, *arguments, "--interval", "0.05", "--ledger", str(folder / "tally.db"), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TALLY_STATE_DIR": str(folder / "state")},
        )
        self.run_id = self.hear().removeprefix("ready ")

    def hear(self) -> str:
        if self.process.stdout is None:
            raise AssertionError("nobody listens")
        line = self.process.stdout.readline().strip()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        return line

    def sample(self, label: str) -> None:
        if self.process.stdin is None:
            raise AssertionError("nobody speaks")
        self.process.stdin.write(f"{label}\n")
        self.process.stdin.flush()
        if self.hear() != label:
            raise AssertionError(f"no answer to {label}")

    def end(self) -> str:
        """Speak no more; what it says last."""
        said, complained = self.process.communicate(timeout=60)
        if self.process.returncode != 0:
            raise AssertionError(complained)
        return said.strip()


KEEPS = engines.SAY + "say()\ndata = open(sys.argv[1], 'rb').read()\nsay('done')\nsay('done')\n"
GIVES_BACK = engines.SAY + "say()\ndata = open(sys.argv[1], 'rb').read()\nsay('done')\ndel data\nsay('done')\n"


@pytest.mark.parametrize(("program", "kept"), [(KEEPS, True), (GIVES_BACK, False)])
def test_staging_must_be_gone_by_the_label_given(tally: Tally, tmp_path: Path, program: str, kept: bool) -> None:
    from tests.builders.outside import staged_plan

    checkpoint = weights_in(tmp_path)
    (tmp_path / "plan.json").write_bytes(staged_plan(SIZE).data)
    with running(program, checkpoint / "model.gguf") as engine:
        watch = Watch(tmp_path, engine.pid, checkpoint, "--plan", "plan.json", "--sample-label", "loaded")
        engine.step()
        watch.sample("staged")
        engine.step()
        watch.sample("loaded")
        assert watch.end() == f"closed {watch.run_id}"
    findings = tally("show", watch.run_id, "--json").json["findings"]
    found = [finding for finding in findings if finding["code"] == "memory.not-reclaimed"]
    assert bool(found) is kept
    if kept:
        assert found[0]["severity"] == "error"
        assert found[0]["observed"]["ratio"] < 0.2


def test_a_watch_closes_when_the_processes_end(tally: Tally, tmp_path: Path) -> None:
    checkpoint = weights_in(tmp_path)
    with running(engines.MAPPED, checkpoint / "model.gguf") as engine:
        watch = Watch(tmp_path, engine.pid, checkpoint)
        watch.sample("loaded")
        engine.process.kill()
        engine.process.wait()
        assert watch.hear() == f"closed {watch.run_id}"
    watch.end()
    events = events_of(tmp_path / "tally.db", watch.run_id)
    assert [event["body"].get("label") for event in events if event["type"] == MemorySampled.TYPE] == [
        "attached", "loaded", "closing",
    ]  # fmt: skip
    assert events[-1]["body"]["outcome"] == "completed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_a_watch_and_closes_it(tmp_path: Path, number: signal.Signals) -> None:
    with running(engines.QUIET) as engine:
        process = subprocess.Popen(
            [*TALLY, "observe", "--pid", str(engine.pid), "--follow", "--ledger", str(tmp_path / "tally.db"), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TALLY_STATE_DIR": str(tmp_path / "state")},
            # Whoever runs the tests may ignore the signal (nohup does), and a child inherits that.
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
        )
        wait_for(tmp_path / "tally.db", MemorySampled.TYPE)
        process.send_signal(number)
        said, complained = process.communicate(timeout=60)
    assert process.returncode == 0, complained
    assert json.loads(said)["outcome"] == "completed"


def test_the_end_of_the_processes_is_not_slept_through(tally: Tally, tmp_path: Path) -> None:
    checkpoint = weights_in(tmp_path)
    with running(engines.MAPPED, checkpoint / "model.gguf") as engine:
        watch = Watch(tmp_path, engine.pid, checkpoint, "--interval", "86400")
        engine.process.kill()
        engine.process.wait()
        assert watch.process.stdout is not None
        heard, _, _ = select.select([watch.process.stdout], [], [], 120)
        assert heard, "it rests between two looks and does not see that there is nobody any more"
        assert watch.hear() == f"closed {watch.run_id}"
    watch.end()


def wait_for(location: Path, wanted: str, run_id: str | None = None, purpose: str = "witness") -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if wanted in [event["type"] for event in events_of(location, run_id or newest(location, purpose))]:
                return
        except (IndexError, LedgerError):
            pass  # not there yet, or just being made
        time.sleep(0.02)
    raise AssertionError(f"no {wanted} was recorded")


# --- beside our own engine ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and its frozen plan."""
    folder = tmp_path_factory.mktemp("witnessed")
    tiny_model(folder / "model")
    environment = {**os.environ, "TALLY_STATE_DIR": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    for arguments in (
        ["plan", "draft", "model", "--option", "max_cache_length=32", "--repetitions", "2", "-o", "draft.json"],
        ["reference", "draft.json", "--tokens", "3,5,7", "-o", "reference.safetensors"],
        ["plan", "freeze", "draft.json", "--reference", "reference.safetensors", "-o", "plan.json"],
    ):
        done = subprocess.run([*TALLY, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def tiny(made: Path, tally: Tally, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


REALIZE = ("realize", "plan.json", "--reference", "reference.safetensors", "--witness")


def test_a_witness_beside_the_engine_sees_the_same_and_is_named(tally: Tally, tiny: Path) -> None:
    ran = tally(*REALIZE, "--json")
    assert ran.code == 0, ran.err
    document = ran.json
    assert document["verdict"] == "PASS", document["findings"]
    (witness,) = document["witnessed"]
    own, theirs = events_of(tiny / "tally.db", document["run_id"]), events_of(tiny / "tally.db", witness)
    assert theirs[0]["body"]["witness_of"] == document["run_id"]
    assert theirs[0]["body"]["pid"]["value"] != own[0]["body"]["pid"]["value"]
    assert theirs[-1]["type"] == "run.closed"
    labels = {event["body"]["label"] for event in own if event["type"] == "memory.sampled"}
    assert labels <= {event["body"]["label"] for event in theirs if event["type"] == "memory.sampled"}
    assert tally("verify", "--json").json["status"] in ("valid", "valid-unanchored")
    lines = tally("show", document["run_id"]).out.splitlines()
    told = lines[lines.index("WITNESS") : lines.index("ACCOUNTING (BYTES)")]
    assert told[1].split() == ["run", witness]
    assert any(line.startswith(str(own[0]["body"]["pid"]["value"])) for line in told), "what it saw of the process"
    assert tally("export", document["run_id"], "-o", "evidence.json").code == 0
    assert tally("verify", "evidence.json").code == 0


def test_the_witness_is_no_part_of_the_tree_that_is_measured(tally: Tally, tiny: Path) -> None:
    """It is a child of the engine with tens of MiB of its own, and must not move the engine's figures."""
    ran = tally(*REALIZE, "--json")
    own, theirs = (events_of(tiny / "tally.db", run_id) for run_id in (ran.json["run_id"], ran.json["witnessed"][0]))
    method = next(e["body"]["process"]["rss_anon"]["method"] for e in own if e["type"] == "memory.sampled")
    assert method.endswith("summed over 1 process")
    for event in theirs:
        if event["type"] == "memory.sampled":
            assert event["body"]["process"]["processes"]["value"] == 1


def test_a_witness_that_contradicts_the_engine_is_found(
    tally: Tally, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine whose own figures leave out 256 MiB that it holds, as a patched probe would."""
    from realizer import probes

    hidden = bytearray(b"\1") * (256 * MIB)
    honest = probes.Probes._sample

    def patched(self: Any, label: str, *arguments: Any, **options: Any) -> MemorySampled:
        taken = honest(self, label, *arguments, **options)
        process = {
            name: figure.model_copy(update={"value": int(figure.value or 0) - len(hidden)})
            if name in ("rss_anon", "tree_sum")
            else figure
            for name, figure in taken.process.items()
        }
        return taken.model_copy(update={"process": process})

    monkeypatch.setattr(probes.Probes, "_sample", patched)
    ran = tally(*REALIZE, "--json")
    assert ran.code == 3, ran.err
    found = [f for f in ran.json["findings"] if f["code"] == "materialization.claim-contradicted"]
    assert {f["subject"] for f in found} >= {"closing.rss_anon", "closing.tree_sum"}
    assert all(f["observed"]["witness"] == ran.json["witnessed"][0] for f in found)


def test_a_witness_survives_the_engine_and_closes_what_it_saw(tiny: Path) -> None:
    process = subprocess.Popen(
        [*TALLY, *REALIZE],
        cwd=tiny,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TALLY_STATE_DIR": str(tiny / "state"), "OMP_NUM_THREADS": "1"},
    )
    wait_for(tiny / "tally.db", "materialization.observed", purpose="realization")
    process.kill()
    process.wait()
    witness = newest(tiny / "tally.db")
    wait_for(tiny / "tally.db", "run.closed", witness)
    events = events_of(tiny / "tally.db", witness)
    assert events[-1]["body"]["outcome"] == "completed"
    assert [event["body"]["label"] for event in events if event["type"] == "memory.sampled"][-1] == "closing"


def test_a_witness_that_cannot_begin_is_said_and_stops_no_run(
    tally: Tally, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from realizer.cli import beside

    monkeypatch.setattr(beside.sys, "executable", "/bin/false")
    ran = tally(*REALIZE, "--json")
    assert ran.code == 0, ran.err
    assert "the witness did not begin" in ran.err
    assert ran.json["witnessed"] == []


# --- drafting for an outside engine -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--option", "mirror=no"), "no option 'mirror'"),
        (("--option", "host_mirror=maybe"), "none of forbidden, allowed"),
        (("--option", "tolerance_bytes=-1"), "is no number of bytes"),
        (("--option", "staging=yes"), "nothing is staged there"),
        (("--device", "cuda:7"), "there is no device cuda:7"),
    ],
)
def test_words_of_the_operator_that_make_no_plan(
    tally: Tally, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    ran = tally("plan", "draft", weights_in(tmp_path), "--observe", *options, "-o", "draft.json")
    assert ran.code == 1
    assert said in ran.err
    assert not (tmp_path / "draft.json").exists()
