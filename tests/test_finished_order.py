"""Migration 0003: failed and cancelled jobs in the order of their finish, on a queue at work."""

import pytest
from helpers import ROOT, Connection, scalar

from jobq.migrate import migrate, rollback
from ledger import job_in
from plans import Explained
from scale import Connect, fill
from verbs import assert_consistent, rows
from workers import work_goes_on

NAME = "0003.finished_order"
MIGRATION = (ROOT / "db" / "migrations" / f"{NAME}.sql").read_text("utf-8")
INDEXES = """
select indexname, regexp_replace(indexdef, '^.* USING ', '') from pg_indexes
where schemaname = 'jobq' and indexname in ('jobs_failed_idx', 'jobs_cancelled_idx') order by 1"""
ROWS = "select j.* from jobq.jobs j where kind <> 'busy' order by id"


def test_back_and_forward_again_under_a_worker(dsn: str, conn: Connection) -> None:
    for status in ("queued", "failed", "cancelled", "succeeded"):
        job_in(conn, status)
    before, indexes = rows(conn, ROWS), conn.execute(INDEXES).fetchall()
    with work_goes_on(dsn, conn) as some_more:
        for _ in range(2):
            assert rollback(dsn) == [NAME]
            assert [index for _, index in conn.execute(INDEXES)] == [
                f"btree (id) WHERE (status = '{status}'::jobq.job_status)"
                for status in ("cancelled", "failed")
            ]
            some_more()
            assert scalar(conn, "select sum(jobs) from jobq.stats()") == len(
                rows(conn, "select from jobq.jobs")
            )
            assert migrate(dsn).migrations == [NAME]
            some_more()
            assert conn.execute(INDEXES).fetchall() == indexes
            assert rows(conn, ROWS) == before
    assert_consistent(conn)


def test_run_again_it_leaves_the_indexes_as_they_are(conn: Connection) -> None:
    made = "select array_agg(oid order by oid) from pg_class where relname ~ '^jobs_.*_idx$'"
    before = scalar(conn, made)
    conn.execute(MIGRATION.encode())
    assert scalar(conn, made) == before


@pytest.mark.parametrize("lost", ["jobs_failed_idx", "jobs_cancelled_idx"])
def test_an_index_that_somebody_dropped_is_made_again(conn: Connection, lost: str) -> None:
    indexes = conn.execute(INDEXES).fetchall()
    conn.execute(f"drop index jobq.{lost}".encode())
    conn.execute(MIGRATION.encode())
    assert conn.execute(INDEXES).fetchall() == indexes


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_the_newest_are_found_without_reading_the_rest(
    conn: Connection, connect: Connect, status: str
) -> None:
    fill(connect, 20_000, status=status)
    conn.execute("analyze jobq.jobs")
    query = f"""
        select id from jobq.jobs where status = '{status}'
        order by finished_at desc, id desc limit 10"""
    (plan,) = Explained(connect()).run(query)
    assert plan.indexes() == {f"jobs_{status}_idx"}
    assert plan.buffers < 30


def test_an_older_package_goes_on_after_it(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobq import migrate as module

    assert scalar(conn, "select jobq.compatible_from()") == 1
    monkeypatch.setattr(module, "SCHEMA_VERSION", 1)
    module.check_compatible(conn)


def test_stats_counts_by_the_new_indexes(conn: Connection, connect: Connect) -> None:
    for count, status in ((20_000, "succeeded"), (500, "failed"), (300, "cancelled")):
        fill(connect, count, status=status)
    conn.execute("vacuum analyze jobq.jobs")
    plans = Explained(connect()).run("select * from jobq.stats()")
    used = set().union(*(plan.indexes() for plan in plans))
    assert {"jobs_failed_idx", "jobs_cancelled_idx"} <= used
