"""The checkpoint watch: every access that a means can see is counted, attributed to who was seen, and never invented."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.bodies import SourceAccessed, SourceWatched
from realizer import fanotify, inotify, process_tree
from realizer import watch as watching
from realizer.procfs import ProcFS
from realizer.watch import CheckpointWatch

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def watch(file: Path) -> Iterator[CheckpointWatch]:
    process_tree.adopt_orphans(False)  # probes of another test may have left it on
    made = CheckpointWatch([file])
    made.arm()
    yield made
    made.close()


def elsewhere(program: str, *arguments: str) -> None:
    """Run a program in another process, which has ended when this returns."""
    subprocess.run([sys.executable, "-c", program, *arguments], check=True)


def seen(watch: CheckpointWatch) -> list[tuple[str, str, int]]:
    return sorted((found.access, found.attributed_to, int(found.count.value or 0)) for found in watch.accesses())


def c_open(path: Path) -> int:
    """An open that the interpreter's audit hook knows nothing of."""
    return ctypes.CDLL(None).open(os.fsencode(path), os.O_RDONLY)


def test_nothing_done_is_nothing_seen(watch: CheckpointWatch) -> None:
    watch.mark()
    summary = watch.summary()
    assert isinstance(summary, SourceWatched)
    assert seen(watch) == []
    facts = [
        summary.armed, summary.overflowed, summary.network_filesystem, summary.tree_accesses, summary.other_accesses,
        summary.mapped_files, summary.open_descriptors,
    ]  # fmt: skip
    assert [fact.value for fact in facts] == [1, 0, 0, 0, 0, 0, 0]
    assert all(fact.observed for fact in facts)


def test_what_came_before_the_mark_does_not_count(watch: CheckpointWatch, file: Path) -> None:
    file.read_bytes()
    elsewhere("import sys; open(sys.argv[1]).close()", str(file))
    assert watch.accesses() == []
    watch.mark()
    assert seen(watch) == []
    assert watch.summary().tree_accesses.value == 0


def test_an_open_by_this_interpreter_is_the_trees(watch: CheckpointWatch, file: Path) -> None:
    watch.mark()
    file.read_bytes()
    (found,) = watch.accesses()
    assert isinstance(found, SourceAccessed)
    assert (found.access, found.attributed_to, found.count.value) == ("open", "tree", 1)
    assert found.path.value == "model.safetensors"
    assert found.pid.value == os.getpid()
    assert found.means == "audit hook"
    assert watch.accesses() == [], "what was returned is not returned again"
    file.read_bytes()
    assert seen(watch) == [("open", "tree", 1)]
    assert watch.summary().tree_accesses.value == 2
    assert watch.summary().other_accesses.value == 0


