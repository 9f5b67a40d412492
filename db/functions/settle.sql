-- Ending runs. id and lease_token are the whole fence: only running rows have a token, and each claim draws a fresh one.
-- (status = 'running' beside them would let the planner join a scan of the running index, dead entries included.)
--
-- The shape is deliberate. The row is locked per outcome by primary key, skipping what is locked; the new state is
-- computed there; the update is joined to it by id; the answer is read from it alone. Nothing waits, so a transaction
-- that dawdles after succeed() or cancel() stalls nobody, and no lock order is needed.
-- By id, never by ctid: a renewal that committed since this statement's snapshot gave the row a version that the lock
-- reaches and a scan by ctid does not see, so the job would be reported as settled and go on running.

create or replace function jobq.settle(outcomes jsonb)
returns table (job_id bigint, accepted boolean, status jobq.job_status)
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
  v_now timestamptz := clock_timestamp();
begin
  if settle.outcomes is null or jsonb_typeof(settle.outcomes) <> 'array' then
    perform jobq._raise('JQ006', 'outcomes must be a JSON array', 'Give one object a job: job_id, lease_token, outcome, …');
  end if;

  perform set_config('jobq.via', 'settle', true);
  return query
  with outcome as materialized (
    -- The same claim twice: the first counts.
    select distinct on (r.job_id, r.token) r.*
    from (
      select
        case
          when jsonb_typeof(e.o -> 'job_id') = 'number' and (e.o -> 'job_id')::numeric % 1 = 0
            and abs((e.o -> 'job_id')::numeric) < 9223372036854775808
          then (e.o -> 'job_id')::bigint
          else jobq._raise('JQ006', 'outcome ' || e.ordinal || ': job_id must be an integer, not '
            || coalesce(left((e.o -> 'job_id')::text, 100), 'missing'))::bigint
        end as job_id,
        -- Compared as text: a malformed token is a stale one, and never stops the rest.
        lower(e.o ->> 'lease_token') as token,
        case
          when e.o ->> 'outcome' = 'succeeded' and pg_column_size(e.o -> 'result') > 16777216 then 'oversized'
          when e.o ->> 'outcome' in ('succeeded', 'failed', 'released', 'snoozed', 'cancelled') then e.o ->> 'outcome'
          else jobq._raise('JQ006', 'outcome ' || e.ordinal || ': unknown outcome ' || coalesce(e.o ->> 'outcome', 'null'),
            'Known: succeeded, failed, released, snoozed, cancelled.')
        end as verdict,
        e.ordinal, e.o
      from jsonb_array_elements(settle.outcomes) with ordinality e(o, ordinal)
    ) r
    order by r.job_id, r.token, r.ordinal
  ),
  ended as materialized (
    select
      o.job_id, o.token, o.ordinal, j.ctid as row_at, j.attempt - v.gives_back::int as attempt,
      case
        when o.verdict in ('succeeded', 'cancelled') then o.verdict::jobq.job_status
        when not (v.gives_back or v.retries) then 'failed'
        -- What would queue the job again cancels it when that was asked for.
        when j.cancel_requested_at is not null then 'cancelled'
        else 'queued'
      end as new_status,
      case
        when j.cancel_requested_at is not null then j.available_at
        when o.verdict = 'snoozed' then jobq._after(v_now, coalesce(jobq._bounded_seconds(o.o -> 'delay_seconds'), 0))
        when v.retries then coalesce(jobq._after(v_now, jobq._bounded_seconds(o.o -> 'retry_in_seconds')),
          v_now + jobq._jittered_delay(j.attempt, j.retry_base_seconds, j.retry_cap_seconds))
        else j.available_at
      end as available_at,
      case o.verdict
        when 'succeeded' then null
        when 'failed' then jobq._clean_error(coalesce(nullif(o.o ->> 'error', ''), 'failed without an error message'))
        when 'oversized' then 'the result is larger than the 16 MiB that can be stored; store it elsewhere and return where'
        else coalesce(jobq._clean_error(o.o ->> 'error'), j.last_error)
      end as error,
      case when o.verdict = 'succeeded' then nullif(o.o -> 'result', 'null') end as result
    from outcome o
    left join lateral (
      select s.ctid, s.attempt, s.max_attempts, s.available_at, s.retry_base_seconds, s.retry_cap_seconds,
        s.cancel_requested_at, s.last_error
      from jobq.jobs s
      where s.id = o.job_id and s.lease_token::text = o.token
      for no key update skip locked
    ) j on true
    cross join lateral (
      select o.verdict in ('released', 'snoozed') as gives_back,
        o.verdict = 'failed' and o.o -> 'retryable' is distinct from 'false' and j.attempt < j.max_attempts as retries
    ) v
  ),
  updated as (
    update jobq.jobs j
    set status = e.new_status, attempt = e.attempt, available_at = e.available_at, last_error = e.error,
      result = e.result, locked_by = null, lease_token = null, lease_expires_at = null,
      finished_at = case when e.new_status <> 'queued' then v_now end
    from ended e
    where j.id = e.job_id and e.row_at is not null
  )
  select
    e.job_id,
    case
      when e.row_at is not null then true
      -- Still the current claim, but another transaction holds its row. (As exists() it could be planned as a hash of
      -- the whole table.)
      when (select true from jobq.jobs j where j.id = e.job_id and j.lease_token::text = e.token) then null
      else false
    end,
    case when e.row_at is not null then e.new_status else (select j.status from jobq.jobs j where j.id = e.job_id) end
  from ended e
  order by e.ordinal;
