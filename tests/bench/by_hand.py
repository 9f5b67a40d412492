"""Claiming and settling from SQL alone, against statements written by hand."""

from contextlib import closing
from functools import partial

from harness import Bench, Meter, Row, Rows
from load import Claimer, connect, fill, flush, one, rate

WARM = 6  # calls, until the plans of a session are cached
BATCHES = (1, 10, 100, 500)
HAND = "hand-written, 1 job"
SINGLE = "claim and settle, 1 a call"

# The shape that most queues have. It writes the same columns through the same triggers, and names
# its cause as the functions do; it checks no argument and draws no plan for a crowded queue.
_CLAIM = """
with due as (
  select j.id, set_config('jobq.via', 'claim', true)
  from jobq.jobs j
  where j.status = 'queued' and j.available_at <= now() and j.kind = any(%s)
  order by j.priority desc, j.available_at, j.created_at, j.id
  limit 1
  for no key update skip locked
)
update jobq.jobs j
set status = 'running', attempt = j.attempt + 1, started_at = clock_timestamp(),
  locked_by = 'bench', lease_token = gen_random_uuid(),
  lease_expires_at = clock_timestamp() + interval '60 seconds', progress = null
from due
where j.id = due.id
returning j.id, j.lease_token::text
"""
_SETTLE = """
update jobq.jobs j
set status = 'succeeded', locked_by = null, lease_token = null, lease_expires_at = null,
  last_error = null, result = null, finished_at = clock_timestamp()
from (select set_config('jobq.via', 'settle', true)) via
where j.id = %s and j.lease_token = %s::uuid
"""


class HandWritten(Claimer):
    """One job at a time, by plain statements of the tables' owner."""

    def claim(self) -> list[tuple[int, str]]:
        """Id and token of the next due job, now running."""
        return self.conn.execute(_CLAIM, (self.kinds,)).fetchall()

    def settle(self, claimed: list[tuple[int, str]]) -> None:
        """End it, succeeded."""
        for job in claimed:
            self.conn.execute(_SETTLE, job)


def sql(bench: Bench) -> list[Row]:
    """Claim and settle in turn, one connection.

    The hand-written pair is an `update … for no key update skip locked … returning` and an
    `update … where id and lease_token` on the same tables, triggers and events.
    """
    rows = Rows()
    for _ in bench.repeat():
        _burn(bench, rows, HAND, HandWritten, 1)
        for batch in BATCHES:
            _burn(bench, rows, f"claim and settle, {batch} a call", Claimer, batch)
    bench.forget("backlog")
    return rows.list()


def _burn(bench: Bench, rows: Rows, name: str, claimer: type[Claimer], batch: int) -> None:
    backlog = bench.jobs(30_000, full=300_000)
    dsn = bench.fresh("backlog", partial(_backlog, jobs=backlog))
    with closing(connect(dsn)) as conn:
        client = claimer(conn, batch)
        client.burn(jobs=WARM * batch)
        flush(conn)
        with Meter(dsn) as meter:
            turns = client.burn(bench.seconds(2, full=15), backlog)
        meter.jobs = sum(turn.jobs for turn in turns)
    rows.add(
        name, "jobs/s", rate(turns),
        ratio_to=HAND if name == SINGLE else None, target="≥ 0.8" if name == SINGLE else None,
    )  # fmt: skip
    rows.add_meter(name, meter)
    with closing(connect(dsn)) as conn:
        if claimer is Claimer:
            client = Claimer(conn, batch)
            client.burn(jobs=WARM * batch)
            touched, _ = client.explained()
            rows.add(f"{name}: buffers of a claim", "per call", touched)
        assert one(conn, "select count(*) from jobq.verify()") == 0


def _backlog(dsn: str, jobs: int) -> None:
    with closing(connect(dsn)) as conn:
        # More than is measured, to warm up twice and for the claim that is explained.
        fill(conn, jobs + (2 * WARM + 1) * BATCHES[-1])
        conn.execute("vacuum analyze jobq.jobs, jobq.job_events")
