"""Claiming: which jobs, in what order, by whom, and how often."""

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import psycopg
import pytest
from helpers import Connection, scalar, wait_until
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ledger import refused
from verbs import (
    assert_consistent,
    claim,
    claim_one,
    clear,
    enqueue,
    enqueue_many,
    events_of,
    expire,
    job_row,
    outcome,
    reap,
    rows,
    settle,
)

NOW = datetime.now(UTC)
JOBS = st.lists(
    st.tuples(
        st.integers(1, 60),  # id
        st.sampled_from([-100, -1, 0, 0, 1, 100]),  # priority
        st.integers(-3, 3),  # available_at, in steps of an hour
        st.integers(-2, 0),  # created_at, in steps of a day
        st.sampled_from("abc"),  # kind
    ),
    max_size=25,
    unique_by=lambda job: job[0],
)
BATCHES = st.lists(st.integers(1, 8), min_size=1, max_size=4)
# Each key of the order against all that follow it.
OPPOSED = [
    (6, 0, -1, -1, "a"),
    (1, 0, -1, 0, "a"),
    (2, 0, -1, -1, "a"),
    (3, 0, -2, 0, "a"),
    (9, 1, 0, 0, "a"),
]
KINDS = st.one_of(st.none(), st.lists(st.sampled_from("abcd"), max_size=3))


def insert(conn: Connection, jobs: list[tuple[int, int, int, int, str]]) -> None:
    query = """
    insert into jobq.jobs (id, priority, available_at, created_at, kind)
    values (%s, %s, %s, %s, %s)"""
    with conn.cursor() as cursor:
        cursor.executemany(
            query,
            [
                (job_id, priority, NOW + timedelta(hours=due), NOW + timedelta(days=born), kind)
                for job_id, priority, due, born, kind in jobs
            ],
        )


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(jobs=OPPOSED, batches=[1, 1, 1, 1], kinds=None)
@given(jobs=JOBS, batches=BATCHES, kinds=KINDS)
def test_jobs_come_in_the_order_that_sorted_gives(
    conn: Connection,
    jobs: list[tuple[int, int, int, int, str]],
    batches: list[int],
    kinds: list[str] | None,
) -> None:
    clear(conn)
    insert(conn, jobs)
    due = [job for job in jobs if job[2] <= 0 and (kinds is None or job[4] in kinds)]
    expected = [job[0] for job in sorted(due, key=lambda job: (-job[1], job[2], job[3], job[0]))]
    got: list[int] = []
    for size in [*batches, 100]:
        batch = [job.id for job in claim(conn, size, kinds)]
        assert batch == expected[len(got) : len(got) + size]
        got += batch
    assert claim(conn, 100, kinds) == []


def test_a_claimed_job_runs_under_its_worker_and_lease(conn: Connection) -> None:
    job_id = enqueue(conn, "mail", {"to": "x"})
    job = claim_one(conn, worker="host-7", lease="90 seconds")
    assert (job.id, job.kind, job.payload, job.status) == (job_id, "mail", {"to": "x"}, "running")
    assert (job.attempt, job.locked_by, job.progress, job.finished_at) == (1, "host-7", None, None)
    assert job.lease_expires_at - job.started_at == timedelta(seconds=90)
    assert job == job_row(conn, job_id)
    assert events_of(conn, job_id) == ["enqueued", "claimed"]
    assert_consistent(conn)


def test_a_job_is_not_claimed_before_it_is_due(conn: Connection) -> None:
    enqueue(conn, delay="1 hour", priority=100)
    soon = enqueue(conn, delay="0.3 seconds")
    first = claim(conn, 10)
    due_at = job_row(conn, soon).available_at
    while not first:
        first = claim(conn, 10)
    assert [job.id for job in first] == [soon]
    assert first[0].started_at >= due_at
    assert claim(conn, 10) == []


KIND_LISTS: list[tuple[list[str] | None, list[str]]] = [
    (None, ["a", "b", "c"]),
    ([], []),
    (["b"], ["b"]),
    (["c", "a", "c"], ["a", "c"]),
    (["A", "nobody", "'; drop table jobs --"], []),
]


def test_kinds_narrow_a_claim(conn: Connection, subtests: pytest.Subtests) -> None:
    for kinds, expected in KIND_LISTS:
        with subtests.test(kinds=kinds):
            clear(conn)
            for kind in "abc":
                enqueue(conn, kind)
            assert [job.kind for job in claim(conn, 10, kinds)] == expected


def test_two_open_claims_share_no_job_and_neither_waits(
    connect: Callable[..., Connection],
) -> None:
    one, two = connect(autocommit=False), connect(autocommit=False)
    ids = enqueue_many(one, 10)
    one.commit()
    two.execute("set lock_timeout = '1 s'")  # a wait would be an error
    first = [job.id for job in claim(one, 4)]
    second = [job.id for job in claim(two, 4)]
    assert first == ids[:4]
    assert second == ids[4:8]
    one.rollback()
    assert [job.id for job in claim(connect(), 10)] == [*ids[:4], *ids[8:]]


def test_a_row_locked_by_anyone_else_is_passed_over(connect: Callable[..., Connection]) -> None:
    conn, other = connect(), connect(autocommit=False)
    first, second = enqueue(conn), enqueue(conn)
    other.execute("select jobq.cancel(%s)", (first,))
    conn.execute("set lock_timeout = '1 s'")
    assert [job.id for job in claim(conn, 10)] == [second]
    other.rollback()
    (freed,) = wait_until(lambda: claim(conn, 10), timeout=5)
    assert freed.id == first