@pytest.mark.parametrize("how", ["relative", "bytes", "os.open", "link", "hard link", "proc"])
def test_the_file_is_known_by_what_it_is_and_not_by_its_name(
    watch: CheckpointWatch, file: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = file.parent / "other"
    if how == "hard link":
        link.hardlink_to(file)
    elif how == "link":
        link.symlink_to(file)
    held = file.open("rb") if how == "proc" else None
    watch.mark()
    monkeypatch.chdir(file.parent)
    paths = {"relative": file.name, "bytes": os.fsencode(file), "link": link, "hard link": link}
    if how == "os.open":
        os.close(os.open(file, os.O_RDONLY))
    elif held is not None:
        os.close(os.open(f"/proc/self/fd/{held.fileno()}", os.O_RDONLY))
        held.close()
    else:
        with open(paths[how], "rb"):  # noqa: PTH123 - a path of bytes is one of the cases
            pass
    assert seen(watch) == [("open", "tree", 1)]


def test_an_open_by_c_code_that_is_still_held_is_the_trees(watch: CheckpointWatch, file: Path) -> None:
    watch.mark()
    descriptor = c_open(file)
    (found,) = watch.accesses()
    os.close(descriptor)
    assert (found.access, found.attributed_to, found.pid.value) == ("open", "tree", os.getpid())
    assert (watch.summary().tree_accesses.value, watch.summary().other_accesses.value) == (1, 0)


def test_a_second_open_by_c_code_is_told_from_the_descriptor_of_before(watch: CheckpointWatch, file: Path) -> None:
    with file.open("rb"):
        watch.mark()
        descriptor = c_open(file)
        assert seen(watch) == [("open", "tree", 1)]
        os.close(descriptor)


def test_an_open_by_c_code_is_seen_while_it_lasts(watch: CheckpointWatch, file: Path) -> None:
    """The listening thread looks at /proc at once; nobody has to ask in time."""
    watch.mark()
    descriptor = c_open(file)
    time.sleep(0.3)
    os.close(descriptor)
    assert seen(watch) == [("open", "tree", 1)]


def test_an_open_by_c_code_that_left_a_mapping_is_the_trees(watch: CheckpointWatch, file: Path) -> None:
    watch.mark()
    descriptor = c_open(file)
    mapped = mmap.mmap(descriptor, len(CONTENT), prot=mmap.PROT_READ)
    os.close(descriptor)
    accesses = seen(watch)
    assert ("mapping", "tree", 1) in accesses
    summary = watch.summary()
    assert (summary.mapped_files.value, summary.other_accesses.value) == (1, 0)
    mapped.close()


def _kernel_tells_openers(watch: CheckpointWatch) -> None:
    if watch._openers.problem is not None:
        pytest.skip(f"this kernel does not tell who opens a file: {watch._openers.problem}")


def test_the_kernel_tells_that_a_short_open_by_c_code_was_our_own(watch: CheckpointWatch, file: Path) -> None:
    _kernel_tells_openers(watch)
    watch.mark()
    with watch._lock:  # the listening thread is not quick enough
        os.close(c_open(file))
    (found,) = watch.accesses()
    assert (found.access, found.attributed_to, found.pid.value) == ("open", "tree", os.getpid())
    assert "fanotify" in watch.summary().means


def test_the_kernels_word_on_another_process_does_not_make_its_open_ours(watch: CheckpointWatch, file: Path) -> None:
    _kernel_tells_openers(watch)
    watch.mark()
    with watch._lock:
        elsewhere("import sys; open(sys.argv[1]).close()", str(file))
    (found,) = watch.accesses()
    assert found.attributed_to == "unknown"
    assert found.pid.value not in (0, os.getpid())


def test_an_open_of_ours_does_not_cover_another_process(watch: CheckpointWatch, file: Path) -> None:
    watch.mark()
    with watch._lock:
        file.read_bytes()
        elsewhere("import sys; open(sys.argv[1]).close()", str(file))
    assert seen(watch) == [("open", "tree", 1), ("open", "unknown", 1)]


def test_a_kernel_without_fanotify_is_no_reason_not_to_watch(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanotify, "_libc", object())
    watch = CheckpointWatch([file])
    watch.arm()
    watch.mark()
    file.read_bytes()
    assert seen(watch) == [("open", "tree", 1)]
    assert watch.summary().armed.value == 1
    assert "fanotify" not in watch.summary().means
    assert watch._openers.problem == "fanotify_init: Function not implemented"
    watch.close()


def test_a_load_by_a_library_that_maps_the_file_is_the_trees(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    safetensors.save_file({"a": torch.zeros(1 << 20)}, path)
    watch = CheckpointWatch([path])
    watch.arm()
    watch.mark()
    tensors = safetensors.load_file(path)
    summary = watch.summary()
    watch.close()
    assert summary.tree_accesses.value
    assert len(tensors) == 1


def test_an_open_that_nobody_was_seen_making_is_of_unknown_origin(watch: CheckpointWatch, file: Path) -> None:
    watch._openers.close()  # as where the kernel does not tell who opens
    watch.mark()
    with watch._lock:  # the listening thread is not quick enough
        os.close(c_open(file))
    (found,) = watch.accesses()
    assert (found.access, found.attributed_to, found.count.value) == ("open", "unknown", 1)
    assert found.pid.status == "unavailable"
    assert watch.summary().other_accesses.value == 1


def test_an_open_by_another_process_is_not_the_trees(watch: CheckpointWatch, file: Path) -> None:
    watch.mark()
    with watch._lock:  # the listening thread is not quick enough
        elsewhere("import sys; open(sys.argv[1]).close()", str(file))
    assert seen(watch) == [("open", "unknown", 1)]
    summary = watch.summary()
    assert (summary.tree_accesses.value, summary.other_accesses.value) == (0, 1)


def test_a_process_outside_the_tree_that_holds_the_file_is_named(watch: CheckpointWatch, file: Path) -> None:
    watch.mark()
    outer = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]])"
    program = "import sys; held = open(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    starter = subprocess.Popen(
        [sys.executable, "-c", outer, program, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdin is not None
    assert starter.stdout is not None
    assert starter.stdout.readline().strip() == "ready"
    starter.wait(timeout=20)
    (found,) = watch.accesses()
    starter.stdin.close()
    assert (found.access, found.attributed_to) == ("open", "other")
    assert found.pid.value not in (None, os.getpid())


def test_a_child_that_holds_the_file_is_of_the_tree(watch: CheckpointWatch, file: Path) -> None:
    watch.mark()
    program = "import sys; held = open(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline().strip() == "ready"
        (found,) = watch.accesses()
        child.stdin.close()
    assert (found.access, found.attributed_to, found.pid.value) == ("open", "tree", child.pid)


def test_a_read_through_a_descriptor_from_before_is_seen(watch: CheckpointWatch, file: Path) -> None:
    with file.open("rb", buffering=0) as held:
        watch.mark()
        assert seen(watch) == []
        assert watch.summary().open_descriptors.value == 1
        held.read(10)
        assert seen(watch) == [("read", "tree", 1)]


def test_a_mapping_from_before_is_no_access_but_is_reported(watch: CheckpointWatch, file: Path) -> None:
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), len(CONTENT), prot=mmap.PROT_READ)
    watch.mark()
    assert mapped[0] == 0
    assert seen(watch) == []
    assert watch.summary().mapped_files.value == 1
    mapped.close()


