"""The dashboard as its viewer has it: live, steering what was on screen, text that stays text."""

import json
import re
from collections.abc import Callable

import psycopg
import pytest
from conftest import chosen_binaries
from helpers import Connection, scalar
from playwright.sync_api import Page, expect

from browser import Viewer
from jobq import embedded
from jobq.dashboard import Dashboard
from jobq.migrate import migrate

pytest_plugins = ["browser"]
pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]

OpenBrowser = Callable[..., Viewer]
SCREENS = ["", "jobs", "job", "failures", "new_job", "workers", "kinds", "database", "sql_api"]
#: Of the list of jobs, in pixels.
HEADER, ROW = 35, 35


@pytest.fixture
def db(connect: Callable[..., Connection], shared_dsn: str) -> Connection:
    """A connection to the database that the module's dashboard shows."""
    return connect(shared_dsn)


def enqueue(db: Connection, kind: str, count: int = 1) -> list[int]:
    query = (
        "select (jobq.enqueue(%s, jsonb_build_object('n', n))).job_id from generate_series(1, %s) n"
    )
    return [row[0] for row in db.execute(query, (kind, count))]


def claim(db: Connection, kind: str, worker: str = "w") -> tuple[int, str]:
    row = db.execute(
        "select id, lease_token from jobq.claim(%s, kinds => array[%s])", (worker, kind)
    ).fetchone()
    assert row is not None
    return row[0], str(row[1])


def fail(db: Connection, kind: str, count: int = 1, error: str = "E: no") -> list[int]:
    ids = enqueue(db, kind, count)
    for _ in ids:
        db.execute("select jobq.fail(%s, %s, %s, retryable => false)", (*claim(db, kind), error))
    return ids


def statuses(db: Connection, kind: str) -> list[str]:
    query = (
        "select coalesce(array_agg(status::text order by id), '{}') from jobq.jobs where kind = %s"
    )
    return list(scalar(db, query, kind))


def tick(page: Page, *places: int) -> None:
    """Tick the jobs in these places of the list."""
    for place in places:
        at = {"x": 16, "y": HEADER + ROW * place + ROW / 2}
        page.locator(".dvn-scroller").first.click(position=at)  # type: ignore[arg-type]


def refreshed(page: Page, times: int = 2) -> None:
    """Return once the live part was drawn anew so many times."""
    line = page.get_by_text(re.compile(r"^as of \d\d:\d\d:\d\d")).first
    for _ in range(times):
        before = line.text_content()
        expect(line).not_to_have_text(before or "")


def test_a_job_is_watched_from_queued_to_succeeded(
    dashboard: Dashboard, open_browser: OpenBrowser, db: Connection
) -> None:
    (job_id,) = enqueue(db, "watched")
    page = open_browser(dashboard).visit("job", job=job_id, refresh="1 s")
    page.evaluate("window.not_loaded_anew = true")
    main = page.get_by_test_id("stMain")
    expect(main).to_contain_text("◷ queued")
    run = claim(db, "watched", "worker-7")
    expect(main).to_contain_text("▶ running")
    db.execute("select jobq.report_progress(%s, %s, 0.42, 'half-way, nearly')", run)
    expect(main).to_contain_text("half-way, nearly")
    db.execute("select jobq.succeed(%s, %s, '{\"pages\": 123456789012345678901}')", run)
    expect(main).to_contain_text("✓ succeeded")
    expect(main).to_contain_text("123456789012345678901")
    story = page.locator(".jq-story").last
    expect(story).to_contain_text("enqueued")
    expect(story).to_contain_text("worker-7")
    expect(story).to_contain_text("succeeded")
    assert page.evaluate("window.not_loaded_anew")


def test_a_failed_job_is_retried_from_the_list_and_once_however_often_one_clicks(
    dashboard: Dashboard, open_browser: OpenBrowser, db: Connection
) -> None:
    older, newer = fail(db, "retried", 2)
    page = open_browser(dashboard).visit("jobs", kind="retried", status="failed")
    tick(page, 1)
    page.get_by_role("button", name="Retry", exact=True).click()
    dialog = page.get_by_test_id("stDialog")
    expect(dialog).to_contain_text("1 job will be queued again")
    expect(dialog).to_contain_text(f"Job {older}")
    assert statuses(db, "retried") == ["failed", "failed"]
    dialog.get_by_role("button", name="Retry: 1 job").dblclick()
    expect(dialog).to_contain_text("1 job was queued again.")
    assert statuses(db, "retried") == ["queued", "failed"]
    query = "select count(*) from jobq.job_events where event = 'retried' and job_id in (%s, %s)"
    assert scalar(db, query, older, newer) == 1


def test_all_that_match_are_cancelled_after_a_preview(
    dashboard: Dashboard, open_browser: OpenBrowser, db: Connection
) -> None:
    enqueue(db, "bulk", 120)
    enqueue(db, "bulk.not", 1)
    page = open_browser(dashboard).visit("jobs", kind="bulk", status="queued")
    page.get_by_role("button", name="All that match").click()
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_test_id("stDialog")
    expect(dialog).to_contain_text("120 jobs will be cancelled")
    assert set(statuses(db, "bulk")) == {"queued"}
    dialog.get_by_role("button", name="Cancel: 120 jobs").click()
    expect(dialog).to_contain_text("120 jobs were cancelled")
    assert statuses(db, "bulk") == ["cancelled"] * 120
    assert statuses(db, "bulk.not") == ["queued"]


