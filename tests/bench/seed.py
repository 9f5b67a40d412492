"""A queue that has run for a week: a million jobs, three million events, as the verbs leave them.

    python tests/bench/seed.py DSN [--jobs 1000000] [--days 7]

Needs a migrated, empty database and a superuser: rows are inserted without their triggers, events
in the order of their time, and `verify()` finds nothing wrong. Deterministic but for the clock.
"""

import argparse
import time
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

KINDS = "{email.send,email.digest,report.build,image.resize,webhook.post,index.update,sync.crm}"

# One row a job: when it was made and due, how it ends, and how often it fails before that.
_PLAN = """
create temp table plan as
select n as id, kind, payload, due_in, runs, outcome, error, worker, priority, key,
  made, made + due_in as available_at,
  made + due_in + interval '1 second' * (0.01 + 3 * r3 * r3) as first_start,
  interval '1 second' * (0.02 + 4 * r4 * r4 * r4) as run_time
from (
  select n, r3, r4,
    (%(kinds)s::text[])[1 + least(6, floor(7 * r1 * r1))::int] as kind,
    jsonb_build_object('to', 'user' || n %% 50000 || '@example.org', 'n', n,
      'tags', jsonb_build_array('a' || n %% 10, 'b')) as payload,
    case when n %% 200 = 0 then 5 when n %% 333 = 0 then -10 else 0 end as priority,
    case when n %% 10 = 0 then 'key-' || n end as key,
    case when n %% 50 = 0 then interval '30 minutes' else interval '0' end as due_in,
    'host-' || n %% 20 || '-4711-beef' as worker,
    case when n > %(jobs)s - %(running)s then 'running'
      when n > %(jobs)s - %(running)s - %(queued)s then 'queued'
      when n %% 100 < 3 then 'failed' when n %% 100 < 4 then 'cancelled' else 'succeeded'
    end as outcome,
    case when n %% 100 < 3 then 2 when n %% 40 = 0 then 2 when n %% 100 < 4 then 0 else 1 end
      as runs,
    now() - make_interval(days => %(days)s) * (1 - (n::float8 - 0.5) / %(jobs)s) as made,
    E'Traceback (most recent call last):\\n  File "/srv/app/handlers.py", line ' || 10 + n %% 7
      || E', in handle\\n    client.call(payload)\\n'
      || repeat(E'  File "/srv/app/lib/client.py", line 88, in call\\n    self._send(data)\\n', 5)
      || (array['requests.exceptions.ConnectionError: connection refused',
        'TimeoutError: no reply within 30 s', 'ValueError: no such user: ' || n %% 1000,
        'app.errors.QuotaExceeded: try again later', 'KeyError: ''to'''])[1 + n %% 5] as error
  from (
    select n, (hashint8extended(n, 1) & 65535) / 65536.0::float8 as r1,
      (hashint8extended(n, 3) & 65535) / 65536.0::float8 as r3,
      (hashint8extended(n, 4) & 65535) / 65536.0::float8 as r4
    from generate_series(1, %(jobs)s::bigint) n
  ) r
) p"""

# Queued: half of them due since, half in an hour; one in ten has failed once.
_STATE = """
update plan
set runs = case when id % 10 = 0 then 1 else 0 end,
  available_at = now() + interval '1 hour' * case when id % 2 = 0 then -0.01 else 1 end,
  made = least(made, now() - interval '1 minute'),
  first_start = now() - interval '50 seconds', run_time = interval '1 second'
where outcome = 'queued';

update plan
set runs = 0, made = now() - interval '2 minutes', due_in = '0',
  available_at = now() - interval '2 minutes',
  first_start = now() - interval '1 second' * (1 + id % 50)
where outcome = 'running'"""

_JOBS = """
insert into jobq.jobs (id, kind, payload, priority, created_at, available_at, status, attempt,
  max_attempts, idempotency_key, locked_by, lease_token, lease_expires_at, started_at, finished_at,
  progress, result, last_error)
select id, kind, payload, priority, made,
  case when outcome in ('queued', 'running') or runs < 2 then available_at
    else first_start + run_time + interval '20 seconds' end,
  outcome::jobq.job_status,
  case outcome when 'running' then 1 else runs end,
  case when outcome = 'queued' and id % 40 = 0 then 2 when outcome = 'failed' then 2 else 10 end,
  key,
  case when outcome = 'running' then worker end,
  case when outcome = 'running' then gen_random_uuid() end,
  case when outcome = 'running' then now() + interval '1 second' * (id % 60 - 2) end,
  case when outcome = 'running' or runs = 1 then first_start
    when runs = 2 then first_start + run_time + interval '21 seconds' end,
  case when outcome = 'cancelled' then available_at + interval '1 second'
    when outcome in ('succeeded', 'failed') then
      first_start + run_time + case when runs = 2 then run_time + interval '21 seconds'
        else '0' end end,
  case when outcome = 'running' then (id % 100) / 100.0 end,
  case when outcome = 'succeeded' then '{"sent": true}'::jsonb end,
  case when outcome = 'failed' or outcome = 'queued' and runs = 1 then error end
from plan"""

