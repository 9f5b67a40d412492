"""The functions that clients call, as the catalog tells them."""

from sql import Connection, Row, fetch

__all__ = ["LEVELS", "functions"]

_FUNCTIONS = """
select p.proname::text as name,
  pg_get_function_arguments(p.oid) as signature,
  pg_get_function_result(p.oid) as returns,
  obj_description(p.oid, 'pg_proc') as comment
from pg_catalog.pg_proc p
where p.pronamespace = 'jobq'::regnamespace and p.proname !~ '^_'
order by p.proname"""

_READER = {
    "stats",
    "explain",
    "verify",
    "activity",
    "runs",
    "failures",
    "error_class",
    "error_line",
}
_COMMON = {"retry_delay", "schema_version", "compatible_from"}

#: Which functions a level may call, as jobq._functions_of() has it, which a reader may not call.
LEVELS = {
    "producer": _COMMON | {"enqueue", "enqueue_many", "cancel", "retry"},
    "worker": _COMMON | {
        "claim", "renew", "settle", "succeed", "fail", "release", "snooze", "stop",
        "report_progress", "log", "reap", "purge", "listen", "unlisten", "present", "next_due",
    },
    "operator": _COMMON | _READER | {
        "retry_jobs", "cancel_jobs", "set_priority", "reschedule", "clone", "cancel", "retry",
        "purge", "reap",
    },
    "reader": _COMMON | _READER,
}  # fmt: skip


def functions(conn: Connection) -> list[Row]:
    """Return the public functions, with their comments and the levels that may call them.

    Without a level: the schema's owner only.
    """
    return [
        {**row, "levels": [level for level, names in LEVELS.items() if row["name"] in names]}
        for row in fetch(conn, _FUNCTIONS)
    ]
