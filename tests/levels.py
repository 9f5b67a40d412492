"""The levels of access as published, and what a role may do by the catalog."""

from collections.abc import Callable

from helpers import Connection

from ledger import rows

COMMON = {"retry_delay", "schema_version", "compatible_from"}
READER = {
    "stats", "explain", "verify", "activity", "runs", "failures", "error_class", "error_line",
}  # fmt: skip
LEVELS = {
    "producer": {"enqueue", "enqueue_many", "cancel", "retry"},
    "worker": {
        "claim", "renew", "settle", "succeed", "fail", "release", "snooze", "stop",
        "report_progress", "log", "reap", "purge", "listen", "unlisten", "present", "next_due",
    },
    "operator": READER | {
        "retry_jobs", "cancel_jobs", "set_priority", "reschedule", "clone", "cancel", "retry",
        "purge", "reap",
    },
    "reader": READER,
}  # fmt: skip
VIEWS = {"job_details", "job_timeline", "kinds", "sessions", "workers"}

Connect = Callable[..., Connection]
MakeRole = Callable[..., str]


def functions_of(conn: Connection, role: str) -> set[str]:
    query = (
        "select proname from pg_proc where pronamespace = 'jobq'::regnamespace"
        " and has_schema_privilege(%(role)s, 'jobq', 'usage')"
        " and has_function_privilege(%(role)s, oid, 'execute')"
    )
    return {row["proname"] for row in rows(conn, query, {"role": role})}


def relations_of(conn: Connection, role: str, right: str = "select") -> set[str]:
    query = (
        "select relname from pg_class where relnamespace = 'jobq'::regnamespace"
        " and (relkind in ('r', 'v') and (has_table_privilege(%(role)s, oid, %(right)s)"
        "   or %(right)s in ('select', 'insert', 'update')"
        "     and has_any_column_privilege(%(role)s, oid, %(right)s))"
        "  or relkind = 'S' and %(right)s in ('select', 'update')"
        "    and has_sequence_privilege(%(role)s, oid, %(right)s))"
    )
    return {row["relname"] for row in rows(conn, query, {"role": role, "right": right})}
