"""How claiming scales with connections."""

from contextlib import closing
from functools import partial

from harness import Bench, Row, Rows
from load import Turn, connect, fill
from producers import clients, take, together


def claimers(bench: Bench) -> list[Row]:
    """Claim and settle in turn, by number of connections and jobs a call.

    The connections are threads of four client processes, which are warm when it begins. Should the
    backlog end before the time, the last settle ends it. In the short run 1, 8 and 64 connections.
    """
    rows = Rows()
    counts = (1, 2, 4, 8, 16, 32, 64) if bench.full else (1, 8, 64)
    batches = (1, 10, 100)
    seconds = bench.seconds(0.8, full=3)
    seed = partial(_backlog, jobs=max(bench.jobs(25_000, full=200_000), 10_000))
    with clients() as pool:
        for _ in bench.repeat():
            for batch in batches:
                for count in counts:
                    dsn = bench.fresh("claimers", seed)
                    parts = together(pool, dsn, count, take, (batch, seconds))
                    rows.add(
                        _name(batch, count), "jobs/s", _rate([t for part in parts for t in part]),
                        ratio_to=_name(batch, 1) if count > 1 else None,
                    )  # fmt: skip
    bench.forget("claimers")
    made = {row.what: row.median for row in rows.list()}
    series = {
        f"{batch} a call": [(float(count), made[_name(batch, count)]) for count in counts]
        for batch in batches
    }
    bench.curve("claimers", "Claim and settle", "connections", "jobs/s", series)
    return rows.list()


def _name(batch: int, count: int) -> str:
    return f"{batch} a call, {count} connection{'s' if count > 1 else ''}"


def _rate(turns: list[Turn]) -> float:
    """Jobs a second from the first begin to the last end of turns at the same time."""
    begun = min(turn.at - turn.seconds for turn in turns)
    return sum(turn.jobs for turn in turns) / (max(turn.at for turn in turns) - begun)


def _backlog(dsn: str, jobs: int) -> None:
    with closing(connect(dsn)) as conn:
        fill(conn, jobs)
        conn.execute("vacuum analyze jobq.jobs, jobq.job_events")
