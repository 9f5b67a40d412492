"""What the workers of a fleet run: quick handlers that record executions, and one that kills."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psycopg
from helpers import Connection

from jobq import App, Worker, WorkerSettings, current_job
from jobq.log import configure

app = App()
_own = threading.local()


def work(dsn: str, log: Path) -> None:
    """Be a worker process until it is stopped."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    configure("WARNING")
    os.environ["DATABASE_URL"] = dsn
    settings = WorkerSettings(
        database_url=dsn, threads=4, lease_seconds=2, reap_seconds=0.2, retention_days=0,
        failed_retention_days=0,
    )  # fmt: skip
    sys.exit(Worker(app, settings).run())


def recorded() -> Connection:
    """Record that the job executes, at once, on a connection that nobody terminates."""
    if not hasattr(_own, "conn"):
        _own.conn = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    conn: Connection = _own.conn
    job = current_job()
    conn.execute("insert into executions values (%s, %s)", (job.id, job.attempt))
    return conn


@app.job("quick")
def quick(seconds: float) -> None:
    recorded()
    time.sleep(seconds)


@app.job("once")
def once(seconds: float) -> None:
    """Of jobs that have one attempt."""
    recorded()
    time.sleep(seconds)


@app.job("exact")
def exact(seconds: float) -> None:
    """Finishes in the transaction of its effect."""
    conn = recorded()
    with conn.transaction():
        conn.execute("insert into effects values (%s)", (current_job().id,))
        time.sleep(seconds)
        current_job().succeed(conn)


@app.job("poison")
def poison() -> None:
    recorded()
    os.kill(os.getpid(), signal.SIGKILL)
