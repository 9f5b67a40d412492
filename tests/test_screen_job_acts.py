"""Steering one job from its screen: what is offered, done once, or refused politely."""

from collections.abc import Callable

import pytest
from helpers import Connection, scalar
from streamlit.testing.v1 import AppTest

from acting import ACTOR, actors, confirm, fail, html, offered, open_job
from screens import double_click, fresh, said
from verbs import claim_one, enqueue, events_of, job_row, run, status_of, succeed

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]

HUGE = 98765432109876543210


def in_state(conn: Connection, status: str) -> int:
    """Make a job that is so."""
    job_id = enqueue(conn, "test")
    if status == "cancelled":
        conn.execute("select jobq.cancel(%s)", (job_id,))
    elif status != "queued":
        job = claim_one(conn)
        if status == "failed":
            fail(conn, job)
        elif status == "succeeded":
            succeed(conn, job)
    return job_id


@pytest.mark.parametrize(
    ("status", "verbs"),
    [
        ("queued", ["cancel", "set_priority", "reschedule", "clone"]),
        ("running", ["cancel", "clone"]),
        ("succeeded", ["clone"]),
        ("failed", ["retry", "clone"]),
        ("cancelled", ["retry", "clone"]),
    ],
)
def test_only_what_is_legal_is_offered(
    open_screen: OpenScreen, conn: Connection, status: str, verbs: list[str]
) -> None:
    assert offered(open_job(open_screen, in_state(conn, status))) == verbs


def test_a_job_that_was_asked_to_stop_is_not_asked_again(
    open_screen: OpenScreen, conn: Connection
) -> None:
    job_id = in_state(conn, "running")
    conn.execute("select jobq.cancel(%s)", (job_id,))
    app = open_job(open_screen, job_id)
    assert offered(app) == ["clone"]
    assert "asked to stop at" in html(app)


@pytest.mark.parametrize(
    ("status", "verb", "told", "events"),
    [
        ("queued", "cancel", "Job 1 is cancelled.", ["cancelled"]),
        ("running", "cancel", "The worker of job 1 is asked to stop.", ["cancel_requested"]),
        ("failed", "retry", "Job 1 is queued again, due now.", ["retried"]),
        ("queued", "set_priority", "Job 1 is moved to priority -7.", ["changed"]),
        ("queued", "reschedule", "Job 1 is rescheduled, due in 90 min.", ["changed"]),
    ],
)
def test_an_answer_acts_on_that_job_once(
    open_screen: OpenScreen,
    conn: Connection,
    status: str,
    verb: str,
    told: str,
    events: list[str],
) -> None:
    job_id = in_state(conn, status)
    enqueue(conn)
    before = events_of(conn, job_id)
    app = open_job(open_screen, job_id)
    app.button(key=f"do_{verb}").click().run()
    if verb == "set_priority":
        app.number_input(key="question_value").set_value(-7).run()
    if verb == "reschedule":
        app.number_input(key="question_value").set_value(90.0).run()
    assert events_of(conn, job_id) == before
    double_click(app, "question_confirm")
    assert told in said(app).replace("\\", "")
    assert events_of(conn, job_id) == before + events
    assert actors(conn, job_id)[-1] == ACTOR
    assert actors(conn, 2) == []
    if verb == "set_priority":
        assert job_row(conn, job_id).priority == -7
    app.button(key="question_close").click().run()
    fresh(app)
    assert f"by {ACTOR}" in html(app)


def change(conn: Connection, job_id: int, now: str) -> None:
    """Let others bring a job into this state."""
    if job_row(conn, job_id).status == "queued":
        job = claim_one(conn)
        if now == "succeeded":
            succeed(conn, job)
    else:
        conn.execute("select jobq.retry(%s)", (job_id,))
    assert status_of(conn, job_id) == now


