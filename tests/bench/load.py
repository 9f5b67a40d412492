"""Load on a queue: filling it, claiming and settling from SQL, worker processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import psycopg
from meter import buffers

Connection = psycopg.Connection[Any]

HERE = Path(__file__).parent
KINDS = ["noop"]

# The lock by which a client says that it is idle.
_IDLE = "select count(distinct pid) from pg_locks where classid = jobq._idle_class()::oid"
_LEFT = "select count(*) from jobq.jobs where status in ('queued', 'running') and id > %s"

_LAST = """
select not exists (select from jobq.jobs where id = %s and status in ('queued', 'running'))
"""


def connect(dsn: str) -> Connection:
    """A connection that commits each statement."""
    return psycopg.connect(dsn, autocommit=True)


def flush(conn: Connection) -> None:
    """Let what this session has done so far be counted now, before a meter starts."""
    conn.execute("select pg_stat_force_next_flush()")


def one(conn: Connection, query: str, *values: Any) -> Any:
    """The first column of the first row."""
    row = conn.execute(query.encode(), values or None).fetchone()
    return row[0] if row else None


def wait(
    conn: Connection, query: str, *values: Any, timeout: float = 600, pause: float = 0.02
) -> None:
    """Until the query gives something true."""
    until = time.monotonic() + timeout
    while not one(conn, query, *values):
        if time.monotonic() > until:
            raise TimeoutError(query)
        time.sleep(pause)


def fill(
    conn: Connection,
    jobs: int,
    *,
    batch: int = 1000,
    kinds: Sequence[str] = KINDS,
    priorities: Sequence[int] = (0,),
) -> float:
    """Enqueue so many no-ops, kinds and priorities in turn; seconds that the calls took."""
    seconds = 0.0
    for first in range(0, jobs, batch):
        elements = [
            {
                "kind": kinds[n % len(kinds)],
                "priority": priorities[n % len(priorities)],
                "payload": {"n": n, "to": "ada@example.org"},
            }
            for n in range(first, min(first + batch, jobs))
        ]
        text = json.dumps(elements)
        started = time.perf_counter()
        conn.execute("select count(*) from jobq.enqueue_many(%s::jsonb)", (text,))
        seconds += time.perf_counter() - started
    return seconds


@dataclass
class Turn:
    """One claim and the settle of what it brought; seconds, `at` by the clock."""

    at: float
    claim: float
    seconds: float
    jobs: int


class Claimer:
    """Claims and settles in turn on one connection."""

    def __init__(self, conn: Connection, batch: int, kinds: Sequence[str] = KINDS) -> None:
        self.conn = conn
        self.batch = batch
        self.kinds = list(kinds)

    def claim(self) -> list[tuple[int, str]]:
        """Ids and tokens of due jobs, now running."""
        return self.conn.execute(
            "select id, lease_token::text from jobq.claim('bench', %s, %s)",
            (self.batch, self.kinds),
        ).fetchall()

    def settle(self, claimed: list[tuple[int, str]]) -> None:
        """End them, succeeded."""
        outcomes = json.dumps(
            [{"job_id": i, "lease_token": token, "outcome": "succeeded"} for i, token in claimed]
        )
        self.conn.execute("select count(*) from jobq.settle(%s::jsonb)", (outcomes,))

    def turn(self) -> Turn:
        """Claim and settle once."""
        started = time.perf_counter()
        claimed = self.claim()
        claim = time.perf_counter() - started
        if claimed:
            self.settle(claimed)
        return Turn(time.time(), claim, time.perf_counter() - started, len(claimed))

    def burn(self, seconds: float = inf, jobs: float = inf) -> list[Turn]:
        """Turns until nothing is left, the time is over or so many jobs are done."""
        turns: list[Turn] = []
        until = time.monotonic() + seconds
        while jobs > 0 and time.monotonic() < until and (turn := self.turn()).jobs:
            turns.append(turn)
            jobs -= turn.jobs
        return turns

    def explained(self) -> tuple[int, int]:
        """Claim and settle once: shared buffers that the claim touched, and how many jobs."""
        kinds = "{" + ",".join(self.kinds) + "}"
        touched = buffers(
            self.conn, f"select id from jobq.claim('explained', {self.batch}, '{kinds}')"
        )
        claimed = self.conn.execute(
            "select id, lease_token::text from jobq.jobs"
            " where status = 'running' and locked_by = 'explained'"
        ).fetchall()
        self.settle(claimed)
        return touched, len(claimed)


def rate(turns: Sequence[Turn]) -> float:
    """Jobs a second of these turns."""
    return sum(turn.jobs for turn in turns) / sum(turn.seconds for turn in turns)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies (nearest rank); 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


@contextmanager
def workers(
    dsn: str, processes: int = 1, *, threads: int = 10, app: str = "app"
) -> Iterator[list[int]]:
    """Worker processes that run `handlers.py`, idle when this returns; their process ids."""
    environment = {
        **os.environ,
        "DATABASE_URL": dsn,
        "JOB_WORKER_THREADS": str(threads),
        "JOB_WORKER_LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "jobq", "worker", f"handlers:{app}"]
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, cwd=HERE, env=environment))
            for _ in range(processes)
        ]
        try:
            with connect(dsn) as conn:
                wait(conn, f"select ({_IDLE}) >= %s", processes, timeout=60)
            yield [process.pid for process in started]
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(60)


def drained(conn: Connection, last_id: int = 0, after: int = 0) -> None:
    """Return when no job with an id over `after` is queued or running.

    `last_id` is the job that comes last, if it is known.
    """
    # By one row first: a count at each look would compete with what is measured. In one
    # transaction, since a commit at each look would be counted with the measured ones.
    with conn.transaction():
        wait(conn, _LAST, last_id)
        wait(conn, f"select ({_LEFT}) = 0", after)
