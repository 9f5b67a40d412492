"""The connections of the state machine's sessions, and what they see stored."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from helpers import Connection, scalar, wait_until
from psycopg import Notify

from ledger import refused
from model_store import Event, Job
from verbs import rows

_JOBS = r"""
select id, kind, (payload ->> 'n')::int as number, priority::int, max_attempts,
  idempotency_key as key, created_at as created, available_at as due, status::text, attempt,
  locked_by as worker, lease_token::text as token,
  coalesce(lease_expires_at < clock_timestamp(), false) as expired, lost_leases,
  cancel_requested_at is not null as cancel_requested, progress, result::int,
  regexp_replace(last_error, ' by \d{4}-.*', '') as error
from jobq.jobs
order by id"""

_EVENTS = """
select job_id, event::text, from_status::text, to_status::text, attempt, worker,
  coalesce(detail ->> 'via' = 'by hand', false)
from jobq.job_events
order by job_id, id"""


class Client:
    """One session. A call that is to be refused is made under a savepoint inside a transaction."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.heard: list[str] = []
        conn.add_notify_handler(self._hear)

    def reset(self) -> None:
        """Forget transaction, LISTEN, locks, and where claims and purges had come to."""
        self.conn.rollback()
        for query in ("unlisten *", "select pg_advisory_unlock_all()", "reset all"):
            self.conn.execute(query)
        # For the waits that must happen. Where none may, it turns one into an error.
        self.conn.execute("set lock_timeout = '10ms'")
        self.heard.clear()

    def call(
        self, refusal: str | None, query: str, *args: object, in_transaction: bool = False
    ) -> list[Any]:
        """Run the query, which must end with this SQLSTATE (None: with rows)."""
        if refusal is None:
            return rows(self.conn, query, *args)
        if in_transaction:
            self.conn.execute("savepoint refused")
        with refused(refusal):
            self.conn.execute(query.encode(), args)
        if in_transaction:
            self.conn.execute("rollback to savepoint refused")
            self.conn.execute("release savepoint refused")
        return []

    def stored(self) -> list[Job]:
        """All jobs with their histories, as this session sees them."""
        events: dict[int, list[Event]] = {}
        for job_id, *event in self.conn.execute(_EVENTS):
            events.setdefault(job_id, []).append(Event(*event))

        jobs = [
            Job(**row._asdict(), events=tuple(events.pop(row.id, [])))
            for row in rows(self.conn, _JOBS)
        ]
        assert events == {}, "events without a job"
        return jobs

    def now(self) -> datetime:
        """The database's clock."""
        now: datetime = scalar(self.conn, "select clock_timestamp()")
        return now

    def wait_beyond(self, moment: datetime, seconds: float) -> None:
        """Return once the database's clock is so much later."""
        wait_until(lambda: (self.now() - moment).total_seconds() > seconds, interval=0)

    def _hear(self, note: Notify) -> None:
        self.heard.append(note.payload)


def clear(clients: Sequence[Client]) -> None:
    """Forget all jobs, and count their ids and their events' from 1 again."""
    for client in clients:
        client.reset()
    conn = clients[0].conn
    conn.execute("delete from jobq.jobs")
    conn.execute("select setval('jobq.jobs_id_seq', 1, false)")
