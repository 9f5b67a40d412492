-- Bulk creation: one statement for jobs without a key, one loop for those with, all or nothing.

create or replace function jobq._job_fields() returns text[]
language sql immutable
as $$
select '{kind,payload,priority,available_at,delay,max_attempts,idempotency_key,retry_base_seconds,retry_cap_seconds}'::text[]
$$;

comment on function jobq._job_fields() is 'The fields that an element of enqueue_many may have.';

-- Inlined into its callers. Strict about types and names in one expression; what it or a cast refuses is explained
-- by _raise_first_refusal.
create or replace function jobq._parse_jobs(jobs jsonb, now timestamptz) returns table (
  ordinal bigint, kind text, payload jsonb, priority int, available_at timestamptz, max_attempts int,
  idempotency_key text, retry_base_seconds int, retry_cap_seconds int
)
language sql stable
as $$
select
  e.ordinal, e.job ->> 'kind', coalesce(e.job -> 'payload', '{}'), coalesce((e.job -> 'priority')::int, 0),
  case
    when e.job ->> 'available_at' is null and e.job ->> 'delay' is null then now
    else jobq._due(now, (e.job ->> 'available_at')::timestamptz, (e.job ->> 'delay')::interval)
  end,
  coalesce((e.job -> 'max_attempts')::int, 10), e.job ->> 'idempotency_key',
  coalesce((e.job -> 'retry_base_seconds')::int, 15), coalesce((e.job -> 'retry_cap_seconds')::int, 3600)
from jsonb_array_elements(jobs) with ordinality e(job, ordinal)
where case
    when jsonb_typeof(e.job) = 'object' and jsonb_typeof(e.job -> 'kind') = 'string'
      and e.job - '{kind,payload,priority,idempotency_key}'::text[] = '{}'
      and coalesce(jsonb_typeof(e.job -> 'idempotency_key') in ('string', 'null'), true)
      and coalesce((e.job -> 'priority')::text ~ '^-?[0-9]{1,9}$', true)
    then true
    else jobq._field_refusal(e.job) is null or jobq._raise('JQ001', 'malformed') is null
  end
$$;

comment on function jobq._parse_jobs(jsonb, timestamptz) is 'The elements of enqueue_many as typed rows, defaults filled in.';

create or replace function jobq._field_refusal(job jsonb) returns text
language plpgsql stable
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_field text;
  v_value jsonb;
