"""The worker's loop: settle what has ended, report, reap, claim, wait. One thread, one connection.

Claims and settles are sets: while one statement runs, handlers go on and the next batch gathers;
nothing waits to gather. When a statement fails the connection is replaced and the loop goes on:
what was not answered is sent again, and the lease's token tells what had been done.
"""

import logging
import random
from collections.abc import Callable
from math import inf
from threading import Event, Thread
from time import monotonic
from typing import Any

import psycopg
from psycopg.types.string import ByteaBinaryLoader

from jobq._bell import Bell
from jobq._connection import REPLY_SECONDS, cut
from jobq._executor import Executor
from jobq._housekeeping import Housekeeping
from jobq._listener import Listener
from jobq._pace import Batch, Pace
from jobq._prefetch import Prefetch
from jobq._reporting import REPORT_SECONDS, report
from jobq._settling import Settling
from jobq.context import CurrentJob, Notes
from jobq.log import log
from jobq.settings import WorkerSettings

__all__ = ["Coordinator"]

logger = logging.getLogger("jobq.worker")

BATCH = 500
OVERFULL_SECONDS = 0.5

_CLAIM = """
select c.id, c.kind, c.payload::json, c.attempt, c.max_attempts, c.lease_token::text, c.lost_leases
from jobq.claim(%s, %s, %s, make_interval(secs => %s)) as c
"""
_NEXT_DUE = "select jobq.next_due(%s)"


