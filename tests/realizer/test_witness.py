"""A witness of real processes: what is mapped, open, copied and shared is seen from outside, and nothing is made up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ledger.bodies import MemorySampled
from ledger.errors import NotFound
from ledger.measurement import Measurement, measured, stated, unavailable
from realizer import process_tree
from realizer.nvml import Devices
from realizer.procfs import ProcFS
from realizer.witness import Watching, Witness, as_witness, checkpoint_files, eventful
from tests.builders import engines
from tests.builders.engines import MIB, SIZE, Engine, running
from tests.builders.gguf_models import random_llama

if "RssAnon:" not in Path("/proc/self/status").read_text():
    pytest.skip("this kernel shows no memory classes in /proc/PID/status", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "model.gguf"
    path.write_bytes(os.urandom(MIB) * (SIZE // MIB))
    return path


@contextmanager
def watched(engine: Engine, *files: Path, **options: Any) -> Iterator[Witness]:
    witness = Witness([engine.pid], files, **options)
    try:
        witness.begin()
        yield witness
    finally:
        witness.close()


def taken(witness: Witness) -> MemorySampled:
    sample = witness.sample("observed")
    assert sample is not None
    return sample


def value(sample: MemorySampled, name: str) -> int:
    figure = sample.process[name]
    assert isinstance(figure.value, int), (name, figure)
    return figure.value


# --- checkpoint files ---------------------------------------------------------------------------------------------


def test_a_mapped_checkpoint_is_seen_with_its_resident_pages(weights: Path) -> None:
    with running(engines.MAPPED, weights) as engine, watched(engine, weights) as witness:
        sample = taken(witness)
    assert value(sample, "checkpoint_mappings") == SIZE
    assert sample.mapped_files == [str(weights)]
    assert value(sample, f"pid:{engine.pid}.checkpoint_mappings") == 1
    assert value(sample, "tree_sum") - value(sample, "rss_anon") >= SIZE, "pages of the file are held as well"
    assert {figure.source for figure in sample.process.values()} == {"witness"}


def test_a_copied_checkpoint_with_its_file_closed_maps_nothing(weights: Path) -> None:
    with running(engines.COPIED, weights) as engine, watched(engine, weights) as witness:
        sample = taken(witness)
    assert (value(sample, "checkpoint_mappings"), sample.mapped_files) == (0, [])
    assert value(sample, f"pid:{engine.pid}.open_descriptors") == 0
    assert value(sample, f"pid:{engine.pid}.rss_anon") >= SIZE


def test_an_open_descriptor_is_counted(weights: Path) -> None:
    with running(engines.OPEN, weights) as engine, watched(engine, weights) as witness:
        assert value(taken(witness), f"pid:{engine.pid}.open_descriptors") == 1


def test_a_renamed_and_a_deleted_checkpoint_still_count(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(range(256)) * 4096)
    with running(engines.MAPPED, path) as engine, watched(engine, path) as witness:
        path.rename(tmp_path / "renamed")
        assert taken(witness).mapped_files == [str(tmp_path / "renamed")]
        (tmp_path / "renamed").unlink()
        sample = taken(witness)
    assert value(sample, "checkpoint_mappings") == MIB
    assert value(sample, f"pid:{engine.pid}.open_descriptors") == 2, "the file, and the duplicate that mmap keeps"


def test_a_read_after_the_mark_is_an_access_of_the_tree(weights: Path) -> None:
    with running(engines.REREADS, weights) as engine, watched(engine, weights) as witness:
        engine.step()
        witness.accesses()
        summary = witness.summary()
    assert summary is not None
    assert (summary.tree_accesses.value or 0) + (summary.other_accesses.value or 0) >= 1, summary
    assert summary.read_bytes.value is not None
    assert int(summary.read_bytes.value) >= SIZE
    assert "audit hook" not in summary.means, "that hook is in no other process"
    assert summary.armed.source == "witness"


def test_of_processes_that_have_ended_nothing_is_held_at_zero(weights: Path) -> None:
    with running(engines.MAPPED, weights) as engine, watched(engine, weights) as witness:
        engine.process.kill()
        engine.process.wait()
        summary = witness.summary()
        assert witness._process(engine.pid) == {}, "of one that has gone there are no figures"
    assert summary is not None
    for figure in (summary.mapped_files, summary.open_descriptors, summary.read_bytes):
        assert (figure.value, figure.detail) == (None, "the processes have ended")


def test_without_a_checkpoint_its_figures_are_unknown_and_not_zero(weights: Path) -> None:
    with running(engines.MAPPED, weights) as engine, watched(engine) as witness:
        sample = taken(witness)
        assert witness.summary() is None
    for name in ("checkpoint_mappings", f"pid:{engine.pid}.open_descriptors"):
        assert (sample.process[name].value, sample.process[name].detail) == (None, "no checkpoint was named")


def test_the_weights_of_a_folder(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.gguf", "README.md"):
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in checkpoint_files(tmp_path)] == ["a.safetensors", "b.gguf"]
    assert checkpoint_files(tmp_path / "README.md") == [tmp_path / "README.md"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no file with weights"):
        checkpoint_files(tmp_path / "empty")
    (tmp_path / "c.safetensors").symlink_to("blobs/gone")
    with pytest.raises(NotFound, match=r"c\.safetensors .* leads to a file that is not there"):
        checkpoint_files(tmp_path)


def test_llama_cpp_with_and_without_mapping_is_told_apart(tmp_path: Path) -> None:
    """A model made here, or the one that $TALLY_GGUF names."""
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gguf")
    given = os.environ.get("TALLY_GGUF")
    path = Path(given) if given else random_llama(tmp_path / "model.gguf")
    told = {}
    for how in ("map", "copy"):
        with running(engines.LLAMA_CPP, path, how) as engine, watched(engine, path) as witness:
            sample = taken(witness)
        told[how] = (value(sample, "checkpoint_mappings"), value(sample, "rss_anon"), sample.mapped_files)
    size = path.stat().st_size
    assert told["map"][0] > size // 2
    assert told["map"][2] == [str(path.resolve())]
    assert told["copy"][0] == 0
    assert told["copy"][2] == []
    assert told["copy"][1] - told["map"][1] > size // 2, "what is not mapped is copied"


# --- hidden copies ------------------------------------------------------------------------------------------------


def test_a_copy_in_a_child_is_found_and_goes_with_it(weights: Path) -> None:
    with running(engines.CHILD_COPY, weights) as engine, watched(engine, weights) as witness:
        before = taken(witness)
        engine.step()
        during = taken(witness)
        engine.step()
        after = taken(witness)
    assert value(during, "rss_anon") - value(before, "rss_anon") >= SIZE
    assert value(during, "tree_sum") - value(before, "tree_sum") >= SIZE
    assert [value(sample, "processes") for sample in (before, during, after)] == [1, 2, 1]
    assert value(after, "tree_sum") - value(before, "tree_sum") < SIZE // 4


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="/dev/shm cannot be written")
def test_a_copy_on_tmpfs_is_found(weights: Path) -> None:
    copy = Path(f"/dev/shm/tally-witness-{os.getpid()}")
    try:
        with running(engines.TMPFS_COPY, weights, copy) as engine, watched(engine, weights) as witness:
            before = taken(witness)
            engine.step()
            after = taken(witness)
    finally:
        copy.unlink(missing_ok=True)
    assert value(after, "new_tmpfs_files") - value(before, "new_tmpfs_files") >= SIZE
    assert value(after, "tree_sum") - value(before, "tree_sum") >= SIZE


def test_a_copy_in_an_unlinked_scratch_map_is_found(weights: Path, tmp_path: Path) -> None:
    with running(engines.SCRATCH, weights, tmp_path) as engine, watched(engine, weights) as witness:
        before = taken(witness)
        engine.step()
        after = taken(witness)
    assert value(after, "new_file_mappings") - value(before, "new_file_mappings") >= SIZE
    assert value(after, "rss_anon") - value(before, "rss_anon") < SIZE // 2, "no anonymous figure shows it"
    assert value(after, "tree_sum") - value(before, "tree_sum") >= SIZE


def test_two_workers_that_share_a_segment_are_counted_once(weights: Path) -> None:
    with running(engines.SHARED, weights) as engine, watched(engine, weights) as witness:
        before = taken(witness)
        engine.step()
        after = taken(witness)
    assert value(after, "processes") == 3
    assert value(after, "rss_shmem") >= 3 * SIZE, "each of the three maps all of it"
    grown = value(after, "tree_sum") - value(before, "tree_sum")
    assert SIZE <= grown < 2 * SIZE, "and it is there once"


# --- who is watched -----------------------------------------------------------------------------------------------


def test_a_child_stays_in_view_when_its_parent_ends() -> None:
    program = engines.SAY + (
        "import subprocess\nchild = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL)\n"
        "print('up', flush=True)\nsys.stdin.readline()\n"
    )
    with running(program) as engine, watched(engine) as witness:
        (child,) = set(witness.members()) - {engine.pid}
        engine.process.communicate("go\n", timeout=20)
        try:
            assert witness.members() == [child]
        finally:
            os.kill(child, 9)
        assert taken_or_none(witness, child) is None, "nobody is left"


def taken_or_none(witness: Witness, ending: int) -> MemorySampled | None:
    """A sample once that process has ended."""
    for _ in range(200):
        state = Path(f"/proc/{ending}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX":
            break
    return witness.sample("observed")


def test_a_process_that_is_not_there() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(NotFound, match=f"no process {gone.pid}"):
        Witness([gone.pid])


def test_a_thread_is_no_process(tmp_path: Path) -> None:
    program = (
        engines.SAY + "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nsay()\n"
    )
    with running(program) as engine:
        (thread,) = {int(path.name) for path in Path(f"/proc/{engine.pid}/task").iterdir()} - {engine.pid}
        with pytest.raises(NotFound, match=f"{thread} is a thread of process {engine.pid}"):
            Witness([thread])
    kernels = tmp_path / "2"
    kernels.mkdir()
    (kernels / "stat").write_text("2 (kthreadd) S 0 0 0 0 -1 2129984 " + "0 " * 12 + "7 " + "0 " * 30)
    (kernels / "status").write_text("Name:\tkthreadd\nTgid:\t2\n")
    with pytest.raises(NotFound, match="2 is a thread of the kernel"):
        Witness([2], proc=ProcFS(tmp_path))


def test_who_is_left_out_is_no_member_but_of_its_own_tree() -> None:
    with running(engines.QUIET) as engine:
        process_tree.leave_out(engine.pid)
        try:
            assert engine.pid not in process_tree.members(ProcFS(), os.getpid())
            assert process_tree.members(ProcFS(), engine.pid) == [engine.pid]
        finally:
            process_tree.take_back(engine.pid)
        assert engine.pid in process_tree.members(ProcFS(), os.getpid())


def test_private_withholds_names_and_folders(weights: Path) -> None:
    with running(engines.MAPPED, weights) as engine, watched(engine, weights, private=True) as witness:
        sample = taken(witness)
    assert sample.mapped_files == ["model.gguf"]
    assert sample.process[f"pid:{engine.pid}.command"].status == "unavailable"


def test_what_may_not_be_read_is_unknown_with_its_reason(weights: Path, tmp_path: Path) -> None:
    """As another user sees a process: status is everybody's, smaps, maps and descriptors are not."""
    with running(engines.MAPPED, weights) as engine:
        proc = tmp_path / "proc"
        (proc / str(engine.pid)).mkdir(parents=True)
        (proc / str(os.getpid())).mkdir()
        for name in ("status", "stat", "comm"):
            (proc / str(engine.pid) / name).write_bytes(Path(f"/proc/{engine.pid}/{name}").read_bytes())
        (proc / str(os.getpid()) / "mountinfo").write_bytes(Path("/proc/self/mountinfo").read_bytes())
        with watched(engine, weights, proc=ProcFS(proc)) as witness:
            sample = taken(witness)
    assert value(sample, f"pid:{engine.pid}.rss_file") >= SIZE
    for name, file in (("pss", "smaps_rollup"), ("checkpoint_mappings", "maps"), ("open_descriptors", "fd")):
        figure = sample.process[f"pid:{engine.pid}.{name}"]
        assert figure.value is None
        assert f"{engine.pid}/{file}: " in str(figure.detail), "the reason is its own"
    assert sample.process["tree_sum"].value is None