_EVENTS = """
insert into jobq.job_events (job_id, id, at, event, from_status, to_status, attempt, worker, actor,
  detail)
overriding system value
select p.id, row_number() over (order by e.at, p.id), e.at, e.event::jobq.job_event,
  e.from_status::jobq.job_status, e.to_status::jobq.job_status, e.attempt, e.worker, 'app', e.detail
from plan p
cross join lateral (
  values
    (p.made, 'enqueued', null, 'queued', 0, null,
      jsonb_strip_nulls(jsonb_build_object('kind', p.kind,
        'payload_hash', jsonb_hash_extended(p.payload, 0), 'priority', nullif(p.priority, 0),
        'max_attempts', case when p.outcome = 'queued' and p.id % 40 = 0 or p.outcome = 'failed'
          then 2 end,
        'available_at', case when p.runs = 1 and p.outcome = 'queued' then null
          else nullif(p.available_at, p.made) end)), true),
    (p.first_start, 'claimed', 'queued', 'running', 1, p.worker, null,
      p.runs > 0 or p.outcome = 'running'),
    (p.first_start + p.run_time, 'failed', 'running', 'queued', 1, p.worker,
      jsonb_build_object('error', p.error, 'available_at',
        case when p.outcome = 'queued' then p.available_at
          else p.first_start + p.run_time + interval '20 seconds' end),
      p.runs = 2 or p.outcome = 'queued' and p.runs = 1),
    (p.first_start + p.run_time + interval '21 seconds', 'claimed', 'queued', 'running', 2,
      p.worker, null, p.runs = 2),
    (p.first_start + p.run_time + case when p.runs = 2 then p.run_time + interval '21 seconds'
      else '0' end, p.outcome, 'running', p.outcome, p.runs, p.worker,
      -- The same error once more is not told again.
      case when p.outcome = 'failed' and p.runs = 1 then jsonb_build_object('error', p.error) end,
      p.outcome in ('succeeded', 'failed')),
    (p.available_at + interval '1 second', 'cancelled', 'queued', 'cancelled', 0, null, null,
      p.outcome = 'cancelled')
) e(at, event, from_status, to_status, attempt, worker, detail, happened)
where e.happened
order by e.at, p.id"""

_IDENTITY = """
select setval(pg_get_serial_sequence('jobq.jobs', 'id'), (select max(id) from jobq.jobs)),
  setval(pg_get_serial_sequence('jobq.job_events', 'id'), (select max(id) from jobq.job_events))"""


def seed(
    conn: Connection, jobs: int = 1_000_000, days: int = 7, *, queued: int | None = None
) -> None:
    """Fill the tables; `queued` jobs wait at the end (a fiftieth by default)."""
    values = {
        "jobs": jobs,
        "days": days,
        "kinds": KINDS,
        "running": min(500, jobs // 100),
        "queued": jobs // 50 if queued is None else queued,
    }
    with conn.transaction():
        # By a setting of the transaction: the triggers stay as they are for everybody else.
        conn.execute("set local session_replication_role = replica")
        conn.execute("set local work_mem = '256MB'")
        conn.execute("drop table if exists pg_temp.plan")
        conn.execute(_PLAN, values)
        for statement in _STATE.split(";"):
            conn.execute(statement.encode())
        conn.execute(_JOBS)
        conn.execute(_EVENTS)
        conn.execute(_IDENTITY)
        conn.execute("drop table pg_temp.plan")
    conn.execute("vacuum analyze jobq.jobs, jobq.job_events")


def main() -> None:
    """Seed the database named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--queued", type=int)
    options = parser.parse_args()
    started = time.perf_counter()
    with psycopg.connect(options.dsn, autocommit=True) as conn:
        seed(conn, options.jobs, options.days, queued=options.queued)
        row = conn.execute(
            "select (select count(*) from jobq.jobs), (select count(*) from jobq.job_events)"
        ).fetchone()
    print(f"{row} jobs and events in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
