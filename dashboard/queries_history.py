"""What happened lately, from the events: activity, runs, failures.

Above some hundred thousand events in the window the database reads a sample; `share` says so.
"""

from typing import Any

from sql import Connection, Row, fetch

__all__ = ["WINDOWS", "activity", "failures", "runs"]

#: Name -> how far back, and in how many buckets.
WINDOWS: dict[str, tuple[str, int]] = {
    "15 min": ("15 minutes", 60),
    "1 h": ("1 hour", 60),
    "24 h": ("24 hours", 48),
    "7 d": ("7 days", 56),
}

MOST_RUNS = 5_000

_ACTIVITY = "select a.* from jobq.activity(%s::interval, %s) a"

_RUNS = "select r.* from jobq.runs(%s::interval, %s) r"

_FAILURES = "select f.* from jobq.failures(%s::interval, %s) f"


def activity(conn: Connection, window: str) -> dict[str, Any]:
    """Count what happened in each bucket of the window, oldest first; the last is not over yet."""
    return _shared(fetch(conn, _ACTIVITY, WINDOWS[window]))


def runs(conn: Connection, window: str) -> dict[str, Any]:
    """Return runs that ended in the window, a sample of about 5,000 at most."""
    return _shared(fetch(conn, _RUNS, (WINDOWS[window][0], MOST_RUNS)))


def failures(conn: Connection, window: str) -> dict[str, Any]:
    """Group failed attempts and lost leases of the window by kind and error class."""
    return _shared(fetch(conn, _FAILURES, WINDOWS[window]))


def _shared(rows: list[Row]) -> dict[str, Any]:
    """The share stands in each row; without a row nothing was left out."""
    shares = {row.pop("share") for row in rows}
    return {"share": shares.pop() if shares else 1.0, "rows": rows}
