-- The proof of the ledger: replaying a job's events must give its row.

create or replace function jobq.verify() returns table (job_id bigint, problem text, ledger text, stored text)
language sql stable security definer
set search_path = pg_catalog, jobq, pg_temp
set jit = off
as $$
with event as (
  select e.*,
    lag(e.to_status) over w as previous_status,
    lag(e.id) over w is null as is_first,
    coalesce((e.detail ->> 'finished_at')::timestamptz, e.at) as ended_at
  from (
    -- Transitions, apart from the events that keep the status.
    select x.* from jobq.job_events x where x.to_status is not null
  ) e
  window w as (partition by e.job_id order by e.id)
),
-- The newest value of each fact that an event states.
fact as (
  select
    e.job_id,
    (array_agg(e.to_status order by e.id desc) filter (where e.to_status is not null))[1] as status,
    (array_agg(e.attempt order by e.id desc))[1] as attempt,
    (array_agg(e.detail ->> 'kind' order by e.id desc) filter (where e.detail ? 'kind'))[1] as kind,
    (array_agg(e.detail ->> 'payload_hash' order by e.id desc) filter (where e.detail ? 'payload_hash'))[1] as payload_hash,
    coalesce((array_agg(e.detail ->> 'max_attempts' order by e.id desc) filter (where e.detail ? 'max_attempts'))[1], '10') as max_attempts,
    coalesce((array_agg(e.detail ->> 'priority' order by e.id desc) filter (where e.detail ? 'priority'))[1], '0') as priority,
    (array_agg(coalesce((e.detail ->> 'available_at')::timestamptz, e.at) order by e.id desc)
      filter (where e.detail ? 'available_at' or e.event = 'enqueued'))[1] as available_at,
    (array_agg(e.worker order by e.id desc) filter (where e.event <> 'log' and e.event <> 'progress'))[1] as worker,
    (array_agg(e.detail ->> 'error' order by e.id desc)
      filter (where e.detail ? 'error' or e.event in ('succeeded', 'enqueued')))[1] as error,
    (array_agg(
      case when e.event = 'retried' then null
        when e.detail ? 'cancel_requested_at' then (e.detail ->> 'cancel_requested_at')::timestamptz
        else e.at end order by e.id desc)
      filter (where e.event in ('cancel_requested', 'retried') or e.detail ? 'cancel_requested_at'))[1] as cancel_requested_at,
    (array_agg(
      case when e.detail ? 'finished_at' then (e.detail ->> 'finished_at')::timestamptz
        when e.to_status in ('succeeded', 'failed', 'cancelled') then e.at end order by e.id desc)
      filter (where e.to_status is not null or e.detail ? 'finished_at'))[1] as finished_at
  from jobq.job_events e
  where e.job_id <> 0
  group by e.job_id
)
select * from (
  select j.id, p.problem, p.ledger, p.stored
  from jobq.jobs j
  join fact f on f.job_id = j.id
  cross join lateral (
    values
      ('status', f.status::text, j.status::text),
      ('attempt', f.attempt::text, j.attempt::text),
      ('max_attempts', f.max_attempts, j.max_attempts::text),
      ('kind', f.kind, j.kind),
      ('payload', f.payload_hash, jsonb_hash_extended(j.payload, 0)::text),
      ('priority', f.priority, j.priority::text),
      ('available_at', f.available_at::text, j.available_at::text),
      ('worker', case when f.status = 'running' then f.worker end, j.locked_by),
      ('error', f.error, j.last_error),
      ('cancel request', f.cancel_requested_at::text, j.cancel_requested_at::text),
      ('finish', f.finished_at::text, j.finished_at::text)
  ) p(problem, ledger, stored)
  where p.ledger is distinct from p.stored
  union all
  select j.id, 'no events', null, j.status::text
  from jobq.jobs j
  where not exists (select from jobq.job_events e where e.job_id = j.id)
  union all
  select distinct e.job_id, 'events without a job', e.event::text, null
  from (select distinct on (x.job_id) x.job_id, x.event from jobq.job_events x where x.job_id <> 0 order by x.job_id, x.id) e
  where not exists (select from jobq.jobs j where j.id = e.job_id)
  union all
  select e.job_id, 'broken chain at event ' || e.id, coalesce(e.previous_status::text, 'nothing') || ' before it', coalesce(e.from_status::text, 'nothing')
  from event e
  where e.previous_status is distinct from e.from_status or e.is_first and e.event <> 'enqueued'
) v(job_id, problem, ledger, stored)
order by 1, 2
$$;

comment on function jobq.verify() is
'Replays all events in one snapshot and compares with the rows: (job_id, problem, ledger, stored), no row if all is well. Covers status, '
'attempt, max_attempts, kind, payload (hash), priority, available_at, worker, error, cancel request, finish, and the chain of transitions. Reads both tables whole.';
