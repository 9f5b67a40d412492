"""Every reading of the dashboard on a week's history: bounded, exact or honest, never slow.

`make prove`: a million jobs and three million events, with the time of each reading printed.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from helpers import ROOT, scalar

import queries
import search
from dashboards import Asking, asking, grant
from queries_history import WINDOWS
from scale import PROVE, Connect, scaled
from search import Search

#: A screen shows within two seconds; on a busy machine with much patience.
MOST_SECONDS = 1.5 if PROVE else 10
ROUNDS = 5 if PROVE else 1


@pytest.fixture
def week(
    connect: Connect, make_role: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Asking]:
    """A reader of a seeded database."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "bench")
    from seed import seed

    conn = connect()
    seed(conn, scaled(1_000_000))
    reader = asking(connect, user=grant(conn, make_role, "reader"))
    reader.execute("set jit = off")
    reader.execute("set statement_timeout = '20 s'")
    yield reader
    assert scalar(conn, "select count(*) from jobq.verify()") == 0, "the seed is no real history"


def readings(now: Any) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    yield "overview", queries.overview, ()
    for window in WINDOWS:
        for query in (queries.activity, queries.runs, queries.failures):
            yield f"{query.__name__}, {window}", query, (window,)
    yield "kinds", queries.kinds, ()
    yield "workers", queries.workers, ()
    middle = scaled(500_000)
    yield "job", queries.job, (middle,)
    yield "explain", queries.explain, (scaled(990_000),)
    yield "timeline", queries.timeline, (middle,)
    yield "database", queries.database, ()
    yield "functions", queries.functions, ()
    every = ("succeeded", "failed", "cancelled")
    yield "purgeable, much", queries.purgeable, (3, every)
    yield "purgeable, nothing", queries.purgeable, (30, every)
    for status in (None, "queued", "running", "succeeded", "failed", "cancelled"):
        yield f"find, {status}", search.find, (Search(status=status),)
        yield f"find, {status}, no match", search.find, (Search(status=status, kind="none"),)
    yield "find, payload", search.find, (Search(payload='{"to": "nobody"}'),)
    yield "find, error", search.find, (Search(error="no such text"),)
    yield "find, failed, error", search.find, (Search(status="failed", error="no such text"),)
    yield "find, worker", search.find, (Search(worker="host-3-4711-beef"),)
    yield "find, key", search.find, (Search(key="key-10", kind="none"),)
    for days in (1, 6):
        ago = Search(created_after=now - timedelta(days=days), kind="none")
        yield f"find, newer than {days} d, no match", search.find, (ago,)
    yield "by_ids", search.by_ids, (tuple(range(1, 1000, 10)),)


@pytest.mark.timeout(900)
def test_no_reading_takes_long(week: Asking, subtests: pytest.Subtests) -> None:
    now = queries.where(week)["now"]
    for name, query, arguments in readings(now):
        seconds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            found = query(week, *arguments)
            seconds.append(time.perf_counter() - began)
        share = found.get("share", 1) if isinstance(found, dict) else 1
        median = statistics.median(seconds)
        print(f"{name}: {median * 1000:,.0f} ms{'' if share == 1 else f', of {share:.1%}'}")
        with subtests.test(name):
            assert median < MOST_SECONDS
