"""Keeps leases: a thread and a connection of its own, which busy handlers and calls cannot starve.

A claim is renewed each third of its lease, and each 5 s where that is longer, so that a wish to
cancel it, which comes with the answer, is seen soon. By this process's monotonic clock, counted
from before the statement that made the lease, the lease surely holds until its deadline. A claim
that passes it while its handler runs is lost: the handler is told, and its outcome will not be
sent. Once the handler has ended, only the answer to its outcome tells.
"""

import logging
import math
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic

import psycopg

from jobq._bell import Bell
from jobq._connection import limited
from jobq.context import CurrentJob
from jobq.log import log

__all__ = ["Renewal"]

logger = logging.getLogger("jobq.worker")

LONGEST_SECONDS = 5.0

_RENEW = """
select r.job_id, r.held, r.renewed, r.cancel_requested
from jobq.renew(%s::bigint[], %s::uuid[], make_interval(secs => %s)) as r
"""


class Renewal:
    """Renews what stands in `claims`, a dict by job id that the coordinator fills and empties.

    `watch` is called about as often: nothing else runs whatever the coordinator does.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[tuple[object, ...]]],
        claims: dict[int, CurrentJob],
        lease_seconds: float,
        bell: Bell,
        watch: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._claims = claims
        self._lease = lease_seconds
        self._interval = min(lease_seconds / 3, LONGEST_SECONDS)
        self._bell = bell
        self._conn: psycopg.Connection[tuple[object, ...]] | None = None
        self._stop = Event()
        self._watch = watch
        self._failures = 0
        self._thread = Thread(target=self._loop, name="jobq-renewal", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its connection; waits a moment for it."""
        self._stop.set()
        self._thread.join(timeout=2)

    def _loop(self) -> None:
        pause = self._interval
        while not self._stop.wait(pause):
            self._watch()
            try:
                pause = self._turn()
                self._failures = 0
            except (psycopg.Error, OSError) as exc:
                pause = self._heal(exc)
            except Exception:  # the leases of all jobs hang on this thread
                logger.exception("renewal failed")
                pause = min(self._lease / 12, 1)
        for job in self._claims.copy().values():
            if not job._ended:
                self._lose(job, "the worker stopped")
        if self._conn is not None:
            self._conn.close()

    def _turn(self) -> float:
        """Renew what is due; return the seconds until the next look."""
        started = monotonic()
        # All but what was claimed a moment ago: else it would be an interval older when it is seen.
        before = started + self._lease - min(self._interval * 0.9, 1.0)
        claims = self._claims.copy().values()
        due = [job for job in claims if job._deadline < before and not job._lost]
        left = self._renew(due, started) if due else 0
        self._expire(monotonic())
        if left:
            return min(self._lease / 12, 1)
        return max(started + self._interval - monotonic(), 0)

    def _renew(self, due: list[CurrentJob], started: float) -> int:
        """Send one renewal; return how many rows were locked by somebody and remain to be done."""
        if self._conn is None or self._conn.closed:
            self._conn = self._connect()
        ids, tokens = [job.id for job in due], [job._token for job in due]
        with limited(self._conn, max(self._lease / 3, 1)):
            rows = self._conn.execute(_RENEW, (ids, tokens, self._lease)).fetchall()
        by_id = {job.id: job for job in due}
        renewed = 0
        for job_id, held, was_renewed, cancel_requested in rows:
            job = by_id[int(str(job_id))]
            if was_renewed:
                renewed += 1
                job._deadline = started + self._lease
            elif not held and job._finishing:
                job._deadline = math.inf  # ended by its handler: nothing to renew
            elif not held and not job._ended:
                self._lose(job, "another claim, or none, holds the job now")
            if cancel_requested and not job._cancel_requested:
                job._cancel_requested = True
                log(logger, logging.INFO, "cancel requested", job=job.id, kind=job.kind)
        log(logger, logging.DEBUG, "renew", jobs=len(due), renewed=renewed, ms=_ms(started))
        return sum(1 for row in rows if row[1] and not row[2])

    def _expire(self, now: float) -> None:
        for job in self._claims.copy().values():
            if job._deadline <= now and not job._lost and not job._ended:
                self._lose(job, "it could not be renewed in time")

    def _lose(self, job: CurrentJob, reason: str) -> None:
        job._lose()
        log(
            logger, logging.WARNING, "lease lost",
            job=job.id, kind=job.kind, attempt=job.attempt, reason=reason,
        )  # fmt: skip
        self._bell.ring()

    def _heal(self, exc: Exception) -> float:
        """Give up the connection; the first time at once, then each time a little later."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None
        self._expire(monotonic())
        self._failures += 1
        pause = min(self._lease / 12, 1) * (self._failures > 1)
        log(logger, logging.WARNING, "renewal failed", error=str(exc).strip(), retry_in=pause)
        return pause


def _ms(started: float) -> float:
    return round((monotonic() - started) * 1000, 2)
