"""Each kind of job: its backlog, who works on it, how long it takes, how often it fails."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

import queries
from charts_bars import histogram
from data import read
from durations import spread
from parts import about, chart, choose_window, dated, pick, tiles, window_seconds
from ui import amount, live, shown, span

Row = Mapping[str, Any]

MOST = 200
ILL = ("failed", "lease_lost")
COUNTS = ("Due", "Scheduled", "Running")
ABSENT = {
    "queued": 0,
    "due": 0,
    "running": 0,
    "oldest_available_at": None,
    "last_attempt": 0,
    "live_workers": None,
}
COLUMNS = {
    **{name: st.column_config.NumberColumn(format="%,d") for name in COUNTS},
    "Last attempt": st.column_config.NumberColumn(
        format="%,d", help="Queued jobs that failed before and have one attempt left"
    ),
    "Failed runs": st.column_config.TextColumn(help="Of the runs that ended in the window"),
}


def draw() -> None:
    """Draw the table, and below it the kind that the URL names."""
    reading = read(queries.kinds)
    queued = {row["kind"]: row for row in shown(reading)}
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Runs over", width="content")
        window = choose_window()
    ended = read(queries.runs, window)
    runs: dict[str, list[Row]] = defaultdict(list)
    for run in ended.data["rows"]:
        runs[run["kind"]].append(run)
    share = ended.data["share"]
    names = sorted(queued.keys() | runs.keys())
    if not names:
        st.info(
            f"Nothing is queued or running, and nothing ran in {window}.",
            icon=":material/category:",
        )
        return
    rows = [
        {**ABSENT, "kind": name, **queued.get(name, {}), "runs": runs.get(name, [])}
        for name in names
    ]
    rows.sort(key=lambda row: (-row["due"], -row["queued"], -row["running"], row["kind"]))
    table = _table(rows[:MOST], window, share, reading.at)
    chosen = pick("kinds", rows[:MOST], table, column_config=COLUMNS, alt="Kinds")
    notes = [f"The first {MOST} of {len(rows):,} kinds."] if len(rows) > MOST else []
    if share < 1:
        notes.append(f"Rates are from a sample: {share:.0%} of the runs.")
    st.caption(" ".join([*notes, dated(ended)]))
    if chosen:
        st.session_state["kind"] = chosen["kind"]
    _details(rows, window, share, reading.at)


def _table(rows: Sequence[Row], window: str, share: float, now: Any) -> pd.DataFrame:
    minutes = window_seconds(window) / 60
    return pd.DataFrame(
        {
            "Kind": [row["kind"] for row in rows],
            "Due": [row["due"] for row in rows],
            "Scheduled": [row["queued"] - row["due"] for row in rows],
            "Running": [row["running"] for row in rows],
            "Live workers": [amount(row["live_workers"]) for row in rows],
            "Oldest ready": [_waits(row, now) for row in rows],
            "Runs a minute": [
                f"{about(share)}{len(row['runs']) / share / minutes:.3g}" for row in rows
            ],
            "Failed runs": [_failed(row["runs"], share) for row in rows],
            "Last attempt": [row["last_attempt"] for row in rows],
        }
    )


def _waits(row: Row, now: Any) -> str:
    if not row["due"]:
        return "-"
    return span(max(0.0, (now - row["oldest_available_at"]).total_seconds()))


def _failed(runs: Sequence[Row], share: float) -> str:
    if not runs:
        return "-"
    bad = sum(run["event"] in ILL for run in runs)
    return f"{about(share)}{100 * bad / len(runs):.3g} %"


def _details(rows: Sequence[Row], window: str, share: float, now: Any) -> None:
    known = sorted(row["kind"] for row in rows)
    # A link may name a kind that has nothing queued and did not run.
    asked = st.session_state.get("kind") or st.query_params.get("kind")
    names = sorted({*known, asked} if asked else known)
    name = st.selectbox(
        "Kind",
        names,
        index=None,
        key="kind",
        bind="query-params",
        placeholder="Choose a kind to see its run times",
    )
    if name is None:
        return
    row = next((row for row in rows if row["kind"] == name), {**ABSENT, "kind": name, "runs": []})
    with tiles("kinds", 4):
        st.metric("Due", amount(row["due"]), border=True)
        st.metric("Oldest ready", _waits(row, now), border=True)
        st.metric("Live workers", amount(row["live_workers"]), border=True)
        st.metric("Failed runs", _failed(row["runs"], share), border=True)
    timed = [run for run in row["runs"] if run["run_seconds"] is not None]
    words = spread(timed, "run_seconds", share)
    st.subheader("Run time", anchor=False)
    if timed:
        chart(histogram(timed), f"Run times of {name} in {window}. {words}")
        st.caption("Filled: succeeded. Hollow: ended otherwise.")
    st.caption(words)
    with st.container(horizontal=True):
        for status in ("queued", "running", "failed"):
            st.page_link(
                "screens/jobs.py",
                label=f"{status} jobs of this kind",
                icon="",
                query_params={"status": status, "kind": name},
            )


live(draw)
