"""Waits for news of due jobs, so that an idle worker starts them at once without much asking.

An idle worker holds a shared lock per kind, by which enqueuers know that somebody waits. What was
committed before the locks is not notified, so the worker claims once more after taking them, and
asks each second while a transaction that began before them may still commit.

Behind a transaction pooler LISTEN succeeds and nothing is ever delivered, while the locks would
stay with whoever gets the server connection next. So each new connection first has a message sent
to itself; when that does not arrive the worker polls, and says so once.
"""

import logging
import secrets
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any

import psycopg

from jobq._bell import Bell
from jobq._connection import REPLY_SECONDS, limited, lost
from jobq.log import log

__all__ = ["Listener"]

logger = logging.getLogger("jobq.worker")

CHECK_SECONDS = 2.0
LATER_CHECK_SECONDS = 60.0
STABLE_SECONDS = 10.0  # a connection that held so long says that all was well


class Listener:
    """A thread with the LISTEN connection. The coordinator says `idle` or `busy` and reads `heard`.

    `connect` opens the connection; `notify(channel)` sends an empty message from another one.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        notify: Callable[[str], None],
        kinds: list[str],
        bell: Bell,
    ) -> None:
        self._connect = connect
        self._notify = notify
        self._kinds = kinds
        self._bell = bell
        self._state = Lock()  # over the four that follow
        self._wanted = False  # the coordinator is idle
        self._held = False  # all idle locks are held
        self._settled = False  # and all older transactions have ended
        self._heard = 0
        self._connected = False
        self._horizon = ""
        self._arrived: list[tuple[str, str]] = []  # messages, by channel and payload
        self._check_channel = f"jobq_check_{secrets.token_hex(8)}"
        self._checked = False
        self._warned = False
        self._stop = Event()
        self._thread = Thread(target=self._loop, name="jobq-listener", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its connection; waits a moment for it."""
        self._stop.set()
        self._poke()
        self._thread.join(timeout=2)

    def idle(self) -> None:
        """A thread is free and a claim found nothing: take the locks, or those still missing."""
        with self._state:
            if self._wanted and self._held:
                return
            self._wanted = True
        self._poke()

    def busy(self) -> None:
        """Give the locks back, so that enqueuers need not notify."""
        with self._state:
            if not self._wanted:
                return
            self._wanted = self._held = self._settled = False
        self._poke()

    def heard(self) -> int:
        """How often there may be new jobs since the last call: notified, or took the locks."""
        with self._state:
            heard, self._heard = self._heard, 0
        return heard

    @property
    def pending(self) -> bool:
        """Whether `heard` would return any."""
        return self._heard > 0

    @property
    def held(self) -> bool:
        """Whether a job committed from now on is sure to be notified."""
        return self._held

    @property
    def settled(self) -> bool:
        """Whether asking more often than at the poll interval finds nothing that is not notified.

        False while a transaction that began before the locks may commit, or a lock is missing.
        """
        return self._settled or not self._connected

    def _loop(self) -> None:
        with self._reader, self._writer:
            self._listen()

    def _listen(self) -> None:
        pause = 0.1
        while not self._stop.is_set():
            conn: psycopg.Connection[Any] | None = None
            started = monotonic()
            try:
                conn = self._connect()
                self._arrived = []
                conn.add_notify_handler(self._arrive)
                if self._delivers(conn):
                    self._follow(conn)
                else:
                    self._stop.wait(LATER_CHECK_SECONDS)
            except Exception as exc:  # whatever it is: even "can't start new thread" passes
                with self._state:
                    self._held = self._settled = False
                if monotonic() - started > STABLE_SECONDS:
                    pause = 0.1
                gone = lost(conn, exc)
                expected = isinstance(exc, psycopg.Error | OSError)
                logger.log(
                    logging.WARNING if expected else logging.ERROR,
                    "listen connection lost" if gone else "listening failed; polling",
                    exc_info=None if expected else exc,
                    extra={"jobq": {"error": str(exc).strip(), "retry_in": pause}},
                )
                self._stop.wait(pause)
                pause = min(pause * 2, 5.0 if gone else LATER_CHECK_SECONDS)
            finally:
                self._connected = False
                if conn is not None:
                    conn.close()

    def _delivers(self, conn: psycopg.Connection[Any]) -> bool:
        with limited(conn, REPLY_SECONDS):
            conn.execute(f'listen "{self._check_channel}"'.encode())
        self._notify(self._check_channel)
        self._checked = False
        deadline = monotonic() + CHECK_SECONDS
        while not self._checked and not self._stop.is_set() and monotonic() < deadline:
            self._wait(conn, deadline - monotonic())
        if self._checked or self._stop.is_set():
            return True
        if not self._warned:
            self._warned = True
            log(
                logger, logging.WARNING, "notifications do not arrive; polling",
                hint="a pooler in transaction mode? give JOB_WORKER_LISTEN_URL a direct connection",
            )  # fmt: skip
        return False

    def _follow(self, conn: psycopg.Connection[Any]) -> None:
        """Serve one connection until it breaks or the listener stops."""
        with limited(conn, REPLY_SECONDS):
            conn.execute(f'unlisten "{self._check_channel}"'.encode())
            conn.execute("select jobq.present(%s::text[])", (self._kinds,))
            conn.execute("listen jobq")
        self._connected = True
        holding = False
        self._hear()  # what was sent while nobody listened
        while not self._stop.is_set():
            wanted, held, settled = self._wanted, self._held, self._settled
            if (wanted and not (held and settled)) or (holding and not wanted):
                with limited(conn, REPLY_SECONDS):
                    if not wanted:
                        holding = False
                        conn.execute("select jobq.unlisten()")
                    elif not held:
                        holding = True
                        self._take_locks(conn)
                    if self._held and not self._settled:
                        self._look_back(conn)
            self._wait(conn, 1.0 if self._held and not self._settled else 3600.0)

    def _take_locks(self, conn: psycopg.Connection[Any]) -> None:
        row = conn.execute("select jobq.listen(%s::text[])", (self._kinds,)).fetchone()
        if row == (True,):
            query = "select pg_snapshot_xmax(pg_current_snapshot())::text"
            (self._horizon,) = conn.execute(query).fetchone() or ("0",)
            with self._state:
                self._held = self._wanted
            self._hear()

    def _look_back(self, conn: psycopg.Connection[Any]) -> None:
        query = "select pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8"
        if conn.execute(query, (self._horizon,)).fetchone() == (True,):
            with self._state:
                self._settled = self._held
            self._hear()

    def _wait(self, conn: psycopg.Connection[Any], seconds: float) -> None:
        """Wait for the server or a poke, and take in what has arrived."""
        if self._take_in(conn):  # it came with a statement's reply
            return
        with selectors.DefaultSelector() as selector:
            selector.register(conn.fileno(), selectors.EVENT_READ)
            selector.register(self._reader, selectors.EVENT_READ)
            ready = selector.select(max(seconds, 0))
            self._take_in(conn)  # first of all: a job waits
        if any(key.fileobj is self._reader for key, _ in ready):
            with suppress(BlockingIOError):
                while self._reader.recv(4096):
                    pass

    def _take_in(self, conn: psycopg.Connection[Any]) -> bool:
        # What psycopg's notifies() does takes a fifth of a millisecond, and a job waits.
        pgconn = conn.pgconn
        pgconn.consume_input()
        while message := pgconn.notifies():
            encoding = conn.info.encoding
            self._arrived.append((message.relname.decode(encoding), message.extra.decode(encoding)))
        if not self._arrived:
            return False
        arrived, self._arrived = self._arrived, []
        kinds = [payload for channel, payload in arrived if payload in self._kinds]
        self._checked |= any(channel == self._check_channel for channel, _ in arrived)
        if kinds:
            log(logger, logging.DEBUG, "wake", kinds=",".join(sorted({*kinds})))
            self._hear(len(kinds))
        return True

    def _arrive(self, note: psycopg.Notify) -> None:
        """Keep what came with a statement's reply."""
        self._arrived.append((note.channel, note.payload))

    def _hear(self, times: int = 1) -> None:
        with self._state:
            self._heard += times
        self._bell.ring()

    def _poke(self) -> None:
        with suppress(OSError):  # full of pokes already, or stopped
            self._writer.send(b"!")
