"""The screen Overview: true counts, what needs attention, what happened, where it leads."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from helpers import Connection, wait_until
from streamlit.testing.v1 import AppTest

import queries
from screens import HOSTILE, away, charts, choose, fresh, links, metrics, said, table
from ui import literal
from verbs import (
    claim,
    claim_one,
    enqueue,
    enqueue_many,
    enqueue_old,
    expire,
    fail,
    reap,
    run,
    succeed,
)

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]


def test_the_tiles_count_by_status_and_lead_to_the_lists(
    open_screen: OpenScreen, conn: Connection
) -> None:
    succeed(conn, run(conn, "good"))
    fail(conn, run(conn, "bad"))
    conn.execute("select jobq.cancel(%s)", (enqueue(conn, "off"),))
    run(conn, "now")
    enqueue_many(conn, 1200, "waits")
    enqueue(conn, "later", delay="1 hour")
    app = open_screen("overview")
    shown = metrics(app)
    shown.pop("◷ oldest ready")
    assert shown == {
        "◷ queued": "1,201",
        "▶ running": "1",
        "✓ succeeded": "1",
        "✕ failed": "1",
        "⊘ cancelled": "1",
    }
    assert "1,200 due, 1 scheduled" in said(app)
    for status in ("queued", "running", "succeeded", "failed", "cancelled"):
        assert ("jobs", {"status": status}) in links(app).values()


def test_an_estimated_count_says_so(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn)
    known = queries.overview

    def estimated(conn: Any) -> Any:
        state = known(conn)
        counts = [
            {**count, "estimated": count["status"] == "succeeded", "jobs": 2_500_000}
            for count in state["counts"]
        ]
        return {**state, "counts": counts}

    monkeypatch.setattr(queries, "overview", estimated)
    shown = metrics(open_screen("overview"))
    assert shown["✓ succeeded"] == "≈ 2,500,000"
    assert shown["✕ failed"] == "2,500,000"


def test_the_oldest_ready_job_is_told_by_its_age(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue(conn, delay="1 hour")
    assert metrics(open_screen("overview"))["◷ oldest ready"] == "-"
    enqueue_old(conn, 1)
    assert metrics(open_screen("overview"))["◷ oldest ready"].startswith("1 h 0 min")


def test_what_needs_attention_is_told_literally_and_leads_there(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue(conn, HOSTILE)
    app = open_screen("overview")
    assert "Nothing needs attention" not in said(app)
    (label,) = [label for label in links(app) if "no live worker" in label]
    assert literal(HOSTILE) in label
    assert HOSTILE not in label
    assert links(app)[label] == ("jobs", {"status": "queued", "kind": HOSTILE})


def test_expired_leases_need_attention(open_screen: OpenScreen, conn: Connection) -> None:
    job = run(conn)
    assert "Nothing needs attention" in said(open_screen("overview"))
    expire(conn, job)
    conn.execute("update jobq.jobs set lease_expires_at = lease_expires_at - interval '5 min'")
    app = open_screen("overview")
    assert "**Needs attention (1)**" in said(app)
    (label,) = [label for label in links(app) if "without a lease" in label]
    assert links(app)[label] == ("jobs", {"status": "running"})


def test_throughput_counts_what_happened_in_the_window(
    open_screen: OpenScreen, conn: Connection
) -> None:
    succeed(conn, *[run(conn, f"kind {n}") for n in range(3)])
    fail(conn, run(conn, "bad"))
    fail(conn, run(conn, "again"), retryable=True)
    lost = run(conn, "lost")
    expire(conn, lost)
    assert reap(conn) == {lost.id: "queued"}
    app = open_screen("overview", window="15 min")
    told = "6 enqueued, 6 started, 3 succeeded, 1 failed, 1 retried, 1 lost"
    assert f"In 15 min: {told}." in said(app)
    (_, flow), (_, trouble) = charts(app)[:2]
    assert (flow["started"].sum(), flow["succeeded"].sum()) == (6, 3)
    assert {name: trouble[name].sum() for name in ("failed", "retried", "lost")} == {
        "failed": 1,
        "retried": 1,
        "lost": 1,
    }
    assert len(flow) == 60
    names = [element.proto.alt for element in app.get("vega_lite_chart")]
    assert told in names[0]
    assert all(names)


def test_pick_up_and_run_times_are_those_of_the_runs(
    open_screen: OpenScreen, conn: Connection
) -> None:
    job = run(conn)
    conn.execute("set session_replication_role = replica")  # history cannot be rewritten
    conn.execute("""
        update jobq.jobs set started_at = started_at - interval '90 s',
          available_at = available_at - interval '130 s'""")
    conn.execute("update jobq.job_events set at = at - interval '90 s' where event = 'claimed'")
    conn.execute("reset session_replication_role")
    succeed(conn, job)
    app = open_screen("overview")
    told = [line for line in said(app).splitlines() if line.startswith("p50")]
    waited, ran = told
    assert waited.startswith("p50 40") and "of 1 run." in waited  # noqa: PT018
    assert ran.startswith("p50 1 min 30 s, p95 1 min 30 s, p99 1 min 30 s, of 1 run.")
    (_, run_times) = charts(app)[3]
    assert run_times["p50"].dropna().round().tolist() == [90]


def test_what_a_sample_gave_is_marked(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed(conn, *[run(conn, f"kind {n}") for n in range(4)])
    activity, runs = queries.activity, queries.runs

    def half_activity(conn: Any, window: str) -> Any:
        return {**activity(conn, window), "share": 0.5}

    def half_runs(conn: Any, window: str) -> Any:
        return {**runs(conn, window), "share": 0.5}

    monkeypatch.setattr(queries, "activity", half_activity)
    monkeypatch.setattr(queries, "runs", half_runs)
    text = said(open_screen("overview"))
    assert "≈ 4 started, ≈ 4 succeeded" in text
    assert "Scaled up from 50% of the events." in text
    assert text.count("of 4 runs, a sample of ≈ 8.") == 2


def test_the_backlog_is_drawn_by_kind_literally(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue_many(conn, 5, HOSTILE)
    claim(conn, 2)
    enqueue(conn, HOSTILE, delay="1 hour")
    enqueue(conn, "other")
    (_, backlog) = charts(open_screen("overview"))[-1]
    row = next(row for row in backlog.to_dict("records") if row["kind"] == HOSTILE)
    assert (row["running"], row["due"], row["scheduled"]) == (2, 3, 1)
    assert "2 running, 3 due, 1 scheduled" in row["words"]


def test_recent_failures_are_listed_literally_the_newest_first(
    open_screen: OpenScreen, conn: Connection
) -> None:
    fail(conn, run(conn, HOSTILE), f"Traceback\n  <frames>\nValueError: {HOSTILE}")
    newer = run(conn, "newer")
    fail(conn, newer, "KeyError: 'x'")
    shown = table(open_screen("overview"), "Error")
    assert shown["Kind"] == ["newer", HOSTILE]
    assert shown["Error"] == ["KeyError: 'x'", f"ValueError: {HOSTILE}"]
    assert shown["Job"][0] == str(newer.id)


def test_a_chosen_failure_leads_to_the_job_that_was_on_screen(
    open_screen: OpenScreen, conn: Connection
) -> None:
    chosen = run(conn, "first")
    fail(conn, chosen)
    app = open_screen("overview")
    # It comes to stand where the chosen one stood.
    fail(conn, run(conn, "second"))
    choose(app, "failed", 0)
    assert app.query_params["job"] == str(chosen.id)
    assert app.title[0].value == "Job"


def test_workers_at_a_glance(open_screen: OpenScreen, conn: Connection) -> None:
    assert "No worker is seen." in said(open_screen("overview"))
    enqueue_many(conn, 2)
    expire(conn, claim_one(conn, worker=HOSTILE))
    claim_one(conn, worker="b")
    app = open_screen("overview")
    shown = table(app, "Worker")
    assert sorted(shown["Worker"]) == sorted([HOSTILE, "b"])
    expired = shown["Worker"].index(HOSTILE)
    assert shown["Sign of life"][expired] == "⚠ 1 lease expired"
    assert shown["In hand"] == ["1", "1"]
    assert "2 workers, 0 connected" in links(app)


def test_an_empty_queue_says_what_to_do(open_screen: OpenScreen) -> None:
    app = open_screen("overview")
    assert "No jobs yet." in said(app)
    assert links(app)["New job"] == ("new_job", {})
    assert "In 1 h: nothing happened." in said(app)
    assert "No job has failed." in said(app)
    assert "Nothing is queued or running." in said(app)
    assert "No run ended in 1 h." in said(app)


def test_the_window_stands_in_the_address(open_screen: OpenScreen) -> None:
    app = open_screen("overview", window="7 d")
    assert "In 7 d: nothing happened." in said(app)
    app.segmented_control[0].set_value("24 h")
    assert "In 24 h:" in said(fresh(app))
    assert "In 1 h:" in said(open_screen("overview", window="no such window"))


def test_while_the_database_is_away_the_last_numbers_stay_and_then_come_anew(
    open_screen: OpenScreen, conn: Connection, admin: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 7)
    app = open_screen("overview")
    with away(admin, conn):
        fresh(app)
        assert "Nothing newer than" in app.warning[0].value
        assert metrics(app)["◷ queued"] == "7"
        assert "nothing newer" in said(app)
    enqueue(connect())
    wait_until(lambda: metrics(fresh(app))["◷ queued"] == "8", interval=0.5)
    assert not app.warning


def test_an_away_database_without_a_last_reading_is_said_once_found(
    open_screen: OpenScreen, conn: Connection, admin: Connection
) -> None:
    with away(admin, conn):
        app = open_screen("overview")
        assert any("No data yet" in error.value for error in app.error)
        assert not app.metric
    wait_until(lambda: metrics(fresh(app)), interval=0.5)


def test_a_part_that_cannot_be_read_spares_the_others(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, "here")

    def refused(conn: Any, window: str) -> Any:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    monkeypatch.setattr(queries, "activity", refused)
    app = open_screen("overview")
    assert metrics(app)["◷ queued"] == "1"
    assert any("No data yet" in error.value for error in app.error)
    (_, backlog) = charts(app)[-1]
    assert list(backlog["kind"]) == ["here"]
