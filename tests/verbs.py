"""The SQL API as the tests call it, and what they look at afterwards."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from helpers import Connection, scalar
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb


def rows(conn: Connection, query: str, *args: object) -> list[Any]:
    """Return the rows that the query yields; columns are attributes."""
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(query, args).fetchall()


def enqueue(conn: Connection, kind: str = "test", payload: Any = None, **options: object) -> int:
    """Enqueue one job and return its id; `options` are the arguments of jobq.enqueue."""
    named = "".join(f", {name} => %s" for name in options)
    query = f"select job_id from jobq.enqueue(%s, %s{named})"
    return int(scalar(conn, query, kind, Jsonb(payload or {}), *options.values()))


def enqueue_many(conn: Connection, count: int, kind: str = "test", **fields: object) -> list[int]:
    """Enqueue so many alike jobs in one statement, which share their timestamps; returns ids."""
    jobs = json.dumps([{"kind": kind, **fields}] * count)
    return [row[0] for row in conn.execute("select job_id from jobq.enqueue_many(%s)", (jobs,))]


def enqueue_old(conn: Connection, count: int, priority: int = 0) -> list[int]:
    """Jobs that have been due for an hour: a floor of a second ago lies above them."""
    query = """
    insert into jobq.jobs (kind, priority, created_at, available_at)
    select 'test', %s, t, t
    from generate_series(1, %s), (select clock_timestamp() - interval '1 hour' as t) hour_ago
    returning id"""
    return [row[0] for row in conn.execute(query, (priority, count))]


def claim(
    conn: Connection,
    max_jobs: int = 1,
    kinds: Sequence[str] | None = None,
    *,
    worker: str = "worker-1",
    lease: str = "60 seconds",
) -> list[Any]:
    """Claim jobs; returns whole rows of jobq.jobs, in the order in which they came."""
    query = "select * from jobq.claim(%s, %s, %s::text[], %s::interval)"
    kind_list = None if kinds is None else list(kinds)
    return rows(conn, query, worker, max_jobs, kind_list, lease)


def claim_one(conn: Connection, **options: Any) -> Any:
    """Claim one job, which must be there."""
    (job,) = claim(conn, **options)
    return job


def run(conn: Connection, kind: str = "run", payload: Any = None, **options: object) -> Any:
    """Enqueue a job of a kind of its own and claim it: the job as its worker gets it."""
    job_id = enqueue(conn, kind, payload, **options)
    (job,) = [claimed for claimed in claim(conn, 1000, [kind]) if claimed.id == job_id]
    return job


def outcome(job: Any, verdict: str, **fields: object) -> dict[str, object]:
    """Return an element of jobq.settle's argument for a claimed job."""
    return {"job_id": job.id, "lease_token": str(job.lease_token), "outcome": verdict, **fields}


def settle(conn: Connection, *outcomes: Any) -> list[tuple[int, bool | None, str | None]]:
    """Settle; returns (job_id, accepted, status) per claim."""
    query = "select * from jobq.settle(%s)"
    return [tuple(row) for row in conn.execute(query, (json.dumps(outcomes, ensure_ascii=False),))]


def succeed(conn: Connection, *jobs: Any) -> None:
    """Settle all as succeeded, which must be accepted."""
    answers = settle(conn, *(outcome(job, "succeeded") for job in jobs))
    assert [accepted for _, accepted, _ in answers] == [True] * len(jobs), answers


def fail(conn: Connection, job: Any, error: str = "ValueError: no", **fields: object) -> None:
    """Settle as failed, for good unless told otherwise, which must be accepted."""
    failed = outcome(job, "failed", error=error, **{"retryable": False, **fields})
    assert [accepted for _, accepted, _ in settle(conn, failed)] == [True]


def renew(
    conn: Connection, *jobs: Any, lease: str = "60 seconds"
) -> list[tuple[int, bool, bool, bool]]:
    """Renew; returns (job_id, held, renewed, cancel_requested) per claim."""
    ids, tokens = [job.id for job in jobs], [job.lease_token for job in jobs]
    query = "select * from jobq.renew(%s::bigint[], %s::uuid[], %s::interval)"
    return [tuple(row) for row in conn.execute(query, (ids, tokens, lease))]


def reap(conn: Connection, max_jobs: int = 1000) -> dict[int, str]:
    """Reap; returns the new status per job."""
    return dict(conn.execute("select * from jobq.reap(%s)", (max_jobs,)))


def expire(conn: Connection, *jobs: Any) -> None:
    """Let the leases of these claimed jobs end a second ago."""
    query = """
    update jobq.jobs set lease_expires_at = clock_timestamp() - interval '1 second'
    where id = any(%s)"""
    conn.execute(query, ([job.id for job in jobs],))


def job_row(conn: Connection, job_id: int) -> Any:
    """Return the job's row."""
    (row,) = rows(conn, "select * from jobq.jobs where id = %s", job_id)
    return row


def status_of(conn: Connection, job_id: int) -> str:
    """Return the job's status."""
    return str(job_row(conn, job_id).status)


def events_of(conn: Connection, job_id: int) -> list[str]:
    """Return the names of the job's events, in order."""
    query = "select event::text from jobq.job_events where job_id = %s order by id"
    return [row[0] for row in conn.execute(query, (job_id,))]


def assert_consistent(conn: Connection) -> None:
    """Fail unless replaying all events gives all rows."""
    assert rows(conn, "select * from jobq.verify()") == []


def heard(listener: Connection) -> list[str]:
    """The kinds that the connection was notified of since it was asked last."""
    listener.execute("select")
    return [note.payload for note in listener.notifies(timeout=0)]


def clear(conn: Connection) -> None:
    """Forget all jobs, their events and the session's floor."""
    conn.execute("delete from jobq.jobs")
    conn.execute("set jobq.floor = ''")


def stale(job: Any) -> Any:
    """Return the claim with a token that was never drawn."""
    return job._replace(lease_token=UUID(int=1))
