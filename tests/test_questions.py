"""Questions go with their page: work that was left does not go on by itself later."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection
from streamlit.testing.v1 import AppTest

from purging import FINAL, Purge
from screens import fresh, said
from steering import Steer
from steering_one import RunAgain, SteerOne
from verbs import enqueue, enqueue_many, status_of

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]


def working() -> Steer:
    """A bulk act that was confirmed, and interrupted before its first batch."""
    return Steer("cancel", {}, state="working", wanted=2)


def go_to(app: AppTest, screen: str, **params: str) -> AppTest:
    """Open another screen in the same tab."""
    app.switch_page(f"screens/{screen}.py")
    app.query_params.clear()
    app.query_params.update(params)
    return fresh(app)


@pytest.mark.parametrize("way", ["overview", "workers", "kinds", "failures", "job", "database"])
def test_work_that_was_left_does_not_go_on(
    open_screen: OpenScreen, conn: Connection, way: str
) -> None:
    enqueue_many(conn, 2)
    app = open_screen("jobs")
    app.session_state["_question"] = ("jobs", working())
    go_to(app, way)
    assert "_question" not in app.session_state
    go_to(app, "jobs")
    assert "cancelled or asked" not in said(app)
    assert [status_of(conn, job_id) for job_id in (1, 2)] == ["queued"] * 2


def test_work_goes_on_at_its_own_page(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue_many(conn, 2)
    app = open_screen("jobs")
    app.session_state["_question"] = ("jobs", working())
    assert "2 jobs were cancelled" in said(fresh(app))


def test_work_does_not_go_on_once_a_filter_could_not_be_read(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue_many(conn, 2)
    app = open_screen("jobs", priority="high")
    app.session_state["_question"] = ("jobs", working())
    fresh(app)
    app.button(key="clear_all").click().run()
    assert [status_of(conn, job_id) for job_id in (1, 2)] == ["queued"] * 2


@pytest.mark.parametrize("params", [{}, {"job": "2"}, {"job": "x"}, {"job": "9" * 5000}])
def test_a_question_of_a_job_does_not_come_back_after_another_one(
    open_screen: OpenScreen, conn: Connection, params: dict[str, str]
) -> None:
    enqueue_many(conn, 2)
    app = open_screen("job", job="1")
    app.button(key="do_cancel").click().run()
    assert "question_confirm" in [button.key for button in app.button]
    go_to(app, "job", **params)
    assert "_question" not in app.session_state
    go_to(app, "job", job="1")
    assert "question_confirm" not in [button.key for button in app.button]


@pytest.mark.parametrize(
    ("screen", "params", "place", "question"),
    [
        ("job", {"job": "001"}, "job 1", SteerOne("cancel", 1)),
        ("job", {"job": "1"}, "job 1", RunAgain(1, "{}")),
        ("database", {}, "database", Purge(30, FINAL)),
        ("failures", {}, "failures", Steer("retry", {})),
    ],
)
def test_a_question_stays_where_it_was_asked(
    open_screen: OpenScreen,
    conn: Connection,
    screen: str,
    params: dict[str, str],
    place: str,
    question: Any,
) -> None:
    enqueue(conn)
    app = open_screen(screen, **params)
    app.session_state["_question"] = (place, question)
    fresh(app)
    assert app.session_state["_question"] == (place, question)
