"""The filter of jobq's functions that act on many jobs, made from options."""

import json
from typing import Any

import typer

from jobq.cli.database import Connection
from jobq.cli.exits import USAGE, CommandError
from jobq.cli.options import read_object
from jobq.cli.times import parse_duration, parse_time

__all__ = ["make_filter"]


def make_filter(conn: Connection, job_ids: list[int] | None, all_jobs: bool, **fields: Any) -> str:
    """Return the filter as JSON text, or the ids as one; both at once and neither are refused."""
    given = {name: value for name, value in fields.items() if value is not None}
    if job_ids and (given or all_jobs):
        raise CommandError(USAGE, "give ids or options that match jobs, not both")
    if all_jobs and given:
        raise CommandError(USAGE, "--all and options that match jobs exclude each other")
    if not (job_ids or given or all_jobs):
        raise CommandError(USAGE, "which jobs? give ids, options such as --kind, or --all")
    if job_ids:
        return json.dumps({"ids": job_ids})
    for name in ("created_before", "created_after"):
        if name in given:
            given[name] = _moment(conn, given[name])
    part = given.pop("payload", None)
    text = json.dumps(given)
    if part is None:
        return text
    # Spliced in as text, so that numbers keep their digits.
    return f'{text[:-1]}{", " if given else ""}"payload": {read_object(part)}}}'


def _moment(conn: Connection, text: str) -> str:
    """A time as text; a duration counts back from now by the database's clock."""
    try:
        seconds = parse_duration(text)
    except typer.BadParameter:
        return parse_time(text).isoformat()
    row = conn.execute("select clock_timestamp() - make_interval(secs => %s)", (seconds,))
    (time,) = row.fetchone() or (None,)
    assert time is not None
    return str(time.isoformat())
