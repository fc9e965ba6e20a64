-- Views over the events that read well without JSON functions, as step 0002 makes them in SQLite.

CREATE VIEW runs AS
SELECT
  o.run_id AS run_id,
  o.position AS position,
  o.recorded_at AS opened_at,
  c.recorded_at AS closed_at,
  json_extract(o.envelope, '$.body.purpose') AS purpose,
  coalesce(json_extract(c.envelope, '$.body.outcome'), 'incomplete') AS outcome,
  json_extract(v.envelope, '$.body.verdict') AS verdict,
  json_extract(v.envelope, '$.body.assurance') AS assurance,
  json_extract(o.envelope, '$.body.plan.computed_digest') AS plan_digest,
  json_extract(o.envelope, '$.body.plan.blob_digest') AS plan_blob,
  json_extract(o.envelope, '$.body.frozen.position') AS frozen_position,
  json_extract(o.envelope, '$.body.model.repository.value') AS repository,
  json_extract(o.envelope, '$.body.model.revision.value') AS revision,
  json_extract(o.envelope, '$.body.adapter.name') AS adapter,
  o.node_id AS node_id,
  json_extract(o.envelope, '$.body.labels') AS labels,
  json_extract(o.envelope, '$.body.challenge') AS challenge,
  json_extract(o.envelope, '$.body.witness_of') AS witness_of,
  json_extract(s.envelope, '$.body.by') AS superseded_by,
  (SELECT max(i.sequence) + 1 FROM events AS i WHERE i.run_id = o.run_id) AS events,
  json_extract(c.envelope, '$.elapsed_ns') - json_extract(o.envelope, '$.elapsed_ns') AS duration_ns,
  json_extract(c.envelope, '$.body.message') AS failure
FROM events AS o
LEFT JOIN events AS c ON c.position = (SELECT min(i.position) FROM events AS i WHERE i.type = 'run.closed' AND i.run_id = o.run_id)
LEFT JOIN events AS v ON v.position = (SELECT max(i.position) FROM events AS i WHERE i.type = 'verdict.recorded' AND i.run_id = o.run_id)
LEFT JOIN events AS s ON s.position = (SELECT max(i.position) FROM events AS i WHERE i.type = 'run.superseded' AND i.run_id = o.run_id)
WHERE o.type = 'run.opened' AND o.sequence = 0;

CREATE VIEW materializations AS
SELECT
  m.run_id AS run_id,
  m.materialization_id AS materialization_id,
  coalesce(json_extract(s.envelope, '$.body.logical_state_id'), json_extract(r.envelope, '$.body.logical_state_id'), json_extract(o.envelope, '$.body.logical_state_id')) AS logical_state_id,
  coalesce(json_extract(s.envelope, '$.body.role'), json_extract(r.envelope, '$.body.role'), json_extract(o.envelope, '$.body.role')) AS role,
  coalesce(json_extract(s.envelope, '$.body.persistence'), json_extract(r.envelope, '$.body.persistence'), json_extract(o.envelope, '$.body.persistence')) AS persistence,
  CASE WHEN m.failed IS NOT NULL THEN 'failed' WHEN m.skipped IS NOT NULL THEN 'skipped' WHEN m.released IS NOT NULL AND m.released > coalesce(m.started, -1) THEN 'released' WHEN m.observed IS NOT NULL THEN 'observed' WHEN m.realized IS NOT NULL THEN 'realized' ELSE 'started' END AS state,
  coalesce(json_extract(s.envelope, '$.body.memory_resource_id'), json_extract(r.envelope, '$.body.memory_resource_id')) AS memory_resource_id,
  coalesce(json_extract(s.envelope, '$.body.representation'), json_extract(r.envelope, '$.body.representation')) AS representation,
  json_extract(r.envelope, '$.body.memory_resource_id') AS claimed_memory_resource_id,
  json_extract(r.envelope, '$.body.representation') AS claimed_representation,
  json_extract(r.envelope, '$.body.bytes.value') AS claimed_bytes,
  json_extract(r.envelope, '$.body.tensors.value') AS claimed_tensors,
  json_extract(o.envelope, '$.body.memory_resource_id.value') AS observed_memory_resource_id,
  json_extract(o.envelope, '$.body.representation.value') AS observed_representation,
  json_extract(o.envelope, '$.body.bytes.value') AS observed_bytes,
  json_extract(o.envelope, '$.body.tensors.value') AS observed_tensors,
  json_extract(o.envelope, '$.body.storages.value') AS observed_storages,
  json_extract(o.envelope, '$.body.bytes.source') AS observed_by,
  json_extract(l.envelope, '$.body.live.value') AS live,
  json_extract(r.envelope, '$.body.streamed_bytes.value') AS streamed_bytes,
  json_extract(r.envelope, '$.body.unplanned_bytes.value') AS unplanned_bytes,
  json_extract(o.envelope, '$.body.source_digest.value') AS source_digest,
  json_extract(o.envelope, '$.body.resident_digest.value') AS resident_digest,
  o.tensors_blob AS tensors_blob,
  s.sequence AS started_sequence,
  r.sequence AS realized_sequence,
  o.sequence AS observed_sequence,
  x.sequence AS released_sequence,
  json_extract(s.envelope, '$.elapsed_ns') AS started_ns,
  json_extract(o.envelope, '$.elapsed_ns') AS observed_ns,
  json_extract(x.envelope, '$.elapsed_ns') AS released_ns,
  json_extract(r.envelope, '$.elapsed_ns') - json_extract(s.envelope, '$.elapsed_ns') AS duration_ns,
  json_extract(f.envelope, '$.body.message') AS failure,
  json_extract(k.envelope, '$.body.reason') AS skip_reason
