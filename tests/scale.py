"""Queues too large to build by the verbs: rows inserted directly, without triggers and events.

`make prove` (JOBQ_PROVE=1) builds them at the published sizes, else they are a twentieth of it:
what reads all of them is still far above every bound.
"""

import os
from collections.abc import Callable

from helpers import Connection

Connect = Callable[..., Connection]

PROVE = bool(os.environ.get("JOBQ_PROVE"))


def scaled(count: int) -> int:
    """The count itself when proving, else a twentieth of it."""
    return count if PROVE else count // 20


def no_autovacuum(conn: Connection) -> None:
    """Leave statistics and dead rows to the test."""
    for table in ("jobs", "job_events"):
        conn.execute(f"alter table jobq.{table} set (autovacuum_enabled = off)".encode())


def pin(connect: Connect) -> Connection:
    """Hold a snapshot, as a long report does: no row that dies from now on can be cleaned up."""
    old = connect(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    old.execute("select from jobq.jobs limit 1")
    return old


FILL = """
insert into jobq.jobs (kind, priority, status, created_at, available_at, started_at, finished_at,
  attempt, max_attempts, locked_by, lease_token, lease_expires_at)
select
  %(kind)s, coalesce(%(priority)s::int, n %% 201 - 100), %(status)s::jobq.job_status, made, due,
  case when %(status)s <> 'queued' then made end,
  case when %(status)s not in ('queued', 'running') then made end,
  case when %(status)s = 'queued' then 0 else 1 end, 10,
  case when %(status)s = 'running' then 'w' end,
  case when %(status)s = 'running' then gen_random_uuid() end,
  case when %(status)s = 'running' then due end
from generate_series(1, %(count)s) n,
  (select clock_timestamp() + %(made)s::interval as made,
    clock_timestamp() + %(due)s::interval as due) t"""


def fill(
    connect: Connect,
    count: int,
    kind: str = "test",
    status: str = "queued",
    *,
    priority: int | None = 0,
    made: str = "-1 hour",
    due: str = "-1 hour",
) -> None:
    """Insert jobs made and due (running: leased) at these distances from now.

    Without a priority they are spread over all 201. On a connection of its own, by a setting of
    the session: disabling the triggers would make other sessions plan anew.
    """
    with connect() as conn:
        conn.execute("set session_replication_role = replica")
        values = {
            "count": count, "kind": kind, "status": status, "priority": priority,
            "made": made, "due": due,
        }  # fmt: skip
        conn.execute(FILL, values)
