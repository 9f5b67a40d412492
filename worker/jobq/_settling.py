"""Ends runs in the database: outcomes gather here until one `jobq.settle` has taken them.

A claim stays in `claims`, and so is renewed, until its outcome is accepted. An outcome is sent
until there is an answer, past its lease too: whether the claim still counts the token tells. Only
what still ran when its lease was lost is not sent. The answer to one that was sent before and lost
its reply may be that the claim is over: by whom is not known; most likely by us.
"""

import logging
from collections.abc import Sequence
from time import monotonic
from typing import Any

import psycopg

from jobq import _outcome
from jobq._pace import Batch
from jobq._reporting import report
from jobq.context import CurrentJob, Notes
from jobq.errors import sqlstate_of
from jobq.log import log

__all__ = ["Settling"]

logger = logging.getLogger("jobq.worker")

BATCH = 500
MOST_BYTES = 32 * 1024 * 1024
# Most locks are a claim's that came too late for the job, and last as long as its transaction.
FIRST_LOCKED_SECONDS, LOCKED_SECONDS = 0.01, 0.2
REPORT_PATIENCE_SECONDS = 5.0  # then an outcome goes without what its handler reported

# Classes of errors that an outcome itself can cause: data, constraints, limits, functions.
_BY_DATA = ("22", "23", "54", "JQ", "P0")

# Silence means accepted and succeeded.
_SETTLE = """
select s.job_id, s.accepted, s.status::text
from jobq.settle(%s::jsonb) as s
where s.accepted is distinct from true or s.status <> 'succeeded'
"""


