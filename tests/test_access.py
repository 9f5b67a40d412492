"""Who may call what: each level exactly its functions, PUBLIC nothing, nobody the tables."""

import re
from collections.abc import Callable
from itertools import combinations

import pytest
from helpers import Connection, scalar

from ledger import events, job, job_in, refused, rows
from levels import COMMON, LEVELS, VIEWS, Connect, MakeRole, functions_of, relations_of


@pytest.fixture
def grant(conn: Connection, make_role: MakeRole) -> Callable[..., str]:
    """Make a role with these levels."""

    def make(*levels: str) -> str:
        role = make_role()
        for level in levels:
            conn.execute("select jobq.grant_access(%s, %s)", (role, level))
        return role

    return make


def call_of(conn: Connection, name: str) -> str:
    """A call of the function with nulls of the right types."""
    arguments = scalar(
        conn,
        "select string_agg('null::' || format_type(t, null), ', ')"
        " from pg_proc, unnest(proargtypes) t"
        " where pronamespace = 'jobq'::regnamespace and proname = %s",
        name,
    )
    return f"select jobq.{name}({arguments or ''})"


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_exactly_its_functions_and_views(
    conn: Connection, grant: Callable[..., str], level: str
) -> None:
    role = grant(level)
    assert functions_of(conn, role) == LEVELS[level] | COMMON
    assert relations_of(conn, role) == (VIEWS if level in ("reader", "operator") else set())


def test_levels_add_up(conn: Connection, grant: Callable[..., str]) -> None:
    for one, other in combinations(LEVELS, 2):
        role = grant(one, other, one)
        assert functions_of(conn, role) == LEVELS[one] | LEVELS[other] | COMMON


@pytest.mark.parametrize("level", [None, *LEVELS])
def test_nobody_but_the_owner_writes_the_tables(
    conn: Connection, connect: Connect, grant: Callable[..., str], level: str | None
) -> None:
    role = grant(*([level] if level else []))
    for right in ("insert", "update", "delete", "truncate", "references", "trigger"):
        assert relations_of(conn, role, right) == set(), right
    low = connect(user=role)
    for statement in (
        "select from jobq.jobs",
        "insert into jobq.jobs (kind) values ('k')",
        "update jobq.jobs set priority = 1",
        "delete from jobq.jobs",
        "insert into jobq.job_events (job_id, event, actor) values (0, 'control', 'x')",
        "delete from jobq.job_events",
        "select nextval('jobq.jobs_id_seq')",
        "create table jobq.mine ()",
        "drop function jobq.stats()",
    ):
        with refused("42501"):
            low.execute(statement.encode())


def test_a_fresh_role_is_denied_every_function(
    conn: Connection, connect: Connect, make_role: MakeRole
) -> None:
    low = connect(user=make_role())
    query = "select proname from pg_proc where pronamespace = 'jobq'::regnamespace"
    names = [row["proname"] for row in rows(conn, query)]
    assert len(names) > 50
    for name in names:
        with refused("42501", "permission denied for schema jobq"):
            low.execute(call_of(conn, name).encode())


def test_public_holds_nothing_even_where_the_schema_is_open(
    conn: Connection, make_role: MakeRole
) -> None:
    role = make_role()
    conn.execute(f"grant usage on schema jobq to {role}".encode())
    assert functions_of(conn, role) == set()
    assert relations_of(conn, role) == set()


@pytest.mark.parametrize("level", LEVELS)
def test_functions_of_other_levels_are_denied(
    conn: Connection, connect: Connect, grant: Callable[..., str], level: str
) -> None:
    low = connect(user=grant(level))
    denied = set.union(*LEVELS.values()) - LEVELS[level] | {"grant_access", "_apply_grants"}
    for name in sorted(denied):
        with refused("42501", f"permission denied for function {name}"):
            low.execute(call_of(conn, name).encode())


