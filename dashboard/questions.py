"""Questions that a dialog over the page asks, one at a time.

A dialog is a fragment: a second click in it waits for the run that acts, and cannot interrupt it.
What was done is to be noted in the question itself, at once: then it is known, and done only once,
however that run ends.
"""

from typing import Protocol

import streamlit as st

from data import Away
from jobq.errors import JobqError
from ui import literal

__all__ = ["Question", "ask", "close", "forget", "pending", "withdraw"]

_KEY = "_question"


class Question(Protocol):
    """What a dialog asks, and what came of it."""

    @property
    def title(self) -> str:
        """The dialog's title."""

    def draw(self) -> None:
        """Draw the dialog as things stand now."""


def ask(place: str, question: Question) -> None:
    """Put a question to the viewer of `place`, in a dialog over the page."""
    st.session_state[_KEY] = (place, question)
    st.rerun()


def pending(place: str) -> None:
    """Draw the dialog of this place's question, if one is open."""
    asked_at, question = st.session_state.get(_KEY, (None, None))
    if question is None:
        return
    if asked_at != place:
        forget()
        return

    def guarded() -> None:
        try:
            question.draw()
        except (JobqError, Away) as refusal:
            st.error(literal(refusal, 1000), icon=":material/block:")

    st.dialog(question.title, width="medium", on_dismiss=forget)(guarded)()


def withdraw(page: str, job: str) -> None:
    """Forget a question of another page than this one, or than the one of this job.

    Left there it would go on by itself, unasked, when the viewer came back.
    """
    asked_at, _ = st.session_state.get(_KEY, (None, None))
    is_id = job.isdecimal() and job.isascii() and len(job) < 19
    if asked_at != (f"job {int(job)}" if page == "job" and is_id else page):
        forget()


def forget() -> None:
    """Let the dialog be gone at the next run of the page."""
    st.session_state.pop(_KEY, None)


def close(label: str = "Close") -> None:
    """A button that closes the dialog."""
    if st.button(label, key="question_close"):
        forget()
        st.rerun()
