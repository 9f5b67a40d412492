"""Exit codes, and what an exception means to somebody at a terminal."""

import errno
from pathlib import Path

import psycopg
import typer

from jobq.embedded import EmbeddedError
from jobq.errors import JobNotFound, JobqError, SettingsError, sqlstate_of, translate
from jobq.migrate import SchemaError

__all__ = ["FAILED", "NOT_FOUND", "NO_DATABASE", "OK", "USAGE", "CommandError", "explain_error"]

OK = 0
FAILED = 1
USAGE = 2
NO_DATABASE = 3
NOT_FOUND = 4

# Typer's base of all complaints about arguments; where it lies differs between its versions.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# Classes of SQLSTATE that say the server cannot be talked to: connection, role or password,
# database name, connection limit, shutdown. An error without a code never reached a server.
_UNREACHABLE = ("08", "28", "3D", "53", "57P")


class CommandError(Exception):
    """Ends the command with a message (one or two lines) and an exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def explain_error(exc: BaseException) -> tuple[int, str] | None:
    """Return exit code and message for an error that its reader can do something about."""
    if isinstance(exc, CommandError):
        return exc.code, str(exc)
    if isinstance(exc, _UsageError):
        return USAGE, _usage(exc)
    if isinstance(exc, typer.Abort):
        return FAILED, "stopped: nothing was changed"
    error = exc if isinstance(exc, JobqError) else translate(exc) or exc
    if isinstance(error, JobqError):
        return _code(error), str(error)
    if isinstance(exc, psycopg.Error):
        return _database_error(exc)
    if isinstance(exc, OSError):
        return _system_error(exc)
    return None


def _usage(exc: Exception) -> str:
    message = getattr(exc, "format_message", exc.__str__)()
    context = getattr(exc, "ctx", None)
    path = context.command_path if context is not None else "jobq"
    return f"{message}\nsee `{path} --help`"


def _code(error: JobqError) -> int:
    if isinstance(error, JobNotFound):
        return NOT_FOUND
    if isinstance(error, SettingsError):
        return USAGE
    if isinstance(error, SchemaError | EmbeddedError):
        return NO_DATABASE
    return FAILED


def _database_error(exc: psycopg.Error) -> tuple[int, str]:
    state = sqlstate_of(exc)
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    if isinstance(exc, psycopg.OperationalError) and (
        state is None or state.startswith(_UNREACHABLE)
    ):
        hint = "is the server running, and is DATABASE_URL (or --database-url) right?"
        return NO_DATABASE, f"cannot reach the database: {lines[0]}\n{hint}"
    if isinstance(exc, psycopg.errors.InsufficientPrivilege):
        hint = "do it as the owner of schema jobq, or have the owner grant what is missing"
        return FAILED, f"{lines[0]}\n{hint}"
    if isinstance(exc, psycopg.errors.LockNotAvailable):
        return FAILED, "another transaction holds the job's row: try again once it has ended"
    return FAILED, f"the database refused: {lines[0]}"


def _system_error(exc: OSError) -> tuple[int, str] | None:
    if exc.filename is None and exc.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
        return FAILED, f"cannot write the output: {exc.strerror}"
    try:
        Path.cwd()
    except FileNotFoundError:
        return USAGE, "the current folder is gone: change to one that exists"
    return None
