"""Leases: renewing them, and reporting under them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from uuid import uuid4

import pytest
from helpers import Connection, scalar

from ledger import refused
from verbs import (
    assert_consistent,
    claim,
    claim_one,
    enqueue_many,
    events_of,
    expire,
    job_row,
    outcome,
    reap,
    renew,
    rows,
    run,
    settle,
    stale,
    succeed,
)


def test_a_renewal_extends_the_lease_of_current_claims_only(conn: Connection) -> None:
    enqueue_many(conn, 4)
    mine, asked, done, lost = claim(conn, 4, lease="10 s")
    conn.execute("select jobq.cancel(%s)", (asked.id,))
    succeed(conn, done)
    assert renew(conn, stale(lost), done, asked, mine, lease="90 s") == [
        (lost.id, False, False, False),
        (done.id, False, False, False),
        (asked.id, True, True, True),
        (mine.id, True, True, False),
    ]
    left = job_row(conn, mine.id).lease_expires_at - scalar(conn, "select clock_timestamp()")
    assert timedelta(seconds=85) < left <= timedelta(seconds=90)
    assert job_row(conn, lost.id) == lost
    assert events_of(conn, mine.id) == ["enqueued", "claimed"], "a renewal is no event"


def test_a_renewal_never_shortens_a_lease(conn: Connection) -> None:
    job = run(conn)
    renew(conn, job, lease="1 s")
    assert job_row(conn, job.id).lease_expires_at == job.lease_expires_at


def test_a_lapsed_lease_that_nobody_took_can_be_renewed(conn: Connection) -> None:
    job = run(conn)
    expire(conn, job)
    assert renew(conn, job) == [(job.id, True, True, False)]
    assert reap(conn) == {}


def test_the_same_claim_given_twice_is_answered_once(conn: Connection) -> None:
    job = run(conn)
    assert renew(conn, job, stale(job), job) == [
        (job.id, True, True, False),
        (job.id, False, False, False),
    ]
    assert renew(conn) == []


def test_a_locked_row_is_held_but_not_renewed(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    job = run(conn)
    conn.execute("select jobq.cancel(%s)", (job.id,))
    other = connect(autocommit=False)
    other.execute("select jobq.report_progress(%s, %s, 0.5)", (job.id, job.lease_token))
    conn.execute("set lock_timeout = '1 s'")
    assert renew(conn, job) == [(job.id, True, False, True)]
    assert renew(conn, stale(job)) == [(job.id, False, False, False)]
    other.commit()
    assert renew(conn, job) == [(job.id, True, True, True)]


IMPOSSIBLE_RENEWALS = [
    "null, '{}'",
    "'{}', null",
    "'{1,2}', array[gen_random_uuid()]",
    "'{}', array[gen_random_uuid()]",
    "'{1}', array[null]::uuid[]",
    "array[null]::bigint[], array[gen_random_uuid()]",
    "'{1}', array[gen_random_uuid()], '0'",
    "'{1}', array[gen_random_uuid()], '-1 s'",
    "'{1}', array[gen_random_uuid()], null",
    "'{1}', array[gen_random_uuid()], '1000 years'",
]


def test_an_impossible_renewal_is_refused(conn: Connection, subtests: pytest.Subtests) -> None:
    for arguments in IMPOSSIBLE_RENEWALS:
        with subtests.test(arguments), refused("JQ006"):
            conn.execute(f"select * from jobq.renew({arguments})".encode())


def test_a_renewal_touches_no_index(conn: Connection) -> None:
    jobs = [run(conn) for _ in range(5)]
    statistics = """
    select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables
    where schemaname = 'jobq' and relname = 'jobs'"""

    def counted() -> tuple[int, int]:
        conn.execute("select pg_stat_force_next_flush()")
        (row,) = conn.execute(statistics).fetchall()
        return row[0], row[1]

    updates, hot = counted()
    for _ in range(4):
        renew(conn, *jobs, lease="2 minutes")
    after, hot_after = counted()
    assert after - updates == 20
    assert hot_after - hot == 20


def test_progress_and_messages_are_for_the_holder_of_the_lease(conn: Connection) -> None:
    job = run(conn)
    progress = "select jobq.report_progress(%s, %s, 0.25, 'a quarter')"
    message = "select jobq.log(%s, %s, 'WARNING', 'slow')"
    for query in (progress, message):
        conn.execute(query, (job.id, job.lease_token))
        with refused("JQ003", "no longer current"):
            conn.execute(query, (job.id, uuid4()))
        with refused("JQ004", "no job 999"):
            conn.execute(query, (999, job.lease_token))
    assert job_row(conn, job.id).progress == 0.25
    told = rows(
        conn, "select * from jobq.job_events where event in ('progress', 'log') order by id"
    )
    assert [(event.event, event.worker, event.attempt) for event in told] == [
        ("progress", "worker-1", 1),
        ("log", "worker-1", 1),
    ]
    assert told[0].detail == {"message": "a quarter", "progress": 0.25}
    assert told[1].detail == {"level": "warning", "message": "slow"}
    succeed(conn, job)
    for query in (progress, message):
        with refused("JQ003", "the job is succeeded"):
            conn.execute(query, (job.id, job.lease_token))
    assert_consistent(conn)


def test_a_new_run_starts_without_the_progress_of_the_last(conn: Connection) -> None:
    job = run(conn)
    conn.execute("select jobq.report_progress(%s, %s, 1)", (job.id, job.lease_token))
    settle(conn, outcome(job, "failed", error="x", retry_in_seconds=0))
    assert claim_one(conn).progress is None


@pytest.mark.parametrize("progress", ["-0.1", "1.1", "'NaN'", "'Infinity'", "null", "1e30"])
def test_progress_out_of_range_is_refused(conn: Connection, progress: str) -> None:
    job = run(conn)
    query = f"select jobq.report_progress(%s, %s, {progress}::real)"
    with refused("JQ006", "progress must be between 0 and 1"):
        conn.execute(query.encode(), (job.id, job.lease_token))
    assert events_of(conn, job.id) == ["enqueued", "claimed"]


def test_a_log_message_has_a_known_level_and_is_cut_to_size(conn: Connection) -> None:
    job = run(conn)
    query = "select jobq.log(%s, %s, %s, %s)"
    for level, message in (("loud", "x"), (None, "x"), ("", "x"), ("info", None)):
        with refused("JQ006", "level must be|message must not be null"):
            conn.execute(query, (job.id, job.lease_token, level, message))
    conn.execute(query, (job.id, job.lease_token, "info", "x" * 1_000_000))
    stored = "select length(detail ->> 'message') from jobq.job_events where event = 'log'"
    assert scalar(conn, stored) <= 32_768


def test_events_of_a_job_are_numbered_in_the_order_in_which_they_happened(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    """Several sessions write events of one job; each says how many it saw before."""
    job = run(conn)
    sessions, start = [connect(autocommit=False) for _ in range(4)], Barrier(4)

    def write(session: Connection) -> None:
        start.wait()
        for _ in range(25):
            session.execute("select from jobq.jobs where id = %s for no key update", (job.id,))
            seen = scalar(session, "select count(*) from jobq.job_events")
            session.execute(
                "select jobq.log(%s, %s, 'info', %s)", (job.id, job.lease_token, str(seen))
            )
            session.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, sessions))
    told = "select (detail ->> 'message')::int from jobq.job_events where event = 'log' order by id"
    assert [row[0] for row in conn.execute(told)] == list(range(2, 102))
    assert_consistent(conn)
