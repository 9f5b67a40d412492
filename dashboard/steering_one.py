"""Steering one job, the one that was on screen: asked, confirmed, done once, refused politely."""

from dataclasses import dataclass
from typing import Any

import streamlit as st

import actions
import search
from data import Away, act, look
from jobq.errors import JobqError
from jsontext import problem_of, repeated_names
from questions import close, forget
from steering import MANY, VERBS, ask_value, asked_value, participle, refusals
from ui import literal

__all__ = ["RunAgain", "SteerOne"]

_CONSEQUENCES = {
    ("retry", "failed"): "It is queued again, due now, with at least one more attempt.",
    ("retry", "cancelled"): "It is queued again, due now, with at least one more attempt.",
    ("cancel", "queued"): "It has not started, and will not.",
    ("cancel", "running"): "Its worker is asked to stop, and decides; a run that ends well counts.",
}


@dataclass(slots=True)
class SteerOne:
    """Do a verb to one job, whose status may change before the answer."""

    name: str
    job_id: int
    state: str = "asked"
    good: bool = True
    said: str = ""

    @property
    def title(self) -> str:
        """The dialog's title."""
        return f"{VERBS[self.name].label}: job {self.job_id}"

    def draw(self) -> None:
        """Draw the question, or what came of it."""
        if self.state == "asked":
            self._ask()
        if self.state == "done":
            (st.success if self.good else st.warning)(literal(self.said, 1000))
            close()

    def _ask(self) -> None:
        rows = look(search.by_ids, (self.job_id,))
        status = rows[0]["status"] if rows else ""
        verb = VERBS[self.name]
        if refused := refusals(verb, rows, (self.job_id,)):
            self._end(False, f"Job {self.job_id} has changed: {refused[0].removeprefix('1 ')}")
            return
        ask_value(self.name)
        st.markdown(_CONSEQUENCES.get((self.name, status), verb.consequence))
        with st.container(horizontal=True):
            label = {"retry": "Retry it", "cancel": "Cancel it"}.get(self.name, "Change it")
            st.button(
                label, type="primary", icon=verb.icon, key="question_confirm", on_click=self._act
            )
            close("Leave as is")

    def _act(self) -> None:
        if self.state != "asked":
            return
        try:
            self._end(*_perform(self.name, self.job_id, asked_value(self.name)))
        except (JobqError, Away) as refusal:
            self._end(False, f"Refused: {refusal}")

    def _end(self, good: bool, said: str) -> None:
        self.state, self.good, self.said = "done", good, said


def _perform(name: str, job_id: int, value: tuple[Any, ...]) -> tuple[bool, str]:
    if name == "retry":
        act(actions.retry, job_id)
        return True, f"Job {job_id} is queued again, due now."
    if name == "cancel":
        status = act(actions.cancel, job_id)
        words = {
            "cancelled": f"Job {job_id} is cancelled.",
            "running": f"The worker of job {job_id} is asked to stop.",
        }
        finished = f"Job {job_id} had {status} meanwhile: nothing was changed."
        return status in words, words.get(status, finished)
    outcome = act(MANY[name], {"ids": [job_id]}, *value, False)
    if outcome["changed"]:
        return True, f"Job {job_id} is {participle(name, value)}."
    if outcome["matched"]:
        return False, f"Job {job_id} is locked by another session: nothing was changed. Try again."
    rows = look(search.by_ids, (job_id,))
    if refused := refusals(VERBS[name], rows, (job_id,)):
        return False, f"Nothing was changed. Job {job_id} is {refused[0].removeprefix('1 ')}"
    return False, f"Nothing to change: job {job_id} is {participle(name, value)} already."


@dataclass(slots=True)
class RunAgain:
    """Enqueue a job like one that is stored, with another payload."""

    job_id: int
    payload: str
    new_id: int | None = None
    problem: str | None = None

    @property
    def title(self) -> str:
        """The dialog's title."""
        return f"Run job {self.job_id} again"

    def draw(self) -> None:
        """Draw the payload to edit, or the new job."""
        if self.new_id is None:
            self._ask()
            return
        st.success(f"Job {self.new_id} is enqueued, due now; job {self.job_id} stays as it is.")
        with st.container(horizontal=True):
            if st.button(f"Open job {self.new_id}", type="primary", key="question_open"):
                forget()
                st.switch_page("screens/job.py", query_params={"job": str(self.new_id)})
            close()

    def _ask(self) -> None:
        st.markdown("A new job of its kind, priority and attempts, due now, without its key.")
        text = st.text_area("Payload", self.payload, height=300, key="question_payload") or ""
        if wrong := problem_of(text):
            st.error(literal(wrong, 500), icon=":material/data_object:")
        elif twice := repeated_names(text):
            st.warning(f"Twice in one object: {literal(', '.join(twice))}. The last value counts.")
        if self.problem:
            st.error(literal(self.problem, 1000), icon=":material/block:")
        with st.container(horizontal=True):
            st.button("Enqueue it", type="primary", key="question_confirm", on_click=self._enqueue)
            close("Leave it")

    def _enqueue(self) -> None:
        text = st.session_state["question_payload"] or ""
        if self.new_id is not None or problem_of(text):
            return
        self.problem = None
        try:
            self.new_id = act(actions.clone, self.job_id, text)
        except (JobqError, Away) as refusal:
            self.problem = f"Refused: {refusal}"
