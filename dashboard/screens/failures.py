"""What fails: by kind and class of error, with a traceback, and a way to run it again."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import streamlit as st

import queries
from data import Away, read, rights
from parts import about, choose_window, pick
from questions import ask, pending
from search import Search
from steering import Steer
from ui import ago, amount, literal, live, shown, viewer_zone, when

Row = Mapping[str, Any]

PLACE = "failures"
MOST = 50
NONE = "no error text"  # what jobq.error_class() calls none


def main() -> None:
    """Draw the groups, live, and below them the one that the URL names, which keeps still."""
    window = choose_window()
    live(lambda: _groups(window))
    kind, error = st.query_params.get("kind"), st.query_params.get("error")
    if kind is not None and error is not None:
        try:
            _group(window, kind, error)
        except Away as away:
            st.error(literal(away, 500), icon=":material/cloud_off:")
    pending(PLACE)


def _groups(window: str) -> None:
    reading = read(queries.failures, window)
    data = shown(reading)
    rows, share = data["rows"], data["share"]
    if not rows:
        st.info(f"No run failed in {window}.", icon=":material/check_circle:")
        return
    total = sum(row["failures"] for row in rows)
    words = f"{about(share)}{amount(total)} failed runs in {window}, {len(rows):,} groups."
    if len(rows) > MOST:
        words += f" The {MOST} largest are listed."
    if share < 1:
        words += f" Scaled up from {share:.0%} of the events."
    chosen = pick(
        "groups",
        rows[:MOST],
        _table(rows[:MOST], share, reading.at),
        column_config=_columns(),
        alt=f"Failures by kind and error. {words}",
    )
    if "error" not in st.query_params:
        words += " Choose one to see a traceback and to retry its jobs."
    st.caption(words)
    if chosen:
        error = chosen["error_class"]
        st.query_params.update({"kind": chosen["kind"], "error": error})
        st.rerun()


def _table(rows: Sequence[Row], share: float, now: datetime) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Kind": [row["kind"] for row in rows],
            "Error": [row["error_class"] for row in rows],
            "Failures": [f"{about(share)}{amount(row['failures'])}" for row in rows],
            "Over the window": [row["spark"] for row in rows],
            "Last seen": [ago(row["last_at"], now) for row in rows],
            "Jobs": [f"{'≥ ' if share < 1 else ''}{amount(row['jobs'])}" for row in rows],
            "Gave up": [f"{about(share)}{amount(row['final'])}" for row in rows],
            "First seen": [row["first_at"] for row in rows],
        }
    )


def _columns() -> dict[str, Any]:
    return {
        "Failures": st.column_config.TextColumn(alignment="right"),
        "Over the window": st.column_config.BarChartColumn(y_min=0, color="#dc2626", width=180),
        "Jobs": st.column_config.TextColumn(alignment="right", help="Different jobs"),
        "Gave up": st.column_config.TextColumn(
            alignment="right", help="Ended as failed, without another attempt"
        ),
        "First seen": st.column_config.DatetimeColumn(
            format="D MMM HH:mm:ss", timezone=str(viewer_zone()), help="In the window"
        ),
    }


def _group(window: str, kind: str, error: str) -> None:
    rows = read(queries.failures, window).data["rows"]
    row = next((r for r in rows if r["kind"] == kind and r["error_class"] == error), None)
    with st.container(border=True):
        st.subheader(literal(f"{kind}: {error}"), anchor=False)
        if row is None:
            st.caption(f"No such failure in {window}.")
        else:
            _sample(row)
        if error == NONE:
            return
        st.page_link(
            "screens/jobs.py",
            label="failed jobs with this text",
            icon=":material/list:",
            query_params={"status": "failed", "kind": kind, "error": error},
        )
        # A class of errors is a part of their text, and maybe of the text of others.
        _retry(Search(status="failed", kind=kind, error=error))


def _sample(row: Row) -> None:
    st.caption(
        f"first seen {when(row['first_at'])} ({ago(row['first_at'])}),"
        f" last seen {when(row['last_at'])} ({ago(row['last_at'])})"
    )
    error = row["sample_error"] or row["error_class"]
    tall = error.count("\n") > 18
    st.code(error, language=None, height=420 if tall else "content", wrap_lines=True)
    st.page_link(
        "screens/job.py",
        label=f"job {row['sample_job_id']}, which failed with it last",
        icon=":material/timeline:",
        query_params={"job": str(row["sample_job_id"])},
    )


def _retry(search: Search) -> None:
    may = rights()
    if not may.steer:
        st.caption(f":material/lock: {literal(may.reason or 'Read-only.', 500)}")
    elif st.button(
        "Retry failed jobs with this text…", icon=":material/replay:", key="retry_group"
    ):
        described = f"status failed, kind {search.kind}, error containing {search.error}"
        ask(PLACE, Steer("retry", search.filter(), described=described))


main()
