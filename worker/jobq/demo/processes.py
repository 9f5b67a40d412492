"""The demo's worker processes, which are what `jobq worker` runs."""

import os
import subprocess
import sys
import tempfile
import time
from typing import IO

from jobq.demo.handlers import PARENT, VICTIM

__all__ = ["LEASE_SECONDS", "WorkerProcess", "stop_all"]

LEASE_SECONDS = 4
REAP_SECONDS = 1
_SHUTDOWN_SECONDS = 1.5
_STOP_SECONDS = 3.0
_TAIL_LINES = 15


class WorkerProcess:
    """A worker in a process of its own; its log is kept for when something goes wrong."""

    def __init__(
        self, dsn: str, *options: str, listen_url: str | None = None, victim: str | None = None
    ) -> None:
        # Settings of the user's own workers do not count here.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JOB_", "JOBQ_"))}
        env |= {
            "DATABASE_URL": dsn,
            "JOB_WORKER_LEASE_SECONDS": str(LEASE_SECONDS),
            "JOB_WORKER_REAP_SECONDS": str(REAP_SECONDS),
            "JOB_WORKER_SHUTDOWN_SECONDS": str(_SHUTDOWN_SECONDS),
            # The database may hold jobs that are none of the demo's business.
            "JOB_RETENTION_DAYS": "0",
            "JOB_FAILED_RETENTION_DAYS": "0",
            PARENT: str(os.getpid()),
        }
        if listen_url:
            env["JOB_WORKER_LISTEN_URL"] = listen_url
        if victim:
            env[VICTIM] = victim
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - for the process's life
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jobq", "worker", "jobq.demo:app", *options],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is the demo's to pass on, once
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended (a negative signal number if by one); None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait for the end and return the exit code; None if it does not come in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Ask the process to stop."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()
        self._process.wait()

    def log_tail(self) -> str:
        """The last lines of its log."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-_TAIL_LINES:])


def stop_all(workers: list[WorkerProcess]) -> None:
    """Stop the processes: all asked at once, those that are still there in 3 s killed."""
    for worker in workers:
        worker.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        if worker.wait(max(deadline - time.monotonic(), 0)) is None:
            worker.kill()