def test_each_claim_draws_a_token_of_its_own(conn: Connection) -> None:
    tokens = set()
    job_id = enqueue(conn, max_attempts=100)
    for _ in range(20):
        job = claim_one(conn)
        tokens.add(job.lease_token)
        settle(conn, outcome(job, "released"))
    assert len(tokens) == 20
    other = enqueue(conn)
    batch = {job.id: job.lease_token for job in claim(conn, 10)}
    assert batch.keys() == {job_id, other}
    assert tokens.isdisjoint(batch.values())


@pytest.mark.parametrize("limit", [1, 3])
def test_claims_never_exceed_max_attempts_however_runs_end(conn: Connection, limit: int) -> None:
    job_id = enqueue(conn, max_attempts=limit, retry_cap_seconds=1)
    starts, ends = 0, 0
    while job_row(conn, job_id).status != "failed":
        conn.execute("update jobq.jobs set available_at = '2020-01-01' where status = 'queued'")
        conn.execute("set jobq.floor = ''")
        job = claim_one(conn)
        starts, ends = starts + 1, ends + 1
        if ends % 3 == 1 and ends < 8:
            settle(conn, outcome(job, "released" if ends % 2 else "snoozed"))
            starts -= 1
        elif ends % 2:
            settle(conn, outcome(job, "failed", error="x", retry_in_seconds=0))
        else:
            expire(conn, job)
            reap(conn)
        assert ends < 50
    assert starts == limit
    assert job_row(conn, job_id).attempt == limit
    assert claim(conn, 10) == []
    assert_consistent(conn)


IMPOSSIBLE = [
    ("null", "worker"),
    ("''", "worker"),
    ("repeat('x', 257)", "worker"),
    ("'w', 0", "max_jobs must be positive, not 0"),
    ("'w', -1", "max_jobs must be positive, not -1"),
    ("'w', null", "max_jobs must be positive, not null"),
    ("'w', 1, '{a,null}'", "kinds must not contain null"),
    ("'w', 1, null, '0'", "lease must be longer than zero"),
    ("'w', 1, null, '-1 s'", "lease must be longer than zero"),
    ("'w', 1, null, '366 days'", "at most 365 days"),
    ("'w', 1, null, '178000000 years'", "at most 365 days"),
    ("'w', 1, null, null", "lease must be longer than zero.*not null"),
]


def test_a_claim_with_an_impossible_argument_is_refused(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    job_id = enqueue(conn)
    for arguments, says in IMPOSSIBLE:
        with subtests.test(arguments), refused("JQ006", says):
            conn.execute(f"select * from jobq.claim({arguments})".encode())
    assert events_of(conn, job_id) == ["enqueued"]


def test_a_claim_may_ask_for_more_than_there_is(conn: Connection) -> None:
    ids = enqueue_many(conn, 3)
    assert [job.id for job in claim(conn, 2**31 - 1, lease="365 days")] == ids


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_under_stricter_isolation_each_job_still_succeeds_once(
    connect: Callable[..., Connection], isolation: str
) -> None:
    conn = connect()
    database = scalar(conn, "select current_database()")
    conn.execute(
        f"alter database {database} set default_transaction_isolation = '{isolation}'".encode()
    )
    enqueue_many(conn, 500)
    workers = [connect() for _ in range(8)]
    start = Barrier(8)

    def retrying(call: Callable[..., Any], *arguments: Any) -> Any:
        while True:
            try:
                return call(*arguments)
            except psycopg.errors.SerializationFailure:
                continue

    def finish(mine: Connection, jobs: list[Any]) -> None:
        # A claim that met the row's version of before may hold a lock on it for a moment.
        left = [outcome(job, "succeeded") for job in jobs]
        while left:
            answers = retrying(settle, mine, *left)
            assert False not in [accepted for _, accepted, _ in answers]
            done = {job_id for job_id, accepted, _ in answers if accepted}
            left = [element for element in left if element["job_id"] not in done]

    def work(number: int) -> list[int]:
        mine = workers[number]
        assert scalar(mine, "show transaction_isolation") == isolation
        start.wait()
        keyed = retrying(lambda: enqueue(mine, "keyed", idempotency_key="the one"))
        done = [keyed]
        while jobs := retrying(lambda: claim(mine, 5, ["test"], worker=str(number))):
            finish(mine, jobs)
            done += [job.id for job in jobs]
        return done

    with ThreadPoolExecutor(8) as pool:
        finished = list(pool.map(work, range(8)))
    keyed = {done[0] for done in finished}
    assert len(keyed) == 1
    assert Counter(job for done in finished for job in done[1:]).most_common(1)[0][1] == 1
    counted = rows(conn, "select kind, status, count(*) as n from jobq.jobs group by 1, 2")
    assert {(row.kind, row.status): row.n for row in counted} == {
        ("test", "succeeded"): 500,
        ("keyed", "queued"): 1,
    }
    succeeded = "select count(*), count(distinct job_id) from jobq.job_events where event = %s"
    assert conn.execute(succeeded, ("succeeded",)).fetchone() == (500, 500)
    assert_consistent(conn)


def test_payloads_of_every_shape_come_back_as_they_went_in(conn: Connection) -> None:
    payload: dict[str, Any] = {
        "n": None,
        "f": False,
        "z": 0,
        "e": "",
        "l": [],
        "d": {"ü": "\U0001f600"},
    }
    enqueue(conn, payload=payload)
    assert json.dumps(claim_one(conn).payload, sort_keys=True) == json.dumps(
        payload, sort_keys=True
    )
