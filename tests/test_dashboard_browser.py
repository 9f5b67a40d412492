"""The dashboard as its viewer has it: live, steering what was on screen, text that stays text."""

import re
from collections.abc import Callable

import psycopg
import pytest
from conftest import chosen_binaries
from helpers import Connection, scalar
from playwright.sync_api import Page, expect

from browser import OpenBrowser, claim, enqueue, fail
from jobq import embedded
from jobq.dashboard import Dashboard
from jobq.migrate import migrate

pytest_plugins = ["browser"]
pytestmark = [pytest.mark.once, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

#: Of the list of jobs, in pixels.
HEADER, ROW = 35, 35


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
