import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from helpers import Connection, scalar, wait_for_activity, wait_until

from jobq import App, Cancel, Fatal, NewJob, Snooze, client, current_job
from jobq import _outcome as outcome_module
from jobq._coordinator import Coordinator
from jobq._housekeeping import Housekeeping
from proxy import Proxy
from verbs import enqueue
from workers import IDLE_LOCKS, captured_log, counts, events, finish, job, running, settings, status

TERMINAL = {"succeeded", "failed", "cancelled"}


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn)
    yield app
    app.close()


def test_jobs_run_in_queue_order(app: App, dsn: str, conn: Connection) -> None:
    ran: list[int] = []

    @app.job("k")
    def handler(n: int) -> None:
        ran.append(n)

    handler.enqueue_many([handler.options(priority=p).bind(p) for p in (0, 5, -5, 100, 5)])
    with running(app, dsn, threads=1):
        wait_until(lambda: counts(conn) == {"succeeded": 5})
    assert ran == [100, 5, 5, 0, -5]


def test_a_thousand_jobs_run_once_each(app: App, dsn: str, conn: Connection) -> None:
    ran: list[int] = []

    @app.job("k")
    def handler(n: int) -> None:
        ran.append(n)

    handler.enqueue_many([{"n": n} for n in range(1000)])
    with running(app, dsn, threads=8), running(app, dsn, threads=8):
        wait_until(lambda: counts(conn) == {"succeeded": 1000})
    assert sorted(ran) == list(range(1000))
    assert scalar(conn, "select count(*) from jobq.job_events") == 3000


def test_each_way_to_end_a_run(app: App, dsn: str, conn: Connection) -> None:

    @app.job("result")
    def result() -> Any:
        return {"n": 10**25, "t": ["ü"]}

    @app.job("error", max_attempts=2, retry_base_seconds=1)
    def error() -> None:
        raise ValueError(f"attempt {current_job().attempt}")

    @app.job("fatal")
    def fatal() -> None:
        raise Fatal("no use")

    @app.job("cancel")
    def cancel() -> None:
        raise Cancel("not needed")

    @app.job("snooze", max_attempts=1)
    def snooze() -> None:
        if snoozed.is_set():
            return
        snoozed.set()
        raise Snooze(0.2)

    snoozed = threading.Event()
    ids = {kind: app.jobs[kind].enqueue().job_id for kind in app.jobs}
    with running(app, dsn, poll_seconds=60):
        wait_until(lambda: all(status(conn, i) in TERMINAL for i in ids.values()))
    rows = {kind: job(conn, job_id) for kind, job_id in ids.items()}
    assert rows["result"]["result"] == {"n": 10**25, "t": ["ü"]}
    assert (rows["error"]["status"], rows["error"]["attempt"]) == ("failed", 2)
    assert rows["error"]["last_error"].endswith("ValueError: attempt 2")
    assert events(conn, ids["error"]) == ["enqueued", "claimed", "failed", "claimed", "failed"]
    assert (rows["fatal"]["status"], rows["fatal"]["attempt"]) == ("failed", 1)
    assert (rows["cancel"]["status"], rows["cancel"]["last_error"]) == ("cancelled", "not needed")
    assert (rows["snooze"]["status"], rows["snooze"]["attempt"]) == ("succeeded", 1)
    assert events(conn, ids["snooze"]).count("snoozed") == 1


def test_one_attempt_is_one_start_and_a_manual_retry_another(
    app: App, dsn: str, conn: Connection
) -> None:
    starts: list[int] = []

    @app.job("k", max_attempts=1)
    def handler() -> None:
        starts.append(current_job().attempt)
        raise ValueError

    job_id = handler.enqueue().job_id
    with running(app, dsn):
        finish(conn, job_id, "failed")
        assert starts == [1]
        app.retry(job_id)
        wait_until(lambda: status(conn, job_id) == "failed" and len(starts) == 2)
    assert starts == [1, 2]
    history = ["enqueued", "claimed", "failed", "retried", "claimed", "failed"]
    assert events(conn, job_id) == history


