"""The tables: what a row may look like, and what every object of the schema has."""

import pytest
from helpers import Connection, scalar

from ledger import refused, rows

TOKEN = "'00000000-0000-4000-8000-000000000000'"
QUEUED = {"kind": "'k'"}
RUNNING = {
    **QUEUED,
    "status": "'running'",
    "attempt": "1",
    "locked_by": "'w'",
    "lease_token": TOKEN,
    "lease_expires_at": "clock_timestamp()",
    "started_at": "clock_timestamp()",
}
SUCCEEDED = {**QUEUED, "status": "'succeeded'", "finished_at": "clock_timestamp()"}
CANCELLED = {**SUCCEEDED, "status": "'cancelled'"}

# Each constraint, and rows that violate it and no other one: values as SQL over a valid row.
VIOLATIONS: dict[str, list[dict[str, str]]] = {
    "id_is_positive": [{**QUEUED, "id": "0"}, {**QUEUED, "id": "-1"}],
    "kind_is_1_to_128_bytes": [{"kind": "''"}, {"kind": "repeat('ä', 64) || 'x'"}],
    "payload_is_an_object": [
        {**QUEUED, "payload": f"'{value}'"} for value in ("[]", "null", '""', "0", "false")
    ],
    "payload_is_at_most_16_mib": [
        {**QUEUED, "payload": "jsonb_build_object('a', repeat('x', 16777216))"}
    ],
    "priority_is_within_100": [{**QUEUED, "priority": "101"}, {**QUEUED, "priority": "-101"}],
    "created_at_is_within_2000_to_9999": [
        {**QUEUED, "created_at": f"'{value}'"}
        for value in ("1999-12-31 23:59:59.999999+00", "10000-01-01+00", "infinity", "-infinity")
    ],
    "available_at_is_within_2000_to_9999": [
        {**QUEUED, "available_at": f"'{value}'"}
        for value in ("1999-12-31 23:59:59.999999+00", "10000-01-01+00", "infinity", "-infinity")
    ],
    "attempt_is_within_max_attempts": [
        {**RUNNING, "attempt": "11"},
        {**QUEUED, "attempt": "-1"},
    ],
    "max_attempts_is_positive": [{**CANCELLED, "max_attempts": "0"}],
    "retry_seconds_are_positive": [
        {**QUEUED, "retry_base_seconds": "0"},
        {**QUEUED, "retry_cap_seconds": "0"},
    ],
    "lost_leases_is_not_negative": [{**QUEUED, "lost_leases": "-1"}],
    "idempotency_key_is_1_to_512_bytes": [
        {**QUEUED, "idempotency_key": "''"},
        {**QUEUED, "idempotency_key": "repeat('x', 513)"},
    ],
    "progress_is_within_0_to_1": [
        {**QUEUED, "progress": value} for value in ("-0.01", "1.01", "'nan'", "'infinity'")
    ],
    "last_error_is_at_most_32_kib": [{**QUEUED, "last_error": "repeat('x', 32769)"}],
    "result_is_at_most_16_mib": [{**SUCCEEDED, "result": "to_jsonb(repeat('x', 16777216))"}],
    "only_succeeded_has_a_result": [
        {**CANCELLED, "result": "'1'"},
        {**RUNNING, "result": "'1'"},
    ],
    "queued_has_no_owner_lease_or_finish": [
        {**QUEUED, "locked_by": "'w'"},
        {**QUEUED, "lease_token": TOKEN},
        {**QUEUED, "lease_expires_at": "clock_timestamp()"},
        {**QUEUED, "finished_at": "clock_timestamp()"},
    ],
    "queued_has_an_attempt_left": [{**QUEUED, "attempt": "10"}],
    "queued_has_no_cancel_request": [{**QUEUED, "cancel_requested_at": "clock_timestamp()"}],
    "running_has_an_owner_and_a_lease": [
        {**RUNNING, "locked_by": "null"},
        {**RUNNING, "lease_token": "null"},
        {**RUNNING, "lease_expires_at": "null"},
        {**RUNNING, "started_at": "null"},
        {**RUNNING, "attempt": "0"},
        {**RUNNING, "finished_at": "clock_timestamp()"},
    ],
    "finished_has_a_finish_and_no_lease": [
        {**CANCELLED, "finished_at": "null"},
        {**CANCELLED, "locked_by": "'w'"},
        {**CANCELLED, "lease_token": TOKEN},
        {**CANCELLED, "lease_expires_at": "clock_timestamp()"},
    ],
}

