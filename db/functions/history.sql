-- What happened lately, from the events. There is no btree on their time (it would cost an eighth of the drain): a
-- window is read by BRIN while it is small, and by a sample of whole blocks when it is not.

create or replace function jobq._window_start(since interval, now timestamptz) returns timestamptz
language plpgsql immutable
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_seconds numeric := extract(epoch from _window_start.since);
begin
  if v_seconds is null or v_seconds not between 1 and 31622400 then
    perform jobq._raise('JQ006', 'since must be between 1 second and 366 days, not ' || coalesce(_window_start.since::text, 'null'));
  end if;
  return jobq._after(_window_start.now, -v_seconds);
end
$$;

comment on function jobq._window_start(interval, timestamptz) is 'When a window that ends now began; JQ006 unless it is 1 second to 366 days long.';

-- Asked of the table itself, not of its statistics: they know nothing of the newest events.
create or replace function jobq._event_share(since timestamptz, most bigint) returns float8
language plpgsql stable
set search_path = pg_catalog, jobq, pg_temp
set jit = off
as $$
declare
  v_blocks float8 := pg_relation_size('jobq.job_events') / current_setting('block_size')::float8;
  v_probed float8 := least(1, 500 / greatest(v_blocks, 1));
  v_found bigint;
  v_within bigint;
begin
  -- Repeatable here and in _events_since(): looked at again, the same blocks answer, and a chart does not flicker.
  select count(*), count(*) filter (where e.at >= _event_share.since) into v_found, v_within
  from jobq.job_events e tablesample system (v_probed * 100) repeatable (0);
  if v_within <= _event_share.most * v_probed then
    return 1;
  end if;
  return least(1, _event_share.most * v_probed / v_found);
end
$$;

comment on function jobq._event_share(timestamptz, bigint) is
'Which share of the events'' blocks to read: 1 if about so many or fewer happened since then, else as much as holds so many.';

create or replace function jobq._events_since(since timestamptz, share float8) returns setof jobq.job_events
language sql stable
as $$
select e.* from jobq.job_events e where share >= 1 and e.at >= since
union all
select s.* from jobq.job_events s tablesample system (share * 100) repeatable (0) where share < 1 and s.at >= since
$$;

comment on function jobq._events_since(timestamptz, float8) is 'Events since then, or those of a share of all blocks.';

