"""Verifying a whole ledger: every row's bytes, columns, place and linkage, the tree, the documents, and the pins.

One pass over the rows, a few microseconds each. What is wrong is named by kind and position; a ledger is `valid` only
when a pin from outside it holds, since whoever can rewrite a file can rewrite all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ledger import canonical, pins
from ledger.bodies import BODY_BY_TYPE, PlanFrozen, RunOpened
from ledger.canonical import LEAF_PREFIX
from ledger.checkpoints import Checkpoint, NoteForged, parse_checkpoint, verify_note
from ledger.database import squeeze
from ledger.documents import Checks, CheckState, Problem, ProblemCode, VerificationDocument
from ledger.errors import EventError, LedgerError, PlanError, TallyError
from ledger.events import ENVELOPE_VERSION, UPCASTS, first_link
from ledger.index_check import RowKeys, wrong_entries
from ledger.merkle import Frontier
from ledger.plan import parse_plan
from ledger.schema import SQLITE_TABLES
from ledger.sqlite import SqliteDatabase
from ledger.store import PAGE, Store

LAST_POSITION = 2**63 - 1
"""The largest that SQLite can hold and be asked for."""
MAX_PROBLEMS = 50
"""Problems listed; a ledger rewritten from some place on would otherwise list every event after it."""

Progress = Callable[[int, int], None]

_KEYS = (
    "actor", "body", "elapsed_ns", "event_id", "node_id", "previous", "recorded_at", "run_id", "sequence", "type",
    "type_version", "v",
)  # fmt: skip
"""An envelope's keys in canonical order."""
_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
_whole_fraction = re.compile(rb"\.0[,\]}]").search
_BEYOND_BMP = 0xF0
"""UTF-8 begins a character beyond the BMP with such a byte, or a greater one: among keys RFC 8785 sorts those otherwise."""
_KNOWN = {(name, body.VERSION) for name, body in BODY_BY_TYPE.items()} | UPCASTS.keys()
_REFERRING = frozenset({PlanFrozen.TYPE, RunOpened.TYPE, "materialization.observed"})
"""Types whose bodies refer to documents."""


def verify_ledger(
    location: str | Path,
    *,
    pin: Path | None = None,
    use_state: bool = True,
    progress: Progress | None = None,
    public_key: Ed25519PublicKey | None = None,
) -> VerificationDocument:
    """Verify a ledger against itself, the pin file given, and (with `use_state`) the pin in the user's state folder.

    `progress` is called with (events done, events in all). With `public_key` the pin file must be a note signed by it.
    Problems: content, linkage, gap, unknown-type, blob-missing, blob-altered, tail, rollback, fork, signature; the first
    bad position comes first. Raises LedgerError when there is no such ledger, and NoteError for a pin file that is none.
    """
    given = pins.read_pin_file(pin) if pin is not None else None
    with Store.open(location) as store:
        audit = _Audit(store)
        if given is not None:
            audit.anchor(given[0], given[1], public_key)
        if use_state:
            remembered = pins.state_pin(store.origin)
            if remembered is not None:
                audit.anchor(remembered)
        audit.run(progress)
        return audit.document()


def _columns_generated(store: Store) -> bool:
    """Whether the columns beside the envelope are, by the table's own definition, computed from it whenever they are read.

    Then they say what the envelope says, provided it has no key twice, which is checked of every envelope; reading them
    would only repeat that at a third of the whole cost. PostgreSQL stores them, so there they are read and compared.
    """
    if store.base.dialect != "sqlite":
        return False
    found = store.base.select("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'events'")
    return [squeeze(sql) for (sql,) in found] == [squeeze(SQLITE_TABLES["events"])]