def test_it_never_imports_torch() -> None:
    program = (
        "import os, sys\nfrom realizer.witness import Witness\nimport realizer.outside\n"
        "witness = Witness([os.getppid()])\nwitness.environment(); witness.begin()\n"
        "assert witness.sample('observed') is not None\nassert 'torch' not in sys.modules\nprint('fine')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


# --- a watch over time --------------------------------------------------------------------------------------------


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_watch_records_what_moves_and_closes_with_the_last_look(weights: Path) -> None:
    recorded: list[Any] = []
    with running(engines.CHILD_COPY, weights) as engine, watched(engine, weights) as witness:
        watching = Watching(witness, recorded.append)
        watching.take("baseline")
        moments = iter([None, None, "loaded", None, None])
        answered: list[str] = []

        def ask(_seconds: float) -> str | None:
            moment = next(moments, "end")
            if moment == "loaded":
                engine.step()
            if moment == "end":
                members = witness.members()
                for pid in members:
                    os.kill(pid, 9)
                engine.process.wait()
                while not all(map(ended, members)):  # a look at one that is being torn down would show something new
                    time.sleep(0.01)
                return None
            return moment

        watching.follow(0.0, ask, answered.append)
        closing = watching.finish()
    assert answered == ["loaded"]
    labels = [body.label for body in recorded if isinstance(body, MemorySampled)]
    assert labels == ["baseline", "loaded", "closing"], "looks that show nothing new are not recorded"
    assert closing is not None
    assert closing.process["tree_sum"].detail == "the last look before the tree ended"
    assert value(closing, "processes") == 2
    assert watching.highest is not None
    assert value(watching.highest, "rss_anon") >= SIZE


def sampled(tree_sum: int | None, **process: Any) -> MemorySampled:
    known = measured(tree_sum, "bytes", "m") if tree_sum is not None else unavailable("bytes", "m", "why")
    more = {name: measured(figure, None, "m") for name, figure in process.items()}
    return MemorySampled(label="x", process={"tree_sum": known, **more})


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (sampled(100), sampled(200), False),
        (sampled(0), sampled(16 * MIB), True),
        (sampled(16 * MIB), sampled(0), True),
        (sampled(None), sampled(0), True),
        (sampled(0), sampled(0, **{"pid:7.command": "worker"}), True),
        (sampled(0, **{"pid:7.checkpoint_mappings": 1}), sampled(0, **{"pid:7.checkpoint_mappings": 0}), True),
    ],
)
def test_what_is_worth_recording(before: MemorySampled, now: MemorySampled, expected: bool) -> None:
    assert eventful(before, now) is expected


