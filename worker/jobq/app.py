"""Handlers and how their jobs are enqueued.

    app = App()

    @app.job("email.send", max_attempts=5)
    def send(to: str, subject: str = "Hello") -> None: ...

    send("ada@example.org")                       # a plain call runs the function here
    send.enqueue("ada@example.org")               # one job
    send.options(delay=60).enqueue(to="ada@example.org")
    send.enqueue_many([{"to": "ada@example.org"}, send.options(priority=5).bind("bob@example.org")])

Without `conn` a job is enqueued on the app's own connection and stands once the call returns. With
`options(conn=…)` it joins the caller's transaction.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import update_wrapper
from math import inf
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, cast

from jobq import client
from jobq._producer import Producer
from jobq.client import Enqueued, NewJob
from jobq.context import CurrentJob, Notes, _current
from jobq.errors import InvalidJob
from jobq.payload import Arguments

__all__ = ["App", "Enqueuer", "Job"]

P = ParamSpec("P")
R = TypeVar("R")


class JobOptions(TypedDict, total=False):
    """Options of one job; what each means stands at `NewJob`."""

    priority: int
    available_at: datetime | None
    delay: float | timedelta | None
    max_attempts: int
    idempotency_key: str | None
    retry_base_seconds: int
    retry_cap_seconds: int


class Enqueuer(Generic[P]):
    """Enqueues jobs of one kind with fixed options; made by `Job.options`.

    Its methods take the handler's own arguments and raise InvalidJob for those that do not fit.
    """

    def __init__(self, app: "App", arguments: Arguments, template: NewJob, conn: Any) -> None:
        self._app = app
        self._arguments = arguments
        self._template = template
        self._conn = conn

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the job without enqueuing it, for `enqueue_many`."""
        return self._new(args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue one job. Raises InvalidJob, IdempotencyConflict."""
        return self._app._enqueue(self._new(args, kwargs), self._conn)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue` without blocking the event loop; `conn` is then a psycopg AsyncConnection."""
        job = self._new(args, kwargs)
        if self._conn is not None:
            return await client.enqueue_async(self._conn, job)
        return await asyncio.to_thread(self._app._enqueue, job, None)

    def enqueue_many(self, jobs: Iterable[Mapping[str, Any] | NewJob]) -> list[Enqueued]:
        """Enqueue all or none, in one statement: mappings of arguments, or what `bind` returned."""
        return self._app._insert(self._elements(jobs), self._conn)

    async def enqueue_many_async(
        self, jobs: Iterable[Mapping[str, Any] | NewJob]
    ) -> list[Enqueued]:
        """`enqueue_many` without blocking the event loop."""
        elements = self._elements(jobs)
        if self._conn is not None:
            return await client.insert_async(self._conn, elements)
        return await asyncio.to_thread(self._app._insert, elements, None)

    def _new(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        with self._naming_the_kind():
            return replace(self._template, payload=self._arguments.encode(args, kwargs))

    def _elements(self, jobs: Iterable[Mapping[str, Any] | NewJob]) -> list[str]:
        encode = self._arguments.encode
        head, tail = self._template._frame()
        with self._naming_the_kind():
            return [
                job._element() if isinstance(job, NewJob) else f"{head}{encode((), job)}{tail}"
                for job in jobs
            ]

    @contextmanager
    def _naming_the_kind(self) -> Iterator[None]:
        try:
            yield
        except InvalidJob as exc:
            raise InvalidJob(f"{self._template.kind}: {exc}") from exc


class Job(Enqueuer[P], Generic[P, R]):
    """A registered handler: call it to run it here, or enqueue it."""

    def __init__(self, app: "App", function: Callable[P, R], template: NewJob) -> None:
        super().__init__(app, Arguments(function), template, None)
        self.function = function
        self.kind = template.kind
        self.is_async = inspect.iscoroutinefunction(
            function if inspect.isroutine(function) else type(function).__call__
        )
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler here and now, without the queue.

        `current_job()` gives it job 0, attempt 1, whose reports go nowhere; inside a worker's
        handler, that handler's job.
        """
        if _current.get(None) is not None:
            return self.function(*args, **kwargs)
        stand_in = CurrentJob(inf, Notes(), 0, self.kind, b"{}", 1, self._template.max_attempts)
        token = _current.set(stand_in)
        try:
            if not self.is_async:
                return self.function(*args, **kwargs)
            # The coroutine runs later, in a context of its own.
            return cast("R", _with_job(stand_in, cast("Any", self.function)(*args, **kwargs)))
        finally:
            _current.reset(token)

    def options(self, *, conn: Any = None, **options: Unpack[JobOptions]) -> Enqueuer[P]:
        """Return an enqueuer whose jobs differ by these options, on `conn` if one is given."""
        return Enqueuer(self._app, self._arguments, replace(self._template, **options), conn)

    def __repr__(self) -> str:
        return f"<job kind {self.kind!r}>"


class App:
    """The handlers of one program, by kind, and a connection to enqueue on.

    `dsn` defaults to the environment's DATABASE_URL, read when it is first needed. An app can be
    used from any number of threads.
    """

    def __init__(self, dsn: str | None = None) -> None:
        self.jobs: dict[str, Job[Any, Any]] = {}
        self._producer = Producer(dsn)

    @property
    def dsn(self) -> str | None:
        """Where jobs go without `conn`: the argument, else DATABASE_URL, else None."""
        return self._producer.dsn

    def job(
        self,
        kind: str,
        *,
        max_attempts: int = 10,
        priority: int = 0,
        retry_base_seconds: int = 15,
        retry_cap_seconds: int = 3600,
    ) -> Callable[[Callable[P, R]], Job[P, R]]:
        """Register a function, `def` or `async def`, as the handler of `kind`.

        Raises ValueError for a kind that has a handler, TypeError for a signature that cannot be
        a payload.
        """
        template = NewJob(
            kind=kind,
            priority=priority,
            max_attempts=max_attempts,
            retry_base_seconds=retry_base_seconds,
            retry_cap_seconds=retry_cap_seconds,
        )

        def register(function: Callable[P, R]) -> Job[P, R]:
            if kind in self.jobs:
                raise ValueError(f"kind {kind!r} has a handler: {self.jobs[kind].function!r}")
            job = Job(self, function, template)
            self.jobs[kind] = job
            return job

        return register

    def enqueue(
        self,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        conn: Any = None,
        **options: Unpack[JobOptions],
    ) -> Enqueued:
        """Enqueue a job of any kind, its handler known here or not; `payload` is plain JSON."""
        return self._enqueue(_new(kind, payload, options), conn)

    async def enqueue_async(
        self,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        conn: Any = None,
        **options: Unpack[JobOptions],
    ) -> Enqueued:
        """`enqueue` without blocking the event loop; `conn` is then a psycopg AsyncConnection."""
        job = _new(kind, payload, options)
        if conn is not None:
            return await client.enqueue_async(conn, job)
        return await asyncio.to_thread(self._enqueue, job, None)

    def enqueue_many(self, jobs: Iterable[NewJob], *, conn: Any = None) -> list[Enqueued]:
        """Enqueue jobs of any kinds, all or none, in one statement."""
        return self._insert([job._element() for job in jobs], conn)

    def cancel(self, job_id: int, *, conn: Any = None) -> str:
        """Cancel a queued job, or ask a running one to stop; return its status."""
        if conn is not None:
            return client.cancel(conn, job_id)
        return self._producer.call(lambda own: client.cancel(own, job_id), repeatable=True)

    def retry(self, job_id: int, extra_attempts: int = 1, *, conn: Any = None) -> str:
        """Queue a failed or cancelled job again; return its status."""
        if conn is not None:
            return client.retry(conn, job_id, extra_attempts)
        return self._producer.call(
            lambda own: client.retry(own, job_id, extra_attempts), repeatable=False
        )

    def close(self) -> None:
        """Close the app's own connection; the next call opens a new one."""
        self._producer.close()

    def _insert(self, elements: list[str], conn: Any) -> list[Enqueued]:
        if conn is not None:
            return client.insert(conn, elements)
        return self._producer.call(lambda own: client.insert(own, elements), repeatable=False)

    def _enqueue(self, job: NewJob, conn: Any) -> Enqueued:
        if conn is not None:
            return client.enqueue(conn, job)
        return self._producer.call(
            lambda own: client.enqueue(own, job), repeatable=job.idempotency_key is not None
        )


async def _with_job(job: CurrentJob, work: Awaitable[Any]) -> Any:
    token = _current.set(job)
    try:
        return await work
    finally:
        _current.reset(token)


def _new(kind: str, payload: Mapping[str, Any] | None, options: JobOptions) -> NewJob:
    return NewJob(kind=kind, payload=client.payload_text(payload or {}), **options)