COLUMNS = {
    "jobs": """id bigint!, created_at timestamptz!, available_at timestamptz!, status job_status!,
        attempt integer!, max_attempts integer!, retry_base_seconds integer!,
        retry_cap_seconds integer!, lost_leases integer!, priority smallint!, kind text!,
        payload jsonb!, idempotency_key text, locked_by text, lease_token uuid,
        lease_expires_at timestamptz, cancel_requested_at timestamptz, started_at timestamptz,
        finished_at timestamptz, progress real, result jsonb, last_error text""",
    "job_events": """job_id bigint!, id bigint!, at timestamptz!, event job_event!,
        from_status job_status, to_status job_status, attempt integer, worker text, actor text!,
        detail jsonb""",
}

INDEXES = """
job_events_at_idx: brin (at) WITH (autosummarize='on')
job_events_pkey: btree (job_id, id)
jobs_cancelled_idx: btree (finished_at, id) WHERE (status = 'cancelled'::jobq.job_status)
jobs_failed_idx: btree (finished_at, id) WHERE (status = 'failed'::jobq.job_status)
jobs_idempotency_key_idx: btree (idempotency_key) WHERE (idempotency_key IS NOT NULL)
jobs_pkey: btree (id)
jobs_ready_idx: btree (priority DESC, available_at, created_at, id)\
 WHERE (status = 'queued'::jobq.job_status)
jobs_running_idx: btree (id) WHERE (status = 'running'::jobq.job_status)
"""


def insert(conn: Connection, values: dict[str, str]) -> None:
    query = f"insert into jobq.jobs ({', '.join(values)}) values ({', '.join(values.values())})"
    conn.execute(query.encode())


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_row_that_contradicts_a_fact_is_refused_by_its_name(conn: Connection, name: str) -> None:
    for values in VIOLATIONS[name]:
        with refused("23514", f'"{name}"'):
            insert(conn, values)
        # It contradicts nothing else: without the constraint it could be stored.
        with conn.transaction(force_rollback=True):
            conn.execute("set local session_replication_role = replica")
            conn.execute(f"alter table jobq.jobs drop constraint {name}".encode())
            insert(conn, values)


def test_every_check_has_its_violation(conn: Connection) -> None:
    checks = rows(
        conn,
        "select conname from pg_constraint where contype = 'c'"
        " and connamespace = 'jobq'::regnamespace",
    )
    assert {check["conname"] for check in checks} == set(VIOLATIONS)


def test_values_at_the_edge_of_what_is_allowed_are_stored(conn: Connection) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute("set local session_replication_role = replica")
        for values in (
            {"id": "9223372036854775807", "kind": "repeat('ä', 64)", "priority": "100"},
            {"kind": "'k'", "priority": "-100", "created_at": "'2000-01-01+00'"},
            {"kind": "'k'", "available_at": "'9999-12-31 23:59:59.999999+00'"},
            {"kind": "'k'", "idempotency_key": "repeat('x', 512)"},
            {"kind": "'k'", "max_attempts": "2147483647", "attempt": "2147483646"},
            {**CANCELLED, "last_error": "repeat('x', 32768)", "progress": "1"},
            {**RUNNING, "cancel_requested_at": "clock_timestamp()", "progress": "0"},
        ):
            insert(conn, values)


def test_there_are_exactly_two_tables(conn: Connection) -> None:
    query = (
        "select relname from pg_class where relnamespace = 'jobq'::regnamespace"
        " and relkind in ('r', 'p', 'm', 'f', 't') order by 1"
    )
    assert conn.execute(query).fetchall() == [("job_events",), ("jobs",)]


