"""How long a job may wait, as the README says: at a claimer that is idle, at a worker that is.

In an idle queue what lies below the floor is found after 20 times what a scan costs. An idle
worker is told of what is committed after it took its locks, and asks each second while what began
before them may commit.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest
from helpers import Connection, scalar, wait_until

from jobq import App, CurrentJob
from jobq._coordinator import Coordinator
from scale import Connect
from verbs import claim, enqueue, enqueue_old, outcome, reap, settle
from workers import IDLE_LOCKS, finish, job, running

#: Seconds between a worker's looks while an older transaction may commit, and what machines add.
ASKS_EACH = 1.0
SLACK = 2.0


def below_the_floor(conn: Connection) -> dict[str, tuple[int, Callable[[], object]]]:
    """Jobs that cannot be claimed yet, and what puts each where an idle claimer does not look."""
    enqueue_old(conn, 6)
    released, failed, lost, snoozed, cancelled, low = claim(conn, 6)
    settle(conn, outcome(low, "cancelled"))
    conn.execute("select jobq.cancel(%s)", (cancelled.id,))
    settle(conn, outcome(cancelled, "released"))
    backdated, moved = enqueue(conn, delay="1 hour"), enqueue(conn, delay="1 hour", priority=-50)
    past = "available_at = created_at - interval '1 hour'"

    def run(query: str, *args: object) -> Callable[[], object]:
        return lambda: conn.execute(query.encode(), args)

    def expire_and_reap() -> None:
        conn.execute(
            "update jobq.jobs set lease_expires_at = started_at, max_attempts = 10,"
            " retry_base_seconds = 1, retry_cap_seconds = 1 where id = %s",
            (lost.id,),
        )
        assert reap(conn) == {lost.id: "queued"}
        run(f"update jobq.jobs set {past} where id = %s", lost.id)()

    return {
        "released": (released.id, lambda: settle(conn, outcome(released, "released"))),
        "failed": (
            failed.id,
            lambda: settle(conn, outcome(failed, "failed", error="x", retry_in_seconds=0)),
        ),
        "lost": (lost.id, expire_and_reap),
        "snoozed": (snoozed.id, lambda: settle(conn, outcome(snoozed, "snoozed", delay_seconds=0))),
        "retried": (cancelled.id, run("select jobq.retry(%s)", cancelled.id)),
        "backdated": (backdated, run(f"update jobq.jobs set {past} where id = %s", backdated)),
        "reprioritised": (
            moved,
            run(f"update jobq.jobs set priority = -60, {past} where id = %s", moved),
        ),
    }


def test_in_an_idle_queue_it_is_found_almost_at_once(
    conn: Connection, connect: Connect, subtests: pytest.Subtests
) -> None:
    idle = connect()
    cases = below_the_floor(conn)
    for name, (job_id, make) in cases.items():
        with subtests.test(name):
            for _ in range(2):
                assert claim(idle) == []
            make()
            # A busy session would look only 5 s after its last full scan.
            (found,) = wait_until(lambda: claim(idle), timeout=4, interval=0.001)
            assert found.id == job_id
            settle(conn, outcome(found, "succeeded"))


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn)
    app.job("k")(lambda: None)
    yield app
    app.close()


def latest(conn: Connection, committed: dict[int, datetime]) -> float:
    """The longest time, in seconds, between a commit and the start of its job."""
    started = {k: finish(conn, k, "succeeded", timeout=70)["started_at"] for k in committed}
    waits = sorted((started[k] - at).total_seconds() for k, at in committed.items())
    print(f"{len(waits)} jobs waited {waits[len(waits) // 2]:.3f} s, at most {waits[-1]:.3f} s")
    return float(waits[-1])


def test_no_enqueue_waits_when_the_worker_goes_idle_just_then(
    app: App, dsn: str, conn: Connection
) -> None:
    busy = app.job("busy")(lambda: time.sleep(0.15))  # so long that it gives its locks back
    with running(app, dsn, threads=1, poll_seconds=60):
        for _ in range(20):
            finish(conn, busy.enqueue().job_id, "running")
            time.sleep(0.15 + random.uniform(-0.01, 0.02))
            job_id = enqueue(conn, "k")
            committed = {job_id: scalar(conn, "select clock_timestamp()")}
            assert latest(conn, committed) < ASKS_EACH + SLACK


def test_no_enqueue_waits_whose_transaction_began_before_the_worker_went_idle(
    app: App, dsn: str, conn: Connection, connect: Connect
) -> None:
    busy = app.job("busy")(lambda: time.sleep(0.3))
    producers = [connect(autocommit=False) for _ in range(2)]
    with running(app, dsn, threads=1, poll_seconds=60):
        for _ in range(4):
            committed = {}
            finish(conn, busy.enqueue().job_id, "running")
            wait_until(lambda: scalar(conn, IDLE_LOCKS) == 0)
            late = {enqueue(producer, "k"): producer for producer in producers}
            wait_until(lambda: scalar(conn, IDLE_LOCKS) > 0)
            for job_id, producer in late.items():
                time.sleep(random.uniform(0.4, 1))  # past the quick looks of its first moments
                committed[job_id] = scalar(producer, "select clock_timestamp()")
                producer.commit()
            assert latest(conn, committed) < ASKS_EACH + SLACK


def test_one_job_costs_twenty_idle_workers_a_claim_each_and_the_one_that_ran_it_a_few_more(
    app: App, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = 20
    fetch = Coordinator._fetch

    def counted(self: Coordinator, most: int) -> list[CurrentJob]:
        made.append(most)
        return fetch(self, most)

    def once_still() -> int:
        before = -1
        while before != len(made):
            before = len(made)
            time.sleep(2.5)  # longer than they wait before they look once more
        return before

    made: list[int] = []
    monkeypatch.setattr(Coordinator, "_fetch", counted)
    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(running(app, dsn, threads=1, poll_seconds=60, reap_seconds=60))
        wait_until(lambda: scalar(conn, IDLE_LOCKS) == workers)
        before = once_still()
        finish(conn, enqueue(conn, "k"), "succeeded")
        after = once_still()
    print(f"{after - before} claims")
    assert 1 <= after - before <= 2 * workers + 5


def test_a_transaction_that_dawdles_on_one_job_stalls_no_other_of_its_worker(
    app: App, dsn: str, conn: Connection, connect: Connect
) -> None:
    go = "select pg_advisory_xact_lock_shared(7)"

    @app.job("waits")
    def waits() -> None:
        with connect() as own:
            own.execute(go)

    gate, dawdler = connect(), connect(autocommit=False)
    gate.execute("select pg_advisory_lock(7)")
    with running(app, dsn, threads=4, lease_seconds=1, poll_seconds=60):
        held, other = (waits.enqueue().job_id for _ in range(2))
        for job_id in (held, other):
            finish(conn, job_id, "running")
        dawdler.execute("select jobq.cancel(%s)", (held,))
        until = job(conn, other)["lease_expires_at"]
        wait_until(lambda: (job(conn, other)["lease_expires_at"] - until).total_seconds() > 2)
        quick = app.enqueue("k").job_id
        finish(conn, quick, "succeeded", timeout=20)
        dawdler.rollback()
        gate.execute("select pg_advisory_unlock(7)")
        assert finish(conn, other, "succeeded")["lost_leases"] == 0
