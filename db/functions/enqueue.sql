-- Creating jobs. A refused job raises a typed error and leaves no row and no event.

-- Inlined into its callers: one expression, no call per job.
create or replace function jobq._refusal(
  kind text, payload jsonb, priority int, available_at timestamptz, max_attempts int,
  idempotency_key text, retry_base_seconds int, retry_cap_seconds int
) returns text
language sql immutable
as $$
select case
    when kind is null then 'kind is missing'
    when octet_length(kind) not between 1 and 128 then 'kind must be 1 to 128 bytes, not ' || octet_length(kind)
    when payload is null then 'payload must be a JSON object, not SQL null'
    when jsonb_typeof(payload) <> 'object' then 'payload must be a JSON object, not ' || jsonb_typeof(payload)
    when pg_column_size(payload) > 16777216 then 'payload must be at most 16 MiB, not ' || pg_column_size(payload) || ' bytes'
    when priority is null or priority not between -100 and 100
    then 'priority must be between -100 and 100, not ' || coalesce(priority::text, 'null')
    when available_at is null or not isfinite(available_at)
      or available_at < '2000-01-01 00:00:00+00' or available_at >= '10000-01-01 00:00:00+00'
    then 'available_at must be a time in the years 2000 to 9999, not ' || coalesce(available_at::text, 'null')
    when max_attempts is null or max_attempts < 1
    then 'max_attempts must be positive, not ' || coalesce(max_attempts::text, 'null')
    when octet_length(idempotency_key) not between 1 and 512
    then 'idempotency_key must be 1 to 512 bytes, not ' || octet_length(idempotency_key)
    when retry_base_seconds is null or retry_base_seconds < 1
    then 'retry_base_seconds must be positive, not ' || coalesce(retry_base_seconds::text, 'null')
    when retry_cap_seconds is null or retry_cap_seconds < 1
    then 'retry_cap_seconds must be positive, not ' || coalesce(retry_cap_seconds::text, 'null')
  end
$$;

comment on function jobq._refusal(text, jsonb, int, timestamptz, int, text, int, int) is
'Why a job with these values is invalid; null if it is not.';

create or replace function jobq._due(now timestamptz, available_at timestamptz, delay interval) returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_seconds numeric := extract(epoch from _due.delay);
begin
  if _due.available_at is not null and _due.delay is not null then
    raise exception using errcode = 'JQ001', message = 'available_at and delay exclude each other', hint = 'Give one of them.';
  end if;
  if _due.delay is not null and not v_seconds between -1e11 and 2.5e11 then
    raise exception using errcode = 'JQ001', message = format('delay is out of range: %s', _due.delay),
      hint = 'A job can wait until the year 9999.';
  end if;
  if isfinite(_due.available_at) is false then
    return _due.available_at;
  end if;
  -- The past means now, so that a late producer cannot overtake jobs that wait.
  return greatest(_due.now, _due.available_at, jobq._after(_due.now, v_seconds));
end
$$;

comment on function jobq._due(timestamptz, timestamptz, interval) is
'When a job falls due: available_at, or now plus delay, never before now; JQ001 for both at once.';

create or replace function jobq.enqueue(
  kind text,
  payload jsonb default '{}',
  priority int default 0,
  available_at timestamptz default null,
  delay interval default null,
  max_attempts int default 10,
  idempotency_key text default null,
  retry_base_seconds int default 15,
  retry_cap_seconds int default 3600
) returns table (job_id bigint, created boolean, status jobq.job_status)
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
  v_due timestamptz := v_now;
  v_refusal text;
  v_job record;
begin
  if enqueue.available_at is not null or enqueue.delay is not null then
    v_due := jobq._due(v_now, enqueue.available_at, enqueue.delay);
  end if;
  v_refusal := jobq._refusal(enqueue.kind, enqueue.payload, enqueue.priority, v_due, enqueue.max_attempts,
    enqueue.idempotency_key, enqueue.retry_base_seconds, enqueue.retry_cap_seconds);
  if v_refusal is not null then
    perform jobq._raise('JQ001', 'invalid job: ' || v_refusal);
  end if;

  -- Until one of the two yields a row: whoever holds the key may roll back, or be purged, in between.
  loop
    perform set_config('jobq.via', 'enqueue', true);
    insert into jobq.jobs as j (kind, payload, priority, created_at, available_at, max_attempts, idempotency_key,
      retry_base_seconds, retry_cap_seconds)
    values (enqueue.kind, enqueue.payload, enqueue.priority, v_now, v_due, enqueue.max_attempts, enqueue.idempotency_key,
      enqueue.retry_base_seconds, enqueue.retry_cap_seconds)
    on conflict (idempotency_key) where idempotency_key is not null do nothing
    returning j.id into job_id;
    if found then
      created := true;
      status := 'queued';
      return next;
      return;
    end if;

    select j.id, j.status, j.kind = enqueue.kind and j.payload = enqueue.payload as is_same into v_job
    from jobq.jobs j
    where j.idempotency_key = enqueue.idempotency_key;
    if found then
      if not v_job.is_same then
        perform jobq._raise_key_conflict(enqueue.idempotency_key, v_job.id);
      end if;
      job_id := v_job.id;
      created := false;
      status := v_job.status;
      return next;
      return;
    end if;
  end loop;
end
$$;

comment on function jobq.enqueue(text, jsonb, int, timestamptz, interval, int, text, int, int) is
'Enqueues one job and returns (job_id, created, status). priority -100 to 100, HIGHER runs first. available_at or delay, not both; '
'the past means now. With an idempotency_key that a stored job has: that job, created false, untouched, if kind and payload are the same. '
'Errors: JQ001 invalid job, JQ002 the key belongs to a job of another kind or payload.';

create or replace function jobq._raise_key_conflict(idempotency_key text, job_id bigint, prefix text default '') returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'JQ002',
    message = format('%sidempotency key %s belongs to job %s, whose kind or payload differs', _raise_key_conflict.prefix,
      quote_literal(left(_raise_key_conflict.idempotency_key, 100)), _raise_key_conflict.job_id),
    hint = 'Repeat a key only to repeat the same job; use a new key for a new one.';
end
$$;

comment on function jobq._raise_key_conflict(text, bigint, text) is 'Raises JQ002. Never returns.';
