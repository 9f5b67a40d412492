"""Runs handlers: N threads, and one event loop that all `async def` handlers share.

A thread that runs an async handler waits for it, so at most N jobs run at once, both kinds
together. Whatever a handler raises is recorded, and the thread lives on. All threads are daemons: a
handler that never returns cannot keep the process.
"""

import asyncio
import inspect
import logging
import os
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, NoReturn

from jobq import _outcome
from jobq._bell import Bell
from jobq.app import Job
from jobq.context import CurrentJob, _current

__all__ = ["Executor", "end_child"]

logger = logging.getLogger("jobq.worker")

_FIRST = (0,)


class Executor:
    """Takes jobs by `submit`, hands them back, run, by `finished`. One caller, the coordinator."""

    def __init__(self, jobs: Mapping[str, Job[Any, Any]], threads: int, bell: Bell) -> None:
        self._handlers = {kind: (job.function, job._arguments.decode) for kind, job in jobs.items()}
        self._needs_loop = any(job.is_async for job in jobs.values())
        self._bell = bell
        self._queue: SimpleQueue[CurrentJob | None] = SimpleQueue()
        self._finished: deque[CurrentJob] = deque()
        self._hands: list[list[CurrentJob]] = [[] for _ in range(threads)]  # at most one job each
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = Lock()
        self._loop_ends = Event()
        self._in_hand = 0

    def start(self) -> None:
        """Start the threads."""
        if self._needs_loop:
            self._event_loop()
        for slot, hand in enumerate(self._hands):
            Thread(target=self._work, args=(hand,), name=f"jobq-{slot}", daemon=True).start()

    def stop(self) -> None:
        """Let each thread end after its job; does not wait."""
        for _ in self._hands:
            self._queue.put(None)
        if self._loop is not None and self._in_hand == 0:
            self._loop_ends.set()
            self._loop.call_soon_threadsafe(self._loop.stop)

    def submit(self, jobs: Sequence[CurrentJob]) -> None:
        """Queue claimed jobs; threads take them in this order."""
        self._in_hand += len(jobs)
        for job in jobs:
            self._queue.put(job)

    def finished(self) -> list[CurrentJob]:
        """Return the jobs that are over since the last call, their outcomes filled in."""
        take = self._finished.popleft
        jobs = [take() for _ in range(len(self._finished))]
        self._in_hand -= len(jobs)
        return jobs

    def drain(self) -> list[CurrentJob]:
        """Take back the jobs that no thread has taken yet."""
        jobs: list[CurrentJob] = []
        try:
            while True:
                job = self._queue.get_nowait()
                if job is not None:
                    jobs.append(job)
        except Empty:
            self._in_hand -= len(jobs)
            return jobs

    def has_finished(self) -> bool:
        """Whether `finished` would return anything."""
        return bool(self._finished)

    def running(self) -> list[CurrentJob]:
        """The jobs being run now."""
        return [job for hand in self._hands for job in hand if job._started_at]

    @property
    def in_hand(self) -> int:
        """Jobs submitted and not yet handed back, run or not."""
        return self._in_hand

    @property
    def waiting(self) -> int:
        """Jobs that no thread has taken yet."""
        return self._queue.qsize()

    def interrupt(self) -> None:
        """Cancel the tasks of all running async handlers."""
        for job in self.running():
            if job._interrupt is not None:
                job._interrupt()

    def _work(self, hand: list[CurrentJob]) -> None:
        """Run jobs until told to stop, whatever is thrown into the thread meanwhile, and when."""
        jobs = iter(self._queue.get, None)
        thrown: BaseException | None = None
        while True:
            try:
                if thrown is not None:
                    self._rescue(hand, thrown)
                    thrown = None
                self._serve(jobs, hand)
                return
            except BaseException as exc:  # noqa: BLE001 - a time-out library's, between two steps
                thrown = exc

    def _serve(self, jobs: Iterator[CurrentJob], hand: list[CurrentJob]) -> None:
        # A job moves into the hand and out of it in one call each, so that an exception thrown
        # into this thread finds it in one of the three places, and never nowhere or twice.
        finish, bell = self._finished.extend, self._bell
        while True:
            hand.extend(islice(jobs, 1))
            if not hand:
                return
            self._run(hand[0])
            finish(map(hand.pop, _FIRST))
            if bell.waiting:
                bell.ring()

    def _run(self, job: CurrentJob) -> None:
        job._started_at = monotonic()
        # A claim that may have lapsed while it waited is another worker's to run.
        if not job._lost and job._started_at < job._deadline:
            _current.set(job)
            here = os.getpid()
            try:
                function, decode = self._handlers[job.kind]
                result = function(**decode(job._payload))
                if os.getpid() != here:
                    end_child(None)
                if result is not None and inspect.isawaitable(result):
                    result = self._await(job, result)
                _outcome.returned(job, result)
            except BaseException as exc:  # noqa: BLE001 - SystemExit too ends the job only
                if os.getpid() != here:
                    end_child(exc)
                if not job._outcome:  # else it has returned, and this came from outside
                    _outcome.raised(job, exc)
        job._finished_at = monotonic()

    def _rescue(self, hand: list[CurrentJob], thrown: BaseException) -> None:
        """Hand back the job that was in hand when an exception came from outside."""
        for job in hand:
            if not job._started_at:
                _outcome.released(job)
            elif not job._outcome:
                _outcome.raised(job, thrown)
            job._finished_at = monotonic()
            job._started_at = job._started_at or job._finished_at
        self._finished.extend(map(hand.pop, _FIRST[: len(hand)]))
        self._bell.ring()

    def _await(self, job: CurrentJob, awaitable: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(_guarded(job, awaitable), self._event_loop())
        try:
            error, result = future.result()
        except BaseException:  # thrown into this thread from outside
            future.cancel()
            raise
        if error is not None:
            raise error
        return result

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                arguments = (self._loop, self._loop_ends)
                Thread(target=_run_loop, args=arguments, name="jobq-async", daemon=True).start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop, ends: Event) -> None:
    """Run the loop until it is to end: SystemExit in a task of a handler's own stops it too."""
    while not ends.is_set():
        try:
            loop.run_forever()
        except BaseException:  # all async handlers live in this thread
            logger.warning("a task of a handler stopped the event loop; it goes on", exc_info=True)
    loop.close()


async def _guarded(job: CurrentJob, awaitable: Any) -> tuple[BaseException | None, Any]:
    """Await as a task of its own; nothing it raises, SystemExit included, reaches the loop."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    _current.set(job)
    job._interrupt = lambda: loop.call_soon_threadsafe(task.cancel)
    here = os.getpid()
    try:
        if job._lost:  # lost before there was a task to cancel
            raise asyncio.CancelledError("the lease is lost")
        error, result = None, await awaitable
    except BaseException as exc:  # noqa: BLE001 - recorded as the job's outcome
        error, result = exc, None
    if os.getpid() != here:
        end_child(error)
    job._interrupt = None
    return error, result


def end_child(exc: BaseException | None) -> NoReturn:
    """End the process that a handler forked and that left it: a copy of a worker must not go on.

    As Python would, but for exit hooks and buffers: they are the parent's, like the connections.
    """
    code = int(exc is not None)
    try:
        if isinstance(exc, SystemExit):
            code = exc.code & 0xFF if isinstance(exc.code, int) else int(exc.code is not None)
        elif exc is not None:
            traceback.print_exception(exc)
    finally:
        os._exit(code)
