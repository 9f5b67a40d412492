"""The verbs of the dashboard; each runs in a transaction of its caller's and may be refused."""

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
from jobq.retry_jobs(%(filter)s::jsonb, dry_run => %(dry_run)s) r"""

_CANCEL_JOBS = """
select r.matched, r.changed, r.sample
from jobq.cancel_jobs(%(filter)s::jsonb, dry_run => %(dry_run)s) r"""

_SET_PRIORITY = """
select r.matched, r.changed, r.sample
from jobq.set_priority(%(filter)s::jsonb, %(priority)s::int, dry_run => %(dry_run)s) r"""

_RESCHEDULE = """
select r.matched, r.changed, r.sample
from jobq.reschedule(%(filter)s::jsonb, delay => make_interval(secs => %(delay)s),
  dry_run => %(dry_run)s) r"""


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


def retry_jobs(conn: Connection, filter: dict[str, Any], dry_run: bool) -> dict[str, Any]:
    """Retry the failed and cancelled jobs that match; return {matched, changed, sample}."""
    return _many(conn, _RETRY_JOBS, filter, dry_run)


def cancel_jobs(conn: Connection, filter: dict[str, Any], dry_run: bool) -> dict[str, Any]:
    """Cancel the queued jobs that match, ask the running ones to stop."""
    return _many(conn, _CANCEL_JOBS, filter, dry_run)


def set_priority(
    conn: Connection, filter: dict[str, Any], priority: int, dry_run: bool
) -> dict[str, Any]:
    """Move the queued jobs that match to a priority."""
    return _many(conn, _SET_PRIORITY, filter, dry_run, priority=priority)


def reschedule(
    conn: Connection, filter: dict[str, Any], delay_seconds: float, dry_run: bool
) -> dict[str, Any]:
    """Make the queued jobs that match due after a delay."""
    return _many(conn, _RESCHEDULE, filter, dry_run, delay=delay_seconds)


def purge(conn: Connection, older_than_days: float, statuses: tuple[str, ...]) -> int:
    """Delete one batch of finished jobs with their events; return how many."""
    query = """
        select jobq.purge(make_interval(secs => %s), statuses => %s::jobq.job_status[])"""
    with translated():
        return int(value(conn, query, (older_than_days * 86400, list(statuses))))


def reap(conn: Connection) -> int:
    """Take jobs from workers whose lease ran out; return how many."""
    with translated():
        return int(value(conn, "select count(*) from jobq.reap()"))


def _many(
    conn: Connection, query: str, filter: dict[str, Any], dry_run: bool, **values: Any
) -> dict[str, Any]:
    with translated():
        return fetch_one(conn, query, {"filter": filter_text(filter), "dry_run": dry_run, **values})
