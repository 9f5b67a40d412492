import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from helpers import Connection, wait_for_activity, wait_until

from jobq import App, CurrentJob, _coordinator, current_job
from proxy import Proxy
from workers import captured_log, events, finish, job, running


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn)
    yield app
    app.close()


def test_a_handler_that_loops_in_python_keeps_its_lease(
    app: App, dsn: str, conn: Connection
) -> None:

    @app.job("k")
    def handler() -> int:
        end, n = time.monotonic() + 4, 0
        while time.monotonic() < end:
            n += 1
        return n

    # Longer than its lease, which is long enough for a busy machine.
    with captured_log() as lines, running(app, dsn, lease_seconds=3):
        job_id = handler.enqueue().job_id
        row = finish(conn, job_id, "succeeded")
    assert (row["attempt"], row["lost_leases"]) == (1, 0)
    assert lines.getvalue().count(" renew ") >= 3


def test_a_handler_that_holds_the_gil_runs_at_worst_again_and_ends_once(
    app: App, dsn: str, conn: Connection
) -> None:

    @app.job("k", retry_base_seconds=1)
    def handler() -> None:
        if current_job().attempt == 1:
            sum(range(120_000_000))  # one C call of some seconds that holds the GIL

    job_id = handler.enqueue().job_id
    with running(app, dsn, lease_seconds=1):
        finish(conn, job_id, "succeeded", timeout=60)
    history = events(conn, job_id)
    assert history.count("succeeded") == 1
    assert history[-1] == "succeeded"


def lose_lease(connect: Callable[..., Connection], job_id: int, told: Callable[[], object]) -> None:
    """Keep the job's row locked, so that it cannot be renewed, until its handler is told."""
    blocker = connect(autocommit=False)
    blocker.execute("select from jobq.jobs where id = %s for update", (job_id,))
    wait_until(told)
    blocker.close()


def test_a_claim_that_cannot_be_renewed_in_time_is_lost(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    told: list[CurrentJob] = []

    @app.job("k", retry_base_seconds=1)
    def handler() -> str:
        me = current_job()
        if me.attempt == 1:
            wait_until(lambda: me.cancelled)
            told.append(me)
        return f"attempt {me.attempt}"

    with captured_log() as lines, running(app, dsn, lease_seconds=1):
        job_id = handler.enqueue().job_id
        finish(conn, job_id, "running")
        lose_lease(connect, job_id, lambda: told)
        row = finish(conn, job_id, "succeeded")
    assert len(told) == 1
    assert (row["attempt"], row["lost_leases"], row["result"]) == (2, 1, "attempt 2")
    assert events(conn, job_id) == ["enqueued", "claimed", "lease_lost", "claimed", "succeeded"]
    assert "WARNING lease lost" in lines.getvalue()
    assert "WARNING outcome not sent" in lines.getvalue()


def test_an_async_handler_is_cancelled_when_its_lease_is_lost(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    cancelled = threading.Event()

    @app.job("k", retry_base_seconds=1)
    async def handler() -> None:
        if current_job().attempt > 1:
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with running(app, dsn, lease_seconds=1):
        job_id = handler.enqueue().job_id
        finish(conn, job_id, "running")
        lose_lease(connect, job_id, cancelled.is_set)
        assert finish(conn, job_id, "succeeded")["attempt"] == 2


@pytest.mark.parametrize("how", ["succeed", "fail"])
def test_whoever_ends_the_job_elsewhere_wins(
    app: App, dsn: str, conn: Connection, how: str
) -> None:

    @app.job("k", max_attempts=1)
    def handler() -> str:
        wait_until(lambda: current_job().cancelled)
        return "too late"

    call = {"succeed": "jobq.succeed(id, lease_token)", "fail": "jobq.fail(id, lease_token, 'x')"}
    with captured_log() as lines, running(app, dsn, lease_seconds=1):
        job_id = handler.enqueue().job_id
        finish(conn, job_id, "running")
        conn.execute(f"select {call[how]} from jobq.jobs where id = %s".encode(), (job_id,))
        wait_until(lambda: "outcome not sent" in lines.getvalue())
    assert job(conn, job_id)["result"] is None
    assert events(conn, job_id)[2:] == ["succeeded" if how == "succeed" else "failed"]


def test_a_lost_renewal_connection_heals_within_the_lease(
    app: App, dsn: str, conn: Connection
) -> None:

    @app.job("k")
    def handler() -> None:
        go.wait(30)

    go = threading.Event()
    with running(app, dsn, lease_seconds=2):
        job_id = handler.enqueue().job_id
        for _ in range(3):
            pid = wait_for_activity(conn, "application_name like 'jobq renewal%'")
            conn.execute("select pg_terminate_backend(%s)", (pid,))
            until = job(conn, job_id)["lease_expires_at"]
            wait_until(lambda until=until: job(conn, job_id)["lease_expires_at"] > until)  # type: ignore[misc]
        go.set()
        row = finish(conn, job_id, "succeeded")
    assert (row["attempt"], row["lost_leases"]) == (1, 0)


def test_renewal_goes_on_while_the_calls_connection_hangs_and_then_cuts_it(
    app: App, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_coordinator, "REPLY_SECONDS", 3)
    started, go = threading.Event(), threading.Event()

    @app.job("k")
    def handler() -> None:
        started.set()
        go.wait(30)

    with Proxy(dsn) as proxy, captured_log() as lines, running(app, proxy.dsn, lease_seconds=1):
        job_id = handler.enqueue().job_id
        wait_until(started.is_set)
        proxy.swallow_replies("calls")
        for _ in range(3):
            until = job(conn, job_id)["lease_expires_at"]
            wait_until(lambda until=until: job(conn, job_id)["lease_expires_at"] > until)  # type: ignore[misc]
        wait_until(lambda: "calls connection failed" in lines.getvalue())
        proxy.forward_again("calls")
        go.set()
        row = finish(conn, job_id, "succeeded")
    assert (row["attempt"], row["lost_leases"]) == (1, 0)


def test_what_a_stopped_worker_leaves_is_told(app: App, dsn: str, conn: Connection) -> None:
    started, told = threading.Event(), threading.Event()

    @app.job("k")
    def handler() -> None:
        started.set()
        wait_until(lambda: current_job().cancelled)
        told.set()

    with running(app, dsn) as worker:
        handler.enqueue()
        wait_until(started.is_set)
        assert not worker.stop(timeout=0.1)
        wait_until(told.is_set)
