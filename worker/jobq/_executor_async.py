"""Runs the handlers of an app that has only `async def` ones: tasks of one event loop, no threads.

A thread that waits for each task, as where both kinds are mixed, costs two changes of threads a
job, and so twice as much as the rest of it. What blocks here blocks all the others, as in any
event loop.
"""

import asyncio
import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from jobq import _outcome
from jobq._bell import Bell
from jobq._executor import Executor, end_child
from jobq.app import Job
from jobq.context import CurrentJob, _current

__all__ = ["AsyncExecutor", "executor_for"]


def executor_for(jobs: Mapping[str, Job[Any, Any]], threads: int, bell: Bell) -> Executor:
    """The executor that suits these handlers."""
    kind = AsyncExecutor if all(job.is_async for job in jobs.values()) else Executor
    return kind(jobs, threads, bell)


class AsyncExecutor(Executor):
    """At most `threads` tasks at once; what waits, waits here until one of them has ended."""

    def __init__(self, jobs: Mapping[str, Job[Any, Any]], threads: int, bell: Bell) -> None:
        super().__init__(jobs, 0, bell)
        self._slots = threads
        self._waiting: deque[CurrentJob] = deque()
        self._tasks: dict[CurrentJob, asyncio.Task[None]] = {}  # the loop's thread writes it

    def submit(self, jobs: Sequence[CurrentJob]) -> None:
        """Queue claimed jobs; they start in this order."""
        self._in_hand += len(jobs)
        self._waiting.extend(jobs)
        self._event_loop().call_soon_threadsafe(self._fill)

    def drain(self) -> list[CurrentJob]:
        """Take back the jobs that have no task yet."""
        jobs: list[CurrentJob] = []
        with suppress(IndexError):
            while True:
                jobs.append(self._waiting.popleft())
        self._in_hand -= len(jobs)
        return jobs

    def running(self) -> list[CurrentJob]:
        """The jobs being run now."""
        return [job for job in list(self._tasks) if job._started_at]

    @property
    def waiting(self) -> int:
        """Jobs that have no task yet."""
        return len(self._waiting)

    def _fill(self) -> None:
        loop = self._event_loop()
        with suppress(IndexError):  # none waits, or it was drained meanwhile
            while len(self._tasks) < self._slots:
                job = self._waiting.popleft()
                # Made by hand: a handler may have set a task factory.
                task = asyncio.Task(self._run_task(job), loop=loop)
                self._tasks[job] = task
                # Not by the task itself: it may be cancelled before its first step, and what it
                # starts would inherit its context variables.
                task.add_done_callback(partial(self._ended, job))

    async def _run_task(self, job: CurrentJob) -> None:
        job._started_at = monotonic()
        loop, task = self._event_loop(), self._tasks[job]
        job._interrupt = lambda: loop.call_soon_threadsafe(task.cancel)
        # A claim that may have lapsed while it waited is another worker's to run.
        if job._lost or job._started_at >= job._deadline:
            return
        _current.set(job)
        here = os.getpid()
        try:
            function, decode = self._handlers[job.kind]
            result = await function(**decode(job._payload))
            if os.getpid() != here:
                end_child(None)
            _outcome.returned(job, result)
        except BaseException as exc:  # noqa: BLE001 - nothing reaches the loop
            if os.getpid() != here:
                end_child(exc)
            if not job._outcome:  # else it has returned, and this came from outside
                _outcome.raised(job, exc)

    def _ended(self, job: CurrentJob, _task: "asyncio.Task[None]") -> None:
        job._finished_at = monotonic()
        if not job._started_at:  # cancelled with all the tasks of the loop, before its first step
            _outcome.released(job)
            job._started_at = job._finished_at
        job._interrupt = None
        del self._tasks[job]
        self._finished.append(job)
        self._fill()
        if self._bell.waiting:
            self._bell.ring()
