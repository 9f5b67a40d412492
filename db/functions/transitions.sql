-- The state machine and its ledger. One pass over the changed rows decides whether each change is legal, names
-- its cause and writes its event: whoever made the change, a function of this schema or the owner's plain UPDATE.
--
-- Triggers are per statement: row triggers cost a quarter more. Their functions pin the plan, because it is cached
-- from the first firing: planned for one row it would be a nested loop, 50 times slower for 10,000.

create or replace function jobq._illegal_transition(job_id bigint, from_status jobq.job_status, to_status jobq.job_status)
returns jobq.job_event
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if _illegal_transition.from_status is null then
    raise exception using
      errcode = 'JQ005',
      message = format('job %s cannot be inserted as %s', _illegal_transition.job_id, _illegal_transition.to_status),
      hint = 'A new job is queued. Use jobq.enqueue().';
  end if;
  raise exception using
    errcode = 'JQ005',
    message = format('job %s cannot go from %s to %s', _illegal_transition.job_id,
      _illegal_transition.from_status, _illegal_transition.to_status),
    hint = 'Legal: queued -> running (claim); running -> succeeded, failed, queued; queued or running -> cancelled; '
      'failed or cancelled -> queued (retry).';
end
$$;

comment on function jobq._illegal_transition(bigint, jobq.job_status, jobq.job_status) is 'Raises JQ005. Never returns.';

-- In a settle the row itself tells the cause: a given-back attempt means released (same place) or snoozed.
create or replace function jobq._event_of(
  via text, job_id bigint,
  from_status jobq.job_status, to_status jobq.job_status,
  attempt_given_back boolean, same_place boolean, newly_requested boolean
) returns jobq.job_event
language sql
as $$
select case
    when from_status = to_status and newly_requested then 'cancel_requested'::jobq.job_event
    when from_status = to_status then 'changed'
    when from_status = 'queued' and to_status = 'running' then 'claimed'
    when from_status = 'running' and to_status = 'succeeded' then 'succeeded'
    when from_status = 'running' and via = 'reap' then 'lease_lost'
    when from_status = 'running' and to_status = 'queued' and attempt_given_back and same_place then 'released'
    when from_status = 'running' and to_status = 'queued' and attempt_given_back then 'snoozed'
    when from_status = 'running' and to_status = 'queued' and via = '' then 'requeued'
    when from_status = 'running' and to_status in ('queued', 'failed') then 'failed'
    when from_status in ('queued', 'running') and to_status = 'cancelled' then 'cancelled'
    when from_status in ('failed', 'cancelled') and to_status = 'queued' then 'retried'
    else jobq._illegal_transition(job_id, from_status, to_status)
  end
$$;

comment on function jobq._event_of(text, bigint, jobq.job_status, jobq.job_status, boolean, boolean, boolean) is
'Name of the event for a change of status; JQ005 for an illegal one.';

-- Written so that replaying the events in order gives the row: only what the event''s own columns do not say.
create or replace function jobq._detail_of(via text, event jobq.job_event, old_job jobq.jobs, new_job jobq.jobs) returns jsonb
language sql stable
as $$
select
  case when old_job.last_error is distinct from new_job.last_error and event <> 'succeeded'
    then jsonb_build_object('error', new_job.last_error) else '{}' end
  || case when old_job.available_at <> new_job.available_at
    then jsonb_build_object('available_at', new_job.available_at) else '{}' end
  || case when old_job.max_attempts <> new_job.max_attempts
    then jsonb_build_object('max_attempts', new_job.max_attempts) else '{}' end
  || case when old_job.priority <> new_job.priority
    then jsonb_build_object('priority', new_job.priority) else '{}' end
  || case when via = '' then
    jsonb_build_object('via', 'by hand')
    || case when old_job.finished_at is distinct from new_job.finished_at
      then jsonb_build_object('finished_at', new_job.finished_at) else '{}' end
    || case when old_job.cancel_requested_at is distinct from new_job.cancel_requested_at
      then jsonb_build_object('cancel_requested_at', new_job.cancel_requested_at) else '{}' end
    || case when event = 'succeeded'
      then jsonb_build_object('error', new_job.last_error) else '{}' end
  else '{}' end