def test_a_witness_says_its_own_figures_and_nobody_elses() -> None:
    sample = MemorySampled(
        label="x",
        process={
            "seen": measured(1, "bytes", "m"),
            "said": stated(2, "bytes", "m", source="declared"),
            "unread": unavailable("bytes", "m", "why"),
        },
    )
    sources: dict[str, Measurement] = as_witness(sample).process
    assert {name: figure.source for name, figure in sources.items()} == {
        "seen": "witness",
        "said": "declared",
        "unread": "witness",
    }


# --- devices ------------------------------------------------------------------------------------------------------

UUID = "GPU-1fc28f83-1d45-926e-54d0-ba1e835ef099"


class Nvml:
    """As much of pynvml as a witness uses, for one device; `refuse` names the call that fails."""

    class NVMLError(Exception):
        pass

    def __init__(self, processes: list[tuple[int, int | None]], refuse: str = "") -> None:
        self.processes = processes
        self.refuse = refuse
        self.shut = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name == self.refuse:
                raise self.NVMLError("Insufficient Permissions")
            if name == "nvmlShutdown":
                self.shut = True
            return {
                "nvmlDeviceGetCount": 1,
                "nvmlDeviceGetHandleByIndex": "handle",
                "nvmlDeviceGetUUID": UUID,
                "nvmlDeviceGetName": "Accelerator",
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=900, total=2000, free=1100),
                "nvmlDeviceGetComputeRunningProcesses": [
                    SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes
                ],
                "nvmlSystemGetDriverVersion": "580.1",
            }.get(name)

        return call