FROM (
  SELECT e.run_id AS run_id, e.materialization_id AS materialization_id,
    min(CASE WHEN e.type = 'materialization.started' THEN e.position END) AS started,
    min(CASE WHEN e.type = 'materialization.realized' THEN e.position END) AS realized,
    min(CASE WHEN e.type = 'materialization.observed' THEN e.position END) AS observed,
    max(CASE WHEN e.type = 'materialization.observed' THEN e.position END) AS observed_last,
    max(CASE WHEN e.type = 'materialization.released' THEN e.position END) AS released,
    min(CASE WHEN e.type = 'materialization.skipped' THEN e.position END) AS skipped,
    min(CASE WHEN e.type = 'materialization.failed' THEN e.position END) AS failed
  FROM events AS e
  WHERE e.materialization_id IS NOT NULL AND e.type || '' IN ('materialization.failed', 'materialization.observed', 'materialization.realized', 'materialization.released', 'materialization.skipped', 'materialization.started')
  GROUP BY e.run_id, e.materialization_id
) AS m
LEFT JOIN events AS s ON s.position = m.started
LEFT JOIN events AS r ON r.position = m.realized
LEFT JOIN events AS o ON o.position = m.observed
LEFT JOIN events AS l ON l.position = m.observed_last
LEFT JOIN events AS x ON x.position = m.released
LEFT JOIN events AS k ON k.position = m.skipped
LEFT JOIN events AS f ON f.position = m.failed;

CREATE VIEW tensors AS
SELECT
  o.run_id AS run_id,
  o.materialization_id AS materialization_id,
  CASE tensor.type WHEN 'object' THEN json_extract(tensor.value, '$.name') END AS name,
  CASE tensor.type WHEN 'object' THEN json_extract(tensor.value, '$.dtype') END AS dtype,
  CASE tensor.type WHEN 'object' THEN json_extract(tensor.value, '$.shape') END AS shape,
  CASE tensor.type WHEN 'object' THEN json_extract(tensor.value, '$.bytes') END AS bytes,
  CASE tensor.type WHEN 'object' THEN json_extract(tensor.value, '$.offset') END AS offset_bytes,
  CASE tensor.type WHEN 'object' THEN json_extract(tensor.value, '$.device') END AS device,
  CASE tensor.type WHEN 'object' THEN json_extract(tensor.value, '$.source_digest') END AS source_digest,
  CASE tensor.type WHEN 'object' THEN json_extract(tensor.value, '$.resident_digest') END AS resident_digest,
  CASE tensor.type WHEN 'object' THEN json_extract(tensor.value, '$.why') END AS why,
  o.sequence AS sequence,
  b.digest AS tensors_blob
FROM (
  WITH seen AS MATERIALIZED (
    SELECT e.run_id, e.materialization_id, e.sequence, e.tensors_blob FROM events AS e
    WHERE e.tensors_blob IS NOT NULL AND e.type || '' = 'materialization.observed'
  ) SELECT * FROM seen
) AS o
JOIN blobs AS b ON b.digest = o.tensors_blob
CROSS JOIN json_each(CASE WHEN json_valid(CAST(b.data AS TEXT)) THEN CAST(b.data AS TEXT) ELSE '[]' END) AS tensor
WHERE typeof(tensor.key) = 'integer' AND tensor.type = 'object';

