"""The question that purging asks: what would go, and then the batches in which it goes."""

from dataclasses import dataclass

import streamlit as st

import actions
import queries
from data import Away, act, look
from jobq.errors import JobqError
from questions import close
from ui import amount, literal

__all__ = ["FINAL", "Purge"]

FINAL = ("succeeded", "failed", "cancelled")


@dataclass(slots=True)
class Purge:
    """Delete the finished jobs of some statuses that are older than so many days."""

    days: float
    statuses: tuple[str, ...]
    state: str = "asked"
    wanted: int = 0
    more: bool = False
    purged: int = 0
    problem: str | None = None

    @property
    def title(self) -> str:
        """The dialog's title."""
        return "Purge finished jobs"

    @property
    def described(self) -> str:
        """Which jobs, in words."""
        *others, last = self.statuses
        statuses = f"{', '.join(others)} or {last}" if others else last
        return f"{statuses}, finished more than {self.days:g} days ago"

    def draw(self) -> None:
        """Draw the preview, then the work, then the result."""
        place = st.empty()
        if self.state == "asked":
            with place.container():
                self._preview()
        if self.state == "working":
            with place.container():
                self._work()
        if self.state == "done":
            with place.container():
                jobs = "1 job was" if self.purged == 1 else f"{amount(self.purged)} jobs were"
                st.success(f"{jobs} purged.")
                if self.problem:
                    st.warning(f"Then it stopped: {literal(self.problem, 1000)}")
                close()

    def _preview(self) -> None:
        found = look(queries.purgeable, self.days, self.statuses)
        self.wanted, self.more = found["jobs"], found["more"]
        if not self.wanted:
            st.info(f"Nothing to purge: no job is {self.described}.")
            close()
            return
        jobs = "1 job" if self.wanted == 1 and not self.more else f"{self._amount()} jobs"
        st.markdown(
            f"**{jobs}** will be deleted: {self.described}. Their history, payloads, results and"
            " errors go with them, and their idempotency keys become free. This cannot be undone."
        )
        st.caption("In batches of 1,000. Closing this dialog stops after a batch.")
        with st.container(horizontal=True):
            label = f"Purge {jobs}"
            if st.button(label, type="primary", icon=":material/delete:", key="question_confirm"):
                self.state = "working"
            else:
                close("Leave as is")

    def _amount(self) -> str:
        return f"{'more than ' if self.more else ''}{amount(self.wanted)}"

    def _work(self) -> None:
        bar = st.progress(0.0)
        while self.state == "working":
            try:
                batch = act(actions.purge, self.days, self.statuses)
            except (JobqError, Away) as refusal:
                self.problem, self.state = str(refusal), "done"
                break
            self.purged += batch
            if not batch:
                self.state = "done"
            share = 0.5 if self.more else min(self.purged / self.wanted, 1.0)
            bar.progress(share, f"{amount(self.purged)} of {self._amount()}")
