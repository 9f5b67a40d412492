"""The demo's worker processes, which are what `jobq worker` runs."""

import os
import sys

from jobq._children import Child
from jobq.demo.handlers import PARENT, VICTIM

__all__ = ["LEASE_SECONDS", "WorkerProcess"]

LEASE_SECONDS = 4
REAP_SECONDS = 1
_SHUTDOWN_SECONDS = 1.5


class WorkerProcess(Child):
    """A worker in a process of its own."""

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
        command = [sys.executable, "-m", "jobq", "worker", "jobq.demo:app", *options]
        super().__init__("worker process", command, env)
