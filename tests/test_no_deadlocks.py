"""Everybody at once on the same few rows: nobody waits for another in a circle.

The server says so itself: its log must not name a deadlock in this test's database.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from threading import Event

import psycopg
from conftest import PgServer
from helpers import Connection, scalar

from ledger import in_thread
from scale import PROVE, Connect
from verbs import assert_consistent, claim, enqueue_many, outcome, reap, renew, settle

ROWS = 2_000
SECONDS = 30.0 if PROVE else 6.0
ENOUGH = {"settled": 500, "reaped": 50, "purged": 500, "renewed": 500, "steered": 20, "kept": 20}

Act = Callable[[Connection, "Counter[str]"], None]


def complete(conn: Connection, tally: "Counter[str]") -> None:
    """Claim with leases that may end at once, renew in one order, settle in another."""
    lease = random.choice(["1 microsecond", "5 ms", "1 minute"])
    jobs = claim(conn, random.randint(1, 100), lease=lease)
    for _ in range(2):
        random.shuffle(jobs)
        tally["renewed"] += sum(renewed for _, _, renewed, _ in renew(conn, *jobs))
    random.shuffle(jobs)
    verdicts = [random.choice(["succeeded", "succeeded", "failed", "released"]) for _ in jobs]
    answers = settle(
        conn, *(outcome(*pair, error="x") for pair in zip(jobs, verdicts, strict=True))
    )
    tally["settled"] += sum(accepted is True for _, accepted, _ in answers)


def complete_one_by_one(conn: Connection, tally: "Counter[str]") -> None:
    """The verbs for one job, which wait for its row."""
    jobs = claim(conn, 5, lease="5 ms")
    for job in jobs:
        try:
            conn.execute("select jobq.report_progress(%s, %s, 0.5)", (job.id, job.lease_token))
            conn.execute("select jobq.succeed(%s, %s)", (job.id, job.lease_token))
        except psycopg.errors.DatabaseError as error:
            if error.sqlstate not in ("JQ003", "JQ004"):
                raise
        else:
            tally["settled"] += 1


def reap_all(conn: Connection, tally: "Counter[str]") -> None:
    tally["reaped"] += len(reap(conn, random.randint(1, 500)))


def purge(conn: Connection, tally: "Counter[str]") -> None:
    """Purge, and enqueue as many: new ones, and with keys that others enqueue too."""
    gone = scalar(conn, "select jobq.purge('1 ms', %s)", random.randint(1, 500))
    tally["purged"] += gone
    enqueue_many(conn, gone)
    keys = [f"key {n}" for n in random.sample(range(100), 30)]
    batch = [{"kind": "test", "idempotency_key": key} for key in keys]
    conn.execute("select count(*) from jobq.enqueue_many(%s)", (json.dumps(batch),))
    tally["kept"] += 1


def steer(conn: Connection, tally: "Counter[str]") -> None:
    """What an operator does to many."""
    verb = random.choice(
        ["cancel_jobs('{}', max_jobs => 20)", "retry_jobs('{}')", "set_priority('{}', 0)",
         f"set_priority('{{}}', {random.randint(-9, 9)}, max_jobs => 50)", "reschedule('{}')"]
    )  # fmt: skip
    conn.execute(f"select jobq.{verb}".encode())
    tally["steered"] += 1


ACTORS: list[tuple[Act, int]] = [
    (complete, 6), (complete_one_by_one, 2), (reap_all, 4), (purge, 4), (steer, 1),
]  # fmt: skip


def test_no_verbs_at_once_deadlock(conn: Connection, connect: Connect, pg_server: PgServer) -> None:
    name = scalar(conn, "select current_database()")
    # Found at once, or a circle would cost a second, and few would form.
    conn.execute(f"alter database {name} set deadlock_timeout = '5 ms'".encode())
    enqueue_many(conn, ROWS)
    stop = Event()

    def repeat(act: Act, session: Connection) -> "Counter[str]":
        tally: Counter[str] = Counter()
        while not stop.is_set():
            act(session, tally)
        return tally

    running = [in_thread(repeat, act, connect()) for act, many in ACTORS for _ in range(many)]
    stop.wait(SECONDS)
    stop.set()
    tally: Counter[str] = Counter()
    for actor in running:
        tally += actor.result(60)
    assert {what: tally[what] for what in ENOUGH if tally[what] < ENOUGH[what]} == {}
    assert_consistent(conn)
    if "TEST_DATABASE_URL" not in os.environ:
        lines = [line for line in pg_server.log_text().splitlines() if f" {name} " in line]
        assert lines
        assert [line for line in lines if "deadlock" in line] == []
    print(dict(tally))
