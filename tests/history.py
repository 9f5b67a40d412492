"""A past for the tests of what reads the events: events inserted directly, at times of choice."""

from helpers import Connection

from scale import Connect

EVENT = """
insert into jobq.job_events (job_id, id, at, event, from_status, to_status, attempt, worker, actor)
overriding system value
select n, nextval(pg_get_serial_sequence('jobq.job_events', 'id')),
  clock_timestamp() - make_interval(secs => ago), event, from_status, to_status, 1, 'w', 'x'
from """
PHASES = """(values
  ('enqueued'::jobq.job_event, null::jobq.job_status, 'queued'::jobq.job_status, 0),
  ('claimed', 'queued', 'running', 1), ('succeeded', 'running', 'succeeded', 2)
) e(event, from_status, to_status, phase)"""


def past(connect: Connect, jobs: int, seconds: float) -> None:
    """Events of so many succeeded jobs, evenly over the past, in the order of their time."""
    with connect() as conn:
        conn.execute("set session_replication_role = replica")
        conn.execute(
            "insert into jobq.jobs (id, kind, status, attempt, started_at, finished_at)"
            " overriding system value select n, 'past', 'succeeded', 1, now(), now()"
            f" from generate_series(1, {jobs}) n".encode()
        )
        source = f"""(
            select n, {seconds} * (1 - (n - 0.5) / {jobs}) as ago, e.*
            from generate_series(1, {jobs}) n cross join {PHASES} order by n, phase) h"""
        conn.execute((EVENT + source).encode())
        conn.execute("select setval(pg_get_serial_sequence('jobq.jobs', 'id'), %s)", (jobs,))
        conn.execute("vacuum analyze jobq.job_events")


def failed(connect: Connect, jobs: int) -> None:
    """Failures of so many jobs within the last hour."""
    with connect() as conn:
        conn.execute("set session_replication_role = replica")
        conn.execute(
            "insert into jobq.jobs (id, kind, status, finished_at, last_error)"
            " overriding system value"
            f" select n, 'a', 'failed', now(), 'E: x' from generate_series(1, {jobs}) n".encode()
        )
        source = f"""(
            select n, 3000.0 / {jobs} * (n - 1) as ago, 'failed'::jobq.job_event as event,
              'running'::jobq.job_status as from_status, 'failed'::jobq.job_status as to_status
            from generate_series(1, {jobs}) n) h"""
        conn.execute((EVENT + source).encode())


def only_a_share(conn: Connection, share: float) -> None:
    """Have the functions read this share of the blocks, however few there are."""
    conn.execute(
        "create or replace function jobq._event_share(since timestamptz, most bigint)"
        f" returns float8 language sql as 'select {share}::float8'".encode()
    )