@pytest.mark.parametrize(
    ("asked", "verb", "now", "told"),
    [
        ("queued", "cancel", "succeeded", "Job 1 had succeeded meanwhile: nothing was changed."),
        ("failed", "retry", "queued", "only a failed or cancelled job can be retried"),
        ("queued", "reschedule", "running", "1 is running: only a queued job waits for its time."),
        ("queued", "set_priority", "running", "1 is running: only a queued job waits by priority."),
    ],
)
def test_a_job_that_has_changed_meanwhile_is_refused_politely(
    open_screen: OpenScreen, conn: Connection, asked: str, verb: str, now: str, told: str
) -> None:
    job_id = in_state(conn, asked)
    app = open_job(open_screen, job_id)
    app.button(key=f"do_{verb}").click().run()
    change(conn, job_id, now)
    before = events_of(conn, job_id)
    assert told in confirm(app)
    assert not app.success
    assert events_of(conn, job_id) == before


def test_a_question_that_has_become_idle_is_withdrawn(
    open_screen: OpenScreen, conn: Connection
) -> None:
    job_id = in_state(conn, "queued")
    app = open_job(open_screen, job_id)
    app.button(key="do_set_priority").click().run()
    change(conn, job_id, "succeeded")
    fresh(app)
    told = said(app).replace("\\", "")
    assert "Job 1 has changed: succeeded: only a queued job waits by priority." in told
    assert "question_confirm" not in [button.key for button in app.button]


def test_a_job_runs_again_with_an_edited_payload(open_screen: OpenScreen, conn: Connection) -> None:
    job = run(conn, "email.send", {"to": "a", "n": HUGE}, priority=5, idempotency_key="k")
    succeed(conn, job)
    app = open_job(open_screen, job.id)
    app.button(key="do_clone").click().run()
    prefilled = app.text_area(key="question_payload").value
    assert f'"n": {HUGE}' in str(prefilled)

    app.text_area(key="question_payload").set_value('{\n  "to": }').run()
    assert "Line 2, column 9: a value is missing here" in said(app).replace("\\", "")
    app.button(key="question_confirm").click().run()
    assert len(app.error) == 1
    assert scalar(conn, "select count(*) from jobq.jobs") == 1

    app.text_area(key="question_payload").set_value(f'{{"to": "b", "n": {HUGE}}}').run()
    double_click(app, "question_confirm")
    assert scalar(conn, "select count(*) from jobq.jobs") == 2
    new = scalar(conn, "select max(id) from jobq.jobs")
    copy = job_row(conn, new)
    assert (copy.kind, copy.payload, copy.priority) == ("email.send", {"to": "b", "n": HUGE}, 5)
    assert job_row(conn, job.id).payload == {"to": "a", "n": HUGE}
    app.button(key="question_open").click().run()
    assert app.query_params == {"job": str(new)}
    assert f"a copy of job {job.id}" in html(app)
    assert "question_open" not in [button.key for button in app.button]


def test_what_the_database_refuses_to_clone_is_said(
    open_screen: OpenScreen, conn: Connection
) -> None:
    app = open_job(open_screen, in_state(conn, "failed"))
    app.button(key="do_clone").click().run()
    app.text_area(key="question_payload").set_value('{"x": "\\u0000"}').run()
    confirm(app)
    assert app.error
    assert scalar(conn, "select count(*) from jobq.jobs") == 1


def test_a_question_is_not_asked_of_another_job(open_screen: OpenScreen, conn: Connection) -> None:
    job_id, other = in_state(conn, "queued"), enqueue(conn)
    app = open_job(open_screen, job_id)
    app.button(key="do_cancel").click().run()
    app.text_input(key="_go").set_value(str(other)).run()
    assert f"### {other} · test" in said(app)
    assert "question_confirm" not in [button.key for button in app.button]


def test_who_may_only_read_is_offered_nothing(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = in_state(conn, "failed")
    monkeypatch.setenv("JOB_DASHBOARD_READ_ONLY", "true")
    app = open_job(open_screen, job_id)
    assert offered(app) == []
    assert "JOB\\_DASHBOARD\\_READ\\_ONLY is set" in said(app)
