"""The list of jobs: found by the address, paged, and steered by all that match."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from helpers import Connection
from streamlit.testing.v1 import AppTest

import typed
from acting import fail, listed, tick
from screens import HOSTILE, fresh, said
from ui import literal
from verbs import claim_one, enqueue, enqueue_many

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]


def test_an_empty_queue_says_what_to_do(open_screen: OpenScreen) -> None:
    app = open_screen("jobs")
    assert "No jobs yet" in said(app)
    assert not app.dataframe


def test_stored_text_is_listed_as_it_is(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue(conn, HOSTILE, {"x": HOSTILE}, idempotency_key=HOSTILE)
    fail(conn, claim_one(conn, worker=HOSTILE), error=f"Traceback\n{HOSTILE}")
    enqueue(conn, HOSTILE)
    claim_one(conn, worker=HOSTILE)

    app = open_screen("jobs", kind=HOSTILE, error=HOSTILE)

    table = app.dataframe[0].value
    assert list(table["Kind"]) == [HOSTILE]
    assert list(table["Note"]) == [f"{HOSTILE} · key {HOSTILE}"]
    assert app.button(key="clear_kind").label == f"kind: {literal(HOSTILE)}"
    assert list(open_screen("jobs", status="running").dataframe[0].value["Worker"]) == [HOSTILE]
    app.button(key="do_retry").click().run()
    assert literal(f"kind {HOSTILE}, error with {HOSTILE}") in said(app)
    assert HOSTILE not in said(app)


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({}, [4, 3, 2, 1]),
        ({"status": "failed"}, [1]),
        ({"kind": "b"}, [3]),
        ({"payload": "to=a@b.c"}, [4, 2]),
        ({"payload": '{"n": 7}'}, [3]),
        ({"payload": "to=a@b.c", "kind": "a", "status": "queued"}, [4, 2]),
        ({"error": "TIMEOUT"}, [1]),
        ({"key": "k:3"}, [3]),
        ({"worker": "w-1"}, [3]),
        ({"priority": "5"}, [2]),
        ({"created_after": "1 h"}, [4, 3, 2, 1]),
        ({"created_before": "1 h"}, []),
        ({"created_after": "2020-01-01", "created_before": "2020-01-02 10:00"}, []),
    ],
)
def test_the_address_says_what_is_listed(
    open_screen: OpenScreen, conn: Connection, params: dict[str, str], found: list[int]
) -> None:
    enqueue(conn, "a", {})
    fail(conn, claim_one(conn), error="Traceback\nGatewayTimeout: none")
    enqueue(conn, "a", {"to": "a@b.c"}, priority=5)
    enqueue(conn, "b", {"n": 7}, idempotency_key="k:3")
    claim_one(conn, kinds=["b"], worker="w-1")
    enqueue(conn, "a", {"to": "a@b.c", "n": 1})

    app = open_screen("jobs", **params)

    assert (sorted(listed(app), reverse=True) if app.dataframe else []) == found
    assert all(app.button(key=f"clear_{name}") for name in params)
    if not found:
        assert "No job matches" in said(app)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"payload": '{"a": }'}, "payload: "),
        ({"payload": "whatever"}, "payload: "),
        ({"priority": "high"}, "priority: 'high' is not a whole number"),
        ({"created_after": "soon"}, "created after: 'soon' is neither a time"),
    ],
)
def test_a_filter_that_cannot_be_read_says_what_is_wrong(
    open_screen: OpenScreen, conn: Connection, params: dict[str, str], problem: str
) -> None:
    enqueue(conn)
    app = open_screen("jobs", **params)
    (error,) = app.error
    assert literal(problem).rstrip() in error.value
    assert not app.dataframe
    app.button(key="clear_all").click().run()
    assert listed(app) == [1]


def test_a_filter_is_removed_by_its_chip(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue(conn, "a")
    enqueue(conn, "b", priority=5)
    app = open_screen("jobs", status="queued", kind="a", priority="5")
    assert not app.dataframe
    app.button(key="clear_kind").click().run()
    assert listed(app) == [2]
    assert app.query_params == {"status": "queued", "priority": "5"}
    app.button(key="clear_all").click().run()
    assert listed(app) == [2, 1]
    assert app.query_params == {}


def test_pages_go_on_where_the_last_one_ended(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue_many(conn, 60)
    app = open_screen("jobs")
    assert listed(app) == list(range(60, 35, -1))
    app.button(key="next").click().run()
    enqueue(conn)
    fresh(app)
    assert listed(app) == list(range(35, 10, -1))
    app.button(key="next").click().run()
    assert listed(app) == list(range(10, 0, -1))
    assert "next" not in [button.key for button in app.button]
    app.button(key="back").click().run()
    assert listed(app) == list(range(35, 10, -1))
    app.button(key="first").click().run()
    assert listed(app) == list(range(61, 36, -1))


def test_another_filter_begins_at_its_first_page(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue_many(conn, 30, kind="a")
    enqueue_many(conn, 30, kind="b")
    app = open_screen("jobs")
    app.button(key="next").click().run()
    app.selectbox(key="kind").set_value("a").run()
    assert listed(app) == list(range(30, 5, -1))


def test_time_that_passes_keeps_the_page_and_asks_by_what_an_age_means_then(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_many(conn, 60)
    app = open_screen("jobs", created_after="2 h")
    app.button(key="next").click().run()
    second = listed(app)
    start = datetime.now(UTC)
    monkeypatch.setattr(typed, "now", lambda: start + timedelta(hours=1))
    fresh(app)
    assert listed(app) == second

    app.button(key="do_cancel").click().run()
    meant = (start - timedelta(hours=1)).astimezone(ZoneInfo("Europe/Paris"))
    assert literal(f"created after 2 h ({meant:%Y-%m-%d %H:%M %Z})") in said(app)
    assert "**60 jobs** will be" in said(app)
    asked = app.session_state["_question"][1].filter
    monkeypatch.setattr(typed, "now", lambda: start + timedelta(hours=3))
    assert "**60 jobs** will be" in said(fresh(app))
    assert app.session_state["_question"][1].filter == asked
    app.button(key="question_close").click().run()
    assert "No more jobs" in said(fresh(app))


def test_time_that_passes_keeps_the_ticks(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_many(conn, 3)
    app = tick(open_screen("jobs", created_after="2 h"), 1)
    enqueue(conn)
    start = datetime.now(UTC)
    monkeypatch.setattr(typed, "now", lambda: start + timedelta(minutes=5))
    tick(app, 1)
    assert listed(app) == [3, 2, 1]
    assert "**1 selected**" in said(app)


def test_a_bounded_search_says_how_far_it_looked(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    import search

    enqueue_many(conn, 3)

    def find(_: Connection, wanted: Any, after: Any = None, limit: int = 50) -> dict[str, Any]:
        found = search.by_ids(_, (1,)) if after else []
        rest = None if after else (2,)
        return {"rows": found, "after": rest, "looked_at": 2, "order": "the newest first"}

    monkeypatch.setattr(search, "find", find)
    app = open_screen("jobs", payload="to=a@b.c")
    assert "None of them in the 2 of 3 jobs that were looked at." in said(app)
    assert app.button(key="next").label == "Look further"
    app.button(key="next").click().run()
    assert listed(app) == [1]


def test_counts_are_exact_or_say_that_they_are_not(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_many(conn, 3)
    assert "◷ queued 3 · ▶ running 0" in said(open_screen("jobs"))
    assert "In all: ◷ queued 3" in said(open_screen("jobs", status="queued", kind="other"))

    import queries

    counts = [{"status": "succeeded", "jobs": 1234567, "estimated": True}]
    monkeypatch.setattr(queries, "overview", lambda conn: {"counts": counts, "kinds": []})
    assert "✓ succeeded ≈ 1,234,567" in said(open_screen("jobs"))


def test_an_id_leads_to_its_job(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue(conn, "some.kind")
    app = open_screen("jobs", kind="other")
    app.text_input(key="_goto").set_value(" 1 ").run()
    assert not app.exception
    assert app.title[0].value == "Job"
    assert app.query_params == {"job": "1"}


@pytest.mark.parametrize("name", ["jobs", "job", "new_job"])
def test_a_database_that_is_away_is_said(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    app = open_screen(name)
    assert "the database is away" in said(app)
