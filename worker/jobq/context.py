"""What a running handler sees of its job, and three ways to end it other than by returning.

@app.job("report.build")
def build(month: str) -> None:
    job = current_job()
    for i, part in enumerate(parts):
        if job.cancelled:
            raise Cancel("asked to stop")
        job.progress(i / len(parts), part.name)
"""

import math
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from threading import Lock
from typing import Any, Literal

from jobq import client
from jobq.payload import json_text

__all__ = ["Cancel", "CurrentJob", "Fatal", "Level", "Snooze", "current_job"]

Level = Literal["debug", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
_KEPT_LINES = 1000


class Snooze(Exception):
    """Raise it to run the job again after `delay` (seconds or a timedelta).

    The attempt is given back. Raises ValueError for a negative or infinite delay.
    """

    def __init__(self, delay: float | timedelta) -> None:
        self.seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not (self.seconds >= 0 and math.isfinite(self.seconds)):
            raise ValueError(f"a delay is a number of seconds from 0 up, not {delay!r}")
        super().__init__(f"run again in {self.seconds:g} s")


class Cancel(Exception):
    """Raise it to end the job as cancelled, with a reason; it is not run again."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)


class Fatal(Exception):
    """Raise it to end the job as failed, with a reason, though it has attempts left."""


class Notes:
    """What handlers reported and no one has sent yet, one entry per job.

    `ring` is called when a job that had nothing to say has something.
    """

    def __init__(self, ring: Callable[[], object] = lambda: None) -> None:
        self._lock = Lock()
        self._jobs: set[CurrentJob] = set()
        self._ring = ring
        self.news = False  # a job came in; for the sender to reset
        self.resume_at = 0.0  # a row was locked: nothing is sent before, in monotonic seconds

    def put(
        self, job: "CurrentJob", fraction: float | None, message: str | None, level: Level | None
    ) -> None:
        """Keep a report; of several progress reports the last one stays, log lines add up."""
        with self._lock:
            if level is None:
                job._progress = (fraction, message)
            elif len(job._lines) < _KEPT_LINES:
                job._lines += ((level, message or ""),)
            if job in self._jobs:
                return
            self._jobs.add(job)
            self.news = True
        self._ring()

    def take(
        self, job: "CurrentJob"
    ) -> tuple[tuple[float | None, str | None] | None, tuple[tuple[Level, str], ...]]:
        """Remove and return what `job` has to say: (fraction, message) or None, and its lines."""
        with self._lock:
            self._jobs.discard(job)
            progress, lines = job._progress, job._lines
            job._progress, job._lines = None, ()
        return progress, lines

    def put_back(
        self,
        job: "CurrentJob",
        progress: tuple[float | None, str | None] | None,
        lines: tuple[tuple[Level, str], ...],
    ) -> None:
        """Undo a `take` whose report could not be sent."""
        with self._lock:
            job._progress = job._progress or progress
            job._lines = lines + job._lines
            self._jobs.add(job)

    def jobs(self) -> list["CurrentJob"]:
        """The jobs that have something to say, the one that was heard longest ago first."""
        with self._lock:
            return sorted(self._jobs, key=lambda job: job._told_at)

    def __bool__(self) -> bool:
        return bool(self._jobs)


class CurrentJob:
    """The job that the calling handler runs, and its claim."""

    # Class attributes are the state of a fresh claim: an instance writes only what differs.
    _lost = False  # renewed too late, or somebody else's
    _cancel_requested = False
    _finishing = False  # the handler ended the job in its own transaction
    _interrupt: Callable[[], object] | None = None  # cancels an async handler's task
    _progress: tuple[float | None, str | None] | None = None
    _lines: tuple[tuple[Level, str], ...] = ()
    _told_at = 0.0
    _ended = ""  # the outcome's name once the run is over
    _outcome = ""  # the outcome's members as JSON text
    _error_line = ""  # the error's last line, for the log
    _sent = False  # and no reply came
    _refused = False  # by the database, once
    _started_at = 0.0
    _finished_at = 0.0

    def __init__(
        self,
        deadline: float,
        notes: Notes,
        job_id: int,
        kind: str,
        payload: bytes,
        attempt: int,
        max_attempts: int,
        token: str = "",
        lost_leases: int = 0,
    ) -> None:
        self.id = job_id
        self.kind = kind
        self.attempt = attempt
        self.max_attempts = max_attempts
        self._payload = payload
        self._token = token
        self._lost_leases = lost_leases
        self._deadline = deadline  # monotonic seconds: until then the lease surely holds
        self._notes = notes

    @property
    def cancelled(self) -> bool:
        """Whether to stop: somebody asked for it, or the lease is lost.

        A handler that returns all the same has succeeded, unless the lease is lost.
        """
        return self._cancel_requested or self._lost

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report how far the job is, 0 to 1; sent at most once a second, the last one wins."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress is a fraction from 0 to 1, not {fraction!r}")
        self._notes.put(self, float(fraction), message, None)

    def log(self, message: str, level: Level = "info") -> None:
        """Add a line to the job's history; lines of one second become one event."""
        if level not in LEVELS:
            raise ValueError(f"a level is one of {', '.join(LEVELS)}, not {level!r}")
        self._notes.put(self, None, str(message), level)

    def succeed(self, conn: Any, result: object = None) -> None:
        """End the job as succeeded in the caller's transaction on `conn`, as the last step of it.

        What the transaction did and the job's end then commit together, or not at all: done
        exactly once. Raises LeaseLost when another worker has the job now; let the transaction
        roll back then. Where it was not committed when the handler returns, the attempt has failed.
        Takes the connections that `options(conn=…)` takes, but async ones.
        """
        client.succeed(conn, self.id, self._token, None if result is None else json_text(result))
        self._finishing = True

    def _lose(self) -> None:
        """Mark the claim as lost, and cancel the task of an async handler."""
        self._lost = True
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def __repr__(self) -> str:
        return f"<job {self.id} {self.kind} attempt {self.attempt} of {self.max_attempts}>"


_current: ContextVar[CurrentJob] = ContextVar("jobq_current_job")


def current_job() -> CurrentJob:
    """Return the job being run here; raises LookupError outside a worker's handler."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("current_job() needs a handler that a worker runs") from None
