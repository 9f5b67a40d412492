"""Cancelling, retrying and purging: by id, or all that match a filter."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from jobq import client
from jobq.cli.database import Connection, query, with_connection
from jobq.cli.exits import FAILED, NOT_FOUND, USAGE, CommandError
from jobq.cli.filters import make_filter
from jobq.cli.options import (
    Active,
    AllJobs,
    AsJson,
    CreatedAfter,
    CreatedBefore,
    DryRun,
    Error,
    Final,
    JobIds,
    Kinds,
    PayloadPart,
    Priority,
    Retryable,
    Worker,
    Yes,
)
from jobq.cli.output import complain, counted, print_json, print_lines
from jobq.cli.times import parse_duration
from jobq.errors import IllegalTransition, JobNotFound, JobqError

__all__ = ["cancel", "purge", "retry"]

_CANCEL_MANY = "select c.* from jobq.cancel_jobs(%s::jsonb, %s, %s) c"
_RETRY_MANY = "select r.* from jobq.retry_jobs(%s::jsonb, %s, %s, %s) r"
_PURGE = "select jobq.purge(make_interval(secs => %s), %s, %s::text[]::jobq.job_status[])"
_PURGE_BATCH = 1000
_ALL_AT_ONCE = 2**31 - 1


@with_connection("operator")
def cancel(
    conn: Connection,
    job_ids: JobIds = None,
    all_jobs: AllJobs = False,
    kinds: Kinds = None,
    status: Annotated[
        list[Active] | None, typer.Option(metavar="STATUS", help="queued or running; repeatable.")
    ] = None,
    priority: Priority = None,
    worker: Worker = None,
    payload: PayloadPart = None,
    created_before: CreatedBefore = None,
    created_after: CreatedAfter = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs, by id or by what they have in common.

    With options instead of ids: the jobs that all of them match.
    A queued job is cancelled at once, a running one is asked to stop, a finished one stays as it
    is. --json: {"jobs": [{"job_id", "status", "error"}]} for ids; {"matched", "changed", "sample",
    "dry_run"} for options and for a dry run.
    """
    wanted = make_filter(
        conn,
        job_ids,
        all_jobs,
        kind=kinds,
        status=status,
        priority=priority,
        worker=worker,
        payload=payload,
        created_before=created_before,
        created_after=created_after,
    )
    if job_ids and not dry_run:
        _each(job_ids, lambda job_id: client.cancel(conn, job_id), as_json)
        return

    def run(dry: bool) -> dict[str, Any]:
        return query(conn, _CANCEL_MANY, wanted, dry, _ALL_AT_ONCE)[0]

    _many(run, "cancel", "cancelled or asked to stop", dry_run, yes, as_json)


@with_connection("operator")
def retry(
    conn: Connection,
    job_ids: JobIds = None,
    all_jobs: AllJobs = False,
    kinds: Kinds = None,
    status: Annotated[
        list[Retryable] | None,
        typer.Option(metavar="STATUS", help="failed or cancelled; repeatable."),
    ] = None,
    priority: Priority = None,
    error: Error = None,
    payload: PayloadPart = None,
    created_before: CreatedBefore = None,
    created_after: CreatedAfter = None,
    extra_attempts: Annotated[
        int, typer.Option(metavar="N", help="Starts that each has left at least.")
    ] = 1,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Queue failed or cancelled jobs again.

    By ids, or with options: the jobs that all of them match. Their history is kept. --json as for
    cancel.
    """
    wanted = make_filter(
        conn,
        job_ids,
        all_jobs,
        kind=kinds,
        status=status,
        priority=priority,
        error=error,
        payload=payload,
        created_before=created_before,
        created_after=created_after,
    )
    if job_ids and not dry_run:
        _each(job_ids, lambda job_id: client.retry(conn, job_id, extra_attempts), as_json)
        return

    # In one statement: by batches, one that fails again at once would be retried again and again.
    def run(dry: bool) -> dict[str, Any]:
        return query(conn, _RETRY_MANY, wanted, extra_attempts, dry, _ALL_AT_ONCE)[0]

    _many(run, "retry", "queued again", dry_run, yes, as_json)


@with_connection("operator")
def purge(
    conn: Connection,
    older_than: Annotated[
        float,
        typer.Option(
            parser=parse_duration, metavar="DURATION", help="Finished longer ago: 90m, 7d."
        ),
    ],
    status: Annotated[
        list[Final] | None,
        typer.Option(metavar="STATUS", help="Only succeeded, failed or cancelled; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete finished jobs and their history.

    What is queued or running is never deleted. Works in batches, each committed: it can be stopped
    and run again. --json: {"purged"}.
    """
    statuses = [str(final) for final in status or Final]
    purged = 0
    while True:
        row = conn.execute(_PURGE, (older_than, _PURGE_BATCH, statuses)).fetchone()
        assert row is not None
        if row[0] == 0:
            break
        purged += row[0]
    if as_json:
        print_json({"purged": purged})
    else:
        print_lines([f"{counted(purged, 'job')} deleted"])


def _each(job_ids: list[int], run: Callable[[int], str], as_json: bool) -> None:
    results: list[dict[str, Any]] = []
    worst = 0
    for job_id in dict.fromkeys(job_ids):
        status, error = None, None
        try:
            status = run(job_id)
        except (JobNotFound, IllegalTransition) as exc:
            error = str(exc)
            code = NOT_FOUND if isinstance(exc, JobNotFound) else FAILED
            worst = FAILED if FAILED in (worst, code) else code
            if not as_json:
                complain(_first_line(exc))
        results.append({"job_id": job_id, "status": status, "error": error})
    if as_json:
        print_json({"jobs": results})
    else:
        print_lines(f"job {r['job_id']} {_outcome(r['status'])}" for r in results if r["status"])
    if worst:
        raise typer.Exit(worst)


def _outcome(status: str) -> str:
    return "is running: asked to stop" if status == "running" else f"is {status}"


def _many(
    run: Callable[[bool], dict[str, Any]],
    verb: str,
    done: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    result = run(True)
    if result["matched"] and not dry_run:
        if not yes:
            _confirm(verb, result)
        result = run(False)
    if as_json:
        print_json({**result, "dry_run": dry_run})
    elif not result["matched"]:
        raise CommandError(NOT_FOUND, f"no job to {verb} matches")
    elif dry_run:
        count = result["matched"]
        print_lines([f"would {verb} {counted(count, 'job')}: {_sample(result)}"])
    else:
        rest = result["matched"] - result["changed"]
        more = f"; {rest:,} left as they were (locked, or asked already)" if rest else ""
        print_lines([f"{counted(result['changed'], 'job')} {done}{more}"])
    if not result["matched"]:
        raise typer.Exit(NOT_FOUND)


def _confirm(verb: str, result: dict[str, Any]) -> None:
    count = result["matched"]
    if not sys.stdin.isatty():
        raise CommandError(
            USAGE, f"this would {verb} {counted(count, 'job')}: add --yes, or --dry-run to look"
        )
    sys.stderr.write(f"{verb} {counted(count, 'job')} ({_sample(result)})? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def _sample(result: dict[str, Any]) -> str:
    more = ", …" if result["matched"] > len(result["sample"]) else ""
    return ", ".join(str(job_id) for job_id in result["sample"]) + more


def _first_line(exc: JobqError) -> str:
    return str(exc).splitlines()[0]
