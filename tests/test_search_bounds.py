"""Finding jobs in a large queue: bounded, by index, and honest about where it stopped."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection, scalar

import search
from dashboards import Asking, asking, grant
from ledger import STATUSES
from scale import Connect, fill
from search import Search
from verbs import enqueue


@pytest.fixture
def reader(conn: Connection, connect: Connect, make_role: Callable[..., str]) -> Asking:
    """The dashboard's connection, as a role with the level reader and nothing else."""
    return asking(connect, user=grant(conn, make_role, "reader"))


class TestBounds:
    """A filter that no index serves looks at so many rows a call, and says where it stopped."""

    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(search, "MOST_LOOKED_AT", 100)

    @pytest.mark.parametrize("status", [None, "queued", "failed", "running"])
    def test_a_rare_job_is_found_by_looking_further(
        self, reader: Asking, connect: Connect, status: str | None
    ) -> None:
        fill(connect, 130, "rare", status or "succeeded", made="-2 hours", priority=1)
        fill(connect, 250, "common", status or "succeeded", priority=1)
        fill(connect, 7, "common", status or "succeeded", priority=2)
        wanted = Search(status=status, kind="rare")
        looks, found, after = 0, 0, None
        while True:
            page = search.find(reader, wanted, after, 10)
            found += len(page["rows"])
            after, looks = page["after"], looks + 1
            if after is None:
                assert page["looked_at"] is None
                break
            assert page["looked_at"] == 100 or len(page["rows"]) == 10
        assert found == 130
        assert 13 <= looks <= 18

    def test_exactly_as_many_as_are_looked_at_are_no_surprise(
        self, reader: Asking, connect: Connect
    ) -> None:
        fill(connect, 100, "common", "failed")
        page = search.find(reader, Search(status="failed", kind="none"))
        assert (page["rows"], page["looked_at"]) == ([], 100)
        page = search.find(reader, Search(status="failed", kind="none"), page["after"])
        assert page == {
            "rows": [], "after": None, "looked_at": None, "order": "the newest finish first",
        }  # fmt: skip

    def test_what_an_index_tells_is_not_bounded(
        self, reader: Asking, conn: Connection, connect: Connect
    ) -> None:
        fill(connect, 300, "k", priority=1)
        old = enqueue(conn, "k", idempotency_key="mine", priority=-1)
        fill(connect, 300, "k", "succeeded")
        for wanted in (Search(key="mine", kind="k"), Search(job_id=old, kind="k"),
                       Search(status="queued", priority=-1, kind="k")):  # fmt: skip
            page = search.find(reader, wanted)
            assert ([row["id"] for row in page["rows"]], page["after"]) == ([old], None)
        (job,) = search.find(reader, Search(worker="nobody", kind="k"))["rows"] or [None]
        assert job is None

    def test_a_window_of_time_is_looked_through_whole(
        self, reader: Asking, conn: Connection, connect: Connect
    ) -> None:
        early = scalar(conn, "select clock_timestamp()")
        wanted_id = enqueue(conn, "k")
        late = scalar(conn, "select clock_timestamp()")
        fill(connect, 300, "k", "succeeded", made="1 hour", due="1 hour")
        window = Search(created_after=early, created_before=late, kind="k")
        page = search.find(reader, window)
        assert ([row["id"] for row in page["rows"]], page["after"]) == ([wanted_id], None)
        empty = Search(created_after=late, created_before=late, kind="k")
        assert search.find(reader, empty)["after"] is None


def test_no_page_sorts_or_reads_the_table(conn: Connection, connect: Connect) -> None:
    """By what PostgreSQL counts as read, with statistics from when the queue was empty."""
    conn.execute("alter table jobq.jobs set (autovacuum_enabled = off)")
    conn.execute("analyze jobq.jobs")
    for stored in STATUSES:
        fill(connect, 20_000, status=stored, priority=None)
    owner = asking(connect)
    every: list[str | None] = [None, *STATUSES]
    for status in every:
        after: tuple[Any, ...] | None = None
        for _ in range(2):
            before = touched(owner)
            page = search.find(owner, Search(status=status), after, 50)
            assert len(page["rows"]) == 50
            limit = 2_000 if status is not None else 500
            if status == "succeeded":
                limit = 90_000  # no index tells them; the newest that are not are looked at
            assert touched(owner) - before < limit, status
            after = page["after"]


def touched(owner: Asking) -> int:
    """Index entries and rows read in jobs so far by this session, committed or not."""
    row = owner.execute(
        "select pg_stat_get_xact_tuples_returned('jobq.jobs'::regclass) + (select sum("
        " pg_stat_get_xact_tuples_returned(i.indexrelid)) from pg_index i"
        " where i.indrelid = 'jobq.jobs'::regclass) as rows"
    ).fetchone()
    assert row is not None
    return int(row["rows"])
