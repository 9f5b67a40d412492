"""Any history replays clean, whatever mix of verbs and edits by hand made it."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
from helpers import Connection, scalar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from ledger import STATUSES, Row, claim, enqueue_many, in_thread, job_in, rows


def problems(conn: Connection) -> list[Row]:
    return rows(conn, "select * from jobq.verify()")


# A move is (verb, which job, a number): applied to whatever is stored, legal or not.
def settle(outcome: str, **more: Any) -> Callable[[Connection, Row, int], None]:
    def move(conn: Connection, job: Row, number: int) -> None:
        entry = {"job_id": job["id"], "lease_token": str(job["lease_token"]), "outcome": outcome}
        numbers = {key: number for key, value in more.items() if value is int}
        conn.execute("select jobq.settle(%s)", (Jsonb([{**entry, **more, **numbers}]),))

    return move


def call(statement: str) -> Callable[[Connection, Row, int], None]:
    def move(conn: Connection, job: Row, number: int) -> None:
        token = job["lease_token"] or NOBODY["lease_token"]
        conn.execute(statement.encode(), {"id": job["id"], "number": number, "token": token})

    return move


MOVES: dict[str, Callable[[Connection, Row, int], None]] = {
    "enqueue": call("select jobq.enqueue('k', jsonb_build_object('n', %(number)s::int))"),
    "enqueue delayed": call(
        "select jobq.enqueue('k', priority => %(number)s, delay => '1 h', max_attempts => 2)"
    ),
    "enqueue with key": call(
        "select jobq.enqueue_many(jsonb_build_array(jsonb_build_object("
        "'kind', 'k', 'idempotency_key', %(number)s::text, 'max_attempts', 3)))"
    ),
    "clone": call("select jobq.clone(%(id)s, '{\"cloned\": true}')"),
    "claim": call("select jobq.claim('w' || %(number)s, 1 + abs(%(number)s))"),
    "renew": call("select jobq.renew(array[%(id)s], array[%(token)s]::uuid[])"),
    "succeed": settle("succeeded", result={"a": 1}),
    "fail": settle("failed", error="broken", retry_in_seconds=int),
    "fail by backoff": settle("failed", error=""),
    "fail for good": settle("failed", error="fatal", retryable=False),
    "release": settle("released"),
    "snooze": settle("snoozed", delay_seconds=int),
    "stop": settle("cancelled", error="stopped"),
    "report": call("select jobq.report_progress(%(id)s, %(token)s, 0.5, 'half')"),
    "log": call("select jobq.log(%(id)s, %(token)s, 'info', 'hello')"),
    "expire": call("update jobq.jobs set lease_expires_at = created_at where status = 'running'"),
    "reap": call("select jobq.reap(1 + abs(%(number)s))"),
    "cancel": call("select jobq.cancel(%(id)s)"),
    "retry": call("select jobq.retry(%(id)s, 1 + abs(%(number)s))"),
    "cancel many": call("select jobq.cancel_jobs('{\"priority\": 0}')"),
    "retry many": call("select jobq.retry_jobs('{}', 2)"),
    "set priority": call("select jobq.set_priority('{}', %(number)s)"),
    "reschedule": call("select jobq.reschedule('{}', delay => make_interval(secs => %(number)s))"),
    "purge": call("select jobq.purge('1 ms', 2)"),
    "edit": call(
        "update jobq.jobs set kind = 'e', payload = '{\"e\": 1}', priority = %(number)s,"
        " last_error = 'edited' where id = %(id)s"
    ),
    "edit attempts": call("update jobq.jobs set max_attempts = max_attempts + 5"),
    "edit time": call("update jobq.jobs set available_at = '2031-01-01+00' where id = %(id)s"),
    "finish by hand": call(
        "update jobq.jobs set status = 'succeeded', finished_at = '2031-01-01+00',"
        " locked_by = null, lease_token = null, lease_expires_at = null"
        " where id = %(id)s and status = 'running'"
    ),
    "retry by hand": call(
        "update jobq.jobs set status = 'queued', finished_at = null, cancel_requested_at = null,"
        " attempt = 0 where id = %(id)s and status in ('failed', 'cancelled')"
    ),
    "request by hand": call(
        "update jobq.jobs set cancel_requested_at = '2031-01-01+00' where status = 'running'"
    ),
    "unrequest by hand": call("update jobq.jobs set cancel_requested_at = null"),
    "insert by hand": call("insert into jobq.jobs (kind, last_error) values ('h', 'x')"),
    "delete by hand": call("delete from jobq.jobs where id = %(id)s"),
}
NOBODY: Row = {"id": 4711, "lease_token": "00000000-0000-4000-8000-000000000000"}
REFUSALS = {"JQ002", "JQ003", "JQ004", "JQ005", "23514"}


def play(conn: Connection, move: tuple[str, int, int]) -> None:
    verb, which, number = move
    stored = rows(conn, "select id, lease_token from jobq.jobs order by id")
    try:
        with conn.transaction():
            MOVES[verb](conn, stored[which % len(stored)] if stored else NOBODY, number)
    except psycopg.Error as error:
        assert error.sqlstate in REFUSALS, (move, error)  # noqa: PT017


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, 7), st.integers(-5, 5)),
        min_size=10,
        max_size=40,
    )
)
def test_any_history_replays_clean(conn: Connection, moves: list[tuple[str, int, int]]) -> None:
    with conn.transaction(force_rollback=True):
        enqueue_many(conn, *({"kind": "k"} for _ in range(3)))
        claim(conn, max_jobs=2)
        for move in moves:
            play(conn, move)
        assert problems(conn) == []


def test_every_move_of_those_histories_is_one_that_can_happen(conn: Connection) -> None:
    """A verb that always failed would prove nothing."""
    for verb in MOVES:
        with conn.transaction(force_rollback=True):
            conn.execute("select set_config('jobq.floor', '', false)")
            ids = [job_in(conn, status) for status in STATUSES]
            before = scalar(conn, "select max(id) from jobq.job_events")
            for which in range(len(ids)):
                play(conn, (verb, which, 3))
            stored = scalar(conn, "select count(*) from jobq.jobs where id = any(%s)", ids)
            written = "select count(*) from jobq.job_events where id > %s"
            silent = {"renew", "expire", "reap", "unrequest by hand"}
            assert scalar(conn, written, before) or stored < len(ids) or verb in silent, verb
            assert problems(conn) == []


def test_a_queue_at_work_is_clean_at_any_moment(dsn: str, conn: Connection) -> None:
    done = threading.Event()

    def work(worker: str) -> int:
        with psycopg.connect(dsn, autocommit=True) as own:
            for turn in range(40):
                enqueue_many(own, *({"kind": "k", "payload": {"i": i}} for i in range(5)))
                for number, job in enumerate(claim(own, worker=worker, max_jobs=5)):
                    verbs = ("succeed", "release", "fail")
                    more = ", 'x'" if verbs[number % 3] == "fail" else ""
                    query = f"select jobq.{verbs[number % 3]}(%s, %s{more})"
                    own.execute(query.encode(), (job["id"], job["lease_token"]))
                if turn % 10 == 9:
                    own.execute("select jobq.purge('1 ms', 3)")
        return 40

    def watch() -> int:
        looks = 0
        with psycopg.connect(dsn, autocommit=True) as own:
            while not done.is_set():
                assert problems(own) == []
                looks += 1
        return looks

    watching = in_thread(watch)
    workers = [in_thread(work, name) for name in ("a", "b")]
    assert [worker.result(60) for worker in workers] == [40, 40]
    done.set()
    assert watching.result(60) > 0
    assert problems(conn) == []
