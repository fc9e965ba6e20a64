"""`tally observe`: watching an engine that somebody else wrote, and the witness that `realize` starts beside its own."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from ledger.errors import CheckpointError, TallyError
from realizer.cli.options import FileName, RunName, json_option, ledger_option, pairs
from realizer.cli.rendering import emit_json, say, show

if TYPE_CHECKING:
    from ledger.bodies import Body, CheckpointFile, EnvironmentObserved, ModelIdentity, RunOpened
    from ledger.plan import Plan
    from ledger.recording import Recorded
    from ledger.store import Store
    from realizer.witness import Watching

NODE = "node-a"
"""The node that a watch without a plan names; a plan names its own."""
DAY_SECONDS = 86_400
"""The longest rest between two looks: what waits for them takes no numbers without end."""
READY, DONE = "ready", "closed"
"""What a witness says on standard output, with its run, to whoever asks it for samples by lines."""


@click.command()
@click.option(
    "--pid",
    "pids",
    type=click.IntRange(min=1),
    multiple=True,
    required=True,
    metavar="PID",
    help="A process to watch, with all its children; repeatable.",
)
@click.option(
    "--checkpoint",
    type=FileName(),
    metavar="DIR",
    help="The checkpoint's folder, or its one file: who maps, holds and opens it.",
)
@click.option("--plan", type=FileName(), metavar="PLAN", help="Judge by this plan what can be judged from outside.")
@click.option("--follow", is_flag=True, help="Go on until the processes end, or until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.01, max=DAY_SECONDS),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between looks while following.",
)
@click.option(
    "--sample-label", metavar="NAME", help="The sample by which the engine has loaded: staging must be gone there."
)
@click.option(
    "--labels-from-stdin", is_flag=True, help="While following, take a sample for each line read, under that name."
)
@click.option("--witness-of", type=RunName(), metavar="RUN", help="The recorded run that is watched.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Recorded with the run; repeatable.")
@click.option("--private", is_flag=True, help="Do not record hostname, user, arguments, command names and directories.")
@ledger_option
@json_option
def observe(
    pids: tuple[int, ...],
    checkpoint: str | None,
    plan: str | None,
    follow: bool,
    interval: float,
    sample_label: str | None,
    labels_from_stdin: bool,
    witness_of: str | None,
    labels: tuple[str, ...],
    private: bool,
    ledger: str,
    as_json: bool,
) -> None:
    """Watch processes of others; what is seen is a run of its own.

    Nothing is needed from the watched program, and it is neither stopped nor written to. Without a plan nothing is
    judged: `tally show` tells the facts. With one, device bytes of a unit that has a device to itself, the host mirror
    and the give-back of staging are judged; what only the engine's inside could tell stays unknown.

    Once is enough for an engine that has loaded. With --follow the watch goes on: start it before the engine loads, and
    give the moment at which it has, by --labels-from-stdin and --sample-label. Accesses to the checkpoint count from the
    start, and anew from each such sample (after-decode and closing aside).

    \b
    Examples:
      tally observe --pid 4711 --checkpoint ./my-model
      tally observe --pid 4711 --checkpoint ./my-model --plan plan.json --sample-label loaded
      tally observe --pid 4711 --checkpoint ./my-model --follow
    """
    if labels_from_stdin and not follow:
        raise click.UsageError("--labels-from-stdin goes with --follow")
    from ledger.bodies import RunClosed
    from ledger.events import Actor
    from ledger.recording import Recorder, uuid7
    from realizer.cli.access import writable_ledger
    from realizer.cli.plan_views import read_plan
    from realizer.recorded import program
    from realizer.witness import Watching, Witness, checkpoint_files

    found = read_plan(plan) if plan else None
    files = checkpoint_files(Path(checkpoint)) if checkpoint else []
    witness = Witness(pids, files, private=private)
    wanted = pairs(labels, "--label")
    with writable_ledger(ledger) as store, _stopping():
        watched = store.resolve(witness_of) if witness_of and not _is_id(witness_of) else witness_of
        run_id = uuid7()
        node = found.document.resources.nodes[0].id if found and found.document.resources.nodes else NODE
        recorder = Recorder(store.append, run_id=run_id, node_id=node, actor=Actor(kind="witness", id=program()))
        opened = _opened(store, found, checkpoint, files, wanted, watched, private)
        answer = _answering(labels_from_stdin)
        stopped = False
        recorder(opened)
        try:
            say(f"run {run_id}")
            environment = witness.environment()
            recorder(environment)
            witness.begin()
            watching = Watching(witness, recorder)
            judging = _Judging(found, environment, watching, recorder, sample_label)
            ask = _asking(labels_from_stdin, pids)  # before the first sample: from then on no end is missed
            try:
                judging.take(_first_label(follow, labels_from_stdin, sample_label))
                answer(f"{READY} {run_id}")
                if follow:
                    watching.follow(interval, ask, judging.answering(answer))
            except KeyboardInterrupt:
                stopped = True  # the way to end a watch: what was seen is closed as it should be
            judging.finish()
            recorder(RunClosed(outcome="completed"))
        except BaseException as error:
            _close_as_failed(recorder, error)
            raise
        finally:
            witness.close()
        _settle(store, run_id, as_json, quiet=labels_from_stdin)
        answer(f"{DONE} {run_id}")
    if stopped:
        say("the watch was ended; its run is closed")


def _first_label(follow: bool, asked: bool, loaded: str | None) -> str:
    """What the first sample is called: the only one, a beginning, or one before whoever asks has asked."""
    if not follow:
        return loaded or "observed"
    return "attached" if asked else "baseline"


class _Judging:
    """Adds to a watch what a plan lets an outsider say."""

    def __init__(
        self,
        plan: Plan | None,
        environment: EnvironmentObserved,
        watching: Watching,
        record: Callable[[Body], Recorded],
        loaded: str | None,
    ) -> None:
        self._plan, self._environment, self._watching = plan, environment, watching
        self._record, self._loaded = record, loaded

    def take(self, label: str) -> None:
        """The first sample. Raises TallyError when the processes ended before it."""
        if not self._watching.take(label):
            raise TallyError("the processes ended before anything was seen of them")
        self.seen(label)

    def answering(self, answer: Callable[[str], None]) -> Callable[[str], None]:
        """`answer`, after what the sample of that label lets say."""

        def told(label: str) -> None:
            self.seen(label)
            answer(label)

        return told

    def seen(self, label: str) -> None:
        """At the label by which the engine has loaded: what went back of the staging."""
        from realizer.outside import staging_gone

        watching = self._watching
        if self._plan is None or label != self._loaded:
            return
        if watching.first is None or watching.highest is None or watching.latest is None:
            return  # nothing was seen
        for body in staging_gone(self._plan, watching.first, watching.highest, watching.latest):
            self._record(body)

    def finish(self) -> None:
        """The closing sample, and the device bytes that it shows."""
        from realizer.outside import device_residents

        closing = self._watching.finish()
        if self._plan is not None and closing is not None:
            for body in device_residents(self._plan, self._environment, closing):
                self._record(body)


def _is_id(name: str) -> bool:
    """A full run id: taken as it stands, since the run that it names may not be recorded yet."""
    return len(name) == 36 and name.count("-") == 4


def _opened(
    store: Store,
    plan: Plan | None,
    checkpoint: str | None,
    files: list[Path],
    labels: dict[str, str],
    witness_of: str | None,
    private: bool,
) -> RunOpened:
    from ledger.bodies import PlanReference, RunOpened
    from realizer.recorded import freezing
    from realizer.software import process_facts, software_identity

    reference = None
    if plan is not None:
        store.put_blob(plan.data, "application/json")
        reference = PlanReference(
            claimed_digest=plan.claimed_digest,
            computed_digest=plan.computed_digest,
            blob_digest=plan.blob_digest,
            plan_schema=plan.schema,
        )
    facts = process_facts(private=private)
    return RunOpened(
        purpose="witness",
        plan=reference,
        frozen=freezing(store, plan) if plan is not None else None,
        software=software_identity(),
        argv=facts["argv"],
        user=facts["user"],
        hostname=facts["hostname"],
        pid=facts["pid"],
        labels=labels,
        model=_identity(checkpoint, private),
        checkpoint_files=_described(files),
        witness_of=witness_of,
    )


def _identity(checkpoint: str | None, private: bool) -> ModelIdentity | None:
    """What the checkpoint says of itself, where it is a folder of safetensors; null for other formats."""
    from realizer.checkpoint import open_checkpoint
    from realizer.witness import as_witness

    if checkpoint is None or not Path(checkpoint).is_dir():
        return None
    try:
        return as_witness(open_checkpoint(checkpoint).identity(private=private))
    except CheckpointError:
        return None  # another format: the files by themselves are watched


def _described(files: list[Path]) -> list[CheckpointFile]:
    from ledger.bodies import CheckpointFile
    from ledger.measurement import measured, unavailable

    return [
        CheckpointFile(
            name=path.name,
            size=measured(path.stat().st_size, "bytes", "stat", source="witness"),
            digest=unavailable(None, "SHA-256 of the file", "a witness reads no file whole", source="witness"),
        )
        for path in files
    ]


def _close_as_failed(record: Callable[[Body], Recorded], error: BaseException) -> None:
    from ledger.bodies import RunClosed

    message = " ".join(str(error).split())[:500] or None
    record(
        RunClosed(
            outcome="aborted" if isinstance(error, KeyboardInterrupt) else "failed",
            error_type=type(error).__name__,
            message=message,
        )
    )


@contextmanager
def _stopping() -> Iterator[None]:
    """Take a request to terminate, or a terminal that closes, as the end of the watch, like an interrupt."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    taken = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup asked for that
    }
    try:
        yield
    finally:
        for number, previous in taken.items():
            signal.signal(number, previous)


