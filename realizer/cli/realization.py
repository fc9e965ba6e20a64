"""`tally realize` and `tally reference`: carrying a plan out, and the unplanned run that it is compared with."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from ledger.counting import counted
from ledger.errors import CheckpointError, NotFound, RealizationFailed, TallyError
from realizer.cli.files import write_output
from realizer.cli.hints import command
from realizer.cli.options import FileName, json_option, ledger_option, output_option, pairs, refuse_two_documents
from realizer.cli.plan_views import read_plan
from realizer.cli.rendering import emit_json, emit_text, heading, progress_bars, say, show

if TYPE_CHECKING:
    from ledger.bodies import Body
    from ledger.plan import Plan
    from ledger.recording import Recorded, Recorder
    from ledger.store import Store
    from realizer.adapter import Adapter
    from realizer.checkpoint import Checkpoint
    from realizer.engine import LiveRun, Request

DEFAULT_PROMPT = "The capital of France is"


@click.command()
@click.argument("plan", type=FileName())
@click.option(
    "--checkpoint",
    type=FileName(),
    metavar="DIR",
    help="The checkpoint's directory, or a hub repository; else the plan's own.",
)
@click.option(
    "--reference", type=FileName(), metavar="FILE", help="The reference fixture that decode is compared with."
)
@click.option("--adapter", metavar="NAME", help="The adapter, for a plan that names none.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Recorded with the run; repeatable.")
@click.option("--challenge", metavar="TEXT", help="A verifier's nonce: shows that the run is no older than it.")
@click.option("--private", is_flag=True, help="Do not record hostname, user, arguments and directories.")
@click.option("--verify-content", is_flag=True, help="Digest every tensor at the source and where it came to lie.")
@click.option(
    "--witness", is_flag=True, help="Have a process of its own watch from outside; its run is judged with it."
)
@click.option("--prompt", metavar="TEXT", help="Answer a prompt with the very model that was proven.")
@click.option(
    "--answer-tokens", metavar="N", type=click.IntRange(min=1), default=16, help="Its length at most (default: 16)."
)
@ledger_option
@json_option
def realize(
    plan: str,
    checkpoint: str | None,
    reference: str | None,
    adapter: str | None,
    labels: tuple[str, ...],
    challenge: str | None,
    private: bool,
    verify_content: bool,
    witness: bool,
    prompt: str | None,
    answer_tokens: int,
    ledger: str,
    as_json: bool,
) -> int:
    """Carry a frozen PLAN out, record every step, and judge it. Exit 3 when the verdict is not PASS.

    A plan that does not fit is rejected before anything is allocated, every violation at once (exit 3). Whatever
    happens the run is closed with what was done recorded; interrupting closes it as aborted (exit 130).

    \b
    Examples:
      tally realize plan.json --reference reference.safetensors
      tally realize plan.json --checkpoint ./my-model --reference reference.safetensors --prompt "Hello"
      tally realize plan.json --reference reference.safetensors --witness
    """
    found = read_plan(plan)
    wanted = pairs(labels, "--label")
    from realizer import engine, recorded
    from realizer.adapter import load_adapter
    from realizer.cli.access import writable_ledger

    chosen = load_adapter(adapter) if adapter else None
    if reference is not None and not Path(reference).is_file():
        raise NotFound(f"reference {reference!r} is not a file", "make one with `tally reference`, or check the path")
    if prompt is not None:
        _require_answers(found, chosen, checkpoint, prompt)
    with writable_ledger(ledger) as store:
        recorder = recorded.begin(store, found)
        run_id = recorder.run_id
        request = engine.Request(
            plan=found,
            checkpoint=checkpoint,
            reference=Path(reference) if reference else None,
            adapter=chosen,
            frozen=recorded.freezing(store, found),
            labels=wanted,
            challenge=challenge,
            private=private,
            verify_content=verify_content,
        )
        answer: str | None = None
        try:
            with (
                _terminable(),
                progress_bars() as progress,
                _witnessed(witness, recorder, request, ledger) as sink,
                engine.realize(
                    request, sink=_announced(sink, run_id), put_blob=store.put_blob, progress=progress
                ) as live,
            ):
                if prompt is not None:
                    answer = _answer(live, prompt, answer_tokens)
        except TallyError:
            raise
        except KeyboardInterrupt:
            recorded.close_as_aborted(store, recorder)
            raise
        except Exception as error:
            raise RealizationFailed(
                f"the realization stopped: {type(error).__name__}: {' '.join(str(error).split())[:500]}",
                f"`{command('log', run_id, ledger=True)}` shows how far it came, TALLY_DEBUG=1 where it stopped",
            ) from error
        finally:
            passed = _settle(store, found, run_id, as_json)
        if answer is not None:
            _tell_answer(str(prompt), answer, as_json)
    return 0 if passed else 3


@contextmanager
def _witnessed(wanted: bool, recorder: Recorder, request: Request, ledger: str) -> Iterator[Callable[[Body], Recorded]]:
    """Where to send events: to the ledger, and, with a witness, word to it of each sample, so that it takes one too."""
    if not wanted:
        yield recorder
        return
    from ledger.bodies import MemorySampled
    from realizer.cli.beside import Beside

    beside = Beside(os.getpid(), recorder.run_id, _checkpoint_folder(request), ledger, request.private)

    def tell(body: Body) -> Recorded:
        event = recorder(body)
        if isinstance(body, MemorySampled):
            beside.sampled(body.label)
        return event

    try:
        yield tell
    finally:
        beside.close()


def _checkpoint_folder(request: Request) -> str | None:
    """Where the run's checkpoint lies; null where there is none, which the engine will say."""
    from realizer.checkpoint import open_checkpoint

    model = request.plan.document.model
    try:
        return str(open_checkpoint(request.checkpoint or model.repository, model.revision).directory)
    except CheckpointError:
        return None


