"""What the events tell of runs and of failures: their times, their groups, and of how many."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from helpers import Connection, scalar, wait_until

from history import failed, only_a_share, past
from ledger import refused
from scale import Connect
from verbs import claim_one, enqueue, expire, job_row, outcome, reap, rows, run, settle


def fail(conn: Connection, job: Any, error: str | None = "E: x", **fields: object) -> None:
    settle(conn, outcome(job, "failed", error=error, retry_in_seconds=0, **fields))


def failures(conn: Connection, since: str = "1 hour", buckets: int = 60) -> list[Any]:
    return rows(conn, "select * from jobq.failures(%s, %s)", since, buckets)


def runs(conn: Connection, since: str = "1 hour", most: int = 5000) -> list[Any]:
    return rows(conn, "select * from jobq.runs(%s, %s)", since, most)


class TestRuns:
    def test_a_run_has_its_times(self, conn: Connection) -> None:
        job_id = enqueue(conn, "a", delay="0.2 s")
        job = wait_for_claim(conn, "a")
        settle(conn, outcome(job, "succeeded"))
        row = job_row(conn, job_id)
        (found,) = runs(conn)
        assert found[:7] == (1.0, job_id, "a", "worker-1", 1, "succeeded", row.finished_at)
        assert found.run_seconds == seconds(row.finished_at - row.started_at)
        assert found.wait_seconds == seconds(row.started_at - row.available_at)

    def test_each_attempt_has_its_own(self, conn: Connection) -> None:
        job = run(conn, kind="a")
        expected = []
        for again in range(3):
            before = job_row(conn, job.id)
            fail(conn, job)
            at = scalar(conn, "select max(at) from jobq.job_events")
            expected.append(
                (seconds(at - before.started_at), seconds(before.started_at - before.available_at))
            )
            if again < 2:
                (job,) = [claim_one(conn, kinds=["a"])]
        found = [(row.run_seconds, row.wait_seconds) for row in runs(conn)]
        assert found == expected
        assert [row.attempt for row in runs(conn)] == [1, 2, 3]

    def test_every_end_of_a_run_is_one(self, conn: Connection) -> None:
        for verdict in ("succeeded", "failed", "released", "snoozed", "cancelled"):
            settle(conn, outcome(run(conn, kind=verdict), verdict, delay_seconds=60))
        expire(conn, run(conn, kind="lost"))
        reap(conn)
        conn.execute("select jobq.cancel(%s)", (enqueue(conn, "never ran"),))
        run(conn, kind="still runs")
        found = {row.kind: row for row in runs(conn)}
        assert {kind: row.event for kind, row in found.items()} == {
            "succeeded": "succeeded", "failed": "failed", "released": "released",
            "snoozed": "snoozed", "cancelled": "cancelled", "lost": "lease_lost",
        }  # fmt: skip
        for row in found.values():
            assert 0 < row.run_seconds < 60
            assert 0 <= row.wait_seconds < 60

    def test_a_job_released_twice_has_two_runs(self, conn: Connection) -> None:
        job = run(conn, kind="a")
        settle(conn, outcome(job, "released"))
        settle(conn, outcome(claim_one(conn, kinds=["a"]), "released"))
        first, second = runs(conn)
        due = job_row(conn, job.id).available_at
        starts = "select at from jobq.job_events where event = 'claimed' order by id"
        for row, (start,) in zip((first, second), conn.execute(starts), strict=True):
            assert row.wait_seconds == seconds(start - due)
            assert row.run_seconds == seconds(row.ended_at - start)

    def test_progress_in_between_does_not_matter(self, conn: Connection) -> None:
        job = run(conn, kind="a")
        for _ in range(5):
            conn.execute("select jobq.report_progress(%s, %s, 0.5)", (job.id, str(job.lease_token)))
        start = job_row(conn, job.id).started_at
        fail(conn, job)
        conn.execute("select jobq.retry_jobs('{}')")
        claim_one(conn, kinds=["a"])
        (found,) = runs(conn)
        assert found.run_seconds == seconds(found.ended_at - start)

    def test_at_most_so_many_come_and_the_share_says_of_how_many(self, conn: Connection) -> None:
        for _ in range(20):
            settle(conn, outcome(run(conn, kind="a"), "succeeded"))
        found = runs(conn, most=5)
        assert len(found) == 5
        assert {row.share for row in found} == {0.25}
        assert [row.job_id for row in runs(conn, most=5)] == [row.job_id for row in found]
        assert [row.ended_at for row in found] == sorted(row.ended_at for row in found)

    def test_a_sample_of_a_sample_tells_both_shares(
        self, conn: Connection, connect: Connect
    ) -> None:
        past(connect, 40_000, 3600)
        only_a_share(conn, 0.25)
        (share,) = {row.share for row in runs(conn, most=1000)}
        assert share == pytest.approx(1000 / 40_000, rel=0.15)

    def test_arguments_out_of_range_are_refused(self, conn: Connection) -> None:
        for since, most, says in (
            ("0 s", 5, "since must be"), (None, 5, "since must be"), ("1 h", 0, "max_runs must be"),
            ("1 h", 100_001, "max_runs must be"), ("1 h", None, "max_runs must be"),
        ):  # fmt: skip
            with refused("JQ006", says):
                conn.execute("select jobq.runs(%s, %s)", (since, most))


class TestFailures:
    def test_failures_are_grouped_by_kind_and_error(self, conn: Connection) -> None:
        fail(conn, run(conn, kind="a"), "E: 1")
        again = claim_one(conn, kinds=["a"])
        fail(conn, again, "E: 2", retryable=False)
        for kind, error in (("a", "F: 1"), ("b", "E: 1"), ("a", "E: 3")):
            fail(conn, last := run(conn, kind=kind), error, retryable=False)
        settle(conn, outcome(run(conn, kind="c"), "succeeded"))
        expire(conn, run(conn, kind="c"))
        reap(conn)
        found = {(row.kind, row.error_class): row for row in failures(conn)}
        counts = {key: (row.failures, row.jobs, row.final) for key, row in found.items()}
        assert counts == {
            ("a", "E"): (3, 2, 2), ("a", "F"): (1, 1, 1), ("b", "E"): (1, 1, 1),
            ("c", "lease lost"): (1, 1, 0),
        }  # fmt: skip
        most = found["a", "E"]
        assert (most.sample_job_id, most.sample_error) == (last.id, "E: 3")
        query = (
            "select at from jobq.job_events where event = 'failed' and job_id = any(%s) order by id"
        )
        times = [at for (at,) in conn.execute(query, ([again.id, last.id],))]
        assert (most.first_at, most.last_at) == (times[0], times[-1])
        assert next(iter(found)) == ("a", "E"), "the most frequent comes first"

    def test_the_same_error_again_keeps_its_name(self, conn: Connection) -> None:
        """The event of a failure says nothing of an error that the job had already."""
        job = run(conn, kind="a")
        for error in ("E: same", "E: same", "F: other", "F: other"):
            fail(conn, job, error)
            job = claim_one(conn, kinds=["a"])
        details = "select count(*) from jobq.job_events where detail ? 'error'"
        assert scalar(conn, details) == 2
        found = {row.error_class: row for row in failures(conn)}
        assert {name: row.failures for name, row in found.items()} == {"E": 2, "F": 2}
        assert found["F"].sample_error == "F: other"

    def test_a_failure_without_a_text_is_one_too(self, conn: Connection) -> None:
        fail(conn, run(conn, kind="a"), None)
        (found,) = failures(conn)
        assert found.failures == 1

    def test_the_sparkline_has_the_buckets_of_activity(
        self, conn: Connection, connect: Connect
    ) -> None:
        failed(connect, 300)
        (found,) = failures(conn)
        assert found.spark == [row.failed for row in rows(conn, "select * from jobq.activity()")]
        assert sum(found.spark) == found.failures == found.final

    def test_a_sample_is_scaled_up_and_says_so(self, conn: Connection, connect: Connect) -> None:
        failed(connect, 20_000)
        (found,) = failures(conn)
        assert found.share == 0.25, "5,000 of them are looked at"
        assert found.failures == found.final == 20_000
        assert found.jobs == 5_000, "those seen: how many there are they do not tell"
        only_a_share(conn, 0.5)
        (found,) = failures(conn)
        assert found.share == pytest.approx(0.25, rel=0.15)
        assert found.failures == pytest.approx(20_000, rel=0.15)
        assert sum(found.spark) == pytest.approx(20_000, rel=0.15)


def test_a_reader_sees_what_the_owner_sees(
    conn: Connection, connect: Connect, make_role: Callable[..., str]
) -> None:
    fail(conn, run(conn, kind="a"))
    role = make_role()
    conn.execute("select jobq.grant_access(%s, 'reader')", (role,))
    reader = connect(user=role)
    for call in ("activity", "runs", "failures"):
        query = f"select * from jobq.{call}('7 days')"
        assert rows(reader, query) == rows(conn, query)
        assert rows(reader, query)


def wait_for_claim(conn: Connection, kind: str) -> Any:
    query = "select * from jobq.claim('worker-1', 1, %s)"
    return wait_until(lambda: rows(conn, query, [kind]))[0]


def seconds(span: timedelta) -> float:
    assert isinstance(span, timedelta)
    return span.total_seconds()
