-- Steering by hand. The verbs for one job wait for its row; those for many skip what is locked and say so.
-- What is queued anew or reordered is stamped due now at the earliest, so that it lies above every claimer's floor.

create or replace function jobq._lock_job(job_id bigint, out row_at tid, out status jobq.job_status)
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  select j.ctid, j.status into _lock_job.row_at, _lock_job.status
  from jobq.jobs j
  where j.id = _lock_job.job_id
  for no key update;
  if not found then
    perform jobq._raise('JQ004', format('no job %s', coalesce(_lock_job.job_id::text, 'null')), 'It was purged, or never existed.');
  end if;
end
$$;

comment on function jobq._lock_job(bigint) is 'Locks one job, waiting for it; JQ004 if there is none.';

create or replace function jobq._cancel(row_at tid[]) returns setof jobq.job_status
language sql
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_tidscan = on
set enable_bitmapscan = off
as $$
select set_config('jobq.via', 'cancel', true);

update jobq.jobs j
set status = case when j.status = 'queued' then 'cancelled' else j.status end,
  finished_at = case when j.status = 'queued' then clock_timestamp() end,
  cancel_requested_at = case when j.status = 'running' then clock_timestamp() end
where j.ctid = any(_cancel.row_at)
  and (j.status = 'queued' or j.status = 'running' and j.cancel_requested_at is null)
returning j.status
$$;

comment on function jobq._cancel(tid[]) is 'Cancels locked rows that are queued, asks for it where they run.';

create or replace function jobq._retry(row_at tid[], extra_attempts int) returns setof jobq.job_status
language sql
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_tidscan = on
set enable_bitmapscan = off
as $$
select set_config('jobq.via', 'retry', true);

update jobq.jobs j
set status = 'queued', available_at = clock_timestamp(), finished_at = null, cancel_requested_at = null,
  max_attempts = greatest(j.max_attempts, least(j.attempt::bigint + _retry.extra_attempts, 2147483647)::int)
where j.ctid = any(_retry.row_at)
returning j.status
$$;

comment on function jobq._retry(tid[], int) is 'Queues locked rows again, due now, with at least so many attempts left.';

create or replace function jobq.cancel(job_id bigint) returns jobq.job_status
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_job record;
begin
  v_job := jobq._lock_job(cancel.job_id);
  return coalesce((select c from jobq._cancel(array[v_job.row_at]) c), v_job.status);
end
$$;

comment on function jobq.cancel(bigint) is
'Cancels a job. Queued: cancelled now. Running: its worker is asked to stop (renew tells it); whatever would queue it again cancels it. '
'Finished: nothing. Returns the status. Errors: JQ004 no such job.';

create or replace function jobq.retry(job_id bigint, extra_attempts int default 1) returns jobq.job_status
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_job record;
begin
  perform jobq._check_extra_attempts(retry.extra_attempts);
  v_job := jobq._lock_job(retry.job_id);
  if v_job.status not in ('failed', 'cancelled') then
    perform jobq._raise('JQ005', format('job %s is %s; only a failed or cancelled job can be retried', retry.job_id, v_job.status),
      case when v_job.status = 'succeeded' then 'To run it once more, clone it.' else 'It will run, or is running, by itself.' end);
  end if;
  return (select r from jobq._retry(array[v_job.row_at], retry.extra_attempts) r);
end
$$;

comment on function jobq.retry(bigint, int) is
'Queues a failed or cancelled job again, due now, its history kept: max_attempts becomes greatest(max_attempts, attempt + extra_attempts). '
'Returns the status. Errors: JQ004 no such job, JQ005 any other status, JQ006 extra_attempts not positive.';

create or replace function jobq._check_extra_attempts(extra_attempts int) returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
as $$
begin
  if extra_attempts is null or extra_attempts < 1 then
    perform jobq._raise('JQ006', 'extra_attempts must be positive, not ' || coalesce(extra_attempts::text, 'null'));
  end if;
end
$$;

comment on function jobq._check_extra_attempts(int) is 'JQ006 unless positive.';

create or replace function jobq.clone(job_id bigint, payload jsonb default null) returns bigint
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_job jobq.jobs;
  v_refusal text;
begin
  select j.* into v_job from jobq.jobs j where j.id = clone.job_id;
  if not found then
    perform jobq._raise('JQ004', format('no job %s', coalesce(clone.job_id::text, 'null')), 'It was purged, or never existed.');
  end if;
  v_job.payload := coalesce(clone.payload, v_job.payload);
  v_refusal := jobq._refusal(v_job.kind, v_job.payload, v_job.priority, v_now, v_job.max_attempts, null,
    v_job.retry_base_seconds, v_job.retry_cap_seconds);
  if v_refusal is not null then
    perform jobq._raise('JQ001', 'invalid job: ' || v_refusal);
  end if;

  perform set_config('jobq.via', 'clone ' || clone.job_id, true);
  insert into jobq.jobs (kind, payload, priority, created_at, available_at, max_attempts,
    retry_base_seconds, retry_cap_seconds)
  values (v_job.kind, v_job.payload, v_job.priority, v_now, v_now, v_job.max_attempts,
    v_job.retry_base_seconds, v_job.retry_cap_seconds)
  returning id into v_job.id;
  return v_job.id;
end
$$;

comment on function jobq.clone(bigint, jsonb) is
'Enqueues a new job like a stored one, whatever its status, due now, without its key, with another payload if one is given. '
'Returns the new job''s id. Errors: JQ001 invalid payload, JQ004 no such job.';
