"""The database itself: sizes, vacuum, snapshots, settings, the proof, what a purge would take."""

from typing import Any

from sql import Connection, Row, fetch, value

__all__ = ["database", "purgeable", "verify"]

_TABLES = """
select
  c.relname::text as relation,
  case c.relkind when 'r' then 'table' when 'i' then 'index' when 'S' then 'sequence' end as kind,
  case c.relkind when 'r' then pg_table_size(c.oid) else pg_relation_size(c.oid) end as bytes,
  case when c.reltuples < 0 then null else c.reltuples::bigint end as rows,
  s.n_dead_tup as dead,
  greatest(s.last_vacuum, s.last_autovacuum) as last_autovacuum,
  greatest(s.last_analyze, s.last_autoanalyze) as last_analyze
from pg_catalog.pg_class c
left join pg_catalog.pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = 'jobq'::regnamespace and c.relkind in ('r', 'i')
order by c.relkind desc, bytes desc, relation"""

# Whatever keeps dead rows of this database from being vacuumed.
_SNAPSHOTS = """
select s.pid, s.who, s.state, s.since, s.xmin_age
from (
  select a.pid, coalesce(nullif(a.application_name, ''), a.usename::text, a.backend_type) as who,
    a.state, a.xact_start as since, age(a.backend_xmin) as xmin_age
  from pg_catalog.pg_stat_activity a
  where a.backend_xmin is not null and a.pid <> pg_backend_pid()
    and (a.datname = current_database() or a.datname is null)
  union all
  select null, 'prepared transaction ' || p.gid, 'prepared', p.prepared, age(p.transaction)
  from pg_catalog.pg_prepared_xacts p
  where p.database = current_database()
  union all
  select r.active_pid, 'replication slot ' || r.slot_name, case when r.active then 'active' end,
    null, age(r.xmin)
  from pg_catalog.pg_replication_slots r
  where r.xmin is not null
) s
order by s.xmin_age desc, s.pid
limit 20"""

_HIDDEN = """
select count(*) from pg_catalog.pg_stat_activity a
where a.query = '<insufficient privilege>'"""

WHY = {
    "server_version": "jobq needs 15 or newer.",
    "max_connections": "Each worker process takes three, this dashboard up to five.",
    "max_locks_per_transaction": "Each worker takes up to two locks for each kind it handles.",
    "shared_buffers": "Where the hot end of the queue lives.",
    "synchronous_commit": "Off: the last commits may be lost in a crash, jobs and all.",
    "fsync": "Off: a crash may destroy the database.",
    "autovacuum": "Off: dead rows of finished claims pile up.",
    "autovacuum_naptime": "How often tables are looked at.",
    "max_wal_size": "Small: frequent checkpoints under load.",
    "idle_in_transaction_session_timeout": "Ends forgotten transactions, which pin dead rows.",
    "statement_timeout": "jobq's own sessions set their own.",
    "default_transaction_isolation": "jobq's own sessions use read committed.",
}

_SETTINGS = """
select s.name, s.setting as value, s.unit
from pg_catalog.pg_settings s
join unnest(%s::text[]) with ordinality w(name, place) using (name)
order by w.place"""

_PURGEABLE = """
select count(*) from (
  select from jobq.job_details j
  where j.status = any(%(statuses)s::jobq.job_status[])
    and j.finished_at < clock_timestamp() - make_interval(secs => %(seconds)s)
  limit %(limit)s
) f"""

MOST_COUNTED = 100_000


def database(conn: Connection) -> dict[str, Any]:
    """Return sizes, vacuum, who pins a snapshot, and the settings that matter."""
    settings = fetch(conn, _SETTINGS, (list(WHY),))
    return {
        "tables": fetch(conn, _TABLES),
        "snapshots": fetch(conn, _SNAPSHOTS),
        "hidden_sessions": value(conn, _HIDDEN),
        "settings": [{**setting, "why": WHY[setting["name"]]} for setting in settings],
        "schema_version": value(conn, "select jobq.schema_version()"),
    }


def verify(conn: Connection) -> list[Row]:
    """Return what the proof of the ledger finds: no row if all is well. Reads both tables whole."""
    return fetch(conn, "select v.job_id, v.problem, v.ledger, v.stored from jobq.verify() v")


def purgeable(
    conn: Connection, older_than_days: float, statuses: tuple[str, ...]
) -> dict[str, Any]:
    """Count what a purge would delete, up to 100,000."""
    values = {
        "statuses": list(statuses),
        "seconds": older_than_days * 86400,
        "limit": MOST_COUNTED + 1,
    }
    jobs = value(conn, _PURGEABLE, values)
    return {"jobs": min(jobs, MOST_COUNTED), "more": jobs > MOST_COUNTED}