def test_a_selection_survives_refreshes_and_stays_with_its_job(
    dashboard: Dashboard, open_browser: OpenBrowser, db: Connection
) -> None:
    first, _second, _third = fail(db, "ticked", 3)
    page = open_browser(dashboard).visit("jobs", kind="ticked", status="failed", refresh="1 s")
    tick(page, 2)
    expect(page.get_by_text("1 selected")).to_be_visible()
    fail(db, "ticked", 5)  # which would stand above it
    refreshed(page, 3)
    expect(page.get_by_text("1 selected")).to_be_visible()
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_test_id("stDialog")).to_contain_text(f"Job {first}")


def test_what_is_half_typed_or_open_survives_refreshes(
    dashboard: Dashboard, open_browser: OpenBrowser, db: Connection
) -> None:
    fail(db, "half")
    viewer = open_browser(dashboard)
    page = viewer.visit("jobs", kind="half", refresh="1 s")
    box = page.get_by_label("Error", exact=True)
    box.fill("E: n")
    refreshed(page)
    expect(box).to_have_value("E: n")
    page = viewer.visit("sql_api", refresh="1 s")
    page.get_by_text("Cancels a job", exact=False).first.click()
    example = page.get_by_text("select jobq.cancel(4712);")
    expect(example).to_be_visible()
    refreshed(page)
    expect(example).to_be_visible()


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


def test_stored_text_is_shown_as_it_is_on_every_screen(
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
    viewer = open_browser(dashboard, width=2500, height=2000)

    def shows(texts: list[str], screen: str, **params: object) -> None:
        page = viewer.visit(screen, **params)
        for text in texts:
            expect(page.locator("body")).to_contain_text(text)
        assert injected(page) == [], screen

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


def test_a_phone_shows_every_screen_without_scrolling_sideways(
    dashboard: Dashboard, open_browser: OpenBrowser, hostile: int
) -> None:
    viewer = open_browser(dashboard, width=400, height=800)
    measure = "e => Math.max(e.scrollWidth - e.clientWidth, document.body.scrollWidth - innerWidth)"
    wide = {}
    for screen in SCREENS:
        page = viewer.visit(screen, **({"job": hostile} if screen == "job" else {}))
        wide[screen] = page.get_by_test_id("stMain").evaluate(measure)
    assert wide == dict.fromkeys(SCREENS, 0)


def test_while_the_database_restarts_the_last_data_stays_and_the_page_recovers(
    durable_server: embedded.Server,
    start_dashboard: Callable[[str], Dashboard],
    open_browser: OpenBrowser,
) -> None:
    migrate(durable_server.dsn)
    with psycopg.connect(durable_server.dsn, autocommit=True) as before:
        (job_id,) = enqueue(before, "kept")
    viewer = open_browser(start_dashboard(durable_server.dsn))
    page = viewer.visit("job", job=job_id, refresh="1 s")
    main = page.get_by_test_id("stMain")
    expect(main).to_contain_text("◷ queued")
    page.evaluate("window.not_loaded_anew = true")
    durable_server.stop()
    expect(main).to_contain_text("Nothing newer than")
    expect(main).to_contain_text("the database is away")
    expect(main).to_contain_text("◷ queued")
    with (
        embedded.server(durable_server.data_dir, binaries=chosen_binaries()) as again,
        psycopg.connect(again.dsn, autocommit=True) as after,
    ):
        assert again.dsn == durable_server.dsn
        claim(after, "kept")
        expect(main).to_contain_text("▶ running")
        expect(main).not_to_contain_text("Nothing newer than")
        assert page.evaluate("window.not_loaded_anew")


def test_a_reader_only_looks_until_it_is_granted_more(
    shared_dsn: str,
    db: Connection,
    make_role: Callable[..., str],
    start_dashboard: Callable[[str], Dashboard],
    open_browser: OpenBrowser,
) -> None:
    (job_id,) = fail(db, "guarded")
    role = make_role()
    db.execute("select jobq.grant_access(%s, 'reader')", (role,))
    viewer = open_browser(start_dashboard(f"{shared_dsn} user={role} password=test"))
    for screen in SCREENS:
        page = viewer.visit(screen)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.get_by_text("No data yet").count() == 0, screen
    page = viewer.visit("job", job=job_id, refresh="1 s")
    expect(page.get_by_test_id("stMain")).to_contain_text("✕ failed")
    expect(page.get_by_test_id("stMain")).to_contain_text("may read but not act")
    retry = page.get_by_role("button", name="Retry", exact=True)
    expect(retry).to_have_count(0)
    db.execute("select jobq.grant_access(%s, 'operator')", (role,))
    retry.click()
    page.get_by_test_id("stDialog").get_by_role("button", name="Retry it").click()
    expect(page.get_by_test_id("stDialog")).to_contain_text(f"Job {job_id} is queued again")
    query = "select actor from jobq.job_events where job_id = %s and event = 'retried'"
    assert scalar(db, query, job_id) == f"{role} (claims dashboard)"
    db.execute(f"drop owned by {role}".encode())
