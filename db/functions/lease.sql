-- Leases: renewing them, reporting under them, and taking jobs from workers that let them run out.

create or replace function jobq.renew(job_ids bigint[], lease_tokens uuid[], lease interval default '60 seconds')
returns table (job_id bigint, held boolean, renewed boolean, cancel_requested boolean)
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_lease_seconds numeric := jobq._lease_seconds(renew.lease);
  v_until timestamptz := jobq._after(clock_timestamp(), v_lease_seconds);
begin
  if renew.job_ids is null or renew.lease_tokens is null or cardinality(renew.job_ids) <> cardinality(renew.lease_tokens)
    or array_position(renew.job_ids, null) is not null or array_position(renew.lease_tokens, null) is not null then
    perform jobq._raise('JQ006', 'job_ids and lease_tokens must be arrays of one length, without nulls');
  end if;

  perform set_config('jobq.via', 'renew', true);
  return query
  with claim as materialized (
    -- Joined by id, not by ctid: see settle().
    select distinct on (u.id, u.token) u.id, u.token, u.ordinal
    from unnest(renew.job_ids, renew.lease_tokens) with ordinality u(id, token, ordinal)
    order by u.id, u.token, u.ordinal
  ),
  reached as materialized (
    select c.id, c.token, c.ordinal, j.ctid as row_at, j.cancel_requested_at
    from claim c
    left join lateral (
      select s.ctid, s.cancel_requested_at
      from jobq.jobs s
      where s.id = c.id and s.lease_token = c.token
      for no key update skip locked
    ) j on true
  ),
  updated as (
    update jobq.jobs j
    set lease_expires_at = greatest(j.lease_expires_at, v_until)
    from reached r
    where j.id = r.id and r.row_at is not null
  )
  select
    r.id,
    r.row_at is not null or s.id is not null,
    r.row_at is not null,
    coalesce(r.cancel_requested_at, s.cancel_requested_at) is not null
  from reached r
  left join lateral (
    -- A locked row is reported by what it was.
    select j.id, j.cancel_requested_at from jobq.jobs j where r.row_at is null and j.id = r.id and j.lease_token = r.token
  ) s on true
  order by r.ordinal;
end
$$;

comment on function jobq.renew(bigint[], uuid[], interval) is
'Extends leases. Returns (job_id, held, renewed, cancel_requested) per claim, in their order: held false, the claim is lost; '
'held true, renewed false, its row is locked by another transaction, try again before the lease ends. '
'Never waits for a row lock. Errors: JQ006 for arrays of different lengths, nulls, or a lease not positive.';

create or replace function jobq.reap(max_jobs int default 1000)
returns table (job_id bigint, status jobq.job_status)
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
begin
  if reap.max_jobs is null or reap.max_jobs < 1 then
    perform jobq._raise('JQ006', 'max_jobs must be positive, not ' || coalesce(reap.max_jobs::text, 'null'));
  end if;

  -- Reads the whole index of running rows, 75 ns for each dead entry that an open snapshot keeps there.
  perform set_config('jobq.via', 'reap', true);
  return query
  with expired as materialized (
    select
      s.id,
      case
        when s.attempt >= s.max_attempts then 'failed'::jobq.job_status
        when s.cancel_requested_at is not null then 'cancelled'
        else 'queued'
      end as new_status,
      case when s.attempt < s.max_attempts and s.cancel_requested_at is null
        then v_now + jobq._jittered_delay(s.attempt, s.retry_base_seconds, s.retry_cap_seconds)
        else s.available_at
      end as available_at,
      format('lease lost: worker %s did not renew it by %s (attempt %s of %s); the worker died, hung, or lost its connection',
        s.locked_by, to_char(s.lease_expires_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS "UTC"'), s.attempt, s.max_attempts) as error
    from jobq.jobs s
    where s.status = 'running' and s.lease_expires_at < v_now
    order by s.id
    limit reap.max_jobs
    for no key update skip locked
  ),
  updated as (
    update jobq.jobs j
    set status = e.new_status, available_at = e.available_at, last_error = e.error, lost_leases = j.lost_leases + 1,
      locked_by = null, lease_token = null, lease_expires_at = null,
      finished_at = case when e.new_status <> 'queued' then v_now end
    from expired e
    where j.id = e.id
  )
  select e.id, e.new_status from expired e;
end
$$;

comment on function jobq.reap(int) is
'Takes jobs from workers whose lease ran out: queued again after the backoff (lost_leases + 1), failed when attempts are used up, '
'cancelled if that was asked for. Returns (job_id, status) of up to max_jobs. Anyone may run it, at the same time too. Errors: JQ006.';

create or replace function jobq._under_lease(
  job_id bigint, lease_token uuid, event jobq.job_event, progress real, detail jsonb
) returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  perform set_config('jobq.via', 'report_progress', true);
  -- Locks the row first: the event's id must be drawn under the lock.
  update jobq.jobs j
  set progress = coalesce(_under_lease.progress, j.progress)
  where j.id = _under_lease.job_id and j.lease_token = _under_lease.lease_token;
  if not found then
    perform jobq._raise_lease_lost(_under_lease.job_id);
  end if;
  insert into jobq.job_events (job_id, event, attempt, worker, actor, detail)
  select j.id, _under_lease.event, j.attempt, j.locked_by, jobq._actor(), _under_lease.detail
  from jobq.jobs j
  where j.id = _under_lease.job_id;
end
$$;

comment on function jobq._under_lease(bigint, uuid, jobq.job_event, real, jsonb) is
'Writes a progress or log event of a running job for the holder of its lease; JQ003, JQ004 otherwise.';

create or replace function jobq.report_progress(job_id bigint, lease_token uuid, progress real, message text default null)
returns void
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
begin
  if report_progress.progress is null or not report_progress.progress between 0 and 1 then
    perform jobq._raise('JQ006', 'progress must be between 0 and 1, not ' || coalesce(report_progress.progress::text, 'null'));
  end if;
  perform jobq._under_lease(report_progress.job_id, report_progress.lease_token, 'progress', report_progress.progress,
    jsonb_strip_nulls(jsonb_build_object('progress', report_progress.progress,
      'message', jobq._clean_error(report_progress.message))));
end
$$;

comment on function jobq.report_progress(bigint, uuid, real, text) is
'Stores how far the running job is, 0 to 1, with an optional message, and writes an event. At most about one a second and job, please. '
'Errors: JQ003 lease lost, JQ004 no such job, JQ006 progress out of range.';

create or replace function jobq.log(job_id bigint, lease_token uuid, level text, message text) returns void
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
begin
  if lower(log.level) is null or lower(log.level) not in ('debug', 'info', 'warning', 'error') then
    perform jobq._raise('JQ006', 'level must be debug, info, warning or error, not ' || coalesce(quote_literal(left(log.level, 100)), 'null'));
  elsif log.message is null then
    perform jobq._raise('JQ006', 'message must not be null');
  end if;
  perform jobq._under_lease(log.job_id, log.lease_token, 'log', null,
    jsonb_build_object('level', lower(log.level), 'message', jobq._clean_error(log.message)));
end
$$;

comment on function jobq.log(bigint, uuid, text, text) is
'Adds a message (level debug, info, warning or error; cut to 32 KiB) to the timeline of a running job. '
'Errors: JQ003 lease lost, JQ004 no such job, JQ006 unknown level or null message.';
