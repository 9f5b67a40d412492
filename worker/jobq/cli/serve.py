"""Migrating a database, and running a worker."""

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Literal

import typer

from jobq import migrate as migration
from jobq.app import App
from jobq.cli.database import Target, fallback_to_embedded, with_target
from jobq.cli.exits import FAILED, OK, USAGE, CommandError
from jobq.cli.options import AsJson
from jobq.cli.output import print_json, print_lines
from jobq.cli.times import show_seconds
from jobq.dashboard import PORT
from jobq.log import configure
from jobq.settings import WorkerSettings
from jobq.worker import Worker

__all__ = ["load_app", "migrate", "worker"]


@with_target
def migrate(
    target: Target,
    status: Annotated[bool, typer.Option("--status", help="Only say what is to do.")] = False,
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Keep trying while the database is away."),
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Install or upgrade the schema of jobq.

    Safe to run twice, at the same time, or after a kill. --status exits 1 when there is something
    to do. --json: {"applied", "loaded", "schema_version"}, with --status {"current", "pending",
    "outdated", "schema_version", "package_version", "server_version"}.
    """
    with target.serving() as dsn:
        if status:
            _print_status(migration.status(dsn, wait=wait), as_json)
            return
        report = migration.migrate(dsn, wait=wait)
    if as_json:
        print_json(
            {
                "applied": report.migrations,
                "loaded": report.sources,
                "schema_version": report.schema_version,
            }
        )
        return
    done = [f"applied {name}" for name in report.migrations]
    if report.sources:
        done.append(f"loaded {len(report.sources)} files of functions, triggers and views")
    took = show_seconds(report.seconds)
    print_lines(
        [
            *(done or ["nothing to do"]),
            f"schema version {report.schema_version} ({took})",
        ]
    )


@with_target
def worker(
    target: Target,
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:APP]",
            show_default=False,
            help="The module and its App, as in shop.jobs:app; else JOB_WORKER_APP.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Jobs at the same time; JOB_WORKER_THREADS.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these kinds; JOB_WORKER_KINDS.")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(metavar="A,B", help="Not these kinds; JOB_WORKER_EXCLUDE.")
    ] = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="One line, or one JSON object, an event.")
    ] = "text",
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="DEBUG to ERROR; JOB_WORKER_LOG_LEVEL.")
    ] = None,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C.

    The module is looked for in the current folder too. The first signal lets running jobs finish
    (JOB_WORKER_SHUTDOWN_SECONDS; exit 1 when some did not), a second one leaves at once. Everything
    else is set by the environment: JOB_WORKER_LEASE_SECONDS, JOB_RETENTION_DAYS, …
    """
    settings = WorkerSettings.from_environment(
        app=app,
        threads=threads,
        kinds=kinds,
        exclude=exclude,
        log_level=log_level,
        database_url=target.url,
    )
    name = settings.app
    if not name:
        raise CommandError(USAGE, "no app: give MODULE:APP, or set JOB_WORKER_APP")
    configure(settings.log_level, log_format)
    with target.serving() as dsn:
        # Handlers enqueue where their jobs come from.
        os.environ["DATABASE_URL"] = dsn
        if target.embedded:
            settings = settings.model_copy(update={"database_url": dsn, "listen_url": None})
            migration.migrate(dsn)
        code = Worker(load_app(name), settings).run()
    if code != OK:
        raise typer.Exit(code)


def load_app(name: str) -> App:
    """Import MODULE:APP, from the current folder too; raises CommandError."""
    module_name, _, attribute = name.partition(":")
    try:
        folder = str(Path.cwd())
        if folder not in sys.path:
            sys.path.insert(0, folder)
    except FileNotFoundError:  # removed; the module may lie elsewhere
        folder = "the current folder, which is gone,"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module asked for, or a package on the way to it; not one that it imports.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise CommandError(
                USAGE, f"no module {error.name!r} in {folder} or on PYTHONPATH: is {name!r} right?"
            ) from error
        raise _broken(module_name, error) from error
    except Exception as error:
        raise _broken(module_name, error) from error
    found: object = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    apps = [f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, App)]
    known = f"it has {', '.join(apps)}" if apps else "it has none: make one with app = jobq.App()"
    what = "has no" if found is None else "has no App called"
    raise CommandError(USAGE, f"module {module_name!r} {what} {attribute!r}; {known}")


def _broken(module_name: str, error: Exception) -> CommandError:
    """Name the place in the user's own code, not in the import machinery."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return CommandError(
        FAILED, f"module {module_name!r} cannot be imported{place}\n{type(error).__name__}: {error}"
    )


def _print_status(found: migration.Status, as_json: bool) -> None:
    drift = found.drift
    outdated = [*drift.changed, *drift.removed, *drift.edited]
    if as_json:
        print_json(
            {
                "current": found.current,
                "pending": found.pending,
                "outdated": outdated,
                "schema_version": found.schema_version,
                "package_version": found.package_version,
                "server_version": found.server_version,
            }
        )
    else:
        version = "no schema" if found.schema_version is None else f"schema {found.schema_version}"
        print_lines(
            [
                f"{version}; this package needs {found.package_version}",
                *(f"pending migration: {name}" for name in found.pending),
                *(f"to be loaded: {name}" for name in (*drift.changed, *drift.removed)),
                *(f"edited by hand, to be loaded again: {name}" for name in drift.edited),
                *(f"not from jobq, left alone: {name}" for name in drift.unknown),
                "nothing to do" if found.current else "to do it: `jobq migrate`",
            ]
        )
    if not found.current:
        raise typer.Exit(FAILED)


@fallback_to_embedded
def demo(
    target: Target,
    path: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            metavar="DIR",
            help="Whose files the jobs read; else those of Python's standard library.",
        ),
    ] = None,
    headless: Annotated[
        bool, typer.Option("--headless", help="Run to the end and say by the exit code how it was.")
    ] = False,
    dashboard_port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65_535, help="Of the dashboard; 0: any free one.")
    ] = PORT,
) -> None:
    """Show the queue at work on real files.

    One job for each file, and some that go wrong; then checks what became of every one. Without
    DATABASE_URL it brings its own PostgreSQL, with its data in ./.jobq; `jobq list --embedded`
    looks at it. Stays up, with the dashboard, until Ctrl-C. --headless has none, and exits 1 when
    anything is off.
    """
    from jobq.demo.run import run

    raise typer.Exit(run(target, path, dashboard_port, headless=headless))
