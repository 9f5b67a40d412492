"""What every verb of the hot path reads: rows by index, about as many as the call is about.

The queue is large in every direction; statistics are missing, from when it was empty, or fresh;
plans are generic, custom, or were cached while the queue was empty.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import Connection

from plans import Explained, Plan
from scale import Connect, fill, no_autovacuum, scaled
from verbs import claim, enqueue, enqueue_many, expire, outcome

Node = dict[str, Any]
Call = tuple[str, tuple[object, ...]]
Prepare = Callable[[Connection, int], Call]

BATCH = 20
MODES = ("auto", "force_generic_plan", "force_custom_plan")
BY_INDEX = {"Index Scan", "Index Only Scan", "Tid Scan", "ModifyTable"}
TABLES = {"jobs", "job_events"}
KIND = "plans"
#: More rows than a call of BATCH jobs has any reason to touch, far fewer than there are.
MOST_ROWS = 5_000

_batches = itertools.count(1)


def some_jobs(conn: Connection, count: int) -> list[Any]:
    enqueue_many(conn, count, KIND, priority=100)
    return claim(conn, count, [KIND])


def to_enqueue_with_keys(conn: Connection, count: int) -> Call:
    first = next(_batches) * BATCH // 2  # half of the keys are those of the batch before
    jobs = [{"kind": KIND, "idempotency_key": f"k{first + n}"} for n in range(count)]
    return "select count(*) from jobq.enqueue_many(%s)", (json.dumps(jobs),)


def to_enqueue(conn: Connection, count: int) -> Call:
    return "select count(*) from jobq.enqueue_many(%s)", (json.dumps([{"kind": KIND}] * count),)


def to_repeat_a_key(conn: Connection, count: int) -> Call:
    enqueue(conn, KIND, idempotency_key="again")
    return "select jobq.enqueue(%s, idempotency_key => 'again')", (KIND,)


def to_claim(kinds: list[str] | None) -> Prepare:
    def prepare(conn: Connection, count: int) -> Call:
        enqueue_many(conn, count, KIND, priority=100)
        return "select count(*) from jobq.claim('w', %s, %s::text[])", (count, kinds)

    return prepare


def to_renew(conn: Connection, count: int) -> Call:
    jobs = some_jobs(conn, count)
    query = "select count(*) from jobq.renew(%s::bigint[], %s::uuid[])"
    return query, ([job.id for job in jobs], [job.lease_token for job in jobs])


def to_settle(conn: Connection, count: int) -> Call:
    verdicts = ("succeeded", "failed", "released", "snoozed", "cancelled")
    outcomes = [
        outcome(job, verdicts[n % 5], delay_seconds=9)
        for n, job in enumerate(some_jobs(conn, count))
    ]
    outcomes.append({**outcomes[0], "lease_token": "stale"})
    return "select count(*) from jobq.settle(%s)", (json.dumps(outcomes),)


def to_reap(conn: Connection, count: int) -> Call:
    expire(conn, *some_jobs(conn, count))
    return "select count(*) from jobq.reap(%s)", (count,)


def of_one(verb: str, *, running: bool = True, first: str = "") -> Prepare:
    """A verb of one job: a running one with its token, or a queued one after a statement."""

    def prepare(conn: Connection, count: int) -> Call:
        if running:
            (job,) = some_jobs(conn, 1)
            return f"select jobq.{verb}", (job.id, job.lease_token)
        job_id = enqueue(conn, KIND)
        if first:
            conn.execute(f"select jobq.{first}".encode(), (job_id,))
        return f"{'delete from' if ' where ' in verb else 'select'} jobq.{verb}", (job_id,)

    return prepare


CALLS: dict[str, Prepare] = {
    "enqueue": lambda *_: ("select jobq.enqueue(%s)", (KIND,)),
    "enqueue a key again": to_repeat_a_key,
    "enqueue_many": to_enqueue,
    "enqueue_many with keys": to_enqueue_with_keys,
    "claim any kind": to_claim(None),
    "claim a kind": to_claim([KIND]),
    "renew": to_renew,
    "settle": to_settle,
    "reap": to_reap,
    "succeed": of_one("succeed(%s, %s)"),
    "fail": of_one("fail(%s, %s, 'x')"),
    "report_progress": of_one("report_progress(%s, %s, 0.5)"),
    "log": of_one("log(%s, %s, 'info', 'x')"),
    "cancel": of_one("cancel(%s)", running=False),
    "retry": of_one("retry(%s)", running=False, first="cancel(%s)"),
    "clone": of_one("clone(%s)", running=False),
    "next_due": lambda *_: ("select jobq.next_due(%s)", ([KIND],)),
    "delete by hand": of_one("jobs where id = %s", running=False),
    "purge": lambda _, count: ("select jobq.purge('30 minutes', %s)", (count,)),
}


def in_the_rows_of(node: Node) -> Iterator[Node]:
    """The node and those that its rows come from; not the CTEs that are merely told at it."""
    yield node
    for child in node.get("Plans", []):
        if child["Parent Relationship"] != "InitPlan":
            yield from in_the_rows_of(child)


def rows_touched(node: Node) -> float:
    per_loop = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return float(per_loop * node["Actual Loops"])


def faults(plan: Plan) -> Iterator[str]:
    """What is wrong with a plan."""
    for node in plan.nodes:
        name, kind = node.get("Relation Name"), node["Node Type"]
        if name in TABLES and kind not in BY_INDEX:
            yield f"{kind} on {name}"
        if name in TABLES and rows_touched(node) > MOST_ROWS:
            yield f"{kind} on {name} touches {rows_touched(node):.0f} rows"
        if kind.startswith("Bitmap"):
            yield kind
        if kind.endswith("Sort"):
            sorted_rows = max(rows_touched(below) for below in in_the_rows_of(node))
            if sorted_rows > MOST_ROWS:
                yield f"{kind} of {sorted_rows:.0f} rows"


def check(conn: Connection, explained: Explained, count: int = BATCH) -> list[str]:
    """Make all calls, for so many jobs; returns what is wrong with the plans inside them."""
    found = set()
    for name, prepare in CALLS.items():
        query, arguments = prepare(conn, count)
        plans = explained.run(query, *arguments)
        assert plans
        for plan in plans:
            found |= {
                f"{name}: {fault}: {' '.join(plan.query.split())[:90]}" for fault in faults(plan)
            }
    return sorted(found)


def load(connect: Connect) -> None:
    """What is finished, what is not due, what is not ours, each priority, what runs."""
    fill(connect, scaled(1_000_000), "done", "succeeded")
    fill(connect, scaled(1_000_000), KIND, priority=100, due="1 day")
    fill(connect, scaled(500_000), "theirs")
    fill(connect, scaled(40_200), "theirs", priority=None, due="1 hour")
    fill(connect, scaled(2_000), "long", "running", due="1 hour")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed-empty", "never-analyzed"])
def test_no_verb_reads_a_table_or_sorts_one(
    conn: Connection, connect: Connect, subtests: pytest.Subtests, analyzed: bool
) -> None:
    no_autovacuum(conn)
    if analyzed:
        conn.execute("analyze jobq.jobs, jobq.job_events")

    def session(mode: str) -> Explained:
        fresh = connect()
        fresh.execute(f"set plan_cache_mode = {mode}".encode())
        return Explained(fresh)

    def check_all(statistics: str) -> None:
        for mode in MODES:
            for age, explained in (("old", old[mode]), ("new", session(mode))):
                with subtests.test(statistics=statistics, mode=mode, session=age):
                    found = check(conn, explained)
                    assert not found, "\n".join(found)

    old = {mode: session(mode) for mode in MODES}
    for mode in reversed(MODES):
        for _ in range(6 if mode == "auto" else 1):  # from the sixth call on a plan may be kept
            check(conn, old[mode], 1)  # the tables stay within a few pages
    load(connect)
    check_all("analyzed while empty" if analyzed else "none")
    conn.execute("vacuum analyze jobq.jobs, jobq.job_events")
    check_all("fresh")
