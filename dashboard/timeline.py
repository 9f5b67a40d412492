"""A job's events as spans of waiting and running, and as lines that can be read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ui import span

__all__ = ["Line", "Mark", "Span", "errors", "lines", "marks", "spans"]

Event = Mapping[str, Any]

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)

#: What ended a run, by the event: a sign and a word.
OUTCOMES = {
    "succeeded": ("✓", "succeeded"),
    "failed": ("✕", "failed"),
    "lease_lost": ("⚠", "lease lost"),
    "cancelled": ("⊘", "cancelled"),
    "released": ("↩", "given back"),
    "snoozed": ("◷", "snoozed"),
    "requeued": ("↩", "put back"),
    "running": ("▶", "running"),
}

_SIGNS = {
    **{event: sign for event, (sign, _) in OUTCOMES.items()},
    "enqueued": "+",
    "claimed": "▶",
    "retried": "↻",
    "cancel_requested": "⊘",
    "changed": "✎",
    "progress": "·",
    "log": "≡",
    "control": "✎",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a job's life, in the lane of the attempt that it led to or was."""

    attempt: int
    phase: str  # "not due", "waiting", "run"
    start: datetime
    end: datetime
    outcome: str = ""  # of a run, a key of OUTCOMES; none where it is not known yet
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in a lane: a report of progress, a log line, or an act by hand."""

    attempt: int
    at: datetime
    what: str  # "progress", "log", "by hand"
    said: str


@dataclass(frozen=True, slots=True)
class Line:
    """An event in words."""

    id: int
    at: datetime
    since: float | None
    event: str
    sign: str
    title: str
    said: tuple[str, ...]
    who: str
    by_hand: bool


@dataclass(slots=True)
class _Story:
    """Where the telling of a job has got to."""

    found: list[Span] = field(default_factory=list)
    waits: tuple[datetime, datetime] | None = None  # since, due
    runs: tuple[datetime, int, str | None] | None = None  # since, attempt, worker

    def wait(self, at: datetime, detail: Mapping[str, Any]) -> None:
        self.waits = (at, _due(detail) or at)

    def end_wait(self, at: datetime, attempt: int) -> None:
        if self.waits is None:
            return
        since, due = self.waits
        self.waits = None
        if due > since:
            self.found.append(Span(attempt, "not due", since, min(due, at)))
        if at > due:
            self.found.append(Span(attempt, "waiting", max(since, due), at))

    def end_run(self, at: datetime, outcome: str, event: Event | None = None) -> None:
        unseen = (at, event["attempt"], event["worker"]) if event else (at, 0, None)
        since, attempt, worker = self.runs or unseen
        self.runs = None
        self.found.append(Span(attempt, "run", since, at, outcome, worker))

    def break_off(self, last: datetime, now: datetime | None, attempt: int) -> None:
        if self.waits and (now or last > self.waits[0]):
            self.end_wait(max(now, self.waits[1]) if now else last, attempt + 1)
        if self.runs:
            self.end_run(max(now or last, self.runs[0]), "running" if now else "")


def spans(events: Sequence[Event], now: datetime | None) -> list[Span]:
    """The stretches of a job's life; what still lasts ends now, or when the job is due.

    Without `now` later events are known to exist: what lasts is told as far as these events go.
    """
    story, attempt = _Story(), 0
    for event in events:
        at, name, detail = event["at"], event["event"], _detail(event)
        attempt = event["attempt"] or 0
        if name == "claimed":
            story.end_wait(at, attempt)
            story.runs = (at, attempt, event["worker"])
        elif event["from_status"] == "running":
            story.end_run(at, event["event"], event)
            if event["to_status"] == "queued":
                story.wait(at, detail)
        elif event["to_status"] == "queued":
            story.wait(at, detail)
        elif event["to_status"] == "cancelled" or (name == "changed" and _due(detail)):
            lasted = story.waits is not None
            story.end_wait(at, attempt + 1)
            if name == "changed" and lasted:
                story.wait(at, detail)
    if events:
        story.break_off(events[-1]["at"], now, attempt)
    return story.found


def marks(events: Sequence[Event]) -> list[Mark]:
    """The moments that are drawn into the lanes."""
    found, lane = [], 1
    for event in events:
        attempt = event["attempt"] or 0
        if event["event"] == "claimed":
            lane = attempt
        elif event["to_status"] == "queued":
            lane = attempt + 1
        if event["event"] in ("progress", "log"):
            found.append(Mark(lane, event["at"], event["event"], _report(_detail(event))))
        elif _by_hand(event):
            title, said = _words(event, None)
            found.append(Mark(lane, event["at"], "by hand", ": ".join([title, *said[:1]])))
    return found


def errors(events: Sequence[Event]) -> list[tuple[Line, str]]:
    """The events that left an error, each with its whole text."""
    told = {line.id: line for line in lines(events)}
    return [
        (told[event["id"]], str(_detail(event)["error"]))
        for event in events
        if _detail(event).get("error") and event["event"] != "enqueued"
    ]


def lines(events: Sequence[Event]) -> list[Line]:
    """The events in words, in their order."""
    found: list[Line] = []
    before = claimed = None
    for event in events:
        at, by_hand = event["at"], _by_hand(event)
        title, said = _words(event, claimed)
        found.append(
            Line(
                event["id"],
                at,
                None if before is None else (at - before).total_seconds(),
                event["event"],
                _SIGNS.get(event["event"], "·"),
                title,
                tuple(said),
                event["actor"] if by_hand or not event["worker"] else event["worker"],
                by_hand,
            )
        )
        before = at
        claimed = at if event["event"] == "claimed" else claimed
    return found


def _by_hand(event: Event) -> bool:
    """Whether somebody stepped in, rather than a worker or a producer doing its work."""
    if event["event"] in ("retried", "cancel_requested", "changed", "control", "requeued"):
        return True
    if event["event"] == "cancelled" and event["from_status"] == "queued":
        return True
    return not {"via", "cloned_from"}.isdisjoint(_detail(event))


def _words(event: Event, claimed: datetime | None) -> tuple[str, list[str]]:
    name, detail = event["event"], _detail(event)
    if name in ("progress", "log"):
        return _report(detail), []
    said = []
    if event["from_status"] == "running" and claimed:
        said.append(f"after {span((event['at'] - claimed).total_seconds())}")
    if event["from_status"] == "running" and event["to_status"] == "queued":
        said.append("queued again")
    if due := _due(detail):
        seconds = (due - event["at"]).total_seconds()
        said.append(f"due in {span(seconds)}" if seconds > 0.0005 else "due at once")
    for key, words in _FIELDS.items():
        if detail.get(key) is not None and (key, name) != ("kind", "enqueued"):
            said.append(words.format(detail[key]))
    if detail.get("error") and name != "enqueued":
        error = str(detail["error"]).strip().rpartition("\n")[2][:300]
        said.append(error.removeprefix("lease lost: ") if name == "lease_lost" else error)
    return _title(event), said


_FIELDS = {
    "priority": "priority {}",
    "max_attempts": "at most {} attempts",
    "kind": "kind {}",
    "cloned_from": "a copy of job {}",
    "via": "{}, without a function of jobq",
}


def _title(event: Event) -> str:
    name, ended = str(event["event"]), event["to_status"] == "failed"
    return {
        "claimed": f"attempt {event['attempt']} started",
        "failed": f"attempt {event['attempt']} failed{' for good' if ended else ''}",
        "lease_lost": f"lease lost{', no attempt left' if ended else ''}",
        "released": "given back unstarted",
        "cancel_requested": "asked to stop",
        "requeued": "put back into the queue",
    }.get(name, name.replace("_", " "))


def _report(detail: Mapping[str, Any]) -> str:
    fraction, message = detail.get("progress"), detail.get("message")
    parts = [detail.get("level"), None if fraction is None else f"{fraction:.0%}", message]
    return ": ".join(str(part) for part in parts if part is not None) or "alive"


def _due(detail: Mapping[str, Any]) -> datetime | None:
    due = detail.get("available_at")
    if due is None:
        return None
    try:
        # In the zone of who wrote it, where the last day may be one of a year that Python lacks.
        return datetime.fromisoformat(due).astimezone(UTC)
    except (ValueError, OverflowError):
        return _FIRST if due.endswith("BC") else _LAST


def _detail(event: Event) -> dict[str, Any]:
    detail = json.loads(event["detail"]) if event["detail"] else {}
    return detail if isinstance(detail, dict) else {}
