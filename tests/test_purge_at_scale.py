"""Purging a large backlog: batch by batch within a statement's time, while others go on.

500,000 jobs with five events each under `make prove`, else a twentieth: what a batch reads must
not grow with what the batches before it left behind.
"""

from collections.abc import Iterator
from statistics import median
from threading import Event
from time import monotonic

import pytest
from helpers import Connection, scalar

from ledger import in_thread
from plans import total_buffers
from scale import Connect, fill, no_autovacuum, pin, scaled
from verbs import assert_consistent, claim, enqueue_many, succeed

BATCH = 1_000
PURGE = f"select jobq.purge('30 minutes', {BATCH})"
EVENTS = """
insert into jobq.job_events (job_id, event, actor)
select j.id, 'log', 'test' from jobq.jobs j, generate_series(1, 5)"""
OLD = "select count(*) from jobq.jobs where kind = 'old'"
CLAIM = "select count(*) from jobq.claim('w', 10, '{live}')"


@pytest.fixture
def jobs(conn: Connection, connect: Connect) -> int:
    """How many jobs wait to be purged."""
    count = scaled(500_000)
    conn.execute("analyze jobq.jobs, jobq.job_events")
    fill(connect, count, "old", "succeeded")
    conn.execute(EVENTS)
    return count


def batches(conn: Connection) -> Iterator[float]:
    """Purge to the end, each batch a transaction; yields the seconds that each took."""
    while True:
        started = monotonic()
        deleted = scalar(conn, PURGE)
        yield monotonic() - started
        if not deleted:
            return


@pytest.mark.timeout(900)
def test_each_batch_is_quick_and_claims_go_on(
    conn: Connection, connect: Connect, jobs: int
) -> None:
    worker, done = connect(), Event()
    enqueue_many(conn, 5_000, "live")
    before = median(total_buffers(worker, CLAIM) for _ in range(5))

    def work() -> list[float]:
        took = []
        while not done.is_set():
            started = monotonic()
            succeed(worker, *claim(worker, 10, ["live"]))
            took.append(monotonic() - started)
            done.wait(0.02)
        return took

    working = in_thread(work)
    purger = connect()
    purger.execute("set statement_timeout = '5 s'")
    purges, half = batches(purger), jobs // BATCH // 2
    seconds = [next(purges) for _ in range(half)]
    killed = connect(autocommit=False)
    assert scalar(killed, PURGE) == BATCH
    conn.execute("select pg_terminate_backend(%s, 10000)", (killed.info.backend_pid,))
    assert scalar(conn, OLD) == jobs - half * BATCH
    seconds += purges
    done.set()
    claims = working.result(30)
    assert len(seconds) == jobs // BATCH + 1
    assert scalar(conn, OLD) == 0
    print(f"{jobs} jobs, batch {median(seconds):.3f} s, at most {max(seconds):.3f} s")
    print(f"{len(claims)} claims meanwhile, {median(claims):.3f} s, at most {max(claims):.3f} s")
    after = median(total_buffers(worker, CLAIM) for _ in range(5))
    assert after <= 1.5 * before + 30
    assert max(claims) < 2
    assert scalar(conn, "select count(*) from jobq.job_events where event = 'log'") == 0
    assert_consistent(conn)


@pytest.mark.timeout(900)
def test_a_batch_reads_no_more_than_its_rows_and_the_entries_that_earlier_ones_left(
    conn: Connection, connect: Connect, jobs: int
) -> None:
    no_autovacuum(conn)
    first = total_buffers(conn, PURGE)
    pin(connect)
    for _ in range(4):
        total_buffers(conn, PURGE)
    last = total_buffers(conn, PURGE)
    print(f"a batch of {BATCH}: {first} buffers, {last} after four under an old snapshot")
    assert last <= 1.3 * first + 4 * 2 * BATCH
