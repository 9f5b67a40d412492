"""Options that several commands share, and the values they take."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jobq.cli.exits import USAGE, CommandError

__all__ = [
    "Active",
    "AllJobs",
    "AsJson",
    "CreatedAfter",
    "CreatedBefore",
    "DryRun",
    "Error",
    "Final",
    "JobId",
    "JobIds",
    "Kinds",
    "PayloadPart",
    "Priority",
    "Retryable",
    "Status",
    "Worker",
    "Yes",
    "read_object",
]

Status = StrEnum("Status", ["queued", "running", "succeeded", "failed", "cancelled"])
Active = StrEnum("Active", ["queued", "running"])
Retryable = StrEnum("Retryable", ["failed", "cancelled"])
Final = StrEnum("Final", ["succeeded", "failed", "cancelled"])

JobId = Annotated[int, typer.Argument(metavar="ID")]
JobIds = Annotated[
    list[int] | None,
    typer.Argument(metavar="[ID]...", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count and sample; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

AllJobs = Annotated[bool, typer.Option("--all", help="All that the command applies to.")]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", metavar="KIND", help="Of this kind; repeatable.")
]
Priority = Annotated[int | None, typer.Option(metavar="N", help="Of this priority.")]
Worker = Annotated[str | None, typer.Option(metavar="NAME", help="Run by this worker now.")]
Error = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Whose last error contains this, in any case.")
]
PayloadPart = Annotated[
    str | None,
    typer.Option("--payload", metavar="JSON|@FILE|-", help="Whose payload contains this object."),
]
CreatedBefore = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="Enqueued before: a time with its UTC offset, or 7d (ago)."),
]
CreatedAfter = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Enqueued since: a time, or 90m (ago).")
]


def read_object(text: str) -> str:
    """Return a payload, a JSON object given as itself, as @file, or as - for standard input."""
    text = _read(text)
    try:
        value = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
        if isinstance(value, dict):
            return text
    except ValueError:
        pass
    except RecursionError:  # the database may still take it
        return text
    raise CommandError(USAGE, "--payload takes a JSON object, such as '{\"customer\": 7}'")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read(text: str) -> str:
    if text != "-" and not text.startswith("@"):
        return text
    name = "standard input" if text == "-" else text[1:]
    try:
        data = sys.stdin.buffer.read() if text == "-" else Path(name).read_bytes()
        return data.decode()
    except OSError as error:
        raise CommandError(USAGE, f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(USAGE, f"{name} is not UTF-8 text") from error
