"""The filters of the list of jobs: in the address, as a search, and in words."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import streamlit as st

import queries
import search
from data import Away, read
from listing import moment_of
from search import Search
from ui import MARKS, literal, viewer_zone

__all__ = ["chips", "described", "draw", "wanted"]

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
_NAMES = {
    "status": "status",
    "kind": "kind",
    "payload": "payload",
    "error": "error with",
    "key": "key",
    "worker": "worker",
    "priority": "priority",
    "created_after": "created after",
    "created_before": "created before",
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
    return {key: str(value) for key in _NAMES if (value := st.session_state.get(key))}


def wanted() -> tuple[Search, list[str]]:
    """Return what the filters ask for, and what is wrong with them."""
    now = datetime.now(UTC).astimezone(viewer_zone())
    readers: dict[str, Callable[[str], Any]] = {
        "payload": search.parse_payload,
        "priority": _number,
        "created_after": lambda text: moment_of(text, now),
        "created_before": lambda text: moment_of(text, now),
    }
    fields, problems = {}, []
    for key, text in _given().items():
        try:
            fields[key] = readers.get(key, str)(text)
        except ValueError as error:
            problems.append(f"{_NAMES[key]}: {error}")
    return Search(**fields), problems


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def chips() -> None:
    """A button for each filter, which removes it."""
    given = _given()
    if not given:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        for key, text in given.items():
            st.button(
                f"{_NAMES[key]}: {literal(text, 60)}",
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


def described() -> str:
    """The filters in words."""
    return ", ".join(f"{_NAMES[key]} {text}" for key, text in _given().items())
