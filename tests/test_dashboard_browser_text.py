"""Stored text in a browser: whatever it says, it is shown as it is, fits, and does nothing."""

import json
import re
from collections.abc import Callable

import pytest
from helpers import Connection, scalar
from playwright.sync_api import Page, ViewportSize, expect

from browser import OpenBrowser, claim, enqueue, fail
from jobq.dashboard import Dashboard
from screens import SCREENS

pytest_plugins = ["browser"]
pytestmark = [pytest.mark.once, pytest.mark.timeout(300), pytest.mark.xdist_group("text")]

# Each in its place would load something, open a dialog, or look like something else.
KIND = "<img src=//evil.example/k onerror=alert(1)> **k** :red[k]"
ERROR = "<b>E</b>: [e](//evil.example/e) ![e](//evil.example/i) $e$"
WORKER = "<script>alert(2)</script> `w` ![w](//evil.example/w)"
KEY = "<a href=//evil.example>key</a> [k](javascript:alert(3))"
ACTOR = "<iframe src=//evil.example/a></iframe> _a_"
PART = "![p](//evil.example/p)</script><script>alert(4)</script>"
# Streamlit rewrites these after it has taken the escapes away.
REWRITTEN = (
    ":material/delete: :material_x: :streamlit: a -> b <- c <-> d -- e >= f <= g ~= h"
    " http://evil.example www.evil.example u@e.io"
)
MARKUP = 'b:text-is("E"), strong:text-is("k"), code:text-is("w"), em:text-is("a"), .katex, iframe'
LEADS_ELSEWHERE = """
() => [...document.querySelectorAll("[src], [href]")].filter((element) => {
  const target = element.getAttribute("src") ?? element.getAttribute("href");
  const url = new URL(target, location);
  return ["javascript:", "mailto:"].includes(url.protocol) || url.hostname.endsWith("evil.example");
}).map((element) => element.outerHTML)"""

#: Neither the page nor its main part scrolls sideways.
FITS = """
() => {
  const main = document.querySelector('[data-testid="stMain"]');
  return main.scrollWidth <= main.clientWidth && document.body.scrollWidth <= innerWidth;
}"""


def injected(page: Page) -> list[str]:
    """Elements that stored text has become."""
    markup = [element.evaluate("e => e.outerHTML") for element in page.locator(MARKUP).all()]
    return markup + list(page.evaluate(LEADS_ELSEWHERE))


@pytest.fixture
def hostile(db: Connection) -> int:
    """A failed job with such text wherever text is stored, and one that runs, and no other."""
    db.execute("""
        alter table jobq.jobs disable trigger user;
        alter table jobq.job_events disable trigger user;
        truncate jobq.jobs, jobq.job_events;
        alter table jobq.jobs enable trigger user;
        alter table jobq.job_events enable trigger user""")
    payload = json.dumps({PART: PART})
    db.execute("select set_config('jobq.actor', %s, false)", (ACTOR,))
    query = "select job_id from jobq.enqueue(%s, %s::jsonb, idempotency_key => %s)"
    job_id = int(scalar(db, query, KIND, payload, KEY))
    for round_number in (1, 2):
        run = claim(db, KIND, WORKER)
        db.execute("select jobq.log(%s, %s, 'error', %s)", (*run, PART))
        db.execute("select jobq.report_progress(%s, %s, 0.5, %s)", (*run, PART))
        if round_number == 1:
            db.execute("select jobq.cancel(%s)", (job_id,))
            db.execute("select jobq.stop(%s, %s, %s)", (*run, ERROR))
            db.execute("select jobq.retry(%s)", (job_id,))
    db.execute("select jobq.fail(%s, %s, %s, retryable => false)", (*run, ERROR))
    enqueue(db, KIND, 2)
    claim(db, KIND, WORKER)
    return job_id


def test_stored_text_is_shown_as_it_is_on_every_screen_and_fits_a_phone(
    dashboard: Dashboard,
    open_browser: OpenBrowser,
    db: Connection,
    connect: Callable[..., Connection],
    shared_dsn: str,
    hostile: int,
) -> None:
    holder = connect(shared_dsn, autocommit=False, application_name=KIND[:60])
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select 1")
    # What is out of sight in a table is not in the page.
    wide: ViewportSize = {"width": 2500, "height": 2000}
    viewer = open_browser(dashboard)
    visited = set()

    def shows(texts: list[str], screen: str, **params: object) -> None:
        viewer.page.set_viewport_size(wide)
        page = viewer.visit(screen, **params)
        for text in texts:
            expect(page.locator("body")).to_contain_text(text)
        assert injected(page) == [], screen
        page.set_viewport_size({"width": 400, "height": 800})
        page.wait_for_function(FITS)
        visited.add(screen or "overview")

    shows([KIND, ERROR, WORKER], "")
    shows([KIND, ERROR, KEY], "jobs", status="failed", kind=KIND)
    shows([KIND, WORKER], "jobs", status="running", kind=KIND)
    shows([KIND], "jobs", kind=KIND, payload=json.dumps({PART: PART}), error=ERROR, worker=WORKER)
    shows([KIND, ERROR, WORKER, KEY, ACTOR, PART], "job", job=hostile)
    shows([KIND], "job")
    shows([KIND, ERROR.partition(":")[0]], "failures")
    error = scalar(db, "select jobq.error_class(%s)", ERROR)
    shows([KIND, ERROR], "failures", kind=KIND, error=error)
    shows([WORKER], "workers")
    shows([KIND], "kinds", kind=KIND)
    shows([KIND[:60]], "database")
    shows([], "new_job", kind=KIND)
    shows(["No function fits"], "sql_api", q=KIND)
    shows([], "sql_api")
    assert visited == set(SCREENS)


def test_stored_text_is_not_rewritten(
    dashboard: Dashboard, open_browser: OpenBrowser, db: Connection, hostile: int
) -> None:
    (job_id,) = fail(db, REWRITTEN, error=REWRITTEN)
    viewer = open_browser(dashboard)

    def seen(page: Page, place: str, most: int = 200) -> None:
        expect(page.locator(place, has_text="material/delete").first).to_be_visible()
        texts = [text.replace("\u2060", "") for text in page.locator(place).all_inner_texts()]
        assert any(REWRITTEN[:most] in text for text in texts), texts
        assert injected(page) == []

    seen(viewer.visit("job", job=job_id), "h3")
    seen(viewer.visit("job"), '[data-testid="stPageLink"]', 79)
    page = viewer.visit("jobs", kind=REWRITTEN, status="failed")
    seen(page, "button", 59)
    page.get_by_role("button", name="All that match").click()
    page.get_by_role("button", name="Retry", exact=True).click()
    seen(page, '[data-testid="stDialog"]')


def test_questions_and_answers_show_stored_text_as_it_is(
    dashboard: Dashboard, open_browser: OpenBrowser, hostile: int
) -> None:
    page = open_browser(dashboard).visit("jobs", kind=KIND, error=ERROR, status="failed")
    page.get_by_role("button", name="All that match").click()
    page.get_by_role("button", name="Retry", exact=True).click()
    dialog = page.get_by_test_id("stDialog")
    expect(dialog).to_contain_text(KIND)
    expect(dialog).to_contain_text(ERROR)
    assert injected(page) == []
    page = open_browser(dashboard).visit("job", job=hostile)
    page.get_by_role("button", name="Run again with another payload").click()
    expect(page.get_by_test_id("stDialog").get_by_role("textbox")).to_have_value(re.compile("evil"))
    assert injected(page) == []
