"""Workers die, freeze and lose their connections; the queue's promises hold all the same."""

import os
import random
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from helpers import Connection, scalar, wait_until
from psycopg.types.json import Jsonb

from fleet import Fleet
from jobq import App, worker
from jobq.migrate import check_compatible
from verbs import assert_consistent, enqueue, rows
from workers import finish, running

KILLS = int(os.environ.get("JOBQ_PROVE_KILLS", "20"))
LOST_LEASES = KILLS * 5 // 2
CONNECTIONS = KILLS
FREEZES = 2
QUICK_JOBS = 500
JOBS_A_KILL = 50

# Each a query for what breaks the promise.
PROMISES = {
    "every job ends": "select id, status from jobq.jobs where status in ('queued', 'running')",
    "no job starts more often than max_attempts": """
        select id, starts, max_attempts from jobq.jobs join starts using (id)
        where starts > max_attempts or starts <> attempt""",
    "no job executes without a start": """
        select id, count(*), starts from executions join starts on id = job_id
        group by id, starts having count(*) > starts""",
    "no attempt executes twice": """
        select job_id, attempt from executions group by 1, 2 having count(*) > 1""",
    "a job executes once more only after that execution lost its lease": """
        select e.job_id, e.attempt from executions e join jobq.jobs j on j.id = e.job_id
        where not (j.status = 'succeeded' and j.attempt = e.attempt) and not exists (
          select from jobq.job_events l
          where l.job_id = e.job_id and l.attempt = e.attempt and l.event = 'lease_lost')""",
    "no lease is lost before its time": """
        select job_id, at, lease_end from jobq.job_events, lateral (
          select substring(detail ->> 'error' from 'did not renew it by (.*) UTC') as lease_end) x
        where event = 'lease_lost' and at < (lease_end || '+00')::timestamptz""",
    "no job succeeds without having executed": """
        select id from jobq.jobs j where status = 'succeeded' and not exists (
          select from executions e where e.job_id = j.id and e.attempt = j.attempt)""",
    "an effect in the transaction that ends the job happens once": """
        select id, status, count(e.job_id) from jobq.jobs j left join effects e on e.job_id = j.id
        where kind = 'exact' group by id, status
        having count(e.job_id) <> (status = 'succeeded')::int""",
    "with attempts to spare, only the poison fails": """
        select id, kind, attempt from jobq.jobs
        where status <> 'succeeded' and kind <> 'poison' and max_attempts > 1""",
    "the poison fails, having executed, with all its attempts used": """
        select id, attempt from jobq.jobs j
        where kind = 'poison' and not (status = 'failed' and attempt = max_attempts
          and exists (select from executions e where e.job_id = j.id))""",
    "whoever fails says that its lease was lost": """
        select id, last_error from jobq.jobs
        where status = 'failed' and not (lost_leases > 0 and last_error ^@ 'lease lost: ')""",
}

STARTS = """
create view starts as
select job_id as id, count(*) filter (where event = 'claimed')
  - count(*) filter (where event in ('released', 'snoozed')) as starts
from jobq.job_events
group by job_id"""

EXECUTIONS = "select count(*) from executions join jobq.jobs on id = job_id where kind = %s"
UNSTARTED = """
select count(*) from jobq.jobs j
where status = 'failed' and not exists (select from executions e where e.job_id = j.id)"""


def count_of(conn: Connection, condition: str) -> int:
    return int(scalar(conn, f"select count(*) from jobq.jobs where {condition}"))


def lost_leases(conn: Connection) -> int:
    return int(scalar(conn, "select count(*) from jobq.job_events where event = 'lease_lost'"))


def feed(conn: Connection, kind: str, count: int, chance: random.Random) -> None:
    jobs = [
        {
            "kind": kind, "payload": {"seconds": chance.uniform(0.005, 0.05)},
            "max_attempts": 1 if kind == "once" else 10,
            "retry_base_seconds": 1, "retry_cap_seconds": 1,
        }
        for _ in range(count)
    ]  # fmt: skip
    conn.execute("select jobq.enqueue_many(%s)", (Jsonb(jobs),))


