"""What claims, settles and reaps read in a queue that is large in one direction: what they do in
an empty one, also while an old snapshot keeps every dead row.
"""

import json
from collections.abc import Callable
from statistics import median

import pytest
from helpers import Connection

from plans import total_buffers
from scale import Connect, fill, no_autovacuum, pin, scaled
from verbs import claim, enqueue_many, expire, outcome, succeed

KIND = "mine"
BATCH = 20
ROUNDS = 5
CLAIM = "select count(*) from jobq.claim('w', %s, %s::text[], '1 hour')"
SETTLE = "select count(*) from jobq.settle(%s)"
REAP = "select count(*) from jobq.reap(%s)"

#: What each further priority with queued jobs may cost a claim: an index descent.
A_BAND = 5


def future(connect: Connect) -> None:
    fill(connect, scaled(1_000_000), KIND, priority=100, due="1 day")


def foreign(connect: Connect) -> None:
    fill(connect, scaled(500_000), "theirs")


def priorities(connect: Connect) -> None:
    fill(connect, scaled(40_200), "theirs", priority=None)
    fill(connect, scaled(40_200), KIND, priority=None, due="1 day")


def finished(connect: Connect) -> None:
    fill(connect, scaled(1_000_000), KIND, "succeeded")


def everything(connect: Connect) -> None:
    for scenario in (finished, future, foreign, priorities):
        scenario(connect)


def measure(session: Connection) -> dict[str, float]:
    """The buffers that one call takes, with all its triggers write: the median of some."""
    took: dict[str, list[int]] = {"claim 1": [], f"claim {BATCH}": [], "settle": [], "reap": []}
    for _ in range(ROUNDS):
        enqueue_many(session, 2 * BATCH + 1, KIND, priority=-100)
        took["claim 1"].append(total_buffers(session, CLAIM, 1, [KIND]))
        took[f"claim {BATCH}"].append(total_buffers(session, CLAIM, BATCH, [KIND]))
        jobs = claim(session, BATCH, [KIND])
        assert len(jobs) == BATCH
        outcomes = json.dumps([outcome(job, "succeeded") for job in jobs])
        took["settle"].append(total_buffers(session, SETTLE, outcomes))
        enqueue_many(session, BATCH, KIND, priority=-100)
        expire(session, *claim(session, BATCH, [KIND]))
        took["reap"].append(total_buffers(session, REAP, BATCH))
    return {name: median(buffers) for name, buffers in took.items()}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", [future, foreign, priorities, finished, everything])
def test_it_costs_what_it_does_in_an_empty_queue(
    conn: Connection, connect: Connect, scenario: Callable[[Connect], None]
) -> None:
    no_autovacuum(conn)
    conn.execute("analyze jobq.jobs, jobq.job_events")
    session = connect()
    measure(session)
    empty = measure(session)
    print(f"\n{scenario.__name__}: empty {empty}")

    bands = 201 if scenario in (priorities, everything) else 1

    def check(when: str, dead: int = 0) -> None:
        buffers = measure(session)
        ratios = {name: round(buffers[name] / empty[name], 2) for name in empty}
        print(f"{scenario.__name__}: {when} {buffers}, times the empty case {ratios}")
        for name, found in buffers.items():
            # Only reap reads what is dead: each row that ran.
            more = {"settle": 0, "reap": 2 * dead}.get(name, A_BAND * bands)
            assert found <= 1.3 * empty[name] + more + 30, (name, when)

    scenario(connect)
    session = connect()
    claim(session, 1, [KIND])
    check("statistics from when it was empty")
    old = pin(connect)
    dead = scaled(20_000)
    # One batch, so alike in their times: more of it is left than the rest of the test claims.
    enqueue_many(session, dead + 1_000, KIND, priority=-100)
    for _ in range(dead // 100):
        succeed(session, *claim(session, 100, [KIND]))
    check("under an old snapshot", dead)
    conn.execute("analyze jobq.jobs, jobq.job_events")
    check("under an old snapshot, statistics fresh", dead)
    old.rollback()
