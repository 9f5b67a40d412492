"""The queue's verbs on any connection, in the caller's transaction or each in its own.

`conn` is a psycopg Connection, a DB-API connection or cursor with `%s` parameters (psycopg2,
pg8000, Django's `connection`), or an SQLAlchemy Connection or Session. Nothing here commits or
rolls back: a job enqueued in a transaction exists once that commits, and not at all if it rolls
back. The `…_async` twins take a psycopg AsyncConnection.

Each function raises a JobqError for what the queue refuses; the driver's other errors pass.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from jobq.errors import InvalidJob, translated
from jobq.payload import has_nul

__all__ = ["Enqueued", "NewJob", "cancel", "enqueue", "enqueue_many", "retry"]

_ENQUEUE = """
select e.job_id, e.created, e.status::text
from jobq.enqueue(
  kind => %s, payload => cast(%s as jsonb), priority => cast(%s as int),
  available_at => cast(%s as timestamptz), delay => make_interval(secs => cast(%s as float8)),
  max_attempts => cast(%s as int), idempotency_key => %s,
  retry_base_seconds => cast(%s as int), retry_cap_seconds => cast(%s as int)
) as e
"""
_ENQUEUE_MANY = """
select e.job_id, e.created, e.status::text
from jobq.enqueue_many(cast(%s as jsonb)) as e
order by e.ordinal
"""
_SUCCEED = "select jobq.succeed(cast(%s as bigint), cast(%s as uuid), cast(%s as jsonb))"
_CANCEL = "select jobq.cancel(cast(%s as bigint))::text"
_RETRY = "select jobq.retry(cast(%s as bigint), cast(%s as int))::text"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What an enqueue gave: `created` is False when the key's job was there already.

    `status` is the job's status at that moment: queued unless it was there already.
    """

    job_id: int
    created: bool
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be enqueued. `payload` is the text of a JSON object; `delay` is in seconds.

    Higher `priority` (-100 to 100) runs first. Give `available_at`, with its time zone, or `delay`.
    """

    kind: str
    payload: str = "{}"
    priority: int = 0
    available_at: datetime | None = None
    delay: float | timedelta | None = None
    max_attempts: int = 10
    idempotency_key: str | None = None
    retry_base_seconds: int = 15
    retry_cap_seconds: int = 3600

    def __post_init__(self) -> None:
        # Refused before the statement, which in the caller's transaction would abort it.
        due = self.available_at
        if due is not None and due.utcoffset() is None:
            raise InvalidJob(f"available_at {due.isoformat()} has no time zone")
        if self._seconds is not None and not math.isfinite(self._seconds):
            raise InvalidJob(f"delay is a number of seconds, not {self.delay!r}")
        if "\0" in self.kind or "\0" in (self.idempotency_key or "") or has_nul(self.payload):
            raise InvalidJob("PostgreSQL cannot store a NUL character")

    @property
    def _seconds(self) -> float | None:
        return self.delay.total_seconds() if isinstance(self.delay, timedelta) else self.delay

    def _parameters(self) -> tuple[Any, ...]:
        return (
            self.kind,
            self.payload,
            self.priority,
            self.available_at,
            self._seconds,
            self.max_attempts,
            self.idempotency_key,
            self.retry_base_seconds,
            self.retry_cap_seconds,
        )

    def _element(self) -> str:
        head, tail = self._frame()
        return f"{head}{self.payload}{tail}"

    def _frame(self) -> tuple[str, str]:
        """What stands before and after the payload in an element of `enqueue_many`."""
        due = self.available_at
        fields = {
            "priority": self.priority,
            "available_at": None if due is None else due.isoformat(),
            "delay": self._seconds,
            "max_attempts": self.max_attempts,
            "idempotency_key": self.idempotency_key,
            "retry_base_seconds": self.retry_base_seconds,
            "retry_cap_seconds": self.retry_cap_seconds,
        }
        given = {
            name: value
            for name, value in fields.items()
            if value is not None and value != _DEFAULTS[name]
        }
        more = f",{json.dumps(given)[1:-1]}" if given else ""
        return f'{{"kind":{json.dumps(self.kind)},"payload":', f"{more}}}"


_DEFAULTS = {name: field.default for name, field in NewJob.__dataclass_fields__.items()}


def enqueue(conn: Any, job: NewJob) -> Enqueued:
    """Enqueue one job. Raises InvalidJob, IdempotencyConflict."""
    return Enqueued(*_rows(conn, _ENQUEUE, job._parameters())[0])


def enqueue_many(conn: Any, jobs: Iterable[NewJob]) -> list[Enqueued]:
    """Enqueue all the jobs or none, in one statement; the answers stand in the order of `jobs`.

    Raises InvalidJob (its message names the ordinal, from 1), IdempotencyConflict.
    """
    return insert(conn, [job._element() for job in jobs])


def insert(conn: Any, elements: Sequence[str]) -> list[Enqueued]:
    """`enqueue_many` of elements that are JSON text already."""
    return [Enqueued(*row) for row in _rows(conn, _ENQUEUE_MANY, (f"[{','.join(elements)}]",))]


def cancel(conn: Any, job_id: int) -> str:
    """Cancel a queued job, or ask a running one to stop; return the status. Raises JobNotFound."""
    return str(_rows(conn, _CANCEL, (job_id,))[0][0])


def retry(conn: Any, job_id: int, extra_attempts: int = 1) -> str:
    """Queue a failed or cancelled job again, due now, with at least `extra_attempts` starts.

    Raises JobNotFound; IllegalTransition for a job that is queued, running or succeeded.
    """
    return str(_rows(conn, _RETRY, (job_id, extra_attempts))[0][0])


def succeed(conn: Any, job_id: int, lease_token: str, result: str | None = None) -> None:
    """End a run; `result` is JSON text. Raises LeaseLost, JobNotFound."""
    if isinstance(conn, psycopg.AsyncConnection | psycopg.AsyncCursor):
        raise TypeError("succeed takes a synchronous connection, not an AsyncConnection")
    _rows(conn, _SUCCEED, (job_id, lease_token, result))


async def enqueue_async(conn: psycopg.AsyncConnection[Any], job: NewJob) -> Enqueued:
    """`enqueue` on a psycopg AsyncConnection."""
    return Enqueued(*(await _rows_async(conn, _ENQUEUE, job._parameters()))[0])


async def enqueue_many_async(
    conn: psycopg.AsyncConnection[Any], jobs: Iterable[NewJob]
) -> list[Enqueued]:
    """`enqueue_many` on a psycopg AsyncConnection."""
    return await insert_async(conn, [job._element() for job in jobs])


async def insert_async(
    conn: psycopg.AsyncConnection[Any], elements: Sequence[str]
) -> list[Enqueued]:
    """`insert` on a psycopg AsyncConnection."""
    rows = await _rows_async(conn, _ENQUEUE_MANY, (f"[{','.join(elements)}]",))
    return [Enqueued(*row) for row in rows]


def payload_text(payload: Mapping[str, Any]) -> str:
    """A payload of plain JSON values as text; raises InvalidJob for any other value."""
    try:
        return json.dumps(payload, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidJob(f"the payload is not JSON: {exc}") from exc


def _rows(conn: Any, sql: str, parameters: tuple[Any, ...]) -> Sequence[Sequence[Any]]:
    if isinstance(conn, psycopg.AsyncConnection | psycopg.AsyncCursor):
        raise TypeError("an AsyncConnection needs the async call: await …enqueue_async(…)")
    if hasattr(conn, "get_bind") and callable(getattr(conn, "connection", None)):
        conn = conn.connection()  # SQLAlchemy Session
    with translated():
        if isinstance(conn, psycopg.Connection):
            with conn.cursor(row_factory=tuple_row) as cursor:
                return cursor.execute(sql, parameters).fetchall()
        if hasattr(conn, "exec_driver_sql"):  # SQLAlchemy Connection
            rows: Sequence[Sequence[Any]] = conn.exec_driver_sql(sql, parameters).fetchall()
            return rows
        if not hasattr(conn, "cursor"):  # a cursor: the caller's, left open
            conn.execute(sql, parameters)
            return [tuple(row) for row in conn.fetchall()]
        with closing(conn.cursor()) as cursor:
            cursor.execute(sql, parameters)
            return [tuple(row) for row in cursor.fetchall()]


async def _rows_async(
    conn: psycopg.AsyncConnection[Any], sql: str, parameters: tuple[Any, ...]
) -> Sequence[Sequence[Any]]:
    if not isinstance(conn, psycopg.AsyncConnection):
        raise TypeError("the async call needs a psycopg AsyncConnection")
    with translated():
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(sql, parameters)
            return await cursor.fetchall()
