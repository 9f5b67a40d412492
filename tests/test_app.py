import asyncio
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from helpers import Connection, scalar, wait_for_lock_wait, wait_until

from jobq import App, CurrentJob, Enqueued, IdempotencyConflict, InvalidJob, NewJob, current_job
from jobq.errors import SettingsError
from jobq.migrate import SchemaTooOld
from workers import finish, job, running


def make(dsn: str) -> tuple[App, Any]:
    app = App(dsn)

    @app.job("email.send", max_attempts=5, priority=3, retry_base_seconds=1, retry_cap_seconds=2)
    def send(to: str, at: datetime | None = None) -> str:
        """Send one."""
        return f"sent to {to}"

    return app, send


def test_a_plain_call_runs_the_function(dsn: str) -> None:
    _, send = make(dsn)
    assert send("ada") == "sent to ada"
    assert (send.kind, send.__name__, send.__doc__) == ("email.send", "send", "Send one.")


def test_a_plain_call_of_an_async_job_gives_its_coroutine() -> None:
    app = App("dbname=unused")

    @app.job("k")
    async def double(n: int) -> int:
        return 2 * n

    assert asyncio.run(double(2)) == 4
    assert double.is_async


def test_a_job_carries_the_options_of_its_kind(dsn: str, conn: Connection) -> None:
    app, send = make(dsn)
    row = job(conn, send.enqueue("ada").job_id)
    assert (row["kind"], row["payload"]) == ("email.send", {"to": "ada"})
    assert (row["max_attempts"], row["priority"]) == (5, 3)
    assert (row["retry_base_seconds"], row["retry_cap_seconds"]) == (1, 2)
    app.close()


def test_options_override_them_for_some_jobs_only(dsn: str, conn: Connection) -> None:
    app, send = make(dsn)
    urgent = send.options(priority=9, delay=60, idempotency_key="x", max_attempts=1)
    row = job(conn, urgent.enqueue(to="ada").job_id)
    assert (row["priority"], row["idempotency_key"], row["max_attempts"]) == (9, "x", 1)
    assert row["available_at"] - row["created_at"] == timedelta(seconds=60)
    assert urgent.enqueue("ada") == Enqueued(row["id"], False, "queued")
    with pytest.raises(IdempotencyConflict):
        urgent.enqueue("bob")
    assert job(conn, send.enqueue("ada").job_id)["priority"] == 3
    app.close()


def test_enqueue_many_takes_arguments_and_bound_jobs(dsn: str, conn: Connection) -> None:
    app, send = make(dsn)
    results = send.options(priority=1).enqueue_many(
        [{"to": "a"}, send.options(priority=8).bind("b"), {"to": "c", "at": None}]
    )
    rows = [job(conn, r.job_id) for r in results]
    assert [r["payload"] for r in rows] == [{"to": "a"}, {"to": "b"}, {"to": "c", "at": None}]
    assert [r["priority"] for r in rows] == [1, 8, 1]
    with pytest.raises(InvalidJob):
        send.enqueue_many([{"to": "a"}, {"to": 5}])
    assert scalar(conn, "select count(*) from jobq.jobs") == 3
    app.close()


def test_jobs_of_kinds_that_are_not_known_here(dsn: str, conn: Connection) -> None:
    app = App(dsn)
    row = job(conn, app.enqueue("elsewhere", {"a": [1, None]}, priority=4).job_id)
    assert (row["kind"], row["payload"], row["priority"]) == ("elsewhere", {"a": [1, None]}, 4)
    for bad in ({"a": object()}, {"a": float("nan")}, {"a": "\0"}):
        with pytest.raises(InvalidJob):
            app.enqueue("elsewhere", bad)
    app.close()


