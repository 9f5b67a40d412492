"""One worker process: N handler threads, a coordinator, renewal, LISTEN, and signals.

    Worker(app).run()                       # a process: SIGTERM or SIGINT stop it
    with Worker(app, settings): ...         # inside a program or a test: no signals

It keeps three connections: for calls, for renewals, and for LISTEN.
"""

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

import psycopg

from jobq._access import check_worker
from jobq._bell import Bell
from jobq._connection import connect
from jobq._coordinator import Coordinator
from jobq._executor_async import executor_for
from jobq._listener import Listener
from jobq._renewal import Renewal
from jobq.app import App
from jobq.context import CurrentJob
from jobq.errors import SettingsError
from jobq.log import log
from jobq.migrate import check_compatible
from jobq.settings import WorkerSettings

__all__ = ["EXIT_CLEAN", "EXIT_LEFT_JOBS", "Worker"]

logger = logging.getLogger("jobq.worker")

EXIT_CLEAN = 0
EXIT_LEFT_JOBS = 1  # some handlers outlasted the shutdown time; their leases bring them back
LEAVE_SECONDS = 1.0


class Worker:
    """Runs the jobs of an app's kinds.

    `settings` default to the environment's; `name` is what `locked_by` shows, and by default tells
    host and process. Raises SettingsError for kinds without a handler, without any database, or for
    a name that the database would refuse.
    """

    def __init__(
        self, app: App, settings: WorkerSettings | None = None, *, name: str | None = None
    ) -> None:
        self.settings = settings if settings is not None else WorkerSettings.from_environment()
        self.name = _default_name() if name is None else _usable_name(name)
        self.kinds = _kinds(app, self.settings)
        dsn = self.settings.database_url or app.dsn
        if dsn is None:
            raise SettingsError("no database: set DATABASE_URL to postgresql://…")
        self._dsn = dsn
        self._stopping = threading.Event()
        self._started = self._stopped = False
        self._signals: list[int] = []
        bell = Bell()
        claims: dict[int, CurrentJob] = {}
        jobs = {kind: app.jobs[kind] for kind in self.kinds}
        self._executor = executor_for(jobs, self.settings.threads, bell)
        lease = self.settings.lease_seconds
        self._listener = Listener(self._connect_listener, self._notify, self.kinds, bell)
        self._coordinator = Coordinator(
            self.name,
            self.kinds,
            self.settings,
            self._connect_calls,
            self._executor,
            self._listener,
            claims,
            bell,
        )
        watch = self._coordinator.check
        self._renewal = Renewal(self._connect_renewal, claims, lease, bell, watch)

    def start(self) -> None:
        """Connect, retrying while the database cannot be reached, and start working.

        Raises jobq.migrate.SchemaError when the database's schema does not fit this package, or
        the role lacks the level worker.
        """
        conn = self._first_connection()
        if conn is None:  # stopped before there was one
            return
        log(
            logger, logging.INFO, "worker started",
            worker=self.name, threads=self.settings.threads, kinds=",".join(self.kinds),
        )  # fmt: skip
        self._started = True
        self._executor.start()
        self._renewal.start()
        self._listener.start()
        self._coordinator.start(conn)

    def stop(self, timeout: float | None = None) -> bool:
        """Stop claiming, give back what has not started, and let running handlers finish.

        Waits for them `timeout` seconds, JOB_WORKER_SHUTDOWN_SECONDS by default. Returns whether
        everything ended and was settled; what did not is left to its lease.
        """
        self.request_stop(timeout)
        return self._finish()

    def request_stop(self, timeout: float | None = None) -> None:
        """Begin to stop, as `stop` does, without waiting."""
        if not self._stopping.is_set():
            self._stopping.set()
            seconds = self.settings.shutdown_seconds if timeout is None else timeout
            self._coordinator.stop(seconds)

    def run(self) -> int:
        """Work until SIGTERM or SIGINT, and return an exit code; call it in the main thread.

        The first signal stops as `stop` does: 0 when all ended in time, 1 when handlers were left
        running. A second one leaves within two seconds, whatever handlers do, with 128 + signal.
        """
        with self._handling_signals():
            self.start()
            clean = self._finish()
        if len(self._signals) > 1:
            return 128 + self._signals[-1]
        return EXIT_CLEAN if clean else EXIT_LEFT_JOBS

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _finish(self) -> bool:
        """Wait for the coordinator, then end the rest; return whether everything was done."""
        if not self._started:
            return True
        if self._stopped:
            return self._coordinator.clean
        while not self._coordinator.join(1.0):  # in slices: signals are handled between them
            if self._coordinator.overdue:
                self._coordinator.cut()
        self._executor.stop()
        self._listener.stop()
        self._renewal.stop()
        self._stopped = True
        clean = self._coordinator.clean
        log(logger, logging.INFO, "worker stopped", worker=self.name, clean=clean)
        return clean

    def _first_connection(self) -> psycopg.Connection[Any] | None:
        pause = 0.5
        while not self._stopping.is_set():
            try:
                return self._checked(self._connect_calls())
            except psycopg.OperationalError as exc:
                error = str(exc).strip()
                log(logger, logging.WARNING, "no connection", error=error, retry_in=pause)
                self._stopping.wait(pause)
                pause = min(pause * 2, 5.0)
        return None

    def _checked(self, conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
        try:
            check_compatible(conn)
            check_worker(conn)
        except BaseException:
            conn.close()
            raise
        return conn

    def _connect_calls(self) -> psycopg.Connection[Any]:
        return connect(self._dsn, self._application_name("calls"), {"lock_timeout": "200ms"})

    def _connect_renewal(self) -> psycopg.Connection[Any]:
        timeout = f"{max(int(self.settings.lease_seconds * 1000 / 4), 500)}ms"
        return connect(self._dsn, self._application_name("renewal"), {"statement_timeout": timeout})

    def _connect_listener(self) -> psycopg.Connection[Any]:
        dsn = self.settings.listen_url or self._dsn
        return connect(dsn, self._application_name("listen"))

    def _notify(self, channel: str) -> None:
        with connect(self._dsn, self._application_name("check")) as conn:
            conn.execute("select pg_notify(%s, '')", (channel,))

    def _application_name(self, purpose: str) -> str:
        """At most 63 bytes, which is all that PostgreSQL keeps."""
        return f"jobq {purpose} {self.name[:36]} threads={self.settings.threads}"

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        # In a thread: a handler that took a lock could meet its own thread holding it.
        def handle(number: int, _frame: FrameType | None) -> None:
            threading.Thread(target=self._signalled, args=(number,), daemon=True).start()

        old = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _signalled(self, number: int) -> None:
        self._signals.append(number)
        name = signal.Signals(number).name
        if len(self._signals) == 1:
            log(logger, logging.INFO, "stopping", signal=name, hint="once more to leave at once")
            self.request_stop()
            return
        log(logger, logging.WARNING, "leaving", signal=name, running=len(self._executor.running()))
        self._coordinator.leave()
        self._executor.interrupt()
        threading.Event().wait(LEAVE_SECONDS)
        os._exit(128 + number)  # a statement, a handler or an exit hook that does not return


def _kinds(app: App, settings: WorkerSettings) -> list[str]:
    unknown = sorted({*settings.kinds, *settings.exclude} - app.jobs.keys())
    if unknown:
        raise SettingsError(
            f"JOB_WORKER_KINDS or JOB_WORKER_EXCLUDE names kinds without a handler:"
            f" {', '.join(unknown)}; this app has {', '.join(sorted(app.jobs)) or 'none'}"
        )
    kinds = sorted(set(settings.kinds or app.jobs) - set(settings.exclude))
    if not kinds:
        raise SettingsError("there is nothing to work on: no kind has a handler here")
    return kinds


def _default_name() -> str:
    host = "".join(c if c.isascii() and c.isprintable() else "-" for c in socket.gethostname())
    return f"{host[:20]}-{os.getpid()}-{secrets.token_hex(2)}"


def _usable_name(name: str) -> str:
    try:
        size = 0 if "\0" in name else len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= 256:
        raise SettingsError(f"name={name[:100]!r} cannot be used: allowed: 1 to 256 bytes of text")
    return name
