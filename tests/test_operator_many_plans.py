"""What a filter reads: the jobs it names by their indexes, not all that wait."""

import json
from typing import Any

import pytest
from helpers import Connection, scalar

from plans import Explained, Plan
from scale import Connect, fill, no_autovacuum, scaled
from verbs import enqueue

MODES = ("auto", "force_generic_plan", "force_custom_plan")


@pytest.fixture
def named(conn: Connection, connect: Connect) -> int:
    """A job with a key, among very many that wait and have failed."""
    no_autovacuum(conn)
    fill(connect, scaled(1_000_000))
    fill(connect, scaled(200_000), status="failed")
    job_id = enqueue(conn, "k", delay="1 hour", idempotency_key="mine")
    fill(connect, scaled(200_000), status="running", due="1 hour")
    return job_id


def matching(explained: Explained, filter_: dict[str, Any], verb: str) -> Plan:
    query = f"select matched from jobq.{verb}(%s, dry_run => true)"
    plans = explained.run(query, json.dumps(filter_))
    (found,) = [plan for plan in plans if "v_walk and" in plan.query]
    return found


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never-analyzed"])
def test_ids_and_keys_are_looked_up(
    conn: Connection, connect: Connect, named: int, subtests: pytest.Subtests, analyzed: bool
) -> None:
    if analyzed:
        conn.execute("analyze jobq.jobs")
    for mode in MODES:
        session = connect()
        session.execute(f"set plan_cache_mode = {mode}".encode())
        explained = Explained(session)
        for filter_ in ({"ids": [named, 1, 2]}, {"key": "mine"}, {"ids": [named], "key": "mine"}):
            for verb in ("cancel_jobs", "retry_jobs"):
                with subtests.test(mode, filter=str(filter_), verb=verb):
                    assert matching(explained, filter_, verb).buffers < 50
    query = "select matched from jobq.cancel_jobs(%s, dry_run => true)"
    assert scalar(conn, query, '{"key": "mine"}') == 1


def test_a_worker_is_looked_for_among_what_runs(
    conn: Connection, connect: Connect, named: int
) -> None:
    waiting = scalar(conn, "select pg_relation_size('jobq.jobs') / 8192")
    plan = matching(Explained(connect()), {"worker": "nobody"}, "cancel_jobs")
    assert plan.buffers < waiting / 3
