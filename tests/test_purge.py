"""Forgetting finished jobs: which, how many, with what they leave behind."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from helpers import Connection, scalar

from ledger import in_thread, job_in, refused
from plans import Explained
from verbs import (
    assert_consistent,
    claim,
    enqueue,
    enqueue_many,
    events_of,
    job_row,
    outcome,
    rows,
    settle,
    succeed,
)

FINAL = ["succeeded", "failed", "cancelled"]


def purge(conn: Connection, older_than: str = "1 hour", **options: object) -> int:
    """Purge; returns how many jobs went."""
    types = {"statuses": "::jobq.job_status[]"}
    named = "".join(f", {name} => %s{types.get(name, '')}" for name in options)
    return int(scalar(conn, f"select jobq.purge(%s{named})", older_than, *options.values()))


def age(conn: Connection, *ids: int, by: str = "2 hours") -> None:
    """Let these jobs have been made and finished so long ago, as if time had passed."""
    conn.execute("alter table jobq.jobs disable trigger user")
    query = """
    update jobq.jobs set created_at = created_at - %s::interval,
      available_at = available_at - %s::interval, finished_at = finished_at - %s::interval
    where id = any(%s)"""
    conn.execute(query, (by, by, by, list(ids)))
    conn.execute("alter table jobq.jobs enable trigger user")


def finished(conn: Connection, count: int) -> list[int]:
    """Jobs that succeeded two hours ago."""
    ids = enqueue_many(conn, count)
    succeed(conn, *claim(conn, count))
    age(conn, *ids)
    return ids


def stored(conn: Connection) -> list[int]:
    return [row.id for row in rows(conn, "select id from jobq.jobs order by id")]


def test_only_jobs_that_finished_before_the_cutoff_go_with_their_events(conn: Connection) -> None:
    by_status = {status: job_in(conn, status) for status in (*FINAL, "queued", "running")}
    recent = job_in(conn, "succeeded")
    age(conn, *by_status.values())
    assert purge(conn) == 3
    assert stored(conn) == sorted([by_status["queued"], by_status["running"], recent])
    for status in FINAL:
        assert events_of(conn, by_status[status]) == []
    assert events_of(conn, recent) == ["enqueued", "claimed", "succeeded"]
    assert purge(conn) == 0


def test_an_old_job_that_finished_just_now_stays(conn: Connection) -> None:
    job_id = enqueue(conn)
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute("update jobq.jobs set created_at = '2020-01-01', available_at = '2020-01-01'")
    conn.execute("alter table jobq.jobs enable trigger user")
    succeed(conn, *claim(conn))
    assert purge(conn) == 0
    assert stored(conn) == [job_id]


def test_statuses_can_be_kept_for_different_times(conn: Connection) -> None:
    ids = {status: job_in(conn, status) for status in FINAL}
    age(conn, *ids.values())
    assert purge(conn, statuses=["succeeded"]) == 1
    assert purge(conn, statuses=[]) == 0
    assert purge(conn, statuses=["failed", "cancelled"]) == 2
    assert stored(conn) == []
    assert scalar(conn, "select count(*) from jobq.job_events") == 0


def test_the_oldest_go_first_a_batch_a_call(conn: Connection) -> None:
    ids = finished(conn, 10)
    assert [purge(conn, max_jobs=4) for _ in range(4)] == [4, 4, 2, 0]
    ids = finished(conn, 3)
    purge(conn, max_jobs=1)
    assert stored(conn) == ids[1:]


def test_purging_frees_the_keys(conn: Connection) -> None:
    first = enqueue(conn, idempotency_key="k")
    succeed(conn, *claim(conn))
    assert enqueue(conn, idempotency_key="k") == first
    age(conn, first)
    assert purge(conn) == 1
    again = enqueue(conn, payload={"other": 1}, idempotency_key="k")
    assert again != first
    assert job_row(conn, again).status == "queued"
    assert_consistent(conn)


def test_locked_jobs_are_passed_over_at_once(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    ids = finished(conn, 3)
    failed = job_in(conn, "failed")
    age(conn, failed)
    retrying = connect(autocommit=False)
    retrying.execute("select jobq.retry(%s)", (failed,))
    retrying.execute("select from jobq.jobs where id = %s for share", (ids[1],))
    conn.execute("set lock_timeout = '1 s'")
    assert purge(conn) == 2
    retrying.commit()
    assert purge(conn) == 1
    assert stored(conn) == [failed]
    assert_consistent(conn)


def test_a_job_retried_while_a_purge_walks_is_not_purged(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute("""
        insert into jobq.jobs (kind, status, created_at, finished_at)
        select 'test', 'failed', t, t
        from generate_series(1, 3000), (select clock_timestamp() - interval '1 day' as t) day_ago
    """)
    conn.execute("alter table jobq.jobs enable trigger user")
    ids, purger = stored(conn), connect()
    purged = in_thread(lambda: purge(purger, max_jobs=5000))
    retried, refusal = [], None
    for job_id in reversed(ids):
        try:
            scalar(conn, "select jobq.retry(%s)", job_id)
        except psycopg.Error as error:
            refusal = error.sqlstate
            break
        retried.append(job_id)
    assert refusal in (None, "JQ004")
    assert purged.result(10) == len(ids) - len(retried)
    assert stored(conn) == sorted(retried)


def test_purgers_at_once_take_each_job_once(
    connect: Callable[..., Connection],
) -> None:
    conn, other = connect(), connect(autocommit=False)
    finished(conn, 20)
    conn.execute("set lock_timeout = '1 s'")
    assert purge(other, max_jobs=5) == 5
    assert purge(conn, max_jobs=8) == 3, "five of its eight are being purged by the other"
    other.rollback()
    # First to the end from where it was, then what it had passed over.
    assert [purge(conn) for _ in range(3)] == [12, 5, 0]


def test_a_forged_creation_time_does_not_stop_it(conn: Connection) -> None:
    forged = enqueue(conn, delay="1 day")
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute("update jobq.jobs set created_at = '2999-01-01'")
    conn.execute("alter table jobq.jobs enable trigger user")
    finished(conn, 5)
    assert purge(conn) == 5
    assert stored(conn) == [forged]


IMPOSSIBLE = [
    ("null", "older_than must be longer than zero, not null"),
    ("'0'", "older_than must be longer than zero"),
    ("'-1 day'", "older_than must be longer than zero"),
    ("'1 microsecond'", "older_than must be longer than zero"),
    ("'178000000 years'", "older_than must be"),
    ("'1 day', 0", "max_jobs must be positive, not 0"),
    ("'1 day', -1", "max_jobs must be positive, not -1"),
    ("'1 day', null", "max_jobs must be positive, not null"),
    ("'1 day', 1, '{queued}'", "statuses may be"),
    ("'1 day', 1, '{succeeded,running}'", "statuses may be"),
    ("'1 day', 1, '{null}'", "statuses may be"),
    ("'1 day', 1, null", "statuses may be"),
]


def test_an_impossible_purge_is_refused(conn: Connection, subtests: pytest.Subtests) -> None:
    (job_id,) = finished(conn, 1)
    for arguments, says in IMPOSSIBLE:
        with subtests.test(arguments), refused("JQ006", says):
            conn.execute(f"select jobq.purge({arguments})".encode())
    assert stored(conn) == [job_id]


@pytest.mark.parametrize("analyzed", ["empty", "full"])
def test_it_reads_up_the_primary_key_no_further_than_the_cutoff(
    conn: Connection, analyzed: str
) -> None:
    if analyzed == "empty":
        conn.execute("analyze jobq.jobs, jobq.job_events")
    finished(conn, 50)
    newer = enqueue_many(conn, 5_000)
    settle(conn, *(outcome(job, "succeeded") for job in claim(conn, 2_500)))
    if analyzed == "full":
        conn.execute("vacuum analyze jobq.jobs, jobq.job_events")
    plans = Explained(conn).run("select jobq.purge('1 hour')")
    assert stored(conn) == newer

    def indexes(fragment: str) -> list[Any]:
        found = [plan for plan in plans if fragment in plan.query]
        for plan in found:
            assert not plan.kinds("jobs") & {"Seq Scan", "Bitmap Heap Scan"}
            assert not plan.kinds("job_events") & {"Seq Scan", "Bitmap Heap Scan"}
            assert not plan.kinds() & {"Hash Join", "Merge Join"}
        return [plan.indexes() for plan in found]

    (walk,) = [plan for plan in plans if "from jobq.jobs j where j.id > v_from" in plan.query]
    assert walk.indexes() == {"jobs_pkey"}
    assert walk.nodes[0]["Actual Rows"] < 400, "newer jobs are hardly read"
    assert "Sort" not in walk.kinds()
    assert indexes("doomed as materialized") == [{"jobs_pkey"}]
    assert indexes("delete from jobq.job_events") == [{"job_events_pkey"}]
    assert indexes("join jobq.jobs j on j.id = o.job_id") == [{"jobs_pkey"}]


def test_a_series_of_batches_walks_what_it_keeps_once(conn: Connection) -> None:
    kept = [job_in(conn, "failed") for _ in range(3)]
    age(conn, *kept)
    finished(conn, 10)
    deleted, goes_on = [], []
    for _ in range(4):
        deleted.append(purge(conn, max_jobs=4, statuses=["succeeded"]))
        goes_on.append(bool(scalar(conn, "select current_setting('jobq.purged')")))
    assert deleted == [4, 4, 2, 0]
    assert goes_on == [True, True, False, False]
    # Jobs of other statuses, and what came since, are walked from the start.
    finished(conn, 4)
    assert purge(conn, max_jobs=4, statuses=["succeeded"]) == 4
    assert purge(conn, statuses=["failed"]) == 3


@pytest.mark.parametrize("garbage", ["", "x", "{succeeded} -1", "{succeeded} 1e30", "{succeeded}"])
def test_a_place_that_makes_no_sense_is_ignored(conn: Connection, garbage: str) -> None:
    finished(conn, 2)
    conn.execute("select set_config('jobq.purged', %s, false)", (garbage,))
    assert purge(conn, statuses=["succeeded"]) == 2
