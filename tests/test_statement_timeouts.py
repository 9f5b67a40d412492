"""Statements that run out of time are repeated with less to do."""

import threading
from collections.abc import Iterator

import pytest
from helpers import Connection, wait_until

from jobq import App, NewJob, _connection, client
from jobq._housekeeping import Housekeeping
from workers import captured_log, counts, running, settings

SLOW_CLAIM = """
create schema real;
alter function jobq.claim set schema real;
create function jobq.claim(worker text, max_jobs int, kinds text[], lease interval)
returns setof jobq.jobs language plpgsql as $$
begin
  if max_jobs > 10 then perform pg_sleep(10); end if;
  return query select * from real.claim(worker, max_jobs, kinds, lease);
end $$;
"""
SLOW_SETTLE = """
create schema real;
alter function jobq.settle set schema real;
create function jobq.settle(outcomes jsonb)
returns table (job_id bigint, accepted boolean, status jobq.job_status) language plpgsql as $$
begin
  if jsonb_array_length(outcomes) > 3 then perform pg_sleep(10); end if;
  return query select * from real.settle(outcomes);
end $$;
"""
SLOW_PURGE = """
create schema real;
alter function jobq.purge set schema real;
create function jobq.purge(older_than interval, max_jobs int, statuses jobq.job_status[])
returns int language plpgsql as $$
begin
  if max_jobs > 10 then perform pg_sleep(10); end if;
  return real.purge(older_than, max_jobs, statuses);
end $$;
"""


@pytest.fixture
def app(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setitem(_connection._SESSION, "statement_timeout", "500ms")
    app = App(dsn)
    yield app
    app.close()


def test_a_claim_of_too_much_asks_for_less(app: App, dsn: str, conn: Connection) -> None:
    app.job("k")(lambda: None)
    app.enqueue_many([NewJob(kind="k")] * 100)
    conn.execute(SLOW_CLAIM)
    with captured_log() as lines, running(app, dsn, threads=50):
        wait_until(lambda: counts(conn) == {"succeeded": 100})
    assert "statement timeout" in lines.getvalue()


def test_a_settle_of_too_much_is_split(app: App, dsn: str, conn: Connection) -> None:
    barrier = threading.Barrier(20)

    @app.job("k")
    def handler() -> None:
        barrier.wait(20)

    app.enqueue_many([NewJob(kind="k")] * 20)
    conn.execute(SLOW_SETTLE)
    with captured_log() as lines, running(app, dsn, threads=20):
        wait_until(lambda: counts(conn) == {"succeeded": 20})
    assert "WARNING settle cancelled" in lines.getvalue()
    assert "refused" not in lines.getvalue()
    assert "calls connection failed" not in lines.getvalue()


def test_a_purge_of_too_much_takes_less(dsn: str, conn: Connection) -> None:
    client.enqueue_many(conn, [NewJob(kind="k")] * 30)
    conn.execute("select jobq.cancel(id) from jobq.jobs")
    conn.execute(SLOW_PURGE)
    conn.execute("set statement_timeout = '300ms'")
    housekeeping = Housekeeping(settings(dsn, retention_days=0.000001))
    housekeeping._purge_at = 0
    with captured_log() as lines:

        def purged() -> bool:
            housekeeping.run(conn)
            return counts(conn) == {}

        wait_until(purged)
    assert lines.getvalue().count("WARNING purge cancelled") >= 2


def test_a_single_outcome_that_never_fits_keeps_nothing_else(
    app: App, dsn: str, conn: Connection
) -> None:
    app.job("k")(lambda: None)
    app.job("stuck")(lambda: None)
    stuck = app.enqueue("stuck").job_id
    conn.execute(
        SLOW_SETTLE.replace(
            "jsonb_array_length(outcomes) > 3", f"outcomes @> '[{{\"job_id\": {stuck}}}]'"
        )
    )
    with captured_log() as lines, running(app, dsn):
        wait_until(lambda: "settle cancelled" in lines.getvalue())
        app.enqueue_many([NewJob(kind="k")] * 5)
        wait_until(lambda: counts(conn) == {"succeeded": 5, "running": 1})
