-- Forgetting finished jobs, with their events, a batch a call; the caller commits between batches.

create or replace function jobq.purge(
  older_than interval, max_jobs int default 1000,
  statuses jobq.job_status[] default '{succeeded,failed,cancelled}'
) returns int
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
declare
  v_cutoff timestamptz;
  v_job record;
  v_newer int := 0;
  v_ids bigint[] := '{}';
  v_deleted int;
  v_last text[] := regexp_split_to_array(current_setting('jobq.purged', true), ' ');
  v_from bigint := 0;
begin
  if purge.older_than is null or extract(epoch from purge.older_than) not between 0.001 and 1e10 then
    perform jobq._raise('JQ006', 'older_than must be longer than zero, not ' || coalesce(purge.older_than::text, 'null'),
      'Jobs that finished longer ago than this are deleted.');
  elsif purge.max_jobs is null or purge.max_jobs < 1 then
    perform jobq._raise('JQ006', 'max_jobs must be positive, not ' || coalesce(purge.max_jobs::text, 'null'));
  elsif purge.statuses is null or not purge.statuses <@ '{succeeded,failed,cancelled}' then
    perform jobq._raise('JQ006', 'statuses may be succeeded, failed and cancelled only', 'A job that has not finished is never purged.');
  end if;
  v_cutoff := jobq._after(clock_timestamp(), -extract(epoch from purge.older_than));

  -- Where this session's last batch ended, for the same statuses: a series of batches walks what it keeps but once.
  if v_last[1] = purge.statuses::text and v_last[2] ~ '^[0-9]{1,18}$' then
    v_from := v_last[2]::bigint;
  end if;
  -- Up the primary key, the oldest first, and no further than the cutoff: what is newer is not read. A hundred newer
  -- rows end the walk, not one, and none from the future (the clock was wrong, or created_at is forged).
  for v_job in select j.id, j.status, j.created_at, j.finished_at from jobq.jobs j where j.id > v_from order by j.id loop
    if v_job.created_at >= v_cutoff then
      v_newer := v_newer + (v_job.created_at <= clock_timestamp())::int;
      exit when v_newer = 100;
    elsif v_job.status = any(purge.statuses) and v_job.finished_at < v_cutoff then
      v_ids := v_ids || v_job.id;
      exit when cardinality(v_ids) = purge.max_jobs;
    end if;
  end loop;
  perform set_config('jobq.purged',
    case when cardinality(v_ids) = purge.max_jobs then format('%s %s', purge.statuses, v_job.id) else '' end, false);

  with doomed as materialized (
    select j.id
    from jobq.jobs j
    where j.id = any(v_ids) and j.status = any(purge.statuses)
    for update skip locked
  )
  delete from jobq.jobs j using doomed d where j.id = d.id;
  get diagnostics v_deleted = row_count;
  return v_deleted;
end
$$;

comment on function jobq.purge(interval, int, jobq.job_status[]) is
'Deletes up to max_jobs jobs of these final statuses that finished longer ago than older_than, with their events; frees their keys. '
'Returns how many; 0 means done. Commit between calls; a session goes on where its last batch ended, until one comes out short. Skips locked rows. Errors: JQ006 for a time or number not positive, or a status that is not final.';
