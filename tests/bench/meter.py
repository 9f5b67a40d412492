"""What a stretch of work cost, per job: WAL, commits, CPU, dead rows, buffers.

CPU is read from /proc, to a tick (10 ms) a process; where there is none, it is left out.
"""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

PROC = Path("/proc")
# What per_job() gives, and its units.
FIGURES = {
    "WAL": "bytes/job",
    "server CPU": "µs/job",
    "client CPU": "µs/job",
    "commits": "per job",
    "dead tuples left": "per job",
}
FLUSH_SECONDS = 12.0  # an idle session reports its statistics after 10 s, an ending one at once

_COUNTERS = "select pg_current_wal_insert_lsn() - '0/0', pg_backend_pid()"
_STATISTICS = """
select d.xact_commit::float8, (select coalesce(sum(n_dead_tup), 0)::float8 from pg_stat_all_tables
    where schemaname = 'jobq')
from pg_stat_database d where d.datname = current_database()
"""
_OTHERS = """
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


class Meter:
    """Counts from entry to exit; `per_job()` gives {(figure, unit): value} afterwards.

    `clients` are the ids of running client processes, by default this one. Commits and dead rows
    are read in `per_job()`, once the other sessions of the database have ended (or been idle for
    12 s): before, their statistics are not complete. So end the clients first; their last words
    count as well. Nothing else may use the server meanwhile.
    """

    def __init__(self, dsn: str, jobs: int = 0, clients: list[int] | None = None) -> None:
        self.jobs = jobs
        self.clients = clients or [os.getpid()]
        self._dsn = dsn
        self._figures: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._commits = self._dead = 0.0

    def start(self) -> None:
        """Begin to count."""
        self._commits, self._dead = self._statistics(0)
        self._before = self._counters()

    def stop(self) -> None:
        """Stop counting, but for commits and dead rows."""
        after = self._counters()
        self._figures = {name: value - self._before[name] for name, value in after.items()}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()

    def per_job(self) -> dict[tuple[str, str], float]:
        """The figures, each divided by `jobs`, which may be set as late as this."""
        if "commits" not in self._figures:
            commits, dead = self._statistics(FLUSH_SECONDS)
            self._figures["commits"] = commits - self._commits
            self._figures["dead tuples left"] = dead - self._dead
        return {(name, FIGURES[name]): value / self.jobs for name, value in self._figures.items()}

    def _counters(self) -> dict[str, float]:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            wal, backend = conn.execute(_COUNTERS).fetchone() or (0, 0)
            counters = {"WAL": float(wal)}
            if (PROC / "self/stat").exists():
                counters["server CPU"] = server_cpu(int(backend)) * 1e6
                counters["client CPU"] = sum(cpu(pid) for pid in self.clients) * 1e6
        return counters

    def _statistics(self, patience: float) -> tuple[float, float]:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            until = time.monotonic() + patience
            while time.monotonic() < until and (conn.execute(_OTHERS).fetchone() or (0,))[0]:
                time.sleep(0.05)
            commits, dead = conn.execute(_STATISTICS).fetchone() or (0.0, 0.0)
        return float(commits), float(dead)


def server_cpu(backend: int) -> float:
    """CPU seconds of the server that this backend belongs to, ended processes included."""
    postmaster = int(_stat(backend)[1])
    ended = sum(float(ticks) for ticks in _stat(postmaster)[13:15]) / os.sysconf("SC_CLK_TCK")
    total = ended + cpu(postmaster)
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = _stat(int(entry.name))
            except OSError:
                continue
            if int(fields[1]) == postmaster:
                total += cpu_of(fields)
    return total


def cpu(pid: int) -> float:
    """CPU seconds of a running process, all its threads."""
    return cpu_of(_stat(pid))


def cpu_of(fields: list[str]) -> float:
    """User and system seconds out of the fields of /proc/…/stat."""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    # After the name, which may contain blanks: state, parent, …; utime is the 12th of these.
    return (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()


def buffers(conn: psycopg.Connection[Any], query: str) -> int:
    """Run a query; the shared buffers that it hit and read, those inside functions included."""
    row = conn.execute(f"explain (analyze, buffers, format json) {query}".encode()).fetchone()
    plan = row[0][0]["Plan"] if row else {}
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
