"""Writers that tests run in processes of their own, and kill: they say on a pipe what was acknowledged to them.

`python -m tests.builders.writers LOCATION RUN COUNT` appends COUNT events to a run, retrying where another writer was first,
and prints one acknowledgement a line.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from ledger import canonical
from ledger.errors import Conflict, LedgerError
from ledger.recording import Recorded, uuid7
from ledger.store import Store
from tests.builders.ledgers import PLAN, draft, small_body
from tests.builders.runs import opened


@dataclass(frozen=True)
class Acknowledged:
    """What a writer was told of one event of its."""

    position: int
    hash: str
    event_id: str

    @classmethod
    def of(cls, recorded: Recorded) -> Acknowledged:
        return cls(recorded.position, recorded.hash, canonical.decode(recorded.envelope)["event_id"])

    def line(self) -> str:
        return json.dumps([self.position, self.hash, self.event_id]) + "\n"


def acknowledgements(data: bytes) -> list[Acknowledged]:
    """The whole lines of what a writer wrote; a last one that was cut off is none."""
    return [Acknowledged(*json.loads(line)) for line in data.split(b"\n")[:-1] if line.startswith(b"[")]


def append_many(store: Store, run_id: str, count: int, acknowledge: Callable[[str], object]) -> None:
    """Append `count` events one a commit; on a conflict read the next sequence and try the same event again."""
    for _ in range(count):
        event_id = uuid7()
        while True:
            sequence = store.next_sequence(run_id)
            body = opened(PLAN) if sequence == 0 else small_body(sequence)
            try:
                (recorded,) = store.append(run_id, sequence, [draft(run_id, body, event_id=event_id)])
            except Conflict:
                continue
            acknowledge(Acknowledged.of(recorded).line())
            break


def append_until_killed(location: str, run_id: str, acknowledge: Callable[[bytes], object], seed: int) -> None:
    """Append batches of 1 to 20 events until somebody ends this process; every event says which batch it is of."""
    chance = random.Random(seed)
    with Store.open(location, write=True) as store:
        acknowledge(b"ready\n")
        while True:
            sequence = store.next_sequence(run_id)
            if sequence == 0:
                store.append(run_id, 0, [draft(run_id, opened(PLAN))])
                continue
            size = chance.choice((1, 1, 1, 2, 5, 20))
            batch = uuid7()
            drafts = []
            for number in range(size):
                body = small_body(number).model_copy(update={"reason": f"batch {batch} of {size}"})
                drafts.append(draft(run_id, body))
            recorded = store.append(run_id, sequence, drafts)
            acknowledge("".join(Acknowledged.of(one).line() for one in recorded).encode())


def append_through_faults(location: str, run_id: str, count: int, acknowledge: Callable[[bytes], object]) -> None:
    """Append `count` events to a new run, one a commit; what fails is tried again, which records it once all the same."""
    drafts = [draft(run_id, opened(PLAN) if number == 0 else small_body(number)) for number in range(count)]
    done = 0
    for _ in range(5):
        try:
            with Store.open(location, write=True) as store:
                while done < count:
                    (recorded,) = store.append(run_id, done, drafts[done : done + 1])
                    acknowledge(Acknowledged.of(recorded).line().encode())
                    done += 1
        except LedgerError as error:
            acknowledge(f"failed {error.message}\n".encode())


def forked(work: Callable[[Callable[[bytes], object]], None]) -> tuple[int, int]:
    """Run `work` in a forked process with a function that writes to a pipe; returns its pid and the pipe's reading end."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    status = 1
    try:
        os.close(read)
        work(lambda data: os.write(write, data))
        status = 0
    except BaseException:
        os.write(write, traceback.format_exc().encode())
        raise
    finally:
        os._exit(status)


def next_words(read: int) -> bytes:
    """What comes next on a pipe. Raises TimeoutError when nothing does for a minute."""
    ready, _, _ = select.select([read], [], [], 60)
    if not ready:
        raise TimeoutError("the writer says nothing")
    return os.read(read, 65536)


def drain(read: int) -> bytes:
    """Everything in a pipe until its writers are gone."""
    parts = []
    while data := os.read(read, 65536):
        parts.append(data)
    os.close(read)
    return b"".join(parts)


def main() -> None:
    location, run_id, count = sys.argv[1:]
    with Store.open(location, write=True) as store:
        append_many(store, run_id, int(count), sys.stdout.write)


if __name__ == "__main__":
    main()
