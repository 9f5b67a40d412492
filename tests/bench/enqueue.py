"""What enqueuing costs, one at a time and by the thousand."""

import time
from contextlib import closing

from harness import Bench, Meter, Row, Rows
from load import Connection, connect, fill, flush

_VERB = 'select jobq.enqueue(\'noop\', \'{"n": 1, "to": "ada@example.org"}\')'
# The same columns through the same triggers, and the cause named as the function does.
_INSERT = """
insert into jobq.jobs (kind, payload, priority, created_at, available_at, max_attempts,
  idempotency_key, retry_base_seconds, retry_cap_seconds)
select 'noop', '{"n": 1, "to": "ada@example.org"}', 0, now, now, 10, null, 15, 3600
from (select clock_timestamp() as now, set_config('jobq.via', 'enqueue', true)) t
returning id
"""
BATCHES = (100, 1_000, 10_000)
BARE, SINGLE = "bare INSERT, committed each", "enqueue, committed each"
BARE_100, SINGLE_100 = "bare INSERT, 100 a transaction", "enqueue, 100 a transaction"


def enqueue(bench: Bench) -> list[Row]:
    """Single jobs from one connection, against a bare INSERT with the same columns and triggers."""
    rows = Rows()
    variants = [
        (BARE, _INSERT, 1, None),
        (SINGLE, _VERB, 1, BARE),
        (BARE_100, _INSERT, 100, None),
        (SINGLE_100, _VERB, 100, BARE_100),
    ]
    for _ in bench.repeat():
        for name, statement, jobs, control in variants:
            dsn = bench.fresh()
            with closing(connect(dsn)) as conn:
                _insert(conn, statement, jobs, 0.2)
                flush(conn)
                with Meter(dsn) as meter:
                    meter.jobs, seconds = _insert(
                        conn, statement, jobs, bench.seconds(1.5, full=10)
                    )
            rows.add(
                name, "jobs/s", meter.jobs / seconds,
                ratio_to=control, target="≥ 0.85" if control else None,
            )  # fmt: skip
            rows.add_meter(name, meter)
    return rows.list()


def _insert(conn: Connection, statement: str, jobs: int, seconds: float) -> tuple[int, float]:
    """Transactions of so many single statements, for so long: jobs and seconds."""
    made = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        if jobs == 1:
            conn.execute(statement.encode())
        else:
            with conn.transaction():
                for _ in range(jobs):
                    conn.execute(statement.encode())
        made += jobs
    return made, elapsed


def enqueue_many(bench: Bench) -> list[Row]:
    """Jobs by the batch from one connection, committed each."""
    rows = Rows()
    for _ in bench.repeat():
        for batch in BATCHES:
            jobs = max(bench.jobs(20_000, full=200_000), batch)
            dsn = bench.fresh()
            with closing(connect(dsn)) as conn, Meter(dsn, jobs) as meter:
                seconds = fill(conn, jobs, batch=batch)
            rows.add(f"{batch:,} a call", "jobs/s", jobs / seconds)
            rows.add_meter(f"{batch:,} a call", meter)
    made = {row.what: row.median for row in rows.list()}
    points = [(float(batch), made[f"{batch:,} a call"]) for batch in BATCHES]
    bench.curve("enqueue_many", "enqueue_many, one connection", "jobs a call", "jobs/s",
                {"committed each": points})  # fmt: skip
    return rows.list()