class Settling:
    """The outcomes not settled yet, in the order in which the runs ended."""

    def __init__(self, claims: dict[int, CurrentJob], notes: Notes) -> None:
        self._claims = claims
        self._notes = notes
        self._pending: list[CurrentJob] = []
        self._locked: list[CurrentJob] = []  # their rows were locked by somebody
        self._locked_until = 0.0
        self._locked_pause = FIRST_LOCKED_SECONDS
        self._batch = Batch(BATCH)

    def add(self, jobs: Sequence[CurrentJob]) -> None:
        """Take in jobs that the executor handed back."""
        self._pending += jobs

    def give_back(self, jobs: Sequence[CurrentJob]) -> None:
        """Take in jobs that will not start here; their attempts are given back."""
        for job in jobs:
            _outcome.released(job)
        self._pending += jobs

    @property
    def waiting(self) -> bool:
        """Whether `send` has something to do."""
        return bool(self._pending)

    @property
    def retry_at(self) -> float | None:
        """When outcomes of locked rows are sent again, in monotonic seconds."""
        return self._locked_until if self._locked else None

    def __bool__(self) -> bool:
        return bool(self._pending or self._locked)

    def send(self, conn: psycopg.Connection[Any]) -> None:
        """Send everything, what its handler reported first. Raises psycopg.Error; call it again."""
        if self._locked and monotonic() >= self._locked_until:
            self._pending += self._locked
            self._locked = []
            self._locked_pause = min(2 * self._locked_pause, LOCKED_SECONDS)
        while self._pending:
            batch = self._pending[: self._batch.size]
            now = monotonic()
            # By its deadline as well: a process that stood still may not know yet what it lost.
            live = [j for j in batch if j._finished_at < j._deadline and not j._lost and j._outcome]
            if len(live) < len(batch):
                kept = set(live)
                self._drop([job for job in batch if job not in kept])
            if live:
                if self._notes:
                    live = self._report(conn, live, now)
                try:
                    if live:
                        self._send(conn, live)
                except BaseException:
                    # Of a batch sent in parts some are done.
                    done = [job for job in batch if self._claims.get(job.id) is not job]
                    gone = {*done, *self._locked}
                    self._pending[: len(batch)] = [job for job in batch if job not in gone]
                    raise
            del self._pending[: len(batch)]
        if not self._locked:
            self._locked_pause = FIRST_LOCKED_SECONDS

    def _report(
        self, conn: psycopg.Connection[Any], jobs: list[CurrentJob], now: float
    ) -> list[CurrentJob]:
        """Send what their handlers reported; return the jobs without those that have to wait."""
        ended = set(jobs)
        for job in self._notes.jobs():
            if job in ended and job._deadline <= now:  # each try waits for the row's lock
                self._notes.take(job)
            elif job in ended and now >= self._notes.resume_at:
                report(conn, self._notes, job, now)
        held = {
            job
            for job in ended.intersection(self._notes.jobs())
            if now - job._finished_at < REPORT_PATIENCE_SECONDS
        }
        if held:
            self._lock(held)
        return [job for job in jobs if job not in held]

    def _lock(self, jobs: set[CurrentJob]) -> None:
        if not self._locked:
            self._locked_until = monotonic() + self._locked_pause
        self._locked += jobs

    def _send(self, conn: psycopg.Connection[Any], jobs: list[CurrentJob]) -> None:
        text = f"[{','.join([_outcome.element(job) for job in jobs])}]"
        if len(text) > MOST_BYTES and len(jobs) > 1:
            self._send_by(conn, jobs, len(jobs) // 2)
            return
        started = monotonic()
        try:
            rows = conn.execute(_SETTLE, (text,)).fetchall()
        except psycopg.errors.QueryCanceled as exc:
            fewer = self._batch.shrink(len(jobs))
            log(logger, logging.WARNING, "settle cancelled", jobs=len(jobs),
                error=str(exc).strip(), next=self._batch.size)  # fmt: skip
            if fewer:
                self._send_by(conn, jobs, self._batch.size)
            else:  # later, so that it does not keep the others
                self._lock(set(jobs))
            return
        except psycopg.Error as exc:
            if (sqlstate_of(exc) or "")[:2] in _BY_DATA:
                self._send_singly(conn, jobs, exc)
                return
            for job in jobs:
                job._sent = True
            raise
        self._batch.grow()
        locked = self._answers(jobs, rows) if rows else set()
        for job in jobs:
            if job not in locked and self._claims.get(job.id) is job:
                del self._claims[job.id]
        if logger.isEnabledFor(logging.DEBUG):
            done = [job for job in jobs if job not in locked]
            self._log_completions(done, monotonic() - started)

    def _send_by(self, conn: psycopg.Connection[Any], jobs: list[CurrentJob], size: int) -> None:
        size = max(size, 1)
        for start in range(0, len(jobs), size):
            self._send(conn, jobs[start : start + size])

    def _send_singly(
        self, conn: psycopg.Connection[Any], jobs: list[CurrentJob], exc: psycopg.Error
    ) -> None:
        """One outcome among these is refused by a cast: find it, and say so as its job's error."""
        # Not all of the error: its context can quote the parameters, and so the lease's token.
        reason = exc.diag.message_primary or type(exc).__name__
        if len(jobs) > 1:
            for job in jobs:
                self._send(conn, [job])
        elif jobs[0]._refused:
            log(logger, logging.ERROR, "outcome refused", job=jobs[0].id, error=reason)
            self._forget(jobs[0])
        else:
            jobs[0]._refused = True
            _outcome.refused(jobs[0], reason)
            self._send(conn, jobs)

    def _answers(self, jobs: list[CurrentJob], rows: list[Any]) -> set[CurrentJob]:
        """Log what is not a plain success; return the jobs whose rows are locked."""
        by_id = {job.id: job for job in jobs}
        locked = set()
        for job_id, accepted, status in rows:
            job = by_id[job_id]
            if accepted is None:
                locked.add(job)
            elif not accepted:
                self._stale(job, status)
            elif status == "queued":
                failed = job._ended in ("failed", _outcome.UNCOMMITTED)
                log(logger, logging.INFO if failed else logging.DEBUG, "retry", job=job.id,
                    kind=job.kind, after=job._ended, attempt=job.attempt, of=job.max_attempts,
                    error=job._error_line or None)  # fmt: skip
            elif status == "failed":
                log(logger, logging.WARNING, "job failed", job=job.id, kind=job.kind,
                    attempt=job.attempt, of=job.max_attempts, error=job._error_line)  # fmt: skip
        if locked:
            self._lock(locked)
        return locked

    def _stale(self, job: CurrentJob, status: str | None) -> None:
        if job._finishing and status == "succeeded":  # in the handler's own transaction
            if job._ended != _outcome.UNCOMMITTED:
                log(logger, logging.WARNING, "raised after it had succeeded", job=job.id,
                    kind=job.kind, outcome=job._ended, error=job._error_line or None)  # fmt: skip
            job._ended = "succeeded"
            return
        if job._sent and status in ("succeeded", "failed", "cancelled"):
            log(logger, logging.INFO, "outcome unknown", job=job.id, kind=job.kind, status=status,
                hint="its reply was lost; the job is over")  # fmt: skip
            return
        log(logger, logging.WARNING, "outcome refused", job=job.id, kind=job.kind,
            outcome=job._ended, status=status or "deleted",
            hint="the claim was no longer the current one")  # fmt: skip

    def _drop(self, jobs: list[CurrentJob]) -> None:
        for job in jobs:
            self._notes.take(job)
            self._forget(job)
            if job._ended not in ("", _outcome.UNCOMMITTED):
                log(logger, logging.WARNING, "outcome not sent", job=job.id, kind=job.kind,
                    outcome=job._ended, hint="the lease was lost first")  # fmt: skip

    def _forget(self, job: CurrentJob) -> None:
        if self._claims.get(job.id) is job:
            del self._claims[job.id]

    def _log_completions(self, jobs: list[CurrentJob], seconds: float) -> None:
        log(logger, logging.DEBUG, "settle", jobs=len(jobs), ms=round(seconds * 1000, 2))
        for job in jobs:
            ms = round((job._finished_at - job._started_at) * 1000, 3)
            log(logger, logging.DEBUG, "completion", job=job.id, kind=job.kind,
                outcome=job._ended, ms=ms)  # fmt: skip
