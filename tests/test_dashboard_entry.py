"""Who gets into the dashboard, and under which name they act."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit as st
from helpers import Connection, scalar
from streamlit.testing.v1 import AppTest

from screens import SCREENS, said
from ui import literal
from verbs import claim_one, enqueue_many, fail

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]


def test_without_a_login_configured_everybody_gets_in(open_screen: OpenScreen) -> None:
    app = open_screen("new_job")
    assert [title.value for title in app.title] == ["New job"]
    assert "Log out" not in [button.label for button in app.button]


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.usefixtures("reader")
def test_a_reader_sees_every_screen(screen: str, open_screen: OpenScreen, conn: Connection) -> None:
    enqueue_many(conn, 3)
    fail(conn, claim_one(conn))
    claim_one(conn)
    app = open_screen(screen)
    assert len(app.title) == 1
    assert [error.value for error in app.error] == []


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Configure a login as in life, by a file in the folder where the dashboard is started."""

    def write(section: str) -> None:
        (tmp_path / ".streamlit").mkdir()
        (tmp_path / ".streamlit/secrets.toml").write_text(f'[auth]\ncookie_secret = "s"\n{section}')
        monkeypatch.chdir(tmp_path)
        st.secrets._reset()

    yield write
    st.secrets._reset()


def test_with_one_nobody_sees_or_does_anything_before(
    open_screen: OpenScreen, configure: Callable[[str], None], conn: Connection
) -> None:
    app = open_screen("new_job")
    configure('client_id = "x"')
    app.run()
    assert [title.value for title in app.title] == ["jobq"]
    assert [button.label for button in app.button] == ["Log in"]
    assert scalar(conn, "select current_database()") not in said(app)
    assert not app.sidebar.children


@pytest.mark.parametrize(
    ("section", "labels"),
    [
        ("[auth.github]\n[auth.google]", ["Log in with github", "Log in with google"]),
        ('client_id = "x"\n[auth.google]', ["Log in", "Log in with google"]),
    ],
)
def test_each_provider_has_its_button(
    open_screen: OpenScreen,
    configure: Callable[[str], None],
    section: str,
    labels: list[str],
) -> None:
    app = open_screen("new_job")
    configure(section)
    app.run()
    assert [button.label for button in app.button] == labels


def actors(app: AppTest, conn: Connection) -> list[str]:
    """Who cancelled the job that is cancelled on this screen."""
    app.button(key="do_cancel").click().run()
    app.button(key="question_confirm").click().run()
    assert not app.exception
    return list(scalar(conn, "select array_agg(actor) from jobq.job_events where id > 1"))


def test_who_has_logged_in_is_the_actor(open_screen: OpenScreen, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('email.send')")
    app = open_screen("job", job="1")
    app.user.update(is_logged_in=True, email="ada@example.org")
    app.run()
    assert literal("ada@example.org") in said(app)
    role = scalar(conn, "select current_user")
    assert actors(app, conn) == [f"{role} (claims dashboard: ada@example.org)"]


def test_without_a_login_the_actor_is_the_dashboard(
    open_screen: OpenScreen, conn: Connection
) -> None:
    conn.execute("select jobq.enqueue('email.send')")
    app = open_screen("job", job="1")
    app.user.clear()
    role = scalar(conn, "select current_user")
    assert actors(app, conn) == [f"{role} (claims dashboard)"]


@pytest.mark.parametrize("value", ["true", "1", "yes", "ture"])
def test_what_may_mean_read_only_does(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    app = open_screen("new_job")
    monkeypatch.setenv("JOB_DASHBOARD_READ_ONLY", value)
    app.run()
    assert not app.button
    assert "JOB\\_DASHBOARD\\_READ\\_ONLY" in said(app)
    assert "this dashboard only shows" in said(app)
