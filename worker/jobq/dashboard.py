"""The dashboard's process: Streamlit serving dashboard/app.py, and ending with who started it."""

import contextlib
import errno
import http.client
import importlib.util
import os
import signal
import socket
import sys
import threading
import time
import traceback

from jobq._children import Child
from jobq.errors import JobqError
from jobq.paths import dashboard_dir

__all__ = ["HOST", "PORT", "Dashboard", "DashboardError"]

HOST = "127.0.0.1"
PORT = 8501
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NEEDS = ("streamlit", "psycopg_pool")
_READY_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class DashboardError(JobqError):
    """The dashboard cannot be started; says what to do."""


class Dashboard(Child):
    """The dashboard of the database `dsn`, in a process of its own; port 0 takes any free one.

    Raises DashboardError when Streamlit is not installed or the port cannot be had.
    """

    def __init__(
        self, dsn: str, *, host: str = HOST, port: int = PORT, keep_log: bool = True
    ) -> None:
        _require_streamlit()
        self._host = host
        self._port = _free_port(host, port)
        env = {**os.environ, "DATABASE_URL": dsn}
        if host in LOOPBACK:
            # A page from elsewhere could have its name resolve to this address, and then act here.
            env.setdefault("STREAMLIT_SERVER_ALLOWED_HOSTS", " ".join(LOOPBACK))
        # -P: modules in the current folder are none of the dashboard's.
        command = [sys.executable, "-P", "-m", "jobq.dashboard", str(dashboard_dir() / "app.py")]
        options = {"server.headless": "true", "server.address": host, "server.port": self._port}
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        super().__init__("dashboard", command, env, keep_log=keep_log)

    @property
    def url(self) -> str:
        """Where it is, for a browser on this machine."""
        return f"http://{_bracketed(_reachable(self._host))}:{self._port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self._host in LOOPBACK

    def wait_until_ready(self, seconds: float = _READY_SECONDS) -> None:
        """Return once it serves; raises DashboardError when it ended, or took too long."""
        deadline = time.monotonic() + seconds
        while not self._is_healthy():
            if self.exit_code is not None:
                raise DashboardError(f"the dashboard did not start: {self.log_tail()}")
            if time.monotonic() > deadline:
                raise DashboardError(
                    f"the dashboard did not start within {seconds:g} s: {self.log_tail()}"
                )
            time.sleep(_LOOK_SECONDS)

    def _is_healthy(self) -> bool:
        if self.exit_code is not None:
            return False
        # Straight to it, whatever proxies the environment names.
        connection = http.client.HTTPConnection(_reachable(self._host), self._port, timeout=2)
        try:
            connection.request("GET", "/_stcore/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _require_streamlit() -> None:
    if all(importlib.util.find_spec(name) for name in _NEEDS):
        return
    raise DashboardError(
        "the dashboard is not installed: `pip install 'jobq[dashboard]'`"
        " (from a checkout: `pip install '.[dashboard]'`)"
    )


def _free_port(host: str, port: int) -> int:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise DashboardError(
                f"port {port} on {host} is taken: name another one (0: any that is free)"
            ) from error
        raise DashboardError(f"cannot listen on {host}, port {port}: {error.strerror}") from error


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound here


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Be Streamlit until SIGTERM, or until the process that started this one is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from streamlit.web.cli import main as streamlit

    sys.argv[1:1] = ["run"]
    code = 1
    try:
        streamlit(prog_name="streamlit")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001 - told, as at the end of any program
        traceback.print_exc()
    finally:
        # Nothing here is to be saved, and taking all modules down may take a second or two.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
