"""The database under the queue: sizes, vacuum, snapshots, settings, the proof, the purge."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pandas as pd
import streamlit as st

import queries
from data import Away, look_apart, read, rights
from parts import tiles
from purging import FINAL, Purge
from questions import ask, pending
from ui import ago, amount, literal, live, shown, span, when

Row = Mapping[str, Any]

PLACE = "database"
MOST_PROBLEMS = 500
#: Proving a million jobs and their events takes a minute or more.
VERIFY_SECONDS = 1800
#: A transaction open for so long is worth a look.
LONG_SECONDS = 300

_BYTES = {"B": 1, "kB": 1 << 10, "8kB": 8 << 10, "MB": 1 << 20, "GB": 1 << 30}
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}


def main() -> None:
    """Draw the live part, then what is done on demand."""
    live(_state)
    st.fragment(_verify)()
    _retention()
    pending(PLACE)


def _state() -> None:
    reading = read(queries.database)
    data = shown(reading)
    _sizes(data["tables"], data["schema_version"], reading.at)
    _snapshots(data["snapshots"], data["hidden_sessions"], reading.at)
    _settings(data["settings"])


def _sizes(relations: Sequence[Row], version: int, now: datetime) -> None:
    tables = [row for row in relations if row["kind"] == "table"]
    indexes = [row for row in relations if row["kind"] == "index"]
    with tiles("database", 4):
        st.metric("Tables", size(sum(row["bytes"] for row in tables)), border=True)
        st.metric("Indexes", size(sum(row["bytes"] for row in indexes)), border=True)
        dead = sum(row["dead"] or 0 for row in tables)
        st.metric("Dead rows", amount(dead, estimated=dead > 0), border=True)
        st.metric("Schema version", str(version), border=True)
    st.dataframe(
        pd.DataFrame(
            {
                "Relation": [row["relation"] for row in relations],
                "Kind": [row["kind"] for row in relations],
                "Size": [size(row["bytes"]) for row in relations],
                "Rows": [_estimate(row["rows"]) for row in relations],
                "Dead rows": [_dead(row) for row in relations],
                "Last vacuum": [_last(row, "last_autovacuum", now) for row in relations],
                "Last analyze": [_last(row, "last_analyze", now) for row in relations],
            }
        ),
        hide_index=True,
        alt="Tables and indexes of schema jobq",
        column_config={
            name: st.column_config.TextColumn(alignment="right")
            for name in ("Size", "Rows", "Dead rows")
        },
    )
    st.caption("Rows and dead rows are PostgreSQL's own estimates.")


def _estimate(count: int | None) -> str:
    return "-" if count is None else amount(count, estimated=count > 0)


def _dead(row: Row) -> str:
    if row["kind"] != "table":
        return ""
    share = f" ({row['dead'] / row['rows']:.0%})" if row["dead"] and row["rows"] else ""
    return f"{_estimate(row['dead'])}{share}"


def _last(row: Row, name: str, now: datetime) -> str:
    if row["kind"] != "table":
        return ""
    return ago(row[name], now) if row[name] else "never"


def _snapshots(rows: Sequence[Row], hidden: int, now: datetime) -> None:
    st.subheader("Snapshots", anchor=False)
    st.caption("Dead rows cannot be removed while a transaction is open that might still see them.")
    if not rows:
        st.info("No session holds a snapshot now.", icon=":material/check_circle:")
    else:
        dated = [row for row in rows if row["since"]]
        oldest = min(dated, key=lambda row: row["since"], default=None)
        if oldest and (held := (now - oldest["since"]).total_seconds()) > LONG_SECONDS:
            st.warning(
                f"The oldest is {span(held)} old. Ending its session frees the dead rows:"
                f" `select pg_terminate_backend({oldest['pid']})`",
                icon=":material/hourglass_bottom:",
            )
        st.dataframe(
            pd.DataFrame(
                {
                    "Session": [row["pid"] for row in rows],
                    "Who": [row["who"] for row in rows],
                    "State": [row["state"] or "-" for row in rows],
                    "Transaction began": [ago(row["since"], now) for row in rows],
                    "Transactions since": [amount(row["xmin_age"]) for row in rows],
                }
            ),
            hide_index=True,
            alt="Sessions that hold a snapshot, the oldest first",
            column_config={
                "Transactions since": st.column_config.TextColumn(alignment="right"),
                "Session": st.column_config.NumberColumn(format="%d"),
            },
        )
    if hidden:
        was = "1 session of another role is" if hidden == 1 else f"{hidden:,} sessions are"
        st.caption(
            f"{was} hidden from this role. To see them: `grant pg_read_all_stats to` the role."
        )


def _settings(settings: Sequence[Row]) -> None:
    st.subheader("Settings", anchor=False)
    st.dataframe(
        pd.DataFrame(
            {
                "Setting": [row["name"] for row in settings],
                "Value": [setting(row["value"], row["unit"]) for row in settings],
                "What it means here": [row["why"] for row in settings],
            }
        ),
        hide_index=True,
        alt="Settings of the server that matter to the queue",
        height="content",
    )


def size(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TB"


def setting(value: str, unit: str | None) -> str:
    """A setting's value, in words where PostgreSQL counts in pages or milliseconds."""
    if value == "-1" or unit is None:
        return value
    if unit in _BYTES:
        return size(int(value) * _BYTES[unit])
    if unit in _SECONDS:
        return span(float(value) * _SECONDS[unit]) if float(value) else "0 (off)"
    return f"{value} {unit}"


