"""The rows of the model as transactions see them: what is committed, and what each session holds.

A job is a value; a session that changes one keeps its own version of it until it commits. At most
one session holds a row, so a row has at most two versions. READ COMMITTED throughout.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

#: Nearer than this is due now; what the tests put off, they put off by an hour.
SOON = timedelta(seconds=60)


@dataclass(frozen=True)
class FromNow:
    """A time that the database chose during the step: its clock plus `least` to `most` seconds."""

    least: float = 0
    most: float = 0

    def holds(self, value: datetime, before: datetime, after: datetime) -> bool:
        earliest, latest = timedelta(seconds=self.least), timedelta(seconds=self.most)
        return before + earliest <= value <= after + latest


Time = datetime | FromNow
NOW = FromNow()


def agree(database: object, model: object) -> None:
    assert database == model, f"\ndatabase: {database}\nmodel:    {model}"


class Event(NamedTuple):
    event: str
    from_status: str | None
    to_status: str | None
    attempt: int
    worker: str | None
    by_hand: bool = False


@dataclass(frozen=True)
class Job:
    """A row of jobq.jobs and its history; `expired` stands for the lease's end."""

    id: int
    kind: str
    number: int
    priority: int
    max_attempts: int
    key: str | None
    created: Time = NOW
    due: Time = NOW
    status: str = "queued"
    attempt: int = 0
    worker: str | None = None
    token: str | None = None
    expired: bool = False
    lost_leases: int = 0
    cancel_requested: bool = False
    progress: float | None = None
    result: int | None = None
    error: str | None = None
    events: tuple[Event, ...] = ()


class Floor(NamedTuple):
    """What a session's claims may skip: rows that were out of reach at an earlier one."""

    kinds: tuple[str, ...] | None
    skippable: frozenset[int]


@dataclass(frozen=True)
class Work:
    """What a session has done since its transaction began; its last two outlive a commit."""

    changes: Mapping[int, Job | None] = field(default_factory=dict)
    locked: frozenset[int] = frozenset()
    notices: frozenset[str] = frozenset()
    floor: Floor | None = None
    purged: int = 0  # where its series of purges has come to


@dataclass
class Session:
    work: Work = field(default_factory=Work)
    marks: list[Work] = field(default_factory=list)  # at begin, then at the savepoint
    idle: set[str] = field(default_factory=set)
    listens: bool = False
    inbox: list[str] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return bool(self.marks)


class Store:
    """All rows, by session. `clock` is the database's, as of the end of the last step."""

    def __init__(self, names: tuple[str, ...], clock: datetime) -> None:
        self.jobs: dict[int, Job] = {}
        self.sessions = {name: Session() for name in names}
        self.clock = clock

    def view(self, by: str) -> dict[int, Job]:
        """The jobs that the session sees, by id."""
        seen = {**self.jobs, **self.sessions[by].work.changes}
        return {number: job for number in sorted(seen) if (job := seen[number])}

    def is_held(self, by: str, number: int) -> bool:
        """Whether another session's transaction holds the row."""
        others = (session for name, session in self.sessions.items() if name != by)
        return any(number in session.work.locked for session in others)

    def is_due(self, job: Job) -> bool:
        if isinstance(job.due, FromNow):
            return job.due.most < SOON.total_seconds()
        return job.due - self.clock < SOON

    def pending(self, by: str) -> dict[int, Job]:
        """The rows that other sessions' transactions insert, change or delete."""
        return {
            number: job
            for name, session in self.sessions.items()
            if name != by
            for number, new in session.work.changes.items()
            if (job := new or self.jobs.get(number))
        }

    def known(self) -> frozenset[int]:
        """Ids of all jobs, committed or not."""
        sessions = self.sessions.values()
        return frozenset(self.jobs).union(*(session.work.changes for session in sessions))

    def lock(self, by: str, number: int) -> None:
        session = self.sessions[by]
        session.work = replace(session.work, locked=session.work.locked | {number})

    def put(self, by: str, number: int, job: Job | None) -> None:
        """Write a row; one that is queued and due wakes the sessions that wait for its kind."""
        session = self.sessions[by]
        notices = session.work.notices
        if job and job.status == "queued" and self.is_due(job):
            waiting = [s for name, s in self.sessions.items() if name != by and job.kind in s.idle]
            notices |= {job.kind} if waiting else set()
        changes = {**session.work.changes, number: job}
        session.work = replace(session.work, changes=changes, notices=notices)
        self.lock(by, number)
        if job and isinstance(job.due, FromNow) and not session.is_open:
            self._unskip(number)

    def change(
        self, by: str, job: Job, event: str, *, by_hand: bool = False, **values: object
    ) -> Job:
        """Write the row's new version, which has one event more."""
        new = replace(job, **values)  # type: ignore[arg-type]
        kept = new.status == job.status
        happened = Event(
            event,
            None if kept else job.status,
            None if kept else new.status,
            new.attempt,
            new.worker or job.worker,
            by_hand,
        )
        new = replace(new, events=(*job.events, happened))
        self.put(by, job.id, new)
        return new

    def begin(self, by: str) -> None:
        session = self.sessions[by]
        session.marks = [session.work]

    def savepoint(self, by: str) -> None:
        session = self.sessions[by]
        session.marks = [session.marks[0], session.work]

    def rollback_to_savepoint(self, by: str) -> None:
        session = self.sessions[by]
        session.work = session.marks[-1]

    def rollback(self, by: str) -> None:
        session = self.sessions[by]
        session.work, session.marks = session.marks[0], []

    def commit(self, by: str) -> None:
        """Also the end of a statement outside a transaction."""
        session = self.sessions[by]
        for number, job in session.work.changes.items():
            if job:
                self.jobs[number] = job
            else:
                self.jobs.pop(number, None)
        for listener in self.sessions.values():
            listener.inbox += session.work.notices if listener.listens else []
        work = session.work
        session.work, session.marks = Work(floor=work.floor, purged=work.purged), []

    def observe(self, by: str, stored: list[Job], now: datetime) -> None:
        """Compare what the session sees with what it must; take over the times that were open."""
        view = self.view(by)
        agree([job.id for job in stored], list(view))
        session = self.sessions[by]
        resolved = dict(session.work.changes)
        for job in stored:
            expected = view[job.id]
            for name in ("created", "due"):
                time, value = getattr(expected, name), getattr(job, name)
                if isinstance(time, FromNow):
                    assert time.holds(value, self.clock, now), f"{name}: {time}, {value}, {job}"
                    expected = replace(expected, **{name: value})
            agree(job, expected)
            target = resolved if job.id in resolved else self.jobs
            target[job.id] = expected
        session.work = replace(session.work, changes=resolved)
        self.clock = now

    def _unskip(self, number: int) -> None:
        # Stamped later than any claim so far, and seen by all at once: above every floor.
        for session in self.sessions.values():
            if floor := session.work.floor:
                floor = floor._replace(skippable=floor.skippable - {number})
                session.work = replace(session.work, floor=floor)
