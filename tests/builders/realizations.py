"""A tiny model planned for this machine and carried out into an in-memory ledger, as engine tests want it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.causal_lm import CausalLM
from ledger.canonical import sha256_digest
from ledger.events import Actor, Event
from ledger.fold import fold
from ledger.plan import Plan, freeze, parse_plan
from ledger.reconcile import Judgement, judge
from ledger.recording import ListLedger, Recorder, uuid7
from ledger.run_state import RunState
from realizer import engine
from realizer.adapter import Adapter
from realizer.checkpoint import open_checkpoint
from realizer.decode import save_fixture
from realizer.drafting import DraftOptions, draft_plan
from realizer.environment import observe_environment
from tests.builders.checkpoints import tiny_model

PROMPT = [3, 1, 4, 1, 5]


@dataclass
class Prepared:
    """A frozen plan with its checkpoint and reference."""

    plan: Plan
    checkpoint: Path
    reference: Path

    def changed(self, change: Callable[[dict[str, Any]], None], *, refreeze: bool = True) -> Plan:
        """The plan with its document changed, frozen anew unless told not to."""
        raw = json.loads(self.plan.data)
        change(raw)
        if not refreeze:
            return parse_plan(json.dumps(raw).encode())
        raw.pop("digest")
        return freeze(parse_plan(json.dumps(raw).encode()))


def prepare(
    folder: Path, *, staging: str = "full", family: str = "llama", dtype: str = "bfloat16", device: str = "cpu"
) -> Prepared:
    """Checkpoint, draft, reference and frozen plan in `folder`."""
    checkpoint = tiny_model(folder / "model", family, dtype=dtype)
    opened = open_checkpoint(checkpoint)
    options = DraftOptions(device, staging, hash_files=True)  # type: ignore[arg-type]
    draft = parse_plan(draft_plan(opened, CausalLM, observe_environment(), options, source=str(checkpoint)))
    reference = folder / "reference.safetensors"
    digest = save_fixture(CausalLM.reference(draft, opened, None, PROMPT), reference)
    return Prepared(freeze(draft, reference_digest=digest), checkpoint, reference)


@dataclass
class Carried:
    """What a run left: its events, what they fold to, the blobs, and the error that ended it (None: completed)."""

    plan: Plan
    events: list[Event]
    blobs: dict[str, bytes]
    error: BaseException | None
    labels: list[str] = field(default_factory=list)

    @property
    def state(self) -> RunState:
        return fold(self.events)

    @property
    def judgement(self) -> Judgement:
        return judge(self.plan, self.state)

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.judgement.findings}

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


def carry_out(
    prepared: Prepared,
    *,
    adapter: type[Adapter] = CausalLM,
    plan: Plan | None = None,
    use: Callable[[engine.LiveRun], None] | None = None,
    progress: engine.Progress | None = None,
    **request: Any,
) -> Carried:
    """Realize the plan; whatever ends it is kept and not raised. `use` is called inside the `with` block."""
    ledger = ListLedger()
    run_id = uuid7()
    blobs: dict[str, bytes] = {}

    def put_blob(data: bytes, media_type: str) -> str:
        digest = sha256_digest(data)
        blobs[digest] = data
        return digest

    recorder = Recorder(ledger.append, run_id=run_id, node_id="node-a", actor=Actor(kind="realizer", id="test"))
    asked: dict[str, Any] = {"checkpoint": str(prepared.checkpoint), "reference": prepared.reference, **request}
    asked = engine.Request(plan=plan or prepared.plan, adapter=adapter, **asked)  # type: ignore[assignment]
    error: BaseException | None = None
    try:
        watched = {} if progress is None else {"progress": progress}
        with engine.realize(asked, sink=recorder, put_blob=put_blob, **watched) as run:  # type: ignore[arg-type]
            if use is not None:
                use(run)
    except BaseException as caught:  # noqa: BLE001 - a test looks at whatever ended the run
        error = caught
    return Carried(plan or prepared.plan, ledger.events(run_id), blobs, error)
