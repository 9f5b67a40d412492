"""What the worker's tests share: quick settings, a worker in this process or in its own."""

import io
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from helpers import ROOT, Connection, wait_until
from psycopg.rows import dict_row

from jobq import App, Worker, WorkerSettings
from jobq.log import LineFormatter

#: How many workers are idle and will be notified.
IDLE_LOCKS = """
select count(distinct pid) from pg_locks
where locktype = 'advisory' and classid = jobq._idle_class()::oid
  and database = (select oid from pg_database where datname = current_database())"""


def settings(dsn: str, **values: Any) -> WorkerSettings:
    """Settings for tests: two threads, quick reaping, no purge, little patience at the end."""
    defaults: dict[str, Any] = {
        "database_url": dsn,
        "threads": 2,
        "reap_seconds": 0.2,
        "shutdown_seconds": 10,
        "retention_days": 0,
        "failed_retention_days": 0,
    }
    return WorkerSettings(**{**defaults, **values})


@contextmanager
def running(app: App, dsn: str, **values: Any) -> Iterator[Worker]:
    """A worker in this process, stopped at the end."""
    name = values.pop("name", None)
    worker = Worker(app, settings(dsn, **values), name=name)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def job(conn: Connection, job_id: int) -> dict[str, Any]:
    """The job's row."""
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute("select * from jobq.jobs where id = %s", (job_id,)).fetchone()
    assert row is not None, f"no job {job_id}"
    return row


def status(conn: Connection, job_id: int) -> str:
    """The job's status."""
    return str(job(conn, job_id)["status"])


def finish(conn: Connection, job_id: int, expected: str, timeout: float = 30) -> dict[str, Any]:
    """Wait until the job has this status and return its row."""
    wait_until(lambda: status(conn, job_id) == expected, timeout)
    return job(conn, job_id)


def events(conn: Connection, job_id: int) -> list[str]:
    """The job's history, oldest first."""
    query = "select event::text from jobq.job_events where job_id = %s order by id"
    return [name for (name,) in conn.execute(query, (job_id,))]


def counts(conn: Connection) -> dict[str, int]:
    """How many jobs have which status."""
    rows = conn.execute("select status::text, count(*) from jobq.jobs group by 1").fetchall()
    return dict(rows)


@contextmanager
def captured_log(level: int = logging.DEBUG) -> Iterator[io.StringIO]:
    """The lines that jobq logs meanwhile."""
    logger = logging.getLogger("jobq")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield stream
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class Process:
    """A worker in a process of its own, whose handlers are given as source text."""

    def __init__(self, folder: Path, source: str, dsn: str, **env: str) -> None:
        program = folder / "program.py"
        program.write_text(
            "import os, signal, sys, threading, time\n"
            "from jobq import *\n"
            "from jobq.log import configure\n"
            "configure('DEBUG')\n"
            "app = App()\n"
            f"{textwrap.dedent(source)}\n"
            "if __name__ == '__main__':\n"
            "    sys.exit(Worker(app).run())\n"
        )
        self.log = folder / "worker.log"
        defaults = {
            "DATABASE_URL": dsn,
            "JOB_WORKER_THREADS": "2",
            "JOB_WORKER_LEASE_SECONDS": "1",
            "JOB_WORKER_REAP_SECONDS": "0.2",
            "JOB_RETENTION_DAYS": "0",
            "JOB_FAILED_RETENTION_DAYS": "0",
            "PYTHONPATH": str(ROOT / "worker"),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, program],
                env={**os.environ, **defaults, **env},
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        """Wait for the process to end and return its exit code."""
        return self.process.wait(timeout)

    def log_text(self) -> str:
        """What the worker has logged so far."""
        return self.log.read_text()


@contextmanager
def work_goes_on(dsn: str, conn: Connection) -> Iterator[Callable[[], None]]:
    """A worker and a producer on the schema as it is; the result waits for some more to be done."""
    app = App(dsn)
    app.job("busy")(lambda: None)

    def some_more() -> None:
        done = counts(conn).get("succeeded", 0)
        for _ in range(20):
            app.enqueue("busy")
        wait_until(lambda: counts(conn).get("succeeded", 0) >= done + 20, timeout=20)

    with running(app, dsn):
        some_more()
        yield some_more
    app.close()