$$;

comment on function jobq._detail_of(text, jobq.job_event, jobq.jobs, jobq.jobs) is
'What an event must say beside its columns so that replaying it gives the row.';

-- The cause is said per statement: a verb sets jobq.via just before it writes, and the write's trigger takes it away, so
-- that it cannot reach the caller's later statements. (A function-level SET of a setting of our own takes a superuser.)
create or replace function jobq._take_via() returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_via text := coalesce(current_setting('jobq.via', true), '');
begin
  if v_via <> '' then
    perform set_config('jobq.via', '', true);
  end if;
  return v_via;
end
$$;

comment on function jobq._take_via() is 'The verb that makes the current change, once; empty for a change by hand.';

create or replace function jobq._record_new_jobs() returns trigger
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_nestloop = off
set enable_mergejoin = off
set enable_hashjoin = on
set jit = off
as $$
declare
  v_via text := jobq._take_via();
  v_actor text := jobq._actor();
begin
  insert into jobq.job_events (job_id, at, event, to_status, attempt, actor, detail)
  select
    n.id, n.created_at,
    case when n.status = 'queued' then 'enqueued' else jobq._illegal_transition(n.id, null, n.status) end,
    n.status, n.attempt, v_actor,
    case
      when v_via = 'enqueue' and n.priority = 0 and n.max_attempts = 10 and n.available_at = n.created_at
      then jsonb_build_object('kind', n.kind, 'payload_hash', jsonb_hash_extended(n.payload, 0))
      else jsonb_strip_nulls(jsonb_build_object(
        'kind', n.kind, 'payload_hash', jsonb_hash_extended(n.payload, 0),
        'priority', nullif(n.priority, 0), 'max_attempts', nullif(n.max_attempts, 10),
        'available_at', nullif(n.available_at, n.created_at), 'error', n.last_error,
        'via', case when v_via = '' then 'by hand' end,
        'cloned_from', case when v_via like 'clone %' then substr(v_via, 7)::bigint end
      ))
    end
  from new_jobs n;

  perform jobq._wake(array(
    select distinct n.kind from new_jobs n where n.available_at <= clock_timestamp() + interval '60 seconds'
  ));
  return null;
end
$$;

comment on function jobq._record_new_jobs() is 'Trigger: an event for each new job, JQ005 unless it is queued, and a wake-up.';

create or replace trigger record_new_jobs after insert on jobq.jobs
referencing new table as new_jobs
for each statement execute function jobq._record_new_jobs();

create or replace function jobq._record_transitions() returns trigger
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_nestloop = off
set enable_mergejoin = off
set enable_hashjoin = on
set jit = off
as $$
declare
  v_via text := jobq._take_via();
  v_actor text := jobq._actor();
  v_now timestamptz := clock_timestamp();
begin
  insert into jobq.job_events (job_id, at, event, from_status, to_status, attempt, worker, actor, detail)
  select
    e.job_id, coalesce(case when v_via <> '' then e.row_time end, v_now), e.event,
    case when not e.kept then e.from_status end, case when not e.kept then e.to_status end,
    e.attempt, e.worker, v_actor, e.detail
  from (
    select
      n.id as job_id, o.status as from_status, n.status as to_status, o.status = n.status as kept,
      n.attempt, coalesce(n.locked_by, o.locked_by) as worker, v.event,
      case v.event
        when 'claimed' then n.started_at
        when 'cancel_requested' then n.cancel_requested_at
        else n.finished_at
      end as row_time,
      case
        when v_via = ''
          or (n.available_at, n.max_attempts, n.priority) is distinct from (o.available_at, o.max_attempts, o.priority)
          or n.last_error is distinct from o.last_error
        then nullif(jobq._detail_of(v_via, v.event, o, n), '{}')
      end as detail
    from new_jobs n
    join old_jobs o on o.id = n.id
    cross join lateral (
      select jobq._event_of(
        v_via, n.id, o.status, n.status,
        n.attempt < o.attempt, n.available_at = o.available_at,
        o.cancel_requested_at is null and n.cancel_requested_at is not null
      ) as event
    ) v
    where n.status <> o.status
      or (n.available_at, n.max_attempts, n.priority, n.attempt) is distinct from
        (o.available_at, o.max_attempts, o.priority, o.attempt)
      or (n.locked_by, n.last_error, n.cancel_requested_at, n.finished_at) is distinct from
        (o.locked_by, o.last_error, o.cancel_requested_at, o.finished_at)
  ) e;

  if v_via <> 'claim' then
    perform jobq._wake(array(
      select distinct n.kind
      from new_jobs n
      where n.status = 'queued' and n.available_at <= v_now + interval '60 seconds'
    ));
  end if;
  return null;
