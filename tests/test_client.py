import asyncio
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from helpers import Connection, scalar

from jobq import (
    Enqueued,
    IdempotencyConflict,
    IllegalTransition,
    InvalidArgument,
    InvalidJob,
    JobNotFound,
    NewJob,
    client,
)
from workers import events, job, status


def test_enqueue_stores_what_it_was_given(conn: Connection) -> None:
    due = datetime(2100, 1, 1, tzinfo=UTC)
    new = NewJob(
        kind="k",
        payload='{"n": 100000000000000000000000000000000000001}',
        priority=-5,
        available_at=due,
        max_attempts=3,
        idempotency_key="key",
        retry_base_seconds=1,
        retry_cap_seconds=2,
    )
    result = client.enqueue(conn, new)
    row = job(conn, result.job_id)
    assert result == Enqueued(row["id"], True, "queued")
    assert row["kind"] == "k"
    assert row["payload"] == {"n": 10**38 + 1}
    assert (row["priority"], row["available_at"], row["max_attempts"]) == (-5, due, 3)
    assert (row["idempotency_key"], row["retry_base_seconds"], row["retry_cap_seconds"]) == (
        "key",
        1,
        2,
    )


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_is_seconds(conn: Connection, delay: float | timedelta) -> None:
    for result in (
        client.enqueue(conn, NewJob(kind="k", delay=delay)),
        client.enqueue_many(conn, [NewJob(kind="k", delay=delay)])[0],
    ):
        row = job(conn, result.job_id)
        assert row["available_at"] - row["created_at"] == timedelta(seconds=90)


def test_a_day_is_86400_seconds_across_a_clock_change(conn: Connection) -> None:
    conn.execute("set timezone = 'America/Sao_Paulo'")
    for days in range(1, 366, 30):
        row = job(conn, client.enqueue(conn, NewJob(kind="k", delay=timedelta(days))).job_id)
        assert row["available_at"] - row["created_at"] == timedelta(days)


def test_enqueue_many_answers_in_order(conn: Connection) -> None:
    keyed = NewJob(kind="k", idempotency_key="b", priority=7)
    results = client.enqueue_many(
        conn, [NewJob(kind="a"), keyed, NewJob(kind="c", payload='{"x": 1}'), keyed]
    )
    assert [r.created for r in results] == [True, True, True, False]
    assert results[3].job_id == results[1].job_id
    assert [job(conn, r.job_id)["kind"] for r in results] == ["a", "k", "c", "k"]
    assert job(conn, results[1].job_id)["priority"] == 7
    assert job(conn, results[2].job_id)["payload"] == {"x": 1}
    assert client.enqueue_many(conn, []) == []


REFUSED = [
    {"kind": ""},
    {"kind": "k" * 129},
    {"kind": "a\0"},
    {"priority": 101},
    {"priority": 10**12},
    {"payload": "[]"},
    {"payload": "null"},
    {"payload": '{"a": '},
    {"payload": '{"a": "\\u0000"}'},
    {"payload": '{"a\\u0000": 1}'},
    {"payload": '{"a": 1e1000000}'},
    {"max_attempts": 0},
    {"idempotency_key": ""},
    {"idempotency_key": "\0"},
    {"retry_base_seconds": 0},
    {"delay": float("inf")},
    {"delay": float("nan")},
    {"delay": 1e300},
    {"delay": 1, "available_at": datetime(2100, 1, 1, tzinfo=UTC)},
    {"available_at": datetime(2100, 1, 1)},  # noqa: DTZ001 - naive on purpose
]


@pytest.mark.parametrize("values", REFUSED, ids=repr)
def test_an_invalid_job_is_refused_and_leaves_nothing(conn: Connection, values: Any) -> None:
    with pytest.raises(InvalidJob):
        client.enqueue(conn, NewJob(**{"kind": "k", **values}))
    with pytest.raises(InvalidJob):
        client.enqueue_many(conn, [NewJob(kind="k"), NewJob(**{"kind": "k", **values})])
    assert scalar(conn, "select count(*) from jobq.jobs") == 0
    assert scalar(conn, "select count(*) from jobq.job_events") == 0
    assert client.enqueue(conn, NewJob(kind="k")).created