end
$$;

comment on function jobq.settle(jsonb) is
'Ends many runs at once. outcomes: array of {job_id, lease_token, outcome: succeeded | failed | released | snoozed | cancelled, result, '
'error, retryable (true), retry_in_seconds, delay_seconds}. Returns (job_id, accepted, status) per claim, in their order: accepted true, the job''s '
'new status; false, the claim is no longer current (status: where the job is now, null if it is gone); null, its row is locked, '
'send it again. Never waits for a row lock and never fails on data: errors are cut to 32 KiB, a result over 16 MiB fails the job. '
'Errors: JQ006 for an element without an integer job_id or with an unknown outcome.';

create or replace function jobq._bounded_seconds(value jsonb) returns numeric
language sql immutable
as $$
-- Rounded: a number too small for a float8 is an error, not zero.
select case when jsonb_typeof(value) = 'number' then least(greatest(round(value::numeric, 6), 0), 315360000) end
$$;

comment on function jobq._bounded_seconds(jsonb) is 'A JSON number as seconds, 0 to 10 years; null for anything else.';

create or replace function jobq._jittered_delay(attempt int, base int, cap int) returns interval
language sql volatile
as $$
select least(jobq.retry_delay(attempt, base, cap) * (1 + random() * 0.25), make_interval(secs => cap))
$$;

comment on function jobq._jittered_delay(int, int, int) is 'retry_delay plus up to 25 %, still at most cap.';

create or replace function jobq._settle_one(job_id bigint, lease_token uuid, outcome jsonb) returns jobq.job_status
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  v_status jobq.job_status;
begin
  -- Waits for its one row, so that settle() cannot find it locked.
  perform from jobq.jobs j
  where j.id = _settle_one.job_id and j.lease_token = _settle_one.lease_token
  for no key update;
  if found then
    select s.status into v_status
    from jobq.settle(jsonb_build_array(_settle_one.outcome
      || jsonb_build_object('job_id', _settle_one.job_id, 'lease_token', _settle_one.lease_token))) s;
    return v_status;
  end if;
  perform jobq._raise_lease_lost(_settle_one.job_id);
end
$$;

