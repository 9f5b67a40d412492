"""The floor from which claims scan is a hint: what lies below it is claimed within a stated bound.

That is max(5 s, 20 times a full scan's cost) while claims find jobs, and 20 times the cost when
they do not. Sessions that never claimed have no floor.
"""

import json
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from helpers import Connection, scalar, wait_until

from verbs import (
    claim,
    claim_one,
    clear,
    enqueue,
    enqueue_many,
    enqueue_old,
    job_row,
    outcome,
    settle,
    succeed,
)

BOUND = 5.0


def floor(conn: Connection) -> dict[str, Any]:
    told = json.loads(scalar(conn, "select current_setting('jobq.floor')"))
    assert isinstance(told, dict)
    return told


def set_floor(conn: Connection, value: dict[str, Any]) -> None:
    conn.execute("select set_config('jobq.floor', %s, false)", (json.dumps(value),))


def put_below_the_floor(conn: Connection, connect: Callable[..., Connection]) -> dict[str, int]:
    """Make jobs that a claimer which went on meanwhile cannot see from its floor."""
    late = connect(autocommit=False)
    late_id = enqueue(late)
    backdated = enqueue(conn, delay="1 hour")
    released = claim_one(conn)
    enqueue_many(conn, 30_000)
    for _ in range(3):
        succeed(conn, *claim(conn, 10))
    late.commit()
    settle(conn, outcome(released, "released"))
    conn.execute(
        "update jobq.jobs set available_at = created_at - interval '1 h' where id = %s",
        (backdated,),
    )
    return {"late": late_id, "backdated": backdated, "released": released.id}


def test_while_saturated_a_job_below_the_floor_is_claimed_within_the_bound(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 2)
    below = put_below_the_floor(conn, connect)
    cancelled, moved = enqueue(conn), enqueue(conn)
    conn.execute("select jobq.cancel(%s)", (cancelled,))
    conn.execute("update jobq.jobs set priority = 7 where id = %s", (cancelled,))
    claim(conn)  # band 7 is not there yet
    start = monotonic()
    conn.execute("select jobq.retry(%s)", (cancelled,))
    conn.execute("select jobq.set_priority(%s, 9)", (json.dumps({"ids": [moved]}),))
    wanted, seen = {*below.values(), cancelled, moved}, dict[int, float]()
    while wanted - seen.keys():
        jobs = claim(conn, 2)
        assert len(jobs) == 2, "the queue ran dry: the test needs more jobs"
        seen.update({job.id: monotonic() - start for job in jobs if job.id in wanted})
        assert monotonic() - start < 2 * BOUND, f"not claimed: {wanted - seen.keys()}"
    assert max(seen[cancelled], seen[moved]) < 0.5, "a new priority is found at once"
    bound = max(BOUND, 20 * floor(conn)["cost"]) + 0.5
    assert max(seen.values()) < bound
    assert min(seen[job_id] for job_id in below.values()) > 0.5, "the floor hides nothing"


