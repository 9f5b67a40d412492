"""The state of the queue at a glance, and what needs somebody now."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import charts
import queries
from charts_bars import backlog
from data import read
from durations import quantiles, spread
from parts import (
    about,
    bucket_width,
    chart,
    choose_window,
    dated,
    in_hand,
    life,
    pick,
    tiles,
)
from ui import ago, amount, literal, live, marked, shown, span, viewer_zone

Row = Mapping[str, Any]

MOST = 10


def main() -> None:
    """The state, from one snapshot above and below; between them what happened in the window."""
    top, middle, bottom = st.container(), st.container(), st.container()
    with top:
        live(lambda: _state(bottom))
    with middle:
        live(_work)


def _state(bottom: DeltaGenerator) -> None:
    state = shown(read(queries.overview))
    if not any(count["jobs"] for count in state["counts"]):
        st.info(
            "No jobs yet. Enqueue one from a program, with `jobq enqueue`, or here.",
            icon=":material/inbox:",
        )
        st.page_link("screens/new_job.py", label="New job")
    _counts(state)
    _attention(state["attention"])
    with bottom:
        left, right = st.columns(2, gap="medium")
        with left:
            _backlog(state["kinds"])
        with right:
            _workers(state)
        _failures(state)


def _work() -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader("Throughput", anchor=False, width="content")
        window = choose_window()
    _throughput(window)
    _latency(window)


def _counts(state: Row) -> None:
    now, oldest_due = state["now"], state["oldest_due_at"]
    with tiles("counts", 6):
        for count in state["counts"]:
            status, note = count["status"], ""
            if status == "queued" and count["jobs"]:
                note = f"{amount(state['due'])} due, {amount(state['scheduled'])} scheduled"
            elif status == "running" and count["oldest"]:
                note = f"longest {span((now - count['oldest']).total_seconds())}"
            elif count["estimated"]:
                note = "estimated"
            jobs = amount(count["jobs"], estimated=count["estimated"])
            _tile(marked(status), jobs, note, {"status": status})
        waits = span((now - oldest_due).total_seconds()) if oldest_due else "-"
        _tile("◷ oldest ready", waits, "" if oldest_due else "nothing is due", {"status": "queued"})


def _tile(label: str, value: str, note: str, params: dict[str, str]) -> None:
    with st.container(border=True, gap=None, height="stretch"):
        st.page_link("screens/jobs.py", label=label, icon="", query_params=params)
        st.metric(label, value, label_visibility="collapsed")
        if note:
            st.caption(note)


def _attention(found: Sequence[Row]) -> None:
    if not found:
        st.caption(":material/check_circle: Nothing needs attention.")
        return
    with st.container(border=True, gap="xsmall", key="wrapped_attention"):
        st.markdown(f":material/warning: **Needs attention ({len(found)})**")
        with st.grid(2, min_column_width=360, gap="xxsmall"):
            for item in found[:MOST]:
                _item(item)
        if len(found) > MOST:
            st.caption(f"and {len(found) - MOST} more")


def _item(item: Row) -> None:
    # The message may hold a kind or the name of a session.
    if not item["page"]:
        st.text(f"▪ {item['message']}")
        return
    st.page_link(
        item["page"],
        label=literal(item["message"], 300),
        icon=":material/arrow_forward:",
        query_params=item["params"],
    )


def _throughput(window: str) -> None:
    reading = read(queries.activity, window)
    rows, share, width = reading.data["rows"], reading.data["share"], bucket_width(window)
    names = ("enqueued", "started", "succeeded", "failed", "retried", "lost", "cancelled")
    sums = {name: sum(row[name] for row in rows) for name in names}
    told = ", ".join(f"{about(share)}{amount(sums[name])} {name}" for name in names if sums[name])
    words = f"In {window}: {told or 'nothing happened'}."
    if share < 1:
        words += f" Scaled up from {share:.0%} of the events."
    left, right = st.columns(2, gap="medium")
    with left:
        chart(charts.flow(rows, width), f"Runs started and succeeded. {words}")
    with right:
        chart(charts.trouble(rows, width), f"Runs that went wrong. {words}")
    st.caption(f"{words} {dated(reading)}")


def _latency(window: str) -> None:
    reading, counted = read(queries.runs, window), read(queries.activity, window)
    runs, share, width = reading.data["rows"], reading.data["share"], bucket_width(window)
    buckets = [row["bucket"] for row in counted.data["rows"]]
    names = {"wait_seconds": "Pick-up: from due to start", "run_seconds": "Run time"}
    for place, (field, title) in zip(st.columns(2, gap="medium"), names.items(), strict=True):
        with place:
            words = spread(runs, field, share)
            st.subheader(title, anchor=False)
            if not any(run[field] is not None for run in runs):
                st.caption(f"No run ended in {window}. {dated(reading)}")
                continue
            drawing = charts.percentiles(quantiles(runs, field, buckets, width), width)
            chart(drawing, f"{title}, percentiles in {window}. {words}")
            st.caption(f"{words} {dated(reading)}")


def _backlog(kinds: Sequence[Row]) -> None:
    st.subheader("Backlog by kind", anchor=False)
    if not kinds:
        st.caption("Nothing is queued or running.")
        return
    words = ", ".join(f"{row['kind']} {row['queued']:,} queued" for row in kinds[:3])
    chart(backlog(kinds[:MOST]), f"Jobs queued and running by kind: {words}.")
    more = f"and {len(kinds) - MOST} more" if len(kinds) > MOST else "all kinds"
    st.page_link("screens/kinds.py", label=more, icon="")


def _workers(state: Row) -> None:
    st.subheader("Workers", anchor=False)
    found = state["workers"]
    if not found:
        st.caption("No worker is seen. Start one: `jobq worker module:app`")
        return
    frame = pd.DataFrame(
        {
            "Worker": [row["worker"] for row in found[:MOST]],
            "Sign of life": [life(row) for row in found[:MOST]],
            "In hand": [in_hand(row) for row in found[:MOST]],
        }
    )
    st.dataframe(frame, hide_index=True, alt="Workers")
    alive = sum(row["alive"] for row in found)
    words = f"{len(found):,} workers, {alive:,} connected"
    st.page_link("screens/workers.py", label=words, icon="")


def _failures(state: Row) -> None:
    st.subheader("Recent failures", anchor=False)
    found = state["failures"]
    if not found:
        st.caption("No job has failed.")
        return
    frame = pd.DataFrame(
        {
            "Failed": [row["finished_at"] for row in found],
            "Ago": [ago(row["finished_at"], state["now"]) for row in found],
            "Kind": [row["kind"] for row in found],
            "Job": [str(row["id"]) for row in found],
            "Error": [row["message"] or row["error_class"] for row in found],
        }
    )
    columns = {
        "Failed": st.column_config.DatetimeColumn(
            format="D MMM HH:mm:ss", timezone=str(viewer_zone()), width=120
        ),
    }
    chosen = pick("failed", found, frame, column_config=columns, alt="The newest failed jobs")
    if chosen:
        st.switch_page("screens/job.py", query_params={"job": str(chosen["id"])})
    st.page_link("screens/failures.py", label="all failures, grouped", icon="")


main()
