"""What happened and whether it adds up: events, storage, judging, evidence. Never imports torch.

What others may build on are the names below, documented in docs/library.md; a room is imported when one of its names is asked
for, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.audit import verify_ledger as verify_ledger
    from ledger.errors import TallyError as TallyError
    from ledger.events import Actor as Actor
    from ledger.events import Event as Event
    from ledger.events import read_event as read_event
    from ledger.evidence import open_evidence as open_evidence
    from ledger.evidence import verify as verify
    from ledger.export import export_run as export_run
    from ledger.measurement import Measurement as Measurement
    from ledger.plan import Plan as Plan
    from ledger.plan import freeze as freeze
    from ledger.plan import parse_plan as parse_plan
    from ledger.plan_checks import check_plan as check_plan
    from ledger.query import run_query as run_query
    from ledger.reconcile import Judgement as Judgement
    from ledger.reconcile import judge as judge
    from ledger.recording import ListLedger as ListLedger
    from ledger.recording import Recorder as Recorder
    from ledger.recording import uuid7 as uuid7
    from ledger.run_state import RunState as RunState
    from ledger.store import Store as Store

_ROOMS = {
    "Actor": "ledger.events",
    "Event": "ledger.events",
    "Judgement": "ledger.reconcile",
    "ListLedger": "ledger.recording",
    "Measurement": "ledger.measurement",
    "Plan": "ledger.plan",
    "Recorder": "ledger.recording",
    "RunState": "ledger.run_state",
    "Store": "ledger.store",
    "TallyError": "ledger.errors",
    "check_plan": "ledger.plan_checks",
    "export_run": "ledger.export",
    "freeze": "ledger.plan",
    "judge": "ledger.reconcile",
    "open_evidence": "ledger.evidence",
    "parse_plan": "ledger.plan",
    "read_event": "ledger.events",
    "run_query": "ledger.query",
    "uuid7": "ledger.recording",
    "verify": "ledger.evidence",
    "verify_ledger": "ledger.audit",
}
"""Public name -> the room that holds it."""

__all__ = list(_ROOMS)


if not TYPE_CHECKING:  # a type checker is to refuse any other name

    def __getattr__(name: str) -> Any:
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