def _asking(from_stdin: bool, pids: Sequence[int]) -> Callable[[float], str | None]:
    """Waits for a label on standard input, or only waits; and no longer than until one of the processes ends."""
    waiting = bytearray()
    awaited = {descriptor for pid in pids if (descriptor := _end_of(pid)) is not None}

    def ask(seconds: float) -> str | None:
        if b"\n" not in waiting:
            ready = set(select.select([*awaited, *([0] if from_stdin else [])], [], [], seconds)[0])
            for descriptor in ready & awaited:  # it stays ready, and is no news any more
                awaited.discard(descriptor)
                os.close(descriptor)
            read = os.read(0, 65536) if 0 in ready else None
            if read == b"":
                return ""
            waiting.extend(read or b"")
        line, end, rest = bytes(waiting).partition(b"\n")
        if not end:
            return None
        waiting[:] = rest
        return line.decode("utf-8", "replace").strip() or None

    return ask


def _end_of(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; null where the kernel gives none (pidfd_open(2))."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _answering(to_stdout: bool) -> Callable[[str], None]:
    """Says a line to whoever asks by lines; once they are gone, to nobody."""
    gone: list[bool] = []

    def answer(line: str) -> None:
        if not to_stdout or gone:
            return
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            gone.append(True)

    return answer


def _settle(store: Store, run_id: str, as_json: bool, *, quiet: bool) -> None:
    """Record the verdict where there is a plan, and show the run."""
    from ledger.reconcile import run_document
    from realizer.cli.portrait import portrait
    from realizer.cli.resolving import from_store
    from realizer.recorded import append_verdict

    source = from_store(store, run_id)
    state, judgement = source.judged()
    if judgement is not None:
        append_verdict(store, source.run_id, judgement)
    if quiet:
        return
    if as_json:
        emit_json(run_document(state, judgement))
    else:
        show(*portrait(source.plan, state, judgement), pager=False)