class Coordinator:
    """Feeds the executor and settles what it hands back.

    `connect` opens the calls connection; `claims` holds each claim until its outcome is settled.
    """

    def __init__(
        self,
        name: str,
        kinds: list[str],
        settings: WorkerSettings,
        connect: Callable[[], psycopg.Connection[Any]],
        executor: Executor,
        listener: Listener,
        claims: dict[int, CurrentJob],
        bell: Bell,
    ) -> None:
        self._name = name
        self._kinds = kinds
        self._threads = settings.threads
        self._lease = settings.lease_seconds
        self._connect = connect
        self._executor = executor
        self._listener = listener
        self._claims = claims
        self._bell = bell
        self._notes = Notes(bell.ring)
        self._settling = Settling(claims, self._notes)
        self._housekeeping = Housekeeping(settings)
        self._prefetch = Prefetch(settings.threads)
        self._pace = Pace(listener, settings.poll_seconds)
        self._batch = Batch(BATCH)
        self._conn: psycopg.Connection[Any] | None = None
        self._cursor: psycopg.Cursor[Any] | None = None
        self._failures = 0
        self._room = 0
        self._turn_since = inf
        self._drained = False
        self._overfull_since: float | None = None
        self._stop_at = inf  # give up the jobs that still run then; inf: not stopping
        self._leave = Event()
        self.clean = False  # stopped with nothing left running or unsettled
        self._thread = Thread(target=self._loop, name="jobq-coordinator", daemon=True)

    def start(self, conn: psycopg.Connection[Any]) -> None:
        """Start the thread with an open connection."""
        self._use(conn)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Claim nothing more, give back what has not started, give the rest `seconds` to end."""
        self._stop_at = monotonic() + seconds
        self._bell.ring()

    def leave(self) -> None:
        """Stop at once; what runs is left to its lease."""
        self._stop_at = 0.0
        self._leave.set()
        self._bell.ring()

    def check(self) -> None:
        """Cut the connection when a turn gets no reply; for another thread to call now and then."""
        if monotonic() - self._turn_since > REPLY_SECONDS:
            self.cut()

    @property
    def overdue(self) -> bool:
        """Whether the time to stop is over and the loop has not ended: it hangs in a statement."""
        return monotonic() > self._stop_at + 1

    def cut(self) -> None:
        """End the connection under whatever waits on it."""
        if self._conn is not None:
            cut(self._conn)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of the loop; return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while not self._is_done():
            try:
                conn = self._conn or self._use(self._connect())
                self._turn_since = monotonic()
                self._turn(conn)
                self._failures = 0
            except Exception as exc:  # noqa: BLE001 - whatever it is, jobs must go on
                self._heal(exc)
        if self._conn is not None:
            self._conn.close()

    def _turn(self, conn: psycopg.Connection[Any]) -> None:
        self._settle(conn)
        self._report(conn)
        self._housekeeping.run(conn)
        self._claim(conn)
        self._turn_since = inf
        self._wait()

    def _settle(self, conn: psycopg.Connection[Any]) -> None:
        ended = self._executor.finished()
        if ended:
            self._prefetch.learn(ended)
            self._settling.add(ended)
        if self._stopping or self._is_overfull():
            self._drained = self._stopping
            self._overfull_since = None
            self._settling.give_back(self._executor.drain())
        self._settling.send(conn)

    def _report(self, conn: psycopg.Connection[Any]) -> None:
        now = monotonic()
        if not self._notes or now < self._notes.resume_at:
            return
        for job in self._notes.jobs():
            if self._claims.get(job.id) is not job or job._lost:
                self._notes.take(job)
            elif now - job._told_at < REPORT_SECONDS:
                continue
            elif not report(conn, self._notes, job, now):
                return

    def _claim(self, conn: psycopg.Connection[Any]) -> None:
        if self._stopping:
            return
        room = self._prefetch.room(self._executor.in_hand, self._running())
        asked = min(room, self._batch.size)
        now = monotonic()
        if room > 0 and self._pace.wants_claim(now):
            polled = self._pace.polled(now)
            jobs = self._fetch_or_shrink(asked)
            if polled:
                log(logger, logging.DEBUG, "poll", found=len(jobs))
            self._hold(jobs)
            if self._pace.claimed(len(jobs), asked, monotonic()):
                # Looks back to the claim, so nothing falls due unseen between the two.
                due_in = self._next_due(conn)
                self._pace.rest(len(jobs), monotonic(), due_in)
            room -= len(jobs)
        self._room = room
        self._pace.supply(room, now)

    def _next_due(self, conn: psycopg.Connection[Any]) -> float | None:
        try:
            row = conn.execute(_NEXT_DUE, (self._kinds,)).fetchone()
        except BaseException:
            self._pace.failed()
            raise
        return None if row is None or row[0] is None else float(row[0])

    def _fetch_or_shrink(self, most: int) -> list[CurrentJob]:
        """Claim; what runs out of time, as large payloads make it, asks for fewer the next time."""
        try:
            jobs = self._fetch(most)
        except BaseException as exc:
            self._pace.failed()
            if isinstance(exc, psycopg.errors.QueryCanceled):
                self._batch.shrink(most)
            raise
        self._batch.grow()
        return jobs

    def _fetch(self, most: int) -> list[CurrentJob]:
        assert self._cursor is not None
        started = monotonic()
        parameters = (self._name, most, self._kinds, self._lease)
        rows = self._cursor.execute(_CLAIM, parameters).fetchall()
        deadline, notes = started + self._lease, self._notes
        jobs = [CurrentJob(deadline, notes, *row) for row in rows]
        if jobs:
            ms = round((monotonic() - started) * 1000, 2)
            log(logger, logging.DEBUG, "claim", jobs=len(jobs), most=most, ms=ms)
        return jobs

    def _hold(self, jobs: list[CurrentJob]) -> None:
        for job in jobs:
            old = self._claims.get(job.id)
            if old is not None:  # reaped from ourselves, and claimed again
                old._lose()
            self._claims[job.id] = job
        held, rest = self._prefetch.take(jobs, self._threads - self._executor.in_hand)
        self._executor.submit(held)
        if rest:
            self._settling.give_back(rest)

    def _wait(self) -> None:
        if self._settling.waiting or self._is_done():
            return
        if self._room > 0 and self._pace.more and not self._stopping:
            return
        self._notes.news = False
        told = min((job._told_at for job in self._notes.jobs()), default=None)
        moments = [
            self._housekeeping.next_at,
            None if self._stopping else self._pace.next_at(self._room),
            self._settling.retry_at,
            self._stop_at,
            self._overfull_since and self._overfull_since + OVERFULL_SECONDS,
            None if told is None else max(told + REPORT_SECONDS, self._notes.resume_at),
        ]
        until = min(moment for moment in moments if moment is not None)
        self._bell.wait(until - monotonic(), self._has_news)

    def _has_news(self) -> bool:
        if self._executor.has_finished() or self._stopping != self._drained or self._notes.news:
            return True
        return self._room > 0 and self._listener.pending and not self._stopping

    def _is_overfull(self) -> bool:
        """Whether more jobs than will soon start have been waiting here for a while."""
        waiting = self._executor.waiting
        if not waiting or not self._prefetch.overfull(waiting, self._running()):
            self._overfull_since = None
            return False
        now = monotonic()
        self._overfull_since = self._overfull_since or now
        return now - self._overfull_since >= OVERFULL_SECONDS

    def _running(self) -> list[tuple[str, float, bool]]:
        now = monotonic()
        running = self._executor.running()
        return [(job.kind, now - job._started_at, bool(job._lost_leases)) for job in running]

    @property
    def _stopping(self) -> bool:
        return self._stop_at < inf

    def _is_done(self) -> bool:
        if not self._stopping:
            return False
        self.clean = not self._executor.in_hand and not self._settling
        return self.clean or monotonic() >= self._stop_at

    def _use(self, conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
        self._conn = conn
        # Binary, and payloads as the bytes that the handlers' models read.
        self._cursor = conn.cursor(binary=True)
        self._cursor.adapters.register_loader("json", ByteaBinaryLoader)
        return conn

    def _heal(self, exc: Exception) -> None:
        """Give up the connection and pause: 0.1 s at first, at most 5 s."""
        self._turn_since = inf
        if self._conn is not None:
            self._conn.close()
            self._conn = None
        pause = min(0.1 * 2**self._failures, 5.0) * random.uniform(0.8, 1.0)
        self._failures = min(self._failures + 1, 10)
        expected = isinstance(exc, psycopg.OperationalError)
        logger.log(
            logging.WARNING if expected else logging.ERROR,
            "calls connection failed",
            exc_info=None if expected else exc,
            extra={"jobq": {"error": str(exc).strip(), "retry_in": pause}},
        )
        self._leave.wait(min(pause, max(self._stop_at - monotonic(), 0)))
