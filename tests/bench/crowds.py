"""Claiming past rows that are not wanted."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from drain import SPAN
from harness import Bench, Row, Rows
from load import KINDS, Claimer, connect, drained, fill, one, percentile, rate, workers

BATCH = 100

_MANY = """
insert into jobq.jobs (kind, priority, status, created_at, available_at, started_at, finished_at,
  attempt)
select '{kind}', {priority}, '{status}', t.made, t.made + interval '{due}',
  case when '{status}' <> 'queued' then t.made end,
  case when '{status}' <> 'queued' then t.made end, ('{status}' <> 'queued')::int
from generate_series(1, {count}), (select clock_timestamp() - interval '1 hour' as made) t
"""


class Crowd(NamedTuple):
    """Rows beside the jobs that are claimed, and how those are spread.

    `rows`: how many, in the short run and in full; `due`: after their creation an hour ago.
    """

    name: str
    rows: tuple[int, int] = (0, 0)
    kind: str = "noop"
    priority: int = 0
    status: str = "queued"
    due: str = "0"
    kinds: Sequence[str] = KINDS
    priorities: Sequence[int] = (0,)


EMPTY = "nothing beside them"
MILLION = (1_000_000, 1_000_000)
CROWDS = [
    Crowd(EMPTY),
    Crowd("future jobs of priority 50", MILLION, priority=50, due="1 day"),
    Crowd("older jobs of another kind", MILLION, kind="foreign"),
    Crowd("finished jobs", (1_000_000, 10_000_000),
          status="succeeded"),
    Crowd("201 priorities", priorities=range(-100, 101)),
    Crowd("200 kinds", kinds=[f"kind-{n}" for n in range(200)]),
]  # fmt: skip


def crowds(bench: Bench) -> list[Row]:
    """Claim and settle in turn, 100 a call, one connection, by what else is in the table.

    A session's first claim looks everywhere, so it has a row of its own and is not in the others.
    In the full run a worker process drains the same as well.
    """
    rows = Rows()
    jobs = bench.jobs(10_000, full=100_000)
    for _ in bench.repeat():
        for number, crowd in enumerate(CROWDS):
            count = bench.jobs(crowd.rows[0], full=crowd.rows[1])
            like = f"crowd_{number}"
            named = crowd._replace(name=f"{count:,} {crowd.name}") if count else crowd
            _burn(bench.fresh(like, partial(_seed, crowd=crowd, count=count)), rows, named, jobs)
            if bench.full and crowd.kinds == KINDS:
                _drain(bench.fresh(like), rows, named, jobs)
    for number in range(len(CROWDS)):
        bench.forget(f"crowd_{number}")
    return rows.list()


def _seed(dsn: str, crowd: Crowd, count: int) -> None:
    with closing(connect(dsn)) as conn:
        # Without triggers, by a setting of the session: no events, a minute saved.
        conn.execute("set session_replication_role = replica")
        values = {**crowd._asdict(), "count": count}
        conn.execute(_MANY.format(**values).encode())
        conn.execute("vacuum analyze jobq.jobs, jobq.job_events")


def _burn(dsn: str, rows: Rows, crowd: Crowd, jobs: int) -> None:
    with closing(connect(dsn)) as conn:
        # Two claims more: the first one and the one that is explained.
        fill(conn, jobs + 2 * BATCH, kinds=crowd.kinds, priorities=crowd.priorities)
        conn.execute("analyze jobq.jobs")
        claimer = Claimer(conn, BATCH, crowd.kinds)
        first = claimer.turn()
        turns = claimer.burn(jobs=jobs)
        touched, _ = claimer.explained()
    slow = len(crowd.priorities) > 1
    control = {} if crowd.name == EMPTY else {"ratio_to": EMPTY}
    rows.add(
        crowd.name, "jobs/s", rate(turns), **control,
        target=("≥ 0.7" if slow else "≥ 0.9") if control else None,
    )  # fmt: skip
    p99 = percentile([turn.claim for turn in turns], 0.99) * 1000
    control = {} if crowd.name == EMPTY else {"ratio_to": f"{EMPTY}: claim p99"}
    rows.add(f"{crowd.name}: claim p99", "ms", p99, **control, target="< 3" if control else None)
    rows.add(f"{crowd.name}: first claim", "ms", first.claim * 1000)
    rows.add(f"{crowd.name}: buffers of a claim", "per call", touched)


def _drain(dsn: str, rows: Rows, crowd: Crowd, jobs: int) -> None:
    with closing(connect(dsn)) as conn, closing(connect(dsn)) as watch, workers(dsn):
        before = int(one(conn, "select coalesce(max(id), 0) from jobq.jobs"))
        with conn.transaction():
            fill(conn, jobs, priorities=crowd.priorities)
            last = int(one(conn, "select id from jobq.jobs order by priority, id desc limit 1"))
        drained(watch, last, before)
        seconds = float(one(watch, f"{SPAN} where id > %s", before))
    rows.add(
        f"{crowd.name}: one worker", "jobs/s", jobs / seconds,
        ratio_to=None if crowd.name == EMPTY else f"{EMPTY}: one worker",
    )  # fmt: skip
