"""New job: typed, checked by the database without being kept, and enqueued once."""

from dataclasses import dataclass
from typing import Any

import streamlit as st

import actions
import queries
from data import Away, act, look, read, rights
from jobq.errors import JobqError
from jsontext import problem_of, repeated_names
from ui import literal

_EXAMPLE = '{\n  "to": "ada@example.org"\n}'


@dataclass(slots=True)
class Draft:
    """What was last checked or enqueued, and what the database said."""

    enqueued: tuple[Any, ...] | None = None
    answer: dict[str, Any] | None = None
    checked: tuple[Any, ...] | None = None
    verdict: tuple[bool, str] = (True, "")


def main() -> None:
    """Draw the form, or say why there is none."""
    try:
        may = rights()
    except Away as away:
        st.error(literal(away, 500), icon=":material/cloud_off:")
        return
    if not may.enqueue:
        st.info(
            literal(may.reason or "The role of this dashboard may not enqueue.", 500),
            icon=":material/lock:",
        )
        return
    # A fragment's clicks wait for each other: the second of two does not interrupt the first.
    st.fragment(_form)()


def _form() -> None:
    draft: Draft = st.session_state.setdefault("_draft", Draft())
    left, right = st.columns([3, 2], gap="large")
    with left:
        kind = st.selectbox(
            "Kind",
            _kinds(),
            index=None,
            key="new_kind",
            placeholder="choose one, or type a new one",
            accept_new_options=True,
            persist_state="session",
        )
        text = st.text_area(
            "Payload",
            _EXAMPLE,
            height=260,
            key="new_payload",
            help="A JSON object: the arguments of the handler",
            persist_state="session",
        )
        if problem := problem_of(text or ""):
            st.error(literal(problem, 500), icon=":material/data_object:")
        elif twice := repeated_names(text or ""):
            st.warning(f"Twice in one object: {literal(', '.join(twice))}. The last value counts.")
    with right:
        _options()
    if kind and _given() != draft.enqueued:
        _say_who_handles(kind)
    with st.container(horizontal=True):
        st.button("Check", key="new_check", icon=":material/rule:", on_click=_check, args=(draft,))
        st.button(
            "Enqueue",
            key="new_enqueue",
            type="primary",
            icon=":material/add:",
            disabled=_given() == draft.enqueued,
            on_click=_enqueue,
            args=(draft,),
        )
    _answer(draft, _given())


def _options() -> None:
    st.number_input(
        "Priority, from -100 to 100; higher runs first",
        -100,
        100,
        0,
        key="new_priority",
        persist_state="session",
    )
    st.number_input(
        "Delay in seconds", 0.0, None, 0.0, 10.0, "%g", key="new_delay", persist_state="session"
    )
    st.text_input(
        "Idempotency key",
        key="new_key",
        placeholder="none",
        help="While a job with this key is stored, enqueuing it again changes nothing",
        persist_state="session",
    )
    st.number_input(
        "Attempts at most", 1, 2**31 - 1, 10, key="new_attempts", persist_state="session"
    )


def _given() -> tuple[Any, ...]:
    """The form as the arguments of `actions.enqueue`."""
    typed = st.session_state
    return (
        typed.get("new_kind") or "",
        typed.get("new_payload") or "",
        typed.get("new_priority", 0),
        typed.get("new_delay", 0.0),
        typed.get("new_key") or None,
        typed.get("new_attempts", 10),
    )


def _kinds() -> list[str]:
    chosen = st.session_state.get("new_kind")
    try:
        stored = {row["kind"] for row in read(queries.kinds).data}
    except Away:
        stored = set()
    return sorted(stored | {chosen} if chosen else stored)


def _say_who_handles(kind: str) -> None:
    try:
        live = {row["kind"]: row["live_workers"] for row in read(queries.kinds).data}
        named = {
            name for row in read(queries.workers).data if row["alive"] for name in row["kinds"]
        }
    except Away:
        return
    if not live.get(kind) and kind not in named:
        st.info(
            f"No live worker has been seen for the kind {literal(kind)}: a job would wait for one.",
            icon=":material/engineering:",
        )


def _unready(given: tuple[Any, ...]) -> str | None:
    if not given[0]:
        return "A kind is missing."
    return "The payload is no JSON object yet." if problem_of(given[1]) else None


def _check(draft: Draft) -> None:
    draft.checked = given = _given()
    if unready := _unready(given):
        draft.verdict = (False, unready)
        return
    try:
        told = act(actions.check, *given)
    except (JobqError, Away) as refusal:
        draft.verdict = (False, f"It would be refused: {refusal}")
        return
    if told["created"]:
        draft.verdict = (True, "The database would take it. Nothing was enqueued.")
    else:
        draft.verdict = (True, f"{_taken(told)} Enqueuing it would change nothing.")


def _enqueue(draft: Draft) -> None:
    given = _given()
    if given == draft.enqueued:
        return
    draft.checked = given
    if unready := _unready(given):
        draft.verdict = (False, unready)
        return
    try:
        # Noted at once: however this run ends, the second of two clicks finds it done.
        draft.answer = act(actions.enqueue, *given)
        draft.enqueued, draft.checked = given, None
    except (JobqError, Away) as refusal:
        draft.verdict = (False, f"Refused: {refusal}")


def _taken(told: dict[str, Any]) -> str:
    return f"That key already belongs to job {told['job_id']}, which is {told['status']}."


def _answer(draft: Draft, given: tuple[Any, ...]) -> None:
    if draft.checked == given:
        good, words = draft.verdict
        (st.success if good else st.error)(literal(words, 1000))
    if draft.answer is None or draft.enqueued != given:
        return
    told = draft.answer
    job_id = told["job_id"]
    if told["created"]:
        st.success(f"Job {job_id} is enqueued.", icon=":material/check:")
        try:
            for row in look(queries.explain, job_id):
                st.text(row["message"])
        except Away as away:
            st.caption(literal(away, 500))
    else:
        st.warning(f"{_taken(told)} Nothing new was enqueued.", icon=":material/key:")
    with st.container(horizontal=True):
        st.page_link(
            "screens/job.py",
            label=f"Open job {job_id}",
            icon=":material/timeline:",
            query_params={"job": str(job_id)},
        )
        st.button("Enqueue the same once more", key="new_again", on_click=_rearm, args=(draft,))


def _rearm(draft: Draft) -> None:
    draft.enqueued = draft.answer = None


main()
