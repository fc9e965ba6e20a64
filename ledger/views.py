"""The views over events, and their documented columns: what people query, without a JSON function in sight.

Each view is written once, as columns with a sentence each, and rendered for SQLite and for PostgreSQL. What is missing
or was not measured is NULL, never 0. Byte and time columns are raw integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.glossary import HELD
from ledger.json_sql import Json, PostgresJson, SqliteJson


@dataclass(frozen=True)
class Column:
    """A column of a view: its name, the SQL that computes it, and a sentence for people."""

    name: str
    sql: str
    description: str


@dataclass(frozen=True)
class View:
    name: str
    description: str
    columns: list[Column]
    source: str

    def create(self, what: str = "VIEW") -> str:
        """The CREATE VIEW statement; `what` may be TEMP VIEW."""
        columns = ",\n  ".join(f"{column.sql} AS {column.name}" for column in self.columns)
        return f"CREATE {what} {self.name} AS\nSELECT\n  {columns}\n{self.source}"


def _place(json: Json, e: str) -> list[Column]:
    """The columns that say where an event stands."""
    return [
        Column("run_id", f"{e}.run_id", "the run"),
        Column("sequence", f"{e}.sequence", "the event's place in its run, from 0"),
        Column("position", f"{e}.position", "the event's place in the ledger, from 0"),
        Column("recorded_at", f"{e}.recorded_at", "UTC, RFC 3339, by the machine's clock"),
        Column(
            "elapsed_ns",
            json.envelope_number(e, "elapsed_ns"),
            "nanoseconds on the run's own clock; NULL when a later process appended the event",
        ),
    ]


def _first(kind: str, run: str, order: str = "min") -> str:
    """The position of a run's first (or, with max, last) event of a type."""
    return f"(SELECT {order}(i.position) FROM events AS i WHERE i.type = '{kind}' AND i.run_id = {run})"


def _runs(json: Json) -> View:
    return View(
        "runs",
        "one row per run: what was opened, how it ended, the verdict recorded last",
        [
            Column("run_id", "o.run_id", "the run"),
            Column("position", "o.position", "position of run.opened in the ledger"),
            Column("opened_at", "o.recorded_at", "UTC, by the machine's clock"),
            Column("closed_at", "c.recorded_at", "NULL while the run is not closed"),
            Column("purpose", json.text("o", "purpose"), "realization, import or witness"),
            Column("outcome", f"coalesce({json.text('c', 'outcome')}, 'incomplete')", "how it ended"),
            Column("verdict", json.text("v", "verdict"), "the verdict recorded last, or NULL"),
            Column("assurance", json.text("v", "assurance"), "declared, observed or content-verified"),
            Column("plan_digest", json.text("o", "plan.computed_digest"), "digest of the plan as computed"),
            Column("plan_blob", json.text("o", "plan.blob_digest"), "digest of the plan's bytes in blobs"),
            Column("frozen_position", json.number("o", "frozen.position"), "the plan.frozen event cited"),
            Column("repository", json.text("o", "model.repository.value"), "the model"),
            Column("revision", json.text("o", "model.revision.value"), "its revision"),
            Column("adapter", json.text("o", "adapter.name"), "who realised it"),
            Column("node_id", "o.node_id", "the host"),
            Column("labels", json.document("o", "labels"), "labels as JSON text"),
            Column("challenge", json.text("o", "challenge"), "a verifier's challenge"),
            Column("witness_of", json.text("o", "witness_of"), "the run that this one watched"),
            Column("superseded_by", json.text("s", "by"), "the run that takes this one's place"),
            Column(
                "events",
                "(SELECT max(i.sequence) + 1 FROM events AS i WHERE i.run_id = o.run_id)",
                "number of events",
            ),
            Column(
                "duration_ns",
                f"{json.envelope_number('c', 'elapsed_ns')} - {json.envelope_number('o', 'elapsed_ns')}",
                "from run.opened to run.closed on the run's own clock",
            ),
            Column("failure", json.text("c", "message"), "why it did not complete"),
        ],
        "FROM events AS o"
        f"\nLEFT JOIN events AS c ON c.position = {_first('run.closed', 'o.run_id')}"
        f"\nLEFT JOIN events AS v ON v.position = {_first('verdict.recorded', 'o.run_id', 'max')}"
        f"\nLEFT JOIN events AS s ON s.position = {_first('run.superseded', 'o.run_id', 'max')}"
        "\nWHERE o.type = 'run.opened' AND o.sequence = 0",
    )


