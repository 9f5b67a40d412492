"""What the dashboard shows of the database itself, and of the functions; as a mere reader."""

from collections.abc import Callable

import pytest
from helpers import Connection, scalar

import queries
import queries_database
from dashboards import Asking, asking, grant
from ledger import job_in
from queries_api import LEVELS
from scale import Connect, fill
from verbs import enqueue, run


@pytest.fixture
def reader(conn: Connection, connect: Connect, make_role: Callable[..., str]) -> Asking:
    """The dashboard's connection, as a role with the level reader and nothing else."""
    return asking(connect, user=grant(conn, make_role, "reader"))


class TestDatabase:
    def test_tables_and_indexes_have_their_sizes(
        self, reader: Asking, conn: Connection, connect: Connect
    ) -> None:
        fill(connect, 5000)
        conn.execute("vacuum analyze jobq.jobs")
        conn.execute("select pg_stat_force_next_flush()")
        found = {row["relation"]: row for row in queries.database(reader)["tables"]}
        assert found.keys() >= {"jobs", "job_events", "jobs_pkey", "job_events_at_idx"}
        jobs = found["jobs"]
        assert (jobs["kind"], jobs["rows"], jobs["dead"]) == ("table", 5000, 0)
        assert jobs["bytes"] == scalar(conn, "select pg_table_size('jobq.jobs')")
        assert jobs["last_analyze"] is not None
        index = found["jobs_pkey"]
        assert (index["kind"], index["dead"]) == ("index", None)
        assert index["bytes"] == scalar(conn, "select pg_relation_size('jobq.jobs_pkey')")
        assert queries.database(reader)["tables"][0]["kind"] == "table"

    def test_who_holds_a_snapshot_and_what_of_others_is_hidden(
        self, reader: Asking, conn: Connection, connect: Connect
    ) -> None:
        holder = connect(autocommit=False, application_name="report")
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select from jobq.jobs")
        pid = holder.info.backend_pid
        found = queries.database(reader)
        (seen,) = [row for row in found["snapshots"] if row["pid"] == pid]
        assert (seen["who"], seen["state"], seen["since"]) == ("report", None, None)
        assert seen["xmin_age"] >= 0
        assert found["hidden_sessions"] >= 2, "the owner's, to which a reader has no right"
        owner = queries.database(asking(connect))
        (seen,) = [row for row in owner["snapshots"] if row["pid"] == pid]
        assert seen["state"] == "idle in transaction"
        assert seen["since"] is not None
        assert owner["hidden_sessions"] == 0
        holder.rollback()
        assert pid not in [row["pid"] for row in queries.database(reader)["snapshots"]]

    def test_settings_come_with_the_reason_to_look_at_them(
        self, reader: Asking, conn: Connection
    ) -> None:
        found = queries.database(reader)["settings"]
        assert [row["name"] for row in found] == list(queries_database.WHY)
        for row in found:
            expected = "select setting, unit from pg_settings where name = %s"
            assert conn.execute(expected, (row["name"],)).fetchone() == (row["value"], row["unit"])
            assert row["why"].endswith(".")

    def test_the_version_of_the_schema(self, reader: Asking, conn: Connection) -> None:
        expected = scalar(conn, "select jobq.schema_version()")
        assert queries.database(reader)["schema_version"] == expected


def test_verify_tells_what_the_proof_finds(reader: Asking, conn: Connection) -> None:
    job_id = enqueue(conn)
    assert queries.verify(reader) == []
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute("update jobq.jobs set priority = 7")
    found = queries.verify(reader)
    assert [tuple(row.values()) for row in found] == [(job_id, "priority", "0", "7")]


class TestPurgeable:
    def test_what_finished_longer_ago_than_that(self, reader: Asking, conn: Connection) -> None:
        run(conn, kind="runs")
        for status in ("queued", "succeeded", "succeeded", "failed", "cancelled"):
            job_in(conn, status)
        conn.execute("alter table jobq.jobs disable trigger user")
        conn.execute(
            "update jobq.jobs set finished_at = finished_at - interval '10 days' where id % 2 = 0"
        )
        old = dict(
            conn.execute(
                "select status::text, count(*) from jobq.jobs"
                " where finished_at < now() - interval '7 days' group by 1"
            )
        )
        for status in ("succeeded", "failed", "cancelled"):
            found = queries.purgeable(reader, 7, (status,))
            assert found == {"jobs": old.get(status, 0), "more": False}
        every = ("succeeded", "failed", "cancelled")
        assert queries.purgeable(reader, 7, every)["jobs"] == sum(old.values()) >= 2
        assert queries.purgeable(reader, 0, every)["jobs"] == 4
        assert queries.purgeable(reader, 11, every)["jobs"] == 0

    def test_counting_stops_and_says_so(
        self, reader: Asking, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(connect, 30, status="failed", made="-10 days")
        monkeypatch.setattr(queries_database, "MOST_COUNTED", 30)
        assert queries.purgeable(reader, 7, ("failed",)) == {"jobs": 30, "more": False}
        monkeypatch.setattr(queries_database, "MOST_COUNTED", 29)
        assert queries.purgeable(reader, 7, ("failed",)) == {"jobs": 29, "more": True}


class TestFunctions:
    def test_all_public_ones_with_their_comments(self, reader: Asking, conn: Connection) -> None:
        found = queries.functions(reader)
        query = "select proname from pg_proc where pronamespace = 'jobq'::regnamespace order by 1"
        names = [name for (name,) in conn.execute(query) if not name.startswith("_")]
        assert [row["name"] for row in found] == names
        by_name = {row["name"]: row for row in found}
        assert by_name["retry"]["signature"] == "job_id bigint, extra_attempts integer DEFAULT 1"
        assert by_name["retry"]["returns"] == "jobq.job_status"
        assert by_name["reap"]["returns"].startswith("TABLE(job_id bigint")
        assert all(row["comment"] for row in found)
        assert by_name["retry"]["levels"] == ["producer", "operator"]
        assert by_name["grant_access"]["levels"] == []

    def test_the_levels_are_those_of_the_database(self, conn: Connection) -> None:
        for level, names in LEVELS.items():
            assert names == set(scalar(conn, "select jobq._functions_of(%s)", level))
