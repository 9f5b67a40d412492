"""The dashboard in a browser: a Chromium of the system's, driven by Playwright.

A test module that uses the fixtures says `pytest_plugins = ["browser"]`. Each page remembers what
no page may do, and the test fails for it: dialogs, scripts that break, requests to other hosts.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

import pytest
from conftest import PgServer
from helpers import Connection, missing
from playwright.sync_api import Browser, Dialog, Page, Request, expect, sync_playwright
from psycopg import sql

from jobq._children import stop_all
from jobq.dashboard import Dashboard

#: The first has no window to draw, and takes a quarter less of the machine.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: The machine may be busy with other tests.
PATIENCE_MS = 60_000


@dataclass
class Viewer:
    """A page on a dashboard, and what it did that it must not."""

    page: Page
    url: str
    misdeeds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        page = self.page
        page.set_default_timeout(PATIENCE_MS)
        page.on("dialog", self._close)
        page.on("pageerror", lambda error: self.misdeeds.append(f"error: {error.message}"))
        page.on("request", self._watch)

    def _close(self, dialog: Dialog) -> None:
        self.misdeeds.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _watch(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("blob", "data") and parts.netloc != urlsplit(self.url).netloc:
            self.misdeeds.append(f"request: {request.url}")

    def visit(self, screen: str, **params: object) -> Page:
        """Open a screen; returns once it is drawn."""
        self.page.goto(f"{self.url}/{screen}?{urlencode(params)}")
        self.settled()
        expect(self.page.get_by_test_id("stException")).to_have_count(0)
        return self.page

    def settled(self) -> None:
        """Return once no script of the page runs, and all of it is drawn."""
        idle = self.page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]')
        expect(idle).to_be_visible()
        expect(self.page.get_by_test_id("stSkeleton")).to_have_count(0)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser. Not for longer than a module: while it runs, no other event loop can."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        missing("no Chromium (Debian: apt-get install chromium)")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shared_dsn(pg_server: PgServer, admin: Connection, jobq_template: PgServer) -> Iterator[str]:
    """One migrated database for all tests of the module that share a dashboard."""
    name = f"jobq_browser_{os.getpid()}"
    template = sql.Identifier(str(jobq_template.template_dbname))
    admin.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), template))
    yield pg_server.dsn(name)
    admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def dashboard(shared_dsn: str) -> Iterator[Dashboard]:
    """The dashboard of the module's database."""
    child = Dashboard(shared_dsn, port=0)
    try:
        child.wait_until_ready()
        yield child
    finally:
        stop_all([child])


@pytest.fixture
def start_dashboard() -> Iterator[Callable[[str], Dashboard]]:
    """Start a dashboard for this test alone."""
    children: list[Dashboard] = []

    def start(dsn: str) -> Dashboard:
        children.append(Dashboard(dsn, port=0))
        children[-1].wait_until_ready()
        return children[-1]

    yield start
    stop_all(children)


@pytest.fixture
def open_browser(chromium: Browser) -> Iterator[Callable[..., Viewer]]:
    """Open a browser window of its own on a dashboard; at the end it must have behaved."""
    viewers: list[Viewer] = []

    def open_one(dashboard: Dashboard, width: int = 1280, height: int = 900) -> Viewer:
        context = chromium.new_context(
            viewport={"width": width, "height": height}, timezone_id="Europe/Paris"
        )
        viewers.append(Viewer(context.new_page(), dashboard.url))
        return viewers[-1]

    yield open_one
    for viewer in viewers:
        viewer.page.context.close()
    assert [misdeed for viewer in viewers for misdeed in viewer.misdeeds] == []


OpenBrowser = Callable[..., Viewer]


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