class TestTemporaryObjects:
    """A low role puts its own `jobs`, functions and operators in front of ours."""

    DECOYS = """
    create temp table jobs (like pg_class);
    create temp table job_events (like pg_class);
    create temp table new_jobs (like pg_class);
    create function pg_temp.fire() returns text language plpgsql as
      $$ begin raise exception 'a decoy was called'; end $$;
    create function pg_temp.clock_timestamp() returns timestamptz language sql
      as 'select pg_temp.fire()::timestamptz';
    create function pg_temp.octet_length(text) returns int language sql
      as 'select pg_temp.fire()::int';
    create function pg_temp.jsonb_typeof(jsonb) returns text language sql
      as 'select pg_temp.fire()';
    create function pg_temp.less(a text, b text) returns boolean language sql
      as 'select pg_temp.fire()::boolean';
    create operator pg_temp.= (leftarg = text, rightarg = text, function = pg_temp.less);
    create operator pg_temp.<> (leftarg = text, rightarg = text, function = pg_temp.less);
    create domain pg_temp.timestamptz as int;
    create domain pg_temp.jsonb as int;
    create domain pg_temp.uuid as int;
    set search_path = pg_temp, pg_catalog, jobq, public;
    """

    def test_they_change_nothing(
        self, conn: Connection, connect: Connect, grant: Callable[..., str]
    ) -> None:
        running, failed = job_in(conn, "running"), job_in(conn, "failed")
        token = str(job(conn, running)["lease_token"])
        values = {"running": running, "failed": failed, "token": token}
        low = connect(user=grant(*LEVELS))
        for statement in self.DECOYS.split(";\n"):
            low.execute(statement.encode())
        calls = {
            "enqueue": "('k', '{}', idempotency_key => 'a')",
            "enqueue_many": '(\'[{"kind": "k", "idempotency_key": "b"}, {"kind": "k"}]\')',
            "claim": "('w', 5, '{k}')",
            "renew": "(array[%(running)s], array[%(token)s]::pg_catalog.uuid[])",
            "report_progress": "(%(running)s, %(token)s, 0.5, 'half')",
            "log": "(%(running)s, %(token)s, 'info', 'x')",
            "fail": "(%(running)s, %(token)s, 'x')",
            "retry": "(%(failed)s)", "cancel": "(%(failed)s)", "clone": "(%(running)s)",
            "retry_jobs": "('{\"kind\": \"k\"}')", "cancel_jobs": "('{\"kind\": \"none\"}')",
            "set_priority": "('{}', 3)", "reschedule": "('{}')",
            "settle": '(\'[{"job_id": 1, "lease_token": "x", "outcome": "released"}]\')',
            "reap": "()", "purge": "('1 hour')", "stats": "()", "explain": "(%(running)s)",
            "verify": "()", "listen": "('{k}')", "unlisten": "()", "present": "('{k}')",
            "next_due": "()", "retry_delay": "(3)", "schema_version": "()",
            "compatible_from": "()", "activity": "('1 hour', 4)", "runs": "('1 hour', 9)",
            "failures": "('1 hour', 4)", "error_class": "('E: x')", "error_line": "('x')",
        }  # fmt: skip
        # These four are thin wrappers of what `fail` runs, and a job ends only once.
        wrappers = {"succeed", "release", "snooze", "stop"}
        assert calls.keys() | wrappers == set.union(COMMON, *LEVELS.values())
        for name, arguments in calls.items():
            low.execute(f"select jobq.{name}{arguments}".encode(), values)
        for name in wrappers:
            more = ", '1 s'" if name == "snooze" else ""
            with refused("JQ003"):
                low.execute(f"select jobq.{name}({running}, '{token}'{more})".encode())
        for view in VIEWS:
            low.execute(f"select * from jobq.{view}".encode())
        assert [event["event"] for event in events(conn, running)] == [
            "enqueued", "claimed", "progress", "log", "failed", "changed", "changed",
        ]  # fmt: skip
        assert scalar(conn, "select count(*) from jobq.jobs") == 6
        assert scalar(conn, "select count(*) from jobq.verify()") == 0
        for decoy in ("jobs", "job_events"):
            assert scalar(low, f"select count(*) from pg_temp.{decoy}") == 0


def test_no_function_of_the_owners_rights_runs_sql_that_a_caller_wrote(conn: Connection) -> None:
    query = (
        "select proname, prosrc from pg_proc"
        " where pronamespace = 'jobq'::regnamespace and prosecdef"
    )
    dynamic = [
        row["proname"] for row in rows(conn, query) if re.search(r"\bexecute\b", row["prosrc"])
    ]
    assert dynamic == []
