"""What the dashboard asks the database: a connection in, rows out.

Rows are dicts; times are aware and in UTC, durations are seconds. Everything works for a role with
no more than the level `reader`.
"""

from queries_api import functions
from queries_database import database, purgeable, verify
from queries_history import WINDOWS, activity, failures, runs
from queries_job import explain, job, timeline
from queries_state import kinds, overview, where, workers

__all__ = [
    "WINDOWS",
    "activity",
    "database",
    "explain",
    "failures",
    "functions",
    "job",
    "kinds",
    "overview",
    "purgeable",
    "runs",
    "timeline",
    "verify",
    "where",
    "workers",
]