def test_what_lies_below_the_floor_is_claimed_at_once_when_nothing_else_is(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    late = connect(autocommit=False)
    (late_id,) = enqueue_old(late, 1)
    enqueue_old(conn, 3)
    kept, *others = claim(conn, 3)
    succeed(conn, *others)
    assert claim(conn) == []
    for make, job_id in (
        (late.commit, late_id),
        (lambda: settle(conn, outcome(kept, "released")), kept.id),
    ):
        make()
        start = monotonic()
        (job,) = wait_until(lambda: claim(conn), timeout=BOUND, interval=0.001)
        assert job.id == job_id
        assert monotonic() - start < 20 * floor(conn)["cost"] + 2
        assert claim(conn) == []


def test_new_jobs_are_found_by_the_very_next_claim(conn: Connection) -> None:
    for priority in (0, 5, -5, 100, -100, 5, 0, 99):
        assert claim(conn) == []
        job_id = enqueue(conn, priority=priority)
        assert claim_one(conn).id == job_id


def test_a_job_that_falls_due_later_is_found_when_it_does(conn: Connection) -> None:
    enqueue(conn)
    claim_one(conn)
    job_id = enqueue(conn, delay="0.2 s")
    (job,) = wait_until(lambda: claim(conn), timeout=1, interval=0.001)
    assert job.id == job_id
    row = job_row(conn, job_id)
    assert (row.started_at - row.available_at).total_seconds() < 0.5


def test_a_priority_that_a_claim_did_not_reach_keeps_its_order(conn: Connection) -> None:
    low = [enqueue(conn) for _ in range(3)]
    conn.execute("update jobq.jobs set available_at = available_at - interval '1 minute'")
    high = enqueue(conn, priority=10)
    assert claim_one(conn).id == high
    newer = enqueue(conn)
    assert [claim_one(conn).id for _ in range(4)] == [*low, newer]


def test_a_commit_that_is_a_second_late_is_seen_in_a_priority_that_had_run_empty(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 3)
    enqueue(conn, priority=5)
    late = connect(autocommit=False)
    late_id = enqueue(late, priority=5)
    assert [claim_one(conn).priority for _ in range(2)] == [5, 0]
    late.commit()
    assert claim_one(conn).id == late_id


def test_lists_of_kinds_in_turn_on_one_connection_hide_no_job(conn: Connection) -> None:
    a, b = enqueue(conn, "a"), enqueue(conn, "b")
    claimed = []
    for kind in "abab":
        claimed += claim(conn, 1, [kind])
        enqueue(conn, kind)
    assert [job.kind for job in claimed] == ["a", "b", "a", "b"]
    assert [job.id for job in claimed[:2]] == [a, b]
    assert [job.kind for job in claim(conn, 10)] == ["a", "b"]
    older = enqueue(conn, "a")
    enqueue_many(conn, 3, "b")
    assert [job.kind for job in claim(conn, 2, ["b"])] == ["b", "b"]
    assert claim_one(conn, kinds=["b", "a"]).id == older


@pytest.mark.parametrize("savepoint", [True, False])
def test_a_claim_rolled_back_takes_its_floor_along(
    connect: Callable[..., Connection], savepoint: bool
) -> None:
    conn = connect(autocommit=False)
    ids = enqueue_many(conn, 20)
    assert [job.id for job in claim(conn, 2)] == ids[:2]
    conn.commit()
    before = floor(conn)
    conn.execute("savepoint before")
    assert [job.id for job in claim(conn, 10)] == ids[2:12]
    if savepoint:
        conn.execute("rollback to savepoint before")
    else:
        conn.rollback()
    assert floor(conn) == before
    assert [job.id for job in claim(conn, 10)] == ids[2:12]


PARTS = {"kinds", "at", "full_at", "cost", "priority", "available_at", "created_at", "id"}
GARBAGE: list[Any] = [
    "garbage{",
    "null",
    "5",
    '"text"',
    "[]",
    "{}",
    '{"kinds": null}',
    '{"kinds": null, "priority": 7}',
    '{"kinds": null, "priority": [], "cost": 0, "full_at": "now"}',
    '{"kinds": {"a": 1}, "priority": [0]}',
    "\N{SNOWMAN}" * 1000,
    "[" * 5000,
    # Of a floor that holds, one part replaced:
    {"full_at": None},
    {"full_at": "infinity"},
    {"full_at": "-infinity"},
    {"full_at": "4713-01-01 BC"},
    {"full_at": "yesterday or so"},
    {"full_at": "2999-01-01"},
    {"full_at": {}},
    {"cost": None},
    {"cost": 1e300},
    {"cost": -1e300},
    {"cost": "NaN"},
    {"cost": "Infinity"},
    {"cost": []},
    {"priority": None},
    {"priority": []},
    {"priority": [None]},
    {"priority": [0, 1]},
    {"priority": [1e9]},
    {"priority": [0.5]},
    {"priority": {"0": 1}},
    {"available_at": []},
    {"available_at": [None]},
    {"available_at": ["infinity"]},
    {"available_at": ["2999-01-01"]},
    {"created_at": []},
    {"created_at": [None]},
    {"created_at": [["2020-01-01"]]},
    {"id": []},
    {"id": [None]},
    {"id": [1e40]},
    {"id": "x"},
    {"priority": [], "available_at": [], "created_at": [], "id": []},
]


def test_a_floor_that_makes_no_sense_is_ignored(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    for value in GARBAGE:
        with subtests.test(floor=str(value)[:60]):
            clear(conn)
            *_, job_id = enqueue_many(conn, 3)  # all with the same timestamps
            succeed(conn, claim_one(conn), claim_one(conn))
            whole = value if isinstance(value, str) else json.dumps({**floor(conn), **value})
            conn.execute("select set_config('jobq.floor', %s, false)", (whole,))
            assert claim_one(conn).id == job_id
            assert set(floor(conn)) == PARTS


def test_a_floor_from_the_future_is_ignored(conn: Connection) -> None:
    enqueue(conn)
    claim_one(conn)
    job_id = enqueue(conn)
    ahead = floor(conn)
    # As a clock that was set back an hour leaves it.
    later = "select to_jsonb(clock_timestamp() + interval '1 hour')"
    ahead["full_at"] = scalar(conn, later)
    set_floor(conn, ahead)
    assert claim_one(conn).id == job_id
    ahead["full_at"] = scalar(conn, "select to_jsonb(clock_timestamp())")
    ahead["available_at"] = ahead["created_at"] = [scalar(conn, later)]
    job_id = enqueue(conn)
    set_floor(conn, ahead)
    assert claim_one(conn).id == job_id


def test_all_201_priorities_at_once_are_claimed_in_order(conn: Connection) -> None:
    conn.execute(
        "insert into jobq.jobs (kind, priority)"
        " select 'test', p from generate_series(-100, 100) p order by random()"
    )
    conn.execute(
        "insert into jobq.jobs (kind, priority)"
        " select 'test', p from generate_series(-100, 100) p order by random()"
    )
    found: list[int] = []
    while jobs := claim(conn, 7):
        found += [job.priority for job in jobs]
    assert found == sorted([*range(-100, 101)] * 2, reverse=True)
    assert floor(conn)["priority"] == list(range(100, -101, -1))
    top, bottom = enqueue(conn, priority=100), enqueue(conn, priority=-100)
    assert [job.id for job in claim(conn, 2)] == [top, bottom]
