"""Settling while others act on the same jobs: nothing waits, nothing is lost, one end per run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

import pytest
from helpers import Connection, scalar, wait_for_lock_wait

from ledger import in_thread, refused
from verbs import (
    assert_consistent,
    claim,
    claim_one,
    clear,
    enqueue,
    enqueue_many,
    events_of,
    expire,
    job_row,
    outcome,
    reap,
    renew,
    run,
    settle,
    status_of,
    succeed,
)

ENDS = {"succeeded", "failed", "lease_lost", "released", "snoozed", "cancelled"}


@contextmanager
def holding(connect: Callable[..., Connection], query: str, *args: object) -> Iterator[Connection]:
    """Hold the row locks of a query in an open transaction, which is rolled back at the end."""
    other = connect(autocommit=False)
    other.execute(query, args)
    yield other
    other.rollback()


def test_a_locked_row_is_answered_at_once_and_settled_when_sent_again(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 2)
    held, free = claim(conn, 2)
    conn.execute("set lock_timeout = '1 s'")  # a wait would be an error
    sent = [outcome(held, "succeeded"), outcome(free, "succeeded")]
    with holding(connect, "select jobq.cancel(%s)", held.id):
        assert settle(conn, *sent) == [(held.id, None, "running"), (free.id, True, "succeeded")]
        assert settle(conn, *sent) == [(held.id, None, "running"), (free.id, False, "succeeded")]
    assert settle(conn, sent[0]) == [(held.id, True, "succeeded")]
    assert_consistent(conn)


DAWDLES = (
    "select jobq.cancel(%s)",
    "select jobq.succeed(id, lease_token) from jobq.jobs where id = %s",
    "select jobq.report_progress(id, lease_token, 0.5) from jobq.jobs where id = %s",
    "update jobq.jobs set lease_expires_at = lease_expires_at where id = %s",
)


def test_a_transaction_that_dawdles_stalls_nobody(
    conn: Connection, connect: Callable[..., Connection], subtests: pytest.Subtests
) -> None:
    conn.execute("set lock_timeout = '1 s'")
    for query in DAWDLES:
        with subtests.test(query):
            clear(conn)
            enqueue_many(conn, 4)
            held, free, lost, done = claim(conn, 4)
            expire(conn, held, lost)
            with holding(connect, query, held.id):
                assert renew(conn, held, free) == [
                    (held.id, True, False, False),
                    (free.id, True, True, False),
                ]
                assert reap(conn) == {lost.id: "queued"}
                answers = settle(conn, outcome(held, "succeeded"), outcome(done, "succeeded"))
                assert answers == [(held.id, None, "running"), (done.id, True, "succeeded")]
                assert conn.execute("select jobq.purge('1 ms')").fetchone() is not None
            assert renew(conn, held)[0][2]


def test_a_renewal_that_commits_in_between_loses_no_completion(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    """A settle that has its snapshot, then meets a newer version of a row, must write that one."""
    settler = connect()
    enqueue_many(conn, 2)
    first, second = claim(conn, 2)
    # The first row's error makes the statement pause here, before it has locked the second.
    conn.execute("""
        create or replace function jobq._clean_error(error text) returns text language plpgsql as
        $$ begin perform pg_advisory_xact_lock(42); return error; end $$""")
    conn.execute("select pg_advisory_lock(42)")
    answer = in_thread(
        lambda: settle(
            settler, outcome(first, "failed", error="x"), outcome(second, "succeeded", result=7)
        )
    )
    wait_for_lock_wait(conn, settler.info.backend_pid)
    assert renew(conn, second, lease="1 hour")[0][2]
    conn.execute("select pg_advisory_unlock(42)")
    assert answer.result(10) == [(first.id, True, "queued"), (second.id, True, "succeeded")]
    assert (status_of(conn, second.id), job_row(conn, second.id).result) == ("succeeded", 7)
    assert events_of(conn, second.id) == ["enqueued", "claimed", "succeeded"]
    assert_consistent(conn)


def test_renewals_and_settles_in_opposite_orders_neither_wait_nor_lose_anything(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    renewer, settler = connect(), connect()
    for session in (renewer, settler):
        session.execute("set deadlock_timeout = '10 ms'")
        session.execute("set lock_timeout = '1 s'")
    for _ in range(3):
        enqueue_many(conn, 400)
        jobs = claim(conn, 400)
        stop = Event()

        def renew_backwards(jobs: list[object] = jobs, stop: Event = stop) -> int:
            rounds = 0
            while not stop.is_set():
                renew(renewer, *reversed(jobs))
                rounds += 1
            return rounds

        renewing = in_thread(renew_backwards)
        left = jobs
        while left:
            answers = settle(settler, *(outcome(job, "succeeded") for job in left[:100]))
            for job_id, accepted, status in answers:
                assert accepted is not False
                # The answer is the row: an accepted success has really been stored.
                if accepted:
                    assert (status, status_of(conn, job_id)) == ("succeeded", "succeeded")
            done = {job_id for job_id, accepted, _ in answers if accepted}
            left = [job for job in left if job.id not in done]
        stop.set()
        assert renewing.result(10) > 0
    assert_consistent(conn)


def test_a_worker_that_lost_its_lease_is_refused_everything(conn: Connection) -> None:
    enqueue(conn, retry_base_seconds=1, retry_cap_seconds=1)
    first = claim_one(conn, worker="one")
    expire(conn, first)
    assert reap(conn) == {first.id: "queued"}
    conn.execute("update jobq.jobs set available_at = clock_timestamp()")
    second = claim_one(conn, worker="two")
    assert second.lease_token != first.lease_token
    assert settle(conn, outcome(first, "succeeded")) == [(first.id, False, "running")]
    assert settle(conn, outcome(first, "failed", error="x")) == [(first.id, False, "running")]
    assert renew(conn, first) == [(first.id, False, False, False)]
    for call in ("succeed(%s, %s)", "fail(%s, %s, 'x')", "release(%s, %s)"):
        with refused("JQ003"):
            conn.execute(f"select jobq.{call}".encode(), (first.id, first.lease_token))
    assert job_row(conn, first.id) == second
    succeed(conn, second)
    events = events_of(conn, first.id)
    assert [event for event in events if event in ENDS] == ["lease_lost", "succeeded"]
    assert_consistent(conn)


def test_a_job_that_finishes_before_the_reaper_comes_stays_finished(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    conn.execute("set lock_timeout = '1 s'")
    job = run(conn)
    expire(conn, job)
    worker = connect(autocommit=False)
    succeed(worker, job)
    assert reap(conn) == {}
    worker.commit()
    assert reap(conn) == {}
    row = job_row(conn, job.id)
    assert (row.status, row.last_error, row.lost_leases) == ("succeeded", None, 0)
    assert events_of(conn, job.id) == ["enqueued", "claimed", "succeeded"]


def test_a_job_that_the_reaper_takes_first_is_not_finished_any_more(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    conn.execute("set lock_timeout = '1 s'")
    enqueue_many(conn, 2)
    batch, single = claim(conn, 2)
    expire(conn, batch, single)
    reaper, waiter = connect(autocommit=False), connect()
    assert reap(reaper) == {batch.id: "queued", single.id: "queued"}
    assert settle(conn, outcome(batch, "succeeded")) == [(batch.id, None, "running")]
    query = "select jobq.succeed(%s, %s)"
    waits = in_thread(lambda: scalar(waiter, query, single.id, single.lease_token))
    wait_for_lock_wait(conn, waiter.info.backend_pid)
    reaper.commit()
    with refused("JQ003", "the job is queued"):
        waits.result(10)
    assert settle(conn, outcome(batch, "succeeded")) == [(batch.id, False, "queued")]
    for job in (batch, single):
        assert events_of(conn, job.id) == ["enqueued", "claimed", "lease_lost"]
    assert_consistent(conn)


def test_a_job_finished_after_its_lease_but_before_a_reaper_came_is_finished(
    conn: Connection,
) -> None:
    """Until somebody took it, the claim is current, however late it is."""
    enqueue(conn)
    job = claim_one(conn, lease="1 microsecond")
    succeed(conn, job)
    assert reap(conn) == {}
    row = job_row(conn, job.id)
    assert row.finished_at >= job.lease_expires_at
    assert (row.status, row.last_error) == ("succeeded", None)


def test_a_finish_waits_for_nothing_while_the_reaper_takes_other_jobs(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 2)
    lost, live = claim(conn, 2)
    expire(conn, lost)
    reaper = connect(autocommit=False)
    assert reap(reaper) == {lost.id: "queued"}
    conn.execute("set lock_timeout = '1 s'")
    succeed(conn, live)
    reaper.rollback()
    assert status_of(conn, lost.id) == "running"


def test_one_transaction_holds_a_job_s_effects_and_its_success(
    connect: Callable[..., Connection],
) -> None:
    conn, worker = connect(), connect(autocommit=False)
    conn.execute("create table effects (job_id bigint)")
    job = run(conn)
    for outcome_of_transaction in ("rollback", "commit"):
        worker.execute("insert into effects values (%s)", (job.id,))
        worker.execute("select jobq.succeed(%s, %s)", (job.id, job.lease_token))
        getattr(worker, outcome_of_transaction)()
        done = outcome_of_transaction == "commit"
        assert status_of(conn, job.id) == ("succeeded" if done else "running")
        assert scalar(conn, "select count(*) from effects") == int(done)
