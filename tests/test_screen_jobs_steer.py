"""Steering from the list: by ticks, which mean the jobs that were shown, or all that match."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection, scalar
from streamlit.testing.v1 import AppTest

import steering
from acting import ACTOR, actors, confirm, fail, listed, offered, tick
from screens import away, double_click, fresh, said
from verbs import claim, claim_one, enqueue, enqueue_many, job_row, status_of

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]


@pytest.mark.parametrize(
    ("verb", "params", "done", "state"),
    [
        ("retry", {"kind": "f"}, "2 jobs were queued again.", {"status": "queued"}),
        ("cancel", {"kind": "q"}, "2 jobs were cancelled or asked to stop.", {}),
        ("set_priority", {"kind": "q"}, "2 jobs were moved to priority 50.", {"priority": 50}),
        ("reschedule", {"kind": "q"}, "2 jobs were rescheduled, due in 5 min.", {}),
    ],
)
def test_all_that_match_are_steered(
    open_screen: OpenScreen,
    conn: Connection,
    verb: str,
    params: dict[str, str],
    done: str,
    state: dict[str, Any],
) -> None:
    failed, queued = enqueue_many(conn, 2, kind="f"), enqueue_many(conn, 2, kind="q")
    for job in claim(conn, 2, ["f"]):
        fail(conn, job)
    other = enqueue(conn, "other")
    app = open_screen("jobs", **params)
    app.button(key=f"do_{verb}").click().run()
    if verb == "set_priority":
        app.number_input(key="question_value").set_value(50).run()
    if verb == "reschedule":
        app.number_input(key="question_value").set_value(5.0).run()
    assert "**2 jobs** will be" in said(app)
    before = [job_row(conn, job_id) for job_id in failed + queued]

    assert done in confirm(app)

    steered = failed if verb == "retry" else queued
    assert [actors(conn, job_id)[-1:] for job_id in steered] == [[ACTOR]] * 2
    for was in before:
        assert (job_row(conn, was.id) != was) == (was.id in steered)
        for column, value in state.items():
            assert (getattr(job_row(conn, was.id), column) == value) or was.id not in steered
    assert actors(conn, other) == []
    if verb == "cancel":
        assert {status_of(conn, job_id) for job_id in queued} == {"cancelled"}
    if verb == "reschedule":
        query = "select count(*) from jobq.jobs where available_at > now() + interval '4 min'"
        assert scalar(conn, query) == 2


def test_a_double_click_steers_once(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry, calls = steering.MANY["retry"], []

    def retry_that_fails_at_once(
        of: Any, filter: dict[str, Any], dry_run: bool, max_jobs: int = 100
    ) -> Any:
        told = retry(of, filter, dry_run, max_jobs)
        if not dry_run:
            calls.append(told["changed"])
            of.execute("update jobq.jobs set status = 'cancelled', finished_at = now()")
        return told

    monkeypatch.setitem(steering.MANY, "retry", retry_that_fails_at_once)
    enqueue(conn)
    fail(conn, claim_one(conn))
    app = open_screen("jobs")
    app.button(key="do_retry").click().run()
    double_click(app, "question_confirm")
    assert "1 job was queued again" in said(app)
    assert calls == [1]


def test_a_list_with_ticks_holds_still(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue_many(conn, 3)
    app = tick(open_screen("jobs"), 0, 2)
    assert "**2 selected**" in said(app)
    enqueue_many(conn, 2)
    claim(conn, 1)
    conn.execute("select jobq.cancel(2)")
    conn.execute("delete from jobq.jobs where id = 2")
    tick(app, 0, 2)
    assert listed(app) == [3, 2, 1]
    assert list(app.dataframe[0].value["Status"]) == ["◷ queued", "✝ gone", "▶ running"]
    tick(app)
    assert listed(app) == [5, 4, 3, 1]


def test_ticks_act_on_the_jobs_that_were_shown(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue_many(conn, 3)
    app = tick(open_screen("jobs"), 0, 2)
    enqueue_many(conn, 2)
    app.button(key="do_cancel").click()
    tick(app, 0, 2)
    assert "2 jobs were cancelled" in confirm(app)
    assert [status_of(conn, job_id) for job_id in (1, 2, 3)] == ["cancelled", "queued", "cancelled"]


def test_a_tick_on_a_list_that_has_moved_on_ticks_nothing(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue_many(conn, 3)
    app = open_screen("jobs")
    as_seen = app.dataframe[0].proto.id
    enqueue(conn)
    fresh(app)
    tick(app, 0, widget=as_seen)
    assert "selected" not in said(app)
    assert listed(app) == [4, 3, 2, 1]


def test_no_page_is_turned_while_the_list_holds_still(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue_many(conn, 60)
    app = open_screen("jobs")
    app.button(key="next").click().run()
    second = listed(app)
    tick(app, 0)
    assert not {"first", "back", "next"} & {button.key for button in app.button}
    tick(app)
    for key in ("first", "back", "next"):  # clicked just after a tick
        app.button(key=key).click()
        tick(app, 0)
        assert "**1 selected**" in said(app)
        tick(app)
        assert listed(app) == second


def test_a_tick_while_the_database_is_away_keeps_the_list(
    open_screen: OpenScreen, conn: Connection, admin: Connection
) -> None:
    enqueue_many(conn, 3)
    app = open_screen("jobs")
    with away(admin, conn):
        tick(app, 0, 2)
        assert listed(app) == [3, 2, 1]
        assert "**2 selected**" in said(app)
        assert "Nothing newer than" in said(app)
        tick(app)
        assert listed(app) == [3, 2, 1]
    tick(app, 1)
    assert "**1 selected**" in said(app)


def test_a_reading_from_an_earlier_tick_does_not_set_the_list_back(
    open_screen: OpenScreen, conn: Connection, admin: Connection
) -> None:
    enqueue_many(conn, 2)
    app = tick(open_screen("jobs"), 0)
    tick(app)
    conn.execute("select jobq.cancel(2)")
    fresh(app)
    with away(admin, conn):
        tick(app, 0)
        assert list(app.dataframe[0].value["Status"]) == ["⊘ cancelled", "◷ queued"]


def test_one_ticked_job_can_be_opened(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue_many(conn, 3)
    app = tick(open_screen("jobs"), 1)
    app.button(key="open").click()
    tick(app, 1)
    assert app.title[0].value == "Job"
    assert app.query_params == {"job": "2"}


def test_nothing_is_steered_before_it_is_confirmed(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue_many(conn, 2)
    app = open_screen("jobs")
    app.button(key="do_cancel").click().run()
    app.button(key="question_close").click().run()
    assert "question_confirm" not in [button.key for button in app.button]
    assert [status_of(conn, job_id) for job_id in (1, 2)] == ["queued", "queued"]


def test_only_verbs_that_fit_the_status_are_offered(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue(conn)
    fail(conn, claim_one(conn))
    app = open_screen("jobs", status="failed")
    assert offered(app) == ["retry"]


@pytest.mark.usefixtures("reader")
def test_who_may_only_read_is_offered_nothing(
    open_screen: OpenScreen,
    conn: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueue(conn)
    app = open_screen("jobs")
    assert listed(app) == [1]
    assert not offered(app)
    assert "may read but not act" in said(app).replace("\\", "")

    monkeypatch.setenv("JOB_DASHBOARD_READ_ONLY", "1")
    app = open_screen("jobs")
    assert not offered(app)


def test_a_value_that_comes_with_the_click_is_previewed_first(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue(conn)
    enqueue(conn, priority=50)
    app = open_screen("jobs")
    app.button(key="do_set_priority").click().run()
    app.number_input(key="question_value").set_value(50)
    app.button(key="question_confirm").click().run()
    assert "**1 job** will be moved to priority 50" in said(app)
    assert job_row(conn, 1).priority == 0
    assert "1 job was moved to priority 50" in confirm(app)
    assert job_row(conn, 1).priority == 50


def test_a_payload_filter_keeps_its_digits_whatever_is_done(
    open_screen: OpenScreen, conn: Connection
) -> None:
    exact, near = 0.12345678901234567890, "0.12345678901234567890"
    conn.execute(f"select jobq.enqueue('a', '{{\"x\": {near}}}')".encode())
    enqueue(conn, "a", {"x": exact})
    app = open_screen("jobs", payload=f"x={near}")
    app.button(key="do_reschedule").click().run()
    app.number_input(key="question_value").set_value(5.0).run()
    assert "**1 job** will be rescheduled" in said(app)
    assert "1 job was rescheduled" in confirm(app)
    assert [len(actors(conn, job_id)) for job_id in (1, 2)] == [1, 0]
