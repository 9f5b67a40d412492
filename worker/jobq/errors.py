"""What jobq raises, and how an error of the database becomes one of ours.

    JobqError
    ├── InvalidJob             JQ001  a kind, payload, time or number that no job can have
    ├── IdempotencyConflict    JQ002  the key is taken by a job of another kind or payload
    ├── LeaseLost              JQ003  the claim is no longer the current one
    ├── JobNotFound            JQ004  no job has this id
    ├── IllegalTransition      JQ005  the job's status does not allow it
    ├── InvalidArgument        JQ006  an argument that no call accepts
    ├── HistoryIsAppendOnly    JQ007  events are never changed
    └── SettingsError                 the worker's settings cannot be used

The database speaks by SQLSTATE, never by the text of a message, so the mapping is the same for
psycopg and for whatever a DB-API driver or an ORM wraps around it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

__all__ = [
    "HistoryIsAppendOnly",
    "IdempotencyConflict",
    "IllegalTransition",
    "InvalidArgument",
    "InvalidJob",
    "JobNotFound",
    "JobqError",
    "LeaseLost",
    "SettingsError",
    "translate",
    "translated",
]


class JobqError(Exception):
    """The base of every error that jobq raises on purpose.

    `sqlstate` is the database's code for it, or None where the database has no say.
    """

    sqlstate: ClassVar[str | None] = None


class InvalidJob(JobqError):
    """The job cannot be stored; nothing was."""

    sqlstate = "JQ001"


class IdempotencyConflict(JobqError):
    """The idempotency key belongs to a job of another kind or with another payload."""

    sqlstate = "JQ002"


class LeaseLost(JobqError):
    """Another claim, or none, holds the job now."""

    sqlstate = "JQ003"


class JobNotFound(JobqError):
    """No job has this id: it never existed or was purged."""

    sqlstate = "JQ004"


class IllegalTransition(JobqError):
    """The job cannot go from its status to the one asked for."""

    sqlstate = "JQ005"


class InvalidArgument(JobqError):
    """An argument is out of range, missing, or does not fit the others."""

    sqlstate = "JQ006"


class HistoryIsAppendOnly(JobqError):
    """Events can be added, not changed or removed."""

    sqlstate = "JQ007"


class SettingsError(JobqError):
    """A setting has a value that cannot be used; the message names it and what is allowed."""


_BY_SQLSTATE: dict[str, type[JobqError]] = {
    **{
        str(error.sqlstate): error
        for error in (
            InvalidJob,
            IdempotencyConflict,
            LeaseLost,
            JobNotFound,
            IllegalTransition,
            InvalidArgument,
            HistoryIsAppendOnly,
        )
    },
    # Raised by a cast of an argument, before any function of ours is entered.
    "22003": InvalidJob,  # a number out of range
    "22008": InvalidJob,  # a time out of range
    "22015": InvalidJob,  # a delay out of range
    "22P02": InvalidJob,  # not JSON
    "22P05": InvalidJob,  # JSON with a NUL
}

# What of ours is not there, told by a word of the message that no translation of it changes.
_MISSING = {"3F000": '"jobq"', "42883": "jobq."}  # the schema; a function


def translate(exc: BaseException) -> JobqError | None:
    """Return the typed error for `exc`, or None when it is none of jobq's.

    The SQLSTATE is looked for on the exception, on what it wraps (`.orig`) and on its causes.
    """
    seen: set[int] = set()
    current: BaseException | None = exc
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        state = sqlstate_of(current) or ""
        error = _BY_SQLSTATE.get(state)
        if error is not None:
            return error(_message(current))
        if state in _MISSING and _MISSING[state] in _message(current):
            from jobq.migrate import SchemaTooOld

            first = _message(current).partition("\n")[0]
            return SchemaTooOld(f"{first}\ninstall or upgrade the schema with `jobq migrate`")
        wrapped = getattr(current, "orig", None)
        current = wrapped if isinstance(wrapped, BaseException) else current.__cause__
    return None


@contextmanager
def translated() -> Iterator[None]:
    """Raise the typed error in place of the driver's, which stays as its cause."""
    try:
        yield
    except JobqError:
        raise
    except Exception as exc:
        error = translate(exc)
        if error is None:
            raise
        raise error from exc


def sqlstate_of(exc: BaseException) -> str | None:
    """The SQLSTATE an exception of a PostgreSQL driver carries: psycopg, psycopg2, pg8000."""
    for name in ("sqlstate", "pgcode"):
        code = getattr(exc, name, None)
        if isinstance(code, str):
            return code
    fields = exc.args[0] if exc.args else None
    if isinstance(fields, dict) and isinstance(fields.get("C"), str):
        return str(fields["C"])
    return None


def _message(exc: BaseException) -> str:
    """The server's primary message, with its detail and hint where it sent some."""
    diag = getattr(exc, "diag", None)
    primary = getattr(diag, "message_primary", None)
    if not primary:
        return str(exc)
    more = (getattr(diag, name, None) for name in ("message_detail", "message_hint"))
    return "\n".join([primary, *(text for text in more if text)])
