"""Claiming while an old transaction keeps every dead row."""

import statistics
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from math import inf
from multiprocessing.pool import Pool
from typing import Any

import psycopg
from harness import Bench, Points, Row, Rows
from load import Claimer, Connection, Turn, connect, fill, percentile, rate, wait
from pickup import CONNECTIONS
from producers import arrive, begin, clients, supply

BATCH = 500
POINTS = 60
FREE = "no old transaction"
READER = "repeatable-read reader"
WRITER = "writer with a transaction id"
_OLD = {
    READER: ("set transaction isolation level repeatable read", "select count(*) from jobq.jobs"),
    WRITER: ("select pg_current_xact_id()",),
}

_ARRIVED = "select exists (select from jobq.jobs)"
# Jobs enqueued less jobs finished, at the end of each of so many equal parts of the time.
_BACKLOG = """
select t.part, sum(sum(t.jobs)) over (order by t.part)
from (
  select width_bucket(extract(epoch from created_at)::float8, %s, %s, %s) as part, 1 as jobs
  from jobq.jobs
  union all
  select width_bucket(extract(epoch from finished_at)::float8, %s, %s, %s), -1
  from jobq.jobs where finished_at is not null
) t
group by t.part
order by t.part
"""


def pinned(bench: Bench) -> list[Row]:
    """Claim and settle in turn, 500 a call, while an old snapshot keeps every dead row."""
    rows = Rows()
    jobs = bench.jobs(40_000, full=200_000)
    for _ in bench.repeat():
        for old in (FREE, READER):
            dsn = bench.fresh()
            with closing(connect(dsn)) as conn:
                fill(conn, jobs)
                conn.execute("analyze jobq.jobs")
                with pin(dsn, old):
                    turns = Claimer(conn, BATCH).burn()
            tenth = max(len(turns) // 10, 1)
            control = None if old == FREE else f"{FREE}: all of it"
            for part, some in (
                ("all of it", turns),
                ("first tenth", turns[:tenth]),
                ("last tenth", turns[-tenth:]),
            ):
                rows.add(
                    f"{old}: {part}", "jobs/s", rate(some),
                    ratio_to=control, target="≥ 0.9" if control else None,
                )  # fmt: skip
    return rows.list()


@contextmanager
def pin(dsn: str, old: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction of this sort, open until the end or until it is rolled back."""
    with closing(psycopg.connect(dsn)) as conn:
        for statement in _OLD.get(old, ()):
            conn.execute(statement.encode())
        yield conn


def pinned_load(bench: Bench) -> list[Row]:
    """Claiming at 70 % of the peak under an old transaction: random arrivals, one round.

    Arrivals are fixed in advance. One connection claims up to 100 a call and looks again after
    5 ms when it found nothing. The old transaction ends after four fifths of the time; what
    follows is the recovery. The peak is what that connection finishes while 16 others enqueue
    single jobs, at most 500 waiting. p99 is of all claims, those that found nothing included.
    """
    rows = Rows()
    seconds = bench.seconds(12, full=600)
    series = {}
    with clients() as pool:
        most = _peak(bench, pool, bench.seconds(2, full=30))
        rows.add("peak", "jobs/s", most)
        for old in (FREE, READER, WRITER):
            series[old] = _hold(bench, rows, pool, old, 0.7 * most, seconds)
    bench.curve(
        "pinned", "Backlog at 70 % of the peak; the old transaction ends at 80 % of the time",
        "seconds", "jobs waiting or running", series,
    )  # fmt: skip
    return rows.list()


def _peak(bench: Bench, pool: Pool, seconds: float) -> float:
    dsn = bench.fresh()
    with closing(connect(dsn)) as conn:
        producing = begin(pool, dsn, CONNECTIONS, supply, seconds)
        wait(conn, _ARRIVED)
        turns, _ = _consume(conn, time.time() + seconds)
        producing.get()
    return max(sum(turn.jobs for turn in turns), 1) / seconds


def _hold(
    bench: Bench, rows: Rows, pool: Pool, old: str, arrivals: float, seconds: float
) -> Points:
    dsn = bench.fresh()
    held = 0.8 * seconds
    with closing(connect(dsn)) as conn, pin(dsn, old) as holder:
        producing = begin(pool, dsn, CONNECTIONS, arrive, (arrivals, seconds, CONNECTIONS))
        wait(conn, _ARRIVED)
        started = time.time()
        turns, touched = _consume(conn, started + held, held / 12)
        holder.rollback()
        after, touched_after = _consume(conn, started + seconds, seconds / 60)
        producing.get()
        values = (started, started + seconds, POINTS) * 2
        waiting = [(int(n), float(jobs)) for n, jobs in conn.execute(_BACKLOG, values).fetchall()]
    points = [(n * seconds / POINTS, jobs) for n, jobs in waiting if n <= POINTS]
    quarter = held / 4
    first = [turn for turn in turns if turn.at < started + quarter]
    last = [turn for turn in turns if turn.at > started + held - quarter]

    def add(what: str, unit: str, value: float, target: str | None = None) -> None:
        other = None if old == FREE else f"{FREE}: {what}"
        rows.add(f"{old}: {what}", unit, value, ratio_to=other, target=other and target)

    add("jobs/s", "jobs/s", sum(turn.jobs for turn in turns) / held, "≥ 0.9")
    for part, some in (("first quarter", first), ("last quarter", last), ("after it", after)):
        if not some:
            continue
        p99 = percentile([turn.claim for turn in some], 0.99)
        add(f"claim p99, {part}", "ms", p99 * 1000, "< 3")
    for part, counts in (
        ("at first", touched[:3]),
        ("at last", touched[-3:]),
        ("after it", touched_after),
    ):
        if not counts:
            continue
        add(f"buffers of a claim, {part}", "per call", statistics.median(counts))
    rows.add(f"{old}: most jobs waiting", "jobs", max(jobs for _, jobs in points))
    rows.add(f"{old}: jobs waiting at the end", "jobs", points[-1][1])
    return points


def _consume(conn: Connection, until: float, every: float = inf) -> tuple[list[Turn], list[int]]:
    """Claim and settle until then; all turns, and the buffers of a claim now and then."""
    claimer = Claimer(conn, 100)
    turns: list[Turn] = []
    touched: list[int] = []
    look_at = time.time() + every
    while (now := time.time()) < until:
        if now > look_at:
            touched.append(claimer.explained()[0])
            look_at = now + every
        turns.append(claimer.turn())
        if not turns[-1].jobs:
            time.sleep(0.005)
    return turns, touched