comment on function jobq._settle_one(bigint, uuid, jsonb) is
'Settles one job, waiting for its row; JQ003 for a claim that is not current, JQ004 for no such job.';

create or replace function jobq._raise_lease_lost(job_id bigint) returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  v_status jobq.job_status;
begin
  select j.status into v_status from jobq.jobs j where j.id = _raise_lease_lost.job_id;
  if not found then
    raise exception using errcode = 'JQ004', message = format('no job %s', coalesce(_raise_lease_lost.job_id::text, 'null')),
      hint = 'It was purged, or never existed.';
  end if;
  raise exception using
    errcode = 'JQ003',
    message = format('the claim on job %s is no longer current; the job is %s', _raise_lease_lost.job_id, v_status),
    hint = 'Its lease ran out, or another call ended the run. Stop working on it.';
end
$$;

comment on function jobq._raise_lease_lost(bigint) is 'Raises JQ003, or JQ004 if there is no such job. Never returns.';

create or replace function jobq.succeed(job_id bigint, lease_token uuid, result jsonb default null) returns jobq.job_status
language sql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
select jobq._settle_one(succeed.job_id, succeed.lease_token,
  jsonb_build_object('outcome', 'succeeded', 'result', succeed.result))
$$;

comment on function jobq.succeed(bigint, uuid, jsonb) is
'Ends a run well: running -> succeeded, with an optional result (JSON, at most 16 MiB). In the transaction of the job''s own effects it '
'makes them exactly once. Returns the new status. Errors: JQ003 lease lost, JQ004 no such job.';

create or replace function jobq.fail(
  job_id bigint, lease_token uuid, error text, retryable boolean default true, retry_in interval default null
) returns jobq.job_status
language sql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
select jobq._settle_one(fail.job_id, fail.lease_token, jsonb_build_object(
  'outcome', 'failed', 'error', fail.error, 'retryable', coalesce(fail.retryable, true),
  'retry_in_seconds', extract(epoch from fail.retry_in)
))
$$;

comment on function jobq.fail(bigint, uuid, text, boolean, interval) is
'Ends a run badly: queued again after retry_in or the backoff while attempts are left, else failed; cancelled if that was asked for. '
'Returns the new status. Errors: JQ003 lease lost, JQ004 no such job.';

create or replace function jobq.release(job_id bigint, lease_token uuid) returns jobq.job_status
language sql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$ select jobq._settle_one(release.job_id, release.lease_token, '{"outcome": "released"}') $$;

comment on function jobq.release(bigint, uuid) is
'Gives a job back unstarted: queued at its old place, the attempt not counted. Returns the new status. Errors: JQ003 lease lost, JQ004 no such job.';

create or replace function jobq.snooze(job_id bigint, lease_token uuid, delay interval) returns jobq.job_status
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
begin
  if snooze.delay is null or extract(epoch from snooze.delay) not between 0 and 315360000 then
    perform jobq._raise('JQ006', 'delay must be between 0 and 10 years, not ' || coalesce(snooze.delay::text, 'null'));
  end if;
  return jobq._settle_one(snooze.job_id, snooze.lease_token,
    jsonb_build_object('outcome', 'snoozed', 'delay_seconds', extract(epoch from snooze.delay)));
end
$$;

comment on function jobq.snooze(bigint, uuid, interval) is
'Puts a running job off: queued again, due after delay, the attempt not counted. Returns the new status. '
'Errors: JQ003 lease lost, JQ004 no such job, JQ006 delay out of range.';

create or replace function jobq.stop(job_id bigint, lease_token uuid, reason text default null) returns jobq.job_status
language sql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
select jobq._settle_one(stop.job_id, stop.lease_token, jsonb_build_object('outcome', 'cancelled', 'error', stop.reason))
$$;

comment on function jobq.stop(bigint, uuid, text) is
'Ends a run as cancelled, by its worker; the reason becomes last_error. Returns the new status. Errors: JQ003 lease lost, JQ004 no such job.';
