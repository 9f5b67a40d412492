"""The list of jobs as rows to show: pure functions, and where a viewer is in the list."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from typed import Typed
from ui import ago, marked, span

__all__ = ["CSV_COLUMNS", "Listing", "held", "note", "table", "ticked"]

Row = Mapping[str, Any]

CSV_COLUMNS = (
    "id",
    "kind",
    "status",
    "priority",
    "created_at",
    "available_at",
    "attempt",
    "max_attempts",
    "locked_by",
    "progress",
    "started_at",
    "finished_at",
    "idempotency_key",
    "error",
    "lease_expires_at",
    "cancel_requested_at",
)


_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Listing:
    """Where a viewer is: what was typed, the pages turned, the rows last shown, from when."""

    typed: Typed
    trail: list[tuple[Any, ...] | None] = field(default_factory=lambda: [None])
    rows: list[dict[str, Any]] = field(default_factory=list)
    at: datetime = _NEVER
    asked: int = 0

    @property
    def key(self) -> str:
        """The widget's key. Other rows, another widget: a tick never moves to another job."""
        ids = ",".join(str(row["id"]) for row in self.rows)
        return f"jobs_{zlib.crc32(ids.encode()):08x}"

    def turn(self, after: tuple[Any, ...] | None) -> None:
        """Go on to the page that begins after a row; None: back to the newest."""
        self.trail = [None] if after is None else [*self.trail, after]

    def back(self) -> None:
        """Go back one page."""
        self.trail = self.trail[:-1] or [None]


def ticked(rows: Sequence[Row], positions: Sequence[int]) -> tuple[int, ...]:
    """The ids at these positions of the list that was shown."""
    return tuple(rows[place]["id"] for place in positions if place < len(rows))


def held(shown: Sequence[Row], found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows that are shown, in their places, as they are now; one that is gone says so."""
    now = {row["id"]: row for row in found}
    return [dict(now.get(row["id"], {**row, "status": "gone"})) for row in shown]


def table(rows: Sequence[Row], now: datetime) -> dict[str, list[Any]]:
    """The columns of the list, as text where the viewer's program would change a number."""
    return {
        "Job": [f"job?job={row['id']}" for row in rows],
        "Status": [_status(row) for row in rows],
        "Kind": [row["kind"] for row in rows],
        "When": [_moment(row, now) for row in rows],
        "Attempt": [f"{row['attempt']} of {row['max_attempts']}" for row in rows],
        "Priority": [row["priority"] for row in rows],
        "Note": [note(row, now) for row in rows],
        "Progress": [row["progress"] if row["status"] == "running" else None for row in rows],
        "Worker": [row["locked_by"] or "" for row in rows],
    }


def note(row: Row, now: datetime) -> str:
    """What matters most about a job beside its status."""
    parts = []
    if row["status"] == "running":
        if row["progress"] is not None:
            parts.append(f"{row['progress']:.0%}")
        if row["lease_expires_at"] and row["lease_expires_at"] < now:
            parts.append("lease expired")
        if row["cancel_requested_at"]:
            parts.append("asked to stop")
    if row["error"] and row["status"] != "succeeded":
        parts.append(row["error"])
    if row["idempotency_key"]:
        parts.append(f"key {row['idempotency_key']}")
    return " · ".join(parts)


def _status(row: Row) -> str:
    return "✝ gone" if row["status"] == "gone" else marked(row["status"])


def _moment(row: Row, now: datetime) -> str:
    status = row["status"]
    if status == "queued":
        return f"due {ago(row['available_at'], now)}"
    if status == "running":
        return f"for {span((now - row['started_at']).total_seconds())}"
    return ago(row["finished_at"] or row["created_at"], now)
