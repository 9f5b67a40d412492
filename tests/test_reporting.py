"""What handlers report: how soon it shows, and what it costs when it cannot be stored."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from helpers import Connection, scalar, wait_until
from psycopg.conninfo import make_conninfo

from jobq import App, current_job
from workers import captured_log, counts, events, finish, job, running


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn)
    yield app
    app.close()


def test_progress_shows_at_once_though_nothing_else_happens(
    app: App, dsn: str, conn: Connection
) -> None:
    tell, go = threading.Event(), threading.Event()

    @app.job("k")
    def handler() -> None:
        for fraction in (0.25, 0.5):
            tell.wait(30)
            tell.clear()
            current_job().progress(fraction)
        go.wait(30)

    job_id = handler.enqueue().job_id
    with running(app, dsn, threads=1, reap_seconds=60, poll_seconds=60):
        finish(conn, job_id, "running")
        time.sleep(1)  # until the worker has nothing to do
        for fraction in (0.25, 0.5):
            told = time.monotonic()
            tell.set()
            wait_until(lambda fraction=fraction: job(conn, job_id)["progress"] == fraction)  # type: ignore[misc]
            assert time.monotonic() - told < 2
        go.set()
        finish(conn, job_id, "succeeded")


def test_a_report_that_the_database_refuses_is_dropped(
    app: App, dsn: str, conn: Connection, make_role: Callable[..., str]
) -> None:
    role = make_role()
    conn.execute("select jobq.grant_access(%s, 'worker')", (role,))
    conn.execute(f"revoke execute on function jobq.report_progress from {role}".encode())
    go = threading.Event()

    @app.job("k")
    def handler() -> None:
        current_job().progress(0.5)
        current_job().log("told")
        go.wait(30)

    app.job("quick")(lambda: None)
    low = make_conninfo(dsn, user=role, password="test")
    with captured_log() as lines, running(app, low):
        job_id = handler.enqueue().job_id
        wait_until(lambda: "report refused" in lines.getvalue())
        finish(conn, app.enqueue("quick").job_id, "succeeded", timeout=5)
        go.set()
        finish(conn, job_id, "succeeded", timeout=5)
    assert "log" in events(conn, job_id)
    assert lines.getvalue().count("WARNING report refused") == 1
    assert "calls connection failed" not in lines.getvalue()


def test_reports_to_locked_rows_hold_up_nothing_and_arrive(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    end = threading.Event()

    @app.job("k")
    def handler() -> None:
        while not end.wait(0.05):
            current_job().progress(0.5)
        current_job().log("the end")

    app.job("quick")(lambda: None)
    blocker = connect(autocommit=False)
    ids = [handler.enqueue().job_id for _ in range(8)]
    with captured_log() as lines, running(app, dsn, threads=9):
        wait_until(lambda: counts(conn) == {"running": 8})
        blocker.execute("select from jobq.jobs for update")
        for stage in ("running", "ended"):
            if stage == "ended":
                end.set()
            done, until = 0, time.monotonic() + 4
            while time.monotonic() < until:
                finish(conn, app.enqueue("quick").job_id, "succeeded")
                done += 1
            assert done > 20, stage
        blocker.rollback()
        for job_id in ids:
            finish(conn, job_id, "succeeded")
    assert scalar(conn, "select count(*) from jobq.job_events where event = 'log'") >= 1
    assert "WARNING" not in lines.getvalue()


def test_a_wish_to_cancel_is_seen_soon_whatever_the_lease(
    app: App, dsn: str, conn: Connection
) -> None:

    @app.job("k")
    def handler() -> float:
        wait_until(lambda: current_job().cancelled)
        return time.monotonic()

    job_id = handler.enqueue().job_id
    with running(app, dsn, lease_seconds=60):
        finish(conn, job_id, "running")
        app.cancel(job_id)
        asked = time.monotonic()
        finish(conn, job_id, "succeeded")
        assert time.monotonic() - asked < 8