def test_a_key_gives_its_job_again_or_a_conflict(conn: Connection) -> None:
    first = client.enqueue(conn, NewJob(kind="k", payload='{"a": 1}', idempotency_key="x"))
    again = client.enqueue(conn, NewJob(kind="k", payload='{"a":1.0}', idempotency_key="x"))
    assert again == Enqueued(first.job_id, False, "queued")
    for other in (NewJob(kind="k", idempotency_key="x"), NewJob(kind="l", idempotency_key="x")):
        with pytest.raises(IdempotencyConflict):
            client.enqueue(conn, other)


def test_cancel_and_retry_tell_the_new_status(conn: Connection) -> None:
    job_id = client.enqueue(conn, NewJob(kind="k")).job_id
    assert client.cancel(conn, job_id) == "cancelled"
    assert client.retry(conn, job_id) == "queued"
    assert events(conn, job_id) == ["enqueued", "cancelled", "retried"]
    with pytest.raises(IllegalTransition):
        client.retry(conn, job_id)
    with pytest.raises(InvalidArgument):
        client.retry(conn, job_id, extra_attempts=0)
    for call in (client.cancel, client.retry):
        with pytest.raises(JobNotFound):
            call(conn, 999)


def test_a_job_joins_the_callers_transaction(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    caller = connect(autocommit=False)
    lost = client.enqueue(caller, NewJob(kind="k")).job_id
    caller.rollback()
    kept = client.enqueue(caller, NewJob(kind="k")).job_id
    assert scalar(conn, "select count(*) from jobq.jobs") == 0
    caller.commit()
    assert scalar(conn, "select array_agg(id) from jobq.jobs") == [kept]
    assert lost != kept


def test_the_callers_row_factory_does_not_matter(connect: Callable[..., Connection]) -> None:
    caller = connect(row_factory=psycopg.rows.dict_row)
    assert client.enqueue(caller, NewJob(kind="k")).created


class DbApi:
    """A DB-API connection as drivers and Django hand it out: cursor(), execute, fetchall."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def cursor(self) -> "DbApiCursor":
        return DbApiCursor(self._conn)


class DbApiCursor:
    def __init__(self, conn: Connection) -> None:
        self._cursor = psycopg.ClientCursor(conn)

    def execute(self, sql: str, parameters: Any = None) -> None:
        self._cursor.execute(sql.encode(), parameters)

    def fetchall(self) -> list[list[Any]]:
        return [list(row) for row in self._cursor.fetchall()]

    def close(self) -> None:
        self._cursor.close()


def test_any_db_api_connection_or_cursor_will_do(conn: Connection) -> None:
    new = NewJob(kind="k", payload='{"percent": "100%s"}', delay=5, idempotency_key="x")
    first = client.enqueue(DbApi(conn), new)
    assert first.created
    cursor = DbApiCursor(conn)
    with closing(cursor):
        assert client.enqueue(cursor, new) == Enqueued(first.job_id, False, "queued")
        assert client.enqueue_many(cursor, [NewJob(kind="k")])[0].created
    assert job(conn, first.job_id)["payload"] == {"percent": "100%s"}


def test_async_connections_join_too(dsn: str, conn: Connection) -> None:
    asyncio.run(_enqueue_async(dsn, conn))


async def _enqueue_async(dsn: str, conn: Connection) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as caller:
        first = await client.enqueue_async(caller, NewJob(kind="k"))
        many = await client.enqueue_many_async(caller, [NewJob(kind="k")] * 2)
        assert scalar(conn, "select count(*) from jobq.jobs") == 0
        with pytest.raises(TypeError, match="enqueue_async"):
            client.enqueue(caller, NewJob(kind="k"))
    assert [status(conn, r.job_id) for r in [first, *many]] == ["queued"] * 3
    with pytest.raises(TypeError, match="AsyncConnection"):
        await client.enqueue_async(conn, NewJob(kind="k"))  # type: ignore[arg-type]


def test_other_errors_of_the_driver_pass(dsn: str) -> None:
    with psycopg.connect(dsn) as aborted:
        for error in (psycopg.errors.DivisionByZero, psycopg.errors.InFailedSqlTransaction):
            with pytest.raises(error):
                aborted.execute("select 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            client.enqueue(aborted, NewJob(kind="k"))
