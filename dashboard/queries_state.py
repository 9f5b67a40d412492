"""The state of the queue now, in one snapshot, and what needs attention."""

from typing import Any

from queries_attention import attention
from queries_workers import kinds, workers, workers_now
from sql import Connection, Row, fetch, fetch_one, value

__all__ = ["kinds", "overview", "where", "workers"]

MOST_KINDS = 50

_WHERE = """
select current_database()::text as database,
  split_part(current_setting('server_version'), ' ', 1) as version,
  current_user::text as role, clock_timestamp() as now"""

_COUNTS = "select s.status::text as status, s.jobs, s.estimated, s.oldest from jobq.stats() s"

_FAILURES = """
select j.id, j.kind, j.finished_at, jobq.error_class(j.last_error) as error_class,
  left(jobq.error_line(j.last_error), 200) as message
from jobq.job_details j
where j.status = 'failed'
order by j.finished_at desc, j.id desc
limit 10"""


def where(conn: Connection) -> Row:
    """Return which database this is, and as whom it is asked."""
    return fetch_one(conn, _WHERE)


def overview(conn: Connection) -> dict[str, Any]:
    """Return the state of the queue; all of it from one snapshot."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read, read only")
        counts = fetch(conn, _COUNTS)
        by_kind = kinds(conn)
        at_work = workers_now(conn)
        due = [row["oldest_available_at"] for row in by_kind if row["due"]]
        waiting = [row for row in by_kind if row["queued"] or row["running"]]
        return {
            "now": value(conn, "select clock_timestamp()"),
            "counts": counts,
            "due": sum(row["due"] for row in by_kind),
            "scheduled": sum(row["queued"] - row["due"] for row in by_kind),
            "oldest_due_at": min(due, default=None),
            "kinds": waiting[:MOST_KINDS],
            "failures": fetch(conn, _FAILURES),
            "workers": at_work,
            "attention": attention(conn, by_kind),
        }
