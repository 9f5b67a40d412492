"""The verbs of the dashboard; each runs in a transaction of its caller's and may be refused."""

from datetime import datetime
from typing import Any

from jobq.errors import translated
from search_filter import filter_text
from sql import Connection, fetch_one, value

__all__ = [
    "cancel",
    "cancel_jobs",
    "check",
    "clone",
    "enqueue",
    "purge",
    "reap",
    "reschedule",
    "retry",
    "retry_jobs",
    "set_priority",
]

_ENQUEUE = """
select e.job_id, e.created, e.status::text as status
from jobq.enqueue(%(kind)s, %(payload)s::jsonb, %(priority)s::int,
  delay => make_interval(secs => %(delay)s), max_attempts => %(max_attempts)s::int,
  idempotency_key => %(key)s) e"""

_RETRY_JOBS = """
select r.matched, r.changed, r.sample
from jobq.retry_jobs(%(filter)s::jsonb, dry_run => %(dry_run)s, max_jobs => %(max_jobs)s) r"""

_CANCEL_JOBS = """
select r.matched, r.changed, r.sample
from jobq.cancel_jobs(%(filter)s::jsonb, dry_run => %(dry_run)s, max_jobs => %(max_jobs)s) r"""

_SET_PRIORITY = """
select r.matched, r.changed, r.sample
from jobq.set_priority(%(filter)s::jsonb, %(priority)s::int,
  dry_run => %(dry_run)s, max_jobs => %(max_jobs)s) r"""

_RESCHEDULE = """
select r.matched, r.changed, r.sample
from jobq.reschedule(%(filter)s::jsonb, delay => make_interval(secs => %(delay)s),
  dry_run => %(dry_run)s, max_jobs => %(max_jobs)s) r"""

# Purge takes an age: one that grows with the clock keeps the cutoff where it was.
_PURGE = """
select jobq.purge(clock_timestamp() - %(cutoff)s::timestamptz, %(max_jobs)s::int,
  %(statuses)s::jobq.job_status[])"""

#: How many jobs an act on many takes at once.
BATCH = 10_000


class _Undo(Exception):
    """Rolls a transaction back that has told what it would do."""


def retry(conn: Connection, job_id: int) -> str:
    """Queue a failed or cancelled job again; return its status."""
    with translated():
        return str(value(conn, "select jobq.retry(%s)::text", (job_id,)))


def cancel(conn: Connection, job_id: int) -> str:
    """Cancel a queued job, ask a running one to stop; return its status."""
    with translated():
        return str(value(conn, "select jobq.cancel(%s)::text", (job_id,)))


def clone(conn: Connection, job_id: int, payload_text: str) -> int:
    """Enqueue a job like that one with this payload; return the new id."""
    with translated():
        return int(value(conn, "select jobq.clone(%s, %s::jsonb)", (job_id, payload_text)))


def enqueue(
    conn: Connection,
    kind: str,
    payload_text: str,
    priority: int = 0,
    delay_seconds: float = 0,
    key: str | None = None,
    max_attempts: int = 10,
) -> dict[str, Any]:
    """Enqueue a job; return {job_id, created, status}."""
    values = {
        "kind": kind,
        "payload": payload_text,
        "priority": priority,
        "delay": delay_seconds,
        "key": key or None,
        "max_attempts": max_attempts,
    }
    with translated():
        return fetch_one(conn, _ENQUEUE, values)


def check(conn: Connection, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Do what `enqueue` does, and roll it back."""
    told: dict[str, Any] = {}
    try:
        with conn.transaction():
            told = enqueue(conn, *args, **kwargs)
            raise _Undo
    except _Undo:
        return told


def retry_jobs(
    conn: Connection, filter: dict[str, Any], dry_run: bool, max_jobs: int = BATCH
) -> dict[str, Any]:
    """Retry the failed and cancelled jobs that match; return {matched, changed, sample}."""
    return _many(conn, _RETRY_JOBS, filter, dry_run, max_jobs)


def cancel_jobs(
    conn: Connection, filter: dict[str, Any], dry_run: bool, max_jobs: int = BATCH
) -> dict[str, Any]:
    """Cancel the queued jobs that match, ask the running ones to stop."""
    return _many(conn, _CANCEL_JOBS, filter, dry_run, max_jobs)


def set_priority(
    conn: Connection,
    filter: dict[str, Any],
    priority: int,
    dry_run: bool,
    max_jobs: int = BATCH,
) -> dict[str, Any]:
    """Move the queued jobs that match to a priority."""
    return _many(conn, _SET_PRIORITY, filter, dry_run, max_jobs, priority=priority)


def reschedule(
    conn: Connection,
    filter: dict[str, Any],
    delay_seconds: float,
    dry_run: bool,
    max_jobs: int = BATCH,
) -> dict[str, Any]:
    """Make the queued jobs that match due after a delay."""
    return _many(conn, _RESCHEDULE, filter, dry_run, max_jobs, delay=delay_seconds)


def purge(
    conn: Connection,
    cutoff: datetime,
    statuses: tuple[str, ...],
    max_jobs: int = 1000,
    place: str = "",
) -> tuple[int, str]:
    """Delete a batch of the jobs that finished before `cutoff`, with their events.

    Return how many, and the place from where the next batch is to go on; "": from the oldest job.
    """
    values = {"cutoff": cutoff, "max_jobs": max_jobs, "statuses": list(statuses)}
    with translated():
        # Pooled sessions take turns: each would go on where another purge has ended in it.
        value(conn, "select set_config('jobq.purged', %s, false)", (place,))
        deleted = int(value(conn, _PURGE, values))
        place = value(conn, "select current_setting('jobq.purged')")
        return deleted, place


def reap(conn: Connection) -> int:
    """Take jobs from workers whose lease ran out; return how many."""
    with translated():
        return int(value(conn, "select count(*) from jobq.reap()"))


def _many(
    conn: Connection,
    query: str,
    filter: dict[str, Any],
    dry_run: bool,
    max_jobs: int,
    **values: Any,
) -> dict[str, Any]:
    values |= {"filter": filter_text(filter), "dry_run": dry_run, "max_jobs": max_jobs}
    with translated():
        return fetch_one(conn, query, values)
