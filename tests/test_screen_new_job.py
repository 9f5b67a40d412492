"""New job: checked as it is typed, checked by the database, enqueued once."""

from collections.abc import Callable

import pytest
from helpers import Connection, scalar
from streamlit.testing.v1 import AppTest

from acting import ACTOR
from screens import HOSTILE, double_click, fresh, links, said
from ui import literal
from verbs import enqueue, job_row, rows

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]

HUGE = 98765432109876543210


def fill(app: AppTest, kind: str = "email.send", payload: str = '{"to": "a@b.c"}') -> AppTest:
    """Type a job."""
    box = app.selectbox(key="new_kind")
    if kind not in box.options:  # a new one, which AppTest can only choose
        box.options.append(kind)
    box.set_value(kind)
    app.text_area(key="new_payload").set_value(payload)
    return app.run()


def press(app: AppTest, name: str) -> str:
    """Press a button; return what the screen says then."""
    app.button(key=f"new_{name}").click().run()
    assert not app.exception, [error.message for error in app.exception]
    return said(app).replace("\\", "")


def stored(conn: Connection) -> int:
    """How many jobs there are."""
    return int(scalar(conn, "select count(*) from jobq.jobs"))


@pytest.fixture
def screen(open_screen: OpenScreen, conn: Connection) -> AppTest:
    """The screen, in a queue that knows the kind email.send."""
    enqueue(conn, "email.send", {"to": "first"})
    return open_screen("new_job")


def test_a_job_is_enqueued_as_typed(screen: AppTest, conn: Connection) -> None:
    fill(screen, payload=f'{{"to": "a@b.c", "n": {HUGE}}}')
    screen.number_input(key="new_priority").set_value(20)
    screen.number_input(key="new_delay").set_value(600.0)
    screen.number_input(key="new_attempts").set_value(3)
    screen.text_input(key="new_key").set_value("welcome:7")
    told = press(screen, "enqueue")
    job = job_row(conn, 2)
    assert f"Job {job.id} is enqueued." in told
    assert "not due until" in told
    assert (job.kind, job.payload) == ("email.send", {"to": "a@b.c", "n": HUGE})
    assert (job.priority, job.max_attempts, job.idempotency_key) == (20, 3, "welcome:7")
    assert (job.available_at - job.created_at).total_seconds() == pytest.approx(600, abs=0.1)
    assert links(screen)["Open job 2"] == ("job", {"job": "2"})
    (event,) = rows(conn, "select actor from jobq.job_events where job_id = 2")
    assert event.actor == ACTOR


def test_a_double_click_enqueues_once(screen: AppTest, conn: Connection) -> None:
    fill(screen)
    double_click(screen, "new_enqueue")
    assert stored(conn) == 2
    assert "Job 2 is enqueued." in said(screen)


def test_the_same_is_enqueued_once_more_when_asked(screen: AppTest, conn: Connection) -> None:
    fill(screen)
    press(screen, "enqueue")
    assert screen.button(key="new_enqueue").disabled
    press(screen, "again")
    assert stored(conn) == 2
    press(screen, "enqueue")
    assert stored(conn) == 3


def test_a_check_enqueues_nothing(screen: AppTest, conn: Connection) -> None:
    fill(screen)
    assert "The database would take it. Nothing was enqueued." in press(screen, "check")
    assert stored(conn) == 1
    assert rows(conn, "select from jobq.job_events where job_id > 1") == []
    fill(screen, payload='{"to": "other"}')
    assert "would take it" not in said(screen)


def test_a_key_that_is_taken_leads_to_its_job(screen: AppTest, conn: Connection) -> None:
    enqueue(conn, "email.send", {"to": "a@b.c"}, idempotency_key="k")
    fill(screen)
    screen.text_input(key="new_key").set_value("k").run()
    assert "That key already belongs to job 2, which is queued." in press(screen, "check")
    told = press(screen, "enqueue")
    assert "That key already belongs to job 2" in told
    assert "Nothing new was enqueued." in told
    assert links(screen)["Open job 2"] == ("job", {"job": "2"})
    assert stored(conn) == 2


@pytest.mark.parametrize("button", ["check", "enqueue"])
def test_the_databases_refusal_is_said(screen: AppTest, conn: Connection, button: str) -> None:
    fill(screen, kind="x" * 129)
    told = press(screen, button)
    assert "refused" in told.lower()
    assert "1 to 128 bytes" in told
    enqueue(conn, "other", idempotency_key="k")
    fill(screen)
    screen.text_input(key="new_key").set_value("k").run()
    assert "refused" in press(screen, button).lower()
    assert stored(conn) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1,\n "b" 2}', "Line 2, column 6: a colon is missing here"),
        ('{"a": 1} x', "Line 1, column 10: the object has ended here"),
        ("[1]", "A payload is a JSON object"),
        ("", "Empty"),
        ('{"a": NaN}', "JSON has no NaN"),
        ("[" * 100_000, "Nested too deeply"),
    ],
)
def test_what_is_no_json_object_is_told_as_it_is_typed(
    screen: AppTest, conn: Connection, text: str, problem: str
) -> None:
    fill(screen, payload=text)
    assert problem in said(screen).replace("\\", "")
    assert "no JSON object yet" in press(screen, "enqueue")
    assert stored(conn) == 1


def test_a_name_that_stands_twice_is_told(screen: AppTest, conn: Connection) -> None:
    fill(screen, payload='{"a": {"<b>": 1, "<b>": 2}}')
    assert "Twice in one object: <b>. The last value counts." in said(screen).replace("\\", "")
    press(screen, "enqueue")
    assert job_row(conn, 2).payload == {"a": {"<b>": 2}}


def test_a_kind_is_needed(screen: AppTest, conn: Connection) -> None:
    assert "A kind is missing." in press(screen, "enqueue")
    assert stored(conn) == 1


def test_a_kind_without_a_worker_is_told(screen: AppTest, conn: Connection) -> None:
    fill(screen, kind=HOSTILE)
    assert f"No live worker has been seen for the kind {literal(HOSTILE)}" in said(screen)
    assert HOSTILE not in said(screen)


def test_a_worker_that_is_there_is_believed(screen: AppTest, conn: Connection) -> None:
    conn.execute("select jobq.listen(array['email.send'])")
    fresh(screen)
    fill(screen)
    assert "No live worker" not in said(screen)


def test_a_half_typed_form_survives_a_refresh(screen: AppTest) -> None:
    fill(screen, payload='{"half')
    fresh(screen)
    assert screen.text_area(key="new_payload").value == '{"half'
    assert screen.selectbox(key="new_kind").value == "email.send"


@pytest.mark.usefixtures("reader")
def test_who_may_not_enqueue_is_told_why(
    open_screen: OpenScreen,
) -> None:
    app = open_screen("new_job")
    assert not app.text_area
    assert "may read but not act" in said(app)
