"""What each verb must do, in plain Python: the state machine that the SQL is compared with.

A verb has two parts. `refusal_of_…` says before the call which error it must raise, if any; the
verb itself takes what only the database can know (ids, tokens) and returns the answer to expect.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from model_store import NOW, Event, Floor, FromNow, Job, Store
from model_values import RETRY_BASE, RETRY_CAP, Claim, NewJob, Outcome, from_now

LOCKED = "55P03"


class Queue(Store):
    def __init__(self, names: tuple[str, ...], clock: datetime) -> None:
        super().__init__(names, clock)
        self.tokens: set[str] = set()
        self.ids: list[int] = []  # of all jobs that were ever enqueued

    # Producers

    def refusal_of_enqueue(self, by: str, new: NewJob) -> str | None:
        # A row under the key that another transaction has touched may go, or come.
        if new.key and any(job.key == new.key for job in self.pending(by).values()):
            return LOCKED
        return "JQ002" if self._conflicts(new, self._under(by, new.key)) else None

    def enqueue(self, by: str, new: NewJob, number: int) -> tuple[int, bool, str]:
        if existing := self._under(by, new.key):
            return (existing.id, False, existing.status)
        self._insert(by, new, number)
        return (number, True, "queued")

    def refusal_of_enqueue_many(self, by: str, batch: Sequence[NewJob]) -> str | None:
        """Unlike enqueue it leaves alone what it sees, and waits only for what it does not."""
        unseen = {job.key for job in self.pending(by).values()}
        if any(new.key and not self._under(by, new.key) and new.key in unseen for new in batch):
            return LOCKED
        for new in batch:
            first = self._under(by, new.key) or next((n for n in batch if n.key == new.key), None)
            if new.key and self._conflicts(new, first):
                return "JQ002"
        return None

    def enqueue_many(
        self, by: str, batch: Sequence[NewJob], numbers: Sequence[int]
    ) -> list[tuple[int, bool, str]]:
        return [self.enqueue(by, new, number) for new, number in zip(batch, numbers, strict=True)]

    def clone(self, by: str, source: int, number: int) -> None:
        job = self.view(by)[source]
        new = NewJob(job.kind, job.number, job.priority, job.max_attempts)
        self._insert(by, new, number)

    # Workers

    def ready(self, by: str, kinds: Sequence[str] | None) -> list[Job]:
        """What a claim can reach, in queue order."""
        jobs = [
            job
            for job in self.view(by).values()
            if job.status == "queued" and self.is_due(job) and not self.is_held(by, job.id)
        ]
        return sorted((job for job in jobs if kinds is None or job.kind in kinds), key=_place)

    def forget_floor(self, by: str) -> None:
        session = self.sessions[by]
        session.work = replace(session.work, floor=None)

    def claim(
        self, by: str, most: int, kinds: Sequence[str] | None, ids: list[int], token: str | None,
        *, expired: bool,
    ) -> None:  # fmt: skip
        """Assert that a claim may take these jobs, and no others."""
        held = None if kinds is None else tuple(sorted(set(kinds)))
        floor = self.sessions[by].work.floor
        skippable = floor.skippable if floor and floor.kinds == held else frozenset()
        ready = self.ready(by, kinds)
        order = [job.id for job in ready]
        assert ids == [number for number in order if number in ids], f"ready were {order}"
        passed = order if len(ids) < most else order[: order.index(ids[-1]) + 1]
        skipped = {number for number in passed if number not in ids}
        assert skipped <= skippable, f"skipped {skipped - skippable}; ready were {order}"
        assert len(ids) <= most
        assert token not in self.tokens or not ids
        self.tokens |= {token} if token else set()
        for job in ready:
            if job.id in ids:
                self.change(
                    by, job, "claimed", status="running", attempt=job.attempt + 1, worker=by,
                    token=token, expired=expired, progress=None,
                )  # fmt: skip
        reached = frozenset(order) - frozenset(ids) - skippable
        session = self.sessions[by]
        session.work = replace(session.work, floor=Floor(held, self.known() - reached))

    def refusal_of_claim(self, by: str, claim: Claim) -> str | None:
        """What a verb for one run raises."""
        job = self.view(by).get(claim.job_id)
        if job is None:
            return "JQ004"
        if job.token != claim.token:
            return "JQ003"
        return LOCKED if self.is_held(by, job.id) else None

    def renew(
        self, by: str, claims: Sequence[Claim], *, expired: bool
    ) -> list[tuple[int, bool, bool, bool]]:
        answers = []
        for claim in dict.fromkeys(claims):
            job = self.view(by).get(claim.job_id)
            if job is None or job.token != claim.token:
                answers.append((claim.job_id, False, False, False))
                continue
            is_free = not self.is_held(by, job.id)
            if is_free:
                self.put(by, job.id, replace(job, expired=job.expired and expired))
            answers.append((job.id, True, is_free, job.cancel_requested))
        return answers

    def settle(
        self, by: str, outcomes: Sequence[tuple[Claim, Outcome]]
    ) -> list[tuple[int, bool | None, str | None]]:
        before = self.view(by)
        answers: dict[Claim, tuple[int, bool | None, str | None]] = {}
        for claim, outcome in outcomes:
            if claim in answers:
                continue
            job = before.get(claim.job_id)
            if job is None or job.token != claim.token:
                answers[claim] = (claim.job_id, False, job.status if job else None)
            elif self.is_held(by, job.id):
                answers[claim] = (job.id, None, job.status)
            else:
                answers[claim] = (job.id, True, self.settle_one(by, claim, outcome))
        return list(answers.values())

    def settle_one(self, by: str, claim: Claim, outcome: Outcome) -> str:
        job, verdict = self.view(by)[claim.job_id], outcome.verdict
        gives_back = verdict in ("released", "snoozed")
        due = (outcome.due or NOW) if verdict == "snoozed" else job.due
        if verdict in ("succeeded", "cancelled"):
            status = verdict
        elif verdict == "failed" and not (outcome.retryable and job.attempt < job.max_attempts):
            status = "failed"
        elif job.cancel_requested:
            status = "cancelled"
        else:
            status = "queued"
            due = (outcome.due or _backoff(job)) if verdict == "failed" else due
        error = {"succeeded": None, "failed": outcome.text or "failed without an error message"}
        new = self.change(
            by, job, "cancelled" if status == "cancelled" else verdict,
            status=status, due=due if status == "queued" else job.due,
            attempt=job.attempt - gives_back,
            result=job.id if verdict == "succeeded" else None,
            error=error.get(verdict, outcome.text or job.error), **_FREE,
        )  # fmt: skip
        return new.status

    def report(self, by: str, claim: Claim, event: str, progress: float | None) -> None:
        job = self.view(by)[claim.job_id]
        self.change(by, job, event, progress=job.progress if progress is None else progress)

    def reap(self, by: str, most: int) -> list[tuple[int, str]]:
        expired = [
            job
            for job in self.view(by).values()
            if job.status == "running" and job.expired and not self.is_held(by, job.id)
        ]
        answers = []
        for job in expired[:most]:
            is_last = job.attempt >= job.max_attempts
            status = "failed" if is_last else "cancelled" if job.cancel_requested else "queued"
            self.change(
                by, job, "lease_lost", status=status, lost_leases=job.lost_leases + 1,
                due=_backoff(job) if status == "queued" else job.due,
                error=f"lease lost: worker {job.worker} did not renew it", **_FREE,
            )  # fmt: skip
            answers.append((job.id, status))
        return answers

    # Operators

    def refusal_of_job(self, by: str, number: int, statuses: Iterable[str] = ()) -> str | None:
        """What a verb for one job raises."""
        job = self.view(by).get(number)
        if job is None:
            return "JQ004"
        if self.is_held(by, number):
            return LOCKED
        return "JQ005" if statuses and job.status not in statuses else None

    def cancel(self, by: str, number: int) -> str:
        job = self.view(by)[number]
        self.lock(by, number)
        if job.status == "queued":
            return self.change(by, job, "cancelled", status="cancelled").status
        if job.status == "running" and not job.cancel_requested:
            self.change(by, job, "cancel_requested", cancel_requested=True)
        return job.status

    def retry(self, by: str, number: int, extra_attempts: int) -> None:
        job = self.view(by)[number]
        most = max(job.max_attempts, job.attempt + extra_attempts)
        self.change(
            by, job, "retried", status="queued", due=NOW, cancel_requested=False, max_attempts=most
        )

    def steer(
        self, by: str, verb: str, wanted: dict[str, Any], most: int, *,
        value: Any = None, dry_run: bool = False,
    ) -> tuple[int, int, list[int]]:  # fmt: skip
        """The verbs that take a filter; value: priority, extra attempts, or whether later."""
        statuses, is_new, act = self._verbs()[verb]
        found = [
            job
            for job in self.view(by).values()
            if job.status in statuses and _matches(job, wanted) and is_new(job, value)
        ]
        free = [job for job in found if not self.is_held(by, job.id)][:most]
        for job in [] if dry_run else free:
            act(by, job, value)
        return (len(found), 0 if dry_run else len(free), [job.id for job in found[:10]])

    def purge(self, by: str, most: int) -> int:
        """A batch; the session's next one goes on behind it, unless this one is short."""
        session = self.sessions[by]
        view = self.view(by).values()
        ended = [job.id for job in view if job.status not in ("queued", "running")]
        batch = [number for number in ended if number > session.work.purged][:most]
        session.work = replace(session.work, purged=batch[-1] if len(batch) == most else 0)
        free = [number for number in batch if not self.is_held(by, number)]
        for number in free:
            self.put(by, number, None)
        return len(free)

    # The owner, by plain UPDATE

    def expire(self, by: str, claim: Claim) -> None:
        job = self.view(by)[claim.job_id]
        self.put(by, job.id, replace(job, expired=True))

    def edit(self, by: str, number: int) -> None:
        job = self.view(by)[number]
        self.change(by, job, "changed", by_hand=True, max_attempts=job.max_attempts + 1)

    def _verbs(self) -> dict[str, tuple[set[str], Callable[..., bool], Callable[..., object]]]:
        return {
            "retry_jobs": (
                {"failed", "cancelled"},
                lambda job, _: True,
                lambda by, job, extra: self.retry(by, job.id, extra),
            ),
            "cancel_jobs": (
                {"queued", "running"},
                lambda job, _: not job.cancel_requested,
                lambda by, job, _: self.cancel(by, job.id),
            ),
            "set_priority": (
                {"queued"},
                lambda job, priority: job.priority != priority,
                lambda by, job, priority: self.change(
                    by, job, "changed", priority=priority, due=NOW if self.is_due(job) else job.due
                ),
            ),
            "reschedule": (
                {"queued"},
                lambda job, later: later or not self.is_due(job),
                lambda by, job, later: self.change(by, job, "changed", due=from_now(later=later)),
            ),
        }

    def _insert(self, by: str, new: NewJob, number: int) -> None:
        assert number > max(self.ids, default=0), "ids rise"
        self.ids.append(number)
        event = Event("enqueued", None, "queued", 0, None)
        self.put(by, number, Job(
            number, new.kind, new.number, new.priority, new.max_attempts, new.key,
            due=from_now(later=new.later), events=(event,),
        ))  # fmt: skip

    def _under(self, by: str, key: str | None) -> Job | None:
        jobs = self.view(by).values()
        return next((job for job in jobs if key and job.key == key), None)

    def _conflicts(self, new: NewJob, other: Job | NewJob | None) -> bool:
        return other is not None and (new.kind, new.number) != (other.kind, other.number)


_FREE: dict[str, Any] = {"worker": None, "token": None, "expired": False}


def _place(job: Job) -> tuple[object, ...]:
    return (-job.priority, job.due, job.created, job.id)


def _backoff(job: Job) -> FromNow:
    delay = min(RETRY_CAP, RETRY_BASE * 2 ** (job.attempt - 1))
    return FromNow(delay, min(RETRY_CAP, 1.25 * delay))


def _matches(job: Job, wanted: dict[str, Any]) -> bool:
    return all(
        job.id in value if name == "ids" else getattr(job, name) == value
        for name, value in wanted.items()
    )
