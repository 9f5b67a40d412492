import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import Connection, scalar, wait_for_activity, wait_until

from jobq import App, NewJob, _listener, client
from jobq._bell import Bell
from jobq._connection import limited
from jobq._pace import PollSchedule
from workers import captured_log, counts, finish, job, running

IDLE, PRESENT = "jobq._idle_class()", "jobq._presence_class()"


def held(conn: Connection, lock_class: str, kind: str) -> int:
    """How many sessions of this database hold the shared lock of a kind."""
    query = (
        f"select count(*) from pg_locks where locktype = 'advisory' and classid = {lock_class}::oid"
        " and objid = hashtext(%s)::oid and database ="
        " (select oid from pg_database where datname = current_database())"
    )
    return int(scalar(conn, query, kind))


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn)
    app.job("k")(lambda: None)
    yield app
    app.close()


def latency(conn: Connection, job_id: int) -> float:
    """Seconds from when the job was due until it started."""
    row = finish(conn, job_id, "succeeded")
    return float((row["started_at"] - row["available_at"]).total_seconds())


def settled_worker(conn: Connection) -> None:
    """Wait until an idle worker has taken its locks, and a moment for its last claim."""
    wait_until(lambda: held(conn, IDLE, "k") > 0)


def test_the_schedule_asks_soon_then_each_second_then_at_the_interval() -> None:
    schedule = PollSchedule(5)
    pauses = [schedule.pause(settled=False, due_in=None) for _ in range(5)]
    assert pauses == [0.01, 0.05, 0.25, 1, 1]
    assert schedule.pause(settled=True, due_in=None) == 5
    schedule.restart()
    assert schedule.pause(settled=True, due_in=None) == 0.01


def test_the_schedule_asks_when_a_job_falls_due() -> None:
    schedule = PollSchedule(60)
    for _ in range(3):
        schedule.pause(settled=True, due_in=None)
    assert schedule.pause(settled=True, due_in=7.5) == 7.5
    assert schedule.pause(settled=True, due_in=100) == 60
    assert schedule.pause(settled=True, due_in=0) > 0
    assert PollSchedule(0.02).pause(settled=False, due_in=None) == 0.01
    assert PollSchedule(0.02).pause(settled=False, due_in=0.5) == 0.01


def test_an_idle_worker_starts_a_job_at_once(app: App, dsn: str, conn: Connection) -> None:
    with running(app, dsn, poll_seconds=60):
        settled_worker(conn)
        times = [latency(conn, app.enqueue("k").job_id) for _ in range(20)]
    assert sorted(times)[10] < 2
    assert max(times) < 10


def test_what_comes_with_a_statements_reply_is_heard(
    conn: Connection, connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        _listener.Listener,
        "_look_back",
        lambda _, own: own.execute("select pg_notify('jobq', 'k')"),
    )

    def notify(channel: str) -> None:
        conn.execute("select pg_notify(%s, '')", (channel,))

    listener = _listener.Listener(connect, notify, ["k"], Bell())
    listener.start()
    try:
        listener.idle()
        # Of the new connection and of the locks it hears as well, once each.
        heard = 0
        while heard < 3:
            heard += wait_until(listener.heard)
    finally:
        listener.stop()


def test_a_listen_connection_killed_again_and_again(app: App, dsn: str, conn: Connection) -> None:
    with captured_log() as lines, running(app, dsn, poll_seconds=60):
        for n in range(1, 4):
            pid = wait_for_activity(conn, "application_name like 'jobq listen%'")
            conn.execute("select pg_terminate_backend(%s)", (pid,))
            wait_until(lambda n=n: lines.getvalue().count("listen connection lost") >= n)  # type: ignore[misc]
        assert latency(conn, app.enqueue("k").job_id) < 10
        settled_worker(conn)
        assert latency(conn, app.enqueue("k").job_id) < 10


def test_where_notifications_never_arrive_jobs_start_within_the_poll_interval(
    app: App, dsn: str, conn: Connection, make_database: Callable[..., str]
) -> None:
    # Another database: LISTEN succeeds there, and nothing of ours is ever delivered.
    elsewhere = make_database()
    with captured_log() as lines, running(app, dsn, poll_seconds=1, listen_url=elsewhere):
        wait_until(lambda: "notifications do not arrive" in lines.getvalue())
        for _ in range(3):
            assert latency(conn, app.enqueue("k").job_id) < 10
        assert held(conn, IDLE, "k") == 0
    assert lines.getvalue().count("notifications do not arrive") == 1
    assert "JOB_WORKER_LISTEN_URL" in lines.getvalue()


def test_delayed_jobs_and_backoffs_start_on_time(app: App, dsn: str, conn: Connection) -> None:
    attempts = []

    @app.job("flaky", retry_base_seconds=1)
    def flaky() -> None:
        attempts.append(time.monotonic())
        if len(attempts) == 1:
            raise ValueError

    with running(app, dsn, poll_seconds=60):
        settled_worker(conn)
        delayed = app.enqueue("k", delay=1.5).job_id
        retried = flaky.enqueue().job_id
        assert -0.001 <= latency(conn, delayed) < 10
        assert -0.001 <= latency(conn, retried) < 10
    assert 1 <= attempts[1] - attempts[0] < 10


