"""Who works: signs of life, jobs in hand, leases, and how fast."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

import queries
from data import Away, Reading, read
from parts import about, choose_window, dated, in_hand, life, pick, tiles, window_seconds
from ui import ago, literal, live, shown, span, when

Row = Mapping[str, Any]

MOST = 200


def draw() -> None:
    """Draw the table, and below it the worker that the URL names."""
    reading = read(queries.workers)
    found = shown(reading)
    if not found:
        st.info(
            "No worker is connected and none holds a job. Start one: `jobq worker module:app`",
            icon=":material/engineering:",
        )
        return
    expired = sum(row["expired"] for row in found)
    with tiles("workers", 4):
        st.metric("Workers", f"{len(found):,}", border=True)
        st.metric("Connected", f"{sum(row['alive'] for row in found):,}", border=True)
        st.metric("Jobs in hand", f"{sum(row['running'] for row in found):,}", border=True)
        st.metric("Expired leases", f"{'⚠ ' if expired else ''}{expired:,}", border=True)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Rate over", width="content")
        window = choose_window()
    rates = _rates(found, window)
    chosen = pick("workers", found[:MOST], _table(found[:MOST], rates, reading), alt="Workers")
    if len(found) > MOST:
        st.caption(f"The first {MOST} of {len(found):,} workers.")
    if chosen:
        st.query_params["worker"] = chosen["worker"]
    _details(found, st.query_params.get("worker"), reading)


def _rates(found: Sequence[Row], window: str) -> dict[str, str] | None:
    """Runs ended a minute by worker; None: unknown."""
    try:
        reading = read(queries.runs, window)
    except Away as away:
        st.caption(f"Rates are unknown: {literal(away)}")
        return None
    share, minutes = reading.data["share"], window_seconds(window) / 60
    ended = Counter(run["worker"] for run in reading.data["rows"])
    sample = f"Rates are from a sample: {share:.0%} of the runs. " if share < 1 else ""
    st.caption(f"{sample}{dated(reading)}")
    return {
        row["worker"]: f"{about(share)}{ended[row['worker']] / share / minutes:.3g}"
        for row in found
    }


def _table(
    found: Sequence[Row], rates: Mapping[str, str] | None, reading: Reading[Any]
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Worker": [row["worker"] for row in found],
            "Sign of life": [life(row) for row in found],
            "In hand": [in_hand(row) for row in found],
            "Longest job": [_longest(row, reading) for row in found],
            "Runs a minute": [
                "unknown" if rates is None else rates[row["worker"]] for row in found
            ],
            "Kinds": [_kinds(row) for row in found],
            "Last seen": [_seen(row, reading) for row in found],
        }
    )


def _longest(row: Row, reading: Reading[Any]) -> str:
    if row["longest_job_id"] is None:
        return "-"
    return f"{span(_seconds(row, reading))} (job {row['longest_job_id']})"


def _kinds(row: Row) -> str:
    """The kinds a worker has handlers for; of some only a hash of the name is seen."""
    more = row.get("unknown_kinds", 0)
    names = [*row["kinds"], *([f"{more} more" if row["kinds"] else f"{more}"] if more else [])]
    return ", ".join(names) or "unknown"


def _seen(row: Row, reading: Reading[Any]) -> str:
    return "now" if row["alive"] else ago(row["last_seen_at"], reading.at)


def _seconds(row: Row, reading: Reading[Any]) -> float | None:
    started = row["oldest_start"]
    return None if started is None else max(0.0, (reading.at - started).total_seconds())


def _details(found: Sequence[Row], name: str | None, reading: Reading[Any]) -> None:
    if name is None:
        st.caption("Choose a worker to see its jobs.")
        return
    row = next((row for row in found if row["worker"] == name), None)
    with st.container(border=True):
        st.subheader(literal(name), anchor=False)
        if row is None:
            st.caption("Not connected, and holds no job now.")
        else:
            connected = "connected" if row["alive"] else "not connected"
            lines = [
                f"{life(row)}; {connected}, last seen {_seen(row, reading)}",
                f"{in_hand(row)} in hand; kinds: {_kinds(row)}",
            ]
            if row["next_lease_end"]:
                lines.append(f"next end of a lease: {when(row['next_lease_end'])}")
            st.text("\n".join(lines))
        if row is not None and row["longest_job_id"]:
            st.page_link(
                "screens/job.py",
                label=f"longest job: {_longest(row, reading)}",
                icon=":material/timeline:",
                query_params={"job": str(row["longest_job_id"])},
            )
        st.page_link(
            "screens/jobs.py",
            label="its running jobs",
            icon=":material/list:",
            query_params={"status": "running", "worker": name},
        )


live(draw)
