"""Enqueuing a job, and looking at jobs."""

from typing import Annotated, Any

import typer

from jobq import client
from jobq.cli.database import Connection, Row, query, with_connection
from jobq.cli.exits import NOT_FOUND, USAGE, CommandError
from jobq.cli.options import AsJson, JobId, Kinds, Status, read_object
from jobq.cli.output import Column, print_json, print_lines, print_table
from jobq.cli.show import describe, summary
from jobq.cli.times import parse_duration, parse_time

__all__ = ["enqueue", "explain", "list_jobs", "show"]

# Asked together with the rows: ages are told by the database's clock.
_LIST = """
select d.*, clock_timestamp() as now
from jobq.job_details d
where (%s::text[] is null or d.status = any(%s::text[]::jobq.job_status[]))
  and (%s::text[] is null or d.kind = any(%s::text[]))
  and (%s::bigint is null or d.id < %s::bigint)
order by d.id desc
limit %s
"""
_SHOW = "select d.*, clock_timestamp() as now from jobq.job_details d where d.id = %s"
# The newest ones, oldest first: a job that reports for hours has thousands.
_TIMELINE = """
select t.* from (
  select t.*, count(*) over () as events
  from jobq.job_timeline t
  where t.job_id = %s
  order by t.id desc
  limit %s
) t
order by t.id
"""


@with_connection("producer")
def enqueue(
    conn: Connection,
    kind: Annotated[str, typer.Argument(help="Name of the handler that is to run it.")],
    payload: Annotated[
        str,
        typer.Option(
            metavar="JSON|@FILE|-",
            help="The handler's arguments as a JSON object; - reads standard input.",
        ),
    ] = "{}",
    priority: Annotated[int, typer.Option(metavar="N", help="-100 to 100; HIGHER runs first.")] = 0,
    delay: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration, metavar="DURATION", help="Run it no sooner: 30s, 90m, 7d."
        ),
    ] = None,
    at: Annotated[
        Any,
        typer.Option(
            parser=parse_time, metavar="TIME", help="Run it no sooner: 2030-01-31T12:00:00Z."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Idempotency key: no second job while one has it."),
    ] = None,
    max_attempts: Annotated[int, typer.Option(metavar="N", help="Starts before it fails.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Enqueue a job.

    With a key that a job of the same kind and payload has, nothing is added and that job is named;
    with any other kind or payload the key is refused (exit 1).
    """
    if delay is not None and at is not None:
        raise CommandError(USAGE, "--delay and --at exclude each other")
    job = client.NewJob(
        kind=kind,
        payload=read_object(payload),
        priority=priority,
        available_at=at,
        delay=delay,
        max_attempts=max_attempts,
        idempotency_key=key,
    )
    done = client.enqueue(conn, job)
    if as_json:
        print_json({"job_id": done.job_id, "created": done.created, "status": done.status})
    elif done.created:
        print_lines([f"job {done.job_id} {done.status}"])
    else:
        print_lines([f"job {done.job_id} has that key already, and is {done.status}"])


@with_connection("reader")
def list_jobs(
    conn: Connection,
    status: Annotated[
        list[Status] | None,
        typer.Option(
            metavar="STATUS", help="queued, running, succeeded, failed or cancelled; repeatable."
        ),
    ] = None,
    kinds: Kinds = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="At most.")] = 20,
    before: Annotated[
        int | None, typer.Option(metavar="ID", help="With a smaller id: the page after that one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first.

    What a pipe gets is not cut to any width. --json: {"jobs": [{"id", "kind", "status", …}]}, the
    columns of the view jobq.job_details.
    """
    statuses = [str(one) for one in status] if status else None
    rows = query(conn, _LIST, statuses, statuses, kinds, kinds, before, before, limit)
    if as_json:
        print_json({"jobs": [_columns(row) for row in rows]})
        return
    columns = [
        Column("id", right=True),
        Column("kind", wide=True),
        Column("status"),
        Column("attempt", right=True),
        Column("note", wide=True),
    ]
    if rows:
        print_table(columns, [summary(row) for row in rows], styled="status")
    else:
        print_lines(["no such jobs" if status or kinds or before else "no jobs"])


@with_connection("reader")
def show(
    conn: Connection,
    job_id: JobId,
    events: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="Only the last N events.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Show a job and its timeline; times are UTC.

    --json: {"job": {…}, "timeline": [{"id", "at", "event", "from_status", "to_status", "attempt",
    "worker", "actor", "detail"}]}.
    """
    rows = query(conn, _SHOW, job_id)
    if not rows:
        raise CommandError(NOT_FOUND, f"no job {job_id}: it was purged, or never existed")
    timeline = query(conn, _TIMELINE, job_id, events)
    hidden = timeline[0]["events"] - len(timeline) if timeline else 0
    if as_json:
        entries = [
            {k: v for k, v in row.items() if k not in ("job_id", "events")} for row in timeline
        ]
        print_json({"job": _columns(rows[0]), "timeline": entries})
    else:
        describe(rows[0], timeline, hidden)


@with_connection("reader")
def explain(conn: Connection, job_id: JobId, as_json: AsJson = False) -> None:
    """Say why a job is where it is.

    --json: {"job_id", "reasons": [{"reason", "message", "detail"}]}; the reasons are listed at the
    SQL function jobq.explain().
    """
    reasons = query(conn, "select e.* from jobq.explain(%s) e", job_id)
    if as_json:
        print_json({"job_id": job_id, "reasons": reasons})
    else:
        print_lines([f"job {job_id}:", *(f"  {row['message']}" for row in reasons)])


def _columns(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "now"}
