"""Worker processes that are killed, frozen and cut off, and replaced when they are gone."""

import multiprocessing
import os
import random
import signal
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Self

from helpers import Connection, scalar, wait_until

import fleet_app
from verbs import rows

FROZEN_SECONDS = 3.0

# Forked from a server that has imported everything: a replacement is there in no time.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["fleet_app"])


class Fleet:
    """So many workers. `done` counts what was done to them."""

    def __init__(self, size: int, log: Path, dsn: str) -> None:
        self._log, self._dsn = log, dsn
        self._frozen: int | None = None
        self._thaw_at = 0.0
        self._random = random.Random(1)
        self._killed: set[int | None] = set()
        self.done: Counter[str] = Counter()
        self.workers = [self._start() for _ in range(size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
            worker.join()
            worker.close()

    def tend(self) -> None:
        """Replace workers that are gone, by a handler's doing or ours; thaw the frozen one."""
        if self._frozen and monotonic() > self._thaw_at:
            _signal(self._frozen, signal.SIGCONT)
            self._frozen = None
        for number, worker in enumerate(self.workers):
            if worker.exitcode is not None:
                assert worker.exitcode == -signal.SIGKILL, self._log.read_text()
                self.done["other deaths"] += worker.pid not in self._killed
                worker.close()
                self.workers[number] = self._start()

    def kill(self, conn: Connection, least: int) -> None:
        """Kill the worker that holds the most jobs, if those are at least so many."""
        if pid := self._busiest(conn, least):
            self._killed.add(pid)
            self.done["kills"] += _signal(pid, signal.SIGKILL)

    def freeze(self, conn: Connection) -> None:
        """Stop the busiest worker for longer than its leases; it will wake and try to go on."""
        pid = None if self._frozen else self._busiest(conn, 2)
        if pid and _signal(pid, signal.SIGSTOP):
            self._frozen, self._thaw_at = pid, monotonic() + FROZEN_SECONDS
            self.done["freezes"] += 1

    def cut_off(self, conn: Connection) -> None:
        """Terminate one of the workers' connections."""
        query = """
        select pid, split_part(application_name, ' ', 2) as purpose from pg_stat_activity
        where datname = current_database() and application_name like 'jobq %% threads=%%'
        order by pid"""
        if sessions := rows(conn, query):
            session = self._random.choice(sessions)
            conn.execute("select pg_terminate_backend(%s)", (session.pid,))
            self.done["connections"] += 1
            self.done[f"{session.purpose} connections"] += 1

    def stop(self, conn: Connection) -> None:
        """Let all workers end in peace, which they must."""
        calls = """
        select count(*) = %s from pg_stat_activity
        where datname = current_database() and application_name like 'jobq calls %%'"""
        size = len(self.workers)

        def is_settled() -> bool:
            self.tend()
            # A process that has only just been forked would die of the signal.
            return not self._frozen and bool(scalar(conn, calls, size))

        wait_until(is_settled)
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.join(30)
            assert worker.exitcode == 0, (worker.exitcode, self._log.read_text()[-500:])

    def _busiest(self, conn: Connection, least: int) -> int | None:
        query = """
        select split_part(reverse(split_part(reverse(locked_by), '-', 2)), '-', 1)::int as pid
        from jobq.jobs where status = 'running'
        group by 1 having count(*) >= %s order by count(*) desc"""
        live = {worker.pid for worker in self.workers if worker.is_alive()} - {self._frozen}
        return next((pid for (pid,) in rows(conn, query, least) if pid in live), None)

    def _start(self) -> multiprocessing.process.BaseProcess:
        args = (self._dsn, self._log)
        worker = _processes.Process(target=fleet_app.work, args=args, daemon=True)
        worker.start()
        return worker


def _signal(pid: int, number: signal.Signals) -> bool:
    """Signal a worker, unless the poison has ended it meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
