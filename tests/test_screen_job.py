"""The screen of one job: what it tells, what it offers, and that an answer acts on that job."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection, scalar
from streamlit.testing.v1 import AppTest

from acting import fail, html, offered, open_job
from screens import HOSTILE, charts, fresh, links, said
from ui import literal
from verbs import (
    claim_one,
    enqueue,
    enqueue_many,
    expire,
    outcome,
    run,
    settle,
    status_of,
    succeed,
)

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]

HUGE = 98765432109876543210


def report(conn: Connection, job: Any, progress: float, message: str) -> None:
    """Report progress as the job's worker does."""
    query = "select jobq.report_progress(%s::bigint, %s, %s::real, %s)"
    conn.execute(query, (job.id, job.lease_token, progress, message))


def test_without_an_id_the_latest_jobs_are_offered(
    open_screen: OpenScreen, conn: Connection
) -> None:
    assert "No jobs yet" in said(open_screen("job"))
    enqueue_many(conn, 11)
    enqueue(conn, HOSTILE)
    app = open_screen("job")
    found = links(app)
    assert found[f"12 ◷ queued · {literal(HOSTILE)}"] == ("job", {"job": "12"})
    assert len([page for page, params in found.values() if "job" in params]) == 10
    app.text_input(key="_go").set_value("3").run()
    assert app.query_params == {"job": "3"}
    assert "### 3 · test" in said(app)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("4711", "There is no job 4711. It was purged, or never existed."),
        ("99999999999999999999", "is no job id"),
        ("<b>x</b>", f"“{literal('<b>x</b>')}” is no job id"),
        ("-1", "is no job id"),
        ("٣", "is no job id"),
    ],
)
def test_a_job_that_does_not_exist_is_said_kindly(
    open_screen: OpenScreen, asked: str, answer: str
) -> None:
    app = open_screen("job", job=asked)
    assert answer in said(app)
    assert not offered(app)


def test_stored_text_is_shown_as_it_is(open_screen: OpenScreen, conn: Connection) -> None:
    script = f"{HOSTILE} <script>alert(1)</script>"
    job = run(conn, script, {"x": script}, idempotency_key=script, max_attempts=1)
    query = "select jobq.log(%s::bigint, %s, 'info', %s)"
    conn.execute(query, (job.id, job.lease_token, script))
    report(conn, job, 0.25, script)
    told = said(running := open_job(open_screen, job.id))
    assert f"### {job.id} · {literal(script)}" in told
    (bar,) = running.get("progress")
    assert bar.proto.text == literal(f"25%: {script}")
    settle(conn, outcome(job, "failed", error=f"Traceback\n  {script}"))

    app = open_job(open_screen, job.id)

    assert script not in html(app)
    assert html(app).count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 5
    codes = [element.value for element in app.code]
    assert f"Traceback\n  {script}" in codes
    assert script in codes[-1]
    assert f"### {job.id} · {literal(script)}" in said(app)


def test_large_integers_keep_their_digits(open_screen: OpenScreen, conn: Connection) -> None:
    job = run(conn, payload={"number": HUGE, "exact": 1})
    settle(conn, outcome(job, "succeeded", result={"sum": HUGE + 1}))
    codes = [element.value for element in open_job(open_screen, job.id).code]
    assert f'"number": {HUGE}' in codes[1]
    assert f'"sum": {HUGE + 1}' in codes[0]


def test_the_story_is_told(open_screen: OpenScreen, conn: Connection) -> None:
    job = run(conn, "story", max_attempts=3)
    report(conn, job, 0.5, "half way")
    settle(conn, outcome(job, "failed", error="Traceback\nValueError: first", retry_in=0))
    conn.execute("update jobq.jobs set available_at = clock_timestamp() where id = %s", (job.id,))
    job = claim_one(conn, kinds=["story"], worker="w-2")
    expire(conn, job)
    conn.execute("select jobq.reap()")
    conn.execute("select jobq.reschedule('{}')")
    fail(conn, claim_one(conn, kinds=["story"]), "Traceback\nValueError: last")

    app = open_job(open_screen, job.id)
    (story,) = [e.proto.body for e in app.get("html") if '<div class="jq-story">' in e.proto.body]
    told = (
        "<b>enqueued</b>",
        "<b>attempt 1 started</b>",
        "50%: half way",
        "<b>attempt 1 failed</b>",
        "ValueError: first",
        "<b>changed</b>",
        "by hand, without a function of jobq",
        "<b>attempt 2 started</b>",
        "w-2",
        "<b>lease lost</b>",
        "did not renew it",
        "<b>changed</b>",
        "<b>attempt 3 failed for good</b>",
        "ValueError: last",
    )
    assert re.search(".*".join(map(re.escape, told)), story, re.DOTALL)
    assert "failed at" in html(app)
    assert "1 ended by a lost lease" in html(app)
    codes = [element.value for element in app.code]
    assert codes.count("Traceback\nValueError: last") == 2
    assert "Traceback\nValueError: first" in codes
    assert app.expander[0].label == f"attempt 1 failed: {literal('ValueError: first')}"


def test_a_running_job_shows_its_progress_and_its_lease(
    open_screen: OpenScreen, conn: Connection
) -> None:
    job = run(conn, "run")
    report(conn, job, 0.25, "connecting")
    app = open_job(open_screen, job.id)
    (bar,) = app.get("progress")
    assert (bar.proto.value, bar.proto.text) == (25, literal("25%: connecting"))
    assert "ends in" in html(app)
    expire(conn, job)
    fresh(app)
    assert "the next reap takes the job back" in html(app)
    succeed_anyway = "select jobq.renew(array[%s::bigint], array[%s::uuid])"
    conn.execute(succeed_anyway, (job.id, job.lease_token))
    succeed(conn, job)
    fresh(app)
    assert not app.get("progress")
    assert "✓ succeeded" in said(app)
    assert status_of(conn, job.id) == "succeeded"


def test_a_job_due_at_the_end_of_time_is_shown(
    open_screen: OpenScreen, connect: Callable[..., Connection]
) -> None:
    tokyo = connect(options="-c TimeZone=Asia/Tokyo")
    query = "select job_id from jobq.enqueue('late', available_at => '9999-12-31 23:59:59+00')"
    job_id = scalar(tokyo, query)
    app = open_job(open_screen, job_id)
    assert "9999-12-31 UTC" in html(app)
    assert "10000-01-01" in scalar(tokyo, "select detail ->> 'available_at' from jobq.job_events")


def test_a_long_history_is_told_by_pages(open_screen: OpenScreen, conn: Connection) -> None:
    job = run(conn, "long")
    conn.execute(
        """
        select jobq.report_progress(%s::bigint, %s, 0.5, 'report ' || n)
        from generate_series(1, 250) n""",
        (job.id, job.lease_token),
    )
    app = open_job(open_screen, job.id)
    assert html(app).count("jq-event") == 200 + html(app).count(".jq-event")
    assert "<b>enqueued</b>" not in html(app)
    app.button(key="earlier").click().run()
    assert "<b>enqueued</b>" in html(app)
    assert "report 250<" not in html(app)
    assert "earlier" not in [button.key for button in app.button]
    (_, drawn) = charts(app)[0]
    (ran,) = drawn[drawn["phase"] == "run"].to_dict("records")
    assert ran["what"] == "run", "how it went on is not on this page"
    last = "select at from jobq.job_events where detail ->> 'message' = 'report 50'"
    assert ran["end"] <= scalar(conn, last)
    app.button(key="newest").click().run()
    assert "report 250<" in html(app)
