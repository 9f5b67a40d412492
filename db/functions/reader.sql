-- Reading: counts, and why a job is where it is. Stable functions: one snapshot each.

create or replace function jobq._estimated_rows(relation regclass) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
select case when c.reltuples < 0 then null
    else (c.reltuples * greatest(1, pg_relation_size(c.oid) / current_setting('block_size')::float8 / greatest(c.relpages, 1)))::bigint end
from pg_class c
where c.oid = relation
$$;

comment on function jobq._estimated_rows(regclass) is
'Rows of a table or index by its last statistics, scaled to its present size; null if it was never analyzed.';

create or replace function jobq.stats()
returns table (status jobq.job_status, jobs bigint, estimated boolean, oldest timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, jobq, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_limit constant int := 100000;
  v_queued bigint;
  v_running bigint;
  v_failed bigint;
  v_cancelled bigint;
  v_rows bigint := jobq._estimated_rows('jobq.jobs');
begin
  select count(*), min(j.available_at) into v_queued, oldest from jobq.jobs j where j.status = 'queued';
  return query select 'queued'::jobq.job_status, v_queued, false, oldest;

  select count(*), min(j.started_at) into v_running, oldest from jobq.jobs j where j.status = 'running';
  return query select 'running'::jobq.job_status, v_running, false, oldest;

  select count(*) into v_failed
  from (select from jobq.jobs j where j.status = 'failed' limit v_limit + 1) f;
  select count(*) into v_cancelled
  from (select from jobq.jobs j where j.status = 'cancelled' limit v_limit + 1) c;

  if coalesce(v_rows, 0) <= v_limit + v_queued + v_running + v_failed + v_cancelled then
    return query
    select 'succeeded'::jobq.job_status, count(*), false, null::timestamptz
    from jobq.jobs j
    where j.status = 'succeeded';
  else
    return query
    select 'succeeded'::jobq.job_status, greatest(v_rows - v_queued - v_running
      - greatest(v_failed, jobq._estimated_rows('jobq.jobs_failed_idx'))
      - greatest(v_cancelled, jobq._estimated_rows('jobq.jobs_cancelled_idx')), 0), true, null::timestamptz;
  end if;
  return query
  select 'failed'::jobq.job_status, case when v_failed > v_limit
    then greatest(v_failed, jobq._estimated_rows('jobq.jobs_failed_idx')) else v_failed end, v_failed > v_limit, null::timestamptz;
  return query
  select 'cancelled'::jobq.job_status, case when v_cancelled > v_limit
    then greatest(v_cancelled, jobq._estimated_rows('jobq.jobs_cancelled_idx')) else v_cancelled end, v_cancelled > v_limit,
    null::timestamptz;
end
$$;

comment on function jobq.stats() is
'Jobs by status: (status, jobs, estimated, oldest). queued and running are exact; a final status above 100,000 jobs is estimated from '
'table statistics, and says so. oldest: the earliest due time of queued jobs, the earliest start of running ones.';

create or replace function jobq._live_workers(kind text) returns bigint
language sql stable
set search_path = pg_catalog, jobq, pg_temp
as $$
select count(distinct l.pid)
from pg_locks l
where l.locktype = 'advisory' and l.classid = jobq._presence_class()::oid and l.objid = hashtext(kind)::oid
  and l.objsubid = 2 and l.granted
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
$$;

comment on function jobq._live_workers(text) is 'Sessions that hold the presence lock of a kind.';

create or replace function jobq._explain_queued(job jobq.jobs) returns table (reason text, message text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, jobq, pg_temp
set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_workers bigint := jobq._live_workers(job.kind);
  v_ahead bigint;
  v_unseen boolean;
begin
  if job.available_at > v_now then
    return query select 'not_due', format('not due until %s (in %s)', job.available_at,
      justify_interval(date_trunc('second', job.available_at - v_now) + interval '1 second')),
      jsonb_build_object('available_at', job.available_at);
  else
    select count(*) into v_ahead
    from (
      select from jobq.jobs j
      where j.status = 'queued' and j.available_at <= v_now
        and (j.priority > job.priority or j.priority = job.priority
          and (j.available_at, j.created_at, j.id) < (job.available_at, job.created_at, job.id))
      limit 10001
    ) a;
    if v_ahead = 0 then
      return query select 'next', 'due, and first in the queue', '{}'::jsonb;
    else
      return query select 'behind', format('due, behind %s due and coming first',
        case when v_ahead > 10000 then 'more than 10000 others' when v_ahead = 1 then '1 other' else v_ahead || ' others' end),
        jsonb_build_object('ahead', least(v_ahead, 10000), 'more', v_ahead > 10000);
    end if;
  end if;

  if v_workers > 0 then
    return query select 'worker_seen', format('%s live worker%s with a handler for %s', v_workers,
      case when v_workers = 1 then '' else 's' end, quote_literal(job.kind)), jsonb_build_object('workers', v_workers);
  else
    -- A worker behind a transaction pooler has no LISTEN connection, hence no presence lock; a standby sees no locks.
    v_unseen := pg_is_in_recovery() or exists (
      select from (select distinct j.kind from jobq.jobs j where j.status = 'running' and j.lease_expires_at > v_now) r
      where jobq._live_workers(r.kind) = 0
    );
    return query select case when v_unseen then 'worker_unknown' else 'no_worker_seen' end,
      case when v_unseen
        then format('no live worker with a handler for %s is seen, but some workers here cannot be seen (no LISTEN connection)', quote_literal(job.kind))
        else format('no live worker with a handler for %s is seen', quote_literal(job.kind)) end,
      jsonb_build_object('workers', null);
  end if;

  if job.attempt > 0 then
    return query select 'attempts', format('%s of %s attempts used; last error: %s', job.attempt, job.max_attempts,
      coalesce(left(regexp_replace(job.last_error, '^.*\n(?=.)', ''), 200), 'none')), jsonb_build_object('attempt', job.attempt);
  end if;
end
$$;

comment on function jobq._explain_queued(jobq.jobs) is 'Why a queued job does not run yet.';

create or replace function jobq.explain(job_id bigint) returns table (reason text, message text, detail jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_job jobq.jobs;
  v_now timestamptz := clock_timestamp();
begin
  select j.* into v_job from jobq.jobs j where j.id = explain.job_id;
  if not found then
    perform jobq._raise('JQ004', format('no job %s', coalesce(explain.job_id::text, 'null')), 'It was purged, or never existed.');
  end if;

  if v_job.status = 'queued' then
    return query select * from jobq._explain_queued(v_job);
  elsif v_job.status = 'running' then
    return query select 'running', format('running on %s since %s (attempt %s of %s)', v_job.locked_by, v_job.started_at,
      v_job.attempt, v_job.max_attempts), jsonb_build_object('worker', v_job.locked_by, 'since', v_job.started_at);
    if v_job.lease_expires_at < v_now then
      return query select 'lease_expired', format('its lease ended at %s; the next reap takes it from that worker', v_job.lease_expires_at),
        jsonb_build_object('lease_expires_at', v_job.lease_expires_at);
    end if;
    if v_job.cancel_requested_at is not null then
      return query select 'cancel_requested', format('asked to stop at %s; its worker decides', v_job.cancel_requested_at),
        jsonb_build_object('cancel_requested_at', v_job.cancel_requested_at);
    end if;
  else
    return query select v_job.status::text, format('%s at %s after %s attempt%s%s', v_job.status, v_job.finished_at,
      v_job.attempt, case when v_job.attempt = 1 then '' else 's' end,
      case when v_job.status <> 'succeeded' and v_job.last_error is not null
        then '; last error: ' || left(regexp_replace(rtrim(v_job.last_error, E'\n'), '^.*\n', ''), 200) else '' end),
      jsonb_build_object('finished_at', v_job.finished_at);
  end if;
end
$$;

comment on function jobq.explain(bigint) is
'Why a job is where it is: rows (reason, message, detail). Reasons: not_due, next, behind, worker_seen, no_worker_seen, worker_unknown, attempts; running, '
'lease_expired, cancel_requested; succeeded, failed, cancelled. Errors: JQ004 no such job.';
