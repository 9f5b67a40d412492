"""Other PostgreSQL queues for Python on the same server: `make bench-peers`.

Each drains the same jobs in a database of its own, by the program in peers/ that configures it as
its documentation says is fastest. The definitions hold for all of them:

- drain: jobs over the time from the first start to the last finish that the queue itself recorded
- drain, start included: to that last finish from the start of the worker process
- enqueue: jobs over the seconds that the calls took, on one connection, by the queue's own client
- pick-up: from the clock reading of the enqueue to that of the claim, both the server's and in the
  queue's own record; jobs one at a time, 20 to 40 ms apart, one idle worker process
- WAL and server CPU: over a job's whole life, enqueued in bulk and drained
- worker CPU: of the worker processes, from their start to their end
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from harness import Bench, Meter, Row, Rows
from load import percentile

HERE = Path(__file__).parent
PROGRAMS = HERE / "peers"
PYTHON = HERE.parent.parent / ".venv-peers" / "bin" / "python"
BULK = 1000
WARM = 50
TIMEOUT_SECONDS = 900.0

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Peer:
    """How a queue is set up, started and asked."""

    name: str
    program: str
    worker: tuple[str, ...]
    unfinished: str  # a query that gives a row while there are such jobs
    times: str  # first start, last finish, number of finished jobs
    waits: str  # of each job, the ms from enqueue to claim, in order
    python: str = str(PYTHON)
    processes: int = 1
    part: int = 1  # of so many of the jobs

    def call(self, dsn: str, *arguments: str) -> str:
        """Run a sub-command of its program; what it prints."""
        command = [self.python, str(PROGRAMS / self.program), *arguments]
        done = subprocess.run(
            command, env=_environment(dsn), stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout


_JOBQ = Peer(
    "jobq",
    "jobq_peer.py",
    ("-m", "jobq", "worker", "handlers:app"),
    "select from jobq.jobs where status <> 'succeeded' limit 1",
    "select min(started_at), max(finished_at), count(finished_at) from jobq.jobs",
    "select extract(epoch from started_at - created_at)::float8 * 1000 from jobq.jobs order by id",
    sys.executable,
)
_PGQUEUER = Peer(
    "PgQueuer",
    "pgqueuer_peer.py",
    (str(PROGRAMS / "pgqueuer_peer.py"), "work", "1", "500"),
    "select from pgqueuer limit 1",
    """
    select min(created) filter (where status = 'picked'),
      max(created) filter (where status = 'successful'),
      count(*) filter (where status = 'successful')
    from pgqueuer_log
    """,
    """
    select extract(epoch from p.created - q.created)::float8 * 1000
    from pgqueuer_log p join pgqueuer_log q using (job_id)
    where p.status = 'picked' and q.status = 'queued'
    order by job_id
    """,
)
_PROCRASTINATE = Peer(
    "Procrastinate",
    "procrastinate_peer.py",
    (str(PROGRAMS / "procrastinate_peer.py"), "work", "30"),
    "select from procrastinate_jobs where status <> 'succeeded' limit 1",
    """
    select min(at) filter (where type = 'started'), max(at) filter (where type = 'succeeded'),
      count(*) filter (where type = 'succeeded')
    from procrastinate_events
    """,
    """
    select extract(epoch from s.at - d.at)::float8 * 1000
    from procrastinate_events s join procrastinate_events d using (job_id)
    where s.type = 'started' and d.type = 'deferred'
    order by job_id
    """,
    part=10,
)
_DRAIN, _BULK, _SINGLE = "drain", "enqueue by 1,000", "enqueue one by one"
_PICKUP = {"pick-up p50": 0.5, "pick-up p99": 0.99}
_FIGURES = {
    _DRAIN: "jobs/s",
    "drain, start included": "jobs/s",
    _BULK: "jobs/s",
    _SINGLE: "jobs/s",
    **dict.fromkeys(_PICKUP, "ms"),
    "WAL": "bytes/job",
    "server CPU": "µs/job",
    "worker CPU": "µs/job",
}


def peers(bench: Bench) -> list[Row]:
    """No-ops through each queue's own client and worker, all of its history written.

    In the short run Procrastinate gets a tenth of the jobs: it takes one at a time, at a speed that
    does not depend on how many there are.
    """
    if not PYTHON.exists():
        raise SystemExit(f"no peers in {PYTHON.parent.parent}: `make bench-peers` installs them")
    jobs, singles = bench.jobs(50_000), bench.jobs(2_000)
    base, base_of_two = _PGQUEUER, _two(_PGQUEUER)
    variants = [_JOBQ, base, _PROCRASTINATE, _two(_JOBQ), base_of_two]
    measured = [
        (peer, _measure(bench, peer, jobs if bench.full else jobs // peer.part, singles))
        for _ in range(bench.rounds)
        for peer in variants
    ]
    rows = Rows()
    for figure, unit in _FIGURES.items():
        for peer, values in measured:
            single = peer.processes == 1
            wanted = single or figure not in (_BULK, _SINGLE, *_PICKUP)
            if wanted and figure in values:  # the server's CPU is not known everywhere
                other = f"{figure}: {(base if single else base_of_two).name}"
                what = f"{figure}: {peer.name}"
                rows.add(
                    what, unit, values[figure],
                    ratio_to=None if what == other else other,
                    target="≥ 1.3" if figure == _DRAIN and peer is _JOBQ else None,
                )  # fmt: skip
    return rows.list()


def _two(peer: Peer) -> Peer:
    return replace(peer, name=f"{peer.name}, 2 processes", processes=2)


def _measure(bench: Bench, peer: Peer, jobs: int, singles: int) -> dict[str, float]:
    """One peer's figures, by their names in _FIGURES."""
    dsn = bench.fresh()
    if peer.program != _JOBQ.program:
        peer.call(dsn, "setup")
    one_by_one = float(peer.call(dsn, "enqueue", str(singles), "1"))
    with Meter(dsn, jobs) as filling:
        bulk = float(peer.call(dsn, "enqueue", str(jobs), str(BULK)))
    with closing(psycopg.connect(dsn, autocommit=True)) as conn:
        conn.execute("analyze")
    total = jobs + singles
    before = _children_cpu()
    with Meter(dsn, total) as draining:
        started = time.time()
        with closing(psycopg.connect(dsn, autocommit=True)) as conn, _workers(peer, dsn) as running:
            _wait(conn, peer, running)
    worker_cpu = _children_cpu() - before
    with closing(psycopg.connect(dsn, autocommit=True)) as conn:
        first, last, finished = conn.execute(peer.times.encode()).fetchone() or (None, None, 0)
    if finished != total:
        raise RuntimeError(f"{peer.name} finished {finished} of {total} jobs")
    figures = {
        _DRAIN: total / (last - first).total_seconds(),
        "drain, start included": total / (last.timestamp() - started),
        _BULK: jobs / bulk,
        _SINGLE: singles / one_by_one,
        "worker CPU": worker_cpu * 1e6 / total,
    }
    for meter in (filling, draining):
        for (name, _), value in meter.per_job().items():
            figures[name] = figures.get(name, 0) + value
    return figures | (_pickup(bench, peer) if peer.processes == 1 else {})


