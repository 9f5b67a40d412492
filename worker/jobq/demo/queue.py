"""The demo's side of the queue: what it enqueues, asks and counts, for one run."""

import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobq import client
from jobq.cli.database import Connection, Row, query
from jobq.client import NewJob, payload_text
from jobq.demo.files import SourceFile
from jobq.demo.handlers import app
from jobq.demo.stories import Outcome, Story
from jobq.errors import IdempotencyConflict

__all__ = ["Counts", "Latency", "RunQueue", "Throughput"]

BATCH = 1000
PINGS = 100
_PING_SECONDS = 10.0

_COUNTS = """
select d.kind, d.status, count(*) as jobs
from jobq.job_details d
where d.id between %s and %s and d.payload ->> 'run' = %s
group by d.kind, d.status
"""
_JOBS = """
select d.id, d.status, d.progress, d.attempt, d.available_at, d.last_error, clock_timestamp() as now
from jobq.job_details d
where d.id = any(%s)
"""
_RESULTS = """
select d.payload ->> 'path' as path, d.result
from jobq.job_details d
where d.id = any(%s) and d.status = 'succeeded' and d.result is not null
"""
_SPAN = """
select min(d.started_at) as first_start, max(d.finished_at) as last_finish,
  count(*) filter (where d.status = 'succeeded') as succeeded,
  count(*) filter (where d.status = 'failed') as failed
from jobq.job_details d
where d.id = any(%s)
"""
_PICK_UPS = """
select extract(epoch from d.started_at - d.available_at)::float8 as seconds
from jobq.job_details d
where d.id = any(%s)
order by 1
"""
_CANCEL_OLD = "select c.changed from jobq.cancel_jobs(%s::jsonb) c"
# One at a time: a second demo's workers would take this one's jobs.
_LOCK = "select pg_try_advisory_lock(hashtextextended('jobq demo', 0)) as locked"

Counts = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Latency:
    """From due to claimed, in seconds, of so many single jobs."""

    jobs: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """The file jobs from the first claim to the last finish, by the database's clock."""

    succeeded: int
    failed: int
    first_start: datetime | None
    seconds: float


class RunQueue:
    """One run's jobs, by a connection of its own."""

    def __init__(self, conn: Connection, run: str) -> None:
        self.conn = conn
        self.run = run
        self.file_ids: list[int] = []
        self._lowest, self._highest = 2**63 - 1, 0

    def lock(self) -> bool:
        """Whether this is the only demo on this database, from now to the end of the session."""
        return bool(query(self.conn, _LOCK)[0]["locked"])

    def cancel_leftovers(self) -> int:
        """Cancel what a demo that was killed left behind, and return how many jobs that were."""
        wanted = json.dumps({"kind": list(app.jobs)})
        return int(query(self.conn, _CANCEL_OLD, wanted)[0]["changed"])

    def enqueue_story(self, story: Story) -> None:
        """Enqueue a story's job."""
        story.job_id = client.enqueue(self.conn, story.new).job_id
        self._seen(story.job_id)

    def enqueue_files(self, files: Sequence[SourceFile]) -> float:
        """Enqueue a job per file, in batches; return the seconds it took, commits included."""
        new = [
            NewJob(kind="demo.file", payload=payload_text({"run": self.run, "path": file.path}))
            for file in files
        ]
        started = time.monotonic()
        for start in range(0, len(new), BATCH):
            done = client.enqueue_many(self.conn, new[start : start + BATCH])
            self.file_ids += [job.job_id for job in done]
        seconds = time.monotonic() - started
        for job_id in self.file_ids:
            self._seen(job_id)
        return seconds

    def try_taken_key(self, story: Story) -> str | None:
        """Enqueue another payload under a story's key; return the refusal, or None."""
        payload = payload_text({"run": self.run, "text": "another payload"})
        key = story.new.idempotency_key
        try:
            client.enqueue(
                self.conn, NewJob(kind="demo.note", payload=payload, idempotency_key=key)
            )
        except IdempotencyConflict as refusal:
            return f"{refusal.sqlstate}: {str(refusal).splitlines()[0]}"
        return None

    def cancel(self, story: Story) -> None:
        """Cancel a story's job; if it runs, its worker is asked to stop it."""
        client.cancel(self.conn, story.job_id)

    def counts(self) -> Counts:
        """Jobs of this run by kind and status."""
        counts: Counts = {}
        for row in query(self.conn, _COUNTS, self._lowest, self._highest, self.run):
            counts.setdefault(row["kind"], {})[row["status"]] = row["jobs"]
        return counts

    def states(self, told: Sequence[Story]) -> dict[int, Row]:
        """The stories' jobs by id."""
        return {row["id"]: row for row in query(self.conn, _JOBS, [s.job_id for s in told])}

    def results(self) -> dict[str, dict[str, Any]]:
        """What the file jobs stored, by path."""
        rows = query(self.conn, _RESULTS, self.file_ids)
        return {row["path"]: json.loads(row["result"]) for row in rows}

    def throughput(self) -> Throughput:
        """How the file jobs went."""
        row = query(self.conn, _SPAN, self.file_ids)[0]
        seconds = 0.0
        if row["first_start"] and row["last_finish"]:
            seconds = (row["last_finish"] - row["first_start"]).total_seconds()
        return Throughput(row["succeeded"], row["failed"], row["first_start"], seconds)

    def outcome(self, story: Story, first_file_start: datetime | None) -> Outcome:
        """How a story ended."""
        job = query(self.conn, "select d.* from jobq.job_details d where d.id = %s", story.job_id)
        events = query(
            self.conn, "select t.* from jobq.job_timeline t where t.job_id = %s order by t.id",
            story.job_id,
        )  # fmt: skip
        return Outcome(job[0], events, first_file_start)

    def measure_pick_up(self) -> Latency | None:
        """Enqueue single jobs one after the other, each when the one before it is long done.

        None if one did not start in time.
        """
        ids = []
        for _ in range(PINGS):
            new = NewJob(kind="demo.ping", payload=payload_text({"run": self.run}))
            job_id = client.enqueue(self.conn, new).job_id
            self._seen(job_id)
            ids.append(job_id)
            if not self._succeeds(job_id):
                return None
            time.sleep(random.uniform(0.01, 0.03))
        seconds = [row["seconds"] for row in query(self.conn, _PICK_UPS, ids)]
        p99 = seconds[math.ceil(0.99 * len(seconds)) - 1]
        return Latency(len(seconds), statistics.median(seconds), p99)

    def verify(self) -> list[Row]:
        """What `verify()` finds in the whole database."""
        return query(self.conn, "select v.* from jobq.verify() v")

    def _succeeds(self, job_id: int) -> bool:
        deadline = time.monotonic() + _PING_SECONDS
        while time.monotonic() < deadline:
            rows = query(
                self.conn, "select d.status from jobq.job_details d where d.id = %s", job_id
            )
            if rows[0]["status"] == "succeeded":
                return True
            time.sleep(0.002)
        return False

    def _seen(self, job_id: int) -> None:
        self._lowest, self._highest = min(self._lowest, job_id), max(self._highest, job_id)
