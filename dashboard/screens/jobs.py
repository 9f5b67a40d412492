"""Jobs: found by filters that the address holds, listed live, steered by selection or by filter."""

from datetime import UTC, datetime
from typing import Any

import streamlit as st

import job_filters
import queries
import search
import typed
from data import Away, Reading, read, rights
from listing import CSV_COLUMNS, Listing, held, table, ticked
from questions import ask, forget, pending
from steering import VERBS, Steer
from ui import MARKS, amount, csv_of, literal, live, shown, span

PAGE = 25

# Widths that do not follow the texts: the columns would move at each refresh.
_COLUMNS = {
    "Job": st.column_config.LinkColumn(
        display_text=r"job=(\d+)$", help="Opens the job in a new tab", width=75
    ),
    "Status": st.column_config.TextColumn(width=100),
    "Kind": st.column_config.TextColumn(width=145),
    "When": st.column_config.TextColumn(width=130),
    "Attempt": st.column_config.TextColumn(width=70),
    "Priority": st.column_config.NumberColumn(format="%d", help="Higher runs first", width=65),
    "Note": st.column_config.TextColumn(width=300),
    "Progress": st.column_config.ProgressColumn(
        format="percent", min_value=0.0, max_value=1.0, width=110
    ),
    "Worker": st.column_config.TextColumn(width=150),
}


def main() -> None:
    """Draw the filters, the question that is open, and the list."""
    job_filters.draw()
    wanted = job_filters.wanted()
    job_filters.chips()
    if problems := wanted.problems():
        for problem in problems:
            st.error(literal(problem, 500), icon=":material/error:")
        forget()
        return
    listing = st.session_state.get("_listing")
    if listing is None or listing.typed != wanted:
        listing = st.session_state["_listing"] = Listing(wanted)
    live(lambda: _list(listing))
    pending("jobs")


def _list(listing: Listing) -> None:
    places = _ticks(listing)
    found: dict[str, Any] = {}
    if places:
        reading = _held(listing)
    else:
        page = read(typed.find, listing.typed, listing.trail[-1], PAGE)
        reading, found = Reading(page.data["rows"], page.at, page.problem), page.data
    listing.rows, listing.at = list(reading.data), reading.at
    chosen = ticked(listing.rows, places)
    with st.container(horizontal=True):
        shown(reading)
        _counts(listing)
        if places:
            st.caption("The list holds still while jobs are selected.", width="content")
    if not listing.rows:
        _empty(listing, found)
        return
    _bar(listing, chosen)
    st.dataframe(
        table(listing.rows, datetime.now(UTC)),
        key=listing.key,
        on_select="rerun",
        selection_mode="multi-row",
        hide_index=True,
        height="content",
        column_config=_COLUMNS,
    )
    if not places:
        _pager(listing, found)


def _held(listing: Listing) -> Reading[list[dict[str, Any]]]:
    """The rows that are shown, as they are now; while the database is away, as they are shown."""
    try:
        reading = read(search.by_ids, tuple(row["id"] for row in listing.rows))
    except Away as away:
        return Reading(listing.rows, listing.at, str(away))
    if reading.at < listing.at:  # left from when they were ticked before
        return Reading(listing.rows, listing.at, reading.problem)
    return Reading(held(listing.rows, reading.data), reading.at, reading.problem)


def _ticks(listing: Listing) -> list[int]:
    return list(st.session_state.get(listing.key, {}).get("selection", {}).get("rows", []))


def _counts(listing: Listing) -> None:
    try:
        reading = read(queries.overview)
    except Away:
        return
    wanted = dict(listing.typed.texts)
    counts = {row["status"]: row for row in reading.data["counts"]}
    told = []
    for status, mark in MARKS.items():
        if status in counts and wanted.get("status", status) == status:
            row = counts[status]
            told.append(f"{mark} {amount(row['jobs'], estimated=row['estimated'])}")
    filtered = wanted.keys() - {"status"}
    # What takes long to count is counted more rarely than the list is read.
    age = (datetime.now(UTC) - reading.at).total_seconds()
    when = f", counted {span(round(age))} ago" if age > 15 else ""
    st.caption(("In all: " if filtered else "") + " · ".join(told) + when, width="content")


