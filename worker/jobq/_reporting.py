"""Sends what handlers reported: progress and log lines, each at most once a second and job."""

import logging
from typing import Any

import psycopg

from jobq._outcome import clean
from jobq.context import LEVELS, CurrentJob, Notes
from jobq.errors import sqlstate_of
from jobq.log import log

__all__ = ["report"]

logger = logging.getLogger("jobq.worker")

_PROGRESS = "select jobq.report_progress(%s, %s::uuid, %s::real, %s)"
_LOG = "select jobq.log(%s, %s::uuid, %s, %s)"

_LOCK_NOT_AVAILABLE = "55P03"
_STALE = ("JQ003", "JQ004")


def report(conn: psycopg.Connection[Any], notes: Notes, job: CurrentJob, now: float) -> None:
    """Send all that `job` has to say; what finds its row locked by somebody stays for later.

    Raises psycopg.Error for what is wrong with the connection or the database.
    """
    progress, lines = notes.take(job)
    job._told_at = now
    try:
        if progress is not None:
            fraction, message = progress
            text = None if message is None else clean(message)
            conn.execute(_PROGRESS, (job.id, job._token, fraction, text))
            log(logger, logging.DEBUG, "progress", job=job.id, kind=job.kind, progress=fraction)
            progress = None
        if lines:
            level = max((level for level, _ in lines), key=LEVELS.index)
            text = clean("\n".join(line for _, line in lines))
            conn.execute(_LOG, (job.id, job._token, level, text))
            log(logger, logging.DEBUG, "progress", job=job.id, kind=job.kind, lines=len(lines))
    except psycopg.Error as exc:
        state = sqlstate_of(exc)
        if state in _STALE:
            return
        notes.put_back(job, progress, lines)
        if state != _LOCK_NOT_AVAILABLE:
            raise
