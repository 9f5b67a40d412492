"""What the dashboard shows of the state: one snapshot, the right numbers, as a mere reader."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from helpers import Connection, scalar

import queries
import sql
from dashboards import Asking, asking, grant, in_hand_of
from ledger import STATUSES, job_in
from scale import Connect
from sql import value
from verbs import enqueue, enqueue_many, outcome, run, settle

MakeRole = Callable[..., str]


@pytest.fixture
def reader(conn: Connection, connect: Connect, make_role: MakeRole) -> Asking:
    """The dashboard's connection, as a role with the level reader and nothing else."""
    return asking(connect, user=grant(conn, make_role, "reader"))


def fail(conn: Connection, kind: str, error: str, **fields: object) -> int:
    job = run(conn, kind=kind)
    settle(conn, outcome(job, "failed", error=error, **{"retryable": False, **fields}))
    return int(job.id)


def attention(reader: Asking) -> dict[str, dict[str, Any]]:
    return {item["what"]: item for item in queries.overview(reader)["attention"]}


def test_it_says_which_database_this_is(reader: Asking, conn: Connection) -> None:
    found = queries.where(reader)
    assert found["database"] == conn.info.dbname
    assert found["role"] == reader.info.user
    assert found["version"].split(".")[0] == str(conn.info.server_version // 10000)
    assert abs(found["now"] - scalar(conn, "select clock_timestamp()")) < timedelta(minutes=1)


class TestOverview:
    def test_an_empty_queue_is_all_zeros(self, reader: Asking) -> None:
        found = queries.overview(reader)
        assert [(row["status"], row["jobs"]) for row in found["counts"]] == [
            (status, 0) for status in STATUSES
        ]
        assert (found["due"], found["scheduled"], found["oldest_due_at"]) == (0, 0, None)
        for part in ("kinds", "failures", "workers", "attention"):
            assert found[part] == [], part

    def test_counts_are_those_of_the_tables(self, reader: Asking, conn: Connection) -> None:
        for number, status in enumerate(STATUSES, 1):
            for _ in range(number):
                job_in(conn, status)
        enqueue_many(conn, 3, "later", delay=3600)
        enqueue_many(conn, 2, "now")
        found = queries.overview(reader)
        table = dict(conn.execute("select status::text, count(*) from jobq.jobs group by 1"))
        assert {row["status"]: row["jobs"] for row in found["counts"]} == table
        assert (found["due"], found["scheduled"]) == (3, 3)
        oldest = """
            select min(available_at) from jobq.jobs
            where status = 'queued' and available_at < clock_timestamp()"""
        assert found["oldest_due_at"] == scalar(conn, oldest)

    def test_the_ten_newest_failures_come_with_their_line(
        self, reader: Asking, conn: Connection
    ) -> None:
        ids = [
            fail(conn, "a", f"Traceback (most recent call last):\n  x\nE: {n}\nmore")
            for n in range(12)
        ]
        found = queries.overview(reader)["failures"]
        assert [row["id"] for row in found] == ids[:1:-1]
        assert (found[0]["kind"], found[0]["error_class"]) == ("a", "E")
        assert found[0]["message"] == "E: 11"
        finished = "select finished_at from jobq.jobs where id = %s"
        assert found[0]["finished_at"] == scalar(conn, finished, ids[-1])

    def test_it_is_one_snapshot(
        self, reader: Asking, conn: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever commits between two of its statements does not show in any part of it."""
        enqueue(conn, "before")
        fetch, calls = sql.fetch, []

        def fetch_after_a_commit(*args: Any) -> Any:
            found = fetch(*args)
            calls.append(len(found))
            fail(conn, "meanwhile", "E: x")
            enqueue(conn, "meanwhile")
            in_hand_of(conn, "w", "meanwhile too", 1)
            return found

        for module in ("queries_state", "queries_workers", "queries_attention"):
            monkeypatch.setattr(f"{module}.fetch", fetch_after_a_commit)
        found = queries.overview(reader)
        assert len(calls) >= 8
        counts = {row["status"]: row["jobs"] for row in found["counts"]}
        assert counts == {"queued": 1, "running": 0, "succeeded": 0, "failed": 0, "cancelled": 0}
        assert [row["kind"] for row in found["kinds"]] == ["before"]
        assert (found["due"], found["failures"], found["workers"]) == (1, [], [])
        assert {item["what"] for item in found["attention"]} == {"no worker"}
        monkeypatch.undo()
        assert queries.overview(reader)["failures"], "the next look sees it"

    def test_it_writes_nothing_and_leaves_no_transaction_open(self, reader: Asking) -> None:
        queries.overview(reader)
        assert reader.info.transaction_status.name == "IDLE"
        assert value(reader, "show transaction_isolation") == "read committed"
        assert value(reader, "show transaction_read_only") == "off"

    def test_at_most_fifty_kinds_are_told_and_all_are_counted(
        self, reader: Asking, conn: Connection
    ) -> None:
        for number in range(60):
            enqueue_many(conn, 1 + number // 50, f"kind-{number:02}")
        found = queries.overview(reader)
        assert len(found["kinds"]) == 50
        assert [row["queued"] for row in found["kinds"][:11]] == [2] * 10 + [1]
        assert found["due"] == 70


class TestAttention:
    def test_a_queue_in_order_needs_none(
        self, reader: Asking, conn: Connection, connect: Connect
    ) -> None:
        connect().execute("select jobq.present('{a,b}')")
        enqueue(conn, "a")
        enqueue(conn, "no worker, and not due", delay="1 hour")
        fail(conn, "b", "E: x", retryable=True)
        in_hand_of(conn, "w", "b", 2)
        assert attention(reader) == {}

    def test_leases_that_nobody_reaps(self, reader: Asking, conn: Connection) -> None:
        (late, *_, young, _) = in_hand_of(conn, "w", "a", 4)
        ago = (
            "update jobq.jobs set lease_expires_at = clock_timestamp() - %s::interval where id = %s"
        )
        conn.execute(ago, ("5 minutes", late[0]))
        conn.execute(ago, ("5 seconds", young[0]))
        item = attention(reader)["expired leases"]
        assert item["jobs"] == 1
        assert "1 running job without a lease, for up to 5 min" in item["message"]
        assert (item["page"], item["params"]) == ("screens/jobs.py", {"status": "running"})

    def test_due_jobs_without_a_live_worker(
        self, reader: Asking, conn: Connection, connect: Connect
    ) -> None:
        enqueue_many(conn, 3, "alone")
        enqueue(conn, "served")
        connect().execute("select jobq.present('{served}')")
        item = attention(reader)["no worker"]
        assert item["jobs"] == 3
        assert item["message"] == "3 due jobs of kind alone, and no live worker for it"
        assert item["params"] == {"status": "queued", "kind": "alone"}

    def test_not_while_some_workers_cannot_be_seen(self, reader: Asking, conn: Connection) -> None:
        enqueue(conn, "alone")
        in_hand_of(conn, "behind a pooler", "other", 1)
        assert "no worker" not in attention(reader)

    def test_many_kinds_without_a_worker_are_told_together(
        self, reader: Asking, conn: Connection
    ) -> None:
        for number in range(13):
            enqueue(conn, f"kind-{number:02}")
        items = queries.overview(reader)["attention"]
        assert len(items) == 11
        assert items[-1]["message"] == "3 due jobs of 3 more kinds, and no live worker for them"

    def test_jobs_near_their_last_attempt(self, reader: Asking, conn: Connection) -> None:
        for attempts in (2, 2, 3):
            job = run(conn, kind="a", max_attempts=attempts)
            settle(conn, outcome(job, "failed", error="E: x", retry_in_seconds=3600))
        enqueue(conn, "only one anyway", max_attempts=1, delay="1 hour")
        item = attention(reader)["last attempt"]
        assert item["jobs"] == 2
        assert (
            item["message"] == "2 queued jobs (of kind a) failed before and have one attempt left"
        )

    def test_a_snapshot_held_for_long(
        self, reader: Asking, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        holder = connect(autocommit=False, application_name="report")
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select from jobq.jobs")
        assert attention(reader) == {}
        import queries_attention as module

        # To a reader another role's transaction has no beginning, only an age in transactions.
        monkeypatch.setattr(module, "_PINNED", module._PINNED.replace("> 100000", "> -1"))
        item = attention(reader)["pinned snapshot"]
        pid = holder.info.backend_pid
        assert item["message"].startswith(f"report (process {pid}) has held a snapshot for ")
        assert "transactions" in item["message"]
        assert item["page"] == "screens/database.py"

    def test_how_long_it_is_held_where_that_may_be_seen(
        self, conn: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        holder = connect(autocommit=False)
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select from jobq.jobs")
        import queries_attention as module

        monkeypatch.setattr(module, "_PINNED", module._PINNED.replace("10 minutes", "0"))
        owner = asking(connect)
        message = attention(owner)["pinned snapshot"]["message"]
        assert "has held a snapshot for 0 min" in message

    def test_dead_rows_that_no_vacuum_takes(
        self, reader: Asking, conn: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        conn.execute("alter table jobq.jobs set (autovacuum_enabled = off)")
        enqueue_many(conn, 200)
        conn.execute("update jobq.jobs set progress = 0.5")
        conn.execute("select pg_stat_force_next_flush()")
        assert attention(reader).keys() == {"no worker"}, "autovacuum would not have come yet"
        conn.execute("alter table jobq.jobs set (autovacuum_vacuum_threshold = 1)")
        item = attention(reader)["autovacuum behind"]
        assert item["message"] == "200 dead rows in jobs, not vacuumed for 10 minutes or more"
        conn.execute("vacuum jobq.jobs")
        conn.execute("update jobq.jobs set progress = 0.6")
        conn.execute("select pg_stat_force_next_flush()")
        assert "autovacuum behind" not in attention(reader), "it was there a moment ago"
