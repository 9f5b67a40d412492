"""Sends what handlers reported: progress and log lines, each at most once a second and job."""

import logging
from time import monotonic
from typing import Any

import psycopg

from jobq._connection import lost
from jobq._outcome import clean
from jobq.context import LEVELS, CurrentJob, Notes
from jobq.errors import sqlstate_of
from jobq.log import log

__all__ = ["REPORT_SECONDS", "report"]

logger = logging.getLogger("jobq.worker")

_PROGRESS = "select jobq.report_progress(%s, %s::uuid, %s::real, %s)"
_LOG = "select jobq.log(%s, %s::uuid, %s, %s)"

REPORT_SECONDS = 1.0

_LATER = ("55P03", "40001", "40P01")  # the row is locked by somebody, or the like
_STALE = ("JQ003", "JQ004")


def report(conn: psycopg.Connection[Any], notes: Notes, job: CurrentJob, now: float) -> bool:
    """Send all that `job` has to say; return False when its row is locked by somebody.

    It stays for later then, and nothing should be sent before `notes.resume_at`: each such attempt
    costs the lock timeout. What the database refuses is dropped, with a warning.
    Raises psycopg.Error when the connection is lost.
    """
    progress, lines = notes.take(job)
    job._told_at = now
    try:
        if progress is not None:
            fraction, message = progress
            text = None if message is None else clean(message)
            _send(conn, job, _PROGRESS, (job.id, job._token, fraction, text), progress=fraction)
            progress = None
        if lines:
            level = max((level for level, _ in lines), key=LEVELS.index)
            text = clean("\n".join(line for _, line in lines))
            _send(conn, job, _LOG, (job.id, job._token, level, text), lines=len(lines))
    except psycopg.Error as exc:
        notes.put_back(job, progress, lines)
        if sqlstate_of(exc) not in _LATER:
            raise
        notes.resume_at = monotonic() + REPORT_SECONDS
        return False
    return True


def _send(
    conn: psycopg.Connection[Any],
    job: CurrentJob,
    call: str,
    parameters: tuple[object, ...],
    **told: object,
) -> None:
    try:
        conn.execute(call.encode(), parameters)
    except psycopg.Error as exc:
        state = sqlstate_of(exc)
        if state in _LATER or lost(conn, exc):
            raise
        if state not in _STALE:
            log(logger, logging.WARNING, "report refused", job=job.id, kind=job.kind,
                error=str(exc).strip(), **told)  # fmt: skip
    else:
        log(logger, logging.DEBUG, "progress", job=job.id, kind=job.kind, **told)
