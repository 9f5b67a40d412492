"""The filters of the list of jobs: drawn, in the address, as they were typed."""

import streamlit as st

import queries
from data import Away, read
from typed import NAMES, Typed
from ui import MARKS, literal, viewer_zone

__all__ = ["chips", "draw", "wanted"]

#: Filters in the address, but for the status: key, label, placeholder.
_COMMON = {
    "payload": ("Payload", "to=a@b.c, or JSON"),
    "error": ("Error", "part of its text"),
}
_RARER = {
    "key": ("Idempotency key", "exactly"),
    "worker": ("Worker", "exactly, of a running job"),
    "priority": ("Priority", "a number"),
    "created_after": ("Created after", "2 h, or 2026-11-29 14:00"),
    "created_before": ("Created before", "7 d, or 2026-11-29"),
}


def draw() -> None:
    """Draw the filters; an id typed into their last box leads to that job."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.pills("Status", list(MARKS), key="status", bind="query-params", width="content")
        st.selectbox(
            "Kind",
            _kinds(),
            index=None,
            key="kind",
            bind="query-params",
            placeholder="any",
            accept_new_options=True,
            width=170,
        )
        for key, (label, hint) in _COMMON.items():
            st.text_input(label, key=key, bind="query-params", placeholder=hint, width=170)
        with st.popover("More filters", icon=":material/tune:"):
            for key, (label, hint) in _RARER.items():
                st.text_input(label, key=key, bind="query-params", placeholder=hint)
        st.text_input(
            "Go to job", key="_goto", placeholder="id", width=110, on_change=_note_destination
        )
    if destination := st.session_state.pop("_destination", None):
        st.switch_page("screens/job.py", query_params={"job": destination})


def _note_destination() -> None:
    st.session_state["_destination"] = st.session_state["_goto"].strip()
    st.session_state["_goto"] = ""


def _kinds() -> list[str]:
    chosen = st.session_state.get("kind") or st.query_params.get("kind")
    try:
        stored = {row["kind"] for row in read(queries.overview).data["kinds"]}
    except Away:
        stored = set()
    return sorted(stored | {str(chosen)} if chosen else stored)


def _given() -> dict[str, str]:
    return {key: str(value) for key in NAMES if (value := st.session_state.get(key))}


def wanted() -> Typed:
    """What the filters hold."""
    return Typed(tuple(_given().items()), viewer_zone())


def chips() -> None:
    """A button for each filter, which removes it."""
    given = _given()
    if not given:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        for key, text in given.items():
            st.button(
                f"{NAMES[key]}: {literal(text, 60)}",
                key=f"clear_{key}",
                icon=":material/close:",
                help="Remove this filter",
                on_click=_clear,
                args=([key],),
            )
        st.button(
            "Clear all", key="clear_all", type="tertiary", on_click=_clear, args=(list(given),)
        )


def _clear(keys: list[str]) -> None:
    for key in keys:
        st.session_state[key] = None if key in ("status", "kind") else ""
