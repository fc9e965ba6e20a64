"""The queries that people ask of a ledger, by name, over the documented views; the same SQL on both backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NamedQuery:
    """A query with a name. `parameters` are those it binds as `:name`; those in `defaults` may be left out."""

    name: str
    description: str
    sql: str
    parameters: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)


RUN_PARAMETERS = frozenset({"run", "a", "b"})
"""What a named query calls a parameter that is a run's id."""

_QUERIES = (
    NamedQuery(
        "memory-over-time",
        "where each run's memory went: the process tree's bytes by class at every label (one run with run=)",
        """
SELECT run_id, sequence, label, elapsed_ns, tree_sum, vm_rss, vm_hwm, rss_anon, rss_shmem, rss_file,
  unowned_host_bytes, cuda_allocated, cuda_peak
FROM memory_samples
WHERE cast(:run AS text) IS NULL OR run_id = cast(:run AS text)
ORDER BY run_id, position""",
        ("run",),
        {"run": None},
    ),
    NamedQuery(
        "released-late",
        "staging that was released after activation, more than wait_ns (one second) after its final form was seen, or never",
        """
WITH forms AS MATERIALIZED (
  SELECT run_id, materialization_id, logical_state_id, role, observed_ns, released_sequence, released_ns
  FROM materializations
), finals AS (
  SELECT run_id, logical_state_id, max(observed_ns) AS observed_ns
  FROM forms WHERE role = 'required_residency' GROUP BY run_id, logical_state_id
), activated AS (
  SELECT run_id, min(sequence) AS sequence FROM executions GROUP BY run_id
), staging AS (
  SELECT m.run_id, m.materialization_id, m.released_sequence,
    m.released_ns - f.observed_ns AS waited_ns, a.sequence AS activated_sequence
  FROM forms AS m
  LEFT JOIN finals AS f ON f.run_id = m.run_id AND f.logical_state_id = m.logical_state_id
  LEFT JOIN activated AS a ON a.run_id = m.run_id
  WHERE m.role = 'staging'
)
SELECT run_id, materialization_id, waited_ns, released_sequence, activated_sequence,
  CASE WHEN released_sequence IS NULL THEN 'never released'
    WHEN released_sequence > activated_sequence THEN 'released after activation'
    ELSE 'waited' END AS why
FROM staging
WHERE released_sequence IS NULL OR released_sequence > activated_sequence OR waited_ns > cast(:wait_ns AS bigint)
ORDER BY run_id, materialization_id""",
        ("wait_ns",),
        {"wait_ns": 1_000_000_000},
    ),
    NamedQuery(
        "slowest-materializations",
        "materializations by time from started to realized, slowest first",
        """
SELECT run_id, materialization_id, role, memory_resource_id, claimed_bytes, duration_ns,
  cast(1000000000.0 * claimed_bytes / nullif(duration_ns, 0) AS bigint) AS bytes_per_second
FROM materializations
WHERE duration_ns IS NOT NULL
ORDER BY duration_ns DESC, run_id, materialization_id
LIMIT cast(:limit AS bigint)""",
        ("limit",),
        {"limit": 20},
    ),
    NamedQuery(
        "verdicts-by-code",
        "how many runs had which verdict and which code of finding",
        """
SELECT r.verdict, r.outcome, c.code, count(DISTINCT r.run_id) AS runs,
  min(r.opened_at) AS first_opened_at, max(r.opened_at) AS last_opened_at
FROM runs AS r LEFT JOIN verdict_codes AS c ON c.run_id = r.run_id AND c.verdict = r.verdict
GROUP BY r.verdict, r.outcome, c.code
ORDER BY runs DESC, r.verdict, r.outcome, c.code""",
    ),
    NamedQuery(
        "contradicted-claims",
        "where the adapter claimed one thing and an observer saw another",
        """
SELECT run_id, materialization_id, claimed_bytes, observed_bytes, claimed_tensors, observed_tensors,
  claimed_memory_resource_id, observed_memory_resource_id, claimed_representation, observed_representation, observed_by
FROM materializations
WHERE observed_by IN ('probe', 'witness') AND (
  claimed_bytes <> observed_bytes OR claimed_tensors <> observed_tensors
  OR claimed_memory_resource_id <> observed_memory_resource_id OR claimed_representation <> observed_representation)
ORDER BY run_id, materialization_id""",
    ),
    NamedQuery(
        "authority-over-time",
        "who held authority over which mutable unit, from when, until its run closed",
        """
SELECT a.logical_state_id, a.lineage, a.lineage_by, a.run_id, a.materialization_id, a.memory_resource_id,
  a.recorded_at AS held_from, r.closed_at AS held_until
FROM authorities AS a LEFT JOIN runs AS r ON r.run_id = a.run_id
ORDER BY a.logical_state_id, a.position""",
    ),
    NamedQuery(
        "where-is-tensor",
        "where a tensor lies; tensor= takes % as a wildcard (one run with run=)",
        """
SELECT run_id, materialization_id, name, dtype, shape, bytes, offset_bytes, device, resident_digest, why
FROM tensors
WHERE name LIKE cast(:tensor AS text) AND (cast(:run AS text) IS NULL OR run_id = cast(:run AS text))
ORDER BY run_id, materialization_id, name""",
        ("tensor", "run"),
        {"run": None},
    ),
    NamedQuery(
        "side-by-side",
        "two runs, a= and b=: outcome, verdict, bytes by materialization, tokens, memory peaks, side by side",
        """
WITH sides AS (
  SELECT run_id, 'outcome' AS item, outcome AS value FROM runs
  UNION ALL SELECT run_id, 'verdict', verdict FROM runs
  UNION ALL SELECT run_id, 'assurance', assurance FROM runs
  UNION ALL SELECT run_id, 'plan digest', plan_digest FROM runs
  UNION ALL SELECT run_id, 'model revision', revision FROM runs
  UNION ALL SELECT run_id, 'duration_ns', cast(duration_ns AS text) FROM runs
  UNION ALL SELECT run_id, 'bytes of ' || materialization_id, cast(observed_bytes AS text) FROM materializations
  UNION ALL SELECT run_id, 'digest of ' || materialization_id, resident_digest FROM materializations
  UNION ALL SELECT run_id, 'give-back of ' || materialization_id, cast(give_back_ratio AS text) FROM releases
  UNION ALL SELECT run_id, 'lineage of ' || logical_state_id, lineage FROM authorities
  UNION ALL SELECT run_id, 'tokens of ' || phase || coalesce(' ' || cast(repetition AS text), ''), tokens_digest
    FROM decode_runs
  UNION ALL SELECT run_id, 'largest deviation', cast(max(max_absolute) AS text) FROM decode_runs GROUP BY run_id
  UNION ALL SELECT run_id, 'peak of tree_sum', cast(max(tree_sum) AS text) FROM memory_samples GROUP BY run_id
), chosen AS (
  SELECT item, max(CASE WHEN run_id = cast(:a AS text) THEN value END) AS a,
    max(CASE WHEN run_id = cast(:b AS text) THEN value END) AS b
  FROM sides WHERE run_id IN (cast(:a AS text), cast(:b AS text)) GROUP BY item
)
SELECT item, a, b, CASE WHEN a = b THEN 'same' WHEN a IS NULL AND b IS NULL THEN 'unknown' ELSE 'differs' END AS laid
FROM chosen
ORDER BY item""",
        ("a", "b"),
    ),
)

NAMED: dict[str, NamedQuery] = {
    query.name: NamedQuery(query.name, query.description, query.sql.strip(), query.parameters, query.defaults)
    for query in _QUERIES
}
"""Every named query by its name."""

DEFAULTS: dict[str, Mapping[str, object]] = {query.sql: query.defaults for query in NAMED.values()}
"""What a named query's parameters are when they are left out, by the query's text."""
