"""What the queries share: rows as dicts, one row, one value."""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

__all__ = ["Connection", "Row", "fetch", "fetch_one", "value"]

Row = dict[str, Any]
Connection = psycopg.Connection[Row]
Parameters = Sequence[Any] | Mapping[str, Any]


def fetch(conn: Connection, query: str, parameters: Parameters | None = None) -> list[Row]:
    """Return the rows of a query."""
    return conn.execute(query.encode(), parameters).fetchall()


def fetch_one(conn: Connection, query: str, parameters: Parameters | None = None) -> Row:
    """Return the one row of a query that always has one."""
    row = conn.execute(query.encode(), parameters).fetchone()
    assert row is not None, query
    return row


def value(conn: Connection, query: str, parameters: Parameters | None = None) -> Any:
    """Return the one value of a query that always has one."""
    return next(iter(fetch_one(conn, query, parameters).values()))