def _positions(alias: str, wanted: dict[str, tuple[str, str]]) -> str:
    """A subquery: per run and materialization, the position of the first or last event of each wanted kind.

    `wanted` maps the column to (min or max, the condition an event must meet).
    """
    columns = "".join(
        f",\n    {order}(CASE WHEN {condition} THEN e.position END) AS {name}"
        for name, (order, condition) in wanted.items()
    )
    kinds = sorted({part for _, condition in wanted.values() for part in _types_in(condition)})
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    # The index events_by_materialization holds all of it, in this order; `|| ''` keeps planners from the one by type.
    return (
        f"(\n  SELECT e.run_id AS run_id, e.materialization_id AS materialization_id{columns}\n  FROM events AS e"
        f"\n  WHERE e.materialization_id IS NOT NULL AND e.type || '' IN ({listed})"
        f"\n  GROUP BY e.run_id, e.materialization_id\n) AS {alias}"
    )


def _types_in(condition: str) -> list[str]:
    """The event type that a condition `e.type = '...'` names."""
    return [condition.split("e.type = '", 1)[1].split("'", 1)[0]]


def _materializations(json: Json) -> View:
    positions = _positions(
        "m",
        {
            "started": ("min", "e.type = 'materialization.started'"),
            "realized": ("min", "e.type = 'materialization.realized'"),
            "observed": ("min", "e.type = 'materialization.observed'"),
            "observed_last": ("max", "e.type = 'materialization.observed'"),
            "released": ("max", "e.type = 'materialization.released'"),
            "skipped": ("min", "e.type = 'materialization.skipped'"),
            "failed": ("min", "e.type = 'materialization.failed'"),
        },
    )

    def either(path: str) -> str:
        return f"coalesce({json.text('s', path)}, {json.text('r', path)}, {json.text('o', path)})"

    started_ns, realized_ns = json.envelope_number("s", "elapsed_ns"), json.envelope_number("r", "elapsed_ns")
    return View(
        "materializations",
        "one row per run and materialization: planned place, the adapter's claim, what was observed, how it ended",
        [
            Column("run_id", "m.run_id", "the run"),
            Column("materialization_id", "m.materialization_id", "the plan's id"),
            Column("logical_state_id", either("logical_state_id"), "the unit that it is a form of"),
            Column("role", either("role"), "staging, required_residency, mutable_authority, ..."),
            Column("persistence", either("persistence"), "persistent or transient"),
            Column(
                "state",
                "CASE WHEN m.failed IS NOT NULL THEN 'failed' WHEN m.skipped IS NOT NULL THEN 'skipped'"
                " WHEN m.released IS NOT NULL AND m.released > coalesce(m.started, -1) THEN 'released'"
                " WHEN m.observed IS NOT NULL THEN 'observed' WHEN m.realized IS NOT NULL THEN 'realized'"
                " ELSE 'started' END",
                "how far it came: started, realized, observed, released, skipped, failed",
            ),
            Column(
                "memory_resource_id",
                f"coalesce({json.text('s', 'memory_resource_id')}, {json.text('r', 'memory_resource_id')})",
                "Memory Resource as begun",
            ),
            Column(
                "representation",
                f"coalesce({json.text('s', 'representation')}, {json.text('r', 'representation')})",
                "representation as begun",
            ),
            Column("claimed_memory_resource_id", json.text("r", "memory_resource_id"), "the adapter's claim"),
            Column("claimed_representation", json.text("r", "representation"), "the adapter's claim"),
            Column("claimed_bytes", json.number("r", "bytes.value"), "the adapter's claim"),
            Column("claimed_tensors", json.number("r", "tensors.value"), "the adapter's claim"),
            Column("observed_memory_resource_id", json.text("o", "memory_resource_id.value"), "as observed"),
            Column("observed_representation", json.text("o", "representation.value"), "as observed"),
            Column("observed_bytes", json.number("o", "bytes.value"), "as observed"),
            Column("observed_tensors", json.number("o", "tensors.value"), "as observed"),
            Column("observed_storages", json.number("o", "storages.value"), "as observed"),
            Column("observed_by", json.text("o", "bytes.source"), "who observed: probe, witness or declared"),
            Column("live", json.number("l", "live.value"), "1 or 0 at the last observation"),
            Column("streamed_bytes", json.number("r", "streamed_bytes.value"), "what passed through a ring"),
            Column("unplanned_bytes", json.number("r", "unplanned_bytes.value"), "what the adapter reports beyond"),
            Column("source_digest", json.text("o", "source_digest.value"), "digest of the source bytes"),
            Column("resident_digest", json.text("o", "resident_digest.value"), "digest of the bytes read back"),
            Column("tensors_blob", "o.tensors_blob", "digest of the blob that lists its tensors"),
            Column("started_sequence", "s.sequence", "sequence of materialization.started"),
            Column("realized_sequence", "r.sequence", "sequence of materialization.realized"),
            Column("observed_sequence", "o.sequence", "sequence of the first materialization.observed"),
            Column("released_sequence", "x.sequence", "sequence of the last materialization.released"),
            Column("started_ns", started_ns, "when, on the run's own clock"),
            Column("observed_ns", json.envelope_number("o", "elapsed_ns"), "when, on the run's own clock"),
            Column("released_ns", json.envelope_number("x", "elapsed_ns"), "when, on the run's own clock"),
            Column("duration_ns", f"{realized_ns} - {started_ns}", "from started to realized"),
            Column("failure", json.text("f", "message"), "why it failed"),
            Column("skip_reason", json.text("k", "reason"), "why it was skipped"),
        ],
        f"FROM {positions}"
        "\nLEFT JOIN events AS s ON s.position = m.started"
        "\nLEFT JOIN events AS r ON r.position = m.realized"
        "\nLEFT JOIN events AS o ON o.position = m.observed"
        "\nLEFT JOIN events AS l ON l.position = m.observed_last"
        "\nLEFT JOIN events AS x ON x.position = m.released"
        "\nLEFT JOIN events AS k ON k.position = m.skipped"
        "\nLEFT JOIN events AS f ON f.position = m.failed",
    )


