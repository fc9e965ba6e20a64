-- Views over the events that read well without JSON functions, as step 0002 makes them in PostgreSQL.

CREATE FUNCTION ledger_number(value jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN jsonb_typeof(value) = 'number' THEN value::numeric END
$$;

CREATE FUNCTION ledger_array(data bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE value jsonb;
BEGIN
  value := convert_from(data, 'UTF8')::jsonb;
  RETURN CASE WHEN jsonb_typeof(value) = 'array' THEN value ELSE '[]'::jsonb END;
EXCEPTION WHEN data_exception THEN
  RETURN '[]'::jsonb;
END $$;

CREATE VIEW runs AS
SELECT
  o.run_id AS run_id,
  o.position AS position,
  o.recorded_at AS opened_at,
  c.recorded_at AS closed_at,
  o.document #>> '{body,purpose}' AS purpose,
  coalesce(c.document #>> '{body,outcome}', 'incomplete') AS outcome,
  v.document #>> '{body,verdict}' AS verdict,
  v.document #>> '{body,assurance}' AS assurance,
  o.document #>> '{body,plan,computed_digest}' AS plan_digest,
  o.document #>> '{body,plan,blob_digest}' AS plan_blob,
  ledger_number(o.document #> '{body,frozen,position}') AS frozen_position,
  o.document #>> '{body,model,repository,value}' AS repository,
  o.document #>> '{body,model,revision,value}' AS revision,
  o.document #>> '{body,adapter,name}' AS adapter,
  o.node_id AS node_id,
  (o.document #> '{body,labels}')::text AS labels,
  o.document #>> '{body,challenge}' AS challenge,
  o.document #>> '{body,witness_of}' AS witness_of,
  s.document #>> '{body,by}' AS superseded_by,
  (SELECT max(i.sequence) + 1 FROM events AS i WHERE i.run_id = o.run_id) AS events,
  ledger_number(c.document -> 'elapsed_ns') - ledger_number(o.document -> 'elapsed_ns') AS duration_ns,
  c.document #>> '{body,message}' AS failure
FROM events AS o
LEFT JOIN events AS c ON c.position = (SELECT min(i.position) FROM events AS i WHERE i.type = 'run.closed' AND i.run_id = o.run_id)
LEFT JOIN events AS v ON v.position = (SELECT max(i.position) FROM events AS i WHERE i.type = 'verdict.recorded' AND i.run_id = o.run_id)
LEFT JOIN events AS s ON s.position = (SELECT max(i.position) FROM events AS i WHERE i.type = 'run.superseded' AND i.run_id = o.run_id)
WHERE o.type = 'run.opened' AND o.sequence = 0;

CREATE VIEW materializations AS
SELECT
  m.run_id AS run_id,
  m.materialization_id AS materialization_id,
  coalesce(s.document #>> '{body,logical_state_id}', r.document #>> '{body,logical_state_id}', o.document #>> '{body,logical_state_id}') AS logical_state_id,
  coalesce(s.document #>> '{body,role}', r.document #>> '{body,role}', o.document #>> '{body,role}') AS role,
  coalesce(s.document #>> '{body,persistence}', r.document #>> '{body,persistence}', o.document #>> '{body,persistence}') AS persistence,
  CASE WHEN m.failed IS NOT NULL THEN 'failed' WHEN m.skipped IS NOT NULL THEN 'skipped' WHEN m.released IS NOT NULL AND m.released > coalesce(m.started, -1) THEN 'released' WHEN m.observed IS NOT NULL THEN 'observed' WHEN m.realized IS NOT NULL THEN 'realized' ELSE 'started' END AS state,
  coalesce(s.document #>> '{body,memory_resource_id}', r.document #>> '{body,memory_resource_id}') AS memory_resource_id,
  coalesce(s.document #>> '{body,representation}', r.document #>> '{body,representation}') AS representation,
  r.document #>> '{body,memory_resource_id}' AS claimed_memory_resource_id,
  r.document #>> '{body,representation}' AS claimed_representation,
  ledger_number(r.document #> '{body,bytes,value}') AS claimed_bytes,
  ledger_number(r.document #> '{body,tensors,value}') AS claimed_tensors,
  o.document #>> '{body,memory_resource_id,value}' AS observed_memory_resource_id,
  o.document #>> '{body,representation,value}' AS observed_representation,
  ledger_number(o.document #> '{body,bytes,value}') AS observed_bytes,
  ledger_number(o.document #> '{body,tensors,value}') AS observed_tensors,
  ledger_number(o.document #> '{body,storages,value}') AS observed_storages,
  o.document #>> '{body,bytes,source}' AS observed_by,
  ledger_number(l.document #> '{body,live,value}') AS live,
  ledger_number(r.document #> '{body,streamed_bytes,value}') AS streamed_bytes,
  ledger_number(r.document #> '{body,unplanned_bytes,value}') AS unplanned_bytes,
  o.document #>> '{body,source_digest,value}' AS source_digest,
  o.document #>> '{body,resident_digest,value}' AS resident_digest,
  o.tensors_blob AS tensors_blob,
  s.sequence AS started_sequence,
  r.sequence AS realized_sequence,
  o.sequence AS observed_sequence,
  x.sequence AS released_sequence,
  ledger_number(s.document -> 'elapsed_ns') AS started_ns,
  ledger_number(o.document -> 'elapsed_ns') AS observed_ns,
  ledger_number(x.document -> 'elapsed_ns') AS released_ns,
  ledger_number(r.document -> 'elapsed_ns') - ledger_number(s.document -> 'elapsed_ns') AS duration_ns,
  f.document #>> '{body,message}' AS failure,
  k.document #>> '{body,reason}' AS skip_reason
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
  tensor.value ->> 'name' AS name,
  tensor.value ->> 'dtype' AS dtype,
  replace((tensor.value -> 'shape')::text, ' ', '') AS shape,
  ledger_number(tensor.value -> 'bytes') AS bytes,
  ledger_number(tensor.value -> 'offset') AS offset_bytes,
  tensor.value ->> 'device' AS device,
  tensor.value ->> 'source_digest' AS source_digest,
  tensor.value ->> 'resident_digest' AS resident_digest,
  tensor.value ->> 'why' AS why,
  o.sequence AS sequence,
  b.digest AS tensors_blob
FROM (
  WITH seen AS MATERIALIZED (
    SELECT e.run_id, e.materialization_id, e.sequence, e.tensors_blob FROM events AS e
    WHERE e.tensors_blob IS NOT NULL AND e.type || '' = 'materialization.observed'
  ) SELECT * FROM seen
) AS o
JOIN blobs AS b ON b.digest = o.tensors_blob
CROSS JOIN LATERAL jsonb_array_elements(ledger_array(b.data)) AS tensor
WHERE jsonb_typeof(tensor.value) = 'object';

CREATE VIEW releases AS
SELECT
  m.run_id AS run_id,
  m.materialization_id AS materialization_id,
  a.sequence AS authorized_sequence,
  (SELECT string_agg(item.value, ', ' ORDER BY item.ordinality) FROM jsonb_array_elements_text(CASE WHEN jsonb_typeof(a.document #> '{body,qualifying_ids}') = 'array' THEN a.document #> '{body,qualifying_ids}' ELSE '[]' END) WITH ORDINALITY AS item) AS qualifying_ids,
  n.document #>> '{body,reason}' AS refused_reason,
  x.sequence AS released_sequence,
  ledger_number(x.document -> 'elapsed_ns') AS released_ns,
  ledger_number(x.document #> '{body,bytes_before,value}') AS bytes_before,
  ledger_number(x.document #> '{body,bytes_after,value}') AS bytes_after,
  ledger_number(x.document #> '{body,released_bytes,value}') AS released_bytes,
  ledger_number(x.document #> '{body,owners_total,value}') AS owners_total,
  ledger_number(x.document #> '{body,owners_alive,value}') AS owners_alive,
  ledger_number(c.document #> '{body,region_mapped,value}') AS region_mapped,
  ledger_number(c.document #> '{body,tree_before,value}') AS tree_before,
  ledger_number(c.document #> '{body,tree_after,value}') AS tree_after,
  ledger_number(c.document #> '{body,ratio,value}') AS give_back_ratio,
  ledger_number(d.document #> '{body,ratio,value}') AS give_back_ratio_after_decode,
  ledger_number(d.document #> '{body,owners_alive,value}') AS owners_alive_after_decode
FROM (
  SELECT e.run_id AS run_id, e.materialization_id AS materialization_id,
    min(CASE WHEN e.type = 'release.authorized' THEN e.position END) AS authorized,
    max(CASE WHEN e.type = 'release.refused' THEN e.position END) AS refused,
    min(CASE WHEN e.type = 'materialization.released' THEN e.position END) AS released,
    min(CASE WHEN e.type = 'reclamation.observed' AND e.document #>> '{body,phase}' = 'after-release' THEN e.position END) AS reclaimed,
    max(CASE WHEN e.type = 'reclamation.observed' AND e.document #>> '{body,phase}' = 'after-decode' THEN e.position END) AS decoded
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
  ledger_number(e.document -> 'elapsed_ns') AS elapsed_ns,
  e.document #>> '{body,logical_state_id}' AS logical_state_id,
  e.materialization_id AS materialization_id,
  e.document #>> '{body,memory_resource_id,value}' AS memory_resource_id,
  e.document #>> '{body,lineage,value}' AS lineage,
  e.document #>> '{body,lineage,source}' AS lineage_by,
  e.document #>> '{body,owner_range,space}' AS range_space,
  ledger_number(e.document #> '{body,owner_range,start}') AS range_start,
  ledger_number(e.document #> '{body,owner_range,length}') AS range_bytes
FROM events AS e
WHERE e.type = 'authority.established';

CREATE VIEW executions AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.position AS position,
  e.recorded_at AS recorded_at,
  ledger_number(e.document -> 'elapsed_ns') AS elapsed_ns,
  e.document #>> '{body,execution_id}' AS execution_id,
  e.document #>> '{body,compute_unit_id,value}' AS compute_unit_id,
  e.document #>> '{body,strategy_unit}' AS strategy_unit,
  (SELECT string_agg((item.value ->> 'materialization_id') || '@' || (item.value ->> 'memory_resource_id'), ', ' ORDER BY item.ordinality) FROM jsonb_array_elements(CASE WHEN jsonb_typeof(e.document #> '{body,state}') = 'array' THEN e.document #> '{body,state}' ELSE '[]' END) WITH ORDINALITY AS item) AS bound_state
FROM events AS e
WHERE e.type = 'execution.activated';

CREATE VIEW decode_runs AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.position AS position,
  e.recorded_at AS recorded_at,
  ledger_number(e.document -> 'elapsed_ns') AS elapsed_ns,
  e.document #>> '{body,execution_id}' AS execution_id,
  e.document #>> '{body,phase}' AS phase,
  ledger_number(e.document #> '{body,repetition}') AS repetition,
  e.document #>> '{body,mode}' AS mode,
  ledger_number(e.document #> '{body,input,exact,value}') AS input_exact,
  ledger_number(e.document #> '{body,output,exact,value}') AS output_exact,
  ledger_number(e.document #> '{body,output,max_absolute,value}') AS max_absolute,
  ledger_number(e.document #> '{body,output,max_relative,value}') AS max_relative,
  ledger_number(e.document #> '{body,output,nan_count,value}') AS nan_count,
  ledger_number(e.document #> '{body,output,inf_count,value}') AS inf_count,
  ledger_number(e.document #> '{body,output,within_tolerance,value}') AS within_tolerance,
  e.document #>> '{body,tokens,value}' AS tokens,
  e.document #>> '{body,tokens_digest,value}' AS tokens_digest,
  e.document #>> '{body,output_digest,value}' AS output_digest,
  ledger_number(e.document #> '{body,elapsed_ns,value}') AS duration_ns,
  ledger_number(e.document #> '{body,plan_lookups,value}') AS plan_lookups
FROM events AS e
WHERE e.type = 'decode.ran';

CREATE VIEW memory_samples AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.position AS position,
  e.recorded_at AS recorded_at,
  ledger_number(e.document -> 'elapsed_ns') AS elapsed_ns,
  e.document #>> '{body,label}' AS label,
  ledger_number(e_process.unpacked #> '{vm_rss,value}') AS vm_rss,
  ledger_number(e_process.unpacked #> '{vm_hwm,value}') AS vm_hwm,
  ledger_number(e_process.unpacked #> '{rss_anon,value}') AS rss_anon,
  ledger_number(e_process.unpacked #> '{rss_file,value}') AS rss_file,
  ledger_number(e_process.unpacked #> '{rss_shmem,value}') AS rss_shmem,
  ledger_number(e_process.unpacked #> '{vm_swap,value}') AS vm_swap,
  ledger_number(e_process.unpacked #> '{hugetlb,value}') AS hugetlb,
  ledger_number(e_process.unpacked #> '{vm_pin,value}') AS vm_pin,
  ledger_number(e_process.unpacked #> '{minor_faults,value}') AS minor_faults,
  ledger_number(e_process.unpacked #> '{major_faults,value}') AS major_faults,
  ledger_number(e_process.unpacked #> '{swap_in,value}') AS swap_in,
  ledger_number(e_process.unpacked #> '{swap_out,value}') AS swap_out,
  ledger_number(e_process.unpacked #> '{new_file_mappings,value}') AS new_file_mappings,
  ledger_number(e_process.unpacked #> '{checkpoint_mappings,value}') AS checkpoint_mappings,
  ledger_number(e_process.unpacked #> '{new_tmpfs_files,value}') AS new_tmpfs_files,
  ledger_number(e_process.unpacked #> '{tree_sum,value}') AS tree_sum,
  ledger_number(e.document #> '{body,census,unowned_host_bytes,value}') AS unowned_host_bytes,
  ledger_number(e.document #> '{body,census,unowned_device_bytes,value}') AS unowned_device_bytes,
  (SELECT CASE WHEN count(*) = count(ledger_number(item.value -> 'value')) THEN sum(ledger_number(item.value -> 'value')) END FROM jsonb_each(CASE WHEN jsonb_typeof(e.document #> '{body,cuda}') = 'object' THEN e.document #> '{body,cuda}' ELSE '{}' END) AS item WHERE item.key LIKE '%.allocated') AS cuda_allocated,
  (SELECT CASE WHEN count(*) = count(ledger_number(item.value -> 'value')) THEN sum(ledger_number(item.value -> 'value')) END FROM jsonb_each(CASE WHEN jsonb_typeof(e.document #> '{body,cuda}') = 'object' THEN e.document #> '{body,cuda}' ELSE '{}' END) AS item WHERE item.key LIKE '%.reserved') AS cuda_reserved,
  (SELECT CASE WHEN count(*) = count(ledger_number(item.value -> 'value')) THEN sum(ledger_number(item.value -> 'value')) END FROM jsonb_each(CASE WHEN jsonb_typeof(e.document #> '{body,cuda}') = 'object' THEN e.document #> '{body,cuda}' ELSE '{}' END) AS item WHERE item.key LIKE '%.peak') AS cuda_peak,
  (SELECT CASE WHEN count(*) = count(ledger_number(item.value -> 'value')) THEN sum(ledger_number(item.value -> 'value')) END FROM jsonb_each(CASE WHEN jsonb_typeof(e.document #> '{body,cuda}') = 'object' THEN e.document #> '{body,cuda}' ELSE '{}' END) AS item WHERE item.key LIKE '%.process') AS cuda_process,
  ledger_number(e.document #> '{body,cuda,host_pool,value}') AS host_pool
FROM events AS e
CROSS JOIN LATERAL (SELECT e.document #> '{body,process}' AS unpacked OFFSET 0) AS e_process
WHERE e.type = 'memory.sampled';

CREATE VIEW verdicts AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.position AS position,
  e.recorded_at AS recorded_at,
  ledger_number(e.document -> 'elapsed_ns') AS elapsed_ns,
  e.document #>> '{body,verdict}' AS verdict,
  e.document #>> '{body,assurance}' AS assurance,
  e.document #>> '{body,judge_version}' AS judge_version,
  (SELECT string_agg(item.value, ', ' ORDER BY item.ordinality) FROM jsonb_array_elements_text(CASE WHEN jsonb_typeof(e.document #> '{body,codes}') = 'array' THEN e.document #> '{body,codes}' ELSE '[]' END) WITH ORDINALITY AS item) AS codes
FROM events AS e
WHERE e.type = 'verdict.recorded';

CREATE VIEW verdict_codes AS
SELECT
  e.run_id AS run_id,
  e.sequence AS sequence,
  e.document #>> '{body,verdict}' AS verdict,
  item.value AS code
FROM events AS e
CROSS JOIN LATERAL jsonb_array_elements_text(CASE WHEN jsonb_typeof(e.document #> '{body,codes}') = 'array' THEN e.document #> '{body,codes}' ELSE '[]' END) AS item
WHERE e.type = 'verdict.recorded';
