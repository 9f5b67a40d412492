"""Serving the dashboard."""

import os
import sys
import webbrowser
from typing import Annotated

import typer

from jobq._children import sigterm_as_ctrl_c, stop_all
from jobq.cli.database import Target, with_target
from jobq.cli.exits import FAILED, CommandError
from jobq.cli.output import complain, is_terminal, print_lines
from jobq.dashboard import HOST, PORT, Dashboard
from jobq.migrate import migrate
from jobq.settings import DashboardSettings

__all__ = ["dashboard"]

_LOOK_SECONDS = 60.0


@with_target
def dashboard(
    target: Target,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65_535, help="Where to listen; 0: any free port.")
    ] = PORT,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Who may connect; else only this machine.")
    ] = HOST,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
) -> None:
    """Serve the dashboard until SIGTERM or Ctrl-C.

    Shows what the queue holds and does, and steers it where the database role may
    (jobq.grant_access: reader or operator). JOB_DASHBOARD_READ_ONLY=true only shows. Whoever
    reaches the port can do what it can: before another --host than this machine put a login
    ([auth] in .streamlit/secrets.toml), a VPN or a reverse proxy.
    """
    DashboardSettings.from_environment()
    with sigterm_as_ctrl_c(), target.serving() as dsn:
        try:
            if target.embedded:
                migrate(dsn)
            _serve(dsn, host, port, browser=not no_browser)
        except KeyboardInterrupt:
            return


def _serve(dsn: str, host: str, port: int, *, browser: bool) -> None:
    child = Dashboard(dsn, host=host, port=port, keep_log=False)
    try:
        child.wait_until_ready()
        print_lines([f"dashboard: {child.url}"])
        sys.stdout.flush()
        if not child.is_local:
            complain(f"other machines reach it too: see `jobq dashboard --help` ({host})")
        if browser and _has_screen():
            webbrowser.open(child.url)
        while (code := child.wait(_LOOK_SECONDS)) is None:
            pass
    finally:
        stop_all([child])
    raise CommandError(FAILED, f"the dashboard ended by itself (exit code {code})")


def _has_screen() -> bool:
    """Whether a browser would open a window, and not take over the terminal."""
    windows = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return windows and is_terminal()
