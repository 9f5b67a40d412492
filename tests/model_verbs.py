"""The verbs as the state machine calls them: each call, its answer and the model's, compared."""

from collections.abc import Sequence
from typing import Any

from psycopg.types.json import Jsonb

from model import LOCKED
from model_machine import Sessions
from model_store import agree
from model_values import RETRY_BASE, RETRY_CAP, Claim, NewJob, Outcome


class Verbs(Sessions):
    # Producers

    def enqueue(self, by: str, new: NewJob) -> None:
        refusal = self.queue.refusal_of_enqueue(by, new)
        query = """
        select * from jobq.enqueue(%s, %s, %s, delay => %s::interval, max_attempts => %s,
          idempotency_key => %s, retry_base_seconds => %s, retry_cap_seconds => %s)"""
        answers = self.call(
            by, "enqueue", refusal, query, new.kind, Jsonb({"n": new.number}), new.priority,
            "1 hour" if new.later else None, new.max_attempts, new.key, RETRY_BASE, RETRY_CAP,
        )  # fmt: skip
        for answer in answers:
            agree(answer, self.queue.enqueue(by, new, answer.job_id))
        self.check(by)

    def enqueue_many(self, by: str, batch: list[NewJob]) -> None:
        refusal = self.queue.refusal_of_enqueue_many(by, batch)
        query = "select job_id, created, status from jobq.enqueue_many(%s)"
        elements = Jsonb([new.element() for new in batch])
        if answers := self.call(by, "enqueue_many", refusal, query, elements):
            ids = [answer.job_id for answer in answers]
            agree(answers, self.queue.enqueue_many(by, batch, ids))
        self.check(by)

    def clone(self, by: str, job: int) -> None:
        # It reads the row and locks nothing.
        refusal = None if job in self.queue.view(by) else "JQ004"
        for answer in self.call(by, "clone", refusal, "select jobq.clone(%s) as id", job):
            self.queue.clone(by, job, answer.id)
        self.check(by)

    # Workers

    def claim(
        self, by: str, kinds: list[str] | None, max_jobs: int, lease: str, *, anew: bool = False
    ) -> None:
        if anew:
            self.clients[by].conn.execute("set jobq.floor = ''")
            self.queue.forget_floor(by)
        query = "select id, lease_token::text from jobq.claim(%s, %s, %s::text[], %s::interval)"
        taken = self.call(by, "claim", None, query, by, max_jobs, kinds, lease)
        tokens = {job.lease_token for job in taken}
        assert len(tokens) == bool(taken)
        ids, token = [job.id for job in taken], next(iter(tokens), None)
        self.queue.claim(by, max_jobs, kinds, ids, token, expired=lease != "1 hour")
        self.tally["claimed"] += len(ids)
        self.claims = [*(Claim(job.id, job.lease_token) for job in taken), *self.claims]
        self.check(by)

    def renew(self, by: str, claims: Sequence[int], lease: str) -> None:
        held = [claim for number in claims if (claim := self._claim(number))]
        query = "select * from jobq.renew(%s::bigint[], %s::uuid[], %s::interval)"
        ids, tokens = [c.job_id for c in held], [c.token for c in held]
        answers = self.call(by, "renew", None, query, ids, tokens, lease)
        agree(answers, self.queue.renew(by, held, expired=lease != "1 hour"))
        self.tally["renew, renewed"] += sum(a.renewed for a in answers)
        self.tally["renew, held elsewhere"] += sum(a.held and not a.renewed for a in answers)
        self.check(by)

    def settle(self, by: str, outcomes: Sequence[tuple[int, Outcome]]) -> None:
        ended = [(claim, outcome) for n, outcome in outcomes if (claim := self._claim(n))]
        elements = Jsonb([outcome.element(claim) for claim, outcome in ended])
        answers = self.call(by, "settle", None, "select * from jobq.settle(%s)", elements)
        agree(answers, self.queue.settle(by, ended))
        for answer in answers:
            self.tally[f"settle, accepted {answer.accepted}"] += 1
        self.check(by)

    def succeed(self, by: str, claim: int) -> None:
        self._end(by, claim, Outcome("succeeded"))

    def fail(self, by: str, claim: int, *, retryable: bool, later: bool | None) -> None:
        self._end(by, claim, Outcome("failed", "no", retryable, later))

    def release(self, by: str, claim: int) -> None:
        self._end(by, claim, Outcome("released"))

    def snooze(self, by: str, claim: int, *, later: bool) -> None:
        self._end(by, claim, Outcome("snoozed", later=later))

    def stop(self, by: str, claim: int, reason: str | None) -> None:
        self._end(by, claim, Outcome("cancelled", reason))

    def report_progress(self, by: str, claim: int, progress: float) -> None:
        self._report(by, "report_progress", claim, progress, "%s::real", progress)

    def log(self, by: str, claim: int) -> None:
        self._report(by, "log", claim, None, "%s, %s", "info", "hello")

    def reap(self, by: str, max_jobs: int) -> None:
        answers = self.call(by, "reap", None, "select * from jobq.reap(%s)", max_jobs)
        agree(answers, self.queue.reap(by, max_jobs))
        for answer in answers:
            self.tally[f"reap, {answer.status}"] += 1
        self.check(by)

    # Operators

    def cancel(self, by: str, job: int) -> None:
        job = self._job(job)
        refusal = self.queue.refusal_of_job(by, job)
        if answers := self.call(by, "cancel", refusal, "select jobq.cancel(%s)", job):
            agree(answers, [(self.queue.cancel(by, job),)])
        self.check(by)

    def retry(self, by: str, job: int, extra_attempts: int) -> None:
        job = self._job(job)
        refusal = self.queue.refusal_of_job(by, job, ("failed", "cancelled"))
        query = "select jobq.retry(%s, %s)"
        if answers := self.call(by, "retry", refusal, query, job, extra_attempts):
            agree(answers, [("queued",)])
            self.queue.retry(by, job, extra_attempts)
        self.check(by)

    def cancel_jobs(self, **how: Any) -> None:
        self._steer("cancel_jobs", None, "", **how)

    def retry_jobs(self, *, extra_attempts: int, **how: Any) -> None:
        self._steer("retry_jobs", extra_attempts, "%s, ", extra_attempts, **how)

    def set_priority(self, *, priority: int, **how: Any) -> None:
        self._steer("set_priority", priority, "%s, ", priority, **how)

    def reschedule(self, *, later: bool, **how: Any) -> None:
        delay = "1 hour" if later else None
        self._steer("reschedule", later, "delay => %s::interval, ", delay, **how)

    def purge(self, by: str, max_jobs: int) -> None:
        self.clients[by].wait_beyond(self.queue.clock, 0.002)
        answers = self.call(by, "purge", None, "select jobq.purge('1 ms', %s)", max_jobs)
        expected = self.queue.purge(by, max_jobs)
        agree(answers, [(expected,)])
        self.tally["purged"] += expected
        self.check(by)

    # The owner, by plain UPDATE

    def expire(self, by: str, claim: int) -> None:
        """Let a lease end."""
        if held := self._claim(claim):
            refusal = self.queue.refusal_of_claim(by, held)
            query = """
            update jobq.jobs set lease_expires_at = created_at
            where id = %s and lease_token = %s returning id"""
            waits = LOCKED if refusal == LOCKED else None
            if self.call(by, "expire", waits, query, held.job_id, held.token):
                self.queue.expire(by, held)
            self.check(by)

    def edit(self, by: str, job: int) -> None:
        """Allow one attempt more."""
        refusal = self.queue.refusal_of_job(by, job)
        query = "update jobq.jobs set max_attempts = max_attempts + 1 where id = %s returning id"
        if self.call(by, "edit", LOCKED if refusal == LOCKED else None, query, job):
            self.queue.edit(by, job)
        self.check(by)

    def _job(self, number: int) -> int:
        claim = self._claim(-number) if number <= 0 else None
        return claim.job_id if claim else number

    def _claim(self, number: int) -> Claim | None:
        return self.claims[number] if number < len(self.claims) else None

    def _end(self, by: str, number: int, outcome: Outcome) -> None:
        claim = self._claim(number)
        if claim is None:
            return
        refusal = self.queue.refusal_of_claim(by, claim)
        verb, args = outcome.call(claim)
        query = f"select jobq.{verb}(%s, %s{', %s' * len(args)}) as status"
        if answers := self.call(by, verb, refusal, query, claim.job_id, claim.token, *args):
            agree(answers, [(self.queue.settle_one(by, claim, outcome),)])
        self.check(by)

    def _report(
        self, by: str, verb: str, number: int, progress: float | None, places: str, *args: object
    ) -> None:
        claim = self._claim(number)
        if claim is None:
            return
        refusal = self.queue.refusal_of_claim(by, claim)
        query = f"select jobq.{verb}(%s, %s, {places})"
        if self.call(by, verb, refusal, query, claim.job_id, claim.token, *args):
            self.queue.report(by, claim, verb.removeprefix("report_"), progress)
        self.check(by)

    def _steer(
        self, verb: str, value: Any, place: str, *args: object,
        by: str, wanted: dict[str, Any], max_jobs: int, dry_run: bool,
    ) -> None:  # fmt: skip
        query = f"select * from jobq.{verb}(%s, {place}dry_run => %s, max_jobs => %s)"
        answers = self.call(by, verb, None, query, Jsonb(wanted), *args, dry_run, max_jobs)
        expected = self.queue.steer(by, verb, wanted, max_jobs, value=value, dry_run=dry_run)
        agree(answers, [expected])
        self.tally[f"{verb}, changed"] += expected[1]
        self.check(by)
