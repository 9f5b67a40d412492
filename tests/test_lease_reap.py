"""Taking jobs from workers that let their leases run out."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from helpers import Connection, scalar

from ledger import refused
from plans import Explained
from verbs import (
    assert_consistent,
    claim,
    claim_one,
    enqueue,
    enqueue_many,
    expire,
    job_row,
    outcome,
    reap,
    renew,
    rows,
    run,
    settle,
)


def lost(conn: Connection, **options: Any) -> Any:
    """A running job whose worker has gone."""
    job = run(conn, **options)
    expire(conn, job)
    return job


def test_a_lost_lease_queues_the_job_again_after_its_backoff(conn: Connection) -> None:
    enqueue(conn, retry_base_seconds=100)
    job = claim_one(conn, worker="host-7:12")
    expire(conn, job)
    assert reap(conn) == {job.id: "queued"}
    row = job_row(conn, job.id)
    assert (row.attempt, row.lost_leases, row.lease_token, row.locked_by) == (1, 1, None, None)
    waits = (row.available_at - scalar(conn, "select clock_timestamp()")).total_seconds()
    assert 95 < waits <= 125
    assert "lease lost: worker host-7:12 did not renew it by" in row.last_error
    assert "(attempt 1 of 10)" in row.last_error
    (event,) = rows(conn, "select * from jobq.job_events where event = 'lease_lost'")
    assert (event.worker, event.from_status, event.to_status) == ("host-7:12", "running", "queued")
    assert event.detail["error"] == row.last_error
    assert reap(conn) == {}
    assert_consistent(conn)


def test_where_a_lost_lease_leads(conn: Connection) -> None:
    again, used_up, asked = lost(conn), lost(conn, max_attempts=1), lost(conn)
    both, alive = lost(conn, max_attempts=1), run(conn)
    for job in (asked, both):
        conn.execute("select jobq.cancel(%s)", (job.id,))
    assert reap(conn) == {
        again.id: "queued",
        used_up.id: "failed",
        asked.id: "cancelled",
        both.id: "failed",
    }
    for job in (used_up, asked, both):
        row = job_row(conn, job.id)
        assert row.finished_at is not None
        assert "lease lost: worker worker-1" in row.last_error
    assert job_row(conn, alive.id) == alive
    assert_consistent(conn)


def test_a_worker_s_name_is_told_as_it_is(conn: Connection) -> None:
    enqueue(conn)
    name = "%s %I <b>\n'; drop --" + "\U0001f600" * 50
    job = claim_one(conn, worker=name)
    expire(conn, job)
    reap(conn)
    assert name in job_row(conn, job.id).last_error


def test_reaping_takes_so_many_and_the_rest_later(conn: Connection) -> None:
    enqueue_many(conn, 5)
    expire(conn, *claim(conn, 5))
    assert [len(reap(conn, 2)) for _ in range(4)] == [2, 2, 1, 0]
    for most in (0, -1, None):
        with refused("JQ006", "max_jobs must be positive"):
            conn.execute("select * from jobq.reap(%s::int)", (most,))


def test_four_reapers_at_once_take_each_job_once(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 400)
    jobs = claim(conn, 400)
    expire(conn, *jobs)
    reapers, start = [connect() for _ in range(4)], Barrier(4)

    def reap_all(reaper: Connection) -> list[int]:
        reaper.execute("set lock_timeout = '1 s'")
        start.wait()
        taken: list[int] = []
        while found := reap(reaper, 7):
            taken += found
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = Counter(job for reaped in pool.map(reap_all, reapers) for job in reaped)
    assert taken == Counter(job.id for job in jobs)
    lost_leases = "select array_agg(distinct lost_leases) from jobq.jobs"
    assert scalar(conn, lost_leases) == [1]
    assert scalar(conn, "select count(*) from jobq.job_events where event = 'lease_lost'") == 400
    assert_consistent(conn)


def test_a_renewal_during_a_reap_wins_or_loses_as_a_whole(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    first, second = connect(autocommit=False), connect(autocommit=False)
    for session in (first, second):
        session.execute("set lock_timeout = '1 s'")
        session.commit()
    job = lost(conn)
    assert renew(first, job) == [(job.id, True, True, False)]
    assert reap(second) == {}
    first.commit()
    assert reap(second) == {}
    expire(conn, job)
    assert reap(second) == {job.id: "queued"}
    assert renew(first, job) == [(job.id, True, False, False)]
    second.commit()
    assert renew(first, job) == [(job.id, False, False, False)]


@pytest.mark.parametrize("analyzed", ["empty", "all running", "after"])
def test_reaping_reads_the_index_of_running_jobs_only(conn: Connection, analyzed: str) -> None:
    if analyzed == "empty":
        conn.execute("analyze jobq.jobs")
    enqueue_many(conn, 2_000)
    jobs = claim(conn, 2_000)
    if analyzed == "all running":
        conn.execute("analyze jobq.jobs")
    settle(conn, *(outcome(job, "succeeded") for job in jobs[20:]))
    if analyzed == "after":
        conn.execute("vacuum analyze jobq.jobs")
    expire(conn, *jobs[:10])
    plan = Explained(conn).find("select * from jobq.reap()", "expired as materialized")
    assert plan.kinds("jobs") <= {"Index Scan", "ModifyTable"}
    assert plan.indexes() == {"jobs_running_idx", "jobs_pkey"}
    assert not plan.kinds() & {"Hash Join", "Merge Join"}