def _tensors(json: Json) -> View:
    source, element = json.tensors("b")
    return View(
        "tensors",
        "one row per tensor of an observed materialization, from its blob; empty where no blob was recorded",
        [
            Column("run_id", "o.run_id", "the run"),
            Column("materialization_id", "o.materialization_id", "the plan's id"),
            Column("name", json.element_text(element, "name"), "the tensor's name"),
            Column("dtype", json.element_text(element, "dtype"), "its dtype"),
            Column("shape", json.element_document(element, "shape"), "its shape as JSON text, such as [2048,256]"),
            Column("bytes", json.element_number(element, "bytes"), "its bytes"),
            Column("offset_bytes", json.element_number(element, "offset"), "where in the range it begins"),
            Column("device", json.element_text(element, "device"), "where it lies"),
            Column("source_digest", json.element_text(element, "source_digest"), "digest of its source bytes"),
            Column("resident_digest", json.element_text(element, "resident_digest"), "digest of the bytes read back"),
            Column("why", json.element_text(element, "why"), "why it is there, in the observer's words"),
            Column("sequence", "o.sequence", "sequence of the observation"),
            Column("tensors_blob", "b.digest", "digest of the blob"),
        ],
        # Few events have such a blob, and an index of their own; `|| ''` keeps planners from the index by type. They are
        # taken out first: joined lazily, their envelopes would be parsed again for every tensor.
        "FROM (\n  WITH seen AS MATERIALIZED ("
        "\n    SELECT e.run_id, e.materialization_id, e.sequence, e.tensors_blob FROM events AS e"
        "\n    WHERE e.tensors_blob IS NOT NULL AND e.type || '' = 'materialization.observed'"
        "\n  ) SELECT * FROM seen\n) AS o"
        "\nJOIN blobs AS b ON b.digest = o.tensors_blob"
        f"\nCROSS JOIN {source}"
        f"\nWHERE {json.is_tensor()}",
    )


