"""A job queue whose rules live in PostgreSQL: handlers, a client, and a worker."""

from jobq.app import App, Job
from jobq.client import Enqueued, NewJob
from jobq.context import Cancel, CurrentJob, Fatal, Snooze, current_job
from jobq.errors import (
    HistoryIsAppendOnly,
    IdempotencyConflict,
    IllegalTransition,
    InvalidArgument,
    InvalidJob,
    JobNotFound,
    JobqError,
    LeaseLost,
)
from jobq.settings import WorkerSettings
from jobq.worker import Worker

__all__ = [
    "App",
    "Cancel",
    "CurrentJob",
    "Enqueued",
    "Fatal",
    "HistoryIsAppendOnly",
    "IdempotencyConflict",
    "IllegalTransition",
    "InvalidArgument",
    "InvalidJob",
    "Job",
    "JobNotFound",
    "JobqError",
    "LeaseLost",
    "NewJob",
    "Snooze",
    "Worker",
    "WorkerSettings",
    "current_job",
]
