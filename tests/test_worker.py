import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from helpers import Connection, scalar, wait_until
from psycopg.conninfo import make_conninfo

from jobq import App, NewJob, Worker, client
from jobq.errors import SettingsError
from jobq.migrate import SchemaError, SchemaTooOld, migrate
from workers import (
    Process,
    captured_log,
    counts,
    events,
    finish,
    job,
    running,
    settings,
    status,
)


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn)
    yield app
    app.close()


def test_start_and_stop_inside_a_program(app: App, dsn: str, conn: Connection) -> None:
    app.job("k")(lambda: None)
    before = threading.active_count()
    worker = Worker(app, settings(dsn))
    worker.start()
    finish(conn, app.enqueue("k").job_id, "succeeded")
    assert worker.stop() is True
    assert worker.stop() is True
    wait_until(lambda: threading.active_count() == before)
    sessions = "select count(*) from pg_stat_activity where application_name like '%% threads=2'"
    here = "and datname = current_database()"
    wait_until(lambda: scalar(conn, f"{sessions} {here}") == 0)
    later = app.enqueue("k").job_id
    assert status(conn, later) == "queued"


def test_three_connections_that_name_their_worker(app: App, dsn: str, conn: Connection) -> None:
    go = threading.Event()
    app.job("k")(lambda: go.wait(30) and None)
    query = """
      select array_agg(application_name order by application_name) from pg_stat_activity
      where application_name like '%% threads=7' and datname = current_database()
    """
    expected = [f"jobq {purpose} host-1 threads=7" for purpose in ("calls", "listen", "renewal")]
    with running(app, dsn, threads=7, lease_seconds=1, name="host-1"):
        job_id = app.enqueue("k").job_id
        assert finish(conn, job_id, "running")["locked_by"] == "host-1"
        wait_until(lambda: scalar(conn, query) == expected)
        go.set()
        finish(conn, job_id, "succeeded")


def test_kinds_and_exclude_narrow_what_is_claimed(app: App, dsn: str, conn: Connection) -> None:
    for kind in ("a", "b", "c"):
        app.job(kind)(lambda: None)
    ids = {kind: app.enqueue(kind).job_id for kind in ("a", "b", "c")}
    with running(app, dsn, kinds="a,b", exclude="b") as worker:
        assert worker.kinds == ["a"]
        finish(conn, ids["a"], "succeeded")
    assert [status(conn, ids[k]) for k in "bc"] == ["queued"] * 2


def test_kinds_without_a_handler_are_refused(app: App, dsn: str) -> None:
    app.job("a")(lambda: None)
    with pytest.raises(SettingsError, match=r"JOB_WORKER_KINDS.*typo.*this app has a"):
        Worker(app, settings(dsn, kinds="a,typo"))
    with pytest.raises(SettingsError, match="nothing to work on"):
        Worker(app, settings(dsn, exclude="a"))
    with pytest.raises(SettingsError, match="nothing to work on"):
        Worker(App(dsn), settings(dsn))


def test_without_a_database_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    app = App()
    app.job("a")(lambda: None)
    with pytest.raises(SettingsError, match="DATABASE_URL"):
        Worker(app)


@pytest.mark.parametrize("name", ["", "ü" * 129, "a\0b", "\ud800"])
def test_a_name_that_no_claim_accepts_is_refused(app: App, dsn: str, name: str) -> None:
    app.job("a")(lambda: None)
    with pytest.raises(SettingsError, match="1 to 256 bytes"):
        Worker(app, settings(dsn), name=name)


def test_a_database_without_the_schema_is_refused_with_the_remedy(
    empty_dsn: str, connect: Callable[..., Connection]
) -> None:
    app = App(empty_dsn)
    app.job("k")(lambda: None)
    worker = Worker(app, settings(empty_dsn))
    with pytest.raises(SchemaTooOld, match="jobq migrate"):
        worker.start()
    assert worker.stop()
    migrate(empty_dsn)
    with running(app, empty_dsn):
        finish(connect(empty_dsn), app.enqueue("k").job_id, "succeeded")
    app.close()


def test_a_worker_waits_for_its_database_until_it_is_stopped(app: App, dsn: str) -> None:
    app.job("k")(lambda: None)
    worker = Worker(app, settings(make_conninfo(dsn, port=1)))
    thread = threading.Thread(target=worker.start)
    with captured_log() as lines:
        thread.start()
        wait_until(lambda: lines.getvalue().count("WARNING no connection") >= 2)
        assert worker.stop()
        thread.join(10)
    assert not thread.is_alive()


