"""What each worker does for the whole queue now and then: reaping lost leases, purging old jobs."""

import logging
import random
from math import inf
from time import monotonic
from typing import Any

import psycopg

from jobq._pace import Batch
from jobq.log import log
from jobq.settings import WorkerSettings

__all__ = ["Housekeeping"]

logger = logging.getLogger("jobq.worker")

BATCH = 1000
PURGE_SECONDS = 3600.0
DAY_SECONDS = 86_400

_REAP = "select r.job_id, r.status::text from jobq.reap(%s) as r"
_PURGE = "select jobq.purge(make_interval(secs => %s), %s, %s::text[]::jobq.job_status[])"


class Housekeeping:
    """Run by the coordinator between its other statements, a batch at a time."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._reap_seconds = settings.reap_seconds
        self._retention = [
            (days * DAY_SECONDS, statuses)
            for days, statuses in (
                (settings.retention_days, ["succeeded", "cancelled"]),
                (settings.failed_retention_days, ["failed"]),
            )
            if days > 0
        ]
        self._reaps, self._purges = Batch(BATCH), Batch(BATCH)
        self._reap_at = 0.0
        self._purge_at = monotonic() + random.uniform(1, 60) if self._retention else inf
        self._purging: list[tuple[float, list[str]]] = []

    @property
    def next_at(self) -> float:
        """When there is something to do, in monotonic seconds."""
        return min(self._reap_at, self._purge_at)

    def run(self, conn: psycopg.Connection[Any]) -> None:
        """Do what is due. Raises psycopg.Error."""
        if monotonic() >= self._reap_at:
            self._reap(conn)
        if monotonic() >= self._purge_at:
            self._purge(conn)

    def _reap(self, conn: psycopg.Connection[Any]) -> None:
        self._reap_at = monotonic() + self._reap_seconds  # stands if this fails
        most = self._reaps.size
        try:
            rows = conn.execute(_REAP, (most,)).fetchall()
        except psycopg.errors.QueryCanceled as exc:
            self._reap_at = _shrink(self._reaps, "reap", most, exc)
            return
        self._reaps.grow()
        for job_id, status in rows:
            log(logger, logging.WARNING, "lease reaped", job=job_id, status=status)
        # Spread out, so that a fleet started together does not reap together.
        pause = self._reap_seconds * random.uniform(0.8, 1.0)
        self._reap_at = monotonic() + (0 if len(rows) == most else pause)

    def _purge(self, conn: psycopg.Connection[Any]) -> None:
        """Delete one batch, committed; the next one after four times as long as it took."""
        if not self._purging:
            self._purging = list(self._retention)
        seconds, statuses = self._purging[0]
        started = monotonic()
        self._purge_at = started + PURGE_SECONDS  # stands if this fails
        most = self._purges.size
        try:
            (deleted,) = conn.execute(_PURGE, (seconds, most, statuses)).fetchone() or (0,)
        except psycopg.errors.InsufficientPrivilege:
            log(logger, logging.WARNING, "purge refused", hint="this role needs the level worker")
            self._purge_at = inf
            return
        except psycopg.errors.QueryCanceled as exc:
            self._purge_at = _shrink(self._purges, "purge", most, exc)
            return
        self._purges.grow()
        if deleted:
            log(logger, logging.INFO, "purge", jobs=deleted, status=",".join(statuses))
        else:
            self._purging.pop(0)
        ended = monotonic()
        pause = 4 * (ended - started) if self._purging else PURGE_SECONDS * random.uniform(0.9, 1.1)
        self._purge_at = ended + pause


def _shrink(batch: Batch, what: str, most: int, exc: psycopg.Error) -> float:
    """A statement was cancelled, out of time: return when to try fewer, in monotonic seconds."""
    fewer = batch.shrink(most)
    log(logger, logging.WARNING, f"{what} cancelled", jobs=most, error=str(exc).strip(),
        next=batch.size)  # fmt: skip
    return monotonic() + (1 if fewer else PURGE_SECONDS)
