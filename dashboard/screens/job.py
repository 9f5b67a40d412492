"""One job: what it is, why it is where it is, and its whole story; `?job=ID` says which."""

from datetime import UTC, datetime
from typing import Any, Literal

import streamlit as st

import queries
import timeline
import timeline_view as view
from charts_attempts import attempts
from data import Away, read, rights
from parts import chart
from questions import ask, pending
from search import Search, find
from steering import VERBS
from steering_one import RunAgain, SteerOne
from ui import ago, literal, live, marked, shown, span, when

EVENTS = 200
#: Longer texts are shown in part, and offered whole as a file.
_LONG = 50_000
_EDITABLE = 500_000
_TALL = 24

_BADGES: dict[str, Literal["gray", "blue", "green", "red", "orange"]] = {
    "queued": "gray",
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "orange",
}

Row = dict[str, Any]


def main() -> None:
    """Draw the job of the address, or ask for one."""
    st.html(view.STYLE)
    asked = str(st.query_params.get("job", ""))
    _box(asked)
    job_id = _id_of(asked)
    if job_id is not None:
        live(lambda: _job(job_id))
        pending(f"job {job_id}")
    elif asked:
        st.error(f"“{literal(asked)}” is no job id: an id is a whole number.")
    else:
        live(_latest)


def _box(asked: str) -> None:
    st.text_input(
        "Job id",
        key="_go",
        placeholder="another job's id" if asked else "a job's id",
        width=180,
        on_change=_note_going,
        label_visibility="collapsed",
    )
    if going := st.session_state.pop("_going", None):
        st.switch_page("screens/job.py", query_params={"job": going})


def _note_going() -> None:
    st.session_state["_going"] = st.session_state["_go"].strip()
    st.session_state["_go"] = ""


def _id_of(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else None


def _latest() -> None:
    rows = shown(read(find, Search(), None, 10))["rows"]
    if not rows:
        st.info("No jobs yet. Enqueue one from your program, or on the screen New job.")
        return
    st.markdown("The latest jobs:")
    for row in rows:
        st.page_link(
            "screens/job.py",
            label=f"{row['id']} {marked(row['status'])} · {literal(row['kind'], 80)}",
            query_params={"job": str(row["id"])},
        )


def _job(job_id: int) -> None:
    reading = read(queries.job, job_id)
    job = reading.data
    if job is None:
        st.info(
            f"There is no job {job_id}. It was purged, or never existed.",
            icon=":material/search_off:",
        )
        return
    # The database's clock, carried on since the reading.
    now = job["now"] + (datetime.now(UTC) - reading.at)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"### {job_id} · {literal(job['kind'])}", width="content")
        st.badge(marked(job["status"]), color=_BADGES.get(job["status"], "gray"))
        shown(reading)
    _why(job)
    if job["status"] == "running" and job["progress"] is not None:
        st.progress(job["progress"], _last_report(job_id) or f"{job['progress']:.0%}")
    _buttons(job)
    st.html(view.facts(_facts(job, now)))
    if job["last_error"]:
        st.markdown("**Last error**")
        _code(job["last_error"], None, "error.txt")
    left, right = st.columns([3, 2], gap="large")
    with left:
        _story(job_id, now)
    with right:
        _texts(job)


def _why(job: Row) -> None:
    try:
        messages = [str(row["message"]) for row in read(queries.explain, job["id"]).data]
    except Away:
        return
    st.html(view.why(messages, job["status"]))


def _facts(job: Row, now: datetime) -> list[tuple[str, str, str]]:
    def at(name: str) -> tuple[str, str]:
        moment = job[name]
        if not moment:
            return "", ""
        day, time, zone = when(moment).split()
        return time, f"{day} {zone}, {ago(moment, now)}"

    attempts = f"{job['attempt']} of {job['max_attempts']}"
    lost = f"{job['lost_leases']} ended by a lost lease" if job["lost_leases"] else ""
    backoff = (
        f"retried after {job['retry_base_seconds']} s, doubling to {job['retry_cap_seconds']} s"
    )
    ran = ""
    if job["started_at"] and job["status"] != "queued":
        ran = span(((job["finished_at"] or now) - job["started_at"]).total_seconds())
    return [
        ("attempts", attempts, lost or backoff),
        ("priority", str(job["priority"]), "higher runs first"),
        ("created", *at("created_at")),
        ("due", *at("available_at")),
        ("started", *at("started_at")),
        ("finished", *at("finished_at")),
        ("ran" if job["finished_at"] else "running for", ran, ""),
        ("worker", job["locked_by"] or "", ""),
        ("lease", *_lease(job, now)),
        ("asked to stop", *at("cancel_requested_at")),
        ("idempotency key", job["idempotency_key"] or "", ""),
    ]