@contextmanager
def _terminable() -> Iterator[None]:
    """Take a request to terminate as an interrupt, so that the run is closed as aborted."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _settle(store: Store, plan: Plan, run_id: str, as_json: bool) -> bool:
    """Record the verdict of a run that was closed, and show the run; whether it passed."""
    from ledger.reconcile import run_document
    from realizer import recorded
    from realizer.cli.portrait import brief, portrait

    settled = recorded.settle(store, plan, run_id)
    if settled is None:
        return False
    state, judgement = settled
    if as_json:
        emit_json(run_document(state, judgement))
    else:
        told = portrait if state.outcome == "completed" else brief
        show(*told(plan, state, judgement), pager=False)
    return judgement.verdict == "PASS"


def _announced(sink: Callable[[Body], Recorded], run_id: str) -> Callable[[Body], Recorded]:
    """The sink, which says the run's id once its first event is durable: before, no ledger knows it."""
    told = False

    def record(body: Body) -> Recorded:
        nonlocal told
        recorded = sink(body)
        if not told:
            told = True
            say(f"run {run_id}")
        return recorded

    return record


def _require_answers(plan: Plan, chosen: type[Adapter] | None, checkpoint: str | None, prompt: str) -> None:
    """Before anything is recorded. Raises TallyError where the adapter answers no prompts, or cannot read this one."""
    from realizer import answers
    from realizer.adapter import Adapter, adapter_for
    from realizer.checkpoint import open_checkpoint

    model = plan.document.model
    try:
        adapter = chosen or adapter_for(plan)
    except TallyError:
        return  # the run is rejected for it, on the record
    if getattr(adapter, "answer", None) is None:
        raise TallyError(f"adapter {adapter.name!r} answers no prompts", "leave --prompt out")
    if getattr(adapter.tokens, "__func__", None) is Adapter.tokens.__func__:  # type: ignore[attr-defined]
        return  # it says nothing of tokens, and may read text in a way of its own
    try:
        opened = open_checkpoint(checkpoint or model.repository, model.revision)
    except CheckpointError:
        return  # as above
    try:
        answers.tokens(adapter, opened, prompt)
    except TallyError as error:
        raise TallyError(f"the prompt cannot be answered: {error.message}", _instead_of_the_prompt(error)) from error


def _instead_of_the_prompt(error: TallyError) -> str:
    """What to try: a run takes no token ids, so that a tokenizer is needed, or no prompt."""
    if isinstance(error, CheckpointError):
        return "save the model's tokenizer in the checkpoint's folder, or leave --prompt out"
    return "give another prompt, or leave --prompt out"


