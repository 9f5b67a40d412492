"""Which level of access a role lacks, and the command that grants it."""

from typing import Any

import psycopg

from jobq.migrate import SchemaError

__all__ = ["check_worker", "grant_command"]

# What a worker cannot do without. Purging and reporting it can: it says so and goes on.
_NEEDED = ["claim", "renew", "settle", "reap", "present", "listen", "unlisten", "next_due"]

_DENIED = """
select current_user::text, p.proname::text
from pg_catalog.pg_proc p
where p.pronamespace = 'jobq'::regnamespace and p.proname = any(%s::text[])
  and not has_function_privilege(p.oid, 'execute')
order by 2
"""


def grant_command(role: str, level: str) -> str:
    """The SQL by which the schema's owner gives a role a level."""
    return "select jobq.grant_access('{}', '{}')".format(role.replace("'", "''"), level)


def check_worker(conn: psycopg.Connection[Any]) -> None:
    """Raise SchemaError unless the role may do a worker's work."""
    rows = conn.execute(_DENIED, (_NEEDED,)).fetchall()
    if rows:
        role, names = rows[0][0], ", ".join(name for _, name in rows)
        raise SchemaError(
            f"role {role} may not call {names}: have the owner of schema jobq run"
            f" `{grant_command(role, 'worker')}`"
        )
