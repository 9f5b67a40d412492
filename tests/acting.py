"""Acting through a screen, and what the database holds of it afterwards."""

import json
from collections.abc import Callable
from typing import Any

from helpers import Connection
from streamlit.testing.v1 import AppTest

from screens import said, sources
from verbs import outcome, rows, settle

#: Who acts in a screen under test, as the ledger tells it.
ACTOR = "postgres (claims dashboard: test@example.com)"


def confirm(app: AppTest) -> str:
    """Answer the open question with yes; return what the screen says then."""
    app.button(key="question_confirm").click().run()
    assert not app.exception, [error.message for error in app.exception]
    return said(app).replace("\\", "")


def listed(app: AppTest) -> list[int]:
    """The ids in the list of jobs."""
    return [int(link.rpartition("=")[2]) for link in app.dataframe[0].value["Job"]]


def offered(app: AppTest) -> list[str]:
    """The verbs that the screen offers."""
    keys = [str(button.key) for button in app.button]
    return [key.removeprefix("do_") for key in keys if key.startswith("do_")]


def actors(conn: Connection, job_id: int) -> list[str]:
    """Who acted on a job after it was enqueued."""
    query = (
        "select actor from jobq.job_events where job_id = %s and event <> 'enqueued' order by id"
    )
    return [row.actor for row in rows(conn, query, job_id)]


def fail(conn: Connection, job: Any, error: str = "ValueError: no") -> None:
    """Let a claimed job fail for good."""
    settle(conn, outcome(job, "failed", error=error, retryable=False))


def tick(app: AppTest, *places: int, widget: str | None = None) -> AppTest:
    """Tick rows of the list, as a browser that shows `widget` (the list as it is now) says it."""
    states = app._tree.get_widget_states()
    ticked = states.widgets.add()
    ticked.id = widget or app.dataframe[0].proto.id
    ticked.string_value = json.dumps({"selection": {"rows": places, "columns": [], "cells": []}})
    for source in sources():
        source.forget()
    app._run(states)
    assert not app.exception, [error.message for error in app.exception]
    return app


def html(app: AppTest) -> str:
    """What the screen draws as HTML."""
    return "\n".join(str(element.proto.body) for element in app.get("html"))


def open_job(open_screen: Callable[..., AppTest], job_id: int) -> AppTest:
    """Open the screen of a job."""
    return open_screen("job", job=str(job_id))