def _releases(json: Json) -> View:
    phase = json.text("e", "phase")
    positions = _positions(
        "m",
        {
            "authorized": ("min", "e.type = 'release.authorized'"),
            "refused": ("max", "e.type = 'release.refused'"),
            "released": ("min", "e.type = 'materialization.released'"),
            "reclaimed": ("min", f"e.type = 'reclamation.observed' AND {phase} = 'after-release'"),
            "decoded": ("max", f"e.type = 'reclamation.observed' AND {phase} = 'after-decode'"),
        },
    )
    return View(
        "releases",
        "one row per run and materialization whose release was decided: who qualified, what went, what came back",
        [
            Column("run_id", "m.run_id", "the run"),
            Column("materialization_id", "m.materialization_id", "what was to be released"),
            Column("authorized_sequence", "a.sequence", "NULL when it never was authorized"),
            Column("qualifying_ids", json.strings("a", "qualifying_ids"), "materializations that qualified"),
            Column("refused_reason", json.text("n", "reason"), "why it was last refused"),
            Column("released_sequence", "x.sequence", "NULL when it was not released"),
            Column("released_ns", json.envelope_number("x", "elapsed_ns"), "when, on the run's own clock"),
            Column("bytes_before", json.number("x", "bytes_before.value"), "live bytes just before"),
            Column("bytes_after", json.number("x", "bytes_after.value"), "live bytes just after"),
            Column("released_bytes", json.number("x", "released_bytes.value"), "what went"),
            Column("owners_total", json.number("x", "owners_total.value"), "storages that owned it"),
            Column("owners_alive", json.number("x", "owners_alive.value"), "of those, alive at the release"),
            Column("region_mapped", json.number("c", "region_mapped.value"), "1 while the region is in smaps"),
            Column("tree_before", json.number("c", "tree_before.value"), "the process tree's bytes before"),
            Column("tree_after", json.number("c", "tree_after.value"), "the process tree's bytes after"),
            Column("give_back_ratio", json.number("c", "ratio.value"), "given back / staging bytes"),
            Column("give_back_ratio_after_decode", json.number("d", "ratio.value"), "the same, after the last decode"),
            Column("owners_alive_after_decode", json.number("d", "owners_alive.value"), "after the last decode"),
        ],
        f"FROM {positions}"
        "\nLEFT JOIN events AS a ON a.position = m.authorized"
        "\nLEFT JOIN events AS n ON n.position = m.refused"
        "\nLEFT JOIN events AS x ON x.position = m.released"
        "\nLEFT JOIN events AS c ON c.position = m.reclaimed"
        "\nLEFT JOIN events AS d ON d.position = m.decoded",
    )


def _authorities(json: Json) -> View:
    return View(
        "authorities",
        "one row per authority.established: which lineage defines a mutable unit, and where it was found",
        [
            *_place(json, "e"),
            Column("logical_state_id", json.text("e", "logical_state_id"), "the mutable unit"),
            Column("materialization_id", "e.materialization_id", "the form that holds it"),
            Column("memory_resource_id", json.text("e", "memory_resource_id.value"), "where it was found"),
            Column("lineage", json.text("e", "lineage.value"), "the tag read back from the range"),
            Column("lineage_by", json.text("e", "lineage.source"), "who read it: probe or declared"),
            Column("range_space", json.text("e", "owner_range.space"), "address space of the owner's range"),
            Column("range_start", json.number("e", "owner_range.start"), "its first address"),
            Column("range_bytes", json.number("e", "owner_range.length"), "its length"),
        ],
        "FROM events AS e\nWHERE e.type = 'authority.established'",
    )


def _executions(json: Json) -> View:
    return View(
        "executions",
        "one row per execution.activated: the Compute Unit and the live state that it was bound to",
        [
            *_place(json, "e"),
            Column("execution_id", json.text("e", "execution_id"), "the plan's id"),
            Column("compute_unit_id", json.text("e", "compute_unit_id.value"), "where the parameters were found"),
            Column("strategy_unit", json.text("e", "strategy_unit"), "what executes"),
            Column(
                "bound_state",
                json.objects("e", "state", "materialization_id", "memory_resource_id"),
                "materialization@resource, in the event's order",
            ),
        ],
        "FROM events AS e\nWHERE e.type = 'execution.activated'",
    )


def _decode_runs(json: Json) -> View:
    return View(
        "decode_runs",
        "one row per prefill or repeated decode, laid against the reference",
        [
            *_place(json, "e"),
            Column("execution_id", json.text("e", "execution_id"), "the plan's id"),
            Column("phase", json.text("e", "phase"), "prefill or repetition"),
            Column("repetition", json.number("e", "repetition"), "from 0; NULL for the prefill"),
            Column("mode", json.text("e", "mode"), "eager or cuda-graph"),
            Column("input_exact", json.number("e", "input.exact.value"), "1 when bit-equal to the reference"),
            Column("output_exact", json.number("e", "output.exact.value"), "1 when bit-equal to the reference"),
            Column("max_absolute", json.number("e", "output.max_absolute.value"), "largest absolute deviation"),
            Column("max_relative", json.number("e", "output.max_relative.value"), "largest relative deviation"),
            Column("nan_count", json.number("e", "output.nan_count.value"), "NaN in the output"),
            Column("inf_count", json.number("e", "output.inf_count.value"), "infinities in the output"),
            Column("within_tolerance", json.number("e", "output.within_tolerance.value"), "1, 0, or NULL when exact"),
            Column("tokens", json.text("e", "tokens.value"), "tokens, as recorded"),
            Column("tokens_digest", json.text("e", "tokens_digest.value"), "digest of the tokens"),
            Column("output_digest", json.text("e", "output_digest.value"), "digest of the output tensor"),
            Column("duration_ns", json.number("e", "elapsed_ns.value"), "time of the decode"),
            Column("plan_lookups", json.number("e", "plan_lookups.value"), "plan reads meanwhile: 0 is right"),
        ],
        "FROM events AS e\nWHERE e.type = 'decode.ran'",
    )