CREATE VIEW releases AS
SELECT
  m.run_id AS run_id,
  m.materialization_id AS materialization_id,
  a.sequence AS authorized_sequence,
  (SELECT group_concat(value, ', ') FROM json_each(a.envelope, '$.body.qualifying_ids')) AS qualifying_ids,
  json_extract(n.envelope, '$.body.reason') AS refused_reason,
  x.sequence AS released_sequence,
  json_extract(x.envelope, '$.elapsed_ns') AS released_ns,
  json_extract(x.envelope, '$.body.bytes_before.value') AS bytes_before,
  json_extract(x.envelope, '$.body.bytes_after.value') AS bytes_after,
  json_extract(x.envelope, '$.body.released_bytes.value') AS released_bytes,
  json_extract(x.envelope, '$.body.owners_total.value') AS owners_total,
  json_extract(x.envelope, '$.body.owners_alive.value') AS owners_alive,
  json_extract(c.envelope, '$.body.region_mapped.value') AS region_mapped,
  json_extract(c.envelope, '$.body.tree_before.value') AS tree_before,
  json_extract(c.envelope, '$.body.tree_after.value') AS tree_after,
  json_extract(c.envelope, '$.body.ratio.value') AS give_back_ratio,
  json_extract(d.envelope, '$.body.ratio.value') AS give_back_ratio_after_decode,
  json_extract(d.envelope, '$.body.owners_alive.value') AS owners_alive_after_decode
FROM (
  SELECT e.run_id AS run_id, e.materialization_id AS materialization_id,
    min(CASE WHEN e.type = 'release.authorized' THEN e.position END) AS authorized,
    max(CASE WHEN e.type = 'release.refused' THEN e.position END) AS refused,
    min(CASE WHEN e.type = 'materialization.released' THEN e.position END) AS released,
    min(CASE WHEN e.type = 'reclamation.observed' AND json_extract(e.envelope, '$.body.phase') = 'after-release' THEN e.position END) AS reclaimed,
    max(CASE WHEN e.type = 'reclamation.observed' AND json_extract(e.envelope, '$.body.phase') = 'after-decode' THEN e.position END) AS decoded
  FROM events AS e
  WHERE e.materialization_id IS NOT NULL AND e.type || '' IN ('materialization.released', 'reclamation.observed', 'release.authorized', 'release.refused')
  GROUP BY e.run_id, e.materialization_id
) AS m
LEFT JOIN events AS a ON a.position = m.authorized
LEFT JOIN events AS n ON n.position = m.refused
LEFT JOIN events AS x ON x.position = m.released
LEFT JOIN events AS c ON c.position = m.reclaimed
LEFT JOIN events AS d ON d.position = m.decoded;

CREATE VIEW authorities AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.position AS position,
  e.recorded_at AS recorded_at,
  json_extract(e.envelope, '$.elapsed_ns') AS elapsed_ns,
  json_extract(e.envelope, '$.body.logical_state_id') AS logical_state_id,
  e.materialization_id AS materialization_id,
  json_extract(e.envelope, '$.body.memory_resource_id.value') AS memory_resource_id,
  json_extract(e.envelope, '$.body.lineage.value') AS lineage,
  json_extract(e.envelope, '$.body.lineage.source') AS lineage_by,
  json_extract(e.envelope, '$.body.owner_range.space') AS range_space,
  json_extract(e.envelope, '$.body.owner_range.start') AS range_start,
  json_extract(e.envelope, '$.body.owner_range.length') AS range_bytes
FROM events AS e
WHERE e.type = 'authority.established';

CREATE VIEW executions AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.position AS position,
  e.recorded_at AS recorded_at,
  json_extract(e.envelope, '$.elapsed_ns') AS elapsed_ns,
  json_extract(e.envelope, '$.body.execution_id') AS execution_id,
  json_extract(e.envelope, '$.body.compute_unit_id.value') AS compute_unit_id,
  json_extract(e.envelope, '$.body.strategy_unit') AS strategy_unit,
  (SELECT group_concat(json_extract(value, '$.materialization_id') || '@' || json_extract(value, '$.memory_resource_id'), ', ') FROM json_each(e.envelope, '$.body.state')) AS bound_state
FROM events AS e
WHERE e.type = 'execution.activated';

CREATE VIEW decode_runs AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.position AS position,
  e.recorded_at AS recorded_at,
  json_extract(e.envelope, '$.elapsed_ns') AS elapsed_ns,
  json_extract(e.envelope, '$.body.execution_id') AS execution_id,
  json_extract(e.envelope, '$.body.phase') AS phase,
  json_extract(e.envelope, '$.body.repetition') AS repetition,
  json_extract(e.envelope, '$.body.mode') AS mode,
  json_extract(e.envelope, '$.body.input.exact.value') AS input_exact,
  json_extract(e.envelope, '$.body.output.exact.value') AS output_exact,
  json_extract(e.envelope, '$.body.output.max_absolute.value') AS max_absolute,
  json_extract(e.envelope, '$.body.output.max_relative.value') AS max_relative,
  json_extract(e.envelope, '$.body.output.nan_count.value') AS nan_count,
  json_extract(e.envelope, '$.body.output.inf_count.value') AS inf_count,
  json_extract(e.envelope, '$.body.output.within_tolerance.value') AS within_tolerance,
  json_extract(e.envelope, '$.body.tokens.value') AS tokens,
  json_extract(e.envelope, '$.body.tokens_digest.value') AS tokens_digest,
  json_extract(e.envelope, '$.body.output_digest.value') AS output_digest,
  json_extract(e.envelope, '$.body.elapsed_ns.value') AS duration_ns,
  json_extract(e.envelope, '$.body.plan_lookups.value') AS plan_lookups