def test_conn_joins_the_callers_transaction(
    dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    app, send = make(dsn)
    caller = connect(autocommit=False)
    send.options(conn=caller).enqueue("ada")
    send.options(conn=caller).enqueue_many([{"to": "bob"}])
    app.enqueue("k", conn=caller)
    caller.rollback()
    assert scalar(conn, "select count(*) from jobq.jobs") == 0
    send.options(conn=caller).enqueue("ada")
    caller.commit()
    assert scalar(conn, "select count(*) from jobq.jobs") == 1
    app.close()


def test_a_refusal_by_the_client_leaves_the_callers_transaction_usable(
    dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    _, send = make(dsn)
    caller = connect(autocommit=False)
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - that is the point
    calls: list[Callable[[], object]] = [
        lambda: send.options(conn=caller).enqueue(5),
        lambda: send.options(conn=caller).enqueue("a\0"),
        lambda: send.options(conn=caller).enqueue("a", at=naive),
        lambda: send.options(conn=caller, available_at=naive).enqueue("a"),
    ]
    for call in calls:
        with pytest.raises(InvalidJob):
            call()
    send.options(conn=caller).enqueue("ada")
    caller.commit()
    assert scalar(conn, "select count(*) from jobq.jobs") == 1


def test_enqueue_async_with_and_without_a_connection(dsn: str, conn: Connection) -> None:
    app, send = make(dsn)

    async def main() -> list[Enqueued]:
        alone = await send.enqueue_async("a")
        many = await send.enqueue_many_async([{"to": "b"}])
        other = await app.enqueue_async("k", {})
        async with await psycopg.AsyncConnection.connect(dsn) as caller:
            joined = send.options(conn=caller)
            inside = [
                await joined.enqueue_async("c"),
                *await joined.enqueue_many_async([{"to": "d"}]),
                await app.enqueue_async("k", conn=caller),
            ]
            assert scalar(conn, "select count(*) from jobq.jobs") == 3
        return [alone, *many, other, *inside]

    results = asyncio.run(main())
    assert sorted(scalar(conn, "select array_agg(id) from jobq.jobs")) == [
        r.job_id for r in results
    ]
    app.close()


def test_a_kind_has_one_handler() -> None:
    app = App("dbname=unused")
    app.job("k")(lambda: None)
    with pytest.raises(ValueError, match="'k' has a handler"):
        app.job("k")(lambda: None)


def test_callable_objects_and_methods_can_be_handlers() -> None:
    app = App("dbname=unused")

    class Sender:
        async def __call__(self, to: str) -> None: ...

        def method(self, to: str) -> str:
            return to

    assert app.job("object")(Sender()).is_async
    assert app.job("method")(Sender().method)("a") == "a"


def test_without_any_database_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    app = App()
    with pytest.raises(SettingsError, match="DATABASE_URL"):
        app.enqueue("k")


def test_database_url_is_read_when_it_is_needed(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()
    monkeypatch.setenv("DATABASE_URL", dsn)
    assert app.enqueue("k").created
    app.close()


def backend(conn: Connection) -> int | None:
    query = "select max(pid) from pg_stat_activity where application_name = 'jobq app'"
    return scalar(conn, f"{query} and datname = current_database()")  # type: ignore[no-any-return]


def test_a_connection_found_dead_is_replaced(dsn: str, conn: Connection) -> None:
    app = App(dsn)
    app.enqueue("k")
    for _ in range(3):
        pid = backend(conn)
        conn.execute("select pg_terminate_backend(%s)", (pid,))
        wait_until(lambda: backend(conn) is None)
        assert app.enqueue("k").created
    assert scalar(conn, "select count(*) from jobq.jobs") == 4
    app.close()


def test_a_lost_reply_is_repeated_only_when_a_key_makes_it_safe(
    dsn: str, conn: Connection, connect: Callable[..., Connection]
) -> None:
    app, send = make(dsn)
    blocker = connect(autocommit=False)
    for options, expected in (({"idempotency_key": "x"}, None), ({}, psycopg.OperationalError)):
        blocker.execute("lock table jobq.jobs in exclusive mode")
        outcome: list[Any] = []

        def call(options: Any = options, outcome: list[Any] = outcome) -> None:
            try:
                outcome.append(send.options(**options).enqueue("ada"))
            except Exception as exc:  # noqa: BLE001 - looked at below
                outcome.append(exc)

        thread = threading.Thread(target=call)
        thread.start()
        pid = wait_until(lambda: backend(conn))
        wait_for_lock_wait(conn, pid)
        conn.execute("select pg_terminate_backend(%s)", (pid,))
        wait_until(lambda pid=pid: backend(conn) != pid)  # type: ignore[misc]
        blocker.rollback()
        thread.join(30)
        if expected is None:
            assert outcome[0].created
        else:
            assert isinstance(outcome[0], expected)
    app.close()


def test_threads_share_one_connection(dsn: str, conn: Connection) -> None:
    app, send = make(dsn)
    results: list[Enqueued] = []
    keyed = send.options(idempotency_key="one")
    threads = [
        threading.Thread(target=lambda: results.append(keyed.enqueue("ada"))) for _ in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 50
    assert len({r.job_id for r in results}) == 1
    assert sum(r.created for r in results) == 1
    app.close()


def test_a_forked_child_opens_its_own_connection(dsn: str, conn: Connection) -> None:
    app = App(dsn)
    app.enqueue("k")
    before = backend(conn)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if app.enqueue("k").created else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert app.enqueue("k").created
    assert backend(conn) == before
    app.close()


def test_the_connection_is_read_committed_whatever_the_database_says(
    dsn: str, conn: Connection
) -> None:
    name = scalar(conn, "select current_database()")
    conn.execute(
        f"alter database {name} set default_transaction_isolation = 'serializable'".encode()
    )
    conn.execute(f"alter database {name} set statement_timeout = '20ms'".encode())
    app = App(dsn)
    assert app.enqueue("k").created
    assert (
        app._producer.call(lambda own: scalar(own, "show transaction_isolation"), repeatable=True)
        == "read committed"
    )
    app.close()


def test_cancel_and_retry_from_the_app(dsn: str, conn: Connection) -> None:
    app = App(dsn)
    job_id = app.enqueue("k").job_id
    assert app.cancel(job_id) == "cancelled"
    assert app.retry(job_id, conn=conn) == "queued"
    assert app.cancel(job_id, conn=conn) == "cancelled"
    assert app.retry(job_id) == "queued"
    app.close()


def test_values_reach_the_handler_through_the_database(dsn: str, conn: Connection) -> None:
    app = App(dsn)
    seen: list[Any] = []

    @app.job("k")
    def handler(a, big: int, at: datetime, n: float = 0.5, x: Any = "default") -> Any:  # type: ignore[no-untyped-def]
        seen.append((a, big, at, n, x))
        return {"big": big, "at": at}

    values: list[Any] = [{}, [], None, "", 0, False, 0.5, "zażółć 🙂"]
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with running(app, dsn, threads=1):
        ids = [handler.enqueue(a, 10**30, at, n=1e22).job_id for a in values]
        rows = [finish(conn, job_id, "succeeded") for job_id in ids]
    assert [s[0] for s in seen] == values
    assert [type(s[0]) for s in seen] == [type(v) for v in values]
    assert {s[1:] for s in seen} == {(10**30, at, 1e22, "default")}
    assert rows[0]["result"] == {"big": 10**30, "at": "2030-01-01T00:00:00Z"}
    app.close()


def test_current_job_is_for_handlers_only(dsn: str, conn: Connection) -> None:
    with pytest.raises(LookupError, match="handler"):
        current_job()
    app = App(dsn)
    seen: list[CurrentJob] = []

    @app.job("sync", max_attempts=4)
    def sync() -> None:
        seen.append(current_job())

    @app.job("async")
    async def asynchronous() -> None:
        await asyncio.sleep(0)
        seen.append(current_job())

    ids = [sync.enqueue().job_id, asynchronous.enqueue().job_id]
    with running(app, dsn):
        for job_id in ids:
            finish(conn, job_id, "succeeded")
    by_kind = {j.kind: j for j in seen}
    assert (by_kind["sync"].id, by_kind["async"].id) == tuple(ids)
    assert (by_kind["sync"].attempt, by_kind["sync"].max_attempts) == (1, 4)
    assert not by_kind["sync"].cancelled
    app.close()


def test_a_plain_call_has_a_job_of_its_own_to_report_to() -> None:
    app = App()

    @app.job("k", max_attempts=3)
    def handler() -> tuple[int, int, int]:
        job = current_job()
        job.progress(0.5, "half")
        job.log("hello")
        return job.id, job.attempt, job.max_attempts

    assert handler() == (0, 1, 3)
    with pytest.raises(LookupError):
        current_job()


async def _run(work: Any) -> Any:
    return await work


def test_a_plain_call_of_an_async_handler_too() -> None:
    app = App()

    @app.job("k")
    async def handler() -> int:
        await asyncio.sleep(0)
        return current_job().id

    assert asyncio.run(_run(handler())) == 0


def test_a_refused_argument_names_its_kind() -> None:
    app = App("dbname=unused")

    @app.job("email.send")
    def send(to: str) -> None: ...

    with pytest.raises(InvalidJob, match=r"^email\.send: to: Field required"):
        send.enqueue()  # type: ignore[call-arg]
    with pytest.raises(InvalidJob, match=r"^email\.send: to: Field required"):
        send.enqueue_many([{}])


def test_a_database_without_the_schema_is_told_by_the_remedy(
    empty_dsn: str, connect: Callable[..., Connection]
) -> None:
    app = App(empty_dsn)
    with pytest.raises(SchemaTooOld, match="jobq migrate"):
        app.enqueue("k")
    connect(empty_dsn).execute("create schema jobq")
    with pytest.raises(SchemaTooOld, match=r"jobq\.enqueue_many[^`]*`jobq migrate`"):
        app.enqueue_many([NewJob(kind="k")])
    app.close()
