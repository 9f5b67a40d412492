"""The command line, `jobq`: one module per theme, put together here.

Standard output carries what was asked for, standard error what went wrong.
"""

import os
import signal
import sys
import traceback
from typing import Annotated

import typer

from jobq.cli import dashboard, health, jobs, serve, steer
from jobq.cli.database import DatabaseUrl, Embedded, choose_globally
from jobq.cli.exits import explain_error
from jobq.cli.output import ClosedPipe, complain

__all__ = ["app", "main"]

_EPILOG = """\b
Exit codes:
  0  done
  1  refused or failed; with verify and migrate --status: something is off
  2  wrong usage or settings
  3  the database cannot be reached, or its schema does not fit
  4  no such job, or nothing matches

Each command with --json prints one JSON object, described in its --help, and nothing else; times in
it are ISO 8601, UTC. JOB_WORKER_LOG_LEVEL=DEBUG adds the traceback to an error.
"""

app = typer.Typer(
    name="jobq",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"jobq {version('jobq')}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    database_url: DatabaseUrl = None,
    in_embedded: Embedded = False,
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Say which.")
    ] = False,
) -> None:
    """A job queue whose rules live in PostgreSQL.

    The database is the one in DATABASE_URL, unless an option names another.
    """
    choose_globally(ctx, database_url, in_embedded)


app.command()(serve.migrate)
app.command()(serve.worker)
app.command()(jobs.enqueue)
app.command("list")(jobs.list_jobs)
app.command()(jobs.show)
app.command()(jobs.explain)
app.command()(steer.cancel)
app.command()(steer.retry)
app.command()(steer.purge)
app.command()(health.stats)
app.command()(health.verify)
app.command()(dashboard.dashboard)
app.command()(serve.demo)


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit; the script `jobq`."""
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end the command.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(_run(args))


def _replace_closed_streams() -> None:
    """Give each standard stream that was closed the null device.

    From 0 up: a free number goes to the next file opened, and must not be the database's socket.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _run(args: list[str] | None) -> int:
    try:
        given = sys.argv[1:] if args is None else args
        code = app(given or ["--help"], prog_name="jobq", standalone_mode=False)
        sys.stdout.flush()
    except (ClosedPipe, BrokenPipeError):
        _empty_output()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        explained = explain_error(error)
        if explained is None:
            raise
        _empty_output()
        if os.environ.get("JOB_WORKER_LOG_LEVEL", "").strip().upper() == "DEBUG":
            traceback.print_exc()
        complain(explained[1])
        return explained[0]
    return code if isinstance(code, int) else 0


def _empty_output() -> None:
    """Write what is still in the buffer, or drop it: the flush at exit must not trip over it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