def test_device_memory_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml([(1, 100), (2, 50), (99, 1000)])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    devices = Devices()
    found = devices.memory([1, 2])
    assert {name: figure.value for name, figure in found.items()} == {
        "cuda:0.used": 900, "cuda:0.process": 150, "cuda:0.pid:1": 100, "cuda:0.pid:2": 50,
    }  # fmt: skip
    facts: dict[str, Measurement] = {}
    ((unit, resource),) = devices.observe(facts)
    assert (unit.device_uuid.value, resource.capacity_bytes.value, facts["cuda_driver"].value) == (UUID, 2000, "580.1")
    devices.close()
    assert nvml.shut


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (Nvml([]), "lists no process of this tree"),
        (Nvml([(99, 5)]), "lists no process of this tree"),
        (Nvml([(1, None)]), "no figure by process"),
        (Nvml([(1, 5)], refuse="nvmlDeviceGetComputeRunningProcesses"), "Insufficient Permissions"),
    ],
)
def test_what_the_driver_does_not_say_of_a_process_is_unknown(
    monkeypatch: pytest.MonkeyPatch, nvml: Nvml, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    figure = Devices().memory([1])["cuda:0.process"]
    assert (figure.value, figure.status) == (None, "unavailable")
    assert reason in str(figure.detail)


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (None, "not installed"),
        (Nvml([], refuse="nvmlInit"), "Insufficient Permissions"),
        (Nvml([], refuse="nvmlDeviceGetCount"), "Insufficient Permissions"),
    ],
)
def test_a_machine_whose_devices_cannot_be_asked_says_why(
    monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    devices = Devices()
    facts: dict[str, Measurement] = {}
    assert (devices.observe(facts), devices.memory([1])) == ([], {})
    assert reason in str(facts["cuda"].detail)
