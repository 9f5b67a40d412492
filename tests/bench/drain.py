"""How fast worker processes work a backlog off."""

from contextlib import AbstractContextManager, closing
from typing import NamedTuple

from harness import Bench, Meter, Row, Rows
from load import connect, drained, fill, one, workers


class Variant(NamedTuple):
    """One way to run workers."""

    name: str
    processes: int = 1
    threads: int = 10
    app: str = "app"
    analyze: bool = True


CONTROL = "1 process, 10 threads"
SHORT = [
    Variant(CONTROL),
    Variant("2 processes, 10 threads", processes=2),
    Variant("1 process, 50 threads", threads=50),
    Variant("1 process, 10 async", app="async_app"),
]
FULL = [
    *SHORT,
    Variant("1 process, 1 thread", threads=1),
    Variant("4 processes, 10 threads", processes=4),
    Variant("1 process, 10 threads, no ANALYZE", analyze=False),
]
SPAN = "select extract(epoch from max(finished_at) - min(started_at))::float8 from jobq.jobs"


def drain(bench: Bench) -> list[Row]:
    """Backlog of typed no-ops, worked off by worker processes.

    From the first start to the last finish. The backlog is committed, analyzed, once the workers
    are idle. How many jobs a worker claims at once is its own decision, up to 1,000.
    """
    rows = Rows()
    jobs = bench.jobs(15_000, full=200_000)
    for _ in bench.repeat():
        for variant in FULL if bench.full else SHORT:
            _drain(bench, rows, variant, jobs)
    return rows.list()


def _workers(dsn: str, variant: Variant) -> AbstractContextManager[list[int]]:
    return workers(dsn, variant.processes, threads=variant.threads, app=variant.app)


def _drain(bench: Bench, rows: Rows, variant: Variant, jobs: int) -> None:
    dsn = bench.fresh()
    with closing(connect(dsn)) as conn, closing(connect(dsn)) as watch:
        life, meter = Meter(dsn, jobs), Meter(dsn, jobs)
        with life, _workers(dsn, variant) as meter.clients:
            with conn.transaction():
                fill(conn, jobs)
                last = int(one(conn, "select max(id) from jobq.jobs"))
                if variant.analyze:
                    conn.execute("analyze jobq.jobs, jobq.job_events")
                meter.start()
            drained(watch, last)
            meter.stop()
        two = variant.processes == 2
        rows.add(
            variant.name, "jobs/s", jobs / float(one(watch, SPAN)),
            ratio_to=None if variant.name == CONTROL else CONTROL,
            target="≥ 1.3" if two else None,
        )  # fmt: skip
        assert one(watch, "select count(*) from jobq.verify()") == 0
    rows.add_meter(variant.name, meter)
    if variant.name == CONTROL:
        whole = life.per_job()["WAL", "bytes/job"]
        rows.add("whole life, all events: WAL", "bytes/job", whole, target="≤ 2200")