def test_errors_that_cannot_be_stored_as_they_are(app: App, dsn: str, conn: Connection) -> None:

    @app.job("k", max_attempts=1)
    def handler(text: str, times: int) -> None:
        raise ValueError(f"head{(text * times)}{chr(0)}tail")

    ids = [
        handler.enqueue("x", 20_000_000).job_id,
        handler.enqueue("ü🙂", 3_000_000).job_id,
        handler.enqueue("short", 1).job_id,
    ]
    with running(app, dsn):
        rows = [finish(conn, job_id, "failed") for job_id in ids]
    for row in rows:
        assert "head" in row["last_error"]
        assert row["last_error"].endswith("tail")
        assert "\0" not in row["last_error"]
        assert len(row["last_error"].encode()) <= 32768


def test_an_outcome_that_the_database_refuses_ends_that_job_only(
    app: App, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A result that is JSON to us and not to PostgreSQL: no value of Python's comes to mind.
    monkeypatch.setattr(outcome_module, "json_text", lambda value: value)
    barrier = threading.Barrier(6)
    # The error's context quotes the parameters then, and so the token.
    name = scalar(conn, "select current_database()")
    conn.execute(f"alter database {name} set log_parameter_max_length_on_error = -1".encode())

    @app.job("k")
    def handler(result: str) -> str:
        barrier.wait(10)
        return result

    good = [handler.enqueue("1").job_id for _ in range(5)]
    bad = handler.enqueue("1e200000").job_id
    with running(app, dsn, threads=6):
        row = finish(conn, bad, "failed")
        for job_id in good:
            finish(conn, job_id, "succeeded")
    assert row["last_error"].startswith("the outcome cannot be stored: ")
    assert "lease_token" not in row["last_error"]
    assert row["attempt"] == 1


def test_a_fresh_process_holds_no_more_than_it_can_run(
    app: App, dsn: str, conn: Connection
) -> None:
    go = threading.Event()
    app.job("k")(lambda: go.wait(30) and None)
    app.enqueue_many([NewJob(kind="k")] * 10)
    with running(app, dsn, threads=3):
        wait_until(lambda: counts(conn) == {"running": 3, "queued": 7})
        with pytest.raises(pytest.fail.Exception):
            wait_until(lambda: counts(conn) != {"running": 3, "queued": 7}, timeout=0.5)
        go.set()
        wait_until(lambda: counts(conn) == {"succeeded": 10})


def test_jobs_that_turn_out_slow_are_given_back(app: App, dsn: str, conn: Connection) -> None:
    go = threading.Event()

    @app.job("k")
    def handler(slow: bool) -> None:
        if slow:
            go.wait(30)

    handler.enqueue_many([{"slow": False}] * 2000)
    handler.enqueue_many([{"slow": True}] * 200)
    with running(app, dsn, threads=2):
        wait_until(lambda: counts(conn).get("succeeded") == 2000)
        wait_until(lambda: counts(conn).get("running") == 2)
        assert scalar(conn, "select count(*) from jobq.job_events where event = 'released'") > 0
        waiting = "select max(attempt) from jobq.jobs where status = 'queued'"
        assert scalar(conn, waiting) == 0
        go.set()
        wait_until(lambda: counts(conn) == {"succeeded": 2200})


def test_a_lost_reply_to_settle_is_cleared_up(app: App, dsn: str, conn: Connection) -> None:
    started, go = threading.Event(), threading.Event()

    @app.job("k")
    def handler() -> None:
        started.set()
        go.wait(30)

    app.job("quick")(lambda: None)
    with Proxy(dsn) as proxy, captured_log() as lines, running(app, proxy.dsn, reap_seconds=60):
        job_id = handler.enqueue().job_id
        wait_until(started.is_set)
        proxy.swallow_reply_to(b"from jobq.settle(")
        go.set()
        finish(conn, job_id, "succeeded")
        proxy.cut("calls")
        wait_until(lambda: "outcome unknown" in lines.getvalue())
        finish(conn, app.enqueue("quick").job_id, "succeeded")
    assert "outcome refused" not in lines.getvalue()
    assert events(conn, job_id) == ["enqueued", "claimed", "succeeded"]


def test_lost_connections_and_restarts_heal(app: App, dsn: str, conn: Connection) -> None:

    @app.job("k")
    def handler() -> None: ...

    with running(app, dsn):
        for _ in range(5):
            pid = wait_for_activity(conn, "application_name like 'jobq calls%'")
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name like '%threads=%' and datname = current_database()"
            )
            finish(conn, handler.enqueue().job_id, "succeeded")
            assert wait_for_activity(conn, "application_name like 'jobq calls%'") != pid


