"""What keeping many leases costs."""

import time
from contextlib import closing

from harness import Bench, Meter, Row, Rows
from load import Claimer, Connection, connect, fill, one, percentile

LEASE_SECONDS = 15.0
EVERY_SECONDS = LEASE_SECONDS / 3  # as a worker does, which never waits longer than 5 s

# The worker's own statement.
_RENEW = """
select r.job_id, r.held, r.renewed, r.cancel_requested
from jobq.renew(%s::bigint[], %s::uuid[], make_interval(secs => %s)) as r
"""
_UPDATES = """
select n_tup_upd::float8, n_tup_hot_upd::float8
from pg_stat_all_tables where schemaname = 'jobq' and relname = 'jobs'
"""
_SIZE = "select pg_relation_size('jobq.jobs')::float8"


def renewals(bench: Bench) -> list[Row]:
    """10,000 running jobs, renewed each 5 s by one worker or by ten, a call each.

    A call renews all that its worker runs, as the worker's own thread does. The batches of ten
    workers are spread over the 5 s.
    """
    rows = Rows()
    jobs = bench.jobs(10_000, full=10_000)
    for _ in bench.repeat():
        for workers in (1, 10):
            _measure(bench, rows, jobs, workers)
    return rows.list()


def _measure(bench: Bench, rows: Rows, jobs: int, workers: int) -> None:
    dsn = bench.fresh()
    name = f"{workers} worker{'s' if workers > 1 else ''}"
    turns = max(round(bench.seconds(20, full=120) / EVERY_SECONDS), 2)
    seconds: list[float] = []
    shares: list[float] = []
    with closing(connect(dsn)) as conn:
        fill(conn, jobs)
        batches = [Claimer(conn, -(-jobs // workers)).claim() for _ in range(workers)]
        conn.execute("analyze jobq.jobs")
        size = float(one(conn, _SIZE))
        with Meter(dsn, turns * jobs) as meter:
            for _ in range(turns):
                before = _updates(conn)
                seconds += _turn(conn, batches)
                updated, hot = (
                    now - then for now, then in zip(_updates(conn), before, strict=True)
                )
                shares.append(hot / updated)
        grown = float(one(conn, _SIZE)) - size
    figures = {key: value for (key, _), value in meter.per_job().items()}
    rows.add(f"{name}: HOT share, first turn", "of 1", shares[0])
    rows.add(f"{name}: HOT share, last turn", "of 1", shares[-1])
    rows.add(f"{name}: HOT share, all", "of 1", sum(shares) / turns)
    rows.add(f"{name}: a call, p50", "ms", percentile(seconds, 0.5) * 1000)
    rows.add(f"{name}: a call, p99", "ms", percentile(seconds, 0.99) * 1000)
    rows.add(f"{name}: time in calls", "µs/renewal", sum(seconds) * 1e6 / (turns * jobs))
    rows.add(f"{name}: WAL of a renewal", "bytes", figures["WAL"])
    rows.add(f"{name}: WAL a second", "kB/s", figures["WAL"] * jobs / EVERY_SECONDS / 1000)
    if "server CPU" in figures:
        rows.add(f"{name}: server CPU of a renewal", "µs", figures["server CPU"])
    rows.add(f"{name}: growth of the table", "bytes/job", grown / jobs)


def _turn(conn: Connection, batches: list[list[tuple[int, str]]]) -> list[float]:
    """Renew every batch once, evenly spread over the time of a turn; seconds of each call."""
    seconds: list[float] = []
    due = time.monotonic()
    for batch in batches:
        ids, tokens = [job for job, _ in batch], [token for _, token in batch]
        started = time.perf_counter()
        answers = conn.execute(_RENEW, (ids, tokens, LEASE_SECONDS)).fetchall()
        seconds.append(time.perf_counter() - started)
        if not all(renewed for _, _, renewed, _ in answers):
            raise RuntimeError("a lease was not renewed")
        due += EVERY_SECONDS / len(batches)
        time.sleep(max(due - time.monotonic(), 0))
    return seconds


def _updates(conn: Connection) -> tuple[float, float]:
    """Updates and HOT updates of the jobs so far, this session's last ones included."""
    conn.execute("select pg_stat_force_next_flush()")
    updated, hot = conn.execute(_UPDATES).fetchone() or (0.0, 0.0)
    return float(updated), float(hot)