def _answer(live: LiveRun, prompt: str, most_tokens: int) -> str:
    """What the proven model says to the prompt."""
    from realizer import answers

    try:
        return answers.answer(live.adapter, prompt, most_tokens)
    except answers.AdapterFault as fault:
        said = f"the run is over, and its verdict stands; of its answer: {fault.message}"
        raise answers.AdapterFault(said, fault.hint) from fault


def _tell_answer(prompt: str, answer: str, as_json: bool) -> None:
    """The answer is data, on standard output, unless a JSON document has that place."""
    if as_json:
        say(f"answer: {answer}")
        return
    show("", heading("Answer of the model that was proven"), pager=False)
    for line in (prompt + answer).splitlines():
        emit_text(line)


@click.command()
@click.argument("draft", type=FileName())
@click.option("--prompt", metavar="TEXT", help=f"What the model reads (default: {DEFAULT_PROMPT!r}).")
@click.option("--tokens", metavar="IDS", help="Token ids instead of a prompt, comma-separated.")
@click.option(
    "--checkpoint",
    type=FileName(),
    metavar="DIR",
    help="The checkpoint's directory, or a hub repository; else the plan's own.",
)
@click.option("--adapter", metavar="NAME", help="The adapter; else the one that the plan names.")
@output_option("the fixture", "fixture")
@json_option
def reference(
    draft: str,
    prompt: str | None,
    tokens: str | None,
    checkpoint: str | None,
    adapter: str | None,
    output: str,
    as_json: bool,
) -> None:
    """Run the unplanned model and keep what it gave.

    The planned one is compared with that. The model is loaded the ordinary way, with the run's cache class and
    length, dtype and attention. `plan freeze --reference` binds the fixture's digest.

    \b
    Examples:
      tally reference draft.json --prompt "The capital of France is" -o reference.safetensors
      tally reference draft.json --tokens 1,2,3,4 -o reference.safetensors
    """
    from ledger.canonical import sha256_digest
    from realizer import answers
    from realizer.adapter import adapter_for, load_adapter
    from realizer.checkpoint import open_checkpoint
    from realizer.cli.documents import WrittenDocument
    from realizer.cli.outputs import refuse_overwriting
    from realizer.decode import fixture_bytes

    if prompt is not None and tokens is not None:
        raise click.UsageError("--prompt and --tokens exclude each other")
    refuse_two_documents(output, as_json)
    found = read_plan(draft, "draft")
    chosen = load_adapter(adapter) if adapter else adapter_for(found)
    model = found.document.model
    opened = open_checkpoint(checkpoint or model.repository, model.revision)
    folder = opened.directory
    refuse_overwriting(output, "fixture", "the fixture", folders=[(f"the checkpoint in {str(folder)!r}", folder)])
    ids = _token_ids(tokens) if tokens is not None else _prompted(chosen, opened, prompt)
    fixture = answers.reference(chosen, found, opened, prompt, ids)
    data = fixture_bytes(fixture)
    write_output(output, data, "the fixture")
    if as_json:
        facts: dict[str, str | int | None] = {"tokens": len(ids) or None, **fixture.provenance}
        emit_json(WrittenDocument.of_bytes("reference", output, data, facts))
    elif output != "-":
        given = f"{counted(len(ids), 'token')} in" if ids else "an input of the adapter's choice"
        say(
            f"{output}: {sha256_digest(data)}, {given}; next: "
            + command("plan", "freeze", draft, "--reference", output, "-o", "plan.json")
        )


def _prompted(adapter: type[Adapter], checkpoint: Checkpoint, prompt: str | None) -> list[int]:
    """The prompt's tokens. Without a prompt those of the default, or, without a tokenizer, none: the adapter may choose."""
    from realizer import answers

    try:
        return answers.tokens(adapter, checkpoint, prompt if prompt is not None else DEFAULT_PROMPT)
    except CheckpointError as error:
        if prompt is None:
            return []
        raise CheckpointError(error.message, "give token ids: --tokens 1,2,3,4") from error


def _token_ids(text: str) -> list[int]:
    try:
        ids = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--tokens {text!r} is no comma-separated list of token ids") from None
    if any(token < 0 for token in ids):
        raise click.UsageError(f"--tokens {text!r} holds a negative id")
    return ids
