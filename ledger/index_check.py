"""Comparing the indexes of an SQLite ledger with its rows, entry by entry: an index can be made to say something else.

SQLite answers out of an index without looking at the row behind it, so an index that was filled under another definition
shows one run's events as another's while every row is as it was appended. `PRAGMA integrity_check` would see that at the
price of parsing every envelope once more for each index; here the rows that were read anyhow are remembered, eight bytes
for each column, and the entries laid against that.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import lt
from typing import Any

from ledger.schema import VERSION_TABLE
from ledger.sqlite import SqliteDatabase

CHUNK = 10_000
"""Entries, or groups of entries, at a time."""

NOTHING = hash(None)


class RowKeys:
    """Python's hash of each indexed column, for every position in order; that of None where a partial index has no entry.

    That hash is keyed anew in every process, so that nobody can make an entry to fit.
    """

    def __init__(self) -> None:
        self.columns: dict[str, array[int]] = {
            name: array("q") for name in ("event_id", "hash", "run_id", "type", "materialization_id")
        }
        self.tensors: dict[int, int] = {}
        """Position -> hash of the digest of tensors, of the few events that have one."""

    def keepers(self) -> list[Callable[[int], None]]:
        """What keeps the next row's hashes, one a column: of event id, hash, run id, type, and the body's materialization id."""
        return [kept.append for kept in self.columns.values()]

    @property
    def size(self) -> int:
        return len(self.columns["hash"])


_SMALL = {
    "ledger": "origin",
    "blobs": "digest",
    "checkpoints": "tree_size, note",
    VERSION_TABLE: "version_num",
}
"""The other tables -> the columns of their key, SQLite's only index on each."""

_INDEXES: dict[str, tuple[str, ...]] = {
    # SQLite numbers its own in the order of the table's UNIQUE clauses.
    "sqlite_autoindex_events_1": ("hash",),
    "sqlite_autoindex_events_2": ("event_id",),
    "sqlite_autoindex_events_3": ("run_id",),
    "events_by_type": ("type", "run_id"),
    "events_by_materialization": ("run_id", "materialization_id", "type"),
    "events_by_blob": ("tensors_blob",),
}
"""Index -> the columns by which its entries are taken together; the sequence in the third is looked at for itself."""

_SINGLE = ("sqlite_autoindex_events_1", "sqlite_autoindex_events_2")
"""Those in which every entry has a key of its own."""
_RUNS = "sqlite_autoindex_events_3"
_PARTIAL = {"events_by_materialization": "materialization_id", "events_by_blob": "tensors_blob"}


def wrong_entries(base: SqliteDatabase, keys: RowKeys) -> Iterator[tuple[int | None, str]]:
    """(position, what is wrong) for each index that does not hold exactly the rows; the first bad position of each.

    `keys` are of the positions from 0 on, in which every run's sequences count up from 0; events appended since are left
    out. The definitions of tables and indexes are taken to be ours. Raises LedgerError where an index cannot be read.
    """
    keys.columns["tensors_blob"] = array("q", [NOTHING]) * keys.size
    for position, tensors in keys.tensors.items():
        keys.columns["tensors_blob"][position] = tensors
    for name, columns in _INDEXES.items():
        sql = _entries(name, columns, keys.size)
        if any("json_extract" in str(row[5]) for row in base.select(f"EXPLAIN {sql}")):
            # This SQLite would compute the columns from the row, and show nothing of what the index holds.
            for (said,) in base.select("PRAGMA integrity_check(10)"):
                if said != "ok":
                    yield None, f"an index does not hold what the rows say: {said}"
            return
        if not _holds(base, sql, name, keys):
            what = f"the index {name} does not hold what the rows say: what is found through it is not recorded so"
            yield _first_wrong(base, sql, name, keys), what
    for table, key in _SMALL.items():
        rows = base.select(f"SELECT {key}, rowid FROM {table} NOT INDEXED")
        entries = base.select(f"SELECT {key}, rowid FROM {table} INDEXED BY sqlite_autoindex_{table}_1")
        if not _ascending(entries, ()) or sorted(rows) != entries:
            yield None, f"the index over table {table} does not hold what its rows say"


