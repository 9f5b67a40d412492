"""What a claim reads: a bounded part of one index, whatever else is there."""

import json
from collections.abc import Callable
from statistics import median

from helpers import Connection, scalar

from plans import Explained, Plan
from verbs import claim, enqueue_many, enqueue_old, succeed

SCAN = "for no key update skip locked"
CLAIM = "select * from jobq.claim('w', %s, %s::text[])"
FORBIDDEN = {"Sort", "Incremental Sort", "Seq Scan", "Bitmap Heap Scan", "Hash Join", "Merge Join"}


def locking_scan(explained: Explained, max_jobs: int = 10, kinds: object = None) -> Plan:
    """The statement that finds and locks the jobs; the last, where a claim scanned twice."""
    plans = [plan for plan in explained.run(CLAIM, max_jobs, kinds) if SCAN in plan.query]
    return plans[-1]


def reads(explained: Explained, max_jobs: int = 10, kinds: object = None) -> int:
    """The buffers that finding the jobs takes: probing for priorities, and the locking scans."""
    plans = explained.run(CLAIM, max_jobs, kinds)
    return sum(plan.buffers for plan in plans if SCAN in plan.query or "j.priority <" in plan.query)


def pin(connect: Callable[..., Connection]) -> Connection:
    """Hold a snapshot, as a long report does: no row that dies from now on can be cleaned up."""
    old = connect(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    old.execute("select count(*) from jobq.jobs")
    return old


def forget_full_scan(conn: Connection) -> None:
    """Let the next claim scan from the start, as after 5 s."""
    floor = json.loads(scalar(conn, "select current_setting('jobq.floor')"))
    floor["full_at"] = "2020-01-01T00:00:00Z"
    conn.execute("select set_config('jobq.floor', %s, false)", (json.dumps(floor),))


def test_jobs_are_found_by_the_index_alone_whatever_the_statistics_say(
    connect: Callable[..., Connection],
) -> None:
    old = Explained(connect())  # plans while the table is empty, and keeps them
    conn = connect()

    def check(when: str) -> None:
        for name, explained in (("cached", old), ("new", Explained(connect()))):
            for kinds in (None, ["test", "other"]):
                plan = locking_scan(explained, 10, kinds)
                assert plan.nodes[-1]["Actual Rows"] > 0 or when == "empty"
                assert not plan.kinds() & FORBIDDEN, (when, name, plan.kinds())
                assert plan.indexes() == {"jobs_ready_idx"}, (when, name)

    conn.execute("alter table jobq.jobs set (autovacuum_enabled = off)")
    conn.execute("analyze jobq.jobs")
    check("empty")
    enqueue_many(conn, 5_000)
    check("statistics from when it was empty")
    conn.execute("analyze jobq.jobs")
    check("all queued")
    succeed(conn, *claim(conn, 4_000))
    check("statistics from when all were queued")
    conn.execute("vacuum analyze jobq.jobs")
    check("fresh")


def test_under_an_old_snapshot_the_last_claim_reads_no_more_than_the_first(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 20_000)  # all with the same timestamps
    pin(connect)
    explained = Explained(connect())
    first = median(reads(explained) for _ in range(5))
    for _ in range(37):
        succeed(conn, *claim(conn, 500))
        reads(explained)
    last = median(reads(explained) for _ in range(5))
    assert last <= 2 * first + 50


def test_under_an_old_snapshot_an_empty_queue_is_not_searched_again_and_again(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_old(conn, 5_000)
    pin(connect)
    succeed(conn, *claim(conn, 5_000))
    explained = Explained(connect())
    reads(explained)
    assert min(reads(explained) for _ in range(5)) < 50


def test_under_an_old_snapshot_a_priority_that_ran_empty_costs_nothing(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_old(conn, 5_000, priority=50)
    enqueue_many(conn, 100)
    pin(connect)
    session = connect()
    succeed(session, *claim(session, 5_000))
    explained = Explained(session)
    reads(explained)
    forget_full_scan(session)
    reads(explained)
    assert median(reads(explained, 1) for _ in range(5)) < 50


def test_jobs_of_the_future_on_top_cost_nothing(conn: Connection) -> None:
    enqueue_many(conn, 10_000, priority=100, delay=86400)
    enqueue_many(conn, 50)
    explained = Explained(conn)
    assert len(claim(conn, 1)) == 1
    assert reads(explained, 1) < 50
    forget_full_scan(conn)
    assert reads(explained, 1) < 50


def test_jobs_of_other_kinds_in_front_are_passed_once_not_at_each_claim(conn: Connection) -> None:
    enqueue_many(conn, 10_000, "theirs")
    enqueue_many(conn, 50, "mine")
    explained = Explained(conn)
    assert reads(explained, 1, ["mine"]) > 100
    assert median(reads(explained, 1, ["mine"]) for _ in range(5)) < 50
    assert [job.kind for job in claim(conn, 1)] == ["theirs"]
