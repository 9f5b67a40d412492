"""The screen Failures: groups, a sample of each, and the retry of a group."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection
from streamlit.testing.v1 import AppTest

import queries
from screens import HOSTILE, away, choose, double_click, fresh, links, said, table
from verbs import events_of, expire, fail, reap, run, status_of

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]

TRACEBACK = f"""Traceback (most recent call last):
  File "/srv/app/jobs.py", line 7, in send
    raise ValueError({HOSTILE!r})
ValueError: {HOSTILE}"""


def failed(conn: Connection, kind: str, error: str = TRACEBACK, **fields: object) -> int:
    """A job of the kind whose run failed so; its id."""
    job = run(conn, kind)
    fail(conn, job, error, **fields)
    return int(job.id)


def groups(app: AppTest) -> list[tuple[str, str, str]]:
    """Kind, error and number of failures of each group, as the table shows them."""
    rows = table(app, "Error")
    return list(zip(rows["Kind"], rows["Error"], rows["Failures"], strict=True))


def test_failures_are_grouped_by_kind_and_class_the_most_first(
    open_screen: OpenScreen, conn: Connection
) -> None:
    for _ in range(3):
        failed(conn, HOSTILE)
    failed(conn, "b", "KeyError: 'x'", retryable=True)
    failed(conn, "b", "KeyError: 'y'")
    lost = run(conn, "c")
    expire(conn, lost)
    reap(conn)
    app = open_screen("failures", window="15 min")
    assert groups(app) == [
        (HOSTILE, "ValueError", "3"),
        ("b", "KeyError", "2"),
        ("c", "lease lost", "1"),
    ]
    rows = table(app, "Error")
    assert rows["Jobs"] == ["3", "2", "1"]
    assert rows["Gave up"] == ["3", "1", "0"]
    assert [sum(spark) for spark in rows["Over the window"]] == [3, 2, 1]
    assert {len(spark) for spark in rows["Over the window"]} == {60}
    assert all(text.endswith(" ago") for text in rows["Last seen"])
    assert "6 failed runs in 15 min, 3 groups." in said(app)


def test_a_group_shows_a_traceback_as_it_is_and_leads_to_its_jobs(
    open_screen: OpenScreen, conn: Connection
) -> None:
    failed(conn, HOSTILE)
    newest = failed(conn, HOSTILE)
    app = open_screen("failures", kind=HOSTILE, error="ValueError")
    assert app.code[0].value == TRACEBACK
    assert app.code[0].language in ("", "plaintext")
    assert r"\*\*bold\*\*" in app.subheader[0].value
    assert "first seen" in said(app)
    (sample,) = [label for label in links(app) if label.startswith(f"job {newest}")]
    assert links(app)[sample] == ("job", {"job": str(newest)})
    assert links(app)["failed jobs with this text"] == (
        "jobs",
        {"status": "failed", "kind": HOSTILE, "error": "ValueError"},
    )


def test_the_chosen_group_is_the_one_that_was_on_screen(
    open_screen: OpenScreen, conn: Connection
) -> None:
    failed(conn, "b", "KeyError: 'x'")
    app = open_screen("failures")
    # Comes to stand before it.
    for _ in range(2):
        failed(conn, "a")
    choose(app, "groups", 0)
    assert (app.query_params["kind"], app.query_params["error"]) == ("b", "KeyError")
    assert app.code[0].value == "KeyError: 'x'"


def test_only_the_largest_groups_are_listed_and_it_says_so(
    open_screen: OpenScreen, conn: Connection
) -> None:
    for number in range(51):
        failed(conn, f"kind {number:02}")
    app = open_screen("failures")
    assert len(groups(app)) == 50
    assert "51 groups. The 50 largest are listed." in said(app)


def test_what_a_sample_gave_is_marked(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(conn, "a")
    known = queries.failures

    def half(conn: Any, window: str) -> Any:
        return {**known(conn, window), "share": 0.5}

    monkeypatch.setattr(queries, "failures", half)
    app = open_screen("failures")
    assert groups(app) == [("a", "ValueError", "≈ 1")]
    assert table(app, "Error")["Jobs"] == ["≥ 1"]
    assert "≈ 1 failed runs in 1 h" in said(app)
    assert "Scaled up from 50% of the events." in said(app)


def test_the_group_is_retried_once_after_a_preview(
    open_screen: OpenScreen, conn: Connection
) -> None:
    jobs = [failed(conn, HOSTILE) for _ in range(3)]
    other = [failed(conn, HOSTILE, "KeyError: 1"), failed(conn, "other")]
    app = open_screen("failures", kind=HOSTILE, error="ValueError")
    app.button(key="retry_group").click().run()
    assert "**3 jobs** will be queued again" in said(app)
    assert {status_of(conn, job) for job in jobs} == {"failed"}
    double_click(app, "question_confirm")
    assert "3 jobs were queued again" in said(app)
    assert {status_of(conn, job) for job in jobs} == {"queued"}
    assert [events_of(conn, job).count("retried") for job in jobs] == [1, 1, 1]
    assert {status_of(conn, job) for job in other} == {"failed"}


def test_a_question_that_is_not_answered_acts_not(
    open_screen: OpenScreen, conn: Connection
) -> None:
    job = failed(conn, "a")
    app = open_screen("failures", kind="a", error="ValueError")
    app.button(key="retry_group").click().run()
    app.button(key="question_close").click().run()
    assert not [button for button in app.button if button.key == "question_confirm"]
    fresh(app)
    assert status_of(conn, job) == "failed"


def test_a_group_of_lost_leases_is_retried_too(open_screen: OpenScreen, conn: Connection) -> None:
    lost = run(conn, "a", max_attempts=1)
    expire(conn, lost)
    assert reap(conn) == {lost.id: "failed"}
    app = open_screen("failures", kind="a", error="lease lost")
    app.button(key="retry_group").click().run()
    double_click(app, "question_confirm")
    assert status_of(conn, lost.id) == "queued"


@pytest.mark.usefixtures("reader")
def test_who_may_only_read_is_not_offered_the_retry(
    open_screen: OpenScreen,
    conn: Connection,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed(conn, "a")
    app = open_screen("failures", kind="a", error="ValueError")
    assert app.code[0].value == TRACEBACK
    assert not app.button
    assert "may read but not act" in said(app)

    monkeypatch.setenv("DATABASE_URL", dsn)
    monkeypatch.setenv("JOB_DASHBOARD_READ_ONLY", "1")
    app = open_screen("failures", kind="a", error="ValueError")
    assert not app.button
    assert "this dashboard only shows" in said(app)


def test_a_group_that_is_not_in_the_window_is_said_so(
    open_screen: OpenScreen, conn: Connection
) -> None:
    failed(conn, "a")
    app = open_screen("failures", kind="a", error="NoSuchError")
    assert "No such failure in 1 h." in said(app)
    assert not app.code


def test_without_failures_it_says_so(open_screen: OpenScreen) -> None:
    app = open_screen("failures", window="7 d")
    assert app.info[0].value == "No run failed in 7 d."
    assert not app.dataframe


def test_while_the_database_is_away_the_groups_stay(
    open_screen: OpenScreen, conn: Connection, admin: Connection
) -> None:
    failed(conn, "a")
    app = open_screen("failures", kind="a", error="ValueError")
    with away(admin, conn):
        fresh(app)
        assert "Nothing newer than" in app.warning[0].value
        assert groups(app) == [("a", "ValueError", "1")]
        assert app.code[0].value == TRACEBACK


def test_jobs_without_an_error_text_are_no_text_to_retry_by(
    open_screen: OpenScreen, conn: Connection
) -> None:
    by_hand = """
        update jobq.jobs set status = 'failed', locked_by = null, lease_token = null,
          lease_expires_at = null, finished_at = clock_timestamp() where id = %s
    """
    conn.execute(by_hand, (run(conn, "a").id,))
    app = open_screen("failures", kind="a", error="no error text")
    assert groups(app) == [("a", "no error text", "1")]
    assert "failed jobs with this text" not in links(app)
    assert "retry_group" not in [button.key for button in app.button]
