"""Steering many jobs: a verb, its preview, its confirmation, its batches and what came of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import streamlit as st

import actions
import search
from data import Away, act, look
from jobq.errors import JobqError, translated
from questions import close
from search_filter import filter_text
from sql import Connection, fetch_one
from ui import amount, literal

__all__ = ["MANY", "VERBS", "Steer", "Verb", "ask_value", "asked_value", "participle", "refusals"]


@dataclass(frozen=True, slots=True)
class Verb:
    """What can be done to jobs of some statuses, and what comes of it."""

    label: str
    icon: str
    statuses: tuple[str, ...]
    done: str
    consequence: str
    refusal: str


VERBS = {
    "retry": Verb(
        "Retry",
        ":material/replay:",
        ("failed", "cancelled"),
        "queued again",
        "Due now, with at least one more attempt each. Their history stays.",
        "only a failed or cancelled job can be retried",
    ),
    "cancel": Verb(
        "Cancel",
        ":material/block:",
        ("queued", "running"),
        "cancelled or asked to stop",
        "Queued jobs are cancelled at once; running ones go on until their workers stop them.",
        "only a queued or running job can be cancelled",
    ),
    "set_priority": Verb(
        "Priority",
        ":material/swap_vert:",
        ("queued",),
        "moved to priority {}",
        "Higher runs first. They line up behind the jobs that wait at that priority already.",
        "only a queued job waits by priority",
    ),
    "reschedule": Verb(
        "Reschedule",
        ":material/schedule:",
        ("queued",),
        "rescheduled, due {}",
        "They run once they are due and a worker is free.",
        "only a queued job waits for its time",
    ),
}


def ask_value(name: str) -> tuple[Any, ...]:
    """Ask what the verb needs to know beside the jobs."""
    if name == "set_priority":
        label = "New priority, from -100 to 100; higher runs first"
        st.number_input(label, -100, 100, 0, 10, key="question_value")
    elif name == "reschedule":
        label = "Due in how many minutes? 0: now"
        st.number_input(label, 0.0, 525_600.0, 0.0, 5.0, "%g", key="question_value")
    return asked_value(name)


def asked_value(name: str) -> tuple[Any, ...]:
    """What was answered: a priority, or a delay in seconds."""
    if name not in ("set_priority", "reschedule"):
        return ()
    given = st.session_state["question_value"]
    return (given if name == "set_priority" else given * 60,)


def participle(name: str, value: tuple[Any, ...]) -> str:
    """What happens to the jobs: "queued again", "due in 5 min"."""
    words = VERBS[name].done
    if name == "reschedule":
        return words.format(f"in {value[0] / 60:g} min" if value[0] else "now")
    return words.format(*value)


def refusals(verb: Verb, rows: Sequence[dict[str, Any]], ids: Sequence[int]) -> list[str]:
    """To which of these jobs the verb does not apply, and why: a line for each reason."""
    statuses = [row["status"] for row in rows if row["status"] not in verb.statuses]
    told = [f"{amount(statuses.count(status))} {status}" for status in dict.fromkeys(statuses)]
    lines = [f"{', '.join(told)}: {verb.refusal}."] if told else []
    gone = len(set(ids) - {row["id"] for row in rows})
    if gone:
        lines.append(f"{amount(gone)} gone: purged since they were listed.")
    return lines


@dataclass(slots=True)
class Steer:
    """Do a verb to the jobs of a filter: those selected by id, or all that match."""

    name: str
    filter: dict[str, Any]
    ids: tuple[int, ...] | None = None
    described: str = ""
    state: str = "asked"
    value: tuple[Any, ...] = ()
    wanted: int = 0
    changed: int = 0
    left: int = 0
    due: datetime | None = None
    problem: str | None = None

    @property
    def title(self) -> str:
        """The dialog's title."""
        which = "all that match" if self.ids is None else f"{len(self.ids)} selected"
        return f"{VERBS[self.name].label}: {which}"

    def draw(self) -> None:
        """Draw the preview, or the work and the result."""
        if self.state == "asked":
            self._preview()
        if self.state == "working":
            self._work()
        if self.state == "done":
            for good, words in self.outcome():
                (st.success if good else st.warning)(literal(words, 1000))
            close()

    def outcome(self) -> list[tuple[bool, str]]:
        """What came of it, in words, and whether that is good."""
        was = "job was" if self.changed == 1 else "jobs were"
        lines = [
            (self.changed > 0, f"{amount(self.changed)} {was} {participle(self.name, self.value)}.")
        ]
        if self.problem:
            lines.append((False, f"Then it stopped: {self.problem}"))
        elif self.left:
            words = "that match were left: locked by another session, or new since you were asked"
            lines.append((False, f"{amount(self.left)} {words}."))
        elif self.changed < self.wanted:
            lines.append(
                (False, f"{amount(self.wanted - self.changed)} had changed and match no longer.")
            )
        return lines

    def _preview(self) -> None:
        verb = VERBS[self.name]
        if self.ids is None:
            st.markdown(
                f"Jobs with {literal(self.described, 500)}" if self.described else "Any job"
            )
        self.value = ask_value(self.name)
        dry = look(MANY[self.name], self.filter, *self.value, True)
        if self.ids is not None:
            for line in refusals(verb, look(search.by_ids, self.ids), self.ids):
                st.warning(line)
        self.wanted = dry["matched"]
        if not self.wanted:
            st.info("Nothing to do: none of them can be changed so, or all are so already.")
            close()
            return
        jobs = f"{amount(self.wanted)} job{'s' if self.wanted > 1 else ''}"
        more = ", …" if self.wanted > len(dry["sample"]) else ""
        st.markdown(f"**{jobs}** will be {participle(self.name, self.value)}. {verb.consequence}")
        st.caption(f"Job {', '.join(map(str, dry['sample']))}{more}")
        if self.wanted > actions.BATCH:
            st.caption(f"In batches of {actions.BATCH:,}. Closing this dialog stops after a batch.")
        with st.container(horizontal=True):
            st.button(
                f"{verb.label}: {jobs}",
                type="primary",
                key="question_confirm",
                on_click=self._confirm,
            )
            close("Leave as is")

    def _confirm(self) -> None:
        # A value that came with the click has not been previewed: it is, next.
        if self.state == "asked" and self.value == asked_value(self.name):
            self.state = "working"

    def _work(self) -> None:
        verb, value = MANY[self.name], self.value
        if self.name == "reschedule" and value[0]:
            # A delay counts anew from each batch, and would match what the last one changed.
            self.due = self.due or look(_due, value[0])
            verb, value = _reschedule_at, (self.due,)
        bar = st.progress(0.0, "Working")
        while self.state == "working":
            try:
                # Not one job more than was agreed to, however many match by now.
                most = min(actions.BATCH, self.wanted - self.changed)
                outcome = act(verb, self.filter, *value, False, most)
            except (JobqError, Away) as refusal:
                self.problem, self.state = str(refusal), "done"
                break
            self.changed += outcome["changed"]
            self.left = outcome["matched"] - outcome["changed"]
            if not outcome["changed"] or self.changed >= self.wanted:
                self.state = "done"
            share = min(self.changed / self.wanted, 1.0)
            bar.progress(share, f"{amount(self.changed)} of {amount(self.wanted)}")
        bar.empty()


def _due(conn: Connection, seconds: float) -> datetime:
    query = b"select clock_timestamp() + make_interval(secs => %s) as due"
    row = conn.execute(query, (seconds,)).fetchone()
    assert row is not None
    return row["due"]  # type: ignore[no-any-return]


def _reschedule_at(
    conn: Connection, filter: dict[str, Any], due: datetime, dry_run: bool, max_jobs: int
) -> dict[str, Any]:
    query = """
        select r.matched, r.changed, r.sample
        from jobq.reschedule(%s::jsonb, available_at => %s, dry_run => %s, max_jobs => %s) r"""
    with translated():
        return fetch_one(conn, query, (filter_text(filter), due, dry_run, max_jobs))


#: The verbs for all jobs that match a filter.
MANY: dict[str, Callable[..., dict[str, Any]]] = {
    "retry": actions.retry_jobs,
    "cancel": actions.cancel_jobs,
    "set_priority": actions.set_priority,
    "reschedule": actions.reschedule,
}
