"""The dashboard's screens without a browser: `open_screen("jobs", status="failed")`.

A test module that uses the fixture says `pytest_plugins = ["screens"]`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import parse_qs

import pandas as pd
import pytest
import streamlit as st
from helpers import ROOT, Connection
from streamlit import config
from streamlit.components.v2 import manifest_scanner
from streamlit.dataframe_util import convert_arrow_bytes_to_pandas_df
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.testing.v1 import AppTest

SCREENS = [path.stem for path in sorted((ROOT / "dashboard" / "screens").glob("*.py"))]
#: Text that a screen must show as it stands, whatever renders it.
HOSTILE = "**bold** <b>x</b> :red[x] $a$ [l](http://x)"


@pytest.fixture(scope="session", autouse=True)
def _sessions_start_quickly() -> Iterator[None]:
    # Each session would search all that is installed for components, and compile its screens.
    config.set_option("runner.magicEnabled", False)  # as in dashboard/.streamlit
    with pytest.MonkeyPatch.context() as patch:
        search = cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", search)
        compiled = cache(ScriptCache().get_bytecode)
        patch.setattr(ScriptCache, "get_bytecode", lambda _, path: compiled(path))
        yield


@pytest.fixture
def open_screen(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    """Open a screen on the test's database, with these query parameters, in a new session."""
    monkeypatch.setenv("DATABASE_URL", dsn)
    monkeypatch.delenv("JOB_DASHBOARD_READ_ONLY", raising=False)
    st.cache_resource.clear()

    def open_one(name: str, **params: str) -> AppTest:
        app = AppTest.from_file(ROOT / "dashboard" / "app.py", default_timeout=30)
        app.context["timezone"] = "Europe/Paris"
        app.query_params.update(params)
        if name != "overview":  # where the app begins
            app.switch_page(f"screens/{name}.py")
        return fresh(app)

    yield open_one
    st.cache_resource.clear()


@pytest.fixture
def reader(
    open_screen: Callable[..., AppTest],
    conn: Connection,
    make_role: Callable[..., str],
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A role that may only read, as whom the screens look at the test's database."""
    role = make_role()
    conn.execute("select jobq.grant_access(%s, 'reader')", (role,))
    monkeypatch.setenv("DATABASE_URL", f"{dsn} user={role} password=test")
    return role


def fresh(app: AppTest) -> AppTest:
    """Run the screen again on what the database holds now; it must not break."""
    for source in sources():
        source.forget()
    app.run()
    assert not app.exception, [error.message for error in app.exception]
    return app


def double_click(app: AppTest, key: str) -> AppTest:
    """Click a button twice: the second click comes from the page as the first one saw it."""
    before = app._tree
    app.button(key=key).click()
    clicks = before.get_widget_states()
    app._run(clicks)
    app._run(clicks)
    assert not app.exception, [error.message for error in app.exception]
    return app


def choose(app: AppTest, table: str, row: int) -> AppTest:
    """Choose a row of a table that a screen lets pick from."""
    turn = app.session_state.get(f"_{table}_turn", 0)
    app.session_state[f"{table}_{turn}"] = {
        "selection": {"rows": [row], "columns": [], "cells": []}
    }
    return fresh(app)


def sources() -> list[Any]:
    """The dashboard's open database, if a screen has opened it."""
    import sys

    data = sys.modules.get("data")
    return [data.source()] if data else []


def said(app: AppTest) -> str:
    """Everything that the screen says outside of tables and charts, a line for each element.

    Places that take Markdown as they take it, so stored text is in it escaped.
    """
    kinds = (
        *("title", "header", "subheader", "markdown", "caption", "text", "code", "metric"),
        *("error", "warning", "info", "success", "page_link", "expander"),
    )
    lines = []
    for kind in kinds:
        for element in app.get(kind):
            label = getattr(element, "label", None)
            lines += [str(part) for part in (label, getattr(element, "value", None)) if part]
    return "\n".join(lines)


def metrics(app: AppTest) -> dict[str, str]:
    """The numbers of the tiles, by their labels."""
    return {metric.label: metric.value for metric in app.metric}


def table(app: AppTest, column: str) -> dict[str, list[Any]]:
    """The table that has this column."""
    (found,) = [frame.value for frame in app.dataframe if column in frame.value.columns]
    return {name: list(found[name]) for name in found.columns}


def links(app: AppTest) -> dict[str, tuple[str, dict[str, str]]]:
    """Links to other screens by their label: the screen and its query parameters."""
    return {
        link.label: (
            link.page.removeprefix("screens/").removesuffix(".py"),
            {key: values[0] for key, values in parse_qs(link.query_string).items()},
        )
        for link in (element.proto for element in app.get("page_link"))
    }


def charts(app: AppTest) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Vega-Lite charts with the data of each, in their order."""
    return [
        (json.loads(element.proto.spec), convert_arrow_bytes_to_pandas_df(_arrow(element.proto)))
        for element in app.get("vega_lite_chart")
    ]


@contextmanager
def away(admin: Connection, conn: Connection) -> Iterator[None]:
    """The database ends all its sessions and takes no new ones, until the end of the block."""
    name = conn.info.dbname.encode()
    admin.execute(b'alter database "' + name + b'" allow_connections false')
    admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s",
        (conn.info.dbname,),
    )
    try:
        yield
    finally:
        admin.execute(b'alter database "' + name + b'" allow_connections true')


def _arrow(proto: Any) -> bytes:
    return bytes(proto.datasets[0].data.data if proto.datasets else proto.data.data)
