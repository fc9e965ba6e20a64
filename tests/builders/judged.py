"""Ledgers on disk and evidence from them: small, the same every time, made through the store like real ones.

A run here is the clean run of `tests.builders.runs` with the verdict that the judge really gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.bodies import Body, FreezingReference, PlanFrozen, RunClosed, RunOpened, VerdictRecorded
from ledger.events import Actor, read_event
from ledger.fold import fold
from ledger.intake import Taken
from ledger.measurement import measured
from ledger.plan import Plan
from ledger.reconcile import JUDGE_VERSION, judge
from ledger.recording import Draft, ListLedger
from ledger.store import Store
from tests.builders.runs import FREEZING_ID, NODE, RUN_ID, clean_bodies, opened, record, sample, small_plan

KEY = Ed25519PrivateKey.from_private_bytes(b"tallystick evidence test key 32b")
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"somebody else's signing key 32 b")
PLAN = small_plan()
TENSORS = b'[{"name":"weight","digest":"sha256:00"}]'


def run_id(number: int) -> str:
    """Ids that differ in their last digits; number 1 is the builders' own RUN_ID."""
    return f"{RUN_ID[:-4]}{number:04x}"


def run_bodies(plan: Plan = PLAN, **opened_changes: object) -> list[Body]:
    """The clean run, with fields of run.opened changed."""
    bodies = clean_bodies(plan)
    return [body.model_copy(update=opened_changes) if isinstance(body, RunOpened) else body for body in bodies]


def draft(body: Body, run: str, index: int) -> Draft:
    """A draft with an id and time of its own place, as a later process appends it."""
    return Draft(
        event_id=f"{run[:-12]}{int(run[-4:], 16):04x}{index:08x}",
        run_id=run,
        body=body,
        recorded_at=f"2026-11-29T13:00:{index % 60:02d}.000000Z",
        elapsed_ns=None,
        node_id=NODE,
        actor=Actor(kind="judge", id=f"tallystick judge {JUDGE_VERSION}"),
    )


def add_run(
    ledger: ListLedger, number: int, plan: Plan = PLAN, bodies: Sequence[Body] | None = None, *, verdict: bool = True
) -> str:
    """Record a run and, with `verdict`, what the judge says of it. Returns its id."""
    run = run_id(number)
    freezing = _frozen(ledger, plan)
    cited = [
        body.model_copy(update={"frozen": freezing}) if isinstance(body, RunOpened) else body
        for body in (bodies if bodies is not None else clean_bodies(plan))
    ]
    record(cited, plan, run_id=run, ledger=ledger, frozen=False)
    if verdict:
        add_verdict(ledger, run, plan)
    return run


def _frozen(ledger: ListLedger, plan: Plan) -> FreezingReference:
    """The freezing of that plan, appended unless it is there."""
    body = PlanFrozen(digest=plan.computed_digest, blob_digest=plan.blob_digest)
    for place in ledger.recorded:
        event = read_event(place.envelope)
        if event.body == body:
            break
    else:
        stream = f"{FREEZING_ID[:-12]}{plan.computed_digest[-12:]}"
        (place,) = ledger.append(stream, 0, [draft(body, stream, 0)])
    return FreezingReference(
        hash=place.hash, position=place.position, digest=plan.computed_digest, ledger_size=len(ledger.recorded)
    )


def add_verdict(ledger: ListLedger, run: str, plan: Plan = PLAN) -> None:
    """Append the judge's verdict on the run as recorded so far, its witnesses included."""
    events = ledger.events(run)
    witnesses = []
    for other in {event.run_id for event in ledger.events() if event.body.TYPE == RunOpened.TYPE}:
        first = ledger.events(other)[0].body
        if isinstance(first, RunOpened) and first.witness_of == run:
            witnesses.append(fold(ledger.events(other)))
    judgement = judge(plan, fold(events), witnesses)
    body = VerdictRecorded(
        judge_version=JUDGE_VERSION,
        verdict=judgement.verdict,
        assurance=judgement.assurance,
        codes=sorted({finding.code for finding in judgement.findings}),
    )
    ledger.append(run, len(events), [draft(body, run, len(events))])


def add_witness(
    ledger: ListLedger, number: int, watched: str, plan: Plan = PLAN, seen: Sequence[Body] | None = None, **more: object
) -> str:
    """A witness run without a plan: another process, that saw what `seen` has (a sample), closed. `more` is of its opening."""
    run = run_id(number)
    without = {"purpose": "witness", "plan": None, "witness_of": watched, "adapter": None, "model": None}
    pid = measured(4243, None, "getpid")
    first = opened(plan).model_copy(update={**without, "checkpoint_files": [], "pid": pid, **more})
    bodies: list[Body] = [
        first,
        *([sample(plan, "seen", [])] if seen is None else seen),
        RunClosed(outcome="completed"),
    ]
    ledger.append(run, 0, [draft(body, run, index) for index, body in enumerate(bodies)])
    return run


def fill(store: Store, ledger: ListLedger, plans: Sequence[Plan] = (PLAN,)) -> None:
    """Append everything of a list ledger to a store, byte for byte and in order, and the plans' documents."""
    for plan in plans:
        store.put_blob(plan.data, "application/json")
    start = store.size()
    events = [(read_event(place.envelope), place.envelope) for place in ledger.recorded[start:]]
    for run, group in groupby(events, key=lambda pair: pair[0].run_id):
        drafts: list[Draft] = [
            Taken(
                event_id=event.event_id,
                run_id=event.run_id,
                body=event.body,
                recorded_at=event.recorded_at,
                elapsed_ns=event.elapsed_ns,
                node_id=event.node_id,
                actor=event.actor,
                envelope=envelope,
            )
            for event, envelope in group
        ]
        store.append(run, store.next_sequence(run), drafts)


def one_run(**options: object) -> ListLedger:
    """A ledger with the plan's freezing and one clean, judged run."""
    ledger = ListLedger()
    add_run(ledger, 1, **options)  # type: ignore[arg-type] # passed through
    return ledger


def stored(path: Path, ledger: ListLedger, plans: Sequence[Plan] = (PLAN,)) -> Path:
    """The list ledger as a new SQLite ledger."""
    with Store.open(path, write=True, create=True) as store:
        fill(store, ledger, plans)
    return path