FROM events AS e
WHERE e.type = 'decode.ran';

CREATE VIEW memory_samples AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.position AS position,
  e.recorded_at AS recorded_at,
  json_extract(e.envelope, '$.elapsed_ns') AS elapsed_ns,
  json_extract(e.envelope, '$.body.label') AS label,
  json_extract(e.envelope, '$.body.process.vm_rss.value') AS vm_rss,
  json_extract(e.envelope, '$.body.process.vm_hwm.value') AS vm_hwm,
  json_extract(e.envelope, '$.body.process.rss_anon.value') AS rss_anon,
  json_extract(e.envelope, '$.body.process.rss_file.value') AS rss_file,
  json_extract(e.envelope, '$.body.process.rss_shmem.value') AS rss_shmem,
  json_extract(e.envelope, '$.body.process.vm_swap.value') AS vm_swap,
  json_extract(e.envelope, '$.body.process.hugetlb.value') AS hugetlb,
  json_extract(e.envelope, '$.body.process.vm_pin.value') AS vm_pin,
  json_extract(e.envelope, '$.body.process.minor_faults.value') AS minor_faults,
  json_extract(e.envelope, '$.body.process.major_faults.value') AS major_faults,
  json_extract(e.envelope, '$.body.process.swap_in.value') AS swap_in,
  json_extract(e.envelope, '$.body.process.swap_out.value') AS swap_out,
  json_extract(e.envelope, '$.body.process.new_file_mappings.value') AS new_file_mappings,
  json_extract(e.envelope, '$.body.process.checkpoint_mappings.value') AS checkpoint_mappings,
  json_extract(e.envelope, '$.body.process.new_tmpfs_files.value') AS new_tmpfs_files,
  json_extract(e.envelope, '$.body.process.tree_sum.value') AS tree_sum,
  json_extract(e.envelope, '$.body.census.unowned_host_bytes.value') AS unowned_host_bytes,
  json_extract(e.envelope, '$.body.census.unowned_device_bytes.value') AS unowned_device_bytes,
  (SELECT CASE WHEN count(*) = count(json_extract(value, '$.value')) THEN sum(json_extract(value, '$.value')) END FROM json_each(e.envelope, '$.body.cuda') WHERE key LIKE '%.allocated') AS cuda_allocated,
  (SELECT CASE WHEN count(*) = count(json_extract(value, '$.value')) THEN sum(json_extract(value, '$.value')) END FROM json_each(e.envelope, '$.body.cuda') WHERE key LIKE '%.reserved') AS cuda_reserved,
  (SELECT CASE WHEN count(*) = count(json_extract(value, '$.value')) THEN sum(json_extract(value, '$.value')) END FROM json_each(e.envelope, '$.body.cuda') WHERE key LIKE '%.peak') AS cuda_peak,
  (SELECT CASE WHEN count(*) = count(json_extract(value, '$.value')) THEN sum(json_extract(value, '$.value')) END FROM json_each(e.envelope, '$.body.cuda') WHERE key LIKE '%.process') AS cuda_process,
  json_extract(e.envelope, '$.body.cuda.host_pool.value') AS host_pool
FROM events AS e
WHERE e.type = 'memory.sampled';

CREATE VIEW verdicts AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.position AS position,
  e.recorded_at AS recorded_at,
  json_extract(e.envelope, '$.elapsed_ns') AS elapsed_ns,
  json_extract(e.envelope, '$.body.verdict') AS verdict,
  json_extract(e.envelope, '$.body.assurance') AS assurance,
  json_extract(e.envelope, '$.body.judge_version') AS judge_version,
  (SELECT group_concat(value, ', ') FROM json_each(e.envelope, '$.body.codes')) AS codes
FROM events AS e
WHERE e.type = 'verdict.recorded';

CREATE VIEW verdict_codes AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  json_extract(e.envelope, '$.body.verdict') AS verdict,
  item.value AS code
FROM events AS e
CROSS JOIN json_each(e.envelope, '$.body.codes') AS item
WHERE e.type = 'verdict.recorded';

PRAGMA user_version = 2;
