"""The jobs beside the files: what is done with each, and what must have become of it.

Every figure is taken from the job's row and its events, so by the database's clock.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from jobq.cli.database import Row
from jobq.cli.times import show_seconds
from jobq.client import NewJob, payload_text
from jobq.demo.processes import LEASE_SECONDS

__all__ = ["CRASH", "ENDLESS", "Outcome", "Story", "stories"]

CRASH = "demo.crash"
ENDLESS = "demo.endless"
LONG_SECONDS = 2.25 * LEASE_SECONDS
DELAY_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """A story's end: the job, its events in order, when the first file job started."""

    job: Row
    events: list[Row]
    first_file_start: datetime | None

    def count(self, event: str) -> int:
        """How many of its events are these."""
        return sum(e["event"] == event for e in self.events)

    def at(self, event: str) -> datetime:
        """When the first of these was."""
        time: datetime = next(e["at"] for e in self.events if e["event"] == event)
        return time

    def workers(self) -> list[str]:
        """Who claimed it, in order."""
        return [e["worker"] for e in self.events if e["event"] == "claimed"]

    def starts(self) -> list[datetime]:
        """When its attempts began, in order, without those given back unstarted."""
        begun = {e["attempt"]: e["at"] for e in self.events if e["event"] == "claimed"}
        return list(begun.values())

    def status_is(self, status: str, attempt: int) -> str | None:
        """What is wrong with status or attempt; None if nothing is."""
        found = (self.job["status"], self.job["attempt"])
        if found == (status, attempt):
            return None
        error = (self.job["last_error"] or "").strip().rsplit("\n", 1)[-1]
        why = f": {error}" if error else ""
        return f"is {found[0]} after attempt {found[1]}, not {status} after {attempt}{why}"


@dataclass(slots=True)
class Story:
    """A job with a purpose. `check` says what is off, or None; `tell` what happened."""

    title: str
    new: NewJob
    check: Callable[[Outcome], str | None]
    tell: Callable[[Outcome], str]
    job_id: int = field(default=0)


def stories(run: str) -> list[Story]:
    """The stories of a run; the one whose worker dies comes first, the urgent one last."""

    def new(kind: str, key: str, payload: dict[str, Any] | None = None, **options: Any) -> NewJob:
        return NewJob(
            kind=kind,
            payload=payload_text({"run": run, **(payload or {})}),
            idempotency_key=f"demo:{run}:{key}",
            **options,
        )

    return [
        Story("its worker is killed", new(CRASH, "crash", retry_base_seconds=1), _crash, _rescued),
        Story(
            "fails twice",
            new("demo.flaky", "flaky", max_attempts=5, retry_base_seconds=1),
            _flaky,
            _third_try,
        ),
        Story(
            "outlives its lease",
            new("demo.long", "long", {"seconds": LONG_SECONDS}),
            _long,
            _renewed,
        ),
        Story("is cancelled while it runs", new(ENDLESS, "endless"), _cancelled, _stopped),
        Story(
            f"is delayed by {DELAY_SECONDS} s",
            new("demo.note", "later", {"text": "later"}, delay=DELAY_SECONDS),
            _delayed,
            _on_time,
        ),
        Story(
            "is urgent, enqueued last",
            new("demo.note", "urgent", {"text": "now"}, priority=50),
            _urgent,
            _first,
        ),
    ]


def _crash(end: Outcome) -> str | None:
    if problem := end.status_is("succeeded", 2):
        return problem
    if end.job["lost_leases"] != 1 or end.count("lease_lost") != 1:
        return f"lost {end.job['lost_leases']} leases, not one"
    if len(set(end.workers())) != 2:
        return "was not finished by another worker than the killed one"
    return None


def _rescued(end: Outcome) -> str:
    first, second = end.starts()
    found = end.at("lease_lost") - first
    return (
        f"found {_span(found)} after its start (lease {LEASE_SECONDS} s), and run again"
        f" by another worker after {_span(second - first)}"
    )


def _flaky(end: Outcome) -> str | None:
    if problem := end.status_is("succeeded", 3):
        return problem
    return None if end.count("failed") == 2 else f"failed {end.count('failed')} times, not twice"


def _third_try(end: Outcome) -> str:
    waits = " and ".join(_span(b - a) for a, b in pairwise(end.starts()))
    return f"succeeded on its third try; {waits} between the starts"


def _long(end: Outcome) -> str | None:
    if problem := end.status_is("succeeded", 1):
        return problem
    ran = (end.job["finished_at"] - end.job["started_at"]).total_seconds()
    if ran <= LEASE_SECONDS:
        return f"ran {show_seconds(ran)}, which is no longer than its lease"
    return None if end.count("progress") >= 2 else "reported no progress"


def _renewed(end: Outcome) -> str:
    ran = end.job["finished_at"] - end.job["started_at"]
    return (
        f"ran {_span(ran)} on a lease of {LEASE_SECONDS} s, renewed meanwhile;"
        f" {end.count('progress')} progress reports"
    )


def _cancelled(end: Outcome) -> str | None:
    if problem := end.status_is("cancelled", 1):
        return problem
    return None if end.count("cancel_requested") == 1 else "was not asked to stop while it ran"


def _stopped(end: Outcome) -> str:
    return (
        f"stopped {_span(end.job['finished_at'] - end.at('cancel_requested'))} after it was asked"
    )


def _delayed(end: Outcome) -> str | None:
    if problem := end.status_is("succeeded", 1):
        return problem
    if end.job["available_at"] - end.job["created_at"] != timedelta(seconds=DELAY_SECONDS):
        return "fell due at another time than it should"
    early = end.job["started_at"] < end.job["available_at"]
    return "started before it was due" if early else None


def _on_time(end: Outcome) -> str:
    return f"started {_span(end.job['started_at'] - end.job['available_at'])} after it was due"


def _urgent(end: Outcome) -> str | None:
    if problem := end.status_is("succeeded", 1):
        return problem
    if end.first_file_start is not None and end.job["started_at"] > end.first_file_start:
        return "started after files of a lower priority"
    return None


def _first(end: Outcome) -> str:
    return f"priority {end.job['priority']}: no file was claimed before it"


def _span(length: timedelta) -> str:
    return show_seconds(length.total_seconds())