def test_stop_lets_running_jobs_end_and_gives_the_rest_back(
    app: App, dsn: str, conn: Connection
) -> None:
    go = threading.Event()

    @app.job("k")
    def handler(slow: bool) -> None:
        if slow:
            go.wait(30)

    handler.enqueue_many([{"slow": False}] * 500)
    handler.enqueue_many([{"slow": True}] * 100)
    with running(app, dsn, threads=2, lease_seconds=1) as worker:
        wait_until(
            lambda: counts(conn).get("succeeded") == 500 and counts(conn).get("running", 0) >= 2
        )
        worker.request_stop()
        wait_until(lambda: counts(conn) == {"succeeded": 500, "running": 2, "queued": 98})
        until = scalar(conn, "select min(lease_expires_at) from jobq.jobs")
        renewed = "select min(lease_expires_at) > %s from jobq.jobs"
        wait_until(lambda: scalar(conn, renewed, until))
        go.set()
        assert worker.stop() is True
    assert counts(conn) == {"succeeded": 502, "queued": 98}
    assert scalar(conn, "select max(attempt) from jobq.jobs where status = 'queued'") == 0


def test_stop_does_not_wait_for_ever(app: App, dsn: str, conn: Connection) -> None:
    started, go = threading.Event(), threading.Event()

    @app.job("k")
    def handler() -> None:
        started.set()
        go.wait(30)

    with running(app, dsn) as worker:
        app.enqueue("k")
        assert started.wait(30)
        before = time.monotonic()
        assert worker.stop(timeout=0.2) is False
        assert time.monotonic() - before < 5
        go.set()


SLOW = """
@app.job("slow")
def slow(seconds: float) -> None:
    print("at work", flush=True)
    time.sleep(seconds)
"""


def wait_until_at_work(process: Process) -> None:
    """Until a slow job has started: one that is only claimed is given back at the end."""
    wait_until(lambda: "at work" in process.log_text())


def test_sigterm_lets_a_job_end_and_exits_0(dsn: str, conn: Connection, tmp_path: Path) -> None:
    with Process(tmp_path, SLOW, dsn) as process:
        running_job = client.enqueue(conn, NewJob(kind="slow", payload='{"seconds": 2}')).job_id
        wait_until_at_work(process)
        process.signal(signal.SIGTERM)
        wait_until(lambda: " stopping " in process.log_text())
        later = client.enqueue(conn, NewJob(kind="slow", payload='{"seconds": 0}')).job_id
        assert process.wait() == 0
    assert status(conn, running_job) == "succeeded"
    assert (status(conn, later), job(conn, later)["attempt"]) == ("queued", 0)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_within_two_seconds(
    dsn: str, conn: Connection, tmp_path: Path, first: signal.Signals
) -> None:
    with Process(tmp_path, SLOW, dsn) as process:
        job_id = client.enqueue(conn, NewJob(kind="slow", payload='{"seconds": 60}')).job_id
        wait_until_at_work(process)
        process.signal(first)
        wait_until(lambda: "INFO stopping" in process.log_text())
        before = time.monotonic()
        process.signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - before < 2.5
    # Its lease brings the job back.
    with Process(tmp_path, SLOW.replace("sleep(seconds)", "sleep(0)"), dsn):
        row = finish(conn, job_id, "queued")
        assert row["lost_leases"] == 1


def test_the_shutdown_time_ends_a_stop(dsn: str, conn: Connection, tmp_path: Path) -> None:
    with Process(tmp_path, SLOW, dsn, JOB_WORKER_SHUTDOWN_SECONDS="0.3") as process:
        client.enqueue(conn, NewJob(kind="slow", payload='{"seconds": 60}'))
        wait_until_at_work(process)
        process.signal()
        assert process.wait(10) == 1


