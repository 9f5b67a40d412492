"""The question that purging asks: what would go, and then the batches in which it goes."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import streamlit as st

import actions
import queries
from data import Away, act, look
from jobq.errors import JobqError
from questions import close
from sql import Connection, value
from ui import amount, literal

__all__ = ["FINAL", "Purge"]

FINAL = ("succeeded", "failed", "cancelled")

_BATCH = 1_000


@dataclass(slots=True)
class Purge:
    """Delete the finished jobs of some statuses that are older than so many days."""

    days: float
    statuses: tuple[str, ...]
    state: str = "asked"
    cutoff: datetime | None = None
    place: str = ""
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
        found = look(_found, self.days, self.statuses, self.cutoff)
        self.cutoff = found["cutoff"]
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
        st.caption(f"In batches of {_BATCH:,}. Closing this dialog stops after a batch.")
        with st.container(horizontal=True):
            st.button(
                f"Purge {jobs}",
                type="primary",
                icon=":material/delete:",
                key="question_confirm",
                on_click=self._confirm,
            )
            close("Leave as is")

    def _confirm(self) -> None:
        if self.state == "asked":
            self.state = "working"

    def _amount(self) -> str:
        return f"{'more than ' if self.more else ''}{amount(self.wanted)}"

    def _work(self) -> None:
        bar = st.progress(0.0)
        assert self.cutoff is not None
        while self.state == "working":
            most = _BATCH if self.more else min(_BATCH, self.wanted - self.purged)
            try:
                batch, self.place = act(actions.purge, self.cutoff, self.statuses, most, self.place)
            except (JobqError, Away) as refusal:
                self.problem, self.state = str(refusal), "done"
                break
            self.purged += batch
            if not batch or (self.purged >= self.wanted and not self.more):
                self.state = "done"
            share = 0.5 if self.more else min(self.purged / self.wanted, 1.0)
            bar.progress(share, f"{amount(self.purged)} of {self._amount()}")


def _found(
    conn: Connection, days: float, statuses: tuple[str, ...], cutoff: datetime | None
) -> dict[str, Any]:
    """What would go, and the moment before which it finished: by the database's clock, once."""
    now = value(conn, "select clock_timestamp()")
    cutoff = cutoff or now - timedelta(days=days)
    age = (now - cutoff) / timedelta(days=1)
    return {"cutoff": cutoff, **queries.purgeable(conn, age, statuses)}