class Storm:
    """Kills and cuts by progress, not by time: it goes on however slow the machine is."""

    def __init__(self, conn: Connection, fleet: Fleet) -> None:
        self._conn, self._fleet = conn, fleet
        self._chance = random.Random(1)
        self._next_at = 0
        feed(conn, "quick", QUICK_JOBS // 2, self._chance)
        enqueue(conn, "poison", max_attempts=3, retry_base_seconds=1, retry_cap_seconds=1)
        feed(conn, "quick", QUICK_JOBS // 2, self._chance)

    def is_over(self) -> bool:
        conn, fleet, done = self._conn, self._fleet, self._fleet.done
        fleet.tend()
        self._feed()
        succeeded = count_of(conn, "status = 'succeeded'")
        if succeeded < self._next_at:
            return False
        self._next_at = succeeded + JOBS_A_KILL
        assert_consistent(conn)
        self._feed()  # that took its time, and who has nothing in hand is not killed
        if done["connections"] < CONNECTIONS:
            fleet.cut_off(conn)
        if done["freezes"] < FREEZES:
            fleet.freeze(conn)
        if done["kills"] < KILLS or lost_leases(conn) < LOST_LEASES:
            fleet.kill(conn, least=3)
            return False
        return done["connections"] >= CONNECTIONS and done["freezes"] >= FREEZES

    def _feed(self) -> None:
        if count_of(self._conn, "status = 'queued'") < 4 * JOBS_A_KILL:
            for kind in ("quick", "exact", "once"):
                feed(self._conn, kind, 2 * JOBS_A_KILL, self._chance)

    def is_drained(self) -> bool:
        self._fleet.tend()
        return count_of(self._conn, "status in ('queued', 'running')") == 0


@pytest.mark.timeout(300 + 12 * KILLS)
def test_promises_hold_in_a_storm_of_kills(
    dsn: str,
    conn: Connection,
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    conn.execute("create table executions (job_id bigint, attempt int)")
    conn.execute("create table effects (job_id bigint)")
    conn.execute(STARTS)
    started = monotonic()
    with Fleet(3, tmp_path / "log", dsn) as fleet:
        storm = Storm(conn, fleet)
        wait_until(storm.is_over, timeout=100 + 10 * KILLS, interval=0.1)
        wait_until(storm.is_drained, timeout=60, interval=0.1)
        fleet.stop(conn)
    told = {
        "jobs": count_of(conn, "true"),
        "seconds": round(monotonic() - started),
        "lost leases": lost_leases(conn),
        "failed unstarted, with one attempt": scalar(conn, UNSTARTED),
        **dict(sorted(fleet.done.items())),
    }
    print(", ".join(f"{name}: {number}" for name, number in told.items()))
    assert fleet.done["kills"] >= KILLS
    assert lost_leases(conn) >= LOST_LEASES
    # Cut off, a worker goes on; whoever died was killed by us or by the poison.
    assert fleet.done["other deaths"] <= scalar(conn, EXECUTIONS, "poison")
    assert_consistent(conn)
    for promise, query in PROMISES.items():
        with subtests.test(promise):
            assert rows(conn, query) == []


def test_a_worker_cut_off_while_it_starts_connects_again(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def cut_off_first(connection: Any) -> None:
        seen.append(connection.info.backend_pid)
        if len(seen) == 1:
            conn.execute("select pg_terminate_backend(%s, 10000)", (seen[0],))
        check_compatible(connection)

    monkeypatch.setattr(worker, "check_compatible", cut_off_first)
    app = App(dsn)
    app.job("k")(lambda: None)
    with running(app, dsn):
        finish(conn, app.enqueue("k").job_id, "succeeded")
    app.close()
    assert len(seen) > 1
