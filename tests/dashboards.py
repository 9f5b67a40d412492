"""The dashboard's queries as a test calls them: on a connection like the dashboard's own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from helpers import Connection, wait_until
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

import reading
from reading import Source
from scale import Connect
from sql import Connection as Asking

__all__ = ["Asking", "Counted", "asking", "clock", "grant", "in_hand_of", "source", "under_way"]


def grant(conn: Connection, make_role: Callable[..., str], *levels: str) -> str:
    """Make a role with these levels."""
    role = make_role()
    for level in levels:
        conn.execute("select jobq.grant_access(%s, %s)", (role, level))
    return role


def asking(connect: Connect, **options: Any) -> Asking:
    """A connection whose rows are dicts, and whose JSON is text."""
    conn: psycopg.Connection[Any] = connect(row_factory=dict_row, **options)
    conn.execute("set TimeZone = 'UTC'")
    conn.adapters.register_loader("jsonb", TextLoader)
    return conn


def in_hand_of(conn: Connection, worker: str, kind: str, jobs: int) -> list[Any]:
    """So many new jobs of a kind, claimed by a worker."""
    for _ in range(jobs):
        conn.execute("select jobq.enqueue(%s)", (kind,))
    query = "select id, lease_token from jobq.claim(%s, %s, %s)"
    return conn.execute(query, (worker, jobs, [kind])).fetchall()


class Counted:
    """A query that counts how often it is asked, and lets a test hold it up."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = threading.Event()
        self.go.set()
        self.__qualname__ = f"counted {id(self)}"

    def __call__(self, conn: Any, *args: Any) -> tuple[Any, ...]:
        self.calls += 1
        assert self.go.wait(30)
        return (self.calls, *args)


@pytest.fixture
def source(dsn: str) -> Iterator[Source]:
    """A source of the test's own."""
    opened = Source(dsn)
    yield opened
    opened.close()


def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves."""
    now = [1000.0]
    monkeypatch.setattr(reading, "monotonic", lambda: now[0])
    return now


@contextmanager
def under_way(source: Source, query: Counted) -> Iterator[None]:
    """A reading of this query that has begun, and ends with the block."""
    query.go.clear()
    calls = query.calls
    reader = threading.Thread(target=source.read, args=(query,), kwargs={"max_age": 0})
    reader.start()
    wait_until(lambda: query.calls > calls)
    yield
    query.go.set()
    reader.join(30)
