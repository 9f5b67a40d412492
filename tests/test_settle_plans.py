"""What a settle and a renewal read: each job's row by primary key, nothing else."""

import json
from collections.abc import Callable
from statistics import median
from typing import Any

from helpers import Connection

from plans import Explained, Plan, total_buffers
from verbs import claim, enqueue_many, outcome, succeed

SETTLE = "select * from jobq.settle(%s)"
RENEW = "select * from jobq.renew(%s::bigint[], %s::uuid[])"


def settle_arguments(jobs: list[Any]) -> tuple[object, ...]:
    return (json.dumps([outcome(job, "succeeded") for job in jobs]),)


def renew_arguments(jobs: list[Any]) -> tuple[object, ...]:
    return [job.id for job in jobs], [job.lease_token for job in jobs]


CALLS = {
    "renew": (RENEW, renew_arguments, "reached as materialized"),
    "settle": (SETTLE, settle_arguments, "ended as materialized"),
}


def assert_by_primary_key(plan: Plan, when: str) -> None:
    assert plan.indexes() == {"jobs_pkey"}, when
    assert plan.kinds("jobs") <= {"Index Scan", "Index Only Scan", "ModifyTable"}, when
    assert not plan.kinds() & {"Hash Join", "Merge Join", "Bitmap Heap Scan"}, when


def test_jobs_are_reached_by_primary_key_whatever_the_statistics_say(
    connect: Callable[..., Connection],
) -> None:
    old = Explained(connect())
    conn = connect()

    def check(when: str) -> None:
        for explained in (old, Explained(connect())):
            jobs = claim(conn, 20)
            for query, arguments, fragment in CALLS.values():
                plan = explained.find(query, fragment, *arguments(jobs))
                assert_by_primary_key(plan, when)

    conn.execute("alter table jobq.jobs set (autovacuum_enabled = off)")
    conn.execute("analyze jobq.jobs")
    check("empty")
    enqueue_many(conn, 5_000)
    check("statistics from when it was empty")
    conn.execute("analyze jobq.jobs")
    check("all queued")
    jobs = claim(conn, 4_000)
    conn.execute("analyze jobq.jobs")
    check("most of them running")
    succeed(conn, *jobs)
    check("statistics from when most were running")
    conn.execute("vacuum analyze jobq.jobs")
    check("fresh")


def test_under_an_old_snapshot_settles_read_no_more_as_the_dead_rows_grow(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 6_000)
    old = connect(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    old.execute("select count(*) from jobq.jobs")
    session = connect()

    def per_settle() -> float:
        took = []
        for _ in range(5):
            jobs = claim(session, 20)
            took.append(total_buffers(session, SETTLE, *settle_arguments(jobs)))
        return median(took)

    first = per_settle()
    while len(jobs := claim(session, 500)) == 500:
        succeed(session, *jobs)
    enqueue_many(conn, 100)
    assert per_settle() <= 1.5 * first + 50