begin
  if jsonb_typeof(_field_refusal.job) <> 'object' then
    return 'a job must be a JSON object, not ' || jsonb_typeof(_field_refusal.job);
  elsif not _field_refusal.job ? 'kind' then
    return 'kind is missing';
  end if;
  for v_field, v_value in select e.key, e.value from jsonb_each(_field_refusal.job) e loop
    if not v_field = any(jobq._job_fields()) then
      return format('unknown field "%s"; known are %s', left(v_field, 100), array_to_string(jobq._job_fields(), ', '));
    elsif v_field in ('priority', 'max_attempts', 'retry_base_seconds', 'retry_cap_seconds')
      and not (jsonb_typeof(v_value) = 'number' and v_value::numeric = trunc(v_value::numeric)
        and v_value::numeric between -2147483648 and 2147483647) then
      return format('%s must be an integer, not %s', v_field, left(v_value::text, 100));
    elsif v_field in ('kind', 'idempotency_key') and jsonb_typeof(v_value) <> 'string'
      and not (v_field = 'idempotency_key' and v_value = 'null') then
      return format('%s must be a string, not %s', v_field, left(v_value::text, 100));
    elsif v_field = 'available_at' and v_value <> 'null'
      and not (jsonb_typeof(v_value) = 'string' and v_value #>> '{}' ~* ':[0-9][0-9]([.][0-9]+)?[[:space:]]*(z|[+-][0-9][0-9](:?[0-9][0-9])?)$') then
      return format('available_at must be a time with its UTC offset, as in "2030-01-01T12:00:00Z", not %s', left(v_value::text, 100));
    elsif v_field = 'delay' and jsonb_typeof(v_value) not in ('string', 'number', 'null') then
      return format('delay must be a number of seconds or an interval, not %s', left(v_value::text, 100));
    end if;
  end loop;
  perform (_field_refusal.job ->> 'available_at')::timestamptz,
    jobq._due(clock_timestamp(), null, (_field_refusal.job ->> 'delay')::interval);
  return null;
exception
  when data_exception or sqlstate 'JQ001' then
    return left(sqlerrm, 200);
end
$$;

comment on function jobq._field_refusal(jsonb) is
'Why an element of enqueue_many is malformed; null if it is not.';

create or replace function jobq._raise_first_refusal(jobs jsonb, now timestamptz) returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_ordinal bigint;
  v_refusal text;
begin
  for v_ordinal, v_refusal in
    select e.ordinal, coalesce(
        jobq._field_refusal(e.job),
        case when e.job ->> 'available_at' is not null and e.job ->> 'delay' is not null
          then 'available_at and delay exclude each other' end,
        (
          select jobq._refusal(p.kind, p.payload, p.priority, p.available_at, p.max_attempts, p.idempotency_key,
            p.retry_base_seconds, p.retry_cap_seconds)
          from jobq._parse_jobs(jsonb_build_array(e.job), _raise_first_refusal.now) p
        )
      )
    from jsonb_array_elements(_raise_first_refusal.jobs) with ordinality e(job, ordinal)
    order by e.ordinal
  loop
    if v_refusal is not null then
      raise exception using errcode = 'JQ001', message = format('invalid job %s of the batch: %s', v_ordinal, v_refusal),
        hint = 'No job of the batch was enqueued.';
    end if;
  end loop;
end
$$;

comment on function jobq._raise_first_refusal(jsonb, timestamptz) is
'Raises JQ001 for the first invalid element, naming its ordinal; returns if there is none.';

create or replace function jobq.enqueue_many(jobs jsonb)
returns table (ordinal bigint, job_id bigint, created boolean, status jobq.job_status)
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
  v_has_keys boolean;
  v_ids bigint[];
  v_found bigint[];
  v_status jobq.job_status[];
  v_conflict bigint;
  v_is_invalid boolean;
begin
  if enqueue_many.jobs is null or jsonb_typeof(enqueue_many.jobs) <> 'array' then
    perform jobq._raise('JQ001', 'jobs must be a JSON array of objects', 'For one job use jobq.enqueue().');
  end if;
  v_has_keys := jsonb_path_exists(enqueue_many.jobs, '$[*].idempotency_key');
  v_ids := array(
    select nextval('jobq.jobs_id_seq') from generate_series(1, jsonb_array_length(enqueue_many.jobs))
  );

  begin
    perform set_config('jobq.via', 'enqueue', true);
    insert into jobq.jobs (id, kind, payload, priority, created_at, available_at, max_attempts,
      retry_base_seconds, retry_cap_seconds)
    select v_ids[p.ordinal], p.kind, p.payload, p.priority, v_now, p.available_at, p.max_attempts,
      p.retry_base_seconds, p.retry_cap_seconds
    from jobq._parse_jobs(enqueue_many.jobs, v_now) p
    where p.idempotency_key is null;

    -- In key order, or two batches with the same keys deadlock. Again until each key has a row: its holder may be
    -- purged, or roll back, between the two statements.
    while v_has_keys loop
      perform set_config('jobq.via', 'enqueue', true);
      insert into jobq.jobs (id, kind, payload, priority, created_at, available_at, max_attempts, idempotency_key,
        retry_base_seconds, retry_cap_seconds)
      select distinct on (p.idempotency_key collate "C")
        v_ids[p.ordinal], p.kind, p.payload, p.priority, v_now, p.available_at, p.max_attempts, p.idempotency_key,
        p.retry_base_seconds, p.retry_cap_seconds
      from jobq._parse_jobs(enqueue_many.jobs, v_now) p
      where p.idempotency_key is not null
        and not exists (select from jobq.jobs j where j.idempotency_key = p.idempotency_key)
      order by p.idempotency_key collate "C", p.ordinal
      on conflict (idempotency_key) where idempotency_key is not null do nothing;

      select
        array_agg(coalesce(j.id, case when p.idempotency_key is null then v_ids[p.ordinal] end) order by p.ordinal),
        array_agg(coalesce(j.status, 'queued') order by p.ordinal),
        (array_agg(p.ordinal order by p.ordinal) filter (where j.kind <> p.kind or j.payload <> p.payload))[1],
        -- An element whose key was taken has met no CHECK.
        bool_or(j.id <> v_ids[p.ordinal] and jobq._refusal(p.kind, p.payload, p.priority, p.available_at, p.max_attempts,
          p.idempotency_key, p.retry_base_seconds, p.retry_cap_seconds) is not null)
      into v_found, v_status, v_conflict, v_is_invalid
      from jobq._parse_jobs(enqueue_many.jobs, v_now) p
      left join jobq.jobs j on j.idempotency_key = p.idempotency_key;
      exit when array_position(v_found, null) is null;
    end loop;
    if v_is_invalid then
      perform jobq._raise('JQ001', 'malformed');
    end if;
  exception
    when data_exception or check_violation or sqlstate 'JQ001' then
      perform jobq._raise_first_refusal(enqueue_many.jobs, v_now);
      raise;
  end;

  if not v_has_keys then
    return query select o.ordinal, o.id, true, 'queued'::jobq.job_status from unnest(v_ids) with ordinality o(id, ordinal);
    return;
  end if;
  if v_conflict is not null then
    perform jobq._raise_key_conflict(enqueue_many.jobs -> (v_conflict - 1)::int ->> 'idempotency_key', v_found[v_conflict],
      format('job %s of the batch: ', v_conflict));
  end if;
  return query
  select o.ordinal, o.id, o.id = v_ids[o.ordinal], o.status
  from unnest(v_found, v_status) with ordinality o(id, status, ordinal);
end
$$;

comment on function jobq.enqueue_many(jsonb) is
'Enqueues a JSON array of jobs, each an object with the arguments of enqueue(); all or nothing. Returns a row an element, in their order: '
'(ordinal, job_id, created, status). ids follow the order of the elements. A key given twice in the batch: the first one''s id, created false. '
'delay: seconds or an interval; available_at: with its UTC offset. Errors: JQ001 invalid job, JQ002 idempotency conflict, both with the ordinal.';