def test_a_failing_statement_is_retried_until_it_works(
    app: App, dsn: str, conn: Connection
) -> None:
    app.job("k")(lambda: None)
    conn.execute("alter function jobq.claim rename to claim_gone")
    with captured_log() as lines, running(app, dsn):
        job_id = app.enqueue("k").job_id
        wait_until(lambda: "calls connection failed" in lines.getvalue())
        conn.execute("alter function jobq.claim_gone rename to claim")
        finish(conn, job_id, "succeeded")


def test_an_outcome_whose_row_is_locked_is_sent_again(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    go = threading.Event()
    app.job("k")(lambda: go.wait(30) and None)
    blocker = connect(autocommit=False)
    with running(app, dsn, threads=1):
        locked = app.enqueue("k").job_id
        finish(conn, locked, "running")
        blocker.execute("select from jobq.jobs where id = %s for update", (locked,))
        go.set()
        for _ in range(3):  # nothing else waits for it
            finish(conn, app.enqueue("k").job_id, "succeeded")
        assert status(conn, locked) == "running"
        blocker.rollback()
        finish(conn, locked, "succeeded")


@pytest.mark.parametrize(
    "by_hand",
    [
        "delete from jobq.jobs where id = %s",
        """
        update jobq.jobs set status = 'cancelled', finished_at = now(),
          locked_by = null, lease_token = null, lease_expires_at = null
        where id = %s
        """,
    ],
)
def test_a_worker_that_loses_its_row_warns_and_goes_on(
    app: App, dsn: str, conn: Connection, by_hand: str
) -> None:
    go = threading.Event()

    @app.job("k")
    def handler() -> None:
        go.wait(30)

    with captured_log() as lines, running(app, dsn, threads=1):
        job_id = handler.enqueue().job_id
        finish(conn, job_id, "running")
        conn.execute(by_hand.encode(), (job_id,))
        go.set()
        wait_until(lambda: "outcome refused" in lines.getvalue())
        finish(conn, handler.enqueue().job_id, "succeeded")
    assert f"WARNING outcome refused job={job_id}" in " ".join(lines.getvalue().split(" ", 1))


def test_a_kind_without_a_handler_waits_for_the_worker_that_has_one(
    dsn: str, conn: Connection
) -> None:
    old, new = App(dsn), App(dsn)
    old.job("old")(lambda: None)
    new.job("old")(lambda: None)
    new.job("new")(lambda: None)
    with running(old, dsn):
        ids = [r.job_id for r in old.enqueue_many([NewJob(kind="new")] * 100)]
        finish(conn, old.enqueue("old").job_id, "succeeded")
        assert {status(conn, i) for i in ids} == {"queued"}
        with running(new, dsn):
            wait_until(lambda: counts(conn) == {"succeeded": 101})
    assert scalar(conn, "select max(attempt) from jobq.jobs") == 1
    assert set(scalar(conn, "select array_agg(event::text) from jobq.job_events")) == {
        "enqueued",
        "claimed",
        "succeeded",
    }
    old.close()
    new.close()


def test_a_payload_that_does_not_fit_yet_is_retried(app: App, dsn: str, conn: Connection) -> None:

    @app.job("k", retry_base_seconds=3600)
    def handler(a: int) -> None: ...

    job_id = app.enqueue("k", {"b": 1}).job_id
    with running(app, dsn):
        wait_until(lambda: job(conn, job_id)["last_error"])
    row = job(conn, job_id)
    assert row["status"] == "queued"
    assert "the payload does not fit the handler: a: Field required" in row["last_error"]


def test_progress_and_log_lines_are_stored_at_most_once_a_second(
    app: App, dsn: str, conn: Connection
) -> None:

    @app.job("k")
    def handler() -> None:
        for n in range(1000):
            current_job().progress(n / 1000, f"step {n}")
        current_job().log("first")
        current_job().log("se\0cond", level="warning")
        current_job().progress(1, "done")

    job_id = handler.enqueue().job_id
    with running(app, dsn):
        row = finish(conn, job_id, "succeeded")
    assert row["progress"] == 1
    query = "select event::text, detail from jobq.job_events where job_id = %s order by id"
    told = [e for e in conn.execute(query, (job_id,)) if e[0] in ("progress", "log")]
    assert len(told) <= 4
    assert told[-2][1] == {"progress": 1, "message": "done"}
    assert told[-1] == ("log", {"level": "warning", "message": "first\nse\\x00cond"})


def test_progress_shows_while_the_job_runs(app: App, dsn: str, conn: Connection) -> None:
    go = threading.Event()

    @app.job("k")
    def handler() -> None:
        current_job().progress(0.25)
        go.wait(30)

    job_id = handler.enqueue().job_id
    with running(app, dsn):
        wait_until(lambda: job(conn, job_id)["progress"] == 0.25)
        assert status(conn, job_id) == "running"
        go.set()
        finish(conn, job_id, "succeeded")


def test_a_report_whose_row_is_locked_holds_up_nothing(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    tell, go = threading.Event(), threading.Event()

    @app.job("k")
    def handler() -> None:
        tell.wait(30)
        current_job().log("told")
        go.wait(30)

    app.job("quick")(lambda: None)
    blocker = connect(autocommit=False)
    with running(app, dsn):
        job_id = handler.enqueue().job_id
        finish(conn, job_id, "running")
        blocker.execute("select from jobq.jobs where id = %s for update", (job_id,))
        tell.set()
        for _ in range(5):
            finish(conn, app.enqueue("quick").job_id, "succeeded", timeout=20)
        blocker.rollback()
        go.set()
        finish(conn, job_id, "succeeded")
    assert "log" in events(conn, job_id)


@pytest.mark.parametrize("obey", [True, False])
def test_a_running_job_is_asked_to_stop(app: App, dsn: str, conn: Connection, obey: bool) -> None:

    @app.job("k")
    def handler() -> None:
        wait_until(lambda: current_job().cancelled)
        if obey:
            raise Cancel("as asked")

    job_id = handler.enqueue().job_id
    with running(app, dsn, lease_seconds=1):
        finish(conn, job_id, "running")
        assert app.cancel(job_id) == "running"
        row = finish(conn, job_id, "cancelled" if obey else "succeeded")
    assert row["last_error"] == ("as asked" if obey else None)


def test_effects_and_success_in_one_transaction(
    app: App, dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    conn.execute("create table effects (job_id bigint)")

    @app.job("k", retry_base_seconds=1)
    def handler() -> None:
        me = current_job()
        with psycopg.connect(dsn) as mine:
            mine.execute("insert into effects values (%s)", (me.id,))
            me.succeed(mine, {"done": True})
            if me.attempt == 1:
                raise ValueError("rolled back, success included")

    with captured_log() as lines, running(app, dsn):
        job_id = handler.enqueue().job_id
        row = finish(conn, job_id, "succeeded")
    assert row["result"] == {"done": True}
    assert scalar(conn, "select array_agg(job_id) from effects") == [job_id]
    assert events(conn, job_id) == ["enqueued", "claimed", "failed", "claimed", "succeeded"]
    assert "WARNING" not in lines.getvalue()


@pytest.mark.parametrize("stopping", [False, True])
def test_waiting_costs_next_to_nothing(
    app: App, dsn: str, conn: Connection, stopping: bool
) -> None:
    go = threading.Event()
    app.job("k")(lambda: go.wait(30) and None)
    with running(app, dsn, threads=2, reap_seconds=60) as worker:
        app.enqueue_many([NewJob(kind="k")] * (1 if stopping else 3))
        wait_until(lambda: counts(conn).get("running") == (1 if stopping else 2))
        if stopping:
            worker.request_stop()
        started = time.process_time()
        assert not go.wait(1)
        assert time.process_time() - started < 0.3
        go.set()


def test_housekeeping_that_fails_stops_no_job(app: App, dsn: str, conn: Connection) -> None:
    app.job("k")(lambda: None)
    conn.execute("alter function jobq.reap rename to reap_gone")
    with captured_log() as lines, running(app, dsn, reap_seconds=60):
        finish(conn, app.enqueue("k").job_id, "succeeded", timeout=10)
    assert "calls connection failed" in lines.getvalue()


def test_finished_jobs_are_purged_by_their_age(dsn: str, conn: Connection) -> None:
    for final in ("succeeded", "failed", "cancelled"):
        client.enqueue_many(conn, [NewJob(kind=final, max_attempts=1)] * 3)
    conn.execute("select jobq.cancel(id) from jobq.jobs where kind = 'cancelled'")
    for kind, verb in (
        ("succeeded", "succeed(id, lease_token)"),
        ("failed", "fail(id, lease_token, 'x')"),
    ):
        conn.execute(f"select jobq.{verb} from jobq.claim('w', 10, array['{kind}'])".encode())
    client.enqueue(conn, NewJob(kind="queued"))
    tiny = 0.000001  # of a day: a tenth of a second
    housekeeping = Housekeeping(settings(dsn, retention_days=tiny, failed_retention_days=1))
    housekeeping._purge_at = 0

    def purged() -> bool:
        housekeeping._purge_at = min(housekeeping._purge_at, 0)
        housekeeping.run(conn)
        return counts(conn) == {"failed": 3, "queued": 1}

    wait_until(purged)
    assert scalar(conn, "select count(distinct job_id) from jobq.job_events") == 4


def test_retention_zero_keeps_everything(dsn: str) -> None:
    housekeeping = Housekeeping(settings(dsn))
    assert housekeeping._purge_at == float("inf")


def test_a_question_that_fails_leaves_no_job_to_the_poll_interval(
    app: App, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.job("k")(lambda: None)
    ask = Coordinator._next_due
    asked: list[bool] = []

    def once_cut(self: Coordinator, conn: psycopg.Connection[Any]) -> float | None:
        asked.append(True)
        if len(asked) == 1:
            conn.close()
        return ask(self, conn)

    with running(app, dsn, threads=1, poll_seconds=60, reap_seconds=60):
        wait_until(lambda: scalar(conn, IDLE_LOCKS) == 1)
        time.sleep(0.5)  # past the quick looks of its first moments
        monkeypatch.setattr(Coordinator, "_next_due", once_cut)
        with conn.transaction():
            enqueue(conn, "k")
            later = enqueue(conn, "k", delay="1 s")
        finish(conn, later, "succeeded", timeout=20)
    assert len(asked) > 1


def test_the_debug_log_tells_every_step(app: App, dsn: str, conn: Connection) -> None:

    @app.job("k", retry_base_seconds=1)
    def handler() -> None:
        if current_job().attempt == 1:
            raise ValueError
        current_job().progress(0.5)
        renewed.wait(30)

    renewed = threading.Event()
    with captured_log() as lines, running(app, dsn, lease_seconds=1):
        wait_until(lambda: scalar(conn, IDLE_LOCKS) == 1)
        job_id = handler.enqueue().job_id
        wait_until(lambda: " renew " in lines.getvalue())
        renewed.set()
        finish(conn, job_id, "succeeded")
        kinds = ("poll", "wake", "claim", "renew", "progress", "retry", "completion")
        for kind in kinds:
            level = "INFO" if kind == "retry" else "DEBUG"
            wait_until(lambda line=f" {level} {kind} ": line in lines.getvalue())  # type: ignore[misc]


def test_a_serializable_database_changes_nothing(app: App, dsn: str, conn: Connection) -> None:
    name = scalar(conn, "select current_database()")
    conn.execute(f"alter database {name} set default_transaction_isolation = serializable".encode())
    ran: list[int] = []

    @app.job("k")
    def handler(n: int) -> None:
        ran.append(n)

    with captured_log() as lines, running(app, dsn, threads=4), running(app, dsn, threads=4):
        handler.enqueue_many([{"n": n} for n in range(500)])
        wait_until(lambda: counts(conn) == {"succeeded": 500})
    assert sorted(ran) == list(range(500))
    assert "failed" not in lines.getvalue()
