-- What changes in views over the events in SQLite: an array is read out of its event alone, which is parsed once.

DROP VIEW releases;

CREATE VIEW releases AS
SELECT
  m.run_id AS run_id,
  m.materialization_id AS materialization_id,
  a.sequence AS authorized_sequence,
  (SELECT group_concat(value, ', ') FROM json_each(a.envelope -> '$.body.qualifying_ids')) AS qualifying_ids,
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

DROP VIEW executions;

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
  (SELECT group_concat(json_extract(value, '$.materialization_id') || '@' || json_extract(value, '$.memory_resource_id'), ', ') FROM json_each(e.envelope -> '$.body.state')) AS bound_state
FROM events AS e
WHERE e.type = 'execution.activated';

DROP VIEW memory_samples;

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
  (SELECT CASE WHEN count(*) = count(json_extract(value, '$.value')) THEN sum(json_extract(value, '$.value')) END FROM json_each(e.envelope -> '$.body.cuda') WHERE key LIKE '%.allocated') AS cuda_allocated,
  (SELECT CASE WHEN count(*) = count(json_extract(value, '$.value')) THEN sum(json_extract(value, '$.value')) END FROM json_each(e.envelope -> '$.body.cuda') WHERE key LIKE '%.reserved') AS cuda_reserved,
  (SELECT CASE WHEN count(*) = count(json_extract(value, '$.value')) THEN sum(json_extract(value, '$.value')) END FROM json_each(e.envelope -> '$.body.cuda') WHERE key LIKE '%.peak') AS cuda_peak,
  (SELECT CASE WHEN count(*) = count(json_extract(value, '$.value')) THEN sum(json_extract(value, '$.value')) END FROM json_each(e.envelope -> '$.body.cuda') WHERE key LIKE '%.process') AS cuda_process,
  json_extract(e.envelope, '$.body.cuda.host_pool.value') AS host_pool
FROM events AS e
WHERE e.type = 'memory.sampled';

DROP VIEW verdicts;

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
  (SELECT group_concat(value, ', ') FROM json_each(e.envelope -> '$.body.codes')) AS codes
FROM events AS e
WHERE e.type = 'verdict.recorded';

DROP VIEW verdict_codes;

CREATE VIEW verdict_codes AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  json_extract(e.envelope, '$.body.verdict') AS verdict,
  item.value AS code
FROM events AS e
CROSS JOIN json_each(e.envelope -> '$.body.codes') AS item
WHERE e.type = 'verdict.recorded';

PRAGMA user_version = 3;
