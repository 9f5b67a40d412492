"""What the events tell of a window: counts by bucket; exact, or by a sample."""

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from helpers import Connection, scalar

from history import EVENT, PHASES, only_a_share, past
from ledger import refused
from plans import Explained
from scale import Connect, scaled
from verbs import enqueue, expire, outcome, reap, rows, run, settle

COUNTS = ("enqueued", "started", "succeeded", "failed", "retried", "lost", "cancelled")


def activity(conn: Connection, since: str = "1 hour", buckets: int = 60) -> list[Any]:
    return rows(conn, "select * from jobq.activity(%s, %s)", since, buckets)


def sums(found: Sequence[Any]) -> dict[str, int]:
    """What happened in all buckets together, without what did not."""
    total = {name: sum(getattr(row, name) for row in found) for name in COUNTS}
    return {name: count for name, count in total.items() if count}


def fail(conn: Connection, job: Any, error: str | None = "E: x", **fields: object) -> None:
    settle(conn, outcome(job, "failed", error=error, retry_in_seconds=0, **fields))


class TestActivity:
    def test_everything_that_can_happen_is_counted_once(self, conn: Connection) -> None:
        enqueue(conn, "queued")
        settle(conn, outcome(run(conn, kind="a"), "succeeded"))
        fail(conn, run(conn, kind="b"), retryable=False)
        fail(conn, run(conn, kind="c"))  # queued again
        lost, last = run(conn, kind="d"), run(conn, kind="e", max_attempts=1)
        expire(conn, lost, last)
        assert sorted(reap(conn).values()) == ["failed", "queued"]
        conn.execute("select jobq.cancel(%s)", (enqueue(conn, "f"),))
        settle(conn, outcome(run(conn, kind="g"), "cancelled"))
        for verdict in ("released", "snoozed"):
            settle(conn, outcome(run(conn, kind=verdict), verdict, delay_seconds=60))
        found = activity(conn)
        assert len(found) == 60
        assert {row.share for row in found} == {1}
        assert sums(found) == {
            "enqueued": 10, "started": 8, "succeeded": 1, "failed": 2, "retried": 1, "lost": 1,
            "cancelled": 2,
        }  # fmt: skip

    def test_buckets_are_of_one_size_and_the_last_one_is_now(self, conn: Connection) -> None:
        for since, buckets, size in (
            ("1 hour", 60, 60),
            ("7 days", 56, 10_800),
            ("10 s", 3, 10 / 3),
        ):
            before = scalar(conn, "select clock_timestamp()")
            starts = [row.bucket for row in activity(conn, since, buckets)]
            after = scalar(conn, "select clock_timestamp()")
            assert len(starts) == buckets
            width = timedelta(seconds=round(size, 6))
            assert {b - a for a, b in itertools.pairwise(starts)} == {width}
            assert starts[-1] <= after
            assert starts[-1] + width > before

    def test_an_event_lies_in_the_bucket_of_its_time(
        self, conn: Connection, connect: Connect
    ) -> None:
        past(connect, 600, 3600)
        found = activity(conn)
        for start, row in ((row.bucket, row) for row in found):
            query = """
                select count(*) filter (where event = 'enqueued'),
                  count(*) filter (where event = 'claimed'),
                  count(*) filter (where event = 'succeeded')
                from jobq.job_events where at >= %s and at < %s"""
            (expected,) = conn.execute(query, (start, start + timedelta(minutes=1)))
            assert (row.enqueued, row.started, row.succeeded) == expected
        assert 590 * 3 <= sum(sums(found).values()) <= 600 * 3
        assert len([row for row in found if row.enqueued]) >= 59

    def test_what_is_older_than_the_window_is_left_out(
        self, conn: Connection, connect: Connect
    ) -> None:
        past(connect, 1000, 1000)  # one a second
        assert sums(activity(conn, "100 s", 10))["enqueued"] in range(89, 102)

    def test_an_empty_queue_has_empty_buckets(self, conn: Connection) -> None:
        found = activity(conn, "15 minutes", 7)
        assert (len(found), sums(found), found[0].share) == (7, {}, 1)

    @pytest.mark.parametrize(
        ("since", "buckets", "says"),
        [
            ("0 s", 1, "since must be between"), ("-1 hour", 1, "since must be between"),
            ("367 days", 1, "since must be between"), (None, 1, "since must be between"),
            ("1 hour", 0, "buckets must be between"), ("1 hour", 1001, "buckets must be between"),
            ("1 hour", None, "buckets must be between"),
        ],
    )  # fmt: skip
    def test_windows_and_buckets_that_make_no_sense_are_refused(
        self, conn: Connection, since: str | None, buckets: int | None, says: str
    ) -> None:
        for function in ("activity", "failures"):
            with refused("JQ006", says):
                conn.execute(f"select * from jobq.{function}(%s, %s)".encode(), (since, buckets))

    def test_a_sample_is_scaled_up_and_says_so(self, conn: Connection, connect: Connect) -> None:
        past(connect, 40_000, 3600)
        exact = sums(activity(conn))
        only_a_share(conn, 0.25)
        found = activity(conn)
        assert {row.share for row in found} == {0.25}
        for name, count in sums(found).items():
            assert count != exact[name]
            assert count == pytest.approx(exact[name], rel=0.15), name
        assert sums(activity(conn)) == sums(found), "a look again reads the same blocks"


