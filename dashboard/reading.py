"""One pool and the shared readings of one database; knows nothing of Streamlit."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row, tuple_row
from psycopg.types.string import TextLoader
from psycopg_pool import ConnectionPool, PoolTimeout

from answering import Answering, NoAnswer
from jobq._access import grant_command
from jobq._connection import TRANSPORT, configure
from jobq.errors import sqlstate_of
from jobq.migrate import SchemaError, check_compatible
from sql import Connection

__all__ = ["READING", "Away", "Reading", "Source", "lost"]

T = TypeVar("T")

SHARE = 100
FAILED_SHARE = 10
MOST_READINGS = 300
REACH_SECONDS = 3.0
AWAY_SECONDS = 2.0
#: A reading under way for so much longer than the last one took has no answer.
PATIENCE_SECONDS = 4.0
FIRST_SECONDS = 20.0
NEVER = float("-inf")
READING = {"statement_timeout": "10s", "TimeZone": "UTC"}
_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "row_factory": dict_row,
    "application_name": "jobq dashboard",
    **TRANSPORT,
}


class Away(Exception):
    """The database cannot be used, and nothing was read before; says why."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What a query returned, when, and why there is nothing newer (None: it is new enough)."""

    data: T
    at: datetime
    problem: str | None = None


@dataclass(slots=True)
class _Slot:
    """The newest reading of one query, when and how long it was read, and how long it will do."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reading: Reading[Any] | None = None
    read_at: float = NEVER
    cost: float = 0.0
    begun: float = NEVER  # the newest attempt
    under_way: bool = False
    keep: float = 0.0
    problem: str | None = None

    def overdue(self) -> float:
        """When who waits for the attempt that is under way gives it up."""
        allowed = FIRST_SECONDS if self.reading is None else self.cost + PATIENCE_SECONDS
        return (self.begun if self.under_way else monotonic()) + allowed


class Source:
    """The pool and the shared readings of one database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._slots: OrderedDict[object, _Slot] = OrderedDict()
        self._lock = threading.Lock()
        self._long = threading.Lock()
        self._forgotten = NEVER
        self._away_until = NEVER
        self._problem = ""
        self._pool: ConnectionPool[Answering] = ConnectionPool(
            dsn,
            connection_class=Answering,
            kwargs=_OPTIONS,
            min_size=0,
            max_size=4,
            max_idle=60,
            timeout=REACH_SECONDS,
            reconnect_timeout=5,
            check=_check,
            configure=_prepare,
            open=True,
        )

    def close(self) -> None:
        """Give the connections back."""
        self._pool.close()

    def connection(self) -> AbstractContextManager[Answering]:
        """A connection of the pool."""
        return self._pool.connection()

    @contextmanager
    def apart(self, seconds: int) -> Iterator[Connection]:
        """A connection outside the pool, whose statements may take so long.

        One at a time: raises Away while there is another.
        """
        if not self._long.acquire(blocking=False):
            raise Away(
                "one is running already, begun by a viewer of this dashboard;"
                " try again when it has ended"
            )
        try:
            with closing(Answering.connect(self._dsn, **_OPTIONS)) as conn:
                _prepare(conn)
                configure(conn, {**READING, "statement_timeout": f"{seconds}s"})
                with conn.waiting_for(seconds + PATIENCE_SECONDS):
                    yield conn
        finally:
            self._long.release()

    def forget(self) -> None:
        """Read everything anew the next time: what is being read now may be from before."""
        self._forgotten = monotonic()

    def read(self, query: Callable[..., T], *args: Any, max_age: float) -> Reading[T]:
        """Return the shared reading of `query(connection, *args)`, made anew when it is due.

        Raises Away when there is none to show.
        """
        slot = self._slot((query.__module__, query.__qualname__, args))
        # One reads, the others take what is there; only who has nothing to show waits, and not
        # for ever: a database that hangs holds up the one that reads.
        stale = slot.reading is None or slot.read_at <= self._forgotten
        wait = max(0.0, slot.overdue() - monotonic()) if stale else 0.0
        if slot.lock.acquire(timeout=wait):
            try:
                age = monotonic() - slot.begun
                if slot.begun <= self._forgotten or age > max(max_age, slot.keep):
                    self._refresh(slot, query, args)
            finally:
                slot.lock.release()
            problem = slot.problem
        elif stale or monotonic() > slot.overdue():
            problem = f"no answer for {monotonic() - slot.begun:.0f} s"
        else:
            problem = slot.problem
        if slot.reading is None:
            raise Away(problem or "the database has not answered yet")
        return replace(slot.reading, problem=problem)

    def _refresh(self, slot: _Slot, query: Callable[..., T], args: tuple[Any, ...]) -> None:
        slot.begun = began = monotonic()
        slot.under_way = True
        try:
            self._attempt(slot, began, query, args)
        finally:
            slot.under_way = False

    def _attempt(
        self, slot: _Slot, began: float, query: Callable[..., T], args: tuple[Any, ...]
    ) -> None:
        slot.keep = 0.0
        if began < self._away_until:  # found out a moment ago by the reading of another query
            slot.problem = self._problem
            return
        try:
            with self.connection() as conn:
                began = monotonic()
                data = query(conn, *args)
            slot.reading, slot.problem = Reading(data, datetime.now(UTC)), None
            slot.read_at, slot.cost = slot.begun, monotonic() - began
            slot.keep = SHARE * slot.cost
        except (psycopg.Error, SchemaError) as error:
            slot.problem = self.explain(error)
            if lost(error):
                self._problem, self._away_until = slot.problem, monotonic() + AWAY_SECONDS
            else:
                # A query that is too much for the database is not asked again at once.
                slot.keep = FAILED_SHARE * (monotonic() - began)

    def explain(self, error: Exception, level: str = "reader") -> str:
        """What is wrong and what to do, for who looks at the page at night."""
        if isinstance(error, PoolTimeout):
            # The pool keeps the reason to itself.
            try:
                with closing(Answering.connect(self._dsn, **_OPTIONS)) as conn:
                    conn.patience = REACH_SECONDS
                    _prepare(conn)
            except (psycopg.Error, SchemaError) as reason:
                return self.explain(reason)
            return "the database answers too slowly"
        if isinstance(error, psycopg.errors.QueryCanceled):
            return "the query took longer than the dashboard allows"
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            grant = grant_command(str(conninfo_to_dict(self._dsn).get("user") or "…"), level)
            return f"{_first_line(error)}: have the owner of schema jobq run `{grant}`"
        if isinstance(error, NoAnswer):
            return f"the database hangs: {_first_line(error)}"
        if lost(error):
            return f"the database is away: {_first_line(error)}"
        return _first_line(error)

    def _slot(self, key: object) -> _Slot:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > MOST_READINGS:
                self._slots.popitem(last=False)
            return slot


def lost(error: Exception) -> bool:
    """Whether the error means the connection or the server, not what was asked of it."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    state = sqlstate_of(error)
    return state is None or state.startswith(("08", "57P", "53300"))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _check(conn: Answering) -> None:
    with conn.waiting_for(REACH_SECONDS):
        ConnectionPool.check_connection(conn)


def _prepare(conn: psycopg.Connection[Any]) -> None:
    configure(conn, READING)
    # As text: numbers keep every digit, and nothing is parsed that is only shown.
    conn.adapters.register_loader("jsonb", TextLoader)
    conn.row_factory = tuple_row
    check_compatible(conn)
    conn.row_factory = dict_row