@pytest.mark.parametrize("table", COLUMNS)
def test_columns_are_the_published_ones(conn: Connection, table: str) -> None:
    query = (
        "select attname || ' ' || regexp_replace("
        "  replace(format_type(atttypid, atttypmod), 'timestamp with time zone', 'timestamptz'),"
        "  '^jobq\\.', '') || case when attnotnull then '!' else '' end"
        " from pg_attribute where attrelid = ('jobq.' || %s)::regclass"
        " and attnum > 0 and not attisdropped order by attnum"
    )
    found = [column for (column,) in conn.execute(query, (table,))]
    assert found == [" ".join(column.split()) for column in COLUMNS[table].split(",")]


def test_indexes_are_the_ones_that_are_paid_for(conn: Connection) -> None:
    query = (
        "select indexname || ': ' || regexp_replace(indexdef, '^.* USING ', '')"
        " from pg_indexes where schemaname = 'jobq' order by indexname"
    )
    assert [index for (index,) in conn.execute(query)] == INDEXES.strip().splitlines()


def test_ids_of_events_are_drawn_one_at_a_time(conn: Connection) -> None:
    """A session that cached a block of ids would hand out old ones later."""
    sequence = "pg_get_serial_sequence(%s, 'id')::regclass"
    query = f"select seqcache from pg_sequence where seqrelid = {sequence}"
    assert scalar(conn, query, "jobq.job_events") == 1


def test_everything_public_has_a_comment(conn: Connection) -> None:
    query = """
    select p.oid::regprocedure::text as name from pg_proc p
    where p.pronamespace = 'jobq'::regnamespace and obj_description(p.oid, 'pg_proc') is null
    union all
    select c.oid::regclass::text from pg_class c
    where c.relnamespace = 'jobq'::regnamespace and c.relkind in ('r', 'v')
      and obj_description(c.oid, 'pg_class') is null
    union all
    select a.attrelid::regclass || '.' || a.attname from pg_attribute a
    join pg_class c on c.oid = a.attrelid
    where c.relnamespace = 'jobq'::regnamespace and c.relkind = 'r' and a.attnum > 0
      and not a.attisdropped and col_description(a.attrelid, a.attnum) is null
    union all
    select t.oid::regtype::text from pg_type t
    where t.typnamespace = 'jobq'::regnamespace and t.typtype = 'e'
      and obj_description(t.oid, 'pg_type') is null
    union all
    select 'schema' where obj_description('jobq'::regnamespace, 'pg_namespace') is null
    """
    assert [row["name"] for row in rows(conn, query)] == []


def test_no_function_is_overloaded(conn: Connection) -> None:
    query = (
        "select proname from pg_proc where pronamespace = 'jobq'::regnamespace"
        " group by proname having count(*) > 1"
    )
    assert conn.execute(query).fetchall() == []


def test_functions_with_the_owners_rights_pin_their_search_path(conn: Connection) -> None:
    query = (
        "select proname, proconfig from pg_proc"
        " where pronamespace = 'jobq'::regnamespace and prosecdef"
    )
    found = {row["proname"]: row["proconfig"] or [] for row in rows(conn, query)}
    assert {"enqueue", "claim", "settle", "verify"} <= found.keys()
    pinned = "search_path=pg_catalog, jobq, pg_temp"
    assert [name for name, config in found.items() if pinned not in config] == []


def test_every_public_function_but_grant_access_has_the_owners_rights_or_reads_nothing(
    conn: Connection,
) -> None:
    query = (
        "select proname from pg_proc where pronamespace = 'jobq'::regnamespace"
        " and not prosecdef and proname !~ '^_' order by 1"
    )
    names = [row["proname"] for row in rows(conn, query)]
    assert names == [
        "compatible_from", "error_class", "error_line", "grant_access", "retry_delay",
        "schema_version",
    ]  # fmt: skip


def test_functions_need_no_setting_that_only_a_superuser_may_attach(conn: Connection) -> None:
    query = (
        "select p.proname, c.setting from pg_proc p cross join unnest(p.proconfig) c(setting)"
        " where p.pronamespace = 'jobq'::regnamespace and split_part(c.setting, '=', 1) ~ '\\.'"
    )
    assert conn.execute(query).fetchall() == []
