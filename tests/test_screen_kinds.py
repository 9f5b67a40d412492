"""The screen Kinds: backlog, live workers, rates and failures, and the details of one kind."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection
from streamlit.testing.v1 import AppTest

import queries
from screens import HOSTILE, away, charts, choose, fresh, links, metrics, said, table
from verbs import claim, claim_one, enqueue, enqueue_many, enqueue_old, fail, run, succeed

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]
Connect = Callable[..., Connection]


def shown(app: AppTest, kind: str) -> dict[str, Any]:
    """The row of a kind in the table."""
    rows = table(app, "Kind")
    place = rows["Kind"].index(kind)
    return {name: values[place] for name, values in rows.items()}


def test_each_kind_has_its_numbers(
    open_screen: OpenScreen, conn: Connection, connect: Connect
) -> None:
    connect().execute("select jobq.listen('{email.send}')")
    enqueue_many(conn, 1300, "email.send")
    claim(conn, 3, ["email.send"])
    enqueue(conn, "email.send", delay="1 hour")
    succeed(conn, *[run(conn, "other") for _ in range(3)])
    fail(conn, run(conn, "other"))
    app = open_screen("kinds", window="15 min")
    row = shown(app, "email.send")
    assert (row["Due"], row["Scheduled"], row["Running"]) == (1297, 1, 3)
    assert row["Live workers"] == "1"
    assert row["Failed runs"] == "-"
    assert row["Runs a minute"] == "0"
    other = shown(app, "other")
    assert (other["Due"], other["Scheduled"], other["Running"]) == (0, 0, 0)
    assert other["Failed runs"] == "25 %"
    assert other["Runs a minute"] == "0.267"
    assert other["Oldest ready"] == "-"


def test_live_workers_that_cannot_be_known_are_not_zero(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue(conn, "waits")
    assert shown(open_screen("kinds"), "waits")["Live workers"] == "0"
    # Somebody works who is not seen: who else does is not known.
    run(conn, "runs")
    assert shown(open_screen("kinds"), "waits")["Live workers"] == "unknown"


def test_the_oldest_ready_job_and_the_last_attempts(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue_old(conn, 1)
    fail(conn, run(conn, "again", max_attempts=2), retryable=True)
    app = open_screen("kinds")
    assert shown(app, "test")["Oldest ready"].startswith("1 h 0 min")
    assert shown(app, "again")["Last attempt"] == 1


def test_the_address_names_the_kind_whose_details_are_shown(
    open_screen: OpenScreen, conn: Connection
) -> None:
    succeed(conn, *[run(conn, HOSTILE) for _ in range(3)])
    fail(conn, run(conn, HOSTILE))
    succeed(conn, run(conn, "other"))
    enqueue(conn, HOSTILE)
    app = open_screen("kinds", kind=HOSTILE)
    assert app.selectbox(key="kind").value == HOSTILE
    assert metrics(app) == {
        "Due": "1",
        "Oldest ready": shown(app, HOSTILE)["Oldest ready"],
        "Live workers": "0",
        "Failed runs": "25 %",
    }
    ((_, bars),) = charts(app)
    assert (bars["succeeded"].sum(), bars["others"].sum()) == (3, 1)
    assert "of 4 runs." in said(app)
    jobs = links(app)["failed jobs of this kind"]
    assert jobs == ("jobs", {"status": "failed", "kind": HOSTILE})


def test_the_chosen_kind_is_the_one_that_was_on_screen(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue(conn, "b")
    app = open_screen("kinds")
    assert not app.metric
    # Comes to stand before it.
    enqueue_many(conn, 2, "a")
    choose(app, "kinds", 0)
    assert app.selectbox(key="kind").value == "b"
    assert metrics(app)["Due"] == "1"


def test_the_chosen_kind_stays_when_nothing_of_it_is_left(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue(conn, "a")
    enqueue(conn, "b")
    app = open_screen("kinds", kind="b")
    conn.execute("delete from jobq.jobs where kind = 'b'")
    fresh(app)
    assert app.selectbox(key="kind").value == "b"
    assert metrics(app)["Due"] == "0"
    assert metrics(app)["Live workers"] == "unknown"
    assert "No run to tell from." in said(app)


def test_rates_from_a_sample_are_marked(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed(conn, *[run(conn, "a") for _ in range(3)])
    fail(conn, run(conn, "a"))
    runs = queries.runs

    def half(conn: Any, window: str) -> Any:
        return {**runs(conn, window), "share": 0.5}

    monkeypatch.setattr(queries, "runs", half)
    app = open_screen("kinds", window="15 min")
    row = shown(app, "a")
    assert (row["Runs a minute"], row["Failed runs"]) == ("≈ 0.533", "≈ 25 %")
    assert "Rates are from a sample: 50% of the runs." in said(app)


def test_without_kinds_it_says_so(open_screen: OpenScreen) -> None:
    app = open_screen("kinds")
    assert "Nothing is queued or running, and nothing ran in 1 h." in app.info[0].value
    assert not app.dataframe


def test_while_the_database_is_away_the_kinds_stay(
    open_screen: OpenScreen, conn: Connection, admin: Connection
) -> None:
    enqueue(conn, "a")
    claim_one(conn)
    app = open_screen("kinds")
    with away(admin, conn):
        fresh(app)
        assert "Nothing newer than" in app.warning[0].value
        assert shown(app, "a")["Running"] == 1
