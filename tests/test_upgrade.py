"""An additive migration on a database with rows, under a worker: forward, back, forward again.

The migration is made up, in a copy of the package: a column, a function that grows an argument.
"""

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PgServer
from helpers import Checkout, Connection, dump, scalar, wait_for_activity

from jobq.migrate import SCHEMA_VERSION, migrate, status
from ledger import STATUSES, job_in
from test_migrate import MIGRATE
from verbs import assert_consistent, rows
from workers import work_goes_on

Connect = Callable[..., Connection]

NEXT = SCHEMA_VERSION + 1

FORWARD = """
alter table jobq.jobs add column if not exists note text;

comment on column jobq.jobs.note is 'Made up.';

drop function if exists jobq.cancel(bigint);
"""
BACK = """
drop function if exists jobq.cancel(bigint, text);

alter table jobq.jobs drop column if exists note;
"""
ROLLBACK = "import sys; from jobq.migrate import rollback; print(rollback(sys.argv[1]))"
JOBS = """
select id, created_at, available_at, status::text, attempt, max_attempts, lost_leases, priority,
  kind, payload, idempotency_key, locked_by, lease_token, lease_expires_at, cancel_requested_at,
  started_at, finished_at, progress, result, last_error
from jobq.jobs where kind <> 'busy' order by id"""
EVENTS = """
select e.* from jobq.job_events e join jobq.jobs j on j.id = e.job_id
where j.kind <> 'busy' order by e.id"""


@pytest.fixture
def newer(tmp_path: Path) -> Checkout:
    """The package with one migration more."""
    checkout = Checkout(tmp_path)
    db = checkout.root / "db"
    (db / "migrations" / "9990.note.sql").write_text(FORWARD)
    (db / "migrations" / "9990.note.rollback.sql").write_text(BACK)
    edit(db / "functions" / "version.sql", f"'select {SCHEMA_VERSION}'", f"'select {NEXT}'")
    operator = db / "functions" / "operator.sql"
    edit(
        operator, "jobq.cancel(job_id bigint)", "jobq.cancel(job_id bigint, note text default null)"
    )
    edit(operator, "function jobq.cancel(bigint)", "function jobq.cancel(bigint, text)")
    edit(operator, "  v_job := jobq._lock_job(cancel.job_id);", """\
  v_job := jobq._lock_job(cancel.job_id);
  update jobq.jobs j set note = cancel.note where j.ctid = v_job.row_at
  returning j.ctid into v_job.row_at;""")  # fmt: skip
    return checkout


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def contents(conn: Connection) -> tuple[list[Any], list[Any]]:
    """All rows but those of the jobs that the worker makes and runs meanwhile."""
    return rows(conn, JOBS), rows(conn, EVENTS)


def test_forward_back_and_forward_again_with_rows_and_a_worker_at_work(
    newer: Checkout,
    pg_server: PgServer,
    dsn: str,
    empty_dsn: str,
    conn: Connection,
    connect: Connect,
    make_role: Callable[..., str],
) -> None:
    producer = make_role()
    conn.execute("select jobq.grant_access(%s, 'producer')", (producer,))
    queued, *_ = (job_in(conn, name, idempotency_key=f"key of {name}") for name in STATUSES)
    before, schema = contents(conn), dump(pg_server.bindir, dsn)
    with work_goes_on(dsn, conn) as some_more:
        for _ in range(2):
            assert "migrations=['9990.note']" in newer.migrate(dsn)
            some_more()
            assert contents(conn) == before
            assert scalar(conn, "select jobq.schema_version()") == NEXT
            upgraded = dump(pg_server.bindir, dsn)
            assert newer.run(ROLLBACK, dsn) == "['9990.note']\n"
            report = migrate(dsn)
            assert (report.migrations, report.schema_version) == ([], SCHEMA_VERSION)
            some_more()
            assert contents(conn) == before
            assert dump(pg_server.bindir, dsn) == schema
        newer.migrate(dsn)
        some_more()
    own = connect(user=producer)
    assert scalar(own, "select jobq.cancel(%s, note => 'why')", queued) == "cancelled"
    assert scalar(conn, "select note from jobq.jobs where id = %s", queued) == "why"
    assert_consistent(conn)
    newer.migrate(empty_dsn)
    without_grants = "--no-privileges"
    fresh = dump(pg_server.bindir, empty_dsn, without_grants)
    assert dump(pg_server.bindir, dsn, without_grants) == fresh
    assert "note text" in upgraded


def test_killed_at_any_moment_the_next_run_completes_it(
    newer: Checkout,
    pg_server: PgServer,
    make_database: Callable[..., str],
    connect: Connect,
) -> None:
    whole = make_database()
    newer.migrate(whole)
    expected = dump(pg_server.bindir, whole)
    found = []
    for seconds in (0, 0.1, 0.25):
        target = make_database()
        watcher = connect(target)
        process = newer.start(MIGRATE, target)
        pid = wait_for_activity(watcher, "application_name = 'jobq migrate'")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.communicate()
        watcher.execute("select pg_terminate_backend(%s, 10000)", (pid,))
        found.append((len(status(target).applied), status(target).schema_version))
        newer.migrate(target)
        assert dump(pg_server.bindir, target) == expected
    print(f"killed after (migrations, version of the functions): {found}")
