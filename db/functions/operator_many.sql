-- Steering all jobs that match a filter, by batches. A filter is a JSON object; all its fields must hold:
--   ids: array; key: the idempotency key; kind, status: one or an array; priority; worker; created_before, created_after: times with their UTC
--   offset; error: part of last_error, any case; payload: contained in the job's payload. {} matches every job.

create or replace function jobq._check_filter(filter jsonb) returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_field text;
  v_value jsonb;
  v_type text;
begin
  if _check_filter.filter is null or jsonb_typeof(_check_filter.filter) <> 'object' then
    perform jobq._raise('JQ006', 'filter must be a JSON object', 'To match every job give ''{}''.');
  end if;
  for v_field, v_value in select e.key, e.value from jsonb_each(_check_filter.filter) e loop
    v_type := jsonb_typeof(v_value);
    if not v_field = any('{ids,key,kind,status,priority,worker,created_before,created_after,error,payload}') then
      perform jobq._raise('JQ006', format('filter: unknown field "%s"', left(v_field, 100)),
        'Fields: ids, key, kind, status, priority, worker, created_before, created_after, error, payload.');
    end if;
    if not (case v_field
      when 'ids' then v_type = 'array' and not exists (
          select from jsonb_array_elements(case v_type when 'array' then v_value else '[]' end) i
          where case jsonb_typeof(i)
              when 'number' then i::numeric % 1 <> 0 or abs(i::numeric) >= 9223372036854775808
              else true
            end
        )
      when 'key' then v_type = 'string'
      when 'kind' then v_type = 'string' or v_type = 'array' and not jsonb_path_exists(v_value, '$[*] ? (@.type() != "string")')
      when 'status' then v_type in ('string', 'array')
        and jobq._texts(v_value) <@ '{queued,running,succeeded,failed,cancelled}'::text[]
      when 'priority' then v_type = 'number'
      when 'worker' then v_type = 'string'
      when 'created_before' then v_type = 'string' and v_value #>> '{}' ~* ':[0-9][0-9]([.][0-9]+)?[[:space:]]*(z|[+-][0-9][0-9](:?[0-9][0-9])?)$'
      when 'created_after' then v_type = 'string' and v_value #>> '{}' ~* ':[0-9][0-9]([.][0-9]+)?[[:space:]]*(z|[+-][0-9][0-9](:?[0-9][0-9])?)$'
      when 'error' then v_type = 'string'
      when 'payload' then v_type = 'object'
      else false
    end) then
      perform jobq._raise('JQ006', format('filter: %s cannot be %s', v_field, left(v_value::text, 100)),
        'Fields: ids (array), key, kind, status (one or an array), priority, worker, created_before, created_after (with UTC offset), error, payload (object).');
    end if;
  end loop;
  perform (_check_filter.filter ->> 'created_before')::timestamptz, (_check_filter.filter ->> 'created_after')::timestamptz;
exception
  when data_exception then
    perform jobq._raise('JQ006', 'filter: ' || sqlerrm);
end
$$;

comment on function jobq._check_filter(jsonb) is 'JQ006 for a filter with unknown fields or values of the wrong type.';