def test_the_read_counter_moves_when_a_copy_is_read(watch: CheckpointWatch, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(CONTENT * 16)
    watch.mark()
    quiet = watch.summary().read_bytes
    assert isinstance(quiet.value, int)
    assert quiet.value < 64 * 1024
    copy.read_bytes()
    read = watch.summary().read_bytes
    assert isinstance(read.value, int)
    assert len(CONTENT) * 16 <= read.value < len(CONTENT) * 16 + 64 * 1024


def test_a_queue_that_overflowed_says_so(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for path in files:
        path.write_bytes(b"x")
    watch = CheckpointWatch(files)
    watch.arm()
    watch.mark()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        watch.close()
        pytest.skip(f"a queue of {limit} events takes too long to fill")
    names = [os.fsencode(path) for path in files]
    libc = ctypes.CDLL(None)
    with watch._lock:  # nobody takes the events
        for number in range(limit // 2 + 10):  # an open and a close each, never twice the same in a row
            os.close(libc.open(names[number % 2], os.O_RDONLY))
    assert watch.summary().overflowed.value == 1
    watch.close()


def test_a_watch_that_was_lost_is_not_armed(watch: CheckpointWatch, file: Path) -> None:
    watch.mark()
    file.unlink()
    summary = watch.summary()
    assert summary.armed.value == 0
    assert "lost" in str(summary.armed.detail)


def test_a_file_that_is_missing_leaves_the_watch_unarmed(tmp_path: Path) -> None:
    watch = CheckpointWatch([tmp_path / "missing.safetensors"])
    watch.arm()
    watch.mark()
    summary = watch.summary()
    assert summary.armed.value == 0
    assert "missing.safetensors" in str(summary.armed.detail)
    for figure in (summary.tree_accesses, summary.other_accesses, summary.overflowed):
        assert figure.value is None, "what nobody could see is not 0"
        assert "missing.safetensors" in str(figure.detail)
    assert "inotify" not in summary.means
    watch.close()


def test_no_access_seen_by_a_queue_that_lost_some_is_unknown(watch: CheckpointWatch) -> None:
    watch.mark()
    watch._inotify.overflowed = True
    summary = watch.summary()
    assert (summary.overflowed.value, summary.tree_accesses.value) == (1, None)
    assert "lost" in str(summary.tree_accesses.detail)


def test_no_inotify_left_is_said_and_the_other_means_go_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoInotify:
        def __getattr__(self, name: str) -> object:
            if name == "inotify_init1":
                ctypes.set_errno(24)
                return lambda flags: -1
            return getattr(ctypes.CDLL(None, use_errno=True), name)

    monkeypatch.setattr(inotify, "_libc", NoInotify())
    watch = CheckpointWatch([file])
    watch.arm()
    watch.mark()
    file.read_bytes()
    assert seen(watch) == [("open", "tree", 1)]
    summary = watch.summary()
    assert summary.armed.value == 0
    assert "inotify" in str(summary.armed.detail)
    assert (summary.tree_accesses.value, summary.other_accesses.value) == (1, None)
    assert "at least" in str(summary.tree_accesses.detail)
    watch.close()


def test_a_watch_that_was_never_marked_knows_no_counts(watch: CheckpointWatch, file: Path) -> None:
    file.read_bytes()
    summary = watch.summary()
    assert (summary.tree_accesses.status, summary.other_accesses.status) == ("unavailable", "unavailable")
    assert summary.read_bytes.status == "unavailable"
    assert summary.armed.value == 0


def test_a_closed_watch_hears_no_more(file: Path) -> None:
    watch = CheckpointWatch([file])
    watch.arm()
    watch.mark()
    watch.close()
    file.read_bytes()
    assert not watch._opens_here
    del watch
    gc.collect()
    file.read_bytes()
    assert len(watching._armed) == 0


@pytest.mark.parametrize("argument", [3, "no such file", "nul\x00", b"\xff"])
def test_the_audit_hook_lets_every_open_alone(watch: CheckpointWatch, argument: object) -> None:
    watch.mark()
    watching._audit("open", (argument, "r", 0))
    watching._audit("open", ())
    watching._audit("import", ("os",))
    assert seen(watch) == []


def _mounts(tmp_path: Path, kind: str, file: Path) -> ProcFS:
    folder = tmp_path / "proc" / str(os.getpid())
    folder.mkdir(parents=True)
    (folder / "mountinfo").write_text(
        f"20 1 0:1 / / rw - ext4 /dev/x rw\n21 20 0:2 / {file.parent} rw - {kind} server:/share rw\n"
    )
    return ProcFS(tmp_path / "proc")


@pytest.mark.parametrize(("kind", "network"), [("nfs4", 1), ("fuse.sshfs", 1), ("9p", 1), ("ext4", 0), ("overlay", 0)])
def test_a_network_filesystem_is_recorded(tmp_path: Path, file: Path, kind: str, network: int) -> None:
    watch = CheckpointWatch([file], proc=_mounts(tmp_path, kind, file))
    found = watch.summary().network_filesystem
    assert found.value == network
    assert kind in str(found.detail)


def test_without_mounts_the_filesystem_is_unknown_and_without_proc_the_holders_are(tmp_path: Path, file: Path) -> None:
    watch = CheckpointWatch([file], proc=ProcFS(tmp_path / "none"))
    watch.arm()
    watch.mark()
    summary = watch.summary()
    assert summary.network_filesystem.status == "unavailable"
    assert summary.mapped_files.status == summary.open_descriptors.status == "unavailable"
    assert summary.read_bytes.status == "unavailable"
    file.read_bytes()
    assert seen(watch) == [("open", "tree", 1)]
    watch.close()


def test_names_never_hold_a_folder_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "part").mkdir(parents=True)
    files = [tmp_path / "snapshots" / "a.safetensors", tmp_path / "snapshots" / "part" / "b.safetensors"]
    assert watching._names(files) == ["a.safetensors", "part/b.safetensors"]
    assert watching._names([]) == []
