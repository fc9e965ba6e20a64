"""From a body to its place in a run: ids, times and the chain, for a store or for a list in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from ledger import canonical
from ledger.bodies import Body
from ledger.errors import EventError
from ledger.events import ENVELOPE_VERSION, Actor, Event, first_previous, read_event


@dataclass(frozen=True)
class Draft:
    """An event before the ledger gives it its place: everything of the envelope but sequence and previous."""

    event_id: str
    run_id: str
    body: Body
    recorded_at: str
    elapsed_ns: int | None
    node_id: str
    actor: Actor

    def seal(self, sequence: int, previous: str) -> str:
        """The envelope's RFC 8785 text at that place of the chain. Raises EventError for values that may not enter."""
        return canonical.encode(
            {
                "v": ENVELOPE_VERSION,
                "event_id": self.event_id,
                "run_id": self.run_id,
                "sequence": sequence,
                "previous": previous,
                "type": self.body.TYPE,
                "type_version": self.body.VERSION,
                "recorded_at": self.recorded_at,
                "elapsed_ns": self.elapsed_ns,
                "node_id": self.node_id,
                "actor": self.actor.model_dump(mode="json"),
                "body": self.body.model_dump(mode="json"),
            }
        )


@dataclass(frozen=True)
class Recorded:
    """An event in its place: `position` in the ledger (the Merkle leaf index), envelope text, and hash (hex)."""

    position: int
    envelope: str
    hash: str


def uuid7(now_ms: int | None = None) -> str:
    """A UUID version 7 (RFC 9562 section 5.7): 48 bits of Unix milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    random = int.from_bytes(os.urandom(10), "big")
    value = (
        (milliseconds & (2**48 - 1)) << 80
        | 0x7 << 76
        | (random >> 62 & 0xFFF) << 64
        | 0b10 << 62
        | random & (2**62 - 1)
    )
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def timestamp() -> str:
    """Now, UTC, RFC 3339 with microseconds. Self-asserted by this machine's clock."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class ListLedger:
    """An in-memory ledger: the same places and chain as the store, for tests and for dry runs.

    `first_previous` maps a run id to the bare hex digest that its sequence 0 names (the plan digest, or NO_PLAN).
    """

    def __init__(self) -> None:
        self.recorded: list[Recorded] = []
        self._heads: dict[str, tuple[int, str]] = {}

    def append(self, run_id: str, expected_sequence: int, drafts: list[Draft]) -> list[Recorded]:
        """Append in order; raises EventError when `expected_sequence` is not the run's next."""
        next_sequence, previous = self._heads.get(run_id, (0, None))
        if next_sequence != expected_sequence:
            raise EventError(f"run {run_id} is at sequence {next_sequence}, not {expected_sequence}")
        added = []
        for offset, draft in enumerate(drafts):
            envelope = draft.seal(expected_sequence + offset, previous or first_previous(draft.body))
            previous = canonical.event_hash(envelope)
            added.append(Recorded(len(self.recorded) + offset, envelope, previous))
        if previous is not None:
            self._heads[run_id] = (expected_sequence + len(drafts), previous)
        self.recorded.extend(added)
        return added

    def events(self, run_id: str | None = None) -> list[Event]:
        """The events of one run, or of all."""
        events = [read_event(recorded.envelope) for recorded in self.recorded]
        return [event for event in events if run_id is None or event.run_id == run_id]


AppendCallable = Callable[[str, int, list[Draft]], list[Recorded]]


class Recorder:
    """Gives bodies their envelope fields and appends them to one run, each durable before the call returns.

    `clock` is the run's own monotonic clock in nanoseconds, or null for a process that comes later. Calling the
    recorder with a body is the `sink` that the engine takes.

    An interrupt may fall between the commit of an event and this process learning of it. The next call then appends that
    event again first, which changes nothing where it is recorded: the run can be closed after an interrupt at any point.
    """

    def __init__(
        self,
        append: AppendCallable,
        *,
        run_id: str,
        node_id: str,
        actor: Actor,
        next_sequence: int = 0,
        clock: Callable[[], int] | None = time.monotonic_ns,
    ) -> None:
        self.run_id = run_id
        self.next_sequence = next_sequence
        self._append = append
        self._node_id = node_id
        self._actor = actor
        self._clock = clock
        self._started = clock() if clock else 0
        self._unsure: Draft | None = None

    def __call__(self, body: Body) -> Recorded:
        draft = Draft(
            event_id=uuid7(),
            run_id=self.run_id,
            body=body,
            recorded_at=timestamp(),
            elapsed_ns=self._clock() - self._started if self._clock else None,
            node_id=self._node_id,
            actor=self._actor,
        )
        if self._unsure is not None:
            self._place(self._unsure)
        return self._place(draft)

    def _place(self, draft: Draft) -> Recorded:
        self._unsure = draft
        try:
            (recorded,) = self._append(self.run_id, self.next_sequence, [draft])
        except Exception:
            self._unsure = None
            raise
        self.next_sequence, self._unsure = self.next_sequence + 1, None
        return recorded