PROCESS_COLUMNS = {
    "vm_rss": "resident bytes of the process tree",
    "vm_hwm": "peak resident bytes since the step began",
    "rss_anon": "private anonymous bytes",
    "rss_file": "resident bytes of file mappings",
    "rss_shmem": "shared-memory bytes",
    "vm_swap": "bytes swapped out",
    "hugetlb": "huge-page bytes",
    "vm_pin": "pinned bytes",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "swap_in": "pages swapped in",
    "swap_out": "pages swapped out",
    "new_file_mappings": "bytes of non-library file mappings new since the baseline",
    "checkpoint_mappings": "resident bytes of mappings of checkpoint files",
    "new_tmpfs_files": "bytes of new files on tmpfs",
    "tree_sum": HELD,
}


def _memory_samples(json: Json) -> View:
    return View(
        "memory_samples",
        "one row per memory sample: the process tree's bytes by class at a labelled point",
        [
            *_place(json, "e"),
            Column("label", json.text("e", "label"), "where in the lifecycle"),
            *(
                Column(name, json.unpacked_number("e", "process", f"{name}.value"), description)
                for name, description in PROCESS_COLUMNS.items()
            ),
            Column(
                "unowned_host_bytes",
                json.number("e", "census.unowned_host_bytes.value"),
                "live host storage without an owner",
            ),
            Column(
                "unowned_device_bytes",
                json.number("e", "census.unowned_device_bytes.value"),
                "live device storage without an owner",
            ),
            Column("cuda_allocated", json.total("e", "cuda", ".allocated"), "allocated, all devices"),
            Column("cuda_reserved", json.total("e", "cuda", ".reserved"), "reserved, all devices"),
            Column("cuda_peak", json.total("e", "cuda", ".peak"), "peak allocated, all devices"),
            Column("cuda_process", json.total("e", "cuda", ".process"), "held by the process, all devices"),
            Column("host_pool", json.number("e", "cuda.host_pool.value"), "torch's pinned host pool"),
        ],
        f"FROM events AS e{json.unpack('e', 'process')}\nWHERE e.type = 'memory.sampled'",
    )


def _verdicts(json: Json) -> View:
    return View(
        "verdicts",
        "one row per verdict recorded",
        [
            *_place(json, "e"),
            Column("verdict", json.text("e", "verdict"), "PASS, FAIL or INDETERMINATE"),
            Column("assurance", json.text("e", "assurance"), "declared, observed or content-verified"),
            Column("judge_version", json.text("e", "judge_version"), "which judge"),
            Column("codes", json.strings("e", "codes"), "codes of the findings, comma-separated; NULL for none"),
        ],
        "FROM events AS e\nWHERE e.type = 'verdict.recorded'",
    )


def _verdict_codes(json: Json) -> View:
    source, item = json.each_string("e", "codes")
    return View(
        "verdict_codes",
        "one row per code of a verdict recorded",
        [
            Column("run_id", "e.run_id", "the run"),
            Column("sequence", "e.sequence", "sequence of verdict.recorded"),
            Column("verdict", json.text("e", "verdict"), "PASS, FAIL or INDETERMINATE"),
            Column("code", item, "a finding's code"),
        ],
        f"FROM events AS e\nCROSS JOIN {source}\nWHERE e.type = 'verdict.recorded'",
    )


def views(dialect: str) -> list[View]:
    """Every view, in the order in which people read about them."""
    json: Json = SqliteJson() if dialect == "sqlite" else PostgresJson()
    return [
        _runs(json),
        _materializations(json),
        _tensors(json),
        _releases(json),
        _authorities(json),
        _executions(json),
        _decode_runs(json),
        _memory_samples(json),
        _verdicts(json),
        _verdict_codes(json),
    ]


def create_views(dialect: str) -> dict[str, str]:
    """View name -> CREATE VIEW statement."""
    return {view.name: view.create() for view in views(dialect)}
