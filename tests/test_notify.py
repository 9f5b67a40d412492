"""Waking up: a NOTIFY is sent if, and only if, somebody waits for that kind."""

from collections.abc import Callable

import psycopg
import pytest
from helpers import Connection, scalar

from ledger import in_thread
from verbs import (
    claim_one,
    enqueue,
    enqueue_many,
    expire,
    heard,
    outcome,
    reap,
    rows,
    settle,
)

LISTEN = "select jobq.listen(%s)"


@pytest.fixture
def waiting(connect: Callable[..., Connection]) -> Callable[..., Connection]:
    """Open connections that wait for kinds, as an idle worker does."""

    def wait(*kinds: str) -> Connection:
        listener = connect()
        assert scalar(listener, LISTEN, list(kinds)) is True
        return listener

    return wait


def test_nobody_is_notified_while_nobody_waits(
    conn: Connection, connect: Callable[..., Connection], waiting: Callable[..., Connection]
) -> None:
    ear = connect()  # hears everything, without the lock that says it waits
    ear.execute("listen jobq")
    other = waiting("other")
    enqueue(conn)
    enqueue_many(conn, 10)
    assert heard(ear) == []
    listener = waiting("test")
    enqueue(conn)
    assert heard(ear) == heard(listener) == heard(other) == ["test"]
    scalar(listener, "select jobq.unlisten()")
    enqueue(conn)
    assert heard(ear) == []


def test_a_statement_notifies_once_per_kind_however_many_rows(
    conn: Connection, waiting: Callable[..., Connection]
) -> None:
    listener = waiting("a", "b", "c")
    jobs = [{"kind": "abd"[n % 3]} for n in range(10_000)]
    conn.execute("select count(*) from jobq.enqueue_many(%s)", (psycopg.types.json.Jsonb(jobs),))
    assert sorted(heard(listener)) == ["a", "b"]


def test_only_jobs_due_within_a_minute_are_told_of(
    conn: Connection, waiting: Callable[..., Connection]
) -> None:
    listener = waiting("test")
    enqueue(conn, delay="61 s")
    enqueue_many(conn, 3, delay=61)
    assert heard(listener) == []
    enqueue(conn, delay="59 s")
    assert heard(listener) == ["test"]


def test_whatever_queues_a_job_again_wakes_too(
    conn: Connection, waiting: Callable[..., Connection], subtests: pytest.Subtests
) -> None:
    listener = waiting("test")

    def released() -> None:
        settle(conn, outcome(claim_one(conn), "released"))

    def failed() -> None:
        settle(conn, outcome(claim_one(conn), "failed", error="x", retry_in_seconds=0))

    def reaped() -> None:
        expire(conn, claim_one(conn))
        reap(conn)

    def retried() -> None:
        conn.execute("select jobq.cancel(max(id)) from jobq.jobs")
        conn.execute("select jobq.retry(max(id)) from jobq.jobs")

    def moved() -> None:
        conn.execute("select jobq.set_priority('{}', 5)")

    def rescheduled() -> None:
        conn.execute("select jobq.reschedule('{}', delay => '30 s')")

    def cloned() -> None:
        conn.execute("select jobq.clone(max(id)) from jobq.jobs")

    for step in (released, failed, retried, reaped, moved, rescheduled, cloned):
        with subtests.test(step.__name__):
            conn.execute("delete from jobq.jobs")
            enqueue(conn, retry_base_seconds=1)
            heard(listener)
            step()
            assert heard(listener) == ["test"]


def test_starting_and_ending_a_job_wakes_nobody(
    conn: Connection, waiting: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 3)
    listener = waiting("test")
    one, two, three = (claim_one(conn) for _ in range(3))
    settle(conn, outcome(one, "succeeded"), outcome(two, "failed", error="x", retryable=False))
    settle(conn, outcome(three, "snoozed", delay_seconds=3600))
    conn.execute("select jobq.purge('1 ms')")
    assert heard(listener) == []


@pytest.mark.parametrize("size", [7_999, 8_000, 1_048_576])
def test_a_notification_names_the_kind_and_nothing_of_the_payload(
    conn: Connection, waiting: Callable[..., Connection], size: int
) -> None:
    kind = "\U0001f600" * 32  # 128 bytes, the longest there is
    listener = waiting(kind)
    enqueue(conn, kind, {"text": "é" * (size // 2)})
    (payload,) = heard(listener)
    assert payload == kind
    assert len(payload.encode()) < 200


def test_a_client_of_plain_sql_is_woken(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    client = connect()
    client.execute("select jobq.listen('{mail}')")
    client.execute("select * from jobq.claim('plain', 1, '{mail}')")
    waits = in_thread(lambda: next(client.notifies(timeout=10)))
    job_id = enqueue(conn, "mail")
    assert waits.result(10).channel == "jobq"
    (claimed,) = rows(client, "select id from jobq.claim('plain', 1, '{mail}')")
    assert claimed.id == job_id
