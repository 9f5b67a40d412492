"""One job: its row, why it is where it is, and its events."""

from typing import Any

from sql import Connection, Row, fetch

__all__ = ["explain", "job", "timeline"]

_JOB = """
select
  j.id, j.kind, jsonb_pretty(j.payload) as payload, j.status::text as status, j.priority,
  j.created_at, j.available_at, j.attempt, j.max_attempts, j.retry_base_seconds,
  j.retry_cap_seconds, j.idempotency_key, j.locked_by, j.lease_expires_at, j.lost_leases,
  j.cancel_requested_at, j.progress, j.started_at, j.finished_at,
  jsonb_pretty(j.result) as result, j.last_error, clock_timestamp() as now
from jobq.job_details j
where j.id = %s"""

_TIMELINE = """
select t.id, t.at, t.event::text as event, t.from_status::text as from_status,
  t.to_status::text as to_status, t.attempt, t.worker, t.actor, t.detail::text as detail
from jobq.job_timeline t
where t.job_id = %(job_id)s and t.id < %(before)s
order by t.id desc
limit %(limit)s"""

_NEWEST = 2**63 - 1


def job(conn: Connection, job_id: int) -> Row | None:
    """Return a job as view job_details shows it, its JSON as indented text; None: no such job."""
    found = fetch(conn, _JOB, (job_id,))
    return found[0] if found else None


def explain(conn: Connection, job_id: int) -> list[Row]:
    """Return why the job is where it is: (reason, message, detail)."""
    query = "select e.reason, e.message, e.detail::text as detail from jobq.explain(%s) e"
    return fetch(conn, query, (job_id,))


def timeline(
    conn: Connection, job_id: int, before: int | None = None, limit: int = 200
) -> dict[str, Any]:
    """Return the newest `limit` events before event `before`, oldest first; `more`: are older."""
    values = {
        "job_id": job_id,
        "before": _NEWEST if before is None else before,
        "limit": limit + 1,
    }
    found = fetch(conn, _TIMELINE, values)
    return {"rows": found[:limit][::-1], "more": len(found) > limit}
