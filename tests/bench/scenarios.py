"""The scenarios: each takes a maker of empty databases and a number of rounds, and returns rows."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]
Fresh = Callable[[], str]

HERE = Path(__file__).parent
BATCH = 500


@dataclass
class Row:
    """One line of a table: what was measured, one value a round."""

    what: str
    unit: str
    values: list[float] = field(default_factory=list)


def enqueue_many(fresh: Fresh, rounds: int, jobs: int = 50_000) -> list[Row]:
    """Jobs a second from one connection, a thousand a call, committed each."""
    row = Row("enqueue_many, 1,000 a call", "jobs/s")
    for _ in range(rounds):
        with closing(_connect(fresh())) as conn:
            row.values.append(jobs / fill(conn, jobs))
    return [row]


def drain(fresh: Fresh, rounds: int, jobs: int = 50_000) -> list[Row]:
    """Jobs a second, from the first start to the last finish, one worker process, 10 threads."""
    row = Row("typed no-ops, all events written", "jobs/s")
    for _ in range(rounds):
        dsn = fresh()
        with closing(_connect(dsn)) as conn:
            fill(conn, jobs)
            with worker(dsn):
                wait(conn, "select count(*) from jobq.jobs where status <> 'succeeded'", 0)
            query = """
                select extract(epoch from max(finished_at) - min(started_at)) from jobq.jobs
            """
            row.values.append(jobs / float(one(conn, query)))
            assert one(conn, "select count(*) from jobq.verify()") == 0
    return [row]


def pinned(fresh: Fresh, rounds: int, jobs: int = 100_000) -> list[Row]:
    """Claim and settle in turn, 500 a call, while an old snapshot keeps every dead row."""
    rows = {
        name: Row(name, "jobs/s")
        for name in ("no old snapshot", "first tenth under it", "last tenth under it")
    }
    for _ in range(rounds):
        for pin in (False, True):
            dsn = fresh()
            with closing(_connect(dsn)) as conn, ExitStack() as stack:
                fill(conn, jobs)
                if pin:
                    old = stack.enter_context(closing(psycopg.connect(dsn)))
                    old.execute("set transaction isolation level repeatable read")
                    old.execute("select count(*) from jobq.jobs")
                seconds = burn(conn)
                tenth = len(seconds) // 10
                done = tenth * BATCH
                if pin:
                    rows["first tenth under it"].values.append(done / sum(seconds[:tenth]))
                    rows["last tenth under it"].values.append(done / sum(seconds[-tenth:]))
                else:
                    rows["no old snapshot"].values.append(jobs / sum(seconds))
    return list(rows.values())


_GATE = "select 1"
_NO_NOTIFY = "create or replace function jobq._wake(kinds text[]) returns void language sql as ''"
_PLAIN_NOTIFY = """
create or replace function jobq._wake(kinds text[]) returns void language sql
as $$ select pg_notify('jobq', k) from unnest(kinds) k $$
"""


def gate(fresh: Fresh, rounds: int, producers: int = 16, seconds: float = 4) -> list[Row]:
    """Single enqueues a second of 16 producers: what the wake-up costs them."""
    variants = {
        "no NOTIFY at all": (_NO_NOTIFY, None),
        "gate, nobody waits": (_GATE, None),
        "gate, an idle client of another kind": (_GATE, "other"),
        "gate, an idle client of this kind": (_GATE, "noop"),
        "plain NOTIFY, no gate": (_PLAIN_NOTIFY, None),
    }
    rows = [Row(name, "jobs/s") for name in variants]
    for _ in range(rounds):
        for row in rows:
            change, kind = variants[row.what]
            dsn = fresh()
            with closing(_connect(dsn)) as conn, ExitStack() as stack:
                conn.execute(change)
                if kind is not None:
                    idle = stack.enter_context(closing(_connect(dsn)))
                    idle.execute("select jobq.listen(%s)", ([kind],))
                with get_context("spawn").Pool(producers) as pool:
                    pool.starmap(produce, [(dsn, 0.2)] * producers, chunksize=1)
                    made = pool.starmap(produce, [(dsn, seconds)] * producers, chunksize=1)
                row.values.append(sum(made) / seconds)
    return rows


def pickup(fresh: Fresh, rounds: int, jobs: int = 300) -> list[Row]:
    """Milliseconds from enqueue to start, one job at a time, one idle worker process."""
    rows = [Row("p50", "ms"), Row("p99", "ms")]
    for _ in range(rounds):
        dsn = fresh()
        with closing(_connect(dsn)) as conn, worker(dsn):
            for number in range(jobs + 20):
                job_id = one(conn, "select job_id from jobq.enqueue('noop', '{\"n\": 1}')")
                query = (
                    f"select count(*) from jobq.jobs where id = {job_id} and status <> 'succeeded'"
                )
                wait(conn, query, False, pause=0.002)
                # Until the worker is idle again; a tenth of the jobs come when it has long been.
                time.sleep(0.3 if number % 10 == 0 else 0.03)
            query = """
                select extract(epoch from started_at - created_at) * 1000 from jobq.jobs
                where id > 20 order by 1
            """
            waits = [float(row[0]) for row in conn.execute(query.encode())]
            rows[0].values.append(waits[len(waits) // 2])
            rows[1].values.append(waits[int(len(waits) * 0.99)])
    return rows


SCENARIOS: dict[str, Callable[..., list[Row]]] = {
    "enqueue_many": enqueue_many,
    "drain": drain,
    "pinned": pinned,
    "gate": gate,
    "pickup": pickup,
}


def fill(conn: Connection, jobs: int) -> float:
    """Enqueue so many no-ops and return the seconds that the calls took."""
    seconds = 0.0
    for first in range(0, jobs, 1000):
        batch = json.dumps(
            [
                {"kind": "noop", "payload": {"n": n, "to": "ada@example.org"}}
                for n in range(first, min(first + 1000, jobs))
            ]
        )
        started = time.perf_counter()
        conn.execute("select count(*) from jobq.enqueue_many(%s::jsonb)", (batch,))
        seconds += time.perf_counter() - started
    return seconds


def burn(conn: Connection) -> list[float]:
    """Claim and settle in turn until nothing is left; seconds of each pair of calls."""
    seconds: list[float] = []
    while True:
        started = time.perf_counter()
        claimed = conn.execute(
            "select id, lease_token::text from jobq.claim('bench', %s, '{noop}')", (BATCH,)
        ).fetchall()
        if not claimed:
            return seconds
        outcomes = json.dumps(
            [{"job_id": i, "lease_token": token, "outcome": "succeeded"} for i, token in claimed]
        )
        conn.execute("select count(*) from jobq.settle(%s::jsonb)", (outcomes,))
        seconds.append(time.perf_counter() - started)


def produce(dsn: str, seconds: float) -> int:
    """Enqueue single jobs for so long and return how many."""
    made = 0
    with psycopg.connect(dsn, autocommit=True) as conn:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            conn.execute("select jobq.enqueue('noop', '{\"n\": 1}')")
            made += 1
    return made


@contextmanager
def worker(dsn: str, threads: int = 10) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process with a handler for `noop`, stopped at the end."""
    environment = {
        **os.environ,
        "DATABASE_URL": dsn,
        "JOB_WORKER_THREADS": str(threads),
        "JOB_WORKER_LOG_LEVEL": "WARNING",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "jobq", "worker", "handlers:app"], cwd=HERE, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def wait(
    conn: Connection, query: str, value: object, timeout: float = 300, pause: float = 0.05
) -> None:
    """Until the query gives the value."""
    until = time.monotonic() + timeout
    while one(conn, query) != value:
        if time.monotonic() > until:
            raise TimeoutError(query)
        time.sleep(pause)


def one(conn: Connection, query: str) -> Any:
    """The first column of the first row."""
    row = conn.execute(query.encode()).fetchone()
    return row[0] if row else None


def _connect(dsn: str) -> Connection:
    return psycopg.connect(dsn, autocommit=True)
