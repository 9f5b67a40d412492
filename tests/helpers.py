"""What tests share: waiting for an event instead of sleeping, dumps, a checkout to edit."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import psycopg
import pytest

ROOT = Path(__file__).resolve().parents[1]

Connection = psycopg.Connection[Any]
T = TypeVar("T")


def wait_until(predicate: Callable[[], T | None], timeout: float = 30, interval: float = 0.01) -> T:
    """Return the first true value of `predicate()`; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"{getattr(predicate, '__name__', predicate)} not true within {timeout} s")
        time.sleep(interval)


def wait_for_lock_wait(conn: Connection, pid: int, timeout: float = 30) -> None:
    """Return once server process `pid` waits for a lock that another one holds."""
    query = "select cardinality(pg_blocking_pids(%s)) > 0"
    wait_until(lambda: conn.execute(query, (pid,)).fetchone() == (True,), timeout)


def wait_for_activity(conn: Connection, condition: str, timeout: float = 30) -> int:
    """Return the pid of the first session in this database for which `condition` is true.

    `condition` is SQL over pg_stat_activity, such as "wait_event = 'PgSleep'".
    """
    query = (
        "select pid from pg_stat_activity where datname = current_database()"
        f" and pid <> pg_backend_pid() and ({condition})"
    )
    row = wait_until(lambda: conn.execute(query).fetchone(), timeout)
    return int(row[0])


def scalar(conn: Connection, query: str, *args: object) -> Any:
    """Return the one value that the query yields."""
    row = conn.execute(query, args).fetchone()
    assert row is not None, "the query yielded no row"
    return row[0]


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI, where everything it needs should be there."""
    if os.environ.get("CI"):
        pytest.fail(f"missing in CI: {reason}")
    pytest.skip(reason)


def dump(bindir: Path, dsn: str, *options: str) -> str:
    """Return the database's schema as pg_dump tells it, without what differs from run to run."""
    command = [str(bindir / "pg_dump"), "--schema-only", *options, "--dbname", dsn]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith(("\\restrict", "\\unrestrict")))


class Checkout:
    """A copy of the package and of db/, whose files a test may edit and run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ignored = shutil.ignore_patterns("__pycache__")
        for name in ("worker", "db"):
            shutil.copytree(ROOT / name, root / name, ignore=ignored)
        shutil.copy(ROOT / "yoyo.ini", root)

    def start(self, code: str, *args: str, **env: str) -> "subprocess.Popen[str]":
        """Run Python code that imports this copy of jobq; returns the process."""
        return subprocess.Popen(
            [sys.executable, "-c", code, *args],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root / "worker"), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, *args: str, **env: str) -> str:
        """Run Python code to its end and return what it printed; fails unless it exits 0."""
        process = self.start(code, *args, **env)
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        return out

    def migrate(self, dsn: str) -> str:
        """Run `migrate(dsn)` and return the report as text."""
        return self.run("import sys; from jobq.migrate import *; print(migrate(sys.argv[1]))", dsn)
