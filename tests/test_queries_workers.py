"""What the dashboard shows of kinds and workers: live, in hand, last seen; as a mere reader."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection, scalar, wait_until

import queries
from dashboards import Asking, asking, grant, in_hand_of
from jobq import App
from ledger import job_in
from scale import Connect
from verbs import claim_one, enqueue, enqueue_many, outcome, run, settle
from workers import running

MakeRole = Callable[..., str]


@pytest.fixture
def reader(conn: Connection, connect: Connect, make_role: MakeRole) -> Asking:
    """The dashboard's connection, as a role with the level reader and nothing else."""
    return asking(connect, user=grant(conn, make_role, "reader"))


class TestKinds:
    def test_backlog_and_last_attempts(self, reader: Asking, conn: Connection) -> None:
        enqueue_many(conn, 3, "a")
        enqueue_many(conn, 2, "a", delay=60)
        in_hand_of(conn, "w", "b", 2)
        job = run(conn, kind="c", max_attempts=2)
        settle(conn, outcome(job, "failed", error="E", retry_in_seconds=0))
        found = {row["kind"]: row for row in queries.kinds(reader)}
        numbers = {
            kind: [row[name] for name in ("queued", "due", "running", "last_attempt")]
            for kind, row in found.items()
        }
        assert numbers == {"a": [5, 3, 0, 0], "b": [0, 0, 2, 0], "c": [1, 1, 0, 1]}
        oldest = "select min(available_at) from jobq.jobs where kind = 'a'"
        assert found["a"]["oldest_available_at"] == scalar(conn, oldest)
        assert found["b"]["oldest_available_at"] is None

    def test_live_workers_are_counted_where_they_are_known(
        self, reader: Asking, conn: Connection, connect: Connect
    ) -> None:
        enqueue(conn, "a")
        enqueue(conn, "b")
        first, second = connect(), connect()
        first.execute("select jobq.listen('{a,c}')")
        second.execute("select jobq.present('{a}')")
        job_in(conn, "succeeded")
        settle(conn, outcome(run(conn, kind="c"), "succeeded"))
        live = {row["kind"]: row["live_workers"] for row in queries.kinds(reader)}
        assert live == {"a": 2, "b": 0, "c": 1}, "c has a worker and nothing to do"
        in_hand_of(conn, "unseen", "d", 1)
        live = {row["kind"]: row["live_workers"] for row in queries.kinds(reader)}
        assert live == {"a": 2, "b": None, "c": 1, "d": None}
        conn.execute("update jobq.jobs set lease_expires_at = created_at where kind = 'd'")
        live = {row["kind"]: row["live_workers"] for row in queries.kinds(reader)}
        assert live["b"] == 0, "a lease that ended proves no unseen worker"

    def test_the_largest_backlog_comes_first(self, reader: Asking, conn: Connection) -> None:
        enqueue_many(conn, 1, "b")
        enqueue_many(conn, 5, "later", delay=60)
        enqueue_many(conn, 3, "a")
        assert [row["kind"] for row in queries.kinds(reader)] == ["a", "b", "later"]


def test_a_release_does_not_count_as_a_failure(reader: Asking, conn: Connection) -> None:
    job = run(conn, kind="a", max_attempts=1)
    settle(conn, outcome(job, "released"))
    (found,) = queries.kinds(reader)
    assert (found["queued"], found["last_attempt"]) == (1, 0)
    claim_one(conn, kinds=["a"])


class TestWorkers:
    def of(self, reader: Asking, name: str) -> dict[str, Any]:
        found = {row["worker"]: row for row in queries.workers(reader)}
        return found[name]

    def test_a_live_worker_is_known_by_its_sessions(
        self, reader: Asking, conn: Connection, dsn: str
    ) -> None:
        app = App(dsn)
        app.job("a")(lambda: None)
        app.job("never enqueued")(lambda: None)
        enqueue(conn, "a", delay="1 hour")
        with running(app, dsn, name="host-1", threads=3):
            wait_until(lambda: self.of(reader, "host-1")["idle"])
            found = self.of(reader, "host-1")
            assert (found["alive"], found["threads"], found["kinds"]) == (True, 3, ["a"])
            assert found["unknown_kinds"] == 1
            assert (found["running"], found["expired"], found["longest_job_id"]) == (0, 0, None)
            now = scalar(conn, "select clock_timestamp()")
            assert abs((now - found["last_seen_at"]).total_seconds()) < 30
        wait_until(lambda: queries.workers(reader) == [])

    @pytest.mark.parametrize("name", ["x" * 60, "größe", "a % b threads=7", "日本語" * 20, ""])
    def test_its_jobs_are_put_to_its_sessions_whatever_its_name(
        self, reader: Asking, conn: Connection, dsn: str, name: str
    ) -> None:
        app = App(dsn)
        app.job("other")(lambda: None)
        shown = name or "-"
        in_hand_of(conn, shown, "a", 2)
        with running(app, dsn, name=shown):
            found = wait_until(lambda: [row for row in queries.workers(reader) if row["alive"]])
        assert [(row["worker"], row["running"]) for row in found] == [(shown, 2)]

    def test_jobs_in_hand_with_the_longest_one(self, reader: Asking, conn: Connection) -> None:
        (first, *_) = in_hand_of(conn, "w", "a", 3)
        (late,) = in_hand_of(conn, "w", "b", 1)
        conn.execute(
            "update jobq.jobs set lease_expires_at = clock_timestamp() - interval '1 s'"
            " where id = %s",
            (late[0],),
        )
        found = self.of(reader, "w")
        row = conn.execute(
            "select min(started_at), max(started_at), min(lease_expires_at) from jobq.jobs"
        ).fetchone()
        assert row is not None
        assert (found["running"], found["expired"], found["alive"]) == (4, 1, False)
        assert (found["oldest_start"], found["last_seen_at"], found["next_lease_end"]) == row
        assert found["longest_job_id"] == first[0]
        assert (found["threads"], found["idle"], found["kinds"]) == (None, None, [])

    def test_one_that_is_gone_is_told_by_its_last_run(
        self, reader: Asking, conn: Connection
    ) -> None:
        settle(conn, outcome(run(conn, kind="a"), "succeeded"))
        found = self.of(reader, "worker-1")
        assert (found["alive"], found["running"]) == (False, 0)
        ended = "select max(at) from jobq.job_events where event = 'succeeded'"
        assert found["last_seen_at"] == scalar(conn, ended)
        assert queries.overview(reader)["workers"] == [], "at a glance: who is there"

    def test_a_client_without_a_name_is_one_too(
        self, reader: Asking, connect: Connect, conn: Connection
    ) -> None:
        enqueue(conn, "a", delay="1 hour")
        client = connect(application_name="")
        client.execute("select jobq.listen('{a}')")
        (found,) = queries.workers(reader)
        assert found["worker"] == f"session {client.info.backend_pid}"
        assert (found["alive"], found["idle"], found["kinds"]) == (True, True, ["a"])
