"""How soon a job starts: on an idle queue, and under a load that does not wait for the queue."""

import random
import time
from contextlib import closing

from harness import Bench, Row, Rows
from load import connect, drained, one, percentile, workers
from producers import arrive, clients, supply, together

CONNECTIONS = 16
SHARES = (25, 50, 75, 90)
_IDLE_WAITS = """
select extract(epoch from started_at - created_at)::float8 * 1000 from jobq.jobs where id > %s
"""
_PLANNED_WAITS = """
select (extract(epoch from started_at)::float8 - (payload ->> 'to')::float8) * 1000
from jobq.jobs where id > %s
"""
_PERCENTILES = """
select percentile_cont(array[0.5, 0.95, 0.99, 0.999]) within group (order by w.ms)
from ({}) w(ms)
"""
WARM = 20
PARTS = ("p50", "p95", "p99", "p99.9")


def pickup(bench: Bench) -> list[Row]:
    """From enqueue to start, one job at a time, one idle worker process of 10 threads.

    From the clock reading of the enqueue, before its commit, to started_at. A tenth of the jobs
    come when the worker has been idle for 0.2 s, the others after 20 to 40 ms.
    """
    rows = Rows()
    jobs = bench.jobs(200, full=1000)
    gaps = random.Random(1)
    for _ in bench.repeat():
        dsn = bench.fresh()
        calls = []
        with closing(connect(dsn)) as conn, workers(dsn):
            for number in range(jobs + WARM):
                started = time.perf_counter()
                conn.execute("select jobq.enqueue('noop', '{\"n\": 1}')")
                calls.append(1000 * (time.perf_counter() - started))
                time.sleep(0.2 if number % 10 == 0 else gaps.uniform(0.02, 0.04))
            drained(conn)
            waits = one(conn, _PERCENTILES.format(_IDLE_WAITS), WARM)
        targets = ("≤ 2", None, "≤ 5", None)
        for name, value, target in zip(PARTS, waits, targets, strict=True):
            rows.add(name, "ms", value, target=target)
        rows.add("the enqueue alone, with its commit: p50", "ms", percentile(calls[WARM:], 0.5))
    return rows.list()


def load(bench: Bench) -> list[Row]:
    """From planned arrival to start, one worker process of 10 threads, by share of the peak.

    The peak is what is finished a second while 16 connections enqueue single jobs as fast as they
    can with at most 500 waiting. Arrivals are random and fixed in advance, on 16 connections that
    have enqueued before: what an enqueue comes late counts as latency, and nothing is left out.
    """
    rows = Rows()
    seconds = bench.seconds(2, full=30)
    with clients() as pool:
        for _ in bench.repeat():
            dsn = bench.fresh()
            with closing(connect(dsn)) as conn, workers(dsn):
                together(pool, dsn, CONNECTIONS, supply, seconds)
                done = one(conn, "select count(*) from jobq.jobs where status = 'succeeded'")
                peak = max(done, 1) / seconds
                rows.add("peak", "jobs/s", peak)
                for share in SHARES:
                    plan = (share / 100 * peak, seconds, CONNECTIONS)
                    drained(conn)
                    before = one(conn, "select max(id) from jobq.jobs")
                    late = together(pool, dsn, CONNECTIONS, arrive, plan)
                    drained(conn, after=before)
                    waits = one(conn, _PERCENTILES.format(_PLANNED_WAITS), before)
                    _add(rows, f"{share} % of the peak", waits, max(late))
    made = {row.what: row.median for row in rows.list()}
    series = {
        p: [(float(share), made[f"{share} % of the peak: {p}"]) for share in SHARES]
        for p in ("p50", "p95", "p99")
    }
    bench.curve("load", "Pick-up under open load", "% of the peak", "ms", series)
    return rows.list()


def _add(rows: Rows, name: str, waits: list[float], late: float) -> None:
    for part, value in zip(PARTS, waits, strict=True):
        target = "≤ 50" if name.startswith("75") and part == "p99" else None
        rows.add(f"{name}: {part}", "ms", value, target=target)
    rows.add(f"{name}: last enqueue late by", "ms", late * 1000)