def test_a_job_known_before_the_worker_went_idle_starts_on_time(
    app: App, dsn: str, conn: Connection
) -> None:
    delayed = app.enqueue("k", delay=2).job_id
    with running(app, dsn, poll_seconds=60):
        assert -0.001 <= latency(conn, delayed) < 10


def test_of_two_jobs_told_at_once_the_later_one_starts_on_time(
    app: App, dsn: str, conn: Connection
) -> None:
    with captured_log() as lines, running(app, dsn, poll_seconds=60):
        settled_worker(conn)
        wait_until(lambda: lines.getvalue().count(" poll ") >= 4)
        with conn.transaction():
            now, later = (
                client.enqueue(conn, NewJob(kind="k", delay=delay)).job_id for delay in (None, 2)
            )
        assert latency(conn, now) < 10
        assert -0.001 <= latency(conn, later) < 10


def test_a_transaction_that_began_before_the_locks_and_commits_late(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    producer = connect(autocommit=False)
    job_id = client.enqueue(producer, NewJob(kind="k")).job_id  # nobody waits: not notified
    with captured_log() as lines, running(app, dsn, poll_seconds=60):
        settled_worker(conn)
        wait_until(lambda: lines.getvalue().count(" poll ") >= 4)
        committed = time.monotonic()
        producer.commit()
        finish(conn, job_id, "succeeded")
        assert time.monotonic() - committed < 20  # by the second, not at the poll interval of 60 s


def test_the_locks_say_who_waits_and_who_is_there(app: App, dsn: str, conn: Connection) -> None:
    go = threading.Event()
    app.job("long")(lambda: go.wait(30) and None)
    with running(app, dsn, threads=1, poll_seconds=60):
        wait_until(lambda: held(conn, IDLE, "k") == 1 and held(conn, IDLE, "long") == 1)
        assert held(conn, PRESENT, "k") == held(conn, PRESENT, "long") == 1
        busy = app.enqueue("long").job_id
        wait_until(lambda: held(conn, IDLE, "k") == 0)
        assert held(conn, PRESENT, "k") == 1
        quick = app.enqueue("k").job_id
        go.set()
        assert latency(conn, busy) < 10
        finish(conn, quick, "succeeded", timeout=20)
        wait_until(lambda: held(conn, IDLE, "k") == 1)
    wait_until(lambda: held(conn, PRESENT, "k") == 0)


def test_ten_thousand_jobs_in_one_transaction_are_a_handful_of_wake_ups(
    app: App, dsn: str, conn: Connection
) -> None:
    with captured_log() as lines, running(app, dsn, poll_seconds=60):
        settled_worker(conn)
        before = lines.getvalue().count(" wake ")
        with conn.transaction():
            for _ in range(10):
                client.enqueue_many(conn, [NewJob(kind="k")] * 1000)
        wait_until(lambda: counts(conn) == {"succeeded": 10_000})
        assert 1 <= lines.getvalue().count(" wake ") - before <= 5


def test_an_idle_worker_of_another_kind_is_not_woken(app: App, dsn: str, conn: Connection) -> None:
    with captured_log() as lines, running(app, dsn, poll_seconds=60):
        settled_worker(conn)
        other = app.enqueue("other").job_id
        assert latency(conn, app.enqueue("k").job_id) < 10
    assert "kinds=other" not in lines.getvalue()
    assert job(conn, other)["attempt"] == 0


@pytest.mark.parametrize("payload", ["", "nonsense", "k\n"])
def test_messages_that_are_none_of_ours_do_no_harm(
    app: App, dsn: str, conn: Connection, payload: str
) -> None:
    with running(app, dsn, poll_seconds=60):
        settled_worker(conn)
        conn.execute("select pg_notify('jobq', %s)", (payload,))
        assert latency(conn, app.enqueue("k").job_id) < 10


def test_what_is_wrong_with_listening_is_said_less_and_less_often(
    app: App, dsn: str, conn: Connection
) -> None:
    with captured_log() as lines, running(app, dsn):
        pid = wait_for_activity(conn, "application_name like 'jobq listen%'")
        settled_worker(conn)
        conn.execute("alter function jobq.present rename to present_gone")
        conn.execute("select pg_terminate_backend(%s)", (pid,))
        wait_until(lambda: lines.getvalue().count("listening failed") >= 3)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 3)
        assert lines.getvalue().count("listening failed") <= 6
        assert lines.getvalue().count("listen connection lost") == 1
        finish(conn, app.enqueue("k").job_id, "succeeded", timeout=10)


def test_the_thread_outlives_whatever_goes_wrong(
    app: App, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter(range(2))

    def failing(*args: Any) -> Any:
        if next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        return limited(*args)

    monkeypatch.setattr(_listener, "limited", failing)
    with captured_log() as lines, running(app, dsn, poll_seconds=60):
        settled_worker(conn)
        assert latency(conn, app.enqueue("k").job_id) < 10
    assert lines.getvalue().count("ERROR listening failed") == 2
