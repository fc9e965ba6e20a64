"""A state machine against a plain list: append, crash, reopen, back up, restore, tamper, in any order hypothesis finds."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from ledger import schema
from ledger.audit import verify_ledger
from ledger.errors import Conflict, LedgerError
from ledger.maintenance import backup
from ledger.recording import Draft, Recorded, uuid7
from ledger.store import Store
from tests.builders.ledgers import PLAN, small_drafts

TAMPERINGS = {
    "change": "UPDATE events SET envelope = replace(envelope, 'test', 'tset') WHERE position = ?",
    "rehash": "UPDATE events SET hash = substr(hash, 2) || substr(hash, 1, 1) WHERE position = ?",
    "delete": "DELETE FROM events WHERE position = ?",
    "renumber": "UPDATE events SET position = position + 1000 WHERE position = ?",
}


class LedgerMachine(RuleBasedStateMachine):
    """`model` is what was acknowledged, in order; `batches` are acknowledged appends, to be sent once more."""

    backups = Bundle("backups")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine"))
        self.number = 0
        self.path = self.folder / "0.db"
        self.store = Store.open(self.path, write=True, create=True)
        self.model: list[Recorded] = []
        self.runs: dict[str, int] = {}
        self.batches: list[tuple[str, int, list[Draft], list[Recorded]]] = []

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def fresh_path(self) -> Path:
        self.number += 1
        return self.folder / f"{self.number}.db"

    @initialize()
    def begin(self) -> None:
        assert self.store.size() == 0
        self.store.put_blob(PLAN.data, "application/json")  # cited by each run.opened

    @rule(which=st.integers(0, 3), count=st.integers(1, 6))
    def append(self, which: int, count: int) -> None:
        """To the which-th run, or a new one."""
        run_id = list(self.runs)[which] if which < len(self.runs) else uuid7()
        sequence = self.runs.get(run_id, 0)
        drafts = small_drafts(run_id, count, start=sequence)
        recorded = self.store.append(run_id, sequence, drafts)
        assert [one.position for one in recorded] == list(range(len(self.model), len(self.model) + count))
        self.model += recorded
        self.runs[run_id] = sequence + count
        self.batches.append((run_id, sequence, drafts, recorded))

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        """A writer that did not hear the acknowledgement."""
        run_id, sequence, drafts, recorded = data.draw(st.sampled_from(self.batches))
        assert self.store.append(run_id, sequence, drafts) == recorded

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), off=st.sampled_from([-1, 1, 7]))
    def append_at_the_wrong_place(self, data: st.DataObject, off: int) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.runs)))
        sequence = self.runs[run_id] + off
        with pytest.raises(Conflict):
            self.store.append(run_id, sequence, small_drafts(run_id, 1, start=max(sequence, 1)))

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path, write=True)

    @rule(unfinished=st.integers(0, 3))
    def crash(self, unfinished: int) -> None:
        """The process dies, perhaps within an append: what is in the files is what is left."""
        after = self.fresh_path()
        with pytest.raises(KeyboardInterrupt):
            self.die_within_an_append(unfinished, after)
        self.store.close()
        self.path = after
        self.store = Store.open(self.path, write=True)

    def die_within_an_append(self, unfinished: int, after: Path) -> None:
        """Insert events and commit nothing; what the files hold at that moment lies at `after`."""
        with self.store.base.transaction() as transaction:
            previous = "0" * 64
            for offset, draft in enumerate(small_drafts(uuid7(), unfinished)):
                envelope = draft.seal(offset, previous)
                previous = f"{offset:064x}"
                transaction.execute(
                    "INSERT INTO events (position, envelope, hash) VALUES (?, ?, ?)",
                    (len(self.model) + offset, envelope, previous),
                )
            for suffix in ("", "-wal", "-journal"):
                if Path(f"{self.path}{suffix}").exists():
                    shutil.copyfile(f"{self.path}{suffix}", f"{after}{suffix}")
            raise KeyboardInterrupt

    @rule(target=backups)
    def back_up(self) -> tuple[Path, list[Recorded], dict[str, int], int]:
        path = self.fresh_path()
        backup(self.path, path)
        return path, list(self.model), dict(self.runs), len(self.batches)

    @rule(saved=backups)
    def restore(self, saved: tuple[Path, list[Recorded], dict[str, int], int]) -> None:
        path, model, runs, batches = saved
        origin = self.store.origin
        self.store.close()
        self.path = self.fresh_path()
        shutil.copyfile(path, self.path)
        self.store = Store.open(self.path, write=True)
        assert self.store.origin == origin
        self.model, self.runs = list(model), dict(runs)
        self.batches = [batch for batch in self.batches[:batches] if batch[3][-1] in self.model]

    @precondition(lambda self: len(self.model) > 1)
    @rule(data=st.data(), how=st.sampled_from(sorted(TAMPERINGS)))
    def tamper(self, data: st.DataObject, how: str) -> None:
        """With a copy: guards taken off, one event tampered with, guards put back. Verifying names the place."""
        # Deleting the last event leaves a shorter ledger that only a pin can tell from an honest one.
        position = data.draw(st.integers(0, len(self.model) - (2 if how in ("delete", "renumber") else 1)))
        path = self.fresh_path()
        backup(self.path, path)
        connection = sqlite3.connect(path)
        for name in schema.SQLITE_GUARDS:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(TAMPERINGS[how], (position,))
        for sql in schema.guards("sqlite").values():
            connection.execute(sql)
        connection.commit()
        connection.close()
        with Store.open(path) as store:
            changed = [Recorded(*row[:3]) for row in store.rows()]
        found = verify_ledger(path, use_state=False)
        assert changed != self.model
        assert found.status == "broken", (how, position)
        path.unlink()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def guards_hold(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.model) - 1))
        for sql in TAMPERINGS.values():
            with pytest.raises(LedgerError, match="append-only"), self.store.base.transaction() as transaction:
                transaction.execute(sql, (position,))

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        assert list(self.store.recorded()) == self.model
        assert self.store.size() == len(self.model)
        for run_id, sequence in self.runs.items():
            assert self.store.next_sequence(run_id) == sequence

    @rule()
    def it_verifies(self) -> None:
        found = verify_ledger(self.path, use_state=False)
        assert (found.status, found.problems) == ("valid-unanchored", [])


LedgerMachine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestLedgerMachine = LedgerMachine.TestCase
