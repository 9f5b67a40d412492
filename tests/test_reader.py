"""Reading: what stats() counts and explain() says."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from helpers import Connection, scalar

from ledger import job_in, refused
from verbs import claim, claim_one, enqueue, expire, job_row, outcome, rows, run, settle

STATUSES = ["queued", "running", "succeeded", "failed", "cancelled"]


def explain(conn: Connection, job_id: int) -> dict[str, Any]:
    """Return reason -> (message, detail)."""
    found = rows(conn, "select * from jobq.explain(%s)", job_id)
    return {row.reason: row for row in found}


def stats(conn: Connection) -> dict[str, Any]:
    return {row.status: row for row in rows(conn, "select * from jobq.stats()")}


def test_an_empty_queue_has_five_zeros(conn: Connection) -> None:
    found = rows(conn, "select * from jobq.stats()")
    assert [(row.status, row.jobs, row.estimated, row.oldest) for row in found] == [
        (status, 0, False, None) for status in STATUSES
    ]


@pytest.mark.parametrize("analyzed", [True, False])
def test_small_counts_are_exact(conn: Connection, analyzed: bool) -> None:
    for number, status in enumerate(STATUSES, 1):
        for _ in range(number):
            job_in(conn, status)
    if analyzed:
        conn.execute("analyze jobq.jobs")
    found = stats(conn)
    assert {status: row.jobs for status, row in found.items()} == {
        status: number for number, status in enumerate(STATUSES, 1)
    }
    assert not any(row.estimated for row in found.values())
    due = "select min(available_at) from jobq.jobs where status = 'queued'"
    started = "select min(started_at) from jobq.jobs where status = 'running'"
    assert found["queued"].oldest == scalar(conn, due)
    assert found["running"].oldest == scalar(conn, started)


def test_counts_of_finished_jobs_above_100000_are_estimated_and_say_so(conn: Connection) -> None:
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute("""
        insert into jobq.jobs (kind, status, finished_at)
        select 'old', case when n % 2 = 0 then 'failed' else 'succeeded' end::jobq.job_status,
          clock_timestamp()
        from generate_series(1, 210000) n""")
    conn.execute("alter table jobq.jobs enable trigger user")
    conn.execute("vacuum analyze jobq.jobs")
    cancelled, queued = job_in(conn, "cancelled"), enqueue(conn)
    found = stats(conn)
    assert (found["succeeded"].estimated, found["failed"].estimated) == (True, True)
    assert found["succeeded"].jobs == pytest.approx(105_000, rel=0.05)
    assert found["failed"].jobs == pytest.approx(105_000, rel=0.05)
    for status, job_id in (("queued", queued), ("cancelled", cancelled)):
        assert (found[status].jobs, found[status].estimated) == (1, False), job_id
    # A table that has grown since it was analyzed is scaled to its size.
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute("""
        insert into jobq.jobs (kind, status, finished_at)
        select 'old', 'succeeded', clock_timestamp() from generate_series(1, 50000)""")
    conn.execute("alter table jobq.jobs enable trigger user")
    assert stats(conn)["succeeded"].jobs == pytest.approx(155_000, rel=0.1)


def test_a_job_that_is_next_says_so(conn: Connection) -> None:
    found = explain(conn, enqueue(conn))
    assert list(found) == ["next", "no_worker_seen"]
    assert found["next"].message == "due, and first in the queue"


def test_a_job_that_is_not_due_says_when(conn: Connection) -> None:
    job_id = enqueue(conn, delay="90 minutes")
    reason = explain(conn, job_id)["not_due"]
    assert "not due until" in reason.message
    assert "(in 01:30:00)" in reason.message or "(in 01:29:" in reason.message
    told = datetime.fromisoformat(reason.detail["available_at"])
    assert told == job_row(conn, job_id).available_at


@pytest.mark.parametrize(("ahead", "says"), [(1, "1 other that"), (2, "2 others that")])
def test_a_job_behind_others_says_how_many(conn: Connection, ahead: int, says: str) -> None:
    enqueue(conn, priority=9, delay="1 hour")  # not due, so not ahead
    enqueue(conn, priority=9)
    for _ in range(ahead - 1):
        enqueue(conn)
    job_id = enqueue(conn)
    enqueue(conn)
    enqueue(conn, priority=-1)
    reason = explain(conn, job_id)["behind"]
    assert says.removesuffix(" that") in reason.message
    assert reason.detail == {"ahead": ahead, "more": False}


def test_a_very_long_queue_is_counted_no_further_than_10000(conn: Connection) -> None:
    conn.execute("insert into jobq.jobs (kind) select 'test' from generate_series(1, 10050)")
    reason = explain(conn, enqueue(conn))["behind"]
    assert "more than 10000 others" in reason.message
    assert reason.detail == {"ahead": 10000, "more": True}


def test_live_workers_with_a_handler_are_seen_while_they_live(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    job_id = enqueue(conn, "mail")
    workers = [connect() for _ in range(2)]
    connect().execute("select jobq.present('{sms}')")
    for seen, worker in enumerate(workers, 1):
        worker.execute("select jobq.present('{mail}')")
        reason = explain(conn, job_id)["worker_seen"]
        assert f"{seen} live worker" in reason.message
        assert reason.detail == {"workers": seen}
    for worker in workers:
        pid = worker.info.backend_pid
        worker.close()
        while scalar(conn, "select count(*) from pg_stat_activity where pid = %s", pid):
            pass
    assert "no live worker with a handler for 'mail' is seen" in (
        explain(conn, job_id)["no_worker_seen"].message
    )


def test_where_workers_run_unseen_nobody_claims_that_there_is_none(conn: Connection) -> None:
    busy = run(conn, kind="other")
    job_id = enqueue(conn, "mail")
    assert "worker_unknown" in explain(conn, job_id)
    conn.execute("select jobq.present('{other}')")
    assert "no_worker_seen" in explain(conn, job_id)
    conn.execute("select pg_advisory_unlock_all()")
    expire(conn, busy)
    assert "no_worker_seen" in explain(conn, job_id), "a lapsed lease is no sign of life"


def test_a_job_that_waits_for_its_next_attempt_says_why(conn: Connection) -> None:
    job = run(conn)
    error = "Traceback\n  line 1\nValueError: <b>no</b> such %s\n"
    settle(conn, outcome(job, "failed", error=error, retry_in_seconds=60))
    found = explain(conn, job.id)
    assert list(found) == ["not_due", "no_worker_seen", "attempts"]
    assert found["attempts"].message.startswith("1 of 10 attempts used; last error: ValueError:")
    assert "<b>no</b> such %s" in found["attempts"].message


def test_a_running_job_says_where_since_when_and_what_is_up(conn: Connection) -> None:
    enqueue(conn)
    job = claim_one(conn, worker="host-7")
    found = explain(conn, job.id)
    assert list(found) == ["running"]
    assert "running on host-7 since" in found["running"].message
    assert "(attempt 1 of 10)" in found["running"].message
    assert found["running"].detail["worker"] == "host-7"
    conn.execute("select jobq.cancel(%s)", (job.id,))
    expire(conn, job)
    assert list(explain(conn, job.id)) == ["running", "lease_expired", "cancel_requested"]


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_says_how_it_ended(conn: Connection, status: str) -> None:
    job_id = job_in(conn, status)
    found = explain(conn, job_id)
    assert list(found) == [status]
    attempts = "0 attempts" if status == "cancelled" else "1 attempt"
    assert f"{status} at" in found[status].message
    assert f"after {attempts}" in found[status].message
    assert ("last error: broken" in found[status].message) == (status == "failed")


def test_no_explanation_gives_the_token_away(conn: Connection) -> None:
    job = run(conn)
    told = str(rows(conn, "select * from jobq.explain(%s)", job.id))
    assert str(job.lease_token) not in told


@pytest.mark.parametrize("job_id", [0, -1, 999, None])
def test_there_is_no_such_job_to_explain(conn: Connection, job_id: int | None) -> None:
    with refused("JQ004", f"no job {'null' if job_id is None else job_id}"):
        rows(conn, "select * from jobq.explain(%s)", job_id)


def test_reading_writes_nothing_and_sees_one_snapshot(
    connect: Callable[..., Connection],
) -> None:
    conn = connect(autocommit=False)
    conn.execute("set transaction isolation level repeatable read, read only")
    job_id = scalar(conn, "select coalesce(max(id), 0) from jobq.jobs")
    assert job_id == 0
    other = connect()
    new = enqueue(other)
    assert stats(conn)["queued"].jobs == 0
    with refused("JQ004"):
        explain(conn, new)
    conn.rollback()
    assert [job.id for job in claim(other)] == [new]
