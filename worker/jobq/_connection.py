"""How every connection of jobq is opened: nothing is left to the database's defaults.

A lost peer is noticed within about 20 s, by keepalives while a reply is awaited and by
TCP_USER_TIMEOUT while something is being sent. One that is alive and never replies, as a hanging
server or proxy, is noticed by nobody but us: `limited` and `cut`.

Settings are made by a statement after connecting, not by start-up `options`, which poolers refuse.
Statements are never prepared by the driver: the plans that matter are cached inside the database's
functions, and a pooler in transaction mode would lose prepared ones.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from threading import Timer
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, tuple_row

from jobq.errors import sqlstate_of

__all__ = ["TRANSPORT", "configure", "connect", "cut", "limited", "lost"]

REPLY_SECONDS = 40.0  # a little more than the statement timeout

TRANSPORT: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "client_encoding": "utf8",
}

_SESSION: dict[str, str] = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "idle_in_transaction_session_timeout": "60s",
    "idle_session_timeout": "0",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "jit": "off",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
}

_SINCE_17 = {"transaction_timeout": "0"}


def connect(
    dsn: str, application_name: str, settings: Mapping[str, str] | None = None
) -> psycopg.Connection[TupleRow]:
    """Open an autocommit connection at READ COMMITTED; raises psycopg.OperationalError.

    `settings` are run-time settings of PostgreSQL that replace or add to jobq's own.
    """
    conn = psycopg.connect(
        dsn,
        autocommit=True,
        prepare_threshold=None,
        row_factory=tuple_row,
        application_name=application_name,
        **TRANSPORT,
    )
    try:
        with limited(conn, REPLY_SECONDS):
            configure(conn, settings)
    except BaseException:
        conn.close()
        raise
    return conn


def configure(conn: psycopg.Connection[Any], settings: Mapping[str, str] | None = None) -> None:
    """Make jobq's settings of a session, and `settings`, which win."""
    newer = _SINCE_17 if conn.info.server_version >= 170000 else {}
    wanted = {**_SESSION, **newer, **(settings or {})}
    calls = sql.SQL(", ").join([sql.SQL("set_config(%s, %s, false)")] * len(wanted))
    conn.execute(sql.SQL("select {}").format(calls), [*chain(*wanted.items())])


@contextmanager
def limited(conn: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Cut the connection when the block lasts longer: its statement raises OperationalError."""
    timer = Timer(seconds, cut, [conn])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def lost(conn: psycopg.Connection[Any] | None, exc: BaseException) -> bool:
    """Whether an error means the connection or the server, not what was asked of it."""
    if conn is None or conn.closed:
        return True
    state = sqlstate_of(exc)
    if state is None:
        return isinstance(exc, OSError | psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(("08", "57P"))


def cut(conn: psycopg.Connection[Any]) -> None:
    """End a connection from another thread than the one that waits on it, which then wakes."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(conn.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
