"""What tests of the SQL share: jobs in a given status, rows and events, typed refusals, threads."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
import pytest
from helpers import Connection, scalar
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

T = TypeVar("T")
Row = dict[str, Any]

#: JSON values that are no payload.
NO_PAYLOADS: list[Any] = [[], None, "", 0, False]
STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")

_kinds = itertools.count(1)


@contextmanager
def refused(code: str, match: str | None = None) -> Iterator[None]:
    """Expect an error of the server with this SQLSTATE, whose text matches."""
    with pytest.raises(psycopg.Error, match=match) as caught:
        yield
    assert caught.value.sqlstate == code, caught.value


def enqueue(conn: Connection, kind: str = "k", payload: Any = None, **arguments: object) -> int:
    """Enqueue one job by named arguments and return its id."""
    created = enqueue_row(conn, kind, payload or {}, **arguments)
    return int(created["job_id"])


def enqueue_row(conn: Connection, kind: Any, payload: Any, **arguments: object) -> Row:
    """Enqueue one job and return (job_id, created, status) as a dict."""
    names = "".join(f", {name} => %({name})s" for name in arguments)
    query = f"select * from jobq.enqueue(%(kind)s, %(payload)s{names})"
    values = {**arguments, "kind": kind, "payload": None if payload is None else Jsonb(payload)}
    return one(conn, query, values)


def enqueue_many(conn: Connection, *jobs: Any) -> list[Row]:
    """Enqueue a batch and return its rows, in the order of the answer."""
    return rows(conn, "select * from jobq.enqueue_many(%s)", (Jsonb(list(jobs)),))


def claim(conn: Connection, *kinds: str, worker: str = "w", max_jobs: int = 1) -> list[Row]:
    """Claim jobs of these kinds (none named: any)."""
    query = "select * from jobq.claim(%s, %s, %s)"
    return rows(conn, query, (worker, max_jobs, list(kinds) or None))


def job_in(conn: Connection, status: str, **arguments: object) -> int:
    """Bring a new job, of a kind of its own, into this status by the functions; returns its id."""
    kind = f"kind-{next(_kinds)}"
    job_id = enqueue(conn, kind, **arguments)
    if status == "cancelled":
        conn.execute("select jobq.cancel(%s)", (job_id,))
    elif status != "queued":
        (claimed,) = claim(conn, kind)
        call = {
            "succeeded": "select jobq.succeed(%s, %s)",
            "failed": "select jobq.fail(%s, %s, 'broken', retryable => false)",
        }.get(status)
        if call:
            conn.execute(call.encode(), (job_id, claimed["lease_token"]))
    assert job(conn, job_id)["status"] == status
    return job_id


def job(conn: Connection, job_id: int) -> Row:
    """Return the job's row."""
    return one(conn, "select * from jobq.jobs where id = %s", (job_id,))


def events(conn: Connection, job_id: int) -> list[Row]:
    """Return the job's events, oldest first."""
    return rows(conn, "select * from jobq.job_events where job_id = %s order by id", (job_id,))


def names_of_events(conn: Connection, job_id: int) -> list[str]:
    """Return what happened to the job, oldest first."""
    return [event["event"] for event in events(conn, job_id)]


def assert_empty(conn: Connection) -> None:
    """Assert that no job and no event is stored."""
    assert scalar(conn, "select count(*) from jobq.jobs") == 0
    assert scalar(conn, "select count(*) from jobq.job_events") == 0


def pause_after_inserts(conn: Connection) -> None:
    """Make the n-th insert into jobs of a transaction wait, at its end, for advisory lock n."""
    conn.execute("""
    create function pause() returns trigger language plpgsql as $$
    declare
      v_number int := coalesce(nullif(current_setting('test.inserts', true), ''), '0')::int + 1;
    begin
      perform set_config('test.inserts', v_number::text, true);
      perform pg_advisory_lock(v_number), pg_advisory_unlock(v_number);
      return null;
    end
    $$
    """)
    conn.execute(
        "create trigger pause after insert on jobq.jobs for each statement execute function pause()"
    )


def rows(conn: Connection, query: str, values: Any = None) -> list[Row]:
    """Run the query and return its rows as dicts."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), values).fetchall()


def one(conn: Connection, query: str, values: Any = None) -> Row:
    """Run the query and return its only row as a dict."""
    (row,) = rows(conn, query, values)
    return row


def in_thread(call: Callable[..., T], *args: Any) -> "Future[T]":
    """Run the call in a thread of its own; its result or exception is the future's."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