class _Audit:
    """One verification as it goes along."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._problems: list[Problem] = []
        self._failed: dict[str, CheckState] = {}
        self._anchors: list[Checkpoint] = []
        self._signature: CheckState = "not-checked"
        self._heads: dict[str, tuple[int, str]] = {}
        """Run -> (last sequence, hash of its last event)."""
        self._types: dict[str, int] = {}
        """Event type -> how many rows are of it."""
        self._blobs: dict[str, int] = {}
        """Digest of a document -> position of the first event that refers to it."""
        self._freezings: dict[str, tuple[int, str]] = {}
        """Hash of a freezing -> its position, and the plan digest it froze."""
        self._plans: dict[str, tuple[str, int]] = {}
        """Digest of a plan's bytes -> (plan digest as recorded, position)."""
        self._frontier = Frontier()
        self._next = 0
        """The position that the next row should have."""
        self._columns_generated = _columns_generated(store)
        self._keys = RowKeys()
        """What the indexes should hold, filled as far as nothing was found wrong."""
        self._unreadable = False

    def anchor(self, pin: Checkpoint, text: str | None = None, public_key: Ed25519PublicKey | None = None) -> None:
        """Hold the ledger to a pin; to its signature too where a key is given."""
        if text is not None and public_key is not None:
            try:
                verify_note(text, pin.origin, public_key)
                self._signature = "ok"
            except NoteForged as error:
                self._signature = "failed"
                self._problems.append(Problem(code="signature", detail=f"the pin: {error.message}"))
        self._anchors.append(pin)

    def _problem(self, check: str, code: ProblemCode, position: int | None, detail: str, sequence: Any = None) -> None:
        self._failed[check] = "failed"
        # In a table made anew a position can be anything.
        position = position if type(position) is int else None
        if len(self._problems) < MAX_PROBLEMS:
            number = sequence if isinstance(sequence, int) else None
            self._problems.append(Problem(code=code, position=position, sequence=number, detail=detail))

    # --- the pass over the rows -----------------------------------------------------------------------------------

    def run(self, progress: Progress | None) -> None:
        total = self._store.size()
        self._definitions()
        stored = self._checkpoints()
        stops = sorted({pin.size for pin in self._anchors} | {size for size, _, _ in stored})
        roots = {0: self._frontier.root()}
        for page in self._pages(total):
            leaves = self._rows(page)
            done = 0
            for stop in stops:
                if self._frontier.size < stop <= self._frontier.size + len(leaves) - done:
                    step = stop - self._frontier.size
                    self._frontier.extend(leaves[done : done + step])
                    done += step
                    roots[stop] = self._frontier.root()
            self._frontier.extend(leaves[done:])
            if progress is not None:
                progress(min(self._frontier.size, total), total)
        if self._frontier.size < total and not self._unreadable:
            self._problem(
                "chain", "gap", self._frontier.size, f"{total} rows are counted, {self._frontier.size} were read"
            )
        self._indexes()
        self._documents()
        self._stored(stored, roots)
        self._pins(roots)

    def _definitions(self) -> None:
        """Views and indexes as this program makes them: through others, queries would show something else than the rows."""
        for name in self._store.base.missing_guards():
            detail = f"the guard or table {name} is not as this program makes it; `tally db upgrade` puts guards back"
            self._problem("chain", "content", None, detail)
        for name in self._store.base.altered_views():
            detail = f"the view or index {name} is not as this program makes it: what it shows need not be recorded"
            self._problem("chain", "content", None, detail)
        if self._store.base.dialect == "sqlite" and not self._columns_generated:
            self._problem("chain", "content", None, "the columns of table events are not generated as they should be")

    def _checkpoints(self) -> list[tuple[int, str, str]]:
        try:
            return self._store.checkpoints()
        except LedgerError as error:
            self._problem("chain", "content", None, error.message)
            return []

    def _pages(self, total: int) -> Iterator[list[tuple[Any, ...]]]:
        """Rows in pages; a row that the database cannot hand out is named, and reading goes on after it."""
        start = 0
        while True:
            try:
                page = self._page(start)
            except (LedgerError, ValueError):
                end = min(start + PAGE, total)
                page = self._one_by_one(start, end)
                following = end
            else:
                if page and (type(page[-1][0]) is not int or page[-1][0] < start):
                    # A damaged tree can hand out rows in circles.
                    self._unreadable = True
                    self._problem("chain", "content", start, f"after it comes a row with position {page[-1][0]!r}")
                    return
                following = page[-1][0] + 1 if page else total
            if page:
                yield page
            if (not page and following >= total) or following > LAST_POSITION:
                return
            start = following

    def _page(self, start: int) -> list[tuple[Any, ...]]:
        """Rows from that position on: position, envelope, hash, and the columns unless they cannot say anything else."""
        if self._columns_generated:
            sql = "SELECT position, envelope, hash FROM events WHERE position >= ? ORDER BY position LIMIT ?"
            return self._store.base.select(sql, (start, PAGE))
        return list(islice(self._store.rows(start), PAGE))

    def _one_by_one(self, start: int, end: int) -> list[tuple[Any, ...]]:
        page: list[tuple[Any, ...]] = []
        for position in range(start, end):
            try:
                page += self._store.rows(position, position + 1)
            except (LedgerError, ValueError) as reason:
                self._unreadable = True
                self._problem("chain", "content", position, f"the row cannot be read: {reason}")
        return page

    def _rows(self, rows: list[tuple[Any, ...]]) -> list[bytes]:
        """Check each row; returns the leaves that the envelopes really have.

        This runs a million times: names are local, and what is rarely needed is called out of line.
        """
        leaves = []
        heads, types, known = self._heads, self._types, _KNOWN
        read, write = orjson.loads, orjson.dumps
        indexed, tensors = self._columns_generated, self._keys.tensors
        keep_id, keep_hash, keep_run, keep_type, keep_materialization = self._keys.keepers()
        expected = self._next
        for position, envelope, stored_hash, *columns in rows:
            if position != expected:
                self._problem(
                    "chain", "gap", expected, f"position {expected} is missing: the next row has {position!r}"
                )
            expected = (position if type(position) is int else expected) + 1
            if type(envelope) is not str:
                self._problem("chain", "content", position, f"the envelope is not text: {type(envelope).__name__}")
                leaves.append(sha256(b"").digest())
                continue
            data = envelope.encode("utf-8")
            leaf = sha256(LEAF_PREFIX + data).digest()
            leaves.append(leaf)
            # Read and written back alike means: no key twice, keys in order, no blanks, no odd escapes, no integer from
            # 2**53 on. What orjson writes otherwise than RFC 8785 pays for the exact comparison: characters beyond the BMP,
            # and floats such as 1.0, 1e+16 and 1e-6, which some text reads like.
            try:
                event = read(data)
                same = (
                    write(event, None, _SORTED) == data
                    and (b"\\" not in data or b"\\u0000" not in data)
                    and _whole_fraction(data) is None
                    and (b"+" not in data or b"e+" not in data)
                    and b"e-6" not in data
                    and (data.isascii() or max(data) < _BEYOND_BMP)
                )
            except (ValueError, TypeError):  # orjson's own errors are of these kinds
                same = False
            if not same:
                event = self._exactly(position, envelope)
            if type(event) is not dict or tuple(event) != _KEYS:
                if event is not None:
                    self._problem("chain", "content", position, "the envelope does not have an envelope's fields")
                continue
            _, body, _, event_id, node_id, previous, recorded_at, run_id, sequence, kind, version, form = event.values()
            digest = leaf.hex()
            if digest != stored_hash:
                detail = f"the envelope's hash is {digest}, the one recorded beside it {stored_hash}"
                self._problem("chain", "content", position, detail, sequence)
            if columns and columns != [event_id, run_id, sequence, kind, recorded_at, node_id]:
                self._problem("chain", "content", position, "the columns do not say what the envelope says", sequence)
            if (
                type(run_id) is not str
                or type(sequence) is not int
                or type(kind) is not str
                or type(version) is not int
                or type(event_id) is not str
                or type(body) is not dict
            ):
                self._problem("chain", "content", position, "the envelope's fields have not their types")
                continue
            head = heads.get(run_id)
            if head is None:
                self._begins(position, event)
            elif sequence != head[0] + 1:
                detail = f"run {run_id}: sequence {sequence} follows {head[0]}"
                self._problem("chain", "gap", position, detail, sequence)
            elif previous != head[1]:
                detail = f"run {run_id}: `previous` is {previous}, the event before it has hash {head[1]}"
                self._problem("chain", "linkage", position, detail, sequence)
            heads[run_id] = (sequence, digest)
            if indexed:
                keep_id(hash(event_id))
                keep_hash(hash(digest))
                keep_run(hash(run_id))
                keep_type(hash(kind))
                try:
                    keep_materialization(hash(body.get("materialization_id")))
                except TypeError:  # a list or an object where a body has a name
                    detail = "the body has not the form of its type: a name in it is no text"
                    self._problem("chain", "content", position, detail, sequence)
                if "tensors_blob" in body and body["tensors_blob"] is not None:
                    tensors[position] = hash(str(body["tensors_blob"]))
            else:
                types[kind] = types.get(kind, 0) + 1
            if type(form) is not int or form != ENVELOPE_VERSION:
                self._problem("chain", "unknown-type", position, f"envelope version {form!r} is not known", sequence)
            elif (kind, version) not in known:
                detail = f"event type {kind!r} version {version!r} is not known to this program"
                self._problem("chain", "unknown-type", position, detail, sequence)
            elif kind in _REFERRING:
                self._note_documents(position, kind, body, sequence, digest)
        self._next = expected
        return leaves

    def _exactly(self, position: int, envelope: str) -> Any:
        """The envelope as JSON when it is in RFC 8785 form; None, with the problem noted, when not."""
        try:
            event = canonical.decode_canonical(envelope, what="the envelope")
        except TallyError as error:
            self._problem("chain", "content", position, f"not what was appended: {error.message}")
            return None
        return event

    def _begins(self, position: int, event: dict[str, Any]) -> None:
        """A stream's first event: sequence 0, a type that may begin one, and the plan that it is bound to."""
        sequence, kind, body = event["sequence"], event["type"], event["body"]
        if sequence != 0:
            detail = f"run {event['run_id']}: its first event here has sequence {sequence}, expected 0"
            self._problem("chain", "gap", position, detail, sequence)
            return
        try:
            bound = first_link(kind, body)
        except EventError as error:
            self._problem("chain", "content", position, error.message, sequence)
            return
        except (KeyError, TypeError, AttributeError):
            self._problem("chain", "content", position, f"the body has not the form of {kind}", sequence)
            return
        if event["previous"] != bound:
            detail = f"run {event['run_id']}: its first event is linked to {event['previous']}, its plan is {bound}"
            self._problem("chain", "linkage", position, detail, sequence)

    def _note_documents(self, position: int, kind: str, body: Any, sequence: int, digest: str) -> None:
        try:
            if kind == RunOpened.TYPE:
                if body.get("frozen") is not None:
                    self._cited(position, body["frozen"], sequence)
                if body["plan"] is not None:
                    blob = body["plan"]["blob_digest"]
                    self._plans.setdefault(blob, (body["plan"]["computed_digest"], position))
                    self._blobs.setdefault(blob, position)
            elif kind == PlanFrozen.TYPE:
                self._freezings[digest] = position, body["digest"]
                self._plans.setdefault(body["blob_digest"], (body["digest"], position))
                self._blobs.setdefault(body["blob_digest"], position)
            elif body["tensors_blob"] is not None:
                self._blobs.setdefault(body["tensors_blob"], position)
        except (KeyError, TypeError, AttributeError):
            self._problem("chain", "content", position, f"the body has not the form of {kind}", sequence)

    def _cited(self, position: int, cited: dict[str, Any], sequence: int) -> None:
        """The freezing that a run cites stands before it, by its hash: a run that came from another ledger brought its own
        along, to another position."""
        found = self._freezings.get(cited["hash"])
        if found is None:
            detail = f"run.opened cites a freezing with hash {cited['hash']}: none before it here has that"
            self._problem("chain", "linkage", position, detail, sequence)
        elif found[1] != cited["digest"]:
            detail = f"run.opened cites a freezing of plan {cited['digest']}; the one with that hash is of {found[1]}"
            self._problem("chain", "linkage", position, detail, sequence)

    def _indexes(self) -> None:
        """Runs and kinds of events are found through indexes: they must hold what the rows are, no less and nothing else.

        The rows were read in order of position, past every index; one that hides rows would hide them from all but this.
        """
        if self._failed or self._unreadable:
            return
        if isinstance(self._store.base, SqliteDatabase):
            try:
                for position, detail in wrong_entries(self._store.base, self._keys):
                    self._problem("chain", "content", position, detail)
            except LedgerError as error:
                self._problem("chain", "content", None, f"the indexes cannot be read: {error.message}")
            return
        try:
            # Up to where the rows were read: others may append meanwhile.
            read = (self._frontier.size,)
            runs = self._store.base.select(
                "SELECT run_id, count(*), max(sequence) FROM events WHERE position < ? GROUP BY run_id", read
            )
            types = self._store.base.select("SELECT type, count(*) FROM events WHERE position < ? GROUP BY type", read)
        except LedgerError as error:
            self._problem("chain", "content", None, f"the indexes cannot be read: {error.message}")
            return
        indexed = {run: (count - 1, last) for run, count, last in runs}
        for run_id in sorted(indexed.keys() | self._heads.keys()):
            last, _ = self._heads.get(run_id, (None, ""))
            if indexed.get(run_id) != (last, last):
                detail = f"the index over runs does not hold exactly the events of run {run_id}"
                self._problem("chain", "content", None, detail)
        found: dict[str, int] = dict(types)
        for kind in sorted(found.keys() | self._types.keys()):
            if found.get(kind) != self._types.get(kind):
                detail = (
                    f"the index over types has {found.get(kind)} events {kind}; the rows are {self._types.get(kind)}"
                )
                self._problem("chain", "content", None, detail)

    # --- documents and pins ---------------------------------------------------------------------------------------

    def _documents(self) -> None:
        """Every document that events refer to is there; every document there is what its digest says."""
        held = set()
        for listed in self._store.blob_digests():
            if isinstance(listed, str):
                held.add(listed)
            else:
                self._problem("blobs", "blob-altered", None, f"a document stands under {listed!r}, which is no digest")
        for digest, position in self._blobs.items():
            if digest not in held:
                self._problem("blobs", "blob-missing", position, f"blob {digest} is referred to and not there")
        for digest in sorted(held):
            referring = self._blobs.get(digest)
            try:
                data = self._store.blob(digest)
            except LedgerError as error:
                self._problem("blobs", "blob-altered", referring, error.message)
                continue
            computed = canonical.sha256_digest(data) if data is not None else "gone"
            if computed != digest:
                self._problem("blobs", "blob-altered", referring, f"blob {digest} holds bytes with digest {computed}")
            elif digest in self._plans and data is not None:
                self._plan(data, *self._plans[digest])

    def _plan(self, data: bytes, recorded: str, position: int) -> None:
        try:
            computed = parse_plan(data).computed_digest
        except PlanError as error:
            self._problem("plan", "content", position, f"the plan recorded is none: {error.message}")
            return
        if computed != recorded:
            detail = f"the event states plan digest {recorded}, the plan has {computed}"
            self._problem("plan", "content", position, detail)

    def _pins(self, roots: dict[int, bytes]) -> None:
        size = self._frontier.size
        for pin in self._anchors:
            if pin.origin != self._store.origin:
                found = Checkpoint(self._store.origin, size, self._frontier.root())
                self._problem("pin", "fork", None, pins.fork_text(pin, found))
            elif pin.size > size:
                found = Checkpoint(self._store.origin, size, self._frontier.root())
                self._problem("pin", "rollback", size, pins.rollback_text(pin, found))
            elif roots[pin.size] != pin.root:
                found = Checkpoint(self._store.origin, pin.size, roots[pin.size])
                self._problem("pin", "fork", None, pins.fork_text(pin, found))

    def _stored(self, stored: list[tuple[int, str, str]], roots: dict[int, bytes]) -> None:
        """Checkpoints kept in the ledger itself: no anchor, but a truncation that forgot them shows here."""
        size = self._frontier.size
        for tree_size, root, note in stored:
            try:
                checkpoint = parse_checkpoint(note)
            except TallyError as error:
                self._problem("chain", "content", None, f"checkpoint of size {tree_size}: {error.message}")
                continue
            if (checkpoint.size, checkpoint.root_hex, checkpoint.origin) != (tree_size, root, self._store.origin):
                self._problem("chain", "content", None, f"checkpoint of size {tree_size}: note and columns differ")
            elif tree_size > size:
                detail = f"a checkpoint in the ledger covers {tree_size} events; it holds {size}"
                self._problem("chain", "tail", size, detail)
            elif roots[tree_size] != checkpoint.root:
                found = Checkpoint(self._store.origin, tree_size, roots[tree_size])
                self._problem("chain", "fork", None, pins.fork_text(checkpoint, found))

    def document(self) -> VerificationDocument:
        problems = sorted(self._problems, key=lambda problem: (problem.position is None, problem.position or 0))
        size = self._frontier.size
        covered = max((pin.size for pin in self._anchors), default=0)
        held = covered > 0 and "pin" not in self._failed
        completeness = None
        if self._anchors and "pin" not in self._failed and (covered < size or not covered):
            completeness = f"the pin covers {covered} of {size} events" + (
                "; nothing vouches for those after it" if covered else ": a pin of size 0 vouches for nothing"
            )
        states: dict[str, CheckState] = {"chain": "ok", "plan": "ok", "blobs": "ok", **self._failed}
        states["signature"] = self._signature
        states["pin"] = "failed" if "pin" in self._failed else "ok" if held else "not-checked"
        return VerificationDocument(
            status="broken" if problems else "valid" if held else "valid-unanchored",
            checks=Checks(**states),
            problems=problems,
            completeness=completeness,
        )
