"""`current_job().succeed(conn)`: effects and the end of the job commit together or not at all."""

from collections.abc import Iterator

import psycopg
import pytest
from helpers import Connection, scalar, wait_until

from jobq import App, current_job
from workers import captured_log, events, finish, job, running


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn)
    yield app
    app.close()


@pytest.mark.parametrize("left", ["rolled back", "left open"])
def test_a_transaction_that_was_not_committed_is_a_failed_attempt(
    app: App, dsn: str, conn: Connection, left: str
) -> None:
    conn.execute("create table effects (job_id bigint)")
    kept: list[Connection] = []

    @app.job("k", retry_base_seconds=1)
    def handler() -> str:
        me = current_job()
        mine = psycopg.connect(dsn)
        mine.execute("insert into effects values (%s)", (me.id,))
        me.succeed(mine, "mine")
        if me.attempt > 1:
            mine.commit()
        elif left == "left open":
            kept.append(mine)
            return "ignored"
        mine.close()
        return "ignored"

    with captured_log() as lines, running(app, dsn):
        job_id = handler.enqueue().job_id
        if left == "left open":
            wait_until(lambda: kept)
            kept.pop().close()
        row = finish(conn, job_id, "succeeded")
        wait_until(lambda: lines.getvalue().count(" completion ") == 2)
    assert row["result"] == "mine"
    assert scalar(conn, "select count(*) from effects") == 1
    assert events(conn, job_id) == ["enqueued", "claimed", "failed", "claimed", "succeeded"]
    query = "select detail ->> 'error' from jobq.job_events where job_id = %s and event = 'failed'"
    assert "in a transaction that was not committed" in scalar(conn, query, job_id)
    assert "WARNING" not in lines.getvalue()
    assert "outcome=succeeded" in lines.getvalue()


def test_an_error_after_the_commit_is_told(app: App, dsn: str, conn: Connection) -> None:

    @app.job("k")
    def handler() -> None:
        with psycopg.connect(dsn) as mine:
            current_job().succeed(mine)
        raise ValueError("too late")

    with captured_log() as lines, running(app, dsn):
        job_id = handler.enqueue().job_id
        wait_until(lambda: "WARNING raised after it had succeeded" in lines.getvalue())
        assert "ValueError: too late" in lines.getvalue()
    assert job(conn, job_id)["status"] == "succeeded"
    assert events(conn, job_id) == ["enqueued", "claimed", "succeeded"]


def test_an_async_connection_is_refused_with_the_reason(
    app: App, dsn: str, conn: Connection
) -> None:

    @app.job("k", max_attempts=1)
    async def handler() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as mine:
            current_job().succeed(mine)

    with running(app, dsn):
        row = finish(conn, handler.enqueue().job_id, "failed")
    assert "TypeError: succeed takes a synchronous connection" in row["last_error"]
