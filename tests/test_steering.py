"""Steering many jobs: which rows a selection means, what is refused, batches, what is told."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection
from psycopg.rows import dict_row
from streamlit.testing.v1 import AppTest

import actions
import search
import steering
from acting import ACTOR, actors, confirm, fail
from screens import fresh, said
from steering import Steer
from verbs import claim, claim_one, enqueue, enqueue_many, job_row, status_of, succeed

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]


def select(app: AppTest, name: str, *ids: int) -> AppTest:
    """Ask for a verb for selected jobs, as the list does when they are ticked."""
    app.session_state["_question"] = ("jobs", Steer(name, {"ids": list(ids)}, ids))
    return fresh(app)


def test_a_selection_says_who_is_not_eligible(open_screen: OpenScreen, conn: Connection) -> None:
    for kind in "abcd":
        enqueue(conn, kind)
    succeed(conn, claim_one(conn, kinds=["a"]))
    fail(conn, claim_one(conn, kinds=["b"]))
    claim_one(conn, kinds=["c"])
    app = select(open_screen("jobs"), "retry", 1, 2, 3, 4, 99)
    told = said(app)
    assert (
        "1 succeeded, 1 running, 1 queued: only a failed or cancelled job can be retried." in told
    )
    assert "1 gone: purged since they were listed." in told
    assert "**1 job** will be queued again" in told
    assert "Job 2" in told
    assert "1 job was queued again" in confirm(app)
    assert [status_of(conn, n) for n in (1, 2, 3, 4)] == [
        "succeeded",
        "queued",
        "running",
        "queued",
    ]


def test_what_nobody_is_eligible_for_cannot_be_confirmed(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue(conn)
    app = select(open_screen("jobs"), "retry", 1)
    assert "Nothing to do" in said(app)
    assert [b.key for b in app.button if str(b.key).startswith("question")] == ["question_close"]


def test_a_locked_job_is_left_and_told(
    open_screen: OpenScreen, conn: Connection, connect: Any
) -> None:
    enqueue_many(conn, 3)
    other = connect(autocommit=False)
    other.execute("select from jobq.jobs where id = 2 for update")
    app = select(open_screen("jobs"), "cancel", 1, 2, 3)
    told = confirm(app)
    assert "2 jobs were cancelled" in told
    assert "1 that match were left: locked by another session" in told
    other.rollback()
    assert [status_of(conn, n) for n in (1, 2, 3)] == ["cancelled", "queued", "cancelled"]


def test_what_changed_between_preview_and_answer_is_told(
    open_screen: OpenScreen, conn: Connection
) -> None:
    asked = Steer("cancel", {"ids": [1, 2]}, (1, 2), state="done", wanted=2, changed=1)
    assert asked.outcome() == [
        (True, "1 job was cancelled or asked to stop."),
        (False, "1 had changed and match no longer."),
    ]


def test_more_than_a_batch_is_done_in_batches(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    cancel = steering.MANY["cancel"]

    def noted(conn: Any, filter: dict[str, Any], dry_run: bool, max_jobs: int = 100) -> Any:
        if not dry_run:
            calls.append(max_jobs)
        return cancel(conn, filter, dry_run, max_jobs)

    monkeypatch.setitem(steering.MANY, "cancel", noted)
    monkeypatch.setattr(actions, "BATCH", 2)
    enqueue_many(conn, 5)
    app = open_screen("jobs")
    app.button(key="do_cancel").click().run()
    assert "In batches of 2" in said(app)
    assert "5 jobs were cancelled" in confirm(app)
    assert calls == [2, 2, 1]
    assert {status_of(conn, n) for n in range(1, 6)} == {"cancelled"}


@pytest.mark.parametrize(
    ("verb", "value"),
    [
        ("retry", None),
        ("cancel", None),
        ("set_priority", 50),
        ("reschedule", 5.0),
        ("reschedule", 0.0),
    ],
)
def test_no_more_are_changed_than_were_agreed_to(
    open_screen: OpenScreen, conn: Connection, verb: str, value: float | None
) -> None:
    def make(count: int) -> None:
        enqueue_many(conn, count, delay=0 if verb == "retry" else 3600)
        if verb == "retry":
            for job in claim(conn, count):
                fail(conn, job)

    make(2)
    app = open_screen("jobs")
    app.button(key=f"do_{verb}").click().run()
    if value is not None:
        app.number_input(key="question_value").set_value(value).run()
    assert "**2 jobs** will be" in said(app)
    make(3)
    told = confirm(app)
    assert told.count("2 jobs were") == 1
    assert "3 that match were left: locked by another session, or new since you were asked" in told
    acted = [1 for n in range(1, 6) if {ACTOR} & set(actors(conn, n))]
    assert len(acted) == 2


def test_work_that_was_interrupted_goes_on_to_the_same_time(
    open_screen: OpenScreen, conn: Connection
) -> None:
    enqueue_many(conn, 3)
    app = open_screen("jobs")
    due = conn.execute("select now() + interval '1 h'").fetchone()
    assert due is not None
    conn.execute("select jobq.reschedule('{\"ids\": [1]}', available_at => %s)", (due[0],))
    app.session_state["_question"] = (
        "jobs",
        Steer("reschedule", {}, state="working", value=(60.0,), wanted=3, changed=1, due=due[0]),
    )
    assert "3 jobs were rescheduled" in said(fresh(app))
    assert {job_row(conn, n).available_at for n in (1, 2, 3)} == {due[0]}


def test_all_batches_get_the_same_time(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "BATCH", 2)
    enqueue_many(conn, 5)
    app = open_screen("jobs")
    app.button(key="do_reschedule").click().run()
    app.number_input(key="question_value").set_value(30.0).run()
    assert "5 jobs were rescheduled, due in 30 min" in confirm(app)
    assert len({job_row(conn, n).available_at for n in range(1, 6)}) == 1
    assert [len(actors(conn, n)) for n in range(1, 6)] == [1] * 5


def test_a_job_that_fails_again_at_once_is_not_retried_for_ever(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = steering.MANY["retry"]
    enqueue_many(conn, 3, max_attempts=1)
    for job in claim(conn, 3):
        fail(conn, job)
    rounds = []

    def one_round(of: Any, filter: dict[str, Any], dry_run: bool, max_jobs: int = 100) -> Any:
        if dry_run:
            return retry(of, filter, dry_run)
        rounds.append(1)
        return {"matched": 3, "changed": 1, "sample": [1, 2, 3]}

    monkeypatch.setitem(steering.MANY, "retry", one_round)
    app = open_screen("jobs")
    app.button(key="do_retry").click().run()
    told = confirm(app)
    assert len(rounds) == 3
    assert "2 that match were left" in told


def test_a_database_that_goes_away_meanwhile_is_told_with_what_was_done(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from data import Away

    enqueue_many(conn, 3)
    cancel = steering.MANY["cancel"]
    rounds = []

    def then_away(of: Any, filter: dict[str, Any], dry_run: bool, max_jobs: int = 100) -> Any:
        if dry_run:
            return cancel(of, filter, dry_run)
        rounds.append(1)
        if len(rounds) == 2:
            raise Away("the database is away: <b>gone</b>")
        return cancel(of, {"ids": [1]}, False)

    monkeypatch.setitem(steering.MANY, "cancel", then_away)
    app = open_screen("jobs")
    app.button(key="do_cancel").click().run()
    told = confirm(app)
    assert "1 job was cancelled" in told
    assert "Then it stopped: the database is away: <b>gone</b>" in told
    assert status_of(conn, 2) == "queued"


def test_rows_by_id_come_in_the_order_asked_for(conn: Connection) -> None:
    enqueue_many(conn, 3)
    conn.row_factory = dict_row
    assert [one["id"] for one in search.by_ids(conn, (2, 3, 1))] == [2, 3, 1]