class TestShare:
    """Which share of the events is read, so that about so many are."""

    SHARE = "select jobq._event_share(clock_timestamp() - %s::interval, %s)"

    def test_what_is_little_is_read_whole(self, conn: Connection, connect: Connect) -> None:
        assert scalar(conn, self.SHARE, "1 day", 1) == 1, "no event at all"
        past(connect, 10_000, 3600)
        assert scalar(conn, self.SHARE, "1 day", 30_000) == 1
        assert scalar(conn, self.SHARE, "6 minutes", 3_100) == 1

    def test_a_large_window_is_read_in_part(self, conn: Connection, connect: Connect) -> None:
        past(connect, scaled(1_000_000), 86_400)
        for most in (scaled(2_000_000), scaled(200_000)):
            share = scalar(conn, self.SHARE, "1 day", most)
            assert share == pytest.approx(most / scaled(3_000_000), rel=0.1)
        query = "select count(*) from jobq._events_since(clock_timestamp() - interval '1 day', %s)"
        assert scalar(conn, query, share) == pytest.approx(most, rel=0.2)
        assert scalar(conn, self.SHARE, "1 hour", most) == 1

    def test_it_does_not_rely_on_statistics(self, conn: Connection, connect: Connect) -> None:
        conn.execute("alter table jobq.job_events set (autovacuum_enabled = off)")
        conn.execute("analyze jobq.job_events")
        with connect() as other:
            other.execute("set session_replication_role = replica")
            source = f"(select n, 60 as ago, e.* from generate_series(1, 9000) n, {PHASES}) h"
            other.execute((EVENT + source).encode())
        assert scalar(conn, self.SHARE, "1 hour", 2_700) == pytest.approx(0.1, rel=0.01)

    def test_a_small_window_is_read_by_its_index(self, conn: Connection, connect: Connect) -> None:
        past(connect, 40_000, 86_400)
        explained = Explained(connect())
        blocks = scalar(conn, "select pg_relation_size('jobq.job_events') / 8192")
        for call in ("activity('15 minutes', 60)", "runs('15 minutes')", "failures('15 minutes')"):
            plans = explained.run(f"select * from jobq.{call}")
            (plan,) = [plan for plan in plans if "_events_since" in plan.query]
            assert "job_events_at_idx" in plan.indexes()
            (scan,) = [node for node in plan.nodes if node["Node Type"] == "Bitmap Heap Scan"]
            assert scan["Shared Hit Blocks"] + scan["Shared Read Blocks"] < blocks / 4