end
$$;

comment on function jobq._record_transitions() is
'Trigger: one event for each transition or tracked change, JQ005 for an illegal one, and a wake-up for what was queued.';

create or replace trigger record_transitions after update on jobq.jobs
referencing old table as old_jobs new table as new_jobs
for each statement execute function jobq._record_transitions();

-- Apart from the statement trigger, which would have to compare every payload at every claim.
create or replace function jobq._record_content_change() returns trigger
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
begin
  insert into jobq.job_events (job_id, event, attempt, worker, actor, detail)
  select new.id, 'changed', new.attempt, new.locked_by, jobq._actor(), jsonb_build_object('via', 'by hand')
    || case when old.kind <> new.kind then jsonb_build_object('kind', new.kind) else '{}' end
    || case when old.payload <> new.payload
      then jsonb_build_object('payload_hash', jsonb_hash_extended(new.payload, 0)) else '{}' end;
  return null;
end
$$;

comment on function jobq._record_content_change() is 'Trigger: a changed event when kind or payload are edited by hand.';

create or replace trigger record_content_change after update of kind, payload on jobq.jobs
for each row when (old.kind <> new.kind or old.payload <> new.payload)
execute function jobq._record_content_change();

create or replace function jobq._refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using errcode = tg_argv[0], message = tg_argv[1], hint = tg_argv[2];
end
$$;

comment on function jobq._refuse_change() is 'Trigger: raises (code, message, hint).';

create or replace trigger refuse_new_identity before update of id, created_at on jobq.jobs
for each statement execute function jobq._refuse_change(
  'JQ005', 'a job''s id and created_at cannot change', 'Enqueue or clone the job instead.'
);

create or replace trigger refuse_truncate before truncate on jobq.jobs
for each statement execute function jobq._refuse_change(
  'JQ005', 'jobq.jobs cannot be truncated', 'Use jobq.purge(), which deletes finished jobs and their events.'
);

create or replace trigger refuse_rewriting_history before update on jobq.job_events
for each statement execute function jobq._refuse_change(
  'JQ007', 'job events are append-only', 'Events go with their job when it is purged.'
);

create or replace trigger refuse_truncating_history before truncate on jobq.job_events
for each statement execute function jobq._refuse_change(
  'JQ007', 'job events are append-only', 'Events go with their job when it is purged.'
);

create or replace function jobq._delete_events_of_jobs() returns trigger
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  delete from jobq.job_events e using old_jobs o where e.job_id = o.id;
  return null;
end
$$;

comment on function jobq._delete_events_of_jobs() is 'Trigger: a deleted job takes its events with it.';

create or replace trigger delete_events_of_jobs after delete on jobq.jobs
referencing old table as old_jobs
for each statement execute function jobq._delete_events_of_jobs();

create or replace function jobq._keep_history() returns trigger
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_job_id bigint;
begin
  select j.id into v_job_id from (select distinct o.job_id from old_events o) o join jobq.jobs j on j.id = o.job_id limit 1;
  if found then
    raise exception using
      errcode = 'JQ007',
      message = format('events of job %s cannot be deleted while the job is stored', v_job_id),
      hint = 'Job events are append-only; they go with their job when it is purged.';
  end if;
  return null;
end
$$;

comment on function jobq._keep_history() is 'Trigger: JQ007 for deleting an event of a stored job.';

create or replace trigger keep_history after delete on jobq.job_events
referencing old table as old_events
for each statement execute function jobq._keep_history();