def _verify() -> None:
    st.subheader("Proof", anchor=False)
    st.markdown(
        "Replays the history of every job and compares it with the job, as `jobq verify` does."
        " Reads both tables whole."
    )
    if st.button("Verify now", icon=":material/fact_check:", key="verify"):
        began = monotonic()
        with st.spinner("Replaying every history", show_time=True):
            try:
                found: Any = look_apart(VERIFY_SECONDS, queries.verify)
            except Away as away:
                found = away
        # At once: whatever comes next may be interrupted by another click.
        st.session_state["_proof"] = (found, monotonic() - began, datetime.now(UTC))
    if "_proof" in st.session_state:
        _proven(*st.session_state["_proof"])


def _proven(found: Any, took: float, at: datetime) -> None:
    if isinstance(found, Away):
        st.error(f"Not verified: {literal(found, 1000)}", icon=":material/cloud_off:")
    elif not found:
        st.success("No problems: every job is what its history says.", icon=":material/verified:")
    else:
        problems = "1 problem" if len(found) == 1 else f"{len(found):,} problems"
        first = f" The first {MOST_PROBLEMS}:" if len(found) > MOST_PROBLEMS else ""
        st.error(
            f"{problems}: jobs that are not what their history says.{first}",
            icon=":material/report:",
        )
        st.dataframe(
            pd.DataFrame(
                {
                    "Job": [str(row["job_id"]) for row in found[:MOST_PROBLEMS]],
                    "Problem": [row["problem"] for row in found[:MOST_PROBLEMS]],
                    "History says": [row["ledger"] for row in found[:MOST_PROBLEMS]],
                    "Job says": [row["stored"] for row in found[:MOST_PROBLEMS]],
                }
            ),
            hide_index=True,
            alt=f"What verify() found: {problems}",
        )
    st.caption(f"Took {span(took)}, done {when(at)}.")


def _retention() -> None:
    st.subheader("Retention", anchor=False)
    st.markdown(
        "Workers delete finished jobs with their history, each by its own settings:"
        " `JOB_RETENTION_DAYS` after success or cancellation (7 unless set otherwise),"
        " `JOB_FAILED_RETENTION_DAYS` after failure (30); 0 keeps them for ever."
    )
    try:
        may = rights()
    except Away as away:
        st.caption(f":material/cloud_off: {literal(away, 500)}")
        return
    if not may.steer:
        st.caption(f":material/lock: {literal(may.reason or 'Read-only.', 500)}")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        days = st.number_input(
            "Finished more than so many days ago", 0.01, 36_500.0, 30.0, 1.0, key="purge_days"
        )
        statuses = st.pills(
            "as", FINAL, selection_mode="multi", default=FINAL, key="purge_statuses"
        )
        if st.button("Purge…", icon=":material/delete:", disabled=not statuses, key="purge"):
            ask(PLACE, Purge(days, tuple(statuses)))


main()