create or replace function jobq.activity(since interval default '1 hour', buckets int default 60)
returns table (
  share float8, bucket timestamptz, enqueued bigint, started bigint, succeeded bigint, failed bigint, retried bigint, lost bigint,
  cancelled bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_step interval := jobq._bucket_size(activity.since, activity.buckets);
  v_last timestamptz := date_bin(v_step, clock_timestamp(), '2000-01-01 00:00:00+00');
  v_first timestamptz := v_last - v_step * (activity.buckets - 1);
  v_share float8 := jobq._event_share(v_first, 500000);
begin
  return query
  with counted as (
    select
      date_bin(v_step, e.at, v_first) as bucket,
      count(*) filter (where e.event = 'enqueued') as enqueued,
      count(*) filter (where e.event = 'claimed') as started,
      count(*) filter (where e.event = 'succeeded') as succeeded,
      count(*) filter (where e.to_status = 'failed') as failed,
      count(*) filter (where e.event = 'failed' and e.to_status = 'queued') as retried,
      count(*) filter (where e.event = 'lease_lost' and e.to_status = 'queued') as lost,
      count(*) filter (where e.to_status = 'cancelled') as cancelled
    from jobq._events_since(v_first, v_share) e
    group by 1
  )
  select
    v_share, b.bucket,
    round(coalesce(c.enqueued, 0) / v_share)::bigint,
    round(coalesce(c.started, 0) / v_share)::bigint,
    round(coalesce(c.succeeded, 0) / v_share)::bigint,
    round(coalesce(c.failed, 0) / v_share)::bigint,
    round(coalesce(c.retried, 0) / v_share)::bigint,
    round(coalesce(c.lost, 0) / v_share)::bigint,
    round(coalesce(c.cancelled, 0) / v_share)::bigint
  from generate_series(0, activity.buckets - 1) n
  cross join lateral (select v_first + v_step * n.n) b(bucket)
  left join counted c on c.bucket = b.bucket
  order by n.n;
end
$$;

comment on function jobq.activity(interval, int) is
'What happened since so long ago, in equal buckets of time (their starts are multiples of their size, the last one is not over yet): '
'(share, bucket, enqueued, started, succeeded, failed, retried, lost, cancelled). failed: for good; retried: failed and queued again; lost: lease lost '
'and queued again. share below 1: so much of the events was read, and the counts are scaled up. Errors: JQ006 for a time or number out of range.';

create or replace function jobq._bucket_size(since interval, buckets int) returns interval
language plpgsql stable
set search_path = pg_catalog, jobq, pg_temp
as $$
begin
  if _bucket_size.buckets is null or _bucket_size.buckets not between 1 and 1000 then
    perform jobq._raise('JQ006', 'buckets must be between 1 and 1000, not ' || coalesce(_bucket_size.buckets::text, 'null'));
  end if;
  perform jobq._window_start(_bucket_size.since, clock_timestamp());
  return make_interval(secs => round(extract(epoch from _bucket_size.since) / _bucket_size.buckets, 6)::float8);
end
$$;

comment on function jobq._bucket_size(interval, int) is 'A window''s length divided into buckets; JQ006 for either out of range.';

create or replace function jobq.runs(since interval default '1 hour', max_runs int default 5000)
returns table (
  share float8, job_id bigint, kind text, worker text, attempt int, event jobq.job_event, ended_at timestamptz,
  run_seconds float8, wait_seconds float8
)
language plpgsql stable security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_since timestamptz := jobq._window_start(runs.since, clock_timestamp());
  v_share float8 := jobq._event_share(v_since, 300000);
begin
  if runs.max_runs is null or runs.max_runs not between 1 and 100000 then
    perform jobq._raise('JQ006', 'max_runs must be between 1 and 100000, not ' || coalesce(runs.max_runs::text, 'null'));
  end if;
  return query
  with ended as materialized (
    select e.job_id, e.id, e.at, e.event, e.attempt, e.worker
    from jobq._events_since(v_since, v_share) e
    where e.from_status = 'running'
  ),
  picked as materialized (
    select e.* from ended e order by hashint8extended(e.id, 0) limit runs.max_runs
  )
  select
    v_share * least(1, runs.max_runs / greatest((select count(*) from ended), 1)::float8),
    p.job_id, j.kind, p.worker, p.attempt, p.event, p.at,
    greatest(extract(epoch from p.at - r.started_at), 0)::float8,
    greatest(extract(epoch from r.started_at - r.due_at), 0)::float8
  from picked p
  join jobq.jobs j on j.id = p.job_id
  cross join lateral (
    -- The job's row knows its last run, if it has ended there; else the events before do, unless very many lie between.
    select j.started_at, j.available_at as due_at
    where j.finished_at = p.at and j.started_at <= p.at
    union all
    (select c.at, (
      select coalesce((d.detail ->> 'available_at')::timestamptz, d.at)
      from (
        select b.id, b.event, b.at, b.detail
        from jobq.job_events b
        where b.job_id = p.job_id and b.id < c.id
        order by b.id desc
        limit 1000
      ) d
      where d.event = 'enqueued' or d.detail ? 'available_at'
      order by d.id desc
      limit 1
    )
    from (
      select b.id, b.event, b.at
      from jobq.job_events b
      where b.job_id = p.job_id and b.id < p.id
      order by b.id desc
      limit 1000
    ) c
    where c.event = 'claimed' and (j.finished_at = p.at and j.started_at <= p.at) is not true
    order by c.id desc
    limit 1)
  ) r
  order by p.at, p.id;
end
$$;

comment on function jobq.runs(interval, int) is
'Runs that ended since so long ago, a sample of at most max_runs: (share, job_id, kind, worker, attempt, event, ended_at, run_seconds, wait_seconds). '
'event: how it ended; wait_seconds: from due to start, null if unknown; share: which part of all of them these are, 1 for all. Errors: JQ006 for a time or number out of range.';

create or replace function jobq.failures(since interval default '1 hour', buckets int default 60)
returns table (
  share float8, kind text, error_class text, failures bigint, jobs bigint, final bigint, first_at timestamptz, last_at timestamptz,
  sample_job_id bigint, sample_error text, spark bigint[]
)
language plpgsql stable security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_most constant bigint := 5000;
  v_step interval := jobq._bucket_size(failures.since, failures.buckets);
  v_first timestamptz := date_bin(v_step, clock_timestamp(), '2000-01-01 00:00:00+00') - v_step * (failures.buckets - 1);
  -- Failures are few among the events: looked for in more of them, so that a rare one is not missed.
  v_share float8 := jobq._event_share(v_first, 2000000);
begin
  return query
  with failing as materialized (
    select e.job_id, e.id, e.at, e.to_status
    from jobq._events_since(v_first, v_share) e
    where e.event in ('failed', 'lease_lost')
  ),
  picked as materialized (
    select f.* from failing f order by hashint8extended(f.id, 0) limit v_most
  ),
  part as materialized (
    select v_share * least(1, v_most / greatest((select count(*) from failing), 1)::float8) as share
  ),
  told as materialized (
    select p.job_id, p.id, p.at, p.to_status, j.kind,
      floor(extract(epoch from p.at - v_first) / extract(epoch from v_step))::int as bucket,
      -- An event does not repeat the error that the job had already.
      coalesce(e.detail ->> 'error', (
        select b.detail ->> 'error'
        from (
          select h.id, h.detail from jobq.job_events h where h.job_id = p.job_id and h.id < p.id order by h.id desc limit 1000
        ) b
        where b.detail ? 'error'
        order by b.id desc
        limit 1
      ), j.last_error) as error
    from picked p
    cross join lateral (
      select x.detail from jobq.job_events x where x.job_id = p.job_id and x.id = p.id offset 0
    ) e
    join jobq.jobs j on j.id = p.job_id
  ),
  classed as materialized (
    select t.*, jobq.error_class(t.error) as error_class from told t
  ),
  bucketed as (
    select c.kind, c.error_class, c.bucket, count(*) as failures from classed c group by 1, 2, 3
  ),
  newest as (
    select distinct on (c.kind, c.error_class) c.kind, c.error_class, c.job_id, c.error
    from classed c
    order by c.kind, c.error_class, c.at desc, c.id desc
  ),
  grouped as (
    select c.kind, c.error_class, count(*) as failures, count(distinct c.job_id) as jobs,
      count(*) filter (where c.to_status = 'failed') as final, min(c.at) as first_at, max(c.at) as last_at
    from classed c
    group by 1, 2
  )
  select
    s.share, g.kind, g.error_class, round(g.failures / s.share)::bigint, g.jobs,
    round(g.final / s.share)::bigint, g.first_at, g.last_at, w.job_id, w.error,
    array(
      select coalesce(round(b.failures / s.share), 0)::bigint
      from generate_series(0, failures.buckets - 1) n
      left join bucketed b on b.kind = g.kind and b.error_class = g.error_class and b.bucket = n.n
      order by n.n
    )
  from grouped g
  join newest w on w.kind = g.kind and w.error_class = g.error_class
  cross join part s
  order by g.failures desc, g.kind, g.error_class
  limit 200;
end
$$;

comment on function jobq.failures(interval, int) is
'Failed attempts and lost leases since so long ago by kind and error_class(), the 200 most frequent groups, in buckets as of activity(): '
'(share, kind, error_class, failures, jobs, final, first_at, last_at, sample_job_id, sample_error, spark). final: of them for good; sample: the newest; '
'spark: failures by bucket. share below 1: so much of them was read, and the counts are scaled up, but for jobs: those that were seen. Errors: JQ006 for a time or number out of range.';