def _empty(listing: Listing, found: dict[str, Any]) -> None:
    if found.get("after") is not None:
        st.info(f"None of them in the {_looked_at(found)} that were looked at.")
        _pager(listing, found)
    elif listing.trail[-1] is not None:
        st.info("No more jobs.")
        _pager(listing, found)
    elif not listing.typed.texts:
        st.info(
            "No jobs yet. Enqueue one from your program, with `jobq enqueue`, or on the screen"
            " New job.",
            icon=":material/inbox:",
        )
    else:
        st.info("No job matches. Remove a filter above to see more.", icon=":material/search_off:")


def _bar(listing: Listing, chosen: tuple[int, ...]) -> None:
    may = rights()
    with st.container(horizontal=True, vertical_alignment="center"):
        if chosen:
            st.markdown(f"**{len(chosen)} selected**", width="content")
            if len(chosen) == 1 and st.button(
                f"Open {chosen[0]}", key="open", type="primary", icon=":material/timeline:"
            ):
                st.switch_page("screens/job.py", query_params={"job": str(chosen[0])})
            if may.steer:
                _verbs(listing, chosen)
        elif may.steer:
            st.markdown("Tick jobs to steer them, or", width="content")
            # Another key closes it: it would stay open above the dialog.
            with st.popover(
                "All that match", icon=":material/checklist:", key=f"all_{listing.asked}"
            ):
                _verbs(listing, chosen)
        st.download_button(
            "CSV",
            lambda: csv_of(listing.rows, CSV_COLUMNS),
            "jobs.csv",
            "text/csv",
            key="csv",
            on_click="ignore",
            icon=":material/download:",
            help="The rows below",
        )


def _verbs(listing: Listing, chosen: tuple[int, ...]) -> None:
    status = dict(listing.typed.texts).get("status")
    for name, verb in VERBS.items():
        if (chosen or status in (None, *verb.statuses)) and st.button(
            verb.label, key=f"do_{name}", icon=verb.icon
        ):
            listing.asked += 1
            ask("jobs", _question(listing, name, chosen))


def _question(listing: Listing, name: str, chosen: tuple[int, ...]) -> Steer:
    if chosen:
        return Steer(name, {"ids": list(chosen)}, chosen)
    # Ages count from now, once: what is confirmed is what was previewed.
    now = typed.now()
    return Steer(name, listing.typed.search(now).filter(), described=listing.typed.described(now))


def _pager(listing: Listing, found: dict[str, Any]) -> None:
    after = found.get("after")
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(listing.trail) > 1:
            st.button("Newest", key="first", on_click=_turn, args=(listing, None))
            st.button(
                "Back",
                key="back",
                icon=":material/chevron_left:",
                on_click=_back,
                args=(listing,),
            )
        if after is not None:
            full = len(listing.rows) >= PAGE
            st.button(
                "Next" if full else "Look further",
                key="next",
                icon=":material/chevron_right:",
                on_click=_turn,
                args=(listing, after),
            )
        if found:
            words = f"Page {len(listing.trail)}, {found['order']}."
            if found["looked_at"] is not None and after is not None:
                words += f" Looked at {_looked_at(found)}."
            st.caption(words, width="content")


def _turn(listing: Listing, after: tuple[Any, ...] | None) -> None:
    # A tick that came just before the click holds the list: no page is turned unseen.
    if not _ticks(listing):
        listing.turn(after)


def _back(listing: Listing) -> None:
    if not _ticks(listing):
        listing.back()


def _looked_at(found: dict[str, Any]) -> str:
    counts = read(queries.overview).data["counts"]
    every = sum(row["jobs"] for row in counts)
    estimated = any(row["estimated"] for row in counts)
    return f"{amount(found['looked_at'])} of {amount(every, estimated=estimated)} jobs"


main()
