"""The screen Workers: signs of life, jobs in hand, leases, rates, and the way to their jobs."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from helpers import Connection
from streamlit.testing.v1 import AppTest

import queries
from screens import HOSTILE, away, choose, fresh, links, metrics, said, table
from verbs import claim, claim_one, enqueue, enqueue_many, expire, succeed

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]
Connect = Callable[..., Connection]


def connected(connect: Connect, name: str, threads: int, *kinds: str) -> Connection:
    """A worker's session that listens for these kinds."""
    session = connect(application_name=f"jobq listen {name} threads={threads}")
    session.execute("select jobq.listen(%s)", (list(kinds),))
    return session


def shown(app: AppTest, worker: str) -> dict[str, Any]:
    """The row of a worker in the table."""
    rows = table(app, "Worker")
    place = rows["Worker"].index(worker)
    return {name: values[place] for name, values in rows.items()}


def test_a_worker_is_shown_with_its_jobs_threads_and_kinds(
    open_screen: OpenScreen, conn: Connection, connect: Connect
) -> None:
    enqueue_many(conn, 3, "email.send")
    connected(connect, "web-1", 10, "email.send")
    claim(conn, 3, worker="web-1")
    row = shown(open_screen("workers"), "web-1")
    assert row["In hand"] == "3 of 10"
    assert row["Sign of life"] == "✓ idle"
    assert row["Last seen"] == "now"
    assert row["Kinds"] == "email.send"
    assert row["Longest job"].endswith("(job 1)")


def test_a_worker_that_is_not_connected_is_not_said_to_be_alive(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue(conn)
    claim_one(conn, worker="js-1")
    app = open_screen("workers")
    row = shown(app, "js-1")
    assert row["Sign of life"] == "? not connected"
    assert row["In hand"] == "1"
    assert row["Kinds"] == "unknown"
    assert row["Last seen"].endswith(" ago")
    assert metrics(app) == {
        "Workers": "1",
        "Connected": "0",
        "Jobs in hand": "1",
        "Expired leases": "0",
    }


def test_expired_leases_are_flagged_by_sign_and_text(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue_many(conn, 2)
    expire(conn, *claim(conn, 2, worker="dead"))
    app = open_screen("workers")
    assert shown(app, "dead")["Sign of life"] == "⚠ 2 leases expired"
    assert metrics(app)["Expired leases"] == "⚠ 2"


def test_the_rate_is_that_of_the_runs_that_ended_in_the_window(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue_many(conn, 31)
    succeed(conn, *claim(conn, 30, worker="fast"))
    claim_one(conn, worker="new")
    app = open_screen("workers", window="15 min")
    assert shown(app, "fast")["Runs a minute"] == "2"
    assert shown(app, "new")["Runs a minute"] == "0"


def test_a_rate_from_a_sample_is_marked_and_an_unknown_one_is_not_zero(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_many(conn, 30)
    succeed(conn, *claim(conn, 30, worker="fast"))
    runs = queries.runs

    def half(conn: Any, window: str) -> Any:
        return {**runs(conn, window), "share": 0.5}

    monkeypatch.setattr(queries, "runs", half)
    enqueue(conn)
    claim_one(conn, worker="slow")
    app = open_screen("workers", window="15 min")
    assert shown(app, "fast")["Runs a minute"] == "≈ 4"
    # A sample without a run of it does not say that there was none.
    assert shown(app, "slow")["Runs a minute"] == "≈ 0"
    assert "Rates are from a sample: 50% of the runs." in said(app)

    def refused(conn: Any, window: str) -> Any:
        raise psycopg.errors.QueryCanceled("statement timeout")

    monkeypatch.setattr(queries, "runs", refused)
    app = open_screen("workers", window="15 min")
    assert shown(app, "fast")["Runs a minute"] == "unknown"


def test_a_worker_leads_to_its_jobs(open_screen: OpenScreen, conn: Connection) -> None:
    enqueue(conn)
    claim_one(conn, worker=HOSTILE)
    app = open_screen("workers", worker=HOSTILE)
    assert shown(app, HOSTILE)["Worker"] == HOSTILE
    (longest,) = [label for label in links(app) if label.startswith("longest job")]
    assert links(app)[longest] == ("job", {"job": "1"})
    assert links(app)["its running jobs"] == ("jobs", {"status": "running", "worker": HOSTILE})
    assert r"\*\*bold\*\*" in app.subheader[0].value
    assert "? not connected; not connected, last seen" in app.text[0].value


def test_the_chosen_worker_is_the_one_that_was_on_screen(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue_many(conn, 2)
    claim_one(conn, worker="b")
    app = open_screen("workers")
    # Comes to stand before it.
    claim_one(conn, worker="a")
    choose(app, "workers", 0)
    assert app.query_params["worker"] == "b"
    assert app.subheader[0].value == "b"
    fresh(app)
    assert app.subheader[0].value == "b"


def test_a_worker_that_is_gone_is_said_to_be_gone(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue(conn)
    claim_one(conn, worker="a")
    app = open_screen("workers", worker="gone")
    assert "Not connected, and holds no job now." in said(app)


def test_without_workers_it_says_how_to_start_one(open_screen: OpenScreen) -> None:
    app = open_screen("workers")
    assert "jobq worker module:app" in app.info[0].value
    assert not app.dataframe


def test_while_the_database_is_away_the_workers_stay(
    open_screen: OpenScreen, conn: Connection, admin: Connection
) -> None:
    enqueue(conn)
    claim_one(conn, worker="a")
    app = open_screen("workers")
    with away(admin, conn):
        fresh(app)
        assert "Nothing newer than" in app.warning[0].value
        assert shown(app, "a")["In hand"] == "1"