def _lease(job: Row, now: datetime) -> tuple[str, str]:
    ends = job["lease_expires_at"]
    if ends is None:
        return "", ""
    left = (ends - now).total_seconds()
    if left < 0:
        return f"expired {span(-left)} ago", "the next reap takes the job back"
    return f"ends in {span(round(left))}", "renewed by its worker meanwhile"


def _last_report(job_id: int) -> str:
    events = read(queries.timeline, job_id, None, EVENTS).data["rows"]
    said = [mark.said for mark in timeline.marks(events) if mark.what == "progress"]
    return literal(said[-1], 150) if said else ""


def _buttons(job: Row) -> None:
    may = rights()
    if not may.steer:
        st.caption(f":material/lock: {literal(may.reason or 'Read-only.', 500)}")
        return
    place = f"job {job['id']}"
    with st.container(horizontal=True):
        for name, verb in VERBS.items():
            if _legal(name, job) and st.button(verb.label, key=f"do_{name}", icon=verb.icon):
                ask(place, SteerOne(name, job["id"]))
        large = len(job["payload"]) > _EDITABLE
        if st.button(
            "Run again with another payload",
            key="do_clone",
            icon=":material/content_copy:",
            disabled=large,
            help="Too large to edit here: use jobq.clone in SQL" if large else None,
        ):
            ask(place, RunAgain(job["id"], job["payload"]))


def _legal(name: str, job: Row) -> bool:
    asked_already = name == "cancel" and job["cancel_requested_at"] is not None
    return job["status"] in VERBS[name].statuses and not asked_already


def _story(job_id: int, now: datetime) -> None:
    before: int | None = st.session_state.get(f"_before_{job_id}")
    found = read(queries.timeline, job_id, before, EVENTS).data
    events = found["rows"]
    told_until = now if before is None else None
    drawing = attempts(timeline.spans(events, told_until), timeline.marks(events))
    if drawing is not None:
        chart(drawing, "The attempts over time; the list below says the same in words.")
    with st.container(horizontal=True):
        if found["more"]:
            st.button(
                "Earlier events", key="earlier", on_click=_turn, args=(job_id, events[0]["id"])
            )
        if before is not None:
            st.button("Newest events", key="newest", on_click=_turn, args=(job_id, None))
    st.html(view.story(timeline.lines(events)))


def _turn(job_id: int, before: int | None) -> None:
    st.session_state[f"_before_{job_id}"] = before


def _texts(job: Row) -> None:
    if job["result"] is not None:
        st.markdown("**Result**")
        _code(job["result"], "json", "result.json")
    st.markdown("**Payload**")
    _code(job["payload"], "json", "payload.json")
    before: int | None = st.session_state.get(f"_before_{job['id']}")
    events = read(queries.timeline, job["id"], before, EVENTS).data["rows"]
    failures = timeline.errors(events)
    if len(failures) > 1:
        st.markdown("**Errors of all attempts**")
        for line, text in failures:
            label = f"{literal(line.title)}: {literal(line.said[-1], 80)}"
            with st.expander(label, key=f"error_{line.id}"):
                st.code(text, language=None)


def _code(text: str, language: str | None, name: str) -> None:
    shown_text = text[:_LONG]
    tall = shown_text.count("\n") >= _TALL
    # A traceback is read by its lines; JSON may have very long ones.
    st.code(
        shown_text,
        language=language,
        wrap_lines=language is not None,
        height=_TALL * 22 if tall else "content",
    )
    if len(text) > _LONG:
        st.caption(f"The first {_LONG:,} of {len(text):,} characters.")
        st.download_button("Download all of it", text, name, key=f"whole_{name}", on_click="ignore")


main()
