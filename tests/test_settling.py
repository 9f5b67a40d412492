import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import Connection, scalar, wait_until

from jobq import App, CurrentJob, _outcome, _settling, current_job
from jobq._settling import FIRST_LOCKED_SECONDS, LOCKED_SECONDS, Settling
from jobq.context import Notes
from workers import captured_log, events, finish, running, status


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn)
    yield app
    app.close()


def finish_locked(job_id: int, conn: Connection, blocker: Connection, go: threading.Event) -> int:
    """Let the job's handler end while `blocker` holds its row, until a second past its lease."""
    finish(conn, job_id, "running")
    blocker.execute("select from jobq.jobs where id = %s for update", (job_id,))
    go.set()
    over = "select lease_expires_at < clock_timestamp() - interval '1 s' from jobq.jobs"
    wait_until(lambda: scalar(conn, f"{over} where id = %s", job_id))
    return job_id


def test_an_outcome_is_sent_past_its_lease_until_its_row_is_free(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    go = threading.Event()
    app.job("k")(lambda: go.wait(30) and None)
    blocker = connect(autocommit=False)
    with captured_log() as lines, running(app, dsn, lease_seconds=1, reap_seconds=60):
        job_id = finish_locked(app.enqueue("k").job_id, conn, blocker, go)
        blocker.rollback()
        finish(conn, job_id, "succeeded", timeout=10)
    assert events(conn, job_id) == ["enqueued", "claimed", "succeeded"]
    assert "WARNING" not in lines.getvalue()


def test_an_outcome_past_its_lease_does_not_outlast_the_time_to_stop(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    go = threading.Event()
    app.job("k")(lambda: go.wait(30) and None)
    blocker = connect(autocommit=False)
    with running(app, dsn, lease_seconds=1, reap_seconds=60) as worker:
        job_id = finish_locked(app.enqueue("k").job_id, conn, blocker, go)
        assert not worker.stop(timeout=0.5)
    assert status(conn, job_id) == "running"


def test_an_outcome_past_its_lease_is_void_once_the_job_was_reaped(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    go = threading.Event()
    app.job("k")(lambda: go.wait(30) and None)
    blocker = connect(autocommit=False)
    with captured_log() as lines, running(app, dsn, lease_seconds=1, reap_seconds=60):
        job_id = finish_locked(app.enqueue("k").job_id, conn, blocker, go)
        blocker.execute("select jobq.reap()")
        blocker.commit()
        wait_until(lambda: "WARNING outcome refused" in lines.getvalue())
    assert events(conn, job_id) == ["enqueued", "claimed", "lease_lost"]
    assert "outcome not sent" not in lines.getvalue()


def test_what_a_finished_handler_reported_is_given_up_with_its_lease(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    go = threading.Event()

    @app.job("k")
    def handler() -> None:
        go.wait(30)
        current_job().log("told")

    blocker = connect(autocommit=False)
    with running(app, dsn, lease_seconds=1, reap_seconds=60) as worker:
        job_id = finish_locked(handler.enqueue().job_id, conn, blocker, go)
        notes = worker._coordinator._notes
        # Each try waits for the row's lock, and puts the next one off by a second.
        wait_until(lambda: time.monotonic() > notes.resume_at + 1, timeout=10)
        blocker.rollback()
        finish(conn, job_id, "succeeded", timeout=10)


class Locks:
    """A connection to a database in which the row of `job_id` is locked, until `free`."""

    free = False
    job_id = 1

    def execute(self, _query: str, _parameters: object) -> "Locks":
        return self

    def fetchall(self) -> list[tuple[int, None, None]]:
        return [] if self.free else [(self.job_id, None, None)]


def ended(job_id: int, notes: Notes) -> CurrentJob:
    job = CurrentJob(1000.0, notes, job_id, "k", b"{}", 1, 10, "token", 0)
    _outcome.returned(job, None)
    return job


def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(_settling, "monotonic", lambda: now[0])
    return now


def test_a_newly_locked_outcome_does_not_put_off_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, notes, locks = clock(monkeypatch), Notes(), Locks()
    conn: Any = locks
    jobs = {n: ended(n, notes) for n in (1, 2)}
    settling = Settling(jobs, notes)
    for locks.job_id, job in jobs.items():
        settling.add([job])
        settling.send(conn)
        now[0] += FIRST_LOCKED_SECONDS / 2
    assert settling.retry_at == pytest.approx(100 + FIRST_LOCKED_SECONDS)


def test_locked_outcomes_are_sent_again_soon_then_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, notes, locks = clock(monkeypatch), Notes(), Locks()
    conn: Any = locks
    job = ended(1, notes)
    claims = {1: job}
    settling = Settling(claims, notes)

    def pauses(count: int) -> list[float]:
        found = []
        for _ in range(count):
            settling.send(conn)
            assert settling.retry_at is not None
            found.append(round(settling.retry_at - now[0], 6))
            now[0] = settling.retry_at
        return found

    settling.add([job])
    expected = [min(FIRST_LOCKED_SECONDS * 2**n, LOCKED_SECONDS) for n in range(7)]
    assert pauses(7) == expected
    locks.free = True
    settling.send(conn)
    assert not settling
    assert not claims
    locks.free = False
    claims[1] = job
    settling.add([job])
    assert pauses(2) == expected[:2]
