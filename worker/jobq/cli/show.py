"""How a job and its timeline are written for people."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from jobq.cli.database import Row
from jobq.cli.output import (
    Column,
    JsonText,
    is_terminal,
    print_lines,
    print_table,
    shortened,
    visible,
    write,
)
from jobq.cli.times import age, show_seconds, show_time

__all__ = ["describe", "summary"]

_NOTE_CHARACTERS = 160
_VALUE_CHARACTERS = 2_000


def summary(job: Row) -> list[object]:
    """A job as a line of `list`: id, kind, status, attempts, and what matters most about it."""
    attempts = f"{job['attempt']}/{job['max_attempts']}"
    note = shortened(_note(job), _NOTE_CHARACTERS)
    return [job["id"], job["kind"], job["status"], attempts, note]


def describe(job: Row, timeline: Sequence[Row], hidden: int) -> None:
    """Print a job and its events, of which `hidden` earlier ones are left out."""
    print_lines([f"job {job['id']}  {job['kind']}  {job['status']}"])
    for name, value in _facts(job):
        lines = visible(value, lines=True).split("\n")
        write(f"  {name:<10}  {lines[0]}\n" + "".join(f"{'':14}{line}\n" for line in lines[1:]))
    write("\ntimeline (UTC)\n")
    if hidden:
        write(f"  … {hidden} earlier events: --events {hidden + len(timeline)} shows them\n")
    columns = [
        Column("time"),
        Column("after", right=True),
        Column("event"),
        Column("what", wide=True),
    ]
    print_table(columns, _timeline_rows(timeline), indent=2, styled="event")


def _note(job: Row) -> str:
    now, status = job["now"], job["status"]
    parts = []
    if status == "queued":
        parts.append(f"due {age(job['available_at'], now)}")
    elif status == "running":
        parts.append(f"on {job['locked_by']} for {_between(job['started_at'], now)}")
        if job["progress"] is not None:
            parts.append(f"{job['progress']:.0%}")
        if job["cancel_requested_at"]:
            parts.append("asked to stop")
        if job["lease_expires_at"] < now:
            parts.append("lease expired")
    else:
        parts.append(age(job["finished_at"], now))
        if status == "succeeded" and job["started_at"]:
            parts.append(f"took {_between(job['started_at'], job['finished_at'])}")
    if job["priority"]:
        parts.append(f"priority {job['priority']}")
    if job["last_error"]:
        parts.append(_last_line(job["last_error"]))
    return ", ".join(parts)


def _facts(job: Row) -> list[tuple[str, str]]:
    now = job["now"]
    attempts = f"{job['attempt']} of {job['max_attempts']}"
    if job["lost_leases"]:
        attempts += f", {job['lost_leases']} ended by a lost lease"
    facts: list[tuple[str, str | None]] = [
        ("attempts", attempts),
        ("priority", str(job["priority"])),
        ("key", job["idempotency_key"]),
        ("enqueued", _when(job["created_at"], now)),
        ("due", _when(job["available_at"], now) if job["status"] == "queued" else None),
        ("last start", _when(job["started_at"], now)),
        ("finished", _when(job["finished_at"], now)),
        ("worker", job["locked_by"]),
        ("lease ends", _when(job["lease_expires_at"], now)),
        ("progress", f"{job['progress'] or 0:.0%}" if job["status"] == "running" else None),
        ("stop asked", _when(job["cancel_requested_at"], now)),
        ("payload", _pretty(job["payload"])),
        ("result", _pretty(job["result"])),
        ("last error", job["last_error"] and shortened(job["last_error"], _VALUE_CHARACTERS)),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _timeline_rows(timeline: Sequence[Row]) -> list[list[object]]:
    rows: list[list[object]] = []
    before: datetime | None = None
    claimed: datetime | None = None
    for event in timeline:
        at = event["at"].astimezone(UTC)
        if before is None or at.date() != before.date():
            rows.append([f"{at:%Y-%m-%d}", "", "", ""])
        since = "" if before is None else f"+{show_seconds((at - before).total_seconds())}"
        time = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"
        rows.append([time, since, event["event"], "; ".join(_what(event, claimed))])
        before = at
        if event["event"] == "claimed":
            claimed = at
    return rows


def _what(event: Row, claimed: datetime | None) -> list[str]:
    name = event["event"]
    detail: dict[str, Any] = json.loads(event["detail"]) if event["detail"] else {}
    said = []
    if name == "claimed":
        said.append(f"attempt {event['attempt']} on {event['worker']}")
    elif name == "released" and claimed:
        said.append(f"given back unstarted after {_between(claimed, event['at'])}")
    elif event["from_status"] == "running" and claimed:
        said.append(f"ran {_between(claimed, event['at'])}")
    elif not event["worker"]:
        said.append(f"by {event['actor']}")
    if name in ("progress", "log"):
        said = _report(detail)
    if event["from_status"] == "running" and event["to_status"] != name:
        said.append("queued again" if event["to_status"] == "queued" else event["to_status"])
    if due := detail.get("available_at"):
        said.append(f"due {_due(due, event['at'])}")
    said += [
        f"{field.replace('_', ' ')} {detail[field]}"
        for field in ("kind", "priority", "max_attempts", "cloned_from")
        if detail.get(field) is not None and (field, name) != ("kind", "enqueued")
    ]
    if detail.get("via"):
        said.append(str(detail["via"]))
    if detail.get("error"):
        said.append(shortened(_last_line(detail["error"]), _NOTE_CHARACTERS))
    return said


def _report(detail: dict[str, Any]) -> list[str]:
    level, fraction, message = (detail.get(k) for k in ("level", "progress", "message"))
    parts = [level, None if fraction is None else f"{fraction:.0%}", message]
    return [": ".join(str(part) for part in parts if part is not None)]


def _due(due: str, at: datetime) -> str:
    seconds = (datetime.fromisoformat(due) - at).total_seconds()
    return f"in {show_seconds(seconds)}" if seconds > 0.0005 else "at once"


def _pretty(text: JsonText | None) -> str | None:
    if text is None or text == "{}":
        return text
    if is_terminal() and len(text) > _VALUE_CHARACTERS:
        return f"{text[:_VALUE_CHARACTERS]}…\n({len(text):,} characters: --json shows all)"
    return str(text)


def _when(time: datetime | None, now: datetime) -> str | None:
    return None if time is None else f"{show_time(time)} ({age(time, now)})"


def _between(start: datetime, end: datetime) -> str:
    return show_seconds((end - start).total_seconds())


def _last_line(text: str) -> str:
    return text.strip().rsplit("\n", 1)[-1]
