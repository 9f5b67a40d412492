"""The app's own connection: opened when needed, shared by threads, replaced when found dead."""

import os
import select
import weakref
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

import psycopg

from jobq._connection import connect
from jobq.errors import SettingsError

T = TypeVar("T")


class Producer:
    """Runs calls on one autocommit connection, one at a time."""

    def __init__(self, dsn: str | None) -> None:
        self._given = dsn
        self._lock = Lock()
        self._conn: psycopg.Connection[Any] | None = None
        self._pid = 0
        self._finalizer: weakref.finalize[..., Any] | None = None

    @property
    def dsn(self) -> str | None:
        """The constructor's argument, else the environment's DATABASE_URL, else None."""
        return self._given or os.environ.get("DATABASE_URL") or None

    def call(self, run: Callable[[psycopg.Connection[Any]], T], *, repeatable: bool) -> T:
        """Run one call; when the connection breaks under it, repeat it if that does no harm.

        A call whose reply is lost may have been carried out: only the caller knows whether
        enqueuing once more would make a second job. So it is repeated once if `repeatable`, and
        otherwise raises psycopg.OperationalError.
        """
        with self._lock:
            try:
                return run(self._usable())
            except psycopg.OperationalError:
                if not repeatable or self._conn is None or not self._conn.closed:
                    raise
            return run(self._usable())

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        with self._lock:
            if self._conn is not None and self._pid == os.getpid():
                self._conn.close()
            self._conn = None

    def _usable(self) -> psycopg.Connection[Any]:
        # A connection inherited through fork() belongs to the parent.
        if self._conn is None or self._pid != os.getpid() or not _alive(self._conn):
            dsn = self.dsn
            if dsn is None:
                raise SettingsError("no database: set DATABASE_URL, or use App(dsn=…)")
            self._conn = connect(dsn, "jobq app", {"lock_timeout": "0"})
            self._pid = os.getpid()
            if self._finalizer is not None:
                self._finalizer.detach()
            self._finalizer = weakref.finalize(self, _close, self._conn, self._pid)
        return self._conn


def _close(conn: psycopg.Connection[Any], pid: int) -> None:
    if os.getpid() == pid:
        conn.close()


def _alive(conn: psycopg.Connection[Any]) -> bool:
    """Whether an idle connection still stands; only one with news, such as its end, is asked."""
    if conn.closed:
        return False
    try:
        poll = select.poll()
        poll.register(conn.fileno(), select.POLLIN)
        if poll.poll(0):
            conn.execute("select 1")
    except (OSError, psycopg.Error):
        conn.close()
        return False
    return not conn.closed
