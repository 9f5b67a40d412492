"""The dashboard's way to the database: one pool, shared readings, and writes that say who.

What one viewer reads every viewer sees: a reading is kept until it is older than the refresh
interval and than 100 times what it cost. So each query of a page left open costs the database at
most a hundredth of a core, however large the queue and however many look at it. While the database
is away the last reading stays, with the reason why there is no newer one.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
import streamlit as st

from jobq._access import grant_command
from jobq.errors import SettingsError, translated
from jobq.migrate import SchemaError
from jobq.settings import DashboardSettings
from reading import READING, Away, Reading, Source, lost
from sql import Connection, fetch_one

__all__ = [
    "READING",
    "Away",
    "Connection",
    "Reading",
    "Rights",
    "act",
    "look",
    "look_apart",
    "read",
    "refresh_seconds",
    "rights",
    "source",
]

P = ParamSpec("P")
T = TypeVar("T")

WRITING_SECONDS = 60

_GRANTED = """
select current_user::text as role, pg_is_in_recovery() as standby,
  bool_and(has_function_privilege(p.oid, 'execute')) filter (where p.proname <> 'enqueue') as steer,
  bool_and(has_function_privilege(p.oid, 'execute')) filter (where p.proname = 'enqueue') as enqueue
from pg_catalog.pg_proc p
where p.pronamespace = 'jobq'::regnamespace
  and p.proname in ('enqueue', 'retry_jobs', 'cancel_jobs', 'set_priority', 'reschedule',
    'clone', 'cancel', 'retry', 'purge')"""


@dataclass(frozen=True, slots=True)
class Rights:
    """What this dashboard may do; `reason` says why it may not steer."""

    steer: bool
    enqueue: bool
    reason: str | None = None


@st.cache_resource(show_spinner=False, on_release=Source.close)
def source(dsn: str | None = None) -> Source:
    """The database in DATABASE_URL, shared by all viewers."""
    chosen = dsn or os.environ.get("DATABASE_URL")
    if not chosen:
        raise Away("no database: set DATABASE_URL=postgresql://user@host/database, or `--embedded`")
    return Source(chosen)


def read(
    query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
) -> Reading[T]:
    """Return `query`'s reading, shared, at most as old as the viewer's refresh interval asks.

    Raises Away when there is none to show.
    """
    assert not kwargs, "a reading is known by its positional arguments"
    return source().read(query, *args, max_age=refresh_seconds() or 30.0)


def look(query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a query now, for one viewer; raises Away with what is wrong."""
    try:
        with source().connection() as conn:
            return query(conn, *args, **kwargs)
    except (psycopg.Error, SchemaError) as error:
        raise Away(source().explain(error)) from error


def look_apart(seconds: int, query: Callable[[Connection], T]) -> T:
    """Run a query that takes up to so long, one at a time, leaving the pool to the others.

    Raises Away with what is wrong, also while another viewer's is running.
    """
    try:
        with source().apart(seconds) as conn:
            return query(conn)
    except (psycopg.Error, SchemaError) as error:
        raise Away(source().explain(error)) from error


def act(verb: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a verb of `actions` in a transaction of its own that says who acts, and read all anew.

    Raises the errors of `jobq.errors`, or Away.
    """
    allowed = rights()
    if not (allowed.steer or allowed.enqueue):
        raise Away(allowed.reason or "this dashboard is read-only")

    begun = False

    def in_a_transaction(conn: Connection) -> T:
        nonlocal begun
        with conn.transaction(), translated():
            conn.execute(
                """
                select set_config('jobq.actor', %s, true),
                  set_config('statement_timeout', %s, true)""",
                (actor(), f"{WRITING_SECONDS}s"),
            )
            begun = True
            return verb(conn, *args, **kwargs)

    try:
        with source().connection() as conn, conn.waiting_for(WRITING_SECONDS + 5):
            done = in_a_transaction(conn)
    except (psycopg.Error, SchemaError) as error:
        problem = source().explain(error, "operator")
        if begun and lost(error):
            problem += ". Whether this was done is not known: look before doing it again."
        raise Away(problem) from error
    finally:
        source().forget()
    return done


def rights() -> Rights:
    """What may be done here: by the setting, and by what the database granted to the role."""
    try:
        only_shows = DashboardSettings.from_environment().read_only
        reason = "JOB_DASHBOARD_READ_ONLY is set: this dashboard only shows."
    except SettingsError as error:
        only_shows, reason = True, f"{error}. So this dashboard only shows."
    if only_shows:
        return Rights(steer=False, enqueue=False, reason=reason)
    granted = read(_granted).data
    if granted["standby"]:
        reason = "This database is a standby: nothing can be changed here."
        return Rights(steer=False, enqueue=False, reason=reason)
    if granted["steer"]:
        return Rights(steer=True, enqueue=bool(granted["enqueue"]))
    grant = grant_command(granted["role"], "operator")
    return Rights(
        steer=False,
        enqueue=bool(granted["enqueue"]),
        reason=f"The role {granted['role']} may read but not act. To let it: `{grant}`",
    )


def _granted(conn: Connection) -> dict[str, Any]:
    return fetch_one(conn, _GRANTED)


def actor() -> str:
    """Who acts: the viewer's name where Streamlit's login is configured, else the dashboard."""
    name = st.user.get("email") or st.user.get("name")
    return f"dashboard: {name}"[:200] if name else "dashboard"


def refresh_seconds() -> float | None:
    """Seconds between two looks of a live page, as the viewer chose; None: off."""
    chosen = st.session_state.get("refresh", "5 s")
    return None if chosen == "off" else float(str(chosen).removesuffix(" s"))