def _pickup(bench: Bench, peer: Peer) -> dict[str, float]:
    """How soon its idle worker claims a job."""
    dsn = bench.fresh()
    if peer.program != _JOBQ.program:
        peer.call(dsn, "setup")
    with closing(psycopg.connect(dsn, autocommit=True)) as conn, _workers(peer, dsn) as running:
        # The first ones find it starting.
        for jobs in (WARM, bench.jobs(200, full=1000)):
            peer.call(dsn, "enqueue", str(jobs), "1", "slow")
            _wait(conn, peer, running)
        waits = [row[0] for row in conn.execute(peer.waits.encode())][WARM:]
    return {figure: percentile(waits, share) for figure, share in _PICKUP.items()}


@contextmanager
def _workers(peer: Peer, dsn: str) -> Iterator[list[Process]]:
    """Its worker processes, ended by SIGTERM at the end."""
    command = [peer.python, *peer.worker]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, cwd=HERE, env=_environment(dsn)))
            for _ in range(peer.processes)
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.terminate()


def _wait(conn: psycopg.Connection[Any], peer: Peer, running: list[Process]) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while conn.execute(peer.unfinished.encode()).rowcount:
        if any(process.poll() is not None for process in running):
            raise RuntimeError(f"{peer.name}: a worker ended early")
        if time.monotonic() > until:
            raise TimeoutError(f"{peer.name} did not finish in {TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.25)


def _environment(dsn: str) -> dict[str, str]:
    """How every program finds the database: jobq by its URL, the others by libpq's variables."""
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    libpq = {
        f"PG{key.upper().replace('DBNAME', 'DATABASE')}": str(given[key])
        for key in ("host", "port", "user", "password", "dbname")
        if key in given
    }
    return {**os.environ, **libpq, "DATABASE_URL": dsn, "JOB_WORKER_LOG_LEVEL": "WARNING"}


def _children_cpu() -> float:
    """CPU seconds of the processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