def test_sigkill_is_recovered_within_lease_and_reap_interval(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    source = """
    @app.job("k", retry_base_seconds=1)
    def handler() -> int:
        if current_job().attempt == 1:
            time.sleep(60)
        return os.getpid()
    """
    with Process(tmp_path, source, dsn) as first, Process(tmp_path, source, dsn) as second:
        job_id = client.enqueue(conn, NewJob(kind="k", retry_base_seconds=1)).job_id
        owner = finish(conn, job_id, "running")["locked_by"]
        killed = first if f"-{first.process.pid}-" in owner else second
        before = time.monotonic()
        killed.signal(signal.SIGKILL)
        wait_until(lambda: "lease_lost" in events(conn, job_id))
        assert time.monotonic() - before < 1 + 0.2 + 4
        row = finish(conn, job_id, "succeeded")
        survivor = second if killed is first else first
        assert row["result"] == survivor.process.pid
    assert row["lost_leases"] == 1


def test_a_job_that_kills_its_process_starts_no_more_than_it_may(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    source = """
    @app.job("poison", max_attempts=3, retry_base_seconds=1, retry_cap_seconds=1)
    def poison() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @app.job("k")
    def handler() -> None: ...
    """
    poison = NewJob(kind="poison", max_attempts=3, retry_base_seconds=1, retry_cap_seconds=1)
    job_id = client.enqueue(conn, poison).job_id
    neighbours = [r.job_id for r in client.enqueue_many(conn, [NewJob(kind="k")] * 20)]
    deaths = 0
    while status(conn, job_id) != "failed":
        with Process(tmp_path, source, dsn) as process:
            wait_until(
                lambda: process.process.poll() is not None or status(conn, job_id) == "failed"
            )
            deaths += process.process.returncode == -signal.SIGKILL
    row = job(conn, job_id)
    assert deaths == 3
    assert (row["attempt"], row["lost_leases"]) == (3, 3)
    assert "lease lost" in row["last_error"]
    assert events(conn, job_id).count("claimed") == 3
    with Process(tmp_path, source, dsn):
        for neighbour in neighbours:
            finish(conn, neighbour, "succeeded")
    assert max(job(conn, n)["attempt"] for n in neighbours) <= 2


def test_exceptions_that_end_processes_do_not(dsn: str, conn: Connection, tmp_path: Path) -> None:
    source = """
    @app.job("bad", max_attempts=1)
    def bad(n: int) -> None:
        raise (SystemExit, KeyboardInterrupt, GeneratorExit)[n % 3]("on purpose")

    @app.job("good")
    def good() -> None: ...
    """
    with Process(tmp_path, source, dsn) as process:
        bad = [
            client.enqueue(conn, NewJob(kind="bad", max_attempts=1, payload=f'{{"n": {n}}}')).job_id
            for n in range(6)
        ]
        for job_id in bad:
            assert "on purpose" in finish(conn, job_id, "failed")["last_error"]
        for _ in range(4):
            finish(conn, client.enqueue(conn, NewJob(kind="good")).job_id, "succeeded")
        process.signal()
        assert process.wait() == 0


def test_time_zones_of_worker_and_database_do_not_matter(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    name = scalar(conn, "select current_database()")
    conn.execute(f"alter database {name} set timezone = 'America/Sao_Paulo'".encode())
    source = """
    from datetime import datetime

    @app.job("k")
    def handler(at: datetime) -> datetime:
        return at
    """
    at = datetime.now(UTC) + timedelta(seconds=1)
    with Process(tmp_path, source, dsn, TZ="Asia/Kathmandu", JOB_WORKER_POLL_SECONDS="60"):
        payload = f'{{"at": "{at.isoformat()}"}}'
        now = client.enqueue(conn, NewJob(kind="k", payload=payload)).job_id
        row = finish(conn, now, "succeeded")
        assert (datetime.fromisoformat(row["result"]), row["attempt"]) == (at, 1)
        quick = finish(
            conn, client.enqueue(conn, NewJob(kind="k", payload=payload)).job_id, "succeeded"
        )
        assert (quick["started_at"] - quick["available_at"]).total_seconds() < 10
        later = client.enqueue(conn, NewJob(kind="k", payload=payload, available_at=at)).job_id
        row = finish(conn, later, "succeeded")
        assert 0 <= (row["started_at"] - at).total_seconds() < 2 or row["available_at"] > at


def test_the_log_of_a_process_is_json_when_asked(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    source = """
    configure("INFO", "json")

    @app.job("k")
    def handler() -> None: ...
    """
    with Process(tmp_path, source, dsn) as process:
        job_id = client.enqueue(conn, NewJob(kind="k")).job_id
        finish(conn, job_id, "succeeded")
        process.signal()
        assert process.wait() == 0
        records = [json.loads(line) for line in process.log_text().splitlines()]
    assert [r["event"] for r in records] == ["worker started", "stopping", "worker stopped"]
    assert records[0]["threads"] == 2


def test_a_role_that_may_not_work_is_refused_with_the_command(
    app: App, dsn: str, conn: Connection, make_role: Callable[..., str]
) -> None:
    app.job("k")(lambda: None)
    role = make_role()
    conn.execute("select jobq.grant_access(%s, 'producer')", (role,))
    low = make_conninfo(dsn, user=role, password="test")
    command = f"select jobq.grant_access('{role}', 'worker')"
    with pytest.raises(SchemaError, match="claim") as caught:
        Worker(app, settings(low)).start()
    assert command in str(caught.value)
    conn.execute(command.encode())
    with running(app, low):
        finish(conn, app.enqueue("k").job_id, "succeeded")


def test_a_failing_attempt_shows_without_debug(app: App, dsn: str, conn: Connection) -> None:

    @app.job("k", max_attempts=7, retry_base_seconds=3600)
    def handler() -> None:
        raise ValueError("no good")

    with captured_log(logging.INFO) as lines, running(app, dsn):
        job_id = handler.enqueue().job_id
        wait_until(lambda: " INFO retry " in lines.getvalue())
    line = next(line for line in lines.getvalue().splitlines() if " retry " in line)
    assert f"job={job_id} kind=k after=failed attempt=1 of=7" in line
    assert "ValueError: no good" in line