def _entries(name: str, columns: tuple[str, ...], size: int) -> str:
    """The statement that gives an index's entries in its own order, those of one key together: key, positions, ..."""
    where = f"+position >= 0 AND +position < {size}"  # `+` keeps SQLite from going by position instead
    if name in _PARTIAL:
        where += f" AND {_PARTIAL[name]} IS NOT NULL"
    listed = ", ".join(columns)
    if name in _SINGLE:
        return f"SELECT {listed}, position FROM events INDEXED BY {name} WHERE {where}"
    also = ", group_concat(sequence), count(sequence)" if name == _RUNS else ""
    return (
        f"SELECT {listed}, group_concat(position){also} FROM events INDEXED BY {name} WHERE {where} GROUP BY {listed}"
    )


def _holds(base: SqliteDatabase, sql: str, name: str, keys: RowKeys) -> bool:
    """The entries are those of the rows: every one fits its row, they are in order, and as many as there should be."""
    columns = _INDEXES[name]
    expected = [keys.columns[column] for column in columns]
    if name in _SINGLE:
        return _holds_single(base, name, columns[0], expected[0])
    count, width = 0, len(columns)
    last: Any = ()
    for groups in base.chunks(sql, CHUNK):
        if not _ascending([group[:width] for group in groups], last):
            return False
        last = groups[-1][:width]
        for group in groups:
            positions = _positions(group[width])
            if not _ascending(positions, -1) or any(
                list(map(known.__getitem__, positions)).count(hash(value)) != len(positions)
                for known, value in zip(expected, group, strict=False)
            ):
                return False
            if name == _RUNS and group[-2:] != (",".join(map(str, range(len(positions)))), len(positions)):
                return False
            count += len(positions)
    return count == keys.size - (keys.columns[_PARTIAL[name]].count(NOTHING) if name in _PARTIAL else 0)


def _holds_single(base: SqliteDatabase, name: str, column: str, expected: array[int]) -> bool:
    """The same where every entry has a key of its own: handed out as two texts a chunk, which takes half the time."""
    size = len(expected)
    among = f"FROM events INDEXED BY {name} WHERE +position >= 0 AND +position < {size}"
    ((count,),) = base.select(f"SELECT count({column}) {among}")
    last, seen = "", 0
    while seen < size:
        ((values, positions),) = base.select(
            f"SELECT group_concat({column}, char(10)), group_concat(position)"
            f" FROM (SELECT {column}, position {among} AND {column} > ? ORDER BY {column} LIMIT {CHUNK})",
            (last,),
        )
        if values is None:
            return False
        keys = values.split("\n")
        if not _ascending(keys, last) or [*map(expected.__getitem__, _positions(positions))] != [*map(hash, keys)]:
            return False
        last = keys[-1]
        seen += len(keys)
    return bool(count == size)


def _first_wrong(base: SqliteDatabase, sql: str, name: str, keys: RowKeys) -> int | None:
    """The lowest position whose entry is missing or says something else; None where entries are only out of order."""
    columns = _INDEXES[name]
    width = len(columns)
    fitting = bytearray(keys.size)
    for groups in base.chunks(sql, CHUNK):
        for group in groups:
            positions = [group[width]] if isinstance(group[width], int) else _positions(group[width])
            sequences = group[width + 1].split(",") if name == _RUNS else [str(at) for at in range(len(positions))]
            for at, position in enumerate(positions):
                fits = all(
                    keys.columns[column][position] == hash(value) for column, value in zip(columns, group, strict=False)
                )
                fitting[position] |= fits and sequences[at : at + 1] == [str(at)]
    known = keys.columns[_PARTIAL.get(name, "hash")]
    return next((at for at, fits in enumerate(fitting) if not fits and known[at] != NOTHING), None)


def _positions(listed: str) -> list[int]:
    return list(map(int, listed.split(",")))


def _ascending(entries: Sequence[Any], after: Any) -> bool:
    """As a search through an index needs them: each entry behind the one before it, and none twice."""
    try:
        return not entries or bool(after < entries[0] and all(map(lt, entries, islice(entries, 1, None))))
    except TypeError:  # an entry of another type among them
        return False