create or replace function jobq._texts(value jsonb) returns text[]
language sql immutable
as $$
select case jsonb_typeof(value)
    when 'array' then array(select t from jsonb_array_elements_text(value) t)
    when 'string' then array[value #>> '{}']
  end
$$;

comment on function jobq._texts(jsonb) is 'A JSON string, or an array of them, as text[]; null for null.';

create or replace function jobq._matching(filter jsonb, statuses jobq.job_status[], wanted jsonb) returns setof bigint
language plpgsql stable
set search_path = pg_catalog, jobq, pg_temp
set jit = off
as $$
declare
  v_ids bigint[] := case when _matching.filter ? 'ids'
    then array(select (i #>> '{}')::numeric::bigint from jsonb_array_elements(_matching.filter -> 'ids') i) end;
  v_key text := _matching.filter ->> 'key';
  v_kinds text[] := jobq._texts(_matching.filter -> 'kind');
  v_statuses text[] := jobq._texts(_matching.filter -> 'status');
  v_priority numeric := (_matching.filter ->> 'priority')::numeric;
  v_worker text := _matching.filter ->> 'worker';
  v_before timestamptz := (_matching.filter ->> 'created_before')::timestamptz;
  v_after timestamptz := (_matching.filter ->> 'created_after')::timestamptz;
  v_error text := lower(_matching.filter ->> 'error');
  v_payload jsonb := _matching.filter -> 'payload';
  v_new_priority int := (_matching.wanted ->> 'priority')::int;
  v_due timestamptz := (_matching.wanted ->> 'due')::timestamptz;
  v_walk boolean := v_ids is null and v_key is null;
  v_from jobq.job_status[] := array(
    select s from unnest(_matching.statuses) s
    where (v_statuses is null or s::text = any(v_statuses)) and (v_worker is null or s = 'running')
  );
  v_now timestamptz := clock_timestamp();
begin
  -- A branch per status, so that each has its partial index; ids and a key have theirs.
  return query
  select j.id
  from (
    select q.* from jobq.jobs q where v_walk and q.status = 'queued' and 'queued' = any(v_from)
    union all
    select r.* from jobq.jobs r where v_walk and r.status = 'running' and 'running' = any(v_from)
    union all
    select f.* from jobq.jobs f where v_walk and f.status = 'failed' and 'failed' = any(v_from)
    union all
    select c.* from jobq.jobs c where v_walk and c.status = 'cancelled' and 'cancelled' = any(v_from)
    union all
    select i.* from jobq.jobs i where i.id = any(v_ids) and (v_key is null or i.idempotency_key = v_key)
    union all
    select k.* from jobq.jobs k where v_ids is null and k.idempotency_key = v_key
  ) j
  where j.status = any(v_from)
    and (v_kinds is null or j.kind = any(v_kinds))
    and (v_priority is null or j.priority = v_priority)
    and (v_worker is null or j.locked_by = v_worker)
    and (v_before is null or j.created_at < v_before)
    and (v_after is null or j.created_at >= v_after)
    and (v_error is null or position(v_error in lower(j.last_error)) > 0)
    and (v_payload is null or j.payload @> v_payload)
    -- What is so already is left out, so that calling again gets on to the rest.
    and (v_new_priority is null or j.priority <> v_new_priority)
    and (v_due is null or j.available_at <> v_due and greatest(j.available_at, v_due) > v_now)
    and (j.status <> 'running' or j.cancel_requested_at is null)
  order by j.id;
end
$$;

comment on function jobq._matching(jsonb, jobq.job_status[], jsonb) is
'Ids of the jobs of these statuses that match a checked filter and have not yet what is wanted: {priority} or {due}; no running job asked to stop.';

-- The frame of every verb for many: check, count, sample; unless dry_run lock what is free and let the caller act.
create or replace function jobq._select_jobs(
  filter jsonb, statuses jobq.job_status[], dry_run boolean, max_jobs int, wanted jsonb default null,
  out matched bigint, out sample bigint[], out row_at tid[]
)
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  v_ids bigint[];
begin
  perform jobq._check_filter(_select_jobs.filter);
  if _select_jobs.max_jobs is null or _select_jobs.max_jobs < 1 then
    perform jobq._raise('JQ006', 'max_jobs must be positive, not ' || coalesce(_select_jobs.max_jobs::text, 'null'));
  end if;
  v_ids := array(select m from jobq._matching(_select_jobs.filter, _select_jobs.statuses, _select_jobs.wanted) m);
  matched := cardinality(v_ids);
  sample := v_ids[1:10];
  row_at := '{}';
  if not coalesce(_select_jobs.dry_run, false) then
    row_at := array(
      select j.row_at
      from unnest(v_ids) u(id)
      cross join lateral (
        select s.ctid as row_at
        from jobq.jobs s
        where s.id = u.id and s.status = any(_select_jobs.statuses)
        for no key update skip locked
      ) j
      limit _select_jobs.max_jobs
    );
  end if;
end
$$;

comment on function jobq._select_jobs(jsonb, jobq.job_status[], boolean, int, jsonb) is
'Counts and samples the jobs that match, and unless dry_run locks up to max_jobs of them that are free.';

create or replace function jobq.retry_jobs(
  filter jsonb, extra_attempts int default 1, dry_run boolean default false, max_jobs int default 10000
) returns table (matched bigint, changed bigint, sample bigint[])
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_jobs record;
begin
  perform jobq._check_extra_attempts(retry_jobs.extra_attempts);
  v_jobs := jobq._select_jobs(retry_jobs.filter, '{failed,cancelled}', retry_jobs.dry_run, retry_jobs.max_jobs);
  return query
  select v_jobs.matched, (select count(*) from jobq._retry(v_jobs.row_at, retry_jobs.extra_attempts)), v_jobs.sample;
end
$$;

comment on function jobq.retry_jobs(jsonb, int, boolean, int) is
'Retries failed and cancelled jobs that match filter, as retry() does. Returns (matched, changed, sample of ids); changed is lower '
'for dry_run (0), beyond max_jobs, and where rows were locked: call again. Filter: ids, key, kind, status, priority, worker, created_before, '
'created_after, error, payload; {} matches all. Errors: JQ006.';

create or replace function jobq.cancel_jobs(filter jsonb, dry_run boolean default false, max_jobs int default 10000)
returns table (matched bigint, changed bigint, sample bigint[])
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_jobs record;
begin
  v_jobs := jobq._select_jobs(cancel_jobs.filter, '{queued,running}', cancel_jobs.dry_run, cancel_jobs.max_jobs);
  return query
  select v_jobs.matched, (select count(*) from jobq._cancel(v_jobs.row_at)), v_jobs.sample;
end
$$;

comment on function jobq.cancel_jobs(jsonb, boolean, int) is
'Cancels queued jobs that match filter and asks the workers of running ones, as cancel() does. Returns (matched, changed, sample of ids), '
'as retry_jobs() does; running jobs that were asked already do not match. Filter as for retry_jobs(). Errors: JQ006.';

create or replace function jobq.set_priority(
  filter jsonb, priority int, dry_run boolean default false, max_jobs int default 10000
) returns table (matched bigint, changed bigint, sample bigint[])
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_tidscan = on
as $$
declare
  v_jobs record;
begin
  if set_priority.priority is null or set_priority.priority not between -100 and 100 then
    perform jobq._raise('JQ006', 'priority must be between -100 and 100, not ' || coalesce(set_priority.priority::text, 'null'));
  end if;
  v_jobs := jobq._select_jobs(set_priority.filter, '{queued}', set_priority.dry_run, set_priority.max_jobs,
    jsonb_build_object('priority', set_priority.priority));
  perform set_config('jobq.via', 'set_priority', true);
  return query
  with updated as (
    update jobq.jobs j
    set priority = set_priority.priority, available_at = greatest(j.available_at, clock_timestamp())
    where j.ctid = any(v_jobs.row_at) and j.priority <> set_priority.priority
    returning j.id
  )
  select v_jobs.matched, (select count(*) from updated), v_jobs.sample;
end
$$;

comment on function jobq.set_priority(jsonb, int, boolean, int) is
'Moves queued jobs that match filter to a priority, -100 to 100, HIGHER runs first; they queue up there as of now. '
'Returns (matched, changed, sample of ids), as retry_jobs() does; jobs that have the priority already do not match. '
'Filter as for retry_jobs(). Errors: JQ006.';

create or replace function jobq.reschedule(
  filter jsonb, available_at timestamptz default null, delay interval default null,
  dry_run boolean default false, max_jobs int default 10000
) returns table (matched bigint, changed bigint, sample bigint[])
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_tidscan = on
as $$
declare
  v_due timestamptz := jobq._due(clock_timestamp(), reschedule.available_at, reschedule.delay);
  v_jobs record;
begin
  if not isfinite(v_due) or v_due >= '10000-01-01 00:00:00+00' then
    perform jobq._raise('JQ006', 'available_at must be a time up to the year 9999, not ' || v_due);
  end if;
  v_jobs := jobq._select_jobs(reschedule.filter, '{queued}', reschedule.dry_run, reschedule.max_jobs,
    jsonb_build_object('due', v_due));
  perform set_config('jobq.via', 'reschedule', true);
  return query
  with updated as (
    update jobq.jobs j set available_at = v_due where j.ctid = any(v_jobs.row_at) returning j.id
  )
  select v_jobs.matched, (select count(*) from updated), v_jobs.sample;
end
$$;

comment on function jobq.reschedule(jsonb, timestamptz, interval, boolean, int) is
'Makes queued jobs that match filter due at available_at, or after delay, or (neither) now. Returns (matched, changed, sample of ids), as '
'retry_jobs() does; jobs that are due so already do not match and keep their place. Filter as for retry_jobs(). Errors: JQ001 both times at once, JQ006.';
