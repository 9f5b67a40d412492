"""plpgsql_check, where the server has it, finds nothing in any function."""

import os
import re

import pytest
from helpers import Connection, missing, scalar

from ledger import rows

# What is reported and is as it should be. An array that starts as '{}': a literal without a type of
# its own. A function that ends by calling one that raises. Statements that format() has made.
ACCEPTED = re.compile(r'cast "text" value to "\w+\[\]" type')
ACCEPTED_IN = {
    ("_settle_one", "control reached end of function without RETURN"),
    ("grant_access", "text type variable is not sanitized"),
}

FUNCTIONS = """
select p.proname, p.oid::regprocedure::text as signature, t.relation, t.old_table, t.new_table
from pg_proc p
join pg_language l on l.oid = p.prolang
left join lateral (
  select distinct on (g.tgrelid) g.tgrelid::regclass::text as relation,
    g.tgoldtable::text as old_table, g.tgnewtable::text as new_table
  from pg_trigger g where g.tgfoid = p.oid
) t on true
where p.pronamespace = 'jobq'::regnamespace and l.lanname = 'plpgsql'
order by 1, 3
"""


@pytest.fixture
def checked(conn: Connection) -> Connection:
    query = "select count(*) from pg_available_extensions where name = 'plpgsql_check'"
    if scalar(conn, query) == 0:
        reason = "this server has no plpgsql_check (Debian: postgresql-15-plpgsql-check)"
        if os.environ.get("JOBQ_TEST_PG_BINDIR"):
            missing(reason)
        pytest.skip(reason)
    conn.execute("create extension plpgsql_check")
    return conn


def test_plpgsql_check_finds_nothing(checked: Connection) -> None:
    functions = rows(checked, FUNCTIONS)
    assert len(functions) > 30
    triggers = {f["proname"] for f in functions if f["relation"]}
    assert {"_record_new_jobs", "_record_transitions", "_keep_history"} <= triggers
    found = []
    for function in functions:
        query = """
        select lineno, level, message, detail, hint
        from plpgsql_check_function_tb(%(signature)s, coalesce(%(relation)s::regclass, 0),
          oldtable => %(old_table)s, newtable => %(new_table)s,
          fatal_errors => false, extra_warnings => true, security_warnings => true)
        """
        for report in rows(checked, query, function):
            accepted = (function["proname"], report["message"]) in ACCEPTED_IN
            if not accepted and not ACCEPTED.fullmatch(report["detail"] or ""):
                found += [(function["signature"], *report.values())]
    assert found == []


def test_plpgsql_check_would_find_a_fault(checked: Connection) -> None:
    checked.execute(
        "create function jobq.faulty() returns int language plpgsql as"
        " 'begin return (select j.no_such_column from jobq.jobs j); end'"
    )
    query = "select message from plpgsql_check_function_tb('jobq.faulty()')"
    assert "no_such_column" in str(rows(checked, query))
