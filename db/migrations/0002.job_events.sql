-- The ledger: what happened to each job, append-only, written by triggers in the transaction of the change.
-- depends: 0001.jobs

do $$
begin
  if to_regtype('jobq.job_event') is null then
    create type jobq.job_event as enum (
      'enqueued', 'claimed', 'succeeded', 'failed', 'lease_lost', 'released', 'snoozed', 'cancelled', 'retried',
      'requeued', 'cancel_requested', 'changed', 'progress', 'log', 'control'
    );
  end if;
end
$$;

-- id: cache 1, because ids order the events of a job only if each is drawn while that job's row is locked;
-- a session that cached a block of ids would hand out old ones later.
-- No foreign key to jobs: it would lock the job's row once more for each event, half of a bulk insert's time.
-- No second btree: an eighth of the drain.
create table if not exists jobq.job_events (
  job_id bigint not null,
  id bigint generated always as identity (cache 1),
  at timestamptz not null default clock_timestamp(),
  event jobq.job_event not null,
  from_status jobq.job_status,
  to_status jobq.job_status,
  attempt int,
  worker text,
  actor text not null,
  detail jsonb,
  primary key (job_id, id)
) with (
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_analyze_scale_factor = 0.05
);

create index if not exists job_events_at_idx on jobq.job_events using brin (at) with (autosummarize = on);

comment on type jobq.job_event is
'What happened. A transition has from_status and to_status; the others (cancel_requested, changed, progress, log, control) keep the status.';
comment on table jobq.job_events is
'Append-only history of every job; job_id 0 holds control events of the queue itself. Goes with the job when it is purged.';
comment on column jobq.job_events.job_id is 'The job, or 0 for a control event.';
comment on column jobq.job_events.id is 'Orders the events of one job; says nothing across jobs.';
comment on column jobq.job_events.at is 'By the database''s clock; equal to the row''s created_at, started_at or finished_at where there is one.';
comment on column jobq.job_events.event is 'The cause.';
comment on column jobq.job_events.from_status is 'Null for enqueued and for events that keep the status.';
comment on column jobq.job_events.to_status is 'Null for events that keep the status.';
comment on column jobq.job_events.attempt is 'The job''s attempt after the event.';
comment on column jobq.job_events.worker is 'The worker that runs the job, or whose run this event ended.';
comment on column jobq.job_events.actor is
'Database role that did it, and in "role (claims name)" what the client said of itself in the setting jobq.actor.';
comment on column jobq.job_events.detail is
'New values of what changed: error, available_at, max_attempts, priority, kind, payload_hash …; "via": "by hand" without a jobq function.';
