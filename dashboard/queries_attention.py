"""What somebody should look at now: found by rules that stay quiet while all is as usual."""

from collections.abc import Iterator
from datetime import datetime

from sql import Connection, Row, fetch

__all__ = ["attention"]

MOST_KINDS = 10
JOBS = "screens/jobs.py"
DATABASE = "screens/database.py"

# A lease that just ended is reaped within 15 s; one that ended longer ago is reaped by nobody.
_EXPIRED = """
select count(*) as jobs, min(j.lease_expires_at) as since, clock_timestamp() as now
from jobq.job_details j
where j.status = 'running' and j.lease_expires_at < clock_timestamp() - interval '30 seconds'"""

# When the transaction began is hidden from other roles; its age in transactions is not.
_PINNED = """
select a.pid, coalesce(nullif(a.application_name, ''), a.usename::text, '') as who,
  extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds,
  age(a.backend_xmin) as xmin_age
from pg_catalog.pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid()
  and (a.xact_start < clock_timestamp() - interval '10 minutes'
    or a.xact_start is null and age(a.backend_xmin) > 100000)
  and a.backend_xmin is not null
order by age(a.backend_xmin) desc, a.pid
limit 1"""

_UNVACUUMED = """
select c.relname::text as relation, s.n_dead_tup as dead,
  greatest(s.last_autovacuum, s.last_vacuum) as last
from pg_catalog.pg_class c
join pg_catalog.pg_stat_all_tables s on s.relid = c.oid
cross join lateral (
  select coalesce(
      max(o.option_value::float8) filter (where o.option_name = 'autovacuum_vacuum_threshold'),
      current_setting('autovacuum_vacuum_threshold')::float8) as threshold,
    coalesce(
      max(o.option_value::float8) filter (where o.option_name = 'autovacuum_vacuum_scale_factor'),
      current_setting('autovacuum_vacuum_scale_factor')::float8) as factor
  from pg_options_to_table(c.reloptions) o
  where o.option_name in ('autovacuum_vacuum_threshold', 'autovacuum_vacuum_scale_factor')
) v
where c.relnamespace = 'jobq'::regnamespace and c.relkind = 'r'
  and s.n_dead_tup > 5 * (v.threshold + v.factor * greatest(c.reltuples, 0))
  and coalesce(greatest(s.last_autovacuum, s.last_vacuum), '-infinity')
    < clock_timestamp() - interval '10 minutes'
order by dead desc"""


def attention(conn: Connection, kinds: list[Row]) -> list[Row]:
    """Return what needs attention, the most urgent first."""
    found = [*_expired(conn), *_unserved(kinds), *_last_attempts(kinds)]
    found += [*_pinned(conn), *_unvacuumed(conn)]
    return found


def _item(
    what: str, message: str, jobs: int | None = None, page: str | None = None, **params: str
) -> Row:
    return {"what": what, "message": message, "jobs": jobs, "page": page, "params": params}


def _expired(conn: Connection) -> Iterator[Row]:
    (row,) = fetch(conn, _EXPIRED)
    if row["jobs"]:
        yield _item(
            "expired leases",
            f"{_jobs(row['jobs'], 'running job')} without a lease, for up to"
            f" {_minutes(row['now'], row['since'])}: no worker takes them back",
            row["jobs"],
            JOBS,
            status="running",
        )


def _unserved(kinds: list[Row]) -> Iterator[Row]:
    idle = [row for row in kinds if row["due"] and row["live_workers"] == 0]
    for row in idle[:MOST_KINDS]:
        yield _item(
            "no worker",
            f"{_jobs(row['due'], 'due job')} of kind {row['kind']}, and no live worker for it",
            row["due"],
            JOBS,
            status="queued",
            kind=row["kind"],
        )
    rest = idle[MOST_KINDS:]
    if rest:
        due = sum(row["due"] for row in rest)
        message = (
            f"{_jobs(due, 'due job')} of {len(rest):,} more kinds, and no live worker for them"
        )
        yield _item("no worker", message, due, "screens/kinds.py")


def _last_attempts(kinds: list[Row]) -> Iterator[Row]:
    near = sorted(
        (row for row in kinds if row["last_attempt"]), key=lambda row: -row["last_attempt"]
    )
    if near:
        jobs = sum(row["last_attempt"] for row in near)
        most = near[0]
        where = f"of kind {most['kind']}" if len(near) == 1 else f"most of kind {most['kind']}"
        yield _item(
            "last attempt",
            f"{_jobs(jobs, 'queued job')} ({where}) failed before and"
            f" {'has' if jobs == 1 else 'have'} one attempt left",
            jobs,
            JOBS,
            status="queued",
            kind=most["kind"],
        )


def _pinned(conn: Connection) -> Iterator[Row]:
    for row in fetch(conn, _PINNED):
        held = (
            f"{row['xmin_age']:,} transactions"
            if row["seconds"] is None
            else f"{row['seconds'] / 60:,.0f} min"
        )
        yield _item(
            "pinned snapshot",
            f"{row['who']} (process {row['pid']}) has held a snapshot for {held}:"
            " what dies meanwhile cannot be vacuumed",
            page=DATABASE,
        )


def _unvacuumed(conn: Connection) -> Iterator[Row]:
    for row in fetch(conn, _UNVACUUMED):
        yield _item(
            "autovacuum behind",
            f"{row['dead']:,} dead rows in {row['relation']}, not vacuumed for 10 minutes or more",
            page=DATABASE,
        )


def _jobs(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _minutes(now: datetime, since: datetime) -> str:
    seconds = (now - since).total_seconds()
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
