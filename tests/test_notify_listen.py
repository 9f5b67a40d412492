"""Listening: the locks that say who waits and who is there, and when the next job falls due."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

import psycopg
import pytest
from helpers import Connection, scalar, wait_until

from ledger import in_thread, refused
from verbs import enqueue, enqueue_many, heard, run

LISTEN = "select jobq.listen(%s)"
ADVISORY = """
select count(*) from pg_locks
where locktype = 'advisory' and classid in (1785815921, 1785815922)
  and database = (select oid from pg_database where datname = current_database())"""


def test_listening_twice_holds_the_locks_once(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    client = connect()
    for _ in range(3):
        assert scalar(client, LISTEN, ["a", "b", "a"]) is True
    assert scalar(conn, ADVISORY) == 4  # two kinds: waits for them, has handlers for them
    scalar(client, "select jobq.unlisten()")
    assert scalar(conn, ADVISORY) == 2
    enqueue(conn, "a")
    assert heard(client) == []
    assert scalar(client, LISTEN, ["a", "c"]) is True
    assert scalar(conn, ADVISORY) == 2 + 1 + 2
    enqueue(conn, "a")
    enqueue(conn, "b")
    assert heard(client) == ["a"]


def test_presence_lasts_until_the_session_ends(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    client = connect()
    for _ in range(2):
        assert scalar(client, "select jobq.present('{a,b}')") is True
    assert scalar(client, LISTEN, ["a"]) is True
    scalar(client, "select jobq.unlisten()")
    scalar(client, "select jobq.unlisten()")
    assert scalar(conn, ADVISORY) == 2
    enqueue(conn, "a")
    assert heard(client) == [], "present is not waiting"
    pid = client.info.backend_pid
    client.close()
    gone = "select count(*) from pg_stat_activity where pid = %s"
    while scalar(conn, gone, pid):
        pass
    assert scalar(conn, ADVISORY) == 0


def test_listening_while_an_enqueuer_asks_says_so_and_waits_for_nothing(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    client = connect()
    client.execute("set lock_timeout = '1 s'")
    # What an enqueuer holds for microseconds.
    conn.execute("select pg_advisory_lock(1785815921, hashtext('a'))")
    assert scalar(client, LISTEN, ["a", "b"]) is False
    conn.execute("select pg_advisory_unlock_all()")
    assert scalar(client, LISTEN, ["a", "b"]) is True


@pytest.mark.parametrize("kinds", ["null", "'{a,null}'"])
def test_listening_needs_names(conn: Connection, kinds: str) -> None:
    with refused("JQ006", "kinds must be an array without nulls"):
        conn.execute(f"select jobq.listen({kinds})".encode())
    assert scalar(conn, "select jobq.listen('{}')") is True


MANY_KINDS = """
select count(*) from jobq.enqueue_many((
  select jsonb_agg(jsonb_build_object('kind', 'k' || n)) from generate_series(1, 1500) n))"""
# Nothing but asking who waits, so that it is stopped while it asks.
MANY_QUESTIONS = """
select jobq._wake((select array_agg('k' || n) from generate_series(1, 1500) n where round > 0))
from generate_series(1, 50) round"""


@pytest.mark.parametrize(
    ("end", "statement"),
    [
        ("pg_cancel_backend", MANY_KINDS),
        ("pg_cancel_backend", MANY_QUESTIONS),
        ("pg_terminate_backend", MANY_KINDS),
    ],
    ids=["cancel", "cancel-while-asking", "terminate"],
)
def test_enqueues_that_are_stopped_leave_no_lock_behind(
    conn: Connection, connect: Callable[..., Connection], end: str, statement: str
) -> None:
    producer = connect()
    started = monotonic()
    producer.execute(statement.encode())
    seconds = monotonic() - started

    def stopped_on_the_way(session: Connection) -> bool:
        try:
            session.execute(statement.encode())
        except psycopg.OperationalError:
            return True
        return False

    stopped = 0
    for _ in range(100):
        started = monotonic()
        ended = in_thread(partial(stopped_on_the_way, producer))
        wait = random.uniform(0.2, 1) * seconds  # at any point of it; the wake-ups come last
        conn.execute(f"select pg_sleep({wait}), {end}({producer.info.backend_pid})".encode())
        if ended.result(10):
            stopped += 1
        else:
            seconds = min(seconds, monotonic() - started)
        if end == "pg_terminate_backend":
            producer = connect()
        assert scalar(conn, ADVISORY) == 0, "an enqueue that was stopped kept a lock"
        if stopped == 15:
            break
    assert stopped == 15, "too few were stopped on the way: this shows nothing"
    free = """
    select bool_and(pg_try_advisory_lock(1785815921, hashtext('k' || n)))
    from generate_series(1, 1500) n"""
    assert scalar(conn, free) is True


def seconds_until_due(conn: Connection, kinds: Iterable[str] | None) -> float | None:
    given = None if kinds is None else list(kinds)
    value = scalar(conn, "select jobq.next_due(%s::text[])", given)
    assert value is None or isinstance(value, float)
    return value


def test_next_due_tells_when_the_next_job_of_the_kinds_falls_due(conn: Connection) -> None:
    assert seconds_until_due(conn, None) is None
    enqueue(conn, "now")
    enqueue(conn, "far", delay="61 s")
    assert seconds_until_due(conn, None) is None
    enqueue(conn, "b", delay="40 s", priority=100)
    enqueue(conn, "a", delay="20 s", priority=-100)
    for kinds, expected in ((None, 20), (["a"], 20), (["b"], 40), (["a", "b"], 20)):
        found = seconds_until_due(conn, kinds)
        assert found is not None
        assert expected - 5 < found <= expected
    assert seconds_until_due(conn, ["c"]) is None
    assert seconds_until_due(conn, []) is None
    run(conn, kind="b")
    assert seconds_until_due(conn, ["b"]) is not None


CLAIMED_AT = ("", ', "at": "soon"', ', "at": "-infinity"', ', "at": "2999-01-01"', ', "at": []')


def test_next_due_looks_back_to_the_sessions_last_claim_of_these_kinds(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    for kinds in (None, ["a", "b"]):
        conn.execute("select from jobq.claim('w', kinds => %s)", (kinds,))
    enqueue(conn, "a", delay="0.2 s")
    wait_until(lambda: scalar(conn, "select bool_and(available_at < now()) from jobq.jobs"))
    for kinds in (["a", "b"], ["b", "a", "a"]):
        found = seconds_until_due(conn, kinds)
        assert found is not None
        assert found <= 0
    # What the floor says is of the last claim alone, and of its kinds.
    assert seconds_until_due(conn, ["a"]) is None
    assert seconds_until_due(conn, None) is None
    assert seconds_until_due(connect(), ["a", "b"]) is None
    for broken in ("", "{", "7", *(f'{{"kinds": ["a", "b"]{at}}}' for at in CLAIMED_AT)):
        conn.execute("select set_config('jobq.floor', %s, false)", (broken,))
        assert seconds_until_due(conn, ["a", "b"]) is None


def test_next_due_is_early_where_many_foreign_jobs_wait_never_late(conn: Connection) -> None:
    enqueue_many(conn, 1500, "theirs", delay=10)
    enqueue(conn, "mine", delay="30 s")
    found = seconds_until_due(conn, ["mine"])
    assert found is not None
    assert found <= 10
    conn.execute("delete from jobq.jobs where kind = 'theirs' and id > 50")
    found = seconds_until_due(conn, ["mine"])
    assert found is not None
    assert 20 < found <= 30
